//! Whether to poll on or to hand the processor over.

use std::hint;

use ringway_cell::{
    Awaited, Courtesy, ProcessorSet, TAKEN_NS, budget, monotonic_ns, online_processors, processor_quota,
};

/// Polls without giving the processor away: some microseconds.
const SPIN_POLLS: u32 = 200;
/// Polls between two hand-overs after that.
const POLLS_BETWEEN: u32 = 32;
/// Polls between two hand-overs while a payload, or a further part of one, may be on its way.
const POLLS_OF_COPY: u32 = 128;
/// Fruitless hand-overs after which the processor counts as ours again.
const CROWDED: u8 = 16;

/// How one thread polls.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    pollers: u32,
    /// Processors for them.
    processors: u32,
    /// There is one for everybody who polls.
    roomy: bool,
    /// More than zero while other threads want this one's processor.
    crowded: u8,
    courtesy: Courtesy,
}

impl Pace {
    /// For a node where so many threads poll at a time, of which so many can run.
    pub(crate) fn among(pollers: u32, processors: u32) -> Self {
        let courtesy = Courtesy::new(monotonic_ns);
        Self { pollers, processors, roomy: pollers <= processors, crowded: 0, courtesy }
    }

    /// So many of them can run at a time, as is known now.
    pub(crate) const fn set_processors(&mut self, processors: u32) {
        self.processors = processors;
        self.roomy = self.pollers <= processors;
    }

    /// Polls in a row at the beginning of a wait: one at least.
    #[inline]
    pub(crate) const fn polls(self) -> u32 {
        if self.may_spin() { SPIN_POLLS } else { 1 }
    }

    /// Whether nobody else seems to want this thread's processor.
    #[inline]
    pub(crate) const fn may_spin(self) -> bool {
        self.roomy && self.crowded == 0
    }

    /// Polls in a row before a hand-over. With fewer processors than ranks, those few who may be about to come on other
    /// processors, or to have copied a payload there, are worth a moment: to let everybody else have a turn on this one
    /// takes longer.
    pub(crate) fn polls_between(self, awaited: Awaited) -> u32 {
        match awaited {
            _ if self.crowded > 0 => 1,
            Awaited::Neighbour => 1,
            Awaited::Payload(_) if self.processors > 1 => POLLS_OF_COPY,
            Awaited::Ranks(missing) if missing < self.processors as usize => POLLS_BETWEEN,
            _ if self.roomy => POLLS_BETWEEN,
            _ => 1,
        }
    }

    /// Between two polls in a row.
    #[inline]
    pub(crate) fn relax() {
        hint::spin_loop();
    }

    /// Gives the processor to whoever else wants it, and notices whether anybody did. Whether this thread may poll on: with fewer
    /// processors than ranks it had better sleep where somebody who only computes just kept this one for a time slice, as the
    /// kernel lets whoever wakes up run before him.
    pub(crate) fn hand_over(&mut self) -> bool {
        if !self.roomy {
            return self.courtesy.hand_over_among_ranks() > 0;
        }
        let took_ns = self.courtesy.hand_over();
        self.notice(took_ns);
        true
    }

    /// Gives the processor to whoever else wants it, unless somebody just kept it for long. Whether it did: where not, this
    /// thread had better sleep, as the kernel lets whoever wakes up run before those who only compute.
    pub(crate) fn hand_over_to_the_daemon(&mut self) -> bool {
        let took_ns = self.courtesy.hand_over();
        if self.roomy {
            self.notice(took_ns);
        }
        took_ns > 0
    }

    fn notice(&mut self, took_ns: u64) {
        self.crowded = if took_ns > TAKEN_NS { CROWDED } else { self.crowded.saturating_sub(1) };
    }
}

/// Processors that this node's threads have together, where they do not tell each other: those on which this one may run, as
/// far as its control group's quota goes; the machine's, where it is bound to one, as others then are to others. Where they are
/// not, [`Pace::hand_over`] notices.
pub(crate) fn processors() -> u32 {
    let (own, machine) = (ProcessorSet::allowed(), online_processors());
    let quota = processor_quota();
    match machine {
        Some(machine) if own.count() == 1 => machine.min(quota.unwrap_or(u32::MAX)).max(1),
        _ => budget(&own, quota),
    }
}
