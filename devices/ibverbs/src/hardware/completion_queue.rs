//! The queue that all completions of a device come by.

use core::{
    ffi::c_int,
    mem::MaybeUninit,
    ptr::{self, NonNull},
};
use std::{os::fd::BorrowedFd, sync::Arc};

use rdma_sys::{
    ibv_comp_channel, ibv_cq, ibv_poll_cq, ibv_req_notify_cq, ibv_wc, ibv_wc_flags, ibv_wc_opcode,
    ibv_wc_status,
};
use ringway_verbs::Status;
use rustix::{fs::OFlags, io::Errno};

use super::{Context, checked, last_errno};

/// Completions taken at once.
pub(crate) const BATCH: usize = 32;

/// A request that is over.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Done {
    /// As it was posted.
    pub(crate) id: u64,
    pub(crate) status: Status,
    /// Of a receive that succeeded: whether it was by a WRITE.
    pub(crate) written: bool,
    /// Of a receive that succeeded: the message's bytes.
    pub(crate) length: u64,
    /// Of a receive that succeeded.
    pub(crate) immediate: Option<u32>,
}

/// The queue and the descriptor that tells of it.
pub(crate) struct CompletionQueue {
    pub(super) raw: NonNull<ibv_cq>,
    channel: NonNull<ibv_comp_channel>,
    context: Arc<Context>,
    /// What a poll has filled.
    batch: [MaybeUninit<ibv_wc>; BATCH],
}

// SAFETY: as of the context; polling needs the value exclusively.
unsafe impl Send for CompletionQueue {}

impl core::fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("CompletionQueue").field("raw", &self.raw).finish_non_exhaustive()
    }
}

impl CompletionQueue {
    /// A queue with room for so many completions.
    pub(crate) fn new(context: &Arc<Context>, entries: u32) -> Result<Self, Errno> {
        let library = context.library;
        // SAFETY: the context is open.
        let channel = unsafe { (library.create_comp_channel)(context.raw.as_ptr()) };
        let channel = NonNull::new(channel).ok_or_else(last_errno)?;
        let made = unblock(channel).and_then(|()| {
            let entries = c_int::try_from(entries).map_err(|_| Errno::INVAL)?;
            // SAFETY: context and channel are there; the queue needs no value of ours.
            let raw = unsafe {
                (library.create_cq)(context.raw.as_ptr(), entries, ptr::null_mut(), channel.as_ptr(), 0)
            };
            NonNull::new(raw).ok_or_else(last_errno)
        });
        match made {
            Ok(raw) => {
                // Drivers leave what they have nothing to say about as it is.
                let batch = [const { MaybeUninit::zeroed() }; BATCH];
                Ok(Self { raw, channel, context: Arc::clone(context), batch })
            }
            Err(errno) => {
                // SAFETY: it was made above and nothing uses it.
                let _ = unsafe { (library.destroy_comp_channel)(channel.as_ptr()) };
                Err(errno)
            }
        }
    }

    /// Makes room for so many completions.
    pub(crate) fn resize(&mut self, entries: u32) -> Result<(), Errno> {
        let entries = c_int::try_from(entries).map_err(|_| Errno::INVAL)?;
        // SAFETY: the queue is there; completions in it stay.
        checked(unsafe { (self.context.library.resize_cq)(self.raw.as_ptr(), entries) })
    }

    /// How many completions fit.
    pub(crate) fn entries(&self) -> u32 {
        // SAFETY: the queue is there.
        u32::try_from(unsafe { (*self.raw.as_ptr()).cqe }).unwrap_or(0)
    }

    /// Readable after [`CompletionQueue::arm`] when a completion has come since.
    pub(crate) fn events(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is there; the number does not change.
        let number = unsafe { (*self.channel.as_ptr()).fd };
        // SAFETY: the descriptor is open as long as the channel.
        unsafe { BorrowedFd::borrow_raw(number) }
    }

    /// Asks to be told of the next completion, once.
    pub(crate) fn arm(&mut self) -> Result<(), Errno> {
        // SAFETY: the queue is there.
        checked(unsafe { ibv_req_notify_cq(self.raw.as_ptr(), 0) })
    }

