//! Ranks that die or stop at any step of a call, as far as one process can play them.
#![expect(clippy::expect_used, reason = "helpers of tests may panic")]

use std::sync::Arc;

use ringway_mem::{Mapping, Window};
use ringway_types::{DataType, Operation, Reduction};

use crate::{
    Call, Cell, Contradiction, Helper, Member, OWN_INPUT, OWN_OUTPUT, POOL_SLOTS, Place, Poll, Regions,
    Verdict, job::Job, layout::RankWord, shape::Shape,
};

const LOST: Verdict = Verdict { status: 35, rank: 1 };

struct Arenas(Vec<Arc<Mapping>>);

impl Regions for Arenas {
    fn window(&self, rank: u32, place: Place, length: u64) -> Option<Window<'_>> {
        self.0.get(rank as usize).filter(|_| place.region == 0)?.window(place.offset, length)
    }
}

fn map(bytes: u64) -> Arc<Mapping> {
    Arc::new(Mapping::private(bytes as usize).expect("map"))
}

fn setup() -> (Cell, Vec<Member>, Arenas) {
    let cell = Cell::attach(map(crate::bytes(3).expect("ranks")), 3).expect("attach");
    let members = (0..3).map(|r| Member::new(cell.clone(), r)).collect();
    (cell, members, Arenas((0..3).map(|_| map(4 << 20)).collect()))
}

fn allreduce(count: u64) -> Call<'static> {
    Call {
        operation: Operation::Allreduce,
        datatype: DataType::I32,
        reduction: Some(Reduction::Sum),
        scale: None,
        root: 0,
        count,
        counts: &[],
        input: Some(Place { region: 0, offset: 0 }),
        output: Some(Place { region: 0, offset: 2 << 20 }),
        staging: None,
    }
}

#[test]
fn a_rank_that_dies_before_it_calls_ends_the_call_for_the_others() {
    for count in [1, 100_000] {
        let (cell, mut members, arenas) = setup();
        for rank in [0, 2] {
            assert_eq!(members[rank].begin(&allreduce(count), true, &arenas), Some(1));
            assert_eq!(members[rank].poll(1, &arenas), Poll::Pending);
        }
        assert_eq!(members[0].missing(1).collect::<Vec<_>>(), [1]);
        assert!(cell.fail(LOST));
        assert!(!cell.fail(Verdict { status: 36, rank: 2 }), "the first verdict stands");
        for rank in [0, 2] {
            assert_eq!(members[rank].poll(1, &arenas), Poll::Failed(LOST));
            assert!(members[rank].is_quiet());
        }
    }
}

#[test]
fn what_is_complete_succeeds_after_a_verdict_too() {
    let (cell, mut members, arenas) = setup();
    for member in &mut members {
        assert_eq!(member.begin(&allreduce(5), false, &arenas), Some(1));
    }
    cell.fail(LOST);
    assert_eq!(members[0].poll(1, &arenas), Poll::Done);
}

/// Whoever comes late to a call that a rank made before it left has it as well, and then no more.
#[test]
fn what_whoever_is_needed_gave_before_somebody_left_can_be_had() {
    let (cell, mut members, arenas) = setup();
    let broadcast = Call { operation: Operation::Broadcast, reduction: None, ..allreduce(5) };
    for rank in [0, 1] {
        assert_eq!(members[rank].begin(&broadcast, false, &arenas), Some(1));
        assert_eq!(members[rank].poll(1, &arenas), Poll::Done);
    }
    assert!(!members[2].is_met(&broadcast), "nothing has failed");
    cell.fail(LOST);
    assert!(!members[2].is_met(&broadcast), "it failed for another reason, perhaps in this call");
    cell.set_left(1);
    assert!(members[2].is_met(&broadcast));
    assert!(!members[2].is_met(&allreduce(5)), "that is another call");
    assert_eq!(members[2].begin(&broadcast, false, &arenas), Some(1));
    assert_eq!(members[2].poll(1, &arenas), Poll::Done);
    assert!(!members[2].is_met(&broadcast), "the root has not made that one");
    assert!(!members[0].is_met(&broadcast), "what needs nobody would go on for ever");
}

/// It may have made calls that were over for it before others made them: it holds nobody up in those.
#[test]
fn a_rank_that_has_left_is_through_with_what_it_called() {
    let (cell, mut members, arenas) = setup();
    let broadcast = Call { operation: Operation::Broadcast, reduction: None, ..allreduce(5) };
    for sequence in 1..=crate::SLOTS {
        for rank in [0, 1] {
            assert_eq!(members[rank].begin(&broadcast, false, &arenas), Some(sequence));
            assert_eq!(members[rank].poll(sequence, &arenas), Poll::Done);
        }
    }
    cell.set_left(1);
    assert_eq!(members[0].begin(&broadcast, false, &arenas), None, "rank 2 has not come");
    assert_eq!(members[0].missing(1).collect::<Vec<_>>(), [2]);
    for sequence in 1..=crate::SLOTS {
        assert_eq!(members[2].begin(&broadcast, false, &arenas), Some(sequence));
        assert_eq!(members[2].poll(sequence, &arenas), Poll::Done);
    }
    assert_eq!(members[0].begin(&broadcast, false, &arenas), Some(crate::SLOTS + 1));
}

