//! Over ordinary UDP sockets, without privileges.
//!
//! One socket bound to the RoCE port receives, and beside it one that is connected to whoever sends steadily. Others send,
//! each from a port of its own, so that queue pairs spread over the paths of the network. A socket that is not connected and
//! forbids fragments gives its packets the identification 0 (and those that the kernel cuts from one message 0, 1, 2, ...),
//! which the invariant CRC covers. From a connected one the kernel sends faster, as it looks for the way only once, and counts
//! the identification from a random start. So only peers that do not look at it are sent to from connected sockets: links
//! like this one, which see no identification and take the CRC that goes with 0, 1, 2, ..., and all over IPv6, which has none.
//! UDP checksums stay on: the kernel joins (GRO) and cuts (GSO) only packets that have them.

mod errors;
mod receivers;
mod runs;
mod senders;
mod socket;

use core::net::IpAddr;
use std::{io, os::fd::AsFd};

use ringway_verbs::Time;
use ringway_wire::{Addresses, Ecn, Flow, PathMtu, ROCE_PORT};
use rustix::net::{bind, connect};

pub(crate) use self::runs::{RUN_BYTES_MAX, RUN_PACKETS_MAX};
use self::{
    errors::Errors,
    receivers::{Receivers, Which},
    runs::{Run, Runs},
    senders::Senders,
    socket::{Outgoing, ReceiveBatch, SendBatch},
};
use super::{
    Counters, Link, LinkError, Path, Received, Refusal, SendError,
    local::{LocalAddress, is_link_local, open, path_mtu, socket_address},
    system::{errno, option, set_option},
};

/// Messages that one call receives; each may be up to 64 packets.
const RECEIVE_BATCH: usize = 16;
/// Messages that one call sends; each may be up to 64 packets.
const SEND_BATCH: usize = 64;
/// Memory that packets wait in to be sent.
const SEND_BYTES: usize = 1 << 20;
/// The most sockets that send.
const SENDERS_MAX: usize = 256;
/// How often one flush tries again after a send failed for news of packets sent earlier.
const RETRIES_PER_FLUSH: usize = 16;

/// What a UDP link shall be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UdpConfig {
    /// An address of this host, which no other daemon uses.
    pub address: IpAddr,
    /// The interface that the address must be on; any if `None`.
    pub interface: Option<String>,
    /// Where packets are received. Hardware and rxe know no port but [`ROCE_PORT`].
    pub port: u16,
    /// Sockets that send: so many ways through the network can be in use at once.
    pub senders: usize,
    /// Let the kernel cut what is sent and join what is received, where it can.
    pub segmentation: bool,
    /// What to ask for as the sockets' buffers; how much there really is the system decides.
    pub buffer_bytes: usize,
}

impl UdpConfig {
    /// The usual, at this address.
    #[must_use]
    pub const fn new(address: IpAddr) -> Self {
        let (port, senders) = (ROCE_PORT, 8);
        Self { address, interface: None, port, senders, segmentation: true, buffer_bytes: 8 << 20 }
    }
}

/// A link over UDP sockets.
#[derive(Debug)]
pub struct UdpLink {
    config: UdpConfig,
    /// The interface's index where the address needs it.
    scope: u32,
    mtu: PathMtu,
    receivers: Receivers,
    senders: Senders,
    runs: Runs,
    sending: SendBatch,
    receiving: ReceiveBatch,
    errors: Errors,
    counters: Counters,
}

