//! The eight-bit floats of OFP8, accumulated in `f32`: conversions without branches, for the vectoriser. The arithmetic does not
//! meet subnormal `f32`s, which some processors are slow at, unless values are scaled by next to nothing.

use super::float::Format;

/// E4M3.
#[derive(Clone, Copy)]
pub(super) struct F8E4M3;

/// E5M2.
#[derive(Clone, Copy)]
pub(super) struct F8E5M2;

/// Exponents' bits of `f32`.
const EXPONENT: u32 = 23;

/// Widens a magnitude that is neither infinite nor a NaN. `spare` is how many more bits the fraction of an `f32` has, `bias` by how
/// much more its exponent is biased.
#[inline(always)]
fn widen(magnitude: u32, spare: u32, bias: u32) -> u32 {
    let normal = (magnitude << spare) + (bias << EXPONENT);
    // With the least exponent, and a leading one that is taken off again.
    let one_too_much = f32::from_bits(normal + (1 << EXPONENT));
    let subnormal = (one_too_much - f32::from_bits((bias + 1) << EXPONENT)).to_bits();
    if magnitude >> (EXPONENT - spare) == 0 { subnormal } else { normal }
}

/// Rounds a magnitude up to the largest finite one, in `f32`'s bits, to nearest even.
#[inline(always)]
fn round(magnitude: u32, spare: u32, bias: u32) -> u32 {
    // Half of the last kept place, less one when that place is even; a carry out of the fraction is right too.
    let odd = (magnitude >> spare) & 1;
    let half = (1 << (spare - 1)) - 1;
    let normal = magnitude.wrapping_add(odd).wrapping_add(half).wrapping_sub(bias << EXPONENT) >> spare;
    // Adding a number whose unit in the last place is the smallest subnormal rounds as it should.
    let unit = (bias + 1 + spare) << EXPONENT;
    let subnormal = (f32::from_bits(magnitude) + f32::from_bits(unit)).to_bits().wrapping_sub(unit);
    if magnitude < (bias + 1) << EXPONENT { subnormal } else { normal }
}

impl Format for F8E4M3 {
    type Raw = u8;
    type Wide = f32;

    #[inline(always)]
    fn widen(raw: u8) -> f32 {
        let raw = u32::from(raw);
        let magnitude = raw & 0x7f;
        let wide = if magnitude == 0x7f { 0x7fc0_0000 } else { widen(magnitude, 20, 120) };
        f32::from_bits(wide | (raw & 0x80) << 24)
    }

    #[inline(always)]
    fn narrow(value: f32) -> u8 {
        let bits = value.to_bits();
        let magnitude = bits & 0x7fff_ffff;
        // 448.
        let rounded = round(magnitude.min(0x43e0_0000), 20, 120);
        let result = if magnitude > 0x7f80_0000 { 0x7f } else { rounded | (bits >> 24) & 0x80 };
        result as u8
    }
}

impl Format for F8E5M2 {
    type Raw = u8;
    type Wide = f32;

    #[inline(always)]
    fn widen(raw: u8) -> f32 {
        let raw = u32::from(raw);
        let magnitude = raw & 0x7f;
        let special = magnitude << 21 | 0x7f80_0000;
        let wide = if magnitude >= 0x7c { special } else { widen(magnitude, 21, 112) };
        f32::from_bits(wide | (raw & 0x80) << 24)
    }

    #[inline(always)]
    fn narrow(value: f32) -> u8 {
        let bits = value.to_bits();
        let magnitude = bits & 0x7fff_ffff;
        // 57344.
        let rounded = round(magnitude.min(0x4760_0000), 21, 112);
        let finite = if magnitude == 0x7f80_0000 { 0x7c } else { rounded };
        let result = if magnitude > 0x7f80_0000 { 0x7e } else { finite | (bits >> 24) & 0x80 };
        result as u8
    }
}
