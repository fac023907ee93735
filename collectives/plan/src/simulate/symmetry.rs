//! Nodes that behave alike: a group of moves of all nodes that changes neither the network nor the plan.
//!
//! If moving every node leaves network and plan as they are, then what one node does at some time all do that it can be
//! moved to, and it is enough to simulate one node of each such class. A message that leaves the class's node for a node of
//! another class comes to that class's node from where the same move takes the sender.

use crate::{Action, Plan, Shape, Step, View};

use super::network::Network;

/// Moves of all nodes by multiples of `classes`. The first `classes` nodes stand for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Group {
    nodes: u32,
    pub(super) classes: u32,
    kind: Kind,
}

/// What a move does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Every node goes so many places on, around.
    Rotation,
    /// Bits of every node's number are flipped.
    Exclusive,
}

impl Group {
    /// No move at all: every node is a class.
    pub(super) const fn none(nodes: u32) -> Self {
        Self { nodes, classes: nodes, kind: Kind::Rotation }
    }

    /// Rotations by multiples of `classes`.
    fn rotation(nodes: u32, classes: u32) -> Option<Self> {
        let divides = classes > 0 && nodes.is_multiple_of(classes);
        divides.then_some(Self { nodes, classes, kind: Kind::Rotation })
    }

    /// Exclusive or with multiples of `classes`; both must be powers of two.
    fn exclusive(nodes: u32, classes: u32) -> Option<Self> {
        let suits = nodes.is_power_of_two() && classes.is_power_of_two() && classes <= nodes;
        suits.then_some(Self { nodes, classes, kind: Kind::Exclusive })
    }

    /// The class of a node, which is the number of the node that stands for it.
    pub(super) const fn class(&self, node: u32) -> u32 {
        node % self.classes
    }

    /// Where the move that takes `node` to the one that stands for it takes `other`.
    pub(super) const fn seen_from(&self, node: u32, other: u32) -> u32 {
        let base = node - node % self.classes;
        match self.kind {
            Kind::Rotation if other >= base => other - base,
            Kind::Rotation => other + (self.nodes - base),
            Kind::Exclusive => other ^ base,
        }
    }

    pub(super) const fn name(&self) -> &'static str {
        match self.kind {
            Kind::Rotation => "rotation",
            Kind::Exclusive => "exclusive or",
        }
    }
}

/// Steps of a node that are compared at least, where it has so many.
const STEPS: u32 = 192;
/// Comparisons in all.
const COMPARISONS: u32 = 1 << 18;

/// A group that the network has, and the plan as far as samples tell: of nodes and of their steps, all of them where there are
/// few.
///
/// # Errors
/// Why there is none.
pub(super) fn find<'v>(
    network: &Network,
    plan: &Plan,
    view: &dyn Fn(u32) -> View<'v>,
) -> Result<Group, String> {
    let nodes = network.nodes;
    let period = network.period().map_err(str::to_owned)?;
    if period >= nodes {
        return Err("all nodes are different to the network".to_owned());
    }
    // What the network has, and of that what leaves the groups of a plan that has some where they are.
    let several = plan.group_nodes(&view(0)).and_then(|group| least_multiple(period, group));
    let classes = [Some(period), several.filter(|several| *several > period && *several < nodes)];
    let both = |classes| [Group::rotation(nodes, classes), Group::exclusive(nodes, classes)];
    let mut why = String::new();
    for group in classes.into_iter().flatten().flat_map(both).flatten() {
        match check(&group, plan, view) {
            Ok(()) => return Ok(group),
            Err(difference) => why = format!("{why}{}{difference}", if why.is_empty() { "" } else { "; " }),
        }
    }
    Err(why)
}

/// The least number that both divide, unless it is too large.
fn least_multiple(a: u32, b: u32) -> Option<u32> {
    (1..=b)
        .find(|times| (u64::from(a) * u64::from(*times)).is_multiple_of(u64::from(b)))
        .and_then(|times| a.checked_mul(times))
}

