//! The steps that stay on this node, in pieces.

use ringway_plan::{Action, LocalRange, OutputSet, Place, Span, Targets};
use ringway_types::{Operation, Reduction};

use super::queue::LocalCall;
use crate::turn::{Operands, Shared, Turn};
use crate::{BufferRef, Failure, Handed, Piece, RankFailure, ReduceSource, ScanStep, Signature, Ticket};

/// How long pieces are.
#[derive(Debug, Clone, Copy)]
struct PieceLimits {
    /// The most bytes of one operand; what [`crate::LocalMemory`] promises to be given at most.
    most: u64,
    /// The least, when there are many operands.
    least: u64,
    /// Bytes that a piece may touch in all, so that a neighbour does not wait long.
    touched: u64,
}

impl PieceLimits {
    /// Bytes of one of so many operands.
    fn of(self, operands: u64) -> u64 {
        (self.touched / operands.max(1)).clamp(self.least, self.most) & !63
    }

    const PROCESSOR: Self = Self { most: 64 << 10, least: 4 << 10, touched: 128 << 10 };
    /// Starting a piece on an accelerator takes microseconds, in which it would touch tens of MiB: of 256 MiB it makes some
    /// 3 %, and they take 0.1 ms.
    const ACCELERATOR: Self = Self { most: 64 << 20, least: 1 << 20, touched: 256 << 20 };
}

/// Where the steps' places are in this collective and chunk.
#[derive(Debug)]
pub(crate) struct Ground<'a> {
    pub(crate) calls: &'a [LocalCall],
    pub(crate) signature: Signature,
    pub(crate) ranks: u32,
    /// The chunk's scratch memory.
    pub(crate) scratch: BufferRef,
    /// Some rank's memory is an accelerator's.
    pub(crate) accelerated: bool,
}

/// A local step under way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work {
    action: Action,
    progress: u64,
    length: u64,
}

impl Ground<'_> {
    /// The bytes of a span. `rank` is the node's lowest, blamed when a buffer is not as long as its call needs.
    pub(crate) fn span(&self, span: &Span, rank: u32, shared: &Shared) -> Result<BufferRef, Failure> {
        self.at(span.place, span.offset, span.length, rank, shared)
    }

    fn at(
        &self,
        place: Place,
        offset: u64,
        length: u64,
        rank: u32,
        shared: &Shared,
    ) -> Result<BufferRef, Failure> {
        let call = |local: u32| self.calls.get(local as usize);
        let buffer = match place {
            Place::Input(local) => call(local).and_then(|call| call.input),
            Place::Output(local) => call(local).and_then(|call| call.output),
            Place::Scratch => Some(self.scratch),
        };
        if length == 0 {
            return Ok(BufferRef { region: shared.workspace.region(), offset: 0, length: 0 });
        }
        let end = offset.checked_add(length);
        buffer
            .filter(|buffer| end.is_some_and(|end| end <= buffer.length))
            .map(|buffer| BufferRef { region: buffer.region, offset: buffer.offset + offset, length })
            .ok_or(Failure::Rank { rank, how: RankFailure::Misbehaved })
    }

    fn input(
        &self,
        local: u32,
        offset: u64,
        length: u64,
        rank: u32,
        shared: &Shared,
    ) -> Result<ReduceSource, Failure> {
        let buffer = self.at(Place::Input(local), offset, length, rank, shared)?;
        let scale = match self.signature.reduction {
            Some(Reduction::PremulSum) => self.calls.get(local as usize).and_then(|call| call.scale),
            _ => None,
        };
        Ok(ReduceSource { buffer, scale })
    }

    fn locals(&self) -> u32 {
        u32::try_from(self.calls.len()).unwrap_or(0)
    }
}

impl Work {
    pub(crate) fn new(action: Action) -> Self {
        let length = match &action {
            Action::Reduce { length, .. } | Action::Scan { length, .. } | Action::Fold { length, .. } => {
                *length
            }
            Action::Copy { from, .. } => from.length,
            Action::Swap { a, .. } => a.length,
            Action::Nothing | Action::Send { .. } | Action::Receive { .. } => 0,
        };
        Self { action, progress: 0, length }
    }

