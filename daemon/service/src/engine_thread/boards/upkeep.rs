//! How boards come and go in the engine thread.

use std::sync::Arc;

use ringway_engine::Failure;
use ringway_verbs::{Access, Device as _, RegisterError};

use super::{BoardMemory, GroupBoard, ScratchRegion};
use crate::{
    engine_thread::{EngineThread, RegionMemory},
    membership::GroupKey,
};

impl EngineThread {
    /// Takes a fresh board. Without a place for its scratch memory nothing is ever offered on it.
    pub(in crate::engine_thread) fn add_board(&mut self, key: GroupKey, memory: BoardMemory) {
        let Some(group) = self.groups.get(&key) else { return };
        let id = group.id;
        let locals = u32::try_from(group.layout.local(group.node).len()).unwrap_or(0);
        let keys = match self.device.register(Arc::clone(&memory.scratch), Access::ALL) {
            Ok(keys) => keys,
            Err(error) => {
                tracing::warn!(communicator = key.0, %error, "waiting ranks will not help: no room for their scratch memory");
                return;
            }
        };
        let region = ScratchRegion {
            id: self.memory.add(RegionMemory::Host(Arc::clone(&memory.scratch))),
            key: keys.local,
        };
        self.engine.add_region(region.id, region.key);
        self.engine.set_scratch(id, Some((region.id, memory.scratch.length() as u64)));
        self.memory.boards.add(GroupBoard::new((key, id), memory, region, locals));
    }

    /// Ends communicators whose ranks wrote nonsense on their board.
    pub(in crate::engine_thread) fn look_at_boards(&mut self) {
        if let Some(key) = self.memory.boards.take_spoiled()
            && let Some(group) = self.groups.get(&key)
        {
            let rank = group.layout.local(group.node).first().copied().unwrap_or(0);
            let reason = "a rank spoiled the memory in which its ranks help the daemon";
            self.fail_group(key, Failure::Node { node: group.node, rank, reason, rail: None });
        }
    }

    /// Lets go of the scratch memory of communicators that are gone, as far as the device has.
    pub(in crate::engine_thread) fn release_scratch(&mut self) {
        let Self { retired, engine, device, memory, .. } = self;
        retired.retain(|region| {
            let free = engine.remove_region(region.id)
                && !matches!(device.deregister(region.key), Err(RegisterError::Busy));
            if free {
                memory.remove(region.id);
            }
            !free
        });
    }
}
