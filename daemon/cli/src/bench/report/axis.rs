//! Logarithmic axes: what they span and where their ticks are.

use super::unit;

/// More labels than this run into each other.
const TICKS_MAX: usize = 7;
/// As do labels that are nearer to each other than this share of an axis.
const TICKS_APART: f64 = 0.15;

/// What is shown along an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quantity {
    Bytes,
    /// How many of something.
    Count,
    /// Microseconds.
    Time,
    /// 1e9 bytes per second.
    Rate,
    /// Of a whole, 0 to 1.
    Share,
}

/// A place on an axis with its label.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tick {
    pub(super) at: f64,
    pub(super) label: String,
}

/// A logarithmic axis.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Axis {
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) ticks: Vec<Tick>,
}

impl Quantity {
    /// Whether round values are powers of two.
    const fn is_binary(self) -> bool {
        matches!(self, Self::Bytes | Self::Count)
    }

    /// Whether an axis can show this value.
    pub(super) fn can_show(self, value: f64) -> bool {
        let least = if self.is_binary() { 1.0 } else { 1e-9 };
        (least..=1e15).contains(&value)
    }

    /// Round values, counted: powers of two for bytes, else 1, 2 and 5 of each power of ten.
    fn round_value(self, index: i32) -> f64 {
        if self.is_binary() {
            return 2_f64.powi(index);
        }
        let digit = match index.rem_euclid(3) {
            0 => 1,
            1 => 2,
            _ => 5,
        };
        // Parsed, so that it is the nearest number to what its label says.
        format!("{digit}e{}", index.div_euclid(3)).parse().unwrap_or(f64::NAN)
    }

    /// The last round value that is no more than this one, which can be shown.
    fn floor(self, value: f64) -> i32 {
        let mut index = if self.is_binary() { 0 } else { -30 };
        while self.round_value(index + 1) <= value {
            index += 1;
        }
        index
    }

    /// Of how many round values one may have a label.
    const fn strides(self) -> &'static [i32] {
        match self {
            Self::Bytes | Self::Count => &[1, 2, 3, 4, 5, 6, 8, 10],
            Self::Time | Self::Rate | Self::Share => &[1, 3, 6, 9, 15],
        }
    }

    fn label(self, value: f64) -> String {
        match self {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "round values of bytes are powers of two from 1 to 2^50"
            )]
            Self::Bytes => unit::size(value as u64),
            Self::Count => format!("{value}"),
            Self::Time => unit::time(value),
            Self::Rate => unit::rate(value),
            Self::Share => unit::share(value),
        }
    }
}

/// The first and the last as well, and of the others those that leave room for these: sizes are read off at the ends.
fn with_ends(regular: impl Iterator<Item = i32>, first: i32, last: i32) -> Vec<i32> {
    let apart = f64::from(last - first) * TICKS_APART;
    let has_room =
        |index: &i32| [index - first, last - index].into_iter().all(|steps| f64::from(steps) >= apart);
    let between = regular.filter(|index| (first + 1..last).contains(index)).filter(has_room);
    [first].into_iter().chain(between).chain([last]).collect()
}

impl Axis {
    /// An axis that begins and ends at round values and has all these between them; `None` when there is nothing to show.
    pub(super) fn of(values: impl Iterator<Item = f64>, quantity: Quantity) -> Option<Self> {
        let (least, most) = values.filter(|value| quantity.can_show(*value)).fold(
            None,
            |span: Option<(f64, f64)>, value| {
                Some(span.map_or((value, value), |(least, most)| (least.min(value), most.max(value))))
            },
        )?;
        let first = quantity.floor(least);
        let mut last = quantity.floor(most);
        if quantity.round_value(last) < most || last == first {
            last += 1;
        }
        let labelled = |stride: i32| {
            let regular = (first..=last).filter(move |index| index % stride == 0);
            if quantity.is_binary() { with_ends(regular, first, last) } else { regular.collect() }
        };
        let is_apart =
            |stride: i32| !quantity.is_binary() || f64::from(stride) >= f64::from(last - first) * TICKS_APART;
        let fits = |stride: &&i32| labelled(**stride).len() <= TICKS_MAX && is_apart(**stride);
        let stride = quantity.strides().iter().find(fits).or(quantity.strides().last())?;
        let ticks = labelled(*stride).into_iter().map(|index| quantity.round_value(index));
        let ticks = ticks.map(|at| Tick { at, label: quantity.label(at) }).collect();
        Some(Self { low: quantity.round_value(first), high: quantity.round_value(last), ticks })
    }

