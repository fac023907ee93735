//! Sends without a copy: what arrives is what was there, nothing stays pinned, and where it does not pay it is given up.
#![forbid(unsafe_code)]

mod common;

use common::{IO_URING, Loopback, ZERO_COPY, counter, write_and_check};
use ringway_sim::conformance::{Fixture, Side, request};
use ringway_verbs::{Access, Device, Operation, Status};

/// So much that pieces of a message lie in several parts of what is pinned.
const LENGTH: u64 = 40 << 20;

#[test]
fn what_is_sent_out_of_pinned_memory_arrives_and_is_unpinned_with_its_region() {
    let (mut fixture, pair) = Fixture::<Loopback<ZERO_COPY, IO_URING>>::connected();
    let memory = Side::BOTH.map(|side| fixture.memory(side, LENGTH as usize, Access::ALL));
    for round in 0..2 {
        write_and_check(&mut fixture, pair[0], &memory, (round, LENGTH));
    }
    // Where no memory may be locked, or an old kernel would not unpin it in time, it goes without.
    let pinned = counter(&mut fixture, "bytes_pinned");
    if pinned == 0 {
        eprintln!("NOT TESTED: the system pins nothing (an old kernel, or `ulimit -l`)");
    }
    let refused = counter(&mut fixture, "pinning_refused");
    assert!(pinned == 0 || pinned == LENGTH || refused > 0, "{pinned} bytes");
    fixture.device(Side::Left).deregister(memory[0].keys.local).expect("nobody uses it");
    assert_eq!(counter(&mut fixture, "bytes_pinned"), 0);
}

#[test]
fn over_loopback_where_the_kernel_copies_it_is_given_up() {
    let (mut fixture, pair) = Fixture::<Loopback<IO_URING, IO_URING>>::connected();
    let length = LENGTH / 2;
    let [from, to] = Side::BOTH.map(|side| fixture.memory(side, length as usize, Access::ALL));
    let write = request(0, Operation::Write { remote: to.remote(0) }, &[from.slice(0, length)]);
    fixture.send(Side::Left, pair[0], &write);
    fixture.expect(Side::Left, 0, Status::Success);
    let (copied, not) =
        (counter(&mut fixture, "bytes_copied_after_all"), counter(&mut fixture, "bytes_sent_without_copy"));
    if copied == 0 {
        eprintln!("NOT TESTED: the system sends nothing without a copy (an old kernel, or `ulimit -l`)");
    }
    assert!(copied < length / 10 && not == 0, "{copied} bytes copied after all, {not} not");
    assert_eq!(counter(&mut fixture, "bytes_pinned"), 0);
}
