//! Allreduce along trees over all nodes: up as a reduce, and down as a broadcast of what the top has finished. Along one
//! binary tree, or half of each chunk along either of two (Sanders, Speck and Träff 2009; NCCL has the same), where no
//! node sends more than `2 n` bytes: about `2 log2 N (a + n / 2c b) + 2 n b` for `c` chunks of `n` bytes together. Each
//! element is finished on one node only.

use super::tree::{Kind, Tree, height, turns, widest};
use super::{Frame, Size, nothing, one, tree_broadcast, tree_reduce};
use crate::{Cost, OutputSet, Place, Step, Terms};

/// What a chunk costs along a binary tree.
pub(super) fn binary_cost(terms: &Terms) -> Cost {
    let (height, turns, widest) = (height(terms.nodes), turns(terms.nodes), widest(terms.nodes));
    // Where there are two levels only, no inner node has a parent.
    let inner = if terms.nodes > 3 { 1.0 } else { 0.0 };
    Cost {
        rounds: 2.0 * height,
        link_bytes: 2.0 * height * terms.bytes,
        port_bytes: 2.0 * turns * terms.bytes,
        path_reduced: turns * terms.bytes,
        messages: 2.0 * (widest + inner),
        sent: (widest + inner) * terms.bytes,
        reduced: widest * terms.bytes,
    }
}

/// What a chunk costs along two binary trees. Between three nodes and more every inner node is a leaf as well.
pub(super) fn double_cost(terms: &Terms) -> Cost {
    let one = binary_cost(terms);
    Cost {
        rounds: one.rounds,
        link_bytes: one.link_bytes / 2.0,
        port_bytes: one.port_bytes / 2.0,
        path_reduced: one.path_reduced / 2.0,
        messages: one.messages + 2.0,
        sent: (one.sent + terms.bytes) / 2.0,
        reduced: one.reduced / 2.0,
    }
}

pub(super) fn size(frame: &Frame<'_>, kind: Kind) -> Size {
    let trees = || (0..kind.trees()).map(|number| Tree::free(frame, kind, number));
    Size {
        extent: frame.vector(),
        steps: trees().map(|tree| steps(&tree)).fold(0, u32::saturating_add),
        scratch: tree_reduce::scratch_bytes(frame, kind, trees()),
    }
}

fn steps(tree: &Tree) -> u32 {
    tree_reduce::steps(tree) + tree_broadcast::steps(tree)
}

/// For each tree the steps up, then those down. What comes down in place overwrites inputs: they were read before the
/// partial result was sent up, without which it would not come back.
pub(super) fn step(frame: &Frame<'_>, kind: Kind, index: u32) -> Step {
    let (mut first, mut slots) = (0, 0);
    for number in 0..kind.trees() {
        let tree = Tree::free(frame, kind, number);
        let (part, middle) = (frame.share(number, kind.trees()), first + tree_reduce::steps(&tree));
        if index < middle {
            let stride = tree_reduce::slot(frame, kind);
            let memory = stride.saturating_mul(slots);
            let leg =
                tree_reduce::Leg { part, tag: 2 * number, first, memory, stride, result: OutputSet::All };
            return tree_reduce::up(&tree, &leg, index - first);
        }
        if index - first < steps(&tree) {
            // The result is there one step before that of a send up, which the top has not.
            let (from, ready) = (Place::Output(0), one(middle - 2));
            let leg = tree_broadcast::Leg { part, tag: 2 * number + 1, first: middle, from, ready };
            return tree_broadcast::down(frame, &tree, &leg, index - middle);
        }
        first += steps(&tree);
        slots += tree_reduce::slots_of(&tree);
    }
    nothing()
}
