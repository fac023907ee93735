//! The ways for bytes to take, and the pairs of ends that take them.

use std::net::{IpAddr, Ipv4Addr};

use super::{
    daemons::Daemons,
    end::{Kind, TOOLS, Tool},
    end_process::EndProcess,
    far::{Far, FarKind},
    interrupt::Interrupt,
    ladder::Group,
    machine,
    pair::{End, Ends},
    result::{Path, Polling},
    verbs,
};
use crate::local::{
    cluster::{
        Cluster, ClusterOptions, Network, loopback_address, loopback_network, may_make_namespaces, random_hex,
    },
    launch::communicator_id,
    namespace::{self, Namespace},
};
use crate::perf::place;

/// A path as it is defined.
pub(super) struct Definition {
    pub(super) name: &'static str,
    description: &'static str,
    through_kernel: bool,
    kernel_copies: f64,
    /// Between two processes with a device or socket of their own.
    is_between_devices: bool,
    /// Between clients of daemons.
    is_between_clients: bool,
    /// Where packets go if it has any. Two machines may have one address each, and every path needs a port of it.
    roce_port: u16,
    /// It is not between addresses of the two ends: on one machine they have something in common.
    is_shared: bool,
}

const NONE: Definition = Definition {
    name: "",
    description: "",
    through_kernel: false,
    kernel_copies: 0.0,
    is_between_devices: true,
    is_between_clients: true,
    roce_port: ringway_wire::ROCE_PORT,
    is_shared: false,
};

/// All, those that avoid the kernel first.
pub(super) static PATHS: [Definition; 8] = [
    Definition {
        name: "cell",
        description: "two ranks of one node in memory that they share, which do the work themselves",
        is_between_devices: false,
        ..NONE
    },
    Definition {
        name: "shm",
        description: "two daemons of one host over memory they share",
        // Daemons of one host find each other within one network namespace.
        is_shared: true,
        ..NONE
    },
    Definition {
        name: "roce-xdp",
        description: "RoCEv2 in user space over AF_XDP: the kernel's driver, without its network stack",
        // A virtual link has no zero-copy driver: a copy into a packet of the kernel's, and one out of it.
        kernel_copies: 2.0,
        ..NONE
    },
    Definition {
        name: verbs::NAME,
        description: "an RDMA network card, which moves the bytes by itself",
        // Both ends are at one port of the machine, wherever its network interface is.
        is_shared: true,
        ..NONE
    },
    Definition {
        name: "roce-udp",
        description: "RoCEv2 in user space over UDP sockets: reliability and placement are ours, packets the kernel's",
        through_kernel: true,
        kernel_copies: 2.0,
        roce_port: 4792,
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
        description: "two bare TCP sockets with nothing of Ringway behind them but the tcp devices' congestion control",
        through_kernel: true,
        kernel_copies: 2.0,
        is_between_clients: false,
        ..NONE
    },
];

impl Definition {
    /// Whether there is such a path here at all, for an end at this address, or why not.
    fn exists(&self, own: Option<IpAddr>) -> Result<(), String> {
        if self.name == verbs::NAME { verbs::choice(own).map(drop) } else { Ok(()) }
    }

    /// The end at this address that has a device or a socket of its own; over TCP it opens so many connections.
    pub(super) fn kind(&self, address: IpAddr, tcp_connections: u32) -> Result<Kind, String> {
        self.exists(Some(address))?;
        match self.name {
            _ if !self.is_between_devices => Err(format!("{} has no device of its own", self.name)),
            "sockets" => Ok(Kind::Sockets { address }),
            name => Ok(Kind::Device {
                name: name.to_owned(),
                address,
                roce_port: self.roce_port,
                connections: tcp_connections,
            }),
        }
    }

    /// Whether its ends can be on two machines, or why not on these.
    fn reaches(&self, far: &Far) -> Result<(), String> {
        match self.name {
            "cell" => Err("its ranks are on one node".to_owned()),
            "shm" if !far.is_here() => {
                Err("the two ends are on different hosts, or in different network namespaces".to_owned())
            }
            verbs::NAME => verbs::reaches(&verbs::choice(Some(far.local))?, far.local),
            _ => Ok(()),
        }
    }

    /// Whether it has ends of this group.
    pub(super) const fn has(&self, group: Group) -> bool {
        match group {
            Group::Devices => self.is_between_devices,
            Group::Clients => self.is_between_clients,
        }
    }

    /// Whether it may have several connections.
    fn has_connections(&self) -> bool {
        self.name.starts_with("tcp")
    }

