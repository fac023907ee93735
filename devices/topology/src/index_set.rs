//! Sets of small numbers, written as the kernel writes lists of CPUs.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// A set of numbers of CPUs or nodes, such as `0-55,112-167`: Linux's list format
/// (Documentation/admin-guide/cputopology.rst). Equal sets print alike.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct IndexSet {
    /// First and last of each run, ascending; between two of them at least one number is missing.
    runs: Vec<(u32, u32)>,
}

/// Why a text is no set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no list of numbers and ranges such as 0-3,8")]
pub struct NoIndexSet {
    /// The part that is wrong, as far as it is short.
    pub text: String,
}

impl IndexSet {
    /// How many numbers it has.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.runs.iter().map(|(first, last)| u64::from(last - first) + 1).sum()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The least.
    #[must_use]
    pub fn first(&self) -> Option<u32> {
        self.runs.first().map(|(first, _)| *first)
    }

    /// The greatest.
    #[must_use]
    pub fn last(&self) -> Option<u32> {
        self.runs.last().map(|(_, last)| *last)
    }

    /// Whether it has this one.
    #[must_use]
    pub fn contains(&self, number: u32) -> bool {
        let run = self.runs.partition_point(|(_, last)| *last < number);
        self.runs.get(run).is_some_and(|(first, _)| *first <= number)
    }

    /// All of them, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.runs.iter().flat_map(|(first, last)| *first..=*last)
    }

    /// What both have.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let mut runs = Vec::new();
        let (mut left, mut right) = (self.runs.iter().peekable(), other.runs.iter().peekable());
        while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
            let (first, last) = (a.0.max(b.0), a.1.min(b.1));
            if first <= last {
                runs.push((first, last));
            }
            if a.1 < b.1 {
                left.next()
            } else {
                right.next()
            };
        }
        Self { runs }
    }

    /// What either has.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self::of_runs(self.runs.iter().chain(&other.runs).copied().collect())
    }

    /// What only this one has.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        let mut gaps = Vec::new();
        let mut next = Some(0);
        for (first, last) in &other.runs {
            gaps.extend(next.filter(|next| next < first).map(|next| (next, first - 1)));
            next = last.checked_add(1);
        }
        gaps.extend(next.map(|next| (next, u32::MAX)));
        self.intersection(&Self { runs: gaps })
    }

    /// Whether the other one has all of these.
    #[must_use]
    pub fn is_within(&self, other: &Self) -> bool {
        self.intersection(other) == *self
    }

    fn of_runs(mut runs: Vec<(u32, u32)>) -> Self {
        runs.sort_unstable();
        let mut joined: Vec<(u32, u32)> = Vec::with_capacity(runs.len());
        for (first, last) in runs {
            match joined.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
                _ => joined.push((first, last)),
            }
        }
        Self { runs: joined }
    }
}

impl FromIterator<u32> for IndexSet {
    fn from_iter<I: IntoIterator<Item = u32>>(numbers: I) -> Self {
        Self::of_runs(numbers.into_iter().map(|number| (number, number)).collect())
    }
}

impl fmt::Display for IndexSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (first, last)) in self.runs.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            match first == last {
                true => write!(f, "{comma}{first}")?,
                false => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

impl FromStr for IndexSet {
    type Err = NoIndexSet;

    fn from_str(text: &str) -> Result<Self, NoIndexSet> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        text.split(',').map(run).collect::<Result<_, _>>().map(Self::of_runs)
    }
}

fn run(text: &str) -> Result<(u32, u32), NoIndexSet> {
    let number = |text: &str| {
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|_| is_number)
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => Ok((first, last)),
        _ => Err(NoIndexSet { text: text.chars().take(40).collect() }),
    }
}

impl Serialize for IndexSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for IndexSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn it_reads_what_the_kernel_writes() {
        let set: IndexSet = "0-55,112-167".parse().expect("a list");
        assert_eq!((set.len(), set.first(), set.last()), (112, Some(0), Some(167)));
        assert!(set.contains(55) && set.contains(112) && !set.contains(56) && !set.contains(168));
        assert_eq!("3,1-2,2".parse::<IndexSet>().expect("a list").to_string(), "1-3");
        assert!("".parse::<IndexSet>().expect("none").is_empty());
        for wrong in ["-1", "3-1", "1,", "a", "1--2", "4294967296", "+1", " 1"] {
            assert!(wrong.parse::<IndexSet>().is_err(), "{wrong}");
        }
        let all: IndexSet = "0-4294967295".parse().expect("all there are");
        assert_eq!(all.len(), 1 << 32);
        assert!(all.without(&all).is_empty());
    }

    proptest! {
        #[test]
        fn it_is_a_set(
            left in prop::collection::btree_set(0_u32..60, 0..40),
            right in prop::collection::btree_set(0_u32..60, 0..40),
        ) {
            let set = |numbers: &BTreeSet<u32>| numbers.iter().copied().collect::<IndexSet>();
            let (a, b) = (set(&left), set(&right));
            prop_assert_eq!(a.to_string().parse(), Ok(a.clone()));
            prop_assert_eq!(a.iter().collect::<BTreeSet<_>>(), left.clone());
            prop_assert_eq!(a.len(), left.len() as u64);
            prop_assert_eq!(a.intersection(&b), set(&(&left & &right)));
            prop_assert_eq!(a.union(&b), set(&(&left | &right)));
            prop_assert_eq!(a.without(&b), set(&(&left - &right)));
            prop_assert_eq!(a.is_within(&b), left.is_subset(&right));
            prop_assert!((0..60).all(|n| a.contains(n) == left.contains(&n)));
        }
    }
}
