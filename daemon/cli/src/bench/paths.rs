//! The ways for bytes to take, and the pairs of ends that take them.

use std::net::{IpAddr, Ipv4Addr};

use super::{
    end::Kind,
    interrupt::Interrupt,
    machine,
    pair::Ends,
    result::{Path, Polling},
};
use crate::local::{
    cluster::{Cluster, ClusterOptions, Network, loopback_address, loopback_network, may_make_namespaces},
    launch::communicator_id,
    namespace::{self, Namespace},
};

/// A path as it is defined.
pub(super) struct Definition {
    pub(super) name: &'static str,
    description: &'static str,
    through_kernel: bool,
    kernel_copies: f64,
    /// Between two processes with a device or socket of their own.
    pub(super) is_between_devices: bool,
    /// Between clients of daemons.
    pub(super) is_between_clients: bool,
}

const NONE: Definition = Definition {
    name: "",
    description: "",
    through_kernel: false,
    kernel_copies: 0.0,
    is_between_devices: true,
    is_between_clients: true,
};

/// All, those that avoid the kernel first.
pub(super) const PATHS: [Definition; 7] = [
    Definition {
        name: "cell",
        description: "two ranks of one node in memory that they share, which do the work themselves",
        is_between_devices: false,
        ..NONE
    },
    Definition { name: "shm", description: "two daemons of one host over memory they share", ..NONE },
    Definition {
        name: "roce-xdp",
        description: "RoCEv2 in user space over AF_XDP: the kernel's driver, without its network stack",
        // A virtual link has no zero-copy driver: a copy into a packet of the kernel's, and one out of it.
        kernel_copies: 2.0,
        ..NONE
    },
    Definition {
        name: "roce-udp",
        description: "RoCEv2 in user space over UDP sockets: reliability and placement are ours, packets the kernel's",
        through_kernel: true,
        kernel_copies: 2.0,
        ..NONE
    },
    Definition {
        name: "tcp",
        description: "kernel TCP, driven by io_uring",
        through_kernel: true,
        kernel_copies: 2.0,
        ..NONE
    },
    Definition {
        name: "tcp-epoll",
        description: "kernel TCP, driven by epoll, recvmsg and sendmsg as ordinary servers do",
        through_kernel: true,
        kernel_copies: 2.0,
        ..NONE
    },
    Definition {
        name: "sockets",
        description: "two bare TCP sockets with nothing of Ringway behind them",
        through_kernel: true,
        kernel_copies: 2.0,
        is_between_clients: false,
        ..NONE
    },
];

impl Definition {
    /// For the report.
    pub(super) fn describe(&self, missing: Option<String>) -> Path {
        Path {
            name: self.name.to_owned(),
            description: self.description.to_owned(),
            through_kernel: self.through_kernel,
            kernel_copies: self.kernel_copies,
            missing,
        }
    }
}

/// Names that `--paths` takes.
pub(super) fn names() -> Vec<&'static str> {
    PATHS.iter().map(|path| path.name).collect()
}

/// Where the two ends of a path are: in namespaces of their own, joined by a virtual link, or on loopback.
#[derive(Debug)]
pub(super) struct Place {
    namespaces: Vec<Namespace>,
    addresses: [IpAddr; 2],
}

impl Place {
    fn of(network: Network) -> Result<Self, String> {
        if network == Network::Loopback {
            return Self::loopback();
        }
        let (namespaces, _) = namespace::network(2).map_err(|e| e.to_string())?;
        let address = |node| namespace::address(node).parse().map_err(|e| format!("{e}"));
        Ok(Self { namespaces, addresses: [address(0)?, address(1)?] })
    }

    fn loopback() -> Result<Self, String> {
        let network = loopback_network(2).map_err(|e| e.to_string())?;
        let address = |node| loopback_address(network, node).map(IpAddr::from).map_err(|e| e.to_string());
        Ok(Self { namespaces: Vec::new(), addresses: [address(0)?, address(1)?] })
    }
}

