//! The extension headers that name memory, operands and datagrams.

use crate::{bth::QueuePair, bytes::low_24};

/// The RDMA extension header: memory of the receiver (IBA volume 1, 9.3.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reth {
    /// The first byte's virtual address.
    pub address: u64,
    /// The remote key.
    pub key: u32,
    /// Bytes of the whole message.
    pub length: u32,
}

impl Reth {
    /// Its bytes on the wire.
    pub const LENGTH: usize = 16;

    /// The bytes.
    #[inline]
    #[must_use]
    pub const fn to_bytes(self) -> [u8; Self::LENGTH] {
        let [a0, a1, a2, a3, a4, a5, a6, a7] = self.address.to_be_bytes();
        let [k0, k1, k2, k3] = self.key.to_be_bytes();
        let [l0, l1, l2, l3] = self.length.to_be_bytes();
        [a0, a1, a2, a3, a4, a5, a6, a7, k0, k1, k2, k3, l0, l1, l2, l3]
    }

    /// The header in these bytes.
    #[inline]
    #[must_use]
    pub const fn parse(bytes: &[u8; Self::LENGTH]) -> Self {
        let [a0, a1, a2, a3, a4, a5, a6, a7, k0, k1, k2, k3, l0, l1, l2, l3] = *bytes;
        Self {
            address: u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            key: u32::from_be_bytes([k0, k1, k2, k3]),
            length: u32::from_be_bytes([l0, l1, l2, l3]),
        }
    }
}

/// The atomic extension header (IBA volume 1, 9.3.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AtomicEth {
    /// The word's virtual address.
    pub address: u64,
    /// The remote key.
    pub key: u32,
    /// What a FETCH_ADD adds, what a CMP_SWAP puts there.
    pub swap_or_add: u64,
    /// What a CMP_SWAP expects.
    pub compare: u64,
}

impl AtomicEth {
    /// Its bytes on the wire.
    pub const LENGTH: usize = 28;

    /// The bytes.
    #[inline]
    #[must_use]
    pub const fn to_bytes(self) -> [u8; Self::LENGTH] {
        let [a0, a1, a2, a3, a4, a5, a6, a7] = self.address.to_be_bytes();
        let [k0, k1, k2, k3] = self.key.to_be_bytes();
        let [s0, s1, s2, s3, s4, s5, s6, s7] = self.swap_or_add.to_be_bytes();
        let [c0, c1, c2, c3, c4, c5, c6, c7] = self.compare.to_be_bytes();
        [
            a0, a1, a2, a3, a4, a5, a6, a7, k0, k1, k2, k3, s0, s1, s2, s3, s4, s5, s6, s7, c0, c1, c2, c3,
            c4, c5, c6, c7,
        ]
    }

    /// The header in these bytes.
    #[inline]
    #[must_use]
    pub const fn parse(bytes: &[u8; Self::LENGTH]) -> Self {
        #[rustfmt::skip]
        let [
            a0, a1, a2, a3, a4, a5, a6, a7, k0, k1, k2, k3,
            s0, s1, s2, s3, s4, s5, s6, s7, c0, c1, c2, c3, c4, c5, c6, c7,
        ] = *bytes;
        Self {
            address: u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            key: u32::from_be_bytes([k0, k1, k2, k3]),
            swap_or_add: u64::from_be_bytes([s0, s1, s2, s3, s4, s5, s6, s7]),
            compare: u64::from_be_bytes([c0, c1, c2, c3, c4, c5, c6, c7]),
        }
    }
}

/// The datagram extension header (IBA volume 1, 9.3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Deth {
    /// The queue key.
    pub queue_key: u32,
    /// Who sent it.
    pub source: QueuePair,
}

impl Deth {
    /// Its bytes on the wire.
    pub const LENGTH: usize = 8;

    /// The bytes.
    #[inline]
    #[must_use]
    pub const fn to_bytes(self) -> [u8; Self::LENGTH] {
        let [k0, k1, k2, k3] = self.queue_key.to_be_bytes();
        let [q0, q1, q2] = low_24(self.source.number());
        [k0, k1, k2, k3, 0, q0, q1, q2]
    }

    /// The header in these bytes.
    #[inline]
    #[must_use]
    pub const fn parse(bytes: &[u8; Self::LENGTH]) -> Self {
        let [k0, k1, k2, k3, _, q0, q1, q2] = *bytes;
        Self { queue_key: u32::from_be_bytes([k0, k1, k2, k3]), source: QueuePair::from_bytes([q0, q1, q2]) }
    }
}
