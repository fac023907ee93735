//! What is below: IPv4 or IPv6 and UDP, and Ethernet for links that carry frames.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use thiserror::Error;

use crate::{Check, Icrc, bytes::take, header::put};

/// The UDP port that RoCEv2 packets go to.
pub const ROCE_PORT: u16 = 4791;
/// Bytes of an Ethernet header.
pub const ETHERNET_LENGTH: usize = 14;
/// Bytes of an IPv4 header, which has no options here.
pub const IPV4_LENGTH: usize = 20;
/// Bytes of an IPv6 header.
pub const IPV6_LENGTH: usize = 40;
/// Bytes of a UDP header.
pub const UDP_LENGTH: usize = 8;

const PROTOCOL_UDP: u8 = 17;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;

/// Both ends of a packet's way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Addresses {
    /// Over IPv4.
    V4 {
        /// Who sends.
        source: Ipv4Addr,
        /// Who receives.
        destination: Ipv4Addr,
    },
    /// Over IPv6.
    V6 {
        /// Who sends.
        source: Ipv6Addr,
        /// Who receives.
        destination: Ipv6Addr,
    },
}

impl Addresses {
    /// Both ends; `None` when they are not of one family.
    #[must_use]
    pub const fn new(source: IpAddr, destination: IpAddr) -> Option<Self> {
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Some(Self::V4 { source, destination }),
            (IpAddr::V6(source), IpAddr::V6(destination)) => Some(Self::V6 { source, destination }),
            _ => None,
        }
    }

    /// Who sends.
    #[must_use]
    pub const fn source(&self) -> IpAddr {
        match *self {
            Self::V4 { source, .. } => IpAddr::V4(source),
            Self::V6 { source, .. } => IpAddr::V6(source),
        }
    }

    /// Who receives.
    #[must_use]
    pub const fn destination(&self) -> IpAddr {
        match *self {
            Self::V4 { destination, .. } => IpAddr::V4(destination),
            Self::V6 { destination, .. } => IpAddr::V6(destination),
        }
    }

    /// The way back.
    #[must_use]
    pub const fn reversed(&self) -> Self {
        match *self {
            Self::V4 { source, destination } => Self::V4 { source: destination, destination: source },
            Self::V6 { source, destination } => Self::V6 { source: destination, destination: source },
        }
    }
}

/// Explicit congestion notification (RFC 3168, section 5): the lower two bits of the traffic class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Ecn {
    /// The transport does not react to marks.
    #[default]
    NotCapable = 0,
    /// It does, codepoint 1.
    Capable1 = 1,
    /// It does, codepoint 0: the usual one.
    Capable0 = 2,
    /// Congestion was met on the way.
    CongestionExperienced = 3,
}

impl Ecn {
    /// What a traffic class says.
    #[inline]
    #[must_use]
    pub const fn of(traffic_class: u8) -> Self {
        match traffic_class & 3 {
            0 => Self::NotCapable,
            1 => Self::Capable1,
            2 => Self::Capable0,
            _ => Self::CongestionExperienced,
        }
    }
}

/// A packet's addresses and ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Flow {
    /// The addresses.
    pub addresses: Addresses,
    /// Chosen per queue pair, so that the network spreads them over its paths.
    pub source_port: u16,
    /// [`ROCE_PORT`].
    pub destination_port: u16,
}

/// What a sender chooses for the network's headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// DSCP in the upper six bits, [`Ecn`] in the lower two.
    pub traffic_class: u8,
    /// How many routers it may pass.
    pub hop_limit: u8,
    /// IPv4's identification, which the invariant CRC covers.
    pub identification: u16,
    /// [`Flow::udp_checksum`], or zero for none. Over IPv6 sockets refuse packets that have none.
    pub udp_checksum: u16,
}

impl Default for Options {
    fn default() -> Self {
        Self { traffic_class: 0, hop_limit: 64, identification: 0, udp_checksum: 0 }
    }
}