#[test]
fn a_rank_that_dies_with_a_block_in_hand_ends_the_call_and_memory_is_free_when_it_has_exited() {
    let (cell, mut members, arenas) = setup();
    for member in &mut members {
        assert_eq!(member.begin(&allreduce(100_000), false, &arenas), Some(1));
    }
    // Rank 1 is at work on a block when it stops.
    cell.words.store(cell.layout.rank(1, RankWord::Inside), 1);
    assert!(cell.claim(cell.layout.claim(1, 1), 1, 4).is_some());
    for rank in [0, 2] {
        assert_eq!(members[rank].poll(1, &arenas), Poll::Pending, "one block is missing");
    }
    cell.fail(LOST);
    for rank in [0, 2] {
        assert_eq!(members[rank].poll(1, &arenas), Poll::Failed(LOST));
        assert!(!members[rank].is_quiet(), "it could go on");
    }
    cell.set_exited(1);
    assert!(members[0].is_quiet() && members[2].is_quiet());
}

#[test]
fn a_rank_that_stops_between_two_of_its_segments_is_told_from_those_who_wait_for_it() {
    let (cell, mut members, arenas) = setup();
    let own = |region| Some(Place { region, offset: 0 });
    let staged =
        Call { input: own(OWN_INPUT), output: own(OWN_OUTPUT), staging: own(0), ..allreduce(600_000) };
    for (rank, call) in [(0, staged), (1, staged), (2, allreduce(600_000))] {
        assert_eq!(members[rank].begin(&call, false, &arenas), Some(1));
    }
    let behind = |cell: &Cell| cell.behind(1);
    let mut job = Job::new(3);
    let shape = cell.signature(2, 1).and_then(|call| Shape::of(&call, 3)).expect("a call");
    job.load(&cell, 1, shape).expect("a call of all");
    assert_eq!((job.segments, behind(&cell)), (3, vec![0, 1]), "neither has offered any");
    let offer = |rank, segments| cell.add_count(cell.layout.published(1, rank), 1, segments);
    let finish = |lane, segment| cell.add_count(cell.layout.done(1, lane, segment), 1, job.lane_blocks(lane));
    offer(0, 3);
    for segment in 0..3 {
        assert_eq!(behind(&cell), [1], "all but segment {segment} of its are there and done");
        offer(1, 1);
        assert_eq!(behind(&cell), [0, 1], "their lanes in segment {segment} are to be done");
        finish(2, segment);
        finish(0, segment);
        assert_eq!(behind(&cell), [1], "its lane in segment {segment} is to be done");
        finish(1, segment);
    }
    assert_eq!(behind(&cell), [], "that was the last segment");
    assert_eq!(cell.behind(2), [], "nothing is known of it");
}

#[test]
fn a_rank_that_goes_on_after_the_verdict_touches_nothing() {
    let (cell, mut members, arenas) = setup();
    for member in &mut members {
        assert_eq!(member.begin(&allreduce(100_000), false, &arenas), Some(1));
    }
    cell.fail(LOST);
    assert_eq!(members[1].poll(1, &arenas), Poll::Failed(LOST));
    let mut output = [0; 400_000];
    for arena in &arenas.0 {
        arena.window(2 << 20, 400_000).expect("room").write(&[9; 400_000]);
    }
    assert_eq!(members[0].poll(1, &arenas), Poll::Failed(LOST));
    for arena in &arenas.0 {
        arena.window(2 << 20, 400_000).expect("room").read(&mut output);
        assert!(output.iter().all(|b| *b == 9));
    }
}

#[test]
fn ranks_that_call_different_things_are_told_apart() {
    let (cell, mut members, arenas) = setup();
    members[0].begin(&allreduce(5), false, &arenas);
    members[1].begin(&allreduce(6), false, &arenas);
    assert_eq!(members[0].poll(1, &arenas), Poll::Mismatch { rank: 1, sequence: 1 });
    let Some(Contradiction::Signatures { rank: 0, call, other_rank: 1, other }) = cell.contradiction(1)
    else {
        panic!("{:?}", cell.contradiction(1));
    };
    assert_eq!((call.count, other.count), (5, 6));
}

#[test]
fn a_contradiction_in_a_call_that_needs_nobody_is_found_later() {
    let (_, mut members, arenas) = setup();
    let broadcast = Call { operation: Operation::Broadcast, reduction: None, ..allreduce(4) };
    let gather = Call { operation: Operation::Gather, reduction: None, root: 2, ..allreduce(4) };
    assert_eq!(members[0].begin(&broadcast, false, &arenas), Some(1));
    assert_eq!(members[0].poll(1, &arenas), Poll::Done, "the root needs nobody");
    assert_eq!(members[1].begin(&gather, false, &arenas), Some(1));
    assert_eq!(members[1].poll(1, &arenas), Poll::Done, "nor does a rank that is not the root");
    for sequence in 2..40 {
        assert_eq!(members[0].begin(&broadcast, false, &arenas), Some(sequence));
        let found = members[0].poll(sequence, &arenas);
        assert!(matches!(found, Poll::Done | Poll::Mismatch { rank: 1, sequence: 1 }));
    }
    let call = allreduce(1);
    let sequence = members[0].begin(&call, false, &arenas).expect("room");
    assert_eq!(members[0].poll(sequence, &arenas), Poll::Mismatch { rank: 1, sequence: 1 });
}

