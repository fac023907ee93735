//! An algorithm's steps as a file.
//!
//! The algorithm is asked for the steps of a call of a symbolic size, in which every block has as many bytes as a cache
//! line, so that offsets are whole blocks and rounding changes nothing. Into how many blocks it cuts a vector is found by
//! trying.

use core::ops::Range;
use std::sync::Arc;

use ringway_types::Operation;
use thiserror::Error;

use super::labels::{self, Label};
use super::listed::{Entry, Into, Listed, Location, OPERATIONS, Outputs, What, is_for_all, is_per_rank};
use super::{BLOCKS_MAX, CHUNK_BYTES_MAX, FileError, NODES_MAX};
use crate::verify::{Counts, Scenario};
use crate::{
    Action, Algorithm, Call, Ineligible, Layout, OutputSet, Place, Plan, Span, Step, Targets, Tuning, View,
};

/// Why an algorithm cannot be written to a file.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Inexpressible {
    /// The algorithm cannot do the operation.
    #[error(transparent)]
    Ineligible(#[from] Ineligible),
    /// There are no files for this operation.
    #[error("plans in files are for {}; {operation} is not among them", OPERATIONS.map(Operation::name).join(", "))]
    Operation {
        /// The operation.
        operation: Operation,
    },
    /// There are no files for so many nodes.
    #[error("plans in files are for 2 to {NODES_MAX} nodes, not for {nodes}")]
    Nodes {
        /// The nodes.
        nodes: u32,
    },
    /// A step cannot be said in blocks.
    #[error("{algorithm} cannot be written in blocks: node {node} step {step}: {why}")]
    Step {
        /// The algorithm.
        algorithm: Algorithm,
        /// The node.
        node: u32,
        /// The step's number in the algorithm.
        step: usize,
        /// What is in the way.
        why: &'static str,
    },
    /// What would be written is not a right plan.
    #[error("what would be written is refused: {0}")]
    Refused(FileError),
}

/// Bytes of a block while steps are looked at.
const BLOCK: u64 = 64;
/// What is in the way where another number of blocks may help.
const UNEVEN: &str = "its bytes are not whole blocks";

/// Writes an algorithm as a plan that lists its steps.
///
/// # Errors
/// [`Inexpressible`], with the step that is in the way.
pub fn export(
    algorithm: Algorithm,
    operation: Operation,
    nodes: u32,
    tuning: &Tuning,
) -> Result<Arc<Listed>, Inexpressible> {
    if !OPERATIONS.contains(&operation) {
        return Err(Inexpressible::Operation { operation });
    }
    if !(2..=NODES_MAX).contains(&nodes) {
        return Err(Inexpressible::Nodes { nodes });
    }
    let refused = |(node, step, why)| Inexpressible::Step { algorithm, node, step, why };
    let most = nodes.saturating_mul(4).min(BLOCKS_MAX);
    let tries = if is_per_rank(operation) { nodes..=nodes } else { 1..=most };
    let mut reason = None;
    for blocks in tries {
        let attempt = Attempt::new(algorithm, operation, nodes, blocks);
        let attempt = attempt.ok_or(Inexpressible::Nodes { nodes })?;
        match attempt.plan(tuning)? {
            Ok(plan) => {
                return plan.sealed().proved().map(|(plan, _)| plan).map_err(Inexpressible::Refused);
            }
            Err((node, step, UNEVEN)) => reason = reason.or(Some((node, step, UNEVEN))),
            Err(other) => return Err(refused(other)),
        }
    }
    Err(refused(reason.unwrap_or((0, 0, UNEVEN))))
}

/// One number of blocks, tried.
struct Attempt {
    algorithm: Algorithm,
    operation: Operation,
    blocks: u32,
    scenario: Scenario,
}

/// A step in blocks, as far as it says by itself which.
struct Converted {
    what: What,
    label: Option<Label>,
    count: u32,
}

