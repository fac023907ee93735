//! What a node does for a chunk, computed once for all chunks that are alike: the first one, the last one, and those between.
//!
//! Local steps that are behind one another and begin together are one: all local work of a node is done one step behind the
//! other, so that nobody sees a difference who waits for all of them or for none.

use core::ops::Range;

use crate::{Action, LOOKAHEAD, Plan, Shape, Step, View};

/// Steps that are one at most: half a window, so that what is in the window stays about the same.
const TOGETHER: u32 = LOOKAHEAD / 2;

/// Steps of a node's chunk that are done at once: one, but for local ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Op {
    pub(super) first: u32,
    pub(super) count: u32,
    /// Steps, not ops, that must be done first.
    pub(super) after: [Range<u32>; 2],
    pub(super) what: What,
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    Nothing,
    Send {
        peer: u32,
        tag: u32,
        bytes: u64,
    },
    Receive {
        peer: u32,
        tag: u32,
    },
    /// Bytes combined and bytes copied.
    Work(u64, u64),
}

/// The ops of a node's first chunk, of those between, and of the last one.
#[derive(Debug, Default)]
struct Kinds([Option<Box<[Op]>>; 3]);

/// The ops of all nodes that are simulated, each computed when it is first asked for.
pub(super) struct Programs<'p> {
    plan: &'p Plan,
    /// The call as a node sees it.
    view: &'p dyn Fn(u32) -> View<'p>,
    /// The plan's size on every node that is simulated.
    shapes: &'p [Shape],
    made: Vec<Kinds>,
}

impl<'p> Programs<'p> {
    pub(super) fn new(plan: &'p Plan, view: &'p dyn Fn(u32) -> View<'p>, shapes: &'p [Shape]) -> Self {
        let made = shapes.iter().map(|_| Kinds::default()).collect();
        Self { plan, view, shapes, made }
    }

    /// What a node does for a chunk.
    pub(super) fn ops(&mut self, node: u32, chunk: u64) -> &[Op] {
        let shape = self.shapes[node as usize];
        let kind = match chunk {
            0 => 0,
            _ if chunk + 1 < shape.chunks => 1,
            _ => 2,
        };
        self.made[node as usize].0[kind].get_or_insert_with(|| {
            let view = (self.view)(node);
            let locals = u32::try_from(view.layout.local(node).len()).unwrap_or(u32::MAX);
            compile((0..shape.steps).map(|index| self.plan.step(&view, chunk, index)), locals)
        })
    }

    /// The ops of one chunk on all nodes, the first ones of each.
    pub(super) fn count(&mut self) -> u64 {
        let nodes = u32::try_from(self.shapes.len()).unwrap_or(u32::MAX);
        (0..nodes).map(|node| self.ops(node, 0).len() as u64).sum()
    }
}

/// Makes ops of the steps of a node with so many local ranks.
fn compile(steps: impl Iterator<Item = Step>, locals: u32) -> Box<[Op]> {
    let mut ops: Vec<Op> = (0..).zip(steps).map(|(index, step)| op(index, step, locals)).collect();
    // Whoever waits for steps up to some one does not wait for those behind it.
    let mut is_end = vec![false; ops.len() + 1];
    for range in ops.iter().flat_map(|op| &op.after) {
        for end in [range.start, range.end] {
            if let Some(is_end) = is_end.get_mut(end as usize) {
                *is_end = true;
            }
        }
    }
    ops.dedup_by(|op, before| {
        let (What::Work(combined, copied), What::Work(more, others)) = (&mut before.what, op.what) else {
            return false;
        };
        if is_end[op.first as usize] || before.after != op.after || before.count >= TOGETHER {
            return false;
        }
        (*combined, *copied) = (combined.saturating_add(more), copied.saturating_add(others));
        before.count += 1;
        true
    });
    ops.into_boxed_slice()
}

fn op(first: u32, step: Step, locals: u32) -> Op {
    let what = match step.action {
        Action::Nothing => What::Nothing,
        Action::Send { peer, tag, from } => What::Send { peer, tag, bytes: from.length },
        Action::Receive { peer, tag, .. } => What::Receive { peer, tag },
        local => {
            let (combined, copied) = local.touched(locals);
            What::Work(combined, copied)
        }
    };
    let after = step.after.map(|range| if range.is_empty() { 0..0 } else { range });
    Op { first, count: 1, after, what }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OutputSet, Place, Span, Targets};

    fn copy(after: [Range<u32>; 2]) -> Step {
        let from = Span { place: Place::Scratch, offset: 0, length: 8 };
        let into = Targets { outputs: OutputSet::All, offset: 0, scratch: None };
        Step { action: Action::Copy { from, into }, after }
    }

    fn counts(steps: Vec<Step>) -> Vec<(u32, u32)> {
        compile(steps.into_iter(), 2).iter().map(|op| (op.first, op.count)).collect()
    }

    #[test]
    fn local_steps_that_begin_together_are_one() {
        let free = || copy([0..0, 0..0]);
        assert_eq!(counts(vec![free(), free(), free()]), [(0, 3)]);
        let ops = compile(vec![free(), free()].into_iter(), 2);
        assert_eq!(ops[0].what, What::Work(0, 32));
        // Ranges of no steps are alike.
        assert_eq!(counts(vec![copy([7..7, 0..0]), free()]), [(0, 2)]);
        let many = counts((0..=TOGETHER).map(|_| free()).collect());
        assert_eq!(many, [(0, TOGETHER), (TOGETHER, 1)]);
    }

    #[test]
    fn steps_of_which_some_are_waited_for_stay_apart() {
        let free = || copy([0..0, 0..0]);
        assert_eq!(counts(vec![free(), free(), free(), copy([0..1, 0..0])]), [(0, 1), (1, 2), (3, 1)]);
        assert_eq!(counts(vec![free(), free(), free(), copy([2..3, 0..0])]), [(0, 2), (2, 1), (3, 1)]);
        assert_eq!(counts(vec![free(), free(), copy([0..1, 0..0]), copy([1..2, 0..0])]).len(), 4);
        // Whoever waits for all of them does not care.
        assert_eq!(counts(vec![free(), free(), copy([0..2, 0..0])]), [(0, 2), (2, 1)]);
    }
}
