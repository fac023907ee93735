//! A place in a communicator: joining, what is known about the other ranks, leaving.

use core::{
    cell::{Cell, RefCell},
    fmt,
    time::Duration,
};
use std::{os::fd::AsFd as _, sync::Arc};

use ringway_abi::{
    MAX_RANKS, UniqueId,
    control::{Join, Joined, Reply, Request},
};
use ringway_cuda::Gpu;
use ringway_mem::admit;
use ringway_ring::Geometry;

use crate::{
    Client, Environment, Error, JoinError, RequestError,
    cell::{Calls, Part},
    control::Answer,
    cuda::Words,
    helping::{Helping, Seat},
    queue::Queue,
    rings::Rings,
    staging::Staging,
    wait::Waiting,
};

/// Submissions a ring holds unless said otherwise.
const RING_SIZE: u32 = 256;
/// How much later than the join timeout the daemon may report it.
const GRACE: Duration = Duration::from_secs(15);

/// Joins a communicator; made by [`Client::communicator`].
#[derive(Debug, Clone)]
#[must_use]
pub struct CommunicatorBuilder {
    client: Client,
    id: UniqueId,
    rank: u32,
    size: u32,
    ring_size: u32,
    timeout: Duration,
    join_timeout: Duration,
    share: bool,
    algorithm: String,
    gpu: Option<Arc<Gpu>>,
}

impl CommunicatorBuilder {
    pub(crate) fn new(client: Client, id: UniqueId, rank: u32, size: u32) -> Self {
        let session = client.session();
        let (timeout, join_timeout, share) = (session.timeout, session.join_timeout, session.share);
        let algorithm = session.algorithm.clone();
        let ring_size = RING_SIZE;
        Self { client, id, rank, size, ring_size, timeout, join_timeout, share, algorithm, gpu: None }
    }

    /// How long an operation may take, to the millisecond; zero for no limit. One that takes longer fails on every rank,
    /// naming the ranks that have not called it.
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How long the other ranks may take to join.
    pub const fn join_timeout(mut self, timeout: Duration) -> Self {
        self.join_timeout = timeout;
        self
    }

    /// How many submissions the ring holds, and so how many operations a group may have; rounded up to a power of two.
    pub const fn ring_size(mut self, submissions: u32) -> Self {
        self.ring_size = submissions;
        self
    }

    /// Whether to share memory also with ranks of other users, or in other containers (user, PID or mount namespaces):
    /// they can then read and write what this rank registers and uses in the communicator. When all ranks of a node do,
    /// their collectives run as those of one user's ranks do, without the daemon in between. Otherwise `RINGWAY_SHARE=1`
    /// says so, else memory is shared among ranks of one user in the same namespaces only.
    pub const fn share_memory(mut self, share: bool) -> Self {
        self.share = share;
        self
    }

    /// The algorithm to use where it can be used, between nodes: a name such as `ring`; one for an operation, as in
    /// `allreduce=ring`; several of these with commas between them; or `auto`, which leaves it to the daemon of the node that
    /// the communicator's id names. Ranks that ask for any must ask for the same. Otherwise `RINGWAY_ALGORITHM` says so.
    pub fn algorithm(mut self, algorithm: impl Into<String>) -> Self {
        self.algorithm = algorithm.into();
        self
    }

    /// Joins with a GPU, for operations in the order of its streams ([`Communicator::on`]). When one rank does, none of the
    /// communicator's operations run in memory that ranks share: the daemon does them all, on whichever memory they are.
    pub fn gpu(mut self, gpu: &Arc<Gpu>) -> Self {
        self.gpu = Some(Arc::clone(gpu));
        self
    }

    /// Joins; returns when every rank has.
    ///
    /// # Errors
    /// [`JoinError`], which names the ranks that did not come, or what the ranks disagree about.
    pub fn join(self) -> Result<Communicator, JoinError> {
        let Self { rank, size, .. } = self;
        if size == 0 || size > MAX_RANKS {
            return Err(JoinError::Size { size, max: MAX_RANKS });
        }
        if rank >= size {
            return Err(JoinError::Rank { rank, size });
        }
        let words = self.gpu.as_ref().map(|gpu| Words::new(&self.client, gpu)).transpose()?;
        let request = Request::Join(Join {
            id: self.id,
            rank,
            size,
            submissions: self.ring_size.max(1).checked_next_power_of_two().unwrap_or(1 << 31),
            join_timeout_ms: milliseconds(self.join_timeout),
            operation_timeout_ms: milliseconds(self.timeout),
            share: self.share,
            algorithm: self.algorithm.clone(),
            stream_words: words.as_ref().map(Words::place),
        });
        let patience = self.join_timeout.saturating_add(GRACE);
        let Answer { reply, descriptors } = self.client.session().control.request(request, &[], patience)?;
        let Reply::Joined(joined) = reply else {
            return Err(protocol("no rings where a join was asked for"));
        };
        if joined.node_of.len() != size as usize {
            return Err(protocol("a communicator with another number of ranks"));
        }
        let rings = self.attach(&joined, &descriptors)?;
        let cell = self.attach_cell(&joined, &descriptors)?;
        let helping = self.attach_board(&joined, &descriptors)?;
        let queue = Queue::new(rings, helping);
        let queue = if words.is_some() { queue.with_streams() } else { queue };
        Ok(self.finish(joined, queue, (cell, words)))
    }

