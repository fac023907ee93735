//! What perftest's programs have in their buffers: the bytes of the C library's `rand`, seeded with the time in seconds.
//! Knowing that, a receiver can tell whether it got the right bytes, from any sender.

use std::time::{SystemTime, UNIX_EPOCH};

/// The additive generator behind glibc's `rand` (`TYPE_3`: x^31 + x^3 + 1, the lowest bit dropped).
#[derive(Debug, Clone)]
pub(crate) struct CRandom {
    state: [u32; 31],
    /// The place of the next term.
    at: usize,
}

impl CRandom {
    /// As after `srand(seed)`.
    pub(crate) fn new(seed: u32) -> Self {
        let mut word = i64::from(seed.max(1).cast_signed());
        let state = core::array::from_fn(|_| {
            let this = word as u32;
            // A Lehmer generator, as C computes it: the remainder has the sign of what is divided.
            word = word * 16_807 % 2_147_483_647;
            if word < 0 {
                word += 2_147_483_647;
            }
            this
        });
        let mut random = Self { state, at: 3 };
        for _ in 0..310 {
            random.next();
        }
        random
    }

    /// The next number's lowest byte.
    pub(crate) fn next(&mut self) -> u8 {
        let back = self.state.get((self.at + 28) % 31).copied().unwrap_or_default();
        let Some(word) = self.state.get_mut(self.at) else { return 0 };
        *word = word.wrapping_add(back);
        let value = *word >> 1;
        self.at = (self.at + 1) % 31;
        value as u8
    }

    /// The first bytes after `srand(seed)`.
    pub(crate) fn bytes(seed: u32, count: usize) -> Vec<u8> {
        let mut random = Self::new(seed);
        (0..count).map(|_| random.next()).collect()
    }
}

/// The seed of this moment.
pub(crate) fn seed_now() -> u32 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as u32)
}

/// How far the peer's clock may be from ours for its seed to be found.
const CLOCK_S: u32 = 20;

/// The peer's buffer, found by a part of it, if it was filled at about this time.
pub(crate) fn find(around: u32, length: usize, at: usize, sample: &[u8]) -> Option<Vec<u8>> {
    let near = (0..=CLOCK_S).flat_map(|apart| [around.wrapping_sub(apart), around.wrapping_add(apart)]);
    for seed in near {
        let mut random = CRandom::new(seed);
        for _ in 0..at {
            random.next();
        }
        if sample.iter().all(|byte| random.next() == *byte) {
            return Some(CRandom::bytes(seed, length));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `srand(seed)` and `(char)rand()` give with glibc 2.36.
    #[test]
    fn it_is_what_the_c_library_gives() {
        assert_eq!(CRandom::bytes(1, 8), [0x67, 0xc6, 0x69, 0x73, 0x51, 0xff, 0x4a, 0xec]);
        let late = [0x37, 0x97, 0xb4, 0x27, 0x43, 0x35, 0x32, 0x89];
        assert_eq!(CRandom::bytes(1_763_766_000, 8), late);
        let beyond_31_bits = [0xb5, 0x46, 0x4b, 0x90, 0x5a, 0x80, 0x5e, 0x20];
        assert_eq!(CRandom::bytes(4_000_000_000, 8), beyond_31_bits);
    }

    #[test]
    fn a_seed_is_found_by_a_part_of_the_bytes() {
        let bytes = CRandom::bytes(1_763_766_000, 5000);
        let found = find(1_763_766_011, 5000, 4096, &bytes[4096..4160]);
        assert_eq!(found.as_deref(), Some(bytes.as_slice()));
        assert_eq!(find(1_763_766_100, 5000, 4096, &bytes[4096..4160]), None);
    }
}