impl Flow {
    /// To [`ROCE_PORT`].
    #[inline]
    #[must_use]
    pub const fn new(addresses: Addresses, source_port: u16) -> Self {
        Self { addresses, source_port, destination_port: ROCE_PORT }
    }

    /// Bytes of the IP and UDP headers.
    #[inline]
    #[must_use]
    pub const fn length(&self) -> usize {
        match self.addresses {
            Addresses::V4 { .. } => IPV4_LENGTH + UDP_LENGTH,
            Addresses::V6 { .. } => IPV6_LENGTH + UDP_LENGTH,
        }
    }

    /// The invariant CRC up to the base transport header of a packet whose transport part, CRC included, has
    /// `transport_length` bytes, and that may not be fragmented.
    #[inline]
    #[must_use]
    pub fn icrc(&self, identification: u16, transport_length: u16) -> Icrc {
        // What changes on the way counts as ones: traffic class, hop limit, flow label, checksums.
        let ones = Options { traffic_class: 0xff, hop_limit: 0xff, identification, udp_checksum: 0xffff };
        let mut icrc = Icrc::new();
        match self.addresses {
            Addresses::V4 { source, destination } => {
                icrc.update(&ipv4(source, destination, &ones, transport_length, 0xffff));
            }
            Addresses::V6 { source, destination } => {
                icrc.update(&ipv6(source, destination, &ones, 0xf_ffff, transport_length));
            }
        }
        icrc.update(&self.udp(&ones, transport_length));
        icrc
    }

    /// For a packet that came over a socket, which takes the headers off and tells no identification: the likeliest
    /// one is tried first.
    #[inline]
    #[must_use]
    pub fn check(&self, identification: u16, transport_length: u16) -> Check {
        let icrc = self.icrc(identification, transport_length);
        match self.addresses {
            Addresses::V4 { .. } => Check::AnyIdentification(icrc),
            Addresses::V6 { .. } => Check::Exact(icrc),
        }
    }

    /// Writes the IP and UDP headers of a packet whose transport part, CRC included, has `transport_length` bytes to
    /// the front of `out`. Returns their length; `None` when there is no room.
    #[must_use]
    pub fn emit(&self, options: &Options, transport_length: u16, out: &mut [u8]) -> Option<usize> {
        let udp = self.udp(options, transport_length);
        match self.addresses {
            Addresses::V4 { source, destination } => {
                let mut header = ipv4(source, destination, options, transport_length, 0);
                let sum = checksum(0, &[&header]);
                let [.., c0, c1, _, _, _, _, _, _, _, _] = &mut header;
                [*c0, *c1] = sum.to_be_bytes();
                put(out, &[&header, &udp])
            }
            Addresses::V6 { source, destination } => {
                put(out, &[&ipv6(source, destination, options, 0, transport_length), &udp])
            }
        }
    }

    /// The UDP checksum (RFC 768) of a packet whose transport part consists of these pieces; never zero, which would
    /// mean that there is none.
    #[must_use]
    pub fn udp_checksum(&self, transport: &[&[u8]]) -> u16 {
        match sum_with_pseudo_header(self, 0, transport) {
            0 => 0xffff,
            sum => sum,
        }
    }

    const fn udp(&self, options: &Options, transport_length: u16) -> [u8; UDP_LENGTH] {
        let [s0, s1] = self.source_port.to_be_bytes();
        let [d0, d1] = self.destination_port.to_be_bytes();
        let [l0, l1] = transport_length.saturating_add(UDP_LENGTH as u16).to_be_bytes();
        let [c0, c1] = options.udp_checksum.to_be_bytes();
        [s0, s1, d0, d1, l0, l1, c0, c1]
    }
}

