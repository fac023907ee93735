//! Daemons on this machine, one for each node, gone with this process.

use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    os::unix::{fs::OpenOptionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use ringway_client::Client;
use ringway_wire::ROCE_PORT;
use rustix::process::Signal;

use super::{
    folder::Folder,
    namespace::{self, Namespace},
    process::{helper_command, signal_group},
};
use crate::perf::place;

/// How the nodes of a local cluster reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Network {
    /// Network namespaces joined by veth when this process may make them, else loopback.
    Auto,
    /// Loopback addresses 127.x.y.1, 127.x.y.2, ...
    Loopback,
    /// A network namespace for each node, joined by veth; needs CAP_SYS_ADMIN and `ip`.
    Namespaces,
}

/// What a local cluster is made of.
#[derive(Debug, Clone)]
pub(crate) struct ClusterOptions {
    pub(crate) nodes: usize,
    pub(crate) device: String,
    pub(crate) network: Network,
    /// Each of several nodes keeps its engine thread on a processor of its own, as two machines would have it: left to
    /// themselves two engine threads run on one for part of the time, while another has nothing to do. For measuring; what
    /// else runs here may want just that processor.
    pub(crate) apart: bool,
    /// Further arguments for every daemon.
    pub(crate) daemon_arguments: Vec<String>,
    /// A file for the packets of each node, whose number is put before its extension.
    pub(crate) pcap: Option<PathBuf>,
}

/// One daemon.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) socket: PathBuf,
    pub(crate) namespace: Option<Namespace>,
    daemon: Option<Child>,
    log: PathBuf,
}

/// Running daemons in a private folder. Dropping it ends them and removes the folder.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Node>,
    /// Where the first node's daemon listens for the others; `None` with one node.
    pub(crate) root: Option<SocketAddr>,
    /// How the nodes are joined, for people.
    pub(crate) description: String,
    _folder: Option<Folder>,
    _hub: Option<Namespace>,
}

impl Cluster {
    /// Starts the daemons and waits until they serve.
    ///
    /// # Errors
    /// When a daemon does not come up; the error has the last lines of its log.
    pub(crate) fn start(options: &ClusterOptions) -> io::Result<Self> {
        let (mut namespaces, hub, description) = join_nodes(options)?;
        let held = Folder::new()?;
        let folder = held.path().to_owned();
        let mut cluster = Self { nodes: Vec::new(), root: None, description, _folder: Some(held), _hub: hub };
        let network = loopback_network(options.nodes)?;
        write_key(&folder, &random_hex()?)?;
        for index in 0..options.nodes {
            let namespace = namespaces.get_mut(index).and_then(Option::take);
            let address = listen_address(network, index, namespace.is_some())?;
            if options.nodes > 1 && index == 0 {
                cluster.root = Some(address);
            }
            let node = start_daemon(&folder, index, namespace, address, options)?;
            cluster.nodes.push(node);
        }
        for node in &mut cluster.nodes {
            node.wait_until_serving()?;
        }
        Ok(cluster)
    }

    /// Starts one daemon at this address, which works with others that have the same key.
    ///
    /// # Errors
    /// When it does not come up; the error has the last lines of its log.
    pub(crate) fn one_of_several(
        address: IpAddr,
        key: &str,
        device: &str,
        daemon_arguments: Vec<String>,
    ) -> io::Result<Self> {
        let held = Folder::new()?;
        let folder = held.path().to_owned();
        let mut cluster = Self {
            nodes: Vec::new(),
            root: None,
            description: "one of several machines".to_owned(),
            _folder: Some(held),
            _hub: None,
        };
        write_key(&folder, key)?;
        let network = Network::Loopback;
        let options = ClusterOptions {
            nodes: 2,
            device: device.to_owned(),
            network,
            apart: false,
            daemon_arguments,
            pcap: None,
        };
        let listen = free_address(address)?;
        cluster.root = Some(listen);
        let mut node = start_daemon(&folder, 0, None, listen, &options)?;
        let serving = node.wait_until_serving();
        cluster.nodes.push(node);
        serving.map(|()| cluster)
    }

