//! The device passes the suite on an RDMA port of this host. Where there is none each test says so and checks nothing, unless
//! `RINGWAY_TEST_RDMA` is set.
#![cfg(feature = "verbs")]
#![forbid(unsafe_code)]
#![expect(clippy::expect_used, clippy::print_stderr, reason = "helpers of tests may panic")]

use std::{
    os::fd::AsRawFd,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use ringway_ibverbs::{
    Choice, DeviceEvent, IbverbsConfig, IbverbsDevice, IbverbsFailure, RelaxedOrdering, Selector, ports,
};
use ringway_mem::Mapping;
use ringway_sim::conformance::{Fixture, Harness, Side, request};
use ringway_verbs::{
    Access, Cause, Completion, Device as _, DmaBuf, Endpoint, Operation, QueuePairConfig, QueuePairError,
    QueuePairNumber, QueuePairState, RegisterError, Role, Status, Time, WorkRequest,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// No test takes longer, also where the processor is emulated.
const LIMIT: Duration = Duration::from_secs(60);

/// Notices earlier than others do that a peer is gone.
fn config() -> IbverbsConfig {
    let mut config = IbverbsConfig::new(Selector::default(), None);
    config.connect_timeout_ns = 1_500_000_000;
    config.keep_alive_ns = 50_000_000;
    // Seven times 67 ms: an emulated processor that others use as well may stand still for long.
    config.timeout = 14;
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

    fn skip(&mut self, time: Duration) {
        self.begun -= time;
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

/// The device gives up and begins anew while the other end does not know of the connection yet; the two may meet at any moment of
/// that.
#[test]
fn a_peer_that_comes_late_is_found_at_every_moment() {
    if !OnePort::is_possible() {
        return;
    }
    let mut fixture = Fixture::<OnePort>::default();
    let memory = Side::BOTH.map(|side| fixture.memory(side, 64, Access::ALL));
    for late_ms in (380..620).step_by(20) {
        let [left, right] = fixture.pair(4);
        let there = fixture.device(Side::Right).endpoint(right).expect("endpoint");
        let here = fixture.device(Side::Left).endpoint(left).expect("endpoint");
        fixture.device(Side::Left).connect(left, &there, Role::Active).expect("connect");
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(late_ms) {
            assert!(fixture.turn());
        }
        fixture.device(Side::Right).connect(right, &here, Role::Passive).expect("connect");
        for (side, own, other) in [(Side::Left, left, right), (Side::Right, right, left)] {
            let [from, into] = [side, side.other()].map(|side| &memory[side as usize]);
            fixture.receive(side.other(), other, late_ms, into.slice(0, 64));
            fixture.send(side, own, &request(1, Operation::Send { immediate: None }, &[from.slice(0, 64)]));
            fixture.expect(side.other(), late_ms, Status::Success);
            fixture.expect(side, 1, Status::Success);
        }
        fixture.destroy(Side::Left, left);
        fixture.destroy(Side::Right, right);
    }
}

/// What is flushed while a connection is made is sent when it is there, though nobody flushes again.
#[test]
fn what_was_flushed_before_the_peer_was_there_is_sent_by_polling() {
    if !OnePort::is_possible() {
        return;
    }
    let mut fixture = Fixture::<OnePort>::default();
    let [left, right] = fixture.pair(4);
    fixture.start_connect([left, right]);
    let (from, into) =
        (fixture.memory(Side::Left, 64, Access::ALL), fixture.memory(Side::Right, 64, Access::ALL));
    fixture.receive(Side::Right, right, 2, into.slice(0, 64));
    fixture.send(Side::Left, left, &request(1, Operation::Send { immediate: None }, &[from.slice(0, 64)]));
    let mut seen = 0;
    while seen < 2 {
        for side in Side::BOTH {
            let now = fixture.harness.now();
            let mut batch = [Completion::EMPTY; 4];
            seen += fixture.device(side).poll(now, &mut batch);
        }
        assert!(fixture.harness.pause(true), "nothing is sent");
    }
    assert_eq!(fixture.state(Side::Left, left), QueuePairState::Ready);
}

/// What the left device has counted by this name.
fn counted(fixture: &mut Fixture<OnePort>, name: &str) -> u64 {
    let mut found = None;
    fixture.device(Side::Left).for_each_counter(&mut |known, value| {
        if known == name {
            found = Some(value);
        }
    });
    found.expect("a counter")
}

/// Requests that nobody asks about are signalled now and then, however they are flushed; short ones carry their bytes; and their
/// memory comes free soon after somebody has asked for it.
#[test]
fn requests_that_nobody_hears_of_are_signalled_now_and_then() {
    if !OnePort::is_possible() {
        return;
    }
    for (depth, requests, signalled) in [(64, 48, 3), (8, 8, 4), (1, 4, 4)] {
        let mut fixture = Fixture::<OnePort>::default();
        let [left, right] = fixture.connect(depth);
        let from = fixture.memory(Side::Left, 64, Access::ALL);
        let into = fixture.memory(Side::Right, 64, Access::ALL);
        let before = counted(&mut fixture, "probes");
        for id in 0..requests {
            fixture.receive(Side::Right, right, id, into.slice(0, 64));
            let send = request(id, Operation::Send { immediate: None }, &[from.slice(0, 8)]);
            fixture.send(Side::Left, left, &WorkRequest { signalled: false, ..send });
            fixture.expect(Side::Right, id, Status::Success);
            // With a place for one request only the next one waits for the word of it.
            fixture.until("its place is free", |fixture| {
                depth > 1 || counted(fixture, "bytes_sent") == 8 * (id + 1)
            });
        }
        let [sent, told, inline, more] = ["requests_sent", "requests_signalled", "requests_inline", "probes"]
            .map(|name| counted(&mut fixture, name));
        // A sign of life, where the guest was slow, tells of all before it.
        let probes = more - before;
        assert!(
            told <= signalled && told + probes >= signalled,
            "{told} and {probes} probes of depth {depth}"
        );
        assert_eq!((sent, inline), (requests, requests), "rxe and hardware carry 8 bytes");
        fixture.until("the memory is free", |fixture| {
            fixture.device(Side::Left).deregister(from.keys.local).is_ok()
        });
        assert_eq!(fixture.seen(Side::Left), [], "nobody asked to hear of them");
    }
}

/// Polls until the device has looked at what it was told.
fn look(fixture: &mut Fixture<OnePort>) {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(50) {
        assert!(fixture.turn());
    }
}

/// A message each way over a connection.
fn exchange(fixture: &mut Fixture<OnePort>, pair: [QueuePairNumber; 2], id: u64) {
    let memory = Side::BOTH.map(|side| fixture.memory(side, 64, Access::ALL));
    for side in Side::BOTH {
        let (own, other) = (pair[side as usize], pair[side.other() as usize]);
        let [from, into] = [side, side.other()].map(|side| &memory[side as usize]);
        fixture.receive(side.other(), other, id, into.slice(0, 64));
        fixture.send(side, own, &request(id, Operation::Send { immediate: None }, &[from.slice(0, 64)]));
        fixture.expect(side.other(), id, Status::Success);
        fixture.expect(side, id, Status::Success);
    }
}

/// A port that goes down and comes up is counted, and addresses that change are looked at: connections go on.
#[test]
fn events_of_the_port_leave_connections_as_they_are() {
    if !OnePort::is_possible() {
        return;
    }
    let (mut fixture, pair) = Fixture::<OnePort>::connected();
    let device = fixture.device(Side::Left);
    let number = device.choice().port.number;
    for event in [
        DeviceEvent::Port { number, is_up: false },
        DeviceEvent::Addresses,
        DeviceEvent::Port { number: number + 1, is_up: false },
        DeviceEvent::Other,
        DeviceEvent::Port { number, is_up: true },
    ] {
        device.report(event);
    }
    look(&mut fixture);
    assert_eq!(["port_downs", "port_ups"].map(|name| counted(&mut fixture, name)), [1, 1]);
    assert!(!fixture.device(Side::Left).is_lost());
    exchange(&mut fixture, pair, 7);
}

/// A queue pair that the device gives up fails alone, and whose fault it was is told.
#[test]
fn a_queue_pair_that_the_device_gives_up_fails_alone() {
    if !OnePort::is_possible() {
        return;
    }
    let mut fixture = Fixture::<OnePort>::default();
    let other = fixture.connect(4);
    for (is_fatal, failure) in [(true, IbverbsFailure::Fatal), (false, IbverbsFailure::RefusedPeer)] {
        let [left, right] = fixture.connect(4);
        let memory = fixture.memory(Side::Left, 64, Access::ALL);
        fixture.receive(Side::Left, left, 5, memory.slice(0, 64));
        let device = fixture.device(Side::Left);
        let number = device.device_number(left).expect("there");
        device.report(DeviceEvent::QueuePair { number, is_fatal });
        fixture.expect(Side::Left, 5, Status::Flushed);
        let device = fixture.device(Side::Left);
        assert_eq!(device.state(left), Some(QueuePairState::Error));
        assert_eq!(device.last_error(left), Some(failure));
        assert_eq!(device.failure(left) == Some(Cause::QueuePairFatal), is_fatal);
        assert!(!device.is_lost());
        exchange(&mut fixture, other, 9);
        fixture.destroy(Side::Left, left);
        fixture.destroy(Side::Right, right);
    }
}

/// With the device, or its completion queue, all connections end, as this node's fault, and none is made any more.
#[test]
fn a_lost_device_ends_all_its_connections() {
    if !OnePort::is_possible() {
        return;
    }
    for event in [DeviceEvent::Device, DeviceEvent::CompletionQueue] {
        let mut fixture = Fixture::<OnePort>::default();
        let pairs = [(); 2].map(|()| fixture.connect(4));
        let memory = fixture.memory(Side::Left, 64, Access::ALL);
        for ([left, _], id) in pairs.into_iter().zip(1..) {
            fixture.receive(Side::Left, left, id, memory.slice(0, 64));
        }
        fixture.device(Side::Left).report(event);
        for ([left, _], id) in pairs.into_iter().zip(1..) {
            fixture.take_of(Side::Left, left, false, 1);
            let device = fixture.device(Side::Left);
            assert_eq!(device.state(left), Some(QueuePairState::Error), "{event:?}, {id}");
            assert_eq!(device.failure(left), Some(Cause::DeviceLost));
        }
        let device = fixture.device(Side::Left);
        assert!(device.is_lost());
        let config = QueuePairConfig { send_depth: 1, receive_depth: 1 };
        assert!(matches!(device.create_queue_pair(config), Err(QueuePairError::System(19))));
        assert!(!fixture.device(Side::Right).is_lost(), "the peer's is another");
    }
}

/// Memory that the device cannot reach is refused in words, and what was tried leaves nothing behind. rxe reaches only what it maps
/// itself; hardware that takes dma-bufs sees that a file is none.
#[test]
fn what_is_no_dma_buf_for_the_device_is_refused() {
    if !OnePort::is_possible() {
        return;
    }
    let mut device = IbverbsDevice::open(config()).expect("a port");
    let file = std::fs::File::open("/proc/self/exe").expect("a file");
    let part = DmaBuf { descriptor: file.as_raw_fd(), offset: 0, length: 4096 };
    let refused = device.register_dma_buf(part, Access::ALL).expect_err("a file is no dma-buf");
    if device.choice().port.is_software {
        assert_eq!(refused, RegisterError::Unsupported);
        assert!(refused.to_string().contains("copy through memory of the host"), "{refused}");
    }
    for wrong in [DmaBuf { offset: 1, ..part }, DmaBuf { length: 0, ..part }] {
        assert_eq!(device.register_dma_buf(wrong, Access::ALL), Err(RegisterError::System(22)));
    }
    let memory = Arc::new(Mapping::private(4096).expect("memory"));
    let keys = device.register(memory, Access::ALL).expect("memory of the host");
    assert!(!device.is_busy(keys.local));
    assert_eq!(device.deregister(keys.local), Ok(()));
}

/// Both ends of one port have the same packets, known when they know of each other.
#[test]
fn packets_are_known_with_the_peer() {
    if !OnePort::is_possible() {
        return;
    }
    let mut fixture = Fixture::<OnePort>::default();
    let [unconnected, _] = fixture.pair(4);
    assert_eq!(fixture.device(Side::Left).packet_bytes(unconnected), None);
    let [left, _] = fixture.connect(4);
    let bytes = fixture.device(Side::Left).packet_bytes(left).expect("connected");
    assert!(bytes.own == bytes.peer && bytes.own >= 256, "{bytes:?}");
}

/// Software has no PCIe bus to reorder anything: whatever is asked for, memory is registered and reached.
#[test]
fn memory_is_reached_with_every_ordering() {
    if !OnePort::is_possible() {
        return;
    }
    for ordering in [RelaxedOrdering::Auto, RelaxedOrdering::On, RelaxedOrdering::Off] {
        let mut fixture = Fixture::<OnePort>::default();
        for side in Side::BOTH {
            let mut config = config();
            config.relaxed_ordering = ordering;
            fixture.harness.devices[side as usize] = Some(IbverbsDevice::open(config).expect("a port"));
        }
        let pair = fixture.connect(4);
        exchange(&mut fixture, pair, 1);
    }
}

/// A caller that sleeps is not woken by what is over: neither by connecting nor by anything before.
#[test]
fn nothing_wakes_who_has_taken_everything() {
    if !OnePort::is_possible() {
        return;
    }
    let (mut fixture, _) = Fixture::<OnePort>::connected();
    fixture.connect(4);
    // Signs of life come now and then.
    let quiet = (0..100).any(|_| {
        assert!(fixture.turn());
        let device = fixture.device(Side::Left);
        let number = device.event_descriptor().expect("a descriptor");
        let armed = device.arm();
        armed && !is_readable(number)
    });
    assert!(quiet, "it is always readable");
}

/// Whether a descriptor of this process has something to read.
fn is_readable(number: i32) -> bool {
    let file = ringway_mem::passing::duplicate(number).expect("a descriptor");
    let mut files = [PollFd::new(&file, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut files, Some(&now)).expect("poll") > 0
}