fn ipv4(
    source: Ipv4Addr,
    destination: Ipv4Addr,
    options: &Options,
    transport_length: u16,
    checksum: u16,
) -> [u8; IPV4_LENGTH] {
    const HEADERS: u16 = (IPV4_LENGTH + UDP_LENGTH) as u16;
    let [l0, l1] = transport_length.saturating_add(HEADERS).to_be_bytes();
    let [i0, i1] = options.identification.to_be_bytes();
    let [c0, c1] = checksum.to_be_bytes();
    let [s0, s1, s2, s3] = source.octets();
    let [d0, d1, d2, d3] = destination.octets();
    let (class, hops) = (options.traffic_class, options.hop_limit);
    [0x45, class, l0, l1, i0, i1, 0x40, 0, hops, PROTOCOL_UDP, c0, c1, s0, s1, s2, s3, d0, d1, d2, d3]
}

fn ipv6(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    options: &Options,
    flow_label: u32,
    transport_length: u16,
) -> [u8; IPV6_LENGTH] {
    let first = 6 << 28 | u32::from(options.traffic_class) << 20 | flow_label;
    let length = transport_length.saturating_add(UDP_LENGTH as u16);
    let [v0, v1, v2, v3] = first.to_be_bytes();
    let [l0, l1] = length.to_be_bytes();
    let mut bytes = [0; IPV6_LENGTH];
    let start = [v0, v1, v2, v3, l0, l1, PROTOCOL_UDP, options.hop_limit];
    let octets = [source.octets(), destination.octets()];
    for (to, from) in bytes.iter_mut().zip(start.iter().chain(octets.as_flattened())) {
        *to = *from;
    }
    bytes
}

/// The Internet checksum (RFC 1071) of the pieces, one after the other; `carried` is added.
fn checksum(carried: u64, pieces: &[&[u8]]) -> u16 {
    let mut sum = carried;
    let mut odd = false;
    for piece in pieces {
        // A piece that begins in the middle of a word ends that first.
        let (first, rest) = piece.split_at(usize::from(odd).min(piece.len()));
        let (words, last) = rest.as_chunks::<2>();
        sum += first.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        sum += words.iter().map(|word| u64::from(u16::from_be_bytes(*word))).sum::<u64>();
        sum += last.iter().map(|byte| u64::from(*byte) << 8).sum::<u64>();
        odd ^= !piece.len().is_multiple_of(2);
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or_default()
}

/// The checksum over IP's pseudo header, the UDP header with `received` as its checksum, and the pieces.
fn sum_with_pseudo_header(flow: &Flow, received: u16, transport: &[&[u8]]) -> u16 {
    let length: usize = transport.iter().map(|piece| piece.len()).sum::<usize>() + UDP_LENGTH;
    let ports = u64::from(flow.source_port) + u64::from(flow.destination_port);
    // The length stands in both headers.
    let carried = ports + u64::from(PROTOCOL_UDP) + 2 * length as u64 + u64::from(received);
    let addresses = match flow.addresses {
        Addresses::V4 { source, destination } => {
            u64::from(!checksum(0, &[&source.octets(), &destination.octets()]))
        }
        Addresses::V6 { source, destination } => {
            u64::from(!checksum(0, &[&source.octets(), &destination.octets()]))
        }
    };
    checksum(carried + addresses, transport)
}

/// Why bytes are not a UDP packet that could carry RoCE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum NetworkError {
    /// It ends within its headers, or before the length they give.
    #[error("the packet ends after {length} bytes, within its headers or before the length they give")]
    TooShort {
        /// How many bytes there are.
        length: usize,
    },
    /// Neither IPv4 nor IPv6.
    #[error("IP version {0} is neither 4 nor 6")]
    Version(u8),
    /// IPv4 options, which RoCE packets do not have.
    #[error("the IPv4 header has {0} bytes, which means options; it should have {IPV4_LENGTH}")]
    Ipv4Options(usize),
    /// A fragment, which RoCE packets are never cut into.
    #[error("the packet is a fragment")]
    Fragment,
    /// Not UDP.
    #[error("protocol {0} is not UDP")]
    Protocol(u8),
    /// The IPv4 header's checksum is wrong.
    #[error("the IPv4 header's checksum is wrong")]
    Checksum,
    /// The lengths in the IP and UDP headers contradict each other.
    #[error("the UDP header gives {udp} bytes where the IP header leaves {ip}")]
    Length {
        /// What the UDP header says.
        udp: usize,
        /// What follows the IP header.
        ip: usize,
    },
}

