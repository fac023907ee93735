//! Scatter and gather lists as the kernel takes them, and the system calls that work through one at once.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::buffers::{ReceivePlan, SendBatch};

/// The most pieces of one scatter or gather list.
pub(crate) const MAX_VECTORS: usize = 64;

/// A scatter or gather list and the message header that points to it.
pub(crate) struct Vectors {
    header: libc::msghdr,
    vectors: [libc::iovec; MAX_VECTORS],
    used: usize,
}

// SAFETY: the pointers inside are addresses for the kernel; they are never dereferenced here and tied to no thread.
unsafe impl Send for Vectors {}

impl core::fmt::Debug for Vectors {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Vectors").field("used", &self.used).finish_non_exhaustive()
    }
}

impl Vectors {
    pub(crate) const fn new() -> Self {
        // SAFETY: a `msghdr` of zero bytes is a valid one that names nothing.
        let header = unsafe { core::mem::zeroed() };
        let empty = libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 };
        Self { header, vectors: [empty; MAX_VECTORS], used: 0 }
    }

    pub(crate) const fn clear(&mut self) {
        self.used = 0;
    }

    /// Adds a piece; pieces beyond [`MAX_VECTORS`] are left out, and so not transferred.
    pub(crate) fn push(&mut self, base: *mut u8, length: usize) {
        if let Some(vector) = self.vectors.get_mut(self.used) {
            *vector = libc::iovec { iov_base: base.cast(), iov_len: length };
            self.used += 1;
        }
    }

    /// The only piece, if it is the only one.
    pub(crate) fn single(&self) -> Option<(*mut u8, u32)> {
        let [vector] = self.vectors.get(..self.used)? else { return None };
        Some((vector.iov_base.cast(), u32::try_from(vector.iov_len).ok()?))
    }

    /// The header, pointing to the list. Valid until `self` moves.
    pub(crate) fn message(&mut self) -> *mut libc::msghdr {
        self.header.msg_iov = self.vectors.as_mut_ptr();
        self.header.msg_iovlen = self.used as _;
        &raw mut self.header
    }

    /// Bytes in all pieces.
    fn length(&self) -> usize {
        self.vectors.iter().take(self.used).map(|vector| vector.iov_len).sum()
    }
}

/// Sends what a socket takes at once of a batch, with one system call. Gives the count, or a negative `errno`.
pub(crate) fn send(socket: BorrowedFd<'_>, batch: &mut SendBatch) -> i32 {
    let (fd, flags) = (socket.as_raw_fd(), libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT);
    // Made just now, of bytes that the batch owns and of mappings that it holds; the batch is borrowed to the end.
    let vectors = batch.vectors();
    outcome(match vectors.single() {
        // SAFETY: the piece lies in the batch's bytes or in a mapping it holds, both alive as said above; the kernel
        // only reads it.
        Some((base, length)) => unsafe { libc::send(fd, base.cast_const().cast(), length as usize, flags) },
        // SAFETY: the same of every piece; header and list are the batch's own and do not move before the call ends.
        None => unsafe { libc::sendmsg(fd, vectors.message().cast_const(), flags) },
    })
}

/// Receives what a socket has at once for a plan, with one system call. Gives the count, or a negative `errno`, and
/// whether all of the plan was filled, so that the socket may have more.
pub(crate) fn receive(socket: BorrowedFd<'_>, plan: &mut ReceivePlan) -> (i32, bool) {
    let (fd, flags) = (socket.as_raw_fd(), libc::MSG_DONTWAIT);
    // Made just now, of bytes that the plan owns and of writable mappings that it holds; the plan is borrowed to the end,
    // so that nobody here has a reference to those bytes. To bytes of mappings nobody ever has one.
    let vectors = plan.vectors();
    let room = vectors.length();
    let result = outcome(match vectors.single() {
        // SAFETY: the piece lies in the plan's bytes or in a writable mapping it holds, alive as said above.
        Some((base, length)) => unsafe { libc::recv(fd, base.cast(), length as usize, flags) },
        // SAFETY: the same of every piece; header and list are the plan's own and do not move before the call ends.
        None => unsafe { libc::recvmsg(fd, vectors.message(), flags) },
    });
    (result, usize::try_from(result) == Ok(room))
}

/// What a system call returned, with `errno` in place of -1.
fn outcome(result: isize) -> i32 {
    if result < 0 {
        return -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    }
    i32::try_from(result).unwrap_or(i32::MAX)
}
