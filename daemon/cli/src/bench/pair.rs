//! Two ends as whoever measures has them: tells them what to do, puts together what they say.

use std::time::{Duration, Instant};

use super::{
    costs::{Copied, Spent},
    daemons::Daemons,
    end::{Address, Answer, Command, EndOutcome, Job, Kind, Part},
    end_process::EndProcess,
    far::FarEnd,
    interrupt::Interrupt,
    result::{Percentiles, Polling, Test},
};

/// One end, and what it is made of.
#[derive(Debug)]
pub(super) enum End {
    /// A process of this machine.
    Here(EndProcess, Kind),
    /// A process that the server has.
    There(FarEnd),
}

impl End {
    fn open(&mut self) -> Result<(), String> {
        match self {
            Self::Here(process, kind) => process.tell(&Command::Open(kind.clone())),
            Self::There(far) => far.open(),
        }
    }

    fn tell(&mut self, command: &Command) -> Result<(), String> {
        match self {
            Self::Here(process, _) => process.tell(command),
            Self::There(far) => far.tell(command),
        }
    }

    fn answer(&self, interrupt: &Interrupt) -> Result<Answer, String> {
        match self {
            Self::Here(process, _) => process.answer(interrupt),
            Self::There(far) => far.answer(),
        }
    }
}

/// Ends that are connected: two, or one alone with its daemon.
#[derive(Debug)]
pub(super) struct Ends {
    ends: Vec<End>,
    /// Daemons of this machine whose costs count.
    daemons: Daemons,
    interrupt: Interrupt,
    /// Something failed: nothing more can be measured here.
    broken: bool,
}

/// What was measured once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measured {
    pub(super) operations: u64,
    pub(super) seconds: f64,
    /// How many times the percentiles are of.
    pub(super) samples: u64,
    pub(super) time_us: Percentiles,
    pub(super) spent: Spent,
    /// By the daemons alone, which is part of `spent`.
    pub(super) daemons_cpu_ns: u64,
    pub(super) copied: Option<Copied>,
    /// How often the kernel copies each byte, both ends together, if they know.
    pub(super) kernel_copies: Option<f64>,
}

/// What to measure once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Task {
    pub(super) test: Test,
    pub(super) bytes: u64,
    pub(super) operations: u64,
    pub(super) polling: Polling,
    /// See [`Job::period_ns`].
    pub(super) period_ns: u64,
    /// Every message lies where the last one did, so that the caches have it; else the next lies beside it.
    pub(super) in_one_place: bool,
}

impl Task {
    /// One after the other, with messages beside each other.
    pub(super) const fn new(test: Test, bytes: u64, operations: u64, polling: Polling) -> Self {
        Self { test, bytes, operations, polling, period_ns: 0, in_one_place: false }
    }
}

impl Ends {
    /// Opens and connects them. The first opens the connection.
    pub(super) fn start(ends: Vec<End>, daemons: Daemons, interrupt: &Interrupt) -> Result<Self, String> {
        let mut all = Self { ends, daemons, interrupt: interrupt.clone(), broken: false };
        let opened = all.ask_all(|_, end| end.open())?;
        let addresses: Vec<Address> = opened
            .into_iter()
            .map(|answer| if let Answer::Opened(at) = answer { at } else { Address::default() })
            .collect();
        all.ask_all(|at, end| {
            let peer = addresses.get(1 - at.min(1)).or(addresses.first()).cloned().unwrap_or_default();
            end.tell(&Command::Connect { peer, active: at == 0 })
        })?;
        all.rest()?;
        Ok(all)
    }

    /// Nobody waits for anything any more.
    fn rest(&mut self) -> Result<(), String> {
        self.ends.iter_mut().try_for_each(|end| end.tell(&Command::Rest))
    }

    /// Tells every end something, and waits for all answers. The ends that do not lead are told first.
    fn ask_all(
        &mut self,
        tell: impl Fn(usize, &mut End) -> Result<(), String>,
    ) -> Result<Vec<Answer>, String> {
        let told = self.ends.iter_mut().enumerate().rev().try_for_each(|(at, end)| tell(at, end));
        let interrupt = &self.interrupt;
        // All are asked, also when one has failed: what it says is why the others do.
        let answers: Vec<_> =
            told.map(|()| self.ends.iter().map(|end| end.answer(interrupt)).collect::<Vec<_>>())?;
        let (answers, failures): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
        let failures: Vec<String> = failures.into_iter().filter_map(Result::err).collect();
        self.broken |= !failures.is_empty();
        if failures.is_empty() {
            Ok(answers.into_iter().flatten().collect())
        } else {
            Err(failures.join("; "))
        }
    }

    /// Measures once.
    pub(super) fn run(&mut self, task: &Task) -> Result<Measured, String> {
        if self.broken {
            return Err("an earlier measurement failed".to_owned());
        }
        let &Task { test, bytes, operations, polling, period_ns, in_one_place } = task;
        let before = self.daemons.account()?;
        let answers = self.ask_all(|at, end| {
            let leads = at == 0;
            end.tell(&Command::Run(Job { test, bytes, operations, polling, leads, period_ns, in_one_place }))
        })?;
        let daemons = self.daemons.spent_since(&before)?;
        self.rest()?;
        let outcomes: Vec<EndOutcome> = answers
            .into_iter()
            .filter_map(|answer| if let Answer::Done(one) = answer { Some(one) } else { None })
            .collect();
        let leader = outcomes.first().copied().unwrap_or_default();
        let sum = |each: fn(&Spent) -> u64| {
            outcomes.iter().map(|one| each(&one.spent)).sum::<u64>() + each(&daemons)
        };
        let spent = Spent {
            cpu_ns: sum(|spent| spent.cpu_ns),
            system_calls: sum(|spent| spent.system_calls),
            context_switches: sum(|spent| spent.context_switches),
            interrupts: leader.spent.interrupts,
            interrupts_ms: leader.spent.interrupts_ms,
        };
        Ok(Measured {
            operations: leader.operations,
            seconds: leader.seconds,
            samples: leader.samples,
            time_us: leader.time_us,
            spent,
            daemons_cpu_ns: daemons.cpu_ns,
            copied: outcomes
                .iter()
                .map(|one| one.copied)
                .try_fold(Copied::default(), |sum, one| Some(sum.and(one?))),
            kernel_copies: outcomes.iter().map(|one| one.kernel_copies).sum(),
        })
    }

    /// Whether nothing has failed here.
    pub(super) const fn works(&self) -> bool {
        !self.broken
    }

    /// What the daemons spend while nobody asks them for anything.
    pub(super) fn idle(&self, time: Duration) -> Result<Measured, String> {
        let (before, begun) = (self.daemons.account()?, Instant::now());
        std::thread::sleep(time);
        let spent = self.daemons.spent_since(&before)?;
        Ok(Measured {
            operations: 0,
            seconds: begun.elapsed().as_secs_f64(),
            samples: 0,
            time_us: Percentiles::default(),
            spent,
            daemons_cpu_ns: spent.cpu_ns,
            copied: None,
            kernel_copies: None,
        })
    }

    /// The parts of a message's way, as the end that does not lead sees them.
    pub(super) fn parts(&mut self) -> Result<Vec<Part>, String> {
        let answers = self.ask_all(|at, end| end.tell(&Command::Parts { leads: at == 0 }))?;
        Ok(answers
            .into_iter()
            .rev()
            .find_map(|answer| if let Answer::Parts(parts) = answer { Some(parts) } else { None })
            .unwrap_or_default())
    }
}
