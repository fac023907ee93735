//! A device on which everything takes longer to arrive, as if its peers were farther away.

use core::time::Duration;
use std::{collections::VecDeque, time::Instant};

use ringway_verbs::{
    Access, Capabilities, Cause, Completion, CompletionKind, ConnectError, Device, DmaBuf, Endpoint,
    LocalKey, MemoryKeys, PacketBytes, PostError, QueuePairConfig, QueuePairError, QueuePairNumber,
    QueuePairState, ReceiveRequest, RegisterError, RemoteKey, Role, Status, Time, WorkRequest,
};

/// Completions taken from the device in one poll.
const BATCH: usize = 64;

/// A device whose completions are told later by a fixed time, in their order: those of receives by that time, as what
/// arrives has made the way once; those of the send queue by twice as much, as an acknowledgement, or what a READ fetches,
/// comes back from where the request went. With one at both ends a link behaves as one that is so much longer, of any
/// bandwidth: how much is on its way is bounded by the depths of queue pairs only.
///
/// For tests and measurements. What it does not delay: bytes that are written without a notice, which nobody may rely on
/// before he is told, connecting, and the word that a queue pair has failed where nothing is on its way to it.
#[derive(Debug)]
pub struct Delayed<D: ?Sized> {
    delay_ns: u64,
    /// Of send queues, and of receive queues: in either the order of coming is that of the times to tell.
    sends: VecDeque<(Time, Completion)>,
    receives: VecDeque<(Time, Completion)>,
    /// Completions that may be held: as many as requests can be posted.
    room: usize,
    /// Queue pairs and their depths together.
    queue_pairs: Vec<(QueuePairNumber, usize)>,
    /// Queue pairs that were told to fail here.
    failed: Vec<QueuePairNumber>,
    /// The caller's clock goes on between two polls.
    clock: Option<Clock>,
    inner: Box<D>,
}

impl<D: Device + ?Sized> Delayed<D> {
    /// The device, on which whatever arrives takes `delay` longer.
    #[must_use]
    pub fn new(inner: Box<D>, delay: Duration) -> Self {
        Self {
            delay_ns: u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX),
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            room: 0,
            queue_pairs: Vec::new(),
            failed: Vec::new(),
            clock: None,
            inner,
        }
    }

    /// For a caller whose clock goes on by itself: what it says in a poll is then a while ago, and long where its thread had no
    /// processor since it looked. What arrived meanwhile would come too early by that, measured from then.
    #[must_use]
    pub fn in_real_time(mut self) -> Self {
        self.clock = Some(Clock { start: Instant::now(), beyond_ns: i64::MIN });
        self
    }

    /// The device without the delay.
    #[must_use]
    pub const fn inner(&self) -> &D {
        &self.inner
    }

    /// Takes what has completed, as far as there is room to hold it.
    fn take(&mut self, now: Time) {
        let mut batch = [Completion::EMPTY; BATCH];
        let room = self.room.saturating_sub(self.sends.len() + self.receives.len()).min(BATCH);
        let count = self.inner.poll(now, batch.get_mut(..room).unwrap_or_default());
        // Also where nothing came: the more it is asked, the better it knows.
        let now = self.clock.as_mut().map_or(now, |clock| clock.now(now));
        let after = |delay_ns: u64| Time(now.0.saturating_add(delay_ns));
        for completion in batch.iter().take(count) {
            match completion.kind {
                CompletionKind::Send => {
                    self.sends.push_back((after(self.delay_ns.saturating_mul(2)), *completion));
                }
                CompletionKind::Receive | CompletionKind::ReceiveWrite => {
                    self.receives.push_back((after(self.delay_ns), *completion));
                }
            }
        }
    }

    /// Whether a completion of the queue pair that is such a one is yet to be told.
    fn holds(&self, queue_pair: QueuePairNumber, such: impl Fn(&Completion) -> bool) -> bool {
        let mut all = self.sends.iter().chain(&self.receives);
        all.any(|(_, completion)| completion.queue_pair == queue_pair && such(completion))
    }
}

/// The caller's clock, as far as it can be told from what it says.
#[derive(Debug)]
struct Clock {
    start: Instant,
    /// How far it is ahead of this one, at least.
    beyond_ns: i64,
}

impl Clock {
    /// What it says now, when it said `then` a while ago.
    fn now(&mut self, then: Time) -> Time {
        let elapsed_ns = i64::try_from(self.start.elapsed().as_nanos()).unwrap_or(i64::MAX);
        self.at(then, elapsed_ns)
    }

    fn at(&mut self, then: Time, elapsed_ns: i64) -> Time {
        let said_ns = i64::try_from(then.0).unwrap_or(i64::MAX);
        self.beyond_ns = self.beyond_ns.max(said_ns.saturating_sub(elapsed_ns));
        Time(u64::try_from(elapsed_ns.saturating_add(self.beyond_ns)).unwrap_or(0))
    }
}

/// Tells those whose time has come; how many.
fn tell(held: &mut VecDeque<(Time, Completion)>, now: Time, told: &mut [Completion]) -> usize {
    let mut count = 0;
    for slot in told {
        let Some((_, completion)) = held.pop_front_if(|(at, _)| *at <= now) else { break };
        *slot = completion;
        count += 1;
    }
    count
}

