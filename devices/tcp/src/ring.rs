//! The driver over io_uring.
//!
//! Whatever the kernel works on is owned by [`Ring`] from the push of an operation to its completion: staging buffers,
//! scatter and gather lists, socket addresses, and through [`crate::buffers`] the mappings the lists point into. That
//! is the whole safety argument: no other code can free or move it meanwhile, whatever mistakes it makes.
//!
//! # System calls
//! One `io_uring_enter` hands over what all queue pairs have started since the last one, and has the kernel finish what
//! is ready; there is none when neither is to be done. A caller that blocks in the ring waits in the same call, which
//! a send that is over at once ends as well; one that blocks elsewhere has the eventfd read each time before. While the caller spins `direct` has system calls of its own.

use core::net::SocketAddr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue, types};
use ringway_mem::Part;
use ringway_verbs::LocalKey;

use crate::acceptor::TcpAcceptor;
use crate::buffers::{ReceivePlan, SendBatch};
use crate::direct::Direct;
use crate::driver::{Awaited, Driver, Event};
use crate::error::TcpError;
use crate::loans::{LOANS_MAX, Loans, ZeroCopy};
use crate::peer_address::PeerAddress;
use crate::pinned::{PLACES, Pinned, unpins_soon};
use blocking::OFFERS;

mod blocking;
mod lending;

/// Submission queue entries; a full queue is submitted early.
const ENTRIES: u32 = 1024;
/// `IORING_RECVSEND_POLL_FIRST`: wait for readiness before the first attempt.
const POLL_FIRST: u16 = 1;
/// Kinds of operations a connection can have in flight, one of each.
const KINDS: usize = 3;
const SEND: usize = 0;
const RECEIVE: usize = 1;
const CONNECT: usize = 2;
/// Kinds from here on are sends without a copy, by the place of their loan: these are answered twice.
const LOANS: usize = KINDS;
/// The user data of completions that carry no operation.
const CANCEL: u64 = u64::MAX;
/// Connections whose sockets are in the ring's own table, by index: those behind them are rare.
const FILES: u32 = 512;
/// How long dropping waits for the kernel to let go, in rounds of 10 ms.
const DROP_ROUNDS: u32 = 200;

/// What is in flight.
#[derive(Debug)]
enum Operation {
    Send(Box<SendBatch>),
    /// Without a copy, at this place of the loans.
    Lend(Box<SendBatch>, usize),
    Receive(Box<ReceivePlan>),
    Connect(#[expect(dead_code, reason = "kept alive for the kernel")] Box<PeerAddress>),
}

/// The ring and what is in flight on it.
pub(crate) struct Ring {
    ring: IoUring,
    /// Submissions are bound to the thread of the first one.
    enabled: bool,
    /// By connection index and kind.
    flights: Vec<Option<Operation>>,
    in_flight: usize,
    /// Keeps the eventfd that the ring signals.
    acceptor: TcpAcceptor,
    /// Events signal it.
    armed: bool,
    /// Which places of the ring's table have a socket: there operations find it without a look into the process's table. No
    /// places where the system allows none.
    files: Vec<bool>,
    /// What the caller does without the ring while it spins.
    direct: Direct,
    loans: Loans,
    /// The table of registered buffers. No places where the system allows none, or would not unpin them in time.
    pinned: Pinned,
    /// The acceptor's eventfd is polled, for a caller that blocks in the ring.
    polls_offers: bool,
    calls: u64,
}

impl core::fmt::Debug for Ring {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Ring").field("in_flight", &self.in_flight).finish_non_exhaustive()
    }
}

/// The slot of an operation: the connection's index is the lower half of its number.
const fn slot(number: u32, kind: usize) -> usize {
    (number & 0xFFFF) as usize * KINDS + kind
}

const fn user_data(number: u32, kind: usize) -> u64 {
    (kind as u64) << 32 | number as u64
}

