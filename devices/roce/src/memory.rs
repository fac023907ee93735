//! Registered memory as a queue pair needs it.

use core::sync::atomic::{Ordering, fence};

use ringway_mem::RegionTable;
use ringway_rc::{AtomicOperation, Denied, Memory, RemoteAccess};
use ringway_verbs::{LocalKey, LocalSlice, RemoteKey, RemoteSlice};

/// The device's regions.
#[derive(Debug)]
pub(crate) struct Registered(pub(crate) RegionTable);

impl Registered {
    /// The bytes that a peer names, when it may do this to them.
    fn remote(
        &self,
        key: RemoteKey,
        offset: u64,
        length: u64,
        access: RemoteAccess,
    ) -> Result<LocalSlice, Denied> {
        let remote = RemoteSlice { key, offset };
        self.0.remote(remote, length, |granted| access.is_granted_by(granted)).ok_or(Denied)
    }
}

impl Memory for Registered {
    fn check_local(&self, key: LocalKey, offset: u64, length: u64) -> Result<(), Denied> {
        self.0.window(&LocalSlice { key, offset, length }).map(|_| ()).ok_or(Denied)
    }

    fn read_local(&self, key: LocalKey, offset: u64, into: &mut [u8]) -> Result<(), Denied> {
        let slice = LocalSlice { key, offset, length: into.len() as u64 };
        self.0.window(&slice).ok_or(Denied)?.read(into);
        Ok(())
    }

    fn write_local(&mut self, key: LocalKey, offset: u64, from: &[u8]) -> Result<(), Denied> {
        let slice = LocalSlice { key, offset, length: from.len() as u64 };
        self.0.writable(&slice).ok_or(Denied)?.write(from);
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
        let slice = self.remote(key, address, into.len() as u64, RemoteAccess::Read)?;
        self.0.window(&slice).ok_or(Denied)?.read(into);
        Ok(())
    }

    fn write_remote(&mut self, key: RemoteKey, address: u64, from: &[u8]) -> Result<(), Denied> {
        let slice = self.remote(key, address, from.len() as u64, RemoteAccess::Write)?;
        let window = self.0.writable(&slice).ok_or(Denied)?;
        // Programs wait for the last byte of a WRITE, which must not be there before the others: copying a block of
        // memory promises no order.
        if let Some((last, others)) = from.split_last() {
            window.write(others);
            fence(Ordering::Release);
            window.sub(others.len(), 1).ok_or(Denied)?.write(&[*last]);
        }
        Ok(())
    }

    fn atomic_remote(
        &mut self,
        key: RemoteKey,
        address: u64,
        operation: AtomicOperation,
    ) -> Result<u64, Denied> {
        let slice = self.remote(key, address, 8, RemoteAccess::Atomic)?;
        let window = self.0.writable(&slice).ok_or(Denied)?;
        // Atomic among the requests of this device, which one thread executes one after the other (IBA volume 1, 9.4.5:
        // atomicity towards the host's own accesses is not promised).
        let mut old = [0; 8];
        window.read(&mut old);
        let old = u64::from_ne_bytes(old);
        window.write(&operation.apply(old).to_ne_bytes());
        Ok(old)
    }
}
