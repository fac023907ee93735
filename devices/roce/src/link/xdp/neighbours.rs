//! Where frames have to go: the interface, routes over it, and the Ethernet addresses of its neighbours.
//!
//! The kernel resolves and keeps them; here is a copy. What changes is told in messages that are read now and then, and
//! the kernel is asked to look after every neighbour in use at intervals: nothing else uses its entries, so it would
//! let them go.

use core::net::IpAddr;
use std::{
    io,
    time::{Duration, Instant},
};

use ringway_verbs::Time;
use ringway_wire::{Addresses, ETHERNET_LENGTH, Ethernet};

use super::netlink::{
    ACKNOWLEDGE, CREATE, GROUP_NEIGHBOURS, Message, Netlink, ROUTE, Request, address, attributes, family,
    number,
};
use crate::link::{
    LinkError,
    local::{is_link_local, refused},
    system::errno,
};

/// An Ethernet address.
type Mac = [u8; 6];

/// How often news are read.
const NEWS_INTERVAL: Duration = Duration::from_millis(100);
/// How many times that is until every neighbour has been looked after.
const TURNS: usize = 100;
/// The most neighbours looked after in one turn.
const LOOKED_AFTER_MAX: usize = 16;
/// The most messages read in one turn.
const NEWS_MAX: usize = 32;
/// How long a neighbour has to answer: the kernel asks again after a second.
const PATIENCE: Duration = Duration::from_millis(1100);

const NEW_LINK: u16 = 16;
const GET_LINK: u16 = 18;
const NEW_ROUTE: u16 = 24;
const GET_ROUTE: u16 = 26;
const NEW_NEIGHBOUR: u16 = 28;
const GET_NEIGHBOUR: u16 = 30;

/// The state of a neighbour whose address is good (`NUD_VALID`): reachable, stale, delayed, probed, fixed.
const STATE_VALID: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;
/// The state of a neighbour whose address the administrator has given, or that needs none.
const STATE_FIXED: u16 = 0x40 | 0x80;
/// Ask as if a packet had to go there (`NTF_USE`). What the administrator has given the kernel would forget.
const FLAG_USE: u8 = 1;
/// A route to one host or network beyond (`RTN_UNICAST`).
const ROUTE_UNICAST: u8 = 1;
/// The kind of interface that carries Ethernet frames (`ARPHRD_ETHER`).
const ETHERNET: u16 = 1;

/// An interface.
#[derive(Debug, Clone)]
pub(super) struct Interface {
    pub(super) index: u32,
    pub(super) name: String,
    mac: Mac,
    /// The XDP program that is attached to it.
    pub(super) program: Option<u32>,
}

/// The way that the kernel would take to a peer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Route {
    /// The neighbour that it begins with.
    pub(super) hop: IpAddr,
    /// What it carries, where that is known.
    pub(super) mtu_bytes: Option<usize>,
}

/// A neighbour in use.
#[derive(Debug)]
struct Neighbour {
    hop: IpAddr,
    /// What stands before every packet to it.
    header: [u8; ETHERNET_LENGTH],
    fixed: bool,
}

impl Neighbour {
    /// Takes over what the kernel knows; what it does not know any more is believed until it knows better.
    fn learn(&mut self, seen: &Seen) {
        self.fixed = seen.fixed;
        for (to, from) in self.header.iter_mut().zip(seen.mac.iter().flatten()) {
            *to = *from;
        }
    }
}

/// What the kernel says about a neighbour.
#[derive(Debug, Clone, Copy)]
struct Seen {
    hop: IpAddr,
    /// Its address, if it is good.
    mac: Option<Mac>,
    fixed: bool,
}

/// What is known of them.
#[derive(Debug)]
pub(super) struct Neighbours {
    pub(super) interface: Interface,
    asking: Netlink,
    news: Netlink,
    entries: Vec<Neighbour>,
    /// Those that were asked for their addresses and have not answered yet, and since when.
    asked: Vec<(IpAddr, Instant)>,
    /// When news are read again.
    next: Time,
    /// Who is looked after next.
    cursor: usize,
}

