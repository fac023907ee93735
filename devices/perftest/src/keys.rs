//! The line in which perftest's programs say where a queue pair and its memory are.

use core::{fmt::Write as _, net::IpAddr, str};

use ringway_wire::Psn;
use thiserror::Error;

/// What one side says about one of its queue pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keys {
    /// READs and atomics it answers at once.
    pub reads: u8,
    /// The queue pair's number.
    pub number: u32,
    /// The PSN of its first request.
    pub psn: Psn,
    /// The key of its memory.
    pub key: u32,
    /// Where its memory begins.
    pub address: u64,
    /// Where its packets come from.
    pub host: IpAddr,
}

/// A line that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "the peer's description of its queue pair says {found:?} where {field} should be; perftest 5.70 and later \
     write `lid:out_reads:qpn:psn:rkey:vaddr:gid (16 bytes):srqn:`, with an address of RoCE version 2 as the gid (-x)"
)]
pub struct KeysError {
    field: &'static str,
    found: String,
}

impl Keys {
    /// Bytes of a line with a gid, which RoCE always has.
    pub const LENGTH: usize = 108;

    /// The line, with the zero byte at its end.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let gid = match self.host {
            IpAddr::V4(host) => host.to_ipv6_mapped(),
            IpAddr::V6(host) => host,
        };
        let mut line = String::with_capacity(Self::LENGTH);
        let Self { reads, number, key, address, .. } = *self;
        let psn = self.psn.value();
        // RoCE has no local identifiers.
        let _ = write!(line, "0000:{reads:04x}:{number:06x}:{psn:06x}:{key:08x}:{address:016x}:");
        for byte in gid.octets() {
            let _ = write!(line, "{byte:02x}:");
        }
        let _ = write!(line, "{:08x}:", 0);
        let mut bytes = [0; Self::LENGTH];
        for (to, from) in bytes.iter_mut().zip(line.bytes()) {
            *to = from;
        }
        bytes
    }

    /// Reads a line.
    ///
    /// # Errors
    /// When it is not one, or says something that no queue pair has.
    pub fn parse(line: &[u8; Self::LENGTH]) -> Result<Self, KeysError> {
        let end = line.iter().position(|byte| *byte == 0).unwrap_or(line.len());
        let mut fields = line.get(..end).unwrap_or_default().split(|byte| *byte == b':');
        let mut field = |field, most: u64| {
            let text = fields.next().unwrap_or_default();
            let wrong = || KeysError { field, found: String::from_utf8_lossy(text).into_owned() };
            // `from_str_radix` would take a sign.
            if !text.iter().all(u8::is_ascii_hexdigit) {
                return Err(wrong());
            }
            let value = str::from_utf8(text).ok().and_then(|text| u64::from_str_radix(text, 16).ok());
            value.filter(|value| *value <= most).ok_or_else(wrong)
        };
        field("the local identifier", 0xffff)?;
        let reads = field("the outstanding reads", u64::from(u16::MAX))?;
        let number = field("the queue pair's number", 0xff_ffff)?;
        let psn = field("the packet sequence number", 0xff_ffff)?;
        let key = field("the remote key", u64::from(u32::MAX))?;
        let address = field("the address of its memory", u64::MAX)?;
        let mut gid = [0; 16];
        for byte in &mut gid {
            *byte = field("a byte of the gid", 0xff)? as u8;
        }
        field("the number of the shared receive queue", u64::from(u32::MAX))?;
        Ok(Self {
            reads: u8::try_from(reads).unwrap_or(u8::MAX),
            number: number as u32,
            psn: Psn::new(psn as u32),
            key: key as u32,
            address,
            host: core::net::Ipv6Addr::from(gid).to_canonical(),
        })
    }
}

#[cfg(test)]
#[path = "keys_tests.rs"]
pub(crate) mod tests;
