use std::{
    net::{IpAddr, Ipv4Addr},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use ringway_roce::{PeerKind, RoceConfig, RoceDevice, RoceEndpoint, UdpConfig, UdpLink};
use ringway_sim::conformance::{Fixture, Harness, Side};
use ringway_verbs::Operation;
use ringway_wire::{PathMtu, Psn, QueuePair};

use super::*;

/// An address in 127.0.0.0/8 that nobody else uses.
fn address() -> IpAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let own = (std::process::id() << 9) + NEXT.fetch_add(1, Ordering::Relaxed);
    IpAddr::V4(Ipv4Addr::from_bits(127 << 24 | 1 << 23 | own & 0x7f_ffff))
}

fn devices() -> NodeDevices {
    let device = |protocol| {
        let link = UdpLink::new(UdpConfig::new(address())).expect("a link");
        let config = RoceConfig {
            connect_timeout_ns: 500_000_000,
            keep_alive_ns: 50_000_000,
            patience_ns: 1_500_000_000,
            ..RoceConfig::new(protocol)
        };
        let device: NodeDevice = Box::new(RoceDevice::new(link, config).expect("a device"));
        (protocol, device)
    };
    NodeDevices::new([device("one"), device("two")])
}

/// Two nodes with two devices each, which use the second.
struct OnSecond {
    nodes: [Option<NodeDevices>; 2],
    start: Instant,
}

impl Harness for OnSecond {
    type Device = NodeDevices;

    fn new() -> Self {
        let nodes = [(); 2].map(|()| {
            let mut devices = devices();
            assert_eq!(devices.choose("two"), Some("two"));
            Some(devices)
        });
        Self { nodes, start: Instant::now() }
    }

    fn device(&mut self, side: Side) -> &mut NodeDevices {
        self.nodes[side as usize].as_mut().expect("alive")
    }

    fn now(&self) -> Time {
        Time(u64::try_from(self.start.elapsed().as_nanos()).expect("soon"))
    }

    fn pause(&mut self, idle: bool) -> bool {
        if idle {
            std::thread::yield_now();
        }
        self.start.elapsed() < Duration::from_secs(60)
    }

    fn kill(&mut self, side: Side) {
        self.nodes[side as usize] = None;
    }

    fn unreachable_endpoint(&mut self) -> Endpoint {
        let endpoint = RoceEndpoint {
            address: address(),
            queue_pair: QueuePair::new(0x12_3456).expect("a number"),
            psn: Psn::new(5),
            mtu: PathMtu::Mtu4096,
            rd_atomic: 16,
            kind: PeerKind::Ringway { selective: true },
        };
        endpoint.encode()
    }
}

ringway_sim::conformance_suite!(OnSecond);

#[test]
fn each_queue_pair_is_on_the_device_that_was_chosen() {
    let mut fixture = Fixture::<OnSecond>::default();
    let second = fixture.connect(4);
    for side in Side::BOTH {
        assert_eq!(fixture.device(side).choose("one"), Some("one"));
    }
    let first = fixture.connect(4);
    assert_eq!(fixture.device(Side::Left).choose("three"), None);
    assert!(first[0].0 < SECOND && second[0].0 >= SECOND);
    // Both know the memory by the same keys.
    let from = fixture.memory(Side::Left, 4096, Access::ALL);
    let into = fixture.memory(Side::Right, 4096, Access::ALL);
    for (id, pair) in [(1, first), (2, second)] {
        from.put(0, &[u8::try_from(id).expect("small"); 64]);
        let write = Operation::Write { remote: into.remote(64 * id) };
        let request = ringway_sim::conformance::request(id, write, &[from.slice(0, 64)]);
        fixture.send(Side::Left, pair[0], &request);
        let done = fixture.take(Side::Left, 1)[0];
        assert_eq!((done.id, done.queue_pair, done.status), (id, pair[0], ringway_verbs::Status::Success));
    }
    assert_eq!(into.get(64, 128), [[1; 64], [2; 64]].concat());
    let status = fixture.device(Side::Left).status();
    assert_eq!(status.iter().map(|device| device.name.as_str()).collect::<Vec<_>>(), ["one", "two"]);
    assert!(status.iter().all(|device| device.counters["packets_sent"] > 0), "{status:?}");
}

#[test]
fn memory_is_known_by_the_same_keys_whatever_happened_before() {
    let mut fixture = Fixture::<OnSecond>::default();
    let pair = fixture.connect(4);
    let mut regions: Vec<_> = (0..8).map(|_| fixture.memory(Side::Left, 4096, Access::ALL)).collect();
    let busy = regions.swap_remove(3);
    fixture.receive(Side::Left, pair[0], 1, busy.slice(0, 8));
    let device = fixture.device(Side::Left);
    assert!(device.is_busy(busy.keys.local));
    assert_eq!(device.deregister(busy.keys.local), Err(RegisterError::Busy));
    for region in regions.drain(2..6) {
        assert_eq!(device.deregister(region.keys.local), Ok(()));
        assert_eq!(device.deregister(region.keys.local), Err(RegisterError::UnknownKey));
    }
    let refused = Access { local_write: false, ..Access::ALL };
    assert_eq!(device.register(Arc::clone(&busy.mapping), refused), Err(RegisterError::AccessCombination));
    fixture.destroy(Side::Left, pair[0]);
    assert_eq!(fixture.device(Side::Left).deregister(busy.keys.local), Ok(()));
    // It would be refused if the two devices gave it different keys.
    for _ in 0..8 {
        fixture.memory(Side::Left, 4096, Access::ALL);
    }
}
