//! What to measure: parsed from the command line by the parent, handed to every rank.

use ringway_types::{DataType, Operation, Reduction};
use serde::{Deserialize, Serialize};

use super::offsets::Offset;

/// One measurement campaign: every combination of operation, type, reduction and size.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) operations: Vec<Measured>,
    pub(crate) datatypes: Vec<DataType>,
    pub(crate) reductions: Vec<Reduction>,
    pub(crate) sizes: Vec<u64>,
    pub(crate) root: u32,
    /// Calls at each point; 0 for as many as fit into `seconds`.
    pub(crate) iterations: u32,
    /// Seconds to spend on each point.
    pub(crate) seconds: f64,
    pub(crate) warmup: u32,
    pub(crate) check: bool,
    pub(crate) unregistered: bool,
    /// Out of place, in place, or both, in this order.
    pub(crate) in_place: Vec<bool>,
    pub(crate) nodes: usize,
    /// Keep every rank on one processor.
    pub(crate) pin: bool,
    /// Measure the bare kernel as well.
    pub(crate) floor: bool,
    /// Measure how far the first two processors are apart, too.
    pub(crate) round_trip: bool,
    pub(crate) mode: Mode,
    /// The algorithms to ask for; what the environment says if `None`.
    pub(crate) algorithm: Option<String>,
    /// Where buffers begin; none for where the arena puts them.
    pub(crate) offsets: Vec<Offset>,
    pub(crate) memory: MemoryKind,
}

/// Where ranks have their buffers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum MemoryKind {
    /// In memory of the host.
    #[default]
    Host,
    /// In memory of a GPU, which the ranks of a node share: the first, or that of CUDA_VISIBLE_DEVICES.
    Cuda,
    /// Ranks with even numbers in memory of a GPU, the others of the host.
    Mixed,
}

impl MemoryKind {
    /// Whether a rank's buffers are in memory of a GPU.
    pub(crate) const fn is_on_gpu(self, rank: u32) -> bool {
        match self {
            Self::Host => false,
            Self::Cuda => true,
            Self::Mixed => rank.is_multiple_of(2),
        }
    }

    /// For the rows.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Cuda => "cuda",
            Self::Mixed => "mixed",
        }
    }
}

/// What ranks do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Mode {
    /// Time every point.
    #[default]
    Time,
    /// See how much of an operation is hidden behind computation.
    Overlap,
    /// Keep large operations under way until the time is over, waiting for them or asleep.
    Bulk { asleep: bool },
    /// Time small operations until the time is over.
    Small,
}

/// Seconds that a point is measured for unless said otherwise.
pub(crate) const SECONDS: f64 = 0.2;

/// What `ringway perf` measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each is the operation of that name")]
pub enum Measured {
    Allreduce,
    Reduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    Gather,
    Scatter,
    AllToAll,
    Barrier,
    Scan,
    Exscan,
    SendRecv,
    AllGatherV,
    ReduceScatterV,
    GatherV,
    ScatterV,
    AllToAllV,
}

impl Measured {
    /// Everything, in the order of `--help`.
    pub(crate) const ALL: [Self; 17] = [
        Self::Allreduce,
        Self::Reduce,
        Self::Broadcast,
        Self::AllGather,
        Self::ReduceScatter,
        Self::Gather,
        Self::Scatter,
        Self::AllToAll,
        Self::Barrier,
        Self::Scan,
        Self::Exscan,
        Self::SendRecv,
        Self::AllGatherV,
        Self::ReduceScatterV,
        Self::GatherV,
        Self::ScatterV,
        Self::AllToAllV,
    ];

    /// The operation behind it; for send_recv the sending half.
    pub(crate) const fn operation(self) -> Operation {
        match self {
            Self::Allreduce => Operation::Allreduce,
            Self::Reduce => Operation::Reduce,
            Self::Broadcast => Operation::Broadcast,
            Self::AllGather => Operation::AllGather,
            Self::ReduceScatter => Operation::ReduceScatter,
            Self::Gather => Operation::Gather,
            Self::Scatter => Operation::Scatter,
            Self::AllToAll => Operation::AllToAll,
            Self::Barrier => Operation::Barrier,
            Self::Scan => Operation::Scan,
            Self::Exscan => Operation::Exscan,
            Self::SendRecv => Operation::Send,
            Self::AllGatherV => Operation::AllGatherV,
            Self::ReduceScatterV => Operation::ReduceScatterV,
            Self::GatherV => Operation::GatherV,
            Self::ScatterV => Operation::ScatterV,
            Self::AllToAllV => Operation::AllToAllV,
        }
    }

