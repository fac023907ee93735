//! The boards of this node's communicators: local work of operations over several nodes that waiting ranks may do.
//!
//! The engine hands its local work over piece by piece. A piece that is worth it, of a communicator with a rank that
//! waits and looks at the board, is offered there, and until a rank claims it the daemon may still do it itself: every
//! turn it does some of what nobody has claimed, so that nothing waits for ranks that only seem to be there. Everything
//! else is done at once.
//!
//! What is kept of a piece here is private; from the board only its state is read. See [`ringway_cell::board`].

mod upkeep;

use std::{collections::BTreeMap, sync::Arc};

use ringway_cell::{
    Place,
    board::{Board, Executor, Kind, OPERANDS_MAX, Offers, Operand, PIECES, SCRATCH, Work},
};
use ringway_engine::{BufferRef, Collected, CommunicatorId, LocalRank, Piece, RegionId, Ticket};
use ringway_mem::{Mapping, Window, recycle};
use ringway_verbs::LocalKey;

use super::memory::Regions;
use crate::{membership::GroupKey, polling::parallelism_with_clients, session::SessionKey};

/// Pieces that touch fewer bytes than this are done at once: offering one costs about as much as touching a quarter of
/// it, and small operations should not wait for others.
const OFFER_LEAST: u64 = 32 << 10;

/// A fresh board and the scratch memory of its communicator, both mapped by the ranks as well.
#[derive(Debug)]
pub(crate) struct BoardMemory {
    pub(crate) board: Board,
    /// The board's memory: the ranks may take pages away.
    pub(crate) mapping: Arc<Mapping>,
    pub(crate) scratch: Arc<Mapping>,
}

/// Scratch memory as the engine and the device know it.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScratchRegion {
    pub(super) id: RegionId,
    pub(super) key: LocalKey,
}

/// A rank of this node.
#[derive(Debug, Clone, Copy)]
struct Seat {
    rank: u32,
    session: SessionKey,
    /// It has left, or is lost: what it registered is no longer the board's business.
    gone: bool,
}

/// A piece that is on a board.
#[derive(Debug)]
struct Kept {
    /// The ticket's; `None` while the place is free.
    number: Option<u32>,
    kind: Kind,
    length: u64,
    operands: Vec<Operand>,
    buffers: Vec<BufferRef>,
}

/// What ranks have done for a communicator.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Done {
    pub(super) pieces: u64,
    pub(super) bytes: u64,
}

impl Done {
    const fn count(&mut self, bytes: u64) {
        self.pieces = self.pieces.wrapping_add(1);
        self.bytes = self.bytes.wrapping_add(bytes);
    }
}

/// One communicator's board.
#[derive(Debug)]
pub(super) struct GroupBoard {
    group: GroupKey,
    id: CommunicatorId,
    offers: Offers,
    mapping: Arc<Mapping>,
    scratch: Arc<Mapping>,
    region: ScratchRegion,
    /// By place among the ranks of this node; `None` before a rank's rings have come.
    seats: Vec<Option<Seat>>,
    kept: Vec<Kept>,
    done: Done,
    closed: bool,
}

/// Every board of this node.
#[derive(Debug)]
pub(super) struct Boards {
    boards: BTreeMap<CommunicatorId, GroupBoard>,
    /// Pieces on boards.
    away: usize,
    done: Done,
    spoiled: Option<GroupKey>,
    cpus: u32,
    executor: Executor,
    // Empty between calls; kept for their allocations.
    windows: Vec<Window<'static>>,
    operands: Vec<Operand>,
    buffers: Vec<BufferRef>,
}

impl Default for Boards {
    fn default() -> Self {
        Self {
            boards: BTreeMap::new(),
            away: 0,
            done: Done::default(),
            spoiled: None,
            cpus: parallelism_with_clients(),
            executor: Executor::default(),
            windows: Vec::with_capacity(OPERANDS_MAX),
            operands: Vec::with_capacity(OPERANDS_MAX),
            buffers: Vec::with_capacity(OPERANDS_MAX),
        }
    }
}

