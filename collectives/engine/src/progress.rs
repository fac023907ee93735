//! What the engine does in a turn, and in which order.
//!
//! Local work is bounded by the bytes it touches: a turn ends after [`TURN`] of them, a visit to a communicator after
//! about one piece, and [`crate::schedule`] says whom to visit next. What is to be posted to other nodes comes last and
//! is shared by [`crate::network`].
//!
//! Whoever drives the engine may have work of its own for a communicator, *beside* the engine's. It is done in the same
//! turns, so that a tenant gets the same share whoever works for it: [`Engine::advance`] stops before it, so that clients
//! can be told what has finished, and [`Engine::advance_beside`] goes on from there.

use ringway_verbs::{Completion, Device, Time};

use crate::engine::Entry;
use crate::link::{Id, split_id};
use crate::turn::{Turn, elapsed_ms};
use crate::{Collected, CommunicatorId, Engine, LocalMemory, Ticket};

/// Bytes touched by local work in one turn: about 40 us of copying.
const TURN: u64 = 256 << 10;
/// What a visit costs at least, in bytes of the turn's budget.
const VISIT: u64 = 1 << 10;
/// Bytes touched beside the engine in one visit, about.
const BESIDE: u64 = 64 << 10;
/// Pieces of local work taken note of in one turn.
pub(crate) const COLLECTED: usize = 64;
/// Works for a communicator beside the engine, on about so many bytes of memory; how many it read and wrote, zero when there
/// is nothing to do.
type Beside<'a> = &'a mut dyn FnMut(CommunicatorId, u64) -> u64;
pub(crate) const NOTHING: Collected =
    Collected { ticket: Ticket { communicator: CommunicatorId(u32::MAX), number: 0 }, touched: 0 };
/// How often the clock is looked at while something is outstanding, in nanoseconds.
const TICK_NS: u64 = 50_000_000;
/// The same while a communicator ends or waits to post.
const SOON_NS: u64 = 2_000_000;

impl Engine {
    /// Takes note of what the device has finished.
    pub fn complete<D: Device + ?Sized>(
        &mut self,
        now: Time,
        completions: &[Completion],
        device: &mut D,
        memory: &mut dyn LocalMemory,
    ) {
        self.now = now;
        let Self { shared, entries, schedule, .. } = self;
        let mut turn = Turn { now, device, memory, shared };
        for completion in completions {
            let Id { communicator, link, .. } = split_id(completion.id);
            let Some(communicator) =
                entries.get_mut(communicator).and_then(|entry| entry.communicator.as_mut())
            else {
                continue;
            };
            communicator.complete(link, completion, &mut turn);
            let number = communicator.id.0 & 0xffff;
            schedule.wake(number);
            schedule.charge(number, core::mem::take(&mut turn.shared.copied));
        }
    }

    /// Does what can be done now, up to a bounded amount of work, fairly by bytes over the tenants. Returns whether it
    /// did something or there is more to do.
    pub fn advance<D: Device + ?Sized>(
        &mut self,
        now: Time,
        device: &mut D,
        memory: &mut dyn LocalMemory,
    ) -> bool {
        self.now = now;
        if now >= self.next_tick {
            self.tick(now, memory);
        }
        let (collected, left) = self.collect(memory);
        let worked = self.work(left, device, memory, None) || collected;
        let posted = self.end_turn(device, memory);
        worked || posted || self.schedule.is_busy()
    }

    /// There is work for a communicator beside the engine's, until [`Engine::advance_beside`] finds none.
    pub fn wake_beside(&mut self, id: CommunicatorId) {
        let index = id.0 & 0xffff;
        let entry = self.entries.get_mut(index as usize);
        let Some(entry) = entry.filter(|e| e.communicator.as_ref().is_some_and(|c| c.id == id)) else {
            return;
        };
        if !core::mem::replace(&mut entry.beside, true) {
            self.beside += 1;
        }
        self.schedule.wake(index);
    }

    /// Goes on with the turn where [`Engine::advance`] stopped, if there is work beside the engine's, for about `bytes_max`
    /// bytes of either kind. `beside` does it: for which communicator, and on about how many bytes; it says how many they
    /// were, zero when there is nothing to do. Returns whether anything was done.
    pub fn advance_beside<D: Device + ?Sized>(
        &mut self,
        bytes_max: u64,
        device: &mut D,
        memory: &mut dyn LocalMemory,
        beside: Beside<'_>,
    ) -> bool {
        if self.beside == 0 {
            return false;
        }
        let worked = self.work(bytes_max, device, memory, Some(beside));
        self.end_turn(device, memory) || worked
    }

