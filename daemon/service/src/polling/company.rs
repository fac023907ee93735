//! Whom the engine thread shares its CPU with.
//!
//! Other threads want it where there are more of them than CPUs: another daemon's on this host, and that one's ranks. None
//! of these is known here, but a hand-over tells: it takes as long as somebody's turn. Then the best to share with are the
//! thread's own clients, as each of the two wants the CPU when the other has nothing to do. The scheduler cannot know that,
//! and threads that hand a CPU to and fro it leaves together even where another is free. So after some time among strangers
//! the thread moves to a client's CPU, and beside a client it tries another CPU now and then, as far as it may run there.

use std::time::Duration;

use ringway_cell::{Rest, TAKEN_NS};
use ringway_mem::calls;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// Hand-overs to nobody after which the CPU counts as ours again.
const SHARED: u8 = 4;
/// How often it is looked who is here, and which CPUs the clients wait on.
const LOOK_NS: u64 = 500_000;
/// The same on a CPU that was tried.
const TRIAL_NS: u64 = 100_000;
/// How long to stay among strangers, and beside a client, at first: they may be gone soon, or the scheduler may find a free
/// CPU.
const PATIENCE_LEAST: [Duration; 2] = [Duration::from_millis(4), Duration::from_millis(8)];
/// Who was not here for so long has slept.
const ABSENCE_NS: u64 = 4_000_000;
/// The same beside a client when this thread had a CPU for itself lately: most likely that is free again.
const PATIENCE_LATELY_ALONE: Duration = Duration::from_micros(500);
/// The same when moving has not helped again and again.
const PATIENCE_MOST: Duration = Duration::from_secs(1);

/// Where to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Cpu(usize),
    /// To any other CPU.
    Elsewhere,
}

/// Who is on this thread's CPU, as far as it has noticed.
#[derive(Debug)]
pub(crate) struct Company {
    /// More than zero while other threads want the CPU, and give it back.
    shared: u8,
    /// After somebody kept it, who computes.
    rest: Rest,
    /// One of them is a client of this daemon's.
    beside_client: bool,
    /// Hand-overs since it was looked last, and how many of them went to somebody.
    hand_overs: u32,
    taken: u32,
    looked_ns: u64,
    /// Since when they are here.
    since_ns: u64,
    /// This CPU was tried to get away from a client's.
    tried: bool,
    /// With strangers, and with a client.
    patience: [Duration; 2],
}

impl Company {
    pub(crate) const fn new() -> Self {
        Self {
            shared: 0,
            rest: Rest::new(),
            beside_client: false,
            hand_overs: 0,
            taken: 0,
            looked_ns: 0,
            since_ns: 0,
            tried: false,
            patience: PATIENCE_LEAST,
        }
    }

    /// A hand-over took so long.
    pub(crate) fn handed_over(&mut self, now_ns: u64, took_ns: u64) {
        let is_taken = took_ns > TAKEN_NS;
        let is_kept = self.rest.handed_over(now_ns, took_ns);
        self.shared = match is_taken {
            true if is_kept => 0,
            true => SHARED,
            false => self.shared.saturating_sub(1),
        };
        self.hand_overs = self.hand_overs.saturating_add(1);
        self.taken = self.taken.saturating_add(u32::from(is_taken));
    }

    /// Whether somebody just kept the CPU, who computes. Then sleeping is better than giving it away: the kernel lets
    /// whoever wakes up run first.
    pub(crate) const fn is_kept(&self, now_ns: u64) -> bool {
        self.rest.lasts(now_ns)
    }

    /// Whether other threads want this one's CPU, for moments: then each hand-over is worth it.
    pub(crate) const fn is_shared(&self) -> bool {
        self.shared > 0
    }

    /// Whether one of them waits for this thread, and hands the CPU back when that is all it does.
    pub(crate) const fn is_beside_client(&self) -> bool {
        self.shared > 0 && self.beside_client
    }

