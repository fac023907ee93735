//! What can be said of each step without running it.

use core::ops::Range;
use std::collections::BTreeMap;

use ringway_types::Operation as O;

use super::document::{Document, Line, Spot, VERSION, Wait};
use super::listed::{Entry, Into, Listed, Location, OPERATIONS, Outputs, What, is_for_all};
use super::{
    BLOCKS_MAX, CHUNK_BYTES_MAX, FileError, NAME_BYTES_MAX, NODES_MAX, STEPS_IN_ALL_MAX, STEPS_MAX, TAG_MAX,
    WAITS_IN_ALL_MAX,
};
use crate::trace::MOVED_MAX;

/// One end of each message, by its source, destination and tag: the node and the step.
type Ends = BTreeMap<(u32, u32, u32), (u32, usize)>;

impl Listed {
    /// The plan that a document says, its steps not yet looked at.
    pub(super) fn from_document(document: Document) -> Result<Self, FileError> {
        let operation = check_header(&document)?;
        let Document { name, blocks, scratch, chunk_bytes, .. } = document;
        let mut steps = Vec::new();
        for (node, lines) in (0u32..).zip(document.steps) {
            let entry = |(step, line): (usize, Line)| {
                entry(step, line).map_err(|message| FileError::Step {
                    plan: name.clone(),
                    node,
                    step,
                    message,
                })
            };
            steps.push(lines.into_iter().enumerate().map(entry).collect::<Result<Vec<_>, _>>()?);
        }
        Ok(Self { name, operation, blocks, scratch, chunk_bytes, steps, digest: 0 }.sealed())
    }

    /// With its digest, and with waits written in one way.
    pub(super) fn sealed(mut self) -> Self {
        for entry in self.steps.iter_mut().flatten() {
            entry.after = merged(entry.after.clone());
        }
        // FNV-1a: nodes that may differ by accident are told apart, those who mean harm have the cluster's key anyway.
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        self.digest = self.to_json().bytes().fold(0xcbf2_9ce4_8422_2325, mix);
        self
    }

    /// Looks at how much there is to be proved.
    pub(super) fn check_amount(&self) -> Result<(), FileError> {
        let wrong = |field, given, expected| Err(FileError::Header { field, given, expected });
        let longest = self.steps.iter().map(Vec::len).max().unwrap_or(0);
        if longest > STEPS_MAX as usize {
            return wrong(
                "steps",
                format!("a list of {longest}"),
                format!("a node may have {STEPS_MAX} steps"),
            );
        }
        let all = self.steps.iter().map(Vec::len).sum::<usize>();
        if all > STEPS_IN_ALL_MAX {
            return wrong("steps", format!("{all} in all"), format!("there may be {STEPS_IN_ALL_MAX}"));
        }
        let blocks = self.steps.iter().flatten().map(|entry| u64::from(entry.count)).sum::<u64>();
        if blocks > MOVED_MAX {
            let expected = format!("there may be {MOVED_MAX}");
            return wrong("steps", format!("about {blocks} blocks in all"), expected);
        }
        let waits = self.steps.iter().flatten().flat_map(|entry| &entry.after).map(ExactSizeIterator::len);
        let waits = waits.fold(0, usize::saturating_add);
        if waits > WAITS_IN_ALL_MAX {
            let expected = format!("steps may wait for {WAITS_IN_ALL_MAX} others in all");
            return wrong("after", format!("{waits} steps that others wait for"), expected);
        }
        Ok(())
    }

    /// Looks at every step.
    pub(super) fn check_steps(&self) -> Result<(), FileError> {
        let wrong = |(node, step), message| FileError::Step { plan: self.name.clone(), node, step, message };
        for (node, steps) in (0u32..).zip(&self.steps) {
            for (step, entry) in steps.iter().enumerate() {
                self.check_step(node, step, entry).map_err(|message| wrong((node, step), message))?;
            }
        }
        self.check_messages().map_err(|(at, message)| wrong(at, message))
    }

