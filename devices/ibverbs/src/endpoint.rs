//! What one end of a connection must know of the other: on RoCE the same as every RoCE device of ours says, on InfiniBand a
//! form of its own.

use core::net::{IpAddr, Ipv6Addr};

use ringway_rc::{PeerKind, RoceEndpoint};
use ringway_verbs::Endpoint;
use ringway_wire::{PathMtu, Psn, QueuePair};

use crate::{Gid, LinkLayer};

const MAGIC: [u8; 4] = *b"IBRC";
const VERSION: u8 = 1;
/// Magic, version, MTU, READs, a zero, queue pair, PSN, LID, two zeros, GID.
const LENGTH: usize = 36;

/// Where the other end is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// On Ethernet.
    Gid(Ipv6Addr),
    /// In this InfiniBand subnet, whose prefix its GID has.
    Lid { lid: u16, gid: Ipv6Addr },
}

/// One end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) place: Place,
    pub(crate) queue_pair: QueuePair,
    /// Of its first request.
    pub(crate) psn: Psn,
    pub(crate) mtu: PathMtu,
    /// READs and atomics that it answers at once.
    pub(crate) rd_atomic: u8,
}

impl End {
    /// As [`Device::connect`](ringway_verbs::Device::connect) takes it.
    pub(crate) fn encode(&self) -> Endpoint {
        let Self { place, queue_pair, psn, mtu, rd_atomic } = *self;
        let (lid, gid) = match place {
            Place::Gid(gid) => {
                let address = gid.to_ipv4_mapped().map_or(IpAddr::V6(gid), IpAddr::V4);
                return RoceEndpoint { address, queue_pair, psn, mtu, rd_atomic, kind: PeerKind::Plain }
                    .encode();
            }
            Place::Lid { lid, gid } => (lid, gid),
        };
        let mut bytes = [0; LENGTH];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&[VERSION, mtu.code(), rd_atomic, 0]);
        bytes[8..12].copy_from_slice(&queue_pair.number().to_le_bytes());
        bytes[12..16].copy_from_slice(&psn.value().to_le_bytes());
        bytes[16..18].copy_from_slice(&lid.to_le_bytes());
        bytes[20..].copy_from_slice(&gid.octets());
        // It always fits.
        Endpoint::new(&bytes).unwrap_or(Endpoint::EMPTY)
    }

    /// The end that an endpoint names; `None` when it is not on such a link.
    pub(crate) fn decode(endpoint: &Endpoint, link: LinkLayer) -> Option<Self> {
        let decoded = match link {
            LinkLayer::Ethernet => {
                let RoceEndpoint { address, queue_pair, psn, mtu, rd_atomic, .. } =
                    RoceEndpoint::decode(endpoint)?;
                let gid = match address {
                    IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                    IpAddr::V6(v6) => v6,
                };
                return Some(Self { place: Place::Gid(gid), queue_pair, psn, mtu, rd_atomic });
            }
            LinkLayer::InfiniBand => {
                let bytes: &[u8; LENGTH] = endpoint.as_bytes().try_into().ok()?;
                let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
                let gid = Ipv6Addr::from(*bytes.get(20..)?.first_chunk::<16>()?);
                let lid = u16::from_le_bytes([bytes[16], bytes[17]]);
                Self {
                    place: Place::Lid { lid, gid },
                    queue_pair: QueuePair::new(word(8)?)?,
                    psn: Psn::new(word(12)?),
                    mtu: PathMtu::from_code(bytes[5])?,
                    rd_atomic: bytes[6],
                }
            }
        };
        // Whatever was not looked at shows here.
        (decoded.encode() == *endpoint).then_some(decoded)
    }
}

/// The place that a port and its address are.
pub(crate) const fn place(link: LinkLayer, lid: u16, gid: &Gid) -> Place {
    match link {
        LinkLayer::Ethernet => Place::Gid(gid.raw),
        LinkLayer::InfiniBand => Place::Lid { lid, gid: gid.raw },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(place: Place) -> End {
        End {
            place,
            queue_pair: QueuePair::new(0xab_cdef).expect("24 bits"),
            psn: Psn::new(0xff_fffe),
            mtu: PathMtu::Mtu4096,
            rd_atomic: 16,
        }
    }

    #[test]
    fn ends_come_back_on_their_own_kind_of_link() {
        let (v4, v6) = ("::ffff:10.0.0.1", "2001:db8::7");
        for gid in [v4, v6].map(|gid| gid.parse().expect("an address")) {
            let roce = end(Place::Gid(gid));
            assert_eq!(End::decode(&roce.encode(), LinkLayer::Ethernet), Some(roce));
            assert_eq!(End::decode(&roce.encode(), LinkLayer::InfiniBand), None);
            let ib = end(Place::Lid { lid: 0xbeef, gid });
            assert_eq!(End::decode(&ib.encode(), LinkLayer::InfiniBand), Some(ib));
            assert_eq!(End::decode(&ib.encode(), LinkLayer::Ethernet), None);
        }
    }

    /// Our own RoCE devices are told the same as any RoCE device would tell.
    #[test]
    fn on_ethernet_it_is_a_plain_roce_end() {
        let encoded = end(Place::Gid("::ffff:10.0.0.1".parse().expect("an address"))).encode();
        let plain =
            RoceEndpoint::plain(IpAddr::V4([10, 0, 0, 1].into()), 0xab_cdef, 0xff_fffe, PathMtu::Mtu4096, 16);
        assert_eq!(RoceEndpoint::decode(&encoded), plain);
    }

    #[test]
    fn changed_bytes_of_infiniband_are_refused() {
        let good = end(Place::Lid { lid: 7, gid: Ipv6Addr::LOCALHOST }).encode();
        for at in (0..6).chain([7, 11, 15, 18, 19]) {
            let mut bytes = good.as_bytes().to_vec();
            bytes[at] ^= 0x80;
            assert_eq!(
                End::decode(&Endpoint::new(&bytes).expect("fits"), LinkLayer::InfiniBand),
                None,
                "byte {at}"
            );
        }
    }
}
