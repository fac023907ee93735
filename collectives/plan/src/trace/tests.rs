//! Traces, replayed by what they say themselves.

use std::collections::BTreeMap;

use super::*;
use crate::{OutputSet, Place, Span, Targets};

/// Which block lies where, by node.
#[derive(Default)]
struct Replay(BTreeMap<(u32, Place, u64), u32>);

impl Replay {
    /// Does all steps, the earlier ones first. Whatever one reads must be the blocks that it says it moves.
    fn of(trace: &Trace, place: &str) -> Self {
        let mut replay = Self::default();
        let call = (trace.operation, &trace.layout, trace.parts);
        let scenario = scenario(trace.operation, &trace.layout, u64::from(trace.parts));
        for rank in 0..trace.layout.ranks() {
            let (node, local) = (trace.layout.node_of(rank), trace.layout.local_index(rank));
            for at in 0..scenario.buffers(rank).0 {
                replay.0.insert((node, Place::Input(local), at), name_of(call, (rank, at)));
            }
        }
        let nodes = 0..trace.layout.nodes();
        let mut steps: Vec<_> = nodes
            .flat_map(|node| trace.steps(node).iter().map(move |step| (step.time, node, step)))
            .collect();
        steps.sort_by_key(|(time, ..)| *time);
        for [(from, sent), (to, received)] in &trace.messages {
            let blocks = |node: u32, step: u32| &trace.steps(node)[step as usize].blocks;
            assert_eq!(blocks(*from, *sent), blocks(*to, *received), "{place}");
        }
        for (_, node, traced) in steps {
            replay.step(trace, node, traced, place);
        }
        replay
    }

    fn step(&mut self, trace: &Trace, node: u32, Traced { step, blocks, .. }: &Traced, place: &str) {
        let scratch = |offset, length| Span { place: Place::Scratch, offset, length };
        let locals = u32::try_from(trace.layout.local(node).len()).expect("few ranks");
        let reads = match step.action {
            Action::Send { from, .. } | Action::Copy { from, .. } => vec![from],
            Action::Reduce { sources, length, .. } => {
                let at = |i| sources.partials.offset + u64::from(i) * sources.partials.stride;
                let partials = (0..sources.partials.count).map(|i| scratch(at(i), length));
                let input = |offset| Span { place: Place::Input(0), offset, length };
                partials.chain(sources.inputs.map(input)).collect()
            }
            Action::Scan { carry, length, .. } | Action::Fold { carry, length, .. } => {
                carry.map(|at| scratch(at, length)).into_iter().collect()
            }
            Action::Nothing | Action::Receive { .. } => Vec::new(),
            Action::Swap { .. } => panic!("{place}: nothing is in place"),
        };
        for span in reads {
            let found: Vec<_> = (span.offset..span.offset + span.length)
                .map(|at| self.0.get(&(node, span.place, at)))
                .collect();
            assert_eq!(found, blocks.iter().map(Some).collect::<Vec<_>>(), "{place} node {node}: {step:?}");
        }
        let targets = match step.action {
            Action::Receive { into, .. } => vec![(into.place, into.offset)],
            Action::Copy { into, .. } | Action::Reduce { into, .. } => {
                let Targets { outputs, offset, scratch } = into;
                let outputs = (0..locals).filter(|local| outputs.has(*local));
                let outputs = outputs.map(|local| (Place::Output(local), offset));
                outputs.chain(scratch.map(|at| (Place::Scratch, at))).collect()
            }
            Action::Fold { into, .. } => vec![(Place::Scratch, into)],
            Action::Scan { offset, .. } => {
                let first = trace.operation == O::Exscan && node == 0;
                let outputs = if first { OutputSet::AllBut(0) } else { OutputSet::All };
                (0..locals)
                    .filter(|local| outputs.has(*local))
                    .map(|local| (Place::Output(local), offset))
                    .collect()
            }
            _ => Vec::new(),
        };
        for (place, offset) in targets {
            self.0.extend((offset..).zip(blocks).map(|(at, block)| ((node, place, at), *block)));
        }
    }
}

/// The names of the blocks that belong in a rank's output.
fn output(operation: O, (rank, ranks): (u32, u32), parts: u32) -> Vec<u32> {
    let at_root = |blocks: u32| if rank == 0 { (0..blocks).collect() } else { Vec::new() };
    match operation {
        O::Allreduce | O::Broadcast | O::Scan => (0..parts).collect(),
        O::Exscan if rank > 0 => (0..parts).collect(),
        O::Reduce => at_root(parts),
        O::AllGather | O::AllGatherV => (0..ranks * parts).collect(),
        O::Gather | O::GatherV => at_root(ranks * parts),
        O::ReduceScatter | O::ReduceScatterV | O::Scatter | O::ScatterV => {
            (rank * parts..(rank + 1) * parts).collect()
        }
        O::AllToAll | O::AllToAllV => (0..ranks)
            .flat_map(|from| (0..parts).map(move |part| (from * ranks + rank) * parts + part))
            .collect(),
        _ => Vec::new(),
    }
}

