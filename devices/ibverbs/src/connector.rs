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
    /// The same.
    done: Option<Receiver<(QueuePairNumber, Result<(), Refusal>)>>,
    thread: Option<JoinHandle<()>>,
    /// Readable when something is done: it is rung before each is told, and read once for each.
    bell: Arc<OwnedFd>,
    /// Jobs that are not over.
    pending: usize,
}

impl Connector {
    pub(crate) fn new() -> Result<Self, Errno> {
        let bell =
            Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE)?);
        let (jobs, taken) = channel::<Job>();
        let (tell, done) = channel();
        let rung = Arc::clone(&bell);
        let work = move || {
            for Job { number, hardware, receive, send } in taken {
                let result = to_ready(&hardware, &receive, &send);
                drop(hardware);
                let _ = rustix::io::write(&*rung, &1_u64.to_ne_bytes());
                // Whoever has nobody to tell has nothing to do any more.
                if tell.send((number, result)).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("ringway-connect".to_owned()).spawn(work);
        let thread = thread.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
        Ok(Self { jobs: Some(jobs), done: Some(done), thread: Some(thread), bell, pending: 0 })
    }

    /// Begins with a queue pair; [`Connector::next`] says how it ended. `false`: there is nobody to do it.
    pub(crate) fn begin(&mut self, job: Job) -> bool {
        let begun = self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok());
        self.pending += usize::from(begun);
        begun
    }

    /// Whether there is something to wait for.
    pub(crate) const fn is_busy(&self) -> bool {
        self.pending > 0
    }

    /// A queue pair that has come to RTS, or not.
    pub(crate) fn next(&mut self) -> Option<(QueuePairNumber, Result<(), Refusal>)> {
        let next = self.done.as_ref()?.try_recv().ok()?;
        self.pending -= 1;
        let _ = rustix::io::read(&*self.bell, &mut [0; 8]);
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

impl Connector {
    /// Waits for what is being done, and leaves what has not begun: then nobody but their owners has queue pairs.
    pub(crate) fn end(&mut self) {
        (self.jobs, self.done) = (None, None);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Connector {
    fn drop(&mut self) {
        self.end();
    }
}