impl Ring {
    /// Makes a ring that signals the acceptor's eventfd while it is armed.
    ///
    /// A ring's own descriptor does not become readable by work that was deferred to its thread, which is why there is
    /// an eventfd; it is switched off while the caller polls, so that events cost no signal then.
    pub(crate) fn new(acceptor: TcpAcceptor, zero_copy: ZeroCopy) -> Result<Self, TcpError> {
        let mut ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_r_disabled()
            .setup_cqsize(ENTRIES * 4)
            .build(ENTRIES)
            .map_err(|error| match error.raw_os_error() {
                Some(libc::ENOSYS) => TcpError::NoIoUring,
                Some(libc::EPERM | libc::EACCES) => TcpError::Forbidden,
                Some(libc::EINVAL) => TcpError::TooOld,
                Some(libc::ENOMEM) => TcpError::Memory,
                other => TcpError::System { what: "an io_uring", errno: other.unwrap_or(0) },
            })?;
        let wake = acceptor.wake_descriptor().as_raw_fd();
        ring.submitter().register_eventfd(wake).map_err(|error| TcpError::System {
            what: "to signal an eventfd from io_uring",
            errno: error.raw_os_error().unwrap_or(0),
        })?;
        ring.completion().disable_eventfd();
        let places = if ring.submitter().register_files_sparse(FILES).is_ok() { FILES } else { 0 };
        let may_pin = rustix::system::uname().release().to_str().is_ok_and(unpins_soon);
        let wants_buffers = zero_copy != ZeroCopy::Never && may_pin;
        let has_buffers = wants_buffers && ring.submitter().register_buffers_sparse(PLACES).is_ok();
        let buffers = if has_buffers { PLACES } else { 0 };
        Ok(Self {
            ring,
            enabled: false,
            flights: Vec::new(),
            in_flight: 0,
            acceptor,
            armed: false,
            files: vec![false; places as usize],
            direct: Direct::default(),
            loans: Loans::new(zero_copy),
            pinned: Pinned::new(buffers),
            polls_offers: false,
            calls: 0,
        })
    }

    /// Whether a system call is needed: something is to be submitted, or the kernel has work to finish here.
    fn needs_enter(&mut self) -> bool {
        let queue = self.ring.submission();
        !queue.is_empty() || queue.taskrun() || queue.cq_overflow()
    }

    /// Lets the kernel take submissions, of this thread from now on.
    fn enable(&mut self) -> io::Result<()> {
        if !self.enabled {
            self.calls += 1;
            self.ring.submitter().register_enable_rings()?;
            self.enabled = true;
        }
        Ok(())
    }

    /// Submits what was pushed and waits for an event; where the system is new enough, without being accounted as a thread
    /// that waits for a disk.
    fn wait(&mut self, arguments: &types::SubmitArgs<'_, '_>) -> io::Result<usize> {
        self.calls += 1;
        let mut flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        flags.set(EnterFlags::NO_IOWAIT, self.ring.params().is_feature_no_iowait());
        let waiting = self.ring.submission().len() as u32;
        // SAFETY: what is submitted is as said in `push`. The arguments live until the call returns, and so does the time they
        // point to, which they borrow.
        unsafe { self.ring.submitter().enter(waiting, 1, flags.bits(), Some(arguments)) }
    }

