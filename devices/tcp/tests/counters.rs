//! What the device counts: bytes, and every system call of a known exchange.
#![forbid(unsafe_code)]

mod common;

use common::{EPOLL, IO_URING, Loopback};
use ringway_sim::conformance::{Fixture, Harness, Memory, Side, request};
use ringway_tcp::frame::HEADER_LENGTH;
use ringway_verbs::{Access, Completion, CompletionKind, Device, Operation, QueuePairNumber};

/// Bytes of the message: few enough to be copied.
const LENGTH: u64 = 64;
/// Turns in which nothing is said, after which nothing will be.
const QUIET_TURNS: u32 = 10;
/// Polls after which a caller that did not ask to be woken spins, and those after which it has waited for long.
const POLLS_OF_SPINNING: u32 = 50;
const POLLS_OF_WAITING: u32 = 5000;

/// System calls of each step of an exchange.
#[derive(Debug, PartialEq, Eq)]
struct Calls {
    idle_poll: u64,
    send: u64,
    /// Taking the message, without what its polls would cost that found nothing.
    receive: u64,
    acknowledge: u64,
    /// Taking the acknowledgement, the same way.
    complete: u64,
    /// Getting ready for more.
    rest: u64,
    arm: u64,
}

/// A device's counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Counts {
    system_calls: u64,
    bytes_sent: u64,
    bytes_received: u64,
    bytes_copied: u64,
}

struct Exchange<const DRIVER: usize> {
    fixture: Fixture<Loopback<DRIVER, DRIVER>>,
    pair: [QueuePairNumber; 2],
    memory: [Memory; 2],
}

impl<const DRIVER: usize> Exchange<DRIVER> {
    /// A connection on which everything is said, also that the right side has a receive.
    fn new() -> Self {
        let (mut fixture, pair) = Fixture::connected();
        let memory = Side::BOTH.map(|side| fixture.memory(side, LENGTH as usize, Access::ALL));
        let mut exchange = Self { fixture, pair, memory };
        exchange.post_receive();
        exchange
    }

    /// Posts a receive and has that and everything before be said.
    fn post_receive(&mut self) {
        self.fixture.receive(Side::Right, self.pair[1], 0, self.memory[1].slice(0, LENGTH));
        let (mut quiet, mut said) = (0, 0);
        while quiet < QUIET_TURNS {
            for side in Side::BOTH {
                assert_eq!(self.poll(side), None);
                self.fixture.device(side).flush();
            }
            let [left, right] = Side::BOTH.map(|side| self.counts(side));
            // The preface goes past the other device: a listener reads it.
            let all_here = left.bytes_received == right.bytes_sent
                && right.bytes_received + ringway_tcp::PREFACE_LENGTH as u64 == left.bytes_sent;
            let now_said = left.bytes_sent + right.bytes_sent;
            quiet = if all_here && now_said == said { quiet + 1 } else { 0 };
            said = now_said;
        }
    }

    fn counts(&mut self, side: Side) -> Counts {
        let mut counts = Counts::default();
        self.fixture.device(side).for_each_counter(&mut |name, value| match name {
            "system_calls" => counts.system_calls = value,
            "bytes_sent" => counts.bytes_sent = value,
            "bytes_received" => counts.bytes_received = value,
            "bytes_copied" => counts.bytes_copied = value,
            // The message is too short for that.
            "bytes_sent_without_copy" | "bytes_copied_after_all" | "bytes_pinned" | "pinning_refused" => {
                assert_eq!(value, 0);
            }
            other => assert_eq!(other, "no other"),
        });
        counts
    }

    fn poll(&mut self, side: Side) -> Option<Completion> {
        let now = self.fixture.harness.now();
        assert!(self.fixture.harness.pause(false), "a test that takes too long");
        let mut completions = [Completion::EMPTY; 1];
        (self.fixture.device(side).poll(now, &mut completions) > 0).then_some(completions[0])
    }

    /// System calls that a side makes for something.
    fn cost(&mut self, side: Side, step: impl FnOnce(&mut Self)) -> u64 {
        let before = self.counts(side).system_calls;
        step(self);
        self.counts(side).system_calls - before
    }

    /// System calls that polling takes until this completes, but for those of polls that find nothing.
    fn until(&mut self, side: Side, kind: CompletionKind, idle_poll: u64) -> u64 {
        let mut polls = 1;
        let cost = self.cost(side, |exchange| {
            let completion = loop {
                match exchange.poll(side) {
                    Some(completion) => break completion,
                    None => polls += 1,
                }
            };
            assert_eq!(completion.kind, kind);
        });
        cost - (polls - 1) * idle_poll
    }

    fn calls(&mut self) -> Calls {
        let idle_poll = self.cost(Side::Left, |exchange| assert_eq!(exchange.poll(Side::Left), None));
        Calls {
            idle_poll,
            send: self.cost(Side::Left, Self::send),
            receive: self.until(Side::Right, CompletionKind::Receive, idle_poll),
            acknowledge: self.cost(Side::Right, |exchange| exchange.fixture.device(Side::Right).flush()),
            complete: self.until(Side::Left, CompletionKind::Send, idle_poll),
            rest: self.cost(Side::Left, |exchange| exchange.fixture.device(Side::Left).flush()),
            arm: self.cost(Side::Left, |exchange| {
                exchange.fixture.device(Side::Left).arm();
            }),
        }
    }
}

/// How the caller has waited before it does something.
#[derive(Debug, Clone, Copy)]
enum Waited {
    /// Asleep.
    Armed,
    /// Polling so many times.
    Polling(u32),
}

