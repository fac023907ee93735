//! Rules for integers. Sums and products wrap, so that signed and unsigned ones are the same and share a kernel.

use super::Rule;
use crate::Scalar;

/// An unsigned integer that stands for itself and for the signed one of its width.
pub(super) trait Word: Copy + Default {
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    /// The low bits of the factor.
    fn factor(scalar: Scalar) -> Self;
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
    /// All ones where the value has a bit in common with the mask, else zero.
    fn any(self, mask: Self) -> Self;
}

macro_rules! words {
    ($($word:ty),*) => { $(impl Word for $word {
        #[inline(always)]
        fn plus(self, other: Self) -> Self { self.wrapping_add(other) }
        #[inline(always)]
        fn times(self, other: Self) -> Self { self.wrapping_mul(other) }
        #[inline(always)]
        fn factor(scalar: Scalar) -> Self { scalar.as_u64() as Self }
        #[inline(always)]
        fn and(self, other: Self) -> Self { self & other }
        #[inline(always)]
        fn or(self, other: Self) -> Self { self | other }
        #[inline(always)]
        fn xor(self, other: Self) -> Self { self ^ other }
        #[inline(always)]
        fn any(self, mask: Self) -> Self { if self & mask == 0 { 0 } else { Self::MAX } }
    })* };
}

words!(u8, u16, u32, u64);

/// Declares a rule on words whose elements need no other form.
macro_rules! plain_rule {
    ($(#[$meta:meta])* $name:ident, $fold:ident, scales: $scales:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy)]
        pub(super) struct $name<T>(core::marker::PhantomData<T>);

        impl<T> $name<T> {
            pub(super) const NEW: Self = Self(core::marker::PhantomData);
        }

        impl<T: Word> Rule for $name<T> {
            type Raw = T;
            type Acc = T;
            const SCALES: bool = $scales;

            #[inline(always)]
            fn load(self, raw: T) -> T { raw }
            #[inline(always)]
            fn fold(self, before: T, next: T) -> T { before.$fold(next) }
            #[inline(always)]
            fn store(self, value: T) -> T { value }
            #[inline(always)]
            fn scale(self, value: T, factor: Scalar) -> T { value.times(T::factor(factor)) }
        }
    };
}

plain_rule!(
    /// Wrapping sum.
    Sum, plus, scales: true
);
plain_rule!(
    /// Wrapping product.
    Product, times, scales: false
);
plain_rule!(
    /// Bitwise and.
    And, and, scales: false
);
plain_rule!(
    /// Bitwise or.
    Or, or, scales: false
);
plain_rule!(
    /// Bitwise exclusive or.
    Xor, xor, scales: false
);

/// An integer that can be divided by a number of ranks.
pub(super) trait Divide: Copy + Default {
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn factor(scalar: Scalar) -> Self;
    /// The quotient, truncated toward zero; `ranks` is not zero.
    fn over(self, ranks: u32) -> Self;
}

macro_rules! divide {
    ($($int:ty, $wide:ty);*) => { $(impl Divide for $int {
        #[inline(always)]
        fn plus(self, other: Self) -> Self { self.wrapping_add(other) }
        #[inline(always)]
        fn times(self, other: Self) -> Self { self.wrapping_mul(other) }
        #[inline(always)]
        fn factor(scalar: Scalar) -> Self { scalar.as_u64() as Self }
        #[inline(always)]
        fn over(self, ranks: u32) -> Self {
            // The float holds both numbers exactly (or a divisor above every value, whose quotient is then below
            // one), and two integers' quotient is further from the next integer than the rounding error, so that
            // truncation finds the right one. Sixty-four bits fit no float and are divided as integers.
            (self as $wide / ranks as $wide) as Self
        }
    })* };
}

divide!(i8, f32; u8, f32; i32, f64; u32, f64; i64, i64; u64, u64);

/// Wrapping sum divided by the number of ranks.
#[derive(Clone, Copy)]
pub(super) struct Average<T> {
    ranks: u32,
    kind: core::marker::PhantomData<T>,
}

impl<T> Average<T> {
    pub(super) const fn new(ranks: u32) -> Self {
        Self { ranks, kind: core::marker::PhantomData }
    }
}

impl<T: Divide> Rule for Average<T> {
    type Raw = T;
    type Acc = T;
    const SCALES: bool = true;

    #[inline(always)]
    fn load(self, raw: T) -> T {
        raw
    }
    #[inline(always)]
    fn fold(self, before: T, next: T) -> T {
        before.plus(next)
    }
    #[inline(always)]
    fn store(self, value: T) -> T {
        value.over(self.ranks)
    }
    #[inline(always)]
    fn scale(self, value: T, factor: Scalar) -> T {
        value.times(T::factor(factor))
    }
    #[inline(always)]
    fn over(self, ranks: u32) -> Self {
        Self { ranks, ..self }
    }
}
