//! Which stores write results, and when the ones that bypass the caches pay.

use std::{fs, path::Path, sync::OnceLock};

/// How results are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stores {
    /// Through the caches: a line that is not there is read from memory before it is written, and what was written is
    /// near when it is read next.
    #[default]
    Cached,
    /// Past the caches ("non-temporal"), whole lines at a time: memory is not read before, which saves a third of the
    /// traffic of a copy, but the next reader finds the result in memory only. A destination that is the very bytes of
    /// a source is written through the caches all the same, as its lines are there already. So is everything on
    /// processors other than x86-64, and when there are fewer than 512 bytes.
    Streaming,
    /// As [`Stores::Streaming`], but through the caches to the destination of this place: that of whoever runs this, and
    /// reads it next.
    StreamingBut(usize),
    /// As [`Stores::Streaming`] to the destination of this place, and through the caches to the others.
    StreamingOnly(usize),
}

/// What is assumed of a processor that does not tell: the last level cache of current servers' core complexes.
const ASSUMED_BYTES: u64 = 32 << 20;

/// The most that counts of a last level cache: a larger one is a whole socket's, and a virtual machine that reports it shares it
/// with many. (Sums of two and four operands by two processors, streaming by not. One that reported 480 MiB: 1.00 of the time where
/// 128 MiB are touched, 0.85 at 256 MiB and 0.84 at 384. One that reported 260, five runs, where 128 MiB are touched: the first
/// twenty calls take 0.54 to 0.84 of the time, later ones of two operands 0.77 to 1.0 and of four 0.91 to 1.32; one run, where 64 are:
/// 1.28 and 1.04.)
const SHARED_BYTES: u64 = 96 << 20;

/// Below so many bytes in all it does not matter how others' results are written.
const LEAST_TO_OTHERS: u64 = 32 << 10;

/// What is assumed of the cache that a processor has for itself.
const ASSUMED_PRIVATE_BYTES: u64 = 1 << 20;

/// Where Linux describes the first processor's caches.
const CACHES: &str = "/sys/devices/system/cpu/cpu0/cache";

/// Whether [`Stores::Streaming`] moves a reduction's or copy's bytes faster than [`Stores::Cached`].
///
/// `total_bytes_touched` counts each distinct byte that the whole operation reads or writes, over all the pieces it is
/// cut into and all the threads that work on it: of an allreduce of `n` bytes over `p` ranks `2pn` out of place and
/// `pn` in place. `in_place` says that every destination is a source, where streaming never pays: each line is in the
/// cache already, and would have to leave it.
///
/// The first call reads the size of the last level cache from the system.
#[must_use]
pub fn streaming_pays(total_bytes_touched: u64, in_place: bool) -> bool {
    static CACHE: OnceLock<u64> = OnceLock::new();
    cfg!(target_arch = "x86_64")
        && !in_place
        && total_bytes_touched > *CACHE.get_or_init(|| usable(last_level(Path::new(CACHES))))
}

/// Whether [`Stores::StreamingBut`] moves results faster than [`Stores::Cached`] when `processors` work on an operation
/// for each other, each with memory of its own, which it touches before and after.
///
/// That is so while the whole operation's `total_bytes_touched` stay in the caches that processors have for themselves:
/// then a line of another one's memory is in its cache, and has to be fetched from there before it can be written
/// through this one's, only to be fetched back. (For two processors, 64 KiB and f32: 6.1 us through the caches, 2.6 past
/// them, and counting what touching the results costs afterwards 17.2 and 14.2; at 1 MiB they are even.) It is so too,
/// and for much more, where processors have no cache in common, which this does not know.
///
/// The first call reads the size of the second level cache from the system.
#[must_use]
pub fn streaming_to_others_pays(total_bytes_touched: u64, processors: u32) -> bool {
    static CACHE: OnceLock<u64> = OnceLock::new();
    let private = || *CACHE.get_or_init(|| second_level(Path::new(CACHES)).unwrap_or(ASSUMED_PRIVATE_BYTES));
    cfg!(target_arch = "x86_64")
        && processors > 1
        && streaming_to_others_matters(total_bytes_touched)
        && total_bytes_touched <= private().saturating_mul(u64::from(processors))
}

/// Whether an operation that touches so many bytes in all is large enough for [`Stores::StreamingBut`] to make a
/// difference worth a thought.
#[must_use]
pub const fn streaming_to_others_matters(total_bytes_touched: u64) -> bool {
    cfg!(target_arch = "x86_64") && total_bytes_touched >= LEAST_TO_OTHERS
}

/// Bytes of a last level cache that an operation can count on.
fn usable(last_level: Option<u64>) -> u64 {
    last_level.unwrap_or(ASSUMED_BYTES).min(SHARED_BYTES)
}

/// Bytes of the second level cache described in a folder.
fn second_level(folder: &Path) -> Option<u64> {
    let read = |entry: &fs::DirEntry, name| fs::read_to_string(entry.path().join(name)).ok();
    let mut entries = fs::read_dir(folder).ok()?.flatten();
    let second = entries.find(|entry| read(entry, "level").is_some_and(|level| level.trim() == "2"))?;
    parse(&read(&second, "size")?)
}

/// Bytes of the largest cache described in a folder.
fn last_level(folder: &Path) -> Option<u64> {
    let entries = fs::read_dir(folder).ok()?;
    entries.flatten().filter_map(|entry| parse(&fs::read_to_string(entry.path().join("size")).ok()?)).max()
}

/// A size as the system writes it: `32768K`.
fn parse(size: &str) -> Option<u64> {
    let size = size.trim();
    let (digits, shift) = match size.as_bytes().last()? {
        b'K' => (&size[..size.len() - 1], 10),
        b'M' => (&size[..size.len() - 1], 20),
        _ => (size, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_the_system_writes_them() {
        assert_eq!(parse("32768K\n"), Some(32 << 20));
        assert_eq!(parse("260M"), Some(260 << 20));
        assert_eq!(parse("512"), Some(512));
        for wrong in ["", "K", "-1K", "0K", "99999999999999999999K", "18446744073709551615M", "\u{e4}K"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        assert_eq!(last_level(Path::new("/nonexistent")), None);
        assert_eq!(second_level(Path::new("/nonexistent")), None);
    }

    #[test]
    fn streaming_to_others_pays_within_the_private_caches_only() {
        let pays = cfg!(target_arch = "x86_64");
        assert_eq!(streaming_to_others_pays(256 << 10, 2), pays);
        for (bytes, processors) in [(256 << 10, 1), (1 << 10, 2), (1 << 40, 2)] {
            assert!(!streaming_to_others_pays(bytes, processors), "{bytes} {processors}");
        }
    }

    #[test]
    fn a_cache_counts_as_far_as_few_processors_can_use_it() {
        let mib = 1 << 20;
        for (told, counts) in [(None, 32 * mib), (Some(32 * mib), 32 * mib), (Some(480 * mib), 96 * mib)] {
            assert_eq!(usable(told), counts, "{told:?}");
        }
    }

    #[test]
    fn streaming_pays_beyond_the_last_level_cache_only() {
        assert!(!streaming_pays(64 << 10, false));
        assert!(!streaming_pays(1 << 40, true));
        assert_eq!(streaming_pays(1 << 40, false), cfg!(target_arch = "x86_64"));
    }
}
