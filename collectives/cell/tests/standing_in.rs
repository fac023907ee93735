//! A rank whose part changes hands: nobody else can tell.
#![allow(clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "these are tests")]

mod common;

use std::sync::Arc;

use common::{mapping, mixed, ordered_float};
use proptest::prelude::*;
use ringway_cell::{
    Call, Cell, Helper, Member, Place, Poll, Refusal, Regions, SLOTS, Signature, StandIn, bytes,
};
use ringway_mem::{Mapping, Window};
use ringway_types::{DataType, Operation, Reduction};

const RANKS: u32 = 3;
/// Calls that each rank makes.
const CALLS: u64 = 150;
/// Bytes of one call's input, and of its output.
const BYTES: u64 = 12_288;

/// Every rank's only region, which has its number.
struct Memory(Vec<Arc<Mapping>>);

impl Regions for Memory {
    fn window(&self, rank: u32, place: Place, length: u64) -> Option<Window<'_>> {
        let region = self.0.get(rank as usize).filter(|_| place.region == u64::from(rank))?;
        region.window(place.offset, length)
    }
}

fn put(window: Window<'_>, value: u64) {
    window.write(&value.to_le_bytes());
}

/// All elements of what rank `rank` contributes to call `number`: the order in which ranks are combined matters.
fn value(rank: u32, number: u64) -> f64 {
    ordered_float(mixed(number << 8 | u64::from(rank)))
}

fn sum(ranks: impl Iterator<Item = u32>, number: u64) -> f64 {
    ranks.map(|rank| value(rank, number)).reduce(|sum, value| sum + value).expect("ranks")
}

/// What rank `rank` calls as number `number`, from 1: small and large sums of all ranks or of those up to it, and broadcasts
/// that need nobody, short ones and such as have their payload in the pool.
fn call(rank: u32, number: u64) -> Call<'static> {
    let broadcast = number.is_multiple_of(3);
    let root = (number % u64::from(RANKS)) as u32;
    let long = number.is_multiple_of(5) || broadcast && number % 20 < 10;
    let count = if long { BYTES / 8 } else { 1 };
    let place = |offset| Some(Place { region: u64::from(rank), offset });
    let operation = match number {
        _ if broadcast => Operation::Broadcast,
        _ if number.is_multiple_of(7) => Operation::Scan,
        _ => Operation::Allreduce,
    };
    Call {
        operation,
        datatype: DataType::F64,
        reduction: (!broadcast).then_some(Reduction::Sum),
        root: if broadcast { root } else { 0 },
        count,
        input: place(2 * number * BYTES).filter(|_| !broadcast || rank == root),
        output: place((2 * number + 1) * BYTES),
        ..Call::BARRIER
    }
}

fn setup() -> (Cell, Memory) {
    let cell = Cell::attach(mapping(bytes(RANKS).expect("ranks")), RANKS).expect("attach");
    let memory = Memory((0..RANKS).map(|_| mapping(2 * (CALLS + 1) * BYTES)).collect());
    for rank in 0..RANKS {
        for number in 1..=CALLS {
            let at = Place { region: u64::from(rank), offset: 2 * number * BYTES };
            let window = memory.window(rank, at, BYTES).expect("inside");
            let bits = value(rank, number).to_bits();
            (0..window.length() / 8).for_each(|at| put(window.sub(at * 8, 8).expect("inside"), bits));
        }
    }
    (cell, memory)
}

fn verify(memory: &Memory, rank: u32, number: u64) {
    let Call { operation, root, count, output, .. } = call(rank, number);
    let expected = match operation {
        Operation::Broadcast => value(root, number),
        Operation::Scan => sum(0..rank + 1, number),
        _ => sum(0..RANKS, number),
    };
    let window = memory.window(rank, output.expect("given"), count * 8).expect("inside");
    for at in 0..count as usize {
        let mut bytes = [0; 8];
        window.sub(at * 8, 8).expect("inside").read(&mut bytes);
        let found = u64::from_le_bytes(bytes);
        assert_eq!(found, expected.to_bits(), "rank {rank}, call {number}, element {at}");
    }
}

