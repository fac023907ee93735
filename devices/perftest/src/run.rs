//! The measurements: who posts what when, as in perftest's programs.

use ringway_verbs::{
    Completion, CompletionKind, Device as _, LocalSlice, Operation, ReceiveRequest, RemoteKey, RemoteSlice,
    Status, WorkRequest,
};

use crate::{
    contents::Came,
    error::Failure,
    layout::Steps,
    options::Verb,
    report::{Row, Times},
    session::{Session, Waiting},
};

/// Completions taken at once.
const BATCH: usize = 16;

/// How far a queue pair is.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Progress {
    pub(crate) posted: u64,
    pub(crate) done: u64,
}

impl Session {
    /// A request of the test's verb: message `number` of queue pair `index`.
    fn request(&self, index: usize, number: u64, bytes: u64, steps: Steps) -> WorkRequest {
        let verb = self.options.test.verb;
        let theirs = self.connections.get(index).map(|connection| connection.theirs);
        let (key, address) = theirs.map_or((0, 0), |theirs| (theirs.key, theirs.address));
        let remote = RemoteSlice { key: RemoteKey(key), offset: address.wrapping_add(steps.at(number)) };
        let operation = match verb {
            Verb::Send => Operation::Send { immediate: None },
            Verb::Write => Operation::Write { remote },
            Verb::Read => Operation::Read { remote },
            Verb::FetchAdd => Operation::FetchAdd { remote, add: 1 },
            Verb::CompareSwap => Operation::CompareSwap { remote, expected: 0, desired: 0 },
        };
        let offset = self.local(index, number, bytes, steps);
        let local = LocalSlice { key: self.key, offset, length: bytes };
        let local = [local, LocalSlice::default()];
        WorkRequest { id: index as u64, operation, local, signalled: true, fence: false }
    }

    /// Where a message is on this side.
    fn local(&self, index: usize, number: u64, bytes: u64, steps: Steps) -> u64 {
        if self.options.test.verb.fetches() {
            self.arrivals.at(index, number, bytes)
        } else {
            self.layout.sending(index) + steps.at(number)
        }
    }

    /// Posts a message.
    fn post(&mut self, index: usize, number: u64, bytes: u64, steps: Steps) -> Result<(), Failure> {
        let request = self.request(index, number, bytes, steps);
        let Some(connection) = self.connections.get(index) else { return Ok(()) };
        self.device.post_send(connection.number, &request).map_err(|error| Failure::Post { index, error })
    }

    /// Posts a message and rings the doorbell: it is on its way before anything else is looked at.
    fn post_now(&mut self, index: usize, number: u64, bytes: u64) -> Result<(), Failure> {
        self.post(index, number, bytes, Steps::STILL)?;
        self.device.flush();
        Ok(())
    }

    /// Posts as many receives as there is room for, up to this many in all.
    fn post_receives(
        &mut self,
        index: usize,
        progress: &mut Progress,
        bytes: u64,
        all: u64,
    ) -> Result<(), Failure> {
        let room = self.arrivals.places(bytes);
        let Some(connection) = self.connections.get(index) else { return Ok(()) };
        while progress.posted < all && progress.posted - progress.done < room {
            let offset = self.arrivals.at(index, progress.posted, bytes);
            let local = LocalSlice { key: self.key, offset, length: bytes };
            let request = ReceiveRequest { id: index as u64, local };
            self.device
                .post_receive(connection.number, &request)
                .map_err(|error| Failure::Post { index, error })?;
            progress.posted += 1;
        }
        Ok(())
    }

    /// As many messages at once as may be: what perftest's bandwidth tests do.
    pub(crate) fn send_many(&mut self, bytes: u64) -> Result<Row, Failure> {
        let (iterations, fetches) = (self.options.iterations, self.options.test.verb.fetches());
        let room = if fetches { self.arrivals.places(bytes) } else { u64::MAX };
        let depth = u64::from(self.options.send_depth).min(room);
        let steps = self.layout.steps(bytes);
        let mut progress = vec![Progress::default(); self.connections.len()];
        let all = iterations * progress.len() as u64;
        let mut times = Times::new(all);
        let mut completions = [Completion::EMPTY; BATCH];
        let begin = self.clock.now().0;
        let mut waiting = Waiting::for_messages(all);
        while (times.completed.len() as u64) < all {
            for index in 0..progress.len() {
                while let Some(one) = progress.get_mut(index)
                    && one.posted < iterations
                    && one.posted - one.done < depth
                {
                    times.posted.push(self.clock.now().0);
                    let number = one.posted;
                    one.posted += 1;
                    self.post(index, number, bytes, steps)?;
                }
            }
            let count = self.poll(&mut completions);
            let now = self.clock.now().0;
            waiting.look(self, count, times.completed.len() as u64)?;
            for completion in completions.iter().take(count) {
                let index = completion.id as usize;
                let Some(one) = progress.get_mut(index) else { continue };
                let (number, status, done) = (one.done, completion.status, times.completed.len() as u64);
                if status != Status::Success {
                    return Err(self.failure(index, status, done, all));
                }
                one.done += 1;
                times.completed.push(now);
                self.check_brought(index, number, bytes, steps)?;
            }
        }
        let end = times.completed.last().copied().unwrap_or(begin);
        let checked = self.options.check && fetches;
        Ok(Row::bandwidth(bytes, &times, begin, end, checked))
    }

