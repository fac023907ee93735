//! The first message each way on the control socket: 64 bytes of fixed layout in every version.
//!
//! Client: magic, version, zeroes. Daemon: magic, version, verdict, features, zeroes; with verdict 0 one descriptor
//! comes along, the session's eventfd, which the client writes to wake a sleeping daemon.

/// Bytes of a greeting.
pub const LENGTH: usize = 64;

const MAGIC: [u8; 8] = *b"RINGWAY\0";

/// One side's first message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Greeting {
    /// The sender's [`crate::VERSION`].
    pub version: u32,
    /// From the daemon: whether it serves this client. From the client: 0.
    pub verdict: u32,
}

/// The daemon serves the client.
pub const ACCEPTED: u32 = 0;
/// The daemon speaks another version.
pub const WRONG_VERSION: u32 = 1;
/// The daemon has as many clients as it may.
pub const TOO_MANY_CLIENTS: u32 = 2;
/// The daemon does not serve this user.
pub const WRONG_USER: u32 = 3;
/// The daemon is shutting down.
pub const SHUTTING_DOWN: u32 = 4;

impl Greeting {
    /// The bytes of this greeting.
    #[must_use]
    pub fn encode(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        let fields = MAGIC.into_iter().chain(self.version.to_le_bytes()).chain(self.verdict.to_le_bytes());
        for (to, from) in bytes.iter_mut().zip(fields) {
            *to = from;
        }
        bytes
    }

    /// Reads a greeting; `None` when the sender is not Ringway. A greeting of another version is read as well.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk::<8>()?;
        let (version, rest) = rest.split_first_chunk::<4>()?;
        let (verdict, _) = rest.split_first_chunk::<4>()?;
        if bytes.len() != LENGTH || *magic != MAGIC {
            return None;
        }
        Some(Self { version: u32::from_le_bytes(*version), verdict: u32::from_le_bytes(*verdict) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_round_trip() {
        let greeting = Greeting { version: 7, verdict: WRONG_VERSION };
        assert_eq!(Greeting::parse(&greeting.encode()), Some(greeting));
        assert_eq!(Greeting::parse(b"GET / HTTP/1.1"), None);
        assert_eq!(Greeting::parse(&[0; LENGTH]), None);
    }
}
