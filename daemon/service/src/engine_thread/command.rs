//! What the control thread and the engine thread say to each other.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use crossbeam_queue::ArrayQueue;
use ringway_engine::{Failure, RankFailure};
use ringway_group::Width;
use ringway_mem::{Mapping, calls};
use ringway_plan::{Layout, PlanSettings, tuner::Constants};
use ringway_ring::DaemonRings;
use ringway_verbs::Endpoint;
use rustix::event::{EventfdFlags, eventfd};

use super::{
    accelerator::Accelerator, boards::BoardMemory, cells::CellMemory, reason::Reason,
    region_memory::RegionMemory,
};
use crate::{membership::GroupKey, session::SessionKey, status::EngineStatus};

/// Commands and events that may wait in each direction.
const CAPACITY: usize = 1024;

/// Sentences about failed operations that are kept for one session.
pub(crate) const REASONS_KEPT: usize = 64;

/// Why an operation failed: the communicator and token of a session, and the reason.
pub(crate) type Explained = (u32, u32, Reason);

/// What the control thread asks.
#[derive(Debug)]
pub(crate) enum Command {
    /// A client came. Its doorbell wakes the engine thread; reasons for failed operations go into the queue, the
    /// oldest giving way.
    AddSession { session: SessionKey, doorbell: Arc<OwnedFd>, reasons: Arc<ArrayQueue<Explained>> },
    /// A client went. Answered by [`Event::SessionGone`].
    EndSession { session: SessionKey, how: RankFailure },
    /// Admit memory as a region. Answered by [`Event::RegionAdded`].
    AddRegion { session: SessionKey, number: u32, memory: RegionMemory, shared: bool },
    /// There is a GPU that does local work. Comes before the first region in its memory.
    Accelerate(Box<Accelerator>),
    /// Forget a region. Answered by [`Event::RegionRemoved`].
    RemoveRegion { session: SessionKey, number: u32, region: u64 },
    /// Make a communicator's queue pairs. Answered by [`Event::Opened`].
    Open {
        group: GroupKey,
        layout: Layout,
        node: u32,
        protocol: String,
        /// How many queue pairs to each node, over how many rails.
        width: Width,
        /// Measure the links once they stand.
        measure: bool,
        timeout_ms: u32,
        name: u64,
    },
    /// Choose the communicator's plans by these, before its ranks get their rings.
    Plan { group: GroupKey, settings: Box<PlanSettings> },
    /// Connect them. Answered by [`Event::Connected`].
    Connect { group: GroupKey, endpoints: Vec<(u32, Endpoint)> },
    /// A rank's rings.
    Attach(Box<Attach>),
    /// A rank that never got its rings is lost.
    FailRank { group: GroupKey, rank: u32, how: RankFailure },
    /// A rank leaves. Answered by [`Event::Left`].
    Leave { session: SessionKey, number: u32, communicator: u32 },
    /// A rank fails everybody's operations.
    Abort { session: SessionKey, communicator: u32 },
    /// Something about cells.
    Cell(CellCommand),
    /// A communicator that was not formed. Answered by [`Event::GroupClosed`].
    Close { group: GroupKey },
    /// Answered by [`Event::Status`].
    Status { session: SessionKey, number: u32 },
    /// Fail everything, then end the thread.
    Shutdown,
}

/// A rank's place in a communicator and its rings.
#[derive(Debug)]
pub(crate) struct Attach {
    pub(crate) group: GroupKey,
    pub(crate) rank: u32,
    pub(crate) session: SessionKey,
    /// The session's name for it.
    pub(crate) communicator: u32,
    pub(crate) rings: DaemonRings,
    /// The memory that the client writes: it may take pages away.
    pub(crate) client_memory: Arc<Mapping>,
    /// The handle of the region, and the byte there, from which on the words are that order operations with streams.
    pub(crate) stream_words: Option<(u64, u64)>,
}

