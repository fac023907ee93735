//! Links on loopback addresses that no other test uses.
#![expect(clippy::panic, reason = "helpers of tests may panic")]

use std::{
    net::{IpAddr, Ipv4Addr},
    process,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use ringway_roce::{Link, Received, UdpConfig, UdpLink};
use ringway_verbs::Time;

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
