//! The contract every device implements: reliable-connection queue pairs, work requests, completions and
//! access-checked memory keys, with the meaning the InfiniBand Architecture Specification (volume 1, chapters 9
//! to 11) gives them.
//!
//! A device never calls back, and blocks in [`Device::block`] only. It fills slices the caller owns, works only inside its methods, and
//! does a bounded amount of work in each. Addresses are offsets from the start of a registered region.
//!
//! Rules every device keeps, checked by the conformance suite in `ringway-sim`:
//! - completions of one queue pair's send queue come in post order, those of its receive queue likewise;
//! - a message's bytes are in place before its receive completion (or that of a later message) is seen;
//! - a signalled completion implies that every earlier send-queue request of that queue pair is done; an unsignalled
//!   request completes only when it fails;
//! - after the first failure every outstanding and later request of that queue pair completes with
//!   [`Status::Flushed`], in order;
//! - a SEND or WRITE_WITH_IMM that arrives when no receive is posted waits (the sender is held back), it is not lost.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod completions;
mod deadline;
mod error;
mod request;

pub use completions::{Completions, Untaken};
pub use deadline::Deadline;
pub use error::{ConnectError, PostError, QueuePairError, RegisterError};
pub use request::{
    Access, Completion, CompletionKind, LocalKey, LocalSlice, MAX_SEGMENTS, MemoryKeys, Operation,
    ReceiveRequest, RemoteKey, RemoteSlice, Status, WorkRequest,
};

/// Names a queue pair on its device, which gives numbers of [`QueuePairNumber::BITS`] bits: whoever has several devices tells
/// them apart by the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueuePairNumber(pub u32);

impl QueuePairNumber {
    /// Bits of the numbers that a device gives.
    pub const BITS: u32 = 27;
}

/// Where a queue pair is in its life (IBA volume 1, 10.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueuePairState {
    /// Made; receives may be posted.
    Init,
    /// [`Device::connect`] was called and the other side has not answered yet. Sends may be posted and wait.
    Connecting,
    /// Connected both ways ("ready to send").
    Ready,
    /// [`Device::drain`] was called: what had begun ends, nothing else begins, and receiving goes on.
    Draining,
    /// The same, and what had begun has ended.
    Drained,
    /// Failed or moved there by [`Device::fail_queue_pair`]: everything is flushed.
    Error,
}

/// What a queue pair needs room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePairConfig {
    /// Send-queue requests that may be outstanding.
    pub send_depth: u32,
    /// Receives that may be posted.
    pub receive_depth: u32,
}

/// The most bytes of messages that packets can carry through the ports of a connection's ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketBytes {
    /// Through this end's.
    pub own: usize,
    /// Through the peer's, as it says.
    pub peer: usize,
}

/// A part of a dma-buf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DmaBuf {
    /// An open descriptor of it, which is used during the call only.
    pub descriptor: i32,
    /// Bytes from its start: a multiple of the page size.
    pub offset: u64,
    /// Bytes, one at least.
    pub length: u64,
}

/// Why a queue pair failed, and so which node is lost to whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The peer, or what lies between: what is said of it after "it is lost:".
    Peer(&'static str),
    /// This node's device is broken, or was removed.
    DeviceLost,
    /// This node's device says that the queue pair has failed.
    QueuePairFatal,
}

/// What a peer must know to connect to a queue pair. Opaque bytes, meaningful to the same kind of device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    bytes: [u8; Self::CAPACITY],
    length: u8,
}

impl Endpoint {
    /// The most bytes an endpoint may have.
    pub const CAPACITY: usize = 96;

    /// An endpoint of no bytes, which no device takes for its own.
    pub const EMPTY: Self = Self { bytes: [0; Self::CAPACITY], length: 0 };

    /// Wraps the device's bytes; `None` when there are more than [`Endpoint::CAPACITY`].
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut endpoint = Self { bytes: [0; Self::CAPACITY], length: u8::try_from(bytes.len()).ok()? };
        endpoint.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(endpoint)
    }

    /// The device's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.length)).unwrap_or_default()
    }
}

/// Which end of a connection takes the first step, for devices where someone has to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Opens the connection.
    Active,
    /// Waits for it.
    Passive,
}