    /// Whether it is time to look.
    pub(crate) const fn wants_look(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.looked_ns) >= if self.tried { TRIAL_NS } else { LOOK_NS }
    }

    /// Looks who is here, and where the clients are by what they say, and moves where that is due.
    pub(crate) fn look(&mut self, now_ns: u64, clients: impl Iterator<Item = usize>) {
        if let Some(place) = self.better(now_ns, sched_getcpu(), clients) {
            move_to(place);
        }
    }

    /// Where to move to, if anywhere.
    fn better(&mut self, now_ns: u64, own: usize, mut clients: impl Iterator<Item = usize>) -> Option<Place> {
        // Now and then a hand-over takes long because the CPU was interrupted.
        let alone = self.taken <= self.hand_overs / 2;
        let slept = now_ns.saturating_sub(self.looked_ns) > ABSENCE_NS;
        (self.looked_ns, self.hand_overs, self.taken) = (now_ns, 0, 0);
        let first = clients.next();
        let beside = first == Some(own) || clients.any(|cpu| cpu == own);
        if std::mem::replace(&mut self.beside_client, beside) != beside {
            self.since_ns = now_ns;
        }
        if alone {
            self.patience = [PATIENCE_LEAST[0], PATIENCE_LATELY_ALONE];
        }
        let [with_strangers, with_client] = &mut self.patience;
        if beside {
            [*with_strangers, _] = PATIENCE_LEAST;
        }
        if alone || slept {
            (self.tried, self.since_ns) = (false, now_ns);
            return None;
        }
        let first = first?;
        let patience = if beside { with_client } else { with_strangers };
        let is_no_better = self.tried && !beside;
        if !is_no_better && now_ns.saturating_sub(self.since_ns) < nanoseconds(*patience) {
            return None;
        }
        *patience = (*patience * 2).min(PATIENCE_MOST);
        (self.tried, self.since_ns) = (beside, now_ns);
        Some(if beside { Place::Elsewhere } else { Place::Cpu(first) })
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Moves the calling thread, if it may run there. It may go on to any CPU that it might before.
fn move_to(place: Place) {
    calls::count();
    let Ok(all) = sched_getaffinity(None) else { return };
    let mut there = all;
    match place {
        Place::Elsewhere => there.unset(sched_getcpu()),
        Place::Cpu(cpu) => {
            there.clear();
            if cpu < CpuSet::MAX_CPU && all.is_set(cpu) {
                there.set(cpu);
            }
        }
    }
    if there.count() == 0 {
        return;
    }
    for set in [there, all] {
        calls::count();
        // Both were allowed a moment ago; where not, the thread stays where it is.
        let _ = sched_setaffinity(None, &set);
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    const MS: u64 = 1_000_000;
    /// Hand-overs that went to somebody.
    const TAKEN: [u64; 4] = [3_000; 4];

    /// Where a thread on CPU 0 would move to, looking every millisecond after hand-overs that took so long.
    fn moves(company: &mut Company, ms: Range<u64>, took_ns: &[u64], clients: &[usize]) -> Vec<Place> {
        let look = |ms| {
            took_ns.iter().for_each(|ns| company.handed_over(ms * MS, *ns));
            company.better(ms * MS, 0, clients.iter().copied())
        };
        ms.filter_map(look).collect()
    }

    #[test]
    fn a_long_hand_over_went_to_somebody() {
        let mut company = Company::new();
        company.handed_over(0, 300);
        assert!(!company.is_shared());
        company.handed_over(0, 2_700);
        let quick = (0..100).take_while(|_| {
            company.handed_over(0, 300);
            company.is_shared()
        });
        assert_eq!(quick.count(), usize::from(SHARED) - 1);
        company.handed_over(0, 2_700);
        company.handed_over(0, 3_000_000);
        assert!(!company.is_shared(), "to one that computes nothing is given more often than before");
    }

    #[test]
    fn a_thread_among_strangers_goes_to_its_client_after_a_while() {
        let mut company = Company::new();
        assert!(moves(&mut company, 100..104, &TAKEN, &[1]).is_empty(), "strangers may be gone soon");
        assert_eq!(moves(&mut company, 104..106, &TAKEN, &[1]), [Place::Cpu(1)]);
        let often = moves(&mut company, 106..10_106, &TAKEN, &[1]).len();
        assert!((8..20).contains(&often), "{often} times where it leads to no client");
        assert!(moves(&mut company, 10_106..10_107, &TAKEN, &[0]).is_empty());
        assert_eq!(moves(&mut company, 10_107..10_112, &TAKEN, &[1]), [Place::Cpu(1)], "it has helped");
        assert!(moves(&mut company, 10_112..20_000, &TAKEN, &[]).is_empty(), "no client says where it is");
    }

    #[test]
    fn a_thread_beside_a_client_tries_another_cpu_now_and_then() {
        let mut company = Company::new();
        assert!(moves(&mut company, 100..108, &TAKEN, &[1, 0]).is_empty());
        assert!(company.is_beside_client());
        assert_eq!(moves(&mut company, 108..109, &TAKEN, &[1, 0]), [Place::Elsewhere]);
        assert_eq!(moves(&mut company, 109..110, &TAKEN, &[1]), [Place::Cpu(1)], "there are strangers");
        let often = moves(&mut company, 110..10_110, &TAKEN, &[0]).len();
        assert!((8..20).contains(&often), "{often} times where there are strangers everywhere");
        assert!(moves(&mut company, 10_110..10_111, &[300; 4], &[1]).is_empty(), "nobody is there");
        assert_eq!(moves(&mut company, 10_111..10_113, &TAKEN, &[0]), [Place::Elsewhere], "soon again");
    }

    #[test]
    fn a_thread_that_is_alone_stays() {
        let mut company = Company::new();
        let interrupted = [300, 3_000, 300, 300];
        assert!(moves(&mut company, 100..10_000, &interrupted, &[1]).is_empty());
        assert!(moves(&mut company, 10_000..20_000, &[300; 4], &[0]).is_empty());
    }

    #[test]
    fn no_cpu_is_moved_to_that_there_is_not_and_every_one_stays_allowed() {
        let before = sched_getaffinity(None).expect("affinity");
        for cpu in [usize::MAX, CpuSet::MAX_CPU, CpuSet::MAX_CPU - 1, sched_getcpu()] {
            move_to(Place::Cpu(cpu));
            assert_eq!(sched_getaffinity(None).expect("affinity"), before);
        }
        move_to(Place::Elsewhere);
        assert_eq!(sched_getaffinity(None).expect("affinity"), before);
    }
}
