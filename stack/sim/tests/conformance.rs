//! The simulated device passes the suite, on a fast network and on one with delays.
#![forbid(unsafe_code)]
#![expect(clippy::expect_used, reason = "the parts of a test")]

use core::time::Duration;

use ringway_sim::conformance::{Harness, Side};
use ringway_sim::{SimConfig, SimDevice, SimNetwork};
use ringway_verbs::{Endpoint, Time};

/// Virtual time after which a test is stuck.
const PATIENCE_NS: u64 = 3_600_000_000_000;

struct Simulated {
    network: SimNetwork,
    devices: [Option<SimDevice>; 2],
    now: u64,
}

impl Simulated {
    fn with(config: SimConfig) -> Self {
        let network = SimNetwork::new(config);
        let devices = [Some(network.device()), Some(network.device())];
        Self { network, devices, now: 0 }
    }

    fn device(&mut self, side: Side) -> &mut SimDevice {
        self.devices[side as usize].as_mut().expect("alive")
    }

    /// Time goes on by a little, and to the next event when nothing else happens.
    fn pause(&mut self, idle: bool) -> bool {
        self.now += 50;
        if idle && let Some(next) = self.network.next_event() {
            self.now = self.now.max(next.0);
        }
        if idle && self.network.next_event().is_none() {
            self.now += 1_000_000;
        }
        self.now < PATIENCE_NS
    }
}

macro_rules! harness {
    ($name:ident, $config:expr) => {
        struct $name(Simulated);

        impl Harness for $name {
            type Device = SimDevice;

            fn new() -> Self {
                Self(Simulated::with($config))
            }

            fn device(&mut self, side: Side) -> &mut SimDevice {
                self.0.device(side)
            }

            fn now(&self) -> Time {
                Time(self.0.now)
            }

            fn pause(&mut self, idle: bool) -> bool {
                self.0.pause(idle)
            }

            fn skip(&mut self, time: Duration) {
                self.0.now += u64::try_from(time.as_nanos()).expect("a short time");
            }

            fn kill(&mut self, side: Side) {
                self.0.devices[side as usize] = None;
            }

            fn unreachable_endpoint(&mut self) -> Endpoint {
                SimDevice::unreachable_endpoint()
            }
        }
    };
}

harness!(Immediate, SimConfig::default());
harness!(Distant, SimConfig { latency_ns: 10_000, jitter_ns: 5_000, seed: 3, ..SimConfig::default() });

mod immediate {
    ringway_sim::conformance_suite!(super::Immediate);
}

mod distant {
    ringway_sim::conformance_suite!(super::Distant);
}

#[test]
fn a_broken_link_loses_what_was_on_it() {
    use ringway_sim::conformance::{Fixture, request};
    use ringway_verbs::{Access, Operation, QueuePairState, Status};

    let (mut fixture, [left, right]) = Fixture::<Distant>::connected();
    let memory = fixture.memory(Side::Left, 64, Access::LOCAL);
    let send = request(1, Operation::Send { immediate: None }, &[memory.slice(0, 64)]);
    fixture.send(Side::Left, left, &send);
    let simulated = &fixture.harness.0;
    let [Some(one), Some(other)] = &simulated.devices else { panic!("both are alive") };
    simulated.network.break_link(one, other);
    fixture.expect(Side::Left, 1, Status::TransportLost);
    assert_eq!(fixture.state(Side::Right, right), QueuePairState::Error);
    // The devices can connect anew.
    fixture.connect(4);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    use ringway_sim::conformance::{Fixture, request};
    use ringway_verbs::{Access, Operation};

    let run = || {
        let mut fixture = Fixture::<Distant>::default();
        let pairs: Vec<_> = (0..10).map(|_| fixture.connect(4)).collect();
        let remote = fixture.memory(Side::Right, 64, Access::ALL);
        let local = fixture.memory(Side::Left, 64, Access::LOCAL);
        for (id, [left, _]) in (0..).zip(&pairs) {
            let write = Operation::Write { remote: remote.remote(0) };
            fixture.send(Side::Left, *left, &request(id, write, &[local.slice(0, 64)]));
        }
        let order: Vec<u64> = fixture.take(Side::Left, 10).iter().map(|completion| completion.id).collect();
        (order, fixture.harness.now())
    };
    let (order, end) = run();
    assert_eq!((order.clone(), end), run());
    assert!(!order.is_sorted(), "the jitter reorders queue pairs among each other");
}
