//! Two devices, what they completed so far, and the steps that every test needs.

use std::sync::Arc;

use ringway_mem::Mapping;
use ringway_verbs::{
    Access, Completion, CompletionKind, Device, LocalSlice, MemoryKeys, Operation, PostError,
    QueuePairConfig, QueuePairError, QueuePairNumber, QueuePairState, ReceiveRequest, RemoteSlice, Role,
    Status, WorkRequest,
};

use super::{Harness, Side};

/// Rounds after which what has not happened is taken not to happen.
const QUIET_ROUNDS: u32 = 300;

/// Registered memory of one side.
#[derive(Debug, Clone)]
pub struct Memory {
    /// The bytes.
    pub mapping: Arc<Mapping>,
    /// Its names.
    pub keys: MemoryKeys,
}

impl Memory {
    /// A part of it, for requests of its own side.
    #[must_use]
    pub const fn slice(&self, offset: u64, length: u64) -> LocalSlice {
        LocalSlice { key: self.keys.local, offset, length }
    }

    /// A place in it, for requests of the other side.
    #[must_use]
    pub const fn remote(&self, offset: u64) -> RemoteSlice {
        RemoteSlice { key: self.keys.remote, offset }
    }

    /// Writes bytes.
    pub fn put(&self, offset: u64, bytes: &[u8]) {
        let window = self.mapping.window(offset, bytes.len() as u64).expect("inside the memory");
        assert_eq!(window.write(bytes), bytes.len());
    }

    /// Reads bytes.
    #[must_use]
    pub fn get(&self, offset: u64, length: u64) -> Vec<u8> {
        let window = self.mapping.window(offset, length).expect("inside the memory");
        let mut bytes = vec![0; window.length()];
        window.read(&mut bytes);
        bytes
    }
}

/// Bytes that differ by seed and position.
#[must_use]
pub fn pattern(seed: u64, length: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..length)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56).to_le_bytes()[0]
        })
        .collect()
}

/// A signalled request without a fence.
#[must_use]
pub fn request(id: u64, operation: Operation, local: &[LocalSlice]) -> WorkRequest {
    let mut segments = [LocalSlice::default(); 2];
    segments[..local.len()].copy_from_slice(local);
    WorkRequest { id, operation, local: segments, signalled: true, fence: false }
}

/// A harness with a log of completions.
#[derive(Debug)]
pub struct Fixture<H> {
    /// The devices.
    pub harness: H,
    /// What each side completed and no test has taken yet.
    seen: [Vec<Completion>; 2],
    alive: [bool; 2],
}

impl<H: Harness> Default for Fixture<H> {
    fn default() -> Self {
        Self { harness: H::new(), seen: [Vec::new(), Vec::new()], alive: [true, true] }
    }
}

impl<H: Harness> Fixture<H> {
    /// Two devices and one connected pair of queue pairs, 64 deep, left one first.
    #[must_use]
    pub fn connected() -> (Self, [QueuePairNumber; 2]) {
        let mut fixture = Self::default();
        let pair = fixture.connect(64);
        (fixture, pair)
    }

    /// Makes another connected pair.
    pub fn connect(&mut self, depth: u32) -> [QueuePairNumber; 2] {
        let pair = self.pair(depth);
        self.start_connect(pair);
        self.until("both queue pairs are ready", |fixture| {
            let states = Side::BOTH.map(|side| {
                let queue_pair = pair[side as usize];
                let state = fixture.state(side, queue_pair);
                // Nothing brings it back, so there is nothing to wait for.
                assert_ne!(
                    state,
                    QueuePairState::Error,
                    "the connection failed at {side:?}: {:?}",
                    fixture.device(side).failure(queue_pair)
                );
                state
            });
            states == [QueuePairState::Ready; 2]
        });
        pair
    }

    /// Makes a pair that is not connected.
    pub fn pair(&mut self, depth: u32) -> [QueuePairNumber; 2] {
        Side::BOTH.map(|side| {
            let config = QueuePairConfig { send_depth: depth, receive_depth: depth };
            self.device(side).create_queue_pair(config).expect("room for a queue pair")
        })
    }

    /// Has both sides connect, without waiting.
    pub fn start_connect(&mut self, pair: [QueuePairNumber; 2]) {
        let left = self.device(Side::Left).endpoint(pair[0]).expect("endpoint");
        let right = self.device(Side::Right).endpoint(pair[1]).expect("endpoint");
        self.device(Side::Left).connect(pair[0], &right, Role::Active).expect("connect");
        self.device(Side::Right).connect(pair[1], &left, Role::Passive).expect("connect");
    }

    /// One side's device.
    pub fn device(&mut self, side: Side) -> &mut H::Device {
        self.harness.device(side)
    }