    /// Submits what was pushed and lets the kernel finish what is ready.
    fn enter(&mut self) -> io::Result<()> {
        self.enable()?;
        loop {
            self.calls += 1;
            match self.ring.submit() {
                Ok(_) => return Ok(()),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    // The completion queue is full, or memory is short for the moment: take completions first.
                    Some(libc::EAGAIN | libc::EBUSY) => return Ok(()),
                    _ => return Err(error),
                },
            }
        }
    }

    /// What names a connection's socket in an entry, and the flag that goes with it.
    fn target(&mut self, socket: &OwnedFd, number: u32) -> (types::Fd, squeue::Flags) {
        let (descriptor, place) = (socket.as_raw_fd(), number & 0xFFFF);
        if let Some(registered) = self.files.get_mut(place as usize) {
            if !*registered {
                *registered = self.ring.submitter().register_files_update(place, &[descriptor]).is_ok();
            }
            if *registered {
                return (types::Fd(place as i32), squeue::Flags::FIXED_FILE);
            }
        }
        (types::Fd(descriptor), squeue::Flags::empty())
    }

    /// Takes ownership of an operation and pushes it.
    fn launch(&mut self, entry: &squeue::Entry, place: usize, operation: Operation) -> Result<(), Operation> {
        if self.flights.get(place).is_none_or(Option::is_some) || !self.push(entry) {
            return Err(operation);
        }
        if let Some(flight) = self.flights.get_mut(place) {
            *flight = Some(operation);
            self.in_flight += 1;
        }
        Ok(())
    }

    fn receive_by_ring(
        &mut self,
        socket: &OwnedFd,
        number: u32,
        mut plan: Box<ReceivePlan>,
        awaited: Awaited,
    ) -> Result<(), Box<ReceivePlan>> {
        let (fd, fixed) = self.target(socket, number);
        let priority = if awaited == Awaited::Now { 0 } else { POLL_FIRST };
        let vectors = plan.vectors();
        let entry = match vectors.single() {
            Some((base, length)) => opcode::Recv::new(fd, base, length).ioprio(priority).build(),
            None => opcode::RecvMsg::new(fd, vectors.message()).ioprio(priority).build(),
        };
        let entry = entry.flags(fixed).user_data(user_data(number, RECEIVE));
        match self.launch(&entry, slot(number, RECEIVE), Operation::Receive(plan)) {
            Err(Operation::Receive(plan)) => Err(plan),
            _ => Ok(()),
        }
    }

    /// Puts a part of a region into a free place of the table of registered buffers; an `errno` if the system does not take it.
    fn register(&mut self, at: u16, part: &Part) -> Result<(), i32> {
        let window = part.window().ok_or(libc::EFAULT)?;
        let vector = libc::iovec { iov_base: window.as_ptr().cast(), iov_len: window.length() };
        self.calls += 1;
        // SAFETY: `part` keeps the range mapped during the call, in which the kernel finds the pages and pins them. From then
        // on it knows these pages and not their addresses, and keeps its pins until the place is empty and the last request
        // that named it is done: what is unmapped earlier, as a part that is taken out while it is lent may be, or all of them
        // when the ring goes, are pages that nobody else gets. It only reads them, as nothing but sends names the table.
        let updated =
            unsafe { self.ring.submitter().register_buffers_update(u32::from(at), &[vector], None) };
        updated.map(|_| ()).map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
    }

    /// Takes a part out of the table; whether the system lets go of it.
    fn unregister(&mut self, at: u16) -> bool {
        let nothing = libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 };
        self.calls += 1;
        // SAFETY: the kernel reads the list, and is given no memory.
        unsafe { self.ring.submitter().register_buffers_update(u32::from(at), &[nothing], None) }.is_ok()
    }

    fn push(&mut self, entry: &squeue::Entry) -> bool {
        if self.ring.submission().is_full() && self.enter().is_err() {
            return false;
        }
        // SAFETY: the entries made in this module name descriptors or places of the ring's tables, and memory that is owned
        // by an operation in `flights` (boxed, so it does not move with it) until the completion is taken. That of a send
        // without a copy has two: between the first and the second its batch is owned by `loans`, at the place that the entry's
        // user data names, or still by `flights` if the first is withheld. Nothing is freed earlier, also when the ring is
        // dropped, which keeps both for good if it cannot wait for the completions.
        unsafe { self.ring.submission().push(entry) }.is_ok()
    }
}

impl Driver for Ring {
    /// On a non-blocking socket io_uring would report EAGAIN instead of waiting.
    fn wants_nonblocking(&self) -> bool {
        false
    }

