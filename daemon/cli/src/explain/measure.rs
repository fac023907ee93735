//! Daemons on this machine, between which every algorithm is timed.

use ringway_plan::{
    Preference,
    tuner::{Candidate, SavedLinks},
};
use ringway_service::read_tuning;
use ringway_types::{DataType, Reduction};

use super::ExplainArgs;
use crate::{
    local::cluster::{Cluster, ClusterOptions},
    perf::{Campaign, Mode, Row, Spec, measure},
};

/// Seconds that each algorithm is timed for in a round.
const SECONDS: f64 = 0.1;

/// Running daemons.
#[derive(Debug)]
pub(super) struct Bench {
    cluster: Cluster,
}

/// What was timed of one size, in microseconds.
#[derive(Debug)]
pub(super) struct Times {
    /// Of each candidate; `None` where none was timed.
    pub(super) candidates_us: Vec<Option<f64>>,
    /// What was used when nothing was asked for, where it was timed.
    pub(super) chosen: Option<String>,
    pub(super) chosen_us: Option<f64>,
}

impl Times {
    /// Nothing was timed.
    pub(super) fn none(found: &[Candidate]) -> Self {
        Self { candidates_us: vec![None; found.len()], chosen: None, chosen_us: None }
    }
}

impl Bench {
    /// Starts daemons and has them measure their links, as for every first communicator.
    pub(super) fn start(args: &ExplainArgs) -> Result<Self, String> {
        let mut daemon_arguments = vec!["--order".to_owned(), args.order.name().to_owned()];
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
        bench.run(args, 8, None)?;
        Ok(bench)
    }

    /// What the daemons have measured of their links; `None` where they had no need to.
    pub(super) fn links(&self) -> Result<Option<SavedLinks>, String> {
        let files = self.cluster.nodes.iter().map(|node| node.socket.with_extension("links.toml"));
        let Some(file) = files.into_iter().find(|file| file.exists()) else { return Ok(None) };
        let saved = read_tuning(&file).map_err(|e| e.to_string())?;
        Ok(saved.links.last().cloned())
    }

    /// Times what is used when nothing is asked for, and every candidate, in turns.
    pub(super) fn time(&self, args: &ExplainArgs, bytes: u64, found: &[Candidate]) -> Result<Times, String> {
        let mut times: Vec<Vec<f64>> = vec![Vec::new(); found.len() + 1];
        let mut chosen = None;
        for _ in 0..args.rounds {
            let asked = found.iter().map(|candidate| Some(Preference::everywhere(candidate.algorithm)));
            for (asked, times) in asked.chain([None]).zip(&mut times) {
                let row = self.run(args, bytes, asked.as_ref())?;
                times.push(row.time_us.p50);
                if asked.is_none() {
                    chosen = Some(row.algorithm);
                }
            }
        }
        let mut medians: Vec<Option<f64>> = times.into_iter().map(median).collect();
        let chosen_us = medians.pop().flatten();
        Ok(Times { candidates_us: medians, chosen, chosen_us })
    }

    fn run(&self, args: &ExplainArgs, bytes: u64, asked: Option<&Preference>) -> Result<Row, String> {
        let spec = Spec {
            operations: vec![args.operation],
            datatypes: vec![DataType::F32],
            reductions: vec![Reduction::Sum],
            sizes: vec![bytes],
            seconds: SECONDS,
            warmup: 3,
            in_place: vec![false],
            nodes: usize::try_from(args.nodes).map_err(|e| e.to_string())?,
            mode: Mode::Time,
            algorithm: asked.map(Preference::to_string),
            ..Spec::default()
        };
        let ranks = args.nodes.saturating_mul(args.ranks_per_node);
        let campaign = Campaign {
            ranks: usize::try_from(ranks).map_err(|e| e.to_string())?,
            spec,
            show_progress: false,
        };
        let mut last = None;
        measure(&self.cluster, &campaign, |row: &Row| last = Some(row.clone()))?;
        last.ok_or_else(|| "the ranks measured nothing".to_owned())
    }
}

fn median(mut times: Vec<f64>) -> Option<f64> {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied()
}
