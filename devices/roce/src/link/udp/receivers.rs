//! The sockets that receive. One takes what anybody sends to the port. Whoever sends alone for a while gets another, which is
//! connected to it: for that the kernel needs no route to let its packets in.

use core::net::{IpAddr, SocketAddr};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use rustix::{
    event::epoll,
    net::{
        bind, connect,
        sockopt::{
            set_ip_recvtos, set_ipv6_recvtclass, set_socket_recv_buffer_size,
            set_socket_recv_buffer_size_force, set_socket_reuseport,
        },
    },
};

use super::UdpConfig;
use crate::link::{
    LinkError,
    local::{LocalAddress, open, refused, socket_address},
    system::set_option,
};

/// Messages of one source, with none of another between them, after which it gets a socket of its own: so many that making
/// it, some ten calls, does not show.
const STEADY: u32 = 1024;
/// How often the other socket is looked at while nothing comes in there: once in so many turns.
const TURNS_PER_LOOK: u32 = 8;
/// The option to receive packets without a UDP checksum over IPv6 (`linux/udp.h`).
const UDP_NO_CHECK6_RX: i32 = 102;

/// Which socket a message came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    Open,
    Direct,
}

/// The sockets that receive.
#[derive(Debug)]
pub(super) struct Receivers {
    open: OwnedFd,
    direct: Option<OwnedFd>,
    /// Readable while one of them has something.
    events: OwnedFd,
    /// Who sent last to the open one, and how many messages in a row.
    source: Option<SocketAddr>,
    row: u32,
    /// Turns until the open one is looked at.
    rests: u32,
}

impl Receivers {
    /// One socket, bound to the port.
    pub(super) fn open(config: &UdpConfig, local: &LocalAddress) -> Result<Self, LinkError> {
        let open = receiver(config)?;
        local.bind_port(&open, config.port)?;
        let events = epoll::create(epoll::CreateFlags::CLOEXEC);
        let events = events
            .and_then(|events| watch(&events, &open).map(|()| events))
            .map_err(|error| refused("wait for several sockets")(error.into()))?;
        Ok(Self { open, direct: None, events, source: None, row: 0, rests: 0 })
    }

    pub(super) fn event_descriptor(&self) -> i32 {
        self.events.as_raw_fd()
    }

    /// Which sockets to look at in this turn. What came to the open one is older.
    pub(super) fn turn(&mut self) -> &'static [Which] {
        if self.direct.is_none() {
            return &[Which::Open];
        }
        match self.rests.checked_sub(1) {
            Some(rests) => {
                self.rests = rests;
                &[Which::Direct]
            }
            None => &[Which::Open, Which::Direct],
        }
    }

    pub(super) fn socket(&self, which: Which) -> BorrowedFd<'_> {
        match (which, &self.direct) {
            (Which::Direct, Some(direct)) => direct.as_fd(),
            _ => self.open.as_fd(),
        }
    }

    /// So many messages came to a socket.
    pub(super) fn came(&mut self, which: Which, messages: usize) {
        match which {
            Which::Open => self.rests = if messages == 0 { TURNS_PER_LOOK - 1 } else { 0 },
            Which::Direct if messages > 0 => self.row = 0,
            Which::Direct => {}
        }
    }

    /// A message from there came to the open socket. Returns whether it is time for [`Receivers::connect`].
    pub(super) fn note(&mut self, source: SocketAddr) -> bool {
        self.row = if self.source == Some(source) { self.row.saturating_add(1) } else { 1 };
        self.source = Some(source);
        self.row == STEADY
    }

    /// Makes a socket for the source that sent last, in the place of any other's. Without one everything comes as before.
    pub(super) fn connect(&mut self, config: &UdpConfig, scope: u32) {
        let Some(source) = self.source else { return };
        self.direct = self.direct_from(source, config, scope).ok();
    }

    fn direct_from(&self, source: SocketAddr, config: &UdpConfig, scope: u32) -> io::Result<OwnedFd> {
        let socket = receiver(config).map_err(io::Error::other)?;
        // Only now: another program could take the port if it had been shared from the beginning.
        set_socket_reuseport(&self.open, true)?;
        set_socket_reuseport(&socket, true)?;
        bind(&socket, &socket_address(config.address, config.port, scope))?;
        connect(&socket, &source)?;
        watch(&self.events, &socket)?;
        Ok(socket)
    }
}

fn watch(events: &OwnedFd, socket: &OwnedFd) -> rustix::io::Result<()> {
    epoll::add(events, socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
}

/// A socket that receives, not bound yet.
fn receiver(config: &UdpConfig) -> Result<OwnedFd, LinkError> {
    let receiver = open(config.address)?;
    // What does not fit the buffer is lost. Beyond the system's limit only the administrator may go.
    let _ = set_socket_recv_buffer_size_force(&receiver, config.buffer_bytes)
        .or_else(|_| set_socket_recv_buffer_size(&receiver, config.buffer_bytes));
    let options = || {
        match config.address {
            IpAddr::V4(_) => set_ip_recvtos(&receiver, true)?,
            IpAddr::V6(_) => {
                set_ipv6_recvtclass(&receiver, true)?;
                // Hardware and rxe send no UDP checksum, which IPv6 alone does not allow; the invariant CRC does.
                set_option(receiver.as_fd(), libc::SOL_UDP, UDP_NO_CHECK6_RX, 1)?;
            }
        }
        // A kernel that cannot join packets delivers them one by one.
        if config.segmentation {
            let _ = set_option(receiver.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1);
        }
        io::Result::Ok(())
    };
    options().map_err(refused("set up the receiving socket"))?;
    Ok(receiver)
}
