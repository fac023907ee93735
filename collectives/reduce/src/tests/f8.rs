//! The eight-bit floats: all values, and every edge of the rounding.

use ringway_types::{DataType, F8E4M3, F8E5M2, Reduction};

use super::{Slots, bytes, levels};
use crate::{Scalar, Source, Stores, oracle, reduce_at};

const TYPES: [DataType; 2] = [DataType::F8E4M3, DataType::F8E5M2];

/// Runs a reduction of these inputs at every level.
fn check(datatype: DataType, reduction: Reduction, inputs: &[oracle::Input<'_>], divisor: Option<u32>) {
    let length = inputs[0].0.len();
    let slots = Slots::new(inputs.len() + 1, length);
    let sources: Vec<_> = (inputs.iter().enumerate())
        .map(|(slot, (bytes, scale))| {
            let window = slots.window(slot, slot, length);
            window.write(bytes);
            Source { window, scale: *scale }
        })
        .collect();
    let to = slots.window(inputs.len(), 5, length);
    let wanted = oracle::reduce(datatype, reduction, inputs, divisor);
    for level in levels() {
        reduce_at(level, Stores::Cached, datatype, reduction, &sources, &[to], divisor).expect("reduce");
        assert!(bytes(&to) == wanted, "{datatype} {reduction} / {divisor:?} at {level:?}");
    }
}

#[test]
fn every_pair_of_values_is_combined_as_the_oracle_does() {
    let left: Vec<u8> = (0..=u8::MAX).flat_map(|a| [a; 256]).collect();
    let right: Vec<u8> = (0..=u8::MAX).collect::<Vec<_>>().repeat(256);
    let pair = [(left.as_slice(), None), (right.as_slice(), None)];
    for datatype in TYPES {
        for reduction in Reduction::ALL.iter().copied().filter(|r| datatype.supports(*r)) {
            check(datatype, reduction, &pair, None);
        }
        for divisor in [2, 3, 7, 1000, u32::MAX] {
            check(datatype, Reduction::Avg, &pair, Some(divisor));
        }
    }
}

/// A one times a factor is the factor, as far as an `f32` holds it: so the kernels round any number.
#[test]
fn every_edge_of_the_rounding_is_where_the_oracle_has_it() {
    for (datatype, last) in [(DataType::F8E4M3, 0x7e), (DataType::F8E5M2, 0x7b)] {
        let value = |bits| match datatype {
            DataType::F8E4M3 => F8E4M3::from_bits(bits).to_f32(),
            _ => F8E5M2::from_bits(bits).to_f32(),
        };
        let mut edges: Vec<f32> = (0..last).map(|at| f32::midpoint(value(at), value(at + 1))).collect();
        // Where the next value would be, were there one, and half way there.
        let beyond = 2.0 * value(last) - value(last - 1);
        edges.extend([f32::midpoint(value(last), beyond), beyond, f32::MAX, f32::MIN_POSITIVE, 1e-45, 1e-40]);
        edges.extend([f32::INFINITY, f32::NAN]);
        let ones = vec![if datatype == DataType::F8E4M3 { 0x38 } else { 0x3c }; 105];
        for edge in edges {
            for factor in [edge, edge.next_up(), edge.next_down(), -edge, -edge.next_up(), -edge.next_down()]
            {
                let input = (ones.as_slice(), Some(Scalar::float(factor.into())));
                check(datatype, Reduction::PremulSum, &[input], None);
            }
        }
    }
}

/// The oracle itself, on values worked out by hand.
#[test]
fn the_oracle_knows_the_specification() {
    let of = |datatype, reduction, a: u8, b: u8, divisor| {
        oracle::reduce(datatype, reduction, &[(&[a], None), (&[b], None)], divisor)[0]
    };
    let (e4m3, e5m2) = (DataType::F8E4M3, DataType::F8E5M2);
    let cases = [
        // 448 + 448 saturates, and so does -448 - 448; the largest finite values of the other type too.
        (e4m3, Reduction::Sum, 0x7e, 0x7e, None, 0x7e),
        (e4m3, Reduction::Sum, 0xfe, 0xfe, None, 0xfe),
        (e5m2, Reduction::Sum, 0x7b, 0x7b, None, 0x7b),
        // Half of 896, which only the accumulator holds.
        (e4m3, Reduction::Avg, 0x7e, 0x7e, Some(2), 0x7e),
        // 16 + 1 is half way between 16 and 18; 18 + 1 between 18 and 20.
        (e4m3, Reduction::Sum, 0x58, 0x38, None, 0x58),
        (e4m3, Reduction::Sum, 0x59, 0x38, None, 0x5a),
        // The smallest subnormals: 2 * 2^-9, and 2^-9 * 2^-9, which is nothing.
        (e4m3, Reduction::Sum, 0x01, 0x01, None, 0x02),
        (e4m3, Reduction::Prod, 0x01, 0x81, None, 0x80),
        // Infinities stay, unless they cancel; any NaN comes out as the canonical one.
        (e5m2, Reduction::Sum, 0x7c, 0xfb, None, 0x7c),
        (e5m2, Reduction::Sum, 0xfc, 0x7b, None, 0xfc),
        (e5m2, Reduction::Sum, 0x7c, 0xfc, None, 0x7e),
        (e5m2, Reduction::Max, 0xfd, 0x7c, None, 0x7e),
        (e4m3, Reduction::Min, 0xff, 0xfe, None, 0x7f),
        // -0 is below +0; a NaN is true; the ones.
        (e4m3, Reduction::Min, 0x00, 0x80, None, 0x80),
        (e4m3, Reduction::Max, 0x80, 0x00, None, 0x00),
        (e4m3, Reduction::LogicalAnd, 0xff, 0x01, None, 0x38),
        (e5m2, Reduction::LogicalOr, 0x80, 0x01, None, 0x3c),
        (e5m2, Reduction::LogicalXor, 0x02, 0x01, None, 0x00),
    ];
    for (datatype, reduction, a, b, divisor, wanted) in cases {
        let found = of(datatype, reduction, a, b, divisor);
        assert_eq!(found, wanted, "{datatype} {reduction} of {a:#x} and {b:#x}: {found:#x}");
    }
    // 256 + 16 + 16 of E4M3: rounding at each step would lose both sixteens, each half of the last place.
    let inputs = [(&[0x78][..], None), (&[0x58][..], None), (&[0x58][..], None)];
    assert_eq!(oracle::reduce(e4m3, Reduction::Sum, &inputs, None), [0x79]);
    // An infinite factor gives 448 of what has no infinity.
    let input = (&[0xb8][..], Some(Scalar::float(f64::INFINITY)));
    assert_eq!(oracle::reduce(e4m3, Reduction::PremulSum, &[input], None), [0xfe]);
}