#[test]
fn the_order_of_ranks_shows_in_many_sums() {
    let numbers = (1..=CALLS).filter(|number| sum(0..RANKS, *number) != sum((0..RANKS).rev(), *number));
    assert!(numbers.count() as u64 > CALLS / 10);
}

/// A rank, and the daemon when it acts for it.
struct Rank {
    rank: u32,
    member: Member,
    stand_in: StandIn,
    away: bool,
    /// Calls made.
    made: u64,
    /// Those that are not over.
    open: Vec<u64>,
}

impl Rank {
    fn new(cell: &Cell, rank: u32) -> Self {
        let (member, stand_in) = (Member::new(cell.clone(), rank), StandIn::new(cell.clone(), rank));
        Self { rank, member, stand_in, away: false, made: 0, open: Vec::new() }
    }

    fn make(&mut self, memory: &Memory) {
        if self.made == CALLS {
            return;
        }
        let call = call(self.rank, self.made + 1);
        let begun = if self.away {
            assert_eq!(self.member.begin(&call, false, memory), None, "it does not act");
            self.stand_in.begin(&call, memory)
        } else {
            self.member.begin(&call, true, memory)
        };
        if let Some(sequence) = begun {
            self.made += 1;
            assert_eq!(sequence, self.made);
            self.open.push(sequence);
        }
    }

    fn look(&mut self, nth: usize, memory: &Memory) {
        let Some(nth) = nth.checked_rem(self.open.len()) else { return };
        let sequence = self.open[nth];
        let poll =
            if self.away { self.stand_in.poll(sequence, memory) } else { self.member.poll(sequence, memory) };
        match poll {
            Poll::Done => {
                self.open.swap_remove(nth);
                verify(memory, self.rank, sequence);
            }
            Poll::Pending => {}
            other => panic!("rank {}, call {sequence}: {other:?}", self.rank),
        }
    }

