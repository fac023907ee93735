//! Over AF_XDP: frames go between this process and the network interface's driver, past the kernel's network stack.
//!
//! ```text
//!  interface ── XDP program ──┬─ RoCE for our address ── socket of the queue: rings, memory ── this link
//!                             └─ everything else ─────── the kernel, as if nothing were there
//! ```
//!
//! Every receive queue of the interface has a socket of its own with memory of its own, all served by the one thread that
//! owns the link; what is sent goes out of the queue that the connection was given. Frames are copied between the rings
//! and the driver unless the driver can do without (zero-copy). The program belongs to the link: the kernel detaches it
//! when the link, or the process, ends. [`XdpLink::describe`] says what was got of all this.
//!
//! Needed: Linux 5.9, `CAP_NET_RAW`, `CAP_NET_ADMIN` and `CAP_BPF`, an Ethernet interface that no other program is
//! attached to, and a limit on locked memory (`LimitMEMLOCK=`) that leaves room for the frames unless the process has
//! `CAP_IPC_LOCK`. Frames must fit a page, so the path MTU is at most 2048. Frames with VLAN tags are left to the kernel:
//! an address on a VLAN is reached over the VLAN's own interface, in generic mode.
//!
//! # Interfaces
//! - Network cards: as many queues as threads should share the work is too many here: one thread serves all of them.
//!   `ethtool -L eth0 combined 1` (or few) keeps it from looking at empty ones; or steer the port to some queues
//!   (`ethtool -N eth0 flow-type udp4 dst-port 4791 action 0`) and name those in [`XdpConfig::queues`].
//! - Virtual interfaces (veth): the native mode works at once. While a program is attached the kernel hands over TCP in
//!   single packets there, which costs TCP most of its speed. In generic mode the peer must cut its packets itself, or
//!   those that its socket joined (`UdpLink` does it) are too long for a frame: `ethtool -K PEER tx-udp-segmentation off`,
//!   or `ip link set dev PEER gso_max_segs 1`.
//! - Where nothing but the generic mode works, the interface's own joining must be off: `ethtool -K eth0 gro off lro off`.

mod bpf;
mod features;
mod frame;
mod loopback;
mod neighbours;
mod netlink;
mod program;
mod queue;
mod ring;
mod umem;

use core::{net::IpAddr, ops::Range};
use std::{
    fmt::Write,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use ringway_verbs::Time;
use ringway_wire::{Addresses, Flow, PathMtu, ROCE_PORT};
use rustix::{
    event::epoll,
    net::{AddressFamily, SocketType, sockopt::set_socket_recv_buffer_size},
};

use self::{
    loopback::Loopback,
    neighbours::Neighbours,
    queue::{FRAME_BYTES_MAX, Queue, Setup, Step},
};
use super::{
    Counters, Link, LinkError, Path, Received, Refusal, SendError,
    local::{LocalAddress, open, path_mtu, refused},
    system::{self, errno},
};

/// The most queues of a link.
const QUEUES_MAX: u32 = 32;
/// Frames handed over from one queue in one poll.
const POLL_BATCH: usize = 64;
/// The most frames of a queue, each way.
const FRAMES_MAX: u32 = 1 << 15;
/// The largest path MTU whose frames fit a chunk.
const MTU_MAX: PathMtu = PathMtu::Mtu2048;
/// Bits of [`Path::via`] that say which queue; the others say which neighbour.
const VIA_QUEUE_BITS: u32 = 8;
/// [`Path::via`] of the way to this link itself.
const VIA_SELF: u32 = u32::MAX;

// How a program is attached (`linux/if_link.h`).
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// Where the program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XdpMode {
    /// In the interface's driver.
    Native,
    /// In the kernel, behind any driver: slower, and everywhere.
    Generic,
}

/// Whether the hardware uses the frames' memory directly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZeroCopy {
    /// No.
    Never,
    /// Where it can.
    Wanted,
    /// Where the driver says beforehand that it can; else there is no link, and nothing was attached.
    Required,
}

