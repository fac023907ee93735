//! One queue pair: the state machine of its reliable connection, and what the device keeps beside it.

use std::collections::VecDeque;

use ringway_rc::{
    Configuration, Failure, Initialization, QueuePair, ReceiveAttributes, Retries, SendAttributes, State,
    Transition,
};
use ringway_verbs::{
    Access, Completion, CompletionKind, LocalSlice, MAX_SEGMENTS, PostError, QueuePairConfig, QueuePairError,
    QueuePairNumber, QueuePairState, ReceiveRequest, Status, Time, Untaken, WorkRequest,
};
use ringway_wire::{PathMtu, Psn};

use crate::{
    PeerKind, RoceConfig, RoceEndpoint, RoceFailure,
    link::Path,
    liveness::Liveness,
    shared::Shared,
    signal::{Signal, Word},
};

/// How long news of packets that were too long is worth mentioning, in nanoseconds.
const NARROW_NS: u64 = 60_000_000_000;

/// Where a queue pair is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Made; receives may be posted.
    Init,
    /// A Ringway end is asked whether it is there. Requests may be posted and wait.
    Connecting,
    /// Packets go both ways.
    Ready,
    /// Failed and flushed; a refusal, and word of the failure, may still have to be sent.
    Failed,
}

/// The other end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer {
    pub(crate) endpoint: RoceEndpoint,
    pub(crate) path: Path,
}

impl Peer {
    pub(crate) fn is_ringway(&self) -> bool {
        self.endpoint.kind != PeerKind::Plain
    }
}

/// A posted send-queue request, as far as its completion needs it.
#[derive(Debug, Clone, Copy)]
struct Posted {
    local: [LocalSlice; MAX_SEGMENTS],
    signalled: bool,
}

#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) number: QueuePairNumber,
    /// Its place in the device's table.
    pub(crate) index: u16,
    pub(crate) config: QueuePairConfig,
    pub(crate) transport: QueuePair,
    pub(crate) first_psn: Psn,
    pub(crate) peer: Option<Peer>,
    /// The other end, while the way to it is not known.
    pub(crate) sought: Option<RoceEndpoint>,
    pub(crate) phase: Phase,
    pub(crate) liveness: Liveness,
    /// When packets to the peer were last said to be too long for the way.
    pub(crate) narrow_at: Option<Time>,
    pub(crate) failure: Option<RoceFailure>,
    /// What is to be said to the peer about the connection.
    pub(crate) owed: Option<Word>,
    /// It is among those with something to do.
    pub(crate) active: bool,
    sends: VecDeque<Posted>,
    receives: VecDeque<LocalSlice>,
    pub(crate) untaken: Untaken,
}

impl Pair {
    /// `None` when the depths are out of range.
    pub(crate) fn new(
        number: QueuePairNumber,
        index: u16,
        first_psn: Psn,
        depths: QueuePairConfig,
        config: &RoceConfig,
        mtu: PathMtu,
    ) -> Option<Box<Self>> {
        let configuration = Configuration {
            number,
            send_depth: depths.send_depth.max(1),
            receive_depth: depths.receive_depth,
            responder_resources: config.max_dest_rd_atomic,
            selective_window: if config.selective { config.window } else { 0 },
            path_mtu_max: mtu,
        };
        let mut transport = QueuePair::new(&configuration).ok()?;
        // What a peer may do is each region's to say.
        let initialization = Initialization { partition: config.partition, access: Access::ALL };
        transport.modify(&Transition::Initialize(initialization)).ok()?;
        Some(Box::new(Self {
            number,
            index,
            config: depths,
            transport,
            first_psn,
            peer: None,
            sought: None,
            phase: Phase::Init,
            liveness: Liveness::default(),
            narrow_at: None,
            failure: None,
            owed: None,
            active: false,
            sends: VecDeque::with_capacity(depths.send_depth as usize),
            receives: VecDeque::with_capacity(depths.receive_depth as usize),
            untaken: Untaken::default(),
        }))
    }

    pub(crate) fn state(&self) -> QueuePairState {
        match self.phase {
            Phase::Init => QueuePairState::Init,
            Phase::Connecting => QueuePairState::Connecting,
            Phase::Ready => match self.transport.state() {
                State::SendQueueDrain if self.transport.is_drained() => QueuePairState::Drained,
                State::SendQueueDrain => QueuePairState::Draining,
                _ => QueuePairState::Ready,
            },
            Phase::Failed => QueuePairState::Error,
        }
    }

