//! What a selective acknowledgement says, as its payload.
//!
//! ```text
//!  bytes 0..4   the PSN of the packet that came last (24 bits), for the round trip time
//!  bytes 4..8   how many packets came with a mark of congestion, modulo 2^32
//!  then         words of 64 bits: bit i of all of them says whether the packet i after the expected one is here
//! ```
//! All in network byte order; words at the end that are zero are left out. The packet's own PSN is the one before the
//! expected.

use ringway_wire::Psn;

/// Words of bits.
pub(crate) const WORDS: usize = 8;
/// Bytes before the words.
const FIXED: usize = 8;

/// What the receiver of requests has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Report {
    /// The packet that came last.
    pub(crate) latest: Psn,
    /// Packets that came with a mark.
    pub(crate) marked: u32,
    /// Of the packets from the expected one on, which are here.
    pub(crate) present: [u64; WORDS],
}

impl Report {
    /// The most bytes of one.
    pub(crate) const LENGTH_MAX: usize = FIXED + WORDS * 8;

    /// How many bytes it has.
    pub(crate) const fn length(&self) -> usize {
        let mut words = WORDS;
        while words > 0 && self.present[words - 1] == 0 {
            words -= 1;
        }
        FIXED + words * 8
    }

    /// Its bytes, of which [`Report::length`] count.
    pub(crate) fn to_bytes(self) -> [u8; Self::LENGTH_MAX] {
        let mut bytes = [0; Self::LENGTH_MAX];
        let fields = [self.latest.value().to_be_bytes(), self.marked.to_be_bytes()];
        let words = self.present.map(u64::to_be_bytes);
        let from = fields.as_flattened().iter().chain(words.as_flattened());
        for (to, from) in bytes.iter_mut().zip(from) {
            *to = *from;
        }
        bytes
    }

    /// What these bytes say; `None` when they are no report.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let (latest, rest) = bytes.split_first_chunk::<4>()?;
        let (marked, words) = rest.split_first_chunk::<4>()?;
        let (words, odd) = words.as_chunks::<8>();
        if !odd.is_empty() || words.len() > WORDS {
            return None;
        }
        let mut present = [0; WORDS];
        for (to, from) in present.iter_mut().zip(words) {
            *to = u64::from_be_bytes(*from);
        }
        let latest = Psn::new(u32::from_be_bytes(*latest));
        Some(Self { latest, marked: u32::from_be_bytes(*marked), present })
    }

    /// The packets that are here, as distances from the expected one.
    pub(crate) fn distances(&self) -> impl Iterator<Item = u32> + '_ {
        self.present.iter().zip(0_u32..).flat_map(|(word, index)| {
            let mut rest = *word;
            core::iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros())?;
                rest &= rest - 1;
                Some(index * 64 + bit)
            })
        })
    }

    /// The packet this far after the expected one is here.
    pub(crate) fn note(&mut self, distance: u32) {
        if let Some(word) = self.present.get_mut((distance / 64) as usize) {
            *word |= 1 << (distance % 64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_survives_the_way_and_is_no_longer_than_needed() {
        let mut report = Report { latest: Psn::new(0xff_fffe), marked: 7, present: [0; WORDS] };
        assert_eq!(report.length(), 8);
        for distance in [1, 63, 64, 130] {
            report.note(distance);
        }
        report.note(512);
        assert_eq!(report.length(), 8 + 3 * 8);
        let bytes = report.to_bytes();
        assert_eq!(Report::parse(&bytes[..report.length()]), Some(report));
        assert!(report.distances().eq([1, 63, 64, 130]));
    }

    #[test]
    fn what_is_no_report_is_refused() {
        assert_eq!(Report::parse(&[0; 7]), None);
        assert_eq!(Report::parse(&[0; 9]), None);
        assert_eq!(Report::parse(&[0; Report::LENGTH_MAX + 8]), None);
    }
}