fn check<'v>(group: &Group, plan: &Plan, view: &dyn Fn(u32) -> View<'v>) -> Result<(), String> {
    let nodes: Vec<u32> = sample(group.nodes, (COMPARISONS / STEPS).min(group.nodes)).collect();
    let many = COMPARISONS / u32::try_from(nodes.len()).unwrap_or(1).max(1);
    for node in nodes {
        let class = group.class(node);
        if node == class {
            continue;
        }
        let (seen, stands) = (view(node), view(class));
        let shape: Shape = plan.shape(&seen);
        let differs =
            |what: &str| Err(format!("under {} node {node} is unlike node {class} in {what}", group.name()));
        if shape != plan.shape(&stands) {
            return differs("the size of its plan");
        }
        let last = shape.chunks.saturating_sub(1);
        for index in sample(shape.steps, many.max(STEPS)) {
            for chunk in [0, last] {
                let (step, other) = (plan.step(&seen, chunk, index), plan.step(&stands, chunk, index));
                if !alike(group, node, &step, &other) {
                    return differs(&format!("step {index} of chunk {chunk}"));
                }
            }
        }
    }
    Ok(())
}

/// Whether a step costs the same as the one of the node that stands for its own, and has to do with the same node, moved.
fn alike(group: &Group, node: u32, step: &Step, other: &Step) -> bool {
    let same = |a: u32, b: u32| group.seen_from(node, a) == b;
    let action = match (step.action, other.action) {
        (Action::Send { peer, tag, from }, Action::Send { peer: p, tag: t, from: f }) => {
            same(peer, p) && tag == t && from.length == f.length
        }
        (Action::Receive { peer, tag, into }, Action::Receive { peer: p, tag: t, into: i }) => {
            same(peer, p) && tag == t && into.length == i.length
        }
        (Action::Send { .. } | Action::Receive { .. }, _)
        | (_, Action::Send { .. } | Action::Receive { .. }) => false,
        (a, b) => a.touched(1) == b.touched(1) && is_nothing(&a) == is_nothing(&b),
    };
    let after = |step: &Step| {
        let mut after = step.after.clone();
        for range in &mut after {
            if range.start >= range.end {
                *range = 0..0;
            }
        }
        after
    };
    action && after(step) == after(other)
}

const fn is_nothing(action: &Action) -> bool {
    matches!(action, Action::Nothing)
}

/// So many of the numbers below `count` (all where there are no more), the first and the last among them, spread without a
/// period that a plan might have as well.
fn sample(count: u32, many: u32) -> impl Iterator<Item = u32> {
    let all = count <= many;
    let few = if all { count } else { many };
    (0..few).map(move |i| {
        if all || i < few / 4 {
            return i;
        }
        if i >= few - few / 4 {
            return count - (few - i);
        }
        // The golden ratio's multiples fill the interval evenly.
        let fraction = f64::from(i) * 0.618_033_988_749_894_9 % 1.0;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number below count")]
        let at = (fraction * f64::from(count)) as u32;
        at.min(count - 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All groups of up to this many nodes.
    fn groups() -> impl Iterator<Item = Group> {
        (1..=32).flat_map(|nodes| {
            (1..=nodes).flat_map(move |classes| {
                [Group::rotation(nodes, classes), Group::exclusive(nodes, classes)].into_iter().flatten()
            })
        })
    }

    #[test]
    fn moves_take_nodes_to_those_that_stand_for_them_and_each_to_another() {
        let mut looked_at = 0;
        for group in groups() {
            for node in 0..group.nodes {
                assert_eq!(group.seen_from(node, node), group.class(node), "{group:?}");
                let moved: std::collections::BTreeSet<u32> =
                    (0..group.nodes).map(|other| group.seen_from(node, other)).collect();
                assert_eq!(moved, (0..group.nodes).collect(), "{group:?}");
                // A move keeps classes: what two nodes of a class are to others, they are to others of one class.
                let same = |other| group.class(group.seen_from(node, other)) == group.class(other);
                assert!((0..group.nodes).all(same), "{group:?}");
                looked_at += 1;
            }
        }
        assert!(looked_at > 1000);
    }

    #[test]
    fn samples_are_in_range_and_have_both_ends() {
        for (count, many) in [(1, 8), (8, 8), (9, 8), (100, 16), (100_000, 192)] {
            let sampled: Vec<u32> = sample(count, many).collect();
            assert!(sampled.iter().all(|at| *at < count));
            assert!(sampled.contains(&0) && sampled.contains(&(count - 1)), "{count}");
            assert!(sampled.len() as u32 == count.min(many));
        }
    }
}