impl<D: Device + ?Sized> Device for Delayed<D> {
    type Region = D::Region;

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn for_each_counter(&self, each: &mut dyn FnMut(&'static str, u64)) {
        self.inner.for_each_counter(each);
    }

    fn register(&mut self, region: Self::Region, access: Access) -> Result<MemoryKeys, RegisterError> {
        self.inner.register(region, access)
    }

    fn register_dma_buf(&mut self, part: DmaBuf, access: Access) -> Result<MemoryKeys, RegisterError> {
        self.inner.register_dma_buf(part, access)
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

    /// Makes room for all that it can complete, so that none is made later.
    fn create_queue_pair(&mut self, config: QueuePairConfig) -> Result<QueuePairNumber, QueuePairError> {
        let number = self.inner.create_queue_pair(config)?;
        let depth = (config.send_depth as usize).saturating_add(config.receive_depth as usize);
        self.queue_pairs.push((number, depth));
        self.room = self.room.saturating_add(depth);
        self.sends.reserve(self.room.saturating_sub(self.sends.len()));
        self.receives.reserve(self.room.saturating_sub(self.receives.len()));
        Ok(number)
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

    fn packet_bytes(&self, queue_pair: QueuePairNumber) -> Option<PacketBytes> {
        self.inner.packet_bytes(queue_pair)
    }

    /// A queue pair is not broken, and not drained, before what came first has been told.
    fn state(&self, queue_pair: QueuePairNumber) -> Option<QueuePairState> {
        let state = self.inner.state(queue_pair)?;
        let came = |completion: &Completion| completion.status == Status::Success;
        let sent = |completion: &Completion| completion.kind == CompletionKind::Send;
        Some(match state {
            QueuePairState::Error if !self.failed.contains(&queue_pair) && self.holds(queue_pair, came) => {
                QueuePairState::Ready
            }
            QueuePairState::Drained if self.holds(queue_pair, sent) => QueuePairState::Draining,
            state => state,
        })
    }

    fn failure(&self, queue_pair: QueuePairNumber) -> Option<Cause> {
        self.inner.failure(queue_pair)
    }

    fn is_lost(&self) -> bool {
        self.inner.is_lost()
    }

    fn drain(&mut self, queue_pair: QueuePairNumber) -> Result<(), QueuePairError> {
        self.inner.drain(queue_pair)
    }

    fn resume(&mut self, queue_pair: QueuePairNumber) -> Result<(), QueuePairError> {
        self.inner.resume(queue_pair)
    }

    fn fail_queue_pair(&mut self, queue_pair: QueuePairNumber) {
        let known = self.queue_pairs.iter().any(|(number, _)| *number == queue_pair);
        if known && !self.failed.contains(&queue_pair) {
            self.failed.push(queue_pair);
        }
        self.inner.fail_queue_pair(queue_pair);
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePairNumber) -> Result<(), QueuePairError> {
        self.inner.destroy_queue_pair(queue_pair)?;
        for held in [&mut self.sends, &mut self.receives] {
            held.retain(|(_, completion)| completion.queue_pair != queue_pair);
        }
        self.failed.retain(|number| *number != queue_pair);
        if let Some(at) = self.queue_pairs.iter().position(|(number, _)| *number == queue_pair) {
            let (_, depth) = self.queue_pairs.swap_remove(at);
            self.room = self.room.saturating_sub(depth);
        }
        Ok(())
    }

    fn post_send(&mut self, queue_pair: QueuePairNumber, request: &WorkRequest) -> Result<(), PostError> {
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
        self.take(now);
        // What arrived first: who waits for room in a send queue waits for nobody else.
        let received = tell(&mut self.receives, now, completions);
        received + tell(&mut self.sends, now, completions.get_mut(received..).unwrap_or_default())
    }

    /// When the next completion is to be told, or the device has something to do.
    fn deadline(&self) -> Option<Time> {
        let next = [&self.sends, &self.receives].map(|held| held.front().map(|(at, _)| *at));
        next.into_iter().chain([self.inner.deadline()]).flatten().min()
    }

    fn event_descriptor(&self) -> Option<i32> {
        self.inner.event_descriptor()
    }

    /// What is held is no event: [`Device::deadline`] tells of it.
    fn arm(&mut self) -> bool {
        self.inner.arm()
    }

    fn block(&mut self, timeout: Option<Duration>) -> bool {
        self.inner.block(timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_was_looked_at_long_ago_has_gone_on() {
        // Theirs is 500 ns behind this one, and what it says is 40, 0 and 10 ns old.
        let mut clock = Clock { start: Instant::now(), beyond_ns: i64::MIN };
        assert_eq!(clock.at(Time(460), 1000), Time(460), "nothing better is known");
        assert_eq!(clock.at(Time(500), 1000), Time(500));
        assert_eq!(clock.at(Time(1490), 2000), Time(1500));
        // It may be ahead as well.
        assert_eq!(clock.at(Time(5000), 2100), Time(5000));
    }
}
