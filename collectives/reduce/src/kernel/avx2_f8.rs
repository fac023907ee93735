//! Conversions of the eight-bit floats of OFP8 with AVX2 and F16C instructions, thirty-two elements at a time. Only used by code
//! compiled for these features. Blocks of other sizes are converted as on the baseline.
//!
//! Widening goes by way of binary16, which has every value of both types. Narrowing cannot, as it would round twice.

use core::arch::x86_64::*;

use super::{f8, float::Format};

/// Elements converted at once.
const GROUP: usize = 32;

/// E4M3.
#[derive(Clone, Copy)]
pub(super) struct F8E4M3;

/// E5M2.
#[derive(Clone, Copy)]
pub(super) struct F8E5M2;

/// Declares a format from its conversions of thirty-two.
macro_rules! format_of_thirty_two {
    ($name:ident, $widen:ident, $narrow:ident) => {
        impl Format for $name {
            type Raw = u8;
            type Wide = f32;

            #[inline(always)]
            fn widen(raw: u8) -> f32 {
                f8::$name::widen(raw)
            }
            #[inline(always)]
            fn narrow(value: f32) -> u8 {
                f8::$name::narrow(value)
            }

            #[inline(always)]
            unsafe fn widen_block<const N: usize>(from: *const u8, into: &mut [f32; N]) {
                if !N.is_multiple_of(GROUP) {
                    // SAFETY: the caller's promise is passed on.
                    return unsafe { f8::$name::widen_block(from, into) };
                }
                for (i, values) in into.as_chunks_mut::<GROUP>().0.iter_mut().enumerate() {
                    // SAFETY: the `i`-th group of `N` elements, which the caller vouches for.
                    let at = unsafe { from.cast::<[u8; GROUP]>().add(i) };
                    // SAFETY: as above; this format is only used where AVX2 and F16C were found.
                    unsafe { $widen(at, values) };
                }
            }

            #[inline(always)]
            fn narrow_block<const N: usize>(values: &[f32; N], into: &mut [u8; N]) {
                if !N.is_multiple_of(GROUP) {
                    return f8::$name::narrow_block(values, into);
                }
                let groups = values.as_chunks::<GROUP>().0;
                for (raw, values) in into.as_chunks_mut::<GROUP>().0.iter_mut().zip(groups) {
                    // SAFETY: this format is only used where AVX2 and F16C were found.
                    unsafe { $narrow(values, raw) };
                }
            }
        }
    };
}

format_of_thirty_two!(F8E4M3, widen_e4m3, narrow_e4m3);
format_of_thirty_two!(F8E5M2, widen_e5m2, narrow_e5m2);

/// Loads thirty-two elements, each into the high half of a word: those of places 0 to 7 and 16 to 23, and the others.
///
/// # Safety
/// `from` is valid for reads of thirty-two elements; it need not be aligned.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load(from: *const [u8; GROUP]) -> [__m256i; 2] {
    // SAFETY: the caller vouches for the elements.
    let raw = unsafe { _mm256_loadu_si256(from.cast()) };
    let zero = _mm256_setzero_si256();
    [_mm256_unpacklo_epi8(zero, raw), _mm256_unpackhi_epi8(zero, raw)]
}

/// Widens the words of [`load`], made binary16: eights of places that begin with 0, 16, 8 and 24. Everything between widening and
/// narrowing treats elements alike, so their order does not matter there.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn widen(halves: [__m256i; 2]) -> [__m256; 4] {
    let [a, b] = halves.map(|words| (_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words)));
    [_mm256_cvtph_ps(a.0), _mm256_cvtph_ps(a.1), _mm256_cvtph_ps(b.0), _mm256_cvtph_ps(b.1)]
}