/// What an AF_XDP link shall be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XdpConfig {
    /// An address of this host, which no other daemon uses.
    pub address: IpAddr,
    /// The interface that the address must be on; the one that has it if `None`.
    pub interface: Option<String>,
    /// Where packets are received. Hardware and rxe know no port but [`ROCE_PORT`].
    pub port: u16,
    /// The receive queues to serve, all if `None`. What comes in on others is lost: steer the port to these.
    pub queues: Option<Range<u32>>,
    /// Frames that may wait each way, for each queue: a power of two. Each takes 4 KiB of locked memory.
    pub frames: u32,
    /// Where the program must run; in the driver if possible if `None`.
    pub mode: Option<XdpMode>,
    /// Whether the hardware uses the frames' memory directly.
    pub zero_copy: ZeroCopy,
    /// For how long a call may poll the hardware instead of waiting for its interrupts (microseconds), where frames are not
    /// copied and `napi_defer_hard_irqs` and `gro_flush_timeout` of the interface are set; 0 for never.
    pub busy_poll_us: u32,
}

impl XdpConfig {
    /// The usual, at this address.
    #[must_use]
    pub const fn new(address: IpAddr) -> Self {
        let (interface, queues, mode) = (None, None, None);
        Self {
            address,
            interface,
            port: ROCE_PORT,
            queues,
            frames: 1024,
            mode,
            zero_copy: ZeroCopy::Wanted,
            busy_poll_us: 20,
        }
    }
}

/// A link over AF_XDP.
#[derive(Debug)]
pub struct XdpLink {
    config: XdpConfig,
    mtu: PathMtu,
    /// Detaches the program when it is closed, and so goes first.
    attached: Attached,
    queues: Vec<Queue>,
    /// How many of the queues, from the first on, can send.
    sending: u32,
    /// Readable while one of several queues has something.
    events: Option<OwnedFd>,
    neighbours: Neighbours,
    /// Once a way to this link itself was asked for.
    loopback: Option<Loopback>,
    /// Keeps the port, so that nobody else believes it could be had.
    _port: OwnedFd,
    counters: Counters,
}

/// The program on the interface.
#[derive(Debug)]
struct Attached {
    /// Closing it detaches the program.
    _link: OwnedFd,
    map: OwnedFd,
    mode: XdpMode,
    /// Why it does not run in the driver.
    not_native: Option<i32>,
}

impl XdpLink {
    /// Attaches the program and opens the sockets.
    ///
    /// # Errors
    /// When the address is not this host's, not the interface's or taken, when the interface cannot carry RoCE or has
    /// another program, when this process lacks a capability, or when the system refuses.
    pub fn new(config: XdpConfig) -> Result<Self, LinkError> {
        if !config.frames.is_power_of_two() || config.frames > FRAMES_MAX {
            return Err(LinkError::Limit { limit: "frames (a power of two)", most: 1 << 15 });
        }
        let local = LocalAddress::find(config.address, config.interface.as_deref())?;
        let port = open(config.address)?;
        let mtu = local.mtu(port.as_fd())?.min(MTU_MAX);
        // Nobody reads what comes here in spite of the program: as little of it as possible is kept.
        let _ = set_socket_recv_buffer_size(&port, 0);
        local.bind_port(&port, config.port)?;
        let mut neighbours = Neighbours::new(&local.interface)?;
        copies(&config, &neighbours)?;
        let channels = system::channels(port.as_fd(), &local.interface);
        let wanted = wanted_queues(&config, &local.interface, channels)?;
        let attached = attach(&config, &mut neighbours, wanted.end)?;
        let queues = open_queues(&config, &neighbours, &attached, wanted)?;
        let sending = channels.map_or(1, |(_, sending)| sending);
        let sending = queues.iter().filter(|queue| queue.id < sending).count();
        if sending == 0 {
            let queue = config.queues.map_or(0, |queues| queues.start);
            return Err(LinkError::NoQueue { interface: local.interface, queue });
        }
        Ok(Self {
            mtu,
            attached,
            events: events(&queues).map_err(refused("wait for several sockets"))?,
            queues,
            sending: u32::try_from(sending).unwrap_or(1),
            neighbours,
            loopback: None,
            _port: port,
            counters: Counters::default(),
            config,
        })
    }

    /// Whether there could be such a link, as far as it can be told without attaching anything to the interface: a program is
    /// loaded, a socket opened, and both are gone with this call.
    ///
    /// # Errors
    /// As [`XdpLink::new`].
    pub fn check(config: &XdpConfig) -> Result<(), LinkError> {
        let local = LocalAddress::find(config.address, config.interface.as_deref())?;
        let port = open(config.address)?;
        local.mtu(port.as_fd())?;
        let mut neighbours = Neighbours::new(&local.interface)?;
        let wanted =
            wanted_queues(config, &local.interface, system::channels(port.as_fd(), &local.interface))?;
        load(config, wanted.end)?;
        rustix::net::socket(AddressFamily::XDP, SocketType::RAW, None)
            .map_err(|error| privileged("open an AF_XDP socket")(error.into()))?;
        if let Some(id) = neighbours.attached_program() {
            return Err(LinkError::ProgramAttached { interface: local.interface, id: Some(id) });
        }
        copies(config, &neighbours)?;
        local.bind_port(&port, config.port)
    }

