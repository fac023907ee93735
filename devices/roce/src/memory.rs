//! Registered memory as a queue pair needs it.

use core::{
    cell::Cell,
    sync::atomic::{Ordering, fence},
};

use ringway_mem::RegionTable;
use ringway_rc::{AtomicOperation, Denied, Memory, RemoteAccess};
use ringway_verbs::{LocalKey, LocalSlice, RemoteKey, RemoteSlice};

/// A packet of so many bytes is mostly followed by others of its message: asking for the next one's bytes while this one is sent
/// spares waiting for them: 2 to 5 % of the time of large messages over AF_XDP.
const FOLLOWED_BYTES: usize = 1024;

/// The device's regions.
#[derive(Debug)]
pub(crate) struct Registered {
    pub(crate) regions: RegionTable,
    /// Payload bytes copied into frames and out of them.
    copied: Cell<u64>,
}

impl Registered {
    pub(crate) const fn new(regions: RegionTable) -> Self {
        Self { regions, copied: Cell::new(0) }
    }

    /// Payload bytes that were copied into frames and out of them: each once.
    pub(crate) const fn copied(&self) -> u64 {
        self.copied.get()
    }

    /// Copies out what goes into a frame.
    fn read(&self, slice: &LocalSlice, into: &mut [u8]) -> Result<(), Denied> {
        let window = self.regions.window(slice).ok_or(Denied)?;
        window.read(into);
        if into.len() >= FOLLOWED_BYTES {
            window.prefetch_behind();
        }
        self.count(into);
        Ok(())
    }

    fn count(&self, bytes: &[u8]) {
        self.copied.set(self.copied.get().wrapping_add(bytes.len() as u64));
    }

    /// The bytes that a peer names, when it may do this to them.
    fn remote(
        &self,
        key: RemoteKey,
        offset: u64,
        length: u64,
        access: RemoteAccess,
    ) -> Result<LocalSlice, Denied> {
        let remote = RemoteSlice { key, offset };
        self.regions.remote(remote, length, |granted| access.is_granted_by(granted)).ok_or(Denied)
    }
}

impl Memory for Registered {
    fn check_local(&self, key: LocalKey, offset: u64, length: u64) -> Result<(), Denied> {
        self.regions.window(&LocalSlice { key, offset, length }).map(|_| ()).ok_or(Denied)
    }

    fn read_local(&self, key: LocalKey, offset: u64, into: &mut [u8]) -> Result<(), Denied> {
        self.read(&LocalSlice { key, offset, length: into.len() as u64 }, into)
    }

    fn write_local(&mut self, key: LocalKey, offset: u64, from: &[u8]) -> Result<(), Denied> {
        let slice = LocalSlice { key, offset, length: from.len() as u64 };
        self.regions.writable(&slice).ok_or(Denied)?.write(from);
        self.count(from);
        Ok(())
    }

    fn check_remote(
        &self,
        key: RemoteKey,
        address: u64,
        length: u64,
        access: RemoteAccess,
    ) -> Result<(), Denied> {
        self.remote(key, address, length, access).map(|_| ())
    }

    fn read_remote(&self, key: RemoteKey, address: u64, into: &mut [u8]) -> Result<(), Denied> {
        self.read(&self.remote(key, address, into.len() as u64, RemoteAccess::Read)?, into)
    }

    fn write_remote(&mut self, key: RemoteKey, address: u64, from: &[u8]) -> Result<(), Denied> {
        let slice = self.remote(key, address, from.len() as u64, RemoteAccess::Write)?;
        let window = self.regions.writable(&slice).ok_or(Denied)?;
        // Programs wait for the last byte of a WRITE, which must not be there before the others: copying a block of
        // memory promises no order.
        if let Some((last, others)) = from.split_last() {
            window.write(others);
            fence(Ordering::Release);
            window.sub(others.len(), 1).ok_or(Denied)?.write(&[*last]);
        }
        self.count(from);
        Ok(())
    }

    fn atomic_remote(
        &mut self,
        key: RemoteKey,
        address: u64,
        operation: AtomicOperation,
    ) -> Result<u64, Denied> {
        let slice = self.remote(key, address, 8, RemoteAccess::Atomic)?;
        let window = self.regions.writable(&slice).ok_or(Denied)?;
        // Atomic among the requests of this device, which one thread executes one after the other (IBA volume 1, 9.4.5:
        // atomicity towards the host's own accesses is not promised).
        let mut old = [0; 8];
        window.read(&mut old);
        let old = u64::from_ne_bytes(old);
        window.write(&operation.apply(old).to_ne_bytes());
        Ok(old)
    }
}
