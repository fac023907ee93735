//! The table of algorithms: how each does each operation.

use ringway_types::Operation;

use super::{
    Frame, Size, all_gather_ring, allreduce_direct, allreduce_recursive_doubling, allreduce_ring,
    allreduce_two_shot, barrier, bidirectional_ring, binomial_gather, broadcast, bruck, bruck_all_to_all,
    exchange, grouped_all_to_all, halving_doubling, hierarchical, local, nhr, pairwise, pipeline,
    reduce_direct, reduce_ring, reduce_scatter_direct, reduce_scatter_ring, rounds, scan_direct,
    scatter_all_gather, tree, tree_allreduce, tree_broadcast, tree_reduce,
};
use crate::{Algorithm, Cost, Pair, Stage, Step, Terms, View};

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
    /// Contributions are combined ranks ascending within a node, then nodes ascending, in the one association that
    /// [`crate::verify::check_strict`] proves.
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
        Algorithm::Pipeline => pipeline(operation),
        Algorithm::Hierarchical(pair) => hierarchical(pair, operation),
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
        Algorithm::Hierarchical(pair) => hierarchical::cost(pair, operation, terms),
        _ => Some((method.cost)(terms)),
    }
}

/// The rule of an algorithm that is made of rounds.
pub(super) fn algorithm_rule(algorithm: Algorithm) -> Option<&'static dyn rounds::Rule> {
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
            .strict()
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

/// A chunk waits for a whole one on every level, which is for short vectors; so does one of blocks for all below a node.
fn binomial(operation: Operation) -> Option<Method> {
    use binomial_gather as it;
    use rounds::half_the_blocks as unit;
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
        // Nodes on the way know only how long all blocks are.
        Operation::Gather => Method::new(2, it::size, it::gather_step, it::gather_cost).with_unit(unit),
        Operation::Scatter => Method::new(2, it::size, it::scatter_step, it::scatter_cost).with_unit(unit),
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
    (operation == Operation::Allreduce).then(|| method().strict().with_unit(allreduce_ring::unit))
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

/// Two groups of two nodes are the least. Every message is of one node's block, as around a ring.
fn pipeline(operation: Operation) -> Option<Method> {
    use Operation as O;
    let method = |cost| Method::new(4, rounds::size, rounds::step, cost).in_groups();
    Some(match operation {
        O::Allreduce => method(pipeline::cost).with_unit(allreduce_ring::unit),
        O::ReduceScatter | O::ReduceScatterV => {
            method(|terms| rounds::part(O::ReduceScatter, pipeline::cost(terms))).with_unit(shared_by_ranks)
        }
        O::AllGather | O::AllGatherV => {
            method(|terms| rounds::part(O::AllGather, pipeline::cost(terms))).with_unit(shared_by_ranks)
        }
        _ => return None,
    })
}

/// Two groups of two nodes are the least. What it costs depends on the pair: see [`cost`].
fn hierarchical(pair: Pair, operation: Operation) -> Option<Method> {
    use Operation as O;
    let method = |size, step| Method::new(4, size, step, |_| Cost::default()).in_groups();
    match operation {
        O::Allreduce if pair.has_rounds() => {
            Some(method(rounds::size, rounds::step).with_unit(rounds::half_a_chunk))
        }
        O::ReduceScatter | O::ReduceScatterV | O::AllGather | O::AllGatherV if pair.has_rounds() => {
            let method = method(rounds::size, rounds::step).with_unit(rounds::half_the_blocks);
            // Nodes that are folded into a power of two have no block of their own.
            let folds = [pair.inner, pair.outer].contains(&Stage::HalvingDoubling);
            Some(if folds { method.for_powers_of_two() } else { method })
        }
        O::Broadcast if pair.is_tree() => Some(method(
            |frame| tree_broadcast::size(frame, levels(frame)),
            |frame, index| tree_broadcast::step(frame, levels(frame), index),
        )),
        O::Reduce if pair.is_tree() => Some(method(
            |frame| tree_reduce::size(frame, levels(frame)),
            |frame, index| tree_reduce::step(frame, levels(frame), index),
        )),
        _ => None,
    }
}

/// The tree of a hierarchical algorithm.
const fn levels(frame: &Frame<'_>) -> tree::Kind {
    match frame.algorithm {
        Algorithm::Hierarchical(pair) => tree::Kind::Levels(pair),
        _ => tree::Kind::Binomial,
    }
}
