//! A host as a tree.

use ringway_topology::{
    Gpu, IndexSet, LinkState, Nic, NumaNode, NvLinkEnd, PciAddress, PciDevice, PciLink, PciParent, Place,
    Topology, rdma::LinkLayer,
};

use super::{
    cores,
    text::{About, Branch, Kind, Paint, bits, bytes, counted, tree},
};

/// The most names of interfaces that are only software.
const SOFTWARE_NAMES: usize = 12;

/// The host's name and what it has, and what could not be found out.
pub(super) fn lines(host: &Topology, paint: Paint) -> Vec<String> {
    let head = format!("{}  {}", paint.text(Kind::Strong, &host.name), summary(host));
    let mut lines = vec![head];
    lines.extend(tree(&branches(host), paint));
    lines.extend(host.notes.iter().map(|note| paint.text(Kind::Far, note)));
    lines
}

/// Such as `2 packages, 16 cores, 32 CPUs, 2 TiB, 8 GPUs, 9 NICs`.
pub(super) fn summary(host: &Topology) -> String {
    let cores = || host.packages.iter().flat_map(|package| &package.cores);
    let nics = host.nics.iter().filter(|nic| !nic.is_software).count();
    let memory = host.numa.iter().filter_map(|node| node.memory_bytes).fold(0, u64::saturating_add);
    let mut parts = vec![
        counted(host.packages.len() as u64, "package"),
        counted(cores().count() as u64, "core"),
        counted(cores().map(IndexSet::len).sum(), "CPU"),
    ];
    parts.extend((memory > 0).then(|| bytes(memory)));
    parts.extend((!host.gpus.is_empty()).then(|| counted(host.gpus.len() as u64, "GPU")));
    parts.push(counted(nics as u64, "NIC"));
    parts.join(", ")
}

fn branches(host: &Topology) -> Vec<Branch> {
    let mut all = Vec::new();
    let mut shown = Vec::new();
    for package in &host.packages {
        let cpus = package.cores.iter().fold(IndexSet::default(), |all, core| all.union(core));
        let is_inside = |node: &&NumaNode| !node.cpus.is_empty() && node.cpus.is_within(&cpus);
        let nodes: Vec<&NumaNode> = host.numa.iter().filter(is_inside).collect();
        let of_nodes = nodes.iter().fold(IndexSet::default(), |all, node| all.union(&node.cpus));
        let mut children = cores::branches(host, &cpus.without(&of_nodes));
        children.extend(nodes.iter().map(|node| numa(host, node, true)));
        shown.extend(nodes.iter().map(|node| node.id));
        let model = package.model.clone().unwrap_or_default();
        all.push(Branch::new(Kind::Strong, format!("package {}", package.id), model).with(children));
    }
    let rest = host.numa.iter().filter(|node| !shown.contains(&node.id)).map(|node| numa(host, node, false));
    // Some hosts have places for memory that no device has taken.
    all.extend(rest.filter(|branch| {
        !branch.children.is_empty() || !matches!(&branch.about, About::Text(text) if text.is_empty())
    }));
    all.extend(devices(host, None));
    all.extend(software(host));
    all
}

fn numa(host: &Topology, node: &NumaNode, with_cores: bool) -> Branch {
    let mut about: Vec<String> =
        node.memory_bytes.filter(|count| *count > 0).map(bytes).into_iter().collect();
    about.extend((!node.cpus.is_empty()).then(|| format!("CPUs {}", node.cpus)));
    if host.numa.len() > 1 && !about.is_empty() {
        let distances: Vec<String> = node.distances.iter().map(u8::to_string).collect();
        about.push(format!("distances {}", distances.join(" ")));
    }
    let mut children = if with_cores { cores::branches(host, &node.cpus) } else { Vec::new() };
    children.extend(devices(host, Some(node.id)));
    Branch::new(Kind::Memory, format!("NUMA node {}", node.id), about.join(", ")).with(children)
}

/// What is only software, in one line.
fn software(host: &Topology) -> Option<Branch> {
    let names: Vec<&str> = host.nics.iter().filter(|nic| nic.is_software).map(Nic::name).collect();
    let (first, rest) = names.split_at(names.len().min(SOFTWARE_NAMES));
    let more = if rest.is_empty() { String::new() } else { format!(", and {} more", rest.len()) };
    let text = format!("{}{more}", first.join(", "));
    (!names.is_empty()).then(|| Branch::new(Kind::Faint, "software NICs", text))
}

/// A device, and what it hangs on from the host bridge down.
#[derive(Clone)]
struct Hung<'a> {
    above: Vec<PciParent>,
    place: Place,
    host: &'a Topology,
}

/// The devices of a NUMA node, or those of which nobody knows where they are.
fn devices(host: &Topology, node: Option<u32>) -> Vec<Branch> {
    let hung = |place, pci: Option<&PciDevice>| {
        let mut above = pci.map(|pci| host.above(pci)).unwrap_or_default();
        above.reverse();
        Hung { above, place, host }
    };
    let gpus = host.gpus.iter().enumerate().filter(|(_, gpu)| gpu.numa_node == node);
    let nics = host.nics.iter().enumerate().filter(|(_, nic)| nic.numa_node == node && !nic.is_software);
    let mut all: Vec<Hung<'_>> = gpus.map(|(index, gpu)| hung(Place::Gpu(index), Some(&gpu.pci))).collect();
    all.extend(nics.map(|(index, nic)| hung(Place::Nic(index), nic.pci.as_ref())));
    below(all, 0)
}