    pub(crate) const fn is_done(&self) -> bool {
        self.progress >= self.length
    }

    /// Hands over the next piece; returns the bytes it touches and what became of it.
    pub(crate) fn piece<D: ?Sized>(
        &mut self,
        ground: &Ground<'_>,
        (rank, ticket, hurried): (u32, Ticket, bool),
        turn: &mut Turn<'_, D>,
    ) -> Result<(u64, Handed), Failure> {
        let mut operands = core::mem::take(&mut turn.shared.operands);
        operands.sources.clear();
        operands.destinations.clear();
        operands.steps.clear();
        let handed = self.piece_with(ground, (rank, ticket, hurried), &mut operands, turn);
        turn.shared.operands = operands;
        handed
    }

    fn piece_with<D: ?Sized>(
        &mut self,
        ground: &Ground<'_>,
        (rank, ticket, hurried): (u32, Ticket, bool),
        operands: &mut Operands,
        turn: &mut Turn<'_, D>,
    ) -> Result<(u64, Handed), Failure> {
        let count = self.operands(ground);
        let rest = self.length - self.progress;
        let (from, length) = (self.progress, rest.min(self.limits(ground, turn.shared).of(count)));
        self.progress += length;
        let (datatype, reduction) =
            (ground.signature.datatype, ground.signature.reduction.unwrap_or(Reduction::Sum));
        let scratch = |offset: u64, shared: &Shared| {
            ground.at(Place::Scratch, offset.saturating_add(from), length, rank, shared)
        };
        let plain = |buffer: BufferRef| ReduceSource { buffer, scale: None };
        let piece = match self.action {
            Action::Reduce { sources, into, finish, .. } => {
                for block in 0..u64::from(sources.partials.count) {
                    let offset = sources.partials.offset + block * sources.partials.stride;
                    operands.sources.push(plain(scratch(offset, turn.shared)?));
                }
                for local in sources.inputs.map_or(0..0, |_| 0..ground.locals()) {
                    let offset = sources.inputs.unwrap_or(0).saturating_add(from);
                    operands.sources.push(ground.input(local, offset, length, rank, turn.shared)?);
                }
                targets(ground, &into, (from, length), rank, operands, turn.shared)?;
                let divisor = (finish && reduction == Reduction::Avg).then_some(ground.ranks);
                let (sources, destinations) = (&operands.sources, &operands.destinations);
                Piece::Reduce { datatype, reduction, sources, destinations, divisor }
            }
            Action::Copy { from: span, into } => {
                let source =
                    ground.at(span.place, span.offset.saturating_add(from), length, rank, turn.shared)?;
                targets(ground, &into, (from, length), rank, operands, turn.shared)?;
                operands.destinations.retain(|destination| *destination != source);
                if operands.destinations.is_empty() {
                    self.progress = self.length;
                    return Ok((0, Handed::Done));
                }
                Piece::Copy { source, destinations: &operands.destinations }
            }
            Action::Swap { a, b } => {
                let part = |span: Span| Span { offset: span.offset.saturating_add(from), length, ..span };
                let a = ground.span(&part(a), rank, turn.shared)?;
                Piece::Swap { a, b: ground.span(&part(b), rank, turn.shared)? }
            }
            Action::Scan { carry, locals, before, offset, .. } => {
                let carry = carry.map(|carry| scratch(carry, turn.shared)).transpose()?;
                for local in range(locals) {
                    let offset = offset.saturating_add(from);
                    let input = ground.input(local, offset, length, rank, turn.shared)?;
                    // Rank 0 has no result in an exscan, and may have no output either.
                    let output = ground
                        .at(Place::Output(local), offset, length, rank, turn.shared)
                        .or_else(|failure| if before == 0 { Ok(input.buffer) } else { Err(failure) })?;
                    operands.steps.push(ScanStep { input, output });
                }
                let inclusive = ground.signature.operation == Operation::Scan;
                Piece::Scan { datatype, reduction, carry, before, steps: &operands.steps, inclusive }
            }
            Action::Fold { carry, locals, offset, into, .. } => {
                if let Some(carry) = carry {
                    operands.sources.push(plain(scratch(carry, turn.shared)?));
                }
                for local in range(locals) {
                    let offset = offset.saturating_add(from);
                    operands.sources.push(ground.input(local, offset, length, rank, turn.shared)?);
                }
                operands.destinations.push(scratch(into, turn.shared)?);
                let (sources, destinations) = (&operands.sources, &operands.destinations);
                Piece::Reduce { datatype, reduction, sources, destinations, divisor: None }
            }
            Action::Nothing | Action::Send { .. } | Action::Receive { .. } => return Ok((0, Handed::Done)),
        };
        Ok((length * count, turn.memory.hand(ticket, &piece, hurried)))
    }

