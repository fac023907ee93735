//! Sums and products of floats. Narrower types are accumulated in `f32` and rounded once.

use core::marker::PhantomData;
use core::ops::{Add, Div, Mul};

use super::Rule;
use crate::Scalar;

/// What floats are accumulated in.
pub(super) trait Wide:
    Copy + Default + Add<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    fn factor(scalar: Scalar) -> Self;
    fn ranks(ranks: u32) -> Self;
}

impl Wide for f32 {
    #[inline(always)]
    fn factor(scalar: Scalar) -> Self {
        scalar.as_f64() as Self
    }
    #[inline(always)]
    fn ranks(ranks: u32) -> Self {
        ranks as Self
    }
}

impl Wide for f64 {
    #[inline(always)]
    fn factor(scalar: Scalar) -> Self {
        scalar.as_f64()
    }
    #[inline(always)]
    fn ranks(ranks: u32) -> Self {
        Self::from(ranks)
    }
}

/// A floating-point type as it lies in memory.
pub(super) trait Format: Copy {
    type Raw: Copy + Default;
    type Wide: Wide;
    /// Exact.
    fn widen(raw: Self::Raw) -> Self::Wide;
    /// Rounds to nearest even; every NaN becomes the canonical one.
    fn narrow(value: Self::Wide) -> Self::Raw;

    /// Widens `N` elements, in any order that [`Format::narrow_block`] of as many undoes.
    ///
    /// # Safety
    /// `from` is valid for reads of `N` elements; it need not be aligned.
    #[inline(always)]
    unsafe fn widen_block<const N: usize>(from: *const u8, into: &mut [Self::Wide; N]) {
        for (i, value) in into.iter_mut().enumerate() {
            // SAFETY: `i < N`, and the caller vouches for `N` elements from `from`.
            let at = unsafe { from.cast::<Self::Raw>().add(i) };
            // SAFETY: as above; any bytes are a `Raw`, and no alignment is assumed.
            let raw = unsafe { at.read_unaligned() };
            *value = Self::widen(raw);
        }
    }

    /// Narrows `N` elements in the order that [`Format::widen_block`] gave them.
    #[inline(always)]
    fn narrow_block<const N: usize>(values: &[Self::Wide; N], into: &mut [Self::Raw; N]) {
        for (raw, value) in into.iter_mut().zip(values) {
            *raw = Self::narrow(*value);
        }
    }
}

/// binary32.
#[derive(Clone, Copy)]
pub(super) struct F32;

impl Format for F32 {
    type Raw = u32;
    type Wide = f32;

    #[inline(always)]
    fn widen(raw: u32) -> f32 {
        f32::from_bits(raw)
    }
    #[inline(always)]
    fn narrow(value: f32) -> u32 {
        if value.is_nan() { 0x7fc0_0000 } else { value.to_bits() }
    }
}

/// binary64.
#[derive(Clone, Copy)]
pub(super) struct F64;

impl Format for F64 {
    type Raw = u64;
    type Wide = f64;

    #[inline(always)]
    fn widen(raw: u64) -> f64 {
        f64::from_bits(raw)
    }
    #[inline(always)]
    fn narrow(value: f64) -> u64 {
        if value.is_nan() { 0x7ff8_0000_0000_0000 } else { value.to_bits() }
    }
}

/// bfloat16.
#[derive(Clone, Copy)]
pub(super) struct Bf16;

impl Format for Bf16 {
    type Raw = u16;
    type Wide = f32;

    #[inline(always)]
    fn widen(raw: u16) -> f32 {
        f32::from_bits(u32::from(raw) << 16)
    }
    #[inline(always)]
    fn narrow(value: f32) -> u16 {
        let bits = value.to_bits();
        // Half of the last kept place, less one when that place is even; a carry out of the fraction is right too.
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        let bits = if value.is_nan() { 0x7fc0 } else { rounded };
        bits as u16
    }
}

/// binary16, converted with integer and `f32` arithmetic.
#[derive(Clone, Copy)]
pub(super) struct F16;

