//! Which rank is on which node.

/// The ranks of a communicator and the nodes they are on. Nodes are numbered in the order of their lowest rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    node_of: Vec<u32>,
    local_index: Vec<u32>,
    ranks_on: Vec<Vec<u32>>,
}

impl Layout {
    /// The layout in which rank `r` is on node `node_of[r]`. Any labels will do: nodes are renumbered in the order
    /// of their lowest rank. `None` when there is no rank or there are more than `u32::MAX`.
    #[must_use]
    pub fn new(node_of: &[u32]) -> Option<Self> {
        u32::try_from(node_of.len()).ok().filter(|n| *n > 0)?;
        let mut labels = std::collections::BTreeMap::new();
        let mut layout = Self { node_of: Vec::new(), local_index: Vec::new(), ranks_on: Vec::new() };
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
        }
        Some(layout)
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
}
