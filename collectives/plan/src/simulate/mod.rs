//! Simulates plans over a described network: the very steps that [`Plan::step`] gives, on all nodes, event by event.
//!
//! What is modelled:
//! - a node begins steps as the engine does (the crate's documentation): chunks under way as its scratch memory allows, the
//!   window of [`crate::LOOKAHEAD`] steps, what each step waits for. Its local work is done one step behind the other, its
//!   messages are handled one behind the other, and neither waits for the other;
//! - what two nodes send each other goes in order, over one way through the network. Ways share links max-min fairly, as flows
//!   of a fluid: rates change when a message begins or ends. A message of `n` bytes that nothing hinders takes the latency of
//!   all links of its way and the gap and `n / bandwidth` of the slowest: `a + n b`. Messages longer than
//!   [`Costs::eager`] first wait for word from the receiver, which takes the latency as well;
//!   Where messages do share a link it is divided anew 64 times at most while one of them passes, which is right to about a
//!   hundredth; where none do, times are exact;
//! - a send is done when its last byte has left, a receive when it has come and has been handled.
//!
//! The simulated time is a whole number of picoseconds. All is a function of network, call and algorithm: the same gives the
//! same, on every machine.
//!
//! Nodes that behave alike are simulated once (`symmetry`), so that rings and exchanges between tens of thousands of nodes
//! take no longer than those of the nodes on one leaf switch. In trees no two nodes do the same, but each does so little that all
//! of them are simulated. What a node does for a chunk is computed once (`program`). Where an operation has many chunks the first
//! ones are simulated and the others follow from how much each more of them takes, once that no longer changes (`course`,
//! [`Outcome::chunks_run`], [`Outcome::spread`]).
#![expect(
    clippy::cast_precision_loss,
    reason = "bytes and picoseconds become floating point where rates are divided"
)]

mod course;
mod describe;
mod flows;
mod machine;
mod network;
mod node;
mod program;
mod queue;
mod symmetry;

use thiserror::Error;

use crate::{Algorithm, Blocks, Call, Ineligible, Layout, Plan, Shape, Tuning, View};
use course::Course;
use machine::{Found, Machine, Scene};
use program::Programs;
use symmetry::Group;

pub use describe::{Description, Invalid};
pub use network::{
    Broken, Costs, Fabric, Link, Network, NoSuch, Picoseconds, Routing, Tree, Unreachable, Wire,
};

/// Chunks that may be under way at once, as in the engine.
const MAX_DEPTH: u32 = 8;

/// What is simulated.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The nodes and what is between them.
    pub network: &'a Network,
    /// Who is where; on as many nodes as the network has.
    pub layout: &'a Layout,
    /// The call, without counts of its own.
    pub call: Call,
    /// How it is done.
    pub algorithm: Algorithm,
    /// Constants of plans.
    pub tuning: &'a Tuning,
    /// How much is simulated of it.
    pub detail: Detail,
    /// Bounds.
    pub limits: Limits,
}

/// How much is simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Detail {
    /// Every node up to [`Limits::nodes`]; beyond that classes of equivalent nodes where they are, else every node as long as
    /// that does not take too long.
    #[default]
    Auto,
    /// Every node.
    Nodes,
    /// Classes of equivalent nodes.
    Classes,
}

/// Bounds on what is simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Up to so many nodes [`Detail::Auto`] simulates every node.
    pub nodes: u32,
    /// Calls of more steps are simulated in their first chunks, where they have many.
    pub whole_steps: u64,
    /// More steps are not simulated at all.
    pub most_steps: u64,
    /// After so much work ([`Progress::work`]) a simulation is given up.
    pub most_work: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { nodes: 512, whole_steps: 2_000_000, most_steps: 20_000_000, most_work: 120_000_000 }
    }
}

/// How far a simulation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Chunks that the first node has finished.
    pub chunk: u64,
    /// Of how many.
    pub chunks: u64,
    /// Something that rises with the work that was done.
    pub work: u64,
}

/// What was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Until the last node has finished.
    pub time: Picoseconds,
    /// Nodes that were simulated: all, or one of each class.
    pub nodes_run: u32,
    /// What moves a class's nodes onto one another; `None` where every node was simulated.
    pub symmetry: Option<&'static str>,
    /// Chunks that were simulated of the call's.
    pub chunks_run: u64,
    /// Chunks of the call.
    pub chunks: u64,
    /// Where some follow from the first ones: by which share what each more takes went up and down.
    pub spread: f64,
    /// Events of the nodes that were simulated.
    pub events: u64,
    /// Messages that they sent.
    pub messages: u64,
    /// The link that was used most, of those that are used alike the first, and the share of its capacity that was used.
    pub busiest: Option<(Wire, f64)>,
}

