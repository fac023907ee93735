//! Requests and replies on the control socket. One SEQPACKET message is one [`Envelope`] in postcard encoding, of at
//! most [`crate::MAX_CONTROL_BYTES`]. Replies may come in any order; each names its request.

use alloc::{string::String, vec::Vec};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use thiserror::Error;

use crate::UniqueId;

/// In place of an operation's token in [`Request::Explain`]: the communicator itself. Operations in a cell have no
/// tokens, and end only with their communicator.
pub const COMMUNICATOR_TOKEN: u32 = u32::MAX;

/// A request or reply with its number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope<T> {
    /// Chosen by the client, repeated in the reply.
    pub number: u32,
    /// The message.
    pub body: T,
}

/// What a client asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Admit the sealed memfd that comes with this message (one descriptor) as a region. Reply: [`Reply::Region`].
    RegisterRegion,
    /// Map memory of a GPU as a region. Without `ipc` it comes as a descriptor with this message, exported by the driver's virtual
    /// memory management, and is all of it. Reply: [`Reply::Region`].
    RegisterGpuRegion {
        /// The GPU's UUID.
        gpu: [u8; 16],
        /// Where it begins in what is shared, in bytes.
        offset: u64,
        /// Its bytes.
        length: u64,
        /// The legacy IPC handle of the allocation that it is in, in two halves.
        ipc: Option<([u8; 32], [u8; 32])>,
    },
    /// Forget a region. Reply: [`Reply::Done`], or a refusal while an operation uses it.
    ReleaseRegion {
        /// The region's handle.
        region: u64,
    },
    /// A fresh id for a communicator whose root is this daemon. Reply: [`Reply::UniqueId`].
    NewUniqueId {
        /// Whether ranks on other nodes will join.
        several_nodes: bool,
    },
    /// Join a communicator. Reply, when every rank has come: [`Reply::Joined`] with two descriptors, the ring memory
    /// written by the client and the ring memory written by the daemon; where [`Joined::cell`] says so the cell's memory
    /// is the third, where
    /// [`Joined::board`] says so the board's memory and the scratch memory are the third and the fourth.
    Join(Join),
    /// Leave a communicator; its rings are gone. Reply: [`Reply::Done`].
    Leave {
        /// From [`Reply::Joined`].
        communicator: u32,
    },
    /// Fail a communicator's operations on every rank. Reply: [`Reply::Done`].
    Abort {
        /// From [`Reply::Joined`].
        communicator: u32,
    },
    /// The sentence behind a failed operation's status. Reply: [`Reply::Text`], for a communicator [`Reply::Failure`].
    Explain {
        /// From [`Reply::Joined`].
        communicator: u32,
        /// The token of the operation; [`COMMUNICATOR_TOKEN`] for why the communicator failed.
        token: u32,
    },
    /// The daemon's state. Reply: [`Reply::Done`] with one descriptor, a memfd holding JSON text.
    Status,
    /// Whether a region of this many bytes could be registered now, so that nobody pays for memory that would be refused.
    /// Reply: [`Reply::Done`], or a refusal that names the limit.
    MayRegister {
        /// The region's bytes.
        bytes: u64,
    },
    /// A region of a rank, to be mapped: it and the asker are on one node, in a communicator with a cell or board. Reply:
    /// [`Reply::Region`] with one descriptor, the region's memory file.
    MapRegion {
        /// From [`Reply::Joined`].
        communicator: u32,
        /// Whose region.
        rank: u32,
        /// The region's handle, as that rank published it.
        region: u64,
    },
    /// This rank cannot go on with a collective in its communicator's cell: a record contradicts its own, a rank that is
    /// needed has left, or it has waited for so long. The daemon looks for itself; what it finds fails the communicator
    /// or is written to the log. Reply: [`Reply::Done`].
    Inspect {
        /// From [`Reply::Joined`].
        communicator: u32,
        /// Which collective, counted from 1.
        sequence: u64,
        /// For how long it has waited, in milliseconds.
        waited_ms: u64,
    },
}

/// A request to join a communicator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// Which.
    pub id: UniqueId,
    /// As which rank.
    pub rank: u32,
    /// How many ranks it has.
    pub size: u32,
    /// Submissions the ring holds; a power of two.
    pub submissions: u32,
    /// How long to wait for the other ranks, in milliseconds.
    pub join_timeout_ms: u32,
    /// How long an operation may take, in milliseconds; zero for no limit.
    pub operation_timeout_ms: u32,
    /// Share memory with the communicator's other ranks even when they belong to other users or namespaces: any of
    /// them can then read and write what this rank registers and uses in the communicator.
    pub share: bool,
    /// The algorithms that are asked for, as text: a name, or `operation=name`, with commas between several; `auto` for none.
    /// All ranks that ask for any ask for the same.
    pub algorithm: String,
    /// The rank has operations on memory of a GPU, in the order of its streams: the handle of the region, and the byte there,
    /// from which on the words for that are ([`crate::stream`]). Its communicator has no cell then.
    pub stream_words: Option<(u64, u64)>,
}

