//! The requests of one end of a connection on the other, made up as they are posted, and the oracle that says what
//! must come of them.

use ringway_verbs::{
    Completion, LocalKey, LocalSlice, Operation, RemoteKey, RemoteSlice, Status, WorkRequest,
};
use ringway_wire::PathMtu;

use super::{NodeMemory, draining::Begun};
use crate::Random;

/// Bytes of the memory that is WRITTEN and READ.
pub(crate) const WINDOW: usize = 8 << 10;
/// Bytes of a posted receive, and of the longest message but those made to fail.
pub(crate) const MESSAGE_MAX: u64 = 4 << 10;
/// Bytes that requests take their payload from; they never change.
pub(crate) const SOURCE: usize = 32 << 10;
/// Words that only this stream changes.
pub(crate) const WORDS: usize = 8;

/// What goes wrong with a stream on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Misdeed {
    /// One of its requests names memory that it may not touch.
    Access,
    /// One of its messages is longer than the receive.
    TooLong,
}

/// Where a stream's bytes are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Places {
    /// On this side: payload, and what READs and atomics bring.
    pub(crate) source: LocalKey,
    pub(crate) landing: LocalKey,
    /// On the other side, as that side names it and as this one does.
    pub(crate) window: (LocalKey, RemoteKey),
    pub(crate) words: (LocalKey, RemoteKey),
    pub(crate) counter: RemoteKey,
}

/// What a request changes at the responder.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Effect {
    Nothing,
    Write { at: usize, bytes: Vec<u8> },
    Word { at: usize, new: u64 },
}

#[derive(Debug, Clone)]
struct Planned {
    request: WorkRequest,
    effect: Effect,
    /// Where bytes land on this side, and which, if that is certain.
    landing: Option<(usize, Option<Vec<u8>>)>,
    /// What is added to the counter that all streams share.
    add: Option<u64>,
}

/// What the other side's receives must see.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub(crate) by_send: bool,
    pub(crate) bytes: Vec<u8>,
    pub(crate) immediate: Option<u32>,
    /// A WRITE_WITH_IMM: where, and which request it is.
    written: Option<(usize, usize)>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Stream {
    random: Random,
    places: Places,
    total: usize,
    misdeed: Option<(usize, Misdeed)>,
    planned: Vec<Planned>,
    /// Requests before this one are known to be done.
    done: usize,
    landed: usize,
    window: Vec<u8>,
    words: [u64; WORDS],
    pub(crate) messages: Vec<Message>,
    /// Old values and addends of the shared counter.
    pub(crate) counted: Vec<(u64, u64)>,
    /// The status of the first failure.
    pub(crate) failed: Option<Status>,
}

impl Stream {
    pub(crate) fn new(
        mut random: Random,
        places: Places,
        total: usize,
        misdeed: Option<Misdeed>,
        window: Vec<u8>,
    ) -> Self {
        let misdeed = misdeed.map(|misdeed| (random.below(total as u64) as usize, misdeed));
        Self {
            random,
            places,
            total,
            misdeed,
            planned: Vec::new(),
            done: 0,
            landed: 0,
            window,
            words: [0; WORDS],
            messages: Vec::new(),
            counted: Vec::new(),
            failed: None,
        }
    }

    /// How many were posted.
    pub(crate) const fn posted(&self) -> usize {
        self.planned.len()
    }

    pub(crate) const fn all_posted(&self) -> bool {
        self.planned.len() == self.total
    }

    pub(crate) fn all_done(&self) -> bool {
        self.done == self.total
    }

    /// All that were posted have completed or were silent.
    pub(crate) fn none_missing(&self) -> bool {
        self.none_missing_before(self.planned.len())
    }

    /// The same of so many that were posted first.
    pub(crate) fn none_missing_before(&self, end: usize) -> bool {
        self.planned.iter().take(end).skip(self.done).all(|planned| !planned.request.signalled)
    }

    /// Which requests have begun when so many PSNs went out.
    pub(crate) fn begun(&self, sent: u32, mtu: PathMtu) -> Begun {
        let mut begun = Begun { requests: 0, packets: 0 };
        for planned in &self.planned {
            if begun.packets >= sent {
                break;
            }
            begun.requests += 1;
            begun.packets += mtu.packets(planned.request.length()) as u32;
        }
        begun
    }

