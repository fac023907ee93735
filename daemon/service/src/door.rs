//! Data connections that arrive at the daemons' port, on their way to the device.

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
};

use ringway_tcp::{DATA_MAGIC, Preface, TcpAcceptor};

use crate::peers::{DATA_PREFACE_BYTES, DataDoor};

/// Hands connections with a sensible preface to the TCP device, which knows the tokens it gave out.
#[derive(Debug)]
pub(crate) struct TcpDoor(pub(crate) TcpAcceptor);

impl DataDoor for TcpDoor {
    fn magic(&self) -> [u8; 8] {
        DATA_MAGIC
    }

    fn prepare(&self, listener: BorrowedFd<'_>) -> io::Result<()> {
        self.0.prepare(listener)
    }

    fn take(&mut self, preface: &[u8; DATA_PREFACE_BYTES], socket: OwnedFd) {
        // Whatever is not taken is closed.
        if let Some(preface) = Preface::parse(preface)
            && let Err(error) = self.0.offer(preface, socket)
        {
            tracing::warn!(%error, "closed a data connection");
        }
    }
}
