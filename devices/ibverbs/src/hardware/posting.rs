//! Requests on their way into the queues.

use core::{
    ffi::c_uint,
    mem::{self, MaybeUninit},
    ptr, slice,
};

use rdma_sys::{
    ibv_post_recv, ibv_post_send, ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode,
};
use ringway_mem::Window;
use ringway_verbs::{MAX_SEGMENTS, Operation};
use rustix::io::Errno;

use super::{QueuePair, checked};

/// Requests handed to the device by one doorbell.
pub(crate) const POST_BATCH: usize = 32;

/// The segments of one request.
type List = [ibv_sge; MAX_SEGMENTS];
const EMPTY: List = [ibv_sge { addr: 0, length: 0, lkey: 0 }; MAX_SEGMENTS];

/// Registered bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment<'a> {
    /// Where this process has them, if it does.
    pub(crate) window: Option<Window<'a>>,
    pub(crate) length: u64,
    /// Where the device has them: bytes from the region's start.
    pub(crate) offset: u64,
    pub(crate) key: u32,
}

/// What a request does.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Verb {
    Operation(Operation),
    /// A WRITE of no bytes, which any peer that is there acknowledges and nobody else sees.
    Probe,
}

/// A request for the send queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outgoing<'a> {
    pub(crate) id: u64,
    pub(crate) verb: Verb,
    pub(crate) segments: [Option<Segment<'a>>; MAX_SEGMENTS],
    pub(crate) signalled: bool,
    pub(crate) fence: bool,
    /// Its bytes go with it: only if [`QueuePair::fits_inline`] says that they can.
    pub(crate) inline: bool,
}

/// A buffer for the receive queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Receive<'a> {
    pub(crate) id: u64,
    pub(crate) segment: Option<Segment<'a>>,
}

/// The device did not take all: so many it did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unposted {
    pub(crate) taken: usize,
    pub(crate) errno: Errno,
}

fn sge(address: u64, segment: &Segment<'_>) -> ibv_sge {
    // Requests are no longer than the port allows, which is a number of 32 bits.
    ibv_sge { addr: address, length: segment.length as u32, lkey: segment.key }
}