    /// Takes what [`CompletionQueue::arm`] was told, so that the descriptor is not readable any more; by how many system calls.
    pub(crate) fn disarm(&mut self) -> u32 {
        let library = self.context.library;
        let mut told = 0;
        loop {
            let (mut queue, mut value) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: the channel is there; both are written when the result is zero.
            let code =
                unsafe { (library.get_cq_event)(self.channel.as_ptr(), &raw mut queue, &raw mut value) };
            if code != 0 {
                break;
            }
            told += 1;
        }
        if told > 0 {
            // SAFETY: so many events of this queue, the only one of its channel, were taken.
            unsafe { (library.ack_cq_events)(self.raw.as_ptr(), told) };
        }
        told + 1
    }

    /// Hands over what has come, oldest first, at most `most` and a batch; how many these were.
    #[inline]
    pub(crate) fn poll(&mut self, most: usize, mut each: impl FnMut(Done)) -> Result<usize, Errno> {
        let room = c_int::try_from(most.min(BATCH)).map_err(|_| Errno::INVAL)?;
        // SAFETY: the queue is there, and the batch has room for so many.
        let count = unsafe { ibv_poll_cq(self.raw.as_ptr(), room, self.batch.as_mut_ptr().cast()) };
        let count = usize::try_from(count).map_err(|_| Errno::IO)?;
        for entry in self.batch.iter().take(count) {
            // SAFETY: the first `count` were written.
            each(done(unsafe { entry.assume_init_ref() }));
        }
        Ok(count)
    }
}

/// Has those who ask an event channel not wait.
fn unblock(channel: NonNull<ibv_comp_channel>) -> Result<(), Errno> {
    // SAFETY: the channel is there.
    let number = unsafe { (*channel.as_ptr()).fd };
    // SAFETY: its descriptor is open as long as it is.
    let events = unsafe { BorrowedFd::borrow_raw(number) };
    let flags = rustix::fs::fcntl_getfl(events)?;
    rustix::fs::fcntl_setfl(events, flags | OFlags::NONBLOCK)
}

/// What a completion says; unless it is a success only its id and its status do.
#[inline]
fn done(entry: &ibv_wc) -> Done {
    let (id, status) = (entry.wr_id, status(entry.status));
    if status != Status::Success {
        return Done { id, status, written: false, length: 0, immediate: None };
    }
    let has_immediate = entry.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
    // SAFETY: both variants are 32 bits, all of whose patterns are values.
    let immediate = unsafe { entry.imm_data_invalidated_rkey_union.imm_data };
    Done {
        id,
        status,
        written: entry.opcode == ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM,
        length: u64::from(entry.byte_len),
        immediate: has_immediate.then(|| u32::from_be(immediate)),
    }
}

fn status(status: ibv_wc_status::Type) -> Status {
    match status {
        ibv_wc_status::IBV_WC_SUCCESS => Status::Success,
        ibv_wc_status::IBV_WC_LOC_LEN_ERR => Status::LocalLength,
        ibv_wc_status::IBV_WC_LOC_PROT_ERR | ibv_wc_status::IBV_WC_LOC_ACCESS_ERR => Status::LocalProtection,
        ibv_wc_status::IBV_WC_WR_FLUSH_ERR => Status::Flushed,
        ibv_wc_status::IBV_WC_REM_INV_REQ_ERR
        | ibv_wc_status::IBV_WC_REM_INV_RD_REQ_ERR
        | ibv_wc_status::IBV_WC_REM_OP_ERR => Status::RemoteInvalidRequest,
        ibv_wc_status::IBV_WC_REM_ACCESS_ERR => Status::RemoteAccess,
        _ => Status::TransportLost,
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.disarm();
        let library = self.context.library;
        // SAFETY: its queue pairs are destroyed before it (the device's fields stand in that order), and every event that
        // was taken has been acknowledged. If one were left, the queue would stay.
        let _ = unsafe { (library.destroy_cq)(self.raw.as_ptr()) };
        // SAFETY: the only queue of the channel is gone.
        let _ = unsafe { (library.destroy_comp_channel)(self.channel.as_ptr()) };
    }
}
