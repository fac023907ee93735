//! The choice of a port and of the address that names this node there.

use std::net::{IpAddr, Ipv6Addr};

use thiserror::Error;

use crate::{Gid, GidKind, LinkLayer, Port, Selector, Transport};

/// Why there is no port to use.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ChoiceError {
    /// The host has no RDMA device.
    #[error(
        "this host has no RDMA device: /sys/class/infiniband lists none; load the network card's RDMA driver (mlx5_ib, bnxt_re, \
         irdma, ...), or for software RoCE `modprobe rdma_rxe && rdma link add rxe0 type rxe netdev INTERFACE`"
    )]
    None,
    /// No device has the name.
    #[error("there is no RDMA device `{name}` here; there are: {others}")]
    Name {
        /// What was asked for.
        name: String,
        /// What there is.
        others: String,
    },
    /// The device has no such port.
    #[error("RDMA device `{device}` has no port {port}")]
    Port {
        /// The device.
        device: String,
        /// What was asked for.
        port: u8,
    },
    /// The port has no such address.
    #[error("port {port} of RDMA device `{device}` has no GID with index {gid}; it has: {others}")]
    Gid {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// What was asked for.
        gid: u8,
        /// What there is.
        others: String,
    },
    /// Ports are there, none of which can be used.
    #[error("no RDMA port can be used: {0}")]
    Unusable(String),
    /// Of several rails one has an address that is at no port.
    #[error(
        "no RDMA port is at {address}, the address of one of several rails; there are: {others}; give rails the addresses of RoCE \
         ports, or of the interfaces of IP over InfiniBand, or name a port for each rail (`verbs:NAME:PORT,verbs:NAME:PORT`)"
    )]
    Elsewhere {
        /// The rail's address.
        address: IpAddr,
        /// Which ports there are, with what is known of where they are.
        others: String,
    },
    /// Two rails would share a port.
    #[error("port {port} of RDMA device `{device}` would be rail {} and rail {}; each rail needs a port of its own", rails[0], rails[1])]
    Shared {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// Which rails, counted from 0.
        rails: [usize; 2],
    },
    /// Several ports are named, but not one for each rail.
    #[error(
        "{named} RDMA ports are named for {rails} rail(s): name one for each rail, in their order, or one device for all"
    )]
    Selectors {
        /// How many are named.
        named: usize,
        /// How many rails there are.
        rails: usize,
    },
}

/// Where this node is to others: by what its port is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Own {
    /// The node's address between nodes, or that of one of its rails.
    pub address: IpAddr,
    /// The network interface that has it, if that is known: on InfiniBand only that tells the port.
    pub interface: Option<String>,
}

impl From<IpAddr> for Own {
    /// An address of which nobody knows where it is.
    fn from(address: IpAddr) -> Self {
        Self { address, interface: None }
    }
}

impl Own {
    /// Whether a port is at the address.
    fn is_at(&self, port: &Port) -> bool {
        match port.link_layer {
            LinkLayer::InfiniBand => {
                self.interface.as_ref().is_some_and(|interface| port.interfaces.contains(interface))
            }
            LinkLayer::Ethernet => port.gids.iter().any(|gid| self.names(gid)),
        }
    }

    /// Whether an address of RoCE is this one.
    fn names(&self, gid: &Gid) -> bool {
        gid.kind == GidKind::RoceV2 && gid.address() == self.address
    }
}

/// Where queue pairs are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The port.
    pub port: Port,
    /// This node's address there.
    pub gid: Gid,
}

impl Choice {
    /// The best of these ports that fits the selector: one that is active and at `own`, the node's address between
    /// nodes, before one that has any IPv4 address, before others. On Ethernet the address is one of RoCE v2.
    ///
    /// # Errors
    /// [`ChoiceError`] says what is wrong with each.
    pub fn best(ports: &[Port], selector: &Selector, own: Option<&Own>) -> Result<Self, ChoiceError> {
        if ports.is_empty() {
            return Err(ChoiceError::None);
        }
        let named = named(ports, selector)?;
        let mut usable: Vec<(u8, Self)> = Vec::new();
        let mut reasons = Vec::new();
        let is_only = named.len() == 1;
        for port in named {
            match gid(port, selector.gid, own) {
                Ok((rank, gid)) => usable.push((rank, Self { port: port.clone(), gid })),
                Err(reason) if is_only => return Err(reason),
                Err(reason) => reasons.push(reason.to_string()),
            }
        }
        let best = usable.into_iter().min_by_key(|(rank, _)| *rank);
        best.map(|(_, choice)| choice).ok_or_else(|| ChoiceError::Unusable(reasons.join("; ")))
    }

    /// A port for each of several rails, in their order, no port twice. Where there is a selector for each rail that says which
    /// port it is; otherwise it is the port at the rail's address, among those that fit the only selector.
    ///
    /// # Errors
    /// [`ChoiceError`]: what is wrong with the ports, and that a rail has none of its own.
    pub fn of_rails(ports: &[Port], selectors: &[Selector], rails: &[Own]) -> Result<Vec<Self>, ChoiceError> {
        let choices: Result<Vec<Self>, ChoiceError> = match selectors {
            [] => rails.iter().map(|own| Self::at(ports, &Selector::default(), own)).collect(),
            [all] => rails.iter().map(|own| Self::at(ports, all, own)).collect(),
            each if each.len() == rails.len() => {
                let named = each.iter().zip(rails);
                named.map(|(selector, own)| Self::best(ports, selector, Some(own))).collect()
            }
            each => Err(ChoiceError::Selectors { named: each.len(), rails: rails.len() }),
        };
        let choices = choices?;
        for (second, choice) in choices.iter().enumerate() {
            let is_same = |other: &Self| other.place() == choice.place();
            let first = choices.iter().position(is_same).filter(|first| *first < second);
            if let Some(first) = first {
                let (device, port) = (choice.port.device.clone(), choice.port.number);
                return Err(ChoiceError::Shared { device, port, rails: [first, second] });
            }
        }
        Ok(choices)
    }

