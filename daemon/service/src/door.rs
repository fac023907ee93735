//! Data connections that arrive at the daemons' port, on their way to the device.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{BorrowedFd, OwnedFd},
};

use ringway_tcp::{DATA_MAGIC, Preface, TcpAcceptor};

use crate::peers::{DATA_PREFACE_BYTES, DataDoor};

/// Hands connections with a sensible preface to the TCP device at the address that they came to, which knows the tokens it gave
/// out.
#[derive(Debug)]
pub(crate) struct TcpDoor {
    /// The first rail's, and of connections to no rail's address.
    first: TcpAcceptor,
    others: Vec<(IpAddr, TcpAcceptor)>,
}

impl TcpDoor {
    /// A door to devices at these addresses.
    pub(crate) fn new(rails: impl IntoIterator<Item = (IpAddr, TcpAcceptor)>) -> Option<Self> {
        let mut rails = rails.into_iter();
        let (_, first) = rails.next()?;
        Some(Self { first, others: rails.collect() })
    }

    fn acceptor(&self, socket: &OwnedFd) -> &TcpAcceptor {
        let to = if self.others.is_empty() { None } else { local_address(socket) };
        self.others.iter().find(|(rail, _)| Some(*rail) == to).map_or(&self.first, |(_, acceptor)| acceptor)
    }
}

/// The address that a connection came to.
fn local_address(socket: &OwnedFd) -> Option<IpAddr> {
    let address = rustix::net::getsockname(socket).ok()?;
    Some(SocketAddr::try_from(address).ok()?.ip().to_canonical())
}

impl DataDoor for TcpDoor {
    fn magic(&self) -> [u8; 8] {
        DATA_MAGIC
    }

    fn prepare(&self, listener: BorrowedFd<'_>) -> io::Result<()> {
        self.first.prepare(listener)
    }

    fn take(&mut self, preface: &[u8; DATA_PREFACE_BYTES], socket: OwnedFd) {
        // Whatever is not taken is closed.
        if let Some(preface) = Preface::parse(preface)
            && let Err(error) = self.acceptor(&socket).offer(preface, socket)
        {
            tracing::warn!(%error, "closed a data connection");
        }
    }
}
