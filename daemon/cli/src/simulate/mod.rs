//! `ringway simulate`: how long collectives take on clusters that are described, not there.

mod picture;
mod spec;
mod table;

use std::{fs, path::PathBuf, process::ExitCode};

use clap::Args;
use ringway_plan::{
    Algorithm, Call, Layout, Tuning,
    simulate::{Description, Detail, Failure, Limits, Network, Outcome, Request, simulate as run},
};
use ringway_types::DataType;

use crate::{
    bench::Progress,
    output,
    perf::{Measured, parse_bytes, some_sizes},
};
use spec::{FailedLink, Straggler};

/// Ranks and nodes where neither the arguments nor the file say how many.
const NODES: u32 = 64;
const RANKS_PER_NODE: u32 = 8;
/// Bytes of one element: sizes are divided as those of `ringway perf` are, of f32.
const ELEMENT: DataType = DataType::F32;

/// Simulate collectives on a cluster that need not be there.
///
/// Runs the very plans that daemons run, step by step, over a described network, in which messages share the links they meet on
/// max-min fairly. Up to 512 nodes every node is simulated. Beyond that nodes that do the same, as the network's symmetry and samples
/// of their steps tell, are simulated once, which makes 16384 nodes a matter of seconds; where no two do, as in a tree, all are, as
/// long as that does not take too long. What cannot be simulated says why. Where there are many chunks the first ones are
/// simulated, until each more takes the same: `to 0.4 %` is by how much that still went up and down. The same arguments give the
/// same output, byte for byte.
#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
pub struct SimulateArgs {
    /// Nodes, or several numbers of them separated by commas [default: the file's, or 64].
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    nodes: Vec<u32>,
    /// Ranks on each node [default: the file's, or 8].
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u32).range(1..=1024))]
    ranks_per_node: Option<u32>,
    /// The network, as TOML; see below.
    #[arg(long, value_name = "FILE")]
    topology: Option<PathBuf>,
    /// What to simulate; not send_recv, and no operation with counts.
    #[arg(long, value_enum, default_value_t = Measured::Allreduce, value_name = "OPERATION")]
    operation: Measured,
    /// Size: bytes, or with K, M, G; with --end the smallest of several.
    #[arg(short = 'b', long, default_value = "1M", value_parser = parse_bytes, value_delimiter = ',')]
    begin: Vec<u64>,
    /// Largest size [default: the only one is --begin's].
    #[arg(short = 'e', long, value_parser = parse_bytes)]
    end: Option<u64>,
    /// With --end each size is this many times the one before.
    #[arg(short = 'f', long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(2..))]
    factor: u64,
    /// Algorithms separated by commas; `simple`, those that are not made of others; or `all`.
    #[arg(long, value_name = "NAMES", default_value = SIMPLE)]
    algorithm: String,
    /// Make nodes slower: node=3,slowdown=4, or share=0.05,slowdown=2 for nodes that the seed picks. Their own work and their
    /// ports take so many times as long. Can be repeated.
    #[arg(long, value_name = "SPEC", value_parser = spec::parse_straggler)]
    straggler: Vec<Straggler>,
    /// Fail a link, both directions: leaf=0,spine=1 or node=3, with rail=1 where nodes have several ports; of a mesh
    /// node=3,to=5. Can be repeated.
    #[arg(long, value_name = "SPEC", value_parser = spec::parse_link)]
    fail_link: Vec<FailedLink>,
    /// Picks stragglers, and spines where routing is by hash.
    #[arg(long, default_value_t = 1, value_name = "S")]
    seed: u64,
    /// Bytes of a chunk, as the daemon's tuning has it [default: 512K].
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    chunk: Option<u64>,
    /// Consecutive nodes that are a group, for algorithms that do one thing within groups and another between them; 0 for as many
    /// as make fewest messages [default: those on a leaf switch, where they fall into groups of so many].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=1 << 20))]
    group_nodes: Option<u32>,
    /// Print one JSON object for each row instead of a table.
    #[arg(long)]
    json: bool,
    /// Draw times over sizes, and over nodes where there are several numbers of them, as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