/// The node, the step, and what is in the way.
type Refusal = (u32, usize, &'static str);
/// The steps, and of each the blocks as far as it says by itself.
type NodeSteps = (Vec<Entry>, Vec<Option<Label>>);

impl Attempt {
    fn new(algorithm: Algorithm, operation: Operation, nodes: u32, blocks: u32) -> Option<Self> {
        let per_rank = is_per_rank(operation);
        // With two ranks on each node the steps show what the second one gets. Where every rank has blocks of its own there
        // would be twice as many steps.
        let ranks: Vec<u32> = (0..nodes).flat_map(|node| vec![node; if per_rank { 1 } else { 2 }]).collect();
        let layout = Layout::new(&ranks)?;
        let counted = operation.has_counts();
        let count = if per_rank { BLOCK } else { BLOCK * u64::from(blocks) };
        let counts = if counted { Counts::PerRank(vec![BLOCK; ranks.len()]) } else { Counts::Uniform };
        let call = Call { operation, element: 1, count: if counted { 0 } else { count }, root: 0 };
        let in_place = vec![false; ranks.len()];
        let scenario = Scenario { layout, call, counts, in_place };
        Some(Self { algorithm, operation, blocks, scenario })
    }

    fn plan(&self, tuning: &Tuning) -> Result<Result<Listed, Refusal>, Ineligible> {
        // One chunk, in which nothing is packed.
        let one = Tuning { chunk_bytes: 1 << 50, pack_max_bytes: 0, depth: 1, ..*tuning };
        let nodes = self.scenario.layout.nodes();
        let (mut steps, mut labels, mut scratch, mut unit) = (Vec::new(), Vec::new(), 0, 0);
        for node in 0..nodes {
            let call = self.scenario.node_call(node);
            let view = call.view();
            let plan = Plan::with(self.algorithm, &view, &one)?;
            unit = Plan::with(self.algorithm, &view, tuning)?.unit();
            let shape = plan.shape(&view);
            if shape.chunks != 1 {
                return Ok(Err((node, 0, "it does not cut vectors into chunks as it is told")));
            }
            scratch = scratch.max(shape.scratch.div_ceil(BLOCK));
            let all = (0..shape.steps).map(|index| plan.step(&view, 0, index)).collect();
            match self.node(node, &view, all) {
                Ok((entries, known)) => {
                    steps.push(entries);
                    labels.push(known);
                }
                Err((step, why)) => return Ok(Err((node, step, why))),
            }
        }
        let mut plan = Listed {
            // Names in files are plain.
            name: format!("{}-{}-{nodes}", self.operation, self.algorithm).replace([':', '+'], "-"),
            operation: self.operation,
            blocks: self.blocks,
            scratch: u32::try_from(scratch).unwrap_or(u32::MAX),
            chunk_bytes: unit.clamp(1, CHUNK_BYTES_MAX),
            steps,
            digest: 0,
        };
        Ok(labels::label(&mut plan, &labels).map(|()| plan))
    }

    /// A node's steps in blocks, without those that do nothing, and what each says about which.
    fn node(&self, node: u32, view: &View<'_>, steps: Vec<Step>) -> Result<NodeSteps, (usize, &'static str)> {
        let (mut entries, mut labels) = (Vec::new(), Vec::new());
        // The new number of the first step that is kept of each and those after it.
        let mut numbers = vec![0];
        for (step, Step { action, after }) in steps.into_iter().enumerate() {
            let converted = self.convert(node, view, action).map_err(|why| (step, why))?;
            let renumbered = after.map(|range| renumber(&range, &numbers));
            let idle = converted.what == What::Nothing && renumbered.iter().all(Range::is_empty);
            if !idle {
                let at = u32::try_from(entries.len()).unwrap_or(u32::MAX);
                let Converted { what, label, count } = converted;
                entries.push(Entry { what, block: 0, count, after: renumbered });
                labels.push(label);
                let received = matches!(what, What::Receive { into: Location::Output, .. });
                if received && is_per_rank(self.operation) && is_for_all(self.operation) {
                    // With one rank on each node there is nobody else to give it to.
                    let into = Into { outputs: Outputs::Others, scratch: None };
                    let what = What::Copy { from: Location::Output, into };
                    entries.push(Entry { what, block: 0, count, after: [at..at + 1, 0..0] });
                    labels.push(label);
                }
            }
            numbers.push(u32::try_from(entries.len()).unwrap_or(u32::MAX));
        }
        Ok((entries, labels))
    }

    fn convert(&self, node: u32, view: &View<'_>, action: Action) -> Result<Converted, &'static str> {
        match action {
            Action::Nothing => Ok(Converted { what: What::Nothing, label: None, count: 1 }),
            Action::Send { peer, tag, from } => {
                let (from, label, count) = self.span(node, from)?;
                Ok(Converted { what: What::Send { peer, tag, from }, label, count })
            }
            Action::Receive { peer, tag, into } => {
                let (into, label, count) = self.span(node, into)?;
                Ok(Converted { what: What::Receive { peer, tag, into }, label, count })
            }
            Action::Copy { from, into } => {
                let length = from.length;
                let (from, read, count) = self.span(node, from)?;
                let (into, label) = self.targets(node, view, into, length)?;
                if read.zip(label).is_some_and(|(read, written)| read != written) {
                    return Err("it copies a block to where another one belongs");
                }
                Ok(Converted { what: What::Copy { from, into }, label: read.or(label), count })
            }
            Action::Reduce { sources, into, length, finish } => {
                let (into, label) = self.targets(node, view, into, length)?;
                let count = whole(length)?;
                let mut read = None;
                if let Some(offset) = sources.inputs {
                    // The inputs of all local ranks are whole vectors wherever something is combined.
                    read = Some((whole(offset)?, count));
                }
                if read.zip(label).is_some_and(|(read, written)| read != written) {
                    return Err("it combines a block into where another one belongs");
                }
                let partials = sources.partials;
                let (scratch, stride) = match partials.count {
                    0 => (0, 1),
                    1 => (whole(partials.offset)?, 1),
                    _ => (whole(partials.offset)?, whole(partials.stride)?),
                };
                let inputs = sources.inputs.is_some();
                let what = What::Reduce { scratch, stride, partials: partials.count, inputs, into, finish };
                Ok(Converted { what, label: read.or(label), count })
            }
            Action::Swap { .. } => Err("it swaps"),
            Action::Scan { .. } | Action::Fold { .. } => Err("it combines ranks one by one"),
        }
    }

    /// A place and, but in scratch memory, the blocks.
    fn span(&self, node: u32, span: Span) -> Result<(Location, Option<Label>, u32), &'static str> {
        use Operation as O;
        let Span { place, offset, length } = span;
        let (at, count) = (whole(offset)?, whole(length)?);
        let own_block = match place {
            Place::Scratch => return Ok((Location::Scratch(at), None, count)),
            Place::Input(_) => matches!(self.operation, O::AllGather | O::AllGatherV | O::Gather),
            Place::Output(_) => {
                matches!(self.operation, O::ReduceScatter | O::ReduceScatterV | O::Scatter)
            }
        };
        let location = match place {
            Place::Input(0) => Location::Input,
            Place::Output(0) => Location::Output,
            _ => return Err("it touches one rank's memory that is not the first one's"),
        };
        let block = if own_block { node.saturating_add(at) } else { at };
        Ok((location, Some((block, count)), count))
    }

    fn targets(
        &self,
        node: u32,
        view: &View<'_>,
        targets: Targets,
        length: u64,
    ) -> Result<(Into, Option<Label>), &'static str> {
        let all = is_for_all(self.operation);
        let alone = view.layout.local(node).len() == 1;
        let outputs = match targets.outputs {
            OutputSet::None => Outputs::None,
            OutputSet::All if all || alone => Outputs::All,
            OutputSet::One(0) if !all || alone => Outputs::All,
            OutputSet::AllBut(0) if all => Outputs::Others,
            _ => return Err("it writes the outputs of some ranks only"),
        };
        let mut label = None;
        if outputs != Outputs::None {
            let span = Span { place: Place::Output(0), offset: targets.offset, length };
            label = self.span(node, span)?.1;
        }
        let scratch = targets.scratch.map(whole).transpose()?;
        Ok((Into { outputs, scratch }, label))
    }
}

/// Bytes as blocks.
fn whole(bytes: u64) -> Result<u32, &'static str> {
    let blocks = bytes.is_multiple_of(BLOCK).then_some(bytes / BLOCK);
    blocks.and_then(|blocks| u32::try_from(blocks).ok()).ok_or(UNEVEN)
}

/// A range of steps, when some were left out and some put in.
fn renumber(range: &Range<u32>, numbers: &[u32]) -> Range<u32> {
    let at = |step: u32| numbers.get(step as usize).copied().unwrap_or(0);
    if range.is_empty() {
        return 0..0;
    }
    // What was put in behind the last one is not waited for.
    at(range.start)..at(range.end).min(at(range.end - 1).saturating_add(1))
}
