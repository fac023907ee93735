//! Order of completions, of bytes and of waiting messages.

use ringway_verbs::{Access, CompletionKind, Device, Operation, Status};

use super::fixture::{Fixture, pattern, request};
use super::{Harness, Side};

const SEND: Operation = Operation::Send { immediate: None };

/// Completions of each queue come in post order.
pub fn completes_each_queue_in_post_order<H: Harness>() {
    let (mut fixture, [left, right]) = Fixture::<H>::connected();
    let from = fixture.memory(Side::Left, 4096, Access::LOCAL);
    let into = fixture.memory(Side::Right, 8192, Access::ALL);
    for id in 0..20 {
        fixture.receive(Side::Right, right, id, into.slice(id * 64, 64));
    }
    for id in 0..60 {
        let operation = match id % 3 {
            0 => SEND,
            1 => Operation::Write { remote: into.remote(4096) },
            _ => Operation::Read { remote: into.remote(6000) },
        };
        fixture.send(Side::Left, left, &request(id, operation, &[from.slice(0, 1 + id)]));
    }
    let sent = fixture.take(Side::Left, 60);
    assert!(sent.iter().map(|completion| completion.id).eq(0..60), "{sent:?}");
    let received = fixture.take(Side::Right, 20);
    assert!(received.iter().map(|completion| completion.id).eq(0..20), "{received:?}");
    fixture.expect_silence();
}

/// When a receive completes, its bytes are there.
pub fn bytes_are_in_place_before_the_completion<H: Harness>() {
    let (mut fixture, [left, right]) = Fixture::<H>::connected();
    let from = fixture.memory(Side::Left, 1 << 16, Access::LOCAL);
    let into = fixture.memory(Side::Right, 1 << 16, Access::LOCAL);
    for round in 0..50 {
        let length = 1 + (round * 1297) % 60_000;
        let bytes = pattern(round, length);
        from.put(0, &bytes);
        fixture.receive(Side::Right, right, round, into.slice(0, 1 << 16));
        fixture.send(Side::Left, left, &request(round, SEND, &[from.slice(0, length)]));
        let completion = fixture.expect(Side::Right, round, Status::Success);
        assert_eq!(completion.length, length);
        assert_eq!(into.get(0, length), bytes);
        fixture.expect(Side::Left, round, Status::Success);
    }
}

/// When a receive completes, what earlier WRITEs brought is there as well.
pub fn bytes_written_earlier_are_in_place_before_a_later_receive<H: Harness>() {
    let (mut fixture, [left, right]) = Fixture::<H>::connected();
    let from = fixture.memory(Side::Left, 1 << 18, Access::LOCAL);
    let into = fixture.memory(Side::Right, 1 << 18, Access::ALL);
    for round in 0..10 {
        let bytes = pattern(round, 1 << 18);
        from.put(0, &bytes);
        fixture.receive(Side::Right, right, round, into.slice(0, 0));
        for part in 0..4 {
            let operation = Operation::Write { remote: into.remote(part << 16) };
            let mut write = request(part, operation, &[from.slice(part << 16, 1 << 16)]);
            write.signalled = false;
            fixture.post(Side::Left, left, &write);
        }
        fixture.send(Side::Left, left, &request(round, SEND, &[]));
        fixture.expect(Side::Right, round, Status::Success);
        assert_eq!(into.get(0, 1 << 18), bytes);
        fixture.expect(Side::Left, round, Status::Success);
    }
}

/// A signalled completion says that everything before it is done.
pub fn a_signalled_completion_implies_all_earlier_ones<H: Harness>() {
    let (mut fixture, [left, _]) = Fixture::<H>::connected();
    let local = fixture.memory(Side::Left, 1 << 20, Access::LOCAL);
    let remote = fixture.memory(Side::Right, 1 << 20, Access::ALL);
    let bytes = pattern(7, 1 << 20);
    remote.put(0, &bytes);
    for part in 0..16 {
        let operation = Operation::Read { remote: remote.remote(part << 16) };
        let mut read = request(part, operation, &[local.slice(part << 16, 1 << 16)]);
        read.signalled = part == 15;
        fixture.send(Side::Left, left, &read);
    }
    fixture.expect(Side::Left, 15, Status::Success);
    assert_eq!(local.get(0, 1 << 20), bytes);
    fixture.expect_silence();
}

/// A request that is not signalled completes only when it fails.
pub fn unsignalled_requests_are_silent<H: Harness>() {
    let (mut fixture, [left, _]) = Fixture::<H>::connected();
    let local = fixture.memory(Side::Left, 4096, Access::LOCAL);
    let remote = fixture.memory(Side::Right, 4096, Access::ALL);
    for id in 0..500 {
        let mut write = request(id, Operation::Write { remote: remote.remote(0) }, &[local.slice(0, 64)]);
        write.signalled = false;
        // Their slots come back without any completion being taken.
        fixture.until("the queue takes another request", |fixture| {
            fixture.turn();
            fixture.device(Side::Left).post_send(left, &write).is_ok()
        });
        fixture.device(Side::Left).flush();
    }
    fixture.expect_silence();
}