    /// What was got, in one line.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut line = format!("AF_XDP on {}: ", self.neighbours.interface.name);
        let any = |what: fn(&Queue) -> bool| self.queues.iter().any(what);
        let _ = match (self.attached.mode, self.attached.not_native) {
            (XdpMode::Native, _) => write!(line, "program in the driver"),
            (XdpMode::Generic, None) => write!(line, "generic program"),
            (XdpMode::Generic, Some(errno)) => {
                write!(line, "generic program (the driver takes none, errno {errno})")
            }
        };
        line += if any(|queue| queue.zero_copy) { ", zero-copy" } else { ", copying" };
        let _ = match self.queues.len() {
            1 => write!(line, ", 1 queue"),
            several => write!(line, ", {several} queues ({} send)", self.sending),
        };
        line += if any(Queue::has_huge_pages) { ", huge pages" } else { ", ordinary pages" };
        line += if any(|queue| queue.busy_poll) { ", busy polling" } else { ", no busy polling" };
        let _ = write!(line, ", path MTU {}", self.mtu.bytes());
        line
    }

    /// Whether the driver takes frames from our memory, and puts them there, in all queues: else the kernel copies each, either way.
    #[must_use]
    pub fn is_zero_copy(&self) -> bool {
        self.queues.iter().all(|queue| queue.zero_copy)
    }

    /// Frames for this link that the kernel had no room for. It is asked, so this is not for every turn.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.queues.iter().map(Queue::dropped).sum()
    }

    /// Where the program runs.
    #[must_use]
    pub const fn mode(&self) -> XdpMode {
        self.attached.mode
    }

    /// How many queues are served.
    #[must_use]
    pub const fn queues(&self) -> usize {
        self.queues.len()
    }
}

/// The queues to serve, of those that the interface has if that is known.
fn wanted_queues(
    config: &XdpConfig,
    interface: &str,
    channels: Option<(u32, u32)>,
) -> Result<Range<u32>, LinkError> {
    let interface = interface.to_owned();
    match (&config.queues, channels) {
        (Some(queues), Some((receiving, _))) if queues.end > receiving => {
            Err(LinkError::NoQueue { interface, queue: queues.end.saturating_sub(1) })
        }
        (Some(queues), _) if queues.is_empty() || queues.len() > QUEUES_MAX as usize => {
            Err(LinkError::Limit { limit: "queues", most: QUEUES_MAX as usize })
        }
        (Some(queues), _) => Ok(queues.clone()),
        (None, Some((queues, _))) if queues > QUEUES_MAX => {
            Err(LinkError::TooManyQueues { interface, queues, most: QUEUES_MAX })
        }
        (None, Some((queues, _))) => Ok(0..queues.max(1)),
        // An interface that does not tell has one, as far as virtual ones go.
        (None, None) => Ok(0..1),
    }
}

/// Says what an error of a privileged call means.
fn privileged(what: &'static str) -> impl Fn(io::Error) -> LinkError {
    move |error| match errno(&error) {
        errno @ (libc::EPERM | libc::EACCES) => LinkError::NoCapability { what, errno },
        errno @ (libc::ENOSYS | libc::EAFNOSUPPORT) => LinkError::NoAfXdp { what, errno },
        errno => LinkError::System { what, errno },
    }
}

/// Refuses what copies where that was asked for; the driver is asked.
fn copies(config: &XdpConfig, neighbours: &Neighbours) -> Result<(), LinkError> {
    let interface = &neighbours.interface;
    match config.zero_copy {
        ZeroCopy::Never | ZeroCopy::Wanted => Ok(()),
        ZeroCopy::Required => match features::zero_copy(interface.index) {
            Ok(true) => Ok(()),
            answer => Err(LinkError::Copies { interface: interface.name.clone(), known: answer.is_ok() }),
        },
    }
}

/// The program, and a map for the sockets of queues below `queues`, which is empty as yet.
fn load(config: &XdpConfig, queues: u32) -> Result<(OwnedFd, OwnedFd), LinkError> {
    let map = bpf::create_map(queues).map_err(privileged("make a map for AF_XDP sockets"))?;
    let program = program::redirect(config.address, config.port, map.as_fd(), program::PASS);
    let program = bpf::load(&program).map_err(privileged("load an XDP program"))?;
    Ok((program, map))
}

