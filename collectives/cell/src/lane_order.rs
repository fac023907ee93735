//! In which order a worker takes lanes: those of ranks on its own NUMA node first, whose memory is near.
//!
//! Ranks say on which node they run, and may move. So it is looked up again once in so many calls: what they say stands on
//! cache lines that are seldom written.

use crate::{cell::Cell, layout::RankWord};

/// Calls between two looks at where the ranks run.
const LOOK_EVERY: u64 = 64;

/// Who takes the lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taker {
    /// A rank begins with its own lane and goes round.
    Rank(u32),
    /// The daemon, on that node, plus one; zero while it is not known. It begins at the other end than the first rank, which
    /// comes first as often as not.
    Daemon(u64),
}

/// The order of one worker.
#[derive(Debug)]
pub(crate) struct LaneOrder {
    taker: Taker,
    lanes: Box<[u32]>,
    /// The ranks' nodes plus one, as they were when it was last looked; zero while one is not known.
    nodes: Box<[u64]>,
    /// The first call at which it is looked again.
    look_at: u64,
}

impl LaneOrder {
    /// For a rank, or for the daemon, and as many lanes as ranks.
    pub(crate) fn new(rank: Option<u32>, ranks: u32) -> Self {
        let (lanes, nodes) = ((0..ranks).collect(), (0..ranks).map(|_| 0).collect());
        let mut order = Self { taker: rank.map_or(Taker::Daemon(0), Taker::Rank), lanes, nodes, look_at: 0 };
        order.sort();
        order
    }

    /// The daemon works on this NUMA node now.
    pub(crate) fn set_daemons_node(&mut self, node: Option<u32>) {
        let taker = Taker::Daemon(node.map_or(0, |node| u64::from(node) + 1));
        if core::mem::replace(&mut self.taker, taker) != taker {
            self.sort();
        }
    }

    /// Looks where the ranks run, if it has not for a while; whether it did. A large call begins, which all of them have
    /// published.
    #[inline]
    pub(crate) fn look(&mut self, cell: &Cell, sequence: u64) -> bool {
        if sequence < self.look_at {
            return false;
        }
        self.look_at = sequence.saturating_add(LOOK_EVERY);
        let mut changed = false;
        for (rank, known) in (0..).zip(self.nodes.iter_mut()) {
            let node = cell.rank_word(rank, RankWord::Node);
            changed |= core::mem::replace(known, node) != node;
        }
        if changed {
            self.sort();
        }
        true
    }

    /// The lanes, first to last.
    #[inline]
    pub(crate) fn lanes(&self) -> impl Iterator<Item = u32> {
        self.lanes.iter().copied()
    }

    fn sort(&mut self) {
        let Self { taker, lanes, nodes, .. } = self;
        let ranks = u32::try_from(lanes.len()).unwrap_or(u32::MAX);
        let node = |rank: u32| nodes.get(rank as usize).copied().unwrap_or(0);
        let near = match *taker {
            Taker::Rank(rank) => node(rank),
            Taker::Daemon(node) => node,
        };
        let place = |lane: u32| match *taker {
            Taker::Rank(rank) if lane < rank => lane + ranks,
            Taker::Rank(_) => lane,
            Taker::Daemon(_) => ranks - lane,
        };
        lanes.sort_unstable_by_key(|lane| (node(*lane) != near, place(*lane)));
    }
}

#[cfg(all(test, not(loom)))]
#[expect(clippy::expect_used, reason = "helpers of tests may panic")]
mod tests {
    use std::sync::Arc;

    use ringway_mem::Mapping;

    use super::*;
    use crate::Member;

    fn of(order: &LaneOrder) -> Vec<u32> {
        order.lanes().collect()
    }

    fn cell(ranks: u32) -> Cell {
        let bytes = crate::bytes(ranks).expect("ranks") as usize;
        Cell::attach(Arc::new(Mapping::private(bytes).expect("map")), ranks).expect("attach")
    }

    /// The ranks of a cell, on these nodes.
    fn members(cell: &Cell, nodes: &[u32]) -> Vec<Member> {
        let on = |(rank, node): (u32, &u32)| {
            let mut member = Member::new(cell.clone(), rank);
            member.set_node(*node);
            member
        };
        (0..).zip(nodes).map(on).collect()
    }

    #[test]
    fn lanes_of_ranks_on_the_workers_own_node_come_first_and_all_of_them_come() {
        let cell = cell(4);
        for (nodes, orders) in [
            // Two nodes with two ranks each, by turns and one after the other.
            ([7, 7, 9, 9], [[0, 1, 2, 3], [1, 0, 2, 3], [2, 3, 0, 1], [3, 2, 0, 1]]),
            ([0, 1, 0, 1], [[0, 2, 1, 3], [1, 3, 2, 0], [2, 0, 3, 1], [3, 1, 0, 2]]),
            ([5, 5, 5, 5], [[0, 1, 2, 3], [1, 2, 3, 0], [2, 3, 0, 1], [3, 0, 1, 2]]),
        ] {
            let _members = members(&cell, &nodes);
            for (rank, expected) in (0..).zip(orders) {
                let mut order = LaneOrder::new(Some(rank), 4);
                order.look(&cell, 1);
                assert_eq!(of(&order), expected, "rank {rank} of {nodes:?}");
            }
        }
    }

    #[test]
    fn the_daemon_begins_with_ranks_on_its_node_as_well_and_from_the_other_end() {
        let cell = cell(4);
        let _members = members(&cell, &[0, 0, 1, 1]);
        let mut order = LaneOrder::new(None, 4);
        assert_eq!(of(&order), [3, 2, 1, 0], "nothing is known");
        assert!(order.look(&cell, 1));
        assert_eq!(of(&order), [3, 2, 1, 0], "its own node is not known");
        for (node, expected) in [(Some(0), [1, 0, 3, 2]), (Some(1), [3, 2, 1, 0]), (Some(2), [3, 2, 1, 0])] {
            order.set_daemons_node(node);
            assert_eq!(of(&order), expected, "on {node:?}");
        }
    }

    #[test]
    fn who_moves_is_looked_up_after_a_while() {
        let cell = cell(3);
        let mut members = members(&cell, &[0, 1, 0]);
        let mut order = LaneOrder::new(Some(0), 3);
        order.look(&cell, 10);
        assert_eq!(of(&order), [0, 2, 1]);
        members[1].set_node(0);
        members[2].set_node(1);
        assert!(!order.look(&cell, 9 + LOOK_EVERY));
        assert_eq!(of(&order), [0, 2, 1]);
        order.look(&cell, 10 + LOOK_EVERY);
        assert_eq!(of(&order), [0, 1, 2]);
        // Its own move counts at once when it is looked.
        members[0].set_node(1);
        order.look(&cell, 10 + 2 * LOOK_EVERY);
        assert_eq!(of(&order), [0, 2, 1]);
    }
}
