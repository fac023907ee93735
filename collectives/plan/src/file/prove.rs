//! Proves listed plans right.

use std::sync::Arc;

use ringway_types::Operation as O;

use super::document::Document;
use super::listed::What;
use super::{FileError, Listed};
use crate::trace::Trace;
use crate::verify::{self, Counts, Program, Scenario, Stats};
use crate::{Call, Layout, Plan, Tuning};

/// What a proof looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Proof {
    /// Calls: sizes, layouts, roots, in place or not.
    pub calls: u64,
    /// Steps, messages and pairs of steps in all of them.
    pub stats: Stats,
}

/// Chunks under way at once: some wait for others' scratch memory.
const DEPTH: u32 = 2;

impl Listed {
    /// Reads a plan and proves it right.
    ///
    /// # Errors
    /// [`FileError`]: what is wrong, where, and what was expected.
    pub fn read(text: &str) -> Result<Self, FileError> {
        Self::prove_file(text).map(|(listed, _)| listed)
    }

    /// The same, with what was proved.
    ///
    /// # Errors
    /// [`FileError`]: what is wrong, where, and what was expected.
    pub fn prove_file(text: &str) -> Result<(Self, Proof), FileError> {
        let listed = Self::from_document(Document::read(text)?)?;
        let (listed, proof) = listed.proved()?;
        Ok((Arc::unwrap_or_clone(listed), proof))
    }

    /// Checks every step, and proves the plan for calls of all kinds.
    pub(super) fn proved(self) -> Result<(Arc<Self>, Proof), FileError> {
        self.check_amount()?;
        self.check_steps()?;
        let listed = Arc::new(self);
        let mut proof = Proof::default();
        for (scenario, unit) in listed.scenarios() {
            let stats = listed.prove(&scenario, unit).map_err(|violation| FileError::Wrong {
                plan: listed.name.clone(),
                violation,
                call: describe(&scenario),
            })?;
            proof.calls += 1;
            proof.stats.steps += stats.steps;
            proof.stats.messages += stats.messages;
            proof.stats.message_bytes += stats.message_bytes;
            proof.stats.ordered_pairs += stats.ordered_pairs;
        }
        listed.check_moved()?;
        Ok((listed, proof))
    }

    /// Checks that every step moves the blocks that it says. From scratch to scratch memory only their length comes of what it says,
    /// and most blocks are as long as others; which of them are shorter depends on the size of the call.
    fn check_moved(self: &Arc<Self>) -> Result<(), FileError> {
        let plan = || self.name.clone();
        let trace =
            Trace::of_listed(self).map_err(|untraced| FileError::Untraced { plan: plan(), untraced })?;
        for node in 0..self.nodes() {
            for (step, (entry, traced)) in self.steps(node).iter().zip(trace.steps(node)).enumerate() {
                let mut said = (0..).zip(entry.block..entry.block.saturating_add(entry.count));
                let other = said.find(|(at, block)| traced.blocks.get(*at) != Some(block));
                if let Some((at, block)) = other.filter(|_| entry.what != What::Nothing) {
                    let moved =
                        traced.blocks.get(at).map_or("nothing".to_owned(), |block| format!("block {block}"));
                    let message = format!("says that it moves block {block} where it moves {moved}");
                    return Err(FileError::Step { plan: plan(), node, step, message });
                }
            }
        }
        Ok(())
    }

    /// Checks that the plan combines as [`verify::check_strict`] promises, for calls of all kinds.
    ///
    /// # Errors
    /// [`FileError::Wrong`], which says what is combined otherwise.
    pub fn check_strict(self: &Arc<Self>) -> Result<(), FileError> {
        self.scenarios().iter().try_for_each(|(scenario, unit)| {
            let checked =
                self.list(scenario, *unit).and_then(|programs| verify::check_strict(scenario, &programs));
            checked.map_err(|violation| FileError::Wrong {
                plan: self.name.clone(),
                violation,
                call: describe(scenario),
            })
        })
    }

