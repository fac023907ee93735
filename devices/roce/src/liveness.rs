//! Whether the other end is there: reliable connections notice only when they have something to send.

use ringway_verbs::Time;

use crate::{
    RoceFailure,
    pair::{Pair, Phase},
    shared::Shared,
    signal::Word,
};

/// Between the first questions while connecting, in nanoseconds; doubled each time.
const ASK_FIRST_NS: u64 = 1_000_000;
/// The same at most.
const ASK_MOST_NS: u64 = 50_000_000;

/// Between questions to a peer whose host says that it is gone.
const ASK_DOUBTED_NS: u64 = 5_000_000;

/// What is known of a peer's life.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Liveness {
    /// When something came last.
    heard: Time,
    /// Since when it is asked and does not answer; while connecting, since when that goes on.
    asked: Option<Time>,
    /// Since when it is asked because its host said that nobody takes packets there.
    doubted: Option<Time>,
    /// When to ask next.
    ask_at: Time,
    interval_ns: u64,
}

impl Liveness {
    /// Something came.
    pub(crate) const fn hear(&mut self, now: Time) {
        (self.heard, self.asked, self.doubted) = (now, None, None);
    }
}

const fn after(time: Time, ns: u64) -> Time {
    Time(time.0.saturating_add(ns))
}

impl Pair {
    /// When [`Pair::look_after_peer`] has something to do.
    pub(crate) fn next_question(&self, shared: &Shared) -> Option<Time> {
        self.ringway_peer()?;
        let Liveness { heard, asked, ask_at, .. } = self.liveness;
        match self.phase {
            Phase::Connecting => Some(ask_at),
            Phase::Ready if asked.is_some() => Some(ask_at),
            Phase::Ready => Some(after(heard, shared.config.keep_alive_ns)),
            Phase::Init | Phase::Failed => None,
        }
    }

    /// The peer's host says that nobody takes packets there: it is asked at once, and often, and given up soon.
    pub(crate) fn doubt_peer(&mut self, shared: &mut Shared) {
        if !matches!(self.phase, Phase::Connecting | Phase::Ready) || self.liveness.doubted.is_some() {
            return;
        }
        let now = shared.now;
        self.liveness.doubted = Some(now);
        self.liveness.asked.get_or_insert(now);
        self.liveness.ask_at = now;
        shared.timers.at_latest(self.index, now);
    }

    /// Asks the peer for a sign of life when that is due, and gives it up when none comes.
    pub(crate) fn look_after_peer(&mut self, shared: &mut Shared) {
        let Some(due) = self.next_question(shared).filter(|due| *due <= shared.now) else { return };
        let now = shared.now;
        let connecting = self.phase == Phase::Connecting;
        let waited = match self.liveness.asked {
            // While this side stood still the peer could not be heard.
            Some(since) => now.0.saturating_sub(since.max(shared.resumed).0),
            None => 0,
        };
        let silence = now.0.saturating_sub(self.liveness.heard.0);
        let limit = match connecting {
            true => shared.config.connect_timeout_ns,
            false => shared.config.patience_ns.saturating_sub(shared.config.keep_alive_ns),
        };
        if waited > limit {
            let failure =
                if connecting { RoceFailure::NoAnswer } else { RoceFailure::Silent(silence / 1_000_000) };
            return self.fail(failure, shared);
        }
        let unanswered = |since: Time| now.0.saturating_sub(since.max(shared.resumed).0);
        let doubted = self.liveness.doubted.map(unanswered);
        if let Some(waited) = doubted.filter(|waited| *waited > shared.config.refused_patience_ns) {
            return self.fail(RoceFailure::Refused(waited / 1_000_000), shared);
        }
        let liveness = &mut self.liveness;
        if doubted.is_some() {
            liveness.interval_ns = ASK_DOUBTED_NS;
        } else if liveness.asked.is_none() {
            liveness.asked = Some(now);
            liveness.interval_ns =
                if connecting { ASK_FIRST_NS } else { (shared.config.keep_alive_ns / 4).max(ASK_FIRST_NS) };
        } else if connecting {
            liveness.interval_ns = (2 * liveness.interval_ns).min(ASK_MOST_NS);
        }
        liveness.ask_at = after(due.max(now), liveness.interval_ns);
        // An answer that is owed says as much.
        self.owed.get_or_insert(Word::Hello);
    }
}