    /// A queue pair's state.
    pub fn state(&mut self, side: Side, queue_pair: QueuePairNumber) -> QueuePairState {
        self.device(side).state(queue_pair).expect("a queue pair")
    }

    /// Registered memory.
    pub fn memory(&mut self, side: Side, length: usize, access: Access) -> Memory {
        let mapping = Arc::new(H::memory(length));
        let keys = self.device(side).register(Arc::clone(&mapping), access).expect("registered");
        Memory { mapping, keys }
    }

    /// Posts a send-queue request.
    pub fn post(&mut self, side: Side, queue_pair: QueuePairNumber, request: &WorkRequest) {
        self.device(side).post_send(queue_pair, request).expect("posted");
    }

    /// Posts a send-queue request and flushes.
    pub fn send(&mut self, side: Side, queue_pair: QueuePairNumber, request: &WorkRequest) {
        self.post(side, queue_pair, request);
        self.device(side).flush();
    }

    /// Posts a receive.
    pub fn receive(&mut self, side: Side, queue_pair: QueuePairNumber, id: u64, local: LocalSlice) {
        self.try_receive(side, queue_pair, id, local).expect("posted");
    }

    /// Posts a receive that may be refused.
    ///
    /// # Errors
    /// The device's.
    pub fn try_receive(
        &mut self,
        side: Side,
        queue_pair: QueuePairNumber,
        id: u64,
        local: LocalSlice,
    ) -> Result<(), PostError> {
        self.device(side).post_receive(queue_pair, &ReceiveRequest { id, local })
    }

    /// Destroys a queue pair, polling while it is busy.
    pub fn destroy(&mut self, side: Side, queue_pair: QueuePairNumber) {
        self.until("the queue pair is destroyed", |fixture| {
            match fixture.device(side).destroy_queue_pair(queue_pair) {
                Ok(()) => true,
                Err(QueuePairError::Busy) => {
                    fixture.device(side).fail_queue_pair(queue_pair);
                    false
                }
                Err(error) => panic!("{error}"),
            }
        });
    }

    /// Ends one side.
    pub fn kill(&mut self, side: Side) {
        self.alive[side as usize] = false;
        self.harness.kill(side);
    }

    /// Polls both devices once; whether the test may go on.
    pub fn turn(&mut self) -> bool {
        let mut idle = true;
        for side in Side::BOTH {
            if !self.alive[side as usize] {
                continue;
            }
            let now = self.harness.now();
            let mut batch = [Completion::EMPTY; 16];
            let count = self.device(side).poll(now, &mut batch);
            self.device(side).flush();
            idle &= count == 0;
            self.seen[side as usize].extend_from_slice(&batch[..count]);
        }
        self.harness.pause(idle)
    }

    /// Polls until something holds.
    pub fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        while !holds(self) {
            assert!(self.turn(), "waited too long until {what}; completed: {:?}", self.seen);
        }
    }

    /// Polls for a while during which nothing is expected; what completed stays in the log.
    pub fn linger(&mut self) {
        for _ in 0..QUIET_ROUNDS {
            assert!(self.turn(), "the test ran for too long");
        }
    }

    /// What one side completed so far.
    pub fn seen(&self, side: Side) -> &[Completion] {
        &self.seen[side as usize]
    }

    /// Waits for this many completions of one side and takes them.
    pub fn take(&mut self, side: Side, count: usize) -> Vec<Completion> {
        self.until(&format!("{count} completions of {side:?}"), |fixture| fixture.seen(side).len() >= count);
        self.seen[side as usize].drain(..count).collect()
    }

    /// Waits for this many send-queue completions of one queue pair, takes them and those before them of this queue.
    pub fn take_of(
        &mut self,
        side: Side,
        queue_pair: QueuePairNumber,
        send_queue: bool,
        count: usize,
    ) -> Vec<Completion> {
        let is_wanted = |completion: &Completion| {
            completion.queue_pair == queue_pair && (completion.kind == CompletionKind::Send) == send_queue
        };
        self.until(&format!("{count} completions of {queue_pair:?} at {side:?}"), |fixture| {
            fixture.seen(side).iter().filter(|completion| is_wanted(completion)).count() >= count
        });
        let mut taken = Vec::new();
        self.seen[side as usize].retain(|completion| {
            let take = is_wanted(completion) && taken.len() < count;
            if take {
                taken.push(*completion);
            }
            !take
        });
        taken
    }

    /// Waits for one completion and checks its id and status.
    pub fn expect(&mut self, side: Side, id: u64, status: Status) -> Completion {
        let completion = self.take(side, 1)[0];
        assert_eq!((completion.id, completion.status), (id, status), "at {side:?}: {completion:?}");
        completion
    }

    /// Lingers and checks that neither side completed anything.
    pub fn expect_silence(&mut self) {
        self.linger();
        assert_eq!(self.seen, [Vec::new(), Vec::new()], "nothing was to complete");
    }
}
