//! All that moves data between nodes: one device, or several of which each communicator uses the best that its nodes have
//! in common.

use std::sync::Arc;

use ringway_mem::Mapping;
use ringway_verbs::{
    Access, Capabilities, Cause, Completion, ConnectError, Device, Endpoint, LocalKey, MemoryKeys,
    PacketBytes, PostError, QueuePairConfig, QueuePairError, QueuePairNumber, QueuePairState, ReceiveRequest,
    RegisterError, RemoteKey, Role, Time, WorkRequest,
};

use super::device::NodeDevice;
use crate::status::DeviceStatus;

/// The most devices: the bits that they leave free in the numbers of queue pairs tell them apart.
const DEVICES_MAX: usize = 1 << (u32::BITS - QueuePairNumber::BITS);
/// The bits that are a device's own.
const INNER: u32 = (1 << QueuePairNumber::BITS) - 1;
/// Why a device is not used any more.
pub(crate) const LOST: &str = "it is broken, or was removed";
/// A device without queue pairs has next to nothing to do: it is polled so often, in nanoseconds.
const IDLE_NS: u64 = 1_000_000;

/// A device, what it speaks, and where it is.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) protocol: String,
    /// The address of its rail; empty where the node has one only.
    pub(crate) rail: String,
    /// The NUMA node of its network card, where it is known.
    pub(crate) numa_node: Option<u32>,
    pub(crate) device: NodeDevice,
}

impl From<(String, NodeDevice)> for Placed {
    fn from((protocol, device): (String, NodeDevice)) -> Self {
        Self { protocol, rail: String::new(), numa_node: None, device }
    }
}

/// A device, and what is agreed on with other nodes about it.
#[derive(Debug)]
struct Entry {
    device: NodeDevice,
    protocol: String,
    rail: String,
    numa_node: Option<u32>,
    queue_pairs: u32,
    /// That it is lost was told.
    told_lost: bool,
    /// Bytes of messages that were posted, answers to others apart.
    bytes: u64,
    polled: Time,
}

/// The devices. New queue pairs are made on those that [`NodeDevices::choose`] named last: one, or one for each rail.
///
/// All know every region, by the same local keys: their tables are alike and see the same calls in the same order. What peers
/// call a region depends on the device that they write it with, as hardware chooses these names itself:
/// [`Device::remote_key`] knows.
#[derive(Debug)]
pub(crate) struct NodeDevices {
    entries: Vec<Entry>,
    /// The device of the first rail; those of others come after it.
    chosen: usize,
    turn: u32,
}

impl NodeDevices {
    /// Devices, the best first, those that speak the same in the order of their rails; no more than [`DEVICES_MAX`] are used.
    pub(crate) fn new(devices: impl IntoIterator<Item: Into<Placed>>) -> Self {
        let devices = devices.into_iter().take(DEVICES_MAX).map(Into::into);
        let entries = devices.map(|Placed { protocol, rail, numa_node, device }| Entry {
            device,
            protocol,
            rail,
            numa_node,
            queue_pairs: 0,
            told_lost: false,
            bytes: 0,
            polled: Time(0),
        });
        Self { entries: entries.collect(), chosen: 0, turn: 0 }
    }

    /// Has queue pairs made on the devices that speak this protocol; gives their name.
    pub(crate) fn choose(&mut self, protocol: &str) -> Option<&'static str> {
        self.chosen = self.entries.iter().position(|entry| entry.protocol == protocol)?;
        Some(self.entries.get(self.chosen)?.device.capabilities().name)
    }

    /// Whether their network cards are known to be on several NUMA nodes, so that it matters where memory is.
    pub(crate) fn are_apart(&self) -> bool {
        let mut nodes = self.entries.iter().filter_map(|entry| entry.numa_node);
        nodes.next().is_some_and(|first| nodes.any(|other| other != first))
    }

    /// The devices and what they have counted.
    pub(crate) fn status(&self) -> Vec<DeviceStatus> {
        let describe = |entry: &Entry| {
            let name = entry.device.capabilities().name.to_owned();
            let refused = if entry.device.is_lost() { LOST } else { "" }.to_owned();
            let mut status =
                DeviceStatus { name, rail: entry.rail.clone(), refused, ..DeviceStatus::default() };
            entry.device.for_each_counter(&mut |name, value| {
                status.counters.insert(name.to_owned(), value);
            });
            if !entry.rail.is_empty() {
                // What rails share is to be seen whatever else their devices count.
                status.counters.entry("bytes_sent".to_owned()).or_insert(entry.bytes);
            }
            status
        };
        self.entries.iter().map(describe).collect()
    }

    /// What a device speaks that has broken since this was asked last, or was removed.
    pub(crate) fn take_lost(&mut self) -> Option<&str> {
        let is_news = |entry: &&mut Entry| !entry.told_lost && entry.device.is_lost();
        let entry = self.entries.iter_mut().find(is_news)?;
        entry.told_lost = true;
        Some(&entry.protocol)
    }

    /// The descriptors that become readable when there is something to poll.
    pub(crate) fn event_descriptors(&self) -> impl Iterator<Item = i32> {
        self.entries.iter().filter_map(|entry| entry.device.event_descriptor())
    }

    /// The chosen device of a rail.
    fn on_rail(&self, rail: u32) -> Option<usize> {
        let protocol = &self.entries.get(self.chosen)?.protocol;
        let same = self.entries.iter().enumerate().filter(|(_, entry)| entry.protocol == *protocol);
        same.map(|(at, _)| at).nth(usize::try_from(rail).ok()?)
    }

    fn of(&self, number: QueuePairNumber) -> Option<(&Entry, QueuePairNumber)> {
        let (at, number) = inner(number);
        Some((self.entries.get(at)?, number))
    }

    fn of_mut(&mut self, number: QueuePairNumber) -> Option<(&mut Entry, QueuePairNumber)> {
        let (at, number) = inner(number);
        Some((self.entries.get_mut(at)?, number))
    }

    /// The device of a queue pair that is to be drained or resumed.
    fn draining(&mut self, number: QueuePairNumber) -> Result<(&mut Entry, QueuePairNumber), QueuePairError> {
        if !self.capabilities().draining {
            return Err(QueuePairError::Unsupported);
        }
        self.of_mut(number).ok_or(QueuePairError::Unknown)
    }
}

