//! What one simulated device holds: regions, queue pairs and completions nobody has taken yet.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use ringway_mem::{Mapping, Protection};
use ringway_verbs::{
    Access, Completion, CompletionKind, LocalKey, LocalSlice, PostError, QueuePairConfig, QueuePairNumber,
    QueuePairState, ReceiveRequest, RemoteKey, RemoteSlice, Role, Status, WorkRequest,
};

/// Remote keys differ from local ones, so that mixing them up shows in tests.
const REMOTE_BIT: u32 = 0x8000_0000;

/// Names a queue pair in the whole network. Numbers are never reused, so a stale name finds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Address {
    pub(crate) node: u32,
    pub(crate) number: u32,
}

/// Registered memory.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) mapping: Arc<Mapping>,
    pub(crate) access: Access,
    /// Posted requests that name it.
    pub(crate) uses: u32,
}

/// A posted send-queue request.
#[derive(Debug)]
pub(crate) struct Send {
    pub(crate) request: WorkRequest,
    /// What the responder said, on its way back.
    pub(crate) answer: Option<Answer>,
}

/// The responder's word on a request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: Status,
    /// Bytes for the requester: READ data or an atomic's old value.
    pub(crate) data: Vec<u8>,
}

/// A queue pair. The send queue's front part has left (`departed`), of that a part has reached the responder
/// (`arrived`), and of that a part was executed there (`executed`) and awaits its answer.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) config: QueuePairConfig,
    pub(crate) state: QueuePairState,
    pub(crate) peer: Option<Address>,
    pub(crate) role: Role,
    /// The event that ends a wait for the peer.
    pub(crate) connect_timer: Option<(u64, u64)>,
    pub(crate) sends: VecDeque<Send>,
    pub(crate) departed: usize,
    pub(crate) arrived: usize,
    pub(crate) executed: usize,
    pub(crate) receives: VecDeque<ReceiveRequest>,
    /// Completions of each queue not yet taken by `poll`; they hold their slots.
    pub(crate) untaken_sends: usize,
    pub(crate) untaken_receives: usize,
    /// Messages of one queue pair never overtake each other, whatever the jitter.
    pub(crate) last_arrival: u64,
    pub(crate) last_answer: u64,
}

impl QueuePair {
    pub(crate) const fn new(config: QueuePairConfig) -> Self {
        Self {
            config,
            state: QueuePairState::Init,
            peer: None,
            role: Role::Passive,
            connect_timer: None,
            sends: VecDeque::new(),
            departed: 0,
            arrived: 0,
            executed: 0,
            receives: VecDeque::new(),
            untaken_sends: 0,
            untaken_receives: 0,
            last_arrival: 0,
            last_answer: 0,
        }
    }

    /// Whether a READ or atomic was executed whose answer is still on its way.
    pub(crate) fn answers_with_data_outstanding(&self) -> bool {
        self.sends
            .iter()
            .take(self.executed)
            .any(|send| send.answer.as_ref().is_some_and(|answer| !answer.data.is_empty()))
    }
}

/// One device's state.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) alive: bool,
    pub(crate) regions: BTreeMap<u32, Region>,
    next_key: u32,
    pub(crate) queue_pairs: BTreeMap<u32, QueuePair>,
    pub(crate) next_number: u32,
    pub(crate) completions: VecDeque<Completion>,
}

impl Node {
    pub(crate) const fn new(index: u32) -> Self {
        // Nodes number their keys and queue pairs differently, so that using one node's on another shows in tests.
        Self {
            alive: true,
            regions: BTreeMap::new(),
            next_key: index.wrapping_mul(0x1_0000).wrapping_add(1),
            queue_pairs: BTreeMap::new(),
            next_number: index.wrapping_mul(0x1000).wrapping_add(1),
            completions: VecDeque::new(),
        }
    }

    pub(crate) fn add_region(&mut self, mapping: Arc<Mapping>, access: Access) -> (LocalKey, RemoteKey) {
        let key = self.next_key & !REMOTE_BIT;
        self.next_key = self.next_key.wrapping_add(1);
        self.regions.insert(key, Region { mapping, access, uses: 0 });
        (LocalKey(key), RemoteKey(key | REMOTE_BIT))
    }

    /// What peers call a region.
    pub(crate) fn remote_key(&self, key: LocalKey) -> Option<RemoteKey> {
        self.regions.get(&key.0).map(|_| RemoteKey(key.0 | REMOTE_BIT))
    }

    /// Checks a segment of a request to be posted.
    pub(crate) fn check_local(&self, slice: &LocalSlice, write: bool) -> Result<(), PostError> {
        if slice.length == 0 {
            return Ok(());
        }
        let region = self.regions.get(&slice.key.0).ok_or(PostError::Memory)?;
        region.mapping.window(slice.offset, slice.length).ok_or(PostError::Memory)?;
        if write && !region.access.local_write {
            return Err(PostError::Memory);
        }
        Ok(())
    }

