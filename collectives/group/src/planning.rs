//! What a root chooses the plans of its communicators by.

use std::{collections::VecDeque, sync::Arc};

use ringway_plan::tuner::{Constants, Order, Saved, SavedRule, eager_write_max_bytes, tune};
use ringway_plan::{Layout, PlanSettings, Preference, Rule, Tuning};

/// What is the same for all communicators of a root, and what it knows of links. For every communicator it makes settings
/// that hold on all its nodes.
#[derive(Debug, Clone, Default)]
pub struct Planning {
    settings: PlanSettings,
    order: Order,
    /// Whether links are measured of which nothing is known.
    measures: bool,
    given: Saved,
    learned: Saved,
    changed: bool,
    /// What was asked for or given although the order does not allow it.
    refused: Option<String>,
    /// The same when it was taken last.
    told: Option<String>,
    /// What was made last, as making it takes milliseconds.
    made: VecDeque<Made>,
}

/// Rules and how long eager writes may be, and what they were made from.
#[derive(Debug, Clone)]
struct Made {
    layout: Arc<Layout>,
    constants: Constants,
    asked: Preference,
    rules: Vec<Rule>,
    eager_write_max_bytes: u64,
}

/// How many are remembered.
const MADE_MAX: usize = 16;

/// Between which nodes a communicator is.
#[derive(Debug, Clone)]
pub struct Place {
    /// Who is where.
    pub layout: Arc<Layout>,
    /// What the device between the nodes speaks.
    pub device: String,
    /// The nodes' hosts, sorted; `None` where they are not known.
    pub hosts: Option<Vec<String>>,
    /// How many of them share a processor: as [`Constants::sharing`].
    pub sharing: f64,
    /// Channels between two of them.
    pub channels: u32,
}

impl Planning {
    /// With constants and algorithms for everybody, and what is allowed to be chosen.
    #[must_use]
    pub fn new(settings: PlanSettings, order: Order) -> Self {
        Self { settings, order, ..Self::default() }
    }

    /// With what somebody has saved, which goes before what is measured.
    #[must_use]
    pub fn with_given(self, given: Saved) -> Self {
        Self { given, ..self }
    }

    /// With what was learnt before; what was given goes before it.
    #[must_use]
    pub fn with_learned(self, learned: Saved) -> Self {
        Self { learned, ..self }
    }

    /// Measures links of which nothing is known. Without, they are taken for what links usually are.
    #[must_use]
    pub fn measuring(self) -> Self {
        Self { measures: true, ..self }
    }

    /// What was learnt, if that has changed since it was taken last.
    pub fn take_learned(&mut self) -> Option<&Saved> {
        core::mem::take(&mut self.changed).then_some(&self.learned)
    }

    /// What was asked for or given although the order does not allow it, if that has changed since it was taken last.
    pub fn take_refused(&mut self) -> Option<String> {
        let refused = self.refused.take_if(|refused| self.told.as_ref() != Some(refused))?;
        self.told = Some(refused.clone());
        Some(refused)
    }

