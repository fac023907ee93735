//! Numbers as people read them: three significant digits and the unit that suits.

use super::super::result::Spread;

/// A number with three significant digits, without zeros at its end that say nothing.
pub(super) fn number(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    // Rust writes the shortest decimal that is this very number, so rounding is left to the exponent's form.
    let rounded: f64 = format!("{value:.2e}").parse().unwrap_or(value);
    format!("{rounded}")
}

/// The same in the largest of the units (smallest first) that leaves at least 1 before the point.
fn in_unit(value: f64, units: &[(f64, &str)]) -> String {
    // 999.7 of a unit would be rounded to 1000 of it.
    let large_enough = |(size, _): &&(f64, &str)| value.abs() * 1.000_5 >= *size;
    let unit = units.iter().rev().find(large_enough).or(units.first());
    unit.map_or_else(|| number(value), |(size, name)| format!("{} {name}", number(value / size)))
}

/// A time given in microseconds.
pub(crate) fn time(us: f64) -> String {
    in_unit(us, &[(1e-3, "ns"), (1.0, "us"), (1e3, "ms"), (1e6, "s")])
}

/// A rate given in 1e9 bytes per second.
pub(super) fn rate(gb_s: f64) -> String {
    in_unit(gb_s, &[(1e-9, "B/s"), (1e-6, "kB/s"), (1e-3, "MB/s"), (1.0, "GB/s")])
}

/// Messages a second, given in millions.
pub(super) fn message_rate(millions: f64) -> String {
    in_unit(millions, &[(1e-6, "/s"), (1e-3, "k/s"), (1.0, "M/s")])
}

/// A share of 1 in per cent.
pub(super) fn share(of_one: f64) -> String {
    format!("{} %", number(of_one * 100.0))
}

/// A size, exactly where it is a whole number of some unit.
pub(crate) fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let suits = |(shift, _): &&(u32, &str)| bytes >> shift > 0;
    match units.iter().find(suits) {
        Some((shift, name)) if bytes.trailing_zeros() >= *shift => format!("{} {name}", bytes >> shift),
        Some((shift, name)) => format!("{} {name}", number(bytes as f64 / (1_u64 << shift) as f64)),
        None => format!("{bytes} B"),
    }
}

/// How many times as much the first is as the second; `None` where that means nothing.
pub(super) fn ratio(more: f64, less: f64) -> Option<f64> {
    let ratio = more / less;
    (less > 0.0 && ratio.is_finite()).then_some(ratio)
}

/// A count of things, with the word for one of them.
pub(super) fn count(many: usize, what: &str) -> String {
    if many == 1 { format!("1 {what}") } else { format!("{many} {what}s") }
}

/// Words in a row: `a`, `a and b`, `a, b and c`.
pub(super) fn list(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// The least and the most of some times given in microseconds.
pub(super) fn spread([least, most]: [f64; 2]) -> String {
    format!("{} to {}", time(least), time(most))
}

/// A cache line's hand-over, which is given in nanoseconds, with its spread.
pub(super) fn hand_over(ns: &Spread) -> String {
    format!("{} ({} to {})", time(ns.median / 1e3), time(ns.least / 1e3), time(ns.most / 1e3))
}

/// A moment given in seconds since 1970, as a date and time in UTC.
pub(super) fn date(unix_s: u64) -> String {
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    // Howard Hinnant's `civil_from_days`: years begin in March, so that a leap day is the last of its year.
    let day = days + 719_468;
    let (era, day_of_era) = (day / 146_097, day % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year:04}-{month:02}-{day_of_month:02} {hour:02}:{minute:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        let all = [0.0, 0.012_345, 1.0, 4.305, 66.66, 1234.0, 123_456.0, -2.345];
        let told: Vec<String> = all.iter().map(|v| number(*v)).collect();
        assert_eq!(told, ["0", "0.0123", "1", "4.3", "66.7", "1230", "123000", "-2.35"]);
        assert_eq!(number(f64::NAN), "-");
    }

    #[test]
    fn units_suit() {
        assert_eq!(time(0.07), "70 ns");
        assert_eq!(time(0.999_9), "1 us");
        assert_eq!(time(55.04), "55 us");
        assert_eq!(time(1234.5), "1.23 ms");
        assert_eq!(time(0.0), "0 ns");
        assert_eq!(time(-3.5), "-3.5 us");
        assert_eq!(rate(60.0), "60 GB/s");
        assert_eq!(rate(0.25), "250 MB/s");
        assert_eq!(message_rate(0.25), "250 k/s");
        assert_eq!(share(0.0123), "1.23 %");
        assert_eq!(
            [0, 8, 1000, 1024, 1500, 3 << 20, u64::MAX].map(size),
            ["0 B", "8 B", "1000 B", "1 KiB", "1.46 KiB", "3 MiB", "17200000000 GiB"]
        );
    }

    #[test]
    fn ratios_that_mean_nothing_are_none() {
        assert_eq!(ratio(4.0, 2.0), Some(2.0));
        assert_eq!(ratio(4.0, 0.0), None);
        assert_eq!(ratio(f64::NAN, 1.0), None);
        assert_eq!(ratio(1.0, f64::NAN), None);
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_399), "2000-02-28 23:59 UTC");
        assert_eq!(date(951_868_800), "2000-03-01 00:00 UTC");
        assert_eq!(date(1_767_225_599), "2025-12-31 23:59 UTC");
    }

    #[test]
    fn words_stand_in_a_row() {
        let words = |n: usize| list(&["a", "b", "c"].map(str::to_owned)[..n]);
        assert_eq!([words(0), words(1), words(2), words(3)], ["", "a", "a and b", "a, b and c"]);
        assert_eq!((count(1, "point"), count(0, "point")), ("1 point".to_owned(), "0 points".to_owned()));
    }
}