    /// Daemons that someone else started, each a node.
    ///
    /// # Errors
    /// When the first one, which is to be the root, does not answer or does not serve several nodes.
    pub(crate) fn running(sockets: &[PathBuf]) -> io::Result<Self> {
        let mut root = None;
        if let [first, _, ..] = sockets {
            let client =
                Client::builder().autostart(false).socket(first).connect().map_err(io::Error::other)?;
            root = client.unique_id(true).map_err(io::Error::other)?.root;
        }
        let description =
            format!("{} running daemon{}", sockets.len(), if sockets.len() == 1 { "" } else { "s" });
        let node = |socket: &PathBuf| Node {
            socket: socket.clone(),
            namespace: None,
            daemon: None,
            log: PathBuf::new(),
        };
        Ok(Self { nodes: sockets.iter().map(node).collect(), root, description, _folder: None, _hub: None })
    }
}

fn start_daemon(
    folder: &Path,
    index: usize,
    namespace: Option<Namespace>,
    address: SocketAddr,
    options: &ClusterOptions,
) -> io::Result<Node> {
    let socket = folder.join(format!("node{index}.sock"));
    let log = folder.join(format!("node{index}.log"));
    let program = std::env::current_exe()?;
    let mut arguments: Vec<std::ffi::OsString> =
        vec!["daemon".into(), "--socket".into(), socket.clone().into()];
    if options.nodes > 1 {
        arguments.extend(["--listen".into(), address.to_string().into()]);
        arguments.extend(["--cluster-key-file".into(), folder.join("cluster.key").into()]);
        arguments.extend(["--device".into(), options.device.clone().into()]);
    }
    if let Some(cpu) = options.apart.then(|| engine_cpu(index, options.nodes)).flatten() {
        arguments.extend(["--engine-cpu".into(), cpu.to_string().into()]);
    }
    if let Some(file) = &options.pcap {
        arguments.extend(["--pcap".into(), file_of_node(file, index).into()]);
    }
    arguments.extend(options.daemon_arguments.iter().map(Into::into));
    let output = fs::File::create(&log)?;
    let mut command = helper_command(namespace.as_ref(), program, arguments)?;
    command.stdout(Stdio::from(output.try_clone()?)).stderr(Stdio::from(output)).process_group(0);
    let daemon = command.spawn()?;
    Ok(Node { socket, namespace, daemon: Some(daemon), log })
}

/// The processor of a node's engine thread, where there are as many as nodes.
fn engine_cpu(node: usize, nodes: usize) -> Option<usize> {
    let processors = place::processors();
    (2..=processors.len())
        .contains(&nodes)
        .then(|| place::of_node(&processors, node, nodes).last().copied())?
}

impl Node {
    fn wait_until_serving(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !serves(&self.socket) {
            let ended = self.daemon.as_mut().map(Child::try_wait).transpose()?.flatten();
            if ended.is_some() || Instant::now() > deadline {
                let log = fs::read_to_string(&self.log).unwrap_or_default();
                let tail: Vec<&str> = log.lines().rev().take(5).collect();
                let tail: Vec<&str> = tail.into_iter().rev().collect();
                let state =
                    ended.map_or("did not come up within 20 s".to_owned(), |s| format!("ended with {s}"));
                return Err(io::Error::other(format!("a daemon {state}:\n{}", tail.join("\n"))));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// The daemon's process id, when it was started here.
    pub(crate) fn daemon_pid(&self) -> Option<u32> {
        self.daemon.as_ref().map(Child::id)
    }
}

/// `all.pcap` of node 1 is `all.1.pcap`.
fn file_of_node(file: &Path, node: usize) -> PathBuf {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let extension = file.extension().map_or_else(|| "pcap".into(), |extension| extension.to_string_lossy());
    file.with_file_name(format!("{stem}.{node}.{extension}"))
}

/// Whether a daemon accepts connections on this socket.
fn serves(socket: &Path) -> bool {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket as open};
    let Ok(address) = SocketAddrUnix::new(socket) else { return false };
    open(AddressFamily::UNIX, SocketType::SEQPACKET, None).is_ok_and(|fd| connect(&fd, &address).is_ok())
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for pid in self.nodes.iter().filter_map(Node::daemon_pid) {
            signal_group(pid, Signal::TERM);
        }
        let deadline = Instant::now() + Duration::from_secs(5);
        for daemon in self.nodes.iter_mut().filter_map(|node| node.daemon.as_mut()) {
            while matches!(daemon.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(2));
            }
            signal_group(daemon.id(), Signal::KILL);
            let _ = daemon.wait();
        }
    }
}

