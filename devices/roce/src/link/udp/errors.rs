//! What the network says about packets that were sent: ICMP messages, read from the error queue of the socket that sent
//! them. And what this host says when it is asked to send.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

use ringway_wire::{Addresses, BTH_LENGTH, Bth, Flow};

use super::socket::{ErrorMemory, Notice};
use crate::link::{Refusal, RefusalReason, system::set_option};

/// Notices of one failed call that are read; the others stay for the next.
const NOTICES_PER_CALL: usize = 16;
/// Refusals that are kept until somebody asks. One is enough to doubt a peer; whatever is beyond comes again.
const KEPT: usize = 8;
/// ICMP's "destination unreachable: port unreachable", type and code.
const PORT_UNREACHABLE_V4: (u8, u8) = (3, 3);
/// The same of ICMPv6.
const PORT_UNREACHABLE_V6: (u8, u8) = (1, 4);
/// ICMP's "fragmentation needed".
const TOO_LONG_V4: (u8, u8) = (3, 4);
/// ICMPv6's "packet too big".
const TOO_LONG_V6: (u8, u8) = (2, 0);

/// Has the kernel keep ICMP messages about what this socket sends. From then on they fail the next call that sends, so
/// that nobody has to look for them.
pub(super) fn keep_errors(socket: BorrowedFd<'_>, v4: bool) -> io::Result<()> {
    let (level, name) = match v4 {
        true => (libc::IPPROTO_IP, libc::IP_RECVERR),
        false => (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
    };
    set_option(socket, level, name, 1)
}

/// A packet that was not taken, as far as the network quotes it.
#[derive(Debug, Clone, Copy)]
struct Refused {
    reason: RefusalReason,
    flow: Flow,
    quoted: [u8; BTH_LENGTH],
}

/// Reads error queues, and keeps what they say of peers and ways.
#[derive(Debug)]
pub(super) struct Errors {
    memory: ErrorMemory,
    kept: [Option<Refused>; KEPT],
    count: usize,
}

impl Errors {
    pub(super) fn new() -> Self {
        Self { memory: ErrorMemory::new(), kept: [None; KEPT], count: 0 }
    }

    /// Whether nothing was heard.
    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Reads what is in a socket's error queue; `flow_to` makes a notice's destination what the socket sent. Returns how
    /// many notices came from the network, and not from this host about what it was just asked to send.
    pub(super) fn read(
        &mut self,
        socket: &impl AsFd,
        flow_to: impl Fn(core::net::SocketAddr) -> Option<Flow>,
    ) -> usize {
        let mut heard = 0;
        for _ in 0..NOTICES_PER_CALL {
            let Ok(Some(notice)) = self.memory.receive(socket.as_fd()) else { break };
            heard += usize::from(notice.from_network);
            if let Some(refused) = refused(&notice, &flow_to) {
                self.keep(refused);
            }
        }
        heard
    }

    /// This host says that a packet, with these bytes, is too long for the way.
    pub(super) fn note_too_long(&mut self, flow: Flow, transport: &[u8]) {
        if let Some(quoted) = transport.first_chunk() {
            self.keep(Refused { reason: RefusalReason::TooLong, flow, quoted: *quoted });
        }
    }

    /// Keeps what is no repetition, while there is room.
    fn keep(&mut self, refused: Refused) {
        let Self { kept, count, .. } = self;
        let says = |one: &Refused| (one.reason, one.flow, Bth::parse(&one.quoted).0.destination);
        let says_it = |one: &Refused| says(one) == says(&refused);
        if kept.iter().flatten().any(says_it) {
            return;
        }
        if let Some(place) = kept.get_mut(*count) {
            *place = Some(refused);
            *count += 1;
        }
    }

    /// Hands over what was kept.
    pub(super) fn take(&mut self, report: &mut dyn FnMut(&Refusal<'_>)) {
        let count = core::mem::take(&mut self.count);
        for Refused { reason, flow, quoted } in self.kept.iter_mut().take(count).filter_map(Option::take) {
            report(&Refusal { reason, flow, transport: &quoted });
        }
    }
}

/// The packet, when the notice says that nobody listens on its port or that it is too long, and quotes enough of it. That a
/// network or host cannot be reached may pass: nothing is concluded from such news.
fn refused(notice: &Notice<'_>, flow_to: impl Fn(core::net::SocketAddr) -> Option<Flow>) -> Option<Refused> {
    let flow = flow_to(notice.destination)?;
    let (unreachable, too_long) = match flow.addresses {
        Addresses::V4 { .. } => (PORT_UNREACHABLE_V4, TOO_LONG_V4),
        Addresses::V6 { .. } => (PORT_UNREACHABLE_V6, TOO_LONG_V6),
    };
    let reason = match (notice.kind, notice.code) {
        _ if !notice.from_network => return None,
        said if said == unreachable => RefusalReason::NobodyListens,
        said if said == too_long => RefusalReason::TooLong,
        _ => return None,
    };
    Some(Refused { reason, flow, quoted: *notice.quoted.first_chunk()? })
}