    fn check_step(&self, node: u32, step: usize, entry: &Entry) -> Result<(), String> {
        if let Some(range) = entry.after.iter().find(|range| !range.is_empty() && range.end as usize > step) {
            return Err(format!("waits for step {}, which does not come before it", range.end - 1));
        }
        if entry.what == What::Nothing {
            return Ok(());
        }
        self.check_blocks(entry)?;
        match entry.what {
            What::Nothing => Ok(()),
            What::Send { peer, tag, from } => {
                self.check_message(node, peer, tag)?;
                self.check_location(node, entry, from)
            }
            What::Receive { peer, tag, into } => {
                self.check_message(node, peer, tag)?;
                self.check_location(node, entry, into)
            }
            What::Copy { from, into } => {
                self.check_location(node, entry, from)?;
                self.check_into(node, entry, into)
            }
            What::Reduce { scratch, stride, partials, inputs, into, .. } => {
                if !self.operation.reduces() {
                    return Err(format!("`reduce` in a plan for {}, which combines nothing", self.operation));
                }
                if partials == 0 && !inputs {
                    return Err("combines nothing: it needs `partials`, `\"inputs\": true` or both".into());
                }
                if partials > 0 {
                    let last = u64::from(partials - 1).saturating_mul(u64::from(stride));
                    self.check_scratch(u64::from(scratch).saturating_add(last), entry.count)?;
                }
                if partials > 1 && stride == 0 {
                    return Err(
                        "`stride` is 0, so that one partial result would be combined repeatedly".into()
                    );
                }
                self.check_into(node, entry, into)
            }
        }
    }

    fn check_blocks(&self, entry: &Entry) -> Result<(), String> {
        let (block, count) = (entry.block, entry.count);
        if self.is_per_rank() && count != 1 {
            return Err(format!("is about {count} blocks; in a plan for {} it may be one", self.operation));
        }
        if count == 0 || u64::from(block) + u64::from(count) > u64::from(self.blocks) {
            return Err(format!("blocks {block} to {} of {}", end(block, count), self.blocks));
        }
        Ok(())
    }

    fn check_message(&self, node: u32, peer: u32, tag: u32) -> Result<(), String> {
        if peer == node || peer >= self.nodes() {
            return Err(format!("`peer` is {peer}; it must be another one of {} nodes", self.nodes()));
        }
        if tag > TAG_MAX {
            return Err(format!("`tag` is {tag}; it may be up to {TAG_MAX}"));
        }
        Ok(())
    }

    fn check_scratch(&self, at: u64, count: u32) -> Result<(), String> {
        if at.saturating_add(u64::from(count)) > u64::from(self.scratch) {
            let last = at.saturating_add(u64::from(count)) - 1;
            return Err(format!("place {last} in scratch memory, of which the plan has {}", self.scratch));
        }
        Ok(())
    }

    /// Whether the node has this memory, and the step's blocks in it.
    fn check_location(&self, node: u32, entry: &Entry, location: Location) -> Result<(), String> {
        let operation = self.operation;
        let root_only = |what| {
            let text = format!("in a plan for {operation} only node 0, the root's, has an {what}");
            if node == 0 { Ok(()) } else { Err(text) }
        };
        let own_only = |what| {
            let text = format!("the {what} of node {node} has no block {}, only {node}", entry.block);
            if entry.block == node { Ok(()) } else { Err(text) }
        };
        match (location, operation) {
            (Location::Scratch(at), _) => self.check_scratch(u64::from(at), entry.count),
            (Location::Input, _) if operation.reduces() => {
                Err("the inputs of a node's ranks are combined first, by `reduce` with `inputs`".into())
            }
            (Location::Input, O::Broadcast | O::Scatter) => root_only("input"),
            (Location::Input, _) => own_only("input"),
            (Location::Output, O::Reduce | O::Gather) => root_only("output"),
            (Location::Output, _) if is_for_all(operation) => Ok(()),
            (Location::Output, _) => own_only("output"),
        }
    }

