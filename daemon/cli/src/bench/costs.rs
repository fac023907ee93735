//! What a measurement costs in processor time and context switches, from the kernel's own accounts.

use std::fs;

use ringway_mem::calls;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Spent by processes; of interrupts, by the whole machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Spent {
    pub(super) cpu_ns: u64,
    /// Those that are counted where they are made, see [`ringway_mem::calls`].
    pub(super) system_calls: u64,
    pub(super) context_switches: u64,
    pub(super) interrupts: u64,
    /// Time in interrupts and what they leave for later (irq and softirq), which is in no process's account where the kernel tells
    /// it apart. By the clock's ticks.
    pub(super) interrupts_ms: u64,
}

/// Bytes of payload, by what was done with them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Copied {
    /// Copied by our own code.
    pub(super) own: u64,
    /// Sent by the kernel from where they lay.
    pub(super) not: u64,
    /// Copied by the kernel although it was asked to send them like that.
    pub(super) after_all: u64,
}

impl Copied {
    /// What was done after `before`.
    pub(super) const fn since(self, before: Self) -> Self {
        Self {
            own: self.own.saturating_sub(before.own),
            not: self.not.saturating_sub(before.not),
            after_all: self.after_all.saturating_sub(before.after_all),
        }
    }

    /// Both together.
    pub(super) const fn and(self, other: Self) -> Self {
        Self {
            own: self.own + other.own,
            not: self.not + other.not,
            after_all: self.after_all + other.after_all,
        }
    }
}

impl Spent {
    /// By this process until something is measured. The processor's clock is read last, so that reading the rest is not in what is
    /// measured.
    pub(super) fn before_measuring() -> Self {
        let rest = Self::without_clock();
        Self { cpu_ns: own_cpu_ns(), ..rest }
    }

    /// By this process until something has been measured: the processor's clock is read first.
    pub(super) fn after_measuring() -> Self {
        let cpu_ns = own_cpu_ns();
        Self { cpu_ns, ..Self::without_clock() }
    }

    fn without_clock() -> Self {
        let (interrupts, interrupts_ms) = interrupts();
        let (system_calls, context_switches) = (calls::made(), switches_of("self"));
        Self { cpu_ns: 0, system_calls, context_switches, interrupts, interrupts_ms }
    }

    /// By these processes so far, as far as it can be seen from outside. The time of a thread that is running is up to a tick
    /// of the clock too small.
    pub(super) fn by(pids: &[u32]) -> Self {
        let each = pids.iter().map(|pid| pid.to_string());
        each.fold(Self::default(), |sum, pid| Self {
            cpu_ns: sum.cpu_ns + cpu_ns_of(&pid),
            system_calls: 0,
            context_switches: sum.context_switches + switches_of(&pid),
            ..Self::default()
        })
    }

    /// What was spent after `before`.
    pub(super) const fn since(self, before: Self) -> Self {
        Self {
            cpu_ns: self.cpu_ns.saturating_sub(before.cpu_ns),
            system_calls: self.system_calls.saturating_sub(before.system_calls),
            context_switches: self.context_switches.saturating_sub(before.context_switches),
            interrupts: self.interrupts.saturating_sub(before.interrupts),
            interrupts_ms: self.interrupts_ms.saturating_sub(before.interrupts_ms),
        }
    }
}

/// One file of every thread of a process.
fn of_threads(pid: &str, file: &str) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.filter_map(|thread| fs::read_to_string(thread.path().join(file)).ok()).collect()
}

fn cpu_ns_of(pid: &str) -> u64 {
    let first = |text: &String| text.split_whitespace().next().and_then(|ns| ns.parse::<u64>().ok());
    of_threads(pid, "schedstat").iter().filter_map(first).sum()
}

fn switches_of(pid: &str) -> u64 {
    let counted = |text: &String| -> u64 {
        let lines = text.lines().filter_map(|line| line.split_once("_ctxt_switches:"));
        lines.filter_map(|(_, count)| count.trim().parse::<u64>().ok()).sum()
    };
    of_threads(pid, "status").iter().map(counted).sum()
}

/// The processor time of this process, as getrusage(2) has it, to the nanosecond.
fn own_cpu_ns() -> u64 {
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    cpu.tv_sec.unsigned_abs() * 1_000_000_000 + cpu.tv_nsec.unsigned_abs()
}

/// How many there were on this machine, and the milliseconds that they took.
fn interrupts() -> (u64, u64) {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks = rustix::param::clock_ticks_per_second().max(1);
    parse_interrupts(&text, ticks)
}

fn parse_interrupts(text: &str, ticks_per_second: u64) -> (u64, u64) {
    let numbers = |name: &str| -> Vec<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.split_whitespace().map_while(|word| word.parse().ok()).collect()
    };
    // user, nice, system, idle, iowait, irq, softirq: see proc_stat(5).
    let ticks: u64 = numbers("cpu ").iter().skip(5).take(2).sum();
    (numbers("intr ").first().copied().unwrap_or(0), ticks * 1000 / ticks_per_second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_are_those_of_all_processors() {
        let text = "cpu  10 20 30 40 50 6 7 80 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\nintr 1234 5 6 0\nctxt 9\n";
        assert_eq!(parse_interrupts(text, 100), (1234, 130));
        assert_eq!(parse_interrupts("", 100), (0, 0));
    }

    /// Other threads of this process work meanwhile: the least is what counts.
    #[test]
    fn taking_the_account_is_not_in_it() {
        let least = |each: fn() -> u64| (0..200).map(|_| each()).min().unwrap_or_default();
        let nothing = least(|| {
            let before = Spent::before_measuring();
            Spent::after_measuring().since(before).cpu_ns
        });
        let the_account = least(|| {
            let before = own_cpu_ns();
            std::hint::black_box(Spent::without_clock());
            own_cpu_ns() - before
        });
        assert!(nothing * 4 < the_account, "{nothing} ns of {the_account}");
    }

    #[test]
    fn work_is_seen_from_inside_and_from_outside() {
        let pid = [std::process::id()];
        let work = || {
            let (inside, outside) = (Spent::before_measuring(), Spent::by(&pid));
            let mut sum = 0_u64;
            while Spent::after_measuring().since(inside).cpu_ns < 50_000_000 {
                sum = sum.wrapping_add(std::hint::black_box(1));
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
            // Sleeping was a switch, and brought the account up to date.
            (Spent::after_measuring().since(inside), Spent::by(&pid).since(outside), sum)
        };
        // Threads of other tests that end meanwhile take the switches along that they were counted for.
        let is_whole = |(inside, outside, _): &(Spent, Spent, u64)| {
            inside.context_switches > 0 && outside.context_switches > 0
        };
        let (inside, outside, sum) =
            (0..20).map(|_| work()).find(is_whole).expect("a switch is seen from either side");
        assert!(sum > 0 && inside.interrupts > 0);
        let difference = inside.cpu_ns.abs_diff(outside.cpu_ns);
        assert!(difference * 5 < inside.cpu_ns, "{inside:?} {outside:?}");
    }
}
