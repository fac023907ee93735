//! Listed steps in bytes.

use core::ops::Range;

use ringway_types::Operation as O;

use super::listed::{Entry, Into, Listed, Location, Outputs, What, is_for_all};
use crate::algorithm::{Frame, Size, align, nothing};
use crate::{Action, OutputSet, Partials, Place, Sources, Span, Step, Targets, Tuning, View};

/// The bytes of a step's blocks.
#[derive(Debug, Clone, Copy)]
struct Piece {
    /// Which of the ranks of each node; 0 in operations on vectors.
    turn: u32,
    /// The first byte where all blocks are.
    whole: u64,
    /// The first byte where only one rank's block is.
    own: u64,
    length: u64,
    /// Bytes of a place in scratch memory.
    each: u64,
    /// The first byte of the first place.
    scratch: u64,
}

impl Listed {
    /// Bytes that a chunk has of each stream: as the plan wants, but no more than leave the scratch memory of a chunk
    /// within what algorithms need, which is twice [`Tuning::chunk_bytes`] for each node.
    pub(crate) fn unit(&self, view: &View<'_>, tuning: &Tuning) -> u64 {
        let room = tuning.chunk_bytes.saturating_mul(2).saturating_mul(u64::from(self.nodes()));
        let places = u64::from(self.scratch).saturating_mul(u64::from(self.turns(view.layout.most_local())));
        let parts = if self.is_per_rank() { 1 } else { u64::from(self.blocks) };
        let most = room.checked_div(places).map_or(u64::MAX, |each| each.saturating_mul(parts));
        self.chunk_bytes.min(most).max(1)
    }

    /// How often the steps are done.
    const fn turns(&self, most_local: u32) -> u32 {
        if self.is_per_rank() { most_local } else { 1 }
    }

    /// What the plan needs on the frame's node.
    pub(crate) fn size(&self, frame: &Frame<'_>) -> Size {
        let turns = self.turns(frame.most_local());
        let steps = self.steps(self.relative(frame)).len();
        let (extent, each) = if self.is_per_rank() {
            let longest = frame.longest_block();
            (longest, align(longest.min(frame.unit)))
        } else {
            (frame.vector(), block_bytes(frame, self.blocks, frame.vector().min(frame.unit)))
        };
        Size {
            extent,
            steps: u32::try_from(steps).unwrap_or(u32::MAX).saturating_mul(turns),
            scratch: each.saturating_mul(u64::from(self.scratch)).saturating_mul(u64::from(turns)),
        }
    }

    /// One step of the frame's node: all steps for the first rank of every node, then all for the second.
    pub(crate) fn step(&self, frame: &Frame<'_>, index: u32) -> Step {
        let steps = self.steps(self.relative(frame));
        let each = u32::try_from(steps.len()).unwrap_or(u32::MAX).max(1);
        let (turn, at) = (index / each, index % each);
        let Some(entry) = steps.get(at as usize).filter(|_| turn < self.turns(frame.most_local())) else {
            return nothing();
        };
        let before = index - at;
        let later = |range: &Range<u32>| {
            if range.is_empty() { 0..0 } else { range.start + before..range.end + before }
        };
        let action = match self.piece(frame, entry, turn) {
            Some(piece) if piece.length > 0 => self.action(frame, entry, &piece),
            _ => Action::Nothing,
        };
        Step { action, after: [later(&entry.after[0]), later(&entry.after[1])] }
    }

    /// This node's number in the file.
    fn relative(&self, frame: &Frame<'_>) -> u32 {
        if !self.operation.has_root() {
            return frame.me();
        }
        let nodes = frame.nodes();
        (frame.me() % nodes + nodes - frame.root_node() % nodes) % nodes
    }

    /// The number in the layout of a node of the file.
    fn absolute(&self, frame: &Frame<'_>, node: u32) -> u32 {
        if !self.operation.has_root() {
            return node;
        }
        let place = u64::from(node) + u64::from(frame.root_node());
        u32::try_from(place % u64::from(frame.nodes())).unwrap_or(0)
    }

