//! Interfaces, addresses, and who has a port.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ringway_topology::Tree;

/// `IFF_UP` of an interface's flags.
const UP: u32 = 1;

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::doctor) struct Interface {
    pub(in crate::doctor) name: String,
    pub(in crate::doctor) mtu_bytes: usize,
    /// Whether it was set up, which says nothing of its cable.
    pub(in crate::doctor) is_up: bool,
    /// The driver of its hardware.
    pub(in crate::doctor) driver: Option<String>,
    /// The RDMA device that is the same hardware.
    pub(in crate::doctor) rdma: Option<String>,
}

pub(super) fn interfaces(tree: &Tree) -> Vec<Interface> {
    let interface = |name: String| {
        let folder = format!("sys/class/net/{name}");
        let flags = tree.text(&format!("{folder}/flags"))?;
        let flags = u32::from_str_radix(flags.trim_start_matches("0x"), 16).ok()?;
        Some(Interface {
            mtu_bytes: usize::try_from(tree.number(&format!("{folder}/mtu"))?).ok()?,
            is_up: flags & UP != 0,
            driver: tree.link(&format!("{folder}/device/driver")),
            rdma: tree.names(&format!("{folder}/device/infiniband")).into_iter().next(),
            name,
        })
    };
    tree.names("sys/class/net").into_iter().filter_map(interface).collect()
}

/// Entries of the routing table that are this host's own.
pub(super) fn addresses(tree: &Tree) -> Vec<String> {
    let text = tree.text("proc/net/fib_trie").unwrap_or_default();
    let mut found: Vec<String> = Vec::new();
    let mut last = None;
    for line in text.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse::<Ipv4Addr>().ok();
        } else if line == "/32 host LOCAL" && last.is_some_and(|address| !address.is_loopback()) {
            found.extend(last.map(|address| address.to_string()));
        }
    }
    // The table is there twice where rules have been changed.
    found.sort();
    found.dedup();
    found
}

/// A socket at a UDP port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::doctor) struct Holder {
    pub(in crate::doctor) address: IpAddr,
    /// Its process, as name and number, when that can be seen. A socket of the kernel's has none.
    pub(in crate::doctor) process: Option<String>,
}

impl Holder {
    /// Whether it is a daemon of ours.
    pub(in crate::doctor) fn is_ours(&self) -> bool {
        self.process.as_deref().is_some_and(|process| process.starts_with("ringwayd "))
    }

    /// Whether nobody else can have the port at this address.
    pub(in crate::doctor) fn excludes(&self, address: IpAddr) -> bool {
        match self.address {
            _ if self.address == address => true,
            // What is bound to any IPv6 address has IPv4 as well, as a rule.
            IpAddr::V6(own) => own.is_unspecified(),
            IpAddr::V4(own) => own.is_unspecified() && address.is_ipv4(),
        }
    }
}

pub(super) fn holders(tree: &Tree, port: u16) -> Vec<Holder> {
    let mut found = Vec::new();
    for file in ["proc/net/udp", "proc/net/udp6"] {
        let text = tree.text(file).unwrap_or_default();
        let sockets = text.lines().filter_map(|line| socket(line, port));
        found.extend(sockets.map(|(address, inode)| Holder { address, process: process(tree, &inode) }));
    }
    found
}

/// Address and inode of a line of `/proc/net/udp`, if it is at this port.
fn socket(line: &str, port: u16) -> Option<(IpAddr, String)> {
    let mut words = line.split_whitespace();
    let (address, found) = words.nth(1)?.split_once(':')?;
    let inode = words.nth(7)?.to_owned();
    let is_it = u16::from_str_radix(found, 16).is_ok_and(|found| found == port);
    is_it.then_some((self::address(address)?, inode))
}

/// Words of 32 bits, in the order of this processor.
fn address(digits: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(digits.get(at..at.checked_add(8)?)?, 16).ok();
    if digits.len() == 8 {
        return Some(Ipv4Addr::from(word(0)?.to_ne_bytes()).into());
    }
    let words = [word(0)?, word(8)?, word(16)?, word(24)?].map(u32::to_be);
    let bits = words.into_iter().fold(0, |bits, word| bits << 32 | u128::from(word));
    Some(Ipv6Addr::from(bits).into())
}

/// Who has a socket, as far as this process may look.
fn process(tree: &Tree, inode: &str) -> Option<String> {
    let wanted = format!("socket:[{inode}]");
    for id in tree.names("proc").into_iter().filter(|name| name.bytes().all(|b| b.is_ascii_digit())) {
        let descriptors = format!("proc/{id}/fd");
        let has_it = |name: &String| {
            let target = fs::read_link(tree.path(&format!("{descriptors}/{name}")));
            target.is_ok_and(|target| target.as_os_str() == wanted.as_str())
        };
        if tree.names(&descriptors).iter().any(has_it) {
            let name = tree.text(&format!("proc/{id}/comm")).unwrap_or_default();
            return Some(format!("{name} (process {id})"));
        }
    }
    None
}
