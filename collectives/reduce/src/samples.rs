//! Elements and factors that tests of kernels try; with the feature `samples`, for those of other crates too.

use proptest::{collection::vec, prelude::*, sample::select};
use ringway_types::DataType;

use crate::Scalar;

/// Bit patterns at which conversions and comparisons have their corners.
#[must_use]
pub fn special(datatype: DataType) -> Vec<u64> {
    match datatype {
        DataType::F16 => vec![
            0, 0x8000, 1, 0x8001, 0x03ff, 0x0400, 0x3c00, 0xbc00, 0x3c01, 0x7bff, 0xfbff, 0x7c00, 0xfc00,
            0x7c01, 0x7e00, 0xfe00, 0x7fff, 0xffff, 0x6400, 0x1400,
        ],
        DataType::Bf16 => vec![
            0, 0x8000, 1, 0x8001, 0x007f, 0x0080, 0x3f80, 0xbf80, 0x3f81, 0x7f7f, 0xff7f, 0x7f80, 0xff80,
            0x7f81, 0x7fc0, 0xffc0, 0x7fff, 0xffff, 0x4380,
        ],
        DataType::F8E4M3 | DataType::F8E5M2 => (0..=0xff).collect(),
        DataType::F32 => vec![
            0,
            0x8000_0000,
            1,
            0x8000_0001,
            0x007f_ffff,
            0x0080_0000,
            0x3f80_0000,
            0xbf80_0000,
            0x7f7f_ffff,
            0xff7f_ffff,
            0x7f80_0000,
            0xff80_0000,
            0x7f80_0001,
            0xff80_0001,
            0x7fc0_1234,
            0xffff_ffff,
        ],
        DataType::F64 => vec![
            0,
            1 << 63,
            1,
            (1 << 63) | 1,
            0x000f_ffff_ffff_ffff,
            0x3ff0_0000_0000_0000,
            0xbff0_0000_0000_0000,
            0x7fef_ffff_ffff_ffff,
            0x7ff0_0000_0000_0000,
            0xfff0_0000_0000_0000,
            0x7ff0_0000_0000_0001,
            u64::MAX,
        ],
        _ => vec![0, 1, u64::MAX, 2, 0x80, 0x7f, 1 << 31, (1 << 31) - 1, 1 << 63, (1 << 63) - 1],
    }
}

/// Elements that are corner cases, small numbers or any bits.
pub fn values(datatype: DataType, count: usize) -> impl Strategy<Value = Vec<u8>> {
    let one = datatype.one_bits();
    let bits = prop_oneof![2 => any::<u64>(), 1 => select(special(datatype)), 1 => (0..16_u64).prop_map(move |v| {
        one.wrapping_add(v << (4 * datatype.size().ilog2()))
    })];
    vec(bits, count).prop_map(move |all| {
        all.iter().flat_map(|v| v.to_le_bytes().into_iter().take(datatype.size())).collect()
    })
}

/// Factors of all sizes, and none.
pub fn scale(datatype: DataType) -> impl Strategy<Value = Option<Scalar>> {
    let scalar = if datatype.is_float() {
        select(vec![1.0, -1.0, 0.5, 1.0 / 3.0, 0.0, -0.0, 1e-30, 1e30, f64::INFINITY, f64::NAN])
            .prop_map(Scalar::float)
            .boxed()
    } else {
        prop_oneof![any::<i64>().prop_map(Scalar::signed), (0..9_u64).prop_map(Scalar::unsigned)].boxed()
    };
    proptest::option::of(scalar)
}
