//! Boards with real memory, threads for ranks, and things that go wrong.
#![allow(clippy::expect_used, clippy::panic, reason = "a test that cannot go on must fail")]

use std::{
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use proptest::prelude::*;
use ringway_mem::{Mapping, Window};
use ringway_reduce::Source;
use ringway_types::{DataType, Reduction};

use super::{
    Board, HEADER, Helped, Kind, LINE, OPERANDS_MAX, Offers, Operand, PIECE_BYTES, PIECES, SCRATCH, SLOT,
    WORDS, Work, Worker, piece, slots,
};
use crate::{Place, Regions};

/// Bytes of each rank's region, and of scratch.
const REGION: usize = 1 << 20;

fn map(length: usize) -> Arc<Mapping> {
    Arc::new(Mapping::private(length).expect("map"))
}

fn board() -> (Board, Arc<Mapping>) {
    let mapping = map(super::board_bytes() as usize);
    (Board::attach(Arc::clone(&mapping)).expect("attach"), mapping)
}

/// Region 7 of every rank, and scratch memory.
#[derive(Debug, Clone)]
struct Memory {
    ranks: Vec<Arc<Mapping>>,
    scratch: Arc<Mapping>,
}

impl Memory {
    fn new(ranks: usize) -> Self {
        let fill = |seed: usize| {
            let mapping = map(REGION);
            let bytes: Vec<u8> = (0..REGION).map(|i| ((i * 31 + seed * 7) >> (i & 3)) as u8).collect();
            mapping.window(0, REGION as u64).expect("window").write(&bytes);
            mapping
        };
        Self { ranks: (0..ranks).map(fill).collect(), scratch: fill(ranks) }
    }

    fn copy(&self) -> Self {
        let copy = |from: &Arc<Mapping>| {
            let into = map(REGION);
            let windows = (from.window(0, REGION as u64), into.window(0, REGION as u64));
            let (from, to) = (windows.0.expect("window"), windows.1.expect("window"));
            ringway_reduce::copy(from, &[to]).expect("copy");
            into
        };
        Self { ranks: self.ranks.iter().map(copy).collect(), scratch: copy(&self.scratch) }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut all = Vec::new();
        for mapping in self.ranks.iter().chain([&self.scratch]) {
            let mut bytes = vec![0; REGION];
            mapping.window(0, REGION as u64).expect("window").read(&mut bytes);
            all.extend(bytes);
        }
        all
    }
}

impl Regions for Memory {
    fn window(&self, rank: u32, place: Place, length: u64) -> Option<Window<'_>> {
        let mapping = match place.region {
            SCRATCH => &self.scratch,
            7 => self.ranks.get(rank as usize)?,
            _ => return None,
        };
        mapping.window(place.offset, length)
    }
}

const fn at(rank: u32, offset: u64) -> Operand {
    Operand { rank, place: Place { region: 7, offset }, scale: None }
}

const fn scratch(offset: u64) -> Operand {
    Operand { rank: 0, place: Place { region: SCRATCH, offset }, scale: None }
}

/// Piece number `n`: of some kind, over bytes that no other has.
fn work(n: u64, operands: &mut Vec<Operand>) -> (Kind, u64) {
    let (offset, length) = (n * 4096, 64 * (1 + n % 64));
    let (datatype, reduction) = (DataType::I32, Reduction::Sum);
    operands.clear();
    let kind = match n % 4 {
        0 => {
            let scaled = Operand { scale: Some(3), ..at(1, offset) };
            operands.extend([scratch(offset), at(0, offset), scaled, at(2, offset), at(2, offset)]);
            let reduction = Reduction::PremulSum;
            Kind::Reduce { datatype, reduction, sources: 4, divisor: None }
        }
        1 => {
            let pairs = (0..3).flat_map(|rank| [at(rank, offset), at(rank, offset)]);
            operands.extend(core::iter::once(scratch(offset)).chain(pairs));
            Kind::Scan { datatype, reduction, carry: true, before: 2, inclusive: true }
        }
        2 => {
            operands.extend([at(1, offset), scratch(offset), at(0, offset)]);
            Kind::Copy
        }
        _ => {
            operands.extend([at(0, offset), at(2, offset)]);
            Kind::Swap
        }
    };
    (kind, length)
}

