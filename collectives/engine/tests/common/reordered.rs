//! A device whose queue pairs' completions are seen in any order between queue pairs, or held back, and that counts what is
//! written over each.

use std::collections::BTreeMap;
use std::sync::Arc;

use ringway_mem::Mapping;
use ringway_sim::SimDevice;
use ringway_verbs::{
    Access, Capabilities, Cause, Completion, ConnectError, Device, Endpoint, LocalKey, MemoryKeys, Operation,
    PostError, QueuePairConfig, QueuePairError, QueuePairNumber, QueuePairState, ReceiveRequest,
    RegisterError, RemoteKey, Role, Time, WorkRequest,
};

/// What is done to the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Nothing.
    AsTheyCome,
    /// Of those that wait, the first of a queue pair that the seed names; sometimes none.
    Random(u64),
}

/// See above.
#[derive(Debug)]
pub(crate) struct Reordered {
    pub(crate) inner: SimDevice,
    order: Order,
    waiting: Vec<Completion>,
    /// The queue pairs in the order in which they were made.
    pub(crate) made: Vec<QueuePairNumber>,
    /// Whose completions are not seen.
    pub(crate) held: Option<QueuePairNumber>,
    /// Bytes written over each queue pair.
    pub(crate) written: BTreeMap<u32, u64>,
    /// The NUMA nodes of the rails' network cards, as far as they are known.
    pub(crate) numa_nodes: Vec<u32>,
    /// What it says of queue pairs that failed.
    pub(crate) cause: Option<Cause>,
}

impl Reordered {
    pub(crate) fn new(inner: SimDevice, order: Order) -> Self {
        let (waiting, made, written) = (Vec::new(), Vec::new(), BTreeMap::new());
        Self { inner, order, waiting, made, held: None, written, numa_nodes: Vec::new(), cause: None }
    }

    fn random(&mut self, below: usize) -> usize {
        let Order::Random(state) = &mut self.order else { return 0 };
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) as usize % below.max(1)
    }

    /// The place of the completion that is seen next.
    fn next(&mut self) -> Option<usize> {
        let seen = |waiting: &[Completion], held: Option<QueuePairNumber>, from: usize| {
            let mut places = from..waiting.len();
            places.find(|at| Some(waiting[*at].queue_pair) != held)
        };
        let first = seen(&self.waiting, self.held, 0)?;
        if self.order == Order::AsTheyCome {
            return Some(first);
        }
        if self.random(4) == 0 {
            return None;
        }
        let from = self.random(self.waiting.len());
        let named = self.waiting[seen(&self.waiting, self.held, from).unwrap_or(first)].queue_pair;
        // Within a queue pair the order stays.
        self.waiting.iter().position(|completion| completion.queue_pair == named)
    }
}

impl Device for Reordered {
    type Region = Arc<Mapping>;

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn register(&mut self, region: Arc<Mapping>, access: Access) -> Result<MemoryKeys, RegisterError> {
        self.inner.register(region, access)
    }

    fn deregister(&mut self, key: LocalKey) -> Result<(), RegisterError> {
        self.inner.deregister(key)
    }

    fn is_busy(&self, key: LocalKey) -> bool {
        self.inner.is_busy(key)
    }

    fn remote_key(&self, queue_pair: QueuePairNumber, key: LocalKey) -> Option<RemoteKey> {
        self.inner.remote_key(queue_pair, key)
    }

    fn create_queue_pair(&mut self, config: QueuePairConfig) -> Result<QueuePairNumber, QueuePairError> {
        let number = self.inner.create_queue_pair(config)?;
        self.made.push(number);
        Ok(number)
    }

    fn numa_node(&self, queue_pair: QueuePairNumber) -> Option<u32> {
        let rail = self.made.iter().position(|made| *made == queue_pair)?;
        self.numa_nodes.get(rail).copied()
    }

    fn endpoint(&self, queue_pair: QueuePairNumber) -> Result<Endpoint, QueuePairError> {
        self.inner.endpoint(queue_pair)
    }

    fn connect(
        &mut self,
        queue_pair: QueuePairNumber,
        peer: &Endpoint,
        role: Role,
    ) -> Result<(), ConnectError> {
        self.inner.connect(queue_pair, peer, role)
    }

    fn state(&self, queue_pair: QueuePairNumber) -> Option<QueuePairState> {
        self.inner.state(queue_pair)
    }

    fn failure(&self, _: QueuePairNumber) -> Option<Cause> {
        self.cause
    }

    fn fail_queue_pair(&mut self, queue_pair: QueuePairNumber) {
        self.inner.fail_queue_pair(queue_pair);
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePairNumber) -> Result<(), QueuePairError> {
        self.waiting.retain(|completion| completion.queue_pair != queue_pair);
        self.inner.destroy_queue_pair(queue_pair)
    }

    fn post_send(&mut self, queue_pair: QueuePairNumber, request: &WorkRequest) -> Result<(), PostError> {
        if let Operation::Write { .. } | Operation::WriteWithImmediate { .. } = request.operation {
            *self.written.entry(queue_pair.0).or_default() += request.length();
        }
        self.inner.post_send(queue_pair, request)
    }

    fn post_receive(
        &mut self,
        queue_pair: QueuePairNumber,
        request: &ReceiveRequest,
    ) -> Result<(), PostError> {
        self.inner.post_receive(queue_pair, request)
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn poll(&mut self, now: Time, completions: &mut [Completion]) -> usize {
        let mut came = [Completion::EMPTY; 64];
        let count = self.inner.poll(now, &mut came);
        self.waiting.extend(&came[..count]);
        let mut taken = 0;
        for place in completions {
            let Some(at) = self.next() else { break };
            *place = self.waiting.remove(at);
            taken += 1;
        }
        taken
    }

    fn deadline(&self) -> Option<Time> {
        self.inner.deadline()
    }

    fn event_descriptor(&self) -> Option<i32> {
        None
    }

    fn arm(&mut self) -> bool {
        self.inner.arm() && self.waiting.is_empty()
    }
}
