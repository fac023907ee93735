//! Trees over the nodes, computed from labels: the binomial tree, the binary tree, and two binary trees of which a node
//! is an inner node in one at most (Sanders, Speck and Träff 2009).
//!
//! The binary tree is the one of search: of the labels `1..=M` the highest power of two is the top, what is below it is
//! its left subtree, what is above it its right one. So inner nodes have even labels, leaves odd ones, subtrees are of
//! nodes next to one another, and the height is `floor(log2 M)`. The second of two trees gives every node a label of
//! the other parity: it is the first one mirrored where `M` is even, and moved by one where it is odd. Where the
//! operation has a root, its node has label 0, outside of the binary trees, and is the parent of their tops.
//!
//! A tree of two levels is one among groups of nodes, of those with the root's place in their groups, and below each of them
//! one of its group. So what goes between groups goes to each of them once. A node sends to other groups first.

use super::Frame;
use crate::{Pair, Stage};

/// What a chunk travels along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Every node but the last one has one child.
    Chain,
    Binomial,
    Binary,
    /// Half of each chunk along either of two binary trees.
    Double,
    /// Two levels.
    Levels(Pair),
}

impl Kind {
    /// How many trees there are.
    pub(super) const fn trees(self) -> u32 {
        match self {
            Self::Chain | Self::Binomial | Self::Binary | Self::Levels(_) => 1,
            Self::Double => 2,
        }
    }

    /// What a stage of two levels is.
    pub(super) const fn of(stage: Stage) -> Self {
        match stage {
            Stage::Tree => Self::Binary,
            Stage::Ring => Self::Chain,
            _ => Self::Binomial,
        }
    }
}

/// One tree, as one node sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tree {
    inner: Level,
    /// Of two levels the one among groups, where this node is on it.
    outer: Option<Level>,
}

impl Tree {
    /// The `number`-th tree of this kind below the call's root.
    pub(super) fn rooted(frame: &Frame<'_>, kind: Kind, number: u32) -> Self {
        let (nodes, root) = (frame.nodes(), frame.root_node());
        let Kind::Levels(pair) = kind else {
            let inner = Level::new(kind, number, nodes, root, true, frame.distance_from(root));
            return Self { inner, outer: None };
        };
        let group = super::group(nodes, frame.group).unwrap_or(nodes);
        let me = frame.me() % nodes;
        let level = |stage: Stage, many: u32, root: u32, me: u32| {
            Level::new(Kind::of(stage), 0, many, root, true, (me + many - root) % many)
        };
        let inner = level(pair.inner, group, root % group, me % group).over(me - me % group, 1);
        let outer = level(pair.outer, nodes / group, root / group, me / group).over(me % group, group);
        Self { inner, outer: (me % group == root % group).then_some(outer) }
    }

    /// The `number`-th tree of this kind over all nodes.
    pub(super) fn free(frame: &Frame<'_>, kind: Kind, number: u32) -> Self {
        let last = frame.nodes() - 1;
        let inner = Level::new(kind, number, frame.nodes(), last, false, frame.distance_from(last));
        Self { inner, outer: None }
    }

    /// The node above this one; none above the top.
    pub(super) fn parent(&self) -> Option<u32> {
        self.inner.parent().or_else(|| self.outer?.parent())
    }

    /// How many nodes are right below this one.
    pub(super) fn children(&self) -> u32 {
        self.inner.children() + self.outer.map_or(0, |outer| outer.children())
    }

    /// The nodes right below this one, those with fewer nodes below them first, and those of other groups last.
    pub(super) fn child(&self, number: u32) -> Option<u32> {
        match number.checked_sub(self.inner.children()) {
            Some(number) => self.outer?.child(number),
            None => self.inner.child(number),
        }
    }
}

/// A tree of one level, as one node sees it. It is over nodes that are equally far apart.
#[derive(Debug, Clone, Copy)]
struct Level {
    kind: Kind,
    second: bool,
    nodes: u32,
    /// The first of the nodes, and how far it is to the next one.
    first: u32,
    stride: u32,
    /// The node before that of label 1: the root's, if there is one.
    base: u32,
    /// The labels but 0.
    labels: u32,
    rooted: bool,
    label: u32,
}

