//! The two eight-bit floats of the OCP 8-bit Floating Point Specification (OFP8), revision 1.0, as types of Rust. Arithmetic is
//! not done in them: they are widened to `f32`, which is exact, and rounded from it.

use core::{cmp::Ordering, fmt};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const F32_FRACTION: u32 = 23;
const F32_BIAS: u32 = 127;
const F32_MAGNITUDE: u32 = 0x7fff_ffff;
const F32_INFINITY: u32 = 0x7f80_0000;

/// Rounds the magnitude of a number to nearest even: to a float of eight bits with so many of them for the fraction, the
/// exponent's bias, and this largest finite magnitude.
#[inline(always)]
const fn round(magnitude: u32, fraction: u32, bias: u32, largest: u32) -> u32 {
    let exponent = magnitude >> F32_FRACTION;
    // The `f32`'s exponent that numbers have with the least exponent here, be they normal or subnormal.
    let least = F32_BIAS + 1 - bias;
    // Below it every place further is one more that is lost. With 25 lost nothing is left that a half could round up: as many
    // will do, and `f32`'s own subnormals, which have no leading one, come there too.
    let below = least.saturating_sub(exponent);
    let lost = F32_FRACTION - fraction + if below > 5 { 5 } else { below };
    let significand = (magnitude & ((1 << F32_FRACTION) - 1)) | 1 << F32_FRACTION;
    let odd = (significand >> lost) & 1;
    let kept = (significand + (1 << (lost - 1)) - 1 + odd) >> lost;
    // The leading one of a normal number counts as one more in the exponent, as a carry out of the fraction does.
    let rounded = (exponent.saturating_sub(least) << fraction) + kept;
    if rounded > largest { largest } else { rounded }
}

/// Widens a magnitude that is a number: with so many bits of fraction, and this bias of the exponent.
#[inline(always)]
const fn widen(magnitude: u32, fraction: u32, bias: u32) -> f32 {
    let bits = magnitude << (F32_FRACTION - fraction);
    let one = 1 << F32_FRACTION;
    if bits >= one {
        f32::from_bits(bits + ((F32_BIAS - bias) << F32_FRACTION))
    } else {
        // With the least exponent and a leading one too much: exact, and without a subnormal `f32`.
        let least = (F32_BIAS + 1 - bias) << F32_FRACTION;
        f32::from_bits(least + bits) - f32::from_bits(least)
    }
}