/// What hangs on the same thing becomes one branch, unless it is alone there.
fn below(mut all: Vec<Hung<'_>>, level: usize) -> Vec<Branch> {
    all.sort_by_key(|one| (one.above.get(level).copied(), one.place));
    let mut branches = Vec::new();
    for together in all.chunk_by(|a, b| {
        let parent = a.above.get(level);
        parent.is_some() && parent == b.above.get(level)
    }) {
        match together {
            [only] => branches.extend(device(only)),
            [first, ..] => {
                let children = below(together.to_vec(), level + 1);
                let parent = first.above.get(level).filter(|_| children.len() > 1);
                match parent {
                    Some(parent) => {
                        let has_ports = together.iter().any(|one| one.above.len() > level + 1);
                        branches.push(bridge(first.host, *parent, has_ports).with(children));
                    }
                    None => branches.extend(children),
                }
            }
            [] => {}
        }
    }
    branches
}

fn bridge(host: &Topology, parent: PciParent, has_ports: bool) -> Branch {
    let (label, link) = match parent {
        PciParent::Root(..) => ("PCIe host bridge", String::new()),
        PciParent::Bridge(address) => {
            let bridge = host.bridges.iter().find(|bridge| bridge.address == address);
            let label = if has_ports { "PCIe switch" } else { "PCIe port" };
            (label, link(bridge.and_then(|bridge| bridge.link)))
        }
    };
    let about = About::Device([parent.to_string(), link, String::new()], Vec::new());
    Branch { kind: Kind::Plain, label: label.to_owned(), about, children: Vec::new() }
}

fn device(hung: &Hung<'_>) -> Option<Branch> {
    let (kind, label, about) = match hung.place {
        Place::Gpu(index) => (Kind::Gpu, format!("GPU{index}"), gpu(hung.host, hung.host.gpus.get(index)?)),
        Place::Nic(index) => {
            let one = hung.host.nics.get(index)?;
            (Kind::Nic, format!("NIC{index} {}", one.name()), nic(one))
        }
        Place::Numa(_) => return None,
    };
    Some(Branch { kind, label, about, children: Vec::new() })
}

fn common(pci: Option<&PciDevice>, driver: Option<&String>) -> [String; 3] {
    let address = pci.map(|pci| pci.address.to_string());
    let link = link(pci.and_then(|pci| pci.link));
    [address.unwrap_or_default(), link, driver.cloned().unwrap_or_default()]
}

fn gpu(host: &Topology, gpu: &Gpu) -> About {
    let mut about: Vec<String> = gpu.name.iter().cloned().collect();
    about.extend(gpu.memory_bytes.map(bytes));
    for links in gpu.nvlinks.iter().flatten() {
        let to = match links.to {
            NvLinkEnd::Gpu(address) => gpus(host, &[address]),
            NvLinkEnd::Switch => "switches".to_owned(),
            NvLinkEnd::Cpu => "a processor".to_owned(),
            NvLinkEnd::Unknown => "what is not shown here".to_owned(),
        };
        about.push(format!("{} to {to}", counted(links.links.into(), "NVLink")));
    }
    about.extend(gpu.peers.as_ref().filter(|_| host.gpus.len() > 1).map(|peers| match peers.as_slice() {
        [] => "no P2P".to_owned(),
        peers if peers.len() + 1 == host.gpus.len() => "P2P with all".to_owned(),
        peers => format!("P2P with {}", gpus(host, peers)),
    }));
    About::Device(common(Some(&gpu.pci), gpu.driver.as_ref()), vec![about.join(", ")])
}

/// `GPU1`, or `GPU0-3,5`, of those at these addresses.
fn gpus(host: &Topology, addresses: &[PciAddress]) -> String {
    let numbers = (0..).zip(&host.gpus).filter(|(_, gpu)| addresses.contains(&gpu.pci.address));
    let numbers: IndexSet = numbers.map(|(number, _)| number).collect();
    format!("GPU{numbers}")
}

fn nic(nic: &Nic) -> About {
    let layer = nic.link_layer.map_or("", |layer| match layer {
        LinkLayer::InfiniBand => "InfiniBand",
        LinkLayer::Ethernet => "Ethernet",
    });
    let state = match nic.state {
        LinkState::Up => "up",
        LinkState::Down => "down",
        LinkState::Unknown => "",
    };
    let own = vec![
        layer.to_owned(),
        nic.speed_mbps.map_or_else(String::new, bits),
        state.to_owned(),
        nic.mtu_bytes.map_or_else(String::new, |mtu| format!("MTU {mtu}")),
        nic.rdma.as_ref().map_or_else(String::new, |rdma| format!("RDMA {}/{}", rdma.device, rdma.port)),
    ];
    About::Device(common(nic.pci.as_ref(), nic.driver.as_ref()), own)
}

/// `PCIe 5.0 x16`, and what it could be if it is less.
fn link(link: Option<PciLink>) -> String {
    let Some(link) = link else { return String::new() };
    let speed = |mts| match PciLink::generation(mts) {
        Some(generation) => format!("{generation}.0"),
        None => format!("{} GT/s", f64::from(mts) / 1e3),
    };
    let now = format!("PCIe {} x{}", speed(link.speed_mts), link.lanes);
    match (link.speed_mts < link.max_speed_mts, link.lanes < link.max_lanes) {
        (false, false) => now,
        (true, false) => format!("{now} (of {})", speed(link.max_speed_mts)),
        (false, true) => format!("{now} (of x{})", link.max_lanes),
        (true, true) => format!("{now} (of {} x{})", speed(link.max_speed_mts), link.max_lanes),
    }
}
