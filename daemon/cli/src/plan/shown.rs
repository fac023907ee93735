//! A plan as it is shown.

use std::sync::Arc;

use ringway_plan::{
    Algorithm, Tuning,
    file::Listed,
    trace::{Trace, Traced},
};
use ringway_types::Operation;

/// A plan's steps, those that do nothing left out.
#[derive(Debug)]
pub(super) struct Shown {
    /// Of a plan from a file.
    pub(super) digest: Option<u64>,
    pub(super) trace: Trace,
}

impl Shown {
    /// # Errors
    /// What the algorithm cannot do.
    pub(super) fn algorithm(algorithm: Algorithm, operation: Operation, nodes: u32) -> Result<Self, String> {
        let trace = Trace::of_algorithm(algorithm, operation, nodes, &Tuning::default());
        let trace = trace.map_err(|error| error.to_string())?;
        Ok(Self { digest: None, trace })
    }

    /// # Errors
    /// What is in the way.
    pub(super) fn listed(plan: Listed) -> Result<Self, String> {
        let plan = Arc::new(plan);
        let trace = Trace::of_listed(&plan).map_err(|error| error.to_string())?;
        Ok(Self { digest: Some(plan.digest()), trace })
    }

    /// How many nodes it is for.
    pub(super) fn nodes(&self) -> u32 {
        self.trace.layout.nodes()
    }

    /// The steps of a node that do something or wait, with their numbers.
    pub(super) fn steps(&self, node: u32) -> impl Iterator<Item = (usize, &Traced)> {
        self.trace.steps(node).iter().enumerate().filter(|(_, traced)| !traced.is_idle)
    }

    /// The shown steps that one of a node waits for, those that follow each other together: the first and the last ones.
    pub(super) fn waits(&self, node: u32, traced: &Traced) -> Vec<(u32, u32)> {
        let steps = self.trace.steps(node);
        let mut waits: Vec<u32> = traced.step.after.iter().flat_map(Clone::clone).collect();
        waits.retain(|step| steps.get(*step as usize).is_some_and(|traced| !traced.is_idle));
        waits.sort_unstable();
        waits.dedup();
        let runs = waits.chunk_by(|a, b| a + 1 == *b);
        runs.filter_map(|run| Some((*run.first()?, *run.last()?))).collect()
    }

    /// What it is called, and what it is for.
    pub(super) fn title(&self) -> String {
        let Trace { name, operation, .. } = &self.trace;
        format!("{name}: {operation} between {}", count(self.nodes(), "node"))
    }

    /// The plan in a line.
    pub(super) fn headline(&self) -> String {
        format!(
            "{}; {}scratch memory holds {}; {} in {}",
            self.title(),
            self.blocks(),
            count(self.trace.scratch, "block"),
            count(u32::try_from(self.trace.messages.len()).unwrap_or(u32::MAX), "message"),
            count(self.end(), "step"),
        )
    }

    /// The time after the last one.
    pub(super) fn end(&self) -> u32 {
        let all = (0..self.nodes()).flat_map(|node| self.steps(node));
        all.map(|(_, traced)| traced.time + 1).max().unwrap_or(0)
    }

    /// What a block is.
    fn blocks(&self) -> String {
        let (parts, most) = (count(self.trace.parts, "block"), self.trace.chunk_bytes);
        if self.trace.blocks == 0 {
            return String::new();
        }
        match (self.trace.is_on_vectors(), self.trace.pair(0)) {
            (true, _) => format!("a chunk of up to {most} bytes has {parts}, "),
            (false, None) => format!("a chunk has {parts} for each rank, {most} bytes at most, "),
            (false, Some(_)) => format!("a chunk has {parts} for each pair of ranks, {most} bytes at most, "),
        }
    }
}

fn count(number: u32, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