/// The number of a device's queue pair, as the caller knows it: above the device's own bits stands which device it is.
const fn outer(at: usize, number: QueuePairNumber) -> QueuePairNumber {
    QueuePairNumber((at as u32) << QueuePairNumber::BITS | number.0)
}

/// Which device, and the number there.
const fn inner(number: QueuePairNumber) -> (usize, QueuePairNumber) {
    ((number.0 >> QueuePairNumber::BITS) as usize, QueuePairNumber(number.0 & INNER))
}

impl Device for NodeDevices {
    type Region = Arc<Mapping>;

    /// What all can; the name is that of the best.
    fn capabilities(&self) -> Capabilities {
        let mut all = self.entries.iter().map(|entry| entry.device.capabilities());
        let first = all.next().unwrap_or_else(|| Capabilities::new("none"));
        all.fold(first, |mut common, other| {
            common.atomics &= other.atomics;
            common.draining &= other.draining;
            common.max_message = common.max_message.min(other.max_message);
            common.max_queue_pairs = common.max_queue_pairs.min(other.max_queue_pairs);
            common
        })
    }

    /// With all or with none; the remote key is the best device's. Every device is asked, also when one has refused, so that the
    /// tables stay alike: one that refuses has given a key away and taken it back, as those do that are told to forget it.
    fn register(&mut self, region: Arc<Mapping>, access: Access) -> Result<MemoryKeys, RegisterError> {
        let mut known: Result<Option<MemoryKeys>, RegisterError> = Ok(None);
        let mut given = [None; DEVICES_MAX];
        for (entry, given) in self.entries.iter_mut().zip(&mut given) {
            let result = entry.device.register(Arc::clone(&region), access);
            *given = result.as_ref().ok().map(|keys| keys.local);
            known = match (known, result) {
                (Ok(None), Ok(keys)) => Ok(Some(keys)),
                (Ok(Some(first)), Ok(keys)) if keys.local == first.local => Ok(Some(first)),
                // The tables are not alike: no key would do for all.
                (Ok(Some(_)), Ok(_)) => {
                    Err(RegisterError::System(rustix::io::Errno::NOTRECOVERABLE.raw_os_error()))
                }
                (Ok(_), Err(refusal)) => Err(refusal),
                (refused @ Err(_), _) => refused,
            };
        }
        if known.is_err() {
            for (entry, key) in self.entries.iter_mut().zip(given) {
                let _ = key.map(|key| entry.device.deregister(key));
            }
        }
        known?.ok_or(RegisterError::TableFull { limit: 0 })
    }

    /// From all or from none, so that the tables stay alike.
    fn deregister(&mut self, key: LocalKey) -> Result<(), RegisterError> {
        if self.is_busy(key) {
            return Err(RegisterError::Busy);
        }
        self.entries.iter_mut().try_for_each(|entry| entry.device.deregister(key))
    }

    fn is_busy(&self, key: LocalKey) -> bool {
        self.entries.iter().any(|entry| entry.device.is_busy(key))
    }

    fn remote_key(&self, queue_pair: QueuePairNumber, key: LocalKey) -> Option<RemoteKey> {
        let (entry, number) = self.of(queue_pair)?;
        entry.device.remote_key(number, key)
    }

    fn create_queue_pair(&mut self, config: QueuePairConfig) -> Result<QueuePairNumber, QueuePairError> {
        self.create_queue_pair_on(0, config)
    }