    /// The bytes of a step's blocks in this chunk; `None` when there is no such rank.
    fn piece(&self, frame: &Frame<'_>, entry: &Entry, turn: u32) -> Option<Piece> {
        if self.is_per_rank() {
            let rank = frame.rank(self.absolute(frame, entry.block), turn)?;
            let (block, length) = frame.view.block(rank);
            let (own, length) = frame.cut(length);
            let each = align(frame.longest_block().min(frame.unit));
            let scratch = each.saturating_mul(u64::from(self.scratch)).saturating_mul(u64::from(turn));
            return Some(Piece { turn, whole: block.saturating_add(own), own, length, each, scratch });
        }
        let (offset, length) = frame.range();
        let each = block_bytes(frame, self.blocks, length);
        let edge = |block: u32| each.saturating_mul(u64::from(block)).min(length);
        let (start, end) = (edge(entry.block), edge(entry.block.saturating_add(entry.count)));
        let whole = offset.saturating_add(start);
        Some(Piece { turn, whole, own: whole, length: end - start, each, scratch: 0 })
    }

    fn action(&self, frame: &Frame<'_>, entry: &Entry, piece: &Piece) -> Action {
        let span = |location| self.span(frame, location, piece);
        let targets = |into| self.targets(frame, into, piece);
        match entry.what {
            What::Nothing => Action::Nothing,
            What::Send { peer, tag, from } => {
                let (peer, tag) = (self.absolute(frame, peer), self.tag(frame, tag, piece));
                Action::Send { peer, tag, from: span(from) }
            }
            What::Receive { peer, tag, into } => {
                let (peer, tag) = (self.absolute(frame, peer), self.tag(frame, tag, piece));
                Action::Receive { peer, tag, into: span(into) }
            }
            What::Reduce { scratch, stride, partials, inputs, into, finish } => {
                let stride = piece.each.saturating_mul(u64::from(stride));
                let partials = Partials { offset: piece.place(scratch), stride, count: partials };
                let sources = Sources { partials, inputs: inputs.then_some(piece.whole) };
                Action::Reduce { sources, into: targets(into), length: piece.length, finish }
            }
            What::Copy { from, into } => match targets(into) {
                Targets { outputs: OutputSet::AllBut(0), scratch: None, .. } if frame.locals() <= 1 => {
                    Action::Nothing
                }
                into => Action::Copy { from: span(from), into },
            },
        }
    }

    fn tag(&self, frame: &Frame<'_>, tag: u32, piece: &Piece) -> u32 {
        tag.saturating_mul(self.turns(frame.most_local())).saturating_add(piece.turn)
    }

    fn span(&self, frame: &Frame<'_>, location: Location, piece: &Piece) -> Span {
        let (place, offset) = match (location, self.operation) {
            (Location::Scratch(at), _) => (Place::Scratch, piece.place(at)),
            (Location::Input, O::Broadcast | O::Scatter) => (Place::Input(frame.root_local()), piece.whole),
            (Location::Input, _) => (Place::Input(piece.turn), piece.own),
            (Location::Output, O::Reduce | O::Gather) => (Place::Output(frame.root_local()), piece.whole),
            (Location::Output, operation) if is_for_all(operation) => (Place::Output(0), piece.whole),
            (Location::Output, _) => (Place::Output(piece.turn), piece.own),
        };
        Span { place, offset, length: piece.length }
    }

    fn targets(&self, frame: &Frame<'_>, into: Into, piece: &Piece) -> Targets {
        let Span { place, offset, .. } = self.span(frame, Location::Output, piece);
        let outputs = match (into.outputs, place) {
            (Outputs::None, _) => OutputSet::None,
            (Outputs::Others, _) => OutputSet::AllBut(0),
            (Outputs::All, _) if is_for_all(self.operation) => OutputSet::All,
            (Outputs::All, Place::Output(local)) => OutputSet::One(local),
            (Outputs::All, _) => OutputSet::None,
        };
        Targets { outputs, offset, scratch: into.scratch.map(|at| piece.place(at)) }
    }
}

impl Piece {
    /// The first byte of a place in scratch memory.
    const fn place(&self, at: u32) -> u64 {
        self.each.saturating_mul(at as u64).saturating_add(self.scratch)
    }
}

/// Bytes of each block, but perhaps the last ones', of a chunk of `length` bytes.
fn block_bytes(frame: &Frame<'_>, blocks: u32, length: u64) -> u64 {
    let element = u64::from(frame.view.call.element.max(1));
    let elements = (length / element).div_ceil(u64::from(blocks.max(1)));
    // Blocks of aligned buffers stay aligned to cache lines.
    let elements = if elements >= 64 { elements.next_multiple_of(64) } else { elements };
    elements.saturating_mul(element)
}
