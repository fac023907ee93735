//! A queue pair: its states, and what its parts do with what is posted, received and due.

use ringway_verbs::{
    Completion, CompletionKind, PostError, QueuePairNumber, ReceiveRequest, Status, Time, WorkRequest,
};
use ringway_wire::{Header, Packet, PathMtu, Psn, Syndrome};

#[cfg(feature = "mutations")]
use crate::mutation::{Mutated, Mutation};
use crate::{
    AttributeError, Configuration, Counters, Failure, Memory, State, Transition,
    completions::Completions,
    envelope::Envelope,
    rate::{Notifier, Rate},
    requester::Requester,
    responder::Responder,
    selective::{Reorder, Report},
    timer,
};

/// One end of a reliable connection.
///
/// The caller gives it packets ([`QueuePair::handle_packet`]) and the time ([`QueuePair::handle_timeout`], due at
/// [`QueuePair::next_timeout`]), and after either, or after posting, takes packets
/// ([`QueuePair::poll_transmit`], or in steps, [`QueuePair::next_departure`]) and completions ([`QueuePair::poll_completion`]) until there are none.
#[derive(Debug)]
pub struct QueuePair {
    configuration: Configuration,
    pub(crate) state: State,
    pub(crate) mtu: PathMtu,
    pub(crate) envelope: Envelope,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    /// Packets that are ahead, where there is room for them.
    pub(crate) reorder: Option<Reorder>,
    /// Both ends have agreed on selective acknowledgement.
    selective: bool,
    completions: Completions,
    pub(crate) rate: Rate,
    pub(crate) notifier: Notifier,
    /// Requests come before READ responses this time.
    pub(crate) requests_first: bool,
    pub(crate) counters: Counters,
    failure: Option<Failure>,
}

impl QueuePair {
    /// A queue pair in [`State::Reset`], with memory for all it will ever hold.
    ///
    /// # Errors
    /// When the configuration is out of range.
    pub fn new(configuration: &Configuration) -> Result<Self, AttributeError> {
        configuration.check()?;
        let number = configuration.number;
        let capacity = configuration.send_depth as usize + configuration.receive_depth as usize;
        Ok(Self {
            configuration: *configuration,
            state: State::Reset,
            mtu: PathMtu::Mtu1024,
            envelope: Envelope::default(),
            requester: Requester::new(configuration.send_depth, configuration.selective_window),
            responder: Responder::new(configuration.receive_depth, configuration.responder_resources),
            reorder: (configuration.selective_window > 0)
                .then(|| Reorder::new(configuration.selective_window, configuration.path_mtu_max)),
            selective: false,
            completions: Completions::new(number, capacity),
            rate: Rate::new(u64::MAX),
            notifier: Notifier::default(),
            requests_first: false,
            counters: Counters::default(),
            failure: None,
        })
    }

    /// Its number.
    #[must_use]
    pub const fn number(&self) -> QueuePairNumber {
        self.configuration.number
    }

