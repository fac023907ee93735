//! A link whose interface is down: who sleeps until there is something to do is not kept awake by it.
#![forbid(unsafe_code)]

mod common;

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use common::{address, link};
use ringway_mem::Mapping;
use ringway_roce::{
    Counters, Link, LinkError, Path, Received, Refusal, RoceDevice, RoceEndpoint, SendError, UdpConfig,
    UdpLink,
};
use ringway_sim::conformance::request;
use ringway_verbs::{
    Access, Device, LocalSlice, Operation, QueuePairConfig, RemoteKey, RemoteSlice, Role, Time,
};
use ringway_wire::PathMtu;

/// A link that can be down: the network takes nothing, and the link only what it has room for.
#[derive(Debug)]
struct Switched {
    link: UdpLink,
    down: Arc<AtomicBool>,
}

impl Link for Switched {
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
        if self.down.load(Ordering::Relaxed) {
            return Err(SendError::Full);
        }
        self.link.send(path, length, write)
    }

    fn flush(&mut self) -> bool {
        !self.down.load(Ordering::Relaxed) && self.link.flush()
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

#[test]
fn a_link_that_is_down_is_tried_again_every_millisecond() {
    let down = Arc::new(AtomicBool::new(true));
    let switched = Switched { link: link(UdpConfig::new(address())), down: Arc::clone(&down) };
    let mut device = RoceDevice::new(switched, common::config()).unwrap();
    let number = device.create_queue_pair(QueuePairConfig { send_depth: 4, receive_depth: 4 }).unwrap();
    let nobody = RoceEndpoint::plain(address(), 5, 0, PathMtu::Mtu1024, 4).unwrap();
    device.connect(number, &nobody.encode(), Role::Active).unwrap();
    let mapping = Arc::new(Mapping::private(1 << 16).unwrap());
    let key = device.register(mapping, Access::ALL).unwrap().local;
    let remote = RemoteSlice { key: RemoteKey(1), offset: 0 };
    let write = request(1, Operation::Write { remote }, &[LocalSlice { key, offset: 0, length: 1 << 16 }]);
    device.post_send(number, &write).unwrap();

    const START: u64 = 1_000;
    const MILLISECOND: u64 = 1_000_000;
    device.poll(Time(START), &mut []);
    assert!(!device.arm(), "it may have room in a moment");
    for tries in 1..10 {
        let now = START + tries * MILLISECOND;
        device.poll(Time(now), &mut []);
        device.arm();
        assert!(device.arm(), "nothing can be done until the next try");
        assert_eq!(device.deadline(), Some(Time(now + MILLISECOND)));
    }
    down.store(false, Ordering::Relaxed);
    device.poll(Time(START + 10 * MILLISECOND), &mut []);
    assert!(device.link().counters().sent > 0);
}
