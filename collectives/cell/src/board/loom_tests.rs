//! Every interleaving of a board's protocol, under loom. Run with `--cfg loom`.

use std::sync::Arc;

use loom::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
};
use ringway_mem::Mapping;

use super::{Board, Kind, Offers, Operand, Work, slots, worker::find};
use crate::Place;

fn board() -> Board {
    Board::attach(Arc::new(Mapping::private(super::board_bytes() as usize).expect("map"))).expect("attach")
}

/// Offers a copy that says its key in every operand.
fn offer(offers: &mut Offers, key: u64) -> bool {
    let place = Place { region: key, offset: key + 10 };
    let operands = [Operand { rank: key as u32, place, scale: None }];
    offers.offer(key, &Work { kind: Kind::Copy, length: key * 8, operands: &operands })
}

/// Does at most one piece, as a rank does; what is done by whom is counted where the key says.
fn help(board: &Board, rank: u32, done: &[AtomicU64]) {
    let mut operands = Vec::new();
    let Some((at, seen, kind, length)) = find(&board.0, rank, &mut operands) else { return };
    if slots::claim(&board.0, at, seen, rank as u16) {
        let key = length / 8;
        let place = Place { region: key, offset: key + 10 };
        let expected = Operand { rank: key as u32, place, scale: None };
        assert_eq!((kind, operands.as_slice()), (Kind::Copy, &[expected][..]), "a torn description");
        // Not atomic: two at the same piece would lose one.
        let before = done[key as usize].load(Relaxed);
        done[key as usize].store(before + 1, Relaxed);
        slots::finish(&board.0, at, seen, true);
    }
}

fn counters() -> Arc<Vec<AtomicU64>> {
    Arc::new((0..3).map(|_| AtomicU64::new(0)).collect())
}

#[test]
fn a_piece_is_done_once_and_seen_and_its_slot_is_used_again() {
    loom::model(|| {
        let (board, done) = (board(), counters());
        let mut offers = Offers::new(board.clone(), 2);
        assert!(offer(&mut offers, 1));
        let worker = {
            let (board, done) = (board.clone(), done.clone());
            thread::spawn(move || help(&board, 0, &done))
        };
        // The daemon collects or does it itself, and offers another in the same slot.
        let first = match offers.collect() {
            Some(key) => Some(key),
            None => offers.take().inspect(|key| {
                let before = done[*key as usize].load(Relaxed);
                done[*key as usize].store(before + 1, Relaxed);
            }),
        };
        if first.is_some() {
            assert_eq!(first, Some(1));
            assert_eq!(done[1].load(Relaxed), 1, "what was done is visible");
            assert!(offer(&mut offers, 2));
        }
        worker.join().expect("no panic");
        let mut collected = first.is_some();
        while let Some(key) = offers.collect() {
            collected |= key == 1;
            assert_eq!(done[key as usize].load(Relaxed), 1);
        }
        assert!(collected, "who claims a piece finishes it");
        assert!(done[2].load(Relaxed) <= 1 && !offers.is_tampered_with());
    });
}

#[test]
fn two_ranks_do_not_do_the_same_piece() {
    loom::model(|| {
        let (board, done) = (board(), counters());
        let mut offers = Offers::new(board.clone(), 2);
        assert!(offer(&mut offers, 1));
        let workers: Vec<_> = (0..2)
            .map(|rank| {
                let (board, done) = (board.clone(), done.clone());
                thread::spawn(move || help(&board, rank, &done))
            })
            .collect();
        workers.into_iter().for_each(|worker| worker.join().expect("no panic"));
        assert_eq!((offers.collect(), done[1].load(Relaxed)), (Some(1), 1));
    });
}

#[test]
fn what_was_withdrawn_is_not_begun_and_what_is_held_is_waited_for() {
    loom::model(|| {
        let (board, done) = (board(), counters());
        let mut offers = Offers::new(board.clone(), 2);
        assert!(offer(&mut offers, 1));
        let worker = {
            let (board, done) = (board.clone(), done.clone());
            thread::spawn(move || help(&board, 0, &done))
        };
        let gone = offers.withdraw(1);
        let seen = done[1].load(Relaxed);
        worker.join().expect("no panic");
        let after = done[1].load(Relaxed);
        if gone {
            assert_eq!(seen, after, "nobody writes once it is withdrawn");
            assert_eq!((offers.collect(), offers.count()), (None, 0));
        } else {
            assert_eq!(after, 1, "somebody had it");
            assert!(offers.withdraw(1));
        }
    });
}
