//! The choice of algorithm and chunk: [`predict`] prices what an algorithm costs by [`Constants`], [`tune`] makes [`Rule`]s
//! of the fastest for every operation and size.
//!
//! The rules are made once, when a communicator is formed, from constants that are saved: the same constants give the same
//! rules, and with it the same bits of every result, on every node and in every run.

mod constants;
mod model;
mod saved;

use ringway_types::Operation;

use crate::{Algorithm, Layout, Preference, Rule, Tuning};

pub use constants::{Constants, WrongConstant};
pub use model::{Prediction, Problem, predict};
pub use saved::{Saved, SavedLinks, SavedRule};

/// Which algorithms may be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// Every rank gets the same bits, and so does every run with the same layout and constants.
    #[default]
    Stable,
    /// Contributions are combined ranks ascending within a node, then nodes ascending: the bits depend on the layout alone,
    /// whatever the size and the constants.
    Strict,
    /// As `Stable`, but constants may be measured anew for every communicator.
    Any,
}

impl Order {
    /// Every order.
    pub const ALL: &'static [Self] = &[Self::Stable, Self::Strict, Self::Any];

    /// The name used in configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stable => "stable",
            Self::Strict => "strict",
            Self::Any => "any",
        }
    }

    /// The order with this name, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|order| order.name() == name)
    }

    /// Whether the algorithm may be chosen for the operation.
    #[must_use]
    pub fn allows(self, algorithm: Algorithm, operation: Operation) -> bool {
        self != Self::Strict || !operation.reduces() || algorithm.is_strict(operation)
    }
}

/// One way to do an operation, with how long it would take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Bytes that one chunk has in one message.
    pub chunk_bytes: u64,
    /// Channels that chunks go over by turns; `None` for all there are.
    pub channels: Option<u32>,
    /// How long it takes.
    pub prediction: Prediction,
}

/// Bytes of a chunk that are tried: from what one message costs little beside to what still pipelines.
const CHUNKS: [u64; 5] = [64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20];

/// The sizes that are decided: powers of two, of which each stands for those down to the geometric mean with the one below.
const LARGEST_LOG2: u32 = 32;

/// Every algorithm that does the operation, each with its best chunk and channels, the fastest first. Of two that are equally
/// fast the one that comes first in [`Algorithm::ALL`] is first.
#[must_use]
pub fn candidates(
    (layout, operation, bytes): (&Layout, Operation, u64),
    order: Order,
    constants: &Constants,
    tuning: &Tuning,
) -> Vec<Candidate> {
    let allowed = Algorithm::ALL.iter().copied().filter(|algorithm| order.allows(*algorithm, operation));
    let mut found: Vec<Candidate> =
        allowed.filter_map(|it| best(it, (layout, operation, bytes), constants, tuning)).collect();
    found.sort_by(Candidate::faster);
    found
}

/// The algorithm with its best chunk, and over as many channels as are best; `None` where it does not do the operation between
/// so many nodes.
fn best(
    algorithm: Algorithm,
    (layout, operation, bytes): (&Layout, Operation, u64),
    constants: &Constants,
    tuning: &Tuning,
) -> Option<Candidate> {
    // The usual ones come first: where all are as good, as of a call of one chunk, no fewer blocks are packed than usual.
    let chunks = || core::iter::once(&tuning.chunk_bytes).chain(&CHUNKS);
    let tried = constants.channel_counts().flat_map(|channels| chunks().map(move |chunk| (channels, *chunk)));
    let priced = tried.filter_map(|(channels, chunk_bytes)| {
        let tuning = Tuning { chunk_bytes, ..*tuning };
        let problem = Problem::between_daemons((layout, operation, bytes), &tuning, channels);
        let prediction = predict(algorithm, &problem, constants)?;
        Some(Candidate { algorithm, chunk_bytes: problem.chunk_bytes, channels, prediction })
    });
    priced.min_by(Candidate::faster)
}

impl Candidate {
    /// The order of the shorter one first; of the same time of the one with fewer chunks, and then over fewer channels.
    #[must_use]
    pub fn faster(&self, other: &Self) -> core::cmp::Ordering {
        let (a, b) = (self.prediction, other.prediction);
        a.time_ns.total_cmp(&b.time_ns).then(a.chunks.cmp(&b.chunks)).then(self.channels.cmp(&other.channels))
    }

    /// The rule that has calls of up to so many bytes done so.
    fn rule(&self, operation: Operation, bytes_max: u64) -> Rule {
        let channels = self.channels.unwrap_or(0);
        // A rule says how long chunks are that all go over one channel.
        let chunk_bytes = self.chunk_bytes * u64::from(channels.max(1));
        Rule { operation, bytes_max, algorithm: self.algorithm, chunk_bytes, channels }
    }
}

/// The value of [`Tuning::eager_write_max_bytes`] with which recursive doubling takes least, whose messages are as long as what it
/// reduces: copies cost processor time, and spare latency.
#[must_use]
pub fn eager_write_max_bytes(layout: &Layout, constants: &Constants, tuning: &Tuning) -> u64 {
    let most = u64::from(crate::EAGER_WRITE_BYTES);
    let time_ns = |bytes: u64, eager_write_max_bytes: u64| {
        let tuning = Tuning { chunk_bytes: most, eager_write_max_bytes, ..*tuning };
        let call = (layout, Operation::Allreduce, bytes);
        let found = best(Algorithm::RecursiveDoubling, call, constants, &tuning);
        found.map_or(0.0, |candidate| candidate.prediction.time_ns)
    };
    [most, most / 2, most / 4]
        .into_iter()
        .find(|bytes| time_ns(*bytes, *bytes) < time_ns(*bytes, 0))
        .unwrap_or(0)
}

/// The rules of what is fastest for every operation and size in a layout, as [`crate::PlanSettings`] takes them: of the
/// algorithm that is asked for, where that does the operation between so many nodes, with its best chunks. None where all
/// ranks are on one node.
#[must_use]
pub fn tune(
    layout: &Layout,
    order: Order,
    constants: &Constants,
    tuning: &Tuning,
    asked: &Preference,
) -> Vec<Rule> {
    let mut operations: Vec<Operation> = Operation::ALL.to_vec();
    operations.retain(|operation| operation.is_collective() && layout.nodes() > 1);
    operations.sort_unstable();
    let fastest = |operation: Operation, bytes: u64| {
        let call = (layout, operation, bytes);
        let asked = asked.of(operation).and_then(|asked| best(asked, call, constants, tuning));
        asked.or_else(|| candidates(call, order, constants, tuning).first().copied())
    };
    operations.iter().flat_map(|operation| rules(*operation, |bytes| fastest(*operation, bytes))).collect()
}

fn rules(operation: Operation, fastest: impl Fn(u64) -> Option<Candidate>) -> Vec<Rule> {
    let mut rules: Vec<Rule> = Vec::new();
    for log2 in 0..=LARGEST_LOG2 {
        let Some(found) = fastest(1 << log2) else { break };
        let bytes_max = if log2 == LARGEST_LOG2 { u64::MAX } else { upper_end(log2) };
        let rule = found.rule(operation, bytes_max);
        match rules.last_mut().filter(|last| Rule { bytes_max, ..**last } == rule) {
            Some(last) => last.bytes_max = bytes_max,
            None => rules.push(rule),
        }
    }
    rules
}

/// The last size that a power of two stands for: the geometric mean with the next one.
fn upper_end(log2: u32) -> u64 {
    const SQRT_2: f64 = core::f64::consts::SQRT_2;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below 2^33")]
    let end = ((1_u64 << log2) as f64 * SQRT_2) as u64;
    end
}