/// What a device can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The device's kind: `tcp`, `roce-udp`, `sim`, ...
    pub name: &'static str,
    /// FETCH_ADD and COMPARE_SWAP are offered.
    pub atomics: bool,
    /// [`Device::drain`] and [`Device::resume`] are offered.
    pub draining: bool,
    /// The largest message, in bytes.
    pub max_message: u64,
    /// The most queue pairs.
    pub max_queue_pairs: u32,
}

impl Capabilities {
    /// Capabilities of a device of this kind without the optional features.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self { name, atomics: false, draining: false, max_message: 1 << 30, max_queue_pairs: 4096 }
    }
}

/// Time as the caller's clock counts it: nanoseconds since an arbitrary start, never going back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

/// A device: the only thing between the engine and the network.
pub trait Device: core::fmt::Debug {
    /// Memory this device can be given, which it keeps alive as long as it is registered.
    type Region;

    /// What this device can do.
    fn capabilities(&self) -> Capabilities;

    /// Hands over what the device has counted since it was made, each count with a name of lower-case words joined by
    /// underscores, always the same ones in the same order. May look at every queue pair: it is for people who ask.
    fn for_each_counter(&self, _each: &mut dyn FnMut(&'static str, u64)) {}

    /// Makes a region known; local keys name it in requests posted here, remote keys in requests a peer posts. Where devices are
    /// several in one, peers need [`Device::remote_key`].
    ///
    /// # Errors
    /// When the table is full or the access is refused.
    fn register(&mut self, region: Self::Region, access: Access) -> Result<MemoryKeys, RegisterError>;

    /// Makes memory known that no process need have mapped, as that of a GPU: a part of a dma-buf. Its requests are like others,
    /// with offsets from the part's start; the memory stays as long as it is registered, whatever becomes of the descriptor.
    ///
    /// # Errors
    /// As [`Device::register`], and [`RegisterError::Unsupported`] from devices that cannot reach such memory.
    fn register_dma_buf(&mut self, _part: DmaBuf, _access: Access) -> Result<MemoryKeys, RegisterError> {
        Err(RegisterError::Unsupported)
    }

    /// Forgets a region. Later requests that name it fail.
    ///
    /// # Errors
    /// [`RegisterError::Busy`] while a posted request still uses it; [`RegisterError::UnknownKey`] otherwise.
    fn deregister(&mut self, key: LocalKey) -> Result<(), RegisterError>;

    /// Whether something that was posted still uses a region: then [`Device::deregister`] would refuse.
    fn is_busy(&self, key: LocalKey) -> bool;

    /// The name that requests which come in by this queue pair have for a region; `None` when either is unknown.
    fn remote_key(&self, queue_pair: QueuePairNumber, key: LocalKey) -> Option<RemoteKey>;

    /// Makes a queue pair, in [`QueuePairState::Init`].
    ///
    /// # Errors
    /// When the device has no room.
    fn create_queue_pair(&mut self, config: QueuePairConfig) -> Result<QueuePairNumber, QueuePairError>;

    /// Makes a queue pair that goes over one of several network cards of the same kind, the *rails*, which are counted from 0:
    /// for what is several devices in one. A device that is alone has no choice.
    ///
    /// # Errors
    /// As [`Device::create_queue_pair`].
    fn create_queue_pair_on(
        &mut self,
        _rail: u32,
        config: QueuePairConfig,
    ) -> Result<QueuePairNumber, QueuePairError> {
        self.create_queue_pair(config)
    }

    /// The NUMA node that the network card of a queue pair is attached to, where that is known and there are several.
    fn numa_node(&self, _queue_pair: QueuePairNumber) -> Option<u32> {
        None
    }

    /// What the peer needs to connect to this queue pair.
    ///
    /// # Errors
    /// When there is no such queue pair.
    fn endpoint(&self, queue_pair: QueuePairNumber) -> Result<Endpoint, QueuePairError>;

    /// Starts connecting to the peer's queue pair. Both sides call this, one of them with [`Role::Active`]. Success
    /// or failure shows in [`Device::state`], and a failure flushes what was posted. The time that it may take begins with the
    /// next [`Device::poll`].
    ///
    /// # Errors
    /// When the endpoint is not one of this kind of device or the queue pair is not in [`QueuePairState::Init`].
    fn connect(
        &mut self,
        queue_pair: QueuePairNumber,
        peer: &Endpoint,
        role: Role,
    ) -> Result<(), ConnectError>;

    /// How much of messages the packets of a connection carry, by what either end says of its port: bytes, at most the smaller of
    /// the two. `None` before [`Device::connect`], and of devices that leave packets to others.
    fn packet_bytes(&self, _queue_pair: QueuePairNumber) -> Option<PacketBytes> {
        None
    }

    /// Where the queue pair is in its life; `None` when there is no such queue pair.
    fn state(&self, queue_pair: QueuePairNumber) -> Option<QueuePairState>;

    /// Why a queue pair is in [`QueuePairState::Error`], where the device knows more than that the connection broke.
    fn failure(&self, _queue_pair: QueuePairNumber) -> Option<Cause> {
        None
    }

    /// Whether the device is broken, or was removed: all of its queue pairs have failed, and it makes none any more.
    fn is_lost(&self) -> bool {
        false
    }

    /// Has requests wait from now on, those posted earlier included, but for those that have begun ("send queue drain").
    /// [`Device::state`] says when these have ended.
    ///
    /// # Errors
    /// [`QueuePairError::Unsupported`] where [`Capabilities::draining`] says so; [`QueuePairError::WrongState`] when it is not
    /// [`QueuePairState::Ready`].
    fn drain(&mut self, _queue_pair: QueuePairNumber) -> Result<(), QueuePairError> {
        Err(QueuePairError::Unsupported)
    }

    /// Ends what [`Device::drain`] began, whether or not it has come to its end. The next [`Device::flush`] sends what waits.
    ///
    /// # Errors
    /// As [`Device::drain`], for a queue pair that is neither [`QueuePairState::Draining`] nor [`QueuePairState::Drained`].
    fn resume(&mut self, _queue_pair: QueuePairNumber) -> Result<(), QueuePairError> {
        Err(QueuePairError::Unsupported)
    }

    /// Moves the queue pair to [`QueuePairState::Error`]: what is outstanding is flushed by later polls.
    fn fail_queue_pair(&mut self, queue_pair: QueuePairNumber);

    /// Destroys a queue pair. When this returns the device touches no memory on its behalf any more, and no
    /// completion of it will be seen.
    ///
    /// # Errors
    /// [`QueuePairError::Busy`] while something the kernel or hardware still does for it cannot be stopped yet: call
    /// [`Device::fail_queue_pair`], poll, and try again.
    fn destroy_queue_pair(&mut self, queue_pair: QueuePairNumber) -> Result<(), QueuePairError>;

    /// Adds a request to the send queue. It may wait for [`Device::flush`].
    ///
    /// # Errors
    /// [`PostError::Full`] is back-pressure: nothing was posted, try again after completions. The others are the
    /// caller's mistakes.
    fn post_send(&mut self, queue_pair: QueuePairNumber, request: &WorkRequest) -> Result<(), PostError>;

    /// Adds a buffer for one incoming SEND, or for the notice of one WRITE_WITH_IMM.
    ///
    /// # Errors
    /// As [`Device::post_send`].
    fn post_receive(
        &mut self,
        queue_pair: QueuePairNumber,
        request: &ReceiveRequest,
    ) -> Result<(), PostError>;

    /// Rings the doorbells: everything posted so far is on its way.
    fn flush(&mut self);

    /// Makes progress and takes up to `completions.len()` completions; returns how many. Bounded work.
    fn poll(&mut self, now: Time, completions: &mut [Completion]) -> usize;

    /// When [`Device::poll`] must be called again even if nothing arrives.
    fn deadline(&self) -> Option<Time>;

    /// A descriptor that becomes readable when there is something to poll, for a caller that wants to block.
    fn event_descriptor(&self) -> Option<i32>;

    /// Asks for [`Device::event_descriptor`] to become readable on the next event. Returns `false` when there is
    /// something to poll already, so that the caller must not block.
    fn arm(&mut self) -> bool;

    /// Blocks until there is something to poll or the time is over, for a caller that waits for nothing else: where it takes
    /// fewer system calls than [`Device::arm`] and a wait for [`Device::event_descriptor`]. Returns at once when there is
    /// something to poll already, and may return early with nothing to poll. The time must not go beyond
    /// [`Device::deadline`].
    ///
    /// `false`: the device cannot, and has not blocked.
    fn block(&mut self, _timeout: Option<core::time::Duration>) -> bool {
        false
    }
}
