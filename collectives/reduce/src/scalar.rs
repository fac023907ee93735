//! The factor a rank multiplies its values by.

use ringway_types::DataType;

/// One number as eight bytes, read in the family of the type it scales: an `f64` for floats, an `i64` for signed
/// and a `u64` for unsigned integers. It is converted to the precision the arithmetic is done in once (`f32` for
/// all floats but `f64`, to nearest even) and to narrower integers by keeping its low bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scalar {
    bits: u64,
}

impl Scalar {
    /// A factor for floats.
    #[must_use]
    pub const fn float(value: f64) -> Self {
        Self { bits: value.to_bits() }
    }

    /// A factor for signed integers.
    #[must_use]
    pub const fn signed(value: i64) -> Self {
        Self { bits: value.cast_unsigned() }
    }

    /// A factor for unsigned integers.
    #[must_use]
    pub const fn unsigned(value: u64) -> Self {
        Self { bits: value }
    }

    /// The factor whose eight bytes, in little-endian order, these are.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 8]) -> Self {
        Self { bits: u64::from_le_bytes(bytes) }
    }

    /// The eight bytes, in little-endian order.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 8] {
        self.bits.to_le_bytes()
    }

    /// The factor that leaves values of this type as they are.
    #[must_use]
    pub const fn one(datatype: DataType) -> Self {
        if datatype.is_float() { Self::float(1.0) } else { Self::unsigned(1) }
    }

    /// The bytes read as a float.
    pub(crate) const fn as_f64(self) -> f64 {
        f64::from_bits(self.bits)
    }

    /// The bytes read as an integer; the low bits are the same for signed and unsigned ones.
    pub(crate) const fn as_u64(self) -> u64 {
        self.bits
    }
}
