//! Takes queue pairs to RTS, on a thread of its own: on Ethernet the kernel finds out the peer's hardware address on the way,
//! which takes up to a second where nobody has it.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
    thread::{self, JoinHandle},
};

use ringway_verbs::QueuePairNumber;
use rustix::{
    event::{EventfdFlags, eventfd},
    io::Errno,
};

use crate::hardware::{QueuePair, ReceiveAttributes, SendAttributes};

/// A queue pair in INIT, and what it is to know.
pub(crate) struct Job {
    pub(crate) number: QueuePairNumber,
    pub(crate) hardware: Arc<QueuePair>,
    pub(crate) receive: ReceiveAttributes,
    pub(crate) send: SendAttributes,
}

/// A step that the system refused, and why.
pub(crate) type Refusal = (&'static str, Errno);

#[derive(Debug)]
pub(crate) struct Connector {
    /// Present until the end.
    jobs: Option<Sender<Job>>,
    done: Receiver<(QueuePairNumber, Result<(), Refusal>)>,
    thread: Option<JoinHandle<()>>,
    /// Readable when something is done.
    bell: Arc<OwnedFd>,
    /// Jobs that are not over.
    pending: usize,
}

impl Connector {
    pub(crate) fn new() -> Result<Self, Errno> {
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (jobs, taken) = channel::<Job>();
        let (tell, done) = channel();
        let rung = Arc::clone(&bell);
        let work = move || {
            for Job { number, hardware, receive, send } in taken {
                let result = to_ready(&hardware, &receive, &send);
                // Whoever has nobody to tell has nothing to do any more.
                drop(hardware);
                if tell.send((number, result)).is_err() {
                    return;
                }
                let _ = rustix::io::write(&*rung, &1_u64.to_ne_bytes());
            }
        };
        let thread = thread::Builder::new().name("ringway-connect".to_owned()).spawn(work);
        let thread = thread.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
        Ok(Self { jobs: Some(jobs), done, thread: Some(thread), bell, pending: 0 })
    }

    /// Begins with a queue pair; [`Connector::next`] says how it ended.
    pub(crate) fn begin(&mut self, job: Job) {
        if let Some(jobs) = &self.jobs
            && jobs.send(job).is_ok()
        {
            self.pending += 1;
        }
    }

    /// Whether there is something to wait for.
    pub(crate) const fn is_busy(&self) -> bool {
        self.pending > 0
    }

    /// A queue pair that has come to RTS, or not.
    pub(crate) fn next(&mut self) -> Option<(QueuePairNumber, Result<(), Refusal>)> {
        let next = self.done.try_recv().ok()?;
        self.pending -= 1;
        if self.pending == 0 {
            let _ = rustix::io::read(&*self.bell, &mut [0; 8]);
        }
        Some(next)
    }

    /// Readable when [`Connector::next`] has something.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

fn to_ready(hardware: &QueuePair, receive: &ReceiveAttributes, send: &SendAttributes) -> Result<(), Refusal> {
    hardware
        .ready_to_receive(receive)
        .map_err(|errno| ("a queue pair's way to RTR (its peer's address)", errno))?;
    hardware.ready_to_send(send).map_err(|errno| ("a queue pair's way to RTS", errno))
}

impl Drop for Connector {
    fn drop(&mut self) {
        self.jobs = None;
        // It may be at a queue pair, which must end before what that was made of.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
