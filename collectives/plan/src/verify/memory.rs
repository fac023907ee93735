//! Which cells a step touches. A cell is one element of some memory; in place, input and output are the same cells.

use core::ops::Range;

use ringway_types::Operation as O;

use super::{At, Program, Scenario, Violation};
use crate::{Action, LocalRange, OutputSet, Place, Span, Targets};

/// Cells: all memories lie one behind the other.
pub(super) type Cells = Range<usize>;

/// What a step reads and writes. A copy of cells onto themselves is left out.
#[derive(Debug, Default)]
pub(super) struct Touched {
    pub(super) reads: Vec<Cells>,
    pub(super) writes: Vec<Cells>,
}

/// Where every buffer is.
#[derive(Debug)]
pub(super) struct Memory<'a> {
    scenario: &'a Scenario,
    element: u64,
    /// Of every rank.
    pub(super) inputs: Vec<Cells>,
    pub(super) outputs: Vec<Cells>,
    /// Of every node, for all chunks under way.
    scratch: Vec<Cells>,
    slots: Vec<(u64, u64)>,
    pub(super) cells: usize,
}

impl<'a> Memory<'a> {
    pub(super) fn new(scenario: &'a Scenario, programs: &[Program]) -> Self {
        let mut memory = Self {
            scenario,
            element: u64::from(scenario.call.element.max(1)),
            inputs: Vec::new(),
            outputs: Vec::new(),
            scratch: Vec::new(),
            slots: Vec::new(),
            cells: 0,
        };
        for rank in 0..scenario.layout.ranks() {
            let (input, output) = scenario.buffers(rank);
            let (input, output) = (size(input), size(output));
            let block = size(scenario.start(rank));
            let (input, output) = if !scenario.is_in_place(rank) {
                (memory.take(input), memory.take(output))
            } else {
                match scenario.call.operation {
                    O::AllGather | O::AllGatherV | O::Gather | O::GatherV => {
                        let all = memory.take(output);
                        (all.start + block..all.start + block + input, all)
                    }
                    O::ReduceScatter | O::ReduceScatterV | O::Scatter | O::ScatterV => {
                        let all = memory.take(input);
                        (all.clone(), all.start + block..all.start + block + output)
                    }
                    _ => {
                        let both = memory.take(input);
                        (both.clone(), both)
                    }
                }
            };
            memory.inputs.push(input);
            memory.outputs.push(output);
        }
        for program in programs {
            let each = program.shape.scratch / memory.element;
            let depth = u64::from(program.shape.depth.max(1));
            let cells = memory.take(size(each * depth));
            memory.scratch.push(cells);
            memory.slots.push((each, depth));
        }
        memory
    }

    fn take(&mut self, cells: usize) -> Cells {
        let start = self.cells;
        self.cells += cells;
        start..self.cells
    }

    fn rank(&self, at: At, local: u32) -> Option<usize> {
        self.scenario.layout.local(at.node).get(local as usize).map(|rank| *rank as usize)
    }

    pub(super) fn locals(&self, at: At) -> u32 {
        u32::try_from(self.scenario.layout.local(at.node).len()).unwrap_or(0)
    }

    /// The cells of a span.
    pub(super) fn span(&self, at: At, span: Span) -> Result<Cells, Violation> {
        let Span { place, offset, length } = span;
        let whole = match place {
            Place::Input(local) => self.rank(at, local).and_then(|rank| self.inputs.get(rank).cloned()),
            Place::Output(local) => self.rank(at, local).and_then(|rank| self.outputs.get(rank).cloned()),
            Place::Scratch => self.scratch.get(at.node as usize).zip(self.slots.get(at.node as usize)).map(
                |(cells, &(each, depth))| {
                    let start = cells.start + size((at.chunk % depth) * each);
                    start..start + size(each)
                },
            ),
        };
        let whole = whole.unwrap_or(0..0);
        if length == 0 {
            return Ok(whole.start..whole.start);
        }
        if !offset.is_multiple_of(self.element) || !length.is_multiple_of(self.element) {
            return Err(Violation::Misaligned { at, offset, length });
        }
        let start = whole.start.saturating_add(size(offset / self.element));
        let end = start.saturating_add(size(length / self.element));
        if end > whole.end {
            let size = whole.len() as u64 * self.element;
            return Err(Violation::OutOfBounds { at, offset, length, size });
        }
        Ok(start..end)
    }

    /// The cells of every target.
    pub(super) fn targets(&self, at: At, targets: Targets, length: u64) -> Result<Vec<Cells>, Violation> {
        let locals: Vec<u32> = match targets.outputs {
            OutputSet::None => Vec::new(),
            OutputSet::One(local) => vec![local],
            OutputSet::All => (0..self.locals(at)).collect(),
            OutputSet::AllBut(local) => (0..self.locals(at)).filter(|it| *it != local).collect(),
        };
        let output =
            |local| self.span(at, Span { place: Place::Output(local), offset: targets.offset, length });
        let mut cells = locals.into_iter().map(output).collect::<Result<Vec<_>, _>>()?;
        if let Some(offset) = targets.scratch {
            cells.push(self.span(at, Span { place: Place::Scratch, offset, length })?);
        }
        Ok(cells)
    }

