//! What daemons would choose, by the very rules and settings that they choose by.

use std::sync::Arc;

use ringway_plan::{
    Algorithm, Blocks, Call, Choice, Layout, Origin, PlanSettings, Preference, View,
    tuner::{Candidate, Constants, Problem, Saved, SavedLinks, SavedRule, predict},
};
use ringway_service::{Place, Planning, protocols};
use ringway_types::{DataType, Operation};

use super::{ExplainArgs, alike::Exchange};
use crate::perf::Measured;

/// Chooses as a daemon with the same tuning file does.
#[derive(Debug)]
pub(super) struct Chooser {
    operation: Measured,
    place: Place,
    /// The constants, and the rules that are given.
    given: Saved,
    constants: Constants,
    origin: String,
    /// When nothing is asked for.
    settings: PlanSettings,
    /// When an algorithm is.
    asked: Vec<(Algorithm, PlanSettings)>,
}

/// What is chosen when nothing is asked for.
#[derive(Debug)]
pub(super) struct Chosen {
    pub(super) algorithm: String,
    /// What it is chosen by.
    pub(super) by: &'static str,
}

impl Chooser {
    /// By the constants that were measured, else by those that are given for what the device speaks, else by the usual ones.
    pub(super) fn new(
        args: &ExplainArgs,
        layout: Layout,
        given: Saved,
        measured: Option<SavedLinks>,
    ) -> Result<Self, String> {
        let mut given = given;
        // What is understood in one place only counts for this place, wherever it is.
        for links in &mut given.links {
            let protocol = links.device.split(':').next().unwrap_or_default().len();
            links.device.truncate(protocol);
        }
        let spoken = protocols(&args.device).map_err(|error| error.to_string())?;
        let known = spoken.iter().find_map(|protocol| {
            let constants = given.likely_constants(protocol, layout.nodes())?;
            Some(((*protocol).to_owned(), *constants))
        });
        let usual = || (spoken.first().copied().unwrap_or_default().to_owned(), Constants::default());
        let ((device, constants), origin) = match (measured, known) {
            (Some(measured), _) => {
                ((measured.device, measured.constants), "measured between the daemons".to_owned())
            }
            (None, Some(known)) => (known, "from the tuning file".to_owned()),
            (None, None) if args.tuning.is_some() => {
                let (device, nodes) = (&args.device, args.nodes);
                let none = format!("the tuning file has none for {device} between {nodes} nodes");
                (usual(), format!("the usual: nothing was measured, and {none}"))
            }
            (None, None) => (usual(), "the usual: nothing was measured, and no tuning file given".to_owned()),
        };
        given.links = vec![SavedLinks { device: device.clone(), hosts: None, constants }];
        let usual = PlanSettings::default().grouping(args.group_nodes);
        let mut planning = Planning::new(usual, args.order).with_given(given.clone());
        let channels = args.channels;
        let place = Place { layout: Arc::new(layout), device, hosts: None, sharing: 1.0, channels };
        let mut settings = |preference| planning.settings(&place, preference, None);
        let operation = args.operation;
        let allowed =
            Algorithm::ALL.iter().filter(|algorithm| args.order.allows(**algorithm, operation.operation()));
        let asked = allowed.map(|asked| (*asked, settings(Preference::everywhere(*asked)))).collect();
        let settings = settings(Preference::default());
        Ok(Self { operation, place, given, constants, origin, settings, asked })
    }

    /// What daemons are given to choose so: the constants, for any hosts, and rules.
    pub(super) const fn given(&self) -> &Saved {
        &self.given
    }

    pub(super) const fn constants(&self) -> &Constants {
        &self.constants
    }

    /// Where the constants are from.
    pub(super) fn origin(&self) -> &str {
        &self.origin
    }

    /// Every algorithm that does it, whatever the size.
    pub(super) fn algorithms(&self) -> Vec<Algorithm> {
        let does = |(algorithm, settings): &&(Algorithm, PlanSettings)| {
            self.choice(settings, 0).plan.algorithm() == Some(*algorithm)
        };
        self.asked.iter().filter(does).map(|(algorithm, _)| *algorithm).collect()
    }

