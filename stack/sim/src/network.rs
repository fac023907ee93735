//! The network between simulated devices: a queue of events in virtual time and what each of them does.

use std::cell::{Ref, RefCell, RefMut};
use std::collections::BTreeMap;
use std::rc::Rc;

use ringway_verbs::{
    CompletionKind, Operation, QueuePairState, RemoteSlice, Role, Status, Time, WorkRequest,
};

use crate::node::{Address, Answer, Node, Received};
use crate::{Random, SimDevice};

/// Delays of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimConfig {
    /// What a message, and likewise its answer, takes, in nanoseconds.
    pub latency_ns: u64,
    /// Up to this much is added to each, by the seed. Order within a queue pair stays.
    pub jitter_ns: u64,
    /// Where the jitter comes from.
    pub seed: u64,
    /// How long a queue pair waits for its peer to connect, in nanoseconds.
    pub connect_timeout_ns: u64,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self { latency_ns: 0, jitter_ns: 0, seed: 1, connect_timeout_ns: 5_000_000_000 }
    }
}

/// A network of simulated devices in one thread. Clones are the same network.
#[derive(Debug, Clone)]
pub struct SimNetwork(Rc<RefCell<Network>>);

impl SimNetwork {
    /// An empty network.
    #[must_use]
    pub fn new(config: SimConfig) -> Self {
        let random = Random::new(config.seed);
        let network = Network {
            config,
            random,
            now: 0,
            sequence: 0,
            events: BTreeMap::new(),
            nodes: Vec::new(),
            scratch: Vec::new(),
        };
        Self(Rc::new(RefCell::new(network)))
    }

    /// Adds a device to the network.
    #[must_use]
    pub fn device(&self) -> SimDevice {
        let mut network = self.borrow_mut();
        let index = u32::try_from(network.nodes.len()).unwrap_or(u32::MAX);
        network.nodes.push(Node::new(index));
        drop(network);
        SimDevice::new(self.clone(), index)
    }

    /// Breaks every connection between two devices: their queue pairs fail with
    /// [`Status::TransportLost`](ringway_verbs::Status::TransportLost). New ones may be made.
    pub fn break_link(&self, one: &SimDevice, other: &SimDevice) {
        let mut network = self.borrow_mut();
        for (here, there) in [(one.index(), other.index()), (other.index(), one.index())] {
            for address in network.connected(here, Some(there)) {
                network.lose(address);
            }
        }
    }

    /// When the next thing happens anywhere; `None` when nothing will until somebody posts.
    #[must_use]
    pub fn next_event(&self) -> Option<Time> {
        self.borrow().next_event()
    }

    pub(crate) fn borrow(&self) -> Ref<'_, Network> {
        self.0.borrow()
    }

    pub(crate) fn borrow_mut(&self) -> RefMut<'_, Network> {
        self.0.borrow_mut()
    }
}

/// Something that happens to a queue pair.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// The next departed request reaches the responder.
    Arrive(Address),
    /// A receive was posted at the responder: go on with what has arrived.
    Resume(Address),
    /// The answer to the oldest executed request is back.
    Answer(Address),
    /// Both sides have asked to be connected.
    Connected(Address),
    /// The peer did not connect in time.
    ConnectTimeout(Address),
    /// The connection is gone.
    Lost(Address),
}

/// What became of a request at the responder.
enum Outcome {
    /// No receive is posted; try again later.
    Wait,
    /// Executed or refused; an answer goes back.
    Done(Answer),
}

impl Outcome {
    const fn refused(status: Status) -> Self {
        Self::Done(Answer { status, data: Vec::new() })
    }
    const fn done() -> Self {
        Self::Done(Answer { status: Status::Success, data: Vec::new() })
    }
}

#[derive(Debug)]
pub(crate) struct Network {
    config: SimConfig,
    random: Random,
    now: u64,
    sequence: u64,
    /// By time and then by the order they were made in.
    events: BTreeMap<(u64, u64), Event>,
    pub(crate) nodes: Vec<Node>,
    scratch: Vec<u8>,
}

impl Network {
    pub(crate) fn node(&self, index: u32) -> Option<&Node> {
        self.nodes.get(index as usize)
    }

    pub(crate) fn node_mut(&mut self, index: u32) -> Option<&mut Node> {
        self.nodes.get_mut(index as usize)
    }

    pub(crate) fn next_event(&self) -> Option<Time> {
        self.events.first_key_value().map(|((time, _), _)| Time(*time))
    }

