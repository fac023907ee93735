//! The caller's memory, as a queue pair needs it.

use ringway_verbs::{Access, LocalKey, RemoteKey};
use thiserror::Error;

/// The key names nothing, the bytes are not all inside its region, or the region does not permit the access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the key names no region, or the region does not hold these bytes or permit this access")]
pub struct Denied;

/// What a peer wants to do to a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoteAccess {
    /// WRITE.
    Write,
    /// READ.
    Read,
    /// FETCH_ADD and CMP_SWAP.
    Atomic,
}

impl RemoteAccess {
    /// Whether this much access permits it.
    #[inline]
    #[must_use]
    pub const fn is_granted_by(self, access: Access) -> bool {
        match self {
            Self::Write => access.remote_write,
            Self::Read => access.remote_read,
            Self::Atomic => access.remote_atomic,
        }
    }
}

/// What an atomic does to its word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtomicOperation {
    /// Adds.
    FetchAdd {
        /// What to add, modulo 2^64.
        add: u64,
    },
    /// Replaces the expected value.
    CompareSwap {
        /// What must be there.
        expected: u64,
        /// What to put there.
        desired: u64,
    },
}

impl AtomicOperation {
    /// What the word is afterwards.
    #[must_use]
    pub const fn apply(self, old: u64) -> u64 {
        match self {
            Self::FetchAdd { add } => old.wrapping_add(add),
            Self::CompareSwap { expected, desired } if old == expected => desired,
            Self::CompareSwap { .. } => old,
        }
    }
}

/// Registered memory. Every call is checked by the implementation: key, range and what the region permits, since a
/// region may have been deregistered since the request was posted or begun.
///
/// Payload is copied by these calls and by nothing else: out of a region into the frame that is being built, and out
/// of the frame that was received into a region. Bytes are written in ascending order, so that a reader that polls the
/// last byte of a WRITE finds the others in place.
pub trait Memory {
    /// Whether these bytes of a local region can be read.
    ///
    /// # Errors
    /// When the key or range is wrong.
    fn check_local(&self, key: LocalKey, offset: u64, length: u64) -> Result<(), Denied>;

    /// Copies bytes of a local region into a frame.
    ///
    /// # Errors
    /// When the key or range is wrong.
    fn read_local(&self, key: LocalKey, offset: u64, into: &mut [u8]) -> Result<(), Denied>;

    /// Copies received bytes into a local region.
    ///
    /// # Errors
    /// When the key or range is wrong or the region may not be written.
    fn write_local(&mut self, key: LocalKey, offset: u64, from: &[u8]) -> Result<(), Denied>;

    /// Whether the peer may do this to all these bytes.
    ///
    /// # Errors
    /// When it may not.
    fn check_remote(
        &self,
        key: RemoteKey,
        address: u64,
        length: u64,
        access: RemoteAccess,
    ) -> Result<(), Denied>;

    /// Copies bytes the peer asked for into a frame.
    ///
    /// # Errors
    /// As [`Memory::check_remote`].
    fn read_remote(&self, key: RemoteKey, address: u64, into: &mut [u8]) -> Result<(), Denied>;

    /// Copies the peer's bytes into a region.
    ///
    /// # Errors
    /// As [`Memory::check_remote`].
    fn write_remote(&mut self, key: RemoteKey, address: u64, from: &[u8]) -> Result<(), Denied>;

    /// Changes an 8-byte aligned word in native byte order, atomically towards all queue pairs of the device; returns
    /// what was there.
    ///
    /// # Errors
    /// As [`Memory::check_remote`].
    fn atomic_remote(
        &mut self,
        key: RemoteKey,
        address: u64,
        operation: AtomicOperation,
    ) -> Result<u64, Denied>;
}
