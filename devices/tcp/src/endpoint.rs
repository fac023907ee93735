//! What peers exchange before the first frame: endpoints (over the control channel) and prefaces (the first bytes of
//! a data connection).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ringway_verbs::Endpoint;
use rustix::rand::{GetRandomFlags, getrandom};

/// The first bytes of every data connection, by which a listener tells it from a control connection.
pub const DATA_MAGIC: [u8; 8] = *b"RNGWdata";
/// Bytes of a preface: magic, version, token, zeros.
pub const PREFACE_LENGTH: usize = 64;

/// The version of preface, endpoint and frames.
const VERSION: u8 = 1;
const TOKEN_LENGTH: usize = 32;
/// Endpoint: magic, version, address family, port, address, token.
const ENDPOINT_MAGIC: [u8; 4] = *b"RTCP";
const ENDPOINT_LENGTH: usize = 4 + 1 + 1 + 2 + 16 + TOKEN_LENGTH;

/// A one-time secret that names a queue pair to whoever is to connect to it.
#[derive(Clone, Copy, PartialEq, Eq)]
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

/// The preface that presents a token.
#[must_use]
pub fn preface(token: &Token) -> [u8; PREFACE_LENGTH] {
    let mut bytes = [0; PREFACE_LENGTH];
    bytes[..8].copy_from_slice(&DATA_MAGIC);
    bytes[8] = VERSION;
    bytes[16..16 + TOKEN_LENGTH].copy_from_slice(&token.0);
    bytes
}

/// The token of a preface; `None` when the bytes are no preface of this version.
#[must_use]
pub fn parse_preface(bytes: &[u8; PREFACE_LENGTH]) -> Option<Token> {
    let mut token = [0; TOKEN_LENGTH];
    token.copy_from_slice(&bytes[16..16 + TOKEN_LENGTH]);
    let token = Token(token);
    (*bytes == preface(&token)).then_some(token)
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

/// Reads an endpoint; `None` when it is not one of this device.
pub(crate) fn decode(endpoint: &Endpoint) -> Option<(SocketAddr, Token)> {
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
            assert_eq!(decode(&endpoint), Some((address, token)));
        }
        let bytes = preface(&token);
        assert_eq!(parse_preface(&bytes), Some(token));
        for at in (0..16).chain(48..PREFACE_LENGTH) {
            let mut changed = bytes;
            changed[at] ^= 1;
            assert_eq!(parse_preface(&changed), None, "byte {at}");
        }
    }
}