/// Puts the segments that have bytes into the list; how many they are.
fn gather(list: &mut List, segments: &[Option<Segment<'_>>], inline: bool) -> i32 {
    let mut count = 0;
    for segment in segments.iter().flatten().filter(|segment| segment.length > 0) {
        // Bytes that go with the request are read by this process, others by the device.
        let here = segment.window.filter(|_| inline);
        let address = here.map_or(segment.offset, |window| window.as_ptr().expose_provenance() as u64);
        if let Some(place) = list.get_mut(count) {
            *place = sge(address, segment);
            count += 1;
        }
    }
    count as i32
}

/// Fills in what an operation needs, and gives its code.
fn describe(verb: &Verb, request: &mut ibv_send_wr) -> ibv_wr_opcode::Type {
    let operation = match verb {
        Verb::Probe => return ibv_wr_opcode::IBV_WR_RDMA_WRITE,
        Verb::Operation(operation) => operation,
    };
    let mut place = |remote: &ringway_verbs::RemoteSlice| {
        request.wr.rdma = rdma_sys::rdma_t { remote_addr: remote.offset, rkey: remote.key.0 };
    };
    match operation {
        Operation::Send { immediate: None } => ibv_wr_opcode::IBV_WR_SEND,
        Operation::Send { immediate: Some(immediate) } => {
            request.imm_data_invalidated_rkey_union.imm_data = immediate.to_be();
            ibv_wr_opcode::IBV_WR_SEND_WITH_IMM
        }
        Operation::Write { remote } => {
            place(remote);
            ibv_wr_opcode::IBV_WR_RDMA_WRITE
        }
        Operation::WriteWithImmediate { remote, immediate } => {
            place(remote);
            request.imm_data_invalidated_rkey_union.imm_data = immediate.to_be();
            ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM
        }
        Operation::Read { remote } => {
            place(remote);
            ibv_wr_opcode::IBV_WR_RDMA_READ
        }
        Operation::FetchAdd { remote, add } => {
            let (remote_addr, rkey) = (remote.offset, remote.key.0);
            request.wr.atomic = rdma_sys::atomic_t { remote_addr, compare_add: *add, swap: 0, rkey };
            ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD
        }
        Operation::CompareSwap { remote, expected, desired } => {
            let (remote_addr, rkey) = (remote.offset, remote.key.0);
            request.wr.atomic =
                rdma_sys::atomic_t { remote_addr, compare_add: *expected, swap: *desired, rkey };
            ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP
        }
    }
}

impl QueuePair {
    /// Whether this request's bytes fit into the request itself.
    #[inline]
    pub(crate) fn fits_inline(&self, outgoing: &Outgoing<'_>) -> bool {
        let sends = match &outgoing.verb {
            Verb::Probe => false,
            Verb::Operation(operation) => !operation.is_answered(),
        };
        let segments = || outgoing.segments.iter().flatten();
        let length: u64 = segments().map(|segment| segment.length).sum();
        sends && length > 0 && length <= u64::from(self.inline) && segments().all(|one| one.window.is_some())
    }

    /// Adds requests to the send queue, a batch with each doorbell; how many there were.
    #[inline]
    pub(crate) fn post_sends<'a>(
        &self,
        mut outgoing: impl Iterator<Item = Outgoing<'a>>,
    ) -> Result<usize, Unposted> {
        let mut requests = [const { MaybeUninit::<ibv_send_wr>::uninit() }; POST_BATCH];
        let mut lists = [const { MaybeUninit::<List>::uninit() }; POST_BATCH];
        let mut taken = 0;
        loop {
            let mut count = 0;
            for ((place, list), outgoing) in requests.iter_mut().zip(&mut lists).zip(&mut outgoing) {
                place.write(send_request(&outgoing, list.write(EMPTY)));
                count += 1;
            }
            // SAFETY: the first `count` were written just now.
            let batch = unsafe { slice::from_raw_parts_mut(requests.as_mut_ptr().cast(), count) };
            if batch.is_empty() {
                return Ok(taken);
            }
            let first = batch.iter_mut().rev().fold(ptr::null_mut(), |next, request: &mut ibv_send_wr| {
                request.next = next;
                ptr::from_mut(request)
            });
            let mut bad = ptr::null_mut();
            // SAFETY: the queue pair is there, and so are the requests and lists while the driver reads them. Bytes that go
            // with a request are of windows, borrowed until this returns. Others the device reads and writes later by keys,
            // which memory has until it is deregistered.
            let code = unsafe { ibv_post_send(self.raw.as_ptr(), first, &raw mut bad) };
            if let Err(errno) = checked(code) {
                let before = (0..count).find(|at| ptr::eq(first.wrapping_add(*at), bad)).unwrap_or(0);
                return Err(Unposted { taken: taken + before, errno });
            }
            taken += count;
        }
    }

    /// Adds buffers to the receive queue; how many there were.
    #[inline]
    pub(crate) fn post_receives<'a>(
        &self,
        mut receives: impl Iterator<Item = Receive<'a>>,
    ) -> Result<usize, Unposted> {
        let mut requests = [const { MaybeUninit::<ibv_recv_wr>::uninit() }; POST_BATCH];
        let mut lists = [const { MaybeUninit::<List>::uninit() }; POST_BATCH];
        let mut taken = 0;
        loop {
            let mut count = 0;
            for ((place, list), receive) in requests.iter_mut().zip(&mut lists).zip(&mut receives) {
                let list = list.write(EMPTY);
                let num_sge = gather(list, &[receive.segment], false);
                let sg_list = list.as_mut_ptr();
                place.write(ibv_recv_wr { wr_id: receive.id, next: ptr::null_mut(), sg_list, num_sge });
                count += 1;
            }
            // SAFETY: the first `count` were written just now.
            let batch = unsafe { slice::from_raw_parts_mut(requests.as_mut_ptr().cast(), count) };
            if batch.is_empty() {
                return Ok(taken);
            }
            let first = batch.iter_mut().rev().fold(ptr::null_mut(), |next, request: &mut ibv_recv_wr| {
                request.next = next;
                ptr::from_mut(request)
            });
            let mut bad = ptr::null_mut();
            // SAFETY: as for sends.
            let code = unsafe { ibv_post_recv(self.raw.as_ptr(), first, &raw mut bad) };
            if let Err(errno) = checked(code) {
                let before = (0..count).find(|at| ptr::eq(first.wrapping_add(*at), bad)).unwrap_or(0);
                return Err(Unposted { taken: taken + before, errno });
            }
            taken += count;
        }
    }
}

/// A request as the driver takes it, whose segments get into the list.
#[inline]
fn send_request(outgoing: &Outgoing<'_>, list: &mut List) -> ibv_send_wr {
    let flags = [
        (outgoing.signalled, ibv_send_flags::IBV_SEND_SIGNALED),
        (outgoing.fence, ibv_send_flags::IBV_SEND_FENCE),
        (outgoing.inline, ibv_send_flags::IBV_SEND_INLINE),
    ];
    let flags: c_uint = flags.iter().filter(|(is_set, _)| *is_set).fold(0, |all, (_, flag)| all | flag.0);
    // SAFETY: it has numbers, unions of numbers and pointers, for all of which zeros are values.
    let mut request: ibv_send_wr = unsafe { mem::zeroed() };
    request.wr_id = outgoing.id;
    request.num_sge = gather(list, &outgoing.segments, outgoing.inline);
    request.sg_list = list.as_mut_ptr();
    request.opcode = describe(&outgoing.verb, &mut request);
    request.send_flags = flags;
    request
}