impl GroupBoard {
    /// Takes a fresh board, for so many ranks of this node.
    pub(super) fn new(
        (group, id): (GroupKey, CommunicatorId),
        memory: BoardMemory,
        region: ScratchRegion,
        locals: u32,
    ) -> Self {
        let BoardMemory { board, mapping, scratch } = memory;
        let kept = (0..PIECES).map(|_| Kept {
            number: None,
            kind: Kind::Copy,
            length: 0,
            operands: Vec::with_capacity(OPERANDS_MAX),
            buffers: Vec::with_capacity(OPERANDS_MAX),
        });
        Self {
            group,
            id,
            offers: Offers::new(board, locals),
            mapping,
            scratch,
            region,
            seats: vec![None; locals as usize],
            kept: kept.collect(),
            done: Done::default(),
            closed: false,
        }
    }

    /// What ranks have done.
    pub(super) const fn done(&self) -> Done {
        self.done
    }

    /// A rank has come.
    pub(super) fn seat(&mut self, local: LocalRank, rank: u32, session: SessionKey) {
        if let Some(seat) = self.seats.get_mut(local.0 as usize) {
            *seat = Some(Seat { rank, session, gone: false });
        }
    }

    /// A rank has left or is lost.
    pub(super) fn unseat(&mut self, local: LocalRank) {
        if let Some(seat) = self.seats.get_mut(local.0 as usize).and_then(Option::as_mut) {
            seat.gone = true;
        }
    }

    /// The session of a rank of this node that is in the communicator which has not failed.
    pub(super) fn member(&self, rank: u32) -> Option<SessionKey> {
        let mut seats = self.seats.iter().flatten().filter(|seat| !seat.gone && !self.closed);
        seats.find(|seat| seat.rank == rank).map(|seat| seat.session)
    }

    fn rank_of(&self, session: SessionKey) -> Option<u32> {
        let mut seats = self.seats.iter().flatten().filter(|seat| !seat.gone);
        seats.find(|seat| seat.session == session).map(|seat| seat.rank)
    }

    /// What the ranks call a buffer; `None` when it is none that they can reach.
    fn operand(&self, buffer: BufferRef, scale: Option<[u8; 8]>, regions: &Regions) -> Option<Operand> {
        let (rank, region) = if buffer.region == self.region.id {
            (0, SCRATCH)
        } else {
            let (session, handle) = regions.owner(buffer.region)?;
            (self.rank_of(session)?, handle)
        };
        let place = Place { region, offset: buffer.offset };
        Some(Operand { rank, place, scale: scale.map(u64::from_le_bytes) })
    }

    /// Describes a piece in lists: its kind and the bytes of each operand.
    fn describe(
        &self,
        piece: &Piece<'_>,
        regions: &Regions,
        operands: &mut Vec<Operand>,
        buffers: &mut Vec<BufferRef>,
    ) -> Option<(Kind, u64)> {
        let mut put = |buffer: BufferRef, scale| {
            operands.push(self.operand(buffer, scale, regions)?);
            buffers.push(buffer);
            Some(())
        };
        let kind = match *piece {
            Piece::Reduce { datatype, reduction, sources, destinations, divisor } => {
                sources.iter().try_for_each(|source| put(source.buffer, source.scale))?;
                destinations.iter().try_for_each(|destination| put(*destination, None))?;
                let sources = u32::try_from(sources.len()).ok()?;
                Kind::Reduce { datatype, reduction, sources, divisor }
            }
            Piece::Scan { datatype, reduction, carry, before, steps, inclusive } => {
                carry.into_iter().try_for_each(|carry| put(carry, None))?;
                for step in steps {
                    put(step.input.buffer, step.input.scale)?;
                    put(step.output, None)?;
                }
                Kind::Scan { datatype, reduction, carry: carry.is_some(), before, inclusive }
            }
            Piece::Copy { source, destinations } => {
                put(source, None)?;
                destinations.iter().try_for_each(|destination| put(*destination, None))?;
                Kind::Copy
            }
            Piece::Swap { a, b } => {
                put(a, None)?;
                put(b, None)?;
                Kind::Swap
            }
        };
        Some((kind, buffers.first()?.length))
    }

    /// Whether a rank or the memory behind the board did what no honest one does.
    fn is_spoiled(&self) -> bool {
        self.offers.is_tampered_with() || self.mapping.faulted() || self.scratch.faulted()
    }