#[test]
fn every_algorithm_ends_with_every_block_where_it_belongs() {
    let mut traced = 0;
    let collectives = O::ALL.iter().filter(|operation| operation.is_collective());
    for (operation, algorithm) in collectives.flat_map(|o| Algorithm::ALL.iter().map(move |a| (*o, *a))) {
        for nodes in [1, 2, 3, 4, 5, 8, 12] {
            let tuning = Tuning::default();
            let trace = match Trace::of_algorithm(algorithm, operation, nodes, &tuning) {
                Ok(trace) => trace,
                Err(Untraced::Ineligible(_)) => continue,
                Err(error) => panic!("{operation} {algorithm} {nodes}: {error}"),
            };
            traced += 1;
            let place = format!("{operation} {algorithm} {nodes}");
            let replay = Replay::of(&trace, &place);
            let (layout, parts) = (&trace.layout, trace.parts);
            for rank in 0..layout.ranks() {
                let (node, local) = (layout.node_of(rank), layout.local_index(rank));
                for (at, block) in (0..).zip(output(operation, (rank, layout.ranks()), parts)) {
                    let found = replay.0.get(&(node, Place::Output(local), at)).copied();
                    assert_eq!(found, Some(block), "{operation} {algorithm} {nodes}: rank {rank} at {at}");
                }
            }
        }
    }
    assert!(traced > 500, "{traced}");
}

/// Few steps may be under way at once: what is received may not keep those out that others wait for.
#[test]
fn many_nodes_do_not_wait_for_each_other_for_good() {
    let collectives = O::ALL.iter().filter(|operation| operation.is_collective());
    let simple = Algorithm::ALL.iter().filter(|algorithm| !matches!(algorithm, Algorithm::Hierarchical(_)));
    for (operation, algorithm) in collectives.flat_map(|o| simple.clone().map(move |a| (*o, *a))) {
        match Trace::of_algorithm(algorithm, operation, NODES_MAX, &Tuning::default()) {
            Ok(_) | Err(Untraced::Ineligible(_)) => {}
            Err(error) => panic!("{operation} {algorithm}: {error}"),
        }
    }
}

#[test]
fn what_an_algorithm_does_not_do_is_refused() {
    let refused = |algorithm, nodes| Trace::of_algorithm(algorithm, O::Scan, nodes, &Tuning::default());
    assert!(matches!(refused(Algorithm::Ring, 4), Err(Untraced::Ineligible(_))));
    assert_eq!(refused(Algorithm::Direct, 129).err(), Some(Untraced::Nodes { nodes: 129 }));
    assert_eq!(refused(Algorithm::Direct, 0).err(), Some(Untraced::Nodes { nodes: 0 }));
}

/// What a file says of a step is what is shown of it, whatever ranks its nodes have.
#[test]
fn a_file_is_traced_step_by_step() {
    use crate::file::{Location, What, export};
    let all = [
        (Algorithm::Ring, O::Allreduce),
        (Algorithm::Tree, O::Broadcast),
        (Algorithm::Direct, O::AllGather),
        (Algorithm::Ring, O::AllGather),
        (Algorithm::Direct, O::ReduceScatter),
        (Algorithm::Direct, O::Gather),
        (Algorithm::Direct, O::Scatter),
    ];
    for (algorithm, operation) in all {
        let listed = export(algorithm, operation, 4, &Tuning::default()).expect("exported");
        let trace = Trace::of_listed(&listed).expect("traced");
        for node in 0..4 {
            assert_eq!(trace.steps(node).len(), listed.steps(node).len(), "{operation} {algorithm}");
            for (traced, entry) in trace.steps(node).iter().zip(listed.steps(node)) {
                let place = format!("{operation} {algorithm} node {node}: {entry:?}, {traced:?}");
                assert_eq!(traced.step.after, entry.after, "{place}");
                let blocks: Vec<u32> = (entry.block..entry.block + entry.count).collect();
                match (entry.what, traced.step.action) {
                    (What::Nothing, Action::Nothing) => continue,
                    (What::Send { peer, tag, .. }, Action::Send { peer: to, tag: with, .. })
                    | (What::Receive { peer, tag, .. }, Action::Receive { peer: to, tag: with, .. }) => {
                        // Tags of the two turns differ.
                        let turns = if is_on_vectors(operation) { 1 } else { 2 };
                        assert_eq!((peer, tag * turns), (to, with), "{place}");
                    }
                    (What::Copy { from, .. }, Action::Copy { from: span, .. }) => {
                        assert_eq!(
                            from == Location::Output,
                            matches!(span.place, Place::Output(_)),
                            "{place}"
                        );
                    }
                    (What::Reduce { finish, .. }, Action::Reduce { finish: found, .. }) => {
                        assert_eq!(finish, found, "{place}");
                    }
                    _ => panic!("{place}"),
                }
                assert_eq!(traced.blocks, blocks, "{place}");
            }
        }
    }
}

/// Times are those of the longest chains, in which what does nothing does not count.
#[test]
fn a_step_comes_after_what_it_waits_for() {
    for nodes in [2, 3, 6, 7] {
        let trace = Trace::of_algorithm(Algorithm::HalvingDoubling, O::Allreduce, nodes, &Tuning::default());
        let trace = trace.expect("traced");
        for node in 0..nodes {
            for traced in trace.steps(node).iter().filter(|traced| !traced.is_idle) {
                let waits = traced.step.after.iter().flat_map(Clone::clone);
                let waits = waits.filter_map(|step| trace.steps(node).get(step as usize));
                let before = waits.filter(|step| !step.is_idle).map(|step| step.time + 1).max().unwrap_or(0);
                let is_received = matches!(traced.step.action, Action::Receive { .. });
                assert!(traced.time == before || is_received && traced.time > before, "{traced:?}");
            }
        }
        for [(from, sent), (to, received)] in &trace.messages {
            let time = |node: u32, step: u32| trace.steps(node)[step as usize].time;
            assert!(time(*from, *sent) < time(*to, *received));
        }
    }
}
