//! Plans for people: the steps of all nodes for one call of a symbolic size, each with the blocks that it moves.
//!
//! A step says where bytes lie, not what they are. Here every rank's input is cut into blocks with names, and steps are run in an
//! order that the rules allow, each place remembering which block was written to it. Into how many blocks a call is cut is found by
//! trying: the fewest of which every step moves whole ones.
//!
//! [`crate::file::export`] says them as files do, where that can be done. Steps keep the numbers by which the verifier names them.

mod blocks;
mod run;

use std::sync::Arc;

use ringway_types::Operation as O;
use thiserror::Error;

use crate::call::is_on_vectors;
use crate::file::{Listed, NODES_MAX};
use crate::verify::{Counts, Scenario, Violation, list};
use crate::{Algorithm, Call, Ineligible, Layout, Plan, Source, Step, Tuning, View};

use run::Run;

/// The most blocks that all steps move together. A ring of 128 nodes moves 65 thousand.
pub const MOVED_MAX: usize = 1 << 21;
/// Bytes of a block: more than the 4 KiB up to which blocks are packed whatever [`Tuning::pack_max_bytes`] says.
const BLOCK: u64 = 8 << 10;
/// Bytes of a chunk: everything.
const ONE_CHUNK: u64 = 1 << 50;

/// Why there is no trace.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Untraced {
    /// The algorithm cannot do the operation.
    #[error(transparent)]
    Ineligible(#[from] Ineligible),
    /// There are no traces of so many nodes.
    #[error("steps are shown of 1 to {NODES_MAX} nodes, not of {nodes}")]
    Nodes {
        /// The nodes.
        nodes: u32,
    },
    /// Steps move too much to be shown.
    #[error("the steps move more than {MOVED_MAX} blocks in all")]
    Long,
    /// What is between steps and blocks.
    #[error("node {node} step {step}: {why}")]
    Step {
        /// The node.
        node: u32,
        /// The step's number.
        step: usize,
        /// What is in the way.
        why: &'static str,
    },
}

/// The steps of all nodes.
#[derive(Debug, Clone)]
pub struct Trace {
    operation: O,
    layout: Layout,
    /// Blocks that have names.
    blocks: u32,
    /// Blocks that a rank's vector, or a rank's block, is cut into.
    parts: u32,
    scratch: u32,
    chunk_bytes: u64,
    /// Of every node.
    steps: Vec<Vec<Traced>>,
    messages: Vec<Message>,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Traced {
    /// What is done, where and after which steps, in blocks instead of bytes.
    pub step: Step,
    /// The names of the blocks that it moves; where it combines, those of one operand, which all have.
    pub blocks: Vec<u32>,
    /// How many steps must be done one after the other before it, idle ones not counted.
    pub time: u32,
    /// It does nothing and waits for nothing but others like it: it keeps numbers regular.
    pub is_idle: bool,
}

/// A message: the node and the step that send it, and those that receive it.
pub type Message = [(u32, u32); 2];

impl Trace {
    /// Traces an algorithm.
    ///
    /// # Errors
    /// [`Untraced`].
    pub fn of_algorithm(
        algorithm: Algorithm,
        operation: O,
        nodes: u32,
        tuning: &Tuning,
    ) -> Result<Self, Untraced> {
        Self::run(&Source::Algorithm(algorithm), operation, nodes, tuning).map(|run| run.trace)
    }

    /// Traces a plan from a file.
    ///
    /// # Errors
    /// [`Untraced`].
    pub fn of_listed(listed: &Arc<Listed>) -> Result<Self, Untraced> {
        let source = Source::Listed(Arc::clone(listed));
        Self::run(&source, listed.operation(), listed.nodes(), &Tuning::default()).map(|run| run.trace)
    }

