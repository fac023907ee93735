//! Scatter and gather lists as the kernel takes them.

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
}