/// An IP packet with UDP in it: a view over received bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Addresses and ports.
    pub flow: Flow,
    /// Traffic class, hop limit, identification and checksum, as they came.
    pub options: Options,
    /// What UDP carries.
    pub transport: &'a [u8],
    icrc: Icrc,
}

impl<'a> Datagram<'a> {
    /// The IP packet at the front of these bytes, which may be longer (Ethernet pads its frames). The UDP checksum is
    /// not looked at: the invariant CRC says more, and between virtual interfaces it may not have been filled in.
    ///
    /// # Errors
    /// When this is no UDP packet that could carry RoCE.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, NetworkError> {
        let first = bytes.first().ok_or(NetworkError::TooShort { length: 0 })?;
        match first >> 4 {
            4 => Self::parse_ipv4(bytes),
            6 => Self::parse_ipv6(bytes),
            version => Err(NetworkError::Version(version)),
        }
    }

    fn parse_ipv4(bytes: &'a [u8]) -> Result<Self, NetworkError> {
        let too_short = NetworkError::TooShort { length: bytes.len() };
        let (header, _) = take::<IPV4_LENGTH>(bytes).map_err(|_| too_short)?;
        let [first, class, l0, l1, i0, i1, f0, f1, hops, protocol, _, _, addresses @ ..] = *header;
        let header_length = usize::from(first & 0xf) * 4;
        if header_length != IPV4_LENGTH {
            return Err(NetworkError::Ipv4Options(header_length));
        }
        if checksum(0, &[header]) != 0 {
            return Err(NetworkError::Checksum);
        }
        if protocol != PROTOCOL_UDP {
            return Err(NetworkError::Protocol(protocol));
        }
        // More fragments, or an offset.
        if f0 & 0x3f != 0 || f1 != 0 {
            return Err(NetworkError::Fragment);
        }
        let total = usize::from(u16::from_be_bytes([l0, l1]));
        let inside = bytes.get(IPV4_LENGTH..total).ok_or(too_short)?;
        let [s0, s1, s2, s3, d0, d1, d2, d3] = addresses;
        let addresses = Addresses::V4 {
            source: Ipv4Addr::new(s0, s1, s2, s3),
            destination: Ipv4Addr::new(d0, d1, d2, d3),
        };
        let identification = u16::from_be_bytes([i0, i1]);
        let mut masked = *header;
        let [_, masked_class, _, _, _, _, _, _, masked_hops, _, c0, c1, ..] = &mut masked;
        [*masked_class, *masked_hops, *c0, *c1] = [0xff; 4];
        let options = Options { traffic_class: class, hop_limit: hops, identification, udp_checksum: 0 };
        Self::parse_udp(addresses, options, &masked, inside, too_short)
    }

    fn parse_ipv6(bytes: &'a [u8]) -> Result<Self, NetworkError> {
        let too_short = NetworkError::TooShort { length: bytes.len() };
        let (header, behind) = take::<IPV6_LENGTH>(bytes).map_err(|_| too_short)?;
        let [first, second, _, _, l0, l1, protocol, hops, addresses @ ..] = *header;
        if protocol != PROTOCOL_UDP {
            return Err(NetworkError::Protocol(protocol));
        }
        let inside = behind.get(..usize::from(u16::from_be_bytes([l0, l1]))).ok_or(too_short)?;
        let mut octets = addresses.chunks_exact(16).filter_map(|half| <[u8; 16]>::try_from(half).ok());
        let (Some(source), Some(destination)) = (octets.next(), octets.next()) else { return Err(too_short) };
        let addresses =
            Addresses::V6 { source: Ipv6Addr::from(source), destination: Ipv6Addr::from(destination) };
        let mut masked = *header;
        let [v0, v1, v2, v3, _, _, _, masked_hops, ..] = &mut masked;
        [*v0, *v1, *v2, *v3, *masked_hops] = [0x6f, 0xff, 0xff, 0xff, 0xff];
        let options = Options {
            traffic_class: first << 4 | second >> 4,
            hop_limit: hops,
            identification: 0,
            udp_checksum: 0,
        };
        Self::parse_udp(addresses, options, &masked, inside, too_short)
    }

    fn parse_udp(
        addresses: Addresses,
        options: Options,
        masked_ip: &[u8],
        inside: &'a [u8],
        too_short: NetworkError,
    ) -> Result<Self, NetworkError> {
        let (udp, transport) = take::<UDP_LENGTH>(inside).map_err(|_| too_short)?;
        let [s0, s1, d0, d1, l0, l1, c0, c1] = *udp;
        let length = usize::from(u16::from_be_bytes([l0, l1]));
        if length != inside.len() {
            return Err(NetworkError::Length { udp: length, ip: inside.len() });
        }
        let flow = Flow {
            addresses,
            source_port: u16::from_be_bytes([s0, s1]),
            destination_port: u16::from_be_bytes([d0, d1]),
        };
        let mut icrc = Icrc::new();
        icrc.update(masked_ip);
        icrc.update(&[s0, s1, d0, d1, l0, l1, 0xff, 0xff]);
        let options = Options { udp_checksum: u16::from_be_bytes([c0, c1]), ..options };
        Ok(Self { flow, options, transport, icrc })
    }

    /// For the packet inside.
    #[inline]
    #[must_use]
    pub const fn check(&self) -> Check {
        Check::Exact(self.icrc)
    }

    /// Whether the UDP checksum is right, or there is none.
    #[must_use]
    pub fn udp_checksum_is_right(&self) -> bool {
        let received = self.options.udp_checksum;
        received == 0 || sum_with_pseudo_header(&self.flow, received, &[self.transport]) == 0
    }
}