    /// Bytes the landing memory must have.
    pub(crate) const fn landing_bytes(total: usize) -> usize {
        total * MESSAGE_MAX as usize
    }

    fn length(&mut self, limit: u64) -> u64 {
        match self.random.below(10) {
            0 => 0,
            1 => 256 * self.random.below(limit / 256 + 1),
            2..=5 => self.random.between(1, 600).min(limit),
            _ => self.random.between(1, limit),
        }
    }

    /// Bytes of the source, in one or two segments.
    fn gather(&mut self, length: u64, memory: &NodeMemory) -> ([LocalSlice; 2], Vec<u8>) {
        let key = self.places.source;
        let first = if self.random.per_mille(300) { self.random.below(length + 1) } else { length };
        let mut bytes = Vec::new();
        let segments = [first, length - first].map(|length| {
            let offset = self.random.below(SOURCE as u64 - length);
            let start = offset as usize;
            bytes.extend_from_slice(&memory.bytes(key)[start..start + length as usize]);
            LocalSlice { key, offset, length }
        });
        (segments, bytes)
    }

    /// Room for bytes to land in.
    fn land(&mut self, length: u64) -> ([LocalSlice; 2], usize) {
        let at = self.landed;
        self.landed += length as usize;
        let first =
            if length != 8 && self.random.per_mille(300) { self.random.below(length + 1) } else { length };
        let key = self.places.landing;
        let segment = |offset, length| LocalSlice { key, offset, length };
        ([segment(at as u64, first), segment(at as u64 + first, length - first)], at)
    }

    /// Makes up the next request, which must then be posted.
    pub(crate) fn next(&mut self, memory: &NodeMemory) -> WorkRequest {
        let index = self.planned.len();
        let misdeed = self.misdeed.filter(|(at, _)| *at == index).map(|(_, misdeed)| misdeed);
        let mut planned = match (misdeed, self.random.below(100)) {
            (Some(Misdeed::TooLong), _) => self.send(MESSAGE_MAX + 1, memory),
            (Some(Misdeed::Access), _) => self.forbidden(memory),
            (None, 0..25) => {
                let length = self.length(MESSAGE_MAX);
                self.send(length, memory)
            }
            (None, 25..65) => self.write(index, memory),
            (None, 65..80) => self.read(),
            (None, 80..92) => self.word(),
            (None, _) => self.counter(),
        };
        planned.request.id = index as u64;
        planned.request.signalled = index + 1 == self.total || self.random.per_mille(500);
        planned.request.fence |= self.random.per_mille(100);
        let request = planned.request;
        self.planned.push(planned);
        request
    }

    fn plan(operation: Operation, local: [LocalSlice; 2]) -> Planned {
        let request = WorkRequest { id: 0, operation, local, signalled: false, fence: false };
        Planned { request, effect: Effect::Nothing, landing: None, add: None }
    }

    fn immediate(&mut self) -> Option<u32> {
        self.random.per_mille(400).then(|| self.random.next() as u32)
    }

    fn send(&mut self, length: u64, memory: &NodeMemory) -> Planned {
        let (local, bytes) = self.gather(length, memory);
        let immediate = self.immediate();
        self.messages.push(Message { by_send: true, bytes, immediate, written: None });
        Self::plan(Operation::Send { immediate }, local)
    }

    fn write(&mut self, index: usize, memory: &NodeMemory) -> Planned {
        let length = self.length(WINDOW as u64 - 1);
        let at = self.random.below(WINDOW as u64 - length) as usize;
        let (local, bytes) = self.gather(length, memory);
        let remote = RemoteSlice { key: self.places.window.1, offset: at as u64 };
        let operation = match self.immediate() {
            Some(immediate) => {
                let written = Some((at, index));
                let bytes = bytes.clone();
                self.messages.push(Message { by_send: false, bytes, immediate: Some(immediate), written });
                Operation::WriteWithImmediate { remote, immediate }
            }
            None => Operation::Write { remote },
        };
        let mut planned = Self::plan(operation, local);
        // A READ may be answered after this was executed, unless this waits for it.
        planned.request.fence = self.is_read(at, length as usize);
        self.window[at..at + bytes.len()].copy_from_slice(&bytes);
        planned.effect = Effect::Write { at, bytes };
        planned
    }

