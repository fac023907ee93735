//! Memory that devices reach, and the checks of addresses against it.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    allocation::Allocation,
    context::Current,
    device::DEVICES_MAX,
    error::{Failure, Result},
};

/// Bytes of the address space; never none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl Span {
    pub(crate) fn new(address: usize, bytes: usize) -> Result<Self> {
        let end = address.checked_add(bytes).ok_or(Failure::INVALID_VALUE)?;
        if address == 0 || bytes == 0 {
            return Err(Failure::INVALID_VALUE);
        }
        Ok(Self { start: address, end })
    }

    pub(crate) const fn bytes(self) -> usize {
        self.end - self.start
    }

    pub(crate) const fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }

    pub(crate) const fn contains(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }
}

/// What work does with memory, and what memory allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum Access {
    #[default]
    None,
    Read,
    ReadWrite,
}

#[derive(Debug)]
pub(crate) enum Kind {
    /// Mapped by address, with each device's access.
    Mapped { handle: u64, allocation: Arc<Allocation>, access: [Access; DEVICES_MAX] },
    /// Allocated and mapped in one.
    Allocated { allocation: Arc<Allocation> },
    /// Another process's, opened.
    Opened { allocation: Arc<Allocation> },
    /// The host's, registered.
    Registered { access: Access },
    /// The host's, made for devices.
    HostAllocated,
}

impl Kind {
    pub(crate) const fn allocation(&self) -> Option<&Arc<Allocation>> {
        match self {
            Self::Mapped { allocation, .. }
            | Self::Allocated { allocation }
            | Self::Opened { allocation } => Some(allocation),
            Self::Registered { .. } | Self::HostAllocated => None,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) span: Span,
    /// Where it was made; mappings belong to no context.
    pub(crate) current: Current,
    /// A number that no other region has or had.
    pub(crate) id: u64,
    pub(crate) kind: Kind,
}

impl Region {
    fn access(&self, device: usize) -> Access {
        match &self.kind {
            Kind::Mapped { access, .. } => access.get(device).copied().unwrap_or_default(),
            Kind::Registered { access } => *access,
            Kind::Allocated { .. } | Kind::Opened { .. } | Kind::HostAllocated => Access::ReadWrite,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Regions {
    /// By their start; no two overlap.
    by_start: BTreeMap<usize, Region>,
    added: u64,
}

impl Regions {
    pub(crate) const fn new() -> Self {
        Self { by_start: BTreeMap::new(), added: 0 }
    }

    /// Adds one, which overlaps none there is.
    pub(crate) fn add(&mut self, span: Span, current: Current, kind: Kind) {
        self.added += 1;
        self.by_start.insert(span.start, Region { span, current, id: self.added, kind });
    }

    pub(crate) fn remove(&mut self, start: usize) -> Option<Region> {
        self.by_start.remove(&start)
    }

    pub(crate) fn at(&self, start: usize) -> Option<&Region> {
        self.by_start.get(&start)
    }

    pub(crate) fn containing(&self, address: usize) -> Option<&Region> {
        let (_, region) = self.by_start.range(..=address).next_back()?;
        (address < region.span.end).then_some(region)
    }

    pub(crate) fn first_within(&self, span: Span) -> Option<&Region> {
        let following = || self.by_start.range(span.start..span.end).next().map(|(_, region)| region);
        self.containing(span.start).or_else(following)
    }

    pub(crate) fn any_within(&self, span: Span) -> bool {
        self.first_within(span).is_some()
    }

    /// Whether a device may do this with all of these bytes, which may lie in regions that follow one another.
    pub(crate) fn allow(&self, span: Span, device: usize, access: Access) -> bool {
        let mut reached = span.start;
        while reached < span.end {
            match self.containing(reached) {
                Some(region) if region.access(device) >= access => reached = region.span.end,
                _ => return false,
            }
        }
        true
    }

    /// The starts of the regions that make up exactly these bytes, all mapped.
    pub(crate) fn mappings_of(&self, span: Span) -> Result<Vec<usize>> {
        let mut starts = Vec::new();
        let mut reached = span.start;
        while reached < span.end {
            let region = self.at(reached).filter(|region| matches!(region.kind, Kind::Mapped { .. }));
            reached = region.ok_or(Failure::INVALID_VALUE)?.span.end;
            starts.extend(region.map(|region| region.span.start));
        }
        if reached == span.end { Ok(starts) } else { Err(Failure::INVALID_VALUE) }
    }

    /// Sets a device's access to a mapping; what the process as a whole may do with it then.
    pub(crate) fn set_access(
        &mut self,
        start: usize,
        device: usize,
        wanted: Access,
    ) -> Option<(Span, Access)> {
        let region = self.by_start.get_mut(&start)?;
        let Kind::Mapped { access, .. } = &mut region.kind else { return None };
        *access.get_mut(device)? = wanted;
        Some((region.span, access.iter().copied().max().unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::{Access, Kind, Regions, Span};
    use crate::context::Current;

    #[test]
    fn bytes_across_neighbours_are_allowed_and_gaps_are_not() {
        let mut regions = Regions::new();
        let current = Current { context: 1, device: 0 };
        for (start, kind) in
            [(0x1000, Kind::HostAllocated), (0x2000, Kind::Registered { access: Access::Read })]
        {
            regions.add(Span::new(start, 0x1000).unwrap(), current, kind);
        }
        let allow = |start, bytes, access| regions.allow(Span::new(start, bytes).unwrap(), 0, access);
        assert!(allow(0x1800, 0x1000, Access::Read));
        assert!(!allow(0x1800, 0x1000, Access::ReadWrite));
        assert!(!allow(0x2800, 0x1000, Access::Read));
        assert!(allow(0x1000, 0x1000, Access::ReadWrite));
        assert!(!allow(0xfff, 1, Access::Read));
    }
}
