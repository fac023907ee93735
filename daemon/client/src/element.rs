//! Rust types as elements of buffers, and typed reductions.

use core::{fmt, marker::PhantomData};

use half::{bf16, f16};
use ringway_types::{DataType, F8E4M3, F8E5M2, Reduction};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

mod sealed {
    pub trait Sealed {}
}

/// A type whose values can be sent and combined: `i8 u8 i32 u32 i64 u64 f16 bf16 f32 f64` (`f16` and `bf16` are
/// those of the `half` crate), and [`F8E4M3`] and [`F8E5M2`], the eight-bit floats of OFP8. Sealed: these are the types the protocol knows.
pub trait Element:
    sealed::Sealed
    + Copy
    + Default
    + PartialEq
    + fmt::Debug
    + Send
    + Sync
    + FromBytes
    + IntoBytes
    + Immutable
    + KnownLayout
    + 'static
{
    /// The type's name in the protocol.
    const DATATYPE: DataType;

    /// What [`Reduce::premul`] multiplies by: `f64` for floats, `i64` or `u64` for integers.
    type Scalar: Copy;

    /// One, as a scalar.
    const ONE: Self::Scalar;

    /// The scalar as the eight bytes that the protocol carries.
    #[doc(hidden)]
    fn scalar_bits(scalar: Self::Scalar) -> u64;
}

macro_rules! elements {
    ($($type:ty, $datatype:ident, $scalar:ty, $one:literal, $bits:expr;)*) => {$(
        impl sealed::Sealed for $type {}

        impl Element for $type {
            const DATATYPE: DataType = DataType::$datatype;
            type Scalar = $scalar;
            const ONE: $scalar = $one;

            fn scalar_bits(scalar: $scalar) -> u64 { $bits(scalar) }
        }
    )*};
}

elements! {
    i8, I8, i64, 1, i64::cast_unsigned;
    u8, U8, u64, 1, u64::from;
    i32, I32, i64, 1, i64::cast_unsigned;
    u32, U32, u64, 1, u64::from;
    i64, I64, i64, 1, i64::cast_unsigned;
    u64, U64, u64, 1, u64::from;
    f16, F16, f64, 1.0, f64::to_bits;
    bf16, Bf16, f64, 1.0, f64::to_bits;
    F8E4M3, F8E4M3, f64, 1.0, f64::to_bits;
    F8E5M2, F8E5M2, f64, 1.0, f64::to_bits;
    f32, F32, f64, 1.0, f64::to_bits;
    f64, F64, f64, 1.0, f64::to_bits;
}

/// How the values of several ranks become one, for elements of type `T`. A plain [`Reduction`] converts into it;
/// [`Reduce::premul`] makes the one that carries a scalar.
///
/// Every reduction is defined for every type, but the bitwise ones (`band bor bxor`) for floats:
///
/// | | `i8 u8 i32 u32 i64 u64` | `f8e4m3 f8e5m2 f16 bf16 f32 f64` |
/// |---|---|---|
/// | `sum prod` | wrapping | in the type, those narrower than `f32` widened and rounded once |
/// | `min max` | yes | IEEE 754-2019 minimum/maximum: a NaN wins, -0 < +0 |
/// | `avg` | sum, then division truncating toward zero | sum, then division |
/// | `premul_sum` | each rank's values times its own scalar, then the sum | the same |
/// | `land lor lxor` | 1 or 0 | 1.0 or 0.0 |
/// | `band bor bxor` | yes | refused |
///
/// What is finite and beyond the largest finite value of an eight-bit type becomes that value: 448 and 57344. `f8e4m3` has no
/// infinity and takes one for 448.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Reduce<T> {
    pub(crate) reduction: Reduction,
    pub(crate) scalar: u64,
    element: PhantomData<T>,
}

impl<T: Element> Reduce<T> {
    /// The sum of each rank's values multiplied by that rank's own `scalar`.
    #[must_use]
    pub fn premul(scalar: T::Scalar) -> Self {
        Self { reduction: Reduction::PremulSum, scalar: T::scalar_bits(scalar), element: PhantomData }
    }
}

impl<T: Element> From<Reduction> for Reduce<T> {
    /// The reduction; [`Reduction::PremulSum`] gets the scalar one.
    fn from(reduction: Reduction) -> Self {
        let scalar = if reduction == Reduction::PremulSum { T::scalar_bits(T::ONE) } else { 0 };
        Self { reduction, scalar, element: PhantomData }
    }
}

impl<T> fmt::Debug for Reduce<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reduce").field(&self.reduction).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn element_sizes_are_those_of_the_protocol() {
        fn check<T: Element>() {
            assert_eq!(size_of::<T>(), T::DATATYPE.size());
            assert!(align_of::<T>() <= 8);
        }
        check::<i8>();
        check::<u8>();
        check::<i32>();
        check::<u32>();
        check::<i64>();
        check::<u64>();
        check::<f16>();
        check::<bf16>();
        check::<F8E4M3>();
        check::<F8E5M2>();
        check::<f32>();
        check::<f64>();
    }

    #[test]
    fn scalars_travel_as_the_protocol_says() {
        assert_eq!(Reduce::<f32>::premul(0.5).scalar, 0.5_f64.to_bits());
        assert_eq!(Reduce::<i32>::premul(-1).scalar, u64::MAX);
        assert_eq!(Reduce::<u8>::from(Reduction::PremulSum).scalar, 1);
        assert_eq!(Reduce::<F8E4M3>::premul(-0.5).scalar, (-0.5_f64).to_bits());
        assert_eq!(Reduce::<bf16>::from(Reduction::PremulSum).scalar, 1.0_f64.to_bits());
    }
}
