//! Daemons on this machine, one for each node, gone with this process.

use std::{
    fs, io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::unix::{
        fs::{DirBuilderExt as _, OpenOptionsExt as _},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use ringway_client::Client;
use rustix::process::Signal;

use super::{
    namespace::{self, Namespace},
    process::{helper_command, signal_group},
};

/// What may move data between nodes.
pub(crate) const DEVICES: [&str; 2] = ["auto", "tcp"];

/// How the nodes of a local cluster reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Network {
    /// Network namespaces joined by veth when this process may make them, else loopback.
    Auto,
    /// Loopback addresses 127.0.0.1, 127.0.0.2, ...
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
    /// Further arguments for every daemon.
    pub(crate) daemon_arguments: Vec<String>,
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
    folder: Option<PathBuf>,
    _hub: Option<Namespace>,
}

impl Cluster {
    /// Starts the daemons and waits until they serve.
    ///
    /// # Errors
    /// When a daemon does not come up; the error has the last lines of its log.
    pub(crate) fn start(options: &ClusterOptions) -> io::Result<Self> {
        let (mut namespaces, hub, description) = join_nodes(options)?;
        let folder = private_folder()?;
        let mut cluster =
            Self { nodes: Vec::new(), root: None, description, folder: Some(folder.clone()), _hub: hub };
        let key_file = folder.join("cluster.key");
        fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&key_file)
            .and_then(|mut file| io::Write::write_all(&mut file, random_hex()?.as_bytes()))?;
        for index in 0..options.nodes {
            let namespace = namespaces.get_mut(index).and_then(Option::take);
            let address = listen_address(index, namespace.is_some())?;
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
        Ok(Self { nodes: sockets.iter().map(node).collect(), root, description, folder: None, _hub: None })
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
    arguments.extend(options.daemon_arguments.iter().map(Into::into));
    let output = fs::File::create(&log)?;
    let mut command = helper_command(namespace.as_ref(), program, arguments)?;
    command.stdout(Stdio::from(output.try_clone()?)).stderr(Stdio::from(output)).process_group(0);
    let daemon = command.spawn()?;
    Ok(Node { socket, namespace, daemon: Some(daemon), log })
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
        if let Some(folder) = &self.folder {
            let _ = fs::remove_dir_all(folder);
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

fn may_make_namespaces() -> bool {
    rustix::process::geteuid().is_root() && Command::new("ip").arg("-V").output().is_ok()
}

fn listen_address(index: usize, own_namespace: bool) -> io::Result<SocketAddr> {
    if own_namespace {
        let address = namespace::address(index).parse().map_err(io::Error::other)?;
        return Ok(SocketAddr::new(address, 7411));
    }
    let last = u8::try_from(index + 1).map_err(|_| io::Error::other("at most 255 nodes share loopback"))?;
    let address = Ipv4Addr::new(127, 0, 0, last);
    // A free port of this moment; the daemon binds it a few milliseconds later.
    TcpListener::bind((address, 0))?.local_addr()
}

fn private_folder() -> io::Result<PathBuf> {
    let base = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let base = if base.is_dir() { base } else { std::env::temp_dir() };
    let folder =
        base.join(format!("ringway-{}-{}", std::process::id(), random_hex()?.get(..8).unwrap_or("0")));
    fs::DirBuilder::new().mode(0o700).create(&folder)?;
    Ok(folder)
}

/// 32 random bytes as hex digits.
pub(crate) fn random_hex() -> io::Result<String> {
    let mut bytes = [0_u8; 32];
    io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}