    /// Checks what a READ or an atomic has brought.
    fn check_brought(&mut self, index: usize, message: u64, bytes: u64, steps: Steps) -> Result<(), Failure> {
        let verb = self.options.test.verb;
        if !self.options.check || !verb.fetches() {
            return Ok(());
        }
        let came = Came { index, message, from: self.layout.receiving(index) + steps.at(message) };
        let at = self.local(index, message, bytes, steps);
        if verb.is_atomic() { self.check_fetched(came, at, steps) } else { self.check(came, at, bytes) }
    }

    /// What a server of a SEND test does meanwhile.
    pub(crate) fn receive_many(&mut self, bytes: u64) -> Result<Row, Failure> {
        let iterations = self.options.iterations;
        let steps = self.layout.steps(bytes);
        let mut progress = vec![Progress::default(); self.connections.len()];
        let all = iterations * progress.len() as u64;
        for (index, one) in progress.iter_mut().enumerate() {
            self.post_receives(index, one, bytes, iterations)?;
        }
        self.turn(0, false)?;
        let mut times = Times::new(all);
        let mut completions = [Completion::EMPTY; BATCH];
        let mut waiting = Waiting::for_messages(all);
        while (times.completed.len() as u64) < all {
            let count = self.poll(&mut completions);
            let now = self.clock.now().0;
            waiting.look_for_messages(self, count, times.completed.len() as u64)?;
            for completion in completions.iter().take(count) {
                let index = completion.id as usize;
                let Some(one) = progress.get_mut(index) else { continue };
                let done = times.completed.len() as u64;
                self.received(completion, bytes, done, all)?;
                let came =
                    Came { index, message: one.done, from: self.layout.sending(index) + steps.at(one.done) };
                self.check(came, self.arrivals.at(index, one.done, bytes), bytes)?;
                times.completed.push(now);
                one.done += 1;
                self.post_receives(index, one, bytes, iterations)?;
            }
        }
        let first = times.completed.first().copied().unwrap_or_default();
        let last = times.completed.last().copied().unwrap_or_default();
        Ok(Row::bandwidth(bytes, &times, first, last, self.options.check))
    }

    /// Whether a message came, and one of the right length.
    fn received(&self, completion: &Completion, bytes: u64, done: u64, expected: u64) -> Result<(), Failure> {
        let (index, status) = (completion.id as usize, completion.status);
        if status != Status::Success {
            return Err(self.failure(index, status, done, expected));
        }
        if completion.length != bytes {
            return Err(Failure::Length { index, found: completion.length, expected: bytes });
        }
        Ok(())
    }

    /// SENDs back and forth; the client's is the first.
    pub(crate) fn send_in_turn(&mut self, bytes: u64) -> Result<Row, Failure> {
        let (iterations, first) = (self.options.iterations, self.is_client());
        let (mut receives, mut sends) = (Progress::default(), Progress::default());
        self.post_receives(0, &mut receives, bytes, iterations)?;
        self.turn(0, false)?;
        let mut times = Times::new(iterations);
        let mut completions = [Completion::EMPTY; BATCH];
        let mut waiting = Waiting::for_messages(iterations);
        while receives.done < iterations || sends.done < iterations {
            let ours = if first { sends.posted <= receives.done } else { sends.posted < receives.done };
            if sends.posted < iterations && sends.posted == sends.done && ours {
                times.posted.push(self.clock.now().0);
                self.post_now(0, sends.posted, bytes)?;
                sends.posted += 1;
            }
            let count = self.poll(&mut completions);
            waiting.look_for_messages(self, count, receives.done)?;
            for completion in completions.iter().take(count) {
                self.received(completion, bytes, receives.done + sends.done, 2 * iterations)?;
                if completion.kind == CompletionKind::Send {
                    sends.done += 1;
                    continue;
                }
                let came = Came { index: 0, message: receives.done, from: self.layout.sending(0) };
                self.check(came, self.arrivals.at(0, receives.done, bytes), bytes)?;
                receives.done += 1;
                self.post_receives(0, &mut receives, bytes, iterations)?;
            }
        }
        Ok(Row::latency(bytes, &times.posted, 0.5, self.options.check))
    }

