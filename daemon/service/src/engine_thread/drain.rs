//! What was asked: from the rings into the engine.

use ringway_abi::descriptor::{SUBMISSION_WORDS, Submission, split};
use ringway_engine::{Refused, RegionId, Token};
use ringway_mem::HandleTable;
use ringway_ring::DaemonRings;
use ringway_verbs::Time;

use super::{
    Client, EngineThread, Event, Region,
    accept::{self, Asker},
    reason::Reason,
    ring::{Life, Ring, RingFault, Slot},
};
use crate::session::SessionKey;

/// Submissions taken from one ring in one turn.
const BUDGET: usize = 32;

/// A client that asks: its regions and its argument slab.
pub(super) struct Asking<'a> {
    pub(super) session: SessionKey,
    pub(super) regions: &'a HandleTable<Region>,
    pub(super) rings: &'a DaemonRings,
}

impl Asker for Asking<'_> {
    fn region(&self, handle: u64) -> Option<(RegionId, u64)> {
        let region = self.regions.get(handle).filter(|region| region.session == self.session)?;
        Some((region.id, region.memory.length()))
    }

    fn arguments(&self, first: u32, into: &mut [u64]) -> Option<()> {
        self.rings.read_slab(first, into)
    }
}

impl EngineThread {
    /// Takes what clients ask, a bounded number of requests from each ring, beginning with another ring each turn.
    pub(super) fn drain(&mut self, now: Time) -> bool {
        let first = self.rings.begin_round();
        let mut worked = false;
        for nth in 0..self.rings.len() {
            let Some(index) = self.rings.nth(first, nth) else { break };
            match self.drain_ring(index, now) {
                Ok(some) => worked |= some,
                Err(fault) => self.ring_fault(index, &fault),
            }
        }
        worked
    }

    fn drain_ring(&mut self, index: usize, now: Time) -> Result<bool, RingFault> {
        let Some((_, ring)) = self.rings.get_mut(index) else { return Ok(false) };
        if ring.life != Life::Serving {
            return Ok(false);
        }
        let mut worked = ring.pull(BUDGET)? > 0;
        for _ in 0..BUDGET {
            let Some((_, ring)) = self.rings.get_mut(index) else { break };
            let Some(words) = ring.front()? else { break };
            if !self.take(index, &words, now) {
                break;
            }
            worked = true;
        }
        Ok(worked)
    }

    /// Takes the submission at the front of a ring. `false` when the engine has no room for it.
    fn take(&mut self, index: usize, words: &[u64; SUBMISSION_WORDS], now: Time) -> bool {
        if Submission::is_for_cell(words) {
            return self.take_for_cell(index, words, now);
        }
        let Self { rings, regions, engine, arguments, .. } = self;
        let Some((session, ring)) = rings.get_mut(index) else { return false };
        let session = *session;
        let [.., tail] = words;
        let (_, token) = split(*tail);
        let streamed = Submission::streamed(words).is_some();
        let ready = if streamed { ring.is_ready(token) } else { Some(true) };
        if ready == Some(false) {
            return false;
        }
        let asking = Asking { session, regions, rings: &ring.rings };
        let refusal = match accept::accept(words, (ring.rank, ring.size), &asking, arguments) {
            Ok(_) if ready.is_none() => Reason::NoStreamWords,
            Err(reason) => reason,
            Ok(accepted) => {
                let used = accepted.regions;
                let Some(slot) = ring.claim(Slot { token, regions: used, streamed }) else { return false };
                match engine.submit(ring.id, ring.local, Token(slot), accepted.request, now) {
                    Ok(()) => {
                        ring.advance();
                        count_uses(regions, used);
                        self.counters.submitted = self.counters.submitted.wrapping_add(1);
                        return true;
                    }
                    Err(Refused::Full) => {
                        ring.finish(slot);
                        ring.hold_back();
                        self.counters.held_back = self.counters.held_back.wrapping_add(1);
                        return false;
                    }
                    Err(refused) => {
                        ring.finish(slot);
                        Reason::Refused(refused)
                    }
                }
            }
        };
        ring.advance();
        if streamed {
            ring.tell_stream(token);
        }
        self.counters.submitted = self.counters.submitted.wrapping_add(1);
        self.refuse(index, token, refusal);
        true
    }

    /// Completes a submission that was not accepted.
    pub(super) fn refuse(&mut self, index: usize, token: u32, reason: Reason) {
        let Self { rings, clients, .. } = self;
        let Some((session, ring)) = rings.get_mut(index) else { return };
        ring.complete(token, (reason.status(), false), (ring.rank, 0));
        let first = ring.mark_told();
        if let Some(client) = clients.get(session) {
            explain(client, ring, token, reason);
        }
        if first {
            rings.untold.push(index);
        }
        self.counters.finished = self.counters.finished.wrapping_add(1);
        self.counters.failed = self.counters.failed.wrapping_add(1);
    }

    /// A client broke the rings' protocol: it is read no more, and the control thread ends its session.
    pub(super) fn ring_fault(&mut self, index: usize, fault: &RingFault) {
        let Some((session, _)) = self.rings.get_mut(index) else { return };
        let session = *session;
        let what = fault.to_string();
        self.fault(session, what);
    }

    /// Stops reading a client's rings and has its session ended.
    pub(super) fn fault(&mut self, session: SessionKey, what: String) {
        let Some(client) = self.clients.get_mut(&session) else { return };
        if std::mem::replace(&mut client.faulted, true) {
            return;
        }
        self.end_client(session, ringway_engine::RankFailure::Misbehaved);
        self.tell(Event::Fault { session, what });
    }
}

/// Keeps the reason for a failed operation where its client can ask for it.
pub(super) fn explain(client: &Client, ring: &Ring, token: u32, reason: Reason) {
    // The oldest gives way.
    let _ = client.reasons.force_push((ring.communicator, token, reason));
}

/// Keeps regions until the operation that uses them has finished.
pub(super) fn count_uses(regions: &mut HandleTable<Region>, used: [Option<u64>; 2]) {
    for handle in used.into_iter().flatten() {
        if let Some(region) = regions.get_mut(handle) {
            region.uses = region.uses.saturating_add(1);
        }
    }
}
