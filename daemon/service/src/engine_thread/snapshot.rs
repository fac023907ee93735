//! The state of rings and communicators, for whoever asks.

use super::{EngineThread, Group};
use crate::{
    membership::GroupKey,
    status::{CommunicatorStatus, EngineStatus, RankStatus},
};

impl EngineThread {
    /// The state now. Allocates: it is asked for by people.
    pub(super) fn snapshot(&self) -> EngineStatus {
        EngineStatus {
            communicators: self.groups.iter().map(|(key, group)| self.describe(*key, group)).collect(),
            counters: self.counters,
            device: self.device.capabilities().name,
            spin_us: self.polling.budget().as_secs_f64() * 1e6,
        }
    }

    fn describe(&self, key: GroupKey, group: &Group) -> CommunicatorStatus {
        let rings = self.rings.iter().filter(|(_, ring)| ring.group == key);
        let mut local: Vec<_> = rings
            .map(|(session, ring)| RankStatus {
                rank: ring.rank,
                session: session.0,
                outstanding: u32::try_from(ring.in_flight()).unwrap_or(u32::MAX),
                finished: ring.finished,
            })
            .collect();
        local.sort_by_key(|rank| rank.rank);
        let engine = self.engine.status(group.id);
        let engine = engine.as_ref();
        let failure = group.failure.as_ref().or(engine.and_then(|e| e.failure.as_ref()));
        CommunicatorStatus {
            group: key.0,
            ranks: group.layout.ranks(),
            nodes: group.layout.nodes(),
            local,
            device: if group.layout.nodes() > 1 {
                self.device.capabilities().name.to_owned()
            } else {
                String::new()
            },
            sequence: engine.map_or(0, |e| e.sequence),
            outstanding: engine.map_or(0, |e| e.outstanding),
            current: engine.and_then(|e| e.call).map_or_else(String::new, |call| call.to_string()),
            waited_ms: engine.map_or(0, |e| e.waited_ms),
            late_ranks: engine.map(|e| e.missing.clone()).unwrap_or_default(),
            algorithm: engine.and_then(|e| e.algorithm).map_or_else(String::new, |a| a.name().to_owned()),
            bytes: engine.map_or(0, |e| e.bytes),
            failure: failure.map_or_else(String::new, ToString::to_string),
        }
    }
}
