//! The device passes the suite over AF_XDP between network namespaces, with selective acknowledgement and without, and with
//! AF_XDP at one end and UDP at the other. It needs root and `ip`; without them each test says so and checks nothing.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may panic")]

mod common;
mod namespaces;

use std::{
    net::IpAddr,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use common::{Cuttable, Pair};
use namespaces::{INTERFACE, Node, network};
use ringway_roce::{
    Counters, Link, LinkError, Path, Received, Refusal, RoceConfig, RoceDevice, SendError, UdpConfig,
    UdpLink, XdpConfig, XdpLink,
};
use ringway_sim::conformance::{Harness, Side};
use ringway_verbs::{Endpoint, Time};
use ringway_wire::PathMtu;

/// Networks that no test uses now.
static NETWORKS: Mutex<Vec<[Node; 2]>> = Mutex::new(Vec::new());

fn networks() -> MutexGuard<'static, Vec<[Node; 2]>> {
    NETWORKS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn free_network() -> Option<[Node; 2]> {
    networks().pop()
}

/// A node that is there, or so its neighbours believe, with nobody on it.
const NOBODY: &str = "10.77.0.99";

fn new_network() -> Option<[Node; 2]> {
    let nodes = network(9000, 2)?;
    for node in &nodes {
        node.ip(&format!("neigh add {NOBODY} lladdr 02:00:00:00:00:99 dev {INTERFACE}"));
    }
    Some(nodes)
}

/// Two devices between two namespaces.
struct Xdp {
    /// `None` once the links are closed.
    pair: Option<Pair>,
    nodes: Option<[Node; 2]>,
}

impl Xdp {
    /// Whether there is a network to be had; it is kept for the next who wants one.
    fn is_possible() -> bool {
        let nodes = free_network().or_else(new_network);
        let is_possible = nodes.is_some();
        networks().extend(nodes);
        is_possible
    }

    fn with(config: RoceConfig) -> Self {
        Self::over(config, |nodes| nodes.each_ref().map(|node| Box::new(open(node)) as Box<dyn Link>))
    }

    /// The right one is over UDP.
    fn and_udp(config: RoceConfig) -> Self {
        Self::over(config, |[left, right]| [Box::new(open(left)), Box::new(Inside::new(right))])
    }

    fn over(config: RoceConfig, links: impl FnOnce(&[Node; 2]) -> [Box<dyn Link>; 2]) -> Self {
        let nodes = free_network().or_else(new_network).unwrap();
        let links = links(&nodes);
        Self { pair: Some(Pair::over(config, links)), nodes: Some(nodes) }
    }

    fn pair(&mut self) -> &mut Pair {
        self.pair.as_mut().unwrap()
    }
}

impl Drop for Xdp {
    fn drop(&mut self) {
        self.pair = None;
        networks().extend(self.nodes.take());
    }
}

/// Opens a link. What another thread has just forked holds a closed link's descriptors for a moment.
fn open(node: &Node) -> XdpLink {
    let start = Instant::now();
    loop {
        match node.inside(|| XdpLink::new(XdpConfig { frames: 512, ..XdpConfig::new(node.address(false)) })) {
            Ok(link) => return link,
            Err(_) if start.elapsed() < Duration::from_secs(5) => thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

/// A link over UDP sockets in a namespace, which looks for ways there.
#[derive(Debug)]
struct Inside {
    link: UdpLink,
    node: Node,
}

impl Inside {
    fn new(node: &Node) -> Self {
        let link = node.inside(|| UdpLink::new(UdpConfig::new(node.address(false))));
        Self { link: link.unwrap_or_else(|error| panic!("{error}")), node: node.again() }
    }
}

impl Link for Inside {
    fn local_address(&self) -> IpAddr {
        self.link.local_address()
    }

    fn mtu(&self) -> PathMtu {
        self.link.mtu()
    }

    fn path(&mut self, peer: IpAddr, entropy: u32, traffic_class: u8) -> Result<Path, LinkError> {
        let link = &mut self.link;
        self.node.inside(|| link.path(peer, entropy, traffic_class))
    }

    fn takes_any_identification(&self) -> bool {
        self.link.takes_any_identification()
    }

    fn connect(&mut self, path: &mut Path) {
        let link = &mut self.link;
        self.node.inside(|| link.connect(path));
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
        self.link.send(path, length, write)
    }

    fn flush(&mut self) -> bool {
        self.link.flush()
    }

    fn poll(&mut self, now: Time, receive: &mut dyn FnMut(&Received<'_>)) -> usize {
        self.link.poll(now, receive)
    }

    fn deadline(&self) -> Option<Time> {
        self.link.deadline()
    }

    fn refusals(&mut self, report: &mut dyn FnMut(&Refusal<'_>)) {
        self.link.refusals(report);
    }

    fn event_descriptor(&self) -> Option<i32> {
        self.link.event_descriptor()
    }

    fn counters(&self) -> Counters {
        self.link.counters()
    }
}

macro_rules! xdp_harness {
    ($name:ident, $with:ident, $config:expr) => {
        struct $name(Xdp);

        impl Harness for $name {
            type Device = RoceDevice<Cuttable>;

            fn new() -> Self {
                Self(Xdp::$with($config))
            }

            fn is_possible() -> bool {
                Xdp::is_possible()
            }

            fn device(&mut self, side: Side) -> &mut Self::Device {
                self.0.pair().device(side)
            }

            fn now(&self) -> Time {
                self.0.pair.as_ref().unwrap().now()
            }

            fn pause(&mut self, idle: bool) -> bool {
                self.0.pair().pause(idle)
            }

            fn skip(&mut self, time: Duration) {
                self.0.pair().skip(time);
            }

            fn kill(&mut self, side: Side) {
                self.0.pair().kill(side);
            }

            fn unreachable_endpoint(&mut self) -> Endpoint {
                Pair::unreachable_endpoint(NOBODY.parse().unwrap())
            }
        }
    };
}

xdp_harness!(Selective, with, common::config());
xdp_harness!(AndUdp, and_udp, common::config());
xdp_harness!(GoBackN, with, RoceConfig { selective: false, ..common::config() });

mod selective {
    ringway_sim::conformance_suite!(super::Selective);
}

mod and_udp {
    ringway_sim::conformance_suite!(super::AndUdp);
}

mod go_back_n {
    ringway_sim::conformance_suite!(super::GoBackN);
}