impl Level {
    /// The tree of a node that is `distance` places after that of label 0, or after the last one.
    fn new(kind: Kind, number: u32, nodes: u32, base: u32, rooted: bool, distance: u32) -> Self {
        let labels = if rooted { nodes - 1 } else { nodes };
        let second = number == 1;
        let mut tree = Self { kind, second, nodes, first: 0, stride: 1, base, labels, rooted, label: 0 };
        let first = if distance == 0 && !rooted { nodes } else { distance };
        tree.label = tree.turned(first);
        tree
    }

    /// The same over nodes that are so far apart.
    const fn over(self, first: u32, stride: u32) -> Self {
        Self { first, stride, ..self }
    }

    /// The label in this tree of what has this one in the first.
    const fn turned(&self, first: u32) -> u32 {
        if !self.second || first == 0 {
            first
        } else if self.labels.is_multiple_of(2) {
            self.labels + 1 - first
        } else if first == 1 {
            self.labels
        } else {
            first - 1
        }
    }

    fn node(&self, label: u32) -> u32 {
        let first = if !self.second || label == 0 {
            label
        } else if self.labels.is_multiple_of(2) {
            self.labels + 1 - label
        } else {
            label % self.labels + 1
        };
        let place = (u64::from(self.base) + u64::from(first)) % u64::from(self.nodes);
        let node = place * u64::from(self.stride) + u64::from(self.first);
        u32::try_from(node).unwrap_or(0)
    }

    /// The node above this one; none above the top.
    fn parent(&self) -> Option<u32> {
        let lowest = self.label & self.label.wrapping_neg();
        let without = self.label ^ lowest;
        if self.label == 0 {
            return None;
        }
        match self.kind {
            Kind::Binomial => return Some(self.node(without)),
            Kind::Chain => return Some(self.node(self.label - 1)),
            _ => {}
        }
        let up = without | (lowest << 1);
        let up = if up > self.labels { without } else { up };
        (up > 0 || self.rooted).then(|| self.node(up))
    }

    /// How many nodes are right below this one.
    fn children(&self) -> u32 {
        match (self.kind, self.label) {
            (Kind::Binomial, label) => {
                let lower = if label == 0 { u32::BITS } else { label.trailing_zeros() };
                let fitting = u32::BITS - (self.labels - label).leading_zeros();
                lower.min(fitting)
            }
            (Kind::Chain, label) => u32::from(label < self.labels),
            (_, 0) => 1,
            (_, label) => u32::from(label.is_multiple_of(2)) + u32::from(self.right().is_some()),
        }
    }

    /// The nodes right below this one, those with fewer nodes below them first.
    fn child(&self, number: u32) -> Option<u32> {
        if number >= self.children() {
            return None;
        }
        let label = match (self.kind, self.label) {
            (Kind::Binomial, label) => label + (1 << number),
            (Kind::Chain, label) => label + 1,
            (_, 0) => 1 << self.labels.ilog2(),
            (_, label) => match self.right() {
                Some(right) if number == 0 => right,
                _ => label - (label & label.wrapping_neg()) / 2,
            },
        };
        Some(self.node(label))
    }

    /// The label of the binary tree's right child.
    fn right(&self) -> Option<u32> {
        let mut distance = (self.label & self.label.wrapping_neg()) / 2;
        while distance > self.labels - self.label {
            distance /= 2;
        }
        (distance > 0).then(|| self.label + distance)
    }
}

/// The height of a binary tree, in messages from its top to the lowest leaf.
pub(super) fn height(labels: u32) -> f64 {
    f64::from(labels.max(1).ilog2())
}

/// The most children a node of a binary tree has.
pub(super) fn widest(labels: u32) -> f64 {
    f64::from(labels.saturating_sub(1).min(2))
}

