//! What a root chooses the plans of its communicators by.

use std::collections::VecDeque;

use ringway_plan::tuner::{Constants, Order, Saved, SavedRule, tune};
use ringway_plan::{Layout, PlanSettings, Preference, Rule};

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

/// Rules, and what they were made from.
#[derive(Debug, Clone)]
struct Made {
    layout: Layout,
    constants: Constants,
    rules: Vec<Rule>,
}

/// How many are remembered.
const MADE_MAX: usize = 16;

/// Between which nodes a communicator is.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) layout: Layout,
    pub(crate) device: String,
    /// The nodes' hosts, sorted.
    pub(crate) hosts: Vec<String>,
    /// How many of them share a processor: as [`Constants::sharing`].
    pub(crate) sharing: f64,
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

    /// Measures links of which nothing is known: neither from what was given nor from this, what was learnt before.
    #[must_use]
    pub fn measuring(self, learned: Saved) -> Self {
        Self { learned, measures: true, ..self }
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

    fn known(&self, place: &Place) -> Option<&Constants> {
        let given = self.given.constants(&place.device, &place.hosts);
        given.or_else(|| self.learned.constants(&place.device, &place.hosts))
    }

    /// Whether the links of a communicator shall be measured.
    pub(crate) fn wants_measured(&self, place: &Place) -> bool {
        let known = self.order != Order::Any && self.known(place).is_some();
        self.measures && !known && place.layout.nodes() > 1
    }

    fn make(&mut self, layout: &Layout, constants: Constants) -> Vec<Rule> {
        let same = |made: &&Made| made.constants == constants && made.layout == *layout;
        if let Some(made) = self.made.iter().find(same) {
            return made.rules.clone();
        }
        let rules = tune(layout, self.order, &constants, self.settings.tuning());
        self.made.truncate(MADE_MAX - 1);
        self.made.push_front(Made { layout: layout.clone(), constants, rules: rules.clone() });
        rules
    }

    /// The settings of a communicator, and what was measured for it, the slowest of all nodes.
    pub(crate) fn settings(
        &mut self,
        place: &Place,
        preference: Preference,
        measured: Option<Constants>,
    ) -> PlanSettings {
        let measured = measured.map(|measured| measured.unshared(place.sharing));
        if let Some(constants) = measured {
            self.learned.learn(&place.device, place.hosts.clone(), constants);
            self.changed = true;
        }
        // What is chosen without any rule is not strict.
        let usual = (self.order == Order::Strict).then(Constants::default);
        let constants = measured.or_else(|| self.known(place).copied()).or(usual);
        let made = constants.map(|constants| self.make(&place.layout, constants)).unwrap_or_default();
        let (given, preference) = self.allowed(preference.over(self.settings.preference()));
        let rules = given.over(place.layout.nodes(), made);
        let tuning = *self.settings.tuning();
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
