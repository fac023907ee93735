//! The device of a daemon that serves one node: there is no network to move anything over.

use std::sync::Arc;

use ringway_mem::Mapping;
use ringway_verbs::{
    Access, Capabilities, Completion, ConnectError, Device, Endpoint, LocalKey, MemoryKeys, PostError,
    QueuePairConfig, QueuePairError, QueuePairNumber, QueuePairState, ReceiveRequest, RegisterError,
    RemoteKey, Role, Time, WorkRequest,
};

/// Whatever moves data between nodes.
pub(crate) type NodeDevice = Box<dyn Device<Region = Arc<Mapping>> + Send>;

/// No network: regions are known by number, and every queue pair is refused.
#[derive(Debug, Default)]
pub(crate) struct NoDevice {
    regions: Vec<Option<Arc<Mapping>>>,
    free: Vec<u32>,
}

impl Device for NoDevice {
    type Region = Arc<Mapping>;

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new("none");
        capabilities.max_queue_pairs = 0;
        capabilities
    }

    fn register(&mut self, region: Arc<Mapping>, access: Access) -> Result<MemoryKeys, RegisterError> {
        if (access.remote_write || access.remote_atomic) && !access.local_write {
            return Err(RegisterError::AccessCombination);
        }
        let full = RegisterError::TableFull { limit: u32::MAX };
        let key = match self.free.pop() {
            Some(key) => key,
            None => u32::try_from(self.regions.len()).map_err(|_| full)?,
        };
        match self.regions.get_mut(key as usize) {
            Some(slot) => *slot = Some(region),
            None => self.regions.push(Some(region)),
        }
        Ok(MemoryKeys { local: LocalKey(key), remote: RemoteKey(key) })
    }

    fn deregister(&mut self, key: LocalKey) -> Result<(), RegisterError> {
        let slot = self.regions.get_mut(key.0 as usize).ok_or(RegisterError::UnknownKey)?;
        slot.take().ok_or(RegisterError::UnknownKey)?;
        self.free.push(key.0);
        Ok(())
    }

    fn is_busy(&self, _: LocalKey) -> bool {
        false
    }

    fn remote_key(&self, _: QueuePairNumber, _: LocalKey) -> Option<RemoteKey> {
        None
    }

    fn create_queue_pair(&mut self, _: QueuePairConfig) -> Result<QueuePairNumber, QueuePairError> {
        Err(QueuePairError::TableFull { limit: 0 })
    }

    fn endpoint(&self, _: QueuePairNumber) -> Result<Endpoint, QueuePairError> {
        Err(QueuePairError::Unknown)
    }

    fn connect(&mut self, _: QueuePairNumber, _: &Endpoint, _: Role) -> Result<(), ConnectError> {
        Err(ConnectError::Unknown)
    }

    fn state(&self, _: QueuePairNumber) -> Option<QueuePairState> {
        None
    }

    fn fail_queue_pair(&mut self, _: QueuePairNumber) {}

    fn destroy_queue_pair(&mut self, _: QueuePairNumber) -> Result<(), QueuePairError> {
        Err(QueuePairError::Unknown)
    }

    fn post_send(&mut self, _: QueuePairNumber, _: &WorkRequest) -> Result<(), PostError> {
        Err(PostError::Unknown)
    }

    fn post_receive(&mut self, _: QueuePairNumber, _: &ReceiveRequest) -> Result<(), PostError> {
        Err(PostError::Unknown)
    }

    fn flush(&mut self) {}

    fn poll(&mut self, _: Time, _: &mut [Completion]) -> usize {
        0
    }

    fn deadline(&self) -> Option<Time> {
        None
    }

    fn event_descriptor(&self) -> Option<i32> {
        None
    }

    fn arm(&mut self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_have_keys_and_queue_pairs_are_refused() {
        let mut device = NoDevice::default();
        let region = || Arc::new(Mapping::private(4096).expect("map"));
        let a = device.register(region(), Access::ALL).expect("register");
        let b = device.register(region(), Access::ALL).expect("register");
        assert_ne!(a, b);
        assert_eq!(device.deregister(a.local), Ok(()));
        assert_eq!(device.deregister(a.local), Err(RegisterError::UnknownKey));
        assert_eq!(device.register(region(), Access::ALL), Ok(a));
        let config = QueuePairConfig { send_depth: 1, receive_depth: 1 };
        assert!(device.create_queue_pair(config).is_err());
    }
}
