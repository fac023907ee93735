//! Which blocks the steps of an algorithm are about, where only the bytes in scratch memory say so.
//!
//! A step that touches an input or an output says by its offset which blocks those are. One that touches scratch memory
//! only is about what lies there: steps are run in an order that the rules allow, and every place of scratch memory
//! remembers which block was written to it.

use std::collections::BTreeMap;

use super::listed::{Entry, Listed, Location, What};

/// First and number of blocks.
pub(super) type Label = (u32, u32);

/// Why a step's blocks cannot be told.
pub(super) type Unknown = (u32, usize, &'static str);

/// Runs steps.
struct Labelling<'a> {
    plan: &'a mut Listed,
    done: Vec<Vec<bool>>,
    /// Of every node, what is in scratch memory.
    scratch: Vec<BTreeMap<u32, u32>>,
    /// Messages that were sent.
    sent: BTreeMap<(u32, u32, u32), Label>,
}

/// Fills in `block` of the steps for which `known` gives nothing. Their `count` is right already.
pub(super) fn label(plan: &mut Listed, known: &[Vec<Option<Label>>]) -> Result<(), Unknown> {
    let done = plan.steps.iter().map(|steps| vec![false; steps.len()]).collect();
    let scratch = vec![BTreeMap::new(); plan.steps.len()];
    let mut labelling = Labelling { plan, done, scratch, sent: BTreeMap::new() };
    let mut progress = true;
    while progress {
        progress = false;
        for (node, known) in known.iter().enumerate() {
            for (step, known) in known.iter().enumerate() {
                progress |= labelling.advance(node, step, *known)?;
            }
        }
    }
    for (node, done) in (0u32..).zip(&labelling.done) {
        if let Some(step) = done.iter().position(|done| !done) {
            return Err((node, step, "it never starts"));
        }
    }
    Ok(())
}

impl Labelling<'_> {
    /// Runs a step if it can be run; whether it was.
    fn advance(&mut self, node: usize, step: usize, known: Option<Label>) -> Result<bool, Unknown> {
        let number = u32::try_from(node).unwrap_or(u32::MAX);
        let entry = &self.plan.steps[node][step];
        let is_done = |step: u32| self.done[node].get(step as usize) == Some(&true);
        if self.done[node][step] || !entry.after.iter().all(|range| range.clone().all(is_done)) {
            return Ok(false);
        }
        let unknown = |why| (number, step, why);
        let what = entry.what;
        let label = match what {
            What::Receive { peer, tag, .. } => match self.sent.get(&(peer, number, tag)) {
                Some(label) => Some(*label),
                None => return Ok(false),
            },
            _ => known.or_else(|| self.found(node, entry)),
        };
        let label = match label {
            Some(label) => label,
            None if what == What::Nothing => (0, 1),
            None => return Err(unknown("its blocks do not lie one behind the other")),
        };
        if known.is_some_and(|known| known != label) {
            return Err(unknown("it is about other blocks than those it gets"));
        }
        if let What::Send { peer, tag, .. } = what {
            self.sent.insert((number, peer, tag), label);
        }
        if let Some(at) = written(what) {
            let blocks = label.0..label.0.saturating_add(label.1);
            self.scratch[node].extend((at..).zip(blocks));
        }
        let entry: &mut Entry = &mut self.plan.steps[node][step];
        (entry.block, entry.count) = label;
        self.done[node][step] = true;
        Ok(true)
    }

    /// The blocks in the scratch memory that a step reads.
    fn found(&self, node: usize, entry: &Entry) -> Option<Label> {
        let (What::Send { from: Location::Scratch(at), .. }
        | What::Copy { from: Location::Scratch(at), .. }
        | What::Reduce { scratch: at, .. }) = entry.what
        else {
            return None;
        };
        let places = &self.scratch[node];
        let first = *places.get(&at)?;
        let follow = (0..entry.count)
            .all(|i| at.checked_add(i).and_then(|at| places.get(&at)).copied() == first.checked_add(i));
        follow.then_some((first, entry.count))
    }
}

/// The first place in scratch memory that a step writes.
const fn written(what: What) -> Option<u32> {
    match what {
        What::Receive { into: Location::Scratch(at), .. } => Some(at),
        What::Reduce { into, .. } | What::Copy { into, .. } => into.scratch,
        _ => None,
    }
}
