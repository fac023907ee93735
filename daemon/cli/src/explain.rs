//! `ringway explain`: which algorithm would be used, what the others would take, and why.

mod alike;
mod choose;
mod measure;
mod table;

use std::{path::PathBuf, process::ExitCode};

use clap::Args;
use ringway_plan::{
    Layout, PlanSettings,
    tuner::{Candidate, Order, Saved},
};
use ringway_service::{read_tuning, write_tuning};
use ringway_topology::Document;
use serde::Serialize;

use crate::{
    local::{cluster::Network, parse_device},
    output,
    perf::{Measured, parse_bytes},
};
use choose::{Chooser, Chosen};
use measure::Times;

/// The most nodes that are explained.
const NODES_MAX: u32 = 65536;

/// Say which algorithm an operation would use between nodes, and how long each would take.
///
/// Every algorithm that does the operation is priced by the model that daemons choose by, with its best chunk and over as many
/// channels as pay: messages one behind the other, bytes, and what is combined, times the constants of the links. What would be chosen is what daemons with the same
/// tuning file choose. With --measure daemons are started on this machine, their links are measured as at every first
/// communicator, and each algorithm is timed beside its prediction.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Examples:\n  ringway explain allreduce -b 64M --nodes 8\n  ringway explain all_gather -b 4K,1M --nodes 4 --measure\n  \
    ringway explain allreduce --nodes 16 --tuning cluster.toml --order strict\n  \
    ringway explain allreduce --nodes 2 --measure --save tuning.toml   keep what was measured\n  \
    ringway explain allreduce --nodes 3 --measure --within 1.25   fail where something else is a quarter faster\n\n\
    The size is one rank's vector; for all_gather, reduce_scatter, all_to_all, gather and scatter it is the total over\n\
    all ranks, as in `ringway perf`."
)]
pub struct ExplainArgs {
    /// The operation.
    #[arg(value_enum, value_name = "OPERATION")]
    operation: Measured,
    /// Sizes: bytes, or with K, M, G; several with commas.
    #[arg(short = 'b', long = "bytes", default_value = "64,4K,64K,1M,16M", value_parser = parse_bytes, value_delimiter = ',')]
    bytes: Vec<u64>,
    /// Nodes.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(NODES_MAX)))]
    nodes: u32,
    /// Ranks on each node.
    #[arg(long, default_value_t = 1, value_name = "R", value_parser = clap::value_parser!(u32).range(1..=1024))]
    ranks_per_node: u32,
    /// Which algorithms may be chosen: stable, strict or any.
    #[arg(long, default_value = "stable", value_parser = parse_order, value_name = "ORDER")]
    order: Order,
    /// Channels between two nodes, queue pairs or connections, of which a rule may use some or all.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(PlanSettings::CHANNELS_MAX)))]
    channels: u32,
    /// A tuning file with the constants of the links, and rules. Of links that name their hosts those of as many nodes are
    /// taken. Without constants for the device the usual ones are used, or with --measure what is measured.
    #[arg(long, value_name = "FILE")]
    tuning: Option<PathBuf>,
    /// Consecutive nodes that are a group, such as those on one leaf switch, for algorithms that do one thing within groups and
    /// another between them; 0 for as many as make fewest messages.
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u32).range(..=1 << 20))]
    group_nodes: u32,
    /// A cluster's file, as `ringway topo --write` makes it: its nodes, and as groups the nodes on one leaf switch, where all have
    /// as many.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["nodes", "group_nodes"])]
    topology: Option<PathBuf>,
    /// Time every algorithm between daemons on this machine: of those that are the same exchange by another name, one for all. What
    /// seems faster than what is chosen is timed once more by turns with it, three times as often, and only that counts.
    #[arg(long)]
    measure: bool,
    /// Times every algorithm is timed; the median counts.
    #[arg(long, default_value_t = 3, value_name = "N", requires = "measure", value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Seconds that every algorithm is timed for at each size in a round. A first measurement of as long, with everything
    /// cold, is left out.
    #[arg(long, default_value_t = 0.1, value_name = "S", requires = "measure", value_parser = parse_seconds)]
    seconds: f64,
    /// Fail when what is chosen takes more than so many times as long as the fastest that was measured, at any size.
    #[arg(long, value_name = "X", requires = "measure", value_parser = parse_factor)]
    within: Option<f64>,
    /// Device between the nodes; of --tuning the constants count that are for what it speaks.
    #[arg(long, default_value = "tcp", value_name = "D", value_parser = parse_device)]
    device: String,
    /// How the nodes reach each other when they are measured.
    #[arg(long, value_enum, default_value_t = Network::Auto, requires = "measure")]
    network: Network,
    /// Microseconds that everything between nodes takes longer when it is measured.
    #[arg(long, value_name = "US", requires = "measure")]
    delay_us: Option<u64>,
    /// Save the constants as a tuning file, for links between any hosts, with the rules of --tuning.
    #[arg(long, value_name = "FILE", requires = "measure")]
    save: Option<PathBuf>,
    /// Print one JSON object for each size.
    #[arg(long)]
    json: bool,
}

