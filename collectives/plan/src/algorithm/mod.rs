//! One file for each algorithm and family of operations: how many steps there are, and what each one does.

mod all_gather_ring;
mod allreduce_direct;
mod allreduce_recursive_doubling;
mod allreduce_ring;
mod allreduce_two_shot;
mod barrier;
mod bidirectional_ring;
mod binomial_gather;
mod broadcast;
mod bruck;
mod bruck_all_to_all;
mod bundle;
mod exchange;
mod grouped_all_to_all;
mod halving_doubling;
mod hierarchical;
mod local;
mod method;
mod nhr;
mod pairwise;
mod pattern;
mod pipeline;
mod reduce_direct;
mod reduce_ring;
mod reduce_scatter_direct;
mod reduce_scatter_ring;
mod rounds;
mod scan_direct;
mod scatter_all_gather;
mod totals;
mod tree;
mod tree_allreduce;
mod tree_broadcast;
mod tree_reduce;

use core::ops::Range;

use method::algorithm_rule;
pub(crate) use method::{Method, cost, group, method};
pub(crate) use totals::total;

use crate::{Action, Algorithm, Blocks, OutputSet, Partials, Place, Sources, Span, Step, Targets, View};

/// What an algorithm computes a step from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame<'a> {
    pub(crate) view: &'a View<'a>,
    /// Bytes that a chunk has of each stream.
    pub(crate) unit: u64,
    /// Blocks up to this many bytes travel packed.
    pub(crate) pack: u64,
    pub(crate) chunk: u64,
    pub(crate) algorithm: Algorithm,
    /// Nodes of a group, where nodes are in groups.
    pub(crate) group: u32,
}

/// What an algorithm needs on one node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    /// Bytes of the longest stream; a chunk takes `unit` bytes of it.
    pub(crate) extent: u64,
    pub(crate) steps: u32,
    pub(crate) scratch: u64,
}

impl<'a> Frame<'a> {
    pub(crate) fn nodes(&self) -> u32 {
        self.view.layout.nodes().max(1)
    }

    pub(crate) const fn me(&self) -> u32 {
        self.view.node
    }

