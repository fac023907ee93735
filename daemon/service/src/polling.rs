//! When to spin, when to hand over and when to sleep.
//!
//! A wait costs either the time spun or a wake-up; spinning for as long as a wake-up takes and then sleeping costs at
//! most twice what a clairvoyant would pay (the ski-rental bound; Karlin et al., "Empirical studies of competitive
//! spinning for a shared-memory multiprocessor", SOSP 1991). While operations are outstanding the next event is
//! likely near, so the budget is larger then. With more pollers than CPUs a spinning thread keeps the very thread it
//! waits for from running: then every fruitless turn gives the CPU away.

mod arithmetic;
mod calibrate;
mod company;
mod cpus;

use std::time::Duration;

use company::Company;

pub(crate) use arithmetic::arithmetic_cost;
pub(crate) use calibrate::wake_up_cost;
pub(crate) use cpus::{allowed_cpus, parallelism, parallelism_with_clients, processors_of};

use crate::config::PollingMode;

/// How much longer than a wake-up costs to spin while operations are outstanding.
const OUTSTANDING_FACTOR: u32 = 16;

/// A bound on spinning while operations are outstanding: a rank that computes for longer is worth a wake-up.
const OUTSTANDING_MAX: Duration = Duration::from_millis(2);

/// How long to spin before giving the CPU away between turns, where every known poller has one: threads of others may
/// want it too (another daemon on this host, a rank of a communicator that is still being formed), and where nobody
/// does, giving it away costs a fraction of a microsecond.
const SPIN_ALONE: Duration = Duration::from_micros(4);

/// How long to work before the CPU is offered to others. The scheduler would let a thread that always has work go on for
/// milliseconds, whatever else waits for its CPU: ranks of a small call, for instance. Where nobody does, offering it costs
/// a fraction of a microsecond.
const SHARE_AFTER: Duration = Duration::from_micros(20);

/// What to do after a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Take another turn at once.
    Turn,
    /// Let another thread run, then take another turn.
    HandOver,
    /// Sleep until something happens.
    Sleep,
}

/// Who was told something in a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Told {
    Nobody,
    /// Clients that look for it.
    Polling,
    /// One that had to be woken, among others.
    Sleeping,
}

/// Decides what to do after each turn.
#[derive(Debug)]
pub(crate) struct Polling {
    mode: PollingMode,
    idle_budget_ns: u64,
    outstanding_budget_ns: u64,
    cpus: u32,
    last_work_ns: u64,
    /// When others could last have the CPU.
    shared_ns: u64,
    company: Company,
}

impl Polling {
    /// `spin` is how long to spin after the last work; `cpus` how many threads can run at a time.
    pub(crate) fn new(mode: PollingMode, spin: Duration, cpus: u32) -> Self {
        let outstanding = (spin * OUTSTANDING_FACTOR).min(OUTSTANDING_MAX).max(spin);
        let ns = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        Self {
            mode,
            idle_budget_ns: ns(spin),
            outstanding_budget_ns: ns(outstanding),
            cpus: cpus.max(1),
            last_work_ns: 0,
            shared_ns: 0,
            company: Company::new(),
        }
    }

    /// The mode.
    pub(crate) fn mode(&self) -> PollingMode {
        self.mode
    }

    /// How long it spins after the last work.
    pub(crate) fn budget(&self) -> Duration {
        Duration::from_nanos(self.idle_budget_ns)
    }

    /// What to do after a turn at `now_ns` that did something (`worked`) and told clients of it, with
    /// operations outstanding or not, when `pollers` threads (the clients' and this one) may be spinning.
    pub(crate) fn after_turn(
        &mut self,
        now_ns: u64,
        turn: (bool, Told),
        outstanding: bool,
        pollers: u32,
    ) -> Next {
        let next = self.next(now_ns, turn, outstanding, pollers);
        if matches!(next, Next::HandOver | Next::Sleep) {
            self.shared_ns = now_ns;
        }
        next
    }

    /// The CPU was given away, and came back at `now_ns` after so long. `clients` are the CPUs that clients say they wait on.
    pub(crate) fn handed_over(&mut self, now_ns: u64, took_ns: u64, clients: impl Iterator<Item = usize>) {
        self.shared_ns = now_ns;
        self.company.handed_over(now_ns, took_ns);
        if self.company.wants_look(now_ns) {
            self.company.look(now_ns, clients);
        }
    }

    fn next(&mut self, now_ns: u64, (worked, told): (bool, Told), outstanding: bool, pollers: u32) -> Next {
        if worked {
            self.last_work_ns = now_ns;
            let unshared_ns = now_ns.saturating_sub(self.shared_ns);
            // A client that waits for what it was just told needs a CPU to see it; one that slept did so here, maybe.
            let wanted = match told {
                Told::Nobody => false,
                Told::Polling => self.crowded(pollers) || self.company.is_shared(),
                Told::Sleeping => true,
            };
            let hands_over = wanted || u128::from(unshared_ns) >= SHARE_AFTER.as_nanos();
            return if hands_over && !self.company.is_kept(now_ns) { Next::HandOver } else { Next::Turn };
        }
        let waited_ns = now_ns.saturating_sub(self.last_work_ns);
        let spun_ns = if self.company.is_shared() {
            // A client that shares this CPU had it a moment ago, and gave it back because it waits for this thread; to
            // strangers every moment counts.
            let spun_ns = now_ns.saturating_sub(self.shared_ns);
            if self.company.is_beside_client() { spun_ns } else { u64::MAX }
        } else {
            waited_ns
        };
        let alone = !self.crowded(pollers) && u128::from(spun_ns) < SPIN_ALONE.as_nanos();
        let budget = if outstanding { self.outstanding_budget_ns } else { self.idle_budget_ns };
        match self.mode {
            PollingMode::Block => Next::Sleep,
            PollingMode::Adaptive if waited_ns >= budget => Next::Sleep,
            // A turn that finds nothing takes as long as pausing would.
            _ if alone => Next::Turn,
            PollingMode::Spin if self.company.is_kept(now_ns) => Next::Turn,
            PollingMode::Adaptive if self.company.is_kept(now_ns) => Next::Sleep,
            _ => Next::HandOver,
        }
    }