    /// Gives the part to the other.
    fn change(&mut self, memory: &Memory) {
        if self.away {
            if self.open.is_empty() {
                self.member.resume().expect("possible");
                assert_eq!(self.member.called(), self.made);
                self.away = false;
            }
            return;
        }
        self.member.hand_over();
        self.away = true;
        self.stand_in.take_over().expect("possible");
        self.open.sort_unstable();
        for sequence in &self.open {
            let (signature, input, output) = self.member.outstanding(*sequence).expect("not over");
            self.stand_in.adopt(*sequence, &signature, [input, output], memory).expect("as published");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_part_may_change_hands_at_any_time(
        steps in proptest::collection::vec((0..RANKS, 0_u8..16, 0_usize..64), 200..1500),
    ) {
        let (cell, memory) = setup();
        let mut ranks: Vec<_> = (0..RANKS).map(|rank| Rank::new(&cell, rank)).collect();
        let mut helper = Helper::new(cell);
        for (rank, what, nth) in steps {
            let rank = &mut ranks[rank as usize];
            match what {
                0..8 => rank.make(&memory),
                8..14 => rank.look(nth, &memory),
                14 => rank.change(&memory),
                _ => drop(helper.work(&memory, 16 << 10)),
            }
        }
        // Then everybody goes on to the end.
        let mut rounds = 0;
        while ranks.iter().any(|rank| rank.made < CALLS || !rank.open.is_empty()) {
            for rank in &mut ranks {
                rank.make(&memory);
                (0..rank.open.len()).for_each(|nth| rank.look(nth, &memory));
                if rank.away && rank.open.is_empty() {
                    rank.change(&memory);
                }
            }
            helper.work(&memory, 16 << 10);
            rounds += 1;
            prop_assert!(rounds < 10_000, "they do not get on");
        }
    }
}

#[test]
fn what_was_not_published_so_is_not_taken_over() {
    let (cell, memory) = setup();
    let mut rank = Rank::new(&cell, 0);
    (0..4).for_each(|_| rank.make(&memory));
    let signature = |sequence| rank.member.outstanding(sequence).expect("not over").0;
    let (first, second, third) = (signature(1), signature(2), signature(3));
    let input = Place { region: 0, offset: 0 };
    let output = Some(input);
    let mut stand_in = StandIn::new(cell.clone(), 0);
    stand_in.take_over().expect("possible");
    let mut adopt =
        |sequence, signature, output| stand_in.adopt(sequence, signature, [Some(input), output], &memory);
    assert!(matches!(adopt(0, &first, output), Err(Refusal::Sequence { .. })));
    assert!(matches!(adopt(5, &first, output), Err(Refusal::Sequence { .. })));
    assert!(matches!(adopt(u64::MAX, &first, output), Err(Refusal::Sequence { .. })));
    let other = Signature { count: 2, ..first };
    assert!(matches!(adopt(1, &other, output), Err(Refusal::Signature { .. })));
    assert!(matches!(adopt(3, &first, output), Err(Refusal::Signature { .. })));
    assert!(matches!(adopt(1, &first, None), Err(Refusal::Output { .. })));
    let outside = Some(Place { region: 0, offset: u64::MAX });
    assert!(matches!(adopt(1, &first, outside), Err(Refusal::Output { .. })));
    assert!(matches!(adopt(1, &first, Some(Place { region: 1, offset: 0 })), Err(Refusal::Output { .. })));
    adopt(2, &second, output).expect("as published");
    assert!(matches!(adopt(1, &first, output), Err(Refusal::Sequence { .. })), "it is over by now");
    assert!(matches!(adopt(2, &second, output), Err(Refusal::Sequence { .. })), "once is enough");
    adopt(3, &third, output).expect("as published");
}

#[test]
fn a_full_cell_has_no_room_for_a_stand_in_either() {
    let (cell, memory) = setup();
    let mut member = Member::new(cell.clone(), 0);
    for sequence in 1..=SLOTS {
        assert_eq!(member.begin(&Call::BARRIER, false, &memory), Some(sequence));
    }
    assert_eq!((member.begin(&Call::BARRIER, false, &memory), member.room_after()), (None, 1));
    member.hand_over();
    let mut stand_in = StandIn::new(cell.clone(), 0);
    stand_in.take_over().expect("possible");
    assert_eq!((stand_in.begin(&Call::BARRIER, &memory), stand_in.room_after()), (None, 1));
    assert!(!cell.has_stand_in());
    cell.set_stood_in(0, true);
    assert!(cell.has_stand_in() && !cell.has_left(0) && !cell.has_exited(0));
    cell.set_stood_in(0, false);
    assert!(!cell.has_stand_in());
}

#[test]
fn words_that_cannot_be_are_refused() {
    let file = mapping(bytes(RANKS).expect("ranks"));
    let cell = Cell::attach(Arc::clone(&file), RANKS).expect("attach");
    // How many calls rank 0 has consumed and published stand after the header of 64 words.
    let words = file.window(64 * 8, 16).expect("inside");
    let mut stand_in = StandIn::new(cell.clone(), 0);
    for (consumed, called, possible) in [
        (0, 0, true),
        (7, 7, true),
        (1, SLOTS + 1, true),
        (0, SLOTS + 1, false),
        (8, 7, false),
        (u64::MAX, u64::MAX, false),
        (u64::MAX - SLOTS, u64::MAX, false),
    ] {
        put(words.sub(0, 8).expect("inside"), consumed);
        put(words.sub(8, 8).expect("inside"), called);
        assert_eq!(stand_in.take_over().is_ok(), possible, "{consumed} of {called}");
        assert_eq!(Member::new(cell.clone(), 0).resume().is_ok(), possible);
    }
}