#[test]
fn a_root_that_is_as_far_ahead_as_the_pool_is_deep_waits_for_those_who_are_not_through() {
    let (_, mut members, arenas) = setup();
    let broadcast = Call { operation: Operation::Broadcast, reduction: None, ..allreduce(5000) };
    let begin = |members: &mut [Member], rank: usize| {
        members[rank].begin(&broadcast, false, &arenas).inspect(|sequence| {
            assert_eq!(members[rank].poll(*sequence, &arenas), Poll::Done);
        })
    };
    for sequence in 1..=POOL_SLOTS {
        assert_eq!(begin(&mut members, 0), Some(sequence));
    }
    assert_eq!((begin(&mut members, 0), members[0].room_after()), (None, 1));
    for _ in 1..=POOL_SLOTS {
        begin(&mut members, 1).expect("it puts nothing there");
    }
    assert_eq!((begin(&mut members, 0), members[0].missing(1).collect::<Vec<_>>()), (None, vec![1, 2]));
    // Rank 1 is through as far as it knows that rank 2 has called the same.
    begin(&mut members, 2).expect("room");
    members[1].begin(&Call::BARRIER, false, &arenas).expect("room");
    assert_eq!(members[1].poll(POOL_SLOTS + 1, &arenas), Poll::Pending);
    assert_eq!((begin(&mut members, 0), members[0].missing(1).collect::<Vec<_>>()), (None, vec![2]));
    begin(&mut members, 2).expect("room");
    for _ in 2..POOL_SLOTS {
        begin(&mut members, 2).expect("room");
    }
    members[2].begin(&Call::BARRIER, false, &arenas).expect("room");
    assert_eq!(members[2].poll(POOL_SLOTS + 1, &arenas), Poll::Pending);
    assert!(members[0].begin(&Call::BARRIER, false, &arenas).is_some());
}

#[test]
fn a_rank_that_waits_finds_a_contradiction_in_an_earlier_call() {
    let (_, mut members, arenas) = setup();
    let broadcast = |root| Call { operation: Operation::Broadcast, reduction: None, root, ..allreduce(4) };
    for (rank, root) in [(0, 0), (1, 1), (2, 0)] {
        assert_eq!(members[rank].begin(&broadcast(root), false, &arenas), Some(1));
    }
    assert_eq!(members[0].poll(1, &arenas), Poll::Done, "a root needs nobody");
    assert_eq!(members[0].begin(&allreduce(1), false, &arenas), Some(2));
    assert_eq!(members[0].poll(2, &arenas), Poll::Mismatch { rank: 1, sequence: 1 });
}

#[test]
fn counts_that_disagree_are_named() {
    let (cell, mut members, arenas) = setup();
    let call = |counts| Call {
        operation: Operation::AllToAllV,
        datatype: DataType::I32,
        reduction: None,
        counts,
        ..allreduce(0)
    };
    let (even, odd) = ([1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 2]);
    for (rank, counts) in [(0, &even), (1, &even), (2, &even)] {
        assert_eq!(members[rank].begin(&call(counts), false, &arenas), Some(1));
    }
    assert_eq!(cell.contradiction(1), None);
    for (rank, counts) in [(0, &even), (1, &odd), (2, &even)] {
        assert_eq!(members[rank].begin(&call(counts), false, &arenas), Some(2));
    }
    assert!(matches!(members[0].poll(2, &arenas), Poll::Mismatch { .. }));
    let expected = Contradiction::Counts { sender: 2, receiver: 1, sent: 4, expected: 8 };
    assert_eq!(cell.contradiction(2), Some(expected));
}

#[test]
fn regions_that_were_released_are_asked_for_again() {
    let (_, mut members, arenas) = setup();
    for sequence in 1..=2 {
        members[1].set_epoch(sequence - 1);
        for member in &mut members {
            assert_eq!(member.begin(&allreduce(100_000), false, &arenas), Some(sequence));
        }
        if sequence == 2 {
            assert_eq!(members[0].poll(2, &arenas), Poll::Stale { rank: 1 });
        }
        for rank in [0, 1, 2] {
            while members[rank].poll(sequence, &arenas) != Poll::Done {}
        }
    }
}

#[test]
fn the_daemon_survives_a_cell_full_of_rubbish() {
    let (cell, _, arenas) = setup();
    let mut helper = Helper::new(cell.clone());
    let mut state = 0x1234_5678_9abc_def0_u64;
    for round in 0..300 {
        for index in 0..cell.layout.words() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Mostly values that mean something.
            let value = [state, state >> 60, state >> 40, round % 70, u64::MAX][(state >> 33) as usize % 5];
            cell.words.store(index, value);
        }
        for _ in 0..20 {
            helper.work(&arenas, 1 << 16);
        }
    }
}
