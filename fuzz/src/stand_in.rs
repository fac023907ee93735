//! A cell whose ranks write whatever they like while the daemon acts for one of them.
#![expect(clippy::expect_used, reason = "what a target itself sets up must be there")]

use std::sync::Arc;

use ringway_cell::{Call, Cell, Member, Place, Poll, Regions, SLOTS, Signature, StandIn};
use ringway_mem::{Mapping, Window};
use ringway_types::{DataType, Operation, Reduction};

use crate::Reader;

const RANKS: u32 = 2;
const REGION_BYTES: u64 = 64 << 10;
const REGION: u64 = 70;

/// Where the records are in the file, in words.
const RECORDS: u64 = 64 + RANKS as u64 * 64;
const RECORD: u64 = 8 + 256;
/// A rank's own words: consumed, called.
const OWN: u64 = 64;

/// The region of rank 0. Nobody else's memory is asked for in its place.
struct Own(Mapping);

impl Regions for Own {
    fn window(&self, rank: u32, place: Place, length: u64) -> Option<Window<'_>> {
        assert_eq!(rank, 0, "the daemon acts for rank 0");
        self.0.window(place.offset, length).filter(|_| place.region == REGION)
    }
}

/// The memory of rank 1, which nobody but itself needs here.
struct Theirs(Mapping);

impl Regions for Theirs {
    fn window(&self, rank: u32, place: Place, length: u64) -> Option<Window<'_>> {
        self.0.window(place.offset, length).filter(|_| rank == 1)
    }
}

fn mapping(bytes: u64) -> Mapping {
    Mapping::private(usize::try_from(bytes).expect("it fits")).expect("memory")
}

/// A call as the daemon would have checked it.
fn call(reader: &mut Reader<'_>) -> Call<'static> {
    const COUNTS: [u64; 4] = [40; 4];
    let [operation, datatype, large] = reader.bytes();
    let operation = Operation::from_code(operation % 17).filter(|o| o.is_collective());
    let operation = operation.unwrap_or(Operation::Allreduce);
    let needed = match operation {
        Operation::AllToAllV => 4,
        _ if operation.has_counts() => 2,
        _ => 0,
    };
    let place = |offset| Some(Place { region: REGION, offset });
    Call {
        operation,
        datatype: DataType::from_code(datatype % 12).unwrap_or(DataType::F32),
        reduction: operation.reduces().then_some(Reduction::Max),
        scale: None,
        root: 0,
        count: if large % 4 == 0 { 2000 } else { u64::from(large) / 4 },
        counts: COUNTS.get(..needed).unwrap_or_default(),
        input: place(0),
        output: place(REGION_BYTES / 2),
        staging: None,
    }
}

/// The daemon acts for rank 0, as its client asks, while anything changes in the cell: it never panics, has no more calls
/// under way than there are slots, and asks for no memory but that rank's.
pub fn stand_in(bytes: &[u8]) {
    let length = ringway_cell::bytes(RANKS).expect("a cell");
    let file = Arc::new(mapping(length));
    let cell = Cell::attach(Arc::clone(&file), RANKS).expect("attach");
    let (own, theirs) = (Own(mapping(REGION_BYTES)), Theirs(mapping(REGION_BYTES)));
    let (mut rank, mut peer) = (Member::new(cell.clone(), 0), Member::new(cell.clone(), 1));
    let mut stand_in = StandIn::new(cell.clone(), 0);
    let mut known: Vec<u64> = Vec::new();
    let mut reader = Reader(bytes);
    let put = |word: u64, value: u64| {
        let window = file.window(word % (length / 8) * 8, 8).expect("inside");
        window.write(&value.to_le_bytes());
    };
    while !reader.is_empty() {
        match reader.u8() % 10 {
            0 => drop(peer.begin(&call(&mut reader), true, &theirs)),
            1 => drop(rank.begin(&call(&mut reader), true, &own)),
            2 => {
                if known.is_empty() {
                    let _ = stand_in.take_over();
                }
            }
            3 => {
                // As the record says, or of something else.
                let [back, wild, offset] = reader.bytes();
                let sequence = stand_in.called().wrapping_sub(u64::from(back));
                let signature = cell.signature(0, sequence);
                let signature = signature.filter(|_| wild % 4 > 0).unwrap_or(Signature {
                    operation: Operation::Allreduce,
                    datatype: DataType::U8,
                    reduction: Some(Reduction::Max),
                    root: 0,
                    count: u64::from(wild) << (wild % 64),
                });
                let place = Some(Place { region: REGION, offset: u64::from(offset) << 9 });
                if stand_in.adopt(sequence, &signature, [place, place], &own).is_ok() {
                    known.push(sequence);
                }
            }
            4 | 5 if known.len() < SLOTS as usize => {
                known.extend(stand_in.begin(&call(&mut reader), &own));
            }
            // A word of a record.
            6 => {
                let [who, slot, word, value] = reader.bytes();
                let record = u64::from(who % 2) * SLOTS + u64::from(slot % 64);
                put(RECORDS + record * RECORD + u64::from(word % 12), u64::from(value));
            }
            // How far a rank has come.
            7 => put(OWN + u64::from(reader.u8() % 128), reader.u64()),
            8 => put(length / 8 - 1 - u64::from(reader.u32() % 4096), u64::from(reader.u8())),
            _ => known.retain(|sequence| {
                let poll = stand_in.poll(*sequence, &own);
                let needs_others = matches!(poll, Poll::Unmapped { .. } | Poll::Stale { .. });
                assert!(!needs_others, "it needs nobody else's regions");
                poll != Poll::Done
            }),
        }
        let _ = (stand_in.waits_for_nobody(stand_in.called()), cell.has_stand_in());
    }
}

/// Calls taken over and made, by themselves and with words changed.
#[must_use]
pub fn stand_in_samples() -> Vec<Vec<u8>> {
    let mut samples = Vec::new();
    for operation in 1..17 {
        for large in [8, 0] {
            let own = [1, operation, 8, large];
            let peer = [0, operation, 8, large];
            let taken = [2, 3, 0, 1, 0];
            let made = [4, operation, 8, large];
            samples.push([&own[..], &taken, &made, &peer, &[9], &peer, &[9, 9]].concat());
        }
    }
    let [own, taken, made] = [&[1, 1, 8, 8][..], &[2, 3, 0, 1, 0][..], &[4, 1, 8, 8][..]];
    for word in [0_u8, 1, 64, 65] {
        for value in [0, 1, 1 << 62, u64::MAX] {
            let wild = [&[7, word][..], &u64::to_le_bytes(value)].concat();
            samples.push([own, &wild, taken, made, &[9]].concat());
            samples.push([own, taken, &wild, made, &[9]].concat());
        }
    }
    // More than there are slots.
    samples.push([own, taken, &made.repeat(70), &[9]].concat());
    samples.push([own, &[2, 3, 0, 0, 0], &[3, 0, 0, 255], &[9]].concat());
    samples.push(Vec::new());
    samples
}
