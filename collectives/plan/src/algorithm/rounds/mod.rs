//! Algorithms made of rounds. A rule says, for an all-gather, which blocks a node sends and receives in each round; a
//! reduce-scatter is the same rule backwards in time: what was received is sent, and what comes is combined with what
//! is there. An allreduce is one after the other.
//!
//! A node keeps a chunk's blocks in scratch memory in an order of its own, in *slots*. A rule orders them so that what
//! a node sends in a round, and what it receives, are neighbours: every round is one message, and nothing is copied
//! together for it. `blocks` finds the bytes, `steps` makes the steps.

mod blocks;
mod costs;
mod ring;
mod steps;
mod two_shot;

pub(super) use costs::{all_gather, allreduce, part, reduce_scatter};
pub(super) use steps::{size, step};

use ringway_types::Operation;

use super::{Frame, algorithm_rule};
use crate::{Algorithm, Cost, Stage, Terms, View};

/// Consecutive slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Slots {
    pub(super) first: u32,
    pub(super) count: u32,
}

impl Slots {
    pub(super) const fn new(first: u32, count: u32) -> Self {
        Self { first, count }
    }
}

/// What a node sends and receives in a round of an all-gather.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Exchange {
    /// The node that gets something, if there is one.
    pub(super) to: Option<u32>,
    pub(super) send: Slots,
    /// The node that something comes from, if there is one.
    pub(super) from: Option<u32>,
    pub(super) receive: Slots,
    /// Backwards in time what comes needs room of its own, besides that for [`Rule::blocks`].
    pub(super) extra: bool,
}

/// An algorithm made of rounds, among `nodes` nodes of which this one is `me`. In each round all nodes send equally many
/// slots, but for rounds that are `extra`.
pub(super) trait Rule: Sync {
    /// How many blocks a chunk is cut into.
    fn blocks(&self, nodes: u32) -> u32 {
        nodes
    }

    /// Rounds of an all-gather.
    fn rounds(&self, nodes: u32) -> u32;

    /// The block that a node finishes, in each lane.
    fn own(&self, _nodes: u32, me: u32, _lane: u32) -> Option<u32> {
        Some(me)
    }

    /// Where a node keeps a block.
    fn slot(&self, _nodes: u32, _me: u32, block: u32) -> u32 {
        block
    }

    /// The block that a node keeps in a slot.
    fn block(&self, _nodes: u32, _me: u32, slot: u32) -> u32 {
        slot
    }

    /// Slots of room that `extra` rounds need.
    fn extra(&self, _nodes: u32) -> u32 {
        0
    }

    /// A round of an all-gather. In the first one of each lane every node that finishes a block sends and receives one.
    fn exchange(&self, nodes: u32, me: u32, round: u32) -> Exchange;

    /// Independent parts that take turns: round `r` is one of lane `r % lanes` and needs only that lane's.
    fn lanes(&self) -> u32 {
        1
    }

    /// Every slot is the block of that number, so that the slots are a piece of the vector.
    fn is_natural(&self) -> bool {
        true
    }

    /// No round needs another one.
    fn is_parallel(&self) -> bool {
        false
    }

    /// What an allreduce costs.
    fn cost(&self, terms: &Terms) -> Cost;
}

/// One node: nothing to do.
struct Alone;

impl Rule for Alone {
    fn rounds(&self, _: u32) -> u32 {
        0
    }

    fn exchange(&self, _: u32, _: u32, _: u32) -> Exchange {
        Exchange::default()
    }

    fn cost(&self, _: &Terms) -> Cost {
        Cost::default()
    }
}

/// The rule of a stage of a hierarchical algorithm; trees have none.
pub(super) fn stage_rule(stage: Stage) -> &'static dyn Rule {
    match stage {
        Stage::Ring => &ring::Ring,
        Stage::TwoShot => &two_shot::TwoShot,
        Stage::Nhr => &super::nhr::Nhr,
        Stage::HalvingDoubling => &super::halving_doubling::HalvingDoubling,
        Stage::Bruck => &super::bruck::Bruck,
        Stage::Binomial | Stage::Tree => &Alone,
    }
}

/// A round of either stage.
enum Part {
    Outer(u32),
    /// For these slots of the outer stage.
    Inner {
        round: u32,
        slots: Slots,
    },
}

