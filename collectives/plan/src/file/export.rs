//! An algorithm's steps as a file.
//!
//! The steps are those that [`crate::trace`] finds for a call of a symbolic size, with the blocks that they move. A file says less: of
//! each step one range of blocks, which lie in inputs and outputs where they belong.

use core::ops::Range;
use std::sync::Arc;

use ringway_types::Operation;
use thiserror::Error;

use super::listed::{Entry, Into, Listed, Location, OPERATIONS, Outputs, What, is_for_all, is_per_rank};
use super::{CHUNK_BYTES_MAX, FileError, NODES_MAX};
use crate::trace::{Trace, Untraced};
use crate::{Action, Algorithm, Ineligible, OutputSet, Place, Span, Targets, Tuning};

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
    /// It cannot be told which blocks steps are about.
    #[error("{algorithm} cannot be written in blocks: {untraced}")]
    Untraced {
        /// The algorithm.
        algorithm: Algorithm,
        /// Why not.
        untraced: Untraced,
    },
    /// What would be written is not a right plan.
    #[error("what would be written is refused: {0}")]
    Refused(FileError),
}

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
    let trace =
        Trace::of_algorithm(algorithm, operation, nodes, tuning).map_err(|untraced| match untraced {
            Untraced::Ineligible(why) => Inexpressible::Ineligible(why),
            untraced => Inexpressible::Untraced { algorithm, untraced },
        })?;
    let per_rank = is_per_rank(operation);
    let mut steps = Vec::new();
    for node in 0..nodes {
        let entries = Writer { trace: &trace }.node(node);
        steps.push(entries.map_err(|(step, why)| Inexpressible::Step { algorithm, node, step, why })?);
    }
    let plan = Listed {
        name: trace.name.clone(),
        operation,
        blocks: if per_rank { nodes } else { trace.parts },
        scratch: trace.scratch,
        chunk_bytes: trace.chunk_bytes.clamp(1, CHUNK_BYTES_MAX),
        steps,
        digest: 0,
    };
    plan.sealed().proved().map(|(plan, _)| plan).map_err(Inexpressible::Refused)
}

/// Says steps as files do.
struct Writer<'a> {
    trace: &'a Trace,
}

/// First and number of blocks.
type Label = (u32, u32);

impl Writer<'_> {
    /// A node's steps, without those that do nothing; else the step that cannot be said, and what is in the way.
    fn node(&self, node: u32) -> Result<Vec<Entry>, (usize, &'static str)> {
        let mut entries = Vec::new();
        // The new number of the first step that is kept of each and those after it.
        let mut numbers = vec![0];
        for (step, traced) in self.trace.steps(node).iter().enumerate() {
            if !traced.is_idle {
                let at = u32::try_from(entries.len()).unwrap_or(u32::MAX);
                let (block, count) = self.label(&traced.blocks).map_err(|why| (step, why))?;
                let what = self.what(node, (block, count), traced.step.action).map_err(|why| (step, why))?;
                let after = traced.step.after.clone().map(|range| renumber(&range, &numbers));
                entries.push(Entry { what, block, count, after });
                let received = matches!(what, What::Receive { into: Location::Output, .. });
                if received && is_per_rank(self.trace.operation) && is_for_all(self.trace.operation) {
                    // With one rank on each node there is nobody else to give it to.
                    let into = Into { outputs: Outputs::Others, scratch: None };
                    let what = What::Copy { from: Location::Output, into };
                    entries.push(Entry { what, block, count, after: [at..at + 1, 0..0] });
                }
            }
            numbers.push(u32::try_from(entries.len()).unwrap_or(u32::MAX));
        }
        Ok(entries)
    }

    /// Blocks that follow each other; one, though it means nothing, where there are none.
    fn label(&self, blocks: &[u32]) -> Result<Label, &'static str> {
        let Some(first) = blocks.first() else { return Ok((0, 1)) };
        if is_per_rank(self.trace.operation) && self.trace.parts > 1 {
            return Err("it moves a part of a rank's block");
        }
        let count = u32::try_from(blocks.len()).unwrap_or(u32::MAX);
        let follow = (*first..).zip(blocks).all(|(expected, block)| expected == *block);
        if follow { Ok((*first, count)) } else { Err("its blocks do not lie one behind the other") }
    }

    fn what(&self, node: u32, label: Label, action: Action) -> Result<What, &'static str> {
        let span = |span| self.span((node, label), span);
        let into = |into| self.targets((node, label), into);
        match action {
            Action::Nothing => Ok(What::Nothing),
            Action::Send { peer, tag, from } => Ok(What::Send { peer, tag, from: span(from)? }),
            Action::Receive { peer, tag, into } => Ok(What::Receive { peer, tag, into: span(into)? }),
            Action::Copy { from, into: targets } => {
                Ok(What::Copy { from: span(from)?, into: into(targets)? })
            }
            Action::Reduce { sources, into: targets, length, finish } => {
                // The inputs of all local ranks are whole vectors wherever something is combined.
                if let Some(offset) = sources.inputs {
                    span(Span { place: Place::Input(0), offset, length })?;
                }
                let partials = sources.partials;
                let stride = if partials.count > 1 { small(partials.stride)? } else { 1 };
                Ok(What::Reduce {
                    scratch: small(partials.offset)?,
                    stride,
                    partials: partials.count,
                    inputs: sources.inputs.is_some(),
                    into: into(targets)?,
                    finish,
                })
            }
            Action::Swap { .. } => Err("it swaps"),
            Action::Scan { .. } | Action::Fold { .. } => Err("it combines ranks one by one"),
        }
    }

    /// A place of these blocks: in inputs and outputs they lie where they belong.
    fn span(&self, (node, label): (u32, Label), span: Span) -> Result<Location, &'static str> {
        use Operation as O;
        let at = small(span.offset)?;
        let (location, is_own_block) = match span.place {
            Place::Scratch => return Ok(Location::Scratch(at)),
            Place::Input(0) => {
                (Location::Input, matches!(self.trace.operation, O::AllGather | O::AllGatherV | O::Gather))
            }
            Place::Output(0) => (
                Location::Output,
                matches!(self.trace.operation, O::ReduceScatter | O::ReduceScatterV | O::Scatter),
            ),
            _ => return Err("it touches one rank's memory that is not the first one's"),
        };
        let belongs = if is_own_block { node.saturating_add(at) } else { at };
        if belongs == label.0 { Ok(location) } else { Err("it takes a block to where another one belongs") }
    }

    fn targets(&self, (node, label): (u32, Label), targets: Targets) -> Result<Into, &'static str> {
        let all = is_for_all(self.trace.operation);
        let alone = self.trace.layout.local(node).len() == 1;
        let outputs = match targets.outputs {
            OutputSet::None => Outputs::None,
            OutputSet::All if all || alone => Outputs::All,
            OutputSet::One(0) if !all || alone => Outputs::All,
            OutputSet::AllBut(0) if all => Outputs::Others,
            _ => return Err("it writes the outputs of some ranks only"),
        };
        if outputs != Outputs::None {
            let span = Span { place: Place::Output(0), offset: targets.offset, length: 0 };
            self.span((node, label), span)?;
        }
        Ok(Into { outputs, scratch: targets.scratch.map(small).transpose()? })
    }
}

/// A place's number, as files have it.
fn small(place: u64) -> Result<u32, &'static str> {
    u32::try_from(place).map_err(|_| "it touches a place beyond all that files may name")
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
