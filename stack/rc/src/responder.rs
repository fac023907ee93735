//! The responder: executes the peer's requests in the order of their PSNs, each of them once.

use alloc::collections::VecDeque;

use ringway_verbs::{Access, CompletionKind, ReceiveRequest, RemoteKey, Status};
use ringway_wire::{AtomicEth, Header, NakCode, Packet, PathMtu, Psn, Reth, RnrTimer, Syndrome};

use crate::{
    Adjustment, AtomicOperation, Failure, Memory, ReceiveAttributes, RemoteAccess,
    completions::Completions,
    mutation::{Mutated, Mutation},
    responses::{RemoteBytes, Responses},
};

/// The most bytes a request may name (IBA volume 1, 9.7.4.1.3).
const MAX_LENGTH: u32 = 1 << 31;

/// A message of several packets that is under way.
#[derive(Debug, Clone, Copy)]
enum Message {
    /// A SEND: its bytes so far are in the oldest receive.
    Send { received: u64 },
    /// A WRITE: where its remaining bytes go.
    Write { memory: RemoteBytes, total: u32 },
}

/// Why a request was not executed.
#[derive(Debug, Clone, Copy)]
enum Refusal {
    /// No receive is posted for it yet.
    NotReady,
    /// The queue pair fails.
    Fatal(NakCode, Failure),
}

const INVALID: Refusal = Refusal::Fatal(NakCode::InvalidRequest, Failure::InvalidRequestReceived);
const ACCESS: Refusal = Refusal::Fatal(NakCode::RemoteAccess, Failure::AccessRefused);

/// The responder's half of a queue pair.
#[derive(Debug)]
pub(crate) struct Responder {
    depth: usize,
    receives: VecDeque<ReceiveRequest>,
    /// The PSN of the next request to execute.
    pub(crate) expected: Psn,
    /// The last packet executed that an acknowledgement answers: of a SEND or WRITE. And the messages completed then.
    acknowledgeable: (Psn, u32),
    message: Option<Message>,
    /// A NAK for `expected` is out: what follows it is ignored until it comes.
    refused: bool,
    /// The NAK that ended everything, to be repeated.
    last_word: Option<(Psn, Syndrome)>,
    access: Access,
    min_rnr_timer: RnrTimer,
    pub(crate) responses: Responses,
    pub(crate) mutation: Mutated,
}

impl Responder {
    pub(crate) fn new(depth: u32, resources: u8) -> Self {
        Self {
            depth: depth as usize,
            receives: VecDeque::with_capacity(depth as usize),
            expected: Psn::ZERO,
            acknowledgeable: (Psn::ZERO, 0),
            message: None,
            refused: false,
            last_word: None,
            access: Access::default(),
            min_rnr_timer: RnrTimer::at_least(0),
            responses: Responses::new(resources),
            mutation: Mutated::default(),
        }
    }

    pub(crate) fn start(&mut self, attributes: &ReceiveAttributes) {
        self.expected = attributes.receive_psn;
        self.acknowledgeable = (self.expected.minus(1), 0);
        self.min_rnr_timer = attributes.min_rnr_timer;
        self.responses.reset(attributes.max_dest_rd_atomic, attributes.selective);
    }

    pub(crate) const fn permit(&mut self, access: Access) {
        self.access = access;
    }

    pub(crate) const fn adjust(&mut self, adjustment: &Adjustment) {
        self.access = adjustment.access;
        self.min_rnr_timer = adjustment.min_rnr_timer;
    }

    /// Whether `completed` further receives, whose completions were not taken, leave no slot.
    pub(crate) fn is_full(&self, completed: usize) -> bool {
        self.receives.len() + completed >= self.depth
    }

    pub(crate) fn post(&mut self, request: &ReceiveRequest) {
        self.receives.push_back(*request);
    }