/// A SEND for which nothing is posted waits, and what follows it waits as well.
pub fn a_send_without_a_receive_waits<H: Harness>() {
    let (mut fixture, [left, right]) = Fixture::<H>::connected();
    let from = fixture.memory(Side::Left, 1 << 17, Access::LOCAL);
    let into = fixture.memory(Side::Right, 1 << 17, Access::LOCAL);
    let bytes = pattern(3, 1 << 17);
    from.put(0, &bytes);
    for (id, length) in [(1, 1 << 17), (2, 100), (3, 0)] {
        fixture.send(Side::Left, left, &request(id, SEND, &[from.slice(0, length)]));
    }
    fixture.expect_silence();
    for (id, length) in [(1, 1 << 17), (2, 100), (3, 0)] {
        fixture.receive(Side::Right, right, id, into.slice(0, 1 << 17));
        assert_eq!(fixture.expect(Side::Right, id, Status::Success).length, length);
        assert_eq!(into.get(0, length), pattern(3, length));
        fixture.expect(Side::Left, id, Status::Success);
    }
}

/// The same for WRITE_WITH_IMM.
pub fn a_write_with_immediate_without_a_receive_waits<H: Harness>() {
    let (mut fixture, [left, right]) = Fixture::<H>::connected();
    let from = fixture.memory(Side::Left, 4096, Access::LOCAL);
    let into = fixture.memory(Side::Right, 4096, Access::ALL);
    from.put(0, &pattern(3, 4096));
    let operation = Operation::WriteWithImmediate { remote: into.remote(0), immediate: 77 };
    fixture.send(Side::Left, left, &request(1, operation, &[from.slice(0, 4096)]));
    fixture.expect_silence();
    fixture.receive(Side::Right, right, 9, into.slice(0, 0));
    let completion = fixture.expect(Side::Right, 9, Status::Success);
    assert_eq!((completion.kind, completion.immediate), (CompletionKind::ReceiveWrite, Some(77)));
    assert_eq!(into.get(0, 4096), pattern(3, 4096));
    fixture.expect(Side::Left, 1, Status::Success);
}

/// Other queue pairs of the same devices are not held back.
pub fn a_waiting_message_holds_back_only_its_own_queue_pair<H: Harness>() {
    let (mut fixture, [held, held_right]) = Fixture::<H>::connected();
    let [free, free_right] = fixture.connect(8);
    let from = fixture.memory(Side::Left, 4096, Access::LOCAL);
    let into = fixture.memory(Side::Right, 4096, Access::LOCAL);
    fixture.send(Side::Left, held, &request(1, SEND, &[from.slice(0, 4096)]));
    fixture.receive(Side::Right, free_right, 2, into.slice(0, 100));
    fixture.send(Side::Left, free, &request(2, SEND, &[from.slice(0, 100)]));
    assert_eq!(fixture.expect(Side::Right, 2, Status::Success).queue_pair, free_right);
    assert_eq!(fixture.expect(Side::Left, 2, Status::Success).queue_pair, free);
    fixture.receive(Side::Right, held_right, 1, into.slice(0, 4096));
    fixture.expect(Side::Right, 1, Status::Success);
    fixture.expect(Side::Left, 1, Status::Success);
}

/// Both sides have a message waiting for a receive of the other: each is freed by its own receive.
pub fn both_sides_may_wait_for_receives_at_once<H: Harness>() {
    let (mut fixture, [left, right]) = Fixture::<H>::connected();
    let pairs = [(Side::Left, left), (Side::Right, right)];
    let memory = Side::BOTH.map(|side| fixture.memory(side, 1 << 22, Access::LOCAL));
    // More than the transport could buffer, so that both are really stuck.
    for (side, queue_pair) in pairs {
        for id in 0..8 {
            let slice = memory[side as usize].slice(0, 1 << 20);
            fixture.send(side, queue_pair, &request(id, SEND, &[slice]));
        }
    }
    fixture.expect_silence();
    for (side, queue_pair) in pairs {
        for id in 100..108 {
            let slice = memory[side as usize].slice(1 << 21, 1 << 20);
            fixture.receive(side, queue_pair, id, slice);
        }
    }
    for side in Side::BOTH {
        let done = fixture.take(side, 16);
        assert!(done.iter().all(|completion| completion.status == Status::Success), "{done:?}");
    }
}

/// A fenced WRITE reads its local bytes only after an earlier READ has brought them.
pub fn a_fenced_request_waits_for_earlier_reads<H: Harness>() {
    let (mut fixture, [left, _]) = Fixture::<H>::connected();
    let local = fixture.memory(Side::Left, 1 << 16, Access::LOCAL);
    let remote = fixture.memory(Side::Right, 1 << 17, Access::ALL);
    for round in 0..20 {
        let bytes = pattern(round, 1 << 16);
        remote.put(0, &bytes);
        let slice = local.slice(0, 1 << 16);
        let read = request(1, Operation::Read { remote: remote.remote(0) }, &[slice]);
        let mut write = request(2, Operation::Write { remote: remote.remote(1 << 16) }, &[slice]);
        write.fence = true;
        fixture.post(Side::Left, left, &read);
        fixture.send(Side::Left, left, &write);
        fixture.expect(Side::Left, 1, Status::Success);
        fixture.expect(Side::Left, 2, Status::Success);
        assert_eq!(remote.get(1 << 16, 1 << 16), bytes);
    }
}
