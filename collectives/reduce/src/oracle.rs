//! The definition of every result, one value at a time on byte slices: what the kernels are tested against, and
//! what other crates' tests may compare with. Slow, allocates, and obviously right; not for the data path.

use half::{bf16, f16};
use ringway_types::{DataType, F8E4M3, F8E5M2, Reduction};

use crate::Scalar;

/// One rank's bytes and the factor they are multiplied by first.
pub type Input<'a> = (&'a [u8], Option<Scalar>);

/// What a scan writes: each step's output (`None` where nothing precedes an exclusive one) and the carry.
pub type Scanned = (Vec<Option<Vec<u8>>>, Option<Vec<u8>>);

/// A value in the precision it is accumulated in. Integers hold their mathematical value within their type's range.
#[derive(Debug, Clone, Copy)]
enum Value {
    Integer(i128),
    Single(f32),
    Double(f64),
}

use Value::{Double, Integer, Single};

/// Combines the inputs in order, divides by `divisor` and rounds once; see [`crate::reduce`].
/// Bytes after the last whole element common to all inputs are ignored; no input gives no bytes.
#[must_use]
pub fn reduce(
    datatype: DataType,
    reduction: Reduction,
    inputs: &[Input<'_>],
    divisor: Option<u32>,
) -> Vec<u8> {
    let Some(length) = inputs.iter().map(|(bytes, _)| bytes.len()).min() else { return Vec::new() };
    let mut result = Vec::new();
    for at in (0..length / datatype.size()).map(|i| i * datatype.size()) {
        let mut values = inputs.iter().map(|input| read_scaled(datatype, reduction, *input, at));
        let Some(first) = values.next() else { return Vec::new() };
        let total = values.fold(first, |a, b| wrap(datatype, combine(reduction, a, b)));
        write(datatype, divisor.map_or(total, |d| divide(total, d)), &mut result);
    }
    result
}

/// The running combination of the inputs; see [`crate::scan`].
#[must_use]
pub fn scan(
    datatype: DataType,
    reduction: Reduction,
    carry: Option<&[u8]>,
    inputs: &[Input<'_>],
    inclusive: bool,
    ranks_before: u32,
) -> Scanned {
    let mut before: Vec<Input<'_>> = carry.map(|bytes| (bytes, None)).into_iter().collect();
    let mut outputs = Vec::new();
    for (ranks, input) in (ranks_before..).zip(inputs) {
        let after: Vec<_> = before.iter().copied().chain([*input]).collect();
        let (seen, count) = if inclusive { (&after, ranks + 1) } else { (&before, ranks) };
        let divisor = (reduction == Reduction::Avg).then_some(count);
        outputs.push((!seen.is_empty()).then(|| reduce(datatype, reduction, seen, divisor)));
        before = after;
    }
    let carry_out = (!before.is_empty()).then(|| reduce(datatype, reduction, &before, None));
    (outputs, carry_out)
}

fn read_scaled(datatype: DataType, reduction: Reduction, (bytes, scale): Input<'_>, at: usize) -> Value {
    let value = read(datatype, &bytes[at..at + datatype.size()]);
    match (truth_of(reduction, value), scale) {
        (Some(truth), _) => truth,
        (None, None) => value,
        (None, Some(scale)) => match value {
            Integer(a) => wrap(datatype, Integer(a.wrapping_mul(i128::from(scale.as_u64())))),
            Single(a) => Single(a * scale.as_f64() as f32),
            Double(a) => Double(a * scale.as_f64()),
        },
    }
}

/// 0 or 1 for the logical reductions, which see nothing else of a value.
fn truth_of(reduction: Reduction, value: Value) -> Option<Value> {
    if !matches!(reduction, Reduction::LogicalAnd | Reduction::LogicalOr | Reduction::LogicalXor) {
        return None;
    }
    Some(match value {
        Integer(a) => Integer(i128::from(a != 0)),
        Single(a) => Single(if a == 0.0 { 0.0 } else { 1.0 }),
        Double(a) => Double(if a == 0.0 { 0.0 } else { 1.0 }),
    })
}

fn read(datatype: DataType, bytes: &[u8]) -> Value {
    let mut le = [0; 8];
    le[..bytes.len()].copy_from_slice(bytes);
    let bits = u64::from_le_bytes(le);
    match datatype {
        DataType::F16 => Single(f16::from_bits(bits as u16).to_f32()),
        DataType::Bf16 => Single(bf16::from_bits(bits as u16).to_f32()),
        DataType::F8E4M3 => Single(F8E4M3::from_bits(bits as u8).to_f32()),
        DataType::F8E5M2 => Single(F8E5M2::from_bits(bits as u8).to_f32()),
        DataType::F32 => Single(f32::from_bits(bits as u32)),
        DataType::F64 => Double(f64::from_bits(bits)),
        _ => wrap(datatype, Integer(i128::from(bits))),
    }
}

/// Rounds to the type and appends its bytes; every NaN becomes the type's canonical one.
fn write(datatype: DataType, value: Value, result: &mut Vec<u8>) {
    let bits = match (datatype, value) {
        (_, Integer(a)) => a as u64,
        (DataType::F16, Single(a)) if a.is_nan() => 0x7e00,
        (DataType::F16, Single(a)) => f16::from_f32(a).to_bits().into(),
        (DataType::Bf16, Single(a)) if a.is_nan() => 0x7fc0,
        (DataType::Bf16, Single(a)) => bf16::from_f32(a).to_bits().into(),
        (DataType::F8E4M3, Single(a)) if a.is_nan() => 0x7f,
        (DataType::F8E4M3, Single(a)) => F8E4M3::from_f32(a).to_bits().into(),
        (DataType::F8E5M2, Single(a)) if a.is_nan() => 0x7e,
        (DataType::F8E5M2, Single(a)) => F8E5M2::from_f32(a).to_bits().into(),
        (_, Single(a)) if a.is_nan() => 0x7fc0_0000,
        (_, Single(a)) => a.to_bits().into(),
        (_, Double(a)) if a.is_nan() => 0x7ff8_0000_0000_0000,
        (_, Double(a)) => a.to_bits(),
    };
    result.extend_from_slice(&bits.to_le_bytes()[..datatype.size()]);
}

/// Brings an integer back into its type's range, modulo two to the number of its bits.
fn wrap(datatype: DataType, value: Value) -> Value {
    let Integer(a) = value else { return value };
    Integer(match datatype {
        DataType::I8 => i128::from(a as i8),
        DataType::U8 => i128::from(a as u8),
        DataType::I32 => i128::from(a as i32),
        DataType::U32 => i128::from(a as u32),
        DataType::I64 => i128::from(a as i64),
        _ => i128::from(a as u64),
    })
}

fn divide(value: Value, divisor: u32) -> Value {
    match value {
        Integer(a) => Integer(a / i128::from(divisor)),
        Single(a) => Single(a / divisor as f32),
        Double(a) => Double(a / f64::from(divisor)),
    }
}

fn combine(reduction: Reduction, a: Value, b: Value) -> Value {
    match (a, b) {
        (Integer(a), Integer(b)) => Integer(match reduction {
            Reduction::Sum | Reduction::Avg | Reduction::PremulSum => a + b,
            Reduction::Prod => a.wrapping_mul(b),
            Reduction::Min => a.min(b),
            Reduction::Max => a.max(b),
            Reduction::LogicalAnd | Reduction::BitAnd => a & b,
            Reduction::LogicalOr | Reduction::BitOr => a | b,
            Reduction::LogicalXor | Reduction::BitXor => a ^ b,
        }),
        (Single(a), Single(b)) => match reduction {
            Reduction::Sum | Reduction::Avg | Reduction::PremulSum => Single(a + b),
            Reduction::Prod => Single(a * b),
            // Both selections are exact in double precision, which holds every single.
            _ => Single(select(reduction, a.into(), b.into()) as f32),
        },
        (Double(a), Double(b)) => Double(match reduction {
            Reduction::Sum | Reduction::Avg | Reduction::PremulSum => a + b,
            Reduction::Prod => a * b,
            _ => select(reduction, a, b),
        }),
        // One datatype reads every value as one variant.
        (a, _) => a,
    }
}

/// IEEE 754-2019 `minimum` and `maximum`, and the logical reductions of values that are 0 or 1.
fn select(reduction: Reduction, a: f64, b: f64) -> f64 {
    let equal = |c: bool| if c { 1.0 } else { 0.0 };
    match reduction {
        Reduction::LogicalAnd => a * b,
        Reduction::LogicalOr => equal(a + b > 0.0),
        Reduction::LogicalXor => equal(a != b),
        _ if a.is_nan() || b.is_nan() => f64::NAN,
        Reduction::Min if a < b || (a == b && a.is_sign_negative()) => a,
        Reduction::Max if a > b || (a == b && a.is_sign_positive()) => a,
        _ => b,
    }
}