/// The rounds of a plan on a node: an outer all-gather among the nodes with the same place in their groups, then an inner
/// one within the group. Without groups there is one group, and nothing to do outside of it.
///
/// Where the two overlap the inner one is done for each block of the outer one on its own, as soon as that has come: in turn
/// `t` all rounds of the inner one for the `t`-th block, then the outer round in which the next block but one comes. That is
/// for an inner one whose rounds do not need one another, and two of which every message is one slot.
pub(super) struct Schedule {
    inner: &'static dyn Rule,
    outer: &'static dyn Rule,
    overlaps: bool,
    /// Nodes of a group, and groups.
    group: u32,
    groups: u32,
    /// This node's place in its group, and its group.
    place: u32,
    home: u32,
}

impl Schedule {
    pub(super) fn new(frame: &Frame<'_>) -> Self {
        let nodes = frame.nodes();
        let in_groups = || super::group(nodes, frame.group).unwrap_or(nodes);
        let (inner, outer, group) = match frame.algorithm {
            Algorithm::Hierarchical(pair) => (stage_rule(pair.inner), stage_rule(pair.outer), in_groups()),
            Algorithm::Pipeline => (stage_rule(Stage::TwoShot), stage_rule(Stage::Ring), in_groups()),
            algorithm => (algorithm_rule(algorithm).unwrap_or(&Alone), &Alone as &dyn Rule, nodes),
        };
        let me = frame.me() % nodes;
        let overlaps = frame.algorithm == Algorithm::Pipeline;
        Self { inner, outer, overlaps, group, groups: nodes / group, place: me % group, home: me / group }
    }

    fn outer_blocks(&self) -> u32 {
        self.outer.blocks(self.groups)
    }

    pub(super) fn blocks(&self) -> u32 {
        self.inner.blocks(self.group).saturating_mul(self.outer_blocks())
    }

    fn outer_rounds(&self) -> u32 {
        self.outer.rounds(self.groups)
    }

    pub(super) fn rounds(&self) -> u32 {
        let turns = if self.overlaps { self.groups } else { 1 };
        self.inner.rounds(self.group).saturating_mul(turns).saturating_add(self.outer_rounds())
    }

    pub(super) fn lanes(&self) -> u32 {
        self.inner.lanes()
    }

    pub(super) fn is_natural(&self) -> bool {
        self.inner.is_natural() && self.outer.is_natural()
    }

    /// The slots of room for what comes in `extra` rounds.
    pub(super) fn extra(&self) -> u32 {
        let inner = self.inner.extra(self.group).saturating_mul(self.outer_blocks());
        inner.saturating_add(self.outer.extra(self.groups))
    }

    pub(super) fn own(&self, lane: u32) -> Option<u32> {
        let inner = self.inner.own(self.group, self.place, lane)?;
        let outer = self.outer.own(self.groups, self.home, 0)?;
        Some(inner.saturating_mul(self.outer_blocks()).saturating_add(outer))
    }

    /// The node that finishes a block, where each finishes one of every lane; and the lane.
    pub(super) fn finisher(&self, block: u32) -> (u32, u32) {
        let (inner, home) = (block / self.groups, block % self.groups);
        let (lane, place) = (inner / self.group, inner % self.group);
        (home.saturating_mul(self.group).saturating_add(place), lane)
    }

    pub(super) fn slot(&self, block: u32) -> u32 {
        let each = self.outer_blocks().max(1);
        let inner = self.inner.slot(self.group, self.place, block / each);
        inner.saturating_mul(each).saturating_add(self.outer.slot(self.groups, self.home, block % each))
    }

    /// The block that is kept in a slot.
    pub(super) fn block(&self, slot: u32) -> u32 {
        let each = self.outer_blocks().max(1);
        let inner = self.inner.block(self.group, self.place, slot / each);
        inner.saturating_mul(each).saturating_add(self.outer.block(self.groups, self.home, slot % each))
    }

    /// Which round of which stage a round is.
    fn part(&self, round: u32) -> Part {
        if self.overlaps {
            let (turn, at) = (round.saturating_add(1) / self.group, round.saturating_add(1) % self.group);
            return match at.checked_sub(1) {
                Some(round) => Part::Inner { round, slots: Slots::new(self.came(turn), 1) },
                None => Part::Outer(turn.saturating_sub(1)),
            };
        }
        match round.checked_sub(self.outer_rounds()) {
            Some(round) => Part::Inner { round, slots: Slots::new(0, self.outer_blocks()) },
            None => Part::Outer(round),
        }
    }

    /// The slot of the outer stage that is filled so many rounds of it after its start; first this node's own.
    fn came(&self, rounds: u32) -> u32 {
        match rounds.checked_sub(1) {
            Some(round) => self.outer.exchange(self.groups, self.home, round).receive.first,
            None => self.outer.slot(self.groups, self.home, self.home),
        }
    }

