//! Send queues that are drained now and then, and what must hold meanwhile.

use ringway_rc::{QueuePair, State, Transition};
use ringway_wire::{Besides, Bth, Opcode, PathMtu, Psn};

use super::stream::Stream;
use crate::Random;

/// Requests that have begun: how many, and up to where they have PSNs, counted from the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Begun {
    pub(crate) requests: usize,
    pub(crate) packets: u32,
}

/// What one end's send queue has let out, and what it may let out.
#[derive(Debug)]
pub(crate) struct Draining {
    first: Psn,
    mtu: PathMtu,
    /// PSNs that went out, counted from the first.
    sent: u32,
    /// What had begun when it was to be drained.
    begun: Option<Begun>,
    /// How often it was.
    pub(crate) times: u64,
}

impl Draining {
    pub(crate) const fn new(first: Psn, mtu: PathMtu) -> Self {
        Self { first, mtu, sent: 0, begun: None, times: 0 }
    }

    /// Checks a packet that goes out: while the send queue is to be drained it is of no request that had not begun.
    pub(crate) fn check(&mut self, packet: &[u8]) -> Result<(), String> {
        let Some((bth, Besides { opcode, .. })) = packet.first_chunk().map(Bth::parse) else { return Ok(()) };
        if !Opcode::from_code(opcode).is_some_and(Opcode::is_request) {
            return Ok(());
        }
        let place = bth.psn.above(self.first);
        self.sent = self.sent.max(place + 1);
        match self.begun {
            Some(begun) if place >= begun.packets => Err(format!(
                "packet {place} goes out while the send queue is drained, and what had begun ends before packet {}",
                begun.packets
            )),
            _ => Ok(()),
        }
    }

    /// Drains the send queue, or has it go on when it is drained, each now and then.
    pub(crate) fn turn(
        &mut self,
        queue_pair: &mut QueuePair,
        stream: &Stream,
        random: &mut Random,
    ) -> Result<(), String> {
        let step = match queue_pair.state() {
            State::ReadyToSend if random.per_mille(20) => {
                self.begun = Some(stream.begun(self.sent, self.mtu));
                self.times += 1;
                Transition::Drain
            }
            State::SendQueueDrain if queue_pair.is_drained() && random.per_mille(300) => {
                let requests = self.begun.take().map_or(0, |begun| begun.requests);
                if !stream.none_missing_before(requests) {
                    return Err(format!(
                        "it is drained, and of {requests} requests that had begun some have not ended"
                    ));
                }
                Transition::Resume(None)
            }
            _ => return Ok(()),
        };
        queue_pair.modify(&step).map_err(|error| error.to_string())
    }
}