    /// How far along the axis a value is, 0 to 1.
    pub(super) fn share(&self, value: f64) -> f64 {
        (value.clamp(self.low, self.high) / self.low).ln() / (self.high / self.low).ln()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn labels(values: &[f64], quantity: Quantity) -> Vec<String> {
        let axis = Axis::of(values.iter().copied(), quantity).expect("an axis");
        axis.ticks.into_iter().map(|tick| tick.label).collect()
    }

    #[test]
    fn ticks_are_those_that_people_would_choose() {
        let sizes = labels(&[8.0, 1_048_576.0], Quantity::Bytes);
        assert_eq!(sizes, ["8 B", "64 B", "512 B", "4 KiB", "32 KiB", "1 MiB"]);
        let sizes = labels(&[1024.0, 4_194_304.0], Quantity::Bytes);
        assert_eq!(sizes, ["1 KiB", "4 KiB", "16 KiB", "64 KiB", "256 KiB", "1 MiB", "4 MiB"]);
        assert_eq!(labels(&[8.0], Quantity::Bytes), ["8 B", "16 B"]);
        assert_eq!(labels(&[0.19, 420.0], Quantity::Time), ["100 ns", "1 us", "10 us", "100 us"]);
        assert_eq!(labels(&[3.0, 7.0], Quantity::Time), ["2 us", "5 us", "10 us"]);
        assert_eq!(labels(&[0.02, 60.0], Quantity::Rate), ["100 MB/s", "1 GB/s", "10 GB/s", "100 GB/s"]);
        assert_eq!(labels(&[0.003, 1.0], Quantity::Share), ["1 %", "10 %", "100 %"]);
    }

    #[test]
    fn what_cannot_be_shown_makes_no_axis() {
        let none = [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-300, 1e300];
        for quantity in [Quantity::Bytes, Quantity::Time, Quantity::Rate, Quantity::Share] {
            assert_eq!(Axis::of(none.into_iter(), quantity), None);
            assert_eq!(Axis::of([].into_iter(), quantity), None);
        }
    }

    fn any_quantity() -> impl Strategy<Value = Quantity> {
        prop::sample::select(vec![Quantity::Bytes, Quantity::Time, Quantity::Rate, Quantity::Share])
    }

    proptest! {
        #[test]
        fn ticks_rise_within_the_axis_and_differ(
            exponents in prop::collection::vec(-9.0..15.0_f64, 1..20),
            quantity in any_quantity(),
        ) {
            let values: Vec<f64> =
                exponents.iter().map(|e| 10_f64.powf(*e)).filter(|v| quantity.can_show(*v)).collect();
            prop_assume!(!values.is_empty());
            let axis = Axis::of(values.iter().copied(), quantity).expect("an axis");
            prop_assert!(axis.low < axis.high);
            prop_assert!(values.iter().all(|v| (axis.low..=axis.high).contains(v)));
            prop_assert!((2..=TICKS_MAX).contains(&axis.ticks.len()), "{:?}", axis.ticks);
            prop_assert!(axis.ticks.windows(2).all(|pair| pair[0].at < pair[1].at));
            prop_assert!(axis.ticks.iter().all(|t| (axis.low..=axis.high).contains(&t.at)));
            if quantity == Quantity::Bytes {
                let ends = [axis.ticks[0].at, axis.ticks[axis.ticks.len() - 1].at];
                prop_assert_eq!(ends, [axis.low, axis.high]);
                prop_assert!(axis.ticks.windows(2).all(|pair| axis.share(pair[1].at) - axis.share(pair[0].at) > TICKS_APART - 1e-9));
            }
            let labels: BTreeSet<&str> = axis.ticks.iter().map(|t| t.label.as_str()).collect();
            prop_assert_eq!(labels.len(), axis.ticks.len());
            prop_assert!(values.iter().all(|v| (0.0..=1.0).contains(&axis.share(*v))));
        }
    }
}