type Joined = (Vec<Option<Namespace>>, Option<Namespace>, String);

fn join_nodes(options: &ClusterOptions) -> io::Result<Joined> {
    let count = options.nodes;
    let loopback = |why: &str| Ok((Vec::new(), None, format!("loopback{why}")));
    if count < 2 && options.network != Network::Namespaces {
        return Ok((Vec::new(), None, "one node".to_owned()));
    }
    match options.network {
        Network::Loopback => loopback(""),
        Network::Auto if !may_make_namespaces() => loopback(" (no privilege for network namespaces)"),
        Network::Auto | Network::Namespaces => match namespace::network(count) {
            Ok((namespaces, hub)) => {
                let how = if count == 2 { "veth pair" } else { "veth and bridge" };
                Ok((namespaces.into_iter().map(Some).collect(), hub, format!("network namespaces, {how}")))
            }
            Err(error) if options.network == Network::Auto => loopback(&format!(" (no namespaces: {error})")),
            Err(error) => Err(io::Error::other(format!(
                "cannot make network namespaces: {error}; run as root with iproute2 installed, or use --network loopback"
            ))),
        },
    }
}

pub(crate) fn may_make_namespaces() -> bool {
    rustix::process::geteuid().is_root() && Command::new("ip").arg("-V").output().is_ok()
}

/// A part of the loopback network for so many nodes, `127.x.y.1` and up. RoCE packets go to one port only, so that each
/// node needs an address of its own, which no node of another cluster has.
pub(crate) fn loopback_network(nodes: usize) -> io::Result<[u8; 3]> {
    const TRIES: u32 = 64;
    for _ in 0..TRIES {
        let mut random = [0_u8; 2];
        io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, &mut random)?;
        let network = [127, random[0] % 32 + 1, random[1]];
        let is_free = |node: usize| match loopback_address(network, node) {
            Ok(address) => UdpSocket::bind((address, ROCE_PORT)).is_ok(),
            Err(_) => true,
        };
        if (0..nodes).all(is_free) {
            return Ok(network);
        }
    }
    // Only devices that need the port will complain.
    Ok([127, 0, 0])
}

pub(crate) fn loopback_address(network: [u8; 3], node: usize) -> io::Result<Ipv4Addr> {
    let [a, b, c] = network;
    let last = u8::try_from(node + 1).map_err(|_| io::Error::other("at most 255 nodes share loopback"))?;
    Ok(Ipv4Addr::new(a, b, c, last))
}

fn listen_address(network: [u8; 3], index: usize, own_namespace: bool) -> io::Result<SocketAddr> {
    if own_namespace {
        let address = namespace::address(index).parse().map_err(io::Error::other)?;
        return Ok(SocketAddr::new(address, 7411));
    }
    free_address(loopback_address(network, index)?.into())
}

/// A free port of this moment; the daemon binds it a few milliseconds later.
fn free_address(address: IpAddr) -> io::Result<SocketAddr> {
    TcpListener::bind((address, 0))?.local_addr()
}

fn write_key(folder: &Path, key: &str) -> io::Result<()> {
    let mut file =
        fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(folder.join("cluster.key"))?;
    io::Write::write_all(&mut file, key.as_bytes())
}

/// 32 random bytes as hex digits.
pub(crate) fn random_hex() -> io::Result<String> {
    let mut bytes = [0_u8; 32];
    io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}