    fn check_into(&self, node: u32, entry: &Entry, into: Into) -> Result<(), String> {
        match (into.outputs, into.scratch) {
            (Outputs::None, None) => return Err("`into` names no place".into()),
            (Outputs::None, _) => {}
            (Outputs::All, _) => self.check_location(node, entry, Location::Output)?,
            (Outputs::Others, _) if is_for_all(self.operation) => {}
            (Outputs::Others, _) => {
                return Err(format!("`others` in a plan for {}, in which one rank gets it", self.operation));
            }
        }
        into.scratch.map_or(Ok(()), |at| self.check_scratch(u64::from(at), entry.count))
    }

    /// Whether every message has two ends, which are about the same blocks.
    fn check_messages(&self) -> Result<(), ((u32, usize), String)> {
        let mut ends: [Ends; 2] = [Ends::new(), Ends::new()];
        for (node, steps) in (0u32..).zip(&self.steps) {
            for (step, entry) in steps.iter().enumerate() {
                let (side, name) = match entry.what {
                    What::Send { peer, tag, .. } => (0, (node, peer, tag)),
                    What::Receive { peer, tag, .. } => (1, (peer, node, tag)),
                    _ => continue,
                };
                if let Some(other) = ends[side].insert(name, (node, step)) {
                    let text = format!("has the peer and tag of step {}; give it another `tag`", other.1);
                    return Err(((node, step), text));
                }
            }
        }
        for (side, verb) in [(0, "receives"), (1, "sends")] {
            for (name, at) in &ends[side] {
                let peer = if side == 0 { name.1 } else { name.0 };
                let Some(other) = ends[1 - side].get(name) else {
                    return Err((
                        *at,
                        format!("node {peer} never {verb} it: no step there has tag {}", name.2),
                    ));
                };
                let about =
                    |at: (u32, usize)| self.steps(at.0).get(at.1).map(|entry| (entry.block, entry.count));
                if about(*at) != about(*other) {
                    let text = format!("is about other blocks than node {peer} step {}", other.1);
                    return Err((*at, text));
                }
            }
        }
        Ok(())
    }
}

