//! What all nodes together do for one chunk, which is what counts where several of them share processors.

use ringway_types::Operation;

use super::{binomial_gather, halving_doubling::Fold, scatter_all_gather};
use crate::{Algorithm, Cost, Pair, Stage, Terms, Work};

/// Of an algorithm that costs so much. Where nodes differ and no sum is known it is as if all did what the busiest one does.
pub(crate) fn total(algorithm: Algorithm, operation: Operation, terms: &Terms, cost: &Cost) -> Work {
    use Operation as O;
    let (n, others) = (terms.n(), terms.n() - 1.0);
    let copied = n * copied(algorithm, operation, terms, cost);
    let even = Work { messages: n * cost.messages, sent: n * cost.sent, reduced: n * cost.reduced, copied };
    let trees = if algorithm == Algorithm::DoubleTree { 2.0 } else { 1.0 };
    let one_way = Work { messages: 2.0 * trees * others, sent: others * terms.bytes, ..Work::default() };
    match (algorithm, operation) {
        // However it goes, every other node is sent the vector once.
        (Algorithm::ScatterAllGather, O::Broadcast) => {
            Work { messages: scatter_all_gather::messages(terms.nodes), ..one_way }
        }
        (_, O::Broadcast) => one_way,
        (_, O::Reduce) => Work { reduced: one_way.sent, ..one_way },
        (Algorithm::Tree | Algorithm::DoubleTree, O::Allreduce) => {
            let (messages, sent) = (2.0 * one_way.messages, 2.0 * one_way.sent);
            Work { messages, sent, reduced: one_way.sent, copied: 0.0 }
        }
        (Algorithm::Binomial, O::Gather | O::Scatter) => {
            let sent = binomial_gather::hops(terms.nodes) * terms.bytes / n;
            Work { messages: 2.0 * others, sent, ..Work::default() }
        }
        (_, O::Gather | O::GatherV | O::Scatter | O::ScatterV) => {
            Work { messages: 2.0 * others, sent: others * terms.bytes / n, ..Work::default() }
        }
        (_, O::Scan | O::Exscan) => {
            Work { messages: n * others, sent: even.sent / 2.0, reduced: even.reduced / 2.0, copied: 0.0 }
        }
        (Algorithm::RecursiveDoubling | Algorithm::HalvingDoubling, O::Allreduce) => folded(algorithm, terms),
        _ => even,
    }
}

/// Nodes beyond a power of two give others what they have, and get the result back.
fn folded(algorithm: Algorithm, terms: &Terms) -> Work {
    let fold = Fold::new(terms.nodes.max(1));
    let (log2, extra) = (f64::from(fold.log2), f64::from(fold.extra));
    let members = log2.exp2();
    let (messages, sent, reduced) = if algorithm == Algorithm::RecursiveDoubling {
        (members * log2, members * log2, members * log2)
    } else {
        (2.0 * members * log2, 2.0 * (members - 1.0), members - 1.0)
    };
    Work {
        messages: 2.0 * (messages + 2.0 * extra),
        sent: (sent + 2.0 * extra) * terms.bytes,
        reduced: (reduced + extra) * terms.bytes,
        copied: 0.0,
    }
}

/// What a node copies where blocks lie in scratch memory in another order than in the vector: all that was finished by others,
/// or, where nothing is combined, everything. Blocks that go by way of other nodes are copied once for each message that they are
/// in, and once more at the end.
fn copied(algorithm: Algorithm, operation: Operation, terms: &Terms, cost: &Cost) -> f64 {
    let turns = |stage: Stage| matches!(stage, Stage::Nhr | Stage::Bruck);
    match (algorithm, operation) {
        (Algorithm::Nhr, Operation::Allreduce) => terms.bytes * (terms.n() - 1.0) / terms.n(),
        (Algorithm::Hierarchical(Pair { inner, outer }), Operation::Allreduce)
            if turns(inner) || turns(outer) =>
        {
            terms.bytes * (terms.n() - 1.0) / terms.n()
        }
        (
            Algorithm::BidirectionalRing
            | Algorithm::RecursiveDoubling
            | Algorithm::Nhr
            | Algorithm::Bruck
            | Algorithm::Pipeline
            | Algorithm::Hierarchical(_),
            Operation::AllGather | Operation::AllGatherV,
        ) => terms.bytes,
        (Algorithm::Bruck | Algorithm::GroupedAllToAll, Operation::AllToAll) => {
            cost.sent + terms.bytes * (terms.n() - 1.0) / terms.n()
        }
        _ => 0.0,
    }
}