    /// Readies the transport for a peer, to which a way is sought now. `mtu` is this end's.
    pub(crate) fn connect(&mut self, endpoint: RoceEndpoint, mtu: PathMtu, shared: &mut Shared) {
        let path_mtu = endpoint.mtu.min(mtu);
        let config = &shared.config;
        let selective =
            config.selective && matches!(endpoint.kind, PeerKind::Ringway { selective: true, .. });
        let receive = ReceiveAttributes {
            path_mtu,
            destination: endpoint.queue_pair,
            receive_psn: endpoint.psn,
            max_dest_rd_atomic: config.max_dest_rd_atomic,
            min_rnr_timer: config.min_rnr_timer,
            selective,
        };
        let send = SendAttributes {
            timeout: if selective { config.patient_timeout() } else { config.timeout },
            retries: Retries::Times(config.retry_count),
            rnr_retries: Retries::from_rnr_count(config.rnr_retry_count),
            send_psn: self.first_psn,
            max_rd_atomic: config.max_rd_atomic.min(endpoint.rd_atomic),
            window: config.window,
            solicited: config.solicited,
            delay_slack_ns: config.delay_slack_ns,
            line_rate: config.line_rate,
        };
        let steps = [Transition::ReadyToReceive(receive), Transition::ReadyToSend(send)];
        if steps.iter().any(|step| self.transport.modify(step).is_err()) {
            // Its configuration was checked when the device was made.
            return self.fail(RoceFailure::Local, shared);
        }
        (self.phase, self.sought) = (Phase::Connecting, Some(endpoint));
        shared.changed = true;
    }

    /// The way to the peer is known. `mtu` is this end's.
    pub(crate) fn take_way(&mut self, peer: Peer, mtu: PathMtu, shared: &mut Shared) {
        (self.peer, self.sought) = (Some(peer), None);
        let path_mtu = peer.endpoint.mtu.min(mtu);
        if peer.path.mtu < path_mtu {
            let (way, both) = (peer.path.mtu.bytes(), path_mtu.bytes());
            return self.fail(RoceFailure::NarrowWay { way, both }, shared);
        }
        self.phase = if peer.is_ringway() { Phase::Connecting } else { Phase::Ready };
        self.activate(shared);
        shared.changed = true;
    }

    /// Remembers to look after this queue pair at the next flush or poll.
    pub(crate) fn activate(&mut self, shared: &mut Shared) {
        if !self.active {
            self.active = true;
            shared.active.push_back(self.index);
        }
    }

    /// Lets nothing begin that has not begun.
    pub(crate) fn drain(&mut self) -> Result<(), QueuePairError> {
        if self.phase != Phase::Ready {
            return Err(QueuePairError::WrongState);
        }
        self.transport.modify(&Transition::Drain).map_err(|_| QueuePairError::WrongState)
    }

    /// Lets what was posted begin again.
    pub(crate) fn resume(&mut self, shared: &mut Shared) -> Result<(), QueuePairError> {
        self.transport.modify(&Transition::Resume(None)).map_err(|_| QueuePairError::WrongState)?;
        self.activate(shared);
        Ok(())
    }

    /// Adds a request to the send queue.
    pub(crate) fn post_send(&mut self, request: &WorkRequest, shared: &mut Shared) -> Result<(), PostError> {
        request.check_lengths(ringway_rc::MAX_MESSAGE)?;
        shared.memory.regions.check_request(request)?;
        if self.phase == Phase::Init {
            return Err(PostError::WrongState);
        }
        if self.sends.len() + self.untaken.sends >= self.config.send_depth as usize {
            return Err(PostError::Full);
        }
        // Every request's end is to be seen, as it is what holds the region.
        self.transport.post_send(&WorkRequest { signalled: true, ..*request })?;
        for slice in &request.local {
            shared.memory.regions.hold(slice);
        }
        self.sends.push_back(Posted { local: request.local, signalled: request.signalled });
        self.settle(shared);
        self.activate(shared);
        Ok(())
    }

    /// Adds a buffer for an incoming message.
    pub(crate) fn post_receive(
        &mut self,
        request: &ReceiveRequest,
        shared: &mut Shared,
    ) -> Result<(), PostError> {
        shared.memory.regions.check_local(&request.local, true)?;
        if self.receives.len() + self.untaken.receives >= self.config.receive_depth as usize {
            return Err(PostError::Full);
        }
        self.transport.post_receive(request)?;
        shared.memory.regions.hold(&request.local);
        self.receives.push_back(request.local);
        self.settle(shared);
        Ok(())
    }