    fn forget(&mut self, key: u64) {
        let found = self.kept.iter_mut().find(|kept| kept.number.map(u64::from) == Some(key));
        if let Some(kept) = found {
            kept.number = None;
        }
    }
}

/// Operands and bytes of a piece, whether or not it is offered.
fn size(piece: &Piece<'_>) -> (usize, u64) {
    let (count, buffer) = match *piece {
        Piece::Reduce { sources, destinations, .. } => {
            (sources.len().saturating_add(destinations.len()), destinations.first().copied())
        }
        Piece::Scan { carry, steps, .. } => {
            let count = steps.len().saturating_mul(2).saturating_add(usize::from(carry.is_some()));
            (count, steps.first().map(|step| step.output))
        }
        Piece::Copy { source, destinations } => (destinations.len().saturating_add(1), Some(source)),
        Piece::Swap { a, .. } => (2, Some(a)),
    };
    (count, buffer.map_or(0, |buffer| buffer.length).saturating_mul(count as u64))
}

impl Boards {
    pub(super) fn add(&mut self, board: GroupBoard) {
        self.boards.insert(board.id, board);
    }

    /// Lets go of a communicator's board; gives the scratch memory that it had.
    pub(super) fn remove(&mut self, id: CommunicatorId) -> Option<ScratchRegion> {
        let board = self.boards.remove(&id)?;
        self.away = self.away.saturating_sub(board.offers.count() as usize);
        Some(board.region)
    }

    pub(super) fn get(&self, id: CommunicatorId) -> Option<&GroupBoard> {
        self.boards.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: CommunicatorId) -> Option<&mut GroupBoard> {
        self.boards.get_mut(&id)
    }

    /// What ranks have done, for all communicators that there have been.
    pub(super) const fn done(&self) -> Done {
        self.done
    }

    /// A process has ended: it writes nowhere any more.
    pub(super) fn exited(&mut self, session: SessionKey) {
        for board in self.boards.values_mut() {
            for (local, seat) in (0..).zip(&board.seats) {
                if seat.is_some_and(|seat| seat.session == session) {
                    board.offers.set_exited(local);
                }
            }
        }
    }

    /// A rank never got its rings: there is no process that could be at a piece.
    pub(super) fn never_came(&mut self, id: CommunicatorId, local: LocalRank) {
        if let Some(board) = self.boards.get_mut(&id) {
            board.offers.set_exited(local.0);
        }
    }

    /// A session has released a region: ranks that have mapped it forget it.
    pub(super) fn released(&mut self, session: SessionKey) {
        let boards = self.boards.values_mut();
        boards
            .filter(|board| board.rank_of(session).is_some())
            .for_each(|board| board.offers.count_release());
    }

    /// A communicator whose board was found to be spoiled; each is told once.
    pub(super) fn take_spoiled(&mut self) -> Option<GroupKey> {
        self.spoiled.take()
    }

    /// Whether ranks have done pieces that were not collected.
    pub(super) fn is_ready(&self) -> bool {
        self.away > 0 && self.boards.values().any(|board| board.offers.is_ready())
    }

    /// Offers a piece to ranks that wait; whether it is on the board now.
    pub(super) fn offer(&mut self, ticket: Ticket, piece: &Piece<'_>, regions: &Regions) -> bool {
        let Self { boards, operands, buffers, cpus, .. } = self;
        let Some(board) = boards.get_mut(&ticket.communicator) else { return false };
        let (count, bytes) = size(piece);
        if bytes < OFFER_LEAST || count > OPERANDS_MAX || board.closed {
            return false;
        }
        // With no CPU left for this thread a rank would do nothing sooner, and might be taken off its CPU with a piece in
        // hand for which all wait.
        let company = board.offers.company();
        if company == 0 || company >= u64::from(*cpus) {
            return false;
        }
        operands.clear();
        buffers.clear();
        let Some((kind, length)) = board.describe(piece, regions, operands, buffers) else { return false };
        let Some(kept) = board.kept.iter_mut().find(|kept| kept.number.is_none()) else { return false };
        if !board.offers.offer(u64::from(ticket.number), &Work { kind, length, operands }) {
            return false;
        }
        (kept.number, kept.kind, kept.length) = (Some(ticket.number), kind, length);
        core::mem::swap(&mut kept.operands, operands);
        core::mem::swap(&mut kept.buffers, buffers);
        self.away = self.away.saturating_add(1);
        true
    }

