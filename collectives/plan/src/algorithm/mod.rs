//! One file for each algorithm and family of operations: how many steps there are, and what each one does.

mod all_gather_ring;
mod allreduce_direct;
mod allreduce_recursive_doubling;
mod allreduce_ring;
mod allreduce_two_shot;
mod barrier;
mod bidirectional_ring;
mod broadcast;
mod bruck;
mod bruck_all_to_all;
mod bundle;
mod exchange;
mod grouped_all_to_all;
mod halving_doubling;
mod hierarchical;
mod local;
mod nhr;
mod pairwise;
mod pattern;
mod reduce_direct;
mod reduce_ring;
mod reduce_scatter_direct;
mod reduce_scatter_ring;
mod rounds;
mod scan_direct;
mod scatter_all_gather;
mod tree;
mod tree_allreduce;
mod tree_broadcast;
mod tree_reduce;

use core::ops::Range;

use ringway_types::Operation;

use crate::{
    Action, Algorithm, Blocks, Cost, OutputSet, Partials, Place, Sources, Span, Step, Targets, Terms, View,
};

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

/// How an algorithm does one operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Method {
    /// The fewest nodes it is for.
    pub(crate) nodes: u32,
    /// Whether it is for powers of two only.
    pub(crate) power_of_two: bool,
    /// Only where nodes fall into equal groups.
    pub(crate) in_groups: bool,
    /// Bytes that one chunk has of each stream, of so many that a message shall have, before rounding to elements. The same
    /// on every node.
    pub(crate) unit: fn(&View<'_>, u64) -> u64,
    /// What the plan needs on the view's node.
    pub(crate) size: fn(&Frame<'_>) -> Size,
    /// One step on the view's node.
    pub(crate) step: fn(&Frame<'_>, u32) -> Step,
    /// What a chunk costs.
    pub(crate) cost: fn(&Terms) -> Cost,
    /// Contributions are combined ranks ascending within a node, then nodes ascending.
    pub(crate) strict: bool,
}

impl Method {
    const fn new(
        nodes: u32,
        size: fn(&Frame<'_>) -> Size,
        step: fn(&Frame<'_>, u32) -> Step,
        cost: fn(&Terms) -> Cost,
    ) -> Self {
        Self { nodes, power_of_two: false, in_groups: false, unit: whole, size, step, cost, strict: false }
    }

    const fn with_unit(self, unit: fn(&View<'_>, u64) -> u64) -> Self {
        Self { unit, ..self }
    }

    const fn strict(self) -> Self {
        Self { strict: true, ..self }
    }

    const fn for_powers_of_two(self) -> Self {
        Self { power_of_two: true, ..self }
    }

    const fn in_groups(self) -> Self {
        Self { in_groups: true, ..self }
    }
}

/// A chunk is as long as a message shall be.
const fn whole(_: &View<'_>, chunk_bytes: u64) -> u64 {
    chunk_bytes
}

/// One message carries a piece for every rank of a node.
fn shared_by_ranks(view: &View<'_>, chunk_bytes: u64) -> u64 {
    chunk_bytes / u64::from(view.layout.most_local()).max(1)
}

/// How an algorithm does an operation; `None` where it does not.
pub(crate) fn method(algorithm: Algorithm, operation: Operation) -> Option<Method> {
    if !operation.is_collective() {
        return None;
    }
    match algorithm {
        Algorithm::Local => Some(Method::new(1, local::size, local::step, |_| Cost::default()).strict()),
        Algorithm::Direct => Some(direct(operation)),
        Algorithm::Ring => ring(operation),
        Algorithm::Binomial => binomial(operation),
        Algorithm::Tree => tree(operation),
        Algorithm::DoubleTree => double_tree(operation),
        Algorithm::ScatterAllGather => scatter_all_gather(operation),
        Algorithm::Pairwise => pairwise(operation),
        Algorithm::GroupedAllToAll => grouped_all_to_all(operation),
        Algorithm::TwoShot => two_shot(operation),
        Algorithm::BidirectionalRing => bidirectional_ring(operation),
        Algorithm::RecursiveDoubling => recursive_doubling(operation),
        Algorithm::HalvingDoubling => halving_doubling(operation),
        Algorithm::Nhr => nhr(operation),
        Algorithm::Bruck => bruck(operation).or_else(|| bruck_all_to_all(operation)),
        Algorithm::Hierarchical(_) => hierarchical(operation),
    }
}

/// Nodes of a group, of so many that are asked for or, for 0, as many as divide them next to their root: `None` where that
/// does not make at least two groups of at least two nodes.
pub(crate) fn group(nodes: u32, asked: u32) -> Option<u32> {
    let divides = |group: &u32| *group >= 2 && nodes.is_multiple_of(*group) && nodes / *group >= 2;
    if asked == 0 { (2..=nodes.isqrt()).rev().find(divides) } else { Some(asked).filter(divides) }
}

/// What one chunk of an operation costs; `None` where the algorithm does not do it between so many nodes.
pub(crate) fn cost(algorithm: Algorithm, operation: Operation, terms: &Terms) -> Option<Cost> {
    let method = method(algorithm, operation)?;
    if terms.nodes < method.nodes || (method.power_of_two && !terms.nodes.is_power_of_two()) {
        return None;
    }
    if method.in_groups && group(terms.nodes, terms.group_nodes).is_none() {
        return None;
    }
    match algorithm {
        Algorithm::Hierarchical(pair) => hierarchical::cost(pair, terms),
        _ => Some((method.cost)(terms)),
    }
}

/// The rule of an algorithm that is made of rounds.
fn algorithm_rule(algorithm: Algorithm) -> Option<&'static dyn rounds::Rule> {
    Some(match algorithm {
        Algorithm::BidirectionalRing => &bidirectional_ring::BidirectionalRing,
        Algorithm::RecursiveDoubling | Algorithm::HalvingDoubling => &halving_doubling::HalvingDoubling,
        Algorithm::Nhr => &nhr::Nhr,
        Algorithm::Bruck => &bruck::Bruck,
        _ => return None,
    })
}

fn direct(operation: Operation) -> Method {
    use Operation as O;
    match operation {
        O::Allreduce => {
            Method::new(2, allreduce_direct::size, allreduce_direct::step, allreduce_direct::cost).strict()
        }
        O::Reduce => Method::new(2, reduce_direct::size, reduce_direct::step, reduce_direct::cost).strict(),
        O::Broadcast => {
            Method::new(2, broadcast::direct_size, broadcast::direct_step, broadcast::direct_cost)
        }
        O::ReduceScatter | O::ReduceScatterV => Method::new(
            2,
            reduce_scatter_direct::size,
            reduce_scatter_direct::step,
            reduce_scatter_direct::cost,
        )
        .strict()
        .with_unit(shared_by_ranks),
        O::Scan | O::Exscan => Method::new(2, scan_direct::size, scan_direct::step, scan_direct::cost)
            .with_unit(scan_direct::unit),
        O::Barrier => Method::new(2, barrier::size, barrier::step, barrier::cost),
        O::AllGather | O::AllGatherV => {
            Method::new(2, exchange::size, exchange::step, exchange::all_gather_cost)
        }
        _ => Method::new(2, exchange::size, exchange::step, exchange::cost),
    }
}

/// Of an allreduce and a reduce_scatter each node finishes a part, which makes sense between two nodes already.
fn ring(operation: Operation) -> Option<Method> {
    use Operation as O;
    Some(match operation {
        O::Allreduce => Method::new(2, allreduce_ring::size, allreduce_ring::step, allreduce_ring::cost)
            .with_unit(allreduce_ring::unit),
        O::ReduceScatter | O::ReduceScatterV => {
            Method::new(2, reduce_scatter_ring::size, reduce_scatter_ring::step, reduce_scatter_ring::cost)
                .with_unit(shared_by_ranks)
        }
        O::Reduce => Method::new(3, reduce_ring::size, reduce_ring::step, reduce_ring::cost),
        O::Broadcast => Method::new(3, broadcast::ring_size, broadcast::ring_step, broadcast::ring_cost),
        O::AllGather | O::AllGatherV => {
            Method::new(3, all_gather_ring::size, all_gather_ring::step, all_gather_ring::cost)
        }
        _ => return None,
    })
}

/// A chunk waits for a whole one on every level, which is for short vectors.
fn binomial(operation: Operation) -> Option<Method> {
    use tree::Kind::Binomial as KIND;
    Some(match operation {
        Operation::Broadcast => Method::new(
            2,
            |frame| tree_broadcast::size(frame, KIND),
            |frame, index| tree_broadcast::step(frame, KIND, index),
            tree_broadcast::binomial_cost,
        ),
        Operation::Reduce => Method::new(
            2,
            |frame| tree_reduce::size(frame, KIND),
            |frame, index| tree_reduce::step(frame, KIND, index),
            tree_reduce::binomial_cost,
        ),
        _ => return None,
    })
}

fn tree(operation: Operation) -> Option<Method> {
    use tree::Kind::Binary as KIND;
    Some(match operation {
        Operation::Broadcast => Method::new(
            2,
            |frame| tree_broadcast::size(frame, KIND),
            |frame, index| tree_broadcast::step(frame, KIND, index),
            tree_broadcast::binary_cost,
        ),
        Operation::Reduce => Method::new(
            2,
            |frame| tree_reduce::size(frame, KIND),
            |frame, index| tree_reduce::step(frame, KIND, index),
            tree_reduce::binary_cost,
        ),
        Operation::Allreduce => Method::new(
            2,
            |frame| tree_allreduce::size(frame, KIND),
            |frame, index| tree_allreduce::step(frame, KIND, index),
            tree_allreduce::binary_cost,
        ),
        _ => return None,
    })
}

/// Between two nodes the two trees would be the same.
fn double_tree(operation: Operation) -> Option<Method> {
    use tree::Kind::Double as KIND;
    Some(match operation {
        Operation::Broadcast => Method::new(
            3,
            |frame| tree_broadcast::size(frame, KIND),
            |frame, index| tree_broadcast::step(frame, KIND, index),
            tree_broadcast::double_cost,
        ),
        Operation::Reduce => Method::new(
            3,
            |frame| tree_reduce::size(frame, KIND),
            |frame, index| tree_reduce::step(frame, KIND, index),
            tree_reduce::double_cost,
        ),
        Operation::Allreduce => Method::new(
            3,
            |frame| tree_allreduce::size(frame, KIND),
            |frame, index| tree_allreduce::step(frame, KIND, index),
            tree_allreduce::double_cost,
        ),
        _ => return None,
    })
}

/// Between two nodes it is a broadcast in two messages.
fn scatter_all_gather(operation: Operation) -> Option<Method> {
    use scatter_all_gather as it;
    (operation == Operation::Broadcast)
        .then(|| Method::new(3, it::size, it::step, it::cost).with_unit(it::unit))
}

fn pairwise(operation: Operation) -> Option<Method> {
    matches!(operation, Operation::AllToAll | Operation::AllToAllV)
        .then(|| Method::new(2, pairwise::size, pairwise::step, pairwise::cost))
}

/// Blocks go by way of nodes that know only how long all of them are.
fn bruck_all_to_all(operation: Operation) -> Option<Method> {
    use bruck_all_to_all as it;
    (operation == Operation::AllToAll)
        .then(|| Method::new(2, it::size, it::step, it::cost).with_unit(it::unit))
}

/// As with Bruck's. Four nodes are the fewest that fall into groups.
fn grouped_all_to_all(operation: Operation) -> Option<Method> {
    use grouped_all_to_all as it;
    (operation == Operation::AllToAll)
        .then(|| Method::new(4, it::size, it::step, it::cost).with_unit(it::unit).in_groups())
}

fn two_shot(operation: Operation) -> Option<Method> {
    let method =
        || Method::new(2, allreduce_two_shot::size, allreduce_two_shot::step, allreduce_two_shot::cost);
    (operation == Operation::Allreduce).then(|| method().with_unit(allreduce_ring::unit))
}

/// Between two nodes both ways are one.
fn bidirectional_ring(operation: Operation) -> Option<Method> {
    use Operation as O;
    use bidirectional_ring::{BidirectionalRing as Rule, unit};
    let method = |cost| Method::new(3, rounds::size, rounds::step, cost);
    Some(match operation {
        O::Allreduce => method(|terms| rounds::allreduce(&Rule, terms)).with_unit(unit),
        O::ReduceScatter | O::ReduceScatterV => {
            method(|terms| rounds::reduce_scatter(&Rule, terms)).with_unit(shared_by_ranks)
        }
        O::AllGather | O::AllGatherV => {
            method(|terms| rounds::all_gather(&Rule, terms)).with_unit(shared_by_ranks)
        }
        _ => return None,
    })
}

fn recursive_doubling(operation: Operation) -> Option<Method> {
    use Operation as O;
    use allreduce_recursive_doubling::{cost, size, step};
    use halving_doubling::HalvingDoubling as Rule;
    Some(match operation {
        O::Allreduce => Method::new(2, size, step, cost),
        O::AllGather | O::AllGatherV => {
            Method::new(2, rounds::size, rounds::step, |terms| rounds::all_gather(&Rule, terms))
                .with_unit(rounds::half_the_blocks)
                .for_powers_of_two()
        }
        _ => return None,
    })
}

fn halving_doubling(operation: Operation) -> Option<Method> {
    use Operation as O;
    use halving_doubling::HalvingDoubling as Rule;
    let method = |cost| Method::new(2, rounds::size, rounds::step, cost);
    Some(match operation {
        // Folding sends a whole chunk in one message.
        O::Allreduce => method(|terms| rounds::allreduce(&Rule, terms)),
        O::ReduceScatter | O::ReduceScatterV => method(|terms| rounds::reduce_scatter(&Rule, terms))
            .with_unit(rounds::half_the_blocks)
            .for_powers_of_two(),
        _ => return None,
    })
}

fn nhr(operation: Operation) -> Option<Method> {
    use Operation as O;
    use nhr::Nhr as Rule;
    let method = |cost| Method::new(2, rounds::size, rounds::step, cost);
    Some(match operation {
        O::Allreduce => method(|terms| rounds::allreduce(&Rule, terms)).with_unit(rounds::half_a_chunk),
        O::ReduceScatter | O::ReduceScatterV => {
            method(|terms| rounds::reduce_scatter(&Rule, terms)).with_unit(rounds::half_the_blocks)
        }
        O::AllGather | O::AllGatherV => {
            method(|terms| rounds::all_gather(&Rule, terms)).with_unit(rounds::half_the_blocks)
        }
        _ => return None,
    })
}

fn bruck(operation: Operation) -> Option<Method> {
    use Operation as O;
    use bruck::Bruck as Rule;
    let method = |cost| Method::new(2, rounds::size, rounds::step, cost);
    Some(match operation {
        O::ReduceScatter | O::ReduceScatterV => {
            method(|terms| rounds::reduce_scatter(&Rule, terms)).with_unit(rounds::half_the_blocks)
        }
        O::AllGather | O::AllGatherV => {
            method(|terms| rounds::all_gather(&Rule, terms)).with_unit(rounds::half_the_blocks)
        }
        _ => return None,
    })
}

/// Two groups of two nodes are the least. What it costs depends on the pair: see [`cost`].
fn hierarchical(operation: Operation) -> Option<Method> {
    let method = || Method::new(4, rounds::size, rounds::step, |_| Cost::default());
    (operation == Operation::Allreduce).then(|| method().with_unit(rounds::half_a_chunk).in_groups())
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