    fn run(source: &Source, operation: O, nodes: u32, tuning: &Tuning) -> Result<Run, Untraced> {
        if !(1..=NODES_MAX).contains(&nodes) {
            return Err(Untraced::Nodes { nodes });
        }
        let layout = layout(source, operation, nodes).ok_or(Untraced::Nodes { nodes })?;
        let one = Tuning { chunk_bytes: ONE_CHUNK, pack_max_bytes: 0, depth: 1, ..*tuning };
        let plan = |view: &View<'_>| match source {
            Source::Algorithm(algorithm) => Plan::with(*algorithm, view, &one),
            Source::Listed(listed) => Plan::listed_in(ONE_CHUNK, listed, view, &one),
        };
        let tries = match source {
            Source::Algorithm(_) => 1..=4 * nodes,
            Source::Listed(listed) if is_on_vectors(operation) => listed.blocks()..=listed.blocks(),
            Source::Listed(_) => 1..=1,
        };
        let mut uneven = (0, 0);
        for parts in tries {
            let scenario = scenario(operation, &layout, parts);
            let call = scenario.node_call(0);
            // Most numbers of blocks do not suit the first node already.
            if !blocks::are_whole(&plan(&call.view())?, &call.view()) {
                continue;
            }
            let programs = list(&scenario, plan).map_err(|violation| match violation {
                Violation::Ineligible(why) => Untraced::Ineligible(why),
                Violation::DifferentPlans { node } => {
                    Untraced::Step { node, step: 0, why: "it chooses another plan than node 0" }
                }
                _ => Untraced::Step { node: 0, step: 0, why: "its plan cannot be listed" },
            })?;
            let steps = match blocks::steps(&programs) {
                Ok(steps) => steps,
                Err(at) => {
                    uneven = at;
                    continue;
                }
            };
            let chunk_bytes = match source {
                Source::Algorithm(it) => Plan::with(*it, &call.view(), tuning)?.unit(),
                Source::Listed(listed) => listed.chunk_bytes(),
            };
            let scratch = programs.iter().map(|program| program.shape.scratch.div_ceil(BLOCK)).max();
            let scratch = scratch.and_then(|blocks| u32::try_from(blocks).ok()).unwrap_or(0);
            let layout = layout.clone();
            let trace = Self {
                operation,
                layout,
                blocks: 0,
                parts,
                scratch,
                chunk_bytes,
                steps,
                messages: Vec::new(),
            };
            let mut run = Run::new(trace);
            run.finish()?;
            if let Source::Listed(listed) = source {
                run.trace.keep_first_turn(listed);
            }
            return Ok(run);
        }
        let (node, step) = uneven;
        Err(Untraced::Step { node, step, why: "its bytes are not whole blocks, of however many" })
    }

    /// Leaves out of a file's steps those for the second rank of every node: they are the same.
    fn keep_first_turn(&mut self, listed: &Listed) {
        for (node, steps) in (0..).zip(&mut self.steps) {
            steps.truncate(listed.steps(node).len());
        }
        let has = |(node, step): (u32, u32)| (step as usize) < listed.steps(node).len();
        self.messages.retain(|ends| ends.iter().all(|end| has(*end)));
        if !is_on_vectors(self.operation) {
            self.blocks = self.layout.nodes();
            self.scratch = listed.scratch();
        }
    }

    /// What is done.
    #[must_use]
    pub const fn operation(&self) -> O {
        self.operation
    }

    /// Who is where.
    #[must_use]
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// How many blocks have names: those from 0 on.
    #[must_use]
    pub const fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Into how many blocks a rank's vector is cut; a rank's block, or a pair's, where there are such.
    #[must_use]
    pub const fn parts(&self) -> u32 {
        self.parts
    }

    /// Blocks for which there is room in scratch memory.
    #[must_use]
    pub const fn scratch(&self) -> u32 {
        self.scratch
    }

    /// The most bytes that a chunk has of a rank's vector, or of each rank's or pair's block.
    #[must_use]
    pub const fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    /// Whether blocks are parts of one vector, and not each of a rank or a pair.
    #[must_use]
    pub const fn is_on_vectors(&self) -> bool {
        is_on_vectors(self.operation)
    }