    /// Executes a request, answers a duplicate, or asks for what is missing before it.
    pub(crate) fn handle<M: Memory>(
        &mut self,
        packet: &Packet<'_>,
        mtu: PathMtu,
        memory: &mut M,
        completions: &mut Completions,
    ) -> Result<(), Failure> {
        let psn = packet.bth.psn;
        if psn.is_before(self.expected) && !self.mutation.is(Mutation::ExecuteDuplicates) {
            self.handle_duplicate(packet, mtu, memory);
            return Ok(());
        }
        if psn.is_after(self.expected) && !self.mutation.is(Mutation::IgnoreGaps) {
            if !self.refused {
                self.refused = true;
                self.responses.acknowledge(self.expected, Syndrome::Nak(NakCode::SequenceError));
            }
            return Ok(());
        }
        match self.execute(packet, mtu, memory, completions) {
            Ok(packets) => {
                self.refused = false;
                if packet.header.opcode().ends_message() {
                    self.responses.msn = self.responses.msn.wrapping_add(1);
                }
                self.expected = psn.plus(packets);
                // A response is an acknowledgement by itself.
                let answered = matches!(
                    packet.header,
                    Header::ReadRequest(_) | Header::FetchAdd(_) | Header::CompareSwap(_)
                );
                if !answered {
                    self.acknowledgeable = (psn, self.responses.msn);
                    if packet.bth.ack_request {
                        self.responses.acknowledge(psn, Syndrome::ACK);
                    }
                }
                Ok(())
            }
            Err(Refusal::NotReady) => {
                self.refused = true;
                self.responses.acknowledge(psn, Syndrome::RnrNak(self.min_rnr_timer));
                Ok(())
            }
            Err(Refusal::Fatal(code, failure)) => Err(self.refuse(psn, code, failure)),
        }
    }

    /// Says no to the request that is next, for good.
    fn refuse(&mut self, psn: Psn, code: NakCode, failure: Failure) -> Failure {
        let syndrome = Syndrome::Nak(code);
        self.responses.acknowledge(psn, syndrome);
        self.last_word = Some((psn, syndrome));
        failure
    }

    /// A request of a kind that nobody knows: refused when it is its turn. Before that what is missing is asked for by
    /// what else comes, and one from earlier was executed, as something else.
    pub(crate) fn refuse_unknown(&mut self, psn: Psn) -> Result<(), Failure> {
        if psn != self.expected {
            return Ok(());
        }
        Err(self.refuse(psn, NakCode::InvalidRequest, Failure::InvalidRequestReceived))
    }

    /// Says once more why everything ended, to a peer that may not have heard it, and answers once more what it asked
    /// before that.
    pub(crate) fn repeat_refusal<M: Memory>(&mut self, packet: &Packet<'_>, mtu: PathMtu, memory: &mut M) {
        let Some((psn, syndrome)) = self.last_word else { return };
        if packet.bth.psn.is_before(psn) {
            self.handle_duplicate(packet, mtu, memory);
        } else {
            self.responses.acknowledge(psn, syndrome);
        }
    }

    /// A request that was executed before: its answer may have been lost.
    fn handle_duplicate<M: Memory>(&mut self, packet: &Packet<'_>, mtu: PathMtu, memory: &mut M) {
        let psn = packet.bth.psn;
        match packet.header {
            Header::ReadRequest(reth) => {
                self.responses.read_again(psn, remote_bytes(&reth), mtu);
            }
            Header::FetchAdd(atomic) | Header::CompareSwap(atomic) => {
                let known = self.responses.atomic_again(psn, word(&atomic));
                if known && self.mutation.is(Mutation::RepeatAtomics) {
                    let operation = AtomicOperation::FetchAdd { add: atomic.swap_or_add };
                    let _ = memory.atomic_remote(RemoteKey(atomic.key), atomic.address, operation);
                }
            }
            // While a request is refused the NAK says what was executed; the peer has it or will ask again. Nothing but its
            // response answers a READ or atomic: that may come later than this, and there are peers (rxe) that take an
            // acknowledgement of its last PSN for the end of a READ whose bytes have not come.
            _ => {
                let (psn, msn) = self.acknowledgeable;
                self.responses.acknowledge_again(psn, msn);
            }
        }
    }

