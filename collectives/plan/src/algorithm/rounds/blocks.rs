//! Which bytes the blocks of a chunk have, and where they lie in scratch memory.

use super::{Schedule, is_vector};
use crate::algorithm::{Frame, align, times};

use super::Slots;

/// Part of a block that is in one piece in every buffer.
pub(super) struct Piece {
    /// The first byte in a buffer that has all blocks.
    pub(super) all: u64,
    /// The first byte in a buffer that has this one only, which is a rank's.
    pub(super) alone: u64,
    /// The first byte in the block, as it lies in scratch memory.
    pub(super) within: u64,
    pub(super) length: u64,
}

/// A chunk's blocks: of a vector, equal parts one behind the other; else for each lane and node what its ranks have, the
/// lanes dividing every rank's. In scratch memory they lie in their slots, without gaps.
pub(super) struct Blocks<'a> {
    frame: &'a Frame<'a>,
    pub(super) schedule: Schedule,
    /// The most bytes that a block has in this chunk, and how many of the first ones have as many.
    each: u64,
    full: u32,
}

impl<'a> Blocks<'a> {
    pub(super) fn new(frame: &'a Frame<'a>) -> Self {
        let schedule = Schedule::new(frame);
        let (each, full) = if is_vector(frame) {
            let length = frame.range().1;
            let each = part(frame, length, schedule.blocks());
            (each, u32::try_from(length / each.max(1)).unwrap_or(u32::MAX))
        } else {
            let longest = part(frame, frame.cut(frame.longest_block()).1, schedule.lanes());
            let most = frame.most_local();
            // Nodes are alike where all have the most ranks, and lanes where they have equal parts.
            let alike = frame.is_uniform()
                && schedule.lanes() == 1
                && times(frame.nodes(), most) == frame.view.layout.ranks();
            (longest.saturating_mul(u64::from(most)), if alike { schedule.blocks() } else { 0 })
        };
        Self { frame, schedule, each, full }
    }

    /// Bytes of the longest block of any chunk.
    pub(super) fn stride(&self) -> u64 {
        let (frame, schedule) = (self.frame, &self.schedule);
        align(if is_vector(frame) {
            part(frame, frame.vector().min(frame.unit), schedule.blocks())
        } else {
            let longest = part(frame, frame.longest_block().min(frame.unit), schedule.lanes());
            longest.saturating_mul(u64::from(frame.most_local()))
        })
    }

    /// Pieces that a block may have.
    pub(super) fn pieces(&self) -> u32 {
        if is_vector(self.frame) { 1 } else { self.frame.most_local().max(1) }
    }

    /// A block's piece: of a vector the block itself, else that of the `local`-th rank of its node. `None` when it has no
    /// bytes.
    pub(super) fn piece(&self, block: u32, local: u32) -> Option<Piece> {
        if is_vector(self.frame) {
            let (offset, length) = self.frame.range();
            let start = self.each.saturating_mul(u64::from(block)).min(length);
            let length = (length - start).min(self.each);
            let all = offset.saturating_add(start);
            return (local == 0 && length > 0).then_some(Piece { all, alone: all, within: 0, length });
        }
        let (node, lane) = self.schedule.finisher(block);
        let (start, whole) = self.frame.view.block(self.frame.rank(node, local)?);
        let (alone, length) = self.lane(whole, lane);
        let within = if self.frame.is_uniform() {
            length.saturating_mul(u64::from(local))
        } else {
            self.packed(node, lane, local)
        };
        let all = start.saturating_add(alone);
        (length > 0).then_some(Piece { all, alone, within, length })
    }

    /// A lane's part of what this chunk has of a stream.
    fn lane(&self, stream: u64, lane: u32) -> (u64, u64) {
        let (start, length) = self.frame.cut(stream);
        let each = part(self.frame, length, self.schedule.lanes());
        let before = each.saturating_mul(u64::from(lane)).min(length);
        (start.saturating_add(before), (length - before).min(each))
    }

    /// Bytes of the first ranks of a node in its block.
    fn packed(&self, node: u32, lane: u32, ranks: u32) -> u64 {
        let ranks = self.frame.ranks_on(node).iter().take(ranks as usize);
        ranks.map(|rank| self.lane(self.frame.view.block(*rank).1, lane).1).fold(0, u64::saturating_add)
    }

    /// The bytes of a block.
    fn bytes(&self, block: u32) -> u64 {
        if is_vector(self.frame) {
            return self.piece(block, 0).map_or(0, |piece| piece.length);
        }
        let (node, lane) = self.schedule.finisher(block);
        if self.frame.is_uniform() {
            let length = self.lane(self.frame.view.block(0).1, lane).1;
            return length.saturating_mul(u64::from(self.frame.locals_on(node)));
        }
        self.packed(node, lane, u32::MAX)
    }

    /// Where a slot starts.
    pub(super) fn start(&self, slot: u32) -> u64 {
        let missing = |block: u32| {
            let is_before = self.schedule.slot(block) < slot;
            if is_before { self.each.saturating_sub(self.bytes(block)) } else { 0 }
        };
        let gaps = (self.full..self.schedule.blocks()).map(missing).fold(0, u64::saturating_add);
        self.each.saturating_mul(u64::from(slot)).saturating_sub(gaps)
    }

    /// Where slots start, and their bytes.
    pub(super) fn span(&self, slots: Slots) -> (u64, u64) {
        let start = self.start(slots.first);
        (start, self.start(slots.first.saturating_add(slots.count)).saturating_sub(start))
    }

    /// Where a block's slot starts.
    pub(super) fn place(&self, block: u32) -> u64 {
        self.start(self.schedule.slot(block))
    }
}

/// The bytes of each of equal parts of so many bytes, but perhaps of the last ones.
fn part(frame: &Frame<'_>, length: u64, parts: u32) -> u64 {
    if parts == 1 {
        return length;
    }
    let element = u64::from(frame.view.call.element.max(1));
    let elements = (length / element).div_ceil(u64::from(parts.max(1)));
    // Blocks of aligned buffers stay aligned to cache lines, where that leaves them about equal.
    let elements = if elements >= 512 { elements.next_multiple_of(64) } else { elements };
    elements.saturating_mul(element)
}