impl<const DRIVER: usize> Exchange<DRIVER> {
    fn wait(&mut self, waited: Waited) {
        for side in Side::BOTH {
            match waited {
                Waited::Armed => while !self.fixture.device(side).arm() {},
                Waited::Polling(polls) => (0..polls).for_each(|_| assert_eq!(self.poll(side), None)),
            }
        }
    }

    /// Makes an exchange of which nothing is counted, so that what waited before is over.
    fn warm_up(&mut self) {
        self.send();
        self.until(Side::Right, CompletionKind::Receive, 0);
        self.fixture.device(Side::Right).flush();
        self.until(Side::Left, CompletionKind::Send, 0);
        self.post_receive();
    }

    fn send(&mut self) {
        let send = request(0, Operation::Send { immediate: None }, &[self.memory[0].slice(0, LENGTH)]);
        self.fixture.send(Side::Left, self.pair[0], &send);
    }
}

/// Makes an exchange and compares what it cost; the bytes are the same with every driver.
#[track_caller]
fn assert_costs<const DRIVER: usize>(waited: Waited, expected: &Calls) {
    let mut exchange = Exchange::<DRIVER>::new();
    exchange.wait(waited);
    if matches!(waited, Waited::Polling(_)) {
        exchange.warm_up();
    }
    let before = Side::BOTH.map(|side| exchange.counts(side));
    assert_eq!(exchange.calls(), *expected);
    let after = Side::BOTH.map(|side| exchange.counts(side));
    let header = HEADER_LENGTH as u64;
    // A message one way, and its acknowledgement back. Either side copies the payload once.
    for (side, sent, received) in [(0, header + LENGTH, header), (1, 0, header + LENGTH)] {
        let (before, after) = (before[side], after[side]);
        let expected = Counts {
            system_calls: after.system_calls,
            // The sender has the kernel's word on its message; the receiver has not asked for that on its answer.
            bytes_sent: before.bytes_sent + sent,
            bytes_received: before.bytes_received + received,
            bytes_copied: before.bytes_copied + LENGTH,
        };
        assert_eq!(after, expected);
    }
}

/// A message each way: the reply says that the message was executed, and nothing else is sent.
fn assert_reply_acknowledges<const DRIVER: usize>() {
    let mut exchange = Exchange::<DRIVER>::new();
    let into = exchange.memory[0].slice(0, LENGTH);
    exchange.fixture.receive(Side::Left, exchange.pair[0], 0, into);
    exchange.post_receive();
    let before = Side::BOTH.map(|side| exchange.counts(side).bytes_received);
    exchange.send();
    exchange.fixture.device(Side::Left).flush();
    exchange.until(Side::Right, CompletionKind::Receive, 0);
    let reply = request(0, Operation::Send { immediate: None }, &[exchange.memory[1].slice(0, LENGTH)]);
    exchange.fixture.send(Side::Right, exchange.pair[1], &reply);
    exchange.fixture.device(Side::Right).flush();
    exchange.until(Side::Left, CompletionKind::Send, 0);
    exchange.until(Side::Left, CompletionKind::Receive, 0);
    let received = Side::BOTH.map(|side| exchange.counts(side).bytes_received);
    let frame = HEADER_LENGTH as u64 + LENGTH;
    assert_eq!(received, before.map(|before| before + frame));
    // Without another message the reply is acknowledged all the same, by a frame of its own.
    while exchange.poll(Side::Right).is_none() {
        assert_eq!(exchange.poll(Side::Left), None);
    }
    assert_eq!(exchange.counts(Side::Right).bytes_received, received[1] + HEADER_LENGTH as u64);
}

#[test]
fn a_reply_carries_the_acknowledgement() {
    assert_reply_acknowledges::<IO_URING>();
    assert_reply_acknowledges::<EPOLL>();
}

#[test]
fn io_uring_is_entered_once_for_each_step() {
    // A step's operations go together, and a poll that finds nothing asks nobody.
    let expected = Calls { idle_poll: 0, send: 1, receive: 1, acknowledge: 1, complete: 1, rest: 1, arm: 1 };
    assert_costs::<IO_URING>(Waited::Armed, &expected);
}

#[test]
fn while_the_caller_spins_io_uring_is_passed_over() {
    // As of bare sockets: a poll tries to receive. Who then wants to be woken has the receive wait in the kernel.
    let expected = Calls { idle_poll: 1, send: 1, receive: 1, acknowledge: 1, complete: 1, rest: 0, arm: 2 };
    assert_costs::<IO_URING>(Waited::Polling(POLLS_OF_SPINNING), &expected);
}

#[test]
fn who_spins_for_long_without_a_message_asks_nobody() {
    let mut exchange = Exchange::<IO_URING>::new();
    exchange.wait(Waited::Polling(POLLS_OF_SPINNING));
    exchange.warm_up();
    exchange.wait(Waited::Polling(POLLS_OF_WAITING));
    let idle_polls = exchange
        .cost(Side::Left, |exchange| (0..100).for_each(|_| assert_eq!(exchange.poll(Side::Left), None)));
    assert_eq!(idle_polls, 0);
    // What comes is found all the same.
    exchange.send();
    exchange.until(Side::Right, CompletionKind::Receive, 0);
}

#[test]
fn epoll_costs_a_wait_and_a_call_for_each_message() {
    let expected = Calls { idle_poll: 1, send: 1, receive: 2, acknowledge: 1, complete: 2, rest: 0, arm: 0 };
    assert_costs::<EPOLL>(Waited::Polling(POLLS_OF_SPINNING), &expected);
}
