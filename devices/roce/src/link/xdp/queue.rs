//! One receive queue of the interface and the AF_XDP socket that serves it: memory, four rings, and the calls that wake
//! the kernel.

use core::net::IpAddr;
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
        sockopt::{
            set_socket_send_buffer_size, set_socket_send_buffer_size_force, set_xdp_rx_ring_size,
            set_xdp_tx_ring_size, set_xdp_umem_completion_ring_size, set_xdp_umem_fill_ring_size,
            set_xdp_umem_reg, xdp_mmap_offsets, xdp_options, xdp_statistics,
        },
        xdp::{
            SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
            XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpDesc, XdpDescOptions,
            XdpOptionsFlags, XdpUmemReg, XdpUmemRegFlags,
        },
    },
};

use super::{
    frame,
    ring::{Consumer, Producer},
    umem::{CHUNK_BYTES, Owner, Umem},
};
use crate::link::{Counters, Received, SendError, system::set_option};

/// The most bytes of a frame: a chunk less what the kernel keeps before each (`XDP_PACKET_HEADROOM`).
pub(super) const FRAME_BYTES_MAX: usize = CHUNK_BYTES - 256;
/// How long a queue is waited for that a link which has just been closed still holds.
const PATIENCE: Duration = Duration::from_secs(5);

// Socket options (`asm-generic/socket.h`) and one of AF_XDP's (`linux/if_xdp.h`, 6.17).
const SO_BUSY_POLL: i32 = 46;
const SO_PREFER_BUSY_POLL: i32 = 69;
const SO_BUSY_POLL_BUDGET: i32 = 70;
const XDP_MAX_TX_SKB_BUDGET: i32 = 9;
/// Packets that a busy poll takes.
const BUSY_POLL_BUDGET: i32 = 64;

/// What a queue's socket shall be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setup {
    pub(super) interface: u32,
    pub(super) queue: u32,
    /// Frames each way, a power of two.
    pub(super) frames: u32,
    /// Ask for no zero-copy.
    pub(super) copy: bool,
    pub(super) busy_poll_us: u32,
}

/// A step of the setup that failed, and why.
pub(super) type Failure = (Step, io::Error);

/// The steps of the setup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Open,
    Memory,
    Rings,
    Bind,
}

fn at(step: Step) -> impl Fn(Errno) -> Failure {
    move |error| (step, error.into())
}

/// A queue in use.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) id: u32,
    socket: OwnedFd,
    umem: Umem,
    fill: Producer<u64>,
    completion: Consumer<u64>,
    incoming: Consumer<XdpDesc>,
    outgoing: Producer<XdpDesc>,
    /// Chunks to send from; the one used last is taken first, because it is in the cache.
    free: Vec<u32>,
    /// Frames to send that the kernel was last seen not to have taken.
    waiting: u32,
    pub(super) zero_copy: bool,
    /// The kernel polls the hardware in each call, so that an empty ring is worth one.
    pub(super) busy_poll: bool,
    /// System calls made to have the driver receive.
    calls: u64,
}

impl Queue {
    pub(super) fn open(setup: &Setup) -> Result<Self, Failure> {
        let socket = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)
            .map_err(at(Step::Open))?;
        let frames = setup.frames;
        let chunks = usize::try_from(frames).unwrap_or_default() * 2;
        let mut umem = Umem::new(chunks).map_err(|error| (Step::Memory, error))?;
        let (addr, len) = umem.place();
        let chunk_size = u32::try_from(CHUNK_BYTES).unwrap_or_default();
        let flags = XdpUmemRegFlags::empty();
        let memory = XdpUmemReg { addr, len, chunk_size, headroom: 0, flags, tx_metadata_len: 0 };
        set_xdp_umem_reg(&socket, memory).map_err(at(Step::Memory))?;

