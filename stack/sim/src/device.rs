//! The simulated device: one node of a [`SimNetwork`].

use std::sync::Arc;

use ringway_mem::Mapping;
use ringway_verbs::{
    Access, Capabilities, Completion, CompletionKind, ConnectError, Device, Endpoint, LocalKey, MemoryKeys,
    PostError, QueuePairConfig, QueuePairError, QueuePairNumber, QueuePairState, ReceiveRequest,
    RegisterError, RemoteKey, Role, Status, Time, WorkRequest,
};

use crate::SimNetwork;
use crate::node::{Address, Node, QueuePair, Received, Send};

/// First bytes of a simulated endpoint.
const MAGIC: [u8; 4] = *b"SIM1";
/// The largest message, in bytes.
const MAX_MESSAGE: u64 = 1 << 30;
/// The `errno` of memory that may not be written.
const EACCES: i32 = 13;

/// A device inside a [`SimNetwork`]. Requests leave only at [`Device::flush`], so that a caller that forgets it is
/// found out. Dropping it is a node's death: peers see their connections lost.
#[derive(Debug)]
pub struct SimDevice {
    network: SimNetwork,
    index: u32,
}

impl SimDevice {
    pub(crate) const fn new(network: SimNetwork, index: u32) -> Self {
        Self { network, index }
    }

    pub(crate) const fn index(&self) -> u32 {
        self.index
    }

    /// An endpoint of the right kind behind which there is nobody.
    #[must_use]
    pub fn unreachable_endpoint() -> Endpoint {
        encode(Address { node: u32::MAX, number: u32::MAX })
    }

    const fn address(&self, queue_pair: QueuePairNumber) -> Address {
        Address { node: self.index, number: queue_pair.0 }
    }

    fn with_node<T>(&self, act: impl FnOnce(&mut Node) -> Option<T>) -> Option<T> {
        self.network.borrow_mut().node_mut(self.index).and_then(act)
    }

    fn with_queue_pair<T>(
        &self,
        queue_pair: QueuePairNumber,
        act: impl FnOnce(&mut QueuePair) -> T,
    ) -> Option<T> {
        self.with_node(|node| node.queue_pairs.get_mut(&queue_pair.0).map(act))
    }
}

impl Drop for SimDevice {
    fn drop(&mut self) {
        self.network.borrow_mut().remove_node(self.index);
    }
}

fn encode(address: Address) -> Endpoint {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..8].copy_from_slice(&address.node.to_le_bytes());
    bytes[8..].copy_from_slice(&address.number.to_le_bytes());
    Endpoint::new(&bytes).unwrap_or_else(|| unreachable!("twelve bytes fit an endpoint"))
}

fn decode(endpoint: &Endpoint) -> Option<Address> {
    let bytes: &[u8; 12] = endpoint.as_bytes().try_into().ok()?;
    let (magic, rest) = bytes.split_first_chunk::<4>()?;
    let (node, rest) = rest.split_first_chunk::<4>()?;
    let (number, _) = rest.split_first_chunk::<4>()?;
    (*magic == MAGIC)
        .then(|| Address { node: u32::from_le_bytes(*node), number: u32::from_le_bytes(*number) })
}

/// Checks a send-queue request against the node's memory.
fn check_send(node: &Node, request: &WorkRequest) -> Result<(), PostError> {
    request.check_lengths(MAX_MESSAGE)?;
    let answered = request.operation.is_answered();
    request.local.iter().try_for_each(|slice| node.check_local(slice, answered))
}

