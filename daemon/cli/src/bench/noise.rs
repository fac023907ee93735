//! Whether what two sets of rounds found differs by more than rounds do by themselves.

/// Medians up to this many times apart are alike, however little rounds differ.
const RATIO_MIN: f64 = 1.05;
/// How often rounds of the same thing may at most be taken for rounds of different ones.
const ALARMS_MAX: f64 = 0.02;
/// The same in standard deviations of the normal distribution, on both sides.
const DEVIATIONS_MIN: f64 = 2.326;
/// Of more rounds than this the distribution of ranks is as good as normal.
const EXACT_MAX: usize = 30;
/// Of fewer nothing can be said.
const ROUNDS_MIN: usize = 3;

/// The rule, for people.
pub(super) const RULE: &str = "What differs does so by more than 5 % in the medians, and by more than chance: the ranks of the rounds' values \
     (Mann-Whitney) would come about in 2 % of cases at most if there were no difference. Fewer than five rounds of each cannot show \
     that much by ranks alone, three and three no more than 10 %: of those the two sets must lie further apart than either \
     is wide. Of fewer than three nothing is told.";

/// Whether these differ, of any order.
pub(super) fn differ(a: &[f64], b: &[f64]) -> bool {
    let (a, b) = (sorted(a), sorted(b));
    if a.len().min(b.len()) < ROUNDS_MIN || !a.iter().chain(&b).all(|value| value.is_finite()) {
        return false;
    }
    let (less, more) = match (median(&a), median(&b)) {
        (a, b) if a < b => (a, b),
        (a, b) => (b, a),
    };
    more > less * RATIO_MIN && is_beyond_chance(&a, &b)
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values
}

fn median(sorted: &[f64]) -> f64 {
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

fn is_beyond_chance(a: &[f64], b: &[f64]) -> bool {
    let pairs = (a.len() * b.len()) as f64;
    let wins = wins(a, b);
    let wins = wins.min(pairs - wins);
    if a.len().max(b.len()) > EXACT_MAX {
        let deviation = (pairs * (a.len() + b.len() + 1) as f64 / 12.0).sqrt();
        return pairs / 2.0 - wins - 0.5 >= DEVIATIONS_MIN * deviation;
    }
    if 2.0 * chance(a.len(), b.len(), 0) > ALARMS_MAX {
        return wins == 0.0 && are_far_apart(a, b);
    }
    // Half a win is counted as one, which makes a difference no likelier.
    2.0 * chance(a.len(), b.len(), wins.ceil() as usize) <= ALARMS_MAX
}

/// In how many of all pairs the first is larger; of equal ones in half.
fn wins(a: &[f64], b: &[f64]) -> f64 {
    let pairs = a.iter().flat_map(|a| b.iter().map(move |b| (a, b)));
    pairs.map(|(a, b)| f64::from(u8::from(a > b)) + f64::from(u8::from(a == b)) / 2.0).sum()
}

/// How likely as few wins are, or fewer, when all orders are as likely.
fn chance(a: usize, b: usize, wins: usize) -> f64 {
    // The coefficients of the Gaussian binomial: how many orders have so many wins.
    let mut orders = vec![0.0; wins + 1];
    if let Some(first) = orders.first_mut() {
        *first = 1.0;
    }
    let mut all = 1.0;
    for step in 1..=a {
        let far = b + step;
        for at in (far..=wins).rev() {
            orders[at] -= orders[at - far];
        }
        for at in step..=wins {
            orders[at] += orders[at - step];
        }
        all *= far as f64 / step as f64;
    }
    orders.iter().sum::<f64>() / all
}

/// Whether there is more between two sets of which one is all below the other than within either.
fn are_far_apart(a: &[f64], b: &[f64]) -> bool {
    let ends = |values: &[f64]| values.first().copied().zip(values.last().copied());
    let Some(((a_least, a_most), (b_least, b_most))) = ends(a).zip(ends(b)) else { return false };
    let between = (b_least - a_most).max(a_least - b_most);
    between > (a_most - a_least).max(b_most - b_least)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Numbers that look as if they came from a normal distribution, always the same ones.
    #[derive(Debug)]
    pub(in super::super) struct Noise(u64);

    impl Noise {
        pub(in super::super) const fn new() -> Self {
            Self(0x9e37_79b9_7f4a_7c15)
        }

        /// From 0 to 1.
        fn uniform(&mut self) -> f64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 11) as f64 / (1_u64 << 53) as f64
        }

        /// About this, by a share of it that is so large in most cases.
        pub(in super::super) fn about(&mut self, value: f64, share: f64) -> f64 {
            let sum: f64 = (0..12).map(|_| self.uniform()).sum();
            value * (share * (sum - 6.0)).exp()
        }

        fn rounds(&mut self, count: usize, value: f64, share: f64) -> Vec<f64> {
            (0..count).map(|_| self.about(value, share)).collect()
        }
    }

    #[test]
    fn chances_are_those_of_the_tables() {
        let is = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-12, "{found} {expected}");
        is(chance(3, 3, 0), 1.0 / 20.0);
        is(chance(3, 3, 9), 1.0);
        is(chance(5, 5, 0), 1.0 / 252.0);
        is(chance(5, 5, 2), 4.0 / 252.0);
        is(chance(4, 6, 3), 7.0 / 210.0);
        is(chance(20, 30, 300), 0.5 + chance_of_exactly_half());
    }

    /// Half of the middle one of an odd number of equally spaced values.
    fn chance_of_exactly_half() -> f64 {
        (chance(20, 30, 300) - chance(20, 30, 299)) / 2.0
    }

    #[test]
    fn rounds_of_the_same_thing_are_seldom_taken_for_different_ones() {
        let mut noise = Noise::new();
        for (a, b) in [(3, 3), (3, 5), (4, 4), (5, 5), (7, 5), (20, 20), (40, 50)] {
            let tries = if a > 10 { 2_000 } else { 20_000 };
            let alarms = (0..tries).filter(|_| {
                let (a, b) = (noise.rounds(a, 5.0, 0.3), noise.rounds(b, 5.0, 0.3));
                differ(&a, &b)
            });
            let share = alarms.count() as f64 / f64::from(tries);
            assert!(share <= 0.02, "{a} and {b} rounds: {share}");
        }
    }

    #[test]
    fn what_differs_by_far_more_than_the_noise_is_found() {
        let mut noise = Noise::new();
        for rounds in [3, 4, 5, 20, 40] {
            let found = (0..1000)
                .filter(|_| differ(&noise.rounds(rounds, 5.0, 0.02), &noise.rounds(rounds, 6.0, 0.02)));
            let found = found.count();
            assert!(found > 950, "of 1000 with {rounds} rounds: {found}");
        }
    }

    #[test]
    fn what_is_not_known_does_not_differ() {
        assert!(!differ(&[1.0; 2], &[9.0; 2]) && !differ(&[], &[9.0; 5]));
        assert!(!differ(&[f64::NAN; 5], &[9.0; 5]) && !differ(&[1.0; 5], &[f64::INFINITY; 5]));
        // Medians less than 5 % apart, without any noise.
        assert!(!differ(&[4.0; 5], &[4.1; 5]) && differ(&[4.0; 5], &[4.3; 5]));
        assert!(differ(&[0.0; 5], &[1.0; 5]) && !differ(&[0.0; 5], &[0.0; 5]));
    }
}
