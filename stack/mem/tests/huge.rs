//! Huge pages: where the host gives them, everyone who maps a region has them, and no file is larger for it.
#![expect(clippy::expect_used, reason = "helpers of tests may panic")]

use std::{
    fs::File,
    os::fd::{AsFd, BorrowedFd},
    process::Command,
};

use ringway_mem::{MemFd, PageKind, Pool, admit};
use rustix::fs::{FallocateFlags, fallocate};

const HUGE: u64 = 2 << 20;

/// Bytes of memory behind a descriptor.
fn populated(fd: BorrowedFd<'_>) -> u64 {
    u64::try_from(rustix::fs::fstat(fd).expect("stat").st_blocks).expect("positive") * 512
}

/// What this host does when asked for huge pages for shared memory.
#[derive(Debug, PartialEq, Eq)]
enum Host {
    Gives,
    /// It never does, by its policy.
    Refuses,
    /// It would, if it had enough memory in one piece.
    Fragmented,
}

/// Asked of the kernel's own files, not of the code under test: by policy, or by collapsing (Linux 6.1) where it has any
/// free.
fn host() -> Host {
    let policy = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let policy = std::fs::read_to_string(policy).unwrap_or_default();
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse::<u32>().ok());
    let collapses = (parts.next(), parts.next()) >= (Some(6), Some(1));
    let chosen = ["[always]", "[advise]", "[force]"].iter().any(|choice| policy.contains(choice));
    if policy.is_empty() || policy.contains("[deny]") || !(collapses || chosen) {
        return Host::Refuses;
    }
    let free = std::fs::read_to_string("/proc/buddyinfo").unwrap_or_default();
    // The last two columns count free runs of 2 MiB and 4 MiB.
    let runs = free.lines().flat_map(|line| line.split_whitespace().rev().take(2).collect::<Vec<_>>());
    let runs = runs.filter_map(|count| count.parse::<u64>().ok()).sum::<u64>();
    if runs >= 64 { Host::Gives } else { Host::Fragmented }
}

/// A pool of some huge pages and a rest, and what somebody sees who was given it: their kinds of pages. Both work, whatever
/// these are.
fn kinds_of_a_region() -> [PageKind; 2] {
    let bytes = 8 * HUGE + 12_288;
    let (pool, fd) = Pool::new("huge", bytes, &mut || true).expect("pool");
    assert_eq!(populated(fd.as_fd()), bytes, "neither holes nor more than was asked for");
    let region = admit(fd, bytes).expect("admitted");
    region.mapping.populate().expect("populate");
    for at in [0, HUGE - 1, 5 * HUGE, bytes - 1] {
        pool.window(at, 1).expect("inside").write(b"x");
        let mut seen = [0];
        region.mapping.window(at, 1).expect("inside").read(&mut seen);
        assert_eq!(&seen, b"x", "at {at}");
    }
    [pool.page_kind(), region.mapping.page_kind()]
}

#[test]
fn a_region_lies_in_huge_pages_for_everyone() {
    let kinds = kinds_of_a_region();
    match host() {
        Host::Gives => assert_eq!(kinds, [PageKind::Huge; 2], "the owner, and who was given it"),
        Host::Refuses => {
            eprintln!("NOT TESTED: this host refuses huge pages for shared memory, so that none were seen");
            assert_eq!(kinds, [PageKind::Base; 2], "and says so");
        }
        Host::Fragmented => {
            eprintln!("NOT TESTED: this host has too little memory in one piece; pages were {kinds:?}");
        }
    }
}

/// Plays a host that has no huge pages, which other tests of this process must not notice.
#[test]
#[ignore = "a role that another test starts"]
fn play_a_process_without_huge_pages() {
    rustix::thread::disable_transparent_huge_pages(true).expect("for this process");
    assert_eq!(kinds_of_a_region(), [PageKind::Base; 2]);
}

#[test]
fn without_huge_pages_a_region_works_and_is_said_to_lie_in_ordinary_ones() {
    let mut role = Command::new(std::env::current_exe().expect("this program"));
    role.args(["play_a_process_without_huge_pages", "--exact", "--ignored"]);
    let played = role.output().expect("this program runs again");
    let said = String::from_utf8_lossy(&played.stdout);
    assert!(played.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
fn a_small_region_lies_in_ordinary_pages() {
    let (pool, fd) = Pool::new("small", HUGE - 4096, &mut || true).expect("pool");
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
