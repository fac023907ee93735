//! Long messages over several connections arrive as they were, whatever their length, and one after the other.
#![forbid(unsafe_code)]

mod common;

use common::{EPOLL, IO_URING, Loopback, STRIPED, STRIPED_EPOLL, STRIPED_ZERO_COPY};
use ringway_sim::conformance::{Fixture, Side, pattern, request};
use ringway_verbs::{Access, Operation, Status};

/// Around where payload is divided into one, two and three parts, and where a part takes several system calls.
const LENGTHS: [u64; 9] = [1, 65_535, 65_536, 65_537, 131_072, 196_607, 196_608, 1 << 20, (5 << 20) + 7];
/// Room for all of them.
const ROOM: u64 = 16 << 20;

fn arrive<const LEFT: usize, const RIGHT: usize>() {
    let (mut fixture, [left, right]) = Fixture::<Loopback<LEFT, RIGHT>>::connected();
    let memory = Side::BOTH.map(|side| fixture.memory(side, ROOM as usize, Access::ALL));
    let [near, far] = &memory;
    let mut id = 0;
    for length in LENGTHS {
        // A WRITE there, and a READ back into two pieces, which cut it elsewhere than the connections do.
        id += 4;
        let bytes = pattern(id, length);
        near.put(0, &bytes);
        let write = Operation::Write { remote: far.remote(1) };
        fixture.send(Side::Left, left, &request(id, write, &[near.slice(0, length)]));
        let read = Operation::Read { remote: far.remote(1) };
        let pieces = [near.slice(0, length / 3), near.slice(length / 3 + 5, length - length / 3)];
        fixture.send(Side::Left, left, &request(id + 1, read, &pieces));
        fixture.expect(Side::Left, id, Status::Success);
        fixture.expect(Side::Left, id + 1, Status::Success);
        assert!(far.get(1, length) == bytes, "a WRITE of {length} bytes");
        let read = [near.get(0, length / 3), near.get(length / 3 + 5, length - length / 3)].concat();
        assert!(read == bytes, "a READ of {length} bytes");
        // And a SEND and a WRITE with a notice the other way, told of when all of it is there.
        let there = far.slice(1, length);
        let noticed = Operation::WriteWithImmediate { remote: near.remote(length), immediate: 5 };
        fixture.receive(Side::Left, left, id, near.slice(0, length));
        fixture.receive(Side::Left, left, id + 1, near.slice(0, 0));
        fixture.send(Side::Right, right, &request(id + 2, Operation::Send { immediate: None }, &[there]));
        fixture.send(Side::Right, right, &request(id + 3, noticed, &[there]));
        fixture.expect(Side::Left, id, Status::Success);
        assert!(near.get(0, length) == bytes, "a SEND of {length} bytes");
        fixture.expect(Side::Left, id + 1, Status::Success);
        assert!(near.get(length, length) == bytes, "a WRITE of {length} bytes with a notice");
        fixture.expect(Side::Right, id + 2, Status::Success);
        fixture.expect(Side::Right, id + 3, Status::Success);
    }
}

#[test]
fn over_io_uring() {
    arrive::<STRIPED, STRIPED>();
}

#[test]
fn over_epoll() {
    arrive::<STRIPED_EPOLL, STRIPED_EPOLL>();
}

#[test]
fn between_both() {
    arrive::<STRIPED, EPOLL>();
    arrive::<STRIPED_EPOLL, IO_URING>();
}

#[test]
fn without_a_copy() {
    arrive::<STRIPED_ZERO_COPY, STRIPED_ZERO_COPY>();
}
