//! Every interleaving of the protocols that have no lock, under loom. Run with `--cfg loom`.

use std::sync::Arc;

use loom::thread;
use ringway_mem::{Mapping, Window};
use ringway_types::Operation;

use crate::{
    Call, Cell, Member, POOL_SLOTS, Place, Poll, Regions, SLOTS, StandIn, Verdict,
    layout::{FENCES, RankWord, SLEEPERS},
    record::{Agreement, History},
    shared::full_fence,
};

struct Nothing;

impl Regions for Nothing {
    fn window(&self, _: u32, _: Place, _: u64) -> Option<Window<'_>> {
        None
    }
}

fn cell() -> Cell {
    cell_of(2)
}

fn cell_of(ranks: u32) -> Cell {
    let length = crate::bytes(ranks).expect("few ranks") as usize;
    Cell::attach(Arc::new(Mapping::private(length).expect("map")), ranks).expect("attach")
}

/// Calls of nothing, each unlike the one before.
fn call(sequence: u64) -> Call<'static> {
    let operation = [Operation::Barrier, Operation::AllGather, Operation::AllToAll][sequence as usize % 3];
    Call { operation, ..Call::BARRIER }
}

/// Broadcasts of nothing: the root needs nobody's record and finds out by looking at the last one.
fn broadcast(sequence: u64) -> Call<'static> {
    Call { operation: Operation::Broadcast, root: u32::from(sequence == 2), ..Call::BARRIER }
}

/// Makes calls one after the other, polling each a few times; returns how many were over.
fn take_part(cell: Cell, rank: u32, call: fn(u64) -> Call<'static>) -> u64 {
    let mut member = Member::new(cell, rank);
    let mut over = 0;
    for number in 1..=SLOTS + 1 {
        let Some(sequence) = member.begin(&call(number), false, &Nothing) else { return over };
        assert_eq!(sequence, number);
        for _ in 0..2 {
            match member.poll(sequence, &Nothing) {
                Poll::Done => break,
                Poll::Pending => thread::yield_now(),
                // A record that is not whole, or of another use of its slot, would be taken for another call.
                other => panic!("{other:?}"),
            }
        }
        over += u64::from(member.missing(sequence).next().is_none());
    }
    over
}

/// Makes a call and polls it once; whether it was over.
fn take_part_once(cell: &Cell, rank: u32) -> bool {
    let mut member = Member::new(cell.clone(), rank);
    let sequence = member.begin(&call(1), false, &Nothing).expect("a slot");
    member.poll(sequence, &Nothing) == Poll::Done
}

#[test]
fn a_record_is_whole_when_it_is_seen_and_its_slot_is_not_reused_before_it_is_consumed() {
    loom::model(|| {
        let cell = cell();
        let other = cell.clone();
        let peer = thread::spawn(move || take_part(other, 0, call));
        take_part(cell, 1, call);
        peer.join().expect("no panic");
    });
}

/// A root that needs nobody writes to a slot of the pool when all are through with the call that had it before.
#[test]
fn a_payload_in_the_pool_is_whole_when_it_is_seen_and_stays_until_it_is_consumed() {
    loom::model(|| {
        let cell = cell();
        let other = cell.clone();
        let history = |member: &Member| member.history_and(Agreement::of(&call(2)));
        // Stands for the pool's only slot.
        let slot = cell.layout.payload(0, 1);
        let root = thread::spawn(move || {
            let mut member = Member::new(other, 0);
            for sequence in 1..=2 * POOL_SLOTS {
                if !member.room_in_pool(true) {
                    return;
                }
                let history = history(&member);
                member.cell().words.store(slot, sequence);
                member.publish_small((sequence, history), Agreement::of(&call(2)), 0);
                member.finish_unkept(sequence, history, 0);
            }
        });
        let mut member = Member::new(cell, 1);
        for sequence in 1..=2 * POOL_SLOTS {
            let history = history(&member);
            member.publish_small((sequence, history), Agreement::of(&call(2)), 0);
            if member.cell().history(0, sequence) != Some(history) {
                break;
            }
            assert_eq!(member.cell().words.load(slot), sequence);
            assert!(member.consume_if_seen(sequence, 2));
        }
        root.join().expect("no panic");
    });
}

#[test]
fn calls_that_need_nobody_are_never_thought_to_differ() {
    loom::model(|| {
        let cell = cell();
        let other = cell.clone();
        let peer = thread::spawn(move || take_part(other, 0, broadcast));
        take_part(cell, 1, broadcast);
        peer.join().expect("no panic");
    });
}

#[test]
fn a_block_is_claimed_once_and_what_was_done_is_seen() {
    loom::model(|| {
        let cell = cell();
        let (claims, done) = (cell.layout.claim(1, 0), cell.layout.done(1, 0, 0));
        // Stands for the memory that a block is.
        let memory = cell.layout.payload(0, 1);
        let work = move |cell: &Cell| {
            let mut blocks = 0;
            while let Some(block) = cell.claim(claims, 1, 2) {
                let word = memory + block as usize;
                assert_eq!(cell.words.load(word), 0, "done twice");
                cell.words.store(word, 1);
                blocks += 1;
            }
            cell.add_count(done, 1, blocks);
        };
        let other = cell.clone();
        let worker = thread::spawn(move || work(&other));
        work(&cell);
        if cell.count(done, 1) == 2 {
            assert_eq!([cell.words.load(memory), cell.words.load(memory + 1)], [1, 1]);
        }
        worker.join().expect("no panic");
        assert_eq!(cell.count(done, 1), 2);
    });
}