    /// Whether a READ that may not be done yet overlaps these bytes.
    fn is_read(&self, at: usize, length: usize) -> bool {
        self.planned[self.done..].iter().any(|planned| match planned.request.operation {
            Operation::Read { remote } => {
                let (start, read) = (remote.offset as usize, planned.request.length() as usize);
                at < start + read && start < at + length
            }
            _ => false,
        })
    }

    fn read(&mut self) -> Planned {
        let length = self.length(MESSAGE_MAX);
        let at = self.random.below(WINDOW as u64 - length) as usize;
        let (local, landing) = self.land(length);
        let remote = RemoteSlice { key: self.places.window.1, offset: at as u64 };
        let mut planned = Self::plan(Operation::Read { remote }, local);
        planned.landing = Some((landing, Some(self.window[at..at + length as usize].to_vec())));
        planned
    }

    fn word(&mut self) -> Planned {
        let at = self.random.below(WORDS as u64) as usize;
        let (local, landing) = self.land(8);
        let remote = RemoteSlice { key: self.places.words.1, offset: at as u64 * 8 };
        let old = self.words[at];
        let value = self.random.next();
        let (operation, new) = if self.random.per_mille(500) {
            (Operation::FetchAdd { remote, add: value }, old.wrapping_add(value))
        } else if self.random.per_mille(700) {
            (Operation::CompareSwap { remote, expected: old, desired: value }, value)
        } else {
            (Operation::CompareSwap { remote, expected: !old, desired: value }, old)
        };
        self.words[at] = new;
        let mut planned = Self::plan(operation, local);
        planned.effect = Effect::Word { at, new };
        planned.landing = Some((landing, Some(old.to_ne_bytes().to_vec())));
        planned
    }

    fn counter(&mut self) -> Planned {
        let (local, landing) = self.land(8);
        let add = self.random.between(1, 1 << 20);
        let remote = RemoteSlice { key: self.places.counter, offset: 0 };
        let mut planned = Self::plan(Operation::FetchAdd { remote, add }, local);
        planned.landing = Some((landing, None));
        planned.add = Some(add);
        planned
    }

    fn forbidden(&mut self, memory: &NodeMemory) -> Planned {
        let (local, _) = self.gather(64, memory);
        let remote = match self.random.below(3) {
            0 => RemoteSlice { key: self.places.window.1, offset: WINDOW as u64 - 63 },
            1 => RemoteSlice { key: RemoteKey(self.places.window.0.0), offset: 0 },
            _ => RemoteSlice { key: self.places.words.1, offset: 0 },
        };
        Self::plan(Operation::Write { remote }, local)
    }

    /// Checks a completion of the send queue.
    pub(crate) fn complete(&mut self, completion: &Completion, memory: &NodeMemory) -> Result<(), String> {
        let index = completion.id as usize;
        if index < self.done || index >= self.planned.len() {
            return Err(format!("request {index} completed again or out of order, after {}", self.done));
        }
        if self.failed.is_some() {
            return self.complete_flushed(index, completion.status);
        }
        if let Some(silent) = (self.done..index).find(|at| self.planned[*at].request.signalled) {
            return Err(format!("request {index} completed before request {silent}, which is signalled"));
        }
        if completion.status == Status::Success {
            if !self.planned[index].request.signalled {
                return Err(format!("request {index} completed and is not signalled"));
            }
            for at in self.done..=index {
                self.check_landing(at, memory)?;
            }
            self.done = index + 1;
            return Ok(());
        }
        // Silent requests before the failure were done.
        for at in self.done..index {
            self.check_landing(at, memory)?;
        }
        self.failed = Some(completion.status);
        self.done = index + 1;
        let misdeed = self.misdeed.filter(|(at, _)| *at == index).map(|(_, misdeed)| misdeed);
        match (completion.status, misdeed) {
            (Status::RemoteAccess, Some(Misdeed::Access))
            | (Status::RemoteInvalidRequest, Some(Misdeed::TooLong))
            | (Status::Flushed | Status::TransportLost, _) => Ok(()),
            (status, _) => Err(format!("request {index} ended with {status:?} for no reason")),
        }
    }