impl Device for SimDevice {
    type Region = Arc<Mapping>;

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new("sim");
        capabilities.atomics = true;
        capabilities.max_message = MAX_MESSAGE;
        capabilities
    }

    fn register(&mut self, region: Arc<Mapping>, access: Access) -> Result<MemoryKeys, RegisterError> {
        if (access.remote_write || access.remote_atomic) && !access.local_write {
            return Err(RegisterError::AccessCombination);
        }
        if !Node::permits(&region, access) {
            return Err(RegisterError::System(EACCES));
        }
        let keys = self.with_node(|node| Some(node.add_region(region, access)));
        let (local, remote) = keys.ok_or(RegisterError::UnknownKey)?;
        Ok(MemoryKeys { local, remote })
    }

    fn deregister(&mut self, key: LocalKey) -> Result<(), RegisterError> {
        let mut network = self.network.borrow_mut();
        let node = network.node_mut(self.index).ok_or(RegisterError::UnknownKey)?;
        let region = node.regions.get(&key.0).ok_or(RegisterError::UnknownKey)?;
        if region.uses > 0 {
            return Err(RegisterError::Busy);
        }
        node.regions.remove(&key.0);
        Ok(())
    }

    fn is_busy(&self, key: LocalKey) -> bool {
        self.with_node(|node| Some(node.regions.get(&key.0)?.uses > 0)) == Some(true)
    }

    fn remote_key(&self, queue_pair: QueuePairNumber, key: LocalKey) -> Option<RemoteKey> {
        self.with_node(|node| {
            node.queue_pairs.get(&queue_pair.0)?;
            node.remote_key(key)
        })
    }

    fn create_queue_pair(&mut self, config: QueuePairConfig) -> Result<QueuePairNumber, QueuePairError> {
        let limit = self.capabilities().max_queue_pairs;
        self.with_node(|node| {
            if node.queue_pairs.len() >= limit as usize {
                return None;
            }
            let number = node.next_number;
            node.next_number = node.next_number.wrapping_add(1);
            node.queue_pairs.insert(number, QueuePair::new(config));
            Some(QueuePairNumber(number))
        })
        .ok_or(QueuePairError::TableFull { limit })
    }

    fn endpoint(&self, queue_pair: QueuePairNumber) -> Result<Endpoint, QueuePairError> {
        self.state(queue_pair).ok_or(QueuePairError::Unknown)?;
        Ok(encode(self.address(queue_pair)))
    }

    fn connect(
        &mut self,
        queue_pair: QueuePairNumber,
        peer: &Endpoint,
        role: Role,
    ) -> Result<(), ConnectError> {
        let there = decode(peer).ok_or(ConnectError::ForeignEndpoint)?;
        let state = self.with_queue_pair(queue_pair, |state| {
            if state.state != QueuePairState::Init {
                return Err(ConnectError::WrongState);
            }
            state.state = QueuePairState::Connecting;
            state.peer = Some(there);
            state.role = role;
            Ok(())
        });
        state.ok_or(ConnectError::Unknown)??;
        self.network.borrow_mut().join(self.address(queue_pair), there);
        Ok(())
    }

    fn state(&self, queue_pair: QueuePairNumber) -> Option<QueuePairState> {
        self.with_queue_pair(queue_pair, |state| state.state)
    }

    fn fail_queue_pair(&mut self, queue_pair: QueuePairNumber) {
        self.network.borrow_mut().fail(self.address(queue_pair), Status::Flushed);
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePairNumber) -> Result<(), QueuePairError> {
        self.state(queue_pair).ok_or(QueuePairError::Unknown)?;
        self.network.borrow_mut().destroy(self.address(queue_pair));
        Ok(())
    }

    fn post_send(&mut self, queue_pair: QueuePairNumber, request: &WorkRequest) -> Result<(), PostError> {
        let mut network = self.network.borrow_mut();
        let node = network.node_mut(self.index).ok_or(PostError::Unknown)?;
        check_send(node, request)?;
        let state = node.queue_pairs.get_mut(&queue_pair.0).ok_or(PostError::Unknown)?;
        if state.state == QueuePairState::Init {
            return Err(PostError::WrongState);
        }
        if state.sends.len() + state.untaken_sends >= state.config.send_depth as usize {
            return Err(PostError::Full);
        }
        let failed = state.state == QueuePairState::Error;
        if !failed {
            state.sends.push_back(Send { request: *request, answer: None });
        }
        request.local.iter().for_each(|slice| node.count_use(slice, true));
        if failed {
            node.complete_send(queue_pair.0, request, Status::Flushed);
        }
        Ok(())
    }

    fn post_receive(
        &mut self,
        queue_pair: QueuePairNumber,
        request: &ReceiveRequest,
    ) -> Result<(), PostError> {
        let mut network = self.network.borrow_mut();
        let node = network.node_mut(self.index).ok_or(PostError::Unknown)?;
        node.check_local(&request.local, true)?;
        let state = node.queue_pairs.get_mut(&queue_pair.0).ok_or(PostError::Unknown)?;
        if state.receives.len() + state.untaken_receives >= state.config.receive_depth as usize {
            return Err(PostError::Full);
        }
        let failed = state.state == QueuePairState::Error;
        if !failed {
            state.receives.push_back(*request);
        }
        node.count_use(&request.local, true);
        if failed {
            node.complete_receive(queue_pair.0, request, Received::FLUSHED);
        }
        network.receive_posted(self.address(queue_pair));
        Ok(())
    }

    fn flush(&mut self) {
        self.network.borrow_mut().depart(self.index);
    }

    fn poll(&mut self, now: Time, completions: &mut [Completion]) -> usize {
        let mut network = self.network.borrow_mut();
        network.advance(now);
        let Some(node) = network.node_mut(self.index) else { return 0 };
        let mut taken = 0;
        for slot in completions {
            let Some(completion) = node.completions.pop_front() else { break };
            if let Some(queue_pair) = node.queue_pairs.get_mut(&completion.queue_pair.0) {
                match completion.kind {
                    CompletionKind::Send => queue_pair.untaken_sends -= 1,
                    CompletionKind::Receive | CompletionKind::ReceiveWrite => {
                        queue_pair.untaken_receives -= 1;
                    }
                }
            }
            *slot = completion;
            taken += 1;
        }
        taken
    }

    fn deadline(&self) -> Option<Time> {
        self.network.next_event()
    }

    fn event_descriptor(&self) -> Option<i32> {
        None
    }

    /// Nothing arrives between calls here: there is something to poll when a completion waits, and else at
    /// [`Device::deadline`].
    fn arm(&mut self) -> bool {
        self.with_node(|node| Some(node.completions.is_empty())).unwrap_or(true)
    }
}
