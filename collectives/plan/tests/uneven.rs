//! Operations that carry counts are proved right where ranks have nothing, or one of them nearly everything.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::{algorithms, layouts, small};
use ringway_plan::verify::{Counts, Scenario, verify};
use ringway_plan::{Call, Layout, Tuning};
use ringway_types::Operation;

/// What the rank so many places after the first one has, of `ranks`.
const COUNTS: [fn(u64, u64) -> u64; 6] = [
    |_, _| 0,
    |rank, _| if rank == 0 { 41 } else { 0 },
    |rank, ranks| if rank + 1 == ranks { 41 } else { 0 },
    |rank, ranks| if rank == ranks / 2 { 97 } else { 1 },
    |rank, _| if rank % 2 == 0 { 0 } else { 1 + 3 * (rank % 12) },
    |rank, _| (1 << (rank % 6)) - 1,
];

fn prove(operation: Operation, layout: &[u32], counts: fn(u64, u64) -> u64, tuning: &Tuning) {
    let layout = Layout::new(layout).unwrap();
    let ranks = layout.ranks();
    let n = u64::from(ranks);
    let counts = match operation {
        Operation::AllToAllV => Counts::PerPair((0..n * n).map(|pair| counts(pair, n * n)).collect()),
        _ => Counts::PerRank((0..n).map(|rank| counts(rank, n)).collect()),
    };
    let call = Call { operation, element: 4, count: 0, root: ranks / 3 };
    let in_place = (0..ranks).map(|rank| rank % 2 == 1).collect();
    let scenario = Scenario { layout, call, counts, in_place };
    for algorithm in algorithms(&scenario) {
        if let Err(violation) = verify(&scenario, algorithm, tuning) {
            panic!("{algorithm:?} {tuning:?}: {violation}\n{scenario:?}");
        }
    }
}

/// Chunks are shorter than the longest block, and longer than all of them.
#[test]
fn any_counts_are_right() {
    use Operation as O;
    for nodes in [1, 2, 3, 4, 6, 8] {
        for (i, layout) in layouts(nodes).iter().enumerate() {
            for operation in [O::AllGatherV, O::ReduceScatterV, O::GatherV, O::ScatterV, O::AllToAllV] {
                let quadratic = operation == O::AllToAllV && nodes > 4;
                for (j, counts) in COUNTS.into_iter().enumerate().filter(|_| !quadratic) {
                    let chunk_bytes = [64, 1 << 12][(i + j) % 2];
                    let group_nodes = if nodes == 8 { 4 } else { 0 };
                    prove(operation, layout, counts, &Tuning { group_nodes, ..small(chunk_bytes, 8) });
                }
            }
        }
    }
}
