//! The cells of this node's communicators: whose memory they may name, and the daemon's work in them.
//!
//! The daemon works in a cell only for ranks that asked it to (non-blocking calls), block by block: a turn of the loop
//! takes a bounded number of bytes. Whose cell comes next the engine's schedule says, which serves the communicators of all
//! tenants by what the daemon does for them, here and in the engine: so tenants get equal shares, however many
//! communicators they have, and a neighbour's small request waits for no more than a turn.

use std::{cell::RefCell, sync::Arc};

use ringway_cell::{Cell, Helper, NumaNodes, Place, Regions, Verdict};
use ringway_engine::{CommunicatorId, Engine, LocalMemory};
use ringway_mem::{HandleTable, Mapping, Window};
use ringway_verbs::{Device, Time};

use super::{Reason, Region};
use crate::{membership::GroupKey, session::SessionKey};

/// Bytes of memory read and written in one turn of the loop, about, as a block is never cut: some ten microseconds of work.
const TURN_BYTES: u64 = 128 << 10;

/// A fresh cell.
#[derive(Debug)]
pub(crate) struct CellMemory {
    pub(crate) cell: Cell,
    /// Its memory: the ranks may take pages away.
    pub(crate) mapping: Arc<Mapping>,
}

/// A rank's place in a cell.
#[derive(Debug, Clone, Copy, Default)]
struct Seat {
    /// Its session; `None` before its rings have come.
    session: Option<SessionKey>,
    /// It has left: what it registered is no longer the cell's business.
    left: bool,
}

/// A collective in a cell that somebody waited for in vain for so long that the daemon was told.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waited {
    pub(super) sequence: u64,
    /// When the daemon was told last, and for how long the rank had waited then.
    told: (Time, u64),
    /// When it was named in the log, if it was.
    pub(super) logged: Option<Time>,
}

impl Waited {
    /// The daemon is told at `now` of a wait of so many milliseconds.
    pub(super) const fn new(sequence: u64, now: Time, waited_ms: u64, logged: Option<Time>) -> Self {
        Self { sequence, told: (now, waited_ms), logged }
    }

    /// For how many milliseconds it is waited for now.
    pub(super) const fn waited_ms(&self, now: Time) -> u64 {
        self.told.1.saturating_add(now.0.saturating_sub(self.told.0.0) / 1_000_000)
    }
}

/// One communicator's cell.
#[derive(Debug)]
pub(super) struct GroupCell {
    pub(super) group: GroupKey,
    /// The communicator, as the engine calls it.
    id: CommunicatorId,
    pub(super) cell: Cell,
    mapping: Arc<Mapping>,
    /// `None` once the communicator has failed: nobody begins new work then.
    helper: Option<Helper>,
    seats: Vec<Seat>,
    /// Why the communicator has failed.
    pub(super) reason: Option<Reason>,
    pub(super) waited: Option<Waited>,
    /// It may be worked on in this turn.
    ready: bool,
    /// Calls up to this one are known to need no help.
    settled: u64,
}

/// What came of a turn's work in cells.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Helped {
    /// Pieces of work done.
    pub(super) pieces: u64,
    /// Bytes of memory read and written.
    pub(super) bytes: u64,
    /// There is work that was left to ranks that are at it.
    pub(super) held: bool,
    /// Something was done, be it in no cell: between them others have their turns.
    pub(super) worked: bool,
    /// A client took pages of a region away.
    pub(super) thief: Option<SessionKey>,
    /// A cell's own pages were taken away.
    pub(super) spoiled: Option<GroupKey>,
}

/// The memory that ranks of one cell registered.
struct Registered<'a> {
    seats: &'a [Seat],
    regions: &'a HandleTable<Region>,
    /// The handles of those that were asked for.
    used: &'a RefCell<Vec<u64>>,
}

impl Registered<'_> {
    /// Whose region was used with pages missing: what was read there is not what its owner wrote.
    fn thief(&self) -> Option<SessionKey> {
        let used = self.used.borrow();
        let mut used = used.iter().filter_map(|handle| self.regions.get(*handle));
        used.find(|region| region.memory.faulted()).map(|region| region.session)
    }
}

impl Regions for Registered<'_> {
    fn window(&self, rank: u32, place: Place, length: u64) -> Option<Window<'_>> {
        let session = member(self.seats, rank)?;
        let region = self.regions.get(place.region).filter(|region| region.session == session)?;
        self.used.borrow_mut().push(place.region);
        region.memory.host()?.window(place.offset, length)
    }
}