    /// Moves time on and does all that is due.
    pub(crate) fn advance(&mut self, now: Time) {
        self.now = self.now.max(now.0);
        while let Some(entry) = self.events.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let event = entry.remove();
            self.happen(event);
        }
    }

    /// Puts everything posted on these queue pairs on its way.
    pub(crate) fn depart(&mut self, node: u32) {
        let Some(state) = self.node(node) else { return };
        let numbers: Vec<u32> = state
            .queue_pairs
            .iter()
            .filter(|(_, queue_pair)| {
                queue_pair.state == QueuePairState::Ready && queue_pair.departed < queue_pair.sends.len()
            })
            .map(|(number, _)| *number)
            .collect();
        for number in numbers {
            self.depart_one(Address { node, number });
        }
    }

    fn depart_one(&mut self, from: Address) {
        loop {
            let due = self.now.saturating_add(self.delay());
            let Some(queue_pair) = self.queue_pair(from) else { return };
            if queue_pair.departed >= queue_pair.sends.len() {
                return;
            }
            queue_pair.departed += 1;
            let due = due.max(queue_pair.last_arrival);
            queue_pair.last_arrival = due;
            self.schedule(due, Event::Arrive(from));
        }
    }

    /// Connects when both sides have asked, and else waits for the peer.
    pub(crate) fn join(&mut self, here: Address, there: Address) {
        let timeout = self.now.saturating_add(self.config.connect_timeout_ns);
        let role = self.queue_pair(here).map(|queue_pair| queue_pair.role);
        let Some(peer) = self.queue_pair(there) else {
            let due = self.now.saturating_add(self.delay());
            return self.schedule(due, Event::Lost(here));
        };
        let opposite = matches!(
            (role, peer.role),
            (Some(Role::Active), Role::Passive) | (Some(Role::Passive), Role::Active)
        );
        if peer.state == QueuePairState::Connecting && peer.peer == Some(here) && opposite {
            let due = self.now.saturating_add(self.delay());
            self.schedule(due, Event::Connected(here));
            self.schedule(due, Event::Connected(there));
        } else {
            self.schedule(timeout, Event::ConnectTimeout(here));
            let timer = (timeout, self.sequence);
            if let Some(queue_pair) = self.queue_pair(here) {
                queue_pair.connect_timer = Some(timer);
            }
        }
    }

    fn stop_connect_timer(&mut self, address: Address) {
        if let Some(timer) = self.queue_pair(address).and_then(|queue_pair| queue_pair.connect_timer.take()) {
            self.events.remove(&timer);
        }
    }

    /// Wakes the queue pair whose message may be waiting for a receive of this one.
    pub(crate) fn receive_posted(&mut self, at: Address) {
        if let Some(peer) = self.queue_pair(at).and_then(|queue_pair| queue_pair.peer) {
            self.schedule(self.now, Event::Resume(peer));
        }
    }

    /// Fails a queue pair from its own side and lets the peer find out.
    pub(crate) fn fail(&mut self, address: Address, first: Status) {
        let peer = self.node_mut(address.node).and_then(|node| node.fail(address.number, first));
        self.stop_connect_timer(address);
        // A peer that is not connected to this queue pair (yet, or at all) does not hear of it.
        let peer =
            peer.filter(|peer| self.queue_pair(*peer).is_some_and(|state| state.peer == Some(address)));
        self.tell(peer);
    }

    /// Removes a queue pair and its completions.
    pub(crate) fn destroy(&mut self, address: Address) {
        self.fail(address, Status::Flushed);
        let Some(node) = self.node_mut(address.node) else { return };
        node.queue_pairs.remove(&address.number);
        node.completions.retain(|completion| completion.queue_pair.0 != address.number);
    }

    /// A device is gone with all it had.
    pub(crate) fn remove_node(&mut self, index: u32) {
        for address in self.connected(index, None) {
            self.fail(address, Status::Flushed);
        }
        if let Some(node) = self.node_mut(index) {
            let number = node.next_number;
            *node = Node::new(index);
            node.next_number = number;
            node.alive = false;
        }
    }

    fn connected(&self, index: u32, with: Option<u32>) -> Vec<Address> {
        let Some(node) = self.node(index) else { return Vec::new() };
        node.queue_pairs
            .iter()
            .filter(|(_, queue_pair)| {
                with.is_none_or(|with| queue_pair.peer.is_some_and(|peer| peer.node == with))
            })
            .map(|(number, _)| Address { node: index, number: *number })
            .collect()
    }

    fn lose(&mut self, address: Address) {
        if let Some(node) = self.node_mut(address.node) {
            node.fail(address.number, Status::TransportLost);
        }
    }

    fn tell(&mut self, peer: Option<Address>) {
        if let Some(peer) = peer {
            let due = self.now.saturating_add(self.delay());
            let last = self.queue_pair(peer).map_or(0, |queue_pair| queue_pair.last_answer);
            self.schedule(due.max(last), Event::Lost(peer));
        }
    }

    fn queue_pair(&mut self, address: Address) -> Option<&mut crate::node::QueuePair> {
        self.node_mut(address.node)?.queue_pairs.get_mut(&address.number)
    }

    fn schedule(&mut self, time: u64, event: Event) {
        self.sequence += 1;
        self.events.insert((time, self.sequence), event);
    }

    /// The time one message takes.
    fn delay(&mut self) -> u64 {
        let jitter = self.random.below(self.config.jitter_ns.saturating_add(1));
        self.config.latency_ns.saturating_add(jitter)
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrive(from) => {
                if let Some(queue_pair) = self.queue_pair(from)
                    && queue_pair.arrived < queue_pair.departed
                {
                    queue_pair.arrived += 1;
                }
                self.execute_arrived(from);
            }
            Event::Resume(from) => self.execute_arrived(from),
            Event::Answer(to) => self.take_answer(to),
            Event::Connected(here) => {
                if let Some(queue_pair) = self.queue_pair(here)
                    && queue_pair.state == QueuePairState::Connecting
                {
                    queue_pair.state = QueuePairState::Ready;
                }
                self.stop_connect_timer(here);
                self.depart_one(here);
            }
            Event::ConnectTimeout(here) => {
                if self.queue_pair(here).is_some_and(|pair| pair.state == QueuePairState::Connecting) {
                    self.fail(here, Status::TransportLost);
                }
            }
            Event::Lost(here) => self.lose(here),
        }
    }

    /// Executes what has arrived, in order, until a message has to wait for a receive or a fence.
    fn execute_arrived(&mut self, from: Address) {
        loop {
            let Some(queue_pair) = self.queue_pair(from) else { return };
            if queue_pair.executed >= queue_pair.arrived {
                return;
            }
            let Some(to) = queue_pair.peer else { return };
            let Some(send) = queue_pair.sends.get(queue_pair.executed) else { return };
            let request = send.request;
            if request.fence && queue_pair.answers_with_data_outstanding() {
                return;
            }
            let ready = self.queue_pair(to).is_some_and(|peer| peer.state == QueuePairState::Ready);
            if !ready {
                return;
            }
            let Outcome::Done(answer) = self.execute(from, to, &request) else { return };
            let due = self.now.saturating_add(self.delay());
            let Some(queue_pair) = self.queue_pair(from) else { return };
            if let Some(send) = queue_pair.sends.get_mut(queue_pair.executed) {
                send.answer = Some(answer);
            }
            queue_pair.executed += 1;
            let due = due.max(queue_pair.last_answer);
            queue_pair.last_answer = due;
            self.schedule(due, Event::Answer(from));
        }
    }

    fn execute(&mut self, from: Address, to: Address, request: &WorkRequest) -> Outcome {
        let outcome = match request.operation {
            Operation::Send { immediate } => self.execute_send(from, to, request, immediate),
            Operation::Write { remote } => self.execute_write(from, to, request, remote, None),
            Operation::WriteWithImmediate { remote, immediate } => {
                self.execute_write(from, to, request, remote, Some(immediate))
            }
            Operation::Read { remote } => self.execute_read(to, request, remote),
            Operation::FetchAdd { remote, add } => {
                self.execute_atomic(to, remote, |old| Some(old.wrapping_add(add)))
            }
            Operation::CompareSwap { remote, expected, desired } => {
                self.execute_atomic(to, remote, |old| (old == expected).then_some(desired))
            }
        };
        // A responder that refuses a request leaves for the error state as well.
        if let Outcome::Done(answer) = &outcome
            && answer.status != Status::Success
            && let Some(node) = self.node_mut(to.node)
        {
            node.fail(to.number, Status::Flushed);
        }
        outcome
    }

    fn execute_send(
        &mut self,
        from: Address,
        to: Address,
        request: &WorkRequest,
        immediate: Option<u32>,
    ) -> Outcome {
        let bytes = self.gather(from, request);
        let Some(receive) = self.queue_pair(to).and_then(|peer| peer.receives.pop_front()) else {
            self.scratch = bytes;
            return Outcome::Wait;
        };
        let length = request.length();
        let fits = length <= receive.local.length;
        if let Some(node) = self.node_mut(to.node) {
            if fits {
                node.scatter(&[receive.local], &bytes);
            }
            let received =
                Received { status: Status::Success, kind: CompletionKind::Receive, length, immediate };
            node.complete_receive(to.number, &receive, if fits { received } else { Received::TOO_LONG });
        }
        self.scratch = bytes;
        if fits { Outcome::done() } else { Outcome::refused(Status::RemoteInvalidRequest) }
    }

    fn execute_write(
        &mut self,
        from: Address,
        to: Address,
        request: &WorkRequest,
        remote: RemoteSlice,
        immediate: Option<u32>,
    ) -> Outcome {
        let length = request.length();
        let allowed =
            |node: &Node| length == 0 || node.remote(remote, length, |access| access.remote_write).is_some();
        if !self.node(to.node).is_some_and(allowed) {
            return Outcome::refused(Status::RemoteAccess);
        }
        if immediate.is_some() && self.queue_pair(to).is_none_or(|peer| peer.receives.is_empty()) {
            return Outcome::Wait;
        }
        let bytes = self.gather(from, request);
        if let Some(node) = self.node_mut(to.node) {
            if let Some(mapping) = node.remote(remote, length, |access| access.remote_write)
                && let Some(window) = mapping.window(remote.offset, length)
            {
                window.write(&bytes);
            }
            let receive = immediate.and_then(|_| node.queue_pairs.get_mut(&to.number)?.receives.pop_front());
            if let Some(receive) = receive {
                let kind = CompletionKind::ReceiveWrite;
                let received = Received { status: Status::Success, kind, length, immediate };
                node.complete_receive(to.number, &receive, received);
            }
        }
        self.scratch = bytes;
        Outcome::done()
    }

    fn execute_read(&self, to: Address, request: &WorkRequest, remote: RemoteSlice) -> Outcome {
        let length = request.length();
        if length == 0 {
            return Outcome::done();
        }
        let window = self
            .node(to.node)
            .and_then(|node| node.remote(remote, length, |access| access.remote_read))
            .and_then(|mapping| mapping.window(remote.offset, length));
        let Some(window) = window else { return Outcome::refused(Status::RemoteAccess) };
        let mut data = vec![0; window.length()];
        window.read(&mut data);
        Outcome::Done(Answer { status: Status::Success, data })
    }

    fn execute_atomic(
        &self,
        to: Address,
        remote: RemoteSlice,
        update: impl Fn(u64) -> Option<u64>,
    ) -> Outcome {
        if !remote.offset.is_multiple_of(8) {
            return Outcome::refused(Status::RemoteInvalidRequest);
        }
        let window = self
            .node(to.node)
            .and_then(|node| node.remote(remote, 8, |access| access.remote_atomic))
            .and_then(|mapping| mapping.window(remote.offset, 8));
        let Some(window) = window else { return Outcome::refused(Status::RemoteAccess) };
        let mut old = [0; 8];
        window.read(&mut old);
        if let Some(new) = update(u64::from_ne_bytes(old)) {
            window.write(&new.to_ne_bytes());
        }
        Outcome::Done(Answer { status: Status::Success, data: old.to_vec() })
    }

    fn gather(&mut self, from: Address, request: &WorkRequest) -> Vec<u8> {
        let mut bytes = core::mem::take(&mut self.scratch);
        bytes.clear();
        if let Some(node) = self.node(from.node) {
            node.gather(&request.local, &mut bytes);
        }
        bytes
    }

    fn take_answer(&mut self, to: Address) {
        let Some(node) = self.nodes.get_mut(to.node as usize) else { return };
        let Some(queue_pair) = node.queue_pairs.get_mut(&to.number) else { return };
        if queue_pair.state != QueuePairState::Ready || queue_pair.executed == 0 {
            return;
        }
        let Some(send) = queue_pair.sends.front_mut() else { return };
        let Some(answer) = send.answer.take() else { return };
        let request = send.request;
        if answer.status != Status::Success {
            node.fail(to.number, answer.status);
            return;
        }
        queue_pair.sends.pop_front();
        queue_pair.departed -= 1;
        queue_pair.arrived -= 1;
        queue_pair.executed -= 1;
        node.scatter(&request.local, &answer.data);
        node.complete_send(to.number, &request, Status::Success);
        self.execute_arrived(to);
    }
}