impl ExplainArgs {
    /// The same with the nodes and the groups of the cluster whose file is given, and without sizes where there are none.
    fn resolved(&self) -> Result<Self, String> {
        let mut args = self.clone();
        if matches!(self.operation, Measured::Barrier) {
            args.bytes = vec![0];
        }
        let Some(path) = &self.topology else { return Ok(args) };
        match Document::read(path).map_err(|error| format!("{}: {error}", path.display()))? {
            Document::Cluster(cluster) => {
                let nodes = u32::try_from(cluster.nodes()).ok().filter(|nodes| *nodes <= NODES_MAX);
                args.nodes = nodes.ok_or_else(|| format!("there are more than {NODES_MAX} nodes"))?;
                args.group_nodes = cluster.group_nodes().unwrap_or(0);
                Ok(args)
            }
            Document::Host(_) => Err(format!(
                "{} describes one host; `ringway topo --hosts N --leaf M --write FILE` describes a cluster",
                path.display()
            )),
        }
    }
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.0..=60.0).contains(seconds));
    seconds.ok_or_else(|| format!("`{text}` is not a number of seconds from 0 to 60"))
}

fn parse_factor(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor| (1.0..=1e6).contains(factor));
    factor.ok_or_else(|| format!("`{text}` is not a factor of 1 or more"))
}

fn parse_order(text: &str) -> Result<Order, String> {
    Order::from_name(text)
        .ok_or_else(|| format!("`{text}` is not an order; there are stable, strict and any"))
}

/// What is said of one size.
#[derive(Debug, Serialize)]
struct Explained {
    operation: &'static str,
    bytes: u64,
    nodes: u32,
    ranks_per_node: u32,
    /// Between two nodes.
    channels: u32,
    order: &'static str,
    /// The fastest by prediction first.
    candidates: Vec<Explanation>,
    /// The algorithm that is used when none is asked for.
    chosen: String,
    /// What it is chosen by.
    chosen_by: &'static str,
    /// How long it took without being asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    chosen_us: Option<f64>,
    /// The same, over what the fastest took.
    #[serde(skip_serializing_if = "Option::is_none")]
    chosen_over_best: Option<f64>,
}

/// One algorithm.
#[derive(Debug, Serialize)]
struct Explanation {
    algorithm: String,
    chunk_bytes: u64,
    /// Channels that chunks go over by turns.
    channels: u32,
    chunks: u64,
    predicted_us: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    measured_us: Option<f64>,
}

/// Explains as the arguments say.
///
/// # Errors
/// When a file cannot be read or written, or daemons cannot be started or fail, as a sentence.
pub fn explain(args: &ExplainArgs) -> Result<ExitCode, String> {
    let args = &args.resolved()?;
    let operation = args.operation.operation();
    if !operation.is_collective() {
        return Err(format!("{} has no algorithms to choose from: it is one message", args.operation.name()));
    }
    let node_of: Vec<u32> = (0..args.nodes).flat_map(|n| (0..args.ranks_per_node).map(move |_| n)).collect();
    let layout = Layout::new(&node_of).ok_or("there are too many ranks")?;
    let given = match &args.tuning {
        Some(path) => read_tuning(path).map_err(|e| e.to_string())?,
        None => Saved::default(),
    };
    let bench = if args.measure { Some(measure::Bench::start(args)?) } else { None };
    let measured = bench.as_ref().map(measure::Bench::links).transpose()?.flatten();
    let chooser = Chooser::new(args, layout, given, measured)?;
    if let Some(path) = &args.save {
        write_tuning(path, chooser.given()).map_err(|e| e.to_string())?;
    }
    if !args.json {
        output::line(&table::head(args, chooser.constants(), chooser.origin()));
    }
    let times = match &bench {
        Some(bench) => bench.time(args, &chooser)?,
        None => args.bytes.iter().map(|_| Times::default()).collect(),
    };
    let mut missed = Vec::new();
    for (&bytes, times) in args.bytes.iter().zip(times) {
        let explained = explain_size(args, bytes, &chooser, times);
        output::line(&if args.json {
            serde_json::to_string(&explained).unwrap_or_default()
        } else {
            table::rows(&explained)
        });
        missed.extend(table::missed(&explained, args.within));
    }
    if missed.is_empty() { Ok(ExitCode::SUCCESS) } else { Err(missed.join("\n")) }
}

fn explain_size(args: &ExplainArgs, bytes: u64, chooser: &Chooser, times: Times) -> Explained {
    let found = chooser.candidates(bytes);
    let Chosen { algorithm: expected, by } = chooser.chosen(bytes);
    let measured_us = |candidate: &Candidate| times.by_algorithm.get(&candidate.algorithm).copied().flatten();
    let explanation = |candidate: &Candidate| Explanation {
        algorithm: candidate.algorithm.to_string(),
        chunk_bytes: candidate.chunk_bytes,
        channels: candidate.channels.unwrap_or(args.channels),
        chunks: candidate.prediction.chunks,
        predicted_us: candidate.prediction.time_ns / 1e3,
        measured_us: measured_us(candidate),
    };
    let best = found.iter().map(measured_us).chain([times.chosen_us]).flatten().reduce(f64::min);
    let candidates = found.iter().map(explanation).collect();
    Explained {
        operation: args.operation.name(),
        bytes,
        nodes: args.nodes,
        ranks_per_node: args.ranks_per_node,
        channels: args.channels,
        order: args.order.name(),
        candidates,
        chosen: times.chosen.unwrap_or(expected),
        chosen_by: by,
        chosen_us: times.chosen_us,
        chosen_over_best: times.chosen_us.zip(best).map(|(chosen, best)| table::over(chosen, best)),
    }
}
