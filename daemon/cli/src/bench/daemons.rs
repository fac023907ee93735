//! The daemons of a path's clients: what they spend.

use ringway_client::Client;
use ringway_service::status::DaemonStatus;

use super::costs::Spent;
use crate::local::cluster::{Cluster, Node};

/// The daemons of this machine whose costs count.
#[derive(Debug, Default)]
pub(super) struct Daemons {
    pids: Vec<u32>,
    /// Connections over which they tell how many system calls they have made.
    asked: Vec<Client>,
    /// System calls that asking takes them.
    asking: u64,
}

/// What they had spent at some time.
#[derive(Debug)]
pub(super) struct Account {
    system_calls: u64,
    spent: Spent,
}

impl Daemons {
    pub(super) fn of(cluster: &Cluster) -> Result<Self, String> {
        let connect = |node: &Node| Client::builder().autostart(false).socket(&node.socket).connect();
        let asked = cluster.nodes.iter().map(connect).collect::<Result<_, _>>().map_err(|e| e.to_string())?;
        let pids = cluster.nodes.iter().filter_map(Node::daemon_pid).collect();
        let mut daemons = Self { pids, asked, asking: 0 };
        // The first time takes more.
        for _ in 0..2 {
            let before = daemons.system_calls()?;
            daemons.asking = daemons.system_calls()?.saturating_sub(before);
        }
        Ok(daemons)
    }

    fn system_calls(&self) -> Result<u64, String> {
        let one = |client: &Client| {
            let text = client.status().map_err(|e| format!("a daemon does not tell its state: {e}"))?;
            let status: DaemonStatus = serde_json::from_str(&text).map_err(|e| e.to_string())?;
            Ok(status.system_calls)
        };
        self.asked.iter().map(one).sum()
    }

    /// So far. What asking takes is not in the time.
    pub(super) fn account(&self) -> Result<Account, String> {
        let system_calls = self.system_calls()?;
        Ok(Account { system_calls, spent: Spent::by(&self.pids) })
    }

    /// After that.
    pub(super) fn spent_since(&self, before: &Account) -> Result<Spent, String> {
        let spent = Spent::by(&self.pids).since(before.spent);
        let made = self.system_calls()?.saturating_sub(before.system_calls);
        Ok(Spent { system_calls: made.saturating_sub(self.asking), ..spent })
    }
}
