//! GPUs, by what PCI says about all devices.

use super::{named, pci::Bus};
use crate::{Gpu, Tree, limits};

const DEVICES: &str = "sys/bus/pci/devices";
/// NVIDIA and AMD.
const VENDORS: [&str; 2] = ["0x10de", "0x1002"];
/// Display controllers and processing accelerators.
const CLASSES: [&str; 2] = ["0x03", "0x12"];

/// The addresses of GPUs on PCI.
fn addresses(tree: &Tree) -> Vec<String> {
    let is_gpu = |address: &String| {
        let of = |name| tree.text(&format!("{DEVICES}/{address}/{name}")).unwrap_or_default();
        VENDORS.contains(&of("vendor").as_str()) && CLASSES.iter().any(|class| of("class").starts_with(class))
    };
    tree.names(DEVICES).into_iter().filter(is_gpu).collect()
}

pub(super) fn gpus(tree: &Tree, bus: &mut Bus<'_>) -> Vec<Gpu> {
    let gpu = |address: String| {
        let folder = format!("{DEVICES}/{address}");
        let seat = bus.seat(&folder);
        Some(Gpu {
            name: model(tree, &address)
                .or_else(|| tree.text(&format!("{folder}/product_name")))
                .and_then(named),
            driver: tree.link(&format!("{folder}/driver")).and_then(named),
            numa_node: seat.numa_node,
            pci: seat.pci?,
            nvlinks: None,
        })
    };
    let mut gpus: Vec<Gpu> = addresses(tree).into_iter().filter_map(gpu).collect();
    gpus.sort_by_key(|gpu| gpu.pci.address);
    gpus.dedup_by_key(|gpu| gpu.pci.address);
    gpus.truncate(limits::GPUS);
    gpus
}

/// NVIDIA's driver says `Model: NVIDIA H100 80GB HBM3`, or that it does not know.
fn model(tree: &Tree, address: &str) -> Option<String> {
    let text = tree.text(&format!("proc/driver/nvidia/gpus/{address}/information"))?;
    let model = text.lines().find_map(|line| line.strip_prefix("Model:"))?.trim().to_owned();
    (model != "Unknown").then_some(model)
}