/// Does a piece as the daemon does: from what it kept.
fn run(n: u64, memory: &Memory) {
    let (board, _) = board();
    let mut offers = Offers::new(board.clone(), 3);
    let mut operands = Vec::new();
    let (kind, length) = work(n, &mut operands);
    assert!(offers.offer(n, &Work { kind, length, operands: &operands }));
    let bytes = length * operands.len() as u64;
    assert_eq!(Worker::new(board, 0).work(memory), Helped::Did { bytes });
    assert_eq!(offers.collect(), Some(n));
}

/// How many pieces fit the regions.
const ROUNDS: u64 = (REGION / 4096) as u64;

#[test]
fn ranks_and_the_daemon_do_every_piece_once() {
    let (memory, (board, _)) = (Memory::new(3), board());
    let expected = memory.copy();
    (0..ROUNDS).for_each(|n| run(n, &expected));
    let (mut offers, over) = (Offers::new(board.clone(), 3), AtomicBool::new(false));
    let helped = thread::scope(|scope| {
        let (memory, over) = (&memory, &over);
        let workers: Vec<_> = (0..3)
            .map(|rank| {
                let mut worker = Worker::new(board.clone(), rank);
                worker.set_present(true);
                scope.spawn(move || {
                    let mut did = 0_u64;
                    while !over.load(Ordering::Relaxed) {
                        match worker.work(memory) {
                            Helped::Did { .. } => did += 1,
                            Helped::Nothing => thread::yield_now(),
                            unmapped => panic!("{unmapped:?}"),
                        }
                    }
                    did
                })
            })
            .collect();
        assert_eq!(offers.company(), 3);
        let (mut offered, mut done, mut own) = (0, vec![0; ROUNDS as usize], 0);
        let mut operands = Vec::new();
        while done.contains(&0) {
            if offered < ROUNDS {
                let (kind, length) = work(offered, &mut operands);
                offered += u64::from(offers.offer(offered, &Work { kind, length, operands: &operands }));
            }
            while let Some(key) = offers.collect() {
                done[key as usize] += 1;
            }
            if offered % 8 == 0
                && let Some(key) = offers.take()
            {
                run(key, memory);
                done[key as usize] += 1;
                own += 1;
            }
            thread::yield_now();
        }
        over.store(true, Ordering::Relaxed);
        assert!(done.iter().all(|times| *times == 1));
        let helped: u64 = workers.into_iter().map(|worker| worker.join().expect("no panic")).sum();
        assert_eq!(helped + own, ROUNDS);
        helped
    });
    assert!(helped <= ROUNDS && offers.company() == 0 && !offers.is_tampered_with());
    assert!(memory.bytes() == expected.bytes(), "the results differ");
}

#[test]
fn pieces_give_what_the_kernels_give() {
    let memory = Memory::new(3);
    let expected = memory.copy();
    run(0, &memory);
    let window = |operand: Operand| expected.window(operand.rank, operand.place, 64).expect("window");
    let plain = |operand| Source { window: window(operand), scale: None };
    let scaled = Source { scale: Some(ringway_reduce::Scalar::signed(3)), ..plain(at(1, 0)) };
    let sources = [plain(scratch(0)), plain(at(0, 0)), scaled, plain(at(2, 0))];
    let into = [window(at(2, 0))];
    ringway_reduce::reduce(DataType::I32, Reduction::PremulSum, &sources, &into, None).expect("reduce");
    assert!(memory.bytes() == expected.bytes());
    // A swap twice is no change.
    let before = memory.bytes();
    run(3, &memory);
    assert!(memory.bytes() != before);
    run(3, &memory);
    assert!(memory.bytes() == before);
}