/// What the daemon answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Done.
    Done,
    /// The region was admitted.
    Region {
        /// Its handle.
        region: u64,
        /// Its bytes.
        length: u64,
    },
    /// A fresh id.
    UniqueId(UniqueId),
    /// The communicator is formed.
    Joined(Joined),
    /// Text for people.
    Text(String),
    /// Refused.
    Refused {
        /// What kind of reason.
        kind: RefusalKind,
        /// What was wrong, what was expected and what to do.
        message: String,
    },
    /// The communicator has failed. One that has not is [`RefusalKind::Unknown`].
    Failure {
        /// What a program acts on: [`crate::Status`].
        status: u16,
        /// What was wrong, with the ranks concerned.
        message: String,
    },
}

/// A communicator that was formed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// Names the communicator in later requests of this session.
    pub communicator: u32,
    /// The rings' geometry: submissions, completions, words of the argument slab.
    pub geometry: (u32, u32, u32),
    /// For each rank, the number of its node.
    pub node_of: Vec<u32>,
    /// The device used between nodes; empty with one node.
    pub device: String,
    /// The cell for collectives without the daemon; `None` when its ranks are on several nodes or do not share memory.
    pub cell: Option<CellOffer>,
    /// The board by which waiting ranks help the daemon; `None` when its ranks are all on one node or do not share
    /// memory.
    pub board: Option<BoardOffer>,
}

/// A communicator's board on this node: the memory files that come as the reply's third descriptor, the board, and its
/// fourth, the scratch memory of the operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoardOffer {
    /// Bytes of the board's file.
    pub bytes: u64,
    /// Bytes of the scratch memory.
    pub scratch_bytes: u64,
}

/// A communicator's cell: the memory file of so many bytes that comes as the reply's third descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellOffer {
    /// Ranks of the communicator, all of which share it.
    pub ranks: u32,
    /// Bytes of the memory file.
    pub bytes: u64,
    /// After so many milliseconds of waiting for a rank the daemon wants to know of it ([`Request::Inspect`]).
    pub late_after_ms: u32,
}

/// What kind of reason a refusal has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RefusalKind {
    /// The request makes no sense.
    Invalid,
    /// A handle is unknown.
    Unknown,
    /// A limit of this client, user or daemon would be exceeded.
    Quota,
    /// The memory offered does not meet the conditions.
    Memory,
    /// Another client already is this rank.
    DuplicateRank,
    /// Ranks disagree about the number of ranks.
    SizeMismatch,
    /// Not every rank came in time.
    JoinTimeout,
    /// The root daemon or a peer daemon cannot be reached.
    Unreachable,
    /// A peer daemon has another cluster key, or none.
    Key,
    /// A peer is not a Ringway daemon, or one of another version.
    Incompatible,
    /// Something is still in use.
    Busy,
    /// A rank was lost while the communicator was being formed.
    RankFailed,
    /// The daemon is shutting down.
    ShuttingDown,
}

/// Why a message could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the control message cannot be read; is the other side the same version of Ringway?")]
pub struct Malformed;

/// The bytes of a message.
///
/// # Errors
/// [`Malformed`] when it is longer than [`crate::MAX_CONTROL_BYTES`].
pub fn encode<T: Serialize>(message: &Envelope<T>) -> Result<Vec<u8>, Malformed> {
    let bytes = postcard::to_allocvec(message).map_err(|_| Malformed)?;
    if bytes.len() > crate::MAX_CONTROL_BYTES { Err(Malformed) } else { Ok(bytes) }
}

/// Reads a message; every byte must belong to it.
///
/// # Errors
/// [`Malformed`] when the bytes are not exactly one message.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<Envelope<T>, Malformed> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        _ => Err(Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip_and_rubbish_is_refused() {
        let message = Envelope { number: 9, body: Request::Abort { communicator: 3 } };
        let mut bytes = encode(&message).expect("encode");
        assert_eq!(decode(&bytes), Ok(message));
        bytes.push(0);
        assert_eq!(decode::<Request>(&bytes), Err(Malformed));
        assert_eq!(decode::<Request>(&[]), Err(Malformed));
        assert_eq!(decode::<Request>(&[0xff; 64]), Err(Malformed));
    }
}
