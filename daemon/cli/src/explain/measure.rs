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

/// What takes less than this share of the time of what is chosen is timed again.
const FASTER: f64 = 0.95;
/// How many times as many rounds then: of three on processors that nodes share the median is off by a quarter now and then.
const AGAIN: u32 = 3;

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
        if args.channels > 1 {
            daemon_arguments.extend(["--channels".to_owned(), args.channels.to_string()]);
        }
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
        for size in &mut sizes {
            self.time_again(args, algorithms, size)?;
        }
        Ok(sizes.into_iter().map(|size| size.times(algorithms)).collect())
    }

    /// What seems faster than what is chosen may only have been lucky, as the fastest of many mostly was: these are timed once more
    /// by turns with what is chosen, longer, and of both only that counts.
    fn time_again(
        &self,
        args: &ExplainArgs,
        algorithms: &[Algorithm],
        size: &mut Samples,
    ) -> Result<(), String> {
        let faster = size.faster(algorithms);
        if faster.is_empty() {
            return Ok(());
        }
        size.forget(&faster, algorithms);
        let bytes = [size.bytes];
        for _ in 0..AGAIN.saturating_mul(args.rounds) {
            for place in &faster {
                let asked = algorithms.get(*place).map(|algorithm| Preference::everywhere(*algorithm));
                let rows = self.run(args, &bytes, asked.as_ref())?;
                size.algorithms[*place].extend(rows.iter().map(|row| row.time_us.p50));
            }
            let rows = self.run(args, &bytes, None)?;
            size.chosen.extend(rows.iter().map(|row| row.time_us.p50));
        }
        Ok(())
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

    /// The place of what is timed for the algorithm that was chosen, where that can be asked for.
    fn kind_of_chosen(&self, algorithms: &[Algorithm]) -> Option<usize> {
        let same = algorithms.iter().position(|algorithm| algorithm.name() == self.name)?;
        self.kinds.get(same).copied()
    }

    /// The places of those that took less than what was chosen, beyond what means nothing.
    fn faster(&self, algorithms: &[Algorithm]) -> Vec<usize> {
        let Some(chosen_us) = median(self.chosen.clone()) else { return Vec::new() };
        let own = self.kind_of_chosen(algorithms);
        let is_faster = |us: &Vec<f64>| median(us.clone()).is_some_and(|us| us < FASTER * chosen_us);
        let all = self.algorithms.iter().enumerate();
        all.filter(|(place, us)| Some(*place) != own && is_faster(us)).map(|(place, _)| place).collect()
    }

    /// Forgets what was timed of those, and of what was chosen.
    fn forget(&mut self, places: &[usize], algorithms: &[Algorithm]) {
        let own = self.kind_of_chosen(algorithms);
        for place in places.iter().copied().chain(own) {
            self.algorithms[place].clear();
        }
        self.chosen.clear();
    }

    /// The medians. What was chosen is the same as the algorithm of its name when that was asked for, so that both count.
    fn times(mut self, algorithms: &[Algorithm]) -> Times {
        if let Some(kind) = self.kind_of_chosen(algorithms)
            && let Some(same) = self.algorithms.get_mut(kind)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_lucky_is_timed_again_and_then_counts_as_it_was_then() {
        let algorithms = [Algorithm::Ring, Algorithm::Direct, Algorithm::TwoShot];
        let mut size = Samples::new(64, vec![0, 1, 2]);
        size.name = Algorithm::Ring.name().to_owned();
        size.algorithms = vec![vec![10.0, 10.0, 11.0], vec![8.0, 9.0, 12.0], vec![9.9, 9.8, 30.0]];
        size.chosen = vec![10.0, 10.0, 12.0];
        let faster = size.faster(&algorithms);
        assert_eq!(faster, [1], "9.9 means nothing, and the ring is what was chosen");
        size.forget(&faster, &algorithms);
        size.algorithms[1] = vec![10.5, 10.4, 8.0];
        size.chosen = vec![10.1, 10.2, 10.3];
        let times = size.times(&algorithms);
        assert_eq!(times.chosen_us, Some(10.2));
        let us: Vec<_> = algorithms.iter().map(|algorithm| times.by_algorithm[algorithm]).collect();
        assert_eq!(us, [Some(10.2), Some(10.4), Some(9.9)]);
    }
}