/// Declares what both types have.
macro_rules! eight_bit_float {
    ($(#[$meta:meta])* $name:ident, fraction: $fraction:literal, bias: $bias:literal, max: $max:literal, nan: $nan:literal) => {
        $(#[$meta])*
        ///
        /// Values compare as floats do: a NaN equals nothing, and -0 equals +0. The default is +0.
        #[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(transparent)]
        pub struct $name(u8);

        impl $name {
            /// The largest finite value.
            pub const MAX: Self = Self($max);
            /// The least finite value.
            pub const MIN: Self = Self($max | 0x80);
            /// The smallest positive normal value.
            pub const MIN_POSITIVE: Self = Self(1 << $fraction);
            /// The NaN that conversions write: positive, and quiet without payload where there is a choice.
            pub const NAN: Self = Self($nan);

            /// The value with these bits.
            #[inline]
            #[must_use]
            pub const fn from_bits(bits: u8) -> Self { Self(bits) }

            /// The bits.
            #[inline]
            #[must_use]
            pub const fn to_bits(self) -> u8 { self.0 }

            /// Whether this is no number.
            #[inline]
            #[must_use]
            pub const fn is_nan(self) -> bool { self.to_f32().is_nan() }
        }

        impl From<$name> for f32 {
            #[inline]
            fn from(value: $name) -> Self { value.to_f32() }
        }

        impl From<$name> for f64 {
            #[inline]
            fn from(value: $name) -> Self { value.to_f32().into() }
        }

        impl PartialEq for $name {
            #[inline]
            fn eq(&self, other: &Self) -> bool { self.to_f32() == other.to_f32() }
        }

        impl PartialOrd for $name {
            #[inline]
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> { self.to_f32().partial_cmp(&other.to_f32()) }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { fmt::Display::fmt(&self.to_f32(), f) }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { fmt::Debug::fmt(&self.to_f32(), f) }
        }
    };
}

eight_bit_float!(
    /// E4M3 of OFP8: four bits of exponent with a bias of 7, three of fraction. There is no infinity; `S.1111.111` is
    /// the NaN of either sign, and the largest value is 448.
    F8E4M3, fraction: 3, bias: 7, max: 0x7e, nan: 0x7f
);

eight_bit_float!(
    /// E5M2 of OFP8: five bits of exponent with a bias of 15, two of fraction, with infinities and NaNs as in IEEE 754.
    /// The largest finite value is 57344.
    F8E5M2, fraction: 2, bias: 15, max: 0x7b, nan: 0x7e
);

impl F8E4M3 {
    /// The value rounded to nearest even. Beyond ±448, infinities included, it is ±448, as PTX's `satfinite` has it; every
    /// NaN becomes [`Self::NAN`].
    #[inline]
    #[must_use]
    pub const fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        let magnitude = bits & F32_MAGNITUDE;
        if magnitude > F32_INFINITY {
            return Self::NAN;
        }
        Self(((bits >> 24) & 0x80 | round(magnitude, 3, 7, 0x7e)) as u8)
    }

    /// The value as an `f32`, which has them all.
    #[inline]
    #[must_use]
    pub const fn to_f32(self) -> f32 {
        let magnitude = (self.0 & 0x7f) as u32;
        let wide = if magnitude == 0x7f { f32::NAN } else { widen(magnitude, 3, 7) };
        f32::from_bits(wide.to_bits() | ((self.0 & 0x80) as u32) << 24)
    }
}

impl F8E5M2 {
    /// Positive infinity.
    pub const INFINITY: Self = Self(0x7c);
    /// Negative infinity.
    pub const NEG_INFINITY: Self = Self(0xfc);

    /// The value rounded to nearest even. Finite ones beyond ±57344 become ±57344, infinities stay infinities, and every NaN
    /// becomes [`Self::NAN`]. (PTX's `satfinite` takes infinities to ±57344 as well.)
    #[inline]
    #[must_use]
    pub const fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        let magnitude = bits & F32_MAGNITUDE;
        if magnitude > F32_INFINITY {
            return Self::NAN;
        }
        let rounded = if magnitude == F32_INFINITY { 0x7c } else { round(magnitude, 2, 15, 0x7b) };
        Self(((bits >> 24) & 0x80 | rounded) as u8)
    }

    /// The value as an `f32`, which has them all.
    #[inline]
    #[must_use]
    pub const fn to_f32(self) -> f32 {
        let magnitude = (self.0 & 0x7f) as u32;
        let wide = match magnitude {
            0x7c => f32::INFINITY,
            0x7d.. => f32::NAN,
            _ => widen(magnitude, 2, 15),
        };
        f32::from_bits(wide.to_bits() | ((self.0 & 0x80) as u32) << 24)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::{format, vec::Vec};

    use super::*;

    /// The finite values that are not negative, ascending, by the formulas of OFP8; bits are places here.
    fn finite(fraction: i32, bias: i32, largest: u8) -> Vec<f64> {
        let two = |power: i32| 2.0_f64.powi(power);
        let value = |bits: i32| match (bits >> fraction, f64::from(bits & ((1 << fraction) - 1))) {
            (0, fractions) => two(1 - bias) * fractions / two(fraction),
            (exponent, fractions) => two(exponent - bias) * (1.0 + fractions / two(fraction)),
        };
        (0..=i32::from(largest)).map(value).collect()
    }

    /// The place of the value nearest to a magnitude, the even one of two; the last one beyond it.
    fn nearest(finite: &[f64], magnitude: f64) -> u8 {
        let between = |at: usize| f64::midpoint(finite[at], finite[at + 1]);
        let is_above = |at: &usize| magnitude > between(*at) || (magnitude == between(*at) && at % 2 == 1);
        (0..finite.len() - 1).take_while(is_above).count() as u8
    }

    /// Magnitudes at, right beside and far from where the rounding changes.
    fn magnitudes(finite: &[f64]) -> Vec<f32> {
        let edges = finite.windows(2).flat_map(|pair| [pair[0], f64::midpoint(pair[0], pair[1])]);
        let beyond = 2.0 * finite[finite.len() - 1] - finite[finite.len() - 2];
        let edges =
            edges.chain([finite[finite.len() - 1], f64::midpoint(finite[finite.len() - 1], beyond), beyond]);
        let beside = edges.flat_map(|edge| {
            let edge = edge as f32;
            [edge, edge.next_up(), edge.next_down().abs()]
        });
        beside.chain((0..=F32_MAGNITUDE).step_by(9973).map(f32::from_bits)).collect()
    }

    #[test]
    fn every_e4m3_is_what_the_specification_says() {
        let finite = finite(3, 7, 0x7e);
        for bits in 0..=u8::MAX {
            let (value, sign) = (F8E4M3::from_bits(bits), if bits < 0x80 { 1.0 } else { -1.0 });
            match finite.get(usize::from(bits & 0x7f)) {
                Some(magnitude) => {
                    assert_eq!(f64::from(value).to_bits(), (sign * magnitude).to_bits(), "{bits:#x}");
                    assert_eq!(F8E4M3::from_f32(value.to_f32()).to_bits(), bits);
                }
                None => {
                    assert!(value.is_nan() && bits & 0x7f == 0x7f, "{bits:#x}");
                    assert_eq!(F8E4M3::from_f32(value.to_f32()).to_bits(), 0x7f);
                }
            }
        }
        let named = [F8E4M3::MAX, F8E4M3::MIN, F8E4M3::MIN_POSITIVE, F8E4M3::default()];
        assert_eq!(named.map(F8E4M3::to_f32), [448.0, -448.0, 1.0 / 64.0, 0.0]);
    }

    #[test]
    fn every_e5m2_is_what_the_specification_says() {
        let finite = finite(2, 15, 0x7b);
        for bits in 0..=u8::MAX {
            let (value, sign) = (F8E5M2::from_bits(bits), if bits < 0x80 { 1.0 } else { -1.0 });
            let magnitude = match bits & 0x7f {
                0x7c => Some(f64::INFINITY),
                low => finite.get(usize::from(low)).copied(),
            };
            match magnitude {
                Some(magnitude) => {
                    assert_eq!(f64::from(value).to_bits(), (sign * magnitude).to_bits(), "{bits:#x}");
                    assert_eq!(F8E5M2::from_f32(value.to_f32()).to_bits(), bits);
                }
                None => {
                    assert!(value.is_nan() && bits & 0x7f > 0x7c, "{bits:#x}");
                    assert_eq!(F8E5M2::from_f32(value.to_f32()).to_bits(), 0x7e);
                }
            }
        }
        let named = [F8E5M2::MAX, F8E5M2::MIN, F8E5M2::MIN_POSITIVE, F8E5M2::INFINITY, F8E5M2::NEG_INFINITY];
        let values = [57344.0, -57344.0, 1.0 / 16384.0, f32::INFINITY, f32::NEG_INFINITY];
        assert_eq!(named.map(F8E5M2::to_f32), values);
    }

    #[test]
    fn rounding_is_to_nearest_even_and_saturates() {
        let (e4m3, e5m2) = (finite(3, 7, 0x7e), finite(2, 15, 0x7b));
        for magnitude in magnitudes(&e4m3).into_iter().chain(magnitudes(&e5m2)) {
            let wide = f64::from(magnitude);
            let of_infinity = if magnitude == f32::INFINITY { Some(0x7c) } else { None };
            let (a, b) = match magnitude.is_nan() {
                true => (0x7f, 0x7e),
                false => (nearest(&e4m3, wide), of_infinity.unwrap_or_else(|| nearest(&e5m2, wide))),
            };
            let sign = if magnitude.is_nan() { 0 } else { 0x80 };
            assert_eq!(F8E4M3::from_f32(magnitude).to_bits(), a, "{magnitude:e}");
            assert_eq!(F8E4M3::from_f32(-magnitude).to_bits(), a | sign, "-{magnitude:e}");
            assert_eq!(F8E5M2::from_f32(magnitude).to_bits(), b, "{magnitude:e}");
            assert_eq!(F8E5M2::from_f32(-magnitude).to_bits(), b | sign, "-{magnitude:e}");
        }
    }

    /// Worked out by hand.
    #[test]
    fn some_numbers_round_as_they_should() {
        let least = 1.0 / 512.0;
        let e4m3 = [
            (17.0, 16.0),
            (19.0, 20.0),
            (464.0, 448.0),
            (1e30, 448.0),
            (f32::INFINITY, 448.0),
            (least / 2.0, 0.0),
            (least * 0.51, least),
            (least * 1.5, least * 2.0),
            (least * 7.5, least * 8.0),
        ];
        for (from, to) in e4m3 {
            assert_eq!(F8E4M3::from_f32(from).to_f32(), to, "{from}");
        }
        let e5m2 = [(9.0, 8.0), (11.0, 12.0), (61440.0, 57344.0), (f32::MAX, 57344.0), (1e-5, 1.0 / 65536.0)];
        for (from, to) in e5m2 {
            assert_eq!(F8E5M2::from_f32(from).to_f32(), to, "{from}");
        }
    }

    #[test]
    fn values_compare_and_print_as_floats_do() {
        let [zero, negative, one] = [0.0, -0.0, 1.0].map(F8E4M3::from_f32);
        assert_ne!(zero.to_bits(), negative.to_bits());
        assert_eq!(zero, negative);
        assert!(negative < one && F8E4M3::NAN != F8E4M3::NAN);
        assert_eq!(F8E5M2::NAN.partial_cmp(&F8E5M2::MAX), None);
        assert_eq!(format!("{one} {one:?} {negative:?} {}", F8E4M3::from_f32(0.4375)), "1 1.0 -0.0 0.4375");
        assert_eq!(format!("{} {:?} {:5.1}", F8E5M2::INFINITY, F8E5M2::NAN, F8E5M2::MAX), "inf NaN 57344.0");
        assert_eq!(
            (one.as_bytes(), F8E5M2::read_from_bytes(&[0x3c])),
            (&[0x38][..], Ok(F8E5M2::from_f32(1.0)))
        );
    }
}