/// Messages that leave by one port one behind the other from the top of a binary tree until every node has one, where
/// each node sends to its deeper side first.
pub(super) fn turns(labels: u32) -> f64 {
    let (mut left, mut before, mut most) = (labels.max(1), 0, 0);
    loop {
        let height = left.ilog2();
        // The left side is a perfect tree, in which it takes two messages for each level but the first.
        if height > 0 {
            most = most.max(before + 1 + 2 * (height - 1));
        }
        left -= 1 << height;
        if left == 0 {
            return f64::from(most);
        }
        before += 2;
        most = most.max(before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(kind: Kind, number: u32, nodes: u32, root: Option<u32>, me: u32) -> Level {
        let base = root.unwrap_or(nodes - 1);
        Level::new(kind, number, nodes, base, root.is_some(), (me + nodes - base) % nodes)
    }

    /// Every node but the top is a child of its parent, and everyone's way up ends at the top.
    #[test]
    fn trees_hold_every_node_once() {
        for nodes in 2..200 {
            for root in [None, Some(0), Some(nodes / 2), Some(nodes - 1)] {
                for (kind, number) in [
                    (Kind::Chain, 0),
                    (Kind::Binomial, 0),
                    (Kind::Binary, 0),
                    (Kind::Double, 0),
                    (Kind::Double, 1),
                ] {
                    if matches!(kind, Kind::Chain | Kind::Binomial) && root.is_none() {
                        continue;
                    }
                    let at = |me| tree(kind, number, nodes, root, me);
                    let mut tops = 0;
                    for me in 0..nodes {
                        let mut below: Vec<u32> = Vec::new();
                        while let Some(child) = at(me).child(u32::try_from(below.len()).unwrap()) {
                            assert_eq!(at(child).parent(), Some(me), "{kind:?} {nodes} {root:?}");
                            below.push(child);
                        }
                        assert_eq!(below.len(), at(me).children() as usize);
                        let height = core::iter::successors(Some(me), |it| at(*it).parent()).count();
                        let most = if kind == Kind::Chain { nodes } else { nodes.ilog2() + 2 };
                        assert!(height <= most as usize, "{kind:?} {nodes} {root:?}");
                        tops += u32::from(at(me).parent().is_none());
                    }
                    assert_eq!(tops, 1);
                    assert!(root.is_none_or(|root| at(root).parent().is_none()));
                }
            }
        }
    }

    #[test]
    fn an_inner_node_of_one_tree_is_a_leaf_of_the_other() {
        for nodes in 3..200 {
            for root in [None, Some(0), Some(1)] {
                for me in (0..nodes).filter(|me| Some(*me) != root) {
                    let children = |number| tree(Kind::Double, number, nodes, root, me).children();
                    assert!(children(0) == 0 || children(1) == 0, "node {me} of {nodes}, root {root:?}");
                }
            }
        }
    }

    /// What the costs are reckoned with is what the trees have.
    #[test]
    fn trees_are_as_high_and_as_wide_as_their_costs_say() {
        for nodes in 2..200 {
            let at = |me| tree(Kind::Binary, 0, nodes, None, me);
            let mut waits = vec![0; nodes as usize];
            let mut order: Vec<u32> = (0..nodes).collect();
            let depth = |me: u32| core::iter::successors(Some(me), |it| at(*it).parent()).count() - 1;
            order.sort_by_key(|me| depth(*me));
            for me in &order {
                let children = at(*me).children();
                for number in (0..children).rev() {
                    let child = at(*me).child(number).unwrap();
                    waits[child as usize] = waits[*me as usize] + children - number;
                }
            }
            let most = |values: &mut dyn Iterator<Item = u32>| f64::from(values.max().unwrap());
            assert_eq!(most(&mut waits.iter().copied()), turns(nodes), "{nodes}");
            assert_eq!(most(&mut (0..nodes).map(|me| u32::try_from(depth(me)).unwrap())), height(nodes));
            assert_eq!(most(&mut (0..nodes).map(|me| at(me).children())), widest(nodes));
        }
    }
}
