//! How long a plan takes, predicted from what it costs: `a rounds + b bytes + g reduced` for its first chunk, and for every
//! further one what keeps the busiest node, or the processors that several nodes share, from taking it sooner.

use ringway_types::Operation;

use super::Constants;
use crate::{Algorithm, Cost, EAGER_BYTES, Layout, Terms, Tuning};

/// What is to be predicted.
#[derive(Debug, Clone, Copy)]
pub struct Problem<'a> {
    /// Who is where.
    pub layout: &'a Layout,
    /// What is done.
    pub operation: Operation,
    /// Bytes, as [`crate::View::bytes`] counts them.
    pub bytes: u64,
    /// Bytes of a chunk in one message.
    pub chunk_bytes: u64,
    /// Chunks under way at once.
    pub depth: u32,
    /// Channels that chunks go over by turns; `None` for a link that has one, or of whose channels nothing is known.
    pub channels: Option<u32>,
    /// As in [`crate::Tuning::group_nodes`].
    pub group_nodes: u32,
    /// Every pair of nodes has a link of its own, on which bytes go while they go on others; else all that a node sends leaves
    /// it by one port.
    pub mesh: bool,
    /// Receivers of messages longer than [`EAGER_BYTES`] say first where they go, and senders wait until they are there. All but
    /// the first are said ahead, and for all but the last there is other work to be done.
    pub asks: bool,
    /// As in [`crate::Tuning::eager_write_max_bytes`]: such messages are copied instead.
    pub eager_write_max_bytes: u64,
}

impl<'a> Problem<'a> {
    /// What daemons do between nodes of a layout, each with one port, where chunks go over so many channels by turns.
    #[must_use]
    pub fn between_daemons(
        (layout, operation, bytes): (&'a Layout, Operation, u64),
        tuning: &Tuning,
        channels: Option<u32>,
    ) -> Self {
        let Tuning { chunk_bytes, depth, group_nodes, eager_write_max_bytes, .. } =
            tuning.over(channels.unwrap_or(1));
        Self {
            layout,
            operation,
            bytes,
            chunk_bytes,
            depth,
            channels,
            group_nodes,
            mesh: false,
            asks: true,
            eager_write_max_bytes,
        }
    }
}

/// What is predicted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// The whole operation.
    pub time_ns: f64,
    /// Chunks.
    pub chunks: u64,
    /// The part of the time that passes until the first chunk is through.
    pub first_ns: f64,
}

/// How long an operation takes by an algorithm; `None` where that does not do it between so many nodes.
#[must_use]
pub fn predict(algorithm: Algorithm, problem: &Problem<'_>, constants: &Constants) -> Option<Prediction> {
    let unit = crate::plan::chunk_bytes(algorithm, problem)?;
    let chunks = problem.bytes.div_ceil(unit).max(1);
    let most_local = problem.layout.most_local();
    let given = match problem.operation {
        Operation::AllToAll | Operation::AllToAllV => f64::from(most_local),
        _ => 1.0,
    };
    let bytes = given * problem.bytes as f64 / chunks as f64;
    let terms = Terms { nodes: problem.layout.nodes(), most_local, bytes, group_nodes: problem.group_nodes };
    let cost = algorithm.cost(problem.operation, &terms)?;
    let total = algorithm.total(problem.operation, &terms, &cost);
    let own_ns = copy_ns(put_into_place(algorithm, problem.operation, &terms), constants);
    // The root of a reduce has its own part of the first chunk in place before others' come.
    let hidden_ns = if problem.operation == Operation::Reduce { own_ns } else { 0.0 };
    let local = local_ns(problem.operation, &terms, constants)
        + copy_ns(total.copied / terms.n(), constants)
        + (own_ns - hidden_ns);
    let path_bytes = if problem.mesh { cost.link_bytes } else { cost.port_bytes };
    let way = Way::of(algorithm, problem, chunks, &cost);
    let asked = way == Way::Asked;
    let copies = if way == Way::Copied { 2.0 } else { 0.0 };
    let sent_byte_ns = constants.byte_ns + copies * copy_ns_from(constants, EAGER_COPY_NS);
    let by_port = |sent: f64| if problem.mesh { 0.0 } else { sent * sent_byte_ns };
    // All of a chunk goes over one channel, and other chunks meanwhile over others; what comes with its header goes over the first.
    // Those of one number share what they go over, a network card, whichever node they lead to.
    let by_turns = if asked { problem.channels.unwrap_or(1).max(1) } else { 1 };
    let channel_byte_ns = problem.channels.map_or(0.0, |_| constants.channel_byte_ns);
    let by_one_ns = path_bytes * channel_byte_ns;
    let by_turns_ns = cost.sent * channel_byte_ns / f64::from(by_turns);
    // The first grant comes, and the last acknowledgement. The others are said with more, and cost next to nothing. (Eight nodes on two
    // processors: a ring of 64 KiB has 112 messages of up to 8 KiB and takes 3.3 ms, one of 68 KiB, whose messages are longer, 0.33 ms
    // more.)
    let asking_ns = if asked { 2.0 * constants.latency_ns } else { 0.0 };
    let first_ns = cost.rounds * constants.latency_ns
        + asking_ns
        + (path_bytes * sent_byte_ns).max(by_one_ns)
        + cost.path_reduced * constants.reduce_ns
        + local;
    // A node's thread sends, receives and combines; what is sent it copies to the kernel, what comes from it.
    let busy_ns = cost.messages * constants.message_ns
        + by_port(cost.sent)
        + cost.reduced * constants.reduce_ns
        + local;
    // Processors that several nodes share do the work of all of them. What comes of the first chunk comes alone, and each round of it
    // waits for its turn. While the first is asked about there is nothing else to be done.
    let shared_ns = |message_ns: f64| {
        let nodes_ns =
            total.messages * message_ns + by_port(total.sent) + total.reduced * constants.reduce_ns;
        constants.sharing * (nodes_ns / terms.n() + local)
    };
    let alone_ns = shared_ns(constants.lone_message_ns()) + cost.rounds * constants.turn_ns() + asking_ns;
    let first_ns = first_ns.max(busy_ns).max(alone_ns);
    let busy_ns = busy_ns.max(shared_ns(constants.message_ns)) + hidden_ns;
    let next_ns = busy_ns.max(first_ns / f64::from(problem.depth.max(1))).max(by_turns_ns);
    Some(Prediction { time_ns: (chunks - 1) as f64 * next_ns + first_ns, chunks, first_ns })
}

