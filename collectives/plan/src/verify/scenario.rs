//! A call of all ranks, as all nodes together see it.

use ringway_types::Operation as O;

use crate::{Algorithm, Blocks, Call, Layout, Plan, Tuning, View};

/// The counts of a call that carries counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Counts {
    /// None: [`Call::count`] says it all.
    Uniform,
    /// Elements of each rank's block.
    PerRank(Vec<u64>),
    /// Elements of each pair's block: row `i`, column `j` is what rank `i` sends to rank `j`.
    PerPair(Vec<u64>),
}

/// A collective call of all ranks. Element sizes are powers of two up to 8.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Who is where.
    pub layout: Layout,
    /// The call.
    pub call: Call,
    /// Its counts.
    pub counts: Counts,
    /// Which ranks gave the same memory as input and output; one entry for each rank, ignored where a rank has only
    /// one of them.
    pub in_place: Vec<bool>,
}

/// What one node's view borrows from.
#[derive(Debug)]
pub(crate) struct NodeCall<'a> {
    scenario: &'a Scenario,
    node: u32,
    first: Vec<u64>,
    second: Vec<u64>,
    in_place: Vec<bool>,
}

impl NodeCall<'_> {
    pub(crate) fn view(&self) -> View<'_> {
        let blocks = match self.scenario.counts {
            Counts::Uniform => Blocks::Uniform,
            Counts::PerRank(_) => Blocks::PerRank { starts: &self.first },
            Counts::PerPair(_) => Blocks::PerPair { sends: &self.first, receives: &self.second },
        };
        View {
            layout: &self.scenario.layout,
            node: self.node,
            call: self.scenario.call,
            blocks,
            in_place: &self.in_place,
        }
    }
}

fn push_prefix(into: &mut Vec<u64>, counts: impl Iterator<Item = u64>) {
    let mut sum = 0;
    into.push(0);
    for count in counts {
        sum += count;
        into.push(sum);
    }
}

impl Scenario {
    pub(crate) fn node_call(&self, node: u32) -> NodeCall<'_> {
        let mut call = NodeCall {
            scenario: self,
            node,
            first: Vec::new(),
            second: Vec::new(),
            in_place: self.layout.local(node).iter().map(|rank| self.is_in_place(*rank)).collect(),
        };
        let hides = matches!(self.call.operation, O::GatherV | O::ScatterV)
            && self.layout.node_of(self.call.root) != node;
        match &self.counts {
            Counts::Uniform => {}
            Counts::PerRank(counts) => {
                let seen = (0..)
                    .zip(counts)
                    .map(|(rank, count)| if hides && self.layout.node_of(rank) != node { 0 } else { *count });
                push_prefix(&mut call.first, seen);
            }
            Counts::PerPair(_) => {
                let ranks = 0..self.layout.ranks();
                for &own in self.layout.local(node) {
                    push_prefix(&mut call.first, ranks.clone().map(|rank| self.pair(own, rank)));
                    push_prefix(&mut call.second, ranks.clone().map(|rank| self.pair(rank, own)));
                }
            }
        }
        call
    }

    /// Whether an algorithm does this.
    #[must_use]
    pub fn offers(&self, algorithm: Algorithm) -> bool {
        Plan::with(algorithm, &self.node_call(0).view(), &Tuning::default()).is_ok()
    }

    /// Elements of a rank's block.
    pub(crate) fn count(&self, rank: u32) -> u64 {
        match &self.counts {
            Counts::PerRank(counts) => counts.get(rank as usize).copied().unwrap_or(0),
            _ => self.call.count,
        }
    }

    /// The first element of a rank's block among all blocks.
    pub(crate) fn start(&self, rank: u32) -> u64 {
        (0..rank).map(|before| self.count(before)).sum()
    }

    /// Elements that one rank sends to another one in `all_to_all`.
    pub(crate) fn pair(&self, from: u32, to: u32) -> u64 {
        match &self.counts {
            Counts::PerPair(counts) => {
                let at = from as usize * self.layout.ranks() as usize + to as usize;
                counts.get(at).copied().unwrap_or(0)
            }
            _ => self.call.count,
        }
    }

    /// Elements of a rank's input and of its output.
    pub(crate) fn buffers(&self, rank: u32) -> (u64, u64) {
        let ranks = self.layout.ranks();
        let (vector, all) = (self.call.count, self.start(ranks));
        let at_root = |elements| if rank == self.call.root { elements } else { 0 };
        match self.call.operation {
            O::Allreduce | O::Scan | O::Exscan => (vector, vector),
            O::Reduce => (vector, at_root(vector)),
            O::Broadcast => (at_root(vector), vector),
            O::AllGather | O::AllGatherV => (self.count(rank), all),
            O::ReduceScatter | O::ReduceScatterV => (all, self.count(rank)),
            O::Gather | O::GatherV => (self.count(rank), at_root(all)),
            O::Scatter | O::ScatterV => (at_root(all), self.count(rank)),
            O::AllToAll | O::AllToAllV => (
                (0..ranks).map(|other| self.pair(rank, other)).sum(),
                (0..ranks).map(|other| self.pair(other, rank)).sum(),
            ),
            O::Barrier | O::Send | O::Receive => (0, 0),
        }
    }

    /// Whether a rank's input and output are the same memory.
    pub(crate) fn is_in_place(&self, rank: u32) -> bool {
        let rooted = self.call.operation.has_root();
        self.in_place.get(rank as usize).copied().unwrap_or(false)
            && self.call.operation != O::AllToAllV
            && (!rooted || rank == self.call.root)
    }
}
