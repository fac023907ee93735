//! Allreduce by recursive doubling: in each of `k` rounds a node exchanges all that it has with one at twice the distance,
//! and both combine the two, the lower node's first, so that all of `P = 2^k` nodes make the same sums:
//! `k a + k n b + k n g` (Thakur, Rabenseifner and Gropp 2005), the fewest rounds for small sizes.
//!
//! Other numbers of nodes are folded as by [`super::halving_doubling`]: `2 a + 2 n b + n g` more.

use super::halving_doubling::{Fold, Role};
use super::{
    Frame, Size, after, inputs, nothing, one, outputs, partials, reduce_into_scratch, scratch, times,
};
use crate::{Action, Cost, OutputSet, Place, Span, Step, Terms};

/// What a chunk costs.
pub(super) fn cost(terms: &Terms) -> Cost {
    let fold = Fold::new(terms.nodes.max(1));
    let (folds, rounds) = (f64::from(u32::from(fold.extra > 0)), f64::from(fold.log2));
    let (bytes, reduced) = ((rounds + 2.0 * folds) * terms.bytes, (rounds + folds) * terms.bytes);
    Cost {
        rounds: rounds + 2.0 * folds,
        link_bytes: bytes,
        port_bytes: bytes,
        path_reduced: reduced,
        messages: 2.0 * (rounds + folds),
        sent: (rounds + folds) * terms.bytes,
        reduced,
    }
}

/// Steps before the rounds, and in each of them.
const BEFORE: u32 = 3;
const ROUND: u32 = 3;

pub(super) fn size(frame: &Frame<'_>) -> Size {
    let fold = Fold::new(frame.nodes());
    let slots = 2 * (fold.log2 + u32::from(fold.extra > 0));
    Size {
        extent: frame.vector(),
        steps: BEFORE + times(fold.log2, ROUND) + 2,
        scratch: frame.slot(frame.vector()).saturating_mul(u64::from(slots)),
    }
}

/// A node of the plan. In scratch memory each round has two slots, of which the first is that of the lower of its nodes;
/// behind those of the rounds are two for the fold.
struct Node<'a> {
    frame: &'a Frame<'a>,
    fold: Fold,
    offset: u64,
    length: u64,
}

/// 0: combine the inputs. 1 and 2: give all to another node, or get what another one has and combine it. Then for every
/// round a send, a receive and a combination; then pass on the result to that node, or get it, and copy it to all.
pub(super) fn step(frame: &Frame<'_>, index: u32) -> Step {
    let (offset, length) = frame.range();
    let node = Node { frame, fold: Fold::new(frame.nodes()), offset, length };
    let end = BEFORE + times(node.fold.log2, ROUND);
    let role = node.fold.role(frame.me() % frame.nodes());
    match (role, index) {
        (Role::Member { number, from }, 0) => {
            let into = if from.is_some() { node.slot(node.fold.log2, 1) } else { node.own(0, number) };
            Step::free(reduce_into_scratch(inputs(offset), length, into))
        }
        (Role::Extra { .. }, 0) => Step::free(reduce_into_scratch(inputs(offset), length, 0)),
        (Role::Extra { to }, 1) => after(Action::Send { peer: to, tag: 0, from: scratch(0, length) }, 0),
        (Role::Member { from: Some(peer), .. }, 1) => {
            let into = scratch(node.slot(node.fold.log2, 0), length);
            Step::free(Action::Receive { peer, tag: 0, into })
        }
        (Role::Member { number, from: Some(_) }, 2) => {
            let sources = partials(node.slot(node.fold.log2, 0), node.stride(), 2);
            let action = reduce_into_scratch(sources, length, node.own(0, number));
            Step { action, after: [0..2, 0..0] }
        }
        (Role::Member { number, from }, _) if (BEFORE..end).contains(&index) => {
            let (round, phase) = ((index - BEFORE) / ROUND, (index - BEFORE) % ROUND);
            let first = if from.is_some() { 2 } else { 0 };
            node.round(number, round, phase, if round == 0 { first } else { index - phase - 1 })
        }
        (Role::Member { from: Some(peer), .. }, _) if index == end => {
            after(Action::Send { peer, tag: end, from: node.result() }, index - 1)
        }
        // In place this overwrites the input, which was read before it was sent.
        (Role::Extra { to }, _) if index == end => {
            Step::free(Action::Receive { peer: to, tag: end, into: node.result() })
        }
        (Role::Extra { .. }, _) if index == end + 1 && frame.locals() > 1 => {
            let into = outputs(OutputSet::AllBut(0), offset);
            after(Action::Copy { from: node.result(), into }, index - 1)
        }
        _ => nothing(),
    }
}

impl Node<'_> {
    fn stride(&self) -> u64 {
        self.frame.slot(self.frame.vector())
    }

    fn slot(&self, round: u32, which: u32) -> u64 {
        self.stride().saturating_mul(u64::from(round) * 2 + u64::from(which))
    }

    /// Where a node has its own part of a round.
    fn own(&self, round: u32, number: u32) -> u64 {
        self.slot(round, (number >> round) & 1)
    }

    fn result(&self) -> Span {
        Span { place: Place::Output(0), offset: self.offset, length: self.length }
    }

    fn round(&self, number: u32, round: u32, phase: u32, ready: u32) -> Step {
        let peer = self.fold.node(number ^ (1 << round));
        let tag = round + 1;
        let length = self.length;
        match phase {
            0 => {
                let from = scratch(self.own(round, number), length);
                after(Action::Send { peer, tag, from }, ready)
            }
            1 => {
                let into = scratch(self.own(round, number ^ (1 << round)), length);
                Step::free(Action::Receive { peer, tag, into })
            }
            _ => {
                let sources = partials(self.slot(round, 0), self.stride(), 2);
                let action = if round + 1 == self.fold.log2 {
                    let into = outputs(OutputSet::All, self.offset);
                    Action::Reduce { sources, into, length, finish: true }
                } else {
                    reduce_into_scratch(sources, length, self.own(round + 1, number))
                };
                let received = BEFORE + times(round, ROUND) + 1;
                Step { action, after: [one(ready), one(received)] }
            }
        }
    }
}
