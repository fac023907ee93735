//! Huge pages: where the host gives them, everyone who maps a region has them, and no file is larger for it.
#![expect(clippy::expect_used, reason = "helpers of tests may panic")]

use std::{
    fs::File,
    os::fd::{AsFd, BorrowedFd},
};

use ringway_mem::{MemFd, PageKind, Pool, admit};
use rustix::fs::{FallocateFlags, fallocate};

const HUGE: u64 = 2 << 20;

/// Bytes of memory behind a descriptor.
fn populated(fd: BorrowedFd<'_>) -> u64 {
    u64::try_from(rustix::fs::fstat(fd).expect("stat").st_blocks).expect("positive") * 512
}

/// Whether this host gives huge pages for shared memory: by policy, or by collapsing (Linux 6.1) where it has any
/// free. Asked by making one in the plainest way, not by the code under test.
fn gives_huge_pages() -> bool {
    let policy = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let policy = std::fs::read_to_string(policy).unwrap_or_default();
    if policy.is_empty() || policy.contains("[deny]") {
        return false;
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse::<u32>().ok());
    let recent = (parts.next(), parts.next()) >= (Some(6), Some(1));
    let chosen = ["[always]", "[advise]", "[force]"].iter().any(|choice| policy.contains(choice));
    let free = std::fs::read_to_string("/proc/buddyinfo").unwrap_or_default();
    // The last two columns count free runs of 2 MiB and 4 MiB.
    let runs = free.lines().flat_map(|line| line.split_whitespace().rev().take(2).collect::<Vec<_>>());
    (recent || chosen) && runs.filter_map(|count| count.parse::<u64>().ok()).sum::<u64>() >= 64
}

#[test]
fn a_region_lies_in_huge_pages_for_everyone() {
    let bytes = 8 * HUGE + 12_288;
    let (pool, fd) = Pool::new("huge", bytes).expect("pool");
    assert_eq!(populated(fd.as_fd()), bytes, "neither holes nor more than was asked for");
    let region = admit(fd, bytes).expect("admitted");
    region.mapping.populate().expect("populate");
    if !gives_huge_pages() {
        eprintln!("this host gives no huge pages for shared memory: not checked");
        return;
    }
    assert_eq!(pool.page_kind(), PageKind::Huge, "the owner");
    assert_eq!(region.mapping.page_kind(), PageKind::Huge, "who was given it");
}

#[test]
fn a_small_region_lies_in_ordinary_pages() {
    let (pool, fd) = Pool::new("small", HUGE - 4096).expect("pool");
    assert_eq!(pool.page_kind(), PageKind::Base);
    assert_eq!(populated(fd.as_fd()), HUGE - 4096);
}

#[test]
fn large_mappings_see_the_same_bytes_to_the_last_one() {
    let bytes = 3 * HUGE + 4096;
    let (file, ours) = MemFd::region("r", bytes).expect("region");
    let region = admit(file.as_fd().try_clone_to_owned().expect("a descriptor"), bytes).expect("admitted");
    assert_eq!(region.mapping.length() as u64, bytes);
    assert!(region.mapping.window(bytes, 1).is_none());
    for at in [0, 1, HUGE - 1, HUGE, 2 * HUGE + 77, 3 * HUGE, bytes - 1] {
        let mut seen = [1];
        region.mapping.window(at, 1).expect("inside").read(&mut seen);
        assert_eq!(seen, [0], "new memory is zeroed");
        ours.window(at, 1).expect("inside").write(b"x");
        region.mapping.window(at, 1).expect("inside").read(&mut seen);
        assert_eq!(&seen, b"x", "at {at}");
    }
    assert!(!region.mapping.faulted());
}

#[test]
fn a_hole_in_a_huge_page_is_a_hole() {
    let (file, ours) = MemFd::region("r", 2 * HUGE).expect("region");
    ours.window(HUGE - 1, 2).expect("inside").write(b"ab");
    let region = admit(file.as_fd().try_clone_to_owned().expect("a descriptor"), 2 * HUGE).expect("admitted");
    fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, HUGE, 4096).expect("punch");
    let mut seen = [1; 2];
    region.mapping.window(HUGE - 1, 2).expect("inside").read(&mut seen);
    assert_eq!(&seen, b"a\0");
}

/// A file that is not memory cannot be collapsed, and is mapped all the same.
#[test]
fn any_file_may_be_mapped() {
    use ringway_mem::{Mapping, Protection};
    let file = File::open(std::env::current_exe().expect("own path")).expect("own program");
    let length = usize::try_from(file.metadata().expect("size").len()).expect("small");
    let mapping = Mapping::shared(file.as_fd(), length, Protection::Read).expect("map");
    let mut magic = [0; 4];
    mapping.window(0, 4).expect("inside").read(&mut magic);
    assert_eq!(&magic, b"\x7fELF");
}