    /// Counts (or discounts) a request's use of a region.
    pub(crate) fn count_use(&mut self, slice: &LocalSlice, posted: bool) {
        if slice.length == 0 {
            return;
        }
        if let Some(region) = self.regions.get_mut(&slice.key.0) {
            region.uses = if posted { region.uses.saturating_add(1) } else { region.uses.saturating_sub(1) };
        }
    }

    /// The region a peer names, when it may do `allowed` to these bytes.
    pub(crate) fn remote(
        &self,
        remote: RemoteSlice,
        length: u64,
        allowed: impl Fn(Access) -> bool,
    ) -> Option<&Arc<Mapping>> {
        if remote.key.0 & REMOTE_BIT == 0 {
            return None;
        }
        let region = self.regions.get(&(remote.key.0 & !REMOTE_BIT))?;
        region.mapping.window(remote.offset, length)?;
        allowed(region.access).then_some(&region.mapping)
    }

    /// Copies the local segments' bytes to the end of `into`.
    pub(crate) fn gather(&self, segments: &[LocalSlice], into: &mut Vec<u8>) {
        for slice in segments.iter().filter(|slice| slice.length > 0) {
            let Some(region) = self.regions.get(&slice.key.0) else { continue };
            let Some(window) = region.mapping.window(slice.offset, slice.length) else { continue };
            let start = into.len();
            into.resize(start + window.length(), 0);
            if let Some(part) = into.get_mut(start..) {
                window.read(part);
            }
        }
    }

    /// Copies bytes into the local segments, in their order.
    pub(crate) fn scatter(&self, segments: &[LocalSlice], mut from: &[u8]) {
        for slice in segments.iter().filter(|slice| slice.length > 0) {
            let Some(region) = self.regions.get(&slice.key.0) else { continue };
            let Some(window) = region.mapping.window(slice.offset, slice.length) else { continue };
            let taken = window.write(from);
            from = from.get(taken..).unwrap_or_default();
        }
    }

    pub(crate) fn complete_send(&mut self, number: u32, request: &WorkRequest, status: Status) {
        for slice in &request.local {
            self.count_use(slice, false);
        }
        if status == Status::Success && !request.signalled {
            return;
        }
        let Some(queue_pair) = self.queue_pairs.get_mut(&number) else { return };
        queue_pair.untaken_sends += 1;
        self.completions.push_back(Completion {
            id: request.id,
            queue_pair: QueuePairNumber(number),
            status,
            kind: CompletionKind::Send,
            length: request.length(),
            immediate: None,
        });
    }

    pub(crate) fn complete_receive(&mut self, number: u32, receive: &ReceiveRequest, outcome: Received) {
        self.count_use(&receive.local, false);
        let Some(queue_pair) = self.queue_pairs.get_mut(&number) else { return };
        queue_pair.untaken_receives += 1;
        self.completions.push_back(Completion {
            id: receive.id,
            queue_pair: QueuePairNumber(number),
            status: outcome.status,
            kind: outcome.kind,
            length: outcome.length,
            immediate: outcome.immediate,
        });
    }

    /// Moves a queue pair to the error state and completes all it holds: the oldest send-queue request with `first`,
    /// the rest as flushed. Returns the peer, when there is one that has yet to hear of it.
    pub(crate) fn fail(&mut self, number: u32, first: Status) -> Option<Address> {
        let queue_pair = self.queue_pairs.get_mut(&number)?;
        if queue_pair.state == QueuePairState::Error {
            return None;
        }
        let peer = queue_pair.peer;
        queue_pair.state = QueuePairState::Error;
        (queue_pair.departed, queue_pair.arrived, queue_pair.executed) = (0, 0, 0);
        let sends = core::mem::take(&mut queue_pair.sends);
        let receives = core::mem::take(&mut queue_pair.receives);
        for (index, send) in sends.iter().enumerate() {
            self.complete_send(number, &send.request, if index == 0 { first } else { Status::Flushed });
        }
        for receive in &receives {
            self.complete_receive(number, receive, Received::FLUSHED);
        }
        peer
    }

    /// Whether the mapping may be registered with this access.
    pub(crate) fn permits(mapping: &Mapping, access: Access) -> bool {
        !access.local_write || mapping.protection() == Protection::ReadWrite
    }
}

/// How a receive ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Received {
    pub(crate) status: Status,
    pub(crate) kind: CompletionKind,
    pub(crate) length: u64,
    pub(crate) immediate: Option<u32>,
}

impl Received {
    pub(crate) const FLUSHED: Self =
        Self { status: Status::Flushed, kind: CompletionKind::Receive, length: 0, immediate: None };
    pub(crate) const TOO_LONG: Self =
        Self { status: Status::LocalLength, kind: CompletionKind::Receive, length: 0, immediate: None };
}
