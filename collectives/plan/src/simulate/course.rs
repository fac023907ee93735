//! How many chunks are simulated, and what follows of the others: where there are many, it ends when each more takes the same.

use super::network::Picoseconds;
use super::{Failure, Limits};

/// What each more chunk takes goes up and down about a mean, by little or, where trees share links, by some hundredths for many
/// chunks. So it is looked at in so many parts, the first of which are left out, and must differ between the others by no more
/// than this share, each part having so many chunks for each that may be under way; or, after so many ops, by no more than that.
const PARTS: u64 = 6;
const LEFT_OUT: u64 = 2;
const STEADY: f64 = 0.01;
const LEAST: u64 = 2;
const PATIENCE: u64 = 3_000_000;
const ABOUT: f64 = 0.05;
/// How many times as many chunks there must be as all follows from.
const LONG: u64 = 8;

/// The chunks of a call: those that are run, and when they were finished.
pub(super) struct Course {
    /// Chunks that may be under way.
    pub(super) depth: u32,
    /// Chunks of the call, those that are begun at most, and those that have begun.
    pub(super) chunks: u64,
    pub(super) limit: u64,
    begun: u64,
    /// Nodes that are simulated, and ops of one chunk on all of them.
    nodes: usize,
    ops: u64,
    limits: Limits,
    /// Why it is not fewer nodes.
    why: String,
    /// Of each chunk that some node has finished: how many have, and when the last one did.
    finished: Vec<(usize, Picoseconds)>,
    /// The first chunk that not all have finished.
    first: u64,
    /// What each chunk takes that is not run, and by which share that went up and down.
    each: f64,
    pub(super) spread: f64,
}

impl Course {
    /// # Errors
    /// Where it would be more than the limits allow.
    pub(super) fn new(
        (depth, chunks): (u32, u64),
        (nodes, ops): (usize, u64),
        limits: Limits,
        why: &str,
    ) -> Result<Self, Failure> {
        let (limit, begun, why) = (chunks, u64::from(depth).min(chunks), why.to_owned());
        let (finished, first, each, spread) = (Vec::new(), 0, 0.0, 0.0);
        let it = Self { depth, chunks, limit, begun, nodes, ops, limits, why, finished, first, each, spread };
        let few = (PARTS + 1) * u64::from(depth);
        let least = if it.is_late(few) { few } else { few * LEAST };
        it.bound(if it.is_late(least) || it.is_long(least) { least.min(chunks) } else { chunks })?;
        Ok(it)
    }

    /// A node has finished a chunk.
    ///
    /// # Errors
    /// Where more have begun than the limits allow.
    pub(super) fn finish(&mut self, chunk: u64, now: Picoseconds) -> Result<(), Failure> {
        let next = chunk + u64::from(self.depth);
        if next < self.limit && next >= self.begun {
            self.begun = next + 1;
            self.bound(self.begun)?;
        }
        let chunk = usize::try_from(chunk).unwrap_or(usize::MAX);
        if chunk >= self.finished.len() {
            self.finished.resize(chunk + 1, (0, 0));
        }
        self.finished[chunk] = (self.finished[chunk].0 + 1, now);
        while self.end(self.first).is_some() {
            self.first += 1;
            if self.limit == self.chunks && self.first.is_multiple_of(PARTS * u64::from(self.depth)) {
                self.look(self.first / PARTS);
            }
        }
        Ok(())
    }

    /// What all chunks take, of which those that were run took so long.
    pub(super) fn whole(&self, time: Picoseconds) -> Picoseconds {
        let more = (self.chunks - self.limit) as f64 * self.each;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time, rounded")]
        let more = more.round() as Picoseconds;
        time.saturating_add(more)
    }

    /// When all nodes had finished a chunk.
    fn end(&self, chunk: u64) -> Option<Picoseconds> {
        let (nodes, end) = *self.finished.get(usize::try_from(chunk).ok()?)?;
        (nodes == self.nodes).then_some(end)
    }

    /// Whether there are so many chunks that what these few take may tell of all. The last one may be short: of so many it does
    /// not matter.
    const fn is_long(&self, few: u64) -> bool {
        let all = self.ops.saturating_mul(self.chunks);
        all > self.limits.whole_steps && few.saturating_mul(LONG) <= self.chunks
    }

    /// Whether so many chunks have taken so long that what they take need be known only about.
    const fn is_late(&self, chunks: u64) -> bool {
        self.ops.saturating_mul(chunks) > PATIENCE
    }

    /// Begins no more chunks if each more has taken the same, in parts of so many.
    fn look(&mut self, part: u64) {
        let is_late = self.is_late(self.begun);
        let is_enough = part >= LEAST * u64::from(self.depth) && self.is_long(part * PARTS);
        if !is_enough && !is_late {
            return;
        }
        let took = |number: u64| {
            let (start, end) = (self.end(number * part - 1)?, self.end((number + 1) * part - 1)?);
            Some((end - start) as f64 / part as f64)
        };
        let Some(took) = (LEFT_OUT..PARTS).map(took).collect::<Option<Vec<f64>>>() else { return };
        let mean = took.iter().sum::<f64>() / took.len() as f64;
        let most = took.iter().fold(0.0, |most: f64, it| most.max(*it));
        let least = took.iter().fold(f64::INFINITY, |least: f64, it| least.min(*it));
        let spread = (most - least) / mean;
        if spread <= if is_late { ABOUT } else { STEADY } {
            (self.limit, self.each, self.spread) = (self.begun, mean, spread);
        }
    }

    fn bound(&self, chunks: u64) -> Result<(), Failure> {
        let (steps, most) = (self.ops.saturating_mul(chunks), self.limits.most_steps);
        if steps > most {
            return Err(Failure::TooMuch { steps, most, why: self.why.clone() });
        }
        Ok(())
    }
}
