//! Every operation among threads, against an oracle: small and large, in place or not, of registered and of other
//! memory, with and without the daemon's help.

#![expect(clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]

mod common;

use std::{
    cell::Cell as Time,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
};

use common::{Case, Memory, Reach, cell, wait};
use proptest::prelude::*;
use ringway_cell::{Cell, Helper, Member, Place, Poll, Regions};
use ringway_mem::Window;
use ringway_types::{DataType, Operation, Reduction};

/// Runs a case on threads; with `alone`, the daemon does all the work and ranks look only when it is done.
fn run(cell: &Cell, members: &mut [Member], case: &Case, (help, alone): (bool, bool)) {
    let memory = Memory::new(case.ranks, case.room(), |r| case.staged[r as usize]);
    let (left, stop) = (AtomicU32::new(case.ranks), AtomicBool::new(false));
    // Turns in which the daemon found nothing to do after every rank had come.
    let idle = AtomicU32::new(0);
    thread::scope(|scope| {
        if help {
            let (memory, stop, idle) = (&memory, &stop, &idle);
            let mut helper = Helper::new(cell.clone());
            scope.spawn(move || {
                while !stop.load(Ordering::Acquire) {
                    if helper.work(&Reach { memory, rank: None }, 1 << 16) == 0 {
                        let all = (0..case.ranks).all(|r| helper.cell().called(r) == helper.cell().called(0));
                        idle.fetch_add(u32::from(all && helper.cell().called(0) > 0), Ordering::AcqRel);
                        thread::yield_now();
                    }
                }
            });
        }
        for (rank, member) in (0..).zip(members) {
            let (memory, left, stop, idle) = (&memory, &left, &stop, &idle);
            scope.spawn(move || {
                let sequence = case.begin(member, rank, memory, help).expect("room");
                if alone {
                    while idle.load(Ordering::Acquire) < 3 {
                        thread::yield_now();
                    }
                }
                let over = wait(member, sequence, &Reach { memory, rank: Some(rank) });
                if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                    stop.store(true, Ordering::Release);
                }
                assert_eq!(over, Poll::Done);
                case.check(rank, memory);
            });
        }
    });
}

fn collectives() -> Vec<Operation> {
    Operation::ALL.iter().copied().filter(|o| o.is_collective()).collect()
}