    /// The ranks on a node, ascending.
    pub(crate) fn ranks_on(&self, node: u32) -> &'a [u32] {
        self.view.layout.local(node)
    }

    /// How many ranks are on a node.
    pub(crate) fn locals_on(&self, node: u32) -> u32 {
        u32::try_from(self.ranks_on(node).len()).unwrap_or(u32::MAX)
    }

    /// How many ranks are on this node.
    pub(crate) fn locals(&self) -> u32 {
        self.locals_on(self.me())
    }

    /// The most ranks any node has.
    pub(crate) fn most_local(&self) -> u32 {
        self.view.layout.most_local()
    }

    /// The `local`-th rank on a node.
    pub(crate) fn rank(&self, node: u32, local: u32) -> Option<u32> {
        self.ranks_on(node).get(local as usize).copied()
    }

    pub(crate) fn root_node(&self) -> u32 {
        self.view.layout.node_of(self.view.call.root)
    }

    pub(crate) fn root_local(&self) -> u32 {
        self.view.layout.local_index(self.view.call.root)
    }

    pub(crate) fn is_root_node(&self) -> bool {
        self.root_node() == self.me()
    }

    pub(crate) fn in_place(&self, local: u32) -> bool {
        self.view.in_place.get(local as usize).copied().unwrap_or(false)
    }

    pub(crate) const fn is_uniform(&self) -> bool {
        matches!(self.view.blocks, Blocks::Uniform)
    }

    /// Bytes of the whole vector, for operations on vectors.
    pub(crate) fn vector(&self) -> u64 {
        self.view.call.count.saturating_mul(u64::from(self.view.call.element))
    }

    /// The most bytes a chunk has of a stream of `extent` bytes, rounded up to cache lines.
    pub(crate) fn slot(&self, extent: u64) -> u64 {
        align(extent.min(self.unit))
    }

    /// The part of a stream of `length` bytes that is in this chunk: its start and its length.
    pub(crate) fn cut(&self, length: u64) -> (u64, u64) {
        let start = self.chunk.saturating_mul(self.unit).min(length);
        (start, (length - start).min(self.unit))
    }

    /// The part of the vector that is in this chunk.
    pub(crate) fn range(&self) -> (u64, u64) {
        self.cut(self.vector())
    }

    /// One of `of` nearly equal shares of this chunk of the vector: its first byte and its length.
    pub(crate) fn share(&self, number: u32, of: u32) -> (u64, u64) {
        let (offset, length) = self.range();
        let each = self.share_bytes(length, of);
        let start = each.saturating_mul(u64::from(number)).min(length);
        (offset.saturating_add(start), (length - start).min(each))
    }

    /// Bytes of each share, but perhaps the last ones', of a chunk of `length` bytes.
    pub(crate) fn share_bytes(&self, length: u64, of: u32) -> u64 {
        if of <= 1 {
            return length;
        }
        let element = u64::from(self.view.call.element.max(1));
        let elements = (length / element).div_ceil(u64::from(of));
        // Shares of aligned buffers stay aligned to cache lines.
        let elements = if elements >= 64 { elements.next_multiple_of(64) } else { elements };
        elements.saturating_mul(element)
    }

    /// How many places this node is after another one.
    pub(crate) fn distance_from(&self, node: u32) -> u32 {
        let nodes = u64::from(self.nodes());
        let places = (u64::from(self.me()) + nodes - u64::from(node) % nodes) % nodes;
        u32::try_from(places).unwrap_or(0)
    }

    /// The bytes of a node's block in this chunk of the vector, which has one for each node.
    pub(crate) fn node_block(&self, node: u32) -> (u64, u64) {
        self.share(node, self.nodes())
    }

    /// Bytes of each node's block, but perhaps the last ones', in a chunk of `length` bytes.
    pub(crate) fn block_bytes(&self, length: u64) -> u64 {
        self.share_bytes(length, self.nodes())
    }

    /// The node `distance` places on.
    pub(crate) fn node_after(&self, distance: u32) -> u32 {
        let nodes = u64::from(self.nodes());
        let place = (u64::from(self.me()) + u64::from(distance)) % nodes;
        u32::try_from(place).unwrap_or(0)
    }

    /// The node `distance` places back.
    pub(crate) fn node_before(&self, distance: u32) -> u32 {
        let nodes = self.nodes();
        self.node_after(nodes - distance % nodes)
    }

    /// The longest block of the ranks of a node, in bytes.
    pub(crate) fn longest_block_on(&self, node: u32) -> u64 {
        if self.is_uniform() {
            return self.view.block(0).1;
        }
        self.ranks_on(node).iter().map(|rank| self.view.block(*rank).1).max().unwrap_or(0)
    }

    /// The longest block of all, in bytes.
    pub(crate) fn longest_block(&self) -> u64 {
        if self.is_uniform() {
            return self.view.block(0).1;
        }
        (0..self.view.layout.ranks()).map(|rank| self.view.block(rank).1).max().unwrap_or(0)
    }

    /// The `local`-th piece of a node when this chunk's pieces of its ranks lie one behind the other: its start there
    /// and its length, and with `local` the number of ranks the bytes of all.
    pub(crate) fn packed_piece(&self, node: u32, local: u32) -> (u64, u64) {
        let ranks = self.ranks_on(node);
        if self.is_uniform() {
            let length = self.cut(self.view.block(0).1).1;
            return (length.saturating_mul(u64::from(local)), length);
        }
        let length = |rank: &u32| self.cut(self.view.block(*rank).1).1;
        let start = ranks.iter().take(local as usize).map(length).fold(0, u64::saturating_add);
        (start, ranks.get(local as usize).map_or(0, length))
    }

    /// Bytes of this chunk's pieces of all ranks of a node.
    pub(crate) fn packed_length(&self, node: u32) -> u64 {
        self.packed_piece(node, self.locals_on(node)).0
    }
}

/// Rounds up to a cache line.
pub(crate) const fn align(bytes: u64) -> u64 {
    bytes.saturating_add(63) & !63
}

/// The product as a step count or index.
pub(crate) const fn times(a: u32, b: u32) -> u32 {
    a.saturating_mul(b)
}

/// One step's index as a range.
pub(crate) const fn one(index: u32) -> Range<u32> {
    index..index.saturating_add(1)
}

/// A step that does nothing.
pub(crate) const fn nothing() -> Step {
    Step::free(Action::Nothing)
}

/// A step after one other.
pub(crate) const fn after(action: Action, index: u32) -> Step {
    Step { action, after: [one(index), 0..0] }
}

/// A span of scratch memory.
pub(crate) const fn scratch(offset: u64, length: u64) -> Span {
    Span { place: Place::Scratch, offset, length }
}

/// Targets in outputs only.
pub(crate) const fn outputs(outputs: OutputSet, offset: u64) -> Targets {
    Targets { outputs, offset, scratch: None }
}

/// A target in scratch only.
pub(crate) const fn into_scratch(offset: u64) -> Targets {
    Targets { outputs: OutputSet::None, offset: 0, scratch: Some(offset) }
}

/// Every local input.
pub(crate) const fn inputs(offset: u64) -> Sources {
    Sources { partials: Partials { offset: 0, stride: 0, count: 0 }, inputs: Some(offset) }
}

/// One partial result, then every local input.
pub(crate) const fn partial_and_inputs(partial: u64, offset: u64) -> Sources {
    Sources { partials: Partials { offset: partial, stride: 0, count: 1 }, inputs: Some(offset) }
}

/// Evenly spaced partial results.
pub(crate) const fn partials(offset: u64, stride: u64, count: u32) -> Sources {
    Sources { partials: Partials { offset, stride, count }, inputs: None }
}

/// A partial result, not yet final, of every local input into scratch.
pub(crate) const fn reduce_into_scratch(sources: Sources, length: u64, into: u64) -> Action {
    Action::Reduce { sources, into: into_scratch(into), length, finish: false }
}
