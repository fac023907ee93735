//! What the daemon does about cells beside working in them: it looks into them when a rank cannot go on, ends them when
//! their communicator fails, and hands out the regions that their ranks name.

use std::sync::Arc;

use ringway_cell::{Cell, Contradiction, SLOTS};
use ringway_engine::{Failure, LocalMemory, RankFailure};
use ringway_mem::Mapping;
use ringway_verbs::Time;

use super::{
    CellCommand, EngineThread, Event, Inspect, MapRefusal, Reason,
    cells::{GroupCell, Waited},
};
use crate::{membership::GroupKey, session::SessionKey};

/// Ranks named in one sentence.
const NAMED: usize = 16;

/// What a look into a cell found.
#[derive(Debug)]
enum Finding {
    /// Nothing that the daemon can say: the ranks go on waiting.
    Nothing,
    /// Ranks are late: they have not called it or, if `stopped`, have stopped while they worked on it.
    Late { sequence: u64, ranks: Vec<u32>, stopped: bool },
    /// The communicator cannot go on.
    Failure(Failure),
}

impl EngineThread {
    /// The communicator is at its end: its operations fail, those in its cell as well.
    pub(super) fn fail_group(&mut self, key: GroupKey, failure: Failure) {
        let Some(group) = self.groups.get(&key) else { return };
        self.engine.fail(group.id, failure.clone());
        self.fail_cell(key, Reason::Engine(failure));
    }

    /// The communicator is at its end: its operations in the cell fail, and nobody begins anything on its board.
    pub(super) fn fail_cell(&mut self, key: GroupKey, reason: Reason) {
        if let Some(group) = self.groups.get(&key)
            && let Some(board) = self.memory.boards.get_mut(group.id)
        {
            board.close();
        }
        let Some(cell) = self.cells.get_mut(key) else { return };
        // When its last rank goes without leaving, nobody is there to be told.
        if !cell.fail(reason.clone()) {
            return;
        }
        let in_use = cell.is_in_use();
        let known = self.groups.get_mut(&key).filter(|group| in_use && group.failure.is_none());
        if let (Some(group), Reason::Engine(failure)) = (known, &reason) {
            group.failure = Some(failure.clone());
            self.tell(Event::Failed { group: key, failure: failure.clone() });
        }
        self.end_stand_ins(key, &reason);
    }

    /// Works in the cells where help is wanted, and for others whose turn comes in between; whether anything was done.
    pub(super) fn help(&mut self) -> bool {
        let of_engine = (&mut self.device, &mut self.memory as &mut dyn LocalMemory);
        let helped = self.cells.help(&mut self.engine, of_engine, &self.regions);
        self.held = helped.held;
        self.counters.help_turns = self.counters.help_turns.wrapping_add(helped.pieces);
        self.counters.help_bytes = self.counters.help_bytes.wrapping_add(helped.bytes);
        if let Some(session) = helped.thief {
            self.fault(session, "it took pages away from a region that it had registered".to_owned());
        }
        if let Some(key) = helped.spoiled {
            self.fail_spoiled(key);
        }
        helped.worked
    }

    /// A rank took pages of a cell away.
    pub(super) fn fail_spoiled(&mut self, key: GroupKey) {
        if let Some(group) = self.groups.get(&key) {
            let rank = group.layout.local(group.node).first().copied().unwrap_or(0);
            let reason = "a rank took pages away from the memory that its ranks share";
            self.fail_group(key, Failure::Node { node: group.node, rank, reason, rail: None });
        }
    }

    /// Does what the control thread asks about cells.
    pub(super) fn execute_in_cell(&mut self, command: CellCommand, now: Time) {
        match command {
            CellCommand::Add { group, memory } => {
                if let Some(id) = self.groups.get(&group).map(|of| of.id) {
                    self.cells.add(GroupCell::new((group, id), memory));
                }
            }
            CellCommand::AddBoard { group, memory } => self.add_board(group, memory),
            CellCommand::MapRegion { session, number, place } => {
                let result = self.map_region(session, place);
                self.tell(Event::RegionMapped { session, number, result });
            }
            CellCommand::Inspect { session, number, inspect } => {
                self.inspect(session, inspect, now);
                self.tell(Event::Inspected { session, number });
            }
            CellCommand::Explain { session, number, communicator } => {
                let reason = self.why(session, communicator);
                self.tell(Event::Explained { session, number, reason });
            }
            CellCommand::ProcessExited { session } => {
                self.cells.exited(session);
                self.memory.boards.exited(session);
            }
        }
    }

