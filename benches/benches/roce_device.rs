//! What the whole RoCE device takes for a short message, without a network: both ends on one thread, over a link of memory.

#![allow(missing_docs, reason = "criterion's macros make undocumented items")]
#![allow(clippy::expect_used, reason = "a benchmark that cannot be set up must stop")]

mod common;

use std::{
    collections::VecDeque,
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, Mutex, PoisonError},
};

use criterion::{Criterion, criterion_group, criterion_main};
use ringway_roce::{Counters, Link, LinkError, Path, Received, Refusal, RoceConfig, RoceDevice, SendError};
use ringway_verbs::Time;
use ringway_wire::{Addresses, Ecn, Flow, PathMtu};

const ADDRESSES: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2))];

/// Packets on their way to each end, and memory for further ones.
#[derive(Debug, Default)]
struct Wire {
    to: [VecDeque<Vec<u8>>; 2],
    spare: Vec<Vec<u8>>,
}

/// One end of a wire.
#[derive(Debug)]
struct Memory {
    wire: Arc<Mutex<Wire>>,
    end: usize,
}

impl Memory {
    fn with<R>(&self, act: impl FnOnce(&mut Wire) -> R) -> R {
        act(&mut self.wire.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What comes to an end.
    fn flow(end: usize) -> Option<Flow> {
        let [one, other] = ADDRESSES;
        let (source, destination) = if end == 0 { (other, one) } else { (one, other) };
        Some(Flow::new(Addresses::new(source, destination)?, 0xc000))
    }
}

impl Link for Memory {
    fn local_address(&self) -> IpAddr {
        let [one, other] = ADDRESSES;
        if self.end == 0 { one } else { other }
    }

    fn mtu(&self) -> PathMtu {
        PathMtu::Mtu4096
    }

    fn path(&mut self, peer: IpAddr, _: u32, traffic_class: u8) -> Result<Path, LinkError> {
        let local = self.local_address();
        let flow = Self::flow(1 - self.end).ok_or(LinkError::Family { peer, local })?;
        Ok(Path { flow, mtu: PathMtu::Mtu4096, traffic_class, via: 0 })
    }

    fn takes_any_identification(&self) -> bool {
        false
    }

    fn connect(&mut self, _: &mut Path) {}

    fn disconnect(&mut self, _: &Path) {}

    fn send(
        &mut self,
        _: &Path,
        length: usize,
        write: &mut dyn FnMut(u16, &mut [u8]),
    ) -> Result<(), SendError> {
        let peer = 1 - self.end;
        self.with(|wire| {
            let mut packet = wire.spare.pop().unwrap_or_default();
            packet.resize(length, 0);
            write(0, &mut packet);
            if let Some(queue) = wire.to.get_mut(peer) {
                queue.push_back(packet);
            }
        });
        Ok(())
    }

    fn flush(&mut self) -> bool {
        true
    }

    fn poll(&mut self, _: Time, receive: &mut dyn FnMut(&Received<'_>)) -> usize {
        let (end, mut count) = (self.end, 0);
        let Some(flow) = Self::flow(end) else { return 0 };
        while let Some(packet) = self.with(|wire| wire.to.get_mut(end)?.pop_front()) {
            let check = flow.check(0, packet.len() as u16);
            receive(&Received { flow, ecn: Ecn::NotCapable, identification: 0, check, transport: &packet });
            self.with(|wire| wire.spare.push(packet));
            count += 1;
        }
        count
    }

    fn refusals(&mut self, _: &mut dyn FnMut(&Refusal<'_>)) {}

    fn deadline(&self) -> Option<Time> {
        None
    }

    fn event_descriptor(&self) -> Option<i32> {
        None
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

fn messages(c: &mut Criterion) {
    let wire = Arc::new(Mutex::new(Wire::default()));
    let device = |end| {
        let link = Memory { wire: Arc::clone(&wire), end };
        RoceDevice::new(link, RoceConfig::new("roce")).expect("a device")
    };
    common::messages(c, "roce_device", [device(0), device(1)]);
}

criterion_group!(benches, messages);
criterion_main!(benches);
