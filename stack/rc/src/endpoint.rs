//! What one end must know of the other.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ringway_verbs::Endpoint;
use ringway_wire::{PathMtu, Psn, QueuePair};

const MAGIC: [u8; 4] = *b"RoCE";
const VERSION: u8 = 1;
/// Magic, version, family, MTU, flags, queue pair, PSN, READs, three zeros, address.
const LENGTH: usize = 36;
const RINGWAY: u8 = 1;
const SELECTIVE: u8 = 2;
const ANY_IDENTIFICATION: u8 = 4;

/// What is at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerKind {
    /// Any RoCE device: only what the specification has is said to it.
    Plain,
    /// Ringway: it is told when a queue pair is connected, asked for signs of life, and told when one has failed.
    Ringway {
        /// It offers selective acknowledgement.
        selective: bool,
        /// It takes packets whatever IPv4 identification they have, as it does not see it: their invariant CRC may be
        /// that of another.
        any_identification: bool,
    },
}

/// A queue pair as its peer must know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoceEndpoint {
    /// Where its packets come from and go to.
    pub address: IpAddr,
    /// Its number.
    pub queue_pair: QueuePair,
    /// The PSN of its first request.
    pub psn: Psn,
    /// The largest path MTU it can have. The smaller one of both ends is used.
    pub mtu: PathMtu,
    /// READs and atomics that it answers at once.
    pub rd_atomic: u8,
    /// What it is.
    pub kind: PeerKind,
}

impl RoceEndpoint {
    /// A queue pair of any RoCE device, connected to by other means (verbs' `ibv_modify_qp`, perftest). Remote keys and
    /// addresses are given with each request, as they are: [`RemoteSlice::offset`](ringway_verbs::RemoteSlice) is the
    /// virtual address in the packet. `None` when a number has more than 24 bits.
    #[must_use]
    pub fn plain(
        address: IpAddr,
        queue_pair: u32,
        first_psn: u32,
        mtu: PathMtu,
        rd_atomic: u8,
    ) -> Option<Self> {
        let psn = Psn::new(first_psn);
        let queue_pair = QueuePair::new(queue_pair).filter(|_| psn.value() == first_psn)?;
        Some(Self { address, queue_pair, psn, mtu, rd_atomic, kind: PeerKind::Plain })
    }

    /// Whether packets to it may have any IPv4 identification, whatever their invariant CRC was made with. Over IPv6 there
    /// is none.
    #[must_use]
    pub const fn takes_any_identification(&self) -> bool {
        self.address.is_ipv6() || matches!(self.kind, PeerKind::Ringway { any_identification: true, .. })
    }

    /// As [`Device::connect`](ringway_verbs::Device::connect) takes it.
    #[must_use]
    pub fn encode(&self) -> Endpoint {
        let mut bytes = [0; LENGTH];
        let flags = match self.kind {
            PeerKind::Plain => 0,
            PeerKind::Ringway { selective, any_identification } => {
                let flag = |is_set, flag| if is_set { flag } else { 0 };
                RINGWAY | flag(selective, SELECTIVE) | flag(any_identification, ANY_IDENTIFICATION)
            }
        };
        let family = if self.address.is_ipv4() { 4 } else { 6 };
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&[VERSION, family, self.mtu.code(), flags]);
        bytes[8..12].copy_from_slice(&self.queue_pair.number().to_le_bytes());
        bytes[12..16].copy_from_slice(&self.psn.value().to_le_bytes());
        bytes[16] = self.rd_atomic;
        match self.address {
            IpAddr::V4(v4) => bytes[20..24].copy_from_slice(&v4.octets()),
            IpAddr::V6(v6) => bytes[20..].copy_from_slice(&v6.octets()),
        }
        // It always fits.
        Endpoint::new(&bytes).unwrap_or(Endpoint::EMPTY)
    }

    /// The queue pair that an endpoint names; `None` when it is not one of a RoCE device.
    #[must_use]
    pub fn decode(endpoint: &Endpoint) -> Option<Self> {
        let bytes: &[u8; LENGTH] = endpoint.as_bytes().try_into().ok()?;
        let [family, mtu, flags] = [bytes[5], bytes[6], bytes[7]];
        let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let mut octets = [0; 16];
        octets.copy_from_slice(&bytes[20..]);
        let address = match family {
            4 => IpAddr::V4(Ipv4Addr::from(*octets.first_chunk::<4>()?)),
            _ => IpAddr::V6(Ipv6Addr::from(octets)),
        };
        let kind = match flags {
            0 => PeerKind::Plain,
            _ => PeerKind::Ringway {
                selective: flags & SELECTIVE != 0,
                any_identification: flags & ANY_IDENTIFICATION != 0,
            },
        };
        let decoded = Self {
            address,
            queue_pair: QueuePair::new(word(8)?)?,
            psn: Psn::new(word(12)?),
            mtu: PathMtu::from_code(mtu)?,
            rd_atomic: bytes[16],
            kind,
        };
        // Whatever was not looked at, or more than fits, shows here.
        (decoded.encode() == *endpoint).then_some(decoded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_come_back_and_nothing_else_passes_for_one() {
        let ringway = |selective, any_identification| PeerKind::Ringway { selective, any_identification };
        let kinds = [
            PeerKind::Plain,
            ringway(false, false),
            ringway(true, false),
            ringway(false, true),
            ringway(true, true),
        ];
        for address in ["10.1.2.3", "2001:db8::1"] {
            for kind in kinds {
                let endpoint = RoceEndpoint {
                    address: address.parse().expect("an address"),
                    queue_pair: QueuePair::new(0xab_cdef).expect("a number"),
                    psn: Psn::new(0xff_ffff),
                    mtu: PathMtu::Mtu2048,
                    rd_atomic: 16,
                    kind,
                };
                let encoded = endpoint.encode();
                assert_eq!(RoceEndpoint::decode(&encoded), Some(endpoint));
                for at in (0..8).chain([11, 15, 17]) {
                    let mut bytes = encoded.as_bytes().to_vec();
                    bytes[at] ^= 0x80;
                    let changed = Endpoint::new(&bytes).expect("fits");
                    assert_eq!(RoceEndpoint::decode(&changed), None, "byte {at}");
                }
            }
        }
    }

    #[test]
    fn only_who_says_so_or_has_none_takes_any_identification() {
        let takes = |address: &str, kind| {
            let address = address.parse().expect("an address");
            let plain = RoceEndpoint::plain(address, 17, 0, PathMtu::Mtu1024, 1).expect("an endpoint");
            RoceEndpoint { kind, ..plain }.takes_any_identification()
        };
        let ringway = |any_identification| PeerKind::Ringway { selective: true, any_identification };
        assert!(!takes("10.1.2.3", PeerKind::Plain));
        assert!(!takes("10.1.2.3", ringway(false)));
        assert!(takes("10.1.2.3", ringway(true)));
        assert!(takes("2001:db8::1", PeerKind::Plain));
    }

    #[test]
    fn plain_peers_have_numbers_of_24_bits() {
        let plain = |queue_pair, psn| {
            RoceEndpoint::plain(IpAddr::V4(Ipv4Addr::LOCALHOST), queue_pair, psn, PathMtu::Mtu1024, 1)
        };
        assert!(plain(17, 0xff_ffff).is_some());
        assert_eq!(plain(1 << 24, 0), None);
        assert_eq!(plain(17, 1 << 24), None);
    }
}
