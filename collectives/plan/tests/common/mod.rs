//! Scenarios for the tests.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "each test file uses a part")]
#![allow(unreachable_pub, reason = "shared between test files")]

use ringway_plan::verify::{Counts, Scenario};
use ringway_plan::{Algorithm, Call, Layout, Tuning};
use ringway_types::Operation;

/// Every collective.
pub fn operations() -> impl Iterator<Item = Operation> {
    Operation::ALL.iter().copied().filter(|operation| operation.is_collective())
}

/// A few ways to put ranks on this many nodes: one each, uneven, interleaved.
pub fn layouts(nodes: u32) -> Vec<Vec<u32>> {
    let uneven = (0..nodes).flat_map(|node| (0..=(node * 2 + 1) % 3).map(move |_| node)).collect();
    let interleaved = (0..2).flat_map(|_| 0..nodes).collect();
    let mut mixed: Vec<u32> = (0..nodes).chain((0..nodes).rev()).collect();
    mixed.push(0);
    mixed.push(nodes - 1);
    vec![(0..nodes).collect(), uneven, interleaved, mixed]
}

/// Small constants, so that small calls have several chunks, packed and single blocks.
pub fn small(chunk_bytes: u64, pack_max_bytes: u64) -> Tuning {
    Tuning {
        chunk_bytes,
        direct_max_bytes: 16,
        depth: 2,
        pack_max_bytes,
        group_nodes: 0,
        eager_write_max_bytes: 0,
    }
}

/// A call with counts that depend on `size`, some of them zero.
pub fn scenario(
    operation: Operation,
    layout: &[u32],
    size: u64,
    element: u32,
    root: u32,
    in_place: fn(u32) -> bool,
) -> Scenario {
    let layout = Layout::new(layout).unwrap();
    let ranks = layout.ranks();
    let counts = match operation {
        Operation::AllToAllV => {
            let pairs = u64::from(ranks) * u64::from(ranks);
            Counts::PerPair((0..pairs).map(|i| (i * 7 + i / u64::from(ranks)) % (size + 1)).collect())
        }
        _ if operation.has_counts() => {
            Counts::PerRank((0..u64::from(ranks)).map(|i| (i * 5 + 1) % (size + 1)).collect())
        }
        _ => Counts::Uniform,
    };
    let count = if operation.has_counts() || operation == Operation::Barrier { 0 } else { size };
    let call = Call { operation, element, count, root: root % ranks };
    Scenario { layout, call, counts, in_place: (0..ranks).map(in_place).collect() }
}

/// The algorithms that can do it, and none for the one that is chosen.
pub fn algorithms(scenario: &Scenario) -> Vec<Option<Algorithm>> {
    let offered = Algorithm::ALL.iter().copied().filter(|algorithm| scenario.offers(*algorithm));
    core::iter::once(None).chain(offered.map(Some)).collect()
}
