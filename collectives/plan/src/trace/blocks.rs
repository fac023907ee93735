//! Steps in blocks instead of bytes.

use super::{BLOCK, Traced};
use crate::verify::Program;
use crate::{Action, Plan, Span, Step, Targets, View};

/// Every node's steps in blocks; the node and the step that is not about whole ones.
pub(super) fn steps(programs: &[Program]) -> Result<Vec<Vec<Traced>>, (u32, usize)> {
    let mut all = Vec::new();
    for (node, program) in (0..).zip(programs) {
        let steps = match program.chunks.as_slice() {
            [] => &[][..],
            [steps] => steps,
            _ => return Err((node, 0)),
        };
        let steps = steps.iter().enumerate().map(|(at, Step { action, after })| {
            let action = action_in_blocks(action).ok_or((node, at))?;
            Ok(Traced {
                step: Step { action, after: after.clone() },
                blocks: Vec::new(),
                time: 0,
                is_idle: false,
            })
        });
        all.push(steps.collect::<Result<Vec<_>, _>>()?);
    }
    Ok(all)
}

/// Whether all steps of a node are about whole blocks.
pub(super) fn are_whole(plan: &Plan, view: &View<'_>) -> bool {
    (0..plan.shape(view).steps).all(|index| action_in_blocks(&plan.step(view, 0, index).action).is_some())
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