/// What `auto` comes to here.
pub(super) fn resolve(network: Network) -> Network {
    match network {
        Network::Auto if may_make_namespaces() && namespace::network(2).is_ok() => Network::Namespaces,
        Network::Auto => Network::Loopback,
        other => other,
    }
}

/// The network as the report names it.
pub(super) fn describe(network: Network) -> (String, Option<u32>) {
    match network {
        Network::Namespaces => {
            ("two network namespaces joined by a veth pair".to_owned(), namespace::MTU_BYTES.parse().ok())
        }
        _ => ("loopback".to_owned(), machine::mtu_of_loopback(IpAddr::V4(Ipv4Addr::LOCALHOST))),
    }
}

/// Ends that are ready, with all that they stand on.
#[derive(Debug)]
pub(super) struct OpenPath {
    pub(super) name: &'static str,
    pub(super) ends: Ends,
    /// How waiting can be done.
    pub(super) pollings: Vec<Polling>,
    _place: Option<Place>,
    _cluster: Option<Cluster>,
}

/// Two processes with a device each, or a socket.
pub(super) fn between_devices(
    path: &Definition,
    network: Network,
    interrupt: &Interrupt,
) -> Result<OpenPath, String> {
    // Daemons of one host find each other within one network namespace.
    let place = if path.name == "shm" { Place::loopback()? } else { Place::of(network)? };
    let kinds = [0, 1].map(|at: usize| {
        let address = place.addresses.get(at).copied().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let kind = match path.name {
            "sockets" => Kind::Sockets { address },
            name => Kind::Device { name: name.to_owned(), address },
        };
        (kind, place.namespaces.get(at))
    });
    let ends = Ends::start(&kinds, Vec::new(), interrupt)?;
    let pollings = vec![Polling::Spin, Polling::Block];
    Ok(OpenPath { name: path.name, ends, pollings, _place: Some(place), _cluster: None })
}

/// Two clients: of one daemon for the cell, else each of its own.
pub(super) fn between_clients(
    path: &Definition,
    network: Network,
    interrupt: &Interrupt,
) -> Result<OpenPath, String> {
    let is_cell = path.name == "cell";
    let options = ClusterOptions {
        nodes: if is_cell { 1 } else { 2 },
        device: if is_cell { "auto".to_owned() } else { path.name.to_owned() },
        network: if path.name == "shm" { Network::Loopback } else { network },
        daemon_arguments: Vec::new(),
        pcap: None,
    };
    clients(path.name, 2, &options, Polling::Adaptive, interrupt)
}

/// One client whose daemon does all of its work, and polls in this manner.
pub(super) fn alone(polling: Polling, interrupt: &Interrupt) -> Result<OpenPath, String> {
    let argument = |name: &str, value: &str| [name.to_owned(), value.to_owned()];
    let options = ClusterOptions {
        nodes: 1,
        device: "auto".to_owned(),
        network: Network::Loopback,
        daemon_arguments: [argument("--isolation", "strict"), argument("--polling", polling.name())].concat(),
        pcap: None,
    };
    clients("daemon", 1, &options, polling, interrupt)
}

fn clients(
    name: &'static str,
    ranks: usize,
    options: &ClusterOptions,
    polling: Polling,
    interrupt: &Interrupt,
) -> Result<OpenPath, String> {
    let cluster = Cluster::start(options).map_err(|e| e.to_string())?;
    let id = communicator_id(&cluster).map_err(|e| e.to_string())?;
    let mut kinds = Vec::new();
    for rank in 0..ranks {
        let node = cluster.nodes.get(rank % cluster.nodes.len().max(1)).ok_or("a cluster without nodes")?;
        let kind = Kind::Client {
            socket: node.socket.clone(),
            id: id.clone(),
            rank: rank as u32,
            size: ranks as u32,
        };
        kinds.push((kind, node.namespace.as_ref()));
    }
    let daemons = cluster.nodes.iter().filter_map(|node| node.daemon_pid()).collect();
    let ends = Ends::start(&kinds, daemons, interrupt)?;
    Ok(OpenPath { name, ends, pollings: vec![polling], _place: None, _cluster: Some(cluster) })
}
