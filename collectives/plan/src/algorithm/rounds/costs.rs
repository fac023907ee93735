//! What each half of an allreduce costs, where every node does as much in one as in the other.

use super::Rule;
use crate::{Cost, Terms};

pub(in crate::algorithm) fn allreduce(rule: &dyn Rule, terms: &Terms) -> Cost {
    rule.cost(terms)
}

pub(in crate::algorithm) fn reduce_scatter(rule: &dyn Rule, terms: &Terms) -> Cost {
    let whole = rule.cost(terms);
    Cost {
        rounds: whole.rounds / 2.0,
        link_bytes: whole.link_bytes / 2.0,
        port_bytes: whole.port_bytes / 2.0,
        messages: whole.messages / 2.0,
        sent: whole.sent / 2.0,
        ..whole
    }
}

pub(in crate::algorithm) fn all_gather(rule: &dyn Rule, terms: &Terms) -> Cost {
    Cost { path_reduced: 0.0, reduced: 0.0, ..reduce_scatter(rule, terms) }
}
