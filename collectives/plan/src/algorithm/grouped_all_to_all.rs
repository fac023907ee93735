//! All_to_all in two stages, for many short blocks: nodes are in equal groups of consecutive ones. First each node gives
//! every other one of its group what it has for the nodes of that one's place in all groups; then nodes of one place
//! exchange what their groups have for one another. A node has `(g - 1) + (N / g - 1)` messages each way instead of
//! `N - 1`, and what goes to another group goes to one node of it only (as in Tutel and DeepSpeed-MoE).

use core::ops::Range;

use super::{Frame, Size, align, bundle, into_scratch, local, nothing, one, scratch, times};
use crate::{Action, Cost, Step, Terms, View};

/// A message has a piece of a block for each pair of ranks of this node or group and as many nodes as there are groups, or
/// as a group has. Counted with the best group, as the unit must be the same for everyone.
pub(super) fn unit(view: &View<'_>, chunk_bytes: u64) -> u64 {
    let most = u64::from(view.layout.most_local());
    let pieces = most.saturating_mul(most).saturating_mul(u64::from(view.layout.nodes().isqrt()));
    chunk_bytes / pieces.max(1)
}

/// What a chunk costs.
pub(super) fn cost(terms: &Terms) -> Cost {
    let group = f64::from(super::group(terms.nodes, terms.group_nodes).unwrap_or(1));
    let (groups, part) = (terms.n() / group, terms.bytes / terms.n());
    let bundles = (group - 1.0) * groups + (groups - 1.0) * group;
    Cost {
        rounds: 2.0,
        link_bytes: (groups + group) * part,
        port_bytes: bundles * part,
        messages: 2.0 * (group - 1.0 + groups - 1.0),
        sent: bundles * part,
        ..Cost::default()
    }
}

/// The groups, and where the parts of the plan start.
struct Parts {
    /// Nodes of a group, and groups.
    group: u32,
    groups: u32,
    width: u32,
    packs: u32,
    inner: u32,
    outer: u32,
    /// Steps for another group: copies, a receive and a send.
    each: u32,
    unpacks: u32,
    end: u32,
    /// Bytes in scratch of a message within a group, and of one between groups.
    inner_stride: u64,
    outer_stride: u64,
}

fn parts(frame: &Frame<'_>) -> Parts {
    let (nodes, width, packs) = (frame.nodes(), bundle::width(frame), local::steps(frame));
    let group = frame.group.clamp(1, nodes);
    let groups = nodes / group;
    let inner = packs.saturating_add(times(nodes, width));
    let outer = inner.saturating_add(times(group - 1, 2));
    let each = group.saturating_add(1);
    let unpacks = outer.saturating_add(times(groups - 1, each));
    let end = unpacks.saturating_add(times(nodes, width));
    let stride = |bundles: u32| align(bundle::longest(frame).saturating_mul(u64::from(bundles)));
    let (inner_stride, outer_stride) = (stride(groups), stride(group));
    Parts { group, groups, width, packs, inner, outer, each, unpacks, end, inner_stride, outer_stride }
}

/// A message's place in scratch: which of the four areas, and which message in it.
#[derive(Clone, Copy)]
enum Message {
    InnerSent(u32),
    InnerReceived(u32),
    OuterSent(u32),
    OuterReceived(u32),
}

impl Parts {
    /// The node with this place in this group, both counted from this node's and around.
    fn node(&self, frame: &Frame<'_>, place: u32, group: u32) -> u32 {
        let own = (frame.me() % self.group, frame.me() / self.group % self.groups);
        let place = (own.0 + place) % self.group;
        let group = (own.1 + group) % self.groups;
        times(group, self.group).saturating_add(place)
    }

    /// Where a message starts in scratch; those to and from the node `n` places or groups on are the `n - 1`-th.
    fn start(&self, message: Message) -> u64 {
        let (inner, outer) = (u64::from(self.group - 1), u64::from(self.groups - 1));
        let (inners, outers, number) = match message {
            Message::InnerSent(at) => (u64::from(at) - 1, 0, 0),
            Message::InnerReceived(at) => (inner + u64::from(at) - 1, 0, 0),
            Message::OuterSent(at) => (2 * inner, u64::from(at) - 1, 0),
            Message::OuterReceived(at) => (2 * inner, outer, u64::from(at) - 1),
        };
        let outers = self.outer_stride.saturating_mul(outers + number);
        self.inner_stride.saturating_mul(inners).saturating_add(outers)
    }
}

pub(super) fn size(frame: &Frame<'_>) -> Size {
    let parts = parts(frame);
    let inner = parts.inner_stride.saturating_mul(2 * u64::from(parts.group - 1));
    let outer = parts.outer_stride.saturating_mul(2 * u64::from(parts.groups - 1));
    Size { extent: frame.view.block(0).1, steps: parts.end, scratch: inner.saturating_add(outer) }
}

/// The local part; copies from inputs into messages, those between groups first; for every other node of the group a
/// receive and a send; for every other group copies of what the group has for it, a receive and a send; copies to
/// outputs.
pub(super) fn step(frame: &Frame<'_>, index: u32) -> Step {
    let parts = parts(frame);
    let width = parts.width.max(1);
    if index < parts.packs {
        return local::step(frame, index);
    }
    let step = if index < parts.inner {
        let at = index - parts.packs;
        pack(frame, &parts, at / width, at % width)
    } else if index < parts.outer {
        let at = index - parts.inner;
        Some(inner(frame, &parts, at / 2 + 1, at.is_multiple_of(2)))
    } else if index < parts.unpacks {
        let at = index - parts.outer;
        Some(outer(frame, &parts, at / parts.each + 1, at % parts.each, index))
    } else if index < parts.end {
        let at = index - parts.unpacks;
        unpack(frame, &parts, at / width, at % width)
    } else {
        None
    };
    step.unwrap_or(nothing())
}

