//! Steps in blocks instead of bytes.

use super::BLOCK;
use crate::verify::Program;
use crate::{Action, Plan, Shape, Span, Step, Targets, View};

/// The programs with blocks in place of bytes; else the node and the step that is not about whole ones.
pub(super) fn programs(programs: &[Program]) -> Result<Vec<Program>, (u32, usize)> {
    let program = |(node, program): (u32, &Program)| {
        let step = |(at, Step { action, after }): (usize, &Step)| {
            let action = action_in_blocks(action).ok_or((node, at))?;
            Ok(Step { action, after: after.clone() })
        };
        let chunk = |steps: &Vec<Step>| steps.iter().enumerate().map(step).collect();
        let shape = Shape { scratch: program.shape.scratch.div_ceil(BLOCK), ..program.shape };
        Ok(Program { shape, chunks: program.chunks.iter().map(chunk).collect::<Result<_, _>>()? })
    };
    (0..).zip(programs).map(program).collect()
}

/// The first of a node's steps that is not about whole blocks.
pub(super) fn uneven(plan: &Plan, view: &View<'_>) -> Option<usize> {
    (0..plan.shape(view).steps)
        .position(|index| action_in_blocks(&plan.step(view, 0, index).action).is_none())
}

/// Blocks that a step moves.
pub(super) const fn moved(action: &Action) -> u64 {
    match action {
        Action::Nothing => 0,
        Action::Send { from: span, .. }
        | Action::Receive { into: span, .. }
        | Action::Copy { from: span, .. } => span.length,
        Action::Swap { a, b } => a.length.saturating_add(b.length),
        Action::Reduce { length, .. } | Action::Scan { length, .. } | Action::Fold { length, .. } => *length,
    }
}

fn whole(bytes: u64) -> Option<u64> {
    bytes.is_multiple_of(BLOCK).then_some(bytes / BLOCK)
}

/// The same of what may be missing.
fn whole_if_any(bytes: Option<u64>) -> Option<Option<u64>> {
    bytes.map_or(Some(None), |bytes| whole(bytes).map(Some))
}

fn targets_in_blocks(Targets { outputs, offset, scratch }: Targets) -> Option<Targets> {
    Some(Targets { outputs, offset: whole(offset)?, scratch: whole_if_any(scratch)? })
}

fn span_in_blocks(span: Span) -> Option<Span> {
    Some(Span { place: span.place, offset: whole(span.offset)?, length: whole(span.length)? })
}

fn action_in_blocks(action: &Action) -> Option<Action> {
    let mut action = *action;
    match &mut action {
        Action::Nothing => {}
        Action::Send { from: span, .. } | Action::Receive { into: span, .. } => {
            *span = span_in_blocks(*span)?
        }
        Action::Copy { from, into } => {
            *from = span_in_blocks(*from)?;
            *into = targets_in_blocks(*into)?;
        }
        Action::Reduce { sources, into, length, .. } => {
            let partials = &mut sources.partials;
            (partials.offset, partials.stride) = match partials.count {
                0 => (0, 0),
                1 => (whole(partials.offset)?, 0),
                _ => (whole(partials.offset)?, whole(partials.stride)?),
            };
            sources.inputs = whole_if_any(sources.inputs)?;
            *into = targets_in_blocks(*into)?;
            *length = whole(*length)?;
        }
        Action::Swap { a, b } => (*a, *b) = (span_in_blocks(*a)?, span_in_blocks(*b)?),
        Action::Scan { carry, offset, length, .. } => {
            *carry = whole_if_any(*carry)?;
            (*offset, *length) = (whole(*offset)?, whole(*length)?);
        }
        Action::Fold { carry, offset, length, into, .. } => {
            *carry = whole_if_any(*carry)?;
            (*offset, *length, *into) = (whole(*offset)?, whole(*length)?, whole(*into)?);
        }
    }
    Some(action)
}
