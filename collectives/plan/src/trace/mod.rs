//! Plans for people: the steps of all nodes for one call of a symbolic size, each with the blocks that it moves.
//!
//! A step says where bytes lie, not what they are. Here every rank's input is cut into blocks with names, and steps are run in an
//! order that the rules allow, each place remembering which block was written to it. Blocks are as few as steps tell apart; into how
//! many a call is cut is found by trying.

mod blocks;
mod run;

use std::sync::Arc;

use ringway_types::Operation as O;
use thiserror::Error;

use crate::file::Listed;
use crate::verify::{Counts, Scenario, Violation, list};
use crate::{Algorithm, Call, Ineligible, Layout, Plan, Source, Step, Tuning};

use run::Run;

/// The most nodes of a trace.
pub const NODES_MAX: u32 = 128;
/// Bytes of a block: more than are packed where that is not the algorithm's idea.
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
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Traced {
    /// What is done, where and after which steps, in blocks instead of bytes.
    pub step: Step,
    /// The names of the blocks that it reads: those of one operand where it combines.
    pub blocks: Vec<u32>,
}

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
        let one = Tuning { chunk_bytes: ONE_CHUNK, pack_max_bytes: 0, depth: 1, ..*tuning };
        // With two ranks on a node the steps on vectors show what the second one gets. Elsewhere every rank has blocks of its own,
        // and there would be twice as many steps.
        let locals = if is_on_vectors(operation) { 2 } else { 1 };
        let ranks: Vec<u32> = (0..nodes).flat_map(|node| vec![node; locals]).collect();
        let layout = Layout::new(&ranks).ok_or(Untraced::Nodes { nodes })?;
        let tries = match source {
            // As few as will do; most algorithms need one of these.
            Source::Algorithm(_) => [1, 2, nodes, 2 * nodes].into_iter().chain(1..=4 * nodes).collect(),
            Source::Listed(listed) if is_on_vectors(operation) => vec![listed.blocks()],
            Source::Listed(_) => vec![1],
        };
        let mut uneven = None;
        for parts in tries {
            let scenario = scenario(operation, &layout, parts);
            let programs = list(&scenario, |view| match source {
                Source::Algorithm(algorithm) => Plan::with(*algorithm, view, &one),
                Source::Listed(listed) => Plan::listed_in(ONE_CHUNK, listed, view, &one),
            });
            let programs = programs.map_err(|violation| match violation {
                Violation::Ineligible(why) => Untraced::Ineligible(why),
                _ => Untraced::Step { node: 0, step: 0, why: "nodes choose different plans" },
            })?;
            let steps = match blocks::steps(&programs) {
                Ok(steps) => steps,
                Err(at) => {
                    uneven = uneven.or(Some(at));
                    continue;
                }
            };
            let chunk_bytes = match source {
                Source::Algorithm(it) => Plan::with(*it, &scenario.node_call(0).view(), tuning)?.unit(),
                Source::Listed(listed) => listed.chunk_bytes(),
            };
            let scratch = programs.iter().map(|program| program.shape.scratch.div_ceil(BLOCK)).max();
            let scratch = scratch.and_then(|blocks| u32::try_from(blocks).ok()).unwrap_or(0);
            let mut run = Run::new(Self { operation, layout, blocks: 0, parts, scratch, chunk_bytes, steps });
            run.finish()?;
            return Ok(run);
        }
        let (node, step) = uneven.unwrap_or_default();
        Err(Untraced::Step { node, step, why: "its bytes are not whole blocks, of however many" })
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

const fn is_on_vectors(operation: O) -> bool {
    matches!(operation, O::Allreduce | O::Reduce | O::Broadcast | O::Scan | O::Exscan)
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
    use crate::Place;

    /// The names of the blocks that belong in a rank's output: of every operation but exclusive scans, whose first rank gets none.
    fn output(operation: O, (rank, ranks): (u32, u32), parts: u32) -> Vec<u32> {
        let at_root = |blocks: u32| if rank == 0 { (0..blocks).collect() } else { Vec::new() };
        match operation {
            O::Allreduce | O::Broadcast | O::Scan => (0..parts).collect(),
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

    /// A file's plan has the blocks that the file has, of all operations that files are for.
    #[test]
    fn a_file_is_traced_as_the_algorithm_it_was_made_of() {
        for operation in [O::Allreduce, O::Broadcast, O::AllGather, O::ReduceScatter, O::Gather] {
            let listed =
                crate::file::export(Algorithm::Direct, operation, 3, &Tuning::default()).expect("exported");
            let from_file = Trace::of_listed(&listed).expect("traced");
            let algorithm =
                Trace::of_algorithm(Algorithm::Direct, operation, 3, &Tuning::default()).expect("traced");
            let sent = |trace: &Trace| {
                let steps = (0..3).flat_map(|node| trace.steps(node).iter());
                let sends = steps.filter(|traced| matches!(traced.step.action, crate::Action::Send { .. }));
                sends.map(|traced| traced.blocks.clone()).collect::<Vec<_>>()
            };
            assert_eq!(sent(&from_file), sent(&algorithm), "{operation}");
        }
    }
}
