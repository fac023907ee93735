//! Plans for people: the steps of all nodes for one call of a symbolic size, each with the blocks that it moves.
//!
//! A step says where bytes lie, not what they are. Here every rank's input is cut into blocks with names; the verifier runs the steps on
//! them ([`crate::verify`]) and says what each moves. Into how many blocks a call is cut is found by
//! trying: the fewest of which every step moves whole ones.
//!
//! [`crate::file::export`] says them as files do, where that can be done. Steps keep the numbers by which the verifier names them.

mod blocks;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use ringway_types::Operation as O;
use thiserror::Error;

use crate::call::is_on_vectors;
use crate::file::{Listed, NODES_MAX};
use crate::verify::{At, Counts, Done, Program, Scenario, Violation, list, watch};
use crate::{Action, Algorithm, Call, Ineligible, Layout, Plan, Source, Step, Tuning, View};

/// The most blocks that all steps move together. A ring of 128 nodes moves 65 thousand.
pub const MOVED_MAX: u64 = 1 << 21;
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
    /// A step is not about whole blocks, of however many.
    #[error("node {node} step {step}: its bytes are not whole blocks, of however many")]
    Uneven {
        /// The node.
        node: u32,
        /// The step's number.
        step: usize,
    },
    /// The plan is wrong.
    #[error(transparent)]
    Wrong(Violation),
}

impl From<Violation> for Untraced {
    fn from(violation: Violation) -> Self {
        match violation {
            Violation::Ineligible(why) => Self::Ineligible(why),
            other => Self::Wrong(other),
        }
    }
}

