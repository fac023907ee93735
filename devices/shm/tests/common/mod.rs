//! Two devices in one process.
#![expect(clippy::unwrap_used, reason = "the parts of a test")]

use std::time::{Duration, Instant};

use ringway_mem::Mapping;
use ringway_shm::{ShmConfig, ShmDevice};
use ringway_sim::conformance::{Harness, Side};
use ringway_verbs::{Device, Endpoint, QueuePairConfig, Time};

use crate::memory::in_file;

/// A stuck test ends after this long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Two devices, and memory of either kind.
pub(crate) struct Devices<const FILES: bool> {
    devices: [Option<ShmDevice>; 2],
    start: Instant,
}

pub(crate) type Private = Devices<false>;
pub(crate) type Files = Devices<true>;

impl<const FILES: bool> Harness for Devices<FILES> {
    type Device = ShmDevice;

    fn new() -> Self {
        let device = || Some(ShmDevice::new(ShmConfig::default()).unwrap());
        Self { devices: [device(), device()], start: Instant::now() }
    }

    fn memory(length: usize) -> Mapping {
        if FILES { in_file(length) } else { Mapping::private(length).unwrap() }
    }

    fn device(&mut self, side: Side) -> &mut ShmDevice {
        self.devices[side as usize].as_mut().unwrap()
    }

    fn now(&self) -> Time {
        Time(u64::try_from(self.start.elapsed().as_nanos()).unwrap())
    }

    fn pause(&mut self, idle: bool) -> bool {
        if idle {
            std::thread::yield_now();
        }
        self.start.elapsed() < PATIENCE
    }

    fn skip(&mut self, time: Duration) {
        self.start -= time;
    }

    fn kill(&mut self, side: Side) {
        self.devices[side as usize] = None;
    }

    fn unreachable_endpoint(&mut self) -> Endpoint {
        let mut device = ShmDevice::new(ShmConfig::default()).unwrap();
        let config = QueuePairConfig { send_depth: 1, receive_depth: 1 };
        let queue_pair = device.create_queue_pair(config).unwrap();
        device.endpoint(queue_pair).unwrap()
    }
}
