//! A measurement, as either end does it.

use std::{
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use super::Messenger;
use crate::bench::{
    costs::{Copied, Spent},
    result::{Percentiles, Polling, Test},
};

/// Bytes of a message that says nothing.
const SIGNAL_BYTES: u64 = 8;
/// By how much whoever sleeps may wake up too late: the kernel's slack, and a virtual machine's wake-up.
const OVERSLEEPING: Duration = Duration::from_micros(300);
/// Small messages that go out together where many are under way.
const BATCH: u64 = 16;

/// What is measured. Both ends do it, one of them leads.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(in crate::bench) struct Job {
    pub(in crate::bench) test: Test,
    pub(in crate::bench) bytes: u64,
    pub(in crate::bench) operations: u64,
    pub(in crate::bench) polling: Polling,
    pub(in crate::bench) leads: bool,
    /// From the beginning of one call to that of the next, in nanoseconds; 0 for one right after the other.
    pub(in crate::bench) period_ns: u64,
    /// Every message lies where the last one did.
    pub(in crate::bench) in_one_place: bool,
}

/// What an end saw.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(in crate::bench) struct Outcome {
    pub(in crate::bench) operations: u64,
    pub(in crate::bench) seconds: f64,
    /// How many times the percentiles are of.
    pub(in crate::bench) samples: u64,
    pub(in crate::bench) time_us: Percentiles,
    pub(in crate::bench) spent: Spent,
    pub(in crate::bench) copied: Option<Copied>,
    /// See [`Messenger::kernel_copies`].
    pub(in crate::bench) kernel_copies: Option<f64>,
}

impl Outcome {
    /// Puts what the end's daemon spent to it.
    pub(in crate::bench) const fn add(&mut self, daemon: &Spent) {
        self.spent.cpu_ns += daemon.cpu_ns;
        self.spent.system_calls += daemon.system_calls;
        self.spent.context_switches += daemon.context_switches;
    }
}

impl Job {
    /// Does its part.
    pub(super) fn run(&self, messenger: &mut dyn Messenger) -> Result<Outcome, String> {
        if let Some(measured) = messenger.measure(self) {
            return measured;
        }
        messenger.set_polling(self.polling)?;
        messenger.set_place(self.in_one_place);
        let mut times =
            Vec::with_capacity(if self.leads && !self.test.is_flow() { self.operations as usize } else { 0 });
        self.meet(messenger)?;
        let (calls, copied) = messenger.counts();
        let before = Spent::before_measuring();
        let begun = Instant::now();
        match (self.test, self.leads) {
            (Test::Latency | Test::ClientLatency, true) => self.ask(messenger, &mut times)?,
            (Test::Latency | Test::ClientLatency, false) => self.answer(messenger)?,
            (Test::Bandwidth | Test::MessageRate, true) => self.pour(messenger)?,
            (Test::Bandwidth | Test::MessageRate, false) => self.drain(messenger)?,
            _ => self.call(messenger, &mut times)?,
        }
        let seconds = begun.elapsed().as_secs_f64();
        let mut spent = Spent::after_measuring().since(before);
        let (calls_after, copied_after) = messenger.counts();
        spent.system_calls += calls_after.saturating_sub(calls);
        Ok(Outcome {
            operations: self.operations,
            seconds,
            samples: times.len() as u64,
            time_us: Percentiles::of(&mut times),
            spent,
            copied: copied_after.zip(copied).map(|(after, before)| after.since(before)),
            kernel_copies: messenger.kernel_copies(),
        })
    }

    /// Both ends are there, and what is needed once is done.
    fn meet(&self, messenger: &mut dyn Messenger) -> Result<(), String> {
        match self.test {
            Test::Latency | Test::ClientLatency | Test::Bandwidth | Test::MessageRate => {
                let order = if self.leads { [true, false] } else { [false, true] };
                for sends in order {
                    exchange(messenger, sends, SIGNAL_BYTES)?;
                }
                Ok(())
            }
            _ => messenger.call(self.test, self.bytes),
        }
    }

    fn ask(&self, messenger: &mut dyn Messenger, times: &mut Vec<f64>) -> Result<(), String> {
        let mut last = Instant::now();
        for _ in 0..self.operations {
            exchange(messenger, true, self.bytes)?;
            exchange(messenger, false, self.bytes)?;
            let now = Instant::now();
            times.push((now - last).as_nanos() as f64 / 2.0);
            last = now;
        }
        Ok(())
    }

