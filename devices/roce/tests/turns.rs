//! What a poll does, and in which order: whoever waits for a message hears of it before anything is said about it, and what is
//! sent at once is what a socket takes at once.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "the parts of a test")]

mod common;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use common::{address, link};
use ringway_mem::Mapping;
use ringway_roce::{Link, RoceConfig, RoceDevice, UdpConfig, UdpLink};
use ringway_verbs::{
    Access, Completion, Device, LocalSlice, Operation, QueuePairConfig, QueuePairNumber, QueuePairState,
    ReceiveRequest, Role, Time, WorkRequest,
};
use ringway_wire::PathMtu;

const TIMEOUT: Duration = Duration::from_secs(60);

/// Two devices, and a queue pair of each that is connected with the other's.
struct Connected {
    devices: [RoceDevice<UdpLink>; 2],
    pairs: [QueuePairNumber; 2],
    local: [LocalSlice; 2],
    start: Instant,
}

impl Connected {
    /// With so many bytes of memory each.
    fn new(config: RoceConfig, length: u64) -> Self {
        let start = Instant::now();
        let open = |_| RoceDevice::new(link(UdpConfig::new(address())), config).unwrap();
        let mut devices: [RoceDevice<UdpLink>; 2] = [0, 1].map(open);
        let depths = QueuePairConfig { send_depth: 4, receive_depth: 4 };
        let pairs = devices.each_mut().map(|device| device.create_queue_pair(depths).unwrap());
        let local = devices.each_mut().map(|device| {
            let mapping = Arc::new(Mapping::private(usize::try_from(length).unwrap()).unwrap());
            let key = device.register(mapping, Access::ALL).unwrap().local;
            LocalSlice { key, offset: 0, length }
        });
        let [one, other] = &mut devices;
        let endpoints = [one.endpoint(pairs[0]).unwrap(), other.endpoint(pairs[1]).unwrap()];
        one.connect(pairs[0], &endpoints[1], Role::Active).unwrap();
        other.connect(pairs[1], &endpoints[0], Role::Passive).unwrap();
        let mut connected = Self { devices, pairs, local, start };
        let ready = Some(QueuePairState::Ready);
        while [0, 1].map(|side| connected.devices[side].state(pairs[side])) != [ready; 2] {
            connected.poll(0, &mut []);
            connected.poll(1, &mut []);
            assert!(start.elapsed() < TIMEOUT, "no connection");
        }
        connected
    }

    fn poll(&mut self, side: usize, completions: &mut [Completion]) -> usize {
        let now = Time(u64::try_from(self.start.elapsed().as_nanos()).unwrap());
        self.devices[side].poll(now, completions)
    }

    /// Packets that a side has sent.
    fn sent(&self, side: usize) -> u64 {
        self.devices[side].link().counters().sent
    }

    /// Has the first send all of its memory, as far as it does at once.
    fn send(&mut self) {
        let Self { devices: [one, other], pairs, local, .. } = self;
        other.post_receive(pairs[1], &ReceiveRequest { id: 0, local: local[1] }).unwrap();
        let operation = Operation::Send { immediate: None };
        let local = [local[0], LocalSlice::default()];
        let request = WorkRequest { id: 0, operation, local, signalled: true, fence: false };
        one.post_send(pairs[0], &request).unwrap();
        one.flush();
    }
}

#[test]
fn a_message_is_handed_over_before_it_is_acknowledged() {
    // So many packets that their sender wants to hear of them at once.
    let mut connected = Connected::new(common::config(), 3 * 4096);
    connected.send();
    let mut completions = [Completion::EMPTY; 4];
    loop {
        let before = connected.sent(1);
        if connected.poll(1, &mut completions) > 0 {
            assert_eq!(connected.sent(1), before);
            connected.poll(1, &mut completions);
            assert!(connected.sent(1) > before, "the next poll sends");
            break;
        }
        connected.poll(0, &mut []);
        assert!(connected.start.elapsed() < TIMEOUT, "no message");
    }
}

/// The packets that fill one message of a socket, which the kernel cuts: a further one would cost as much as all of them.
#[test]
fn a_turn_sends_what_a_socket_takes_at_once() {
    for (mtu_max, packets) in [(PathMtu::Mtu4096, 15), (PathMtu::Mtu1024, 62), (PathMtu::Mtu256, 64)] {
        // The other way of sending begins with a window of fewer.
        let config = RoceConfig { mtu_max, selective: false, ..common::config() };
        let mut connected = Connected::new(config, 128 << 10);
        let before = connected.sent(0);
        connected.send();
        assert_eq!(connected.sent(0) - before, packets, "{mtu_max:?}");
    }
}
