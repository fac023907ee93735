//! Plans for random calls are proved right.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::{algorithms, operations, scenario, small};
use proptest::prelude::*;
use ringway_plan::verify::{Counts, Scenario, verify};
use ringway_plan::{Call, Layout, Tuning};
use ringway_types::Operation;

fn scenarios() -> impl Strategy<Value = Scenario> {
    let operations: Vec<Operation> = operations().collect();
    let layout = prop::collection::vec(0_u32..6, 1..=12);
    (prop::sample::select(operations), layout, prop::sample::select(vec![1_u32, 2, 4, 8]), 0_u64..40)
        .prop_flat_map(|(operation, layout, element, count)| {
            let ranks = layout.len();
            let counts = match operation {
                Operation::AllToAllV => {
                    prop::collection::vec(0..=count / 4, ranks * ranks).prop_map(Counts::PerPair).boxed()
                }
                _ if operation.has_counts() => {
                    prop::collection::vec(0..=count, ranks).prop_map(Counts::PerRank).boxed()
                }
                _ => Just(Counts::Uniform).boxed(),
            };
            let in_place = prop::collection::vec(any::<bool>(), ranks);
            (Just((operation, layout, element, count)), counts, in_place, any::<u32>())
        })
        .prop_map(|((operation, layout, element, count), counts, in_place, root)| {
            let ranks = u32::try_from(layout.len()).unwrap();
            let count = if operation.has_counts() || operation == Operation::Barrier { 0 } else { count };
            let call = Call { operation, element, count, root: root % ranks };
            Scenario { layout: Layout::new(&layout).unwrap(), call, counts, in_place }
        })
}

fn tunings() -> impl Strategy<Value = Tuning> {
    (1_u64..200, 0_u64..64, 0_u64..64, 1_u32..5).prop_map(
        |(chunk_bytes, pack_max_bytes, direct_max_bytes, depth)| Tuning {
            chunk_bytes,
            direct_max_bytes,
            depth,
            pack_max_bytes,
            group_nodes: 0,
            eager_write_max_bytes: 0,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn plans_are_right(scenario in scenarios(), tuning in tunings()) {
        for algorithm in algorithms(&scenario) {
            let proof = verify(&scenario, algorithm, &tuning);
            prop_assert!(proof.is_ok(), "{algorithm:?}: {}", proof.unwrap_err());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]
    /// More nodes than the grid has, one algorithm at a time.
    #[test]
    fn plans_for_many_nodes_are_right(
        nodes in 65_u32..=140,
        operation in prop::sample::select(vec![
            Operation::Allreduce,
            Operation::ReduceScatter,
            Operation::ReduceScatterV,
            Operation::AllGather,
            Operation::AllGatherV,
        ]),
        (size, chunk_bytes, which) in (0_u64..4, 1_u64..400, any::<prop::sample::Index>()),
    ) {
        let layout: Vec<u32> = (0..nodes).collect();
        let size = if operation == Operation::Allreduce { size * u64::from(nodes) / 2 } else { size };
        let scenario = scenario(operation, &layout, size, 1, 0, |rank| rank % 2 == 0);
        let algorithms = algorithms(&scenario);
        let algorithm = algorithms[which.index(algorithms.len())];
        let tuning = small(chunk_bytes.max(u64::from(nodes)), 0);
        let proof = verify(&scenario, algorithm, &tuning);
        prop_assert!(proof.is_ok(), "{algorithm:?}: {}", proof.unwrap_err());
    }
}
