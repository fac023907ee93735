//! What a region is.

use std::sync::Arc;

use ringway_mem::Mapping;

/// A client's memory, as this process has mapped it.
#[derive(Debug, Clone)]
pub(crate) enum RegionMemory {
    /// Of the host.
    Host(Arc<Mapping>),
    /// Of a GPU.
    Gpu(Arc<ringway_cuda::Memory>),
}

impl RegionMemory {
    /// Its bytes.
    pub(crate) fn length(&self) -> u64 {
        match self {
            Self::Host(mapping) => mapping.length() as u64,
            Self::Gpu(memory) => memory.bytes().length(),
        }
    }

    /// The mapping, of host memory.
    pub(crate) const fn host(&self) -> Option<&Arc<Mapping>> {
        match self {
            Self::Host(mapping) => Some(mapping),
            Self::Gpu(_) => None,
        }
    }

    /// Whether its client took pages away.
    pub(crate) fn faulted(&self) -> bool {
        self.host().is_some_and(|mapping| mapping.faulted())
    }
}