/// Why something cannot be simulated.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Failure {
    /// The algorithm cannot do it.
    #[error(transparent)]
    Ineligible(#[from] Ineligible),
    /// A message has no way.
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    /// The layout is of another number of nodes.
    #[error("the network has {network} nodes, but the ranks are on {layout}")]
    Nodes {
        /// Nodes of the network.
        network: u32,
        /// Nodes of the layout.
        layout: u32,
    },
    /// The operation carries counts.
    #[error("{0} carries counts for every rank; simulate it without the v")]
    Counts(ringway_types::Operation),
    /// A chunk needs more scratch memory than a node has.
    #[error("a chunk needs {needed} bytes of scratch memory on a node, which has {available} (node.scratch)")]
    Scratch {
        /// Bytes of one chunk.
        needed: u64,
        /// Bytes there are.
        available: u64,
    },
    /// It would take too long.
    #[error("{steps} steps would have to be simulated, more than {most}{why}")]
    TooMuch {
        /// Steps.
        steps: u64,
        /// The bound.
        most: u64,
        /// Why it is so many.
        why: String,
    },
    /// It takes too long.
    #[error(
        "given up after {work} events on {nodes} nodes: too many messages share links at once; ask for fewer nodes or bytes"
    )]
    TooBusy {
        /// Events, and looks at links as a part of one each.
        work: u64,
        /// Nodes that were simulated.
        nodes: usize,
    },
    /// Its time is beyond what picoseconds can say.
    #[error("it would take more than {} days, which is more than can be told; ask for fewer bytes", Picoseconds::MAX / 86_400_000_000_000_000)]
    TooLong,
    /// There are no classes of nodes.
    #[error("no two nodes do the same: {0}")]
    NoClasses(String),
    /// The plan cannot go on.
    #[error("node {node} never gets beyond step {step} of chunk {chunk}")]
    Stuck {
        /// The node.
        node: u32,
        /// The chunk.
        chunk: u64,
        /// The step.
        step: u32,
    },
}

/// Simulates a call. `progress` is told now and then how far it is.
///
/// # Errors
/// [`Failure`] where the algorithm does not do it, a node cannot be reached, or it would take too long.
pub fn simulate(request: &Request<'_>, progress: &mut dyn FnMut(Progress)) -> Result<Outcome, Failure> {
    let Request { network, layout, call, .. } = *request;
    if network.nodes != layout.nodes() {
        return Err(Failure::Nodes { network: network.nodes, layout: layout.nodes() });
    }
    if call.operation.has_counts() {
        return Err(Failure::Counts(call.operation));
    }
    let in_place = vec![false; layout.most_local() as usize];
    let view = |node: u32| {
        let in_place = in_place.get(..layout.local(node).len()).unwrap_or(&[]);
        View { layout, node, call, blocks: Blocks::Uniform, in_place }
    };
    let plan = Plan::with(request.algorithm, &view(0), request.tuning)?;
    let (group, why) = choose(request, &plan, &view)?;
    let shapes: Vec<Shape> = (0..group.classes).map(|node| plan.shape(&view(node))).collect();
    let depth = depth(&shapes, network.costs.scratch)?;
    let chunks = shapes.iter().map(|shape| shape.chunks).max().unwrap_or(0);
    let steps = shapes.iter().map(|shape| u64::from(shape.steps)).fold(0, u64::saturating_add);
    let limits = request.limits;
    if steps > limits.most_steps {
        return Err(Failure::TooMuch { steps, most: limits.most_steps, why });
    }
    let mut programs = Programs::new(&plan, &view, &shapes);
    let busy = shapes.iter().filter(|shape| shape.steps > 0).count();
    let course = Course::new((depth, chunks), (busy, programs.count()), limits, &why)?;
    let scene = Scene { network, group, shapes: &shapes, most_work: limits.most_work };
    let found = Machine::new(&scene, &mut programs, course).run(progress)?;
    let symmetry = (group.classes < network.nodes).then(|| group.name());
    let Found { time, chunks: chunks_run, spread, events, messages, busiest } = found;
    if time == Picoseconds::MAX {
        return Err(Failure::TooLong);
    }
    let nodes_run = group.classes;
    Ok(Outcome { time, nodes_run, symmetry, chunks_run, chunks, spread, events, messages, busiest })
}

/// Whose steps are simulated, and why not those of fewer nodes.
fn choose<'v>(
    request: &Request<'_>,
    plan: &Plan,
    view: &dyn Fn(u32) -> View<'v>,
) -> Result<(Group, String), Failure> {
    let nodes = request.network.nodes;
    let all = || Group::none(nodes);
    match request.detail {
        Detail::Nodes => Ok((all(), String::new())),
        Detail::Auto if nodes <= request.limits.nodes => Ok((all(), String::new())),
        Detail::Auto => Ok(match symmetry::find(request.network, plan, view) {
            Ok(group) => (group, String::new()),
            Err(why) => (all(), format!("; no two nodes do the same: {why}")),
        }),
        Detail::Classes => {
            let group = symmetry::find(request.network, plan, view).map_err(Failure::NoClasses)?;
            Ok((group, String::new()))
        }
    }
}

/// Chunks that may be under way, as the engine finds scratch memory for them.
fn depth(shapes: &[Shape], scratch: u64) -> Result<u32, Failure> {
    let mut depth = MAX_DEPTH;
    for shape in shapes {
        let room = scratch.checked_div(shape.scratch).unwrap_or(u64::from(MAX_DEPTH));
        if room == 0 {
            return Err(Failure::Scratch { needed: shape.scratch, available: scratch });
        }
        depth = depth.min(shape.depth.max(1)).min(u32::try_from(room).unwrap_or(MAX_DEPTH));
    }
    Ok(depth)
}
