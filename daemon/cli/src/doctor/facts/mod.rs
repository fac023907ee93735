//! What is so on this host, before anybody judges it.

mod loader;
mod network;
mod process;
mod rdma;
mod tried;

use std::path::Path;

use ringway_topology::{Tree, rdma::Port};

pub(super) use self::{
    network::{Holder, Interface},
    process::{Capability, Limit, User},
    rdma::{Access, Node},
    tried::Tried,
};

/// Everything that is known. Texts are as the kernel has them; `None` is what it does not tell.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) tried: Tried,
    /// Linux's release: `6.18.5-amd64`.
    pub(super) release: String,
    pub(super) user: User,
    pub(super) memlock: Limit,
    pub(super) io_uring_disabled: Option<String>,
    /// Whether users without privilege may make user namespaces.
    pub(super) user_namespaces: bool,
    pub(super) modules: Vec<String>,
    pub(super) huge: HugePages,
    pub(super) cpus: Cpus,
    pub(super) clock: Option<String>,
    pub(super) clocks: Vec<String>,
    pub(super) congestion: Option<String>,
    /// The most bytes that a socket may have for what it receives, and for what it sends.
    pub(super) buffer_bytes: [Option<u64>; 2],
    pub(super) interfaces: Vec<Interface>,
    /// Addresses of IPv4 that are this host's, but for the loopback network's.
    pub(super) addresses: Vec<String>,
    /// Who receives at the UDP port of RoCE.
    pub(super) holders: Vec<Holder>,
    pub(super) ports: Result<Vec<Port>, String>,
    /// The interfaces of RDMA devices that are `rdma_rxe`'s, by device.
    pub(super) rxe: Vec<(String, String)>,
    pub(super) nodes: Vec<Node>,
    /// Where the dynamic loader finds libibverbs.
    pub(super) libibverbs: Option<String>,
    /// How many drivers of RDMA devices libibverbs has beside it.
    pub(super) providers: usize,
    pub(super) gpu: Gpu,
    /// What the distribution is, and what it is like: `debian`, `rhel fedora`, ...
    pub(super) distribution: String,
}