    fn crowded(&self, pollers: u32) -> bool {
        pollers > self.cpus
    }

    /// A sleep ended at `now_ns`: what woke it is worth a fresh budget.
    pub(crate) fn woke(&mut self, now_ns: u64) {
        self.last_work_ns = now_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mode_waits_in_its_own_way() {
        let spin = Duration::from_micros(10);
        let mut adaptive = Polling::new(PollingMode::Adaptive, spin, 2);
        assert_eq!(adaptive.after_turn(1_000, (true, Told::Polling), true, 2), Next::Turn);
        assert_eq!(adaptive.after_turn(4_999, (false, Told::Nobody), false, 2), Next::Turn);
        assert_eq!(
            adaptive.after_turn(10_000, (false, Told::Nobody), false, 2),
            Next::HandOver,
            "others may want the CPU"
        );
        assert_eq!(adaptive.after_turn(11_000, (false, Told::Nobody), false, 2), Next::Sleep);
        assert_eq!(
            adaptive.after_turn(11_000, (false, Told::Nobody), true, 2),
            Next::HandOver,
            "work is outstanding"
        );
        assert_eq!(
            adaptive.after_turn(10_000_000, (false, Told::Nobody), true, 2),
            Next::Sleep,
            "but not for ever"
        );
        let mut spinning = Polling::new(PollingMode::Spin, spin, 2);
        assert_eq!(spinning.after_turn(3_999, (false, Told::Nobody), false, 1), Next::Turn);
        assert_eq!(spinning.after_turn(u64::MAX, (false, Told::Nobody), false, 1), Next::HandOver);
        let mut blocking = Polling::new(PollingMode::Block, spin, 2);
        assert_eq!(blocking.after_turn(5, (false, Told::Nobody), true, 1), Next::Sleep);
    }

    #[test]
    fn long_work_is_interrupted() {
        let mut polling = Polling::new(PollingMode::Adaptive, Duration::from_micros(10), 2);
        let mut hand_overs = |from_us: u64| {
            let after = (from_us..from_us + 200)
                .step_by(10)
                .map(|us| polling.after_turn(us * 1000, (true, Told::Nobody), true, 1));
            after.filter(|next| *next == Next::HandOver).count()
        };
        assert_eq!([hand_overs(50), hand_overs(250)], [10, 10]);
    }

    #[test]
    fn with_more_pollers_than_cpus_the_cpu_is_handed_over() {
        let mut polling = Polling::new(PollingMode::Adaptive, Duration::from_micros(10), 2);
        assert_eq!(polling.after_turn(100, (true, Told::Polling), true, 3), Next::HandOver);
        assert_eq!(polling.after_turn(200, (false, Told::Nobody), true, 3), Next::HandOver);
        assert_eq!(polling.after_turn(10_000_000, (false, Told::Nobody), true, 3), Next::Sleep);
    }

    #[test]
    fn a_cpu_that_others_want_is_given_away_in_time() {
        let mut polling = Polling::new(PollingMode::Spin, Duration::from_micros(10), 2);
        let (worked, idle) = ((true, Told::Polling), (false, Told::Nobody));
        polling.handed_over(1_000, 3_000, 0..0);
        assert_eq!(polling.after_turn(1_100, worked, true, 2), Next::HandOver, "a client was told");
        assert_eq!(polling.after_turn(1_200, idle, true, 2), Next::HandOver, "strangers wait");
        // A client on every CPU, this one among them.
        polling.handed_over(1_000_000, 3_000, 0..rustix::thread::CpuSet::MAX_CPU);
        assert_eq!(polling.after_turn(1_003_999, idle, true, 2), Next::Turn, "it had the CPU a moment ago");
        assert_eq!(polling.after_turn(1_004_000, idle, true, 2), Next::HandOver);
        polling.handed_over(1_010_000, 3_000, 0..0);
        assert_eq!(polling.after_turn(1_010_100, worked, true, 2), Next::HandOver, "a client was told");
        for _ in 0..4 {
            polling.handed_over(1_020_000, 300, 0..0);
        }
        assert_eq!(polling.after_turn(1_020_100, worked, true, 2), Next::Turn, "nobody else is here");
        let woke = (true, Told::Sleeping);
        assert_eq!(polling.after_turn(1_020_200, woke, true, 2), Next::HandOver, "but for who was woken");
    }

    #[test]
    fn who_keeps_the_cpu_is_given_none_for_a_while() {
        let after = |mode, turn, at_ms: u64| {
            let mut polling = Polling::new(mode, Duration::from_millis(500), 2);
            polling.handed_over(4_000_000, 4_000_000, 0..0);
            polling.after_turn(at_ms * 1_000_000, turn, true, 3)
        };
        let (worked, idle) = ((true, Told::Polling), (false, Told::Nobody));
        assert_eq!(after(PollingMode::Adaptive, worked, 60), Next::Turn);
        assert_eq!(
            after(PollingMode::Adaptive, idle, 60),
            Next::Sleep,
            "who wakes up runs before who computes"
        );
        assert_eq!(after(PollingMode::Spin, idle, 60), Next::Turn);
        let modes = [PollingMode::Adaptive, PollingMode::Spin];
        assert_eq!(modes.map(|mode| after(mode, idle, 70)), [Next::HandOver; 2], "it may be gone");
    }
}