/// Where a bundle is in a message within a group, from its node at `from` to that at `to`, both counted from this node's
/// place: one for each group, this node's first. And with the number of groups, how long the message is.
fn in_inner(frame: &Frame<'_>, parts: &Parts, from: u32, to: u32, group: u32) -> u64 {
    let source = parts.node(frame, from, 0);
    let length = |group: u32| bundle::length(frame, source, parts.node(frame, to, group));
    (0..group).map(length).fold(0, u64::saturating_add)
}

/// Where a bundle is in a message between groups, from this node's place in one to that in the other: one for each
/// node of the source's group, in their order. And with the size of a group, how long the message is.
fn in_outer(frame: &Frame<'_>, parts: &Parts, from: u32, to: u32, place: u32) -> u64 {
    let own = frame.me() % parts.group;
    let destination = parts.node(frame, 0, to);
    let source = |place: u32| parts.node(frame, parts.group + place - own, from);
    let length = |place: u32| bundle::length(frame, source(place), destination);
    (0..place).map(length).fold(0, u64::saturating_add)
}

/// Bundles are numbered by place, then by group, both counted from this node's.
fn pack(frame: &Frame<'_>, parts: &Parts, number: u32, slot: u32) -> Option<Step> {
    let (place, group) = (number / parts.groups, number % parts.groups);
    if number == 0 {
        return None;
    }
    let own = frame.me() % parts.group;
    let at = if place == 0 {
        parts.start(Message::OuterSent(group)).saturating_add(in_outer(frame, parts, 0, group, own))
    } else {
        parts.start(Message::InnerSent(place)).saturating_add(in_inner(frame, parts, 0, place, group))
    };
    bundle::pack(frame, parts.node(frame, place, group), slot, at).map(Step::free)
}

/// The steps that pack some bundles.
fn packed(parts: &Parts, bundles: Range<u32>) -> Range<u32> {
    let step = |number: u32| parts.packs.saturating_add(times(number, parts.width));
    step(bundles.start)..step(bundles.end)
}

/// The message to the node so many places on, or from the one so many places back.
fn inner(frame: &Frame<'_>, parts: &Parts, places: u32, receive: bool) -> Step {
    if receive {
        let (from, at) = (parts.group - places, parts.start(Message::InnerReceived(places)));
        let into = scratch(at, in_inner(frame, parts, from, 0, parts.groups));
        return Step::free(Action::Receive { peer: parts.node(frame, from, 0), tag: 0, into });
    }
    let at = parts.start(Message::InnerSent(places));
    let from = scratch(at, in_inner(frame, parts, 0, places, parts.groups));
    let packed = packed(parts, times(places, parts.groups)..times(places + 1, parts.groups));
    let action = Action::Send { peer: parts.node(frame, places, 0), tag: 0, from };
    Step { action, after: [packed, 0..0] }
}

/// The step that receives the message from so many places back.
const fn inner_received(parts: &Parts, places: u32) -> Range<u32> {
    one(parts.inner.saturating_add(times(places - 1, 2)))
}

/// The steps for the group so many groups on, and the receive from the one so many groups back.
fn outer(frame: &Frame<'_>, parts: &Parts, groups: u32, at: u32, index: u32) -> Step {
    let start = parts.start(Message::OuterSent(groups));
    if at + 2 == parts.each {
        let from = parts.groups - groups;
        let length = in_outer(frame, parts, from, 0, parts.group);
        let into = scratch(parts.start(Message::OuterReceived(groups)), length);
        return Step::free(Action::Receive { peer: parts.node(frame, 0, from), tag: 1, into });
    }
    if at + 1 == parts.each {
        let from = scratch(start, in_outer(frame, parts, 0, groups, parts.group));
        let action = Action::Send { peer: parts.node(frame, 0, groups), tag: 1, from };
        let copied = index - (parts.each - 1)..index - 1;
        return Step { action, after: [packed(parts, one(groups)), copied] };
    }
    // What came from so many places back.
    let (places, own) = (at + 1, frame.me() % parts.group);
    let from = parts.group - places;
    let source = (own + from) % parts.group;
    let received = parts.start(Message::InnerReceived(places));
    let at = received.saturating_add(in_inner(frame, parts, from, 0, groups));
    let length = bundle::length(frame, parts.node(frame, from, 0), parts.node(frame, 0, groups));
    let into = into_scratch(start.saturating_add(in_outer(frame, parts, 0, groups, source)));
    Step {
        action: Action::Copy { from: scratch(at, length), into },
        after: [inner_received(parts, places), 0..0],
    }
}

/// Sources are numbered as destinations are.
fn unpack(frame: &Frame<'_>, parts: &Parts, number: u32, slot: u32) -> Option<Step> {
    let (place, group) = (number / parts.groups, number % parts.groups);
    if number == 0 {
        return None;
    }
    let (at, received) = if group == 0 {
        // This node's bundle is the first in it.
        let places = parts.group - place;
        (parts.start(Message::InnerReceived(places)), inner_received(parts, places))
    } else {
        let (groups, source) = (parts.groups - group, (frame.me() + place) % parts.group);
        let start = parts.start(Message::OuterReceived(groups));
        let step = parts.outer.saturating_add(times(groups, parts.each)) - 2;
        (start.saturating_add(in_outer(frame, parts, group, 0, source)), one(step))
    };
    let (action, in_place) = bundle::unpack(frame, parts.node(frame, place, group), slot, at)?;
    // In place this overwrites the block that goes the other way: it must have been copied.
    let copied = packed(parts, one(number)).start.saturating_add(slot);
    Some(Step { action, after: [received, if in_place { one(copied) } else { 0..0 }] })
}