    fn reserve(&mut self, index: u16) {
        let needed = (usize::from(index) + 1) * KINDS;
        if self.flights.len() < needed {
            self.flights.resize_with(needed, || None);
        }
        self.direct.reserve(self.flights.len());
        self.loans.reserve(index);
    }

    fn send(
        &mut self,
        socket: &Arc<OwnedFd>,
        number: u32,
        mut batch: Box<SendBatch>,
    ) -> Result<(), Box<SendBatch>> {
        if let Some(place) = self.loans.begin(number, &batch) {
            return self.lend(socket, number, batch, place);
        }
        // Where others wait to be handed over the ring sends this with them.
        if self.direct.is_spinning() && self.ring.submission().is_empty() {
            self.calls += 1;
            match self.direct.send(socket, number, batch) {
                Ok(()) => return Ok(()),
                Err(unsent) => batch = unsent,
            }
        }
        let (fd, fixed) = self.target(socket, number);
        let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
        let vectors = batch.vectors();
        let entry = match vectors.single() {
            Some((base, length)) => opcode::Send::new(fd, base, length).flags(flags).build(),
            None => opcode::SendMsg::new(fd, vectors.message()).flags(flags as u32).build(),
        };
        let entry = entry.flags(fixed).user_data(user_data(number, SEND));
        match self.launch(&entry, slot(number, SEND), Operation::Send(batch)) {
            Err(Operation::Send(batch)) => Err(batch),
            _ => Ok(()),
        }
    }

    fn receive(
        &mut self,
        socket: &Arc<OwnedFd>,
        number: u32,
        plan: Box<ReceivePlan>,
        awaited: Awaited,
    ) -> Result<(), Box<ReceivePlan>> {
        match self.direct.receive(socket, number, plan, awaited) {
            Ok(()) => Ok(()),
            Err(plan) => self.receive_by_ring(socket, number, plan, awaited),
        }
    }

    fn connect(&mut self, socket: &Arc<OwnedFd>, number: u32, peer: SocketAddr) -> bool {
        let address = Box::new(PeerAddress::new(peer));
        let (pointer, length) = address.raw();
        let (fd, fixed) = self.target(socket, number);
        let entry = opcode::Connect::new(fd, pointer, length).build().flags(fixed);
        let entry = entry.user_data(user_data(number, CONNECT));
        self.launch(&entry, slot(number, CONNECT), Operation::Connect(address)).is_ok()
    }

    fn cancel(&mut self, socket: &OwnedFd, number: u32) {
        self.direct.cancel(number);
        self.disconnect(socket, number);
        for kind in 0..KINDS {
            let kind = match self.flights.get(slot(number, kind)) {
                Some(Some(Operation::Lend(_, place))) => LOANS + place,
                Some(Some(_)) => kind,
                _ => continue,
            };
            let entry = opcode::AsyncCancel::new(user_data(number, kind)).build().user_data(CANCEL);
            self.push(&entry);
        }
    }

    fn disconnect(&mut self, socket: &OwnedFd, number: u32) {
        if self.loans.has(number) {
            // What a shut down socket has not sent yet it still sends, which may take a peer that acknowledges nothing many
            // minutes. This drops it.
            let _ = rustix::net::connect_unspec(socket);
        }
    }

    fn forget(&mut self, number: u32) {
        self.loans.forget(number);
        let place = number & 0xFFFF;
        if let Some(registered) = self.files.get_mut(place as usize)
            && core::mem::take(registered)
        {
            // Otherwise the socket would stay open, and a later connection have it for its own.
            let emptied = self.ring.submitter().register_files_update(place, &[-1]);
            debug_assert!(emptied.is_ok(), "the place is in the table");
        }
    }

    fn deregister(&mut self, key: LocalKey) {
        self.pinned.leave(key);
        while let Some(at) = self.pinned.leaving() {
            if !self.unregister(at) {
                // It is tried again with the next region.
                return;
            }
            self.pinned.clear(at);
        }
    }

