//! The capture format that Wireshark, tshark and tcpdump read: pcap with nanoseconds
//! (draft-ietf-opsawg-pcap).

use std::{
    io::{self, Write},
    time::Duration,
};

/// Written first; its byte order is that of the file, its value says that times are in nanoseconds.
const MAGIC: u32 = 0xa1b2_3c4d;
/// The most bytes of a packet: any IPv4 packet fits.
const SNAPSHOT_BYTES: usize = 65_535;
/// Packets begin with an IPv4 or IPv6 header.
const LINKTYPE_RAW: u32 = 101;

/// Writes a capture of IPv4 and IPv6 packets.
#[derive(Debug)]
pub struct PcapWriter<W: Write> {
    out: W,
}

impl<W: Write> PcapWriter<W> {
    /// Begins a capture.
    ///
    /// # Errors
    /// When the header cannot be written.
    pub fn new(mut out: W) -> io::Result<Self> {
        let mut header = [0; 24];
        let fields: [u32; 6] = [MAGIC, 4 << 16 | 2, 0, 0, SNAPSHOT_BYTES as u32, LINKTYPE_RAW];
        for (to, field) in header.chunks_exact_mut(4).zip(fields) {
            to.copy_from_slice(&field.to_le_bytes());
        }
        out.write_all(&header)?;
        Ok(Self { out })
    }

    /// Adds a packet, whose bytes lie in these pieces, at this time since 1970.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&mut self, time: Duration, pieces: &[&[u8]]) -> io::Result<()> {
        let length: usize = pieces.iter().map(|piece| piece.len()).sum();
        let kept = length.min(SNAPSHOT_BYTES);
        let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        // The format has 32 bits for seconds, good until 2106.
        let seconds = u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
        for field in [seconds, time.subsec_nanos(), number(kept), number(length)] {
            self.out.write_all(&field.to_le_bytes())?;
        }
        let mut left = kept;
        for piece in pieces {
            let part = piece.get(..left.min(piece.len())).unwrap_or_default();
            self.out.write_all(part)?;
            left -= part.len();
        }
        Ok(())
    }

    /// Hands what is buffered to the system.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
