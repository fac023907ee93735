//! What each instruction computes from up to three operands. Narrow operands have zeros above them, and so have results.

use half::{bf16, f16};

use ringway_types::{F8E4M3, F8E5M2};

use super::Width::{self, Half, Long, Predicate, Word};

/// An instruction's result. Those with fewer operands do not look at the others.
pub(super) type Function = fn(u64, u64, u64) -> u64;

/// One instruction that works on registers alone.
pub(super) struct Operation {
    pub(super) result: Width,
    pub(super) operands: &'static [Width],
    pub(super) function: Function,
}

/// The NaN that `f32` arithmetic gives.
const NAN_F32: u64 = 0x7fff_ffff;
/// The NaN that conversions to either half type give.
const NAN_HALF: u64 = 0x7fff;

/// The instruction of this name.
pub(super) fn find(name: &str) -> Option<Operation> {
    let others = || singles(name).or_else(|| doubles(name)).or_else(|| pairs(name));
    moves(name).or_else(|| integers(name)).or_else(others)
}

/// Declares functions from names to instructions.
macro_rules! tables {
    ($($(#[$meta:meta])* $table:ident { $($name:literal, $result:ident, $operands:expr, $function:expr;)* })*) => { $(
        $(#[$meta])*
        fn $table(name: &str) -> Option<Operation> {
            Some(match name {
                $($name => Operation { result: $result, operands: &$operands, function: $function },)*
                _ => return None,
            })
        }
    )* };
}

tables! {
    /// What moves bits, or chooses between them.
    moves {
        "mov.u32", Word, [Word], |a, _, _| a;
        "mov.u64", Long, [Long], |a, _, _| a;
        "cvta.to.global.u64", Long, [Long], |a, _, _| a;
        "cvt.u64.u32", Long, [Word], |a, _, _| a;
        "selp.b16", Half, [Half, Half, Predicate], select;
        "selp.b32", Word, [Word, Word, Predicate], select;
        "selp.b64", Long, [Long, Long, Predicate], select;
        "prmt.b32", Word, [Word, Word, Word], permute;
    }

    integers {
        "and.b32", Word, [Word, Word], |a, b, _| a & b;
        "and.b64", Long, [Long, Long], |a, b, _| a & b;
        "or.b32", Word, [Word, Word], |a, b, _| a | b;
        "or.b64", Long, [Long, Long], |a, b, _| a | b;
        "xor.b32", Word, [Word, Word], |a, b, _| a ^ b;
        "xor.b64", Long, [Long, Long], |a, b, _| a ^ b;
        "add.u32", Word, [Word, Word], |a, b, _| u64::from((a as u32).wrapping_add(b as u32));
        "add.u64", Long, [Long, Long], |a, b, _| a.wrapping_add(b);
        "sub.u32", Word, [Word, Word], |a, b, _| u64::from((a as u32).wrapping_sub(b as u32));
        "sub.u64", Long, [Long, Long], |a, b, _| a.wrapping_sub(b);
        "mul.lo.u32", Word, [Word, Word], |a, b, _| u64::from((a as u32).wrapping_mul(b as u32));
        "mul.lo.u64", Long, [Long, Long], |a, b, _| a.wrapping_mul(b);
        "mul.wide.u32", Long, [Word, Word], |a, b, _| a * b;
        // Division by zero gives what the machine gives: not specified.
        "div.u32", Word, [Word, Word], |a, b, _| a.checked_div(b).unwrap_or(0xffff_ffff);
        "div.u64", Long, [Long, Long], |a, b, _| a.checked_div(b).unwrap_or(u64::MAX);
        "min.u32", Word, [Word, Word], |a, b, _| a.min(b);
        "min.u64", Long, [Long, Long], |a, b, _| a.min(b);
        "max.u32", Word, [Word, Word], |a, b, _| a.max(b);
        "max.u64", Long, [Long, Long], |a, b, _| a.max(b);
        "min.s32", Word, [Word, Word], |a, b, _| u64::from((a as i32).min(b as i32).cast_unsigned());
        "min.s64", Long, [Long, Long], |a, b, _| a.cast_signed().min(b.cast_signed()).cast_unsigned();
        "max.s32", Word, [Word, Word], |a, b, _| u64::from((a as i32).max(b as i32).cast_unsigned());
        "max.s64", Long, [Long, Long], |a, b, _| a.cast_signed().max(b.cast_signed()).cast_unsigned();
        // Shifts by more than there is shift everything out.
        "shl.b32", Word, [Word, Word], |a, by, _| u64::from((a as u32).checked_shl(by as u32).unwrap_or(0));
        "shl.b64", Long, [Long, Word], |a, by, _| a.checked_shl(by as u32).unwrap_or(0);
        "shr.u32", Word, [Word, Word], |a, by, _| u64::from((a as u32).checked_shr(by as u32).unwrap_or(0));
        "shr.s32", Word, [Word, Word], |a, by, _| u64::from((a as i32 >> by.min(31)).cast_unsigned());
        "shr.s64", Long, [Long, Word], |a, by, _| (a.cast_signed() >> by.min(63)).cast_unsigned();
        "setp.ge.u64", Predicate, [Long, Long], |a, b, _| u64::from(a >= b);
        "setp.lt.u64", Predicate, [Long, Long], |a, b, _| u64::from(a < b);
    }

    /// What gives or takes `f32`.
    singles {
        "add.rn.f32", Word, [Word, Word], |a, b, _| from_f32(f32_of(a) + f32_of(b));
        "mul.rn.f32", Word, [Word, Word], |a, b, _| from_f32(f32_of(a) * f32_of(b));
        "div.rn.f32", Word, [Word, Word], |a, b, _| from_f32(f32_of(a) / f32_of(b));
        "min.NaN.f32", Word, [Word, Word], |a, b, _| extreme_f32(f32_of(a), f32_of(b), true);
        "max.NaN.f32", Word, [Word, Word], |a, b, _| extreme_f32(f32_of(a), f32_of(b), false);
        "setp.nan.f32", Predicate, [Word, Word], |a, b, _| u64::from(f32_of(a).is_nan() || f32_of(b).is_nan());
        // Unordered is unequal, as in Rust.
        "setp.eq.f32", Predicate, [Word, Word], |a, b, _| u64::from(f32_of(a) == f32_of(b));
        "abs.f32", Word, [Word], |a, _, _| a & 0x7fff_ffff;
        "setp.neu.f32", Predicate, [Word, Word], |a, b, _| u64::from(f32_of(a) != f32_of(b));
        "cvt.rn.f32.f64", Word, [Long], |a, _, _| from_f32(f64::from_bits(a) as f32);
        "cvt.rn.f32.u32", Word, [Word], |a, _, _| from_f32(a as u32 as f32);
        "cvt.f32.f16", Word, [Half], |a, _, _| from_f32(f16::from_bits(a as u16).to_f32());
        "cvt.rn.f16.f32", Half, [Word], |a, _, _| {
            let value = f32_of(a);
            if value.is_nan() { NAN_HALF } else { f16::from_f32(value).to_bits().into() }
        };
        "cvt.rn.bf16.f32", Half, [Word], |a, _, _| {
            let value = f32_of(a);
            if value.is_nan() { NAN_HALF } else { bf16::from_f32(value).to_bits().into() }
        };
    }

    /// Conversions of two values of eight bits. Narrowing takes the upper one first, and knows no infinities.
    pairs {
        "cvt.rn.f16x2.e4m3x2", Word, [Half], |a, _, _| widen(a, |bits| F8E4M3::from_bits(bits).to_f32());
        "cvt.rn.f16x2.e5m2x2", Word, [Half], |a, _, _| widen(a, |bits| F8E5M2::from_bits(bits).to_f32());
        "cvt.rn.satfinite.e4m3x2.f32", Half, [Word, Word], |a, b, _| {
            narrow(a, b, |value| F8E4M3::from_f32(value.clamp(-448.0, 448.0)).to_bits())
        };
        "cvt.rn.satfinite.e5m2x2.f32", Half, [Word, Word], |a, b, _| {
            narrow(a, b, |value| F8E5M2::from_f32(value.clamp(-57_344.0, 57_344.0)).to_bits())
        };
    }

    /// What works on `f64`. NaNs keep their payloads.
    doubles {
        "add.rn.f64", Long, [Long, Long], |a, b, _| (f64::from_bits(a) + f64::from_bits(b)).to_bits();
        "mul.rn.f64", Long, [Long, Long], |a, b, _| (f64::from_bits(a) * f64::from_bits(b)).to_bits();
        "div.rn.f64", Long, [Long, Long], |a, b, _| (f64::from_bits(a) / f64::from_bits(b)).to_bits();
        "min.f64", Long, [Long, Long], |a, b, _| extreme_f64(f64::from_bits(a), f64::from_bits(b), true);
        "max.f64", Long, [Long, Long], |a, b, _| extreme_f64(f64::from_bits(a), f64::from_bits(b), false);
        "setp.nan.f64", Predicate, [Long, Long], |a, b, _| {
            u64::from(f64::from_bits(a).is_nan() || f64::from_bits(b).is_nan())
        };
        "setp.neu.f64", Predicate, [Long, Long], |a, b, _| u64::from(f64::from_bits(a) != f64::from_bits(b));
        "cvt.rn.f64.u32", Long, [Word], |a, _, _| f64::from(a as u32).to_bits();
    }
}

fn f32_of(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

fn from_f32(value: f32) -> u64 {
    if value.is_nan() { NAN_F32 } else { value.to_bits().into() }
}

fn select(a: u64, b: u64, predicate: u64) -> u64 {
    if predicate != 0 { a } else { b }
}

/// Each nibble of `selectors` chooses one of eight bytes, `a`'s being the first; its top bit asks for copies of that
/// byte's sign instead.
fn permute(a: u64, b: u64, selectors: u64) -> u64 {
    let bytes = (a | b << 32).to_le_bytes();
    let chosen = core::array::from_fn(|i| {
        let selector = (selectors >> (4 * i)) as usize;
        let byte = bytes[selector & 7];
        if selector & 8 == 0 { byte } else { (byte.cast_signed() >> 7).cast_unsigned() }
    });
    u32::from_le_bytes(chosen).into()
}

/// With `.NaN`: a NaN wins. -0 is below +0.
fn extreme_f32(a: f32, b: f32, minimum: bool) -> u64 {
    if a.is_nan() || b.is_nan() {
        return NAN_F32;
    }
    let a_is_less = a < b || (a == b && a.is_sign_negative());
    (if a_is_less == minimum { a } else { b }).to_bits().into()
}

/// Without `.NaN`: a NaN loses. -0 is below +0.
fn extreme_f64(a: f64, b: f64, minimum: bool) -> u64 {
    let a_is_less = a < b || (a == b && a.is_sign_negative());
    (if b.is_nan() || (!a.is_nan() && a_is_less == minimum) { a } else { b }).to_bits()
}

/// The NaN that conversions to eight bits give.
const NAN_QUARTER: u8 = 0x7f;

fn widen(pair: u64, to_f32: fn(u8) -> f32) -> u64 {
    let half = |byte: u64| {
        let value = to_f32(byte as u8);
        u64::from(if value.is_nan() { NAN_HALF as u16 } else { f16::from_f32(value).to_bits() })
    };
    half(pair & 0xff) | (half(pair >> 8) << 16)
}

fn narrow(upper: u64, lower: u64, from_f32: fn(f32) -> u8) -> u64 {
    let byte = |bits: u64| {
        let value = f32_of(bits);
        u64::from(if value.is_nan() { NAN_QUARTER } else { from_f32(value) })
    };
    byte(lower) | (byte(upper) << 8)
}
