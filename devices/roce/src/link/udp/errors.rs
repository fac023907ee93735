//! What the network says about packets that were sent: ICMP messages, read from the error queue of the socket that sent
//! them.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

use ringway_wire::{Addresses, BTH_LENGTH, Flow};

use super::socket::{ErrorMemory, Notice};
use crate::link::{Refusal, system::set_option};

/// Notices of one failed call that are read; the others stay for the next.
const NOTICES_PER_CALL: usize = 16;
/// Refusals that are kept until somebody asks. One is enough to doubt a peer; whatever is beyond comes again.
const KEPT: usize = 8;
/// ICMP's "destination unreachable: port unreachable", type and code.
const PORT_UNREACHABLE_V4: (u8, u8) = (3, 3);
/// The same of ICMPv6.
const PORT_UNREACHABLE_V6: (u8, u8) = (1, 4);

/// Has the kernel keep ICMP messages about what this socket sends. From then on they fail the next call that sends, so
/// that nobody has to look for them.
pub(super) fn keep_errors(socket: BorrowedFd<'_>, v4: bool) -> io::Result<()> {
    let (level, name) = match v4 {
        true => (libc::IPPROTO_IP, libc::IP_RECVERR),
        false => (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
    };
    set_option(socket, level, name, 1)
}

/// A packet that nobody took, as far as the network quotes it.
#[derive(Debug, Clone, Copy)]
struct Refused {
    flow: Flow,
    quoted: [u8; BTH_LENGTH],
}

/// Reads error queues, and keeps what they say of peers' ports.
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
        let Self { memory, kept, count } = self;
        let mut heard = 0;
        for _ in 0..NOTICES_PER_CALL {
            let Ok(Some(notice)) = memory.receive(socket.as_fd()) else { break };
            heard += usize::from(notice.from_network);
            let refused = port_refused(&notice, &flow_to);
            if let (Some(refused), Some(place)) = (refused, kept.get_mut(*count)) {
                *place = Some(refused);
                *count += 1;
            }
        }
        heard
    }

    /// Hands over what was kept.
    pub(super) fn take(&mut self, report: &mut dyn FnMut(&Refusal<'_>)) {
        let count = core::mem::take(&mut self.count);
        for Refused { flow, quoted } in self.kept.iter_mut().take(count).filter_map(Option::take) {
            report(&Refusal { flow, transport: &quoted });
        }
    }
}

/// The packet, when the notice says that nobody listens on its port and quotes enough of it. That a network or host cannot
/// be reached may pass, and what is too long is somebody else's business: nothing is concluded from such news.
fn port_refused(
    notice: &Notice<'_>,
    flow_to: impl Fn(core::net::SocketAddr) -> Option<Flow>,
) -> Option<Refused> {
    let flow = flow_to(notice.destination)?;
    let unreachable = match flow.addresses {
        Addresses::V4 { .. } => PORT_UNREACHABLE_V4,
        Addresses::V6 { .. } => PORT_UNREACHABLE_V6,
    };
    let is_it = notice.from_network && (notice.kind, notice.code) == unreachable;
    let quoted = *notice.quoted.first_chunk().filter(|_| is_it)?;
    Some(Refused { flow, quoted })
}