/// What a byte takes at least that is copied between memory of which nothing is in a near cache. What is copied pushes out what is
/// sent next as well. (Four nodes on two processors: an all_gather of 4 MiB that is gathered in scratch memory takes 0.2 ns longer
/// for each byte of that than one that is not, of which its copies are half.)
const FAR_COPY_NS: f64 = 0.2;

/// The same of what is copied to or from where eager writes wait. (With them 64 KiB take four nodes on two processors 0.71 of the time,
/// and eight 0.76.)
const EAGER_COPY_NS: f64 = 0.1;

/// The price of a byte that is copied, at least `least_ns`. Where copies are for free, as in the formulas of the literature, they
/// stay so.
fn copy_ns_from(constants: &Constants, least_ns: f64) -> f64 {
    if constants.copy_ns > 0.0 { constants.copy_ns.max(least_ns) } else { 0.0 }
}

/// So many bytes that a node copies of a chunk stay near, in a core's second-level cache with what else it needs there.
const NEAR_BYTES: f64 = 256.0 * 1024.0;

/// What so many bytes of a chunk take a node to copy.
fn copy_ns(copied: f64, constants: &Constants) -> f64 {
    let byte_ns = if copied > NEAR_BYTES { copy_ns_from(constants, FAR_COPY_NS) } else { constants.copy_ns };
    copied * byte_ns
}

/// Bytes of its own that a node copies to where others' come to, to combine all at once. Elsewhere what comes is combined with the
/// inputs where they are. (Between two nodes direct and a ring, or a binomial tree, have the same messages: a reduce_scatter of 2 and 16
/// MiB takes 0.85 of the time by a ring, a reduce of 16 MiB 0.74 to 0.88 by a tree, one of 256 KiB, one chunk, 1.28 and 1.35.)
fn put_into_place(algorithm: Algorithm, operation: Operation, terms: &Terms) -> f64 {
    match (algorithm, operation) {
        (Algorithm::Direct, Operation::Reduce) => terms.bytes,
        (Algorithm::Direct, Operation::ReduceScatter | Operation::ReduceScatterV) => terms.bytes / terms.n(),
        _ => 0.0,
    }
}

/// How messages travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// With their headers, or nobody is asked anyway.
    Unasked,
    /// Written eagerly, for which both ends copy them.
    Copied,
    /// To where their receivers say.
    Asked,
}

impl Way {
    /// By their mean length: a node sends half of the messages that it handles.
    fn of(algorithm: Algorithm, problem: &Problem<'_>, chunks: u64, cost: &Cost) -> Self {
        let are_within = |bytes: u64| cost.sent <= bytes as f64 * cost.messages / 2.0;
        match chunks {
            _ if !problem.asks || are_within(EAGER_BYTES.into()) => Self::Unasked,
            1 if !algorithm.passes_around() && are_within(problem.eager_write_max_bytes) => Self::Copied,
            _ => Self::Asked,
        }
    }
}

/// What a node does with the buffers of several ranks of its own, whatever the algorithm. Of one rank nothing: its input is the
/// operand that what comes is combined with.
fn local_ns(operation: Operation, terms: &Terms, constants: &Constants) -> f64 {
    let others = f64::from(terms.most_local.max(1)) - 1.0;
    match operation {
        Operation::Barrier => 0.0,
        _ if operation.reduces() => others * terms.bytes * constants.reduce_ns,
        Operation::AllGather | Operation::AllGatherV | Operation::Broadcast => {
            others * terms.bytes * constants.copy_ns
        }
        _ => 0.0,
    }
}
