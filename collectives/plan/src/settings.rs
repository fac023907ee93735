//! What plans follow from besides the call and the layout: the same on every node of a communicator.

use ringway_types::Operation;
use thiserror::Error;

use crate::{Algorithm, Blocks, Plan, Preference, Tuning, View};

/// Everything by which the nodes of a communicator choose their plans. All must have the same, or they would not
/// understand each other: so the communicator's root sends its own to all. A value that exists is within bounds, wherever
/// it came from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlanSettings {
    tuning: Tuning,
    preference: Preference,
    /// By operation, and then by bytes.
    rules: Vec<Rule>,
}

/// How one operation is done up to some size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// The operation.
    pub operation: Operation,
    /// It is for calls of so many bytes at most, as [`View::bytes`] counts them, that no earlier rule of the operation is for.
    pub bytes_max: u64,
    /// The algorithm. Where it cannot do the operation between so many nodes the rule is passed over.
    pub algorithm: Algorithm,
    /// In place of [`Tuning::chunk_bytes`], as long as a chunk is over one channel; 0 leaves that.
    pub chunk_bytes: u64,
    /// Channels that chunks go over by turns, where there are as many; 0 for all there are.
    pub channels: u32,
}

/// How a call is done, and why so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The plan.
    pub plan: Plan,
    /// Bytes that one of its chunks has in one message of one stream.
    pub chunk_bytes: u64,
    /// Channels that its chunks go over by turns.
    pub channels: u32,
    /// Why it is this one.
    pub origin: Origin,
}

/// What a plan follows from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Somebody asked for the algorithm.
    Asked,
    /// A rule is for calls of so many bytes.
    Rule(Rule),
    /// Nobody says anything.
    Usual,
}

/// Why there are no such settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SettingsError {
    /// A constant is out of range.
    #[error("{name} is {given}; it must be {least} to {most}")]
    Range {
        /// Which.
        name: &'static str,
        /// Its value.
        given: u64,
        /// The least it may be.
        least: u64,
        /// The most it may be.
        most: u64,
    },
    /// An operation has too many rules.
    #[error("{operation} has {count} rules; it may have {}", PlanSettings::RULES_MAX)]
    Rules {
        /// The operation.
        operation: Operation,
        /// How many.
        count: usize,
    },
    /// The rules are not by operation and then by bytes, each for other sizes.
    #[error("the rules of {operation} are not in the order of their sizes")]
    Order {
        /// The operation of the first that is not.
        operation: Operation,
    },
    /// A rule is for a message between two ranks.
    #[error("{operation} is not a collective operation and has no rules")]
    NotCollective {
        /// The operation.
        operation: Operation,
    },
}

impl PlanSettings {
    /// The most rules of one operation.
    pub const RULES_MAX: usize = 64;
    /// The fewest bytes of a chunk: fewer would make steps of nothing but overhead.
    pub const CHUNK_BYTES_MIN: u64 = 256;
    /// The most bytes of a chunk.
    pub const CHUNK_BYTES_MAX: u64 = 64 << 20;
    /// The most chunks under way at once.
    pub const DEPTH_MAX: u32 = 8;
    /// The most bytes of blocks that are packed.
    pub const PACK_BYTES_MAX: u64 = 1 << 20;
    /// The most channels between two nodes.
    pub const CHANNELS_MAX: u32 = 8;

    /// Settings of these constants. `rules` are in the order of their operations' codes, and for one operation in the
    /// order of their bytes.
    ///
    /// # Errors
    /// [`SettingsError`] for the first that is out of bounds.
    pub fn new(tuning: Tuning, preference: Preference, rules: Vec<Rule>) -> Result<Self, SettingsError> {
        check_tuning(&tuning)?;
        for rule in &rules {
            check_rule(rule)?;
        }
        for pair in rules.array_windows() {
            let [first, second] = pair;
            if (first.operation, first.bytes_max) >= (second.operation, second.bytes_max) {
                return Err(SettingsError::Order { operation: second.operation });
            }
        }
        for of_one in rules.chunk_by(|a, b| a.operation == b.operation) {
            if let [first, ..] = of_one
                && of_one.len() > Self::RULES_MAX
            {
                return Err(SettingsError::Rules { operation: first.operation, count: of_one.len() });
            }
        }
        Ok(Self { tuning, preference, rules })
    }

    /// The constants.
    #[must_use]
    pub const fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// What is asked for.
    #[must_use]
    pub const fn preference(&self) -> Preference {
        self.preference
    }

    /// The rules, by operation and then by bytes.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The same, where this is asked for as well and goes before what was.
    #[must_use]
    pub fn preferring(mut self, preference: Preference) -> Self {
        self.preference = preference.over(self.preference);
        self
    }

    /// The same, with so many consecutive nodes in a group: as in [`Tuning::group_nodes`].
    #[must_use]
    pub const fn grouping(mut self, group_nodes: u32) -> Self {
        self.tuning.group_nodes = group_nodes;
        self
    }

    /// The plan for a call over one channel, a pure function of these settings and what all nodes know: with the algorithm that is
    /// asked for (and the chunks of its rule for so many bytes, where there is one), else that of the operation's rule for so many
    /// bytes, else the one that [`Plan::choose`] takes. What cannot do the operation between so many nodes is passed over.
    #[must_use]
    pub fn plan(&self, view: &View<'_>) -> Plan {
        self.choice(view).plan
    }