/// Attaches the program, with a map for the sockets of queues below `queues`, which is empty as yet.
fn attach(config: &XdpConfig, neighbours: &mut Neighbours, queues: u32) -> Result<Attached, LinkError> {
    let (program, map) = load(config, queues)?;
    let index = neighbours.interface.index;
    let try_one = |flags| bpf::attach(program.as_fd(), index, flags);
    let mut refuse = |error: io::Error| match errno(&error) {
        libc::EBUSY | libc::EEXIST => LinkError::ProgramAttached {
            interface: neighbours.interface.name.clone(),
            id: neighbours.attached_program(),
        },
        _ => privileged("attach an XDP program to the interface")(error),
    };
    let native = match config.mode {
        Some(XdpMode::Generic) => None,
        Some(XdpMode::Native) | None => Some(try_one(XDP_FLAGS_DRV_MODE)),
    };
    let not_native = match native {
        Some(Ok(link)) => {
            return Ok(Attached { _link: link, map, mode: XdpMode::Native, not_native: None });
        }
        Some(Err(error)) if config.mode.is_some() || is_final(&error) => return Err(refuse(error)),
        Some(Err(error)) => Some(errno(&error)),
        None => None,
    };
    let link = try_one(XDP_FLAGS_SKB_MODE).map_err(&mut refuse)?;
    Ok(Attached { _link: link, map, mode: XdpMode::Generic, not_native })
}

/// Whether attaching a program otherwise would fail for the same reason.
fn is_final(error: &io::Error) -> bool {
    matches!(errno(error), libc::EBUSY | libc::EEXIST | libc::EPERM | libc::EACCES | libc::ENODEV)
}

fn open_queues(
    config: &XdpConfig,
    neighbours: &Neighbours,
    attached: &Attached,
    wanted: Range<u32>,
) -> Result<Vec<Queue>, LinkError> {
    let mut queues = Vec::with_capacity(wanted.len());
    for id in wanted {
        let copy = attached.mode == XdpMode::Generic || config.zero_copy == ZeroCopy::Never;
        let (frames, busy_poll_us) = (config.frames, config.busy_poll_us);
        let setup = Setup { interface: neighbours.interface.index, queue: id, frames, copy, busy_poll_us };
        let queue = Queue::open(&setup).map_err(|(step, error)| {
            let interface = neighbours.interface.name.clone();
            match (step, errno(&error)) {
                (Step::Bind, libc::EBUSY) => LinkError::QueueTaken { interface, queue: id },
                (Step::Bind, libc::EINVAL) => LinkError::NoQueue { interface, queue: id },
                (Step::Memory, errno @ (libc::ENOBUFS | libc::ENOMEM)) => {
                    let bytes = 2 * frames as usize * umem::CHUNK_BYTES;
                    LinkError::LockedMemory { bytes, errno }
                }
                (Step::Open, _) => privileged("open an AF_XDP socket")(error),
                (Step::Memory, _) => privileged("give an AF_XDP socket its memory")(error),
                (Step::Rings, _) => privileged("make the rings of an AF_XDP socket")(error),
                (Step::Bind, _) => privileged("bind an AF_XDP socket to a queue")(error),
            }
        })?;
        bpf::set_socket(attached.map.as_fd(), id, queue.socket())
            .map_err(privileged("put an AF_XDP socket into the program's map"))?;
        queues.push(queue);
    }
    Ok(queues)
}

/// A descriptor for all sockets, if there are several.
fn events(queues: &[Queue]) -> io::Result<Option<OwnedFd>> {
    if queues.len() < 2 {
        return Ok(None);
    }
    let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for queue in queues {
        let data = epoll::EventData::new_u64(u64::from(queue.id));
        epoll::add(&events, queue.socket(), data, epoll::EventFlags::IN)?;
    }
    Ok(Some(events))
}

/// The port that packets of this entropy come from: one of the 16,384 that are usual for RoCE.
const fn source_port(entropy: u32) -> u16 {
    // Multiplying by the golden ratio spreads neighbouring numbers.
    0xc000 | (entropy.wrapping_mul(0x9e37_79b1) >> 18) as u16
}

impl Link for XdpLink {
    fn local_address(&self) -> IpAddr {
        self.config.address
    }

    fn mtu(&self) -> PathMtu {
        self.mtu
    }