    fn create_queue_pair_on(
        &mut self,
        rail: u32,
        config: QueuePairConfig,
    ) -> Result<QueuePairNumber, QueuePairError> {
        let at = self.on_rail(rail).ok_or(QueuePairError::TableFull { limit: 0 })?;
        let entry = self.entries.get_mut(at).ok_or(QueuePairError::TableFull { limit: 0 })?;
        let number = entry.device.create_queue_pair(config)?;
        if number.0 > INNER {
            // It would be taken for another device's.
            let _ = entry.device.destroy_queue_pair(number);
            return Err(QueuePairError::System(rustix::io::Errno::OVERFLOW.raw_os_error()));
        }
        entry.queue_pairs += 1;
        Ok(outer(at, number))
    }

    fn numa_node(&self, queue_pair: QueuePairNumber) -> Option<u32> {
        self.of(queue_pair)?.0.numa_node
    }

    fn endpoint(&self, queue_pair: QueuePairNumber) -> Result<Endpoint, QueuePairError> {
        let (entry, number) = self.of(queue_pair).ok_or(QueuePairError::Unknown)?;
        entry.device.endpoint(number)
    }

    fn connect(
        &mut self,
        queue_pair: QueuePairNumber,
        peer: &Endpoint,
        role: Role,
    ) -> Result<(), ConnectError> {
        let (entry, number) = self.of_mut(queue_pair).ok_or(ConnectError::Unknown)?;
        entry.device.connect(number, peer, role)
    }

    fn packet_bytes(&self, queue_pair: QueuePairNumber) -> Option<PacketBytes> {
        let (entry, number) = self.of(queue_pair)?;
        entry.device.packet_bytes(number)
    }

    fn state(&self, queue_pair: QueuePairNumber) -> Option<QueuePairState> {
        let (entry, number) = self.of(queue_pair)?;
        entry.device.state(number)
    }

    fn failure(&self, queue_pair: QueuePairNumber) -> Option<Cause> {
        let (entry, number) = self.of(queue_pair)?;
        entry.device.failure(number)
    }

    /// Offered where all devices do, as [`Device::capabilities`] says.
    fn drain(&mut self, queue_pair: QueuePairNumber) -> Result<(), QueuePairError> {
        let (entry, number) = self.draining(queue_pair)?;
        entry.device.drain(number)
    }

    fn resume(&mut self, queue_pair: QueuePairNumber) -> Result<(), QueuePairError> {
        let (entry, number) = self.draining(queue_pair)?;
        entry.device.resume(number)
    }

    fn fail_queue_pair(&mut self, queue_pair: QueuePairNumber) {
        if let Some((entry, number)) = self.of_mut(queue_pair) {
            entry.device.fail_queue_pair(number);
        }
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePairNumber) -> Result<(), QueuePairError> {
        let (entry, number) = self.of_mut(queue_pair).ok_or(QueuePairError::Unknown)?;
        entry.device.destroy_queue_pair(number)?;
        entry.queue_pairs = entry.queue_pairs.saturating_sub(1);
        Ok(())
    }

    fn post_send(&mut self, queue_pair: QueuePairNumber, request: &WorkRequest) -> Result<(), PostError> {
        let (entry, number) = self.of_mut(queue_pair).ok_or(PostError::Unknown)?;
        entry.device.post_send(number, request)?;
        entry.bytes = entry.bytes.wrapping_add(request.length());
        Ok(())
    }

    fn post_receive(
        &mut self,
        queue_pair: QueuePairNumber,
        request: &ReceiveRequest,
    ) -> Result<(), PostError> {
        let (entry, number) = self.of_mut(queue_pair).ok_or(PostError::Unknown)?;
        entry.device.post_receive(number, request)
    }

    fn flush(&mut self) {
        for entry in self.entries.iter_mut().filter(|entry| entry.queue_pairs > 0) {
            entry.device.flush();
        }
    }

    /// They take turns in coming first, so that none fills the room for completions for ever.
    fn poll(&mut self, now: Time, completions: &mut [Completion]) -> usize {
        self.turn = self.turn.wrapping_add(1);
        let count = self.entries.len().max(1);
        let mut taken = 0;
        for step in 0..count {
            let at = (self.turn as usize + step) % count;
            let (Some(entry), Some(room)) = (self.entries.get_mut(at), completions.get_mut(taken..)) else {
                break;
            };
            let idle = entry.queue_pairs == 0 && now.0.saturating_sub(entry.polled.0) < IDLE_NS;
            // One that is alone is always polled: there is nothing else to do.
            if idle && count > 1 {
                continue;
            }
            entry.polled = now;
            let more = entry.device.poll(now, room);
            room.iter_mut().take(more).for_each(|done| done.queue_pair = outer(at, done.queue_pair));
            taken += more;
        }
        taken
    }

    fn deadline(&self) -> Option<Time> {
        self.entries.iter().filter_map(|entry| entry.device.deadline()).min()
    }

    /// The best device's; a caller that blocks needs all of [`NodeDevices::event_descriptors`].
    fn event_descriptor(&self) -> Option<i32> {
        self.event_descriptors().next()
    }

    fn arm(&mut self) -> bool {
        // Each is asked, also when one has something to poll already.
        self.entries.iter_mut().fold(true, |armed, entry| entry.device.arm() & armed)
    }
}

#[cfg(test)]
#[path = "devices_tests.rs"]
mod tests;