    /// WRITEs back and forth, seen by polling the last byte; the server's is the first.
    pub(crate) fn write_in_turn(&mut self, bytes: u64) -> Result<Row, Failure> {
        let (iterations, first) = (self.options.iterations, !self.is_client());
        let (mut seen, mut sends) = (0, Progress::default());
        let mut times = Times::new(iterations);
        let mut completions = [Completion::EMPTY; BATCH];
        let mut waiting = Waiting::for_messages(2 * iterations);
        let last = bytes.saturating_sub(1);
        let (polled, written) = (self.layout.receiving(0) + last, self.layout.sending(0) + last);
        while seen < iterations || sends.done < iterations {
            let ours = if first { sends.posted <= seen } else { sends.posted < seen };
            if sends.posted < iterations && sends.posted == sends.done && ours {
                times.posted.push(self.clock.now().0);
                self.write_byte(written, (sends.posted + 1) as u8);
                self.post_now(0, sends.posted, bytes)?;
                sends.posted += 1;
            }
            let count = self.poll(&mut completions);
            let done = seen + sends.done;
            // The peer is gone once it has seen everything: then what it did not acknowledge has come as well.
            if done + 1 == 2 * iterations && seen == iterations && self.channel.hung_up() {
                break;
            }
            waiting.look(self, count, done)?;
            for completion in completions.iter().take(count) {
                let status = completion.status;
                if status != Status::Success {
                    return Err(self.failure(0, status, done, 2 * iterations));
                }
                sends.done += 1;
            }
            if seen < iterations && self.read_byte(polled) == (seen + 1) as u8 {
                seen += 1;
            }
        }
        self.check_polled(iterations.saturating_sub(1), last)?;
        Ok(Row::latency(bytes, &times.posted, 0.5, self.options.check))
    }

    /// READs or atomics, the next when the last is done.
    pub(crate) fn fetch_one_by_one(&mut self, bytes: u64) -> Result<Row, Failure> {
        let iterations = self.options.iterations;
        let mut times = Times::new(iterations);
        let mut completions = [Completion::EMPTY; BATCH];
        let mut waiting = Waiting::for_messages(iterations);
        for number in 0..iterations {
            times.posted.push(self.clock.now().0);
            self.post_now(0, number, bytes)?;
            loop {
                let count = self.poll(&mut completions);
                waiting.look(self, count, number)?;
                if let Some(completion) = completions.iter().take(count).next() {
                    let status = completion.status;
                    if status != Status::Success {
                        return Err(self.failure(0, status, number, iterations));
                    }
                    break;
                }
            }
            self.check_brought(0, number, bytes, Steps::STILL)?;
        }
        Ok(Row::latency(bytes, &times.posted, 1.0, self.options.check))
    }

    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        self.device.poll(self.clock.now(), completions)
    }

    /// A request ended so, after so many messages.
    fn failure(&self, index: usize, status: Status, done: u64, expected: u64) -> Failure {
        let error = self.connections.get(index).and_then(|it| self.device.last_error(it.number));
        let error = error.map_or_else(|| "no error is known".to_owned(), ToString::to_string);
        let counted = self.device.counters();
        let sent = counted.transport;
        let refused = match counted.link.last_refusal {
            0 => String::new(),
            errno => format!("; the system refused packets: {}", std::io::Error::from_raw_os_error(errno)),
        };
        let reason = format!(
            "{error} ({} packets sent, {} of them again, {} received){refused}",
            sent.sent, sent.retransmitted, sent.received
        );
        Failure::Request { index, status, done, expected, reason }
    }

    fn read_byte(&self, at: u64) -> u8 {
        let mut byte = [0];
        if let Some(window) = self.mapping.window(at, 1) {
            window.read(&mut byte);
        }
        byte[0]
    }

    fn write_byte(&self, at: u64, byte: u8) {
        if let Some(window) = self.mapping.window(at, 1) {
            window.write(&[byte]);
        }
    }
}