    /// Its name on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::SendRecv => "send_recv",
            _ => self.operation().name(),
        }
    }

    /// Whether the size on the command line is the total over all ranks rather than one rank's.
    pub(crate) const fn size_is_total(self) -> bool {
        matches!(self, Self::AllGather | Self::ReduceScatter | Self::AllToAll | Self::Gather | Self::Scatter)
            || self.operation().has_counts()
    }

    /// Ranks that a size is divided among.
    pub(crate) const fn parts(self, ranks: u64) -> u64 {
        if self.size_is_total() && ranks > 0 { ranks } else { 1 }
    }

    /// The operations' names, with commas between.
    pub(crate) fn names(all: &[Self]) -> String {
        all.iter().map(|what| what.name()).collect::<Vec<_>>().join(",")
    }

    /// Elements of one call (what `count` means there) for a size in bytes, and the bytes this really is.
    pub(crate) fn count(self, bytes: u64, datatype: DataType, ranks: u64) -> (u64, u64) {
        let element = datatype.size() as u64;
        if matches!(self, Self::Barrier) {
            return (0, 0);
        }
        let parts = self.parts(ranks);
        let count = bytes / element / parts;
        (count, count * element * parts)
    }

    /// What bus bandwidth is to algorithm bandwidth with `ranks` ranks (nccl-tests, doc/PERFORMANCE.md).
    pub(crate) fn bus_factor(self, ranks: u32) -> f64 {
        let n = f64::from(ranks.max(1));
        match self {
            Self::Allreduce => 2.0 * (n - 1.0) / n,
            _ if self.size_is_total() => (n - 1.0) / n,
            _ => 1.0,
        }
    }
}

/// The sizes from `begin` to `end`, each `factor` times the one before.
pub(crate) fn sizes(begin: u64, end: u64, factor: u64) -> Vec<u64> {
    std::iter::successors(Some(begin), |s| s.checked_mul(factor.max(2)).or(None))
        .scan(false, |stuck, s| {
            let go = !*stuck && s <= end;
            *stuck = s == 0;
            go.then_some(s)
        })
        .collect()
}

/// The same, of which there is one at least.
pub(crate) fn some_sizes(begin: u64, end: u64, factor: u64) -> Result<Vec<u64>, String> {
    let list = sizes(begin, end, factor);
    if list.is_empty() {
        return Err(format!("no size lies between {begin} and {end}; give -b at most -e"));
    }
    Ok(list)
}

/// Reads `8`, `64K`, `4M`, `1G` (powers of 1024) as bytes.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text.get(digits.len()..).unwrap_or_default().to_ascii_uppercase().as_str() {
        "" | "B" => 1,
        "K" | "KB" | "KIB" => 1 << 10,
        "M" | "MB" | "MIB" => 1 << 20,
        "G" | "GB" | "GIB" => 1 << 30,
        _ => 0,
    };
    match digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit)) {
        Some(bytes) if unit > 0 => Ok(bytes),
        _ => Err(format!("`{text}` is not a size; write bytes, or a number with K, M or G such as 64M")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_a_geometric_series() {
        assert_eq!(sizes(8, 64, 2), [8, 16, 32, 64]);
        assert_eq!(sizes(8, 7, 2), [0_u64; 0]);
        assert_eq!(sizes(0, 7, 2), [0]);
        assert_eq!(sizes(5, 5, 4), [5]);
    }

    #[test]
    fn units_are_powers_of_1024() {
        assert_eq!(parse_bytes("64M"), Ok(64 << 20));
        assert_eq!(parse_bytes("8"), Ok(8));
        assert!(parse_bytes("8x").is_err() && parse_bytes("").is_err() && parse_bytes("-1").is_err());
    }

    #[test]
    fn totals_are_divided_by_the_ranks() {
        assert_eq!(Measured::AllGather.count(100, DataType::F32, 3), (8, 96));
        assert_eq!(Measured::Allreduce.count(100, DataType::F32, 3), (25, 100));
    }
}
