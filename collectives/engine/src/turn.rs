//! What every part of the engine has at hand during a turn.

use std::collections::{BTreeMap, VecDeque};

use ringway_verbs::{LocalKey, Time};

use crate::network::Network;
use crate::scratch::Scratch;
use crate::windows::{Window, Windows};
use crate::workspace::Workspace;
use crate::{
    BufferRef, CommunicatorId, EngineConfig, Failure, Finished, Late, LocalMemory, LocalRank, ReduceSource,
    RegionId, ScanStep, Token,
};

/// What all communicators share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: EngineConfig,
    pub(crate) workspace: Workspace,
    pub(crate) regions: BTreeMap<RegionId, Known>,
    pub(crate) finished: VecDeque<Finished>,
    pub(crate) late: VecDeque<Late>,
    pub(crate) operands: Operands,
    pub(crate) pool: MessagePool,
    pub(crate) network: Network,
    /// Bytes touched to copy short messages into buffers and out of them, since they were last charged to a communicator.
    pub(crate) copied: u64,
    /// Something was posted since the last doorbell that is to be sent. Receives are not: to tell the peer of them at once
    /// would keep those waiting that are told of what has come, and the next poll does it.
    pub(crate) unflushed: bool,
    /// A communicator wants to be looked at again within milliseconds.
    pub(crate) soon: bool,
    /// Operations that were taken and have not finished.
    pub(crate) outstanding: u64,
    pub(crate) scratch: Scratch,
    pub(crate) windows: Windows,
}

/// What is known of a region.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known {
    /// The device's key for it; `None` where the memory is an accelerator's, which no device between nodes reaches.
    pub(crate) key: Option<LocalKey>,
    /// The NUMA node that its memory is on, if it is on one and that is known.
    pub(crate) numa_node: Option<u32>,
}

/// Reused lists of operands for local work.
#[derive(Debug, Default)]
pub(crate) struct Operands {
    pub(crate) sources: Vec<ReduceSource>,
    pub(crate) destinations: Vec<BufferRef>,
    pub(crate) steps: Vec<ScanStep>,
}

/// Buffers for local messages that come before their receive.
#[derive(Debug)]
pub(crate) struct MessagePool {
    base: u64,
    size: u64,
    free: Vec<u32>,
}

impl MessagePool {
    pub(crate) fn new(base: u64, size: u64, count: u32) -> Self {
        Self { base, size, free: (0..count).rev().collect() }
    }

    pub(crate) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    pub(crate) fn give(&mut self, slot: u32) {
        self.free.push(slot);
    }

    pub(crate) fn offset(&self, slot: u32) -> u64 {
        self.base + u64::from(slot) * self.size
    }
}

impl Shared {
    pub(crate) fn local_key(&self, region: RegionId) -> Option<LocalKey> {
        if region == self.workspace.region() {
            return Some(self.workspace.key());
        }
        self.regions.get(&region).and_then(|known| known.key)
    }

    /// The first bytes of a window.
    pub(crate) fn window(&self, window: Window, length: u64) -> BufferRef {
        self.windows.bytes(window, length, &self.workspace)
    }

    /// Whether a region's bytes can go to other nodes.
    pub(crate) fn is_known(&self, region: RegionId) -> bool {
        region == self.workspace.region() || self.regions.contains_key(&region)
    }

    /// Whether a region is memory of an accelerator: only pieces that are handed over get at it.
    pub(crate) fn is_on_accelerator(&self, region: RegionId) -> bool {
        // Without accelerators, looking is not worth its while.
        self.windows.are_made() && self.regions.get(&region).is_some_and(|known| known.key.is_none())
    }

    pub(crate) fn finish(
        &mut self,
        communicator: CommunicatorId,
        local: u32,
        token: Token,
        outcome: Result<(u32, u64), Failure>,
    ) {
        self.outstanding = self.outstanding.saturating_sub(1);
        self.finished.push_back(Finished { communicator, local: LocalRank(local), token, outcome });
    }
}

/// One turn: the time, the device, the memory and what is shared.
pub(crate) struct Turn<'a, D: ?Sized> {
    pub(crate) now: Time,
    pub(crate) device: &'a mut D,
    pub(crate) memory: &'a mut dyn LocalMemory,
    pub(crate) shared: &'a mut Shared,
}

/// Milliseconds from one time to a later one.
pub(crate) const fn elapsed_ms(since: Time, now: Time) -> u64 {
    now.0.saturating_sub(since.0) / 1_000_000
}
