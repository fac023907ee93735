use std::{
    net::{IpAddr, Ipv4Addr},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use ringway_roce::{PeerKind, RoceConfig, RoceDevice, RoceEndpoint, UdpConfig, UdpLink};
use ringway_shm::{ShmConfig, ShmDevice};
use ringway_sim::conformance::{Fixture, Harness, Side};
use ringway_verbs::Operation;
use ringway_wire::{PathMtu, Psn, QueuePair};

use super::{super::device::NoDevice, *};

/// An address in 127.0.0.0/8 that nobody else uses.
fn address() -> IpAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let own = (std::process::id() << 9) + NEXT.fetch_add(1, Ordering::Relaxed);
    IpAddr::V4(Ipv4Addr::from_bits(127 << 24 | 1 << 23 | own & 0x7f_ffff))
}

const NAMES: [&str; 3] = ["one", "two", "shm"];

fn roce(name: &'static str) -> NodeDevice {
    let link = UdpLink::new(UdpConfig::new(address())).expect("a link");
    let config = RoceConfig {
        connect_timeout_ns: 500_000_000,
        keep_alive_ns: 50_000_000,
        patience_ns: 1_500_000_000,
        ..RoceConfig::new(name)
    };
    Box::new(RoceDevice::new(link, config).expect("a device"))
}

fn shm() -> ShmDevice {
    let mut config = ShmConfig::default();
    config.connect_timeout_ns = 500_000_000;
    ShmDevice::new(config).expect("a device")
}

fn devices() -> NodeDevices {
    let [one, two, three] = NAMES;
    let made: [(_, NodeDevice); 3] = [(one, roce(one)), (two, roce(two)), (three, Box::new(shm()))];
    NodeDevices::new(made.map(|(protocol, device)| (protocol.to_owned(), device)))
}

/// Two nodes with three devices each, which use one of them.
struct On<const PLACE: usize> {
    nodes: [Option<NodeDevices>; 2],
    start: Instant,
}

impl<const PLACE: usize> Harness for On<PLACE> {
    type Device = NodeDevices;