    /// A round, with nodes and slots of the whole.
    pub(super) fn exchange(&self, round: u32) -> Exchange {
        let each = self.outer_blocks();
        let (round, of) = match self.part(round) {
            Part::Outer(round) => (round, None),
            Part::Inner { round, slots } => (round, Some(slots)),
        };
        if let Some(of) = of {
            let it = self.inner.exchange(self.group, self.place, round);
            let node = |place: u32| self.home.saturating_mul(self.group).saturating_add(place);
            let slots = |it: Slots| {
                let first = it.first.saturating_mul(each).saturating_add(of.first);
                Slots::new(first, it.count.saturating_mul(of.count))
            };
            return Exchange {
                to: it.to.map(node),
                send: slots(it.send),
                from: it.from.map(node),
                receive: slots(it.receive),
                extra: it.extra,
            };
        }
        // Who finishes nothing inside has nothing to do outside.
        let Some(own) = self.inner.own(self.group, self.place, 0) else { return Exchange::default() };
        let base = self.inner.slot(self.group, self.place, own).saturating_mul(each);
        let it = self.outer.exchange(self.groups, self.home, round);
        let node = |home: u32| home.saturating_mul(self.group).saturating_add(self.place);
        let slots = |it: Slots| Slots::new(it.first.saturating_add(base), it.count);
        Exchange {
            to: it.to.map(node),
            send: slots(it.send),
            from: it.from.map(node),
            receive: slots(it.receive),
            extra: it.extra,
        }
    }

    /// Where a node puts what comes in a round backwards in time, as a slot of the room for that. What is sent in a round is
    /// sent in no other one, so that its place is free there; `extra` rounds have room of their own behind.
    pub(super) fn buffer(&self, round: u32, exchange: &Exchange) -> u32 {
        if !exchange.extra {
            return exchange.receive.first;
        }
        let inner = self.inner.extra(self.group).saturating_mul(self.outer_blocks());
        self.blocks().saturating_add(if round < self.outer_rounds() { inner } else { 0 })
    }

    /// The round of an all-gather that must be over before another one's message goes out.
    pub(super) fn needed_to_gather(&self, round: u32) -> Option<u32> {
        if self.overlaps {
            // The outer one before it.
            let inner = round.saturating_add(1) % self.group;
            return round.checked_sub(if inner == 0 { self.group } else { inner });
        }
        let outer = self.outer_rounds();
        let (parallel, start) =
            if round < outer { (self.outer.is_parallel(), 0) } else { (self.inner.is_parallel(), outer) };
        if parallel { start.checked_sub(1) } else { round.checked_sub(self.lanes()) }
    }

    /// The same of a reduce-scatter, in which rounds count down.
    pub(super) fn needed_to_scatter(&self, round: u32) -> Option<u32> {
        if self.overlaps {
            // What goes out within the group has nothing of others in it, what goes to the next group all that came before.
            return match self.part(round) {
                Part::Inner { .. } => None,
                Part::Outer(_) => Some(round.saturating_add(1)),
            };
        }
        let outer = self.outer_rounds();
        let (parallel, end) = if round < outer {
            (self.outer.is_parallel(), outer)
        } else {
            (self.inner.is_parallel(), self.rounds())
        };
        let needed = if parallel { end } else { round.saturating_add(self.lanes()) };
        (needed < self.rounds()).then_some(needed)
    }

    /// The `number`-th slot that is received in an all-gather, as rounds go, and its round.
    pub(super) fn received(&self, number: u32) -> Option<(u32, u32)> {
        let mut before = number;
        for round in 0..self.rounds() {
            let Exchange { from: Some(_), receive, .. } = self.exchange(round) else { continue };
            if before < receive.count {
                return Some((round, receive.first + before));
            }
            before -= receive.count;
        }
        None
    }
}

/// Of a vector: the longest message, which is half of a chunk or less, has so many bytes as a message shall have.
pub(super) fn half_a_chunk(_: &View<'_>, chunk_bytes: u64) -> u64 {
    chunk_bytes.saturating_mul(2)
}

/// The same of blocks: half of the nodes' blocks go in one message.
pub(super) fn half_the_blocks(view: &View<'_>, chunk_bytes: u64) -> u64 {
    let ranks = u64::from(view.layout.nodes()).saturating_mul(u64::from(view.layout.most_local()));
    half_a_chunk(view, chunk_bytes) / ranks.max(1)
}

/// Whether an operation is on one vector, of which blocks are made, and not on a block for each rank.
const fn is_vector(frame: &Frame<'_>) -> bool {
    matches!(frame.view.call.operation, Operation::Allreduce)
}
