//! A delayed device keeps the contract, and takes as long as it is told to.
#![forbid(unsafe_code)]

use core::time::Duration;

use ringway_sim::conformance::{Fixture, Harness, Side, pattern, request};
use ringway_sim::{SimConfig, SimDevice, SimNetwork};
use ringway_verbs::{Access, Device, Endpoint, Operation, Status, Time};
use ringway_wrap::Delayed;

/// Virtual time after which a test is stuck.
const PATIENCE_NS: u64 = 3_600_000_000_000;

struct Simulated {
    network: SimNetwork,
    devices: [Option<Delayed<SimDevice>>; 2],
    now: u64,
}

impl Simulated {
    fn new(delay: Duration) -> Self {
        let network = SimNetwork::new(SimConfig { latency_ns: 500, ..SimConfig::default() });
        let devices = [(); 2].map(|()| Some(Delayed::new(Box::new(network.device()), delay)));
        Self { network, devices, now: 0 }
    }

    /// Time goes on by a little, and to the next event when nothing else happens.
    fn pause(&mut self, idle: bool) -> bool {
        self.now += 50;
        if idle {
            let deadlines = self.devices.iter().flatten().filter_map(Device::deadline);
            let next = deadlines.chain(self.network.next_event()).min();
            self.now = next.map_or(self.now + 1_000_000, |next| next.0.max(self.now));
        }
        self.now < PATIENCE_NS
    }
}

macro_rules! harness {
    ($name:ident, $delay:expr) => {
        struct $name(Simulated);

        impl Harness for $name {
            type Device = Delayed<SimDevice>;

            fn new() -> Self {
                Self(Simulated::new($delay))
            }

            fn device(&mut self, side: Side) -> &mut Self::Device {
                self.0.devices[side as usize].as_mut().expect("alive")
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

harness!(Near, Duration::ZERO);
harness!(Farther, Duration::from_micros(1));
harness!(Far, Duration::from_micros(100));

mod near {
    ringway_sim::conformance_suite!(super::Near);
}

mod farther {
    ringway_sim::conformance_suite!(super::Farther);
}

/// One way takes the delay, there and back twice as long, and bytes are those that were sent.
#[test]
fn what_arrives_takes_so_much_longer() {
    let (mut fixture, [left, right]) = Fixture::<Far>::connected();
    let (ours, theirs) =
        (fixture.memory(Side::Left, 4096, Access::ALL), fixture.memory(Side::Right, 4096, Access::ALL));
    let bytes = pattern(5, 1000);
    ours.put(0, &bytes);
    let started = fixture.harness.now();
    let passed = |fixture: &Fixture<Far>| fixture.harness.now().0 - started.0;
    fixture.receive(Side::Left, left, 1, ours.slice(2000, 1000));
    fixture.receive(Side::Right, right, 2, theirs.slice(0, 1000));
    let send = Operation::Send { immediate: None };
    fixture.send(Side::Left, left, &request(3, send, &[ours.slice(0, 1000)]));
    fixture.expect(Side::Right, 2, Status::Success);
    assert!((100_000..110_000).contains(&passed(&fixture)), "{} ns one way", passed(&fixture));
    assert_eq!(theirs.get(0, 1000), bytes);
    let write = Operation::WriteWithImmediate { remote: ours.remote(2000), immediate: 9 };
    fixture.send(Side::Right, right, &request(4, write, &[theirs.slice(0, 1000)]));
    let done = fixture.take_of(Side::Left, left, false, 1);
    assert_eq!((done[0].id, done[0].status, done[0].immediate), (1, Status::Success, Some(9)));
    assert!((200_000..220_000).contains(&passed(&fixture)), "{} ns there and back", passed(&fixture));
    assert_eq!(ours.get(2000, 1000), bytes);
    // The acknowledgement of what was sent back has to make the same way as well.
    fixture.take_of(Side::Right, right, true, 1);
    assert!((300_000..330_000).contains(&passed(&fixture)), "{} ns until that is known", passed(&fixture));
}

/// What was sent before a connection ended comes before the word that it did.
#[test]
fn what_came_before_the_end_is_told_before_it() {
    use ringway_verbs::QueuePairState;

    let (mut fixture, [left, right]) = Fixture::<Far>::connected();
    let memory = fixture.memory(Side::Right, 64, Access::ALL);
    let empty = fixture.memory(Side::Left, 64, Access::ALL);
    fixture.receive(Side::Right, right, 2, memory.slice(0, 64));
    let send = Operation::Send { immediate: None };
    fixture.send(Side::Left, left, &request(3, send, &[empty.slice(0, 64)]));
    let started = fixture.harness.now().0;
    fixture.until("it has arrived", |fixture| fixture.harness.now().0 > started + 5_000);
    fixture.destroy(Side::Left, left);
    fixture.until("the end is known", |fixture| fixture.state(Side::Right, right) == QueuePairState::Error);
    assert!(fixture.seen(Side::Right).iter().any(|done| (done.id, done.status) == (2, Status::Success)));
}