impl Neighbours {
    /// Opens what is needed to know the neighbours on this interface.
    pub(super) fn new(interface: &str) -> Result<Self, LinkError> {
        let open = |groups| Netlink::open(ROUTE, groups).map_err(refused("ask about the network"));
        let (mut asking, news) = (open(0)?, open(GROUP_NEIGHBOURS)?);
        let interface = find_interface(&mut asking, interface)?;
        Ok(Self { interface, asking, news, entries: Vec::new(), asked: Vec::new(), next: Time(0), cursor: 0 })
    }

    /// The program that is attached to the interface now.
    pub(super) fn attached_program(&mut self) -> Option<u32> {
        find_interface(&mut self.asking, &self.interface.name).ok()?.program
    }

    /// The way to a peer, which must leave by the interface.
    pub(super) fn route(&mut self, local: IpAddr, peer: IpAddr) -> Result<Route, LinkError> {
        let unreachable = |errno| LinkError::Unreachable { peer, local, errno };
        let bits = if local.is_ipv4() { 32 } else { 128 };
        // Family, lengths of the addresses; type of service, table, protocol, scope, type and flags do not matter.
        let mut request = Request::new(GET_ROUTE, 0, &[&[family(peer), bits, bits, 0, 0, 0, 0, 0], &[0; 4]])
            .with_address(1, peer)
            .with_address(2, local);
        if is_link_local(peer) {
            // Such an address says nothing about where it is.
            request = request.with(4, &self.interface.index.to_ne_bytes());
        }
        let answer = self.asking.ask(request).map_err(|error| unreachable(errno(&error)))?;
        let (found, kind, route) =
            parse_route(&answer, peer).ok_or_else(|| unreachable(libc::ENETUNREACH))?;
        if found != self.interface.index {
            let wanted = self.interface.name.clone();
            return Err(LinkError::WrongWay { peer, wanted, found: self.interface_name(found) });
        }
        if kind != ROUTE_UNICAST {
            return Err(unreachable(libc::EHOSTUNREACH));
        }
        Ok(route)
    }

    fn interface_name(&mut self, index: u32) -> String {
        let request = Request::new(GET_LINK, 0, &[&[0; 4], &index.to_ne_bytes(), &[0; 8]]);
        let name = self.asking.ask(request).ok().and_then(|answer| {
            let (_, value) = attributes(answer.body.get(16..)?).find(|(kind, _)| *kind == 3)?;
            Some(String::from_utf8_lossy(value).trim_end_matches('\0').to_owned())
        });
        name.unwrap_or_else(|| format!("interface number {index}"))
    }

    /// Finds out where the neighbour is; returns its number. One that is not known yet is asked, and the caller told to come
    /// back: it may take a second.
    pub(super) fn resolve(&mut self, hop: IpAddr) -> Result<u32, LinkError> {
        // Whoever asked may have lost interest.
        self.asked.retain(|(_, since)| since.elapsed() < 2 * PATIENCE);
        let since = self.asked.iter().find(|(asked, _)| *asked == hop).map(|(_, since)| *since);
        let seen = self.look_up(hop).map_err(refused("look up a neighbour"))?;
        if since.is_none() && !seen.is_some_and(|seen| seen.fixed) {
            let request = look_after(hop, self.interface.index, ACKNOWLEDGE);
            self.asking.ask(request).map_err(refused("have a neighbour resolved"))?;
        }
        let Some(Seen { mac: Some(mac), fixed, .. }) = seen else {
            match since {
                Some(since) if since.elapsed() > PATIENCE => {
                    self.asked.retain(|(asked, _)| *asked != hop);
                    return Err(LinkError::NoNeighbour { hop, interface: self.interface.name.clone() });
                }
                Some(_) => {}
                None => self.asked.push((hop, Instant::now())),
            }
            return Err(LinkError::Resolving { hop });
        };
        self.asked.retain(|(asked, _)| *asked != hop);
        let neighbour = Neighbour { hop, header: self.header(hop, mac), fixed };
        let known = self.entries.iter().position(|entry| entry.hop == hop);
        let at = known.unwrap_or(self.entries.len());
        match self.entries.get_mut(at) {
            Some(entry) => *entry = neighbour,
            None => self.entries.push(neighbour),
        }
        Ok(u32::try_from(at).unwrap_or(u32::MAX))
    }

