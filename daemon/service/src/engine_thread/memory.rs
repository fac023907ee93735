//! The memory of this node: the workspace and every client's regions, by number.

use ringway_engine::{
    BufferRef, Collected, Handed, LocalMemory, LocalRank, Piece, ReduceSource, RegionId, ScanStep, Ticket,
};
use ringway_mem::{Window, recycle};
use ringway_reduce::{Scalar, Source};
use ringway_types::{DataType, Reduction};

use super::{accelerator::Accelerator, boards::Boards, region_memory::RegionMemory};
use crate::session::SessionKey;

/// Mappings by region number, and whose they are. Numbers are reused only after the engine has let go of them.
#[derive(Debug, Default)]
pub(super) struct Regions {
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot {
    memory: RegionMemory,
    /// The session that registered it, and its handle; `None` for the daemon's own.
    owner: Option<(SessionKey, u64)>,
}

impl Regions {
    fn get(&self, region: RegionId) -> Option<&Slot> {
        self.slots.get(region.0 as usize)?.as_ref()
    }

    /// The bytes of a buffer.
    pub(super) fn window(&self, buffer: BufferRef) -> Option<Window<'_>> {
        self.get(buffer.region)?.memory.host()?.window(buffer.offset, buffer.length)
    }

    /// What a region is.
    pub(super) fn memory(&self, region: RegionId) -> Option<&RegionMemory> {
        self.get(region).map(|slot| &slot.memory)
    }

    /// Whether a region is memory of a GPU.
    pub(super) fn is_on_gpu(&self, region: RegionId) -> bool {
        matches!(self.memory(region), Some(RegionMemory::Gpu(_)))
    }

    /// Whether a piece touches memory of a GPU.
    fn is_for_gpu(&self, piece: &Piece<'_>) -> bool {
        let on = |buffer: &BufferRef| self.is_on_gpu(buffer.region);
        match piece {
            Piece::Reduce { sources, destinations, .. } => {
                sources.iter().any(|source| on(&source.buffer)) || destinations.iter().any(on)
            }
            Piece::Scan { carry, steps, .. } => {
                carry.as_ref().is_some_and(on)
                    || steps.iter().any(|step| on(&step.input.buffer) || on(&step.output))
            }
            Piece::Copy { source, destinations } => on(source) || destinations.iter().any(on),
            Piece::Swap { a, b } => on(a) || on(b),
        }
    }

    /// The session that registered a region, and its handle.
    pub(super) fn owner(&self, region: RegionId) -> Option<(SessionKey, u64)> {
        self.get(region)?.owner
    }

    fn source(&self, from: &ReduceSource) -> Option<Source<'_>> {
        let window = self.window(from.buffer)?;
        Some(Source { window, scale: from.scale.map(Scalar::from_bytes) })
    }
}

/// The memory of this node, and what others do in it.
#[derive(Debug, Default)]
pub(super) struct Memory {
    regions: Regions,
    pub(super) boards: Boards,
    /// The GPU, once a client has memory of one.
    pub(super) accelerator: Option<Box<Accelerator>>,
    // Empty between calls; kept for their allocations, since the data path does not allocate.
    sources: Vec<Source<'static>>,
    destinations: Vec<Window<'static>>,
    steps: Vec<ringway_reduce::ScanStep<'static>>,
}

impl Memory {
    /// Gives memory a number.
    pub(super) fn add(&mut self, memory: RegionMemory) -> RegionId {
        let Regions { slots, free } = &mut self.regions;
        let index = free.pop().unwrap_or_else(|| {
            slots.push(None);
            u32::try_from(slots.len().saturating_sub(1)).unwrap_or(u32::MAX)
        });
        if let Some(slot) = slots.get_mut(index as usize) {
            *slot = Some(Slot { memory, owner: None });
        }
        RegionId(index)
    }

