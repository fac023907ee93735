//! Boards: which communicators over several nodes get one, and what it costs.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use ringway_abi::control::BoardOffer;
use ringway_cell::board::{Board, board_bytes};
use ringway_mem::{Mapping, MemFd, Protection};

use super::{Control, groups::Group};
use crate::{
    config::Isolation,
    engine_thread::{BoardMemory, CellCommand, Command},
    membership::GroupKey,
};

/// Scratch memory for each node that a communicator is on: what as many chunks need as are under way at a time.
const SCRATCH_PER_NODE: u64 = 2 << 20;
/// But never more than this: what needs more uses the daemon's own.
const SCRATCH_MAX: u64 = 8 << 20;
/// The most ranks of a node that share a board.
const RANKS_MAX: usize = 128;

/// A fresh board.
#[derive(Debug)]
pub(super) struct MadeBoard {
    board: MemFd,
    scratch: MemFd,
    pub(super) offer: BoardOffer,
}

impl MadeBoard {
    /// Descriptors of the board and of the scratch memory, for a rank.
    pub(super) fn descriptors(&self) -> std::io::Result<[OwnedFd; 2]> {
        Ok([self.board.as_fd().try_clone_to_owned()?, self.scratch.as_fd().try_clone_to_owned()?])
    }
}

impl Control {
    /// The board of a communicator over several nodes whose ranks on this one share memory; `None` where the daemon does
    /// all of the local work. Each rank's user has been charged for its share.
    pub(super) fn make_board(&mut self, key: GroupKey, group: &Group) -> Option<MadeBoard> {
        let ranks = group.local.len();
        if self.config.isolation == Isolation::Strict || group.layout.nodes() < 2 || ranks > RANKS_MAX {
            return None;
        }
        let tickets: Vec<_> = group.local.iter().map(|(_, ticket)| *ticket).collect();
        if tickets.iter().any(|ticket| !self.joins.contains_key(ticket)) || !self.may_share(&tickets) {
            return None;
        }
        let scratch = SCRATCH_PER_NODE.saturating_mul(u64::from(group.layout.nodes())).min(SCRATCH_MAX);
        let bytes = scratch.saturating_add(board_bytes());
        let share = bytes.div_ceil(ranks.max(1) as u64);
        let charged = self.charge_all(&tickets, share).map_err(|(_, message)| message);
        let made = charged.and_then(|()| fresh_board(scratch));
        let (made, memory) = made
            .inspect_err(|reason| {
                tracing::warn!(communicator = key.0, ranks, bytes, "waiting ranks will not help: {reason}");
                self.uncharge_all(&tickets);
            })
            .ok()?;
        self.engine.send(Command::Cell(CellCommand::AddBoard { group: key, memory }));
        Some(made)
    }
}

fn fresh_board(scratch_bytes: u64) -> Result<(MadeBoard, BoardMemory), String> {
    let (board, board_memory) = shared("ringway-board", board_bytes())?;
    let (scratch, scratch_memory) = shared("ringway-scratch", scratch_bytes)?;
    let made = Board::attach(Arc::clone(&board_memory)).map_err(|e| e.to_string())?;
    let memory = BoardMemory { board: made, mapping: board_memory, scratch: scratch_memory };
    let offer = BoardOffer { bytes: board_bytes(), scratch_bytes };
    Ok((MadeBoard { board, scratch, offer }, memory))
}

/// Memory that ranks write as well: they can punch holes into it, which must not be the daemon's end.
fn shared(name: &str, bytes: u64) -> Result<(MemFd, Arc<Mapping>), String> {
    let (file, populated) = MemFd::region(name, bytes).map_err(|e| e.to_string())?;
    drop(populated);
    let mapping = Mapping::foreign(file.as_fd(), file.length(), Protection::ReadWrite);
    let kept = file.as_fd().try_clone_to_owned().map_err(|e| e.to_string())?;
    Ok((file, Arc::new(mapping.map_err(|e| e.to_string())?.keep_file(kept))))
}
