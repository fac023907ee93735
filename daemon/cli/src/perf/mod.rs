//! `ringway perf`: time one operation over sizes, in the manner of nccl-tests.

mod call;
mod check;
mod cuda;
mod floor;
mod offsets;
mod overlap;
mod pace;
mod parent;
mod pattern;
pub(crate) mod place;
mod rank;
mod report;
mod round_trip;
mod spec;
mod tenants;

use std::path::PathBuf;

use clap::{ArgAction, Args, ValueEnum as _};
use ringway_plan::Preference;
use ringway_types::{DataType, Reduction};

use offsets::Offsets;
pub use parent::perf;
pub use rank::{RANK, run_rank};
pub use spec::{Measured, MemoryKind};

pub(crate) use parent::{Campaign, measure};
pub(crate) use report::{Columns, Row, header, line, percentile, round, significant};
pub(crate) use round_trip::round_trip_ns;
pub(crate) use spec::{Mode, SECONDS, Spec, parse_bytes, sizes, some_sizes};

use crate::local::{cluster::Network, parse_device};

/// Measure operations' time and bandwidth, and check their results.
///
/// Starts daemons and ranks on this machine (or uses a running daemon with --socket), runs each operation over a series
/// of sizes and prints one row for each. The columns and the meaning of algbw and busbw are those of nccl-tests. Between
/// calls every rank writes its input and reads its output. Below 4 KiB loops of many calls are timed, from there on each
/// call by itself, after a barrier; a loop or call counts with its slowest rank's time.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Examples:\n  ringway perf allreduce --ranks 2\n  ringway perf all_to_all --ranks 4 --nodes 2 -b 1K -e 1M -c 1\n  \
    ringway perf all -t all -o all -b 1000 -e 1000 -n 1 -c 1          check every operation, type and reduction\n  \
    ringway perf allreduce --sizes 4K,1M,64M --in-place both --floor  against the bare kernel\n  \
    ringway perf allreduce --nodes 2 --device roce-udp --fault loss=0.01,seed=7  over a bad network\n  \
    ringway perf allreduce --ranks 4 --nodes 4 --algorithm ring       with that algorithm at every size
  \
    ringway perf allreduce --overlap                                  hidden behind computation\n  \
    ringway perf allreduce --memory cuda --ranks 4 --sizes 8,1M,256M  four ranks that share a GPU\n\n\
    The size is one rank's vector; for all_gather, reduce_scatter, all_to_all, gather and scatter it is the total over\n\
    all ranks. time is the median; algbw = size / time; busbw is what the slowest link must carry."
)]
pub struct PerfArgs {
    /// What to measure, one or several with commas between, or `all`: allreduce, reduce, broadcast, all_gather, reduce_scatter,
    /// gather, scatter, all_to_all, barrier, scan, exscan, send_recv, all_gather_v, reduce_scatter_v, gather_v, scatter_v,
    /// all_to_all_v. Of several, those that have no form or floor that was asked for are measured without.
    #[arg(value_name = "OPERATION", value_parser = parse_operations, action = ArgAction::Set)]
    operations: Choice<Measured>,
    /// Ranks in all.
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    ranks: u16,
    /// Nodes the ranks are divided over; their engine threads keep to a processor each where there are as many.
    #[arg(long, default_value_t = 1, value_name = "K", value_parser = clap::value_parser!(u16).range(1..=250))]
    nodes: u16,
    /// Smallest size: bytes, or with K, M, G.
    #[arg(short = 'b', long, default_value = "8", value_parser = parse_bytes)]
    begin: u64,
    /// Largest size.
    #[arg(short = 'e', long, default_value = "64M", value_parser = parse_bytes)]
    end: u64,
    /// Each size is this many times the one before.
    #[arg(short = 'f', long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(2..))]
    factor: u64,
    /// These sizes, separated by commas, instead of a series.
    #[arg(long, value_name = "LIST", value_parser = parse_bytes, value_delimiter = ',', conflicts_with_all = ["begin", "end", "factor"])]
    sizes: Vec<u64>,
    /// Iterations at each size [default: as many as fit into --seconds].
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..))]
    iterations: Option<u32>,
    /// Seconds to measure each size for [default: 0.2; with --tenants 3].
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    seconds: Option<f64>,
    /// Iterations before the clock starts.
    #[arg(short = 'w', long, default_value_t = 10)]
    warmup: u32,
    /// Check the results (1) or not (0).
    #[arg(short = 'c', long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    check: u8,
    /// Type of the elements, or `all`.
    #[arg(short = 't', long = "type", default_value = "f32", value_parser = parse_datatypes, action = ArgAction::Set)]
    datatype: Choice<DataType>,
    /// Reduction, or `all`.
    #[arg(short = 'o', long = "op", default_value = "sum", value_parser = parse_reductions, action = ArgAction::Set)]
    reduction: Choice<Reduction>,
    /// Root of operations that have one.
    #[arg(short = 'r', long, default_value_t = 0)]
    root: u32,
    /// Device between nodes; auto takes shm where the nodes share the loopback network. Also shm, verbs (or
    /// verbs:NAME:PORT:GID), roce-xdp, roce-udp, tcp, tcp-epoll, or several of them with commas between.
    #[arg(long, value_name = "D", default_value = "auto", value_parser = parse_device)]
    device: String,
    /// Algorithm between nodes, instead of the one that would be chosen: its name, or `auto`. One that cannot do an
    /// operation between so many nodes is an error; of `all` operations those are left out that it cannot do.
    #[arg(long, value_name = "NAME")]
    algorithm: Option<Preference>,
    /// How the nodes reach each other.
    #[arg(long, value_enum, default_value_t = Network::Auto)]
    network: Network,
    /// Delay all that arrives at a node by so many microseconds, over any device.
    #[arg(long, value_name = "N", conflicts_with = "socket", value_parser = clap::value_parser!(u32).range(0..=100_000))]
    delay_us: Option<u32>,
    /// Lose, spoil, repeat, delay or mark packets between nodes, with probabilities and times separated by commas: loss,
    /// duplicate, corrupt, reorder, ecn; delay_us, jitter_us, reorder_us; seed. For roce devices.
    #[arg(long, value_name = "SPEC", conflicts_with = "socket")]
    fault: Option<String>,
    /// Capture all packets of each node for Wireshark, into this file with the node's number before the extension. For
    /// roce devices.
    #[arg(long, value_name = "FILE", conflicts_with = "socket")]
    pcap: Option<PathBuf>,
    /// Use ordinary slices and blocking calls, which copy each way, instead of registered buffers.
    #[arg(long)]
    unregistered: bool,
    /// Where the buffers are: in memory of the host, of a GPU (operations then are in the order of CUDA streams, and timed
    /// there; the table also shows how long a caller takes to put one into its stream), or mixed, of a GPU for even ranks.
    #[arg(long, value_enum, default_value_t = MemoryKind::Host, conflicts_with_all = ["unregistered", "floor", "round_trip", "overlap", "tenants", "offsets", "input_offsets"])]
    memory: MemoryKind,
    /// Give the same memory as input and output, or do both.
    #[arg(long, value_enum, default_value_t = Form::No, num_args = 0..=1, default_missing_value = "yes")]
    in_place: Form,
    /// Also run the bare kernel: a thread on each rank's processor that copies and reduces straight between all ranks'
    /// buffers, between two barriers, with whichever stores are fastest: ordinary ones, streaming ones, or streaming ones
    /// to others' buffers alone; and say which share of its rate was reached.
    #[arg(long)]
    floor: bool,
    /// Also tell how long a cache line takes from the first processor to the second and back, before and after each size
    /// and after its floor. On virtual machines that changes as the host moves processors about, and only times with the
    /// same round trip compare.
    #[arg(long, conflicts_with_all = ["overlap", "tenants", "nodes"])]
    round_trip: bool,
    /// Place outputs at these offsets from their inputs in a page (in place: the buffer from the page): bytes separated
    /// by commas, `step:N` for every N bytes, or `all` for some that stand for all. Ends with how much slower than the
    /// median the slowest is, for each size.
    #[arg(long, value_name = "LIST", value_parser = Offsets::parse, action = ArgAction::Set, conflicts_with_all = ["overlap", "tenants"])]
    offsets: Option<Offsets>,
    /// Go over the offsets so many times; each counts with its fastest pass, and once more with its median one. On a machine
    /// that does other things between, or whose host moves its processors about, one pass finds slow offsets that are none.
    #[arg(long, default_value_t = 1, value_name = "N", requires = "offsets", value_parser = clap::value_parser!(u16).range(1..=100))]
    passes: u16,
    /// Place inputs at these offsets from the page instead of at its beginning, each with every one of --offsets.
    #[arg(long, value_name = "LIST", value_parser = Offsets::parse, action = ArgAction::Set, conflicts_with_all = ["overlap", "tenants"])]
    input_offsets: Option<Offsets>,
    /// Keep every rank on one processor: rank 0 on the first, rank 1 on the next; several nodes divide the processors.
    #[arg(long)]
    pin: bool,
    /// Measure how much of an operation's time is hidden behind computation instead [allreduce only; default size: 16M]: the
    /// ranks compute in registers on the first processor, for twice as long as the daemon takes alone, which has the second.
    #[arg(long, conflicts_with_all = ["floor", "tenants", "nodes", "pin", "unregistered", "in_place"])]
    overlap: bool,
    /// Measure two jobs on one daemon instead [allreduce only; default size: 64M]: the share of the bytes that each gets, and
    /// by how much large operations of one delay small ones of the other.
    #[arg(long, conflicts_with_all = ["floor", "nodes", "unregistered", "in_place"])]
    tenants: bool,
    /// Isolation of the daemons started: cell (ranks of one node share memory) or strict (they share the daemon only).
    #[arg(long, value_name = "MODE", conflicts_with = "socket", value_parser = ["cell", "strict"])]
    isolation: Option<String>,
    /// Polling of the daemons started: spin, adaptive or block.
    #[arg(long, default_value = "adaptive", value_name = "MODE", value_parser = ["spin", "adaptive", "block"])]
    polling: String,
    /// Use the running daemon that listens on this socket instead of starting one; several times for several nodes,
    /// whose daemons then run on this machine.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["nodes", "network", "device", "polling"])]
    socket: Vec<PathBuf>,
    /// Print one JSON object per row instead of the table.
    #[arg(long)]
    json: bool,
}