    /// Executes the request that is next; returns how many PSNs it takes.
    fn execute<M: Memory>(
        &mut self,
        packet: &Packet<'_>,
        mtu: PathMtu,
        memory: &mut M,
        completions: &mut Completions,
    ) -> Result<u32, Refusal> {
        let opcode = packet.header.opcode();
        let payload = packet.payload;
        if !opcode.allows_payload(payload.len(), mtu) || opcode.starts_message() != self.message.is_none() {
            return Err(INVALID);
        }
        match packet.header {
            Header::SendFirst
            | Header::SendMiddle
            | Header::SendLast
            | Header::SendLastImmediate(_)
            | Header::SendOnly
            | Header::SendOnlyImmediate(_) => self.receive(packet, memory, completions)?,
            Header::WriteFirst(reth) | Header::WriteOnly(reth) | Header::WriteOnlyImmediate(reth, _) => {
                let target = remote_bytes(&reth);
                self.check_remote(memory, target, RemoteAccess::Write)?;
                self.message = Some(Message::Write { memory: target, total: target.length });
                let written = self.write(packet, memory, completions);
                if opcode.ends_message() {
                    self.message = None;
                }
                written?;
            }
            Header::WriteMiddle | Header::WriteLast | Header::WriteLastImmediate(_) => {
                self.write(packet, memory, completions)?;
            }
            Header::ReadRequest(reth) => return self.read(packet.bth.psn, &reth, mtu, memory),
            Header::FetchAdd(atomic) => {
                let operation = AtomicOperation::FetchAdd { add: atomic.swap_or_add };
                self.atomic(packet.bth.psn, &atomic, operation, memory)?;
            }
            Header::CompareSwap(atomic) => {
                let (expected, desired) = (atomic.compare, atomic.swap_or_add);
                let operation = AtomicOperation::CompareSwap { expected, desired };
                self.atomic(packet.bth.psn, &atomic, operation, memory)?;
            }
            _ => return Err(INVALID),
        }
        Ok(1)
    }

    /// A packet of a SEND.
    fn receive<M: Memory>(
        &mut self,
        packet: &Packet<'_>,
        memory: &mut M,
        completions: &mut Completions,
    ) -> Result<(), Refusal> {
        let opcode = packet.header.opcode();
        let received = match self.message {
            None => 0,
            Some(Message::Send { received }) => received,
            Some(Message::Write { .. }) => return Err(INVALID),
        };
        let receive = self.receives.front().copied().ok_or(Refusal::NotReady)?;
        let length = packet.payload.len() as u64;
        if receive.local.length - received.min(receive.local.length) < length {
            self.complete_receive(completions, Status::LocalLength, CompletionKind::Receive, 0, None);
            return Err(Refusal::Fatal(NakCode::InvalidRequest, Failure::ReceiveTooShort));
        }
        if length > 0 {
            let offset = receive.local.offset.saturating_add(received);
            if memory.write_local(receive.local.key, offset, packet.payload).is_err() {
                self.complete_receive(completions, Status::LocalProtection, CompletionKind::Receive, 0, None);
                return Err(Refusal::Fatal(NakCode::RemoteOperational, Failure::LocalProtection));
            }
        }
        let received = received + length;
        if opcode.ends_message() {
            self.message = None;
            let immediate = packet.header.immediate();
            self.complete_receive(completions, Status::Success, CompletionKind::Receive, received, immediate);
        } else {
            self.message = Some(Message::Send { received });
        }
        Ok(())
    }

