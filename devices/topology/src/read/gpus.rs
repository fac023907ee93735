//! GPUs, by what PCI says about all devices.

use super::{named, pci::Bus};
use crate::{Gpu, PciAddress, Tree, limits};

const DEVICES: &str = "sys/bus/pci/devices";
const NVIDIA: &str = "0x10de";
const AMD: &str = "0x1002";
/// Display controllers and processing accelerators.
const CLASSES: [&str; 2] = ["0x03", "0x12"];

/// The addresses of GPUs on PCI that are of one of these vendors.
fn addresses(tree: &Tree, vendors: &[&str]) -> Vec<String> {
    let is_gpu = |address: &String| {
        let of = |name| tree.text(&format!("{DEVICES}/{address}/{name}")).unwrap_or_default();
        vendors.contains(&of("vendor").as_str()) && CLASSES.iter().any(|class| of("class").starts_with(class))
    };
    tree.names(DEVICES).into_iter().filter(is_gpu).collect()
}

/// Where there are GPUs that NVIDIA's management library should know.
pub(crate) fn of_nvidia(tree: &Tree) -> Vec<PciAddress> {
    addresses(tree, &[NVIDIA]).iter().filter_map(|address| address.parse().ok()).collect()
}

/// What sort of device is at an address: PCI's class, subclass and interface, such as 0x030200.
pub(crate) fn class(tree: &Tree, address: PciAddress) -> Option<u32> {
    let text = tree.text(&format!("{DEVICES}/{address}/class"))?;
    u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

pub(super) fn gpus(tree: &Tree, bus: &mut Bus<'_>) -> Vec<Gpu> {
    let gpu = |address: String| {
        let folder = format!("{DEVICES}/{address}");
        let seat = bus.seat(&folder);
        Some(Gpu {
            name: information(tree, &address, "Model:")
                .or_else(|| tree.text(&format!("{folder}/product_name")))
                .and_then(named),
            uuid: information(tree, &address, "GPU UUID:").and_then(named),
            // AMD's driver says it (Documentation/gpu/amdgpu/driver-misc.rst).
            memory_bytes: tree.number(&format!("{folder}/mem_info_vram_total")),
            driver: tree.link(&format!("{folder}/driver")).and_then(named),
            numa_node: seat.numa_node,
            pci: seat.pci?,
            nvlinks: None,
            peers: None,
        })
    };
    let mut gpus: Vec<Gpu> = addresses(tree, &[NVIDIA, AMD]).into_iter().filter_map(gpu).collect();
    gpus.sort_by_key(|gpu| gpu.pci.address);
    gpus.dedup_by_key(|gpu| gpu.pci.address);
    gpus.truncate(limits::GPUS);
    gpus
}

/// NVIDIA's driver says `Model: NVIDIA H100 80GB HBM3`, or that it does not know; of the UUID it then shows question marks.
fn information(tree: &Tree, address: &str, key: &str) -> Option<String> {
    let text = tree.text(&format!("proc/driver/nvidia/gpus/{address}/information"))?;
    let value = text.lines().find_map(|line| line.strip_prefix(key))?.trim().to_owned();
    (value != "Unknown" && !value.contains('?')).then_some(value)
}
