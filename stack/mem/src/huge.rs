//! Huge pages under shared memory.
//!
//! A walk over tens of megabytes of 4 KiB pages misses the processor's address translation at every page, and its
//! prefetchers stop there; over pages of 2 MiB neither happens. A memory file gets them where the host allows: at once,
//! when `/sys/kernel/mm/transparent_hugepage/shmem_enabled` is `advise` or `always`, or else by asking the kernel to
//! collapse the range (`MADV_COLLAPSE`, Linux 6.1), which that setting does not govern. Whoever maps the file then has
//! its huge pages as such if the mapping begins at a multiple of their size, which [`Mapping`](crate::Mapping) sees to.
//! Only whole huge pages are asked for, so that a file never has more memory than its size. A kernel that gives none is
//! no error.

use std::{
    fs,
    io::{BufRead, BufReader},
};

use rustix::mm::Advice;

/// Bytes of a huge page, on processors with 4 KiB pages. With other ones nothing is collapsed.
pub(crate) const HUGE: usize = 2 << 20;

/// What pages memory lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageKind {
    /// All in the processor's ordinary pages, 4 KiB mostly.
    Base,
    /// Some in huge pages, some that could be are not.
    Mixed,
    /// Every aligned 2 MiB of it is one huge page.
    Huge,
}

impl PageKind {
    /// From the bytes that huge pages map, of a range's bytes.
    pub(crate) const fn of(huge: usize, length: usize) -> Self {
        match huge {
            0 => Self::Base,
            _ if huge >= length - length % HUGE => Self::Huge,
            _ => Self::Mixed,
        }
    }
}

/// Asks for huge pages from `base` on, a multiple of [`HUGE`], for a range that the caller has mapped for writing and
/// that has at least one page in each `HUGE` bytes. `length` is a multiple of `HUGE`.
pub(crate) fn collapse(base: *mut u8, length: usize) {
    // Neither rustix nor older C libraries name it.
    const MADV_COLLAPSE: libc::c_int = 25;
    // SAFETY: the advice changes no contents. Kernels that refuse leave the pages as they are.
    let _ = unsafe { libc::madvise(base.cast(), length, MADV_COLLAPSE) };
}

/// Lets the kernel use huge pages when it gives memory to this range of whole huge pages.
pub(crate) fn advise(base: *mut u8, length: usize) {
    // SAFETY: the advice changes no contents. Kernels without huge pages refuse it.
    let _ = unsafe { rustix::mm::madvise(base.cast(), length, Advice::LinuxHugepage) };
}

/// How many bytes of a range of this process huge pages map, by the kernel's word; none where it does not tell.
pub(crate) fn mapped(base: usize, length: usize) -> usize {
    let Ok(smaps) = fs::File::open("/proc/self/smaps") else { return 0 };
    count(BufReader::new(smaps), base, length)
}

fn count(smaps: impl BufRead, base: usize, length: usize) -> usize {
    let mut inside = false;
    let mut total: usize = 0;
    for line in smaps.lines().map_while(Result::ok) {
        let Some((first, rest)) = line.split_once(char::is_whitespace) else { continue };
        if let Some((start, end)) = first.split_once('-') {
            let bound = |text| usize::from_str_radix(text, 16).ok();
            inside = bound(start)
                .zip(bound(end))
                .is_some_and(|(start, end)| start >= base && end <= base.saturating_add(length));
        } else if inside && matches!(first, "ShmemPmdMapped:" | "AnonHugePages:") {
            let kib = rest.trim().trim_end_matches("kB").trim().parse::<usize>().unwrap_or(0);
            total = total.saturating_add(kib.saturating_mul(1024));
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_mappings_inside_the_range_are_counted() {
        let smaps = "7f0000200000-7f0000600000 rw-s 00000000 00:01 5 /memfd:x (deleted)\n\
                     Size:               4096 kB\nRss:                4096 kB\nAnonHugePages:         0 kB\n\
                     ShmemPmdMapped:     4096 kB\nVmFlags: rd wr sh mr mw me ms\n\
                     7f0000600000-7f0000601000 rw-s 00400000 00:01 5 /memfd:x (deleted)\n\
                     ShmemPmdMapped:        0 kB\n\
                     7f0000800000-7f0000a00000 rw-s 00000000 00:01 6 /memfd:y (deleted)\n\
                     ShmemPmdMapped:     2048 kB\n";
        let of = |base, length| count(smaps.as_bytes(), base, length);
        assert_eq!(of(0x7f00_0020_0000, 0x40_1000), 4 << 20);
        assert_eq!(of(0x7f00_0080_0000, 0x20_0000), 2 << 20);
        assert_eq!(of(0x7f00_0060_0000, 0x1000), 0);
        assert_eq!(count("nonsense\n-\nShmemPmdMapped: x kB".as_bytes(), 0, usize::MAX), 0);
    }

    #[test]
    fn kinds_count_whole_pages_only() {
        assert_eq!(PageKind::of(0, HUGE), PageKind::Base);
        assert_eq!(PageKind::of(HUGE, HUGE + 4096), PageKind::Huge);
        assert_eq!(PageKind::of(HUGE, 2 * HUGE), PageKind::Mixed);
    }
}