/// What the control thread asks about cells.
#[derive(Debug)]
pub(crate) enum CellCommand {
    /// A communicator's cell. Comes before the first [`Command::Attach`] of its ranks.
    Add { group: GroupKey, memory: CellMemory },
    /// The board of a communicator over several nodes. Comes before the first [`Command::Attach`] of its ranks.
    AddBoard { group: GroupKey, memory: BoardMemory },
    /// A rank wants to map this region of that rank of the communicator. Answered by [`Event::RegionMapped`].
    MapRegion { session: SessionKey, number: u32, place: (u32, u32, u64) },
    /// A rank cannot go on in its cell. Answered by [`Event::Inspected`].
    Inspect { session: SessionKey, number: u32, inspect: Inspect },
    /// Why has a communicator failed? Answered by [`Event::Explained`].
    Explain { session: SessionKey, number: u32, communicator: u32 },
    /// The process of a session that has ended is gone.
    ProcessExited { session: SessionKey },
}

/// A rank that waits for a collective in its cell.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inspect {
    pub(crate) communicator: u32,
    pub(crate) sequence: u64,
    /// For how long, as it says.
    pub(crate) waited_ms: u64,
}

/// Why a region is not handed out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MapRefusal {
    /// The communicator has no cell, or has failed.
    NoCell,
    /// The rank is not in it.
    Rank { rank: u32 },
    /// The rank has no such region.
    Region { rank: u32, region: u64 },
}

/// Why a region was not admitted or not released.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RegionRefusal {
    /// The handle is unknown.
    Unknown,
    /// An operation uses it.
    Busy,
    /// There is no room for it.
    NoRoom(String),
}

/// What the engine thread answers and reports.
#[derive(Debug)]
pub(crate) enum Event {
    /// The region's handle, or why there is none.
    RegionAdded { session: SessionKey, number: u32, length: u64, result: Result<u64, RegionRefusal> },
    /// The region's bytes, or why it is still there.
    RegionRemoved { session: SessionKey, number: u32, result: Result<u64, RegionRefusal> },
    /// Queue pairs, one for each channel to each peer node, or why there are none.
    Opened { group: GroupKey, result: Result<Vec<(u32, Endpoint)>, String> },
    /// Every queue pair is connected, or why one cannot be.
    Connected { group: GroupKey, result: Result<Option<Constants>, String> },
    /// The rank has left.
    Left { session: SessionKey, number: u32, communicator: u32 },
    /// The communicator is gone on this node.
    GroupClosed { group: GroupKey },
    /// The client broke the protocol of its rings: its session must end.
    Fault { session: SessionKey, what: String },
    /// Nothing of the session is used any more.
    SessionGone { session: SessionKey },
    /// A rank is late.
    Late { group: GroupKey, text: String },
    /// A communicator failed.
    Failed { group: GroupKey, failure: Failure },
    /// A device broke, or was removed.
    DeviceLost { protocol: String },
    /// The region's handle, its bytes and its memory file, or why it is not handed out.
    RegionMapped { session: SessionKey, number: u32, result: Result<(u64, Arc<Mapping>), MapRefusal> },
    /// The daemon has looked.
    Inspected { session: SessionKey, number: u32 },
    /// Why the communicator has failed, if it has.
    Explained { session: SessionKey, number: u32, reason: Option<Reason> },
    /// The state of rings and communicators.
    Status { session: SessionKey, number: u32, status: Box<EngineStatus> },
}

/// One direction's queue and the descriptor that wakes its reader.
#[derive(Debug)]
pub(crate) struct Lane<T> {
    queue: ArrayQueue<T>,
    wake: OwnedFd,
}

impl<T> Lane<T> {
    /// An empty queue.
    pub(crate) fn new() -> rustix::io::Result<Arc<Self>> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self { queue: ArrayQueue::new(CAPACITY), wake }))
    }

    /// Adds to the queue and wakes its reader; gives the value back when the queue is full.
    pub(crate) fn push(&self, value: T) -> Result<(), T> {
        self.queue.push(value)?;
        // It fails only when it is readable already.
        calls::count();
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        Ok(())
    }

    /// Takes the oldest.
    pub(crate) fn pop(&self) -> Option<T> {
        self.queue.pop()
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Makes the descriptor unreadable until the next push.
    pub(crate) fn quiet(&self) {
        calls::count();
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }
}

impl<T> AsFd for Lane<T> {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