#[inline]
#[target_feature(enable = "avx2")]
fn put(eights: [__m256; 4], into: &mut [f32; GROUP]) {
    for (into, eight) in into.as_chunks_mut::<8>().0.iter_mut().zip(eights) {
        // SAFETY: there is room for eight.
        unsafe { _mm256_storeu_ps(into.as_mut_ptr(), eight) };
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn get(values: &[f32; GROUP]) -> [__m256; 4] {
    let mut eights = [_mm256_setzero_ps(); 4];
    for (eight, values) in eights.iter_mut().zip(values.as_chunks::<8>().0) {
        // SAFETY: there are eight.
        *eight = unsafe { _mm256_loadu_ps(values.as_ptr()) };
    }
    eights
}

/// # Safety
/// As for [`load`].
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn widen_e5m2(from: *const [u8; GROUP], into: &mut [f32; GROUP]) {
    // The first eight bits of a binary16 are those of E5M2.
    // SAFETY: the caller's promise is passed on.
    put(widen(unsafe { load(from) }), into);
}

/// # Safety
/// As for [`load`].
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn widen_e4m3(from: *const [u8; GROUP], into: &mut [f32; GROUP]) {
    let nan = _mm256_set1_epi16(0x3f80);
    // SAFETY: the caller's promise is passed on.
    let halves = unsafe { load(from) }.map(|words| {
        // The exponent of binary16 is one bit longer, where this copies the sign.
        let half = _mm256_andnot_si256(_mm256_set1_epi16(0x4000), _mm256_srai_epi16::<1>(words));
        let is_nan = _mm256_cmpeq_epi16(_mm256_and_si256(half, nan), nan);
        _mm256_or_si256(half, _mm256_and_si256(is_nan, _mm256_set1_epi16(0x7c00)))
    });
    // And is biased by 8 more.
    let eights = widen(halves);
    put(eights.map(|values| _mm256_mul_ps(values, _mm256_set1_ps(256.0))), into);
}

#[inline]
#[target_feature(enable = "avx2")]
fn magnitude(values: __m256) -> __m256 {
    _mm256_andnot_ps(_mm256_set1_ps(-0.0), values)
}

/// Rounds magnitudes up to the largest finite one to nearest even; see [`f8`] for the arithmetic. Of a NaN, and an infinity, this
/// makes more than a byte holds.
#[inline]
#[target_feature(enable = "avx2")]
fn round<const SPARE: i32>(magnitudes: __m256, bias: i32) -> __m256i {
    let bits = _mm256_castps_si256(magnitudes);
    let odd = _mm256_and_si256(_mm256_srli_epi32::<SPARE>(bits), _mm256_set1_epi32(1));
    let half = _mm256_set1_epi32((1 << (SPARE - 1)) - 1 - (bias << 23));
    let normal = _mm256_srli_epi32::<SPARE>(_mm256_add_epi32(_mm256_add_epi32(bits, half), odd));
    let unit = _mm256_set1_epi32((bias + 1 + SPARE) << 23);
    let rounded = _mm256_castps_si256(_mm256_add_ps(magnitudes, _mm256_castsi256_ps(unit)));
    let subnormal = _mm256_sub_epi32(rounded, unit);
    let is_subnormal = _mm256_cmpgt_epi32(_mm256_set1_epi32((bias + 1) << 23), bits);
    _mm256_blendv_epi8(normal, subnormal, is_subnormal)
}

/// Packs what [`round`] gave for the eights that [`widen`] gives, and gives each the sign of its value. More than a byte holds
/// becomes the canonical NaN, which has none.
#[inline]
#[target_feature(enable = "avx2")]
fn pack(rounded: [__m256i; 4], values: [__m256; 4], nan: i8, into: &mut [u8; GROUP]) {
    let [a, b, c, d] = rounded;
    // Packing works within halves of registers: fours of places 0, 8, 16 and 24, and in the upper half of 4, 12, 20 and 28.
    let rounded = _mm256_packus_epi16(_mm256_packus_epi32(a, c), _mm256_packus_epi32(b, d));
    let [a, b, c, d] = values.map(|value| _mm256_castps_si256(value));
    let signs = _mm256_packs_epi16(_mm256_packs_epi32(a, c), _mm256_packs_epi32(b, d));
    // The sign's bit is set in what stands for a NaN, and nowhere else.
    let signs = _mm256_and_si256(_mm256_andnot_si256(rounded, signs), _mm256_set1_epi8(i8::MIN));
    let finite = _mm256_min_epu8(rounded, _mm256_set1_epi8(nan));
    let raw = _mm256_permutevar8x32_epi32(
        _mm256_or_si256(finite, signs),
        _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7),
    );
    // SAFETY: `into` has room for thirty-two elements.
    unsafe { _mm256_storeu_si256(into.as_mut_ptr().cast(), raw) };
}

#[inline]
#[target_feature(enable = "avx2")]
fn narrow_e4m3(values: &[f32; GROUP], into: &mut [u8; GROUP]) {
    let values = get(values);
    let rounded = values.map(|values| {
        // Gives the second operand where either is a NaN.
        let capped = _mm256_min_ps(_mm256_set1_ps(448.0), magnitude(values));
        round::<20>(capped, 120)
    });
    pack(rounded, values, 0x7f, into);
}

#[inline]
#[target_feature(enable = "avx2")]
fn narrow_e5m2(values: &[f32; GROUP], into: &mut [u8; GROUP]) {
    let values = get(values);
    let rounded = values.map(|values| {
        let magnitude = magnitude(values);
        // As above. An infinity is one more than the largest finite value.
        let capped = _mm256_min_ps(_mm256_set1_ps(57344.0), magnitude);
        let infinite = _mm256_cmp_ps::<_CMP_EQ_OQ>(magnitude, _mm256_set1_ps(f32::INFINITY));
        _mm256_sub_epi32(round::<21>(capped, 112), _mm256_castps_si256(infinite))
    });
    pack(rounded, values, 0x7e, into);
}