    /// The board, where waiting ranks help the daemon.
    fn attach_board(
        &self,
        joined: &Joined,
        descriptors: &[std::os::fd::OwnedFd],
    ) -> Result<Option<Helping>, JoinError> {
        let Some(offer) = joined.board else { return Ok(None) };
        let [_, _, board, scratch, ..] = descriptors else { return Err(protocol("no files with a board")) };
        let (before, own) = joined.node_of.split_at(self.rank as usize);
        let local = before.iter().filter(|node| own.first() == Some(node)).count() as u32;
        let seat = Seat { number: joined.communicator, local, size: self.size };
        Helping::attach(self.client.clone(), seat, offer, [board, scratch]).map(Some)
    }

    /// The cell, where the ranks share one.
    fn attach_cell(
        &self,
        joined: &Joined,
        descriptors: &[std::os::fd::OwnedFd],
    ) -> Result<Option<ringway_cell::Cell>, JoinError> {
        let unusable = |reason: &dyn fmt::Display| JoinError::Rings { reason: reason.to_string() };
        let Some(offer) = joined.cell else { return Ok(None) };
        let [_, _, file, ..] = descriptors else { return Err(protocol("no file with a cell")) };
        if offer.ranks != self.size || Some(offer.bytes) != ringway_cell::bytes(offer.ranks) {
            return Err(protocol("a cell of another size"));
        }
        let length = usize::try_from(offer.bytes).map_err(|_| protocol("a cell of another size"))?;
        let mapping = admit::map_client_written(file.as_fd(), length).map_err(|e| unusable(&e))?;
        // Page faults in the middle of a call cost more than all of them now; without, it works as well.
        let _ = mapping.populate();
        ringway_cell::Cell::attach(Arc::new(mapping), offer.ranks).map(Some).map_err(|e| unusable(&e))
    }

    fn attach(&self, joined: &Joined, descriptors: &[std::os::fd::OwnedFd]) -> Result<Rings, JoinError> {
        let unusable = |reason: &dyn fmt::Display| JoinError::Rings { reason: reason.to_string() };
        let [ours, daemons, ..] = descriptors else { return Err(protocol("not two ring files")) };
        let (submissions, completions, slab) = joined.geometry;
        let geometry = Geometry::new(submissions, completions, slab).map_err(|e| unusable(&e))?;
        let ours =
            admit::map_client_written(ours.as_fd(), geometry.client_bytes()).map_err(|e| unusable(&e))?;
        let daemons =
            admit::map_daemon_written(daemons.as_fd(), geometry.daemon_bytes()).map_err(|e| unusable(&e))?;
        Rings::attach(self.client.clone(), &Arc::new(ours), &Arc::new(daemons), geometry)
            .map_err(|e| unusable(&e))
    }

    fn finish(
        self,
        joined: Joined,
        queue: Queue,
        (cell, words): (Option<ringway_cell::Cell>, Option<Words>),
    ) -> Communicator {
        let Joined { communicator: number, geometry: _, node_of, device, cell: offer, board: _ } = joined;
        let own = node_of.get(self.rank as usize);
        let neighbours = node_of.iter().filter(|node| Some(*node) == own).count();
        let neighbours = u32::try_from(neighbours).unwrap_or(u32::MAX);
        let nodes = node_of.iter().max().map_or(1, |last| last.saturating_add(1));
        let part = Part {
            client: self.client.clone(),
            rank: self.rank,
            number,
            timeout: self.timeout,
            late_after: Duration::from_millis(offer.map_or(0, |offer| u64::from(offer.late_after_ms))),
        };
        let calls = cell.map(|cell| RefCell::new(Calls::new(cell, part, queue.group_max())));
        Communicator {
            number,
            id: self.id,
            rank: self.rank,
            size: self.size,
            nodes,
            node_of,
            device,
            timeout: self.timeout,
            join_timeout: self.join_timeout,
            ring_size: self.ring_size,
            // The daemon polls as well.
            waiting: Waiting::among(neighbours.saturating_add(1)),
            queue: RefCell::new(queue),
            calls,
            words,
            blocks: Cell::new(false),
            share: self.share,
            algorithm: self.algorithm,
            staging: Staging::default(),
            scratch: RefCell::default(),
            splits: Cell::new(0),
            tests: Cell::new(0),
            client: self.client,
        }
    }
}

