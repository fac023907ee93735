//! Rabenseifner's allreduce: a reduce-scatter by recursive halving, then an all-gather by recursive doubling, among
//! `P = 2^k` nodes: `2 k a + 2 n (P - 1) / P b + n (P - 1) / P g` (Thakur, Rabenseifner and Gropp 2005).
//!
//! Of other numbers of nodes, as in MPICH, the `N - P` first ones with an even number give all that they have to the node
//! behind them and get the result from it: `2 a + 2 n b + n g` more.

use super::rounds::{Exchange, Rule, Slots};
use crate::{Cost, Terms};

pub(super) struct HalvingDoubling;

/// How nodes are folded into a power of two.
#[derive(Clone, Copy)]
pub(super) struct Fold {
    /// `log2` of the nodes that take part.
    pub(super) log2: u32,
    /// Nodes that give all they have to the next one.
    pub(super) extra: u32,
}

/// What a node does.
#[derive(Clone, Copy)]
pub(super) enum Role {
    /// It gives all it has to a node.
    Extra { to: u32 },
    /// It takes part with this number, and has perhaps a node that gives it all it has.
    Member { number: u32, from: Option<u32> },
}

impl Fold {
    pub(super) const fn new(nodes: u32) -> Self {
        let log2 = if nodes == 0 { 0 } else { nodes.ilog2() };
        Self { log2, extra: nodes - (1 << log2) }
    }

    pub(super) const fn role(self, node: u32) -> Role {
        if node / 2 >= self.extra {
            Role::Member { number: node - self.extra, from: None }
        } else if node.is_multiple_of(2) {
            Role::Extra { to: node + 1 }
        } else {
            Role::Member { number: node / 2, from: Some(node - 1) }
        }
    }

    /// The node that takes part with a number.
    pub(super) const fn node(self, number: u32) -> u32 {
        if number < self.extra { 2 * number + 1 } else { number + self.extra }
    }
}

impl Rule for HalvingDoubling {
    fn blocks(&self, nodes: u32) -> u32 {
        1 << Fold::new(nodes).log2
    }

    fn rounds(&self, nodes: u32) -> u32 {
        let fold = Fold::new(nodes);
        fold.log2 + u32::from(fold.extra > 0)
    }

    fn own(&self, nodes: u32, me: u32, _: u32) -> Option<u32> {
        match Fold::new(nodes).role(me) {
            Role::Extra { .. } => None,
            Role::Member { number, .. } => Some(number),
        }
    }

    fn extra(&self, nodes: u32) -> u32 {
        if Fold::new(nodes).extra > 0 { self.blocks(nodes) } else { 0 }
    }

    fn exchange(&self, nodes: u32, me: u32, round: u32) -> Exchange {
        let fold = Fold::new(nodes);
        let role = fold.role(me);
        if round >= fold.log2 {
            let all = Slots::new(0, self.blocks(nodes));
            return match role {
                Role::Extra { to } => {
                    Exchange { from: Some(to), receive: all, extra: true, ..Exchange::default() }
                }
                Role::Member { from: to @ Some(_), .. } => {
                    Exchange { to, send: all, extra: true, ..Exchange::default() }
                }
                Role::Member { from: None, .. } => Exchange::default(),
            };
        }
        let Role::Member { number, .. } = role else { return Exchange::default() };
        let width = 1 << round;
        let other = number ^ width;
        let half = |number: u32| Slots::new(number & !(width - 1), width);
        let peer = Some(fold.node(other));
        Exchange { to: peer, send: half(number), from: peer, receive: half(other), extra: false }
    }

    fn cost(&self, terms: &Terms) -> Cost {
        let fold = Fold::new(terms.nodes.max(1));
        let (folds, log2) = (f64::from(u32::from(fold.extra > 0)), f64::from(fold.log2));
        let members = log2.exp2();
        let once = terms.bytes * (members - 1.0) / members;
        Cost {
            rounds: 2.0 * (log2 + folds),
            link_bytes: 2.0 * (once + folds * terms.bytes),
            port_bytes: 2.0 * (once + folds * terms.bytes),
            path_reduced: once + folds * terms.bytes,
            messages: 4.0 * log2 + 2.0 * folds,
            sent: 2.0 * once + folds * terms.bytes,
            reduced: once + folds * terms.bytes,
        }
    }
}