    /// The port at this address that fits the selector.
    fn at(ports: &[Port], selector: &Selector, own: &Own) -> Result<Self, ChoiceError> {
        let there: Vec<Port> = ports.iter().filter(|port| own.is_at(port)).cloned().collect();
        if ports.is_empty() || named(ports, selector)?.iter().any(|port| own.is_at(port)) {
            return Self::best(&there, selector, Some(own));
        }
        let others: Vec<String> = ports.iter().map(whereabouts).collect();
        Err(ChoiceError::Elsewhere { address: own.address, others: others.join(", ") })
    }

    /// Which port it is.
    const fn place(&self) -> (&str, u8) {
        (self.port.device.as_str(), self.port.number)
    }
}

/// A port and what tells where it is: `mlx5_0:1 (10.0.0.1)`, `mlx5_1:1 (ib1)`.
fn whereabouts(port: &Port) -> String {
    let places: Vec<String> = match port.link_layer {
        LinkLayer::InfiniBand => port.interfaces.clone(),
        LinkLayer::Ethernet => {
            let routable = port.gids.iter().filter(|gid| gid.kind == GidKind::RoceV2);
            routable.map(|gid| gid.address().to_string()).collect()
        }
    };
    let places = if places.is_empty() { "no interface".to_owned() } else { places.join(" ") };
    format!("{}:{} ({places})", port.device, port.number)
}

/// The ports that the selector names.
fn named<'a>(ports: &'a [Port], selector: &Selector) -> Result<Vec<&'a Port>, ChoiceError> {
    let mut of_device: Vec<&Port> = ports.iter().collect();
    if let Some(name) = &selector.device {
        of_device.retain(|port| port.device == *name);
        if of_device.is_empty() {
            let mut others: Vec<&str> = ports.iter().map(|port| port.device.as_str()).collect();
            others.dedup();
            return Err(ChoiceError::Name { name: name.clone(), others: others.join(", ") });
        }
    }
    if let Some(number) = selector.port {
        let device = of_device.first().map(|port| port.device.clone()).unwrap_or_default();
        of_device.retain(|port| port.number == number);
        if of_device.is_empty() {
            return Err(ChoiceError::Port { device, port: number });
        }
    }
    Ok(of_device)
}

/// The address of a port that serves best, and how good it is: the smaller the better.
fn gid(port: &Port, index: Option<u8>, own: Option<&Own>) -> Result<(u8, Gid), ChoiceError> {
    let unusable =
        |why: &str| ChoiceError::Unusable(format!("port {} of `{}` {why}", port.number, port.device));
    match port.transport {
        Transport::InfiniBand => {}
        Transport::Iwarp => return Err(unusable("speaks iWARP, whose connections only the kernel can make")),
        Transport::Other => return Err(unusable("has no reliable connections")),
    }
    if !port.is_active() {
        let state = port.state.to_lowercase();
        return Err(unusable(&format!("is {state}: connect its cable, or set its interface up")));
    }
    if port.link_layer == LinkLayer::InfiniBand && port.lid == 0 {
        return Err(unusable("has no LID: is a subnet manager running?"));
    }
    if let Some(index) = index {
        let found = port.gids.iter().find(|gid| gid.index == index).cloned();
        let others: Vec<String> =
            port.gids.iter().map(|gid| format!("{} ({})", gid.index, gid.address())).collect();
        return found.map(|gid| (0, gid)).ok_or_else(|| ChoiceError::Gid {
            device: port.device.clone(),
            port: port.number,
            gid: index,
            others: others.join(", "),
        });
    }
    if port.link_layer == LinkLayer::InfiniBand {
        let first = port.gids.iter().min_by_key(|gid| gid.index).cloned();
        let rank = u8::from(!own.is_some_and(|own| own.is_at(port)));
        return first.map(|gid| (rank, gid)).ok_or_else(|| unusable("has no GID"));
    }
    let routable = port.gids.iter().filter(|gid| gid.kind == GidKind::RoceV2);
    let best = routable.map(|gid| (rank(gid, own), gid.clone())).min_by_key(|(rank, gid)| (*rank, gid.index));
    best.ok_or_else(|| unusable("has no address of RoCE v2: give its interface an IP address"))
}

fn rank(gid: &Gid, own: Option<&Own>) -> u8 {
    match gid.address() {
        _ if own.is_some_and(|own| own.names(gid)) => 0,
        IpAddr::V4(_) => 1,
        IpAddr::V6(address) if !is_link_local(address) => 2,
        IpAddr::V6(_) => 3,
    }
}

const fn is_link_local(address: Ipv6Addr) -> bool {
    address.segments()[0] & 0xffc0 == 0xfe80
}

#[cfg(test)]
#[path = "choice_tests.rs"]
mod tests;
