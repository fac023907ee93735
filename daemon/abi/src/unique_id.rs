//! The name under which the ranks of a communicator find each other.

use core::{fmt, net::SocketAddr, str::FromStr};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Names a communicator to be formed: where its root daemon is, and a secret that only its ranks know.
///
/// As text `32 hex digits`, followed by `@address:port` unless all ranks are on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct UniqueId {
    /// Where the root daemon listens for other daemons; `None` when all ranks are on one node.
    pub root: Option<SocketAddr>,
    /// Random, or derived from what a launcher gives to every rank.
    pub secret: [u8; 16],
}

/// Why a text is not a [`UniqueId`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("not a communicator id: expected 32 hex digits, then `@address:port` when there are several nodes")]
pub struct ParseUniqueIdError;

impl fmt::Display for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.secret {
            write!(f, "{byte:02x}")?;
        }
        self.root.map_or(Ok(()), |root| write!(f, "@{root}"))
    }
}

impl FromStr for UniqueId {
    type Err = ParseUniqueIdError;

    fn from_str(text: &str) -> Result<Self, ParseUniqueIdError> {
        let (hex, root) = match text.split_once('@') {
            Some((hex, root)) => (hex, Some(root.parse().map_err(|_| ParseUniqueIdError)?)),
            None => (text, None),
        };
        if hex.len() != 32 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(ParseUniqueIdError);
        }
        let secret = u128::from_str_radix(hex, 16).map_err(|_| ParseUniqueIdError)?.to_be_bytes();
        Ok(Self { root, secret })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn text_round_trips() {
        for root in [None, Some("10.1.2.3:7411".parse().expect("v4")), Some("[::1]:9".parse().expect("v6"))] {
            let id = UniqueId { root, secret: *b"0123456789abcdef" };
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        for bad in ["", "00", "zz", "00112233445566778899aabbccddeeff@", "00112233445566778899aabbccddeefg"] {
            assert_eq!(bad.parse::<UniqueId>(), Err(ParseUniqueIdError), "{bad}");
        }
    }
}