    /// Takes what the transport completed, and notices when it has failed.
    pub(crate) fn settle(&mut self, shared: &mut Shared) {
        while let Some(completion) = self.transport.poll_completion() {
            self.complete(completion, shared);
        }
        if self.transport.state() == State::Error && self.phase != Phase::Failed {
            let failure = self.transport.failure().unwrap_or(Failure::Requested);
            self.failed(failure.into(), shared);
        }
    }

    fn complete(&mut self, completion: Completion, shared: &mut Shared) {
        match completion.kind {
            CompletionKind::Send => {
                let Some(posted) = self.sends.pop_front() else { return };
                for slice in &posted.local {
                    shared.memory.regions.release(slice);
                }
                if completion.status == Status::Success && !posted.signalled {
                    return;
                }
            }
            CompletionKind::Receive | CompletionKind::ReceiveWrite => {
                let Some(local) = self.receives.pop_front() else { return };
                shared.memory.regions.release(&local);
            }
        }
        shared.completions.push(completion, &mut self.untaken);
    }

    /// Moves to the error state and flushes.
    pub(crate) fn fail(&mut self, failure: RoceFailure, shared: &mut Shared) {
        if self.phase == Phase::Failed {
            return;
        }
        let local = failure == RoceFailure::Local;
        self.transport.fail(if local { Failure::Requested } else { Failure::PeerLost });
        self.failed(failure, shared);
        self.settle(shared);
    }

    fn failed(&mut self, failure: RoceFailure, shared: &mut Shared) {
        let narrow = self.narrow_at.is_some_and(|at| shared.now.0.saturating_sub(at.0) < NARROW_NS);
        let failure = match failure.is_silence() && narrow {
            true => RoceFailure::TooLong(Box::new(failure)),
            false => failure,
        };
        // A refusal says it in its own words, and is repeated when it is lost.
        let refused = matches!(
            failure,
            RoceFailure::Transport(
                Failure::ReceiveTooShort | Failure::InvalidRequestReceived | Failure::AccessRefused
            )
        );
        self.sought = None;
        let told = self.phase == Phase::Init || refused || failure == RoceFailure::Gone;
        self.owed = if told { None } else { Some(Word::Gone) };
        shared.failures += u64::from(failure != RoceFailure::Local);
        shared.changed = true;
        self.phase = Phase::Failed;
        self.failure = Some(failure);
        self.activate(shared);
    }

    /// The peer, where it is a Ringway end.
    pub(crate) fn ringway_peer(&self) -> Option<&Peer> {
        self.peer.as_ref().filter(|peer| peer.is_ringway())
    }

    /// What would be said to the peer.
    pub(crate) fn signal(&self, word: Word) -> Option<(Signal, Peer)> {
        let peer = self.ringway_peer()?;
        let sender = ringway_wire::QueuePair::new(self.number.0)?;
        let receiver_psn = peer.endpoint.psn;
        Some((Signal { word, sender, sender_psn: self.first_psn, receiver_psn }, *peer))
    }

    /// Takes what a peer says about the connection.
    pub(crate) fn handle_signal(&mut self, payload: &[u8], shared: &mut Shared) {
        let (Some(signal), Some(peer)) = (Signal::parse(payload), self.ringway_peer()) else { return };
        let endpoint = peer.endpoint;
        let known = signal.sender == endpoint.queue_pair
            && signal.sender_psn == endpoint.psn
            && signal.receiver_psn == self.first_psn;
        if !known {
            return;
        }
        self.liveness.hear(shared.now);
        match (signal.word, self.phase) {
            (Word::Gone, _) => self.fail(RoceFailure::Gone, shared),
            (Word::Hello, Phase::Failed) => self.owed = Some(Word::Gone),
            (Word::Hello, _) => {
                self.owed = Some(Word::Here);
                self.become_ready(shared);
            }
            (Word::Here, _) => self.become_ready(shared),
        }
        self.activate(shared);
    }

    /// The peer is connected to this queue pair.
    pub(crate) fn become_ready(&mut self, shared: &mut Shared) {
        if self.phase == Phase::Connecting {
            self.phase = Phase::Ready;
            shared.changed = true;
            self.activate(shared);
        }
    }

    /// Does what is due.
    pub(crate) fn expire(&mut self, shared: &mut Shared) {
        self.transport.handle_timeout(shared.now);
        self.settle(shared);
        self.look_after_peer(shared);
        self.activate(shared);
    }
}