/// An Ethernet header without tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ethernet {
    /// Who receives.
    pub destination: [u8; 6],
    /// Who sends.
    pub source: [u8; 6],
    /// What is inside.
    pub ethertype: u16,
}

impl Ethernet {
    /// A frame with an IP packet of this family.
    #[must_use]
    pub const fn carrying(addresses: &Addresses, source: [u8; 6], destination: [u8; 6]) -> Self {
        let ethertype = match addresses {
            Addresses::V4 { .. } => ETHERTYPE_IPV4,
            Addresses::V6 { .. } => ETHERTYPE_IPV6,
        };
        Self { destination, source, ethertype }
    }

    /// Whether an IP packet is inside.
    #[must_use]
    pub const fn carries_ip(&self) -> bool {
        matches!(self.ethertype, ETHERTYPE_IPV4 | ETHERTYPE_IPV6)
    }

    /// The bytes.
    #[inline]
    #[must_use]
    pub const fn to_bytes(self) -> [u8; ETHERNET_LENGTH] {
        let [d0, d1, d2, d3, d4, d5] = self.destination;
        let [s0, s1, s2, s3, s4, s5] = self.source;
        let [e0, e1] = self.ethertype.to_be_bytes();
        [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, e0, e1]
    }

    /// The header at the front of a frame and what follows it; `None` when the frame is too short.
    #[inline]
    #[must_use]
    pub fn parse(frame: &[u8]) -> Option<(Self, &[u8])> {
        let (header, inside) = take::<ETHERNET_LENGTH>(frame).ok()?;
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, e0, e1] = *header;
        let header = Self {
            destination: [d0, d1, d2, d3, d4, d5],
            source: [s0, s1, s2, s3, s4, s5],
            ethertype: u16::from_be_bytes([e0, e1]),
        };
        Some((header, inside))
    }
}