    /// How long pieces are: who does them depends on whose memory they touch.
    fn limits(&self, ground: &Ground<'_>, shared: &Shared) -> PieceLimits {
        if !ground.accelerated {
            return PieceLimits::PROCESSOR;
        }
        let on =
            |buffer: Option<BufferRef>| buffer.is_some_and(|buffer| shared.is_on_accelerator(buffer.region));
        let inputs = || ground.calls.iter().any(|call| on(call.input));
        let outputs = |into: &Targets| {
            let mut outputs =
                (0_u32..).zip(ground.calls).filter(|(_, call)| on(call.output)).map(|(local, _)| local);
            outputs.any(|local| into.outputs.has(local))
        };
        let place = |place: Place| match place {
            Place::Input(local) => ground.calls.get(local as usize).is_some_and(|call| on(call.input)),
            Place::Output(local) => ground.calls.get(local as usize).is_some_and(|call| on(call.output)),
            Place::Scratch => false,
        };
        let accelerated = match &self.action {
            Action::Reduce { sources, into, .. } => (sources.inputs.is_some() && inputs()) || outputs(into),
            Action::Copy { from, into } => place(from.place) || outputs(into),
            Action::Swap { a, b } => place(a.place) || place(b.place),
            Action::Scan { locals, .. } => {
                range(*locals).any(|local| place(Place::Input(local)) || place(Place::Output(local)))
            }
            Action::Fold { locals, .. } => range(*locals).any(|local| place(Place::Input(local))),
            Action::Nothing | Action::Send { .. } | Action::Receive { .. } => false,
        };
        if accelerated { PieceLimits::ACCELERATOR } else { PieceLimits::PROCESSOR }
    }

    /// How many operands each piece has.
    fn operands(&self, ground: &Ground<'_>) -> u64 {
        let locals = u64::from(ground.locals());
        let targets = |into: &Targets| into.places(ground.locals());
        match &self.action {
            Action::Reduce { sources, into, .. } => {
                u64::from(sources.partials.count) + sources.inputs.map_or(0, |_| locals) + targets(into)
            }
            Action::Copy { into, .. } => 1 + targets(into),
            Action::Swap { .. } => 4,
            Action::Scan { locals, .. } => 1 + 2 * u64::from(locals.count),
            Action::Fold { locals, .. } => 2 + u64::from(locals.count),
            Action::Nothing | Action::Send { .. } | Action::Receive { .. } => 1,
        }
    }
}

fn range(locals: LocalRange) -> core::ops::Range<u32> {
    locals.first..locals.first.saturating_add(locals.count)
}

fn targets(
    ground: &Ground<'_>,
    into: &Targets,
    (from, length): (u64, u64),
    rank: u32,
    operands: &mut Operands,
    shared: &Shared,
) -> Result<(), Failure> {
    let offset = into.offset.saturating_add(from);
    let (locals, except) = match into.outputs {
        OutputSet::None => (0..0, None),
        OutputSet::One(local) => (local..local.saturating_add(1), None),
        OutputSet::All => (0..ground.locals(), None),
        OutputSet::AllBut(local) => (0..ground.locals(), Some(local)),
    };
    for local in locals.filter(|local| Some(*local) != except) {
        operands.destinations.push(ground.at(Place::Output(local), offset, length, rank, shared)?);
    }
    if let Some(scratch) = into.scratch {
        let offset = scratch.saturating_add(from);
        operands.destinations.push(ground.at(Place::Scratch, offset, length, rank, shared)?);
    }
    Ok(())
}
