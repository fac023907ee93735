//! Daemons on this machine, between which every algorithm is timed.

use std::collections::BTreeMap;

use ringway_plan::{Algorithm, Preference, tuner::SavedLinks};
use ringway_service::read_tuning;
use ringway_types::{DataType, Reduction};

use super::{ExplainArgs, choose::Chooser};
use crate::{
    local::cluster::{Cluster, ClusterOptions},
    perf::{Campaign, Mode, Row, Spec, measure},
};

/// Running daemons.
#[derive(Debug)]
pub(super) struct Bench {
    cluster: Cluster,
}

/// What was found of one size, in microseconds.
#[derive(Debug, Default)]
pub(super) struct Times {
    /// Of each algorithm that was timed.
    pub(super) by_algorithm: BTreeMap<Algorithm, Option<f64>>,
    /// What was used when nothing was asked for, where it was timed.
    pub(super) chosen: Option<String>,
    pub(super) chosen_us: Option<f64>,
}

impl Bench {
    /// Starts daemons and has them measure their links, as for every first communicator.
    pub(super) fn start(args: &ExplainArgs) -> Result<Self, String> {
        let mut daemon_arguments = vec!["--order".to_owned(), args.order.name().to_owned()];
        daemon_arguments.extend(["--group-nodes".to_owned(), args.group_nodes.to_string()]);
        if let Some(file) = &args.tuning {
            daemon_arguments.extend(["--tuning-file".to_owned(), file.display().to_string()]);
        }
        if let Some(delay_us) = args.delay_us {
            daemon_arguments.extend(["--delay-us".to_owned(), delay_us.to_string()]);
        }
        let options = ClusterOptions {
            nodes: usize::try_from(args.nodes).map_err(|e| e.to_string())?,
            device: args.device.clone(),
            network: args.network,
            apart: true,
            daemon_arguments,
            pcap: None,
        };
        let cluster = Cluster::start(&options).map_err(|e| e.to_string())?;
        let bench = Self { cluster };
        bench.run(args, &[8], None)?;
        Ok(bench)
    }

    /// What the daemons have measured of their links; `None` where they had no need to.
    pub(super) fn links(&self) -> Result<Option<SavedLinks>, String> {
        let files = self.cluster.nodes.iter().map(|node| node.socket.with_extension("links.toml"));
        let Some(file) = files.into_iter().find(|file| file.exists()) else { return Ok(None) };
        let saved = read_tuning(&file).map_err(|e| e.to_string())?;
        Ok(saved.links.last().cloned())
    }

    /// Times what is used when nothing is asked for, and every algorithm, in turns: for each size what was found of each. Of
    /// algorithms that are the same exchange the first is timed.
    pub(super) fn time(&self, args: &ExplainArgs, chooser: &Chooser) -> Result<Vec<Times>, String> {
        let algorithms = &chooser.algorithms();
        let mut sizes: Vec<Samples> =
            args.bytes.iter().map(|bytes| Samples::new(*bytes, chooser.kinds(*bytes, algorithms))).collect();
        for _ in 0..args.rounds {
            for (place, algorithm) in algorithms.iter().enumerate() {
                let asked = Preference::everywhere(*algorithm);
                let mut timed: Vec<&mut Samples> =
                    sizes.iter_mut().filter(|size| size.kinds.get(place) == Some(&place)).collect();
                let bytes: Vec<u64> = timed.iter().map(|size| size.bytes).collect();
                for (size, row) in timed.iter_mut().zip(self.run(args, &bytes, Some(&asked))?) {
                    size.algorithms[place].push(row.time_us.p50);
                }
            }
            for (size, row) in sizes.iter_mut().zip(self.run(args, &args.bytes, None)?) {
                size.chosen.push(row.time_us.p50);
                size.name = row.algorithm;
            }
        }
        Ok(sizes.into_iter().map(|size| size.times(algorithms)).collect())
    }

    /// One row for each size. The first size is measured twice, and counts the second time: in the first tenth of a second
    /// calls of eight nodes took twice as long as later ones.
    fn run(&self, args: &ExplainArgs, sizes: &[u64], asked: Option<&Preference>) -> Result<Vec<Row>, String> {
        if sizes.is_empty() {
            return Ok(Vec::new());
        }
        let spec = Spec {
            operations: vec![args.operation],
            datatypes: vec![DataType::F32],
            reductions: vec![Reduction::Sum],
            sizes: sizes.iter().take(1).chain(sizes).copied().collect(),
            seconds: args.seconds,
            warmup: 3,
            in_place: vec![false],
            nodes: usize::try_from(args.nodes).map_err(|e| e.to_string())?,
            mode: Mode::Time,
            algorithm: asked.map(Preference::to_string),
            ..Spec::default()
        };
        let ranks = args.nodes.saturating_mul(args.ranks_per_node);
        let ranks = usize::try_from(ranks).map_err(|e| e.to_string())?;
        let campaign = Campaign { ranks, spec, show_progress: false };
        let mut rows = Vec::new();
        measure(&self.cluster, &campaign, |row: &Row| rows.push(row.clone()))?;
        let (found, expected) = (rows.len(), sizes.len() + 1);
        if found != expected {
            return Err(format!("the ranks measured {found} of {expected} sizes"));
        }
        Ok(rows.split_off(1))
    }
}

/// What was timed of one size, in microseconds.
#[derive(Debug)]
struct Samples {
    bytes: u64,
    /// For each algorithm the place of the one that is timed for it.
    kinds: Vec<usize>,
    algorithms: Vec<Vec<f64>>,
    chosen: Vec<f64>,
    /// What was chosen.
    name: String,
}

impl Samples {
    fn new(bytes: u64, kinds: Vec<usize>) -> Self {
        let algorithms = vec![Vec::new(); kinds.len()];
        Self { bytes, kinds, algorithms, chosen: Vec::new(), name: String::new() }
    }

    /// The medians. What was chosen is the same as the algorithm of its name when that was asked for, so that both count.
    fn times(mut self, algorithms: &[Algorithm]) -> Times {
        let same = algorithms.iter().position(|algorithm| algorithm.name() == self.name);
        if let Some(kind) = same.and_then(|same| self.kinds.get(same))
            && let Some(same) = self.algorithms.get_mut(*kind)
        {
            same.append(&mut self.chosen);
            self.chosen.clone_from(same);
        }
        let of_kind: Vec<Option<f64>> = self.algorithms.into_iter().map(median).collect();
        let us = self.kinds.iter().map(|kind| of_kind.get(*kind).copied().flatten());
        let by_algorithm = algorithms.iter().copied().zip(us).collect();
        Times { by_algorithm, chosen: Some(self.name), chosen_us: median(self.chosen) }
    }
}

fn median(mut times: Vec<f64>) -> Option<f64> {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied()
}
