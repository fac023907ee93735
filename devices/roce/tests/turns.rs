//! The order of what a poll does: whoever waits for a message hears of it before anything is said about it.
#![forbid(unsafe_code)]

mod common;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use common::{address, link};
use ringway_mem::Mapping;
use ringway_roce::{Link, RoceDevice, UdpConfig, UdpLink};
use ringway_verbs::{
    Access, Completion, Device, LocalSlice, Operation, QueuePairConfig, QueuePairState, ReceiveRequest, Role,
    Time, WorkRequest,
};

/// So many packets that their sender wants to hear of them at once.
const LENGTH: u64 = 3 * 4096;
const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn a_message_is_handed_over_before_it_is_acknowledged() {
    let start = Instant::now();
    let now = || Time(u64::try_from(start.elapsed().as_nanos()).unwrap());
    let open = |_| RoceDevice::new(link(UdpConfig::new(address())), common::config()).unwrap();
    let mut devices: [RoceDevice<UdpLink>; 2] = [0, 1].map(open);
    let depths = QueuePairConfig { send_depth: 4, receive_depth: 4 };
    let pairs = devices.each_mut().map(|device| device.create_queue_pair(depths).unwrap());
    let local = devices.each_mut().map(|device| {
        let mapping = Arc::new(Mapping::private(usize::try_from(LENGTH).unwrap()).unwrap());
        let key = device.register(mapping, Access::ALL).unwrap().local;
        LocalSlice { key, offset: 0, length: LENGTH }
    });
    let [one, other] = &mut devices;
    let endpoints = [one.endpoint(pairs[0]).unwrap(), other.endpoint(pairs[1]).unwrap()];
    one.connect(pairs[0], &endpoints[1], Role::Active).unwrap();
    other.connect(pairs[1], &endpoints[0], Role::Passive).unwrap();
    let ready = Some(QueuePairState::Ready);
    while one.state(pairs[0]) != ready || other.state(pairs[1]) != ready {
        one.poll(now(), &mut []);
        other.poll(now(), &mut []);
        assert!(start.elapsed() < TIMEOUT, "no connection");
    }

    other.post_receive(pairs[1], &ReceiveRequest { id: 0, local: local[1] }).unwrap();
    let operation = Operation::Send { immediate: None };
    let local = [local[0], LocalSlice::default()];
    one.post_send(pairs[0], &WorkRequest { id: 0, operation, local, signalled: true, fence: false }).unwrap();
    one.flush();
    let sent = |device: &RoceDevice<UdpLink>| device.link().counters().sent;
    let mut completions = [Completion::EMPTY; 4];
    loop {
        let before = sent(other);
        if other.poll(now(), &mut completions) > 0 {
            assert_eq!(sent(other), before);
            other.poll(now(), &mut completions);
            assert!(sent(other) > before, "the next poll sends");
            break;
        }
        one.poll(now(), &mut []);
        assert!(start.elapsed() < TIMEOUT, "no message");
    }
}