#[test]
fn nobody_is_thought_to_have_left_who_then_works() {
    loom::model(|| {
        let cell = cell();
        let other = cell.clone();
        let memory = cell.layout.payload(0, 1);
        let worker = thread::spawn(move || {
            let inside = other.layout.rank(0, RankWord::Inside);
            other.words.store(inside, 1);
            full_fence();
            if other.verdict().is_none() {
                other.words.store(memory, 7);
            }
            other.words.store_release(inside, 0);
        });
        cell.fail(Verdict { status: 35, rank: 0 });
        full_fence();
        if !cell.anyone_inside_but(1) {
            let before = cell.words.load(memory);
            full_fence();
            worker.join().expect("no panic");
            assert_eq!(cell.words.load(memory), before, "written after all had left");
        }
    });
}

/// Rank 0 ends the communicator when its call is over; rank 1, which has made that call as well, is at any point of it.
#[test]
fn a_verdict_does_not_undo_a_call_that_was_complete_before_it() {
    loom::model(|| {
        let cell = cell();
        let other = cell.clone();
        let mut member = Member::new(cell, 1);
        let sequence = member.begin(&call(1), false, &Nothing).expect("a slot");
        let peer = thread::spawn(move || {
            if take_part_once(&other, 0) {
                other.fail(Verdict { status: 35, rank: 0 });
            }
        });
        match member.poll(sequence, &Nothing) {
            Poll::Done | Poll::Pending => {}
            other => panic!("{other:?}"),
        }
        peer.join().expect("no panic");
    });
}

#[test]
fn a_sleeper_is_never_missed() {
    loom::model(|| {
        let cell = cell();
        // The barrier of the kernel cannot be modelled; the other way, a fence in every publisher, can.
        cell.words.set(SLEEPERS, FENCES);
        let other = cell.clone();
        let publisher = thread::spawn(move || {
            other.publish(0, 1, History::default());
            other.notify();
        });
        let expected = cell.arm(1, 0);
        let seen = cell.agreement(0, 1).is_some();
        publisher.join().expect("no panic");
        let bell = cell.words.load(cell.layout.rank(1, RankWord::Bell)) as u32;
        assert!(seen || bell != expected, "it would sleep on, and nobody would wake it");
        cell.disarm(1);
    });
}

/// One that needs the records of two others is woken by the last of them, whichever that is.
#[test]
fn a_sleeper_that_needs_every_record_is_never_missed() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let cell = cell_of(3);
        cell.words.set(SLEEPERS, FENCES);
        cell.publish(1, 1, History::default());
        let publishers = [0, 2].map(|rank| {
            let other = cell.clone();
            thread::spawn(move || {
                other.publish(rank, 1, History::default());
                other.notify_of_record();
            })
        });
        let expected = cell.arm(1, 1);
        let seen = [0, 2].into_iter().all(|rank| cell.history(rank, 1).is_some());
        for publisher in publishers {
            publisher.join().expect("no panic");
        }
        let bell = cell.words.load(cell.layout.rank(1, RankWord::Bell)) as u32;
        assert!(seen || bell != expected, "it would sleep on, and nobody would wake it");
        cell.disarm(1);
    });
}

/// Rank 0 makes a call and hands its part over; the daemon sees that call through and makes the next. Rank 1 takes part
/// meanwhile: it sees records of one rank, each whole, and never one in the place of a call that is not consumed.
#[test]
fn a_part_that_changes_hands_is_that_of_one_rank() {
    // Three threads take too many ways otherwise.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let cell = cell();
        let (other, daemons) = (cell.clone(), cell.clone());
        let mut member = Member::new(cell, 0);
        member.begin(&call(1), false, &Nothing).expect("a slot");
        let peer = thread::spawn(move || take_part(other, 1, call));
        let (signature, ..) = member.outstanding(1).expect("not over");
        member.hand_over();
        // Stands for the submission ring.
        let ring = Arc::new(loom::sync::atomic::AtomicU64::new(0));
        let submitted = Arc::clone(&ring);
        let daemon = thread::spawn(move || {
            if submitted.load(loom::sync::atomic::Ordering::Acquire) == 0 {
                return;
            }
            let mut stand_in = StandIn::new(daemons, 0);
            stand_in.take_over().expect("all that the rank did is seen");
            stand_in.adopt(1, &signature, [None, None], &Nothing).expect("as published");
            for sequence in 1..=SLOTS + 1 {
                if sequence > 1 && stand_in.begin(&call(sequence), &Nothing) != Some(sequence) {
                    return;
                }
                match stand_in.poll(sequence, &Nothing) {
                    Poll::Done | Poll::Pending => {}
                    other => panic!("{other:?}"),
                }
            }
            submitted.store(2, loom::sync::atomic::Ordering::Release);
        });
        ring.store(1, loom::sync::atomic::Ordering::Release);
        daemon.join().expect("no panic");
        if ring.load(loom::sync::atomic::Ordering::Acquire) == 2 {
            member.resume().expect("all that the daemon did is seen");
            assert_eq!(member.called(), SLOTS + 1);
        }
        peer.join().expect("no panic");
    });
}