    /// What is known of the links there. What was learnt with other channels says nothing of what these carry.
    #[must_use]
    pub fn constants(&self, place: &Place) -> Option<&Constants> {
        fn find<'a>(saved: &'a Saved, place: &Place) -> Option<&'a Constants> {
            match &place.hosts {
                Some(hosts) => saved.constants(&place.device, hosts),
                None => saved.likely_constants(&place.device, place.layout.nodes()),
            }
        }
        let is_alike = |known: &&Constants| known.known_channels().unwrap_or(1) == place.channels.max(1);
        let learned = || find(&self.learned, place).filter(is_alike);
        find(&self.given, place).or_else(learned)
    }

    /// Whether the links of a communicator shall be measured.
    pub(crate) fn wants_measured(&self, place: &Place) -> bool {
        let known = self.order != Order::Any && self.constants(place).is_some();
        self.measures && !known && place.layout.nodes() > 1
    }

    fn make(&mut self, layout: &Arc<Layout>, constants: Constants, asked: Preference) -> (Vec<Rule>, u64) {
        let same =
            |made: &&Made| made.constants == constants && made.asked == asked && made.layout == *layout;
        if let Some(made) = self.made.iter().find(same) {
            return (made.rules.clone(), made.eager_write_max_bytes);
        }
        let usual = self.settings.tuning();
        let eager_write_max_bytes = eager_write_max_bytes(layout, &constants, usual);
        let tuning = Tuning { eager_write_max_bytes, ..*usual };
        let rules = tune(layout, self.order, &constants, &tuning, &asked);
        self.made.truncate(MADE_MAX - 1);
        self.made.push_front(Made {
            layout: Arc::clone(layout),
            constants,
            asked,
            rules: rules.clone(),
            eager_write_max_bytes,
        });
        (rules, eager_write_max_bytes)
    }

    /// The settings of a communicator, and what was measured for it, the slowest of all nodes.
    pub fn settings(
        &mut self,
        place: &Place,
        preference: Preference,
        measured: Option<Constants>,
    ) -> PlanSettings {
        let measured = measured.map(|measured| measured.unshared(place.sharing));
        if let (Some(constants), Some(hosts)) = (measured, &place.hosts) {
            self.learned.learn(&place.device, hosts.clone(), constants);
            self.changed = true;
        }
        let constants = measured.or_else(|| self.constants(place).copied()).unwrap_or_default();
        let (mut given, preference) = self.allowed(preference.over(self.settings.preference()));
        let (made, eager_write_max_bytes) = self.make(&place.layout, constants, preference);
        // What is asked for goes before rules, but for those that say in which chunks it is done.
        given.rules.retain(|SavedRule { rule, .. }| {
            let instead = |made: &Rule| {
                made.operation == rule.operation && Some(made.algorithm) == preference.of(made.operation)
            };
            rule.algorithm == preference.of(rule.operation).unwrap_or(rule.algorithm)
                || !made.iter().any(instead)
        });
        let rules = given.over(place.layout.nodes(), made);
        let tuning = Tuning { eager_write_max_bytes, ..*self.settings.tuning() };
        // Rules are made in order and within bounds, and those given were read so.
        PlanSettings::new(tuning, preference, rules).unwrap_or_else(|_| self.settings.clone())
    }

    /// What is given and asked for, without what the order does not allow: that it promises bits goes before both.
    fn allowed(&mut self, asked: Preference) -> (Saved, Preference) {
        let order = self.order;
        let (kept, refused) = asked.split(|algorithm, operation| order.allows(algorithm, operation));
        let mut given = self.given.clone();
        let is_allowed = |saved: &SavedRule| order.allows(saved.rule.algorithm, saved.rule.operation);
        let mut names: Vec<String> = (!refused.is_auto()).then(|| refused.to_string()).into_iter().collect();
        for SavedRule { nodes, rule } in given.rules.iter().filter(|saved| !is_allowed(saved)) {
            let (operation, algorithm) = (rule.operation.name(), rule.algorithm.name());
            names.push(format!("the rule {operation}={algorithm} for {nodes} nodes"));
        }
        given.rules.retain(is_allowed);
        self.refused = (!names.is_empty()).then(|| names.join(", "));
        (given, kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringway_plan::{Algorithm, Blocks, Call, View, tuner::SavedLinks};
    use ringway_types::Operation;

    fn place(nodes: u32, hosts: Option<&[&str]>) -> Place {
        let layout = Layout::new(&(0..nodes).collect::<Vec<_>>()).expect("ranks");
        let hosts = hosts.map(|hosts| hosts.iter().map(|host| (*host).to_owned()).collect());
        Place { layout: Arc::new(layout), device: "tcp".to_owned(), hosts, sharing: 1.0, channels: 1 }
    }

    fn links(device: &str, hosts: Option<&[&str]>, latency_ns: f64) -> SavedLinks {
        let hosts = hosts.map(|hosts| hosts.iter().map(|host| (*host).to_owned()).collect());
        let constants = Constants { latency_ns, ..Constants::default() };
        SavedLinks { device: device.to_owned(), hosts, constants }
    }

    fn planning(links: Vec<SavedLinks>, rules: Vec<SavedRule>) -> Planning {
        Planning::new(PlanSettings::default(), Order::Stable).with_given(Saved { links, rules })
    }

    /// The algorithm and the chunk of an allreduce of 1 MiB, of which some algorithms' best chunks are not the usual ones.
    fn chosen(planning: &mut Planning, place: &Place, asked: &str) -> (Option<Algorithm>, u64) {
        let settings = planning.settings(place, asked.parse().expect("a preference"), None);
        let call = Call { operation: Operation::Allreduce, element: 4, count: 256 << 10, root: 0 };
        let view = View { layout: &place.layout, node: 0, call, blocks: Blocks::Uniform, in_place: &[false] };
        let choice = settings.choice(&view);
        (choice.plan.algorithm(), choice.chunk_bytes)
    }

    fn rule(algorithm: Algorithm, chunk_bytes: u64) -> SavedRule {
        let operation = Operation::Allreduce;
        let rule = Rule { operation, bytes_max: u64::MAX, algorithm, chunk_bytes, channels: 0 };
        SavedRule { nodes: 4, rule }
    }

    #[test]
    fn where_hosts_are_not_known_what_is_for_any_counts_or_what_is_for_as_many() {
        let two = links("tcp", Some(&["a", "b"]), 2.0);
        let three = links("tcp", Some(&["a", "b", "c"]), 3.0);
        let known = |links: &[SavedLinks], place: &Place| {
            planning(links.to_vec(), Vec::new()).constants(place).map(|it| it.latency_ns)
        };
        let named = [two.clone(), three, links("roce", None, 9.0)];
        assert_eq!(known(&named, &place(2, None)), Some(2.0));
        assert_eq!(known(&named, &place(3, None)), Some(3.0));
        assert_eq!(known(&named, &place(4, None)), None);
        assert_eq!(known(&named, &place(2, Some(&["a", "c"]))), None, "those are others");
        let any = [links("tcp", None, 1.0), two];
        assert_eq!(known(&any, &place(2, None)), Some(1.0));
        assert_eq!(known(&any, &place(2, Some(&["a", "b"]))), Some(2.0));
    }

    /// What was measured of links counts for links of as many channels; what was given counts for all.
    #[test]
    fn what_was_learnt_of_other_channels_is_measured_anew() {
        let hosts: Option<&[&str]> = Some(&["a", "b"]);
        let of = |channels: f64| {
            let links = links("tcp", hosts, 1.0);
            let constants = Constants { channels, channel_byte_ns: 1.0, ..links.constants };
            Saved { links: vec![SavedLinks { constants, ..links }], rules: Vec::new() }
        };
        let place = |channels| Place { channels, ..place(2, hosts) };
        let wants = |saved: f64, channels| {
            let planning = Planning::new(PlanSettings::default(), Order::Stable).measuring();
            planning.with_learned(of(saved)).wants_measured(&place(channels))
        };
        assert!(!wants(4.0, 4) && !wants(1.0, 1));
        assert!(!wants(0.0, 1), "an older file's");
        assert!(wants(4.0, 1) && wants(1.0, 4) && wants(0.0, 2));
        let given = Planning::new(PlanSettings::default(), Order::Stable).measuring().with_given(of(4.0));
        assert!(!given.wants_measured(&place(2)));
    }

    /// Without measuring, what is chosen is what is chosen for links that were given as the usual ones.
    #[test]
    fn what_is_not_measured_is_taken_for_the_usual() {
        let place = place(4, Some(&["a", "b", "c", "d"]));
        let usual = SavedLinks { constants: Constants::default(), ..links("tcp", None, 0.0) };
        let mut given = planning(vec![usual], Vec::new());
        let mut assumed = planning(Vec::new(), Vec::new());
        assert!(!assumed.wants_measured(&place));
        let both = [&mut given, &mut assumed].map(|it| it.settings(&place, Preference::default(), None));
        assert_eq!(both[0], both[1]);
        let mut far = planning(vec![links("tcp", None, 1e6)], Vec::new());
        assert_ne!(far.settings(&place, Preference::default(), None), both[0], "what is given goes before");
    }

    /// A rule for another algorithm takes no chunk from the one that is asked for, a rule for the same one gives it one.
    #[test]
    fn what_is_asked_for_keeps_its_best_chunk() {
        let links = || vec![links("tcp", None, 20_000.0)];
        let place = place(4, None);
        let (algorithm, best) = chosen(&mut planning(links(), Vec::new()), &place, "tree");
        assert_eq!(algorithm, Some(Algorithm::Tree));
        assert_ne!(best, PlanSettings::default().tuning().chunk_bytes);
        let mut other = planning(links(), vec![rule(Algorithm::Ring, 1 << 20)]);
        assert_eq!(chosen(&mut other, &place, "tree"), (Some(Algorithm::Tree), best));
        assert_eq!(chosen(&mut other, &place, "auto"), (Some(Algorithm::Ring), 1 << 20));
        let mut same = planning(links(), vec![rule(Algorithm::Tree, 4096)]);
        assert_eq!(chosen(&mut same, &place, "tree"), (Some(Algorithm::Tree), 4096));
        let mut cannot = planning(links(), vec![rule(Algorithm::Ring, 1 << 20)]);
        assert_eq!(chosen(&mut cannot, &place, "pairwise"), (Some(Algorithm::Ring), 1 << 20));
    }
}
