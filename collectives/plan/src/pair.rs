//! Two algorithms that make a hierarchical one.

/// An algorithm that has a reduce-scatter and an all-gather, of which hierarchical ones are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// As [`crate::Algorithm::Ring`].
    Ring,
    /// As [`crate::Algorithm::TwoShot`], but blocks are combined in the order of distances between nodes.
    TwoShot,
    /// As [`crate::Algorithm::Nhr`].
    Nhr,
    /// As [`crate::Algorithm::HalvingDoubling`].
    HalvingDoubling,
    /// As [`crate::Algorithm::Bruck`].
    Bruck,
}

/// What a hierarchical algorithm does within groups of nodes, and what among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pair {
    /// Within each group.
    pub inner: Stage,
    /// Among the nodes with the same place in their groups.
    pub outer: Stage,
}

/// Every stage, in the order of their declaration, with the names of the pairs that it is the inner one of.
macro_rules! stages {
    ($(($stage:ident, $name:literal)),*) => {
        impl Stage {
            /// Every stage.
            pub const ALL: &'static [Self] = &[$(Self::$stage),*];

            const fn pair_name(self, outer: Self) -> &'static str {
                match self {
                    $(Self::$stage => stages!(@inner outer, $name),)*
                }
            }
        }
    };
    (@inner $outer:ident, $inner:literal) => {
        match $outer {
            Self::Ring => concat!("hierarchical:", $inner, "+ring"),
            Self::TwoShot => concat!("hierarchical:", $inner, "+two-shot"),
            Self::Nhr => concat!("hierarchical:", $inner, "+nhr"),
            Self::HalvingDoubling => concat!("hierarchical:", $inner, "+halving-doubling"),
            Self::Bruck => concat!("hierarchical:", $inner, "+bruck"),
        }
    };
}

stages!(
    (Ring, "ring"),
    (TwoShot, "two-shot"),
    (Nhr, "nhr"),
    (HalvingDoubling, "halving-doubling"),
    (Bruck, "bruck")
);

impl Pair {
    /// Every pair.
    pub const ALL: [Self; Stage::ALL.len() * Stage::ALL.len()] = {
        let stages = Stage::ALL;
        let mut all = [Self { inner: Stage::Ring, outer: Stage::Ring }; Stage::ALL.len() * Stage::ALL.len()];
        let mut i = 0;
        while i < all.len() {
            all[i] = Self { inner: stages[i / stages.len()], outer: stages[i % stages.len()] };
            i += 1;
        }
        all
    };

    /// The name of the algorithm, `hierarchical:INNER+OUTER`.
    #[must_use]
    pub const fn algorithm_name(self) -> &'static str {
        self.inner.pair_name(self.outer)
    }
}
