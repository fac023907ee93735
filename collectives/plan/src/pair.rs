//! Two algorithms that make a hierarchical one.

/// An algorithm of which hierarchical ones are made: one that has a reduce-scatter and an all-gather, or a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// As [`crate::Algorithm::Ring`]. It has a broadcast and a reduce as trees have, along a chain.
    Ring,
    /// As [`crate::Algorithm::TwoShot`], but blocks are combined in the order of distances between nodes.
    TwoShot,
    /// As [`crate::Algorithm::Nhr`].
    Nhr,
    /// As [`crate::Algorithm::HalvingDoubling`].
    HalvingDoubling,
    /// As [`crate::Algorithm::Bruck`].
    Bruck,
    /// As [`crate::Algorithm::Binomial`].
    Binomial,
    /// As [`crate::Algorithm::Tree`].
    Tree,
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
            Self::Binomial => concat!("hierarchical:", $inner, "+binomial"),
            Self::Tree => concat!("hierarchical:", $inner, "+tree"),
        }
    };
}

stages!(
    (Ring, "ring"),
    (TwoShot, "two-shot"),
    (Nhr, "nhr"),
    (HalvingDoubling, "halving-doubling"),
    (Bruck, "bruck"),
    (Binomial, "binomial"),
    (Tree, "tree")
);

impl Stage {
    /// Whether it has a reduce-scatter and an all-gather.
    #[must_use]
    pub const fn has_rounds(self) -> bool {
        !matches!(self, Self::Binomial | Self::Tree)
    }

    /// Whether it has a broadcast and a reduce.
    #[must_use]
    pub const fn is_tree(self) -> bool {
        matches!(self, Self::Ring | Self::Binomial | Self::Tree)
    }
}

impl Pair {
    /// Every pair of two that have an operation in common.
    pub const ALL: [Self; Self::count()] = {
        let mut all = [Self { inner: Stage::Ring, outer: Stage::Ring }; Self::count()];
        let (mut i, mut found) = (0, 0);
        while i < Self::POSSIBLE {
            let pair = Self::numbered(i);
            if pair.does_something() {
                all[found] = pair;
                found += 1;
            }
            i += 1;
        }
        all
    };

    /// Pairs of any two.
    const POSSIBLE: usize = Stage::ALL.len() * Stage::ALL.len();

    const fn numbered(number: usize) -> Self {
        let stages = Stage::ALL;
        Self { inner: stages[number / stages.len()], outer: stages[number % stages.len()] }
    }

    const fn count() -> usize {
        let (mut i, mut count) = (0, 0);
        while i < Self::POSSIBLE {
            count += Self::numbered(i).does_something() as usize;
            i += 1;
        }
        count
    }

    /// Whether both have a reduce-scatter and an all-gather.
    #[must_use]
    pub const fn has_rounds(self) -> bool {
        self.inner.has_rounds() && self.outer.has_rounds()
    }

    /// Whether both have a broadcast and a reduce.
    #[must_use]
    pub const fn is_tree(self) -> bool {
        self.inner.is_tree() && self.outer.is_tree()
    }

    const fn does_something(self) -> bool {
        self.has_rounds() || self.is_tree()
    }

    /// The name of the algorithm, `hierarchical:INNER+OUTER`.
    #[must_use]
    pub const fn algorithm_name(self) -> &'static str {
        self.inner.pair_name(self.outer)
    }
}