/// Huge pages, as the kernel has been told to give them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HugePages {
    /// For shared memory.
    pub(super) shared: Option<String>,
    /// For a process's own.
    pub(super) own: Option<String>,
    /// Set aside for those who ask for them by name, as Ringway does not.
    pub(super) reserved: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cpus {
    /// Those that this process may use.
    pub(super) allowed: usize,
    pub(super) online: usize,
    pub(super) governor: Option<String>,
    /// What changes frequencies.
    pub(super) driver: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Gpu {
    /// NVIDIA's GPUs on the PCI bus.
    pub(super) cards: usize,
    /// The driver's version, in its own words.
    pub(super) driver: Option<String>,
}

impl Facts {
    /// Reads the files below `root`, which is `/` but for tests.
    pub(super) fn gather(root: &Path, tried: Tried) -> Self {
        let tree = Tree::new(root);
        let libibverbs = loader::find(&tree, "libibverbs.so.1");
        Self {
            release: tree.text("proc/sys/kernel/osrelease").unwrap_or_default(),
            user: User::read(&tree),
            memlock: Limit::locked_memory(&tree),
            io_uring_disabled: tree.text("proc/sys/kernel/io_uring_disabled"),
            user_namespaces: process::user_namespaces(&tree),
            modules: modules(&tree),
            huge: HugePages {
                shared: tree.chosen("sys/kernel/mm/transparent_hugepage/shmem_enabled"),
                own: tree.chosen("sys/kernel/mm/transparent_hugepage/enabled"),
                reserved: tree.number("proc/sys/vm/nr_hugepages"),
            },
            cpus: cpus(&tree),
            clock: tree.text(&format!("{CLOCKS}/current_clocksource")),
            clocks: tree.words(&format!("{CLOCKS}/available_clocksource")),
            congestion: tree.text("proc/sys/net/ipv4/tcp_congestion_control"),
            buffer_bytes: ["rmem", "wmem"].map(|name| tree.number(&format!("proc/sys/net/core/{name}_max"))),
            interfaces: network::interfaces(&tree),
            addresses: network::addresses(&tree),
            holders: network::holders(&tree, ringway_wire::ROCE_PORT),
            ports: rdma::ports(&tree),
            rxe: rdma::rxe(&tree),
            nodes: rdma::nodes(&tree),
            providers: libibverbs.as_deref().map_or(0, |library| loader::providers(&tree, library)),
            libibverbs,
            gpu: gpu(&tree),
            distribution: distribution(&tree),
            tried,
        }
    }

    /// The release as numbers; zero if it has none.
    pub(super) fn version(&self) -> (u32, u32) {
        let mut numbers = self.release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
        let mut next = || numbers.next().and_then(Result::ok).unwrap_or(0);
        (next(), next())
    }

    pub(super) fn has_module(&self, name: &str) -> bool {
        self.modules.iter().any(|module| module == name)
    }

    pub(super) fn interface(&self, name: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.name == name)
    }

    /// Who has the UDP port that a daemon at the node's address would need.
    pub(super) fn holder(&self) -> Option<&Holder> {
        self.holders.iter().find(|holder| holder.excludes(self.tried.address))
    }

    /// Whether it is a daemon of ours, so that what is in use may be used by what the question is about.
    pub(super) fn is_served(&self) -> bool {
        self.holder().is_some_and(Holder::is_ours)
    }

    /// The interface that packets of RoCE, and TCP's, go through.
    pub(super) fn own_interface(&self) -> Option<&Interface> {
        self.interface(self.tried.interface.as_deref().ok()?)
    }

    /// The ports of RDMA devices; none if they cannot be read.
    pub(super) fn ports(&self) -> &[Port] {
        self.ports.as_deref().unwrap_or_default()
    }

    /// The interface of a port on Ethernet.
    pub(super) fn interface_of(&self, port: &Port) -> Option<&Interface> {
        let of_gid = || port.gids.iter().find_map(|gid| gid.interface.as_deref());
        let parent =
            self.rxe.iter().find(|(device, _)| *device == port.device).map(|(_, name)| name.as_str());
        let by_name = of_gid().or(parent).and_then(|name| self.interface(name));
        by_name
            .or_else(|| self.interfaces.iter().find(|one| one.rdma.as_deref() == Some(port.device.as_str())))
    }

    /// The capabilities for AF_XDP that this process lacks.
    pub(super) fn lacks_for_xdp(&self) -> Vec<&'static str> {
        let has = |one: Capability| {
            self.user.can(one) || one == Capability::Bpf && self.user.can(Capability::SysAdmin)
        };
        let wanted = [Capability::NetRaw, Capability::NetAdmin, Capability::Bpf];
        wanted.into_iter().filter(|one| !has(*one)).map(Capability::name).collect()
    }

    /// Whether the distribution is one of these, or like one.
    pub(super) fn is_distribution(&self, names: &[&str]) -> bool {
        self.distribution.split(' ').any(|id| names.iter().any(|name| id.starts_with(name)))
    }

    /// The command as somebody must type it who is this user.
    pub(super) fn as_root(&self, command: &str) -> String {
        if self.user.uid == 0 { command.to_owned() } else { format!("sudo {command}") }
    }

    /// The command that writes a word into a file of root's.
    pub(super) fn write(&self, word: &str, file: &str) -> String {
        if self.user.uid == 0 {
            format!("echo {word} > {file}")
        } else {
            format!("echo {word} | sudo tee {file}")
        }
    }
}

const CLOCKS: &str = "sys/devices/system/clocksource/clocksource0";

/// Those that were loaded, and those of what is built in that have a folder.
fn modules(tree: &Tree) -> Vec<String> {
    let loaded = tree.text("proc/modules").unwrap_or_default();
    let mut names: Vec<String> =
        loaded.lines().filter_map(|line| Some(line.split(' ').next()?.to_owned())).collect();
    names.extend(tree.names("sys/module"));
    names.sort();
    names.dedup();
    names
}

fn cpus(tree: &Tree) -> Cpus {
    let frequency = |name| tree.text(&format!("sys/devices/system/cpu/cpu0/cpufreq/{name}"));
    let online = tree.text("sys/devices/system/cpu/online").map_or(0, |list| process::count(&list));
    let allowed = process::status(tree, "Cpus_allowed_list").map_or(online, |list| process::count(&list));
    Cpus { allowed, online, governor: frequency("scaling_governor"), driver: frequency("scaling_driver") }
}

fn gpu(tree: &Tree) -> Gpu {
    let is_card = |card: &String| {
        let of = |name| tree.text(&format!("sys/bus/pci/devices/{card}/{name}")).unwrap_or_default();
        // Display controllers of NVIDIA's.
        of("vendor") == "0x10de" && of("class").starts_with("0x03")
    };
    let version = tree.text("proc/driver/nvidia/version").unwrap_or_default();
    let line = version.lines().find_map(|line| line.strip_prefix("NVRM version:"));
    let driver = line.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    Gpu { cards: tree.names("sys/bus/pci/devices").iter().filter(|card| is_card(card)).count(), driver }
}

fn distribution(tree: &Tree) -> String {
    let text = tree.text("etc/os-release").unwrap_or_default();
    let value = |line: &str| {
        let (key, value) = line.split_once('=')?;
        matches!(key, "ID" | "ID_LIKE").then(|| value.trim_matches('"').to_owned())
    };
    text.lines().filter_map(value).collect::<Vec<_>>().join(" ")
}
