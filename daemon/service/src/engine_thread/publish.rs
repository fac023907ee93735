//! What to tell clients: from the engine into the rings.

use ringway_abi::Status;
use ringway_engine::{Failure, Finished};

use super::{EngineThread, Event, drain::explain, reason::Reason};
use crate::polling::Told;

/// Finished operations handled in one turn.
const BUDGET: usize = 256;

impl EngineThread {
    /// Turns finished operations into completions, and wakes the clients that sleep.
    pub(super) fn publish(&mut self) -> bool {
        let mut worked = false;
        for _ in 0..BUDGET {
            let Some(finished) = self.engine.next_finished() else { break };
            self.settle(finished);
            worked = true;
        }
        self.told = Told::Nobody;
        while let Some(index) = self.rings.untold.pop() {
            let Some((_, ring)) = self.rings.get_mut(index) else { continue };
            let slept = ring.publish();
            self.counters.wake_ups = self.counters.wake_ups.wrapping_add(u64::from(slept));
            self.told = self.told.max(if slept { Told::Sleeping } else { Told::Polling });
        }
        worked || self.told != Told::Nobody
    }

    fn settle(&mut self, finished: Finished) {
        let Finished { communicator, local, token, outcome } = finished;
        self.counters.finished = self.counters.finished.wrapping_add(1);
        if let Err(failure) = &outcome
            && ends_communicator(failure)
            && let Some(group) = self.group_of.get(&communicator).copied()
        {
            // What the engine found ends the communicator's cell as well.
            let shutting_down = self.shutdown.is_some();
            self.fail_cell(
                group,
                if shutting_down { Reason::ShuttingDown } else { Reason::Engine(failure.clone()) },
            );
        }
        let Some(index) = self.rings.find(communicator, local) else { return };
        let Some((_, ring)) = self.rings.get_mut(index) else { return };
        let group = ring.group;
        let outcome = outcome.map_err(|failure| match self.shutdown {
            Some(_) if ends_communicator(&failure) => Reason::ShuttingDown,
            _ => Reason::Engine(failure),
        });
        if let Err(Reason::Engine(failure)) = &outcome
            && ends_communicator(failure)
            && let Some(known) = self.groups.get_mut(&group).filter(|group| group.failure.is_none())
        {
            known.failure = Some(failure.clone());
            self.tell(Event::Failed { group, failure: failure.clone() });
        }
        self.report(index, token.0, outcome);
    }

    /// Completes the operation in a ring's slot, and lets go of what it held.
    pub(super) fn report(&mut self, index: usize, number: u32, outcome: Result<(u32, u64), Reason>) {
        let Some((session, ring)) = self.rings.get_mut(index) else { return };
        let session = *session;
        let Some(slot) = ring.finish(number) else { return };
        // A rank that has stopped with a piece of it in hand could still write to its buffers.
        let held = outcome.is_err() && !self.engine.is_settled(ring.id);
        let (status, result, reason) = match outcome {
            Ok(result) => (Status::Success, result, None),
            Err(reason) => (reason.status(), (ring.rank, 0), Some(reason)),
        };
        ring.complete(slot.token, (status, held), result);
        if slot.streamed {
            ring.tell_stream(slot.token);
        }
        let first = ring.mark_told();
        if let Some(reason) = reason {
            self.counters.failed = self.counters.failed.wrapping_add(1);
            if let (Some(client), Some((_, ring))) = (self.clients.get(&session), self.rings.get_mut(index)) {
                explain(client, ring, slot.token, reason);
            }
        }
        if first {
            self.rings.untold.push(index);
        }
        for handle in slot.regions.into_iter().flatten() {
            let Some(region) = self.regions.get_mut(handle) else { continue };
            region.uses = region.uses.saturating_sub(1);
            if region.memory.faulted() {
                self.fault(session, "it took pages away from a region that it had registered".to_owned());
            }
        }
    }
}

/// Whether a failure is the end of its communicator, rather than of one operation.
const fn ends_communicator(failure: &Failure) -> bool {
    !matches!(failure, Failure::Truncated { .. } | Failure::Count { .. } | Failure::Memory { .. })
}
