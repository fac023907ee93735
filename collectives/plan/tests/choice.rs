//! Which plan is chosen, and that no input makes it panic.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::operations;
use proptest::prelude::*;
use ringway_plan::{Action, Algorithm, Blocks, Call, Ineligible, Layout, Pair, Plan, Stage, Tuning, View};
use ringway_types::Operation;

fn chosen(layout: &[u32], operation: Operation, count: u64) -> Algorithm {
    let layout = Layout::new(layout).unwrap();
    let call = Call { operation, element: 4, count, root: 0 };
    let view = View { layout: &layout, node: 0, call, blocks: Blocks::Uniform, in_place: &[] };
    Plan::choose(&view, &Tuning::default()).algorithm().unwrap()
}

#[test]
fn size_and_layout_decide() {
    assert_eq!(chosen(&[0, 0, 0], Operation::Allreduce, 1 << 20), Algorithm::Local);
    assert_eq!(chosen(&[0, 1], Operation::Allreduce, 1 << 10), Algorithm::Direct);
    assert_eq!(chosen(&[0, 1], Operation::Allreduce, 1 << 20), Algorithm::Ring);
    assert_eq!(chosen(&[0, 1], Operation::AllGather, 1 << 20), Algorithm::Direct);
    assert_eq!(chosen(&[0, 1], Operation::ReduceScatter, 1 << 4), Algorithm::Ring);
    assert_eq!(chosen(&[0, 1, 2], Operation::ReduceScatter, 1 << 4), Algorithm::Direct);
    assert_eq!(chosen(&[0, 1, 2], Operation::Allreduce, 1 << 10), Algorithm::Direct);
    assert_eq!(chosen(&[0, 1, 2], Operation::Allreduce, 1 << 20), Algorithm::Ring);
    assert_eq!(chosen(&[0, 1, 2], Operation::AllToAll, 1 << 20), Algorithm::Direct);
}

#[test]
fn what_cannot_be_is_refused_with_a_reason() {
    let layout = Layout::new(&[0, 1]).unwrap();
    let call = Call { operation: Operation::AllGather, element: 4, count: 8, root: 0 };
    let view = View { layout: &layout, node: 0, call, blocks: Blocks::Uniform, in_place: &[] };
    let refused = Plan::with(Algorithm::Ring, &view, &Tuning::default()).unwrap_err();
    assert_eq!(
        refused,
        Ineligible::TooFewNodes {
            algorithm: Algorithm::Ring,
            needed: 3,
            nodes: 2,
            instead: Algorithm::Direct
        }
    );
    assert_eq!(
        refused.to_string(),
        "algorithm ring needs at least 3 nodes, but the ranks are on 2; use direct"
    );
    assert!(Plan::with(Algorithm::Local, &view, &Tuning::default()).is_err());
    for algorithm in Algorithm::ALL {
        assert_eq!(Algorithm::from_name(algorithm.name()), Some(*algorithm));
    }
}

#[test]
fn pairs_have_names_and_need_groups() {
    let name = "hierarchical:two-shot+halving-doubling";
    let algorithm = Algorithm::from_name(name).unwrap();
    assert_eq!(
        algorithm,
        Algorithm::Hierarchical(Pair { inner: Stage::TwoShot, outer: Stage::HalvingDoubling })
    );
    assert_eq!(algorithm.to_string(), name);
    assert_eq!(Algorithm::ALL.iter().filter(|it| it.name().starts_with("hierarchical:")).count(), 33);
    assert_eq!(Algorithm::from_name("hierarchical:nhr"), None);
    let refused = |nodes: u32, operation, algorithm, group| {
        let layout = Layout::new(&(0..nodes).collect::<Vec<_>>()).unwrap();
        let call = Call { operation, element: 4, count: 8, root: 0 };
        let view = View { layout: &layout, node: 0, call, blocks: Blocks::Uniform, in_place: &[] };
        let tuning = Tuning { group_nodes: group, ..Tuning::default() };
        Plan::with(algorithm, &view, &tuning).err().map(|it| it.to_string())
    };
    let allreduce = |nodes, group| refused(nodes, Operation::Allreduce, algorithm, group);
    assert_eq!(allreduce(12, 0), None);
    assert_eq!(allreduce(12, 6), None);
    assert_eq!(
        allreduce(7, 0).unwrap(),
        "algorithm hierarchical:two-shot+halving-doubling needs two or more groups of equally many nodes, two or more \
         each, but 7 nodes cannot be cut into groups of any size; use nhr"
    );
    assert!(allreduce(12, 5).unwrap().ends_with("12 nodes cannot be cut into groups of 5; use nhr"));
    assert!(allreduce(12, 12).is_some() && allreduce(12, 1).is_some());
    assert_eq!(
        refused(6, Operation::ReduceScatter, Algorithm::HalvingDoubling, 0).unwrap(),
        "algorithm halving-doubling does reduce_scatter only between 2, 4, 8, ... nodes, but the ranks are on 6; use nhr"
    );
}

proptest! {
    /// Counts, roots, nodes and positions that make no sense give steps that make no sense, not a panic.
    #[test]
    fn nothing_panics(
        operation in prop::sample::select(operations().collect::<Vec<_>>()),
        ranks in prop::collection::vec(0_u32..5, 1..10),
        (element, count, root, node) in (0_u32..9, any::<u64>(), any::<u32>(), 0_u32..7),
        starts in prop::collection::vec(any::<u64>(), 0..12),
        (kind, chunk, index) in (0..3, any::<u64>(), prop_oneof![0_u32..300, any::<u32>()]),
        (chunk_bytes, pack_max_bytes, depth) in (any::<u64>(), any::<u64>(), any::<u32>()),
        group in 0_u32..5,
    ) {
        let layout = Layout::new(&ranks).unwrap();
        let blocks = match kind {
            0 => Blocks::Uniform,
            1 => Blocks::PerRank { starts: &starts },
            _ => Blocks::PerPair { sends: &starts, receives: &starts },
        };
        let call = Call { operation, element, count, root };
        let view = View { layout: &layout, node, call, blocks, in_place: &[true, false] };
        let tuning = Tuning { chunk_bytes, pack_max_bytes, depth, direct_max_bytes: 1, group_nodes: group, eager_write_max_bytes: 0 };
        let plans = Algorithm::ALL.iter().filter_map(|it| Plan::with(*it, &view, &tuning).ok());
        for plan in plans.chain([Plan::choose(&view, &tuning)]) {
            let shape = plan.shape(&view);
            prop_assert!(shape.depth >= 1);
            for chunk in [0, chunk] {
                let step = plan.step(&view, chunk, index);
                prop_assert!(step.after.iter().all(|range| range.is_empty() || range.end <= index));
                prop_assert!(index < shape.steps || step.action == Action::Nothing);
            }
        }
    }
}