    /// The same plan, with what it follows from.
    #[must_use]
    pub fn choice(&self, view: &View<'_>) -> Choice {
        self.choice_over(view, 1)
    }

    /// The same where all nodes have so many channels to each other. Chunks go by turns over as many of them as the rule says, or
    /// over all, as [`Tuning::over`] says.
    #[must_use]
    pub fn choice_over(&self, view: &View<'_>, channels: u32) -> Choice {
        let channels = channels.max(1);
        let rule = self.rule(view);
        // The rule of another algorithm says nothing of how the one that is asked for is done.
        let ruled = |algorithm: Algorithm| match rule.filter(|rule| rule.algorithm == algorithm) {
            Some(rule) => rule.applied(&self.tuning, channels),
            None => (self.tuning.over(channels), channels),
        };
        let asked = self.preference.of(view.call.operation).map(|algorithm| (algorithm, Origin::Asked));
        let by_rule = rule.map(|rule| (rule.algorithm, Origin::Rule(*rule)));
        let by = |(algorithm, origin): (Algorithm, Origin)| {
            let (tuning, channels) = ruled(algorithm);
            let plan = Plan::with(algorithm, view, &tuning).ok()?;
            Some(Choice { plan, chunk_bytes: tuning.chunk_bytes, channels, origin })
        };
        [asked, by_rule].into_iter().flatten().find_map(by).unwrap_or_else(|| {
            let usual = self.tuning.over(channels);
            let plan = Plan::choose(view, &usual);
            Choice { plan, chunk_bytes: usual.chunk_bytes, channels, origin: Origin::Usual }
        })
    }

    /// The operation's rule for so many bytes.
    fn rule(&self, view: &View<'_>) -> Option<&Rule> {
        let (operation, bytes) = (view.call.operation, view.bytes());
        let at = self.rules.partition_point(|rule| (rule.operation, rule.bytes_max) < (operation, bytes));
        self.rules.get(at).filter(|rule| rule.operation == operation)
    }
}

impl View<'_> {
    /// The bytes of the call, alike on all nodes: of the largest buffer of any rank. Where nodes know different counts, which
    /// is of gather_v, scatter_v and all_to_all_v, they are `u64::MAX`.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        use Operation as O;
        let element = u64::from(self.call.element);
        let elements = match (self.call.operation, self.blocks) {
            (O::GatherV | O::ScatterV | O::AllToAllV, _) => return u64::MAX,
            (O::Barrier, _) => 0,
            (_, Blocks::PerRank { starts }) => starts.last().copied().unwrap_or(0),
            (O::AllGather | O::ReduceScatter | O::Gather | O::Scatter | O::AllToAll, _) => {
                self.call.count.saturating_mul(u64::from(self.layout.ranks()))
            }
            _ => self.call.count,
        };
        elements.saturating_mul(element)
    }
}

impl Rule {
    /// How a call is done by it where there are so many channels, and how many of them that takes.
    fn applied(&self, usual: &Tuning, channels: u32) -> (Tuning, u32) {
        let used = if self.channels > 0 { self.channels.min(channels) } else { channels };
        let chunk_bytes = if self.chunk_bytes > 0 { self.chunk_bytes } else { usual.chunk_bytes };
        (Tuning { chunk_bytes, ..*usual }.over(used), used)
    }
}

impl Tuning {
    /// The same where chunks go over so many channels by turns. Chunks are as much shorter, and at least as many are under way: so
    /// every channel has something to carry, and as much scratch memory is enough.
    #[must_use]
    pub fn over(self, channels: u32) -> Self {
        if channels <= 1 {
            return self;
        }
        let chunk_bytes = (self.chunk_bytes / u64::from(channels)).max(PlanSettings::CHUNK_BYTES_MIN);
        Self { chunk_bytes, depth: self.depth.max(channels).min(PlanSettings::DEPTH_MAX), ..self }
    }
}

const fn check(name: &'static str, given: u64, least: u64, most: u64) -> Result<(), SettingsError> {
    if given < least || given > most {
        return Err(SettingsError::Range { name, given, least, most });
    }
    Ok(())
}

fn check_tuning(tuning: &Tuning) -> Result<(), SettingsError> {
    check_chunk(tuning.chunk_bytes)?;
    check("depth", tuning.depth.into(), 1, PlanSettings::DEPTH_MAX.into())?;
    check("pack_max_bytes", tuning.pack_max_bytes, 0, PlanSettings::PACK_BYTES_MAX)?;
    check("eager_write_max_bytes", tuning.eager_write_max_bytes, 0, crate::EAGER_WRITE_BYTES as u64)
}

const fn check_chunk(bytes: u64) -> Result<(), SettingsError> {
    check("chunk_bytes", bytes, PlanSettings::CHUNK_BYTES_MIN, PlanSettings::CHUNK_BYTES_MAX)
}

const fn check_rule(rule: &Rule) -> Result<(), SettingsError> {
    if !rule.operation.is_collective() {
        return Err(SettingsError::NotCollective { operation: rule.operation });
    }
    if let Err(error) = check("channels", rule.channels as u64, 0, PlanSettings::CHANNELS_MAX as u64) {
        return Err(error);
    }
    if rule.chunk_bytes == 0 { Ok(()) } else { check_chunk(rule.chunk_bytes) }
}
