//! A client that takes pages away: the daemon reads zeroes, notices, and lives on.
#![expect(clippy::expect_used, reason = "helpers of tests may panic")]

use std::{
    os::{fd::AsFd, unix::process::ExitStatusExt},
    process::Command,
};

use ringway_mem::{Mapping, MemFd, Protection, admit};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};

/// Set in the child that is to die.
const CHILD: &str = "RINGWAY_TEST_FAULT_OUTSIDE";

fn page() -> u64 {
    rustix::param::page_size() as u64
}

fn read(mapping: &Mapping, offset: u64) -> u8 {
    let mut byte = [1];
    mapping.window(offset, 1).expect("inside").read(&mut byte);
    byte[0]
}

/// A file that ends early: what is mapped beyond is missing.
fn short_file(pages: u64, kept: u64) -> std::os::fd::OwnedFd {
    let fd = memfd_create("short", MemfdFlags::CLOEXEC).expect("memfd");
    ftruncate(&fd, pages * page()).expect("size");
    rustix::io::pwrite(&fd, b"kept", 0).expect("write");
    ftruncate(&fd, kept * page()).expect("shrink");
    fd
}

#[test]
fn missing_pages_read_as_zeroes_and_are_noticed() {
    let fd = short_file(4, 1);
    let length = usize::try_from(4 * page()).expect("small");
    let mapping = Mapping::foreign(fd.as_fd(), length, Protection::ReadWrite).expect("map");
    let other = Mapping::foreign(fd.as_fd(), length, Protection::Read).expect("map");
    assert_eq!(read(&mapping, 0), b'k');
    assert!(!mapping.faulted());
    assert_eq!(read(&mapping, page() + 17), 0);
    assert!(mapping.faulted());
    assert_eq!(read(&mapping, 0), b'k', "only the missing page is covered");
    assert_eq!(
        mapping.window(3 * page() - 1, 2).expect("inside").write(b"xy"),
        2,
        "a write across two pages"
    );
    assert_eq!(read(&mapping, 3 * page()), b'y');
    assert!(!other.faulted(), "the other mapping was not touched");
    assert_eq!(read(&other, 2 * page()), 0);
    assert!(other.faulted());
    drop((mapping, other));
    let fresh = Mapping::foreign(fd.as_fd(), length, Protection::Read).expect("map");
    assert!(!fresh.faulted(), "a slot that is used again starts clean");
}

#[test]
fn holes_punched_after_admission_read_as_zeroes() {
    let (file, theirs) = MemFd::region("r", 4 * page()).expect("create");
    theirs.window(page(), 1).expect("inside").write(b"a");
    let ours = file.as_fd().try_clone_to_owned().expect("a descriptor");
    let region = admit(ours, 4 * page()).expect("admit");
    assert_eq!(read(&region.mapping, page()), b'a');
    fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, page(), page()).expect("punch");
    assert_eq!(read(&region.mapping, page()), 0);
    // A hole inside a memory file's size gets a new page, so nothing faulted unless memory ran out.
    assert_eq!(region.mapping.length() as u64, 4 * page());
}

#[test]
fn many_threads_may_fault_at_once() {
    let fd = short_file(64, 0);
    let length = usize::try_from(64 * page()).expect("small");
    let mapping = Mapping::foreign(fd.as_fd(), length, Protection::ReadWrite).expect("map");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for index in 0..64 {
                    assert_eq!(read(&mapping, index * page()), 0);
                }
            });
        }
    });
    assert!(mapping.faulted());
}

#[test]
fn a_fault_elsewhere_still_ends_the_process() {
    if std::env::var_os(CHILD).is_some() {
        let fd = short_file(2, 1);
        let length = usize::try_from(2 * page()).expect("small");
        let handled = Mapping::foreign(fd.as_fd(), length, Protection::Read).expect("map");
        assert_eq!(read(&handled, page()), 0);
        let ours = Mapping::shared(fd.as_fd(), length, Protection::Read).expect("map");
        read(&ours, page());
        unreachable!("the fault is ours and ends the process");
    }
    let status = Command::new(std::env::current_exe().expect("path"))
        .args(["--exact", "a_fault_elsewhere_still_ends_the_process", "--nocapture"])
        .env(CHILD, "1")
        .status()
        .expect("run");
    assert_eq!(status.signal(), Some(7), "killed by SIGBUS, not {status}");
}