    fn list(self: &Arc<Self>, scenario: &Scenario, unit: u64) -> Result<Vec<Program>, verify::Violation> {
        let tuning = Tuning { depth: DEPTH, ..Tuning::default() };
        verify::list(scenario, |view| Plan::listed_in(unit, self, view, &tuning))
    }

    fn prove(self: &Arc<Self>, scenario: &Scenario, unit: u64) -> Result<Stats, verify::Violation> {
        verify::prove(scenario, &self.list(scenario, unit)?)
    }

    /// Calls of every kind, with the bytes of a chunk: as few as show what can go wrong, as each is enumerated.
    fn scenarios(&self) -> Vec<(Scenario, u64)> {
        let blocks = if self.is_per_rank() { 1 } else { u64::from(self.blocks) };
        // Elements, and those of a chunk: none, one, too few for all blocks, one for each, uneven, several chunks of
        // which the last is short.
        let whole = 2 * blocks + 1;
        let sizes = [
            (0, whole),
            (1, whole),
            (blocks - 1, whole),
            (blocks, whole),
            (whole, whole),
            (3 * blocks + 1, blocks),
        ];
        let in_place: [fn(u32) -> bool; 3] = [|_| false, |_| true, |rank| rank % 2 == 1];
        let layouts = self.layouts();
        let mut all = Vec::new();
        for (i, layout) in layouts.iter().enumerate() {
            for (j, (count, unit)) in sizes.into_iter().enumerate() {
                // All with all would be nine times as many; every size and layout meets each kind of place and root.
                let (element, root) = ([1, 4][j % 2], root(layout.ranks(), i + j));
                let scenario = self.scenario(layout, count, element, root, in_place[(i + j) % 3]);
                all.push((scenario, unit * u64::from(element)));
            }
        }
        all
    }

    /// One rank on each node, two dealt out in turn, and uneven ones.
    fn layouts(&self) -> Vec<Layout> {
        let nodes = self.nodes();
        let uneven = (0..nodes).flat_map(|node| (0..=(node * 2 + 1) % 3).map(move |_| node));
        let lists: [Vec<u32>; 3] =
            [(0..nodes).collect(), (0..2 * nodes).map(|rank| rank % nodes).collect(), uneven.collect()];
        lists.iter().filter_map(|list| Layout::new(list)).collect()
    }

    fn scenario(
        &self,
        layout: &Layout,
        count: u64,
        element: u32,
        root: u32,
        in_place: fn(u32) -> bool,
    ) -> Scenario {
        let ranks = layout.ranks();
        let counts = match self.operation {
            O::AllGatherV | O::ReduceScatterV => {
                Counts::PerRank((0..u64::from(ranks)).map(|rank| (rank * 5 + 1) % (count + 1)).collect())
            }
            _ => Counts::Uniform,
        };
        let call = Call { operation: self.operation, element, count, root };
        Scenario { layout: layout.clone(), call, counts, in_place: (0..ranks).map(in_place).collect() }
    }
}

/// The first rank, one in the middle, the last one.
const fn root(ranks: u32, which: usize) -> u32 {
    match which % 3 {
        0 => 0,
        1 => ranks / 2,
        _ => ranks - 1,
    }
}

/// The call in a few words.
fn describe(scenario: &Scenario) -> String {
    let Scenario { layout, call, in_place, .. } = scenario;
    let places = match in_place.iter().filter(|it| **it).count() {
        0 => "",
        all if all == in_place.len() => ", in place",
        _ => ", in place on every other rank",
    };
    let root = if call.operation.has_root() { format!(", root {}", call.root) } else { String::new() };
    format!(
        "{} of {} elements of {} bytes among {} ranks on {} nodes{root}{places}",
        call.operation,
        call.count,
        call.element,
        layout.ranks(),
        layout.nodes()
    )
}
