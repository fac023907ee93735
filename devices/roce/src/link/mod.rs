//! What carries packets: the way in and out of the node.

mod local;
mod system;
pub(crate) mod udp;
pub(crate) mod xdp;

pub use local::interface_of;
pub(crate) use local::line_rate;

use core::{fmt, net::IpAddr};

use ringway_verbs::Time;
use ringway_wire::{Check, Ecn, Flow, PathMtu};
use thiserror::Error;

/// The way to one peer, for one queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    /// The addresses and ports of what is sent this way.
    pub flow: Flow,
    /// The most payload that the whole way is known to carry.
    pub mtu: PathMtu,
    /// DSCP and ECN of what is sent this way.
    pub traffic_class: u8,
    /// What the link that made it wants to remember.
    pub via: u32,
}

/// A packet that came in, still where the link received it.
#[derive(Debug, Clone, Copy)]
pub struct Received<'a> {
    /// Who sent it to whom.
    pub flow: Flow,
    /// What the network says about congestion on the way.
    pub ecn: Ecn,
    /// IPv4's identification, or the likeliest one where `check` does not depend on it.
    pub identification: u16,
    /// For [`Packet::parse`](ringway_wire::Packet::parse).
    pub check: Check,
    /// What UDP carries. Nobody has looked at it yet.
    pub transport: &'a [u8],
}

/// Why a packet was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalReason {
    /// Nobody listens where it went.
    NobodyListens,
    /// It is longer than the way carries.
    TooLong,
}

/// A packet that went out and was not taken, as the network or this host says. Anybody can say so who can send packets;
/// whether to believe it is the receiver's to judge.
#[derive(Debug, Clone, Copy)]
pub struct Refusal<'a> {
    /// Why.
    pub reason: RefusalReason,
    /// Who sent it to whom.
    pub flow: Flow,
    /// What is quoted of what UDP carried: its beginning.
    pub transport: &'a [u8],
}

/// Why a packet cannot be sent now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SendError {
    /// Back-pressure: flush, and try again later.
    #[error("the link has no room; flush and try again")]
    Full,
    /// Longer than anything the link carries.
    #[error("the packet is longer than the link carries")]
    TooLong,
}

/// What a link has counted since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Packets given to the network.
    pub sent: u64,
    /// Packets that the system refused to send: lost, as far as anybody else can tell.
    pub refused: u64,
    /// The last reason for that (an `errno` value), zero if there never was one.
    pub last_refusal: i32,
    /// Packets that came in.
    pub received: u64,
    /// System calls made to send and to receive, also those in vain.
    pub calls: u64,
}

/// Carries packets, loses and reorders them as networks do. One thread owns it; no method blocks, and none allocates
/// but [`Link::path`].
pub trait Link: fmt::Debug + Send {
    /// The address packets come from.
    fn local_address(&self) -> IpAddr;

    /// The most payload of a packet that this node's interface carries. A way may carry less.
    fn mtu(&self) -> PathMtu;

    /// Finds the way to a peer. Queue pairs with different `entropy` may take different ways through the network.
    ///
    /// # Errors
    /// When there is none; or [`LinkError::Resolving`] when that is not known yet: ask again, in a millisecond say.
    fn path(&mut self, peer: IpAddr, entropy: u32, traffic_class: u8) -> Result<Path, LinkError>;

    /// Whether what comes in may have any IPv4 identification, whatever its invariant CRC was made with: a link that does
    /// not see the identification takes the one that it expects.
    fn takes_any_identification(&self) -> bool;

    /// A queue pair sends this way to a link that [takes any identification](Link::takes_any_identification), until
    /// [`Link::disconnect`]: a link that gains by it may give packets another one than [`Link::send`] says.
    fn connect(&mut self, path: &mut Path);

    /// A queue pair sends this way no more. Does nothing to a way that was not connected.
    fn disconnect(&mut self, path: &Path);

    /// Takes a packet of `length` bytes (all that UDP carries), which may wait for [`Link::flush`]. `write` is called
    /// at most once, with the IPv4 identification that the packet will have (unless the way is [connected](Link::connect))
    /// and memory of exactly that length, all of which it must fill.
    ///
    /// # Errors
    /// When the packet was not taken; `write` was not called then.
    fn send(
        &mut self,
        path: &Path,
        length: usize,
        write: &mut dyn FnMut(u16, &mut [u8]),
    ) -> Result<(), SendError>;

    /// Everything sent so far is on its way, or says `false`: the network takes no more now; call again.
    fn flush(&mut self) -> bool;