    /// The communicator that a session calls so, and its rank there.
    fn place(&mut self, session: SessionKey, communicator: u32) -> Option<(GroupKey, u32)> {
        let index = self.rings.named(session, communicator)?;
        self.rings.get_mut(index).map(|(_, ring)| (ring.group, ring.rank))
    }

    /// A rank's region, for a rank of its cell or board to map.
    fn map_region(
        &mut self,
        session: SessionKey,
        (communicator, rank, handle): (u32, u32, u64),
    ) -> Result<(u64, Arc<Mapping>), MapRefusal> {
        let (key, _) = self.place(session, communicator).ok_or(MapRefusal::NoCell)?;
        let cell = self.cells.get(key).filter(|cell| cell.reason.is_none());
        let board = self.groups.get(&key).and_then(|group| self.memory.boards.get(group.id));
        let owner = match (cell, board) {
            (Some(cell), _) => cell.member(rank),
            (None, Some(board)) => board.member(rank),
            (None, None) => return Err(MapRefusal::NoCell),
        };
        let owner = owner.ok_or(MapRefusal::Rank { rank })?;
        let region = self.regions.get(handle).filter(|region| region.session == owner && region.shared);
        let region = region.ok_or(MapRefusal::Region { rank, region: handle })?;
        let mapping = region.memory.host().ok_or(MapRefusal::Region { rank, region: handle })?;
        Ok((handle, Arc::clone(mapping)))
    }

    /// Why the communicator that a session calls so has failed.
    fn why(&mut self, session: SessionKey, communicator: u32) -> Option<Reason> {
        let (key, _) = self.place(session, communicator)?;
        let of_cell = self.cells.get(key).and_then(|cell| cell.reason.clone());
        of_cell.or_else(|| {
            let group = self.groups.get(&key)?;
            // No operation may have ended by it yet, so that only the engine knows.
            let of_engine = || self.engine.status(group.id)?.failure;
            group.failure.clone().or_else(of_engine).map(Reason::Engine)
        })
    }

    /// A rank cannot go on: the daemon looks for itself.
    pub(super) fn inspect(&mut self, session: SessionKey, inspect: Inspect, now: Time) {
        let Some((key, rank)) = self.place(session, inspect.communicator) else { return };
        let Some(timeout_ms) = self.groups.get(&key).map(|group| group.timeout_ms) else { return };
        let late_after_ms = self.late_after_ms;
        let Some(cell) = self.cells.get_mut(key).filter(|cell| cell.reason.is_none()) else { return };
        match look(cell, rank, inspect, (timeout_ms, late_after_ms)) {
            Finding::Nothing => {}
            Finding::Failure(failure) => self.fail_group(key, failure),
            Finding::Late { sequence, ranks, stopped } => {
                let what = (sequence, ranks, stopped);
                if let Some(text) = note(cell, what, inspect.waited_ms, (late_after_ms, now)) {
                    self.tell(Event::Late { group: key, text });
                }
            }
        }
    }
}

/// The call that a rank waits for others to make. A call that is not published yet waits for the one in its slot; a rank
/// that is through with that one waits for those who are not. Nobody is further ahead of what it is through with than there
/// are slots, so that they have not made the call that the rank wants to make, nor one after the last that they did make.
fn awaited(cell: &Cell, rank: u32, sequence: u64) -> u64 {
    let called = cell.called(rank);
    let sequence = if called >= sequence { sequence } else { sequence.saturating_sub(SLOTS) };
    if cell.consumed(rank) < sequence {
        return sequence;
    }
    let behind = (0..cell.ranks()).filter(|other| cell.consumed(*other) < sequence);
    let last = behind.map(|other| cell.called(other)).min();
    last.map_or(sequence, |last| last.saturating_add(1).max(sequence).min(called))
}