    /// The cells of local ranks' inputs.
    pub(super) fn inputs(
        &self,
        at: At,
        locals: LocalRange,
        offset: u64,
        length: u64,
    ) -> Result<Vec<Cells>, Violation> {
        (locals.first..locals.first.saturating_add(locals.count))
            .map(|local| self.span(at, Span { place: Place::Input(local), offset, length }))
            .collect()
    }

    fn scratch_span(&self, at: At, offset: Option<u64>, length: u64) -> Result<Option<Cells>, Violation> {
        offset.map(|offset| self.span(at, Span { place: Place::Scratch, offset, length })).transpose()
    }

    /// What is combined by a step that combines, in order.
    pub(super) fn sources(&self, at: At, action: &Action) -> Result<Vec<Cells>, Violation> {
        match *action {
            Action::Reduce { sources, length, .. } => {
                let partials = sources.partials;
                let partial = |i| {
                    let offset = partials.offset.saturating_add(partials.stride.saturating_mul(u64::from(i)));
                    self.span(at, Span { place: Place::Scratch, offset, length })
                };
                let mut cells = (0..partials.count).map(partial).collect::<Result<Vec<_>, _>>()?;
                if let Some(offset) = sources.inputs {
                    let all = LocalRange { first: 0, count: self.locals(at) };
                    cells.extend(self.inputs(at, all, offset, length)?);
                }
                Ok(cells)
            }
            Action::Fold { carry, locals, offset, length, .. }
            | Action::Scan { carry, locals, offset, length, .. } => {
                let mut cells: Vec<_> = self.scratch_span(at, carry, length)?.into_iter().collect();
                cells.extend(self.inputs(at, locals, offset, length)?);
                Ok(cells)
            }
            _ => Ok(Vec::new()),
        }
    }

    /// What a step writes when it combines or copies.
    pub(super) fn results(&self, at: At, action: &Action) -> Result<Vec<Cells>, Violation> {
        match *action {
            Action::Reduce { into, length, .. } => self.targets(at, into, length),
            Action::Copy { from, into } => self.targets(at, into, from.length),
            Action::Fold { into, length, .. } => {
                Ok(self.scratch_span(at, Some(into), length)?.into_iter().collect())
            }
            Action::Scan { locals, offset, length, .. } => (locals.first
                ..locals.first.saturating_add(locals.count))
                .filter(|local| self.scan_writes(at, *local))
                .map(|local| self.span(at, Span { place: Place::Output(local), offset, length }))
                .collect(),
            _ => Ok(Vec::new()),
        }
    }

    /// Rank 0 gets nothing from an exclusive scan.
    pub(super) fn scan_writes(&self, at: At, local: u32) -> bool {
        self.scenario.call.operation != O::Exscan || self.rank(at, local) != Some(0)
    }

    /// Everything a step touches.
    pub(super) fn touched(&self, at: At, action: &Action) -> Result<Touched, Violation> {
        let mut touched = Touched::default();
        match *action {
            Action::Nothing => {}
            Action::Send { from, .. } => touched.reads.push(self.span(at, from)?),
            Action::Receive { into, .. } => touched.writes.push(self.span(at, into)?),
            Action::Swap { a, b } => {
                touched.writes = vec![self.span(at, a)?, self.span(at, b)?];
                if a.length != b.length {
                    return Err(Violation::Overlap { at });
                }
            }
            Action::Copy { from, .. } => {
                let from = self.span(at, from)?;
                touched.writes = self.results(at, action)?;
                touched.writes.retain(|cells| *cells != from);
                if !touched.writes.is_empty() {
                    if touched.writes.iter().any(|cells| overlap(cells, &from)) {
                        return Err(Violation::Overlap { at });
                    }
                    touched.reads.push(from);
                }
            }
            Action::Reduce { .. } | Action::Fold { .. } | Action::Scan { .. } => {
                touched.reads = self.sources(at, action)?;
                touched.writes = self.results(at, action)?;
            }
        }
        touched.reads.retain(|cells| !cells.is_empty());
        touched.writes.retain(|cells| !cells.is_empty());
        // A result may be the very bytes of a source; other overlaps have no meaning.
        for (i, write) in touched.writes.iter().enumerate() {
            let twice = touched.writes.iter().skip(i + 1).any(|other| overlap(write, other));
            if twice || touched.reads.iter().any(|read| read != write && overlap(read, write)) {
                return Err(Violation::Overlap { at });
            }
        }
        Ok(touched)
    }
}

fn size(elements: u64) -> usize {
    usize::try_from(elements).unwrap_or(usize::MAX)
}

const fn overlap(a: &Cells, b: &Cells) -> bool {
    a.start < b.end && b.start < a.end
}