/// Claims the first piece and goes no further.
fn stop_in_the_middle(board: &Board, rank: u16) -> slots::Seen {
    let seen = slots::look(&board.0, HEADER).expect("an offer");
    assert!(slots::claim(&board.0, HEADER, seen, rank));
    seen
}

fn offer_first(offers: &mut Offers) {
    let operands = [at(0, 0), at(1, 0)];
    assert!(offers.offer(5, &Work { kind: Kind::Copy, length: 64, operands: &operands }));
}

#[test]
fn a_piece_whose_claimer_stops_is_nobody_elses_until_its_process_has_ended() {
    let (board, _) = board();
    let mut offers = Offers::new(board.clone(), 3);
    offer_first(&mut offers);
    let seen = stop_in_the_middle(&board, 1);
    assert_eq!((offers.collect(), offers.take(), offers.holder(5)), (None, None, Some(1)));
    assert!(!offers.withdraw(5), "it may resume and write");
    offers.set_exited(0);
    offers.set_exited(9);
    assert!(!offers.withdraw(5));
    offers.set_exited(1);
    assert!(offers.withdraw(5));
    assert_eq!((offers.count(), offers.holder(5)), (0, None));
    // Its last words come when the slot is used again: the board is not to be trusted any more.
    offer_first(&mut offers);
    slots::finish(&board.0, HEADER, seen, true);
    assert_eq!(offers.collect(), None);
    assert!(offers.is_tampered_with() && !offers.withdraw(5));
    offers.set_exited(2);
    assert!(offers.withdraw(5), "nobody is left");
}

#[test]
fn a_claimer_that_finishes_lets_go() {
    let (board, _) = board();
    let mut offers = Offers::new(board.clone(), 2);
    offer_first(&mut offers);
    let seen = stop_in_the_middle(&board, 1);
    assert!(!offers.withdraw(5));
    slots::finish(&board.0, HEADER, seen, true);
    assert!(offers.withdraw(5) && offers.withdraw(5));
    assert_eq!(offers.collect(), None, "what was withdrawn is not collected");
    // One that could not do it gives it back to the daemon, and to no other rank.
    offer_first(&mut offers);
    let seen = stop_in_the_middle(&board, 1);
    slots::finish(&board.0, HEADER, seen, false);
    assert_eq!(Worker::new(board, 0).work(&Memory::new(2)), Helped::Nothing);
    assert_eq!((offers.collect(), offers.take(), offers.count()), (None, Some(5), 0));
}

#[test]
fn what_does_not_fit_or_cannot_be_is_not_offered() {
    let (board, _) = board();
    let mut offers = Offers::new(board.clone(), 2);
    let many = vec![at(0, 0); OPERANDS_MAX + 1];
    let refused = [
        (Kind::Copy, 64, many.as_slice()),
        (Kind::Copy, PIECE_BYTES + 8, &many[..2]),
        (Kind::Copy, 64, &[]),
        (Kind::Swap, 64, &many[..3]),
    ];
    for (kind, length, operands) in refused {
        assert!(!offers.offer(1, &Work { kind, length, operands }), "{kind:?}");
    }
    for key in 0..PIECES as u64 {
        assert!(offers.offer(key, &Work { kind: Kind::Copy, length: 64, operands: &many[..2] }));
    }
    assert!(!offers.offer(99, &Work { kind: Kind::Copy, length: 64, operands: &many[..2] }), "it is full");
    let elsewhere = Place { region: 8, offset: 0 };
    assert!(offers.withdraw(0));
    let operands = [at(0, 0), Operand { rank: 1, place: elsewhere, scale: None }];
    assert!(offers.offer(0, &Work { kind: Kind::Copy, length: 64, operands: &operands }));
    let memory = Memory::new(2);
    let unmapped = Helped::Unmapped { rank: 1, region: 8 };
    assert_eq!(Worker::new(board.clone(), 0).work(&memory), unmapped);
    assert_eq!(offers.holder(0), None, "who cannot reach a piece does not claim it");
    offers.close();
    assert_eq!(Worker::new(board, 1).work(&memory), Helped::Nothing, "nothing is begun on a closed board");
    assert!((0..PIECES as u64).all(|key| offers.withdraw(key)));
    assert!(!offers.offer(1, &Work { kind: Kind::Copy, length: 64, operands: &many[..2] }));
}

