//! What each half of an allreduce costs, where every node does as much in one as in the other.

use ringway_types::Operation;

use super::Rule;
use crate::{Cost, Terms};

pub(in crate::algorithm) fn allreduce(rule: &dyn Rule, terms: &Terms) -> Cost {
    rule.cost(terms)
}

pub(in crate::algorithm) fn reduce_scatter(rule: &dyn Rule, terms: &Terms) -> Cost {
    scatters(rule.cost(terms))
}

pub(in crate::algorithm) fn all_gather(rule: &dyn Rule, terms: &Terms) -> Cost {
    gathers(rule.cost(terms))
}

/// What is the operation's of the cost of an allreduce.
pub(in crate::algorithm) fn part(operation: Operation, whole: Cost) -> Cost {
    match operation {
        Operation::ReduceScatter | Operation::ReduceScatterV => scatters(whole),
        Operation::AllGather | Operation::AllGatherV => gathers(whole),
        _ => whole,
    }
}

fn scatters(whole: Cost) -> Cost {
    Cost {
        rounds: whole.rounds / 2.0,
        link_bytes: whole.link_bytes / 2.0,
        port_bytes: whole.port_bytes / 2.0,
        messages: whole.messages / 2.0,
        sent: whole.sent / 2.0,
        ..whole
    }
}

fn gathers(whole: Cost) -> Cost {
    Cost { path_reduced: 0.0, reduced: 0.0, ..scatters(whole) }
}