/// The session of a rank that is in the communicator.
fn member(seats: &[Seat], rank: u32) -> Option<SessionKey> {
    seats.get(rank as usize).filter(|seat| !seat.left)?.session
}

/// Whether one more worker helps a cell, when so many of its ranks are at work already: with none of `cpus` left it would
/// take a CPU from one of them, and might be taken off it in turn with a block in hand for which all wait.
const fn is_needed(at_work: u32, cpus: u32) -> bool {
    at_work < cpus
}

impl GroupCell {
    /// Takes a fresh cell.
    pub(super) fn new((group, id): (GroupKey, CommunicatorId), memory: CellMemory) -> Self {
        let CellMemory { cell, mapping } = memory;
        Self {
            group,
            id,
            helper: Some(Helper::new(cell.clone()).learning_by(ringway_cell::monotonic_ns)),
            seats: vec![Seat::default(); cell.ranks() as usize],
            cell,
            mapping,
            reason: None,
            waited: None,
            ready: false,
            settled: 0,
        }
    }

    /// A rank has come.
    pub(super) fn seat(&mut self, rank: u32, session: SessionKey) {
        if let Some(seat) = self.seats.get_mut(rank as usize) {
            *seat = Seat { session: Some(session), left: false };
        }
    }

    /// A rank has left in order.
    pub(super) fn leave(&mut self, rank: u32) {
        if let Some(seat) = self.seats.get_mut(rank as usize) {
            seat.left = true;
        }
        self.cell.set_left(rank);
    }

    /// A rank is lost.
    pub(super) fn lose(&mut self, rank: u32) {
        if let Some(seat) = self.seats.get_mut(rank as usize) {
            seat.left = true;
        }
    }

    /// Whether a rank took pages of it away.
    pub(super) fn is_spoiled(&self) -> bool {
        self.mapping.faulted()
    }

    /// Whether ranks are in the communicator.
    pub(super) fn is_in_use(&self) -> bool {
        self.seats.iter().any(|seat| seat.session.is_some() && !seat.left)
    }

    /// A process has ended.
    fn exited(&self, session: SessionKey) {
        for (rank, seat) in (0..).zip(&self.seats) {
            if seat.session == Some(session) {
                self.cell.set_exited(rank);
            }
        }
    }

    /// The session of a rank that is in the communicator.
    pub(super) fn member(&self, rank: u32) -> Option<SessionKey> {
        member(&self.seats, rank)
    }

    /// The communicator is at its end; whether it was not before.
    pub(super) fn fail(&mut self, reason: Reason) -> bool {
        if self.reason.is_some() {
            return false;
        }
        // From the verdict on nobody but the ranks is at work on their memory.
        self.helper = None;
        let _ = self.cell.fail(Verdict { status: reason.status().code(), rank: reason.rank() });
        self.reason = Some(reason);
        true
    }

    /// The collective that is going on or waited for, and the ranks that have not called it, by what the ranks say. When all
    /// have called the same number it is the one that somebody waits for too long, and the ranks are those at work on it;
    /// `None` when there is none such.
    pub(super) fn current(&self) -> Option<(u64, Vec<u32>)> {
        let called: Vec<u64> = (0..self.cell.ranks()).map(|rank| self.cell.called(rank)).collect();
        let (least, most) = (called.iter().min()?, called.iter().max()?);
        if least == most {
            let waited = self.waited.filter(|waited| waited.sequence == *least)?;
            let at_work = self.at_work(waited.sequence);
            return (!at_work.is_empty()).then_some((waited.sequence, at_work));
        }
        let sequence = least.saturating_add(1);
        let missing = (0..).zip(&called).filter(|(_, called)| **called < sequence).map(|(rank, _)| rank);
        Some((sequence, missing.collect()))
    }

    /// The ranks that are at work on others' memory for a call or, when none is, those for whose own memory all wait; by what
    /// the ranks say.
    pub(super) fn at_work(&self, sequence: u64) -> Vec<u32> {
        let ranks = 0..self.cell.ranks();
        let at_work: Vec<u32> = ranks.filter(|rank| self.cell.is_at_work(*rank, sequence)).collect();
        if at_work.is_empty() { self.cell.behind(sequence) } else { at_work }
    }

    /// Collectives that every rank has called, by what the ranks say.
    pub(super) fn sequence(&self) -> u64 {
        (0..self.cell.ranks()).map(|rank| self.cell.called(rank)).min().unwrap_or(0)
    }

