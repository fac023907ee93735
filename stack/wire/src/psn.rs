//! Packet sequence numbers.

use core::fmt;

/// A packet sequence number: 24 bits that wrap around (IBA volume 1, 9.7.2).
///
/// There is no order among all of them, so this is not [`Ord`]: of two numbers less than 2^23 apart one is
/// [before](Self::is_before) the other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// How many there are.
    pub const COUNT: u32 = 1 << 24;
    /// The first one.
    pub const ZERO: Self = Self(0);

    /// The number with the lower 24 bits of `value`.
    #[inline]
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value & (Self::COUNT - 1))
    }

    /// The 24 bits.
    #[inline]
    #[must_use]
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The number `packets` later.
    #[inline]
    #[must_use]
    pub const fn plus(self, packets: u32) -> Self {
        Self::new(self.0.wrapping_add(packets))
    }

    /// The number `packets` earlier.
    #[inline]
    #[must_use]
    pub const fn minus(self, packets: u32) -> Self {
        Self::new(self.0.wrapping_sub(packets))
    }

    /// The next number.
    #[inline]
    #[must_use]
    pub const fn next(self) -> Self {
        self.plus(1)
    }

    /// How many packets this is after `other`, negative if it is before: at least -2^23, less than 2^23.
    #[inline]
    #[must_use]
    pub const fn since(self, other: Self) -> i32 {
        // The sign of the 24-bit difference is moved to where the 32-bit type has its own, and back.
        (self.0.wrapping_sub(other.0) << 8).cast_signed() >> 8
    }

    /// How many numbers there are from `other` up to this one, going upwards: less than 2^24.
    #[inline]
    #[must_use]
    pub const fn above(self, other: Self) -> u32 {
        Self::new(self.0.wrapping_sub(other.0)).0
    }

    /// Whether this comes before `other`.
    #[inline]
    #[must_use]
    pub const fn is_before(self, other: Self) -> bool {
        self.since(other) < 0
    }

    /// Whether this comes after `other`.
    #[inline]
    #[must_use]
    pub const fn is_after(self, other: Self) -> bool {
        self.since(other) > 0
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({:#x})", self.0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