/// Whether operations are measured in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Form {
    No,
    Yes,
    Both,
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err(format!("`{text}` is not a number of seconds from 0 to 3600")),
    }
}

/// One value or all of them.
#[derive(Debug, Clone)]
struct Choice<T>(Vec<T>);

fn parse_operations(text: &str) -> Result<Choice<Measured>, String> {
    let named = |name: &str| Measured::from_str(name, false).ok();
    choose(text, Measured::value_variants(), named, Measured::name)
}

fn parse_datatypes(text: &str) -> Result<Choice<DataType>, String> {
    choose(text, DataType::ALL, DataType::from_name, |t| t.name())
}

fn parse_reductions(text: &str) -> Result<Choice<Reduction>, String> {
    choose(text, Reduction::ALL, Reduction::from_name, |r| r.name())
}

fn choose<T: Copy>(
    text: &str,
    all: &[T],
    from_name: fn(&str) -> Option<T>,
    name: fn(T) -> &'static str,
) -> Result<Choice<T>, String> {
    if text == "all" {
        return Ok(Choice(all.to_vec()));
    }
    let names = || all.iter().map(|v| name(*v)).collect::<Vec<_>>().join(", ");
    text.split(',')
        .map(|one| from_name(one).ok_or_else(|| format!("`{one}` is not one of {}, all", names())))
        .collect::<Result<_, _>>()
        .map(Choice)
}
