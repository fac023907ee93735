//! Algorithms that are the same exchange by another name, as many are between two nodes: to time each would only show how much
//! the clock differs, and the luckiest would be the fastest.

use ringway_plan::{Action, Plan, View};

/// The most steps of a plan that are compared.
const STEPS_MAX: u32 = 1 << 12;

/// What the nodes do for a call, without what does not matter to how long that takes: where bytes lie, tags, and steps that do
/// nothing.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Exchange {
    chunks: u64,
    depth: u32,
    /// Of every node, of its first chunk, one between, and the last.
    acts: Vec<Act>,
}

/// A step that does something.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Act {
    node: u32,
    /// Steps that do something, one behind the other, before it can begin.
    behind: u32,
    what: What,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Send {
        peer: u32,
        bytes: u64,
    },
    Receive {
        peer: u32,
        bytes: u64,
    },
    /// Bytes.
    Local {
        combined: u64,
        copied: u64,
    },
}

impl Exchange {
    /// What a plan makes of a call, which `view` shows as a node sees it; `None` where that is too much to be looked at.
    pub(super) fn new<'v>(plan: &Plan, nodes: u32, view: impl Fn(u32) -> View<'v>) -> Option<Self> {
        let mut exchange = Self { chunks: 0, depth: 0, acts: Vec::new() };
        for node in 0..nodes {
            let view = view(node);
            let shape = plan.shape(&view);
            if shape.steps > STEPS_MAX {
                return None;
            }
            (exchange.chunks, exchange.depth) = (shape.chunks, shape.depth);
            let last = shape.chunks.saturating_sub(1);
            let mut chunks = vec![0, last.min(1), last];
            chunks.dedup();
            chunks.into_iter().for_each(|chunk| exchange.add(plan, (&view, node), chunk, shape.steps));
        }
        Some(exchange)
    }

    fn add(&mut self, plan: &Plan, (view, node): (&View<'_>, u32), chunk: u64, steps: u32) {
        // How many that do something are one behind the other up to each step, with it.
        let mut until: Vec<u32> = Vec::with_capacity(steps as usize);
        let known = self.acts.len();
        let locals = u32::try_from(view.layout.local(node).len()).unwrap_or(u32::MAX);
        for index in 0..steps {
            let step = plan.step(view, chunk, index);
            let before = step.after.iter().flat_map(Clone::clone).filter_map(|at| until.get(at as usize));
            let behind = before.copied().max().unwrap_or(0);
            let what = what(&step.action, locals);
            until.push(behind + u32::from(what.is_some()));
            self.acts.extend(what.map(|what| Act { node, behind, what }));
        }
        // What can begin at once does, whatever is named first.
        self.acts.get_mut(known..).unwrap_or_default().sort_unstable();
    }
}

/// What a step does; `None` for one that does nothing.
fn what(action: &Action, locals: u32) -> Option<What> {
    match *action {
        Action::Send { peer, from, .. } => Some(What::Send { peer, bytes: from.length }),
        Action::Receive { peer, into, .. } => Some(What::Receive { peer, bytes: into.length }),
        ref local => {
            let (combined, copied) = local.touched(locals);
            (combined > 0 || copied > 0).then_some(What::Local { combined, copied })
        }
    }
}

#[cfg(test)]
mod tests {
    use ringway_plan::{Algorithm, Blocks, Call, Layout, Tuning};
    use ringway_types::Operation;

    use super::*;

    /// Whether two algorithms do an allreduce of so many bytes between so many nodes in the same way.
    fn are_alike(nodes: u32, bytes: u64, algorithms: [Algorithm; 2]) -> bool {
        let layout = Layout::new(&(0..nodes).collect::<Vec<_>>()).expect("few ranks");
        let call = Call { operation: Operation::Allreduce, element: 4, count: bytes / 4, root: 0 };
        let view = |node| View { layout: &layout, node, call, blocks: Blocks::Uniform, in_place: &[false] };
        let [one, other] = algorithms.map(|algorithm| {
            let plan = Plan::with(algorithm, &view(0), &Tuning::default()).expect("it does it");
            Exchange::new(&plan, nodes, view).expect("few steps")
        });
        one == other
    }

    #[test]
    fn between_two_nodes_many_algorithms_are_one() {
        use Algorithm as A;
        assert!(are_alike(2, 64, [A::Direct, A::RecursiveDoubling]));
        assert!(are_alike(2, 1 << 20, [A::Direct, A::RecursiveDoubling]));
        assert!(!are_alike(2, 1 << 20, [A::Direct, A::Ring]), "a ring sends halves");
        assert!(!are_alike(2, 1 << 20, [A::Ring, A::TwoShot]), "a ring combines what comes with its input");
        assert!(!are_alike(4, 64, [A::Direct, A::RecursiveDoubling]));
        assert!(!are_alike(4, 1 << 20, [A::Ring, A::TwoShot]));
    }
}