    /// What the kernel knows of a neighbour.
    fn look_up(&mut self, hop: IpAddr) -> io::Result<Option<Seen>> {
        let index = self.interface.index;
        let request =
            Request::new(GET_NEIGHBOUR, 0, &[&[family(hop), 0, 0, 0], &index.to_ne_bytes(), &[0; 4]])
                .with_address(1, hop);
        match self.asking.ask(request) {
            Ok(answer) => Ok(parse_neighbour(&answer, index)),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What stands before packets to this interface's own address.
    pub(super) fn header_to_self(&self, local: IpAddr) -> [u8; ETHERNET_LENGTH] {
        self.header(local, self.interface.mac)
    }

    fn header(&self, hop: IpAddr, mac: Mac) -> [u8; ETHERNET_LENGTH] {
        let family = match hop {
            IpAddr::V4(v4) => Addresses::V4 { source: v4, destination: v4 },
            IpAddr::V6(v6) => Addresses::V6 { source: v6, destination: v6 },
        };
        Ethernet::carrying(&family, self.interface.mac, mac).to_bytes()
    }

    /// What stands before packets to this neighbour.
    pub(super) fn ethernet(&self, neighbour: u32) -> Option<[u8; ETHERNET_LENGTH]> {
        Some(self.entries.get(usize::try_from(neighbour).ok()?)?.header)
    }

    /// Keeps what is known true: at intervals, and a bounded amount of work.
    #[inline]
    pub(super) fn maintain(&mut self, now: Time) {
        if now >= self.next {
            let interval = u64::try_from(NEWS_INTERVAL.as_nanos()).unwrap_or_default();
            self.next = Time(now.0.saturating_add(interval));
            self.read_news();
            self.look_after_some();
        }
    }

    fn read_news(&mut self) {
        let Self { interface, news, entries, .. } = self;
        let mut missed = false;
        for _ in 0..NEWS_MAX {
            match news.news() {
                None => break,
                Some(Ok(messages)) => {
                    let about = messages.filter_map(|message| parse_neighbour(&message, interface.index));
                    for seen in about {
                        if let Some(entry) = entries.iter_mut().find(|entry| entry.hop == seen.hop) {
                            entry.learn(&seen);
                        }
                    }
                }
                // More came than the socket holds.
                Some(Err(_)) => missed = true,
            }
        }
        if missed {
            for at in 0..self.entries.len() {
                let Some(hop) = self.entries.get(at).map(|entry| entry.hop) else { break };
                let seen = self.look_up(hop);
                if let (Ok(Some(seen)), Some(entry)) = (seen, self.entries.get_mut(at)) {
                    entry.learn(&seen);
                }
            }
        }
    }

    /// Has the kernel verify some of the neighbours. What it finds out comes as news, as do its complaints.
    fn look_after_some(&mut self) {
        for _ in 0..self.entries.len().div_ceil(TURNS).min(LOOKED_AFTER_MAX) {
            let due = self.cursor % TURNS.max(self.entries.len());
            self.cursor = due + 1;
            if let Some(entry) = self.entries.get(due).filter(|entry| !entry.fixed) {
                let request = look_after(entry.hop, self.interface.index, 0);
                // If it is refused now, the next round comes.
                let _ = self.news.tell(request);
            }
        }
    }
}

/// Has the kernel resolve a neighbour, or verify it when that is due.
fn look_after(hop: IpAddr, interface: u32, flags: u16) -> Request {
    let body: [&[u8]; 3] = [&[family(hop), 0, 0, 0], &interface.to_ne_bytes(), &[0, 0, FLAG_USE, 0]];
    Request::new(NEW_NEIGHBOUR, CREATE | flags, &body).with_address(1, hop)
}

/// What a message says about a neighbour on the interface.
fn parse_neighbour(message: &Message<'_>, interface: u32) -> Option<Seen> {
    let header: &[u8; 12] = message.body.first_chunk()?;
    let [_, _, _, _, i0, i1, i2, i3, s0, s1, _, _] = *header;
    if message.kind != NEW_NEIGHBOUR || u32::from_ne_bytes([i0, i1, i2, i3]) != interface {
        return None;
    }
    let state = u16::from_ne_bytes([s0, s1]);
    let (mut hop, mut mac) = (None, None);
    for (kind, value) in attributes(message.body.get(12..)?) {
        match kind {
            1 => hop = address(value),
            2 => mac = value.try_into().ok().filter(|_| state & STATE_VALID != 0),
            _ => {}
        }
    }
    Some(Seen { hop: hop?, mac, fixed: state & STATE_FIXED != 0 })
}

/// The interface that an answer's route leaves by, what kind of route it is, and the rest.
fn parse_route(answer: &Message<'_>, peer: IpAddr) -> Option<(u32, u8, Route)> {
    let header: &[u8; 12] = answer.body.first_chunk()?;
    let [_, _, _, _, _, _, _, kind, ..] = *header;
    if answer.kind != NEW_ROUTE {
        return None;
    }
    let mut interface = None;
    let mut route = Route { hop: peer, mtu_bytes: None };
    for (attribute, value) in attributes(answer.body.get(12..)?) {
        match attribute {
            4 => interface = number(value),
            5 => route.hop = address(value)?,
            // A gateway of the other family: only its neighbour entry differs.
            18 => route.hop = address(value.get(2..)?)?,
            8 => {
                let mtu = attributes(value).find(|(metric, _)| *metric == 2).and_then(|(_, mtu)| number(mtu));
                route.mtu_bytes = mtu.and_then(|mtu| usize::try_from(mtu).ok()).filter(|mtu| *mtu != 0);
            }
            _ => {}
        }
    }
    Some((interface?, kind, route))
}

fn find_interface(asking: &mut Netlink, name: &str) -> Result<Interface, LinkError> {
    let mut terminated = name.as_bytes().to_vec();
    terminated.push(0);
    let request = Request::new(GET_LINK, 0, &[&[0; 16]]).with(3, &terminated);
    let answer = asking.ask(request).map_err(refused("look up the interface"))?;
    parse_interface(&answer, name).ok_or_else(|| LinkError::NotEthernet { interface: name.to_owned() })
}

/// The interface in an answer; `None` if it does not carry Ethernet frames.
fn parse_interface(answer: &Message<'_>, name: &str) -> Option<Interface> {
    let header: &[u8; 16] = answer.body.first_chunk()?;
    let [_, _, k0, k1, i0, i1, i2, i3, ..] = *header;
    if answer.kind != NEW_LINK || u16::from_ne_bytes([k0, k1]) != ETHERNET {
        return None;
    }
    let index = u32::from_ne_bytes([i0, i1, i2, i3]);
    let (mut mac, mut program) = (None, None);
    for (kind, value) in attributes(answer.body.get(16..)?) {
        match kind {
            1 => mac = value.try_into().ok(),
            43 => {
                let id = attributes(value).find(|(kind, _)| *kind == 4);
                program = id.and_then(|(_, id)| number(id)).filter(|id| *id != 0);
            }
            _ => {}
        }
    }
    Some(Interface { index, name: name.to_owned(), mac: mac?, program })
}
