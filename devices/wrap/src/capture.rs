//! A link that writes down what goes over it.

use core::net::IpAddr;
use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::Path as FilePath,
    time::{Duration, SystemTime},
};

use ringway_roce::{Counters, Link, LinkError, Path, Received, Refusal, SendError};
use ringway_verbs::Time;
use ringway_wire::{Flow, Options, PathMtu};

use crate::PcapWriter;

/// Bytes gathered before they are written to the file.
const BUFFER_BYTES: usize = 1 << 20;
/// Bytes of the longest IP and UDP headers.
const NETWORK_BYTES_MAX: usize = 48;

/// A link with a capture of all its packets, sent and received, with IP and UDP headers as they are on the wire, but for
/// what a link is not told. Hop limits are 64; the identification of a received packet may be a guess, and so is that of one sent
/// between two Ringway ends over UDP, which have agreed that it does not count: the kernel chooses it. In the capture it is the one
/// with which the packet's CRC is right.
///
/// Times are the system's when the link was given a packet or gave one. A file that can no longer be written ends the
/// capture, not the traffic; [`Capture::error`] says why.
#[derive(Debug)]
pub struct Capture<L: Link, W: Write = BufWriter<File>> {
    link: L,
    log: Log<W>,
}

#[derive(Debug)]
struct Log<W: Write> {
    writer: PcapWriter<W>,
    error: Option<io::Error>,
}

impl<W: Write> Log<W> {
    fn packet(&mut self, flow: &Flow, traffic_class: u8, identification: u16, transport: &[u8]) {
        if self.error.is_some() {
            return;
        }
        let Ok(length) = u16::try_from(transport.len()) else { return };
        // Sockets put a checksum on everything.
        let udp_checksum = flow.udp_checksum(&[transport]);
        let options = Options { traffic_class, identification, udp_checksum, ..Options::default() };
        let mut headers = [0; NETWORK_BYTES_MAX];
        let Some(headers) = flow.emit(&options, length, &mut headers).and_then(|n| headers.get(..n)) else {
            return;
        };
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        self.error = self.writer.write(time, &[headers, transport]).err();
    }
}

impl<L: Link> Capture<L> {
    /// Captures into a new file.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn create(link: L, file: &FilePath) -> io::Result<Self> {
        Self::new(link, BufWriter::with_capacity(BUFFER_BYTES, File::create(file)?))
    }
}

impl<L: Link, W: Write> Capture<L, W> {
    /// Captures into this.
    ///
    /// # Errors
    /// When nothing can be written there.
    pub fn new(link: L, out: W) -> io::Result<Self> {
        let writer = PcapWriter::new(out)?;
        Ok(Self { link, log: Log { writer, error: None } })
    }

    /// Why the capture ended early, if it did.
    #[must_use]
    pub const fn error(&self) -> Option<&io::Error> {
        self.log.error.as_ref()
    }
}

impl<L: Link, W: Write> Drop for Capture<L, W> {
    fn drop(&mut self) {
        // There is nobody left to tell.
        let _ = self.log.writer.flush();
    }
}

impl<L: Link, W: Write + Send + core::fmt::Debug> Link for Capture<L, W> {
    fn local_address(&self) -> IpAddr {
        self.link.local_address()
    }

    fn mtu(&self) -> PathMtu {
        self.link.mtu()
    }

    fn path(&mut self, peer: IpAddr, entropy: u32, traffic_class: u8) -> Result<Path, LinkError> {
        self.link.path(peer, entropy, traffic_class)
    }

    fn takes_any_identification(&self) -> bool {
        self.link.takes_any_identification()
    }

    fn connect(&mut self, path: &mut Path) {
        self.link.connect(path);
    }

    fn disconnect(&mut self, path: &Path) {
        self.link.disconnect(path);
    }

    fn send(
        &mut self,
        path: &Path,
        length: usize,
        write: &mut dyn FnMut(u16, &mut [u8]),
    ) -> Result<(), SendError> {
        let log = &mut self.log;
        self.link.send(path, length, &mut |identification, memory| {
            write(identification, memory);
            log.packet(&path.flow, path.traffic_class, identification, memory);
        })
    }

    fn flush(&mut self) -> bool {
        self.link.flush()
    }

    fn poll(&mut self, now: Time, receive: &mut dyn FnMut(&Received<'_>)) -> usize {
        let log = &mut self.log;
        self.link.poll(now, &mut |received| {
            // Of the traffic class only the congestion bits are told.
            log.packet(&received.flow, received.ecn as u8, received.identification, received.transport);
            receive(received);
        })
    }

    fn refusals(&mut self, report: &mut dyn FnMut(&Refusal<'_>)) {
        self.link.refusals(report);
    }

    fn deadline(&self) -> Option<Time> {
        self.link.deadline()
    }

    fn event_descriptor(&self) -> Option<i32> {
        self.link.event_descriptor()
    }

    fn counters(&self) -> Counters {
        self.link.counters()
    }
}
