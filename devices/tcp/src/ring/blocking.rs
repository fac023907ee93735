//! Callers that block: in the ring itself, which takes the one system call that also hands over what was started, or on the
//! eventfd that it signals.

use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::{opcode, types};

use super::Ring;
use crate::direct::Receive;
use crate::driver::Awaited;

/// The user data of the poll of the acceptor's eventfd.
pub(super) const OFFERS: u64 = u64::MAX - 1;
/// Thirty years: what the kernel adds to the time of day must not get too large.
const FOREVER: Duration = Duration::from_secs(1 << 30);

impl Ring {
    /// Whether events signal the eventfd from now on.
    pub(super) fn signal(&mut self, on: bool) {
        let queue = self.ring.completion();
        if on {
            queue.enable_eventfd()
        } else {
            queue.disable_eventfd()
        }
        drop(queue);
        // The kernel publishes an event and then looks whether to signal; this side says whether and then looks for
        // events. Without the fence each could miss the other.
        core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
    }

    /// Has receives that polls have tried wait in the kernel.
    pub(super) fn hand_all_over(&mut self) {
        while let Some(receive) = self.direct.rest() {
            self.hand_over(receive);
        }
    }

    /// Has a receive that polls have tried wait in the kernel.
    pub(super) fn hand_over(&mut self, receive: Receive) {
        let Receive { socket, number, plan, .. } = receive;
        // Something may have come since it was tried.
        if let Err(plan) = self.receive_by_ring(&socket, number, plan, Awaited::Now) {
            self.direct.give_back(number, plan, libc::EBUSY);
        }
    }

    /// Polls for offers of connections, which are no operations. Whether it does.
    pub(super) fn watch(&mut self) -> bool {
        if !self.polls_offers {
            let offers = self.acceptor.wake_descriptor();
            // Signals from before are spent: offers are looked for after this.
            self.calls += 1;
            let _ = rustix::io::read(offers, &mut [0; 8]);
            let entry = opcode::PollAdd::new(types::Fd(offers.as_raw_fd()), libc::POLLIN as u32).build();
            self.polls_offers = self.push(&entry.user_data(OFFERS));
        }
        self.polls_offers
    }

    /// Hands over what was started, and waits for an event unless there is one.
    pub(super) fn wait_for_event(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        if !self.acceptor.is_empty() || !self.direct.is_idle() || !self.ring.completion().is_empty() {
            return Ok(());
        }
        self.enable()?;
        let time = timeout.filter(|time| *time < FOREVER).map(types::Timespec::from);
        let mut arguments = types::SubmitArgs::new();
        if let Some(time) = &time {
            arguments = arguments.timespec(time);
        }
        match self.wait(&arguments).map_err(|error| error.raw_os_error()) {
            // The time is over, a signal came, or completions have to be taken first.
            Ok(_) | Err(Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY)) => Ok(()),
            Err(error) => Err(io::Error::from_raw_os_error(error.unwrap_or(libc::EIO))),
        }
    }
}
