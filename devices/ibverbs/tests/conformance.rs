//! The device passes the suite on an RDMA port of this host. Where there is none each test says so and checks nothing, unless
//! `RINGWAY_TEST_RDMA` is set.
#![cfg(feature = "verbs")]
#![forbid(unsafe_code)]
#![expect(clippy::expect_used, clippy::print_stderr, reason = "helpers of tests may panic")]

use std::{
    thread,
    time::{Duration, Instant},
};

use ringway_ibverbs::{Choice, IbverbsConfig, IbverbsDevice, Selector, ports};
use ringway_sim::conformance::{Harness, Side};
use ringway_verbs::{Device as _, Endpoint, QueuePairConfig, Time};

/// No test takes longer, also where the processor is emulated.
const LIMIT: Duration = Duration::from_secs(60);

/// Notices earlier than others do that a peer is gone.
fn config() -> IbverbsConfig {
    let mut config = IbverbsConfig::new(Selector::default(), None);
    config.connect_timeout_ns = 1_000_000_000;
    config.keep_alive_ns = 50_000_000;
    // Seven times 34 ms.
    config.timeout = 13;
    config
}

/// Two devices on one port.
#[derive(Debug)]
struct OnePort {
    devices: [Option<IbverbsDevice>; 2],
    begun: Instant,
}

impl Harness for OnePort {
    type Device = IbverbsDevice;

    fn new() -> Self {
        let devices = [(), ()].map(|()| Some(IbverbsDevice::open(config()).expect("a port")));
        Self { devices, begun: Instant::now() }
    }

    fn is_possible() -> bool {
        match Choice::best(&ports().expect("the list of ports"), &Selector::default(), None) {
            Ok(_) => true,
            Err(reason) if std::env::var_os("RINGWAY_TEST_RDMA").is_none() => {
                eprintln!("nothing is tested: {reason}");
                false
            }
            Err(_) => true,
        }
    }

    fn device(&mut self, side: Side) -> &mut IbverbsDevice {
        self.devices[side as usize].as_mut().expect("alive")
    }

    fn now(&self) -> Time {
        Time(u64::try_from(self.begun.elapsed().as_nanos()).expect("a short time"))
    }

    fn pause(&mut self, idle: bool) -> bool {
        if idle {
            thread::sleep(Duration::from_micros(100));
        }
        self.begun.elapsed() < LIMIT
    }

    fn kill(&mut self, side: Side) {
        self.devices[side as usize] = None;
    }

    fn unreachable_endpoint(&mut self) -> Endpoint {
        let device = self.device(Side::Right);
        let config = QueuePairConfig { send_depth: 1, receive_depth: 1 };
        let gone = device.create_queue_pair(config).expect("a queue pair");
        let endpoint = device.endpoint(gone).expect("its endpoint");
        device.destroy_queue_pair(gone).expect("destroyed");
        endpoint
    }
}

ringway_sim::conformance_suite!(OnePort);