    /// The peer, or a gateway to it, must be a neighbour on the interface, or this link itself. While it is asked for its
    /// Ethernet address the answer is [`LinkError::Resolving`].
    fn path(&mut self, peer: IpAddr, entropy: u32, traffic_class: u8) -> Result<Path, LinkError> {
        let local = self.config.address;
        let addresses = Addresses::new(local, peer).ok_or(LinkError::Family { peer, local })?;
        let flow = Flow { addresses, source_port: source_port(entropy), destination_port: self.config.port };
        if peer == local {
            let ethernet = self.neighbours.header_to_self(local);
            self.loopback.get_or_insert_with(|| Loopback::new(ethernet));
            return Ok(Path { flow, mtu: self.mtu, traffic_class, via: VIA_SELF });
        }
        let route = self.neighbours.route(local, peer)?;
        let mtu = match route.mtu_bytes {
            Some(bytes) => path_mtu(bytes, || format!("the way to {peer}"))?.min(self.mtu),
            None => self.mtu,
        };
        let neighbour = self.neighbours.resolve(route.hop)?;
        let queue = entropy % self.sending.max(1);
        Ok(Path { flow, mtu, traffic_class, via: neighbour << VIA_QUEUE_BITS | queue })
    }

    /// It looks at whole packets, of which the invariant CRC covers the identification as well.
    fn takes_any_identification(&self) -> bool {
        false
    }

    fn connect(&mut self, _: &mut Path) {}

    fn disconnect(&mut self, _: &Path) {}

    fn send(
        &mut self,
        path: &Path,
        length: usize,
        write: &mut dyn FnMut(u16, &mut [u8]),
    ) -> Result<(), SendError> {
        let whole = frame::headers_length(&path.flow).saturating_add(length);
        if whole > FRAME_BYTES_MAX {
            return Err(SendError::TooLong);
        }
        let mut fill = |memory: &mut [u8], ethernet| {
            if let Some(rest) = frame::emit_headers(memory, ethernet, &path.flow, path.traffic_class) {
                write(frame::IDENTIFICATION, rest);
            }
        };
        if let (VIA_SELF, Some(loopback)) = (path.via, &mut self.loopback) {
            let ethernet = loopback.ethernet;
            loopback.push(whole, |memory| fill(memory, ethernet))?;
            self.counters.sent += 1;
            return Ok(());
        }
        let queue = path.via & ((1 << VIA_QUEUE_BITS) - 1);
        let queue = usize::try_from(queue).ok().and_then(|queue| self.queues.get_mut(queue));
        let ethernet = self.neighbours.ethernet(path.via >> VIA_QUEUE_BITS);
        let (Some(queue), Some(ethernet)) = (queue, ethernet) else {
            // A way of another link: nothing can be sent on it.
            self.counters.refused += 1;
            self.counters.last_refusal = libc::EINVAL;
            return Ok(());
        };
        queue.push(whole, |memory| fill(memory, ethernet))
    }

    fn flush(&mut self) -> bool {
        let mut all = true;
        for queue in self.queues.iter_mut().filter(|queue| !queue.is_idle()) {
            all &= queue.flush(&mut self.counters);
        }
        all
    }

    fn poll(&mut self, now: Time, receive: &mut dyn FnMut(&Received<'_>)) -> usize {
        self.neighbours.maintain(now);
        let (address, port) = (self.config.address, self.config.port);
        let queues = self.queues.iter_mut();
        let mut packets = queues.map(|queue| queue.receive(address, port, POLL_BATCH, receive)).sum();
        if let Some(loopback) = &mut self.loopback {
            packets += loopback.receive(address, port, POLL_BATCH, receive);
        }
        self.counters.received += packets as u64;
        packets
    }

    /// ICMP is left to the kernel, which does not know of these packets.
    fn refusals(&mut self, _report: &mut dyn FnMut(&Refusal<'_>)) {}

    /// At once if something waits that no descriptor tells of.
    fn deadline(&self) -> Option<Time> {
        self.loopback.as_ref().filter(|loopback| !loopback.is_empty()).map(|_| Time(0))
    }

    fn event_descriptor(&self) -> Option<i32> {
        match &self.events {
            Some(events) => Some(events.as_raw_fd()),
            None => self.queues.first().map(|queue| queue.socket().as_raw_fd()),
        }
    }

    fn counters(&self) -> Counters {
        let receiving: u64 = self.queues.iter().map(Queue::calls).sum();
        Counters { calls: self.counters.calls + receiving, ..self.counters }
    }
}
