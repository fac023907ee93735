//! What is pinned gives way to sends where this user may not lock memory for both. The limit is the process's, so that this test
//! has one of its own.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "the parts of a test")]

mod common;

use common::{IO_URING, Loopback, ZERO_COPY, counter, write_and_check};
use ringway_sim::conformance::{Fixture, Side};
use ringway_verbs::Access;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

/// Bytes that are written: less than any user may lock by default, which is 8 MiB.
const LENGTH: u64 = 4 << 20;

/// Binds this process to the limit on locked memory, as it would be without privileges.
fn obey_the_limit() {
    let mut own = capabilities(None).unwrap();
    own.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, own).unwrap();
}

fn limit(bytes: u64) {
    let limit = Rlimit { current: Some(bytes), maximum: getrlimit(Resource::Memlock).maximum };
    setrlimit(Resource::Memlock, limit).unwrap();
}

#[test]
fn what_is_pinned_gives_way_to_sends() {
    obey_the_limit();
    let (mut fixture, pair) = Fixture::<Loopback<ZERO_COPY, IO_URING>>::connected();
    let memory = Side::BOTH.map(|side| fixture.memory(side, LENGTH as usize, Access::ALL));
    let write = |fixture: &mut Fixture<_>, round| write_and_check(fixture, pair[0], &memory, (round, LENGTH));
    write(&mut fixture, 0);
    let pinned = counter(&mut fixture, "bytes_pinned");
    if pinned == 0 {
        eprintln!("NOT TESTED: the system pins nothing (an old kernel, or `ulimit -l`)");
        return;
    }
    assert_eq!(pinned, LENGTH);
    // Just enough for what is pinned.
    limit(LENGTH);
    let before = counter(&mut fixture, "bytes_copied_after_all");
    write(&mut fixture, 1);
    assert_eq!(counter(&mut fixture, "bytes_pinned"), 0);
    // It is the kernel that copies over loopback, as it does what is sent without a copy here.
    let lent = counter(&mut fixture, "bytes_copied_after_all") - before;
    assert!(lent > LENGTH / 2, "{lent} bytes");
    // Nor is anything pinned again.
    limit(2 * LENGTH);
    write(&mut fixture, 2);
    assert_eq!((counter(&mut fixture, "bytes_pinned"), counter(&mut fixture, "pinning_refused")), (0, 0));
}