    /// A packet of a WRITE whose address is known.
    fn write<M: Memory>(
        &mut self,
        packet: &Packet<'_>,
        memory: &mut M,
        completions: &mut Completions,
    ) -> Result<(), Refusal> {
        let Some(Message::Write { memory: target, total }) = self.message else { return Err(INVALID) };
        let length = u32::try_from(packet.payload.len()).map_err(|_| INVALID)?;
        let last = packet.header.opcode().ends_message();
        // All of it and no more, with the last packet and not before.
        let fits = if last { length == target.length } else { length < target.length };
        if !fits {
            return Err(INVALID);
        }
        let immediate = packet.header.immediate();
        if immediate.is_some() && self.receives.is_empty() {
            return Err(Refusal::NotReady);
        }
        if length > 0 {
            if !self.access.remote_write {
                return Err(ACCESS);
            }
            memory.write_remote(target.key, target.address, packet.payload).map_err(|_| ACCESS)?;
        }
        self.message = (!last).then(|| Message::Write { memory: target.from(length), total });
        if immediate.is_some() {
            let kind = CompletionKind::ReceiveWrite;
            self.complete_receive(completions, Status::Success, kind, total.into(), immediate);
        }
        Ok(())
    }

    fn read<M: Memory>(&mut self, psn: Psn, reth: &Reth, mtu: PathMtu, memory: &M) -> Result<u32, Refusal> {
        let target = remote_bytes(reth);
        self.check_remote(memory, target, RemoteAccess::Read)?;
        // A peer that keeps to what was agreed never has more outstanding.
        if !self.responses.has_room() {
            return Err(INVALID);
        }
        let packets = u32::try_from(mtu.packets(reth.length.into())).map_err(|_| INVALID)?;
        self.responses.read(psn, packets, target);
        Ok(packets)
    }

    fn atomic<M: Memory>(
        &mut self,
        psn: Psn,
        atomic: &AtomicEth,
        operation: AtomicOperation,
        memory: &mut M,
    ) -> Result<(), Refusal> {
        if !atomic.address.is_multiple_of(8) {
            return Err(INVALID);
        }
        if !self.access.remote_atomic {
            return Err(ACCESS);
        }
        if !self.responses.has_room() {
            return Err(INVALID);
        }
        let target = word(atomic);
        let old = memory.atomic_remote(target.key, target.address, operation).map_err(|_| ACCESS)?;
        self.responses.atomic(psn, target, old);
        Ok(())
    }

    /// Whether the peer may do this to these bytes. Where there are none nothing is checked, the key included.
    fn check_remote<M: Memory>(
        &self,
        memory: &M,
        target: RemoteBytes,
        access: RemoteAccess,
    ) -> Result<(), Refusal> {
        if target.length > MAX_LENGTH {
            return Err(INVALID);
        }
        if target.length == 0 {
            return Ok(());
        }
        let checked = memory.check_remote(target.key, target.address, target.length.into(), access);
        if access.is_granted_by(self.access) && checked.is_ok() { Ok(()) } else { Err(ACCESS) }
    }

    /// The oldest receive is done.
    fn complete_receive(
        &mut self,
        completions: &mut Completions,
        status: Status,
        kind: CompletionKind,
        length: u64,
        immediate: Option<u32>,
    ) {
        if let Some(receive) = self.receives.pop_front() {
            completions.receive(receive.id, status, kind, length, immediate);
        }
    }

    /// A READ's memory is gone before it was sent: the READ is refused after all.
    pub(crate) fn refuse_read(&mut self, psn: Psn) {
        let syndrome = Syndrome::Nak(NakCode::RemoteAccess);
        self.responses.refuse_front(psn, syndrome);
        self.last_word = Some((psn, syndrome));
    }

    /// Completes all receives as flushed.
    pub(crate) fn flush(&mut self, completions: &mut Completions) {
        self.message = None;
        while let Some(receive) = self.receives.pop_front() {
            completions.receive(receive.id, Status::Flushed, CompletionKind::Receive, 0, None);
        }
    }

    /// Forgets everything.
    pub(crate) fn reset(&mut self) {
        self.receives.clear();
        self.responses.reset(0, false);
        (self.message, self.refused, self.last_word) = (None, false, None);
        self.access = Access::default();
    }
}

const fn remote_bytes(reth: &Reth) -> RemoteBytes {
    RemoteBytes { key: RemoteKey(reth.key), address: reth.address, length: reth.length }
}

const fn word(atomic: &AtomicEth) -> RemoteBytes {
    RemoteBytes { key: RemoteKey(atomic.key), address: atomic.address, length: 8 }
}