fn kinds() -> impl Strategy<Value = Kind> {
    let types = (0..DataType::ALL.len(), 0..Reduction::ALL.len())
        .prop_map(|(d, r)| (DataType::ALL[d], Reduction::ALL[r]))
        .prop_filter("defined", |(datatype, reduction)| datatype.supports(*reduction));
    prop_oneof![
        (types.clone(), 1_u32..20, proptest::option::of(1_u32..)).prop_map(
            |((datatype, reduction), sources, divisor)| Kind::Reduce {
                datatype,
                reduction,
                sources,
                divisor
            }
        ),
        (types, any::<bool>(), any::<u32>(), any::<bool>()).prop_map(
            |((datatype, reduction), carry, before, inclusive)| {
                Kind::Scan { datatype, reduction, carry, before, inclusive }
            }
        ),
        Just(Kind::Copy),
        Just(Kind::Swap),
    ]
}

proptest! {
    #[test]
    fn descriptions_come_back(
        kind in kinds(),
        length in 0..=PIECE_BYTES,
        operands in proptest::collection::vec(
            (any::<u32>(), any::<u64>(), any::<u64>(), any::<Option<u64>>()), 1..=OPERANDS_MAX
        ),
    ) {
        let operands: Vec<_> = operands
            .into_iter()
            .map(|(rank, region, offset, scale)| Operand { rank, place: Place { region, offset }, scale })
            .collect();
        prop_assume!(piece::is_sound(kind, length, operands.len()));
        let (board, _) = board();
        piece::describe(&board.0, HEADER, &Work { kind, length, operands: &operands });
        let mut read = Vec::new();
        prop_assert_eq!(piece::read(&board.0, HEADER, &mut read), Some((kind, length)));
        prop_assert_eq!(read, operands);
    }

    /// Whatever stands on a board, nobody panics, nothing is touched outside of what is mapped, and a key comes back at
    /// most once.
    #[test]
    fn nonsense_does_no_harm(
        words in proptest::collection::vec((0..WORDS, prop_oneof![any::<u64>(), 0_u64..5, Just(u64::MAX)]), 1..200),
        steps in proptest::collection::vec((0_u8..6, 0..WORDS, any::<u64>()), 1..100),
    ) {
        static MEMORY: LazyLock<Memory> = LazyLock::new(|| Memory::new(2));
        let (memory, (board, _)) = (&*MEMORY, board());
        let mut offers = Offers::new(board.clone(), 2);
        let mut worker = Worker::new(board.clone(), 1);
        let (mut next, mut gone, mut operands) = (0_u64, Vec::new(), Vec::new());
        for (index, value) in words {
            board.0.store(index, value);
        }
        for (what, index, value) in steps {
            match what {
                0 => {
                    let (kind, length) = work(next % ROUNDS, &mut operands);
                    next += u64::from(offers.offer(next, &Work { kind, length, operands: &operands }));
                }
                1 => gone.extend(offers.collect()),
                2 => gone.extend(offers.take()),
                3 => board.0.store(index, value),
                4 => {
                    // A state that could be.
                    board.0.store(HEADER + index % PIECES * SLOT, ((value % 40) << 24) | (((value >> 8) % 3) << 8) | (value % 5));
                    board.0.store(HEADER + index % PIECES * SLOT + LINE, value);
                }
                _ => {
                    let _ = worker.work(memory);
                }
            }
        }
        offers.set_exited(0);
        offers.set_exited(1);
        gone.sort_unstable();
        prop_assert!(gone.windows(2).all(|pair| pair[0] != pair[1]) && gone.iter().all(|key| *key < next));
        prop_assert!((0..next).all(|key| offers.withdraw(key)), "with nobody left, nothing is held");
    }
}