/// The steps of all nodes.
#[derive(Debug, Clone)]
pub struct Trace {
    /// The file's name of the plan; that of the file that would be made of the algorithm.
    pub name: String,
    /// What is done.
    pub operation: O,
    /// Who is where.
    pub layout: Layout,
    /// How many blocks have names: those from 0 on.
    pub blocks: u32,
    /// Into how many blocks a rank's vector is cut; a rank's block, or a pair's, where there are such.
    pub parts: u32,
    /// Blocks for which there is room in scratch memory.
    pub scratch: u32,
    /// The most bytes that a chunk has of a rank's vector, or of each rank's or pair's block.
    pub chunk_bytes: u64,
    /// All messages.
    pub messages: Vec<Message>,
    /// Of every node.
    steps: Vec<Vec<Traced>>,
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
        Self::of(&Source::Algorithm(algorithm), operation, nodes, tuning)
    }

    /// Traces a plan from a file.
    ///
    /// # Errors
    /// [`Untraced`].
    pub fn of_listed(listed: &Arc<Listed>) -> Result<Self, Untraced> {
        let source = Source::Listed(Arc::clone(listed));
        let mut trace = Self::of(&source, listed.operation(), listed.nodes(), &Tuning::default())?;
        trace.keep_first_turn(listed);
        Ok(trace)
    }

    fn of(source: &Source, operation: O, nodes: u32, tuning: &Tuning) -> Result<Self, Untraced> {
        if !(1..=NODES_MAX).contains(&nodes) {
            return Err(Untraced::Nodes { nodes });
        }
        let layout = layout(source, operation, nodes).ok_or(Untraced::Nodes { nodes })?;
        let (parts, programs) = cut(source, operation, &layout, tuning)?;
        let all = programs.iter().flat_map(|program| program.chunks.iter().flatten());
        if all.map(|step| blocks::moved(&step.action)).sum::<u64>() > MOVED_MAX {
            return Err(Untraced::Long);
        }
        let in_bytes = scenario(operation, &layout, BLOCK * u64::from(parts));
        let (name, chunk_bytes) = match source {
            Source::Algorithm(algorithm) => {
                let plan = Plan::with(*algorithm, &in_bytes.node_call(0).view(), tuning)?;
                // Names in files are plain.
                let name = format!("{operation}-{algorithm}-{nodes}").replace([':', '+'], "-");
                (name, plan.unit())
            }
            Source::Listed(listed) => (listed.name().to_owned(), listed.chunk_bytes()),
        };
        let scratch = programs.iter().map(|program| program.shape.scratch).max();
        let scratch = scratch.and_then(|blocks| u32::try_from(blocks).ok()).unwrap_or(0);
        let scenario = scenario(operation, &layout, u64::from(parts));
        let inputs = (0..layout.ranks()).map(|rank| (rank, scenario.buffers(rank).0));
        let ends = inputs.filter(|(_, blocks)| *blocks > 0);
        let blocks =
            ends.map(|(rank, blocks)| name_of((operation, &layout, parts), (rank, blocks - 1)) + 1).max();
        let blocks = blocks.unwrap_or(0);
        let traced = |step: &Step| Traced { step: step.clone(), blocks: Vec::new(), time: 0, is_idle: false };
        let steps =
            programs.iter().map(|program| program.chunks.iter().flatten().map(traced).collect()).collect();
        let messages = Vec::new();
        let mut trace =
            Self { name, operation, layout, blocks, parts, scratch, chunk_bytes, messages, steps };
        watch(&scenario, &programs, &mut |done| trace.see(&done))?;
        Ok(trace)
    }

    /// A step is done.
    fn see(&mut self, Done { at, sent, moved }: &Done<'_>) {
        let steps = &self.steps[at.node as usize];
        let time_of = |at: &At| self.steps[at.node as usize][at.step as usize].time;
        let Step { action, after } = &steps[at.step as usize].step;
        let waits = after.iter().flat_map(Clone::clone).filter_map(|step| steps.get(step as usize));
        let before = waits.filter(|step| !step.is_idle).map(|step| step.time + 1).max();
        let is_idle = *action == Action::Nothing && before.is_none();
        let time = before.max(sent.as_ref().map(|sent| time_of(sent) + 1)).unwrap_or(0);
        let call = (self.operation, &self.layout, self.parts);
        let blocks = moved.iter().map(|moved| name_of(call, *moved)).collect();
        self.messages.extend(sent.map(|sent| [sent, *at].map(|end| (end.node, end.step))));
        let traced = &mut self.steps[at.node as usize][at.step as usize];
        (traced.blocks, traced.time, traced.is_idle) = (blocks, time, is_idle);
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

/// Into how many blocks every vector, or every rank's or pair's block, is cut, and the programs, in blocks: the fewest that will do.
fn cut(
    source: &Source,
    operation: O,
    layout: &Layout,
    tuning: &Tuning,
) -> Result<(u32, Vec<Program>), Untraced> {
    let one = Tuning { chunk_bytes: ONE_CHUNK, pack_max_bytes: 0, depth: 1, ..*tuning };
    let plan = |view: &View<'_>| match source {
        Source::Algorithm(algorithm) => Plan::with(*algorithm, view, &one),
        Source::Listed(listed) => Plan::listed_in(ONE_CHUNK, listed, view, &one),
    };
    let tries = match source {
        Source::Algorithm(_) => 1..=4 * layout.nodes(),
        Source::Listed(listed) if is_on_vectors(operation) => listed.blocks()..=listed.blocks(),
        Source::Listed(_) => 1..=1,
    };
    let mut uneven = (0, 0);
    for parts in tries {
        let scenario = scenario(operation, layout, BLOCK * u64::from(parts));
        let call = scenario.node_call(0);
        // Most numbers of blocks do not suit the first node already.
        if let Some(step) = blocks::uneven(&plan(&call.view())?, &call.view()) {
            uneven = (0, step);
            continue;
        }
        match blocks::programs(&list(&scenario, plan)?) {
            Ok(programs) => return Ok((parts, programs)),
            Err(at) => uneven = at,
        }
    }
    let (node, step) = uneven;
    Err(Untraced::Uneven { node, step })
}

/// A call in which every vector, or every rank's or pair's block, has so many elements of a byte.
fn scenario(operation: O, layout: &Layout, elements: u64) -> Scenario {
    let ranks = layout.ranks() as usize;
    let counts = match operation {
        O::AllToAllV => Counts::PerPair(vec![elements; ranks * ranks]),
        _ if operation.has_counts() => Counts::PerRank(vec![elements; ranks]),
        _ => Counts::Uniform,
    };
    let count = if counts == Counts::Uniform && operation != O::Barrier { elements } else { 0 };
    let call = Call { operation, element: 1, count, root: 0 };
    Scenario { layout: layout.clone(), call, counts, in_place: vec![false; ranks] }
}

/// The name of a block of a rank's input: where it belongs among those that all have.
fn name_of((operation, layout, parts): (O, &Layout, u32), (rank, at): (u32, u64)) -> u32 {
    let before = match operation {
        O::AllGather | O::AllGatherV | O::Gather | O::GatherV => rank * parts,
        O::AllToAll | O::AllToAllV => rank * layout.ranks() * parts,
        _ => 0,
    };
    u32::try_from(at).unwrap_or(u32::MAX).saturating_add(before)
}
