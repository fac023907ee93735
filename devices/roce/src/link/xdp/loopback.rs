//! Packets of the link to itself. The interface would not bring them back: here they wait in memory for the next poll.

use core::net::IpAddr;

use ringway_wire::ETHERNET_LENGTH;

use super::{frame, queue::FRAME_BYTES_MAX};
use crate::link::{Received, SendError};

/// Frames that may wait, a power of two.
const SLOTS: usize = 256;

/// The frames that wait, in a ring.
#[derive(Debug)]
pub(super) struct Loopback {
    memory: Box<[u8]>,
    lengths: [usize; SLOTS],
    /// How many have ever been put, and taken.
    put: usize,
    taken: usize,
    /// What stands before every packet.
    pub(super) ethernet: [u8; ETHERNET_LENGTH],
}

impl Loopback {
    pub(super) fn new(ethernet: [u8; ETHERNET_LENGTH]) -> Self {
        let memory = vec![0; SLOTS * FRAME_BYTES_MAX].into_boxed_slice();
        Self { memory, lengths: [0; SLOTS], put: 0, taken: 0, ethernet }
    }

    /// Whether nothing waits.
    pub(super) const fn is_empty(&self) -> bool {
        self.put == self.taken
    }

    /// Puts a frame of so many bytes behind those that wait; `write` fills it.
    pub(super) fn push(&mut self, length: usize, write: impl FnOnce(&mut [u8])) -> Result<(), SendError> {
        if length > FRAME_BYTES_MAX {
            return Err(SendError::TooLong);
        }
        if self.put - self.taken == SLOTS {
            return Err(SendError::Full);
        }
        let slot = self.put % SLOTS;
        let bytes = self.memory.get_mut(slot * FRAME_BYTES_MAX..).and_then(|free| free.get_mut(..length));
        let (bytes, kept) = bytes.zip(self.lengths.get_mut(slot)).ok_or(SendError::Full)?;
        write(bytes);
        *kept = length;
        self.put += 1;
        Ok(())
    }

    /// Hands over what waits, up to `budget` packets; returns how many there were.
    pub(super) fn receive(
        &mut self,
        address: IpAddr,
        port: u16,
        budget: usize,
        receive: &mut dyn FnMut(&Received<'_>),
    ) -> usize {
        let mut packets = 0;
        while packets < budget && self.taken < self.put {
            let slot = self.taken % SLOTS;
            self.taken += 1;
            let length = self.lengths.get(slot).copied().unwrap_or_default();
            let bytes = self.memory.get(slot * FRAME_BYTES_MAX..).and_then(|rest| rest.get(..length));
            if let Some(received) = bytes.and_then(|bytes| frame::parse(bytes, address, port)) {
                receive(&received);
            }
            packets += 1;
        }
        packets
    }
}
