//! Memory of a simulated node: plain vectors behind keys.

use ringway_rc::{AtomicOperation, Denied, Memory, RemoteAccess};
use ringway_verbs::{Access, LocalKey, RemoteKey};

/// Remote keys differ from local ones, so that mixing them up shows.
const REMOTE_BIT: u32 = 0x8000_0000;

#[derive(Debug)]
struct Region {
    bytes: Vec<u8>,
    access: Access,
}

/// A node's regions, which are never deregistered.
#[derive(Debug, Default)]
pub struct NodeMemory {
    regions: Vec<Region>,
}

impl NodeMemory {
    /// Adds a region; its local key and remote key.
    pub fn register(&mut self, bytes: Vec<u8>, access: Access) -> (LocalKey, RemoteKey) {
        self.regions.push(Region { bytes, access });
        let key = self.regions.len() as u32;
        (LocalKey(key), RemoteKey(key | REMOTE_BIT))
    }

    /// A region's bytes.
    ///
    /// # Panics
    /// When there is no such region.
    #[must_use]
    pub fn bytes(&self, key: LocalKey) -> &[u8] {
        &self.regions[key.0 as usize - 1].bytes
    }

    fn region(&self, index: u32, address: u64, length: usize) -> Result<(&Region, usize), Denied> {
        let region = self.regions.get((index as usize).wrapping_sub(1)).ok_or(Denied)?;
        let start = usize::try_from(address).map_err(|_| Denied)?;
        let end = start.checked_add(length).ok_or(Denied)?;
        if end <= region.bytes.len() { Ok((region, start)) } else { Err(Denied) }
    }

    fn remote(&self, key: RemoteKey, address: u64, length: u64, access: RemoteAccess) -> Result<(), Denied> {
        if key.0 & REMOTE_BIT == 0 {
            return Err(Denied);
        }
        let length = usize::try_from(length).map_err(|_| Denied)?;
        let (region, _) = self.region(key.0 & !REMOTE_BIT, address, length)?;
        if access.is_granted_by(region.access) { Ok(()) } else { Err(Denied) }
    }

    fn bytes_mut(&mut self, index: u32, address: u64, length: usize) -> Result<&mut [u8], Denied> {
        let (_, start) = self.region(index, address, length)?;
        let region = self.regions.get_mut((index as usize).wrapping_sub(1)).ok_or(Denied)?;
        region.bytes.get_mut(start..start + length).ok_or(Denied)
    }
}

impl Memory for NodeMemory {
    fn check_local(&self, key: LocalKey, offset: u64, length: u64) -> Result<(), Denied> {
        let length = usize::try_from(length).map_err(|_| Denied)?;
        self.region(key.0, offset, length).map(|_| ())
    }

    fn read_local(&self, key: LocalKey, offset: u64, into: &mut [u8]) -> Result<(), Denied> {
        let (region, start) = self.region(key.0, offset, into.len())?;
        into.copy_from_slice(region.bytes.get(start..start + into.len()).ok_or(Denied)?);
        Ok(())
    }

    fn write_local(&mut self, key: LocalKey, offset: u64, from: &[u8]) -> Result<(), Denied> {
        if !self.region(key.0, offset, from.len())?.0.access.local_write {
            return Err(Denied);
        }
        self.bytes_mut(key.0, offset, from.len())?.copy_from_slice(from);
        Ok(())
    }

    fn check_remote(
        &self,
        key: RemoteKey,
        address: u64,
        length: u64,
        access: RemoteAccess,
    ) -> Result<(), Denied> {
        self.remote(key, address, length, access)
    }

    fn read_remote(&self, key: RemoteKey, address: u64, into: &mut [u8]) -> Result<(), Denied> {
        self.remote(key, address, into.len() as u64, RemoteAccess::Read)?;
        self.read_local(LocalKey(key.0 & !REMOTE_BIT), address, into)
    }

    fn write_remote(&mut self, key: RemoteKey, address: u64, from: &[u8]) -> Result<(), Denied> {
        self.remote(key, address, from.len() as u64, RemoteAccess::Write)?;
        self.bytes_mut(key.0 & !REMOTE_BIT, address, from.len())?.copy_from_slice(from);
        Ok(())
    }

    fn atomic_remote(
        &mut self,
        key: RemoteKey,
        address: u64,
        operation: AtomicOperation,
    ) -> Result<u64, Denied> {
        self.remote(key, address, 8, RemoteAccess::Atomic)?;
        let bytes = self.bytes_mut(key.0 & !REMOTE_BIT, address, 8)?;
        let old = u64::from_ne_bytes(bytes.try_into().map_err(|_| Denied)?);
        bytes.copy_from_slice(&operation.apply(old).to_ne_bytes());
        Ok(old)
    }
}
