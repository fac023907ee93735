//! Numbers that look random and are the same for the same seed.

/// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014).
#[derive(Debug, Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number less than `bound`; zero if that is zero.
    pub(crate) const fn below(&mut self, bound: u64) -> u64 {
        let product = self.next() as u128 * bound as u128;
        (product >> 64) as u64
    }

    /// `true` with this probability.
    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        // 53 bits are what an f64 holds.
        let drawn = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        drawn < probability
    }
}
