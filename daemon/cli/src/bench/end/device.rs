//! An end that has its device in its own process: what the device takes, with no daemon between.

use std::{
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use ringway_mem::{MemFd, passing};
use ringway_verbs::{
    Access, Completion, CompletionKind, Endpoint, LocalSlice, MemoryKeys, Operation, PostError,
    QueuePairConfig, QueuePairNumber, QueuePairState, ReceiveRequest, RemoteKey, RemoteSlice, Role, Status,
    Time, WorkRequest,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Address, MESSAGE_BYTES_MAX, Messenger, make::AnyDevice};
use crate::bench::{costs::Copied, result::Polling};

/// Up to here messages go into posted receives, longer ones are written where the peer's memory is: as a daemon does it.
const SEND_BYTES_MAX: u64 = 8192;
/// Messages posted at a time, and receives.
const DEPTH: u32 = 64;
/// What messages are written from, and to: those under way at a time are apart in it.
const AREA_BYTES: u64 = 2 * MESSAGE_BYTES_MAX;
/// Where received messages of up to [`SEND_BYTES_MAX`] go: behind both areas.
const RECEIVES_AT: u64 = 2 * AREA_BYTES;
const REGION_BYTES: u64 = RECEIVES_AT + DEPTH as u64 * SEND_BYTES_MAX;
/// How long connecting may take, and waiting for a message while the end polls. One that sleeps has no timer: whoever started
/// it notices.
const PATIENCE: Duration = Duration::from_secs(10);
/// Polls between looks at the clock, which take as long as a poll that finds nothing.
const POLLS_PER_CLOCK: u32 = 16;
/// Between two looks whether the connection is made: system calls meanwhile would look like those of what is measured.
const CONNECT_LOOKS: Duration = Duration::from_micros(200);
/// Fruitless polls between looks at the clock and at the queue pair.
const POLLS_PER_LOOK: u32 = 1 << 16;

/// One queue pair on a device.
pub(super) struct DeviceEnd {
    device: AnyDevice,
    events: Option<OwnedFd>,
    queue_pair: QueuePairNumber,
    keys: MemoryKeys,
    peer_key: RemoteKey,
    polling: Polling,
    start: Instant,
    /// What the clock said last.
    now: Time,
    polls: u32,
    /// Messages that came and were not waited for yet.
    arrived: u64,
    /// Large messages that are under way.
    writing: u64,
    /// Numbers messages, so that those under way are apart.
    next: u64,
    /// How many places further that is each time.
    step: u64,
    /// System calls made here, not by the device.
    calls: u64,
    kernel_copies: Option<f64>,
}

impl DeviceEnd {
    /// Makes the queue pair, its memory and its receives.
    pub(super) fn open((mut device, kernel_copies): (AnyDevice, Option<f64>)) -> Result<Self, String> {
        let config = QueuePairConfig { send_depth: DEPTH, receive_depth: DEPTH };
        let queue_pair = device.create_queue_pair(config).map_err(|e| e.to_string())?;
        let (file, mapping) = MemFd::region("ringway-bench", REGION_BYTES).map_err(|e| e.to_string())?;
        let file = file.as_fd().try_clone_to_owned().map_err(|e| e.to_string())?;
        let mapping = Arc::new(mapping.keep_file(file));
        let keys = device.register(mapping, Access::ALL).map_err(|e| e.to_string())?;
        let events =
            device.event_descriptor().map(passing::duplicate).transpose().map_err(|e| e.to_string())?;
        let mut end = Self {
            device,
            events,
            queue_pair,
            keys,
            peer_key: RemoteKey(0),
            polling: Polling::Spin,
            start: Instant::now(),
            now: Time(0),
            polls: 0,
            arrived: 0,
            writing: 0,
            next: 0,
            step: 1,
            calls: 0,
            kernel_copies,
        };
        (0..u64::from(DEPTH)).try_for_each(|id| end.post_receive(id))?;
        Ok(end)
    }

    /// What the other end must know.
    pub(super) fn address(&self) -> Result<Address, String> {
        let endpoint = self.device.endpoint(self.queue_pair).map_err(|e| e.to_string())?;
        Ok(Address { endpoint: endpoint.as_bytes().to_vec(), key: self.keys.remote.0 })
    }

    fn post_receive(&mut self, id: u64) -> Result<(), String> {
        let offset = RECEIVES_AT + id * self.step * SEND_BYTES_MAX;
        let local = LocalSlice { key: self.keys.local, offset, length: SEND_BYTES_MAX };
        self.device.post_receive(self.queue_pair, &ReceiveRequest { id, local }).map_err(|e| e.to_string())
    }

    fn request(&mut self, bytes: u64) -> WorkRequest {
        let length = bytes.min(MESSAGE_BYTES_MAX);
        let places = (AREA_BYTES / length.max(SEND_BYTES_MAX)).min(u64::from(DEPTH));
        let offset = self.next % places * length.max(SEND_BYTES_MAX);
        self.next += self.step;
        let is_written = bytes > SEND_BYTES_MAX;
        let operation = if is_written {
            let remote = RemoteSlice { key: self.peer_key, offset: AREA_BYTES + offset };
            Operation::WriteWithImmediate { remote, immediate: 0 }
        } else {
            Operation::Send { immediate: None }
        };
        let local = [LocalSlice { key: self.keys.local, offset, length }, LocalSlice::default()];
        // Of small ones none is told when it is done: the next that finds no room shows it.
        WorkRequest { id: 0, operation, local, signalled: is_written, fence: false }
    }

    /// Takes what is complete; whether that was anything.
    fn turn(&mut self) -> Result<bool, String> {
        let mut completions = [Completion::EMPTY; 16];
        if self.polls.is_multiple_of(POLLS_PER_CLOCK) {
            self.now = Time(self.start.elapsed().as_nanos() as u64);
        }
        self.polls = self.polls.wrapping_add(1);
        let count = self.device.poll(self.now, &mut completions);
        for done in completions.iter().take(count) {
            if done.status != Status::Success {
                return Err(format!("a message failed: {:?} ({:?})", done.status, done.kind));
            }
            if done.kind == CompletionKind::Send {
                self.writing -= 1;
            } else {
                self.arrived += 1;
                self.post_receive(done.id)?;
            }
        }
        Ok(count > 0)
    }

    /// Polls, and where that finds nothing sleeps if it is to, until this holds.
    fn wait_until(&mut self, done: impl Fn(&Self) -> bool) -> Result<(), String> {
        let mut fruitless = 0_u32;
        let mut since = None;
        while !done(self) {
            if self.turn()? {
                continue;
            }
            if self.polling == Polling::Block {
                self.sleep()?;
            }
            fruitless = fruitless.wrapping_add(1);
            if fruitless.is_multiple_of(POLLS_PER_LOOK) {
                self.look(*since.get_or_insert_with(Instant::now))?;
            }
        }
        Ok(())
    }

    fn look(&self, since: Instant) -> Result<(), String> {
        if self.device.state(self.queue_pair) == Some(QueuePairState::Error) {
            return Err("the connection failed".to_owned());
        }
        if since.elapsed() > PATIENCE {
            return Err(format!("nothing came for {} s", PATIENCE.as_secs()));
        }
        Ok(())
    }

    /// Sleeps until there is something to poll: without a timer, as bare sockets do, unless the device needs one.
    fn sleep(&mut self) -> Result<(), String> {
        let now = self.start.elapsed();
        let timeout = self.device.deadline().map(|at| Duration::from_nanos(at.0).saturating_sub(now));
        self.polls = 0;
        if self.device.block(timeout) || !self.device.arm() {
            return Ok(());
        }
        let Some(events) = &self.events else { return Ok(()) };
        let timeout = timeout.map(Timespec::try_from).transpose().map_err(|e| e.to_string())?;
        self.calls += 1;
        match poll(&mut [PollFd::new(events, PollFlags::IN)], timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(format!("cannot sleep: {errno}")),
        }
    }
}

impl Messenger for DeviceEnd {
    fn connect(&mut self, peer: &Address, active: bool) -> Result<(), String> {
        let endpoint = Endpoint::new(&peer.endpoint).ok_or("the other end's address is too long")?;
        self.peer_key = RemoteKey(peer.key);
        let role = if active { Role::Active } else { Role::Passive };
        self.device.connect(self.queue_pair, &endpoint, role).map_err(|e| e.to_string())?;
        let begun = Instant::now();
        while self.device.state(self.queue_pair) != Some(QueuePairState::Ready) {
            self.turn()?;
            self.device.flush();
            self.look(begun)?;
            std::thread::sleep(CONNECT_LOOKS);
        }
        Ok(())
    }

    fn set_place(&mut self, in_one_place: bool) {
        self.next = 0;
        self.step = (!in_one_place).into();
    }

    fn set_polling(&mut self, polling: Polling) -> Result<(), String> {
        if polling == Polling::Block && self.events.is_none() {
            return Err("the device has nothing to sleep on".to_owned());
        }
        self.polling = polling;
        Ok(())
    }

    fn send(&mut self, bytes: u64) -> Result<(), String> {
        let request = self.request(bytes);
        if request.signalled {
            let places = (AREA_BYTES / bytes.max(1)).min(u64::from(DEPTH));
            if self.writing >= places {
                self.device.flush();
                self.wait_until(|end| end.writing < places)?;
            }
        }
        loop {
            match self.device.post_send(self.queue_pair, &request) {
                Ok(()) => break,
                Err(PostError::Full) => {
                    self.device.flush();
                    self.turn()?;
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        self.writing += u64::from(request.signalled);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), String> {
        self.device.flush();
        Ok(())
    }

    fn receive(&mut self, _bytes: u64) -> Result<(), String> {
        self.wait_until(|end| end.arrived > 0)?;
        self.arrived -= 1;
        Ok(())
    }

    fn tend(&mut self) {
        // What fails is told when something is measured.
        let _ = self.turn();
        self.device.flush();
    }

    fn kernel_copies(&self) -> Option<f64> {
        self.kernel_copies
    }

    fn counts(&self) -> (u64, Option<Copied>) {
        let (mut calls, mut copied) = (self.calls, None::<Copied>);
        self.device.for_each_counter(&mut |name, value| match name {
            "system_calls" => calls += value,
            "bytes_copied" | "bytes_straight" => copied.get_or_insert_default().own += value,
            // Copied by either end, and counted by the one that they came to.
            "bytes_inline" | "bytes_staged" => copied.get_or_insert_default().own += 2 * value,
            "bytes_sent_without_copy" => copied.get_or_insert_default().not += value,
            "bytes_copied_after_all" => copied.get_or_insert_default().after_all += value,
            _ => {}
        });
        (calls, copied)
    }
}