    /// Whether help is wanted, be it that ranks have yet to come.
    fn is_outstanding(&mut self) -> bool {
        let Some(helper) = &mut self.helper else { return false };
        let cell = &self.cell;
        let wanted = (0..cell.ranks()).map(|rank| cell.wanted(rank)).max().unwrap_or(0);
        if wanted <= self.settled {
            return false;
        }
        // What every rank has called and where nothing is to be claimed is complete, or in the hands of ranks.
        let come = (0..cell.ranks()).all(|rank| cell.called(rank) >= wanted);
        if come && !helper.has_work() {
            self.settled = wanted;
            return false;
        }
        true
    }

    fn has_work(&mut self) -> bool {
        self.helper.as_mut().is_some_and(Helper::has_work)
    }
}

/// Every cell of this node.
#[derive(Debug)]
pub(super) struct Cells {
    cells: Vec<GroupCell>,
    nodes: NumaNodes,
    cpus: u32,
    /// Empty between pieces of work; kept for its allocation.
    used: RefCell<Vec<u64>>,
}

impl Cells {
    /// None yet, on a machine that runs so many threads at a time.
    pub(super) fn new(cpus: u32) -> Self {
        Self { cells: Vec::new(), nodes: NumaNodes::read(), cpus, used: RefCell::new(Vec::new()) }
    }

    pub(super) fn add(&mut self, mut cell: GroupCell) {
        cell.helper = cell.helper.take().map(|helper| helper.within(self.cpus));
        // An input and an output of each rank.
        self.used.get_mut().reserve(2 * cell.seats.len());
        self.cells.push(cell);
    }

    /// Lets go of a communicator's cell.
    pub(super) fn remove(&mut self, group: GroupKey) {
        self.cells.retain(|cell| cell.group != group);
    }

    pub(super) fn get(&self, group: GroupKey) -> Option<&GroupCell> {
        self.cells.iter().find(|cell| cell.group == group)
    }

    pub(super) fn get_mut(&mut self, group: GroupKey) -> Option<&mut GroupCell> {
        self.cells.iter_mut().find(|cell| cell.group == group)
    }

    /// A process has ended: it writes nowhere any more.
    pub(super) fn exited(&self, session: SessionKey) {
        self.cells.iter().for_each(|cell| cell.exited(session));
    }

    /// Whether help is wanted in some cell, be it that ranks have yet to come.
    pub(super) fn is_outstanding(&mut self) -> bool {
        self.cells.iter_mut().any(GroupCell::is_outstanding)
    }

    /// Works where help is wanted, a bounded number of bytes, in turns with everything else that the engine has to do.
    pub(super) fn help<D: Device + ?Sized>(
        &mut self,
        engine: &mut Engine,
        (device, memory): (&mut D, &mut dyn LocalMemory),
        regions: &HandleTable<Region>,
    ) -> Helped {
        let mut helped = Helped::default();
        for cell in &mut self.cells {
            let wanting = cell.has_work();
            cell.ready = wanting && is_needed(cell.cell.at_work(), self.cpus);
            helped.held |= wanting && !cell.ready;
            if cell.ready {
                engine.wake_beside(cell.id);
            }
        }
        let mut work = |id, bytes_max| self.work((id, bytes_max), regions, &mut helped);
        let worked = engine.advance_beside(TURN_BYTES, device, memory, &mut work);
        Helped { worked, ..helped }
    }

    /// Works in a communicator's cell on about so many bytes; how many it was, zero when there is nothing to do now.
    fn work(
        &mut self,
        (id, bytes_max): (CommunicatorId, u64),
        regions: &HandleTable<Region>,
        helped: &mut Helped,
    ) -> u64 {
        let Self { cells, nodes, used, .. } = self;
        let Some(cell) = cells.iter_mut().find(|cell| cell.id == id && cell.ready) else { return 0 };
        let GroupCell { helper: Some(helper), seats, .. } = cell else { return 0 };
        used.get_mut().clear();
        let registered = Registered { seats, regions, used };
        helper.set_node(nodes.here());
        let bytes = helper.work(&registered, bytes_max);
        helped.thief = helped.thief.or(registered.thief());
        if cell.mapping.faulted() {
            helped.spoiled = Some(cell.group);
        }
        helped.bytes = helped.bytes.saturating_add(bytes);
        helped.pieces = helped.pieces.saturating_add(u64::from(bytes > 0));
        bytes
    }
}

#[cfg(test)]
mod tests;