    /// Takes note of what ranks have done, and does some of what nobody has claimed.
    pub(super) fn collect(&mut self, bytes_max: u64, done: &mut [Collected], regions: &Regions) -> usize {
        if self.away == 0 {
            return 0;
        }
        let mut count: usize = 0;
        for board in self.boards.values_mut() {
            while let Some(place) = done.get_mut(count)
                && let Some(key) = board.offers.collect()
            {
                let bytes = board.bytes_of(key);
                board.forget(key);
                board.done.count(bytes);
                self.done.count(bytes);
                *place = Collected { ticket: board.ticket(key), touched: 0 };
                count = count.saturating_add(1);
            }
            if board.is_spoiled() && !board.closed {
                self.spoiled = Some(board.group);
            }
        }
        self.away = self.away.saturating_sub(count);
        count.saturating_add(self.do_unclaimed(bytes_max, done.get_mut(count..).unwrap_or_default(), regions))
    }

    /// Does pieces that nobody has claimed, until about so many bytes were touched.
    fn do_unclaimed(&mut self, bytes_max: u64, done: &mut [Collected], regions: &Regions) -> usize {
        let Self { boards, executor, windows, away, .. } = self;
        let (mut touched, mut count): (u64, usize) = (0, 0);
        for board in boards.values_mut().filter(|board| board.offers.count() > 0) {
            while touched < bytes_max
                && let Some(place) = done.get_mut(count)
                && let Some(key) = board.offers.take()
            {
                let bytes = board.run(key, executor, windows, regions);
                board.forget(key);
                *place = Collected { ticket: board.ticket(key), touched: bytes };
                touched = touched.saturating_add(bytes);
                (count, *away) = (count.saturating_add(1), away.saturating_sub(1));
            }
        }
        count
    }

    /// Takes a piece back: its communicator has failed. Whether nobody is at it.
    pub(super) fn withdraw(&mut self, ticket: Ticket) -> bool {
        let Some(board) = self.boards.get_mut(&ticket.communicator) else { return true };
        board.close();
        let before = board.offers.count();
        let gone = board.offers.withdraw(u64::from(ticket.number));
        if board.offers.count() < before {
            self.away = self.away.saturating_sub(1);
            board.forget(u64::from(ticket.number));
        }
        gone
    }

    /// The rank that is at a piece.
    pub(super) fn holder(&self, ticket: Ticket) -> Option<LocalRank> {
        let board = self.boards.get(&ticket.communicator)?;
        board.offers.holder(u64::from(ticket.number)).map(LocalRank)
    }
}

impl GroupBoard {
    /// The communicator has failed: nobody begins anything more.
    pub(super) fn close(&mut self) {
        if !core::mem::replace(&mut self.closed, true) {
            self.offers.close();
        }
    }

    fn ticket(&self, key: u64) -> Ticket {
        // Keys are tickets' numbers.
        Ticket { communicator: self.id, number: u32::try_from(key).unwrap_or(u32::MAX) }
    }

    fn find(&self, key: u64) -> Option<&Kept> {
        self.kept.iter().find(|kept| kept.number.map(u64::from) == Some(key))
    }

    fn bytes_of(&self, key: u64) -> u64 {
        self.find(key).map_or(0, |kept| kept.length.saturating_mul(kept.operands.len() as u64))
    }

    /// Does a piece; gives the bytes that were touched.
    fn run(
        &self,
        key: u64,
        executor: &mut Executor,
        spare: &mut Vec<Window<'static>>,
        regions: &Regions,
    ) -> u64 {
        let Some(kept) = self.find(key) else { return 0 };
        let mut windows: Vec<Window<'_>> = core::mem::take(spare);
        windows.extend(kept.buffers.iter().filter_map(|buffer| regions.window(*buffer)));
        // Memory that has gone makes the whole piece pointless: its communicator is failing.
        if windows.len() == kept.buffers.len() {
            let done = executor.run(kept.kind, &kept.operands, &windows);
            debug_assert!(done, "{:?} of {} operands", kept.kind, kept.operands.len());
        }
        *spare = recycle(windows);
        self.bytes_of(key)
    }
}
