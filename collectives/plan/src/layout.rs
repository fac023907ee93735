//! Which rank is on which node.

/// The ranks of a communicator and the nodes they are on. Nodes are numbered in the order of their lowest rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    node_of: Vec<u32>,
    local_index: Vec<u32>,
    ranks_on: Vec<Vec<u32>>,
    most_local: u32,
    runs: Vec<Run>,
    runs_on: Vec<Vec<u32>>,
}

/// Consecutive ranks that are all on one node, as many as there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The node.
    pub node: u32,
    /// The first rank.
    pub first_rank: u32,
    /// The first rank, as an index among the node's ranks.
    pub first_local: u32,
    /// Ranks.
    pub count: u32,
}

impl Layout {
    /// The layout in which rank `r` is on node `node_of[r]`. Any labels will do: nodes are renumbered in the order
    /// of their lowest rank. `None` when there is no rank or there are more than `u32::MAX`.
    #[must_use]
    pub fn new(node_of: &[u32]) -> Option<Self> {
        u32::try_from(node_of.len()).ok().filter(|n| *n > 0)?;
        let mut labels = std::collections::BTreeMap::new();
        let mut layout = Self {
            node_of: Vec::new(),
            local_index: Vec::new(),
            ranks_on: Vec::new(),
            most_local: 0,
            runs: Vec::new(),
            runs_on: Vec::new(),
        };
        for (rank, label) in (0u32..).zip(node_of) {
            let next = layout.ranks_on.len();
            let node = *labels.entry(*label).or_insert(next);
            if node == next {
                layout.ranks_on.push(Vec::new());
            }
            let ranks = layout.ranks_on.get_mut(node)?;
            layout.local_index.push(u32::try_from(ranks.len()).ok()?);
            layout.node_of.push(u32::try_from(node).ok()?);
            ranks.push(rank);
            layout.most_local = layout.most_local.max(u32::try_from(ranks.len()).ok()?);
        }
        layout.find_runs()?;
        Some(layout)
    }

    fn find_runs(&mut self) -> Option<()> {
        self.runs_on = vec![Vec::new(); self.ranks_on.len()];
        for (rank, (&node, &local)) in (0u32..).zip(self.node_of.iter().zip(&self.local_index)) {
            match self.runs.last_mut() {
                Some(run) if run.node == node => run.count += 1,
                _ => {
                    let run = u32::try_from(self.runs.len()).ok()?;
                    self.runs_on.get_mut(node as usize)?.push(run);
                    self.runs.push(Run { node, first_rank: rank, first_local: local, count: 1 });
                }
            }
        }
        Some(())
    }

    /// Ranks in all.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        u32::try_from(self.node_of.len()).unwrap_or(u32::MAX)
    }

    /// Nodes in all.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        u32::try_from(self.ranks_on.len()).unwrap_or(u32::MAX)
    }

    /// The node a rank is on; 0 for a rank that does not exist.
    #[must_use]
    pub fn node_of(&self, rank: u32) -> u32 {
        self.node_of.get(rank as usize).copied().unwrap_or(0)
    }

    /// The place of a rank among those of its node; 0 for a rank that does not exist.
    #[must_use]
    pub fn local_index(&self, rank: u32) -> u32 {
        self.local_index.get(rank as usize).copied().unwrap_or(0)
    }

    /// The ranks on a node, ascending; none for a node that does not exist.
    #[must_use]
    pub fn local(&self, node: u32) -> &[u32] {
        self.ranks_on.get(node as usize).map_or(&[], Vec::as_slice)
    }

    /// The most ranks any node has.
    #[must_use]
    pub const fn most_local(&self) -> u32 {
        self.most_local
    }

    /// The ranks as runs of consecutive ones on one node, ascending; neighbours are on different nodes.
    #[must_use]
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Which of [`Layout::runs`] are on a node, ascending; none for a node that does not exist.
    #[must_use]
    pub fn runs_on(&self, node: u32) -> &[u32] {
        self.runs_on.get(node as usize).map_or(&[], Vec::as_slice)
    }
}