    fn answer(&self, messenger: &mut dyn Messenger) -> Result<(), String> {
        for _ in 0..self.operations {
            exchange(messenger, false, self.bytes)?;
            exchange(messenger, true, self.bytes)?;
        }
        Ok(())
    }

    /// Sends all; the other end says when it has them.
    fn pour(&self, messenger: &mut dyn Messenger) -> Result<(), String> {
        let each = self.test == Test::Bandwidth;
        for operation in 1..=self.operations {
            messenger.send(self.bytes)?;
            if each || operation % BATCH == 0 {
                messenger.flush()?;
            }
        }
        messenger.flush()?;
        messenger.receive(SIGNAL_BYTES)
    }

    fn drain(&self, messenger: &mut dyn Messenger) -> Result<(), String> {
        for _ in 0..self.operations {
            messenger.receive(self.bytes)?;
        }
        exchange(messenger, true, SIGNAL_BYTES)
    }

    /// Calls one after the other, or each when it is due: one that is late makes those after it no later.
    fn call(&self, messenger: &mut dyn Messenger, times: &mut Vec<f64>) -> Result<(), String> {
        let period = Duration::from_nanos(self.period_ns);
        let mut due = Instant::now();
        for _ in 0..self.operations {
            if !period.is_zero() {
                wait_until(due);
                due += period;
            }
            let begun = Instant::now();
            messenger.call(self.test, self.bytes)?;
            let took = begun.elapsed();
            if self.leads {
                times.push(took.as_nanos() as f64);
            }
        }
        Ok(())
    }
}

/// Sleeps as long as it is sure to wake up in time, and looks at the clock from then on.
fn wait_until(due: Instant) {
    if let Some(ahead) = due.checked_duration_since(Instant::now() + OVERSLEEPING) {
        thread::sleep(ahead);
    }
    while Instant::now() < due {
        std::hint::spin_loop();
    }
}

fn exchange(messenger: &mut dyn Messenger, sends: bool, bytes: u64) -> Result<(), String> {
    if !sends {
        return messenger.receive(bytes);
    }
    messenger.send(bytes)?;
    messenger.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes when it is called. Its third call takes several periods.
    struct Noting(Vec<Instant>);

    const PERIOD: Duration = Duration::from_millis(2);

    impl Messenger for Noting {
        fn connect(&mut self, _peer: &crate::bench::end::Address, _active: bool) -> Result<(), String> {
            Ok(())
        }

        fn set_polling(&mut self, _polling: Polling) -> Result<(), String> {
            Ok(())
        }

        fn send(&mut self, _bytes: u64) -> Result<(), String> {
            Ok(())
        }

        fn flush(&mut self) -> Result<(), String> {
            Ok(())
        }

        fn receive(&mut self, _bytes: u64) -> Result<(), String> {
            Ok(())
        }

        fn call(&mut self, _test: Test, _bytes: u64) -> Result<(), String> {
            self.0.push(Instant::now());
            if self.0.len() == 3 {
                thread::sleep(PERIOD * 5);
            }
            Ok(())
        }

        fn counts(&self) -> (u64, Option<Copied>) {
            (0, None)
        }
    }

    #[test]
    fn calls_are_made_when_they_are_due() {
        let job = Job {
            test: Test::DaemonNoop,
            bytes: 0,
            operations: 10,
            polling: Polling::Spin,
            leads: true,
            period_ns: PERIOD.as_nanos() as u64,
            in_one_place: false,
        };
        let (mut noting, mut times, begun) = (Noting(Vec::new()), Vec::new(), Instant::now());
        job.call(&mut noting, &mut times).expect("called");
        assert_eq!((noting.0.len(), times.len()), (10, 10));
        for (at, called) in (0..).zip(&noting.0) {
            // Counted from the beginning, not from the call before, which may have been late.
            assert!(*called - begun >= PERIOD * at, "call {at} was made too early");
        }
        let waited = (noting.0[9] - noting.0[3]).as_nanos() < (PERIOD * 6).as_nanos();
        assert!(waited, "a late call makes those after it no later");
    }
}