    /// All messages.
    #[must_use]
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The steps of a node; none for a node that does not exist.
    #[must_use]
    pub fn steps(&self, node: u32) -> &[Traced] {
        self.steps.get(node as usize).map_or(&[], Vec::as_slice)
    }

    /// The ranks that give and get a block, in operations in which pairs of ranks have blocks.
    #[must_use]
    pub fn pair(&self, block: u32) -> Option<(u32, u32)> {
        match self.operation {
            O::AllToAll | O::AllToAllV => {
                let (pair, ranks) = (block / self.parts, self.layout.ranks());
                Some((pair / ranks, pair % ranks))
            }
            _ => None,
        }
    }
}

/// Who is where. Two ranks on a node show what the second one gets, in operations on vectors. Elsewhere every rank has blocks of its
/// own, and there would be twice as many steps; but of a file's, which are the same for both, the first ones' can be taken, whose ranks
/// have the numbers of their nodes.
fn layout(source: &Source, operation: O, nodes: u32) -> Option<Layout> {
    let of_file = matches!(source, Source::Listed(_));
    let node_of: Vec<u32> = match is_on_vectors(operation) {
        true => (0..2 * nodes).map(|rank| rank / 2).collect(),
        false if of_file => (0..2 * nodes).map(|rank| rank % nodes).collect(),
        false => (0..nodes).collect(),
    };
    Layout::new(&node_of)
}

/// A call in which every vector, or every rank's or pair's block, is so many blocks.
fn scenario(operation: O, layout: &Layout, parts: u32) -> Scenario {
    let (bytes, ranks) = (BLOCK * u64::from(parts), layout.ranks() as usize);
    let counts = match operation {
        O::AllToAllV => Counts::PerPair(vec![bytes; ranks * ranks]),
        _ if operation.has_counts() => Counts::PerRank(vec![bytes; ranks]),
        _ => Counts::Uniform,
    };
    let count = if counts == Counts::Uniform && operation != O::Barrier { bytes } else { 0 };
    let call = Call { operation, element: 1, count, root: 0 };
    Scenario { layout: layout.clone(), call, counts, in_place: vec![false; ranks] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Action, Place};

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
                let run = match Trace::run(&Source::Algorithm(algorithm), operation, nodes, &tuning) {
                    Ok(run) => run,
                    Err(Untraced::Ineligible(_)) => continue,
                    Err(error) => panic!("{operation} {algorithm} {nodes}: {error}"),
                };
                traced += 1;
                let (layout, parts) = (run.trace.layout(), run.trace.parts());
                for rank in 0..layout.ranks() {
                    let (node, local) = (layout.node_of(rank), layout.local_index(rank));
                    for (at, block) in (0..).zip(output(operation, (rank, layout.ranks()), parts)) {
                        let found = run.found(node, Place::Output(local), at);
                        assert_eq!(
                            found,
                            Some(block),
                            "{operation} {algorithm} {nodes}: rank {rank} at {at}"
                        );
                    }
                }
            }
        }
        assert!(traced > 500, "{traced}");
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
            let trace =
                Trace::of_algorithm(Algorithm::HalvingDoubling, O::Allreduce, nodes, &Tuning::default());
            let trace = trace.expect("traced");
            for node in 0..nodes {
                for traced in trace.steps(node).iter().filter(|traced| !traced.is_idle) {
                    let waits = traced.step.after.iter().flat_map(Clone::clone);
                    let waits = waits.filter_map(|step| trace.steps(node).get(step as usize));
                    let before =
                        waits.filter(|step| !step.is_idle).map(|step| step.time + 1).max().unwrap_or(0);
                    let is_received = matches!(traced.step.action, Action::Receive { .. });
                    assert!(traced.time == before || is_received && traced.time > before, "{traced:?}");
                }
            }
            for [(from, sent), (to, received)] in trace.messages() {
                let time = |node: u32, step: u32| trace.steps(node)[step as usize].time;
                assert!(time(*from, *sent) < time(*to, *received));
            }
        }
    }
}
