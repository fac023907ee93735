//! The sockets that send. Each has a port of its own; some have twins, which share the port and are connected to one peer.

use core::net::{IpAddr, SocketAddr};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use rustix::net::{
    bind, connect, getsockname,
    sockopt::{
        set_socket_recv_buffer_size, set_socket_reuseport, set_socket_send_buffer_size,
        set_socket_send_buffer_size_force,
    },
};

use super::{UdpConfig, errors::keep_errors};
use crate::link::{
    LinkError, Path,
    local::{is_link_local, open, refused, socket_address},
    system::set_option,
};

/// The most twins. Whoever would need more sends from sockets that are not connected.
const TWINS_MAX: usize = 64;
/// What a socket may keep of news about what it sent.
const NEWS_BYTES: usize = 64 << 10;
/// Bits of [`Path::via`] that say which socket; the others say which of the twins, plus one.
const VIA_SENDER_BITS: u32 = 16;

/// A socket that sends, and its port.
#[derive(Debug)]
pub(super) struct Sender {
    pub(super) socket: OwnedFd,
    pub(super) port: u16,
    /// The peer that it is connected to.
    pub(super) peer: Option<IpAddr>,
    /// What its packets carry: the kernel is told when another way has another, which is cheaper than with each message.
    traffic_class: u8,
}

impl Sender {
    /// One of this port, or of any if it is 0.
    fn open(config: &UdpConfig, scope: u32, port: u16) -> Result<Self, LinkError> {
        let failed = |error: rustix::io::Errno| refused("open a sending socket")(error.into());
        let socket = open(config.address)?;
        let _ = set_socket_send_buffer_size_force(&socket, config.buffer_bytes)
            .or_else(|_| set_socket_send_buffer_size(&socket, config.buffer_bytes));
        // Nobody reads what strangers send here, and little of it is kept: the room is for news of what was sent. Without
        // that only timeouts tell that a peer is gone.
        let _ = set_socket_recv_buffer_size(&socket, NEWS_BYTES);
        let _ = keep_errors(socket.as_fd(), config.address.is_ipv4());
        if port != 0 {
            set_socket_reuseport(&socket, true).map_err(failed)?;
        }
        bind(&socket, &socket_address(config.address, port, scope)).map_err(failed)?;
        let name = SocketAddr::try_from(getsockname(&socket).map_err(failed)?).map_err(failed)?;
        Ok(Self { socket, port: name.port(), peer: None, traffic_class: 0 })
    }

    /// Has what is sent next carry this traffic class.
    pub(super) fn carry(&mut self, traffic_class: u8, address: IpAddr) -> io::Result<()> {
        if self.traffic_class != traffic_class {
            let (level, name) = match address {
                IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS),
                IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
            };
            set_option(self.socket.as_fd(), level, name, traffic_class.into())?;
            self.traffic_class = traffic_class;
        }
        Ok(())
    }
}

/// A connected socket, and how many queue pairs send from it.
#[derive(Debug)]
struct Twin {
    sender: Sender,
    users: usize,
}

/// All sockets that send.
#[derive(Debug)]
pub(super) struct Senders {
    senders: Vec<Sender>,
    twins: Vec<Option<Twin>>,
}

impl Senders {
    pub(super) fn open(config: &UdpConfig, scope: u32) -> Result<Self, LinkError> {
        let senders =
            (0..config.senders).map(|_| Sender::open(config, scope, 0)).collect::<Result<_, _>>()?;
        Ok(Self { senders, twins: Vec::new() })
    }

    /// Any of those that are not connected.
    pub(super) fn first(&self) -> Option<&Sender> {
        self.senders.first()
    }

    /// The [`Path::via`] and the port for packets of this entropy.
    pub(super) fn choose(&self, entropy: u32) -> (u32, u16) {
        let index = usize::try_from(entropy).unwrap_or_default() % self.senders.len().max(1);
        let port = self.senders.get(index).map_or(0, |sender| sender.port);
        (u32::try_from(index).unwrap_or_default(), port)
    }

    /// The socket that packets of this way go out from: the twin that it was given while that is there, with the same port
    /// otherwise. `None` for a way of another link.
    pub(super) fn get(&mut self, path: &Path) -> Option<&mut Sender> {
        let twin = twin_of(path).and_then(|at| self.twins.get_mut(at)).and_then(Option::as_mut);
        match twin.filter(|twin| twin.serves(path)) {
            Some(twin) => Some(&mut twin.sender),
            None => self.senders.get_mut(sender_of(path)),
        }
    }

    /// Has packets of this way go out from a socket that is connected to the peer, if there may be another.
    pub(super) fn connect(&mut self, path: &mut Path, config: &UdpConfig, scope: u32) {
        let serving = |twin: &Option<Twin>| twin.as_ref().is_some_and(|twin| twin.serves(path));
        let at = self.twins.iter().position(serving).or_else(|| self.add_twin(path, config, scope));
        let Some(at) = at else { return };
        if let (Some(Some(twin)), Ok(number)) = (self.twins.get_mut(at), u32::try_from(at + 1)) {
            twin.users += 1;
            path.via |= number << VIA_SENDER_BITS;
        }
    }

    /// One user fewer of this way's twin, which goes with the last.
    pub(super) fn disconnect(&mut self, path: &Path) {
        let Some(place) = twin_of(path).and_then(|at| self.twins.get_mut(at)) else { return };
        if let Some(twin) = place.as_mut().filter(|twin| twin.serves(path)) {
            twin.users = twin.users.saturating_sub(1);
            if twin.users == 0 {
                *place = None;
            }
        }
    }

    /// Makes a twin for this way; returns its place. `None` when there are enough, or the system refuses.
    fn add_twin(&mut self, path: &Path, config: &UdpConfig, scope: u32) -> Option<usize> {
        let at = self.twins.iter().position(Option::is_none).unwrap_or(self.twins.len());
        if at == TWINS_MAX {
            return None;
        }
        let elder = self.senders.get(sender_of(path))?;
        // Only now: a socket that shares its port from the beginning may be given one that another shares.
        set_socket_reuseport(&elder.socket, true).ok()?;
        let mut sender = Sender::open(config, scope, elder.port).ok()?;
        let (peer, port) = (path.flow.addresses.destination(), path.flow.destination_port);
        let scope = if is_link_local(peer) { scope } else { 0 };
        connect(&sender.socket, &socket_address(peer, port, scope)).ok()?;
        sender.peer = Some(peer);
        let twin = Some(Twin { sender, users: 0 });
        match self.twins.get_mut(at) {
            Some(place) => *place = twin,
            None => self.twins.push(twin),
        }
        Some(at)
    }
}

impl Twin {
    fn serves(&self, path: &Path) -> bool {
        self.sender.port == path.flow.source_port
            && self.sender.peer == Some(path.flow.addresses.destination())
    }
}

fn sender_of(path: &Path) -> usize {
    usize::try_from(path.via & ((1 << VIA_SENDER_BITS) - 1)).unwrap_or(usize::MAX)
}

/// The place of the twin that a way was given.
fn twin_of(path: &Path) -> Option<usize> {
    usize::try_from(path.via >> VIA_SENDER_BITS).ok()?.checked_sub(1)
}