    /// Posts what there is to send, and asks for the device to send it; whether there was any.
    fn end_turn<D: Device + ?Sized>(&mut self, device: &mut D, memory: &mut dyn LocalMemory) -> bool {
        let posted = self.post(device, memory);
        if core::mem::take(&mut self.shared.unflushed) {
            device.flush();
        }
        if self.shared.soon || self.shared.network.is_waiting() {
            self.next_tick = self.next_tick.min(Time(self.now.0.saturating_add(SOON_NS)));
        }
        posted
    }

    /// Takes note of the pieces of local work that others have done, or that were left to be done. Whether there were
    /// any, and how many bytes of the turn are left.
    fn collect(&mut self, memory: &mut dyn LocalMemory) -> (bool, u64) {
        let Self { collected, entries, schedule, shared, .. } = self;
        let count = memory.collect(TURN / 2, collected);
        let mut left = TURN;
        for Collected { ticket, touched } in collected.iter().take(count) {
            let index = ticket.communicator.0 & 0xffff;
            let entry = entries.get_mut(index as usize);
            let communicator = entry.and_then(|entry| entry.communicator.as_mut());
            let Some(communicator) = communicator.filter(|c| c.id == ticket.communicator) else { continue };
            communicator.collected(ticket.number, shared);
            schedule.wake(index);
            schedule.charge(index, *touched);
            left = left.saturating_sub(*touched);
        }
        (count > 0, left.max(1))
    }

    /// Visits communicators; without `beside` only until it is the turn of one for which there is such work.
    fn work<D: Device + ?Sized>(
        &mut self,
        mut budget: u64,
        device: &mut D,
        memory: &mut dyn LocalMemory,
        mut beside: Option<Beside<'_>>,
    ) -> bool {
        let Self { shared, entries, schedule, starved, now, beside: with_beside, .. } = self;
        let mut turn = Turn { now: *now, device, memory, shared };
        let mut did = false;
        while budget > 0 {
            let Some(index) = schedule.next() else { break };
            let Some(Entry { communicator: Some(communicator), beside: is_beside, .. }) =
                entries.get_mut(index as usize)
            else {
                schedule.rest(index);
                continue;
            };
            if *is_beside && beside.is_none() {
                break;
            }
            let visit = communicator.visit(&mut turn);
            did = true;
            let mut cost = visit.bytes + core::mem::take(&mut turn.shared.copied);
            if *is_beside && let Some(beside) = &mut beside {
                let bytes = beside(communicator.id, BESIDE);
                if bytes == 0 {
                    *is_beside = false;
                    *with_beside -= 1;
                }
                cost += bytes;
            }
            let cost = cost.max(VISIT);
            budget = budget.saturating_sub(cost);
            schedule.charge(index, cost);
            if !visit.more && !*is_beside {
                schedule.rest(index);
            }
            if visit.starved && !starved.contains(&index) {
                starved.push(index);
            }
            if turn.shared.scratch.take_changed() {
                starved.drain(..).for_each(|index| schedule.wake(index));
            }
        }
        did
    }

    /// Posts pieces of long messages.
    fn post<D: Device + ?Sized>(&mut self, device: &mut D, memory: &mut dyn LocalMemory) -> bool {
        let Self { shared, entries, now, .. } = self;
        let mut turn = Turn { now: *now, device, memory, shared };
        let mut did = false;
        while let Some((index, room)) = turn.shared.network.next(turn.now) {
            let entry = entries.get_mut(index as usize);
            let communicator = entry.and_then(|entry| entry.communicator.as_mut());
            let (bytes, more) =
                communicator.map_or((0, false), |communicator| communicator.post(room, &mut turn));
            turn.shared.network.posted(index, bytes, more, turn.now);
            did |= bytes > 0;
        }
        did
    }

    fn tick(&mut self, now: Time, memory: &dyn LocalMemory) {
        let heartbeat_ms = self.shared.config.heartbeat_ms;
        let stalled = elapsed_ms(self.last_tick, now) > heartbeat_ms.min(4 * TICK_NS / 1_000_000);
        self.shared.soon = false;
        (self.last_tick, self.next_tick) = (now, Time(now.0.saturating_add(TICK_NS)));
        for entry in &mut self.entries {
            let Some(communicator) = entry.communicator.as_mut() else { continue };
            if communicator.tick(now, stalled, memory, &mut self.shared) {
                self.schedule.wake(communicator.id.0 & 0xffff);
            }
        }
    }
}
