//! How accepted connections reach the device from the thread that listens.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use thiserror::Error;

use crate::{Congestion, MAX_CONNECTIONS, Preface};

/// Offers that may wait for the device's next poll: a thousand peers may come at once.
const WAITING_OFFERS: usize = 1024 * MAX_CONNECTIONS;

/// Why a connection was not taken. It is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum OfferError {
    /// Too many connections wait already.
    #[error("{WAITING_OFFERS} connections wait for the device already")]
    Full,
}

#[derive(Debug)]
struct Shared {
    offers: ArrayQueue<(Preface, OwnedFd)>,
    wake: OwnedFd,
    congestion: Congestion,
}

/// Hands accepted data connections to a [`TcpDevice`](crate::TcpDevice). Clones hand them to the same device.
#[derive(Debug, Clone)]
pub struct TcpAcceptor(Arc<Shared>);

impl TcpAcceptor {
    pub(crate) fn new(wake: OwnedFd, congestion: Congestion) -> Self {
        Self(Arc::new(Shared { offers: ArrayQueue::new(WAITING_OFFERS), wake, congestion }))
    }

    /// Gives a listener what the connections that it accepts are to have from their beginning: the device's congestion control.
    ///
    /// # Errors
    /// When the system refuses it.
    pub fn prepare(&self, listener: impl AsFd) -> io::Result<()> {
        Ok(self.0.congestion.apply(listener)?)
    }

    /// Offers a connection on which this preface was read, and nothing after it. The device closes it when no queue pair waits
    /// for it.
    ///
    /// # Errors
    /// When the device does not keep up.
    pub fn offer(&self, preface: Preface, connection: OwnedFd) -> Result<(), OfferError> {
        self.0.offers.push((preface, connection)).map_err(|_| OfferError::Full)?;
        // A full counter cannot happen before 2^64 offers, and any other failure leaves the device to find the offer
        // at its next poll.
        let _ = rustix::io::write(&self.0.wake, &1_u64.to_ne_bytes());
        Ok(())
    }

    pub(crate) fn take(&self) -> Option<(Preface, OwnedFd)> {
        self.0.offers.pop()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.offers.is_empty()
    }

    pub(crate) fn wake_descriptor(&self) -> &OwnedFd {
        &self.0.wake
    }
}
