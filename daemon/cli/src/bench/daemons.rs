//! The daemons of a path's clients: what they spend.

use super::costs::Spent;
use crate::local::cluster::{Cluster, Node};

/// The daemons of this machine whose costs count.
#[derive(Debug, Default)]
pub(super) struct Daemons {
    pids: Vec<u32>,
}

impl Daemons {
    pub(super) fn of(cluster: &Cluster) -> Result<Self, String> {
        Ok(Self { pids: cluster.nodes.iter().filter_map(Node::daemon_pid).collect() })
    }

    /// So far.
    pub(super) fn spent(&self) -> Spent {
        Spent::by(&self.pids)
    }
}
