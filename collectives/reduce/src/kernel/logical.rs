//! Logical reductions. A value is true when it has a bit set other than a float's sign (so NaNs and the smallest
//! subnormals are true, -0 is false); while accumulated, true is all ones, and it is stored as the type's one.

use super::{Rule, integer::Word};

/// Which bits of an element make it true, and what its one looks like.
#[derive(Clone, Copy)]
pub(super) struct Truth<T> {
    pub(super) mask: T,
    pub(super) one: T,
}

macro_rules! logical_rule {
    ($($(#[$meta:meta])* $name:ident, $fold:ident;)*) => { $(
        $(#[$meta])*
        #[derive(Clone, Copy)]
        pub(super) struct $name<T>(pub(super) Truth<T>);

        impl<T: Word> Rule for $name<T> {
            type Raw = T;
            type Acc = T;
            const SCALES: bool = false;

            #[inline(always)]
            fn load(self, raw: T) -> T { raw.any(self.0.mask) }
            #[inline(always)]
            fn fold(self, before: T, next: T) -> T { before.$fold(next) }
            #[inline(always)]
            fn store(self, value: T) -> T { value.and(self.0.one) }
        }
    )* };
}

logical_rule! {
    /// Logical and.
    All, and;
    /// Logical or.
    Any, or;
    /// Logical exclusive or: an odd number of true values.
    Odd, xor;
}