    /// What its daemons are told besides: how many connections they open, and how they wait.
    fn daemon_arguments(&self, tcp_connections: u32, polling: Polling) -> Vec<String> {
        let mut arguments = vec!["--polling".to_owned(), polling.name().to_owned()];
        if self.has_connections() {
            arguments.extend(["--tcp-connections".to_owned(), tcp_connections.to_string()]);
        }
        arguments
    }

    /// For the report.
    pub(super) fn describe(&self, missing: Option<String>, between: &Between) -> Path {
        let mut path = Path {
            name: self.name.to_owned(),
            description: self.description.to_owned(),
            through_kernel: self.through_kernel,
            kernel_copies: self.kernel_copies,
            missing,
        };
        if self.name == verbs::NAME
            && let Ok(choice) = verbs::choice(between.far().map(|far| far.local))
        {
            verbs::describe(&mut path, &choice.port, between.far().is_some());
        }
        path
    }
}

/// The path of this name.
pub(super) fn named(name: &str) -> Option<&'static Definition> {
    PATHS.iter().find(|path| path.name == name)
}

/// Names that `--paths` takes.
pub(super) fn names() -> Vec<&'static str> {
    PATHS.iter().map(|path| path.name).chain(TOOLS.iter().map(|tool| tool.name)).collect()
}

/// Where the ends of all paths are.
#[derive(Debug)]
pub(super) enum Between {
    /// On this machine, joined by this network.
    Here(Network),
    /// On this machine and a server's.
    Machines(Box<Far>),
}

impl Between {
    pub(super) const fn far(&self) -> Option<&Far> {
        match self {
            Self::Here(_) => None,
            Self::Machines(far) => Some(far),
        }
    }

    /// Why the other machine cannot be reached any more, if so.
    pub(super) fn lost(&self) -> Option<String> {
        self.far().and_then(Far::lost)
    }

    /// The network as the report names it, and the largest packet that it carries.
    pub(super) fn describe(&self) -> (String, Option<u32>) {
        match self {
            Self::Machines(far) => (format!("from {} to {}", far.local, far.remote), far.mtu_bytes),
            Self::Here(Network::Namespaces) => {
                ("two network namespaces joined by a veth pair".to_owned(), namespace::MTU_BYTES.parse().ok())
            }
            Self::Here(_) => {
                ("loopback".to_owned(), machine::mtu_of_loopback(IpAddr::V4(Ipv4Addr::LOCALHOST)))
            }
        }
    }
}