fn cases() -> impl Strategy<Value = Case> {
    let operation = prop::sample::select(collectives());
    let count = prop_oneof![0_u64..5, 5_u64..700, 700_u64..5_000, 5_000_u64..120_000];
    (operation, 1_u32..6, count, any::<u64>(), any::<prop::sample::Index>(), any::<[bool; 10]>())
        .prop_flat_map(|(operation, ranks, count, seed, pick, flags)| {
            let datatype = DataType::ALL[pick.index(DataType::ALL.len())];
            let reductions: Vec<_> =
                Reduction::ALL.iter().copied().filter(|r| datatype.supports(*r)).collect();
            let rows =
                prop::collection::vec(prop::collection::vec(0_u64..9_000, ranks as usize), ranks as usize);
            (prop::sample::select(reductions), 0..ranks, rows).prop_map(move |(reduction, root, counts)| {
                Case {
                    operation,
                    datatype,
                    reduction,
                    ranks,
                    root,
                    count: if operation == Operation::Barrier { 0 } else { count },
                    counts,
                    in_place: flags[..5].to_vec(),
                    staged: flags[5..].to_vec(),
                    seed,
                }
            })
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn every_rank_gets_what_the_operation_says(
        case in cases(),
        help in any::<bool>(),
    ) {
        let cell = cell(case.ranks);
        let mut members: Vec<_> = (0..case.ranks).map(|r| Member::new(cell.clone(), r)).collect();
        for round in 0..3 {
            let case = Case { seed: case.seed.wrapping_add(round), ..case.clone() };
            run(&cell, &mut members, &case, (help, false));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Of a short vector each rank does its own part at once, where all have memory that others can reach.
    #[test]
    fn short_vectors_are_whole_however_ranks_come(
        case in cases(),
        operation in prop::sample::select(vec![Operation::Allreduce, Operation::Reduce, Operation::Broadcast]),
        bytes in prop_oneof![2049_u64..9_000, 9_000_u64..60_000, 60_000_u64..400_000],
    ) {
        let count = bytes / case.datatype.size() as u64;
        let case = Case { operation, count, ..case };
        let cell = cell(case.ranks);
        let mut members: Vec<_> = (0..case.ranks).map(|r| Member::new(cell.clone(), r)).collect();
        for round in 0..5 {
            let staged = if round < 3 { vec![false; 5] } else { case.staged.clone() };
            run(&cell, &mut members, &Case { seed: case.seed ^ round, staged, ..case.clone() }, (false, false));
        }
    }
}

fn plain(operation: Operation, ranks: u32, count: u64) -> Case {
    Case {
        operation,
        datatype: DataType::F32,
        reduction: Reduction::Sum,
        ranks,
        root: ranks - 1,
        count,
        counts: vec![(0..u64::from(ranks)).map(|r| r * 1000).collect(); ranks as usize],
        in_place: vec![false; ranks as usize],
        staged: vec![false; ranks as usize],
        seed: 7,
    }
}

/// What other tests compare would show it if contributions were combined in another order than that of the ranks, which is
/// the same for the first two of them.
#[test]
fn the_order_of_ranks_shows_in_the_bits() {
    // Sums of few values of E4M3 are exact in `f32`: all are multiples of 2^-9 below 2^9.
    let shows = |datatype: &DataType| datatype.is_float() && *datatype != DataType::F8E4M3;
    for datatype in DataType::ALL.iter().copied().filter(shows) {
        let case = Case { datatype, ..plain(Operation::Allreduce, 3, 1000) };
        let expected = case.expected(0).expect("a sum");
        assert_eq!(case.combine([1, 0, 2], 0, 1000), expected);
        for order in [[0, 2, 1], [1, 2, 0], [2, 1, 0]] {
            assert_ne!(case.combine(order, 0, 1000), expected, "{datatype:?}, {order:?}");
        }
    }
}

#[test]
fn slices_of_many_segments_arrive_whole() {
    let all = [true; 3];
    for (staged, help) in [(all, false), (all, true), ([false, true, false], true)] {
        use Operation::{AllGather, AllToAll, Allreduce, Broadcast, Exscan, Gather, ReduceScatter, Scatter};
        for operation in [Allreduce, AllGather, AllToAll, Broadcast, Exscan, Gather, ReduceScatter, Scatter] {
            let case = Case { staged: staged.to_vec(), ..plain(operation, 3, 1_100_001) };
            let cell = cell(3);
            let mut members: Vec<_> = (0..3).map(|r| Member::new(cell.clone(), r)).collect();
            run(&cell, &mut members, &case, (help, false));
        }
    }
}

/// Enough bytes for a root of two ranks to combine all alone where its memory is out of the other's reach.
const LONE_COUNT: u64 = 1_100_001;

#[test]
fn a_root_of_two_gets_what_both_gave_whoever_combines_it() {
    for (staged, root) in
        [[true, true], [true, false], [false, true]].into_iter().flat_map(|s| [(s, 0), (s, 1)])
    {
        for (in_place, help) in [(false, true), (true, false), (true, true)] {
            let (staged, in_place) = (staged.to_vec(), vec![in_place; 2]);
            let case = Case { staged, in_place, root, ..plain(Operation::Reduce, 2, LONE_COUNT) };
            let cell = cell(2);
            let mut members: Vec<_> = (0..2).map(|r| Member::new(cell.clone(), r)).collect();
            run(&cell, &mut members, &case, (help, false));
        }
    }
}

#[test]
fn the_daemon_does_it_all_when_nobody_waits() {
    for operation in collectives() {
        let case = plain(operation, 3, 50_000);
        let cell = cell(3);
        let mut members: Vec<_> = (0..3).map(|r| Member::new(cell.clone(), r)).collect();
        run(&cell, &mut members, &case, (true, true));
    }
}

#[test]
fn slots_come_round_many_times() {
    let cell = cell(3);
    let memory = Memory::new(3, 1 << 16, |_| false);
    thread::scope(|scope| {
        for rank in 0..3 {
            let (cell, memory) = (cell.clone(), &memory);
            scope.spawn(move || {
                let mut member = Member::new(cell, rank);
                for round in 0..3000_u64 {
                    let all = collectives();
                    let operation = all[round as usize % all.len()];
                    let count = [1, 9, 600, 1200][(round / 7) as usize % 4];
                    let case = Case { seed: round, root: (round % 3) as u32, ..plain(operation, 3, count) };
                    let case = Case { counts: vec![vec![3, 0, 700]; 3], ..case };
                    let sequence = loop {
                        if let Some(sequence) = case.begin(&mut member, rank, memory, false) {
                            break sequence;
                        }
                        thread::yield_now();
                    };
                    assert_eq!(sequence, round + 1);
                    let over = wait(&mut member, sequence, &Reach { memory, rank: Some(rank) });
                    assert_eq!(over, Poll::Done);
                    case.check(rank, memory);
                }
            });
        }
    });
}

thread_local! {
    static LOOKS: Time<u64> = const { Time::new(0) };
}

/// A clock that goes on by 300 ns every so many times it is looked at.
fn every<const LOOKS_OF_A_STEP: u64>() -> u64 {
    LOOKS.set(LOOKS.get() + 1);
    LOOKS.get() / LOOKS_OF_A_STEP * 300
}

/// Of those who give, one writes through the caches, one past them, and one now so and now so.
#[test]
fn few_bytes_come_whole_from_near_and_from_far() {
    const ROUNDS: u64 = 6000;
    let clocks: [fn() -> u64; 3] = [every::<{ u64::MAX }>, every::<1>, every::<4>];
    let operations =
        [Operation::Reduce, Operation::Gather, Operation::Broadcast, Operation::Scatter, Operation::Reduce];
    let (cell, memory) = (cell(3), Memory::new(3, 1 << 12, |_| false));
    thread::scope(|scope| {
        for (rank, clock) in (0..).zip(clocks) {
            let (cell, memory) = (cell.clone(), &memory);
            scope.spawn(move || {
                let mut member = Member::new(cell, rank).learning_by(clock);
                for round in 0..ROUNDS {
                    let operation = operations[round as usize % operations.len()];
                    let datatype = if round % 3 == 0 { DataType::U8 } else { DataType::F32 };
                    let count = round % (64 / datatype.size() as u64) + 1;
                    let case =
                        Case { seed: round, root: (round / 5 % 3) as u32, ..plain(operation, 3, count) };
                    let case = Case { datatype, ..case };
                    let sequence = loop {
                        if let Some(sequence) = case.begin(&mut member, rank, memory, false) {
                            break sequence;
                        }
                        thread::yield_now();
                    };
                    let over = wait(&mut member, sequence, &Reach { memory, rank: Some(rank) });
                    assert_eq!(over, Poll::Done);
                    case.check(rank, memory);
                }
            });
        }
    });
}

/// Roots run ahead of those who take; each call is checked when the next one with its memory is made.
#[test]
fn slots_of_the_pool_come_round_many_times() {
    const AHEAD: usize = 24;
    const ROUNDS: usize = 600;
    let cell = cell(3);
    let memories: Vec<_> = (0..AHEAD).map(|_| Memory::new(3, 1 << 18, |_| false)).collect();
    let case = |round: usize| {
        let count = [2_500, 16_384, 9, 2_048, 5_001][round / 3 % 5];
        Case { seed: round as u64, root: (round / 40 % 3) as u32, ..plain(Operation::Broadcast, 3, count) }
    };
    thread::scope(|scope| {
        for rank in 0..3 {
            let (cell, memories) = (cell.clone(), &memories);
            scope.spawn(move || {
                let mut member = Member::new(cell, rank);
                let finish = |member: &mut Member, round: usize| {
                    let memory = &memories[round % AHEAD];
                    let over = wait(member, round as u64 + 1, &Reach { memory, rank: Some(rank) });
                    assert_eq!(over, Poll::Done);
                    case(round).check(rank, memory);
                };
                for round in 0..ROUNDS {
                    if round >= AHEAD {
                        finish(&mut member, round - AHEAD);
                    }
                    let memory = &memories[round % AHEAD];
                    while case(round).begin(&mut member, rank, memory, round % 2 == 0).is_none() {
                        let first = round.saturating_sub(AHEAD - 1);
                        for earlier in first..round {
                            let memory = &memories[earlier % AHEAD];
                            let _ = member.poll(earlier as u64 + 1, &Reach { memory, rank: Some(rank) });
                        }
                        thread::yield_now();
                    }
                }
                (ROUNDS - AHEAD..ROUNDS).for_each(|round| finish(&mut member, round));
            });
        }
    });
}

/// What a rank can reach to which others' memory is refused.
struct Refused<'m>(Reach<'m>);

impl Regions for Refused<'_> {
    fn window(&self, rank: u32, place: Place, length: u64) -> Option<Window<'_>> {
        self.0.window(rank, place, length).filter(|_| self.0.rank == Some(rank))
    }
}

/// Its own slices are out of others' reach as well: it moves them, and the others do the work.
#[test]
fn a_rank_to_which_others_memory_is_refused_leaves_its_lane_to_them() {
    for operation in collectives().into_iter().filter(|o| !o.has_counts() && *o != Operation::Barrier) {
        run_with_refused(1, &Case { staged: vec![true; 3], ..plain(operation, 3, 600_001) });
    }
    for root in 0..2 {
        run_with_refused(1, &Case { staged: vec![true; 2], root, ..plain(Operation::Reduce, 2, LONE_COUNT) });
    }
}

/// Runs a case in which others' memory is refused to one rank.
fn run_with_refused(refused: u32, case: &Case) {
    let memory = Memory::new(case.ranks, case.room(), |_| true);
    let cell = cell(case.ranks);
    thread::scope(|scope| {
        for rank in 0..case.ranks {
            let (memory, mut member) = (&memory, Member::new(cell.clone(), rank));
            scope.spawn(move || {
                let sequence = case.begin(&mut member, rank, memory, false).expect("room");
                let reach = Reach { memory, rank: Some(rank) };
                if rank != refused {
                    assert_eq!(wait(&mut member, sequence, &reach), Poll::Done);
                } else {
                    let reach = Refused(reach);
                    loop {
                        match member.poll(sequence, &reach) {
                            Poll::Done => break,
                            Poll::Unmapped { .. } => {
                                assert!(member.leave_lane(sequence, &reach), "it has not begun");
                            }
                            _ => {}
                        }
                        thread::yield_now();
                    }
                }
                case.check(rank, memory);
            });
        }
    });
}

/// What others did then would meet what it has done.
#[test]
fn a_rank_that_has_begun_with_its_lane_does_not_leave_it() {
    let case = Case { staged: vec![true; 2], ..plain(Operation::Allreduce, 2, 600_001) };
    let (cell, memory) = (cell(2), Memory::new(2, case.room(), |_| true));
    let mut members = [0, 1].map(|rank| Member::new(cell.clone(), rank));
    let reach = |rank| Reach { memory: &memory, rank: Some(rank) };
    for (rank, member) in (0..).zip(&mut members) {
        assert_eq!(case.begin(member, rank, &memory, false), Some(1));
    }
    for (rank, member) in (0..).zip(&mut members) {
        assert_eq!(member.poll(1, &reach(rank)), Poll::Pending);
    }
    assert!(members[0].leave_lane(1, &reach(0)), "it had nothing to work with yet");
    assert!(!members[1].leave_lane(1, &reach(1)), "its lane is begun");
    thread::scope(|scope| {
        for (rank, member) in (0..).zip(&mut members) {
            let reach = reach(rank);
            scope.spawn(move || assert_eq!(wait(member, 1, &reach), Poll::Done));
        }
    });
    [0, 1].into_iter().for_each(|rank| case.check(rank, &memory));
}