    /// Every algorithm that does it, with the chunk and the channels that it has when it is asked for, the fastest first.
    pub(super) fn candidates(&self, bytes: u64) -> Vec<Candidate> {
        let (layout, operation) = (&*self.place.layout, self.operation.operation());
        let candidate = |(algorithm, settings): &(Algorithm, PlanSettings)| {
            let Choice { plan, chunk_bytes, channels, .. } = self.choice(settings, bytes);
            let algorithm = plan.algorithm().filter(|chosen| chosen == algorithm)?;
            let channels = (self.place.channels > 1).then_some(channels);
            let problem = Problem {
                chunk_bytes,
                ..Problem::between_daemons((layout, operation, bytes), settings.tuning(), channels)
            };
            let prediction = predict(algorithm, &problem, &self.constants)?;
            Some(Candidate { algorithm, chunk_bytes, channels, prediction })
        };
        let mut found: Vec<Candidate> = self.asked.iter().filter_map(candidate).collect();
        found.sort_by(Candidate::faster);
        found
    }

    /// What is chosen when nothing is asked for.
    pub(super) fn chosen(&self, bytes: u64) -> Chosen {
        let Choice { plan, origin, .. } = self.choice(&self.settings, bytes);
        let nodes = self.place.layout.nodes();
        let by = match origin {
            Origin::Rule(rule) if self.given.rules.contains(&SavedRule { nodes, rule }) => "rule",
            Origin::Rule(_) => "model",
            Origin::Usual | Origin::Asked => "default",
        };
        Chosen { algorithm: plan.source().name().to_owned(), by }
    }

    /// For each of these algorithms the place of the first that is the same exchange: its own, as a rule.
    pub(super) fn kinds(&self, bytes: u64, algorithms: &[Algorithm]) -> Vec<usize> {
        let mut known: Vec<(usize, Exchange)> = Vec::new();
        let kind = |(place, algorithm)| {
            let Some(exchange) = self.exchange(algorithm, bytes) else { return place };
            if let Some((first, _)) = known.iter().find(|(_, other)| *other == exchange) {
                return *first;
            }
            known.push((place, exchange));
            place
        };
        algorithms.iter().enumerate().map(kind).collect()
    }

    /// What an algorithm makes of a call when it is asked for.
    fn exchange(&self, algorithm: &Algorithm, bytes: u64) -> Option<Exchange> {
        let (_, settings) = self.asked.iter().find(|(asked, _)| asked == algorithm)?;
        self.seen(bytes, |view| {
            let plan = settings.choice_over(&view(0), self.place.channels).plan;
            Exchange::new(&plan, self.place.layout.nodes(), view)
        })
    }

    fn choice(&self, settings: &PlanSettings, bytes: u64) -> Choice {
        self.seen(bytes, |view| settings.choice_over(&view(0), self.place.channels))
    }

    /// The call, as each node sees it.
    fn seen<T>(&self, bytes: u64, look: impl for<'v> FnOnce(&dyn Fn(u32) -> View<'v>) -> T) -> T {
        use Operation as O;
        let layout = &*self.place.layout;
        let ranks = u64::from(layout.ranks());
        let (count, _) = self.operation.count(bytes, DataType::F32, ranks);
        let operation = self.operation.operation();
        let starts: Vec<u64> = match operation {
            O::AllGatherV | O::ReduceScatterV | O::GatherV | O::ScatterV => {
                (0..=ranks).map(|rank| rank * count).collect()
            }
            _ => Vec::new(),
        };
        let blocks = if starts.is_empty() { Blocks::Uniform } else { Blocks::PerRank { starts: &starts } };
        let call = Call { operation, element: 4, count, root: 0 };
        // All nodes have as many ranks.
        let in_place = vec![false; layout.local(0).len()];
        look(&|node| View { layout, node, call, blocks, in_place: &in_place })
    }
}
