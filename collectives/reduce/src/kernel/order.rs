//! Minimum and maximum. Floats are mapped to integers of their width that sort as IEEE 754-2019 `minimum` and
//! `maximum` do (-0 below +0, a NaN beyond everything), so that both are one integer comparison, and back. Narrow
//! floats are compared at their own width.

use core::marker::PhantomData;

use super::Rule;

/// A type with a minimum and a maximum: `Key` sorts as its values do.
pub(super) trait Order: Copy {
    type Raw: Copy + Default;
    type Key: Copy + Default + Ord;
    /// The key; every NaN has the lowest one when `low`, else the highest.
    fn key(raw: Self::Raw, low: bool) -> Self::Key;
    /// The value; both extreme keys of floats are the canonical NaN.
    fn value(key: Self::Key) -> Self::Raw;
}

/// Integers are their own keys; this one names the integer type.
#[derive(Clone, Copy)]
pub(super) struct Plain<T>(PhantomData<T>);

impl<T: Copy + Default + Ord> Order for Plain<T> {
    type Raw = T;
    type Key = T;

    #[inline(always)]
    fn key(raw: T, _low: bool) -> T {
        raw
    }
    #[inline(always)]
    fn value(key: T) -> T {
        key
    }
}

/// Declares the order of a float from its width, the bits of the largest value that is no NaN and its canonical NaN.
macro_rules! float_order {
    ($($(#[$meta:meta])* $name:ident, $key:ty, $largest:literal, $nan:literal;)*) => { $(
        $(#[$meta])*
        #[derive(Clone, Copy)]
        pub(super) struct $name;

        impl Order for $name {
            type Raw = $key;
            type Key = $key;

            #[inline(always)]
            fn key(raw: $key, low: bool) -> $key {
                let magnitude = raw & <$key>::MAX;
                // Negative values sort by falling magnitude.
                let key = raw ^ ((raw >> (<$key>::BITS - 1)) & <$key>::MAX);
                let nan = if low { <$key>::MIN } else { <$key>::MAX };
                if magnitude > $largest { nan } else { key }
            }

            #[inline(always)]
            fn value(key: $key) -> $key {
                let raw = key ^ ((key >> (<$key>::BITS - 1)) & <$key>::MAX);
                let nan = key == <$key>::MIN || key == <$key>::MAX;
                if nan { $nan } else { raw }
            }
        }
    )* };
}

float_order! {
    /// The order of E4M3.
    F8E4M3, i8, 0x7e, 0x7f;
    /// The order of E5M2.
    F8E5M2, i8, 0x7c, 0x7e;
    /// The order of binary16.
    F16, i16, 0x7c00, 0x7e00;
    /// The order of bfloat16.
    Bf16, i16, 0x7f80, 0x7fc0;
    /// The order of binary32.
    F32, i32, 0x7f80_0000, 0x7fc0_0000;
    /// The order of binary64.
    F64, i64, 0x7ff0_0000_0000_0000, 0x7ff8_0000_0000_0000;
}

/// Minimum.
#[derive(Clone, Copy)]
pub(super) struct Min<O>(PhantomData<O>);

/// Maximum.
#[derive(Clone, Copy)]
pub(super) struct Max<O>(PhantomData<O>);

impl<O> Min<O> {
    pub(super) const NEW: Self = Self(PhantomData);
}

impl<O> Max<O> {
    pub(super) const NEW: Self = Self(PhantomData);
}

impl<O: Order> Rule for Min<O> {
    type Raw = O::Raw;
    type Acc = O::Key;
    const SCALES: bool = false;

    #[inline(always)]
    fn load(self, raw: O::Raw) -> O::Key {
        O::key(raw, true)
    }
    #[inline(always)]
    fn fold(self, before: O::Key, next: O::Key) -> O::Key {
        if next < before { next } else { before }
    }
    #[inline(always)]
    fn store(self, value: O::Key) -> O::Raw {
        O::value(value)
    }
}

impl<O: Order> Rule for Max<O> {
    type Raw = O::Raw;
    type Acc = O::Key;
    const SCALES: bool = false;

    #[inline(always)]
    fn load(self, raw: O::Raw) -> O::Key {
        O::key(raw, false)
    }
    #[inline(always)]
    fn fold(self, before: O::Key, next: O::Key) -> O::Key {
        if next > before { next } else { before }
    }
    #[inline(always)]
    fn store(self, value: O::Key) -> O::Raw {
        O::value(value)
    }
}
