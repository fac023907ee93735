//! Links on loopback addresses that no other test uses, and pairs of devices over them.
#![allow(dead_code, reason = "not every test file uses all of it")]
#![expect(clippy::panic, clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::{
    net::{IpAddr, Ipv4Addr},
    process,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use ringway_roce::{
    Counters, Link, LinkError, Path, PeerKind, Received, Refusal, RoceConfig, RoceDevice, RoceEndpoint,
    SendError, UdpConfig, UdpLink,
};
use ringway_sim::conformance::Side;
use ringway_verbs::{Endpoint, Time};
use ringway_wire::{PathMtu, Psn, QueuePair};

/// An address in 127.0.0.0/8 that nobody else uses: up to 64 of them for each process.
pub(crate) fn address() -> IpAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let own = (process::id() << 6) + NEXT.fetch_add(1, Ordering::Relaxed);
    IpAddr::V4(Ipv4Addr::from_bits(127 << 24 | 1 << 22 | own & 0xff_ffff))
}

pub(crate) fn link(config: UdpConfig) -> UdpLink {
    UdpLink::new(config).unwrap_or_else(|error| panic!("{error}"))
}

/// Polls until `count` packets have come, but no longer than is generous.
pub(crate) fn drain(link: &mut dyn Link, count: usize, each: &mut dyn FnMut(&Received<'_>)) {
    let start = Instant::now();
    let mut received = 0;
    while received < count {
        received += link.poll(Time(0), each);
        assert!(start.elapsed() < Duration::from_secs(20), "{received} of {count} packets came");
    }
    assert_eq!(received, count);
}

/// A link that can be cut: from then on nothing goes out.
#[derive(Debug)]
pub(crate) struct Cuttable {
    link: Box<dyn Link>,
    cut: Arc<AtomicBool>,
    /// While it is cut it takes nothing, as one has no room whose interface is down, where another loses what it is given.
    is_full: bool,
}

impl Cuttable {
    pub(crate) fn new(link: Box<dyn Link>) -> (Self, Arc<AtomicBool>) {
        let cut = Arc::new(AtomicBool::new(false));
        (Self { link, cut: Arc::clone(&cut), is_full: false }, cut)
    }

    /// One that takes nothing while it is cut.
    pub(crate) fn full(link: Box<dyn Link>) -> (Self, Arc<AtomicBool>) {
        let (cuttable, cut) = Self::new(link);
        (Self { is_full: true, ..cuttable }, cut)
    }
}

impl Link for Cuttable {
    fn local_address(&self) -> IpAddr {
        self.link.local_address()
    }

    fn mtu(&self) -> PathMtu {
        self.link.mtu()
    }

    fn path(&mut self, peer: IpAddr, entropy: u32, traffic_class: u8) -> Result<Path, LinkError> {
        self.link.path(peer, entropy, traffic_class)
    }

    fn takes_any_identification(&self) -> bool {
        self.link.takes_any_identification()
    }

    fn connect(&mut self, path: &mut Path) {
        self.link.connect(path);
    }

    fn disconnect(&mut self, path: &Path) {
        self.link.disconnect(path);
    }

    fn send(
        &mut self,
        path: &Path,
        length: usize,
        write: &mut dyn FnMut(u16, &mut [u8]),
    ) -> Result<(), SendError> {
        if self.cut.load(Ordering::Relaxed) {
            return if self.is_full { Err(SendError::Full) } else { Ok(()) };
        }
        self.link.send(path, length, write)
    }

    fn flush(&mut self) -> bool {
        let takes_none = self.is_full && self.cut.load(Ordering::Relaxed);
        !takes_none && self.link.flush()
    }

    fn poll(&mut self, now: Time, receive: &mut dyn FnMut(&Received<'_>)) -> usize {
        self.link.poll(now, receive)
    }

    fn refusals(&mut self, report: &mut dyn FnMut(&Refusal<'_>)) {
        self.link.refusals(report);
    }

    fn deadline(&self) -> Option<Time> {
        self.link.deadline()
    }

    fn event_descriptor(&self) -> Option<i32> {
        self.link.event_descriptor()
    }

    fn counters(&self) -> Counters {
        self.link.counters()
    }
}

/// A stuck test ends after this long.
const PATIENCE: Duration = Duration::from_secs(60);

/// As a daemon has it, but for peers being given up soon.
pub(crate) fn config() -> RoceConfig {
    RoceConfig {
        connect_timeout_ns: 500_000_000,
        keep_alive_ns: 50_000_000,
        patience_ns: 1_500_000_000,
        ..RoceConfig::new("roce-test")
    }
}

/// Two devices on loopback.
pub(crate) struct Pair {
    devices: [Option<RoceDevice<Cuttable>>; 2],
    cuts: [Arc<AtomicBool>; 2],
    start: Instant,
}

impl Pair {
    /// Both with this configuration; `link` makes their links, of the one at this place.
    pub(crate) fn with(config: RoceConfig, link: impl Fn(usize, UdpLink) -> Box<dyn Link>) -> Self {
        Self::over(config, [0, 1].map(|side| link(side, self::link(UdpConfig::new(address())))))
    }

    /// Both with this configuration, over these links.
    pub(crate) fn over(config: RoceConfig, links: [Box<dyn Link>; 2]) -> Self {
        let [(left, left_cut), (right, right_cut)] = links.map(|link| {
            let (cuttable, cut) = Cuttable::new(link);
            (Some(RoceDevice::new(cuttable, config).unwrap()), cut)
        });
        Self { devices: [left, right], cuts: [left_cut, right_cut], start: Instant::now() }
    }

    pub(crate) fn device(&mut self, side: Side) -> &mut RoceDevice<Cuttable> {
        self.devices[side as usize].as_mut().unwrap()
    }

    pub(crate) fn now(&self) -> Time {
        Time(u64::try_from(self.start.elapsed().as_nanos()).unwrap())
    }

    pub(crate) fn pause(&mut self, idle: bool) -> bool {
        if idle {
            std::thread::yield_now();
        }
        self.start.elapsed() < PATIENCE
    }

    pub(crate) fn skip(&mut self, time: Duration) {
        self.start -= time;
    }

    /// What a process that is killed says no more.
    pub(crate) fn kill(&mut self, side: Side) {
        self.cuts[side as usize].store(true, Ordering::Relaxed);
        self.devices[side as usize] = None;
    }

    /// Nobody is at this address.
    pub(crate) fn unreachable_endpoint(address: IpAddr) -> Endpoint {
        let endpoint = RoceEndpoint {
            address,
            queue_pair: QueuePair::new(0x12_3456).unwrap(),
            psn: Psn::new(5),
            mtu: PathMtu::Mtu4096,
            rd_atomic: 16,
            kind: PeerKind::Ringway { selective: true, any_identification: false },
        };
        endpoint.encode()
    }
}

/// A harness of its own kind of links or configuration.
#[macro_export]
macro_rules! harness {
    ($name:ident, $config:expr, $link:expr) => {
        struct $name($crate::common::Pair);

        impl ringway_sim::conformance::Harness for $name {
            type Device = ringway_roce::RoceDevice<$crate::common::Cuttable>;

            fn new() -> Self {
                Self($crate::common::Pair::with($config, $link))
            }

            fn device(&mut self, side: ringway_sim::conformance::Side) -> &mut Self::Device {
                self.0.device(side)
            }

            fn now(&self) -> ringway_verbs::Time {
                self.0.now()
            }

            fn pause(&mut self, idle: bool) -> bool {
                self.0.pause(idle)
            }

            fn skip(&mut self, time: std::time::Duration) {
                self.0.skip(time);
            }

            fn kill(&mut self, side: ringway_sim::conformance::Side) {
                self.0.kill(side);
            }

            fn unreachable_endpoint(&mut self) -> ringway_verbs::Endpoint {
                $crate::common::Pair::unreachable_endpoint($crate::common::address())
            }
        }
    };
}