        let sized =
            |set: fn(&OwnedFd, u32) -> Result<(), Errno>| set(&socket, frames).map_err(at(Step::Rings));
        sized(|socket, frames| set_xdp_umem_fill_ring_size(socket, frames))?;
        sized(|socket, frames| set_xdp_umem_completion_ring_size(socket, frames))?;
        sized(|socket, frames| set_xdp_rx_ring_size(socket, frames))?;
        sized(|socket, frames| set_xdp_tx_ring_size(socket, frames))?;
        let offsets = xdp_mmap_offsets(&socket).map_err(at(Step::Rings))?;
        let (fd, ring) = (socket.as_fd(), |error| (Step::Rings, error));
        let mut fill = Producer::map(fd, XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, frames).map_err(ring)?;
        let completion =
            Consumer::map(fd, XDP_UMEM_PGOFF_COMPLETION_RING, &offsets.cr, frames).map_err(ring)?;
        let incoming = Consumer::map(fd, XDP_PGOFF_RX_RING, &offsets.rx, frames).map_err(ring)?;
        let outgoing = Producer::map(fd, XDP_PGOFF_TX_RING, &offsets.tx, frames).map_err(ring)?;

        for chunk in frames..frames * 2 {
            if let Some(address) = umem.give(chunk, Owner::Receiving) {
                fill.push(address);
            }
        }
        fill.publish();
        // As many packets on their way as there are frames.
        let sending_bytes = usize::try_from(frames).unwrap_or_default() * CHUNK_BYTES;
        let _ = set_socket_send_buffer_size_force(&socket, sending_bytes)
            .or_else(|_| set_socket_send_buffer_size(&socket, sending_bytes));
        // More packets for each call; what kernels before 6.17 refuse.
        let budget = i32::try_from(frames).unwrap_or(i32::MAX);
        let _ = set_option(fd, libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, budget);
        bind_to_queue(fd, setup).map_err(at(Step::Bind))?;
        let zero_copy =
            xdp_options(&socket).is_ok_and(|got| got.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY));
        // Where frames are copied each call to send would poll what its sender has no use for.
        let busy_poll = zero_copy && setup.busy_poll_us > 0 && busy_poll(fd, setup.busy_poll_us).is_ok();
        Ok(Self {
            id: setup.queue,
            umem,
            fill,
            completion,
            incoming,
            outgoing,
            free: (0..frames).rev().collect(),
            waiting: 0,
            zero_copy,
            busy_poll,
            calls: 0,
            socket,
        })
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) const fn has_huge_pages(&self) -> bool {
        self.umem.is_huge()
    }

    /// Frames that the kernel could not deliver, for want of room.
    pub(super) fn dropped(&self) -> u64 {
        xdp_statistics(&self.socket).map_or(0, |seen| {
            seen.rx_dropped + seen.rx_ring_full.unwrap_or(0) + seen.rx_fill_ring_empty_descs.unwrap_or(0)
        })
    }

    /// Puts a frame of so many bytes behind those that wait to be sent; `write` fills it.
    pub(super) fn push(&mut self, length: usize, write: impl FnOnce(&mut [u8])) -> Result<(), SendError> {
        if length > FRAME_BYTES_MAX {
            return Err(SendError::TooLong);
        }
        if self.free.is_empty() {
            self.reclaim();
        }
        let chunk = self.free.pop().ok_or(SendError::Full)?;
        let written = self.umem.bytes_mut(chunk, length).map(write);
        let addr = written.and_then(|()| self.umem.give(chunk, Owner::Sending)).ok_or(SendError::TooLong)?;
        let len = u32::try_from(length).map_err(|_| SendError::TooLong)?;
        // There is a place for every chunk to send from.
        self.outgoing.push(XdpDesc { addr, len, options: XdpDescOptions::empty() });
        self.waiting += 1;
        Ok(())
    }

    /// Takes back chunks that have been sent.
    fn reclaim(&mut self) {
        while let Some(address) = self.completion.pop() {
            if let Some((chunk, _)) = self.umem.take_back(address, Owner::Sending) {
                self.free.push(chunk);
            }
        }
        self.completion.release();
    }

    /// Whether nothing waits for [`Self::flush`].
    pub(super) const fn is_idle(&self) -> bool {
        self.waiting == 0
    }

    /// Counts what the kernel has taken since the last look; returns how many frames that is.
    fn count_taken(&mut self, counters: &mut Counters) -> u32 {
        let left = self.outgoing.waiting();
        let taken = self.waiting.saturating_sub(left);
        counters.sent += u64::from(taken);
        self.waiting = left;
        taken
    }

    /// Has the kernel take what waits; `false` when it takes no more now.
    pub(super) fn flush(&mut self, counters: &mut Counters) -> bool {
        self.outgoing.publish();
        self.count_taken(counters);
        while self.waiting > 0 && self.outgoing.needs_wakeup() {
            let kicked = send(&self.socket, &[], SendFlags::DONTWAIT);
            counters.calls += 1;
            let taken = self.count_taken(counters);
            match kicked {
                // More than one call takes, or no room right now.
                Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => {
                    // The interface had no room for one; otherwise nothing is lost (the interface may be down).
                    counters.refused += u64::from(error == Errno::BUSY);
                    counters.last_refusal = error.raw_os_error();
                }
            }
            if self.zero_copy {
                // The driver goes on by itself.
                break;
            }
            if taken == 0 {
                return false;
            }
        }
        // What has been sent already is written to next, while it is in the cache.
        self.reclaim();
        true
    }

    /// Hands over up to `budget` packets that have come in; returns how many frames there were.
    pub(super) fn receive(
        &mut self,
        address: IpAddr,
        port: u16,
        budget: usize,
        receive: &mut dyn FnMut(&Received<'_>),
    ) -> usize {
        let mut packets = 0;
        let mut frames = 0;
        while frames < budget {
            let Some(descriptor) = self.incoming.pop() else { break };
            frames += 1;
            let taken = self.umem.take_back(descriptor.addr, Owner::Receiving);
            let Some((chunk, start)) = taken else { continue };
            let end = start.saturating_add(usize::try_from(descriptor.len).unwrap_or(usize::MAX));
            let bytes = self.umem.bytes(chunk, start..end);
            if let Some(received) = bytes.and_then(|bytes| frame::parse(bytes, address, port)) {
                receive(&received);
                packets += 1;
            }
            if let Some(address) = self.umem.give(chunk, Owner::Receiving) {
                self.fill.push(address);
            }
        }
        if frames > 0 {
            self.incoming.release();
            self.fill.publish();
        }
        if (frames == 0 && self.busy_poll) || (frames > 0 && self.fill.needs_wakeup()) {
            self.calls += 1;
            let _ = recv(&self.socket, &mut [0_u8; 0][..], RecvFlags::DONTWAIT);
        }
        packets
    }

    /// System calls made to have the driver receive.
    pub(super) const fn calls(&self) -> u64 {
        self.calls
    }
}

fn busy_poll(socket: BorrowedFd<'_>, budget_us: u32) -> io::Result<()> {
    set_option(socket, libc::SOL_SOCKET, SO_PREFER_BUSY_POLL, 1)?;
    set_option(socket, libc::SOL_SOCKET, SO_BUSY_POLL, i32::try_from(budget_us).unwrap_or(i32::MAX))?;
    set_option(socket, libc::SOL_SOCKET, SO_BUSY_POLL_BUDGET, BUSY_POLL_BUDGET)
}

/// Binds the socket; the kernel falls back from zero-copy to copying by itself. A queue that was served until a moment
/// ago is taken a little longer, because the kernel gives it up in the background: for more than a second where network namespaces are
/// ended at the same time, which hold the lock that this takes.
fn bind_to_queue(socket: BorrowedFd<'_>, setup: &Setup) -> Result<(), Errno> {
    let mut flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
    if setup.copy {
        flags |= SocketAddrXdpFlags::XDP_COPY;
    }
    let address = SocketAddrXdp::new(flags, setup.interface, setup.queue);
    let start = Instant::now();
    loop {
        match bind(socket, &address) {
            Err(Errno::BUSY) if start.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(5)),
            bound => return bound,
        }
    }
}
