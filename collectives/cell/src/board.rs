//! A board: pieces of a communicator's local work that its ranks on a node may do while they wait.
//!
//! In an operation over several nodes the daemon is the participant: it combines what its ranks have, sends, receives
//! and spreads. The local stages of that are pieces of at most [`PIECE_BYTES`] of each operand. The daemon offers them
//! on the board; ranks that wait claim and do them, and so does the daemon itself. Where the operands are scratch
//! memory, it is memory that the ranks map as well ([`SCRATCH`]).
//!
//! # Trust
//! Who may map a board may map the others' regions: the ranks of a board trust each other. The daemon trusts none of
//! them: it keeps what it offers and reads nothing from the board but each slot's state, whose worst lie makes the
//! communicator's own operation wrong or late, and whether anybody looks at the board. A piece that is claimed is never done again while its claimer may still
//! write: until it says that it is done, or its process has ended.
//!
//! # Layout
//! In words of eight bytes; a line is a cache line:
//! ```text
//! header   offered | present | closed | released      one line each
//! slots    state line, then a description: codes, length, operands of four words
//! ```

mod execute;
mod offers;
mod piece;
mod slots;
mod worker;

use std::sync::Arc;

use ringway_mem::Mapping;

use crate::{AttachError, shared::Words};

pub use execute::Executor;
pub use offers::Offers;
pub use piece::{Kind, Operand, Work};
pub use worker::{Claimed, Found, Helped, Worker};

/// Pieces that may be on a board at a time.
pub const PIECES: usize = if cfg!(loom) { 2 } else { 32 };
/// The most operands of a piece.
pub const OPERANDS_MAX: usize = if cfg!(loom) { 2 } else { 48 };
/// The most bytes of one operand.
pub const PIECE_BYTES: u64 = 64 << 10;
/// In an operand's place: the communicator's scratch memory on this node.
pub const SCRATCH: u64 = u64::MAX - 3;

/// Words of a cache line.
const LINE: usize = 8;
/// Slots that hold something for ranks to do, a bit each. A hint.
const OFFERED: usize = 0;
/// Ranks that wait and look at the board.
const PRESENT: usize = LINE;
/// Not zero when nothing may be claimed any more.
const CLOSED: usize = 2 * LINE;
/// Counts regions of the ranks that were released: what others have mapped of them is to be forgotten.
const RELEASED: usize = 3 * LINE;
const HEADER: usize = 4 * LINE;
/// Words of an operand.
const OPERAND: usize = 4;
/// Words of a slot: the state's line, two words about all operands, the operands.
const SLOT: usize = (LINE + 2 + OPERANDS_MAX * OPERAND).next_multiple_of(LINE);
const WORDS: usize = HEADER + PIECES * SLOT;

/// Bytes of a board's file, whole pages.
#[must_use]
pub const fn board_bytes() -> u64 {
    (WORDS as u64 * 8).next_multiple_of(4096)
}

/// A board as everybody who maps it sees it. Cloning gives the same board.
#[derive(Debug, Clone)]
pub struct Board(Words);

impl Board {
    /// A board in mapped memory of [`board_bytes`] bytes, zeroed when it began.
    ///
    /// # Errors
    /// [`AttachError::Mapping`].
    pub fn attach(mapping: Arc<Mapping>) -> Result<Self, AttachError> {
        let (found, needed) = (mapping.length() as u64, WORDS as u64 * 8);
        Words::new(mapping, WORDS).map(Self).ok_or(AttachError::Mapping { found, needed })
    }
}

#[cfg(all(test, loom))]
#[path = "board/loom_tests.rs"]
mod loom_tests;
#[cfg(all(test, not(loom)))]
#[path = "board/tests.rs"]
mod tests;
