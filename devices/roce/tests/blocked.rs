//! A link whose interface is down: who sleeps until there is something to do is not kept awake by it.
#![forbid(unsafe_code)]

mod common;

use std::sync::{Arc, atomic::Ordering};

use common::{Cuttable, address, link};
use ringway_mem::Mapping;
use ringway_roce::{Link, RoceDevice, RoceEndpoint, UdpConfig};
use ringway_sim::conformance::request;
use ringway_verbs::{
    Access, Device, LocalSlice, Operation, QueuePairConfig, RemoteKey, RemoteSlice, Role, Time,
};
use ringway_wire::PathMtu;

#[test]
fn a_link_that_is_down_is_tried_again_every_millisecond() {
    let (switched, down) = Cuttable::full(Box::new(link(UdpConfig::new(address()))));
    down.store(true, Ordering::Relaxed);
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
