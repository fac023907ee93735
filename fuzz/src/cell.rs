//! A cell whose ranks write whatever they like, whenever they like, while the daemon works in it.
#![expect(clippy::expect_used, reason = "what a target itself sets up must be there")]

use std::{cell::Cell as Counted, sync::Arc};

use ringway_cell::{Call, Cell, Helper, INLINE_BYTES, Member, Place, Regions};
use ringway_mem::{Mapping, Window};
use ringway_types::{DataType, Operation, Reduction};

use crate::Reader;

const RANKS: u32 = 2;
/// Bytes of each rank's only region.
const REGION_BYTES: u64 = 64 << 10;
/// What one call may read and write beyond what it was asked for: a block is never cut.
const BLOCK_BYTES: u64 = 2 * RANKS as u64 * (64 << 10);
const BUDGET_BYTES: u64 = 32 << 10;

/// Where the records are in the file, in words: there most changes are worth something.
const RECORDS: u64 = 64 + RANKS as u64 * 64;
const RECORD: u64 = 8 + 256;

/// The ranks' regions, by handle: rank r has registered number 70 + r, and nothing else.
struct Memory {
    regions: [Mapping; RANKS as usize],
    asked: Counted<u64>,
}

impl Regions for Memory {
    fn window(&self, rank: u32, place: Place, length: u64) -> Option<Window<'_>> {
        self.asked.set(self.asked.get() + 1);
        let region = self.regions.get(rank as usize).filter(|_| place.region == 70 + u64::from(rank))?;
        region.window(place.offset, length)
    }
}

fn mapping(bytes: u64) -> Mapping {
    Mapping::private(usize::try_from(bytes).expect("it fits")).expect("memory")
}

/// An honest call of any kind: what the changes begin with.
fn begin(member: &mut Member, rank: u32, reader: &mut Reader<'_>, memory: &Memory) {
    let [operation, datatype, reduction, half] = reader.bytes();
    let operation = Operation::from_code(operation % 17).unwrap_or(Operation::Allreduce);
    let datatype = DataType::from_code(datatype % 12).unwrap_or(DataType::F32);
    let reduction = Reduction::from_code(reduction % 12).unwrap_or(Reduction::Sum);
    let reduction = if datatype.supports(reduction) { reduction } else { Reduction::Max };
    let counts = [u64::from(half) * 16; 4];
    let needed = match operation {
        Operation::AllToAllV => 4,
        Operation::GatherV | Operation::ScatterV if rank > 0 => 1,
        _ if operation.has_counts() => 2,
        _ => 0,
    };
    let place = |offset| Some(Place { region: 70 + u64::from(rank), offset });
    let call = Call {
        operation,
        datatype,
        reduction: operation.reduces().then_some(reduction),
        scale: (reduction == Reduction::PremulSum).then_some(2),
        root: 0,
        // More than what travels beside the records, and a quarter of a region at most.
        count: INLINE_BYTES as u64 / datatype.size() as u64 + u64::from(half) * 4 + 1,
        counts: counts.get(..needed).unwrap_or_default(),
        input: place(0),
        output: place(if half & 1 == 0 { REGION_BYTES / 2 } else { 0 }),
        staging: None,
    };
    let _ = member.begin(&call, true, memory);
}

/// The ranks' steps and the daemon's: it never panics, asks for no memory but the ranks' own, and one turn of it is bounded.
pub fn helper(bytes: &[u8]) {
    let length = ringway_cell::bytes(RANKS).expect("a cell");
    let file = Arc::new(mapping(length));
    let cell = Cell::attach(Arc::clone(&file), RANKS).expect("attach");
    let memory = Memory { regions: [mapping(REGION_BYTES), mapping(REGION_BYTES)], asked: Counted::new(0) };
    let mut members = [Member::new(cell.clone(), 0), Member::new(cell.clone(), 1)];
    let mut helper = Helper::new(cell.clone());
    let mut reader = Reader(bytes);
    let put = |word: u64, value: u64| {
        let window = file.window(word % (length / 8) * 8, 8).expect("inside");
        window.write(&value.to_le_bytes());
    };
    while !reader.is_empty() {
        match reader.u8() % 8 {
            0 | 1 => {
                let before = (reader.0, members[0].called());
                begin(&mut members[0], 0, &mut Reader(before.0), &memory);
                begin(&mut members[1], 1, &mut reader, &memory);
            }
            // A word of a record.
            2 | 3 => {
                let [rank, slot, word, value] = reader.bytes();
                let record = u64::from(rank % 2) * 64 + u64::from(slot % 64);
                put(RECORDS + record * RECORD + u64::from(word % 12), u64::from(value));
            }
            4 => {
                let [rank, slot, word] = reader.bytes();
                let record = u64::from(rank % 2) * 64 + u64::from(slot % 64);
                put(RECORDS + record * RECORD + u64::from(word % 12), reader.u64());
            }
            // A rank's own words, and the counters at the end.
            5 => put(u64::from(reader.u8()), reader.u64()),
            6 => put(length / 8 - 1 - u64::from(reader.u32() % 4096), u64::from(reader.u8())),
            _ => {
                let before = memory.asked.get();
                let worked = helper.work(&memory, BUDGET_BYTES);
                assert!(worked <= BUDGET_BYTES + BLOCK_BYTES, "{worked} bytes");
                assert!(memory.asked.get() - before <= 2 * u64::from(RANKS));
            }
        }
    }
    let _ = (helper.has_work(), cell.at_work(), cell.contradiction(1), cell.verdict());
    for _ in 0..4 {
        assert!(helper.work(&memory, BUDGET_BYTES) <= BUDGET_BYTES + BLOCK_BYTES);
    }
}

/// Calls of every kind, worked on; with words of their records changed; with wild counters.
#[must_use]
pub fn helper_samples() -> Vec<Vec<u8>> {
    let mut samples = Vec::new();
    let [allreduce, all_to_all_v] = [1, 13];
    for operation in 1..17 {
        let call = [0, operation, 8, 0, 200];
        let work = [7; 8];
        samples.push([&call[..], &work].concat());
        if operation != allreduce && operation != all_to_all_v {
            continue;
        }
        for word in 0..8 {
            for value in [0, 71] {
                let change = [2, 1, 1, word, value];
                samples.push([&call[..], &change, &work].concat());
            }
        }
        let wild = [4, 0, 1, 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
        samples.push([&call[..], &wild, &work].concat());
    }
    // Help is wanted with a call that is far away.
    samples.push([&[5, 72][..], &u64::MAX.to_le_bytes(), &[7; 4]].concat());
    samples.push(Vec::new());
    samples
}