impl Format for F16 {
    type Raw = u16;
    type Wide = f32;

    #[inline(always)]
    fn widen(raw: u16) -> f32 {
        let raw = u32::from(raw);
        let shifted = (raw & 0x7fff) << 13;
        // The exponent is 112 too small: a multiplication corrects it, for subnormals as well, and is exact.
        let scaled = (f32::from_bits(shifted) * f32::from_bits((127 + 112) << 23)).to_bits();
        let special = shifted | 0x7f80_0000;
        let magnitude = if raw & 0x7c00 == 0x7c00 { special } else { scaled };
        f32::from_bits(magnitude | ((raw & 0x8000) << 16))
    }

    #[inline(always)]
    fn narrow(value: f32) -> u16 {
        let bits = value.to_bits();
        let magnitude = bits & 0x7fff_ffff;
        // Normal results: rebias the exponent by -112 and round the thirteen lost places to nearest even.
        let odd = (magnitude >> 13) & 1;
        let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + odd) >> 13;
        // Subnormal results: adding one half makes the unit in the last place the smallest subnormal, so that the
        // addition rounds as it should.
        let half = 126 << 23;
        let subnormal = (f32::from_bits(magnitude) + f32::from_bits(half)).to_bits().wrapping_sub(half);
        let finite = if magnitude < (113 << 23) { subnormal } else { normal };
        // From 65520 on everything rounds to infinity.
        let capped = if magnitude >= 0x477f_f000 { 0x7c00 } else { finite };
        let signed = capped | ((bits >> 16) & 0x8000);
        let result = if magnitude > 0x7f80_0000 { 0x7e00 } else { signed };
        result as u16
    }
}

/// Declares a rule on floats: how values combine and what is done to the total.
macro_rules! float_rule {
    ($(#[$meta:meta])* $name:ident, $fold:tt, scales: $scales:literal, divides: $divides:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy)]
        pub(super) struct $name<F> {
            ranks: u32,
            format: PhantomData<F>,
        }

        impl<F> $name<F> {
            pub(super) const fn new(ranks: u32) -> Self {
                Self { ranks, format: PhantomData }
            }
        }

        impl<F: Format> Rule for $name<F> {
            type Raw = F::Raw;
            type Acc = F::Wide;
            const SCALES: bool = $scales;

            #[inline(always)]
            fn load(self, raw: F::Raw) -> F::Wide { F::widen(raw) }
            #[inline(always)]
            fn fold(self, before: F::Wide, next: F::Wide) -> F::Wide { before $fold next }
            #[inline(always)]
            fn store(self, value: F::Wide) -> F::Raw {
                F::narrow(if $divides { value / F::Wide::ranks(self.ranks) } else { value })
            }
            #[inline(always)]
            fn scale(self, value: F::Wide, factor: Scalar) -> F::Wide { value * F::Wide::factor(factor) }
            #[inline(always)]
            fn over(self, ranks: u32) -> Self { Self { ranks, ..self } }

            #[inline(always)]
            unsafe fn load_block<const N: usize>(self, from: *const u8, into: &mut [F::Wide; N]) {
                // SAFETY: the caller's promise is passed on.
                unsafe { F::widen_block(from, into) }
            }
            #[inline(always)]
            fn finish_block<const N: usize>(self, values: &[F::Wide; N], into: &mut [F::Raw; N]) {
                if !$divides {
                    return F::narrow_block(values, into);
                }
                let ranks = F::Wide::ranks(self.ranks);
                let mut quotients = *values;
                for quotient in &mut quotients {
                    *quotient = *quotient / ranks;
                }
                F::narrow_block(&quotients, into);
            }
        }
    };
}

float_rule!(
    /// Sum.
    Sum, +, scales: true, divides: false
);
float_rule!(
    /// Product.
    Product, *, scales: false, divides: false
);
float_rule!(
    /// Sum divided by the number of ranks.
    Average, +, scales: true, divides: true
);
