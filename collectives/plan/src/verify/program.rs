//! All steps of a node, listed, and the rules that need no execution.

use std::collections::BTreeMap;

use super::{At, Scenario, Violation};
use crate::{Action, Algorithm, Ineligible, Plan, Shape, Step, Tuning, View};

/// All steps of one node.
#[derive(Debug, Clone)]
pub struct Program {
    /// The plan's size on the node.
    pub shape: Shape,
    /// The steps of every chunk.
    pub chunks: Vec<Vec<Step>>,
}

/// Lists the steps that every node makes for a scenario.
///
/// # Errors
/// [`Violation::Ineligible`] and [`Violation::DifferentPlans`].
pub fn enumerate(
    scenario: &Scenario,
    algorithm: Option<Algorithm>,
    tuning: &Tuning,
) -> Result<Vec<Program>, Violation> {
    list(scenario, |view| match algorithm {
        Some(algorithm) => Plan::with(algorithm, view, tuning),
        None => Ok(Plan::choose(view, tuning)),
    })
}

/// Lists the steps of the plan that every node makes of what it sees.
pub(crate) fn list(
    scenario: &Scenario,
    plan: impl Fn(&View<'_>) -> Result<Plan, Ineligible>,
) -> Result<Vec<Program>, Violation> {
    let mut programs = Vec::new();
    let mut first: Option<Plan> = None;
    for node in 0..scenario.layout.nodes() {
        let call = scenario.node_call(node);
        let view = call.view();
        let plan = plan(&view)?;
        if *first.get_or_insert_with(|| plan.clone()) != plan {
            return Err(Violation::DifferentPlans { node });
        }
        let shape = plan.shape(&view);
        let steps = |chunk| (0..shape.steps).map(|index| plan.step(&view, chunk, index)).collect();
        programs.push(Program { shape, chunks: (0..shape.chunks).map(steps).collect() });
    }
    Ok(programs)
}

/// Every step with its place.
pub(super) fn steps(programs: &[Program]) -> impl Iterator<Item = (At, &Step)> {
    (0u32..).zip(programs).flat_map(|(node, program)| {
        (0u64..).zip(&program.chunks).flat_map(move |(chunk, steps)| {
            (0u32..).zip(steps).map(move |(step, it)| (At { node, chunk, step }, it))
        })
    })
}

/// A message's name: chunk, source, destination, tag.
pub(super) type Name = (u64, u32, u32, u32);

/// The name of a step's message, its bytes, and whether it is sent.
pub(super) fn message(at: At, action: &Action) -> Option<(Name, u64, bool)> {
    match *action {
        Action::Send { peer, tag, from } => Some(((at.chunk, at.node, peer, tag), from.length, true)),
        Action::Receive { peer, tag, into } => Some(((at.chunk, peer, at.node, tag), into.length, false)),
        _ => None,
    }
}

/// Checks order of waiting and that messages match.
pub(super) fn check(programs: &[Program]) -> Result<(), Violation> {
    let mut sends: BTreeMap<Name, (At, u64)> = BTreeMap::new();
    let mut receives: BTreeMap<Name, (At, u64)> = BTreeMap::new();
    for (at, step) in steps(programs) {
        if step.after.iter().any(|range| !range.is_empty() && range.end > at.step) {
            return Err(Violation::Forward { at });
        }
        let Some((name, length, send)) = message(at, &step.action) else { continue };
        let peer = if send { name.2 } else { name.1 };
        if peer == at.node || peer as usize >= programs.len() {
            return Err(Violation::Peer { at, peer });
        }
        let ends = if send { &mut sends } else { &mut receives };
        if let Some((other, _)) = ends.insert(name, (at, length)) {
            return Err(Violation::SameTag { at, other });
        }
    }
    for (name, &(at, length)) in &sends {
        let Some(&(other, other_length)) = receives.get(name) else {
            return Err(Violation::Unmatched { at });
        };
        if length != other_length {
            return Err(Violation::Length { at, length, other, other_length });
        }
    }
    match receives.iter().find(|(name, _)| !sends.contains_key(name)) {
        Some((_, &(at, _))) => Err(Violation::Unmatched { at }),
        None => Ok(()),
    }
}
