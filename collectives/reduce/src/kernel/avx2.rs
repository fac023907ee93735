//! Conversions of half types with AVX2 and F16C instructions, sixteen elements at a time. Only used by code compiled
//! for these features. Blocks of other sizes, and what the instructions lack, are converted as on the baseline.

use core::arch::x86_64::*;

use super::float::{self, Format};

/// Elements converted at once.
const GROUP: usize = 16;

/// binary16 by F16C.
#[derive(Clone, Copy)]
pub(super) struct F16;

/// bfloat16 by integer instructions.
#[derive(Clone, Copy)]
pub(super) struct Bf16;

/// Declares a format from its scalar conversions and its conversions of sixteen.
macro_rules! format_of_sixteen {
    ($name:ident, $widen:ident, $narrow:ident) => {
        impl Format for $name {
            type Raw = u16;
            type Wide = f32;

            #[inline(always)]
            fn widen(raw: u16) -> f32 {
                float::$name::widen(raw)
            }
            #[inline(always)]
            fn narrow(value: f32) -> u16 {
                float::$name::narrow(value)
            }

            #[inline(always)]
            unsafe fn widen_block<const N: usize>(from: *const u8, into: &mut [f32; N]) {
                if !N.is_multiple_of(GROUP) {
                    // SAFETY: the caller's promise is passed on.
                    return unsafe { float::$name::widen_block(from, into) };
                }
                for (i, values) in into.as_chunks_mut::<GROUP>().0.iter_mut().enumerate() {
                    // SAFETY: the `i`-th group of `N` elements, which the caller vouches for.
                    let at = unsafe { from.cast::<[u16; GROUP]>().add(i) };
                    // SAFETY: as above; this format is only used where AVX2 and F16C were found.
                    unsafe { $widen(at, values) };
                }
            }

            #[inline(always)]
            fn narrow_block<const N: usize>(values: &[f32; N], into: &mut [u16; N]) {
                if !N.is_multiple_of(GROUP) {
                    return float::$name::narrow_block(values, into);
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

format_of_sixteen!(F16, widen_f16, narrow_f16);
format_of_sixteen!(Bf16, widen_bf16, narrow_bf16);

/// Loads sixteen elements.
///
/// # Safety
/// `from` is valid for reads of sixteen elements; it need not be aligned.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load(from: *const [u16; GROUP]) -> __m256i {
    // SAFETY: the caller vouches for the elements.
    unsafe { _mm256_loadu_si256(from.cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn put(low: __m256, high: __m256, into: &mut [f32; GROUP]) {
    let (first, second) = into.split_at_mut(GROUP / 2);
    // SAFETY: half of the sixteen have room in each half.
    unsafe { _mm256_storeu_ps(first.as_mut_ptr(), low) };
    // SAFETY: as above.
    unsafe { _mm256_storeu_ps(second.as_mut_ptr(), high) };
}

#[inline]
#[target_feature(enable = "avx2")]
fn get(values: &[f32; GROUP]) -> (__m256, __m256) {
    let (first, second) = values.split_at(GROUP / 2);
    // SAFETY: each half has eight of the sixteen.
    let low = unsafe { _mm256_loadu_ps(first.as_ptr()) };
    // SAFETY: as above.
    let high = unsafe { _mm256_loadu_ps(second.as_ptr()) };
    (low, high)
}

/// # Safety
/// As for [`load`].
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn widen_f16(from: *const [u16; GROUP], into: &mut [f32; GROUP]) {
    // SAFETY: the caller's promise is passed on.
    let raw = unsafe { load(from) };
    let (low, high) = (_mm256_castsi256_si128(raw), _mm256_extracti128_si256::<1>(raw));
    put(_mm256_cvtph_ps(low), _mm256_cvtph_ps(high), into);
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn narrow_f16(values: &[f32; GROUP], into: &mut [u16; GROUP]) {
    let (low, high) = get(values);
    let low = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(canonical(low));
    let high = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(canonical(high));
    let raw = _mm256_set_m128i(high, low);
    // SAFETY: `into` has room for sixteen elements.
    unsafe { _mm256_storeu_si256(into.as_mut_ptr().cast(), raw) };
}

/// Replaces every NaN by the canonical one, which narrows to the canonical one of either half type.
#[inline]
#[target_feature(enable = "avx2")]
fn canonical(values: __m256) -> __m256 {
    let unordered = _mm256_cmp_ps::<_CMP_UNORD_Q>(values, values);
    _mm256_blendv_ps(values, _mm256_set1_ps(f32::from_bits(0x7fc0_0000)), unordered)
}

/// Widens sixteen elements: first the even ones, then the odd ones, which takes fewer instructions than keeping their
/// order. Everything between widening and narrowing treats elements alike, so their order does not matter there.
///
/// # Safety
/// As for [`load`].
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn widen_bf16(from: *const [u16; GROUP], into: &mut [f32; GROUP]) {
    // SAFETY: the caller's promise is passed on.
    let raw = unsafe { load(from) };
    let even = _mm256_slli_epi32::<16>(raw);
    let odd = _mm256_andnot_si256(_mm256_set1_epi32(0xffff), raw);
    put(_mm256_castsi256_ps(even), _mm256_castsi256_ps(odd), into);
}

/// Narrows sixteen elements in the order that [`widen_bf16`] gives them.
#[inline]
#[target_feature(enable = "avx2")]
fn narrow_bf16(values: &[f32; GROUP], into: &mut [u16; GROUP]) {
    let (even, odd) = get(values);
    let even = _mm256_srli_epi32::<16>(round_to_bf16(even));
    let raw = _mm256_blend_epi16::<0b1010_1010>(even, round_to_bf16(odd));
    // SAFETY: `into` has room for sixteen elements.
    unsafe { _mm256_storeu_si256(into.as_mut_ptr().cast(), raw) };
}

/// The bits of each value rounded to bfloat16, in the high half; see [`float::Bf16`] for the arithmetic.
#[inline]
#[target_feature(enable = "avx2")]
fn round_to_bf16(values: __m256) -> __m256i {
    let bits = _mm256_castps_si256(values);
    let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
    let half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    let rounded = _mm256_add_epi32(bits, half);
    let unordered = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(values, values));
    _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0_0000), unordered)
}
