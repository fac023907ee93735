//! Much at once.

use ringway_verbs::{Access, CompletionKind, Device, Operation, Status};

use super::fixture::{Fixture, pattern, request};
use super::{Harness, Side};

const SEND: Operation = Operation::Send { immediate: None };

/// 8 MiB each way at once, by SEND, WRITE and READ.
pub fn large_messages_in_both_directions<H: Harness>() {
    const LENGTH: u64 = 8 << 20;
    let (mut fixture, pair) = Fixture::<H>::connected();
    let from = Side::BOTH.map(|side| fixture.memory(side, LENGTH as usize, Access::ALL));
    let into = Side::BOTH.map(|side| fixture.memory(side, 3 * LENGTH as usize, Access::ALL));
    for side in Side::BOTH {
        let (own, other) = (side as usize, side.other() as usize);
        from[own].put(0, &pattern(own as u64 + 1, LENGTH));
        fixture.receive(side, pair[own], 9, into[own].slice(0, LENGTH));
        let slice = from[own].slice(0, LENGTH);
        let requests = [
            request(1, SEND, &[slice]),
            request(2, Operation::Write { remote: into[other].remote(LENGTH) }, &[slice]),
            request(
                3,
                Operation::Read { remote: from[other].remote(0) },
                &[into[own].slice(2 * LENGTH, LENGTH)],
            ),
        ];
        for request in &requests {
            fixture.send(side, pair[own], request);
        }
    }
    for side in Side::BOTH {
        let sent = fixture.take_of(side, pair[side as usize], true, 3);
        assert!(sent.iter().all(|completion| completion.status == Status::Success), "{sent:?}");
        let received = fixture.take_of(side, pair[side as usize], false, 1);
        assert_eq!((received[0].status, received[0].length), (Status::Success, LENGTH));
    }
    for side in Side::BOTH {
        let expected = pattern(side.other() as u64 + 1, LENGTH);
        for part in 0..3 {
            assert!(into[side as usize].get(part * LENGTH, LENGTH) == expected, "{side:?} part {part}");
        }
    }
}

/// Many messages through shallow queues, every one checked.
pub fn thousands_of_small_messages<H: Harness>() {
    const COUNT: u64 = 5000;
    let (mut fixture, [left, right]) = Fixture::<H>::connected();
    let from = fixture.memory(Side::Left, COUNT as usize * 16, Access::LOCAL);
    let into = fixture.memory(Side::Right, 64 * 16, Access::LOCAL);
    from.put(0, &pattern(8, COUNT * 16));
    let (mut posted, mut receives, mut received) = (0, 0, 0);
    let mut last_sent = None;
    while received < COUNT || last_sent != Some(COUNT - 1) {
        while receives < COUNT && receives < received + 64 {
            fixture.receive(Side::Right, right, receives, into.slice(receives % 64 * 16, 16));
            receives += 1;
        }
        while posted < COUNT {
            let operation = Operation::Send { immediate: Some(posted as u32) };
            let mut message = request(posted, operation, &[from.slice(posted * 16, posted % 17)]);
            message.signalled = posted % 8 == 7;
            if fixture.device(Side::Left).post_send(left, &message).is_err() {
                break;
            }
            posted += 1;
        }
        fixture.device(Side::Left).flush();
        assert!(fixture.turn(), "received {received} of {COUNT}");
        let count = fixture.seen(Side::Right).len();
        for completion in fixture.take(Side::Right, count) {
            let length = received % 17;
            assert_eq!((completion.id, completion.length), (received, length));
            assert_eq!(completion.immediate, Some(received as u32));
            assert_eq!(into.get(received % 64 * 16, length), from.get(received * 16, length));
            received += 1;
        }
        let count = fixture.seen(Side::Left).len();
        for completion in fixture.take(Side::Left, count) {
            assert_eq!(completion.status, Status::Success);
            assert_eq!(completion.id, last_sent.map_or(7, |last| last + 8));
            last_sent = Some(completion.id);
        }
    }
}