    /// Where it is in its life.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// Whether it is in [`State::SendQueueDrain`] and everything that had begun has ended, so that nothing is outstanding.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.state == State::SendQueueDrain && self.requester.is_drained()
    }

    /// Why it is in [`State::Error`].
    #[must_use]
    pub const fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// What it has counted.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// Takes a step from one state to another.
    ///
    /// # Errors
    /// When the step does not start here or an attribute is out of range; nothing has changed then.
    pub fn modify(&mut self, transition: &Transition) -> Result<(), AttributeError> {
        match transition {
            Transition::Initialize(attributes) => {
                self.expect(State::Reset)?;
                self.envelope.partition = attributes.partition;
                self.responder.permit(attributes.access);
                self.state = State::Initialized;
            }
            Transition::ReadyToReceive(attributes) => {
                self.expect(State::Initialized)?;
                attributes.check(&self.configuration)?;
                self.mtu = attributes.path_mtu;
                self.envelope.destination = attributes.destination;
                self.responder.start(attributes);
                self.selective = attributes.selective;
                self.state = State::ReadyToReceive;
            }
            Transition::ReadyToSend(attributes) => {
                self.expect(State::ReadyToReceive)?;
                attributes.check()?;
                self.envelope.solicited = attributes.solicited;
                self.rate = Rate::new(attributes.line_rate);
                self.requester.start(attributes, self.selective);
                self.state = State::ReadyToSend;
            }
            Transition::Adjust(adjustment) => {
                self.expect(State::ReadyToSend)?;
                self.responder.adjust(adjustment);
            }
            Transition::Drain => {
                self.expect(State::ReadyToSend)?;
                self.requester.drain();
                self.state = State::SendQueueDrain;
            }
            Transition::Resume(adjustment) => {
                self.expect(State::SendQueueDrain)?;
                adjustment.iter().for_each(|adjustment| self.responder.adjust(adjustment));
                self.requester.resume();
                self.state = State::ReadyToSend;
            }
            Transition::Error => self.fail(Failure::Requested),
            Transition::Reset => {
                self.requester.reset();
                self.responder.reset();
                self.completions.clear();
                self.notifier = Notifier::default();
                if let Some(reorder) = &mut self.reorder {
                    reorder.reset();
                }
                (self.state, self.failure) = (State::Reset, None);
            }
        }
        Ok(())
    }

    fn expect(&self, expected: State) -> Result<(), AttributeError> {
        if self.state == expected {
            Ok(())
        } else {
            Err(AttributeError::WrongState { from: self.state, expected })
        }
    }

    /// Adds a request to the send queue. Local memory is looked at when a packet is made of it.
    ///
    /// # Errors
    /// [`PostError::Full`] until completions are taken; [`PostError::WrongState`] before [`State::ReadyToSend`];
    /// [`PostError::Unsupported`] for READs and atomics when none may be outstanding.
    pub fn post_send(&mut self, request: &WorkRequest) -> Result<(), PostError> {
        match self.state {
            State::Reset | State::Initialized | State::ReadyToReceive => Err(PostError::WrongState),
            _ if self.is_send_queue_full() => Err(PostError::Full),
            State::ReadyToSend | State::SendQueueDrain => self.requester.post(request, self.mtu),
            State::Error => {
                self.completions.send(request.id, Status::Flushed, request.length());
                Ok(())
            }
        }
    }

    /// Whether [`QueuePair::post_send`] would say [`PostError::Full`].
    #[must_use]
    pub fn is_send_queue_full(&self) -> bool {
        self.requester.is_full(self.completions.sends())
    }

    /// Adds a buffer for one incoming message.
    ///
    /// # Errors
    /// [`PostError::Full`] until completions are taken; [`PostError::WrongState`] before [`State::Initialized`].
    pub fn post_receive(&mut self, request: &ReceiveRequest) -> Result<(), PostError> {
        match self.state {
            State::Reset => Err(PostError::WrongState),
            _ if self.responder.is_full(self.completions.receives()) => Err(PostError::Full),
            State::Error => {
                let kind = CompletionKind::Receive;
                self.completions.receive(request.id, Status::Flushed, kind, 0, None);
                Ok(())
            }
            State::Initialized | State::ReadyToReceive | State::ReadyToSend | State::SendQueueDrain => {
                self.responder.post(request);
                Ok(())
            }
        }
    }

    /// Takes the oldest completion.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.completions.take()
    }

    /// Takes a packet whose invariant CRC is right and that came from the peer's address. `congested` says that it
    /// was marked on the way (ECN "congestion experienced"). What does not belong here is ignored.
    pub fn handle_packet<M: Memory>(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        congested: bool,
        memory: &mut M,
    ) {
        let ours = packet.bth.destination.number() == self.configuration.number.0;
        // The highest bit only says what kind of member the sender is.
        let partition = (packet.bth.partition ^ self.envelope.partition) << 1 == 0;
        if !ours || !partition || matches!(self.state, State::Reset | State::Initialized) {
            return;
        }
        self.counters.count_received(&packet.header, congested);
        if matches!(packet.header, Header::Cnp) {
            self.counters.notifications_received += 1;
            // A Ringway end reports marks and sends none: this one was made up.
            if !self.selective {
                self.rate.notified(now);
            }
            return;
        }
        let opcode = packet.header.opcode();
        match (congested, self.selective) {
            (true, false) => self.notifier.marked(now),
            (true, true) if opcode.is_response() => self.requester.note_marked_response(),
            _ => {}
        }
        let outcome = if opcode.is_request() {
            if self.state == State::Error {
                self.responder.repeat_refusal(packet, self.mtu, memory);
                return;
            }
            self.execute(now, packet, congested, memory)
        } else if opcode.is_response() && self.state.sends() {
            self.complete(now, packet, memory)
        } else {
            Ok(())
        };
        if let Err(failure) = outcome {
            self.fail(failure);
        }
    }

    /// Takes note of a request that means nothing here: of a packet whose invariant CRC is right and that came from the
    /// peer's address, but whose opcode nobody offers (IBA volume 1, 9.9.3: an invalid request).
    pub fn handle_unknown_request(&mut self, psn: Psn) {
        if self.state.receives()
            && let Err(failure) = self.responder.refuse_unknown(psn)
        {
            self.fail(failure);
        }
    }

    /// Gives a request to the responder, and then those that waited for it. Without selective acknowledgement none does.
    fn execute<M: Memory>(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        congested: bool,
        memory: &mut M,
    ) -> Result<(), Failure> {
        let (mtu, responder) = (self.mtu, &mut self.responder);
        responder.responses.now = now;
        // The sender of a long message goes on when it hears of it, and that of a duplicate has not heard.
        let opcode = packet.header.opcode();
        let whole = opcode.starts_message() && opcode.ends_message();
        let waits = whole && packet.bth.psn == responder.expected;
        let Some(reorder) = self.reorder.as_mut().filter(|_| self.selective) else {
            responder.handle(packet, mtu, memory, &mut self.completions)?;
            if waits {
                responder.responses.let_requests_pass();
            } else {
                responder.responses.hurry();
            }
            return Ok(());
        };
        reorder.note(packet.bth.psn, congested);
        if congested {
            responder.responses.report_now();
        }
        if packet.bth.psn.is_after(responder.expected) {
            responder.responses.report_now();
            reorder.keep(packet, responder.expected);
            return Ok(());
        }
        let mut before = responder.expected;
        responder.handle(packet, mtu, memory, &mut self.completions)?;
        if !waits {
            responder.responses.hurry();
        }
        loop {
            reorder.forget_before(before, responder.expected);
            before = responder.expected;
            let Some(next) = reorder.take(before) else { return Ok(()) };
            responder.responses.report_now();
            responder.handle(&next, mtu, memory, &mut self.completions)?;
        }
    }

    fn complete<M: Memory>(&mut self, now: Time, packet: &Packet<'_>, memory: &mut M) -> Result<(), Failure> {
        let psn = packet.bth.psn;
        let completions = &mut self.completions;
        // What brings data says that all is well.
        let well = match packet.header {
            Header::ReadResponseFirst(aeth)
            | Header::ReadResponseLast(aeth)
            | Header::ReadResponseOnly(aeth)
            | Header::AtomicAcknowledge(aeth, _) => matches!(aeth.syndrome, Syndrome::Ack(_)),
            _ => true,
        };
        if !well {
            return if self.requester.is_outstanding(psn) { Err(Failure::BadResponse) } else { Ok(()) };
        }
        match packet.header {
            Header::Acknowledge(aeth) => {
                self.requester.handle_acknowledge(now, psn, aeth.syndrome, completions)
            }
            Header::SelectiveAcknowledge(_) => match Report::parse(packet.payload) {
                Some(report) => self.requester.handle_report(now, psn, &report, completions),
                None => Ok(()),
            },
            Header::AtomicAcknowledge(_, old) => {
                self.requester.handle_atomic_response(now, psn, old, self.mtu, memory, completions)
            }
            _ => {
                let (payload, mtu) = (packet.payload, self.mtu);
                let ends = packet.header.opcode().ends_message();
                self.requester.handle_read_response(now, psn, (payload, ends), mtu, memory, completions)
            }
        }
    }

    /// Whether it has an acknowledgement to send that waits ([`crate::Acknowledge`]).
    #[must_use]
    pub const fn owes_acknowledgement(&self) -> bool {
        self.responder.responses.waits()
    }

    /// When [`QueuePair::handle_timeout`], or [`QueuePair::poll_transmit`], has something to do if nothing arrives and
    /// nothing is posted.
    pub fn next_timeout(&mut self, now: Time) -> Option<Time> {
        if !self.state.sends() {
            return None;
        }
        let paced = self
            .rate
            .held_until(now)
            .filter(|_| self.responder.responses.front().is_some() || self.requester.has_more(self.mtu));
        let report = self.responder.responses.report.map(|due| due.at());
        timer::earlier(timer::earlier(self.requester.timeout(), paced), report)
    }

    /// Does what is due by now.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.state.sends() {
            self.counters.timeouts += u64::from(self.requester.is_timed_out(now));
            if let Err(failure) = self.requester.expire(now) {
                self.fail(failure);
            }
        }
    }

    /// Moves to the error state, for this reason, and flushes both queues.
    pub fn fail(&mut self, failure: Failure) {
        if self.state == State::Error {
            return;
        }
        self.state = State::Error;
        self.failure = Some(failure);
        self.requester.flush(failure.send_status(), &mut self.completions);
        self.responder.flush(&mut self.completions);
    }

    /// Makes it break a rule from now on.
    #[cfg(feature = "mutations")]
    pub const fn mutate(&mut self, mutation: Mutation) {
        self.responder.mutation = Mutated::by(mutation);
        self.requester.mutation = Mutated::by(mutation);
    }
}