const HELP: &str = "Examples:
  ringway simulate --nodes 16384 --operation allreduce -b 1G
  ringway simulate --nodes 8,64,512 -b 1K -e 1G --plot times.svg
  ringway simulate --nodes 256 --straggler node=3,slowdown=4 --fail-link leaf=0,spine=2

The network file (every field may be left out; these are the values it then has, and the network without a file):
  kind = \"fat-tree\"        # mesh: a link for every pair; ports: one switch that hinders nobody; rail-optimised
  nodes = 64               # --nodes comes first, as --ranks-per-node does before ranks_per_node = 8
  nodes_per_leaf = 32
  spines = 16              # of each rail; each has one link to every leaf
  oversubscription = 1.0   # bandwidth of a leaf's nodes together / of its links to spines
  rails = 8                # rail-optimised: ports of a node, which messages are divided over, each to a leaf of its own
  routing = \"destination\"  # which spine: by the destination's place on its leaf, or by \"hash\"
  link = { latency_us = 0.6, gap_us = 0, bandwidth = \"400Gb/s\" }   # gap: of the link for each message besides its bytes
  trunk = { latency_us = 0.6, gap_us = 0 }                         # bandwidth, in place of what oversubscription gives
  node = { message_us = 0.5, reduce_ns_per_byte = 0.02, copy_ns_per_byte = 0.01, scratch = \"4GiB\", eager = \"8KiB\" }

The size means what it means to `ringway perf`, as busbw does. `busiest` is the link of which the largest share of its capacity
was used over the whole time.";

/// One simulated call.
#[derive(Debug)]
struct Row {
    nodes: u32,
    ranks: u32,
    bytes: u64,
    algorithm: Algorithm,
    found: Result<Outcome, Failure>,
    bus_factor: f64,
}

impl Row {
    /// Microseconds, where it could be simulated.
    fn us(&self) -> Option<f64> {
        self.found.as_ref().ok().map(|outcome| outcome.time as f64 / 1e6)
    }

    /// 1e9 bytes per second.
    fn busbw(&self) -> Option<f64> {
        let us = self.us().filter(|us| *us > 0.0)?;
        Some(self.bytes as f64 / us / 1e3 * self.bus_factor)
    }
}

/// Simulates as the arguments say and prints what was found.
///
/// # Errors
/// When the arguments or the network file are wrong, or nothing of what was asked for can be simulated, as a sentence.
pub fn simulate(args: &SimulateArgs) -> Result<ExitCode, String> {
    let description = read(args)?;
    let algorithms = algorithms(&args.algorithm)?;
    if matches!(args.operation, Measured::SendRecv) || args.operation.operation().has_counts() {
        return Err(format!(
            "{} cannot be simulated: name an operation without counts",
            args.operation.name()
        ));
    }
    if args.chunk == Some(0) {
        return Err("--chunk is 0: a chunk has a byte at least".to_owned());
    }
    let sizes = wanted_sizes(args)?;
    let counts =
        if args.nodes.is_empty() { vec![description.nodes.unwrap_or(NODES)] } else { args.nodes.clone() };
    let each = args.ranks_per_node.or(description.ranks_per_node).unwrap_or(RANKS_PER_NODE);
    let mut rows = Vec::new();
    for nodes in counts {
        let (network, layout) = (network(args, &description, nodes)?, layout(nodes, each)?);
        let mut tuning = Tuning::default();
        tuning.chunk_bytes = args.chunk.unwrap_or(tuning.chunk_bytes);
        tuning.group_nodes = args.group_nodes.unwrap_or_else(|| description.group_nodes(nodes));
        let scene = Scene { network: &network, layout: &layout, tuning: &tuning };
        for &bytes in &sizes {
            for &algorithm in &algorithms {
                rows.extend(row(args, &scene, (bytes, algorithm)));
            }
        }
    }
    if rows.is_empty() {
        return Err(format!("no algorithm of {} does {} there", args.algorithm, args.operation.name()));
    }
    if args.json {
        rows.iter().for_each(|row| output::line(&table::json(row, args.operation)));
    } else {
        table::print(&rows, args.operation);
    }
    if let Some(path) = &args.plot {
        let drawn = picture::draw(&rows, args.operation)
            .ok_or_else(|| "there is nothing to draw: nothing could be simulated".to_owned())?;
        fs::write(path, drawn).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    let any = rows.iter().any(|row| row.found.is_ok());
    Ok(if any { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn read(args: &SimulateArgs) -> Result<Description, String> {
    let Some(path) = &args.topology else { return Ok(Description::default()) };
    let text =
        fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    Description::from_toml(&text).map_err(|error| format!("{}: {error}", path.display()))
}

/// The words for many algorithms.
const ALL: &str = "all";
const SIMPLE: &str = "simple";

fn algorithms(names: &str) -> Result<Vec<Algorithm>, String> {
    let simple = |algorithm: &&Algorithm| !matches!(algorithm, Algorithm::Hierarchical(_));
    match names {
        ALL => return Ok(Algorithm::ALL.to_vec()),
        SIMPLE => return Ok(Algorithm::ALL.iter().filter(simple).copied().collect()),
        _ => {}
    }
    let one = |name: &str| {
        Algorithm::from_name(name).ok_or_else(|| {
            let all: Vec<&str> = Algorithm::ALL.iter().map(|algorithm| algorithm.name()).collect();
            format!("`{name}` is not an algorithm; there are {}; or {SIMPLE}, or {ALL}", all.join(", "))
        })
    };
    names.split(',').map(one).collect()
}

fn wanted_sizes(args: &SimulateArgs) -> Result<Vec<u64>, String> {
    match (args.begin.as_slice(), args.end) {
        ([begin], Some(end)) => some_sizes(*begin, end, args.factor),
        (several, _) => Ok(several.to_vec()),
    }
}

fn network(args: &SimulateArgs, description: &Description, nodes: u32) -> Result<Network, String> {
    let mut network = description.network(nodes, args.seed);
    for straggler in &args.straggler {
        match *straggler {
            Straggler::Node(node, factor) => {
                network.slow_down(node, factor).map_err(|error| format!("--straggler: {error}"))?;
            }
            Straggler::Share(share, factor) => network.slow_down_some(share, factor, args.seed),
        }
    }
    for link in &args.fail_link {
        network.fail(link.0).map_err(|error| format!("--fail-link: {error}"))?;
    }
    Ok(network)
}

fn layout(nodes: u32, each: u32) -> Result<Layout, String> {
    let ranks = nodes.checked_mul(each).filter(|ranks| *ranks <= 1 << 24);
    let ranks = ranks.ok_or_else(|| format!("{nodes} nodes of {each} ranks are more than 2^24 ranks"))?;
    let node_of: Vec<u32> = (0..ranks).map(|rank| rank / each).collect();
    Layout::new(&node_of).ok_or_else(|| "there are no ranks".to_owned())
}

/// What all rows of a number of nodes have in common.
struct Scene<'a> {
    network: &'a Network,
    layout: &'a Layout,
    tuning: &'a Tuning,
}

/// One row; `None` where the algorithm does not do it and was not asked for by name.
fn row(args: &SimulateArgs, scene: &Scene<'_>, (bytes, algorithm): (u64, Algorithm)) -> Option<Row> {
    let Scene { network, layout, tuning } = *scene;
    let ranks = layout.ranks();
    let (count, bytes) = args.operation.count(bytes, ELEMENT, u64::from(ranks));
    let call = Call { operation: args.operation.operation(), element: 4, count, root: 0 };
    let (detail, limits) = (Detail::Auto, Limits::default());
    let request = Request { network, layout, call, algorithm, tuning, detail, limits };
    let shown = Progress::new();
    let found = run(&request, &mut |at| {
        shown.line(&format!(
            "{algorithm} on {} nodes, {bytes} B: chunk {} of {}, {} million events",
            network.nodes,
            at.chunk,
            at.chunks,
            at.work / 1_000_000
        ));
    });
    shown.line("");
    if [ALL, SIMPLE].contains(&args.algorithm.as_str()) && matches!(found, Err(Failure::Ineligible(_))) {
        return None;
    }
    let bus_factor = args.operation.bus_factor(ranks);
    Some(Row { nodes: network.nodes, ranks, bytes, algorithm, found, bus_factor })
}