    /// Takes packets that have come in, a bounded number, and hands over each. Returns how many.
    fn poll(&mut self, now: Time, receive: &mut dyn FnMut(&Received<'_>)) -> usize;

    /// Hands over what was said, since the last call, of packets that were not taken; a bounded number. Costs
    /// nothing while there is nothing. There is no default, with which a link around another could forget to hand
    /// on what that one hears; a link that hears no such news does nothing.
    fn refusals(&mut self, report: &mut dyn FnMut(&Refusal<'_>));

    /// When to poll even if nothing comes in. Without a default for the same reason.
    fn deadline(&self) -> Option<Time>;

    /// A descriptor that is readable while there is something to poll.
    fn event_descriptor(&self) -> Option<i32>;

    /// What was counted.
    fn counters(&self) -> Counters;
}

/// A link that is chosen, or wrapped in others, while the program runs.
impl<L: Link + ?Sized> Link for Box<L> {
    fn local_address(&self) -> IpAddr {
        (**self).local_address()
    }

    fn mtu(&self) -> PathMtu {
        (**self).mtu()
    }

    fn path(&mut self, peer: IpAddr, entropy: u32, traffic_class: u8) -> Result<Path, LinkError> {
        (**self).path(peer, entropy, traffic_class)
    }

    fn takes_any_identification(&self) -> bool {
        (**self).takes_any_identification()
    }

    fn connect(&mut self, path: &mut Path) {
        (**self).connect(path);
    }

    fn disconnect(&mut self, path: &Path) {
        (**self).disconnect(path);
    }

    fn send(
        &mut self,
        path: &Path,
        length: usize,
        write: &mut dyn FnMut(u16, &mut [u8]),
    ) -> Result<(), SendError> {
        (**self).send(path, length, write)
    }

    fn flush(&mut self) -> bool {
        (**self).flush()
    }

    fn poll(&mut self, now: Time, receive: &mut dyn FnMut(&Received<'_>)) -> usize {
        (**self).poll(now, receive)
    }

    fn refusals(&mut self, report: &mut dyn FnMut(&Refusal<'_>)) {
        (**self).refusals(report);
    }

    fn deadline(&self) -> Option<Time> {
        (**self).deadline()
    }

    fn event_descriptor(&self) -> Option<i32> {
        (**self).event_descriptor()
    }

    fn counters(&self) -> Counters {
        (**self).counters()
    }
}

/// Why a link, or a way over it, could not be had.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LinkError {
    /// Somebody else receives RoCE packets at this address.
    #[error(
        "UDP port {port} of {address} is taken, {}",
        if *.rxe { "probably by the kernel's own RoCE (the module rdma_rxe is loaded): remove it with `rmmod rdma_rxe`, \
                    or use an address in a network namespace that it does not serve" }
        else { "probably by another daemon: `ss -lunp` names it" }
    )]
    PortTaken {
        /// The address.
        address: IpAddr,
        /// The port.
        port: u16,
        /// Whether `rdma_rxe` is loaded.
        rxe: bool,
    },
    /// No interface has the address.
    #[error("{address} is not an address of this host, which has {known}")]
    NotLocal {
        /// The address.
        address: IpAddr,
        /// The host's addresses and their interfaces.
        known: String,
    },
    /// The address is another interface's.
    #[error("{address} is on interface {found}, not on {wanted}; name {found}, or an address of {wanted}")]
    WrongInterface {
        /// The address.
        address: IpAddr,
        /// The interface that was asked for.
        wanted: String,
        /// The one that has it.
        found: String,
    },
    /// There is no such interface.
    #[error("there is no interface {interface}; this host has {known}")]
    NoInterface {
        /// The interface that was asked for.
        interface: String,
        /// The host's addresses and their interfaces.
        known: String,
    },
    /// Not even the smallest packets fit.
    #[error(
        "{place} carries packets of {mtu_bytes} bytes only; RoCE needs at least {needed_bytes} (and 4176 for full speed)"
    )]
    MtuTooSmall {
        /// The interface, or the way.
        place: String,
        /// Its MTU.
        mtu_bytes: usize,
        /// The least that will do.
        needed_bytes: usize,
    },
    /// The process may not do this.
    #[error(
        "this process may not {what} (errno {errno}); a firewall, a security module or the container's seccomp profile \
         forbids it"
    )]
    Privilege {
        /// What was tried.
        what: &'static str,
        /// The system's reason.
        errno: i32,
    },
    /// The process lacks a capability.
    #[error(
        "this process may not {what} (errno {errno}): it needs the capabilities CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF; \
         run it as root, give them to it (`AmbientCapabilities=` of a systemd unit, or `setcap \
         cap_net_raw,cap_net_admin,cap_bpf+ep PROGRAM`), or use plain UDP, which needs none"
    )]
    NoCapability {
        /// What was tried.
        what: &'static str,
        /// The system's reason.
        errno: i32,
    },
    /// The kernel cannot do it.
    #[error(
        "this kernel cannot {what} (errno {errno}): AF_XDP needs Linux 5.9 or newer with CONFIG_XDP_SOCKETS and \
         CONFIG_BPF_SYSCALL; use plain UDP"
    )]
    NoAfXdp {
        /// What was tried.
        what: &'static str,
        /// The system's reason.
        errno: i32,
    },
    /// Another program looks at the interface's frames.
    #[error(
        "another XDP program{} is attached to {interface}; end what attached it (`bpftool link` shows it; one of another \
         daemon of ours goes with that daemon), take it off with `ip link set dev {interface} xdp off`, or use plain UDP",
        id.map_or_else(String::new, |id| format!(" (number {id})"))
    )]
    ProgramAttached {
        /// The interface.
        interface: String,
        /// The program's number, if it can still be seen.
        id: Option<u32>,
    },
    /// Another AF_XDP socket serves a queue.
    #[error(
        "queue {queue} of {interface} is served by another AF_XDP socket; end the program that has it (`ss --xdp -p` \
         names it), or use plain UDP"
    )]
    QueueTaken {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
    },
    /// A queue is not there, or cannot be used.
    #[error(
        "{interface} has no queue {queue} that receives and sends; `ethtool -l {interface}` says what it has"
    )]
    NoQueue {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
    },
    /// More queues than one thread should look at.
    #[error(
        "{interface} has {queues} receive queues, and at most {most} can be served: reduce them with `ethtool -L \
         {interface} combined 4`, or use plain UDP"
    )]
    TooManyQueues {
        /// The interface.
        interface: String,
        /// How many it has.
        queues: u32,
        /// The most.
        most: u32,
    },
    /// The frames' memory may not be locked.
    #[error(
        "the system refuses to lock {bytes} bytes for frames (errno {errno}): raise the limit (`LimitMEMLOCK=` of a systemd \
         unit, `ulimit -l`), give the process CAP_IPC_LOCK, or use plain UDP"
    )]
    LockedMemory {
        /// How much it is.
        bytes: usize,
        /// The system's reason.
        errno: i32,
    },
    /// Frames would be copied.
    #[error(
        "{} {interface} copies each frame, with which large messages take longer than over plain UDP",
        if *.known { "the driver of" } else { "this kernel does not say (Linux 6.3 does) whether the driver of" }
    )]
    Copies {
        /// The interface.
        interface: String,
        /// Whether the kernel says so.
        known: bool,
    },
    /// No frames to speak of.
    #[error(
        "{interface} carries no Ethernet frames, which AF_XDP is about; use plain UDP, or an address of another interface"
    )]
    NotEthernet {
        /// The interface.
        interface: String,
    },
    /// The kernel would go another way.
    #[error(
        "the way to {peer} leaves by {found}, not by {wanted} (`ip route get {peer}`); only peers beyond {wanted} can be \
         reached: use the address of {found}, change the route, or use plain UDP"
    )]
    WrongWay {
        /// The peer's address.
        peer: IpAddr,
        /// The link's interface.
        wanted: String,
        /// The one that the route names.
        found: String,
    },
    /// A neighbour has been asked for its address. No failure: it may answer within a second.
    #[error("{hop} is being asked for its Ethernet address")]
    Resolving {
        /// The neighbour.
        hop: IpAddr,
    },
    /// A neighbour does not answer.
    #[error(
        "{hop} does not answer on {interface} when asked for its Ethernet address; is it up, and on this network? \
         (`ip neighbour get {hop} dev {interface}`)"
    )]
    NoNeighbour {
        /// The neighbour.
        hop: IpAddr,
        /// The interface.
        interface: String,
    },
    /// IPv4 here and IPv6 there.
    #[error(
        "{peer} and this node's {local} are not of one family; give the nodes addresses of the same kind"
    )]
    Family {
        /// The peer's address.
        peer: IpAddr,
        /// This node's.
        local: IpAddr,
    },
    /// There is no way to the peer.
    #[error(
        "{peer} cannot be reached from {local} (errno {errno}); check the addresses and `ip route get {peer}`"
    )]
    Unreachable {
        /// The peer's address.
        peer: IpAddr,
        /// This node's.
        local: IpAddr,
        /// The system's reason.
        errno: i32,
    },
    /// A limit that was asked for is out of range.
    #[error("{limit} must be between 1 and {most}")]
    Limit {
        /// Which limit.
        limit: &'static str,
        /// The most it may be.
        most: usize,
    },
    /// Anything else.
    #[error("the system refused to {what} (errno {errno})")]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's reason.
        errno: i32,
    },
}