    fn complete_flushed(&mut self, index: usize, status: Status) -> Result<(), String> {
        if status != Status::Flushed {
            return Err(format!("request {index} ended with {status:?} after the first failure"));
        }
        if index != self.done {
            return Err(format!("request {index} was flushed before request {}", self.done));
        }
        self.done = index + 1;
        Ok(())
    }

    fn check_landing(&mut self, index: usize, memory: &NodeMemory) -> Result<(), String> {
        let planned = &self.planned[index];
        let Some((at, expected)) = &planned.landing else { return Ok(()) };
        let length = planned.request.length() as usize;
        let landed = &memory.bytes(self.places.landing)[*at..at + length];
        if expected.as_ref().is_some_and(|expected| expected != landed) {
            let operation = planned.request.operation;
            return Err(format!("request {index}, {operation:?}, is done and brought the wrong bytes"));
        }
        if let Some(add) = planned.add {
            let old = landed.try_into().map(u64::from_ne_bytes).map_err(|_| "no word".to_owned())?;
            self.counted.push((old, add));
        }
        Ok(())
    }

    /// Checks what a receive saw: it must be the message with this index.
    pub(crate) fn check_message(
        &self,
        index: usize,
        by_send: bool,
        completion: &Completion,
        received: &[u8],
        memory: &NodeMemory,
    ) -> Result<(), String> {
        let Some(message) = self.messages.get(index) else {
            return Err(format!("message {index} was received and never sent"));
        };
        let lengths_agree = completion.length == message.bytes.len() as u64;
        if by_send != message.by_send || !lengths_agree || completion.immediate != message.immediate {
            return Err(format!("message {index} was received as another one: {completion:?}"));
        }
        if by_send && received.get(..message.bytes.len()) != Some(&message.bytes[..]) {
            return Err(format!("message {index} has the wrong bytes"));
        }
        let Some((at, request)) = message.written else { return Ok(()) };
        // In place now, but for what later requests overwrote.
        let window = memory.bytes(self.places.window.0);
        for (offset, byte) in message.bytes.iter().enumerate() {
            let overwritten = self.planned[request + 1..].iter().any(|later| match &later.effect {
                Effect::Write { at: start, bytes } => (*start..start + bytes.len()).contains(&(at + offset)),
                _ => false,
            });
            if window[at + offset] != *byte && !overwritten {
                return Err(format!("message {index} was notified before its bytes were in place"));
            }
        }
        Ok(())
    }

    /// Checks the responder's memory at the end: exactly what was asked, or, after a failure, what a part of it made,
    /// in order, at least what was known to be done.
    pub(crate) fn check_memory(&self, initial: &[u8], mtu: usize, memory: &NodeMemory) -> Result<(), String> {
        let window = memory.bytes(self.places.window.0);
        let words: Vec<u64> = memory
            .bytes(self.places.words.0)
            .chunks_exact(8)
            .filter_map(|word| word.try_into().ok().map(u64::from_ne_bytes))
            .collect();
        if self.failed.is_none() {
            return match (window == self.window, words == self.words) {
                (true, true) => Ok(()),
                (false, _) => Err("the written memory is not what the requests make of it".into()),
                (true, false) => Err("the words are not what the atomics make of them".into()),
            };
        }
        let (mut model, mut model_words) = (initial.to_vec(), [0; WORDS]);
        for planned in &self.planned {
            if model == window && words == model_words {
                return Ok(());
            }
            match &planned.effect {
                Effect::Nothing => {}
                Effect::Word { at, new } => model_words[*at] = *new,
                Effect::Write { at, bytes } => {
                    for (packet, part) in bytes.chunks(mtu).enumerate() {
                        let at = at + packet * mtu;
                        model[at..at + part.len()].copy_from_slice(part);
                        if model == window && words == model_words {
                            return Ok(());
                        }
                    }
                }
            }
        }
        if model == window && words == model_words {
            return Ok(());
        }
        Err("after the failure memory is not what any first part of the requests makes of it".into())
    }
}