/// Looks into a cell for why a rank cannot go on. Everything in there is what ranks say, which is good enough: whoever
/// lies could abort the communicator as well.
fn look(of: &GroupCell, rank: u32, inspect: Inspect, (timeout_ms, late_after_ms): (u32, u64)) -> Finding {
    let Inspect { sequence, waited_ms, .. } = inspect;
    let cell = &of.cell;
    let sequence = awaited(cell, rank, sequence);
    let Some(call) = cell.signature(rank, sequence).map(signature) else { return Finding::Nothing };
    match cell.contradiction(sequence) {
        Some(Contradiction::Signatures { rank, call, other_rank, other }) => {
            let (call, other) = (signature(call), signature(other));
            return Finding::Failure(Failure::Mismatch { rank, call, other_rank, other, sequence });
        }
        Some(Contradiction::Counts { sender, receiver, sent, expected }) => {
            return Finding::Failure(Failure::Count { sender, receiver, sent, expected });
        }
        None => {}
    }
    // Whoever has left published everything before.
    let left: Vec<u32> = (0..cell.ranks()).filter(|r| cell.has_left(*r)).collect();
    let mut missing: Vec<u32> =
        (0..cell.ranks()).filter(|r| *r != rank && cell.called(*r) < sequence).collect();
    // Whom others wait for in an earlier call comes first.
    missing.sort_by_key(|rank| cell.called(*rank));
    if let Some(rank) = missing.iter().copied().find(|rank| left.contains(rank)) {
        return Finding::Failure(Failure::Rank { rank, how: RankFailure::Left });
    }
    // Whom a call hangs with that all have called: somebody has stopped with a block of it in hand.
    let stopped = missing.is_empty();
    let mut ranks = if stopped { of.at_work(sequence) } else { missing };
    ranks.retain(|late| *late != rank);
    if timeout_ms > 0 && waited_ms >= u64::from(timeout_ms) {
        let (first, mut others) = name(&ranks, (rank, cell.ranks()));
        if stopped {
            others += ", or it has stopped while it worked on it";
        }
        return Finding::Failure(Failure::TimedOut { call, rank: first, waited_ms, others });
    }
    if ranks.is_empty() || waited_ms < late_after_ms {
        return Finding::Nothing;
    }
    Finding::Late { sequence, ranks, stopped }
}

/// Keeps that ranks are late; the line for the log, unless there was one not long ago.
fn note(
    cell: &mut GroupCell,
    (sequence, ranks, stopped): (u64, Vec<u32>, bool),
    waited_ms: u64,
    (late_after_ms, now): (u64, Time),
) -> Option<String> {
    let before = cell.waited.filter(|waited| waited.sequence == sequence);
    let longest_ms = before.map_or(0, |waited| waited.waited_ms(now)).max(waited_ms);
    let last = cell.waited.and_then(|waited| waited.logged);
    // Once for each collective, and no more often than one can be late.
    let due = last.is_none_or(|last| now.0.saturating_sub(last.0) >= late_after_ms.saturating_mul(1_000_000));
    let due = due && before.is_none_or(|waited| waited.logged.is_none());
    cell.waited = Some(Waited::new(sequence, now, longest_ms, if due { Some(now) } else { last }));
    let call = (0..cell.cell.ranks()).find_map(|rank| cell.cell.signature(rank, sequence)).map(signature)?;
    due.then(|| late_text(&call, (sequence, stopped), &ranks, waited_ms))
}

/// The line in the log that names late ranks.
pub(super) fn late_text(
    call: &ringway_engine::Signature,
    (sequence, stopped): (u64, bool),
    missing: &[u32],
    waited_ms: u64,
) -> String {
    let ranks: Vec<_> = missing.iter().take(NAMED).map(u32::to_string).collect();
    let more = if missing.len() > ranks.len() { ", ..." } else { "" };
    let what = if stopped { "has stopped while it worked on" } else { "has not called" };
    format!(
        "late: rank {}{more} {what} `{call}` (collective number {sequence}), others wait for {waited_ms} ms",
        ranks.join(", rank "),
    )
}

/// The first of the late ranks, and the others as text. With none known it is any other.
fn name(missing: &[u32], (rank, ranks): (u32, u32)) -> (u32, String) {
    let Some((first, rest)) = missing.split_first() else {
        return ((0..ranks).find(|other| *other != rank).unwrap_or(rank), String::new());
    };
    if rest.is_empty() {
        return (*first, String::new());
    }
    let named: Vec<_> = rest.iter().take(NAMED).map(u32::to_string).collect();
    let more = rest.len().saturating_sub(named.len());
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (*first, format!(", nor have {}{more}", named.join(", ")))
}

/// A cell's signature as the engine has them.
pub(super) const fn signature(of: ringway_cell::Signature) -> ringway_engine::Signature {
    let ringway_cell::Signature { operation, datatype, reduction, root, count } = of;
    ringway_engine::Signature { operation, datatype, reduction, root, count }
}
