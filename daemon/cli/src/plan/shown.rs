//! A plan as it is shown: its steps with what they move, and when they happen.

use std::sync::Arc;

use ringway_plan::{
    Action, Algorithm, Tuning,
    file::Listed,
    trace::{Trace, Traced},
};
use ringway_types::Operation;

use super::levels::Levels;

/// A plan's steps, with a name.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) name: String,
    /// Of a plan from a file.
    pub(super) digest: Option<u64>,
    pub(super) trace: Trace,
    pub(super) levels: Levels,
}

impl Shown {
    /// # Errors
    /// What the algorithm cannot do.
    pub(super) fn algorithm(algorithm: Algorithm, operation: Operation, nodes: u32) -> Result<Self, String> {
        let trace = Trace::of_algorithm(algorithm, operation, nodes, &Tuning::default());
        let trace = trace.map_err(|error| error.to_string())?;
        Ok(Self::new(format!("{operation}-{algorithm}-{nodes}"), None, trace))
    }

    /// # Errors
    /// What is in the way.
    pub(super) fn listed(plan: Listed) -> Result<Self, String> {
        let plan = Arc::new(plan);
        let trace = Trace::of_listed(&plan).map_err(|error| error.to_string())?;
        Ok(Self::new(plan.name().to_owned(), Some(plan.digest()), trace))
    }

    fn new(name: String, digest: Option<u64>, trace: Trace) -> Self {
        let levels = Levels::of(&trace);
        Self { name, digest, trace, levels }
    }

    pub(super) fn nodes(&self) -> u32 {
        self.trace.layout().nodes()
    }

    /// The steps of a node that do something or wait, with their numbers.
    pub(super) fn steps(&self, node: u32) -> impl Iterator<Item = (usize, &Traced)> {
        self.trace.steps(node).iter().enumerate().filter(|(_, traced)| !is_idle(traced))
    }

    /// The shown steps that one of a node waits for, those that follow each other together: the first and the last ones.
    pub(super) fn waits(&self, node: u32, traced: &Traced) -> Vec<(u32, u32)> {
        let steps = self.trace.steps(node);
        let mut waits: Vec<u32> = traced.step.after.iter().flat_map(Clone::clone).collect();
        waits.retain(|step| steps.get(*step as usize).is_some_and(|traced| !is_idle(traced)));
        waits.sort_unstable();
        waits.dedup();
        let runs = waits.chunk_by(|a, b| a + 1 == *b);
        runs.filter_map(|run| Some((*run.first()?, *run.last()?))).collect()
    }

    /// The plan in a line.
    pub(super) fn headline(&self) -> String {
        let Self { name, trace, levels, .. } = self;
        let (operation, nodes) = (trace.operation(), self.nodes());
        format!(
            "{name}: {operation} between {nodes} nodes; {}scratch memory holds {}; {} in {}",
            self.blocks(),
            count(trace.scratch(), "block"),
            count(u32::try_from(levels.messages.len()).unwrap_or(u32::MAX), "message"),
            count(levels.end(), "step"),
        )
    }

    /// What a block is.
    fn blocks(&self) -> String {
        let (parts, most) = (count(self.trace.parts(), "block"), self.trace.chunk_bytes());
        if self.trace.blocks() == 0 {
            return String::new();
        }
        match (self.trace.is_on_vectors(), self.trace.pair(0)) {
            (true, _) => format!("a chunk of up to {most} bytes has {parts}, "),
            (false, None) => format!("a chunk has {parts} for each rank, {most} bytes at most, "),
            (false, Some(_)) => format!("a chunk has {parts} for each pair of ranks, {most} bytes at most, "),
        }
    }
}

/// Whether a step is there only to keep numbers regular.
fn is_idle(traced: &Traced) -> bool {
    traced.step.action == Action::Nothing && traced.step.after.iter().all(|range| range.is_empty())
}

fn count(number: u32, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
