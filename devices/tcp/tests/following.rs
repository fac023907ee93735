//! Messages that follow each other: what they cost besides their bytes.
#![forbid(unsafe_code)]

mod common;

use common::{EPOLL, IO_URING, Loopback};
use ringway_sim::conformance::{Fixture, Harness as _, Side, request};
use ringway_tcp::frame::HEADER_LENGTH;
use ringway_verbs::{Access, Completion, CompletionKind, Device as _, Operation};

const MESSAGES: u64 = 32;
/// More than is read ahead at a time, and little enough that several are under way.
const LENGTH: u64 = 16 << 10;
/// What is read ahead of a long message: its header, and as much as a short one would have.
const AHEAD: u64 = 1024;

/// Counts of one name by both devices.
fn count<const DRIVER: usize>(fixture: &mut Fixture<Loopback<DRIVER, DRIVER>>, wanted: &str) -> [u64; 2] {
    Side::BOTH.map(|side| {
        let mut count = 0;
        fixture.device(side).for_each_counter(&mut |name, value| {
            if name == wanted {
                count = value;
            }
        });
        count
    })
}

fn follow<const DRIVER: usize>() {
    let (mut fixture, [left, right]) = Fixture::<Loopback<DRIVER, DRIVER>>::connected();
    let [near, far] = Side::BOTH.map(|side| fixture.memory(side, LENGTH as usize, Access::ALL));
    (0..MESSAGES).for_each(|id| fixture.receive(Side::Right, right, id, far.slice(0, 0)));
    let before = ["bytes_sent", "bytes_copied"].map(|name| count(&mut fixture, name)[1]);
    for id in 0..MESSAGES {
        let write = Operation::WriteWithImmediate { remote: far.remote(0), immediate: 0 };
        fixture.send(Side::Left, left, &request(id, write, &[near.slice(0, LENGTH)]));
    }
    // However slow this is, there is no time to wait for.
    let now = fixture.harness.now();
    let [mut sent, mut arrived] = [0; 2];
    while sent < MESSAGES {
        for side in Side::BOTH {
            assert!(fixture.harness.pause(false), "a test that takes too long");
            let mut completions = [Completion::EMPTY; 16];
            let taken = fixture.device(side).poll(now, &mut completions);
            for completion in completions.iter().take(taken) {
                *(if completion.kind == CompletionKind::Send { &mut sent } else { &mut arrived }) += 1;
            }
        }
    }
    assert_eq!(arrived, MESSAGES);
    let after = ["bytes_sent", "bytes_copied"].map(|name| count(&mut fixture, name)[1]);
    let acknowledgements = (after[0] - before[0]) / HEADER_LENGTH as u64;
    assert!(acknowledgements <= MESSAGES / 2, "{acknowledgements} acknowledgements of {MESSAGES} messages");
    // Of the first as much was read ahead as of messages that may be short.
    let copied = after[1] - before[1];
    assert!(copied <= 8192 + MESSAGES * AHEAD, "{copied} bytes were copied");
}

#[test]
fn are_acknowledged_together_and_read_into_their_places() {
    follow::<IO_URING>();
    follow::<EPOLL>();
}
