//! What peers of `ringway perftest` say before anything moves.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ringway_perftest::Keys;
use ringway_wire::Psn;

use crate::Reader;

/// The line of a queue pair: what is understood, but for how it was written, is what is said again.
pub fn keys(bytes: &[u8]) {
    let line: [u8; Keys::LENGTH] = Reader(bytes).bytes();
    if let Ok(keys) = Keys::parse(&line) {
        assert_eq!(Keys::parse(&keys.to_bytes()), Ok(keys));
    }
}

/// Lines with either kind of address, more READs than we count, digits missing, a sign, an end too early, another protocol.
#[must_use]
pub fn keys_samples() -> Vec<Vec<u8>> {
    let keys = |host| Keys {
        reads: 16,
        number: 0x11,
        psn: Psn::new(0xff_fffe),
        key: 0x229,
        address: u64::MAX,
        host,
    };
    let v4 = keys(IpAddr::V4(Ipv4Addr::LOCALHOST)).to_bytes();
    let v6 = keys(IpAddr::V6(Ipv6Addr::LOCALHOST)).to_bytes();
    let changed = |at: usize, text: &[u8]| {
        let mut line = v4;
        line.iter_mut().skip(at).zip(text).for_each(|(to, from)| *to = *from);
        line.to_vec()
    };
    vec![
        v4.to_vec(),
        v6.to_vec(),
        changed(5, b"ffff"),
        changed(5, b":::"),
        changed(10, b"+00011"),
        changed(20, b"\0"),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        Vec::new(),
    ]
}
