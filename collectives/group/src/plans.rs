//! Plans that nodes were given as files: those of one communicator must have the same.

use std::collections::BTreeSet;

use ringway_plan::file::{Listed, NAME_BYTES_MAX};
use ringway_types::Operation;
use serde::{Deserialize, Serialize};

/// The most plans that one node may have.
pub const PLANS_MAX: usize = 64;

/// A plan that a node uses for what it is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedPlan {
    /// What it does.
    pub operation: Operation,
    /// Between how many nodes.
    pub nodes: u32,
    /// Its name.
    pub name: String,
    /// Tells it from others of this name.
    pub digest: u64,
}

impl From<&Listed> for ListedPlan {
    fn from(plan: &Listed) -> Self {
        Self {
            operation: plan.operation(),
            nodes: plan.nodes(),
            name: plan.name().to_owned(),
            digest: plan.digest(),
        }
    }
}

/// Whether a node may say that it has these.
pub(crate) fn are_plans(plans: &[ListedPlan]) -> bool {
    let is_name =
        |name: &str| (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_graphic());
    plans.len() <= PLANS_MAX && plans.iter().all(|plan| is_name(&plan.name))
}

/// What two nodes of as many as `nodes` would do differently, in words that name their ranks; `None` when they would not.
pub(crate) fn difference(
    nodes: u32,
    (first, ranks): (&[ListedPlan], &str),
    (second, others): (&[ListedPlan], &str),
) -> Option<String> {
    let operations: BTreeSet<Operation> =
        first.iter().chain(second).filter(|plan| plan.nodes == nodes).map(|plan| plan.operation).collect();
    let different = |operation: &Operation| used(first, *operation, nodes) != used(second, *operation, nodes);
    let operation = operations.into_iter().find(different)?;
    let (mine, theirs) = (describe(first, operation, nodes), describe(second, operation, nodes));
    Some(format!(
        "for {operation} between {nodes} nodes the daemon of {ranks} has {mine}, that of {others} {theirs}: list the same \
         files in `plans` on every node and start the daemons again"
    ))
}

/// The plan that a node uses: the last of those for this.
fn used(plans: &[ListedPlan], operation: Operation, nodes: u32) -> Option<&ListedPlan> {
    plans.iter().rev().find(|plan| plan.operation == operation && plan.nodes == nodes)
}

fn describe(plans: &[ListedPlan], operation: Operation, nodes: u32) -> String {
    match used(plans, operation, nodes) {
        Some(plan) => format!("the plan {} ({:016x})", plan.name, plan.digest),
        None => "no plan".to_owned(),
    }
}