impl UdpLink {
    /// Opens the sockets.
    ///
    /// # Errors
    /// When the address is not this host's, not the interface's or taken, when the interface cannot carry RoCE, or
    /// when the system refuses.
    pub fn new(config: UdpConfig) -> Result<Self, LinkError> {
        if config.senders == 0 || config.senders > SENDERS_MAX {
            return Err(LinkError::Limit { limit: "senders", most: SENDERS_MAX });
        }
        let local = LocalAddress::find(config.address, config.interface.as_deref())?;
        let receivers = Receivers::open(&config, &local)?;
        let mtu = local.mtu(receivers.socket(Which::Open))?;
        let senders = Senders::open(&config, local.scope)?;
        // Asking for no cutting is refused where cutting is not known.
        let can_cut = senders.first().is_some_and(|sender| {
            set_option(sender.socket.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok()
        });
        Ok(Self {
            scope: local.scope,
            mtu,
            receivers,
            senders,
            runs: Runs::new(SEND_BYTES, SEND_BATCH, config.segmentation && can_cut),
            sending: SendBatch::new(SEND_BATCH),
            receiving: ReceiveBatch::new(RECEIVE_BATCH),
            errors: Errors::new(),
            counters: Counters::default(),
            config,
        })
    }

    /// Whether the kernel cuts what is sent.
    #[must_use]
    pub const fn segments(&self) -> bool {
        self.runs.joined
    }

    /// What a route to the peer carries, in bytes of IP packets. The socket connects only to have the route looked up.
    fn route_mtu(&self, peer: IpAddr) -> Result<usize, LinkError> {
        let local = self.config.address;
        let unreachable = |error: io::Error| match errno(&error) {
            errno @ (libc::EPERM | libc::EACCES) => LinkError::Privilege { what: "send to the peer", errno },
            errno => LinkError::Unreachable { peer, local, errno },
        };
        let scratch = open(local)?;
        bind(&scratch, &socket_address(local, 0, self.scope)).map_err(|e| unreachable(e.into()))?;
        let scope = if is_link_local(peer) { self.scope } else { 0 };
        connect(&scratch, &socket_address(peer, self.config.port, scope))
            .map_err(|e| unreachable(e.into()))?;
        let (level, name) = match local {
            IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
            IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
        };
        let mtu = option(scratch.as_fd(), level, name).map_err(unreachable)?;
        Ok(usize::try_from(mtu).unwrap_or_default())
    }

    /// Gives the runs that wait and go out from the same socket to the kernel; `None` when there are none, else how
    /// many it took.
    fn send_some(&mut self) -> Option<io::Result<usize>> {
        let waiting = self.runs.waiting();
        let first = waiting.first()?.path;
        let Some(sender) = self.senders.get(&first) else {
            // A way of another link: nothing can be sent on it.
            return Some(Err(io::Error::from_raw_os_error(libc::EINVAL)));
        };
        if let Err(error) = sender.carry(first.traffic_class, self.config.address) {
            return Some(Err(error));
        }
        self.sending.clear();
        let alike = |run: &&Run| {
            let path = &run.path;
            let same_peer = sender.peer.is_none_or(|peer| peer == path.flow.addresses.destination());
            path.via == first.via && path.traffic_class == first.traffic_class && same_peer
        };
        for run in waiting.iter().take_while(alike) {
            let flow = run.path.flow;
            let peer = flow.addresses.destination();
            let scope = if is_link_local(peer) { self.scope } else { 0 };
            let segment = u16::try_from(run.segment).ok().filter(|_| run.packets > 1);
            let pushed = self.sending.push(Outgoing {
                destination: match sender.peer {
                    Some(_) => None,
                    None => Some(socket_address(peer, flow.destination_port, scope)),
                },
                range: run.range(),
                segment,
            });
            if !pushed {
                break;
            }
        }
        Some(self.sending.send(sender.socket.as_fd(), self.runs.bytes()))
    }

    /// Takes messages that came to a socket; returns how many packets they are.
    fn receive_from(&mut self, which: Which, receive: &mut dyn FnMut(&Received<'_>)) -> usize {
        self.counters.calls += 1;
        // Errors of a receiving socket are news about packets sent earlier, or nothing to receive.
        let messages = self.receiving.receive(self.receivers.socket(which)).unwrap_or(0);
        self.receivers.came(which, messages);
        let (mut packets, mut steady) = (0, false);
        for at in 0..messages {
            let Some(message) = self.receiving.message(at) else { continue };
            let Some(addresses) = Addresses::new(message.source.ip(), self.config.address) else { continue };
            steady |= which == Which::Open && self.receivers.note(message.source);
            let flow =
                Flow { addresses, source_port: message.source.port(), destination_port: self.config.port };
            let segment = message.segment.unwrap_or(message.bytes.len()).max(1);
            for (transport, identification) in message.bytes.chunks(segment).zip(0..) {
                let Ok(length) = u16::try_from(transport.len()) else { continue };
                let check = flow.check(identification, length);
                let ecn = Ecn::of(message.traffic_class);
                receive(&Received { flow, ecn, identification, check, transport });
                packets += 1;
            }
        }
        if steady {
            self.receivers.connect(&self.config, self.scope);
        }
        self.counters.received += packets as u64;
        packets
    }

    /// A send failed: finds out whether for what was sent now, or for news about packets that the socket sent earlier. In
    /// that case nothing is wrong with what waits, and it can be sent.
    fn is_old_news(&mut self, reason: i32) -> bool {
        let Some(path) = self.runs.waiting().first().map(|run| run.path) else { return false };
        let Some(sender) = self.senders.get(&path) else { return false };
        let (local, source_port) = (self.config.address, sender.port);
        let heard = self.errors.read(&sender.socket, |to| {
            let addresses = Addresses::new(local, to.ip())?;
            Some(Flow { addresses, source_port, destination_port: to.port() })
        });
        // Nothing that is sent now is refused a connection: the news was lost, or read before.
        heard > 0 || reason == libc::ECONNREFUSED
    }

    /// The kernel refused the first run that waits: its packets are lost, which transports live with.
    fn lose_one(&mut self, reason: i32) {
        if let Some(run) = self.runs.waiting().first().copied() {
            self.counters.refused += u64::from(run.packets);
            self.counters.last_refusal = reason;
            let cut = run.packets > 1;
            // An interface without checksum offload under a kernel that then refuses to cut.
            if cut && matches!(reason, libc::EIO | libc::EOPNOTSUPP) {
                self.runs.joined = false;
            }
            // Older kernels say so of packets to be cut in another way.
            if reason == libc::EMSGSIZE || (cut && reason == libc::EINVAL) {
                let bytes = self.runs.bytes().get(run.range()).unwrap_or_default();
                self.errors.note_too_long(run.path.flow, bytes);
            }
            self.runs.advance(1);
        }
    }
}

impl Link for UdpLink {
    fn local_address(&self) -> IpAddr {
        self.config.address
    }

    fn mtu(&self) -> PathMtu {
        self.mtu
    }

    fn path(&mut self, peer: IpAddr, entropy: u32, traffic_class: u8) -> Result<Path, LinkError> {
        let local = self.config.address;
        let addresses = Addresses::new(local, peer).ok_or(LinkError::Family { peer, local })?;
        let mtu_bytes = self.route_mtu(peer)?;
        let mtu = path_mtu(mtu_bytes, || format!("the way to {peer}"))?;
        let (via, source_port) = self.senders.choose(entropy);
        let flow = Flow { addresses, source_port, destination_port: self.config.port };
        Ok(Path { flow, mtu: mtu.min(self.mtu), traffic_class, via })
    }

    /// Sockets tell no identification, and [`Flow::check`] begins with the one that [`Link::send`] says.
    fn takes_any_identification(&self) -> bool {
        true
    }

    fn connect(&mut self, path: &mut Path) {
        self.senders.connect(path, &self.config, self.scope);
    }

    fn disconnect(&mut self, path: &Path) {
        self.senders.disconnect(path);
    }

    fn send(
        &mut self,
        path: &Path,
        length: usize,
        write: &mut dyn FnMut(u16, &mut [u8]),
    ) -> Result<(), SendError> {
        let (identification, memory) = self.runs.push(path, length)?;
        write(identification, memory);
        Ok(())
    }

    fn flush(&mut self) -> bool {
        let mut retries = RETRIES_PER_FLUSH;
        while let Some(sent) = self.send_some() {
            self.counters.calls += 1;
            match sent {
                Ok(runs) => {
                    let packets = self.runs.waiting().iter().take(runs).map(|run| u64::from(run.packets));
                    self.counters.sent += packets.sum::<u64>();
                    self.runs.advance(runs);
                }
                Err(error) => match errno(&error) {
                    libc::EAGAIN => return false,
                    libc::EINTR => {}
                    reason if retries > 0 && self.is_old_news(reason) => retries -= 1,
                    reason => self.lose_one(reason),
                },
            }
        }
        true
    }

    fn poll(&mut self, _now: Time, receive: &mut dyn FnMut(&Received<'_>)) -> usize {
        self.receivers.turn().iter().map(|which| self.receive_from(*which, receive)).sum()
    }

    fn refusals(&mut self, report: &mut dyn FnMut(&Refusal<'_>)) {
        if !self.errors.is_empty() {
            self.errors.take(report);
        }
    }

    /// What comes in can be read from the descriptor, and nothing else waits here.
    fn deadline(&self) -> Option<Time> {
        None
    }

    fn event_descriptor(&self) -> Option<i32> {
        Some(self.receivers.event_descriptor())
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
