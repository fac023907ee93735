//! The state of rings and communicators, for whoever asks.

use ringway_verbs::Device as _;

use super::{EngineThread, Group, cells::GroupCell, inspection::signature};
use crate::{
    membership::GroupKey,
    status::{CommunicatorStatus, Counters, EngineStatus, RankStatus},
};

impl EngineThread {
    /// The state now. Allocates: it is asked for by people.
    pub(super) fn snapshot(&self) -> EngineStatus {
        EngineStatus {
            communicators: self.groups.iter().map(|(key, group)| self.describe(*key, group)).collect(),
            counters: Counters {
                rank_pieces: self.memory.boards.done().pieces,
                rank_bytes: self.memory.boards.done().bytes,
                ..self.counters
            },
            device: self.device.capabilities().name,
            devices: self.device.status(),
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
        let failure = failure.map_or_else(String::new, ToString::to_string);
        let mut status = CommunicatorStatus {
            group: key.0,
            ranks: group.layout.ranks(),
            nodes: group.layout.nodes(),
            local,
            device: group.device.to_owned(),
            channels: if group.layout.nodes() > 1 { group.width.channels.into() } else { 0 },
            rails: if group.layout.nodes() > 1 { group.width.rails.into() } else { 0 },
            passed_over: Vec::new(),
            sequence: engine.map_or(0, |e| e.sequence),
            outstanding: engine.map_or(0, |e| e.outstanding),
            current: engine.and_then(|e| e.call).map_or_else(String::new, |call| call.to_string()),
            waited_ms: engine.map_or(0, |e| e.waited_ms),
            late_ranks: engine.map(|e| e.missing.clone()).unwrap_or_default(),
            algorithm: engine
                .and_then(|e| e.algorithm.as_ref())
                .map_or_else(String::new, |a| a.name().to_owned()),
            bytes: engine.map_or(0, |e| e.bytes),
            failure,
            path: "engine".to_owned(),
            rank_bytes: self.memory.boards.get(group.id).map_or(0, |board| board.done().bytes),
        };
        if let Some(cell) = self.cells.get(key) {
            self.describe_cell(cell, &mut status);
        }
        status
    }

    /// Adds what the ranks say in their cell.
    fn describe_cell(&self, cell: &GroupCell, status: &mut CommunicatorStatus) {
        "cell".clone_into(&mut status.path);
        status.sequence = status.sequence.saturating_add(cell.sequence());
        for rank in &mut status.local {
            rank.finished = rank.finished.saturating_add(cell.cell.called(rank.rank));
        }
        if let Some(reason) = &cell.reason {
            status.failure = reason.to_string();
            return;
        }
        let Some((sequence, missing)) = cell.current().filter(|_| status.current.is_empty()) else { return };
        let call = (0..cell.cell.ranks()).find_map(|rank| cell.cell.signature(rank, sequence));
        let Some(call) = call.map(signature) else { return };
        status.current = call.to_string();
        status.late_ranks = missing;
        let waited = cell.waited.filter(|waited| waited.sequence == sequence);
        status.waited_ms = waited.map_or(0, |waited| waited.waited_ms(self.now()));
    }
}
