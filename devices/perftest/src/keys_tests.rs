use core::net::Ipv6Addr;

use proptest::prelude::*;

use super::*;

/// Of `ib_write_bw` 6.06 (perftest 4.5) on rxe.
pub(crate) const RECORDED: &[u8; Keys::LENGTH] =
    b"0000:0001:000011:95ded8:00000229:0000562e7fe85000:00:00:00:00:00:00:00:00:00:00:ff:ff:0a:4d:00:01:00000000:\0";

pub(crate) fn recorded() -> Keys {
    let (psn, host) = (Psn::new(0x95_ded8), IpAddr::from([10, 77, 0, 1]));
    Keys { reads: 1, number: 0x11, psn, key: 0x229, address: 0x562e_7fe8_5000, host }
}

#[test]
fn a_recorded_line_is_read_and_written() {
    assert_eq!(Keys::parse(RECORDED), Ok(recorded()));
    assert_eq!(&recorded().to_bytes(), RECORDED);
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let wrong = |at: usize, text: &str| {
        let mut line = *RECORDED;
        line[at..at + text.len()].copy_from_slice(text.as_bytes());
        Keys::parse(&line).unwrap_err().to_string()
    };
    for (at, text, named) in [
        (0, "00g0", "local identifier"),
        (5, "-001", "outstanding reads"),
        (10, "+00011", "queue pair's number"),
        (10, "      ", "queue pair's number"),
        (10, ":00000", "queue pair's number"),
        (50, "100", "a byte of the gid"),
        (98, "\0", "shared receive queue"),
    ] {
        let message = wrong(at, text);
        assert!(message.contains(named), "{text:?} at {at}: {message}");
    }
    // More digits than a 24-bit number has, where the next field has fewer.
    assert!(wrong(10, "1000011:5ded8").contains("queue pair's number"));
    assert!(Keys::parse(&[0; Keys::LENGTH]).is_err());
}

proptest! {
    #[test]
    fn all_keys_come_back(reads: u8, number in 0..1_u32 << 24, psn: u32, key: u32, address: u64, host: u128, v4: u32) {
        for host in [IpAddr::V6(Ipv6Addr::from_bits(host)), IpAddr::V4(v4.into())] {
            let keys = Keys { reads, number, psn: Psn::new(psn), key, address, host: host.to_canonical() };
            prop_assert_eq!(Keys::parse(&keys.to_bytes()), Ok(keys));
        }
    }

    #[test]
    fn any_bytes_are_keys_or_an_error(line in prop::collection::vec(any::<u8>(), Keys::LENGTH)) {
        let _ = Keys::parse(line.as_slice().try_into().unwrap());
    }

    #[test]
    fn a_line_with_any_byte_changed_is_keys_or_an_error(at in 0..Keys::LENGTH, byte: u8) {
        let mut line = *RECORDED;
        line[at] = byte;
        let _ = Keys::parse(&line);
    }
}