/// SEND, WRITE, WRITE_WITH_IMM and READ mixed, from both sides at once, through one pair.
pub fn both_directions_at_once_with_every_operation<H: Harness>() {
    const COUNT: u64 = 600;
    const SLOT: u64 = 20_000;
    let (mut fixture, pair) = Fixture::<H>::connected();
    let source = Side::BOTH.map(|side| fixture.memory(side, 1 << 16, Access::ALL));
    let target = Side::BOTH.map(|side| fixture.memory(side, 64 * SLOT as usize, Access::ALL));
    let landing = Side::BOTH.map(|side| fixture.memory(side, 64 * SLOT as usize, Access::ALL));
    for side in Side::BOTH {
        source[side as usize].put(0, &pattern(side as u64 + 20, 1 << 16));
    }
    let length = |id: u64| (id * 7919) % SLOT;
    let (mut posted, mut done, mut receives, mut received) = ([0; 2], [0; 2], [0; 2], [0; 2]);
    // Two of four operations consume a receive.
    while done != [COUNT; 2] || received != [COUNT / 2; 2] {
        for side in Side::BOTH {
            let (own, other) = (side as usize, side.other() as usize);
            while receives[own] < COUNT / 2 && receives[own] < received[own] + 32 {
                let local = landing[own].slice(receives[own] % 64 * SLOT, SLOT);
                fixture.receive(side, pair[own], receives[own], local);
                receives[own] += 1;
            }
            // Nor into bytes that the other side has not looked at: half of the operations are told to it.
            while posted[own] < COUNT.min(done[own] + 48).min(2 * received[other] + 60) {
                let id = posted[own];
                let (slot, size) = (id % 64 * SLOT, length(id));
                let bytes = source[own].slice(id % 1000, size);
                let post = match id % 4 {
                    0 => request(id, Operation::Send { immediate: None }, &[bytes]),
                    1 => request(id, Operation::Write { remote: target[other].remote(slot) }, &[bytes]),
                    2 => {
                        let remote = target[other].remote(slot);
                        request(id, Operation::WriteWithImmediate { remote, immediate: id as u32 }, &[bytes])
                    }
                    _ => {
                        let remote = source[other].remote(id % 1000);
                        request(id, Operation::Read { remote }, &[target[own].slice(slot, size)])
                    }
                };
                fixture.send(side, pair[own], &post);
                posted[own] += 1;
            }
        }
        assert!(fixture.turn(), "done {done:?}, received {received:?}");
        for side in Side::BOTH {
            let (own, other) = (side as usize, side.other() as usize);
            let count = fixture.seen(side).len();
            for completion in fixture.take(side, count) {
                assert_eq!(completion.status, Status::Success, "{completion:?}");
                if completion.kind == CompletionKind::Send {
                    assert_eq!(completion.id, done[own]);
                    let id = completion.id;
                    if id % 4 == 3 {
                        let got = target[own].get(id % 64 * SLOT, length(id));
                        assert!(got == source[other].get(id % 1000, length(id)), "READ {id}");
                    }
                    done[own] += 1;
                    continue;
                }
                assert_eq!(completion.id, received[own]);
                let id = completion.id / 2 * 4 + completion.id % 2 * 2;
                assert_eq!(completion.length, length(id));
                if id % 4 == 0 {
                    let got = landing[own].get(completion.id % 64 * SLOT, length(id));
                    assert!(got == source[other].get(id % 1000, length(id)), "SEND {id}");
                } else {
                    assert_eq!(completion.immediate, Some(id as u32));
                    let got = target[own].get(id % 64 * SLOT, length(id));
                    assert!(got == source[other].get(id % 1000, length(id)), "WRITE_WITH_IMM {id}");
                }
                received[own] += 1;
            }
        }
    }
}

/// Many queue pairs at once, each with its own bytes.
pub fn many_queue_pairs<H: Harness>() {
    const PAIRS: u64 = 100;
    let mut fixture = Fixture::<H>::default();
    let from = fixture.memory(Side::Left, 1 << 16, Access::LOCAL);
    let into = fixture.memory(Side::Right, 1 << 17, Access::LOCAL);
    from.put(0, &pattern(6, 1 << 16));
    let pairs: Vec<_> = (0..PAIRS)
        .map(|_| {
            let pair = fixture.pair(4);
            fixture.start_connect(pair);
            pair
        })
        .collect();
    for (id, [left, right]) in (0..).zip(&pairs) {
        fixture.receive(Side::Right, *right, id, into.slice(id * 1000, 1000));
        fixture.send(Side::Left, *left, &request(id, SEND, &[from.slice(id * 100, 1000)]));
    }
    for completion in fixture.take(Side::Right, PAIRS as usize) {
        let id = completion.id;
        assert_eq!((completion.status, completion.length), (Status::Success, 1000));
        assert_eq!(completion.queue_pair, pairs[id as usize][1]);
        assert_eq!(into.get(id * 1000, 1000), from.get(id * 100, 1000));
    }
    for completion in fixture.take(Side::Left, PAIRS as usize) {
        assert_eq!(completion.status, Status::Success);
        assert_eq!(completion.queue_pair, pairs[completion.id as usize][0]);
    }
}