    /// Says who registered a region, and its handle.
    pub(super) fn set_owner(&mut self, region: RegionId, session: SessionKey, handle: u64) {
        if let Some(slot) = self.regions.slots.get_mut(region.0 as usize).and_then(Option::as_mut) {
            slot.owner = Some((session, handle));
        }
    }

    /// Whether a GPU is at work, which wakes nobody when it is done.
    pub(super) fn is_accelerating(&self) -> bool {
        self.accelerator.as_ref().is_some_and(|accelerator| accelerator.is_busy())
    }

    /// Lets go of memory that has no number.
    pub(super) fn retire(&mut self, memory: RegionMemory) {
        if let Some(accelerator) = &mut self.accelerator {
            accelerator.retire(memory);
        }
    }

    /// Forgets memory, here and where ranks have mapped it.
    pub(super) fn remove(&mut self, region: RegionId) {
        if let Some(slot) = self.regions.slots.get_mut(region.0 as usize)
            && let Some(Slot { owner, memory }) = slot.take()
        {
            self.regions.free.push(region.0);
            if let Some(accelerator) = &mut self.accelerator {
                accelerator.release(region, memory);
            }
            if let Some((session, _)) = owner {
                self.boards.released(session);
            }
        }
    }
}

impl LocalMemory for Memory {
    fn hand(&mut self, ticket: Ticket, piece: &Piece<'_>, hurried: bool) -> Handed {
        if let Some(accelerator) = &mut self.accelerator
            && self.regions.is_for_gpu(piece)
        {
            return accelerator.hand(ticket, piece, &self.regions);
        }
        if !hurried && self.boards.offer(ticket, piece, &self.regions) {
            return Handed::Later;
        }
        self.perform(piece);
        Handed::Done
    }

    fn collect(&mut self, bytes_max: u64, done: &mut [Collected]) -> usize {
        let count = self.accelerator.as_mut().map_or(0, |accelerator| accelerator.collect(done));
        let rest = done.get_mut(count..).unwrap_or_default();
        count + self.boards.collect(bytes_max, rest, &self.regions)
    }

    fn withdraw(&mut self, ticket: Ticket) -> bool {
        let over = self.accelerator.as_mut().is_none_or(|accelerator| accelerator.withdraw(ticket));
        over & self.boards.withdraw(ticket)
    }

    fn holder(&self, ticket: Ticket) -> Option<LocalRank> {
        self.boards.holder(ticket)
    }

    fn reduce(
        &mut self,
        datatype: DataType,
        reduction: Reduction,
        sources: &[ReduceSource],
        destinations: &[BufferRef],
        divisor: Option<u32>,
    ) {
        let regions = &self.regions;
        let mut from: Vec<Source<'_>> = std::mem::take(&mut self.sources);
        let mut to: Vec<Window<'_>> = std::mem::take(&mut self.destinations);
        from.extend(sources.iter().filter_map(|s| regions.source(s)));
        to.extend(destinations.iter().filter_map(|d| regions.window(*d)));
        // Memory that has gone makes the whole call pointless: its communicator is failing.
        if from.len() == sources.len() {
            let done = ringway_reduce::reduce(datatype, reduction, &from, &to, divisor);
            debug_assert!(done.is_ok(), "{done:?}");
        }
        self.sources = recycle(from);
        self.destinations = recycle(to);
    }

    fn scan(
        &mut self,
        datatype: DataType,
        reduction: Reduction,
        carry: Option<BufferRef>,
        before: u32,
        steps: &[ScanStep],
        inclusive: bool,
    ) {
        let regions = &self.regions;
        let mut to: Vec<ringway_reduce::ScanStep<'_>> = std::mem::take(&mut self.steps);
        to.extend(steps.iter().filter_map(|step| {
            let input = regions.source(&step.input)?;
            Some(ringway_reduce::ScanStep { input, output: regions.window(step.output) })
        }));
        let carry_in = carry.map(|c| regions.window(c));
        if to.len() == steps.len() && !matches!(carry_in, Some(None)) {
            let carry_in = carry_in.flatten();
            let done = ringway_reduce::scan(datatype, reduction, carry_in, &to, inclusive, before, None);
            debug_assert!(done.is_ok(), "{done:?}");
        }
        self.steps = recycle(to);
    }