fn check_header(document: &Document) -> Result<O, FileError> {
    let wrong = |field, given: &dyn ToString, expected: String| {
        Err(FileError::Header { field, given: given.to_string(), expected })
    };
    let Document { ringway_plan, name, nodes, blocks, scratch, chunk_bytes, steps, .. } = document;
    if *ringway_plan != VERSION {
        return wrong("ringway_plan", ringway_plan, format!("this program reads version {VERSION}"));
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if !(1..=NAME_BYTES_MAX).contains(&name.len()) || !name.chars().all(is_plain) {
        let expected = format!("it must be 1 to {NAME_BYTES_MAX} letters, digits, `-`, `_` and `.`");
        let shown: String = name.chars().take(NAME_BYTES_MAX).filter(|c| !c.is_control()).collect();
        return wrong("name", &format!("`{shown}`"), expected);
    }
    let operation = O::from_name(&document.operation).filter(|operation| OPERATIONS.contains(operation));
    let Some(operation) = operation else {
        let names = OPERATIONS.map(O::name).join(", ");
        let given: String = document.operation.chars().take(32).filter(|c| !c.is_control()).collect();
        return wrong("operation", &format!("`{given}`"), format!("it must be one of {names}"));
    };
    if !(2..=NODES_MAX).contains(nodes) {
        return wrong("nodes", nodes, format!("it must be 2 to {NODES_MAX}"));
    }
    if steps.len() != *nodes as usize {
        return wrong(
            "steps",
            &format!("{} lists", steps.len()),
            format!("there must be {nodes}, as `nodes` says"),
        );
    }
    if super::listed::is_per_rank(operation) && blocks != nodes {
        return wrong(
            "blocks",
            blocks,
            format!("in a plan for {operation} there is one for each of {nodes} nodes"),
        );
    }
    if !(1..=BLOCKS_MAX).contains(blocks) {
        return wrong("blocks", blocks, format!("it must be 1 to {BLOCKS_MAX}"));
    }
    if *scratch > BLOCKS_MAX {
        return wrong("scratch", scratch, format!("it may be up to {BLOCKS_MAX}"));
    }
    if !(1..=CHUNK_BYTES_MAX).contains(chunk_bytes) {
        return wrong("chunk_bytes", chunk_bytes, format!("it must be 1 to {CHUNK_BYTES_MAX}"));
    }
    Ok(operation)
}

/// The last of some blocks.
const fn end(block: u32, count: u32) -> u64 {
    (block as u64 + count as u64).saturating_sub(1)
}

fn entry(step: usize, line: Line) -> Result<Entry, String> {
    let (what, block, count, after) = match line {
        Line::Nothing(it) => (What::Nothing, 0, 1, it.after),
        Line::Send(it) => {
            let what = What::Send { peer: it.peer, tag: it.tag, from: location(it.from)? };
            (what, it.block, it.count, it.after)
        }
        Line::Receive(it) => {
            let into = location(it.into)?;
            if into == Location::Input {
                return Err("`into` is `input`, which nothing may write".into());
            }
            (What::Receive { peer: it.peer, tag: it.tag, into }, it.block, it.count, it.after)
        }
        Line::Copy(it) => {
            let what = What::Copy { from: location(it.from)?, into: into(&it.into)? };
            (what, it.block, it.count, it.after)
        }
        Line::Reduce(it) => {
            let (scratch, partials, stride) =
                it.partials.map_or((0, 0, 1), |column| (column.scratch, column.count, column.stride));
            let (inputs, finish) = (it.inputs, it.finish);
            let what = What::Reduce { scratch, stride, partials, inputs, into: into(&it.into)?, finish };
            (what, it.block, it.count, it.after)
        }
    };
    Ok(Entry { what, block, count, after: ranges(step, after)? })
}

fn location(spot: Spot) -> Result<Location, String> {
    match spot {
        Spot::Input => Ok(Location::Input),
        Spot::Output => Ok(Location::Output),
        Spot::Scratch(at) => Ok(Location::Scratch(at)),
        Spot::Others => Err("`others` are several outputs; only `copy` and `reduce` write several".into()),
    }
}

fn into(spots: &[Spot]) -> Result<Into, String> {
    let mut into = Into { outputs: Outputs::None, scratch: None };
    for spot in spots {
        let again = match *spot {
            Spot::Input => return Err("`into` has `input`, which nothing may write".into()),
            Spot::Output => core::mem::replace(&mut into.outputs, Outputs::All) != Outputs::None,
            Spot::Others => core::mem::replace(&mut into.outputs, Outputs::Others) != Outputs::None,
            Spot::Scratch(at) => into.scratch.replace(at).is_some(),
        };
        if again {
            return Err("`into` may have one of `output` and `others`, and one place in scratch".into());
        }
    }
    Ok(into)
}

/// The steps that are waited for, as at most two ranges.
fn ranges(step: usize, mut waits: Vec<Wait>) -> Result<[Range<u32>; 2], String> {
    waits.sort_unstable_by_key(|wait| wait.0);
    let mut all: Vec<Range<u32>> = Vec::new();
    for Wait(first, last) in waits {
        if first > last {
            return Err(format!("waits for steps {first} to {last}; give the first one first"));
        }
        if last as usize >= step {
            return Err(format!("waits for step {last}, which does not come before it"));
        }
        match all.last_mut() {
            Some(range) if first <= range.end => range.end = range.end.max(last + 1),
            _ => all.push(first..last + 1),
        }
    }
    let mut all = all.into_iter();
    let ranges = [all.next().unwrap_or(0..0), all.next().unwrap_or(0..0)];
    if all.next().is_some() {
        return Err(
            "waits for more than two runs of steps; let a `nothing` step wait for some of them".into()
        );
    }
    Ok(ranges)
}

/// One range where the second continues the first, and empty ones alike.
fn merged(ranges: [Range<u32>; 2]) -> [Range<u32>; 2] {
    let [first, second] = ranges.map(|range| if range.is_empty() { 0..0 } else { range });
    let (first, second) = if first.is_empty() || (!second.is_empty() && second.start < first.start) {
        (second, first)
    } else {
        (first, second)
    };
    if second.is_empty() || second.start > first.end {
        [first, second]
    } else {
        [first.start..first.end.max(second.end), 0..0]
    }
}
