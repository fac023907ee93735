//! What lies between any two, as `nvidia-smi topo -m` shows it.

use ringway_topology::{PathClass, Place, Topology};

use super::text::{Kind, Paint, padded, width};

/// More do not fit on any screen.
const PLACES_MAX: usize = 64;

/// A table, and what its words mean.
pub(super) fn lines(host: &Topology, paint: Paint) -> Vec<String> {
    let places = places(host);
    if places.len() > PLACES_MAX {
        let (count, most) = (places.len(), PLACES_MAX);
        return vec![format!(
            "Paths are not shown, as there are {count} GPUs, NICs and NUMA nodes; {most} fit."
        )];
    }
    let labels: Vec<String> = places.iter().map(|place| label(host, *place)).collect();
    let left = places.iter().map(|place| width(&row_label(host, *place))).max().unwrap_or(0);
    let columns: Vec<usize> = labels.iter().map(|label| width(label).max(4)).collect();
    let cpus: Vec<String> = places.iter().map(|place| cpus(host, *place)).collect();
    let cpus_width = cpus.iter().map(|cpus| width(cpus)).max().unwrap_or(0).max(4);

    let head: String = labels.iter().zip(&columns).map(|(label, most)| padded(label, most + 2)).collect();
    let head = format!("{}  {head}{}  near", " ".repeat(left), padded("CPUs", cpus_width));
    let mut lines = vec![paint.text(Kind::Strong, &head)];
    let mut met = Vec::new();
    for (place, cpus) in places.iter().zip(&cpus) {
        let mut line = paint.text(kind(*place), &padded(&row_label(host, *place), left)) + "  ";
        for (other, most) in places.iter().zip(&columns) {
            let Some(class) = host.path(*place, *other) else { continue };
            line += &paint.text(colour(class), &padded(&class.to_string(), most + 2));
            met.push(class);
        }
        let near = match place {
            Place::Nic(_) => None,
            _ => host.nearest_nic(*place).map(|nic| row_label(host, Place::Nic(nic))),
        };
        line += &format!("{}  {}", padded(cpus, cpus_width), near.unwrap_or_default());
        lines.push(line.trim_end().to_owned());
    }
    lines.push(String::new());
    lines.extend(legend(&met, paint));
    lines
}

fn places(host: &Topology) -> Vec<Place> {
    let nics = host.nics.iter().enumerate().filter(|(_, nic)| !nic.is_software);
    let gpus = (0..host.gpus.len()).map(Place::Gpu);
    gpus.chain(nics.map(|(nic, _)| Place::Nic(nic))).chain((0..host.numa.len()).map(Place::Numa)).collect()
}

fn label(host: &Topology, place: Place) -> String {
    match place {
        Place::Gpu(gpu) => format!("GPU{gpu}"),
        Place::Nic(nic) => format!("NIC{nic}"),
        Place::Numa(node) => format!("NUMA{}", host.numa.get(node).map_or(0, |node| node.id)),
    }
}

/// NICs with their names.
fn row_label(host: &Topology, place: Place) -> String {
    let label = label(host, place);
    match place {
        Place::Nic(nic) => format!("{label} {}", host.nics.get(nic).map_or("", |nic| nic.name())),
        _ => label,
    }
}

const fn kind(place: Place) -> Kind {
    match place {
        Place::Gpu(_) => Kind::Gpu,
        Place::Nic(_) => Kind::Nic,
        Place::Numa(_) => Kind::Memory,
    }
}

const fn colour(class: PathClass) -> Kind {
    match class {
        PathClass::Same => Kind::Faint,
        PathClass::NvLink(_) | PathClass::Switch | PathClass::Switches => Kind::Near,
        PathClass::HostBridge | PathClass::NumaNode => Kind::Middle,
        PathClass::System => Kind::Far,
    }
}

/// The CPUs that are near.
fn cpus(host: &Topology, place: Place) -> String {
    let id = match place {
        Place::Gpu(gpu) => host.gpus.get(gpu).and_then(|gpu| gpu.numa_node),
        Place::Nic(nic) => host.nics.get(nic).and_then(|nic| nic.numa_node),
        Place::Numa(node) => host.numa.get(node).map(|node| node.id),
    };
    let node = host.numa.iter().find(|node| Some(node.id) == id);
    node.map_or_else(|| "?".to_owned(), |node| node.cpus.to_string())
}

/// What was met, the nearest first.
fn legend(met: &[PathClass], paint: Paint) -> Vec<String> {
    let has = |class: fn(&PathClass) -> bool| met.iter().any(class);
    let all: [(bool, &str, PathClass, &str); 6] = [
        (
            has(|c| matches!(c, PathClass::NvLink(_))),
            "NV#",
            PathClass::NvLink(1),
            "# NVLinks, directly or through their switches",
        ),
        (has(|c| *c == PathClass::Switch), "PIX", PathClass::Switch, "at most one PCIe switch"),
        (
            has(|c| *c == PathClass::Switches),
            "PXB",
            PathClass::Switches,
            "several PCIe switches, but no processor",
        ),
        (
            has(|c| *c == PathClass::HostBridge),
            "PHB",
            PathClass::HostBridge,
            "the processor's PCIe host bridge, as to memory of its NUMA node",
        ),
        (
            has(|c| *c == PathClass::NumaNode),
            "NODE",
            PathClass::NumaNode,
            "several PCIe host bridges of one NUMA node",
        ),
        (
            has(|c| *c == PathClass::System),
            "SYS",
            PathClass::System,
            "what connects NUMA nodes, or it is not known",
        ),
    ];
    let line = |(_, word, class, text): &(bool, &str, PathClass, &str)| {
        format!("{}  {text}", paint.text(colour(*class), &padded(word, 4)))
    };
    all.iter().filter(|(is_met, ..)| *is_met).map(line).collect()
}
