//! What peers exchange before the first frame: endpoints (over the control channel) and prefaces (the first bytes of
//! a data connection).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ringway_verbs::{ConnectError, Endpoint};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::MAX_CONNECTIONS;

/// The first bytes of every data connection, by which a listener tells it from a control connection.
pub const DATA_MAGIC: [u8; 8] = *b"RNGWdata";
/// Bytes of a preface: magic, version, which connection, of how many, zeros up to byte 16, token, zeros.
pub const PREFACE_LENGTH: usize = 64;

/// The version of preface, endpoint and frames. In version 1 every queue pair had one connection, and before version 3 all messages
/// were acknowledged at once.
const VERSION: u8 = 3;
const TOKEN_LENGTH: usize = 32;
/// Endpoint: magic, version, address family, port, address, token.
const ENDPOINT_MAGIC: [u8; 4] = *b"RTCP";
const ENDPOINT_LENGTH: usize = 4 + 1 + 1 + 2 + 16 + TOKEN_LENGTH;

/// A one-time secret that names a queue pair to whoever is to connect to it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token([u8; TOKEN_LENGTH]);

impl core::fmt::Debug for Token {
    /// Tokens are secrets and stay out of logs.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// A fresh token from the kernel's random numbers.
    pub(crate) fn random() -> Result<Self, rustix::io::Errno> {
        let mut bytes = [0; TOKEN_LENGTH];
        let mut filled = 0;
        while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            filled += getrandom(rest, GetRandomFlags::empty())?;
        }
        Ok(Self(bytes))
    }
}

/// What is said first on a data connection: whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preface {
    /// Names the queue pair.
    pub token: Token,
    /// Which of its connections this is, from 0 on.
    pub connection: u8,
    /// How many it has: 1 to [`MAX_CONNECTIONS`].
    pub connections: u8,
}

impl Preface {
    /// The bytes to send.
    #[must_use]
    pub fn encode(&self) -> [u8; PREFACE_LENGTH] {
        let mut bytes = [0; PREFACE_LENGTH];
        bytes[..8].copy_from_slice(&DATA_MAGIC);
        bytes[8..11].copy_from_slice(&[VERSION, self.connection, self.connections]);
        bytes[16..16 + TOKEN_LENGTH].copy_from_slice(&self.token.0);
        bytes
    }

    /// Reads received bytes; `None` when they are no preface of this version.
    #[must_use]
    pub fn parse(bytes: &[u8; PREFACE_LENGTH]) -> Option<Self> {
        let mut token = [0; TOKEN_LENGTH];
        token.copy_from_slice(&bytes[16..16 + TOKEN_LENGTH]);
        let preface = Self { token: Token(token), connection: bytes[9], connections: bytes[10] };
        let is_one = preface.connection < preface.connections
            && usize::from(preface.connections) <= MAX_CONNECTIONS
            && *bytes == preface.encode();
        is_one.then_some(preface)
    }
}

/// Writes an endpoint.
pub(crate) fn encode(address: SocketAddr, token: &Token) -> Option<Endpoint> {
    let mut bytes = [0; ENDPOINT_LENGTH];
    bytes[..4].copy_from_slice(&ENDPOINT_MAGIC);
    bytes[4] = VERSION;
    match address.ip() {
        IpAddr::V4(ip) => {
            bytes[5] = 4;
            bytes[8..12].copy_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            bytes[5] = 6;
            bytes[8..24].copy_from_slice(&ip.octets());
        }
    }
    bytes[6..8].copy_from_slice(&address.port().to_le_bytes());
    bytes[24..].copy_from_slice(&token.0);
    Endpoint::new(&bytes)
}

/// Reads an endpoint.
pub(crate) fn decode(endpoint: &Endpoint) -> Result<(SocketAddr, Token), ConnectError> {
    if let Some([theirs, ..]) = endpoint.as_bytes().strip_prefix(&ENDPOINT_MAGIC)
        && *theirs != VERSION
    {
        return Err(ConnectError::OtherVersion { theirs: u32::from(*theirs), ours: u32::from(VERSION) });
    }
    parse(endpoint).ok_or(ConnectError::ForeignEndpoint)
}

/// `None` when it is not an endpoint of this device and version.
fn parse(endpoint: &Endpoint) -> Option<(SocketAddr, Token)> {
    let bytes: &[u8; ENDPOINT_LENGTH] = endpoint.as_bytes().try_into().ok()?;
    let mut octets = [0; 16];
    octets.copy_from_slice(&bytes[8..24]);
    let ip = match bytes[5] {
        4 => IpAddr::V4(Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3])),
        6 => IpAddr::V6(Ipv6Addr::from(octets)),
        _ => return None,
    };
    let mut token = [0; TOKEN_LENGTH];
    token.copy_from_slice(&bytes[24..]);
    let token = Token(token);
    let address = SocketAddr::new(ip, u16::from_le_bytes([bytes[6], bytes[7]]));
    (encode(address, &token)? == *endpoint).then_some((address, token))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_and_prefaces_come_back() {
        let token = Token::random().expect("random bytes");
        assert_ne!(token, Token::random().expect("random bytes"));
        for address in ["127.0.0.1:7411", "[2001:db8::1]:1"] {
            let address = address.parse().expect("an address");
            let endpoint = encode(address, &token).expect("fits");
            assert_eq!(decode(&endpoint), Ok((address, token)));
            let mut other = endpoint.as_bytes().to_vec();
            other[4] = 1;
            let other = decode(&Endpoint::new(&other).expect("fits"));
            assert_eq!(other, Err(ConnectError::OtherVersion { theirs: 1, ours: 3 }));
        }
        let preface = Preface { token, connection: 2, connections: 3 };
        let bytes = preface.encode();
        assert_eq!(Preface::parse(&bytes), Some(preface));
        for at in (0..9).chain(11..16).chain(48..PREFACE_LENGTH) {
            let mut changed = bytes;
            changed[at] ^= 1;
            assert_eq!(Preface::parse(&changed), None, "byte {at}");
        }
    }

    #[test]
    fn a_connection_is_one_of_as_many_as_there_may_be() {
        let token = Token([7; TOKEN_LENGTH]);
        let most = MAX_CONNECTIONS as u8;
        for (connection, connections) in [(0, 0), (1, 1), (3, 2), (0, most + 1), (most, most), (255, 255)] {
            let preface = Preface { token, connection, connections };
            assert_eq!(Preface::parse(&preface.encode()), None, "{preface:?}");
        }
    }
}