/// Two ends on this machine: in namespaces of their own, joined by a virtual link, or on loopback.
#[derive(Debug)]
struct Place {
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

impl OpenPath {
    /// Whether it can still be measured, waiting in this manner.
    pub(super) fn can(&self, polling: Polling) -> bool {
        self.pollings.contains(&polling) && self.ends.works()
    }
}

fn here(place: usize, kind: Kind, namespace: Option<&Namespace>) -> Result<End, String> {
    Ok(End::Here(EndProcess::start(place, namespace)?, kind))
}

/// Two processes with a device each, or a socket.
pub(super) fn between_devices(
    path: &'static Definition,
    between: &Between,
    tcp_connections: u32,
    interrupt: &Interrupt,
) -> Result<OpenPath, String> {
    let (ends, place) = match between {
        Between::Here(network) => {
            path.exists(None)?;
            let place = if path.is_shared { Place::loopback()? } else { Place::of(*network)? };
            let kind = |address| path.kind(address, tcp_connections);
            let end = |at: usize, address| here(at, kind(address)?, place.namespaces.get(at));
            let [first, second] = place.addresses;
            (vec![end(0, first)?, end(1, second)?], Some(place))
        }
        Between::Machines(far) => {
            path.reaches(far)?;
            let kind = path.kind(far.local, tcp_connections)?;
            (vec![here(0, kind, None)?, far_end(path, far, FarKind::Device)], None)
        }
    };
    let ends = Ends::start(ends, Daemons::default(), interrupt)?;
    let pollings = vec![Polling::Spin, Polling::Block];
    Ok(OpenPath { name: path.name, ends, pollings, _place: place, _cluster: None })
}

fn far_end(path: &Definition, far: &Far, kind: FarKind) -> End {
    End::There(far.end(path.name, kind))
}

/// Another tool's client and server.
pub(super) fn between_tools(
    tool: &'static Tool,
    between: &Between,
    interrupt: &Interrupt,
) -> Result<OpenPath, String> {
    let kind = |address, serves| Kind::Tool { name: tool.name.to_owned(), address, serves };
    let (ends, place) = match between {
        Between::Here(network) => {
            let place = Place::of(*network)?;
            let [first, second] = place.addresses;
            let client = here(0, kind(first, false), place.namespaces.first())?;
            (vec![client, here(1, kind(second, true), place.namespaces.get(1))?], Some(place))
        }
        Between::Machines(far) => (
            vec![here(0, kind(far.local, false), None)?, End::There(far.end(tool.name, FarKind::Tool))],
            None,
        ),
    };
    let ends = Ends::start(ends, Daemons::default(), interrupt)?;
    let pollings = vec![Polling::Block];
    Ok(OpenPath { name: tool.name, ends, pollings, _place: place, _cluster: None })
}

/// Two clients: of one daemon for the cell, else each of its own. The daemons wait in this manner, clients as the library does.
pub(super) fn between_clients(
    path: &'static Definition,
    between: &Between,
    tcp_connections: u32,
    polling: Polling,
    interrupt: &Interrupt,
) -> Result<OpenPath, String> {
    let network = match between {
        Between::Machines(far) => return between_machines(path, far, tcp_connections, polling, interrupt),
        Between::Here(_) if path.is_shared => Network::Loopback,
        Between::Here(network) => *network,
    };
    path.exists(None)?;
    let is_cell = path.name == "cell";
    let options = ClusterOptions {
        nodes: if is_cell { 1 } else { 2 },
        device: if is_cell { "auto".to_owned() } else { path.name.to_owned() },
        network,
        apart: true,
        daemon_arguments: path.daemon_arguments(tcp_connections, polling),
        pcap: None,
    };
    clients(path.name, 2, &options, polling, interrupt)
}

/// A daemon of its own for each client, with a key that only they have.
fn between_machines(
    path: &'static Definition,
    far: &Far,
    tcp_connections: u32,
    polling: Polling,
    interrupt: &Interrupt,
) -> Result<OpenPath, String> {
    path.reaches(far)?;
    let key = random_hex().map_err(|e| e.to_string())?;
    let cluster = daemon(path, far.local, &key, tcp_connections, polling)?;
    let node = cluster.nodes.first().ok_or("a cluster without nodes")?;
    let id = communicator_id(&cluster).map_err(|e| e.to_string())?;
    let kind = Kind::Client { socket: node.socket.clone(), id: id.clone(), rank: 0, size: 2 };
    let ends =
        vec![here(0, kind, None)?, far_end(path, far, FarKind::Client { id, key, tcp_connections, polling })];
    let ends = Ends::start(ends, Daemons::of(&cluster)?, interrupt)?;
    let pollings = vec![polling];
    Ok(OpenPath { name: path.name, ends, pollings, _place: None, _cluster: Some(cluster) })
}

/// One of two daemons, at this address.
pub(super) fn daemon(
    path: &Definition,
    address: IpAddr,
    key: &str,
    tcp_connections: u32,
    polling: Polling,
) -> Result<Cluster, String> {
    path.exists(Some(address))?;
    if !path.is_between_clients {
        return Err(format!("no daemon has {}", path.name));
    }
    let mut arguments = vec!["--roce-port".to_owned(), path.roce_port.to_string()];
    arguments.extend(path.daemon_arguments(tcp_connections, polling));
    Cluster::one_of_several(address, key, path.name, arguments).map_err(|e| e.to_string())
}

/// One client whose daemon does all of its work, and polls in this manner.
pub(super) fn alone(polling: Polling, interrupt: &Interrupt) -> Result<OpenPath, String> {
    let argument = |name: &str, value: &str| [name.to_owned(), value.to_owned()];
    let options = ClusterOptions {
        nodes: 1,
        device: "auto".to_owned(),
        network: Network::Loopback,
        apart: false,
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
    let (mut ends, processors) = (Vec::new(), place::processors().len());
    for rank in 0..ranks {
        let at = rank % options.nodes.max(1);
        let node = cluster.nodes.get(at).ok_or("a cluster without nodes")?;
        let kind = Kind::Client {
            socket: node.socket.clone(),
            id: id.clone(),
            rank: rank as u32,
            size: ranks as u32,
        };
        let place = place::first_of_node(processors, at, options.nodes) + rank / options.nodes.max(1);
        ends.push(here(place, kind, node.namespace.as_ref())?);
    }
    let ends = Ends::start(ends, Daemons::of(&cluster)?, interrupt)?;
    Ok(OpenPath { name, ends, pollings: vec![polling], _place: None, _cluster: Some(cluster) })
}