    fn submit(&mut self) -> io::Result<()> {
        if self.needs_enter() { self.enter() } else { Ok(()) }
    }

    /// Completions of the ring come without being asked for.
    fn look(&mut self) -> io::Result<()> {
        if let Some(receive) = self.direct.look(&mut self.calls) {
            self.hand_over(receive);
        }
        Ok(())
    }

    fn next(&mut self) -> Option<Event> {
        if let Some(event) = self.direct.next() {
            return Some(event);
        }
        let entry = self.ring.completion().next()?;
        let (user_data, result, flags) = (entry.user_data(), entry.result(), entry.flags());
        let number = user_data as u32;
        let kind = usize::try_from(user_data >> 32).unwrap_or(usize::MAX);
        if kind >= KINDS {
            self.polls_offers &= user_data != OFFERS;
            let place = kind - LOANS;
            return Some(if place >= LOANS_MAX {
                Event::Other
            } else if cqueue::notif(flags) {
                self.give_back(number, place, result)
            } else {
                self.lent(number, place, result, cqueue::more(flags))
            });
        }
        let operation = self.flights.get_mut(slot(number, kind)).and_then(Option::take);
        self.in_flight -= usize::from(operation.is_some());
        Some(match operation {
            Some(Operation::Send(mut batch)) => {
                batch.advance(u64::try_from(result).unwrap_or(0));
                Event::Sent { number, batch, result, lent: None }
            }
            Some(Operation::Receive(plan)) => {
                Event::Received { number, plan, result, more: cqueue::sock_nonempty(flags) }
            }
            Some(Operation::Connect(_)) => Event::Connected { number, result },
            Some(Operation::Lend(..)) | None => Event::Other,
        })
    }

    fn is_idle(&mut self) -> bool {
        self.direct.is_idle() && self.ring.completion().is_empty() && !self.needs_enter()
    }

    fn arm(&mut self) {
        if !self.armed {
            self.armed = true;
            self.signal(true);
        }
        self.hand_all_over();
        // Signals from before are spent.
        self.calls += 1;
        let _ = rustix::io::read(self.acceptor.wake_descriptor(), &mut [0; 8]);
    }

    fn prepare_to_block(&mut self) -> bool {
        self.hand_all_over();
        self.watch()
    }

    fn block(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.wait_for_event(timeout)
    }

    fn disarm(&mut self) {
        if self.armed {
            self.armed = false;
            self.signal(false);
        }
    }

    fn event_descriptor(&self) -> BorrowedFd<'_> {
        self.acceptor.wake_descriptor().as_fd()
    }

    fn for_each_counter(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each("system_calls", self.calls);
        each("bytes_sent_without_copy", self.loans.counters.not_copied);
        each("bytes_copied_after_all", self.loans.counters.copied);
        each("bytes_pinned", self.pinned.bytes);
        each("pinning_refused", self.pinned.refusals);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.enabled {
            // The device has shut its sockets down, which ends sends and receives; this ends the rest.
            let everything = types::CancelBuilder::any().all();
            self.push(&opcode::AsyncCancel2::new(everything).build().user_data(CANCEL));
            for _ in 0..DROP_ROUNDS {
                if self.in_flight == 0 {
                    break;
                }
                let timeout = types::Timespec::new().nsec(10_000_000);
                let arguments = types::SubmitArgs::new().timespec(&timeout);
                let _ = self.ring.submitter().submit_with_args(1, &arguments);
                while self.next().is_some() {}
            }
        }
        if self.enabled && self.in_flight > 0 {
            // The kernel may still read or write what is in flight or lent: keep it for good.
            #[expect(clippy::mem_forget, reason = "freeing it would be a use after free by the kernel")]
            core::mem::forget((
                core::mem::take(&mut self.flights),
                core::mem::replace(&mut self.loans, Loans::new(ZeroCopy::Never)),
            ));
        }
    }
}