const fn protocol(what: &'static str) -> JoinError {
    JoinError::Request(RequestError::Protocol { what })
}

fn milliseconds(time: Duration) -> u32 {
    // Less than a millisecond must not become none, which means no limit.
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX).max(u32::from(!time.is_zero()))
}

/// One rank's place in a communicator. It can move to another thread but not be shared by two: its rings have one
/// writer. Dropping it leaves the communicator.
///
/// Every operation exists in a non-blocking form that takes buffers of an [`crate::Arena`] by value and gives a
/// [`crate::Pending`], whose [`crate::Pending::wait`] gives them back: nothing is copied, and nobody can touch memory
/// that is being read or written. [`Communicator::blocking`] has forms that work on ordinary slices, at the price of a
/// copy each way.
///
/// All ranks make the same collective calls in the same order. Different communicators do not wait for each other.
///
/// Where all ranks are on one node and trust each other (see the crate's documentation), collectives run in memory they
/// share and whoever waits does the work; [`Communicator::run`] submits and waits in one, which is fastest.
pub struct Communicator {
    pub(crate) client: Client,
    /// Operations that the daemon does: messages, and collectives where there is no cell.
    pub(crate) queue: RefCell<Queue>,
    /// Collectives in the cell, where there is one.
    pub(crate) calls: Option<RefCell<Calls>>,
    /// What orders operations with streams, where it was joined with a GPU.
    pub(crate) words: Option<Words>,
    /// The next call is waited for at once.
    pub(crate) blocks: Cell<bool>,
    pub(crate) share: bool,
    /// The algorithms that it was made with.
    pub(crate) algorithm: String,
    pub(crate) waiting: Waiting,
    pub(crate) staging: Staging,
    /// Counts of a call in one list.
    pub(crate) scratch: RefCell<Vec<u64>>,
    /// The daemon's number for it.
    pub(crate) number: u32,
    pub(crate) timeout: Duration,
    pub(crate) join_timeout: Duration,
    pub(crate) ring_size: u32,
    pub(crate) id: UniqueId,
    /// How often it was split.
    pub(crate) splits: Cell<u64>,
    /// How often a pending operation was tested in vain.
    pub(crate) tests: Cell<u32>,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    nodes: u32,
    node_of: Vec<u32>,
    device: String,
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator")
            .field("rank", &self.rank)
            .field("size", &self.size)
            .field("nodes", &self.nodes)
            .finish_non_exhaustive()
    }
}

impl Communicator {
    /// Joins the communicator of all ranks that a launcher started: `ringway run`, torchrun, mpirun or srun, see
    /// [`Environment`]. Once per process: for more communicators, [`Communicator::split`] it.
    ///
    /// # Errors
    /// [`Error::Environment`] or [`Error::Join`].
    pub fn from_env(client: &Client) -> Result<Self, Error> {
        let Environment { rank, size, id, .. } = Environment::detect()?;
        Ok(client.communicator(&id, rank, size).join()?)
    }

    /// This rank.
    #[must_use]
    pub const fn rank(&self) -> u32 {
        self.rank
    }

    /// How many ranks there are.
    #[must_use]
    pub const fn size(&self) -> u32 {
        self.size
    }

    /// How many nodes they are on.
    #[must_use]
    pub const fn nodes(&self) -> u32 {
        self.nodes
    }

    /// The number of a rank's node, counted from 0; `None` when there is no such rank.
    #[must_use]
    pub fn node_of(&self, rank: u32) -> Option<u32> {
        self.node_of.get(rank as usize).copied()
    }

    /// The device used between nodes; empty when all ranks are on one.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Whether its collectives go through memory that its ranks share, without the daemon in between: they are all on
    /// one node and of one user, or agreed to it ([`CommunicatorBuilder::share_memory`]), and the daemon's `isolation`
    /// allows it.
    #[must_use]
    pub const fn shares_memory(&self) -> bool {
        self.calls.is_some()
    }

    /// The client it belongs to.
    #[must_use]
    pub const fn client(&self) -> &Client {
        &self.client
    }

    /// The most operations of a [`Communicator::group`].
    #[must_use]
    pub fn group_max(&self) -> usize {
        self.queue.borrow().group_max()
    }

    /// Fails the communicator's operations on every rank, those under way and those to come.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn abort(&self) -> Result<(), RequestError> {
        self.client.request(Request::Abort { communicator: self.number }).map(drop)
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.words.is_some() {
            self.await_streams();
        }
        // Waits for the daemon, so that whoever joins next finds the place free.
        self.client.give_up(Request::Leave { communicator: self.number });
    }
}
