//! The parent's side of two ends: starts them, tells them what to do, puts together what they say.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    os::unix::process::CommandExt as _,
    process::{Child, ChildStdin, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::{Duration, Instant},
};

use super::{
    costs::Spent,
    end::{Address, Answer, Command, END, EndOutcome, Job, Kind, Part},
    interrupt::Interrupt,
    result::{Percentiles, Polling, Test},
};
use crate::local::{
    namespace::Namespace,
    process::{helper_command, signal_group},
};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(40);
/// How often an interrupt is looked for meanwhile.
const LOOK: Duration = Duration::from_millis(200);

/// A process that is told what to do.
#[derive(Debug)]
struct End {
    process: Child,
    commands: ChildStdin,
    answers: Receiver<String>,
}

impl End {
    fn start(place: usize, namespace: Option<&Namespace>) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|e| e.to_string())?;
        let arguments = [END.into(), place.to_string().into()];
        let mut command = helper_command(namespace, program, arguments).map_err(|e| e.to_string())?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut process = command.spawn().map_err(|e| format!("cannot start an end: {e}"))?;
        let (Some(commands), Some(answers)) = (process.stdin.take(), process.stdout.take()) else {
            return Err("an end without pipes".to_owned());
        };
        let (tell, told) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(answers).lines().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self { process, commands, answers: told })
    }

    fn tell(&mut self, command: &Command) -> Result<(), String> {
        let text = serde_json::to_string(command).map_err(|e| e.to_string())?;
        let written = writeln!(self.commands, "{text}").and_then(|()| self.commands.flush());
        written.map_err(|e| format!("an end has gone: {e}"))
    }

    fn answer(&self, interrupt: &Interrupt) -> Result<Answer, String> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.answers.recv_timeout(LOOK) {
                Ok(line) => {
                    return match serde_json::from_str(&line) {
                        Ok(Answer::Failed(why)) => Err(why),
                        Ok(answer) => Ok(answer),
                        Err(_) => Err(format!("an end said `{line}`")),
                    };
                }
                Err(RecvTimeoutError::Disconnected) => return Err("an end has gone".to_owned()),
                Err(RecvTimeoutError::Timeout) if interrupt.came() => return Err("interrupted".to_owned()),
                Err(RecvTimeoutError::Timeout) if Instant::now() > until => {
                    return Err(format!("an end said nothing for {} s", PATIENCE.as_secs()));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        signal_group(self.process.id(), rustix::process::Signal::KILL);
        let _ = self.process.wait();
    }
}

/// Ends that are connected: two, or one alone with its daemon.
#[derive(Debug)]
pub(super) struct Ends {
    ends: Vec<End>,
    /// Daemons whose costs count.
    daemons: Vec<u32>,
    interrupt: Interrupt,
    /// Something failed: nothing more can be measured here.
    broken: bool,
}

/// What was measured once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measured {
    pub(super) operations: u64,
    pub(super) seconds: f64,
    pub(super) time_us: Percentiles,
    pub(super) spent: Spent,
    /// By the daemons alone, which is part of `spent`.
    pub(super) daemons_cpu_ns: u64,
    pub(super) system_calls: Option<u64>,
    pub(super) copied_bytes: Option<u64>,
}

/// What to measure once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Task {
    pub(super) test: Test,
    pub(super) bytes: u64,
    pub(super) operations: u64,
    pub(super) polling: Polling,
    pub(super) load: f64,
}

impl Ends {
    /// Starts and connects them. The first opens the connection.
    pub(super) fn start(
        kinds: &[(Kind, Option<&Namespace>)],
        daemons: Vec<u32>,
        interrupt: &Interrupt,
    ) -> Result<Self, String> {
        let mut ends = Vec::new();
        for (place, (_, namespace)) in kinds.iter().enumerate() {
            ends.push(End::start(place, *namespace)?);
        }
        let mut all = Self { ends, daemons, interrupt: interrupt.clone(), broken: false };
        let opened = all.ask_all(|at| kinds.get(at).map(|(kind, _)| Command::Open(kind.clone())))?;
        let addresses: Vec<Address> = opened
            .into_iter()
            .map(|answer| if let Answer::Opened(at) = answer { at } else { Address::default() })
            .collect();
        all.ask_all(|at| {
            let peer = addresses.get(1 - at.min(1)).or(addresses.first())?.clone();
            Some(Command::Connect { peer, active: at == 0 })
        })?;
        all.rest()?;
        Ok(all)
    }

    /// Nobody waits for anything any more.
    fn rest(&mut self) -> Result<(), String> {
        self.ends.iter_mut().try_for_each(|end| end.tell(&Command::Rest))
    }

    /// Tells every end something, and waits for all answers. The ends that do not lead are told first.
    fn ask_all(&mut self, command: impl Fn(usize) -> Option<Command>) -> Result<Vec<Answer>, String> {
        let told = self
            .ends
            .iter_mut()
            .enumerate()
            .rev()
            .try_for_each(|(at, end)| command(at).map_or(Ok(()), |command| end.tell(&command)));
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
        let &Task { test, bytes, operations, polling, load } = task;
        let before = Spent::by(&self.daemons);
        let answers = self.ask_all(|at| {
            Some(Command::Run(Job { test, bytes, operations, polling, leads: at == 0, load }))
        })?;
        let daemons = Spent::by(&self.daemons).since(before);
        self.rest()?;
        let outcomes: Vec<EndOutcome> = answers
            .into_iter()
            .filter_map(|answer| if let Answer::Done(one) = answer { Some(one) } else { None })
            .collect();
        let leader = outcomes.first().copied().unwrap_or_default();
        let total = |each: fn(&EndOutcome) -> Option<u64>| outcomes.iter().map(each).sum::<Option<u64>>();
        let sum = |each: fn(&Spent) -> u64| {
            outcomes.iter().map(|one| each(&one.spent)).sum::<u64>() + each(&daemons)
        };
        let spent = Spent {
            cpu_ns: sum(|spent| spent.cpu_ns),
            context_switches: sum(|spent| spent.context_switches),
            interrupts: leader.spent.interrupts,
        };
        Ok(Measured {
            operations,
            seconds: leader.seconds,
            time_us: leader.time_us,
            spent,
            daemons_cpu_ns: daemons.cpu_ns,
            system_calls: total(|one| one.system_calls),
            copied_bytes: total(|one| one.copied_bytes),
        })
    }

    /// Whether nothing has failed here.
    pub(super) const fn works(&self) -> bool {
        !self.broken
    }

    /// What the daemons spend while nobody asks them for anything.
    pub(super) fn idle(&self, time: Duration) -> Measured {
        let (before, begun) = (Spent::by(&self.daemons), Instant::now());
        std::thread::sleep(time);
        let spent = Spent::by(&self.daemons).since(before);
        Measured {
            operations: 0,
            seconds: begun.elapsed().as_secs_f64(),
            time_us: Percentiles::default(),
            spent,
            daemons_cpu_ns: spent.cpu_ns,
            system_calls: None,
            copied_bytes: None,
        }
    }

    /// The parts of a message's way, as the end that does not lead sees them.
    pub(super) fn parts(&mut self) -> Result<Vec<Part>, String> {
        let answers = self.ask_all(|at| Some(Command::Parts { leads: at == 0 }))?;
        Ok(answers
            .into_iter()
            .rev()
            .find_map(|answer| if let Answer::Parts(parts) = answer { Some(parts) } else { None })
            .unwrap_or_default())
    }
}
