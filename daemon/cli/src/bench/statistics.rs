//! Percentiles and medians.

use super::result::{Percentiles, Spread};
use crate::perf::{percentile, round};

impl Percentiles {
    /// Of nanoseconds, which are left sorted. What would be the longest time or close to it is left out.
    pub(super) fn of(nanoseconds: &mut [f64]) -> Self {
        nanoseconds.sort_by(f64::total_cmp);
        let at = |of_thousand| round(percentile(nanoseconds, of_thousand) / 1e3, 4);
        let of_many = |least, of_thousand| (nanoseconds.len() >= least).then(|| at(of_thousand));
        Self { p50: at(500), p99: of_many(100, 990), p999: of_many(1000, 999) }
    }
}

impl Spread {
    /// Of any values; zeroes of none.
    pub(super) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or_default();
        Self { least: at(0), median: at(values.len() / 2), most: at(values.len().saturating_sub(1)) }
    }
}

/// The middle one; `None` of none, or when one is not known.
pub(super) fn median_of_known(values: impl IntoIterator<Item = Option<f64>>) -> Option<f64> {
    let values: Option<Vec<f64>> = values.into_iter().collect();
    values.filter(|values| !values.is_empty()).map(|values| Spread::of(values).median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_so_many_do_not_exceed() {
        let mut values: Vec<f64> = (1..=1000).rev().map(|n| f64::from(n) * 1e3).collect();
        let found = Percentiles::of(&mut values);
        assert_eq!((found.p50, found.p99, found.p999), (500.0, Some(990.0), Some(999.0)));
        assert_eq!(Percentiles::of(&mut []), Percentiles::default());
        assert_eq!(Percentiles::of(&mut [7e3]), Percentiles { p50: 7.0, p99: None, p999: None });
        let of_fewer = Percentiles::of(values.split_at_mut(999).0);
        assert_eq!((of_fewer.p99, of_fewer.p999), (Some(990.0), None));
        assert_eq!(Percentiles::of(values.split_at_mut(99).0).p99, None);
    }

    #[test]
    fn medians_need_all_values() {
        assert_eq!(median_of_known([Some(3.0), Some(1.0), Some(2.0)]), Some(2.0));
        assert_eq!(median_of_known([Some(3.0), None]), None);
        assert_eq!(median_of_known([]), None);
        assert_eq!(Spread::of(vec![3.0, 1.0, 2.0]), Spread { least: 1.0, median: 2.0, most: 3.0 });
    }
}
