//! What a rank does for the daemon while it waits for an operation over several nodes: pieces of the local work, which
//! the daemon offers on a board in memory that it shares with its ranks.

use std::{os::fd::OwnedFd, sync::Arc};

use ringway_abi::control::BoardOffer;
use ringway_cell::{
    Place, Regions,
    board::{Board, Helped, SCRATCH, Worker, board_bytes},
};
use ringway_mem::{Mapping, Window, admit};

use crate::{Client, JoinError, RequestError, cell::Peers};

/// One rank's part in a board.
#[derive(Debug)]
pub(crate) struct Helping {
    worker: Worker,
    memory: Reach,
    client: Client,
    /// The daemon's number for the communicator.
    number: u32,
    /// Regions of the ranks that were released when it was last looked.
    releases: u64,
    present: bool,
}

/// What this rank can reach: regions of the node's ranks, its own among them, and the operations' scratch memory.
#[derive(Debug)]
struct Reach {
    regions: Peers,
    scratch: Mapping,
}

impl Regions for Reach {
    fn window(&self, rank: u32, place: Place, length: u64) -> Option<Window<'_>> {
        if place.region == SCRATCH {
            return self.scratch.window(place.offset, length);
        }
        self.regions.window(rank, place, length)
    }
}

/// A rank's place in its communicator.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seat {
    /// The daemon's number for the communicator.
    pub(crate) number: u32,
    /// The rank's place among those of its node.
    pub(crate) local: u32,
    /// Ranks in all.
    pub(crate) size: u32,
}

impl Helping {
    /// Attaches to the files that came with a communicator's rings.
    pub(crate) fn attach(
        client: Client,
        seat: Seat,
        offer: BoardOffer,
        [board, scratch]: [&OwnedFd; 2],
    ) -> Result<Self, JoinError> {
        let unusable = |reason: &dyn core::fmt::Display| JoinError::Rings { reason: reason.to_string() };
        let another = || JoinError::Request(RequestError::Protocol { what: "a board of another size" });
        if offer.bytes != board_bytes() {
            return Err(another());
        }
        let map = |file: &OwnedFd, bytes: u64| {
            let length = usize::try_from(bytes).map_err(|_| another())?;
            let mapping = admit::map_client_written(std::os::fd::AsFd::as_fd(file), length);
            mapping.map_err(|e| unusable(&e))
        };
        let board = Arc::new(map(board, offer.bytes)?);
        let scratch = map(scratch, offer.scratch_bytes)?;
        // Page faults in the middle of work cost more than all of them now; without, it works as well.
        let _ = (board.populate(), scratch.populate());
        let board = Board::attach(board).map_err(|e| unusable(&e))?;
        Ok(Self {
            worker: Worker::new(board, seat.local),
            memory: Reach { regions: Peers::new(seat.size), scratch },
            client,
            number: seat.number,
            releases: 0,
            present: false,
        })
    }

    /// Says that this rank waits and looks for work from now on, or no more.
    pub(crate) fn set_present(&mut self, present: bool) {
        if core::mem::replace(&mut self.present, present) != present {
            self.worker.set_present(present);
            self.memory.regions.ask_again();
        }
    }

    /// Does one piece, if there is one; whether it did.
    pub(crate) fn work(&mut self) -> bool {
        if !self.present {
            return false;
        }
        let releases = self.worker.releases();
        if releases != self.releases {
            self.releases = releases;
            self.memory.regions.forget_all();
        }
        match self.worker.work(&self.memory) {
            Helped::Nothing => false,
            Helped::Did { .. } => true,
            Helped::Unmapped { rank, region } => {
                self.memory.regions.map(&self.client, self.number, rank, region);
                false
            }
        }
    }
}
