//! Path MTUs.

/// The most payload of one packet on a path (IBA volume 1, 9.4.3): one of five values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum PathMtu {
    /// 256 bytes.
    Mtu256 = 1,
    /// 512 bytes.
    Mtu512 = 2,
    /// 1024 bytes: what fits Ethernet's usual 1500.
    Mtu1024 = 3,
    /// 2048 bytes.
    Mtu2048 = 4,
    /// 4096 bytes.
    Mtu4096 = 5,
}

impl PathMtu {
    /// Every value, in ascending order.
    pub const ALL: [Self; 5] = [Self::Mtu256, Self::Mtu512, Self::Mtu1024, Self::Mtu2048, Self::Mtu4096];

    /// The code used in verbs and in connection messages.
    #[inline]
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The value with this code, if there is one.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.code() == code)
    }

    /// The number of bytes.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> usize {
        128 << self as u8
    }

    /// The value with this number of bytes, if there is one.
    #[must_use]
    pub fn from_bytes(bytes: usize) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.bytes() == bytes)
    }

    /// The largest value that an interface with this MTU (of IP packets) carries, as rxe and network cards choose it:
    /// 80 bytes are kept for headers. `None` when not even the smallest fits.
    #[must_use]
    pub fn for_interface(interface_bytes: usize) -> Option<Self> {
        let room = interface_bytes.checked_sub(80)?;
        Self::ALL.into_iter().rev().find(|mtu| mtu.bytes() <= room)
    }

    /// How many packets a message of `length` bytes takes; an empty one takes one.
    #[inline]
    #[must_use]
    pub const fn packets(self, length: u64) -> u64 {
        let packets = length.div_ceil(self.bytes() as u64);
        if packets == 0 { 1 } else { packets }
    }
}