    fn new() -> Self {
        let nodes = [(); 2].map(|()| {
            let mut devices = devices();
            assert_eq!(devices.choose(NAMES[PLACE]), Some(NAMES[PLACE]));
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

    fn skip(&mut self, time: Duration) {
        self.start -= time;
    }

    fn kill(&mut self, side: Side) {
        self.nodes[side as usize] = None;
    }

    fn unreachable_endpoint(&mut self) -> Endpoint {
        if NAMES[PLACE] == "shm" {
            let mut gone = shm();
            let config = QueuePairConfig { send_depth: 1, receive_depth: 1 };
            let queue_pair = gone.create_queue_pair(config).expect("a queue pair");
            return gone.endpoint(queue_pair).expect("an endpoint");
        }
        let endpoint = RoceEndpoint {
            address: address(),
            queue_pair: QueuePair::new(0x12_3456).expect("a number"),
            psn: Psn::new(5),
            mtu: PathMtu::Mtu4096,
            rd_atomic: 16,
            kind: PeerKind::Ringway { selective: true, any_identification: false },
        };
        endpoint.encode()
    }
}

mod second {
    ringway_sim::conformance_suite!(super::On<1>);
}

mod third {
    ringway_sim::conformance_suite!(super::On<2>);
}

#[test]
fn each_queue_pair_is_on_the_device_that_was_chosen() {
    let mut fixture = Fixture::<On<1>>::default();
    let pairs = NAMES.map(|name| {
        for side in Side::BOTH {
            assert_eq!(fixture.device(side).choose(name), Some(name));
        }
        fixture.connect(4)
    });
    assert_eq!(fixture.device(Side::Left).choose("four"), None);
    assert_eq!(pairs.map(|pair| inner(pair[0]).0), [0, 1, 2]);
    // All know the memory by the same keys.
    let from = fixture.memory(Side::Left, 4096, Access::ALL);
    let into = fixture.memory(Side::Right, 4096, Access::ALL);
    for (id, pair) in (1..).zip(pairs) {
        from.put(0, &[u8::try_from(id).expect("small"); 64]);
        let write = Operation::Write { remote: into.remote(64 * id) };
        let request = ringway_sim::conformance::request(id, write, &[from.slice(0, 64)]);
        fixture.send(Side::Left, pair[0], &request);
        let done = fixture.take(Side::Left, 1)[0];
        assert_eq!((done.id, done.queue_pair, done.status), (id, pair[0], ringway_verbs::Status::Success));
    }
    assert_eq!(into.get(64, 192), [[1; 64], [2; 64], [3; 64]].concat());
    let status = fixture.device(Side::Left).status();
    assert_eq!(status.iter().map(|device| device.name.as_str()).collect::<Vec<_>>(), NAMES);
    let [roce @ .., shm] = status.as_slice() else { panic!("{status:?}") };
    assert!(roce.iter().all(|device| device.counters["packets_sent"] > 0), "{status:?}");
    assert_eq!(shm.counters["messages_sent"], 1, "{status:?}");
}

#[test]
fn numbers_say_which_device_they_are_of() {
    for at in 0..DEVICES_MAX {
        for number in [0, 1, INNER].map(QueuePairNumber) {
            assert_eq!(inner(outer(at, number)), (at, number));
        }
    }
    let mut none = devices();
    let last = outer(DEVICES_MAX - 1, QueuePairNumber(1));
    assert_eq!(none.state(last), None, "there is no such device");
    assert_eq!(none.destroy_queue_pair(last), Err(QueuePairError::Unknown));
    none.fail_queue_pair(last);
}

#[test]
fn a_device_whose_numbers_are_too_long_to_say_so_is_not_used() {
    let mut long = devices();
    assert_eq!(long.choose("two"), Some("two"));
    let mut nested = NodeDevices::new([("long".to_owned(), Box::new(long) as NodeDevice)]);
    let config = QueuePairConfig { send_depth: 1, receive_depth: 1 };
    assert!(matches!(nested.create_queue_pair(config), Err(QueuePairError::System(_))));
    assert!(nested.choose("long").is_some());
}

/// Where memory is matters only if network cards are on different nodes.
#[test]
fn numa_nodes_are_those_of_the_rails() {
    for (nodes, apart) in [
        ([Some(0), Some(1)], true),
        ([Some(1), Some(1)], false),
        ([Some(1), None], false),
        ([None, None], false),
    ] {
        let mut devices = NodeDevices::new(nodes.map(|numa_node| {
            let (protocol, rail) = ("roce".to_owned(), String::new());
            Placed { protocol, rail, numa_node, device: roce("roce") }
        }));
        assert_eq!(devices.are_apart(), apart, "{nodes:?}");
        let config = QueuePairConfig { send_depth: 1, receive_depth: 1 };
        for (rail, node) in (0..).zip(nodes) {
            let number = devices.create_queue_pair_on(rail, config).expect("a queue pair");
            assert_eq!(devices.numa_node(number), node);
        }
    }
}

/// A device that is gone is told once, and shown as one that is not used.
#[test]
fn a_device_that_is_lost_is_told_once() {
    let naming =
        |is_lost| Naming { regions: Box::<NoDevice>::default(), remote: RemoteKey(0), refuses: 0, is_lost };
    let made: [(_, NodeDevice); 3] = [
        ("there", Box::new(naming(false))),
        ("gone", Box::new(naming(true))),
        ("none", Box::<NoDevice>::default()),
    ];
    let mut devices = NodeDevices::new(made.map(|(protocol, device)| (protocol.to_owned(), device)));
    assert_eq!(devices.take_lost(), Some("gone"));
    assert_eq!(devices.take_lost(), None);
    let refused: Vec<String> = devices.status().into_iter().map(|device| device.refused).collect();
    assert_eq!(refused, ["", LOST, ""]);
}

/// A device that calls regions by names of its own toward peers, as hardware does.
#[derive(Debug)]
struct Naming {
    regions: NodeDevice,
    remote: RemoteKey,
    /// It has no room for so many regions to come.
    refuses: u32,
    is_lost: bool,
}

impl Device for Naming {
    type Region = Arc<Mapping>;

    fn capabilities(&self) -> Capabilities {
        Capabilities::new("naming")
    }

    fn register(&mut self, region: Arc<Mapping>, access: Access) -> Result<MemoryKeys, RegisterError> {
        let MemoryKeys { local, .. } = self.regions.register(region, access)?;
        if self.refuses > 0 {
            self.refuses -= 1;
            self.regions.deregister(local)?;
            return Err(RegisterError::System(rustix::io::Errno::NOMEM.raw_os_error()));
        }
        Ok(MemoryKeys { local, remote: RemoteKey(self.remote.0 + local.0) })
    }

    fn deregister(&mut self, key: LocalKey) -> Result<(), RegisterError> {
        self.regions.deregister(key)
    }

    fn is_busy(&self, _: LocalKey) -> bool {
        false
    }

    fn is_lost(&self) -> bool {
        self.is_lost
    }

    fn remote_key(&self, queue_pair: QueuePairNumber, key: LocalKey) -> Option<RemoteKey> {
        (queue_pair == QueuePairNumber(7)).then_some(RemoteKey(self.remote.0 + key.0))
    }

    fn create_queue_pair(&mut self, _: QueuePairConfig) -> Result<QueuePairNumber, QueuePairError> {
        Ok(QueuePairNumber(7))
    }

    fn endpoint(&self, _: QueuePairNumber) -> Result<Endpoint, QueuePairError> {
        Err(QueuePairError::Unknown)
    }

    fn connect(&mut self, _: QueuePairNumber, _: &Endpoint, _: Role) -> Result<(), ConnectError> {
        Err(ConnectError::Unknown)
    }

    fn packet_bytes(&self, queue_pair: QueuePairNumber) -> Option<PacketBytes> {
        let own = usize::try_from(self.remote.0).expect("small");
        (queue_pair == QueuePairNumber(7)).then_some(PacketBytes { own, peer: 1 })
    }

    fn state(&self, _: QueuePairNumber) -> Option<QueuePairState> {
        Some(QueuePairState::Init)
    }

    fn fail_queue_pair(&mut self, _: QueuePairNumber) {}

    fn destroy_queue_pair(&mut self, _: QueuePairNumber) -> Result<(), QueuePairError> {
        Ok(())
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

#[test]
fn each_queue_pairs_peer_has_its_own_devices_name_for_memory() {
    let naming = |remote| Naming {
        regions: Box::<NoDevice>::default(),
        remote: RemoteKey(remote),
        refuses: 0,
        is_lost: false,
    };
    let made: [(_, NodeDevice); 2] = [("one", Box::new(naming(100))), ("two", Box::new(naming(200)))];
    let mut devices = NodeDevices::new(made.map(|(protocol, device)| (protocol.to_owned(), device)));
    let mut register = || {
        let region = Arc::new(Mapping::private(4096).expect("memory"));
        devices.register(region, Access::ALL).expect("the local keys are the same")
    };
    let [first, second] = [register(), register()];
    assert_eq!((first.remote, second.remote), (RemoteKey(100), RemoteKey(101)));
    for (name, remote) in [("one", 100), ("two", 200)] {
        assert_eq!(devices.choose(name), Some("naming"));
        let config = QueuePairConfig { send_depth: 1, receive_depth: 1 };
        let queue_pair = devices.create_queue_pair(config).expect("a queue pair");
        assert_eq!(devices.remote_key(queue_pair, first.local), Some(RemoteKey(remote)));
        assert_eq!(devices.remote_key(queue_pair, second.local), Some(RemoteKey(remote + 1)));
        let bytes = devices.packet_bytes(queue_pair).expect("that device knows");
        assert_eq!(bytes.own, usize::try_from(remote).expect("small"), "its own port's");
    }
    assert_eq!(devices.remote_key(outer(0, QueuePairNumber(8)), first.local), None);
    assert_eq!(
        devices.remote_key(outer(2, QueuePairNumber(7)), first.local),
        None,
        "there is no such device"
    );
}

#[test]
fn after_one_has_refused_memory_all_go_on_with_the_same_keys() {
    let naming = Naming { regions: Box::new(shm()), remote: RemoteKey(0), refuses: 3, is_lost: false };
    let made: [(_, NodeDevice); 3] =
        [("one", Box::new(shm())), ("two", Box::new(naming)), ("three", Box::new(shm()))];
    let mut devices = NodeDevices::new(made.map(|(protocol, device)| (protocol.to_owned(), device)));
    let mut register =
        || devices.register(Arc::new(Mapping::private(4096).expect("memory")), Access::ALL).map(|_| ());
    for _ in 0..3 {
        assert_eq!(register(), Err(RegisterError::System(rustix::io::Errno::NOMEM.raw_os_error())));
    }
    for _ in 0..4 {
        assert_eq!(register(), Ok(()));
    }
}

#[test]
fn a_device_that_names_memory_differently_here_is_refused() {
    let mut other = NoDevice::default();
    let region = || Arc::new(Mapping::private(4096).expect("memory"));
    other.register(region(), Access::ALL).expect("registered");
    let made: [(_, NodeDevice); 2] = [("one", Box::<NoDevice>::default()), ("two", Box::new(other))];
    let mut devices = NodeDevices::new(made.map(|(protocol, device)| (protocol.to_owned(), device)));
    for _ in 0..2 {
        assert!(matches!(devices.register(region(), Access::ALL), Err(RegisterError::System(_))));
    }
}

#[test]
fn memory_is_known_by_the_same_keys_whatever_happened_before() {
    let mut fixture = Fixture::<On<1>>::default();
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
    // It would be refused if the devices gave it different keys.
    for _ in 0..8 {
        fixture.memory(Side::Left, 4096, Access::ALL);
    }
}