    fn copy(&mut self, source: BufferRef, destinations: &[BufferRef]) {
        let regions = &self.regions;
        let Some(from) = regions.window(source) else { return };
        let mut to: Vec<Window<'_>> = std::mem::take(&mut self.destinations);
        to.extend(destinations.iter().filter_map(|d| regions.window(*d)));
        let done = ringway_reduce::copy(from, &to);
        debug_assert!(done.is_ok(), "{done:?}");
        self.destinations = recycle(to);
    }

    fn swap(&mut self, a: BufferRef, b: BufferRef) {
        let regions = &self.regions;
        if let (Some(a), Some(b)) = (regions.window(a), regions.window(b)) {
            let done = ringway_reduce::swap(a, b);
            debug_assert!(done.is_ok(), "{done:?}");
        }
    }

    fn read(&self, from: BufferRef, into: &mut [u8]) {
        if let Some(window) = self.regions.window(from) {
            window.read(into);
        }
    }

    fn write(&mut self, into: BufferRef, from: &[u8]) {
        if let Some(window) = self.regions.window(into) {
            window.write(from);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ringway_mem::Mapping;

    use super::*;

    fn filled(byte: u8) -> Arc<Mapping> {
        let mapping = Mapping::private(4096).expect("map");
        mapping.window(0, 4096).expect("window").write(&[byte; 4096]);
        Arc::new(mapping)
    }

    fn host(byte: u8) -> RegionMemory {
        RegionMemory::Host(filled(byte))
    }

    fn at(region: RegionId, offset: u64, length: u64) -> BufferRef {
        BufferRef { region, offset, length }
    }

    #[test]
    fn reductions_and_copies_reach_the_regions() {
        let mut memory = Memory::default();
        let (a, b) = (memory.add(host(1)), memory.add(host(2)));
        let sources = [a, b].map(|r| ReduceSource { buffer: at(r, 0, 8), scale: None });
        memory.reduce(DataType::U8, Reduction::Sum, &sources, &[at(a, 8, 8), at(b, 16, 8)], None);
        let mut bytes = [0; 8];
        memory.read(at(a, 8, 8), &mut bytes);
        assert_eq!(bytes, [3; 8]);
        memory.copy(at(b, 16, 4), &[at(a, 100, 4)]);
        memory.read(at(a, 98, 8), &mut bytes);
        assert_eq!(bytes, [1, 1, 3, 3, 3, 3, 1, 1]);
    }

    #[test]
    fn what_is_outside_or_gone_is_left_alone() {
        let mut memory = Memory::default();
        let a = memory.add(host(1));
        memory.copy(at(a, 0, 8), &[at(a, 4092, 8), at(RegionId(9), 0, 8)]);
        memory.remove(a);
        memory.remove(a);
        memory.write(at(a, 0, 8), &[7; 8]);
        let b = memory.add(host(2));
        assert_eq!(a, b, "the number is free again, once");
        assert_ne!(memory.add(host(3)), b);
        let mut bytes = [0; 2];
        memory.read(at(b, 0, 2), &mut bytes);
        assert_eq!(bytes, [2; 2]);
    }

    #[test]
    fn allocations_are_kept_between_calls() {
        let mut memory = Memory::default();
        let a = memory.add(host(1));
        let sources = [ReduceSource { buffer: at(a, 0, 8), scale: None }; 5];
        memory.reduce(DataType::U8, Reduction::Max, &sources, &[at(a, 8, 8)], None);
        let kept = (memory.sources.capacity(), memory.sources.as_ptr());
        assert!(kept.0 >= 5);
        memory.reduce(DataType::U8, Reduction::Max, &sources, &[at(a, 8, 8)], None);
        assert_eq!((memory.sources.capacity(), memory.sources.as_ptr()), kept);
    }
}
