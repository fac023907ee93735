//! Where devices are on PCI, and the bridges above them (Documentation/ABI/testing/sysfs-bus-pci).

use std::collections::BTreeMap;

use crate::{NumaNode, PciAddress, PciDevice, PciLink, PciParent, Tree, limits};

/// What was found on PCI so far.
pub(super) struct Bus<'a> {
    tree: &'a Tree,
    numa: &'a [NumaNode],
    /// With how deep each lies, from 0.
    bridges: BTreeMap<PciAddress, (usize, PciDevice)>,
}

/// Where a device is attached.
pub(super) struct Seat {
    pub(super) pci: Option<PciDevice>,
    pub(super) numa_node: Option<u32>,
}

impl<'a> Bus<'a> {
    pub(super) fn new(tree: &'a Tree, numa: &'a [NumaNode]) -> Self {
        Self { tree, numa, bridges: BTreeMap::new() }
    }

    /// Those above all devices that were asked about, a parent before its children.
    pub(super) fn into_bridges(self) -> Vec<PciDevice> {
        let mut all: Vec<(usize, PciDevice)> = self.bridges.into_values().collect();
        all.sort_by_key(|(level, bridge)| (*level, bridge.address));
        all.into_iter().map(|(_, bridge)| bridge).collect()
    }

    /// Where a device is whose folder, or a link to it, is this one. The bridges above it are remembered.
    pub(super) fn seat(&mut self, folder: &str) -> Seat {
        let Some(path) = self.tree.real(folder) else { return Seat { pci: None, numa_node: None } };
        let Some((end, chain)) = chain(&path) else {
            return Seat { pci: None, numa_node: self.numa_node(folder) };
        };
        let device = path.get(..=end).unwrap_or_default().join("/");
        let numa_node = self.numa_node(&device);
        Seat { pci: self.device(&chain), numa_node }
    }

    /// The last of a chain, whose others are bridges; `None` if it is longer, or all are more, than there can be.
    fn device(&mut self, chain: &[(PciParent, String)]) -> Option<PciDevice> {
        if chain.len() > limits::BRIDGE_LEVELS || self.bridges.len() + chain.len() > limits::BRIDGES {
            return None;
        }
        let device = |pair: &[(PciParent, String)]| match pair {
            [(parent, _), (PciParent::Bridge(address), folder)] => {
                Some(PciDevice { address: *address, parent: *parent, link: self.link(folder) })
            }
            _ => None,
        };
        let mut devices = chain.windows(2).map(device).collect::<Option<Vec<_>>>()?;
        let last = devices.pop()?;
        for (level, bridge) in devices.into_iter().enumerate() {
            self.bridges.entry(bridge.address).or_insert((level, bridge));
        }
        Some(last)
    }

    /// `None` where the kernel does not say, or says one that there is not. Where there is one only it is that.
    fn numa_node(&self, folder: &str) -> Option<u32> {
        if let [only] = self.numa {
            return Some(only.id);
        }
        // Of no node is -1.
        let node = self.tree.number(&format!("{folder}/numa_node"))?;
        self.numa.iter().map(|node| node.id).find(|id| u64::from(*id) == node)
    }

    fn link(&self, folder: &str) -> Option<PciLink> {
        let speed = |name: &str| speed(&self.tree.text(&format!("{folder}/{name}_link_speed"))?);
        let lanes = |name: &str| {
            let lanes = self.tree.number(&format!("{folder}/{name}_link_width"))?;
            u8::try_from(lanes).ok().filter(|lanes| (1..=32).contains(lanes))
        };
        Some(PciLink {
            speed_mts: speed("current")?,
            lanes: lanes("current")?,
            max_speed_mts: speed("max")?,
            max_lanes: lanes("max")?,
        })
    }
}

/// Of a device's path the host bridge and all that is below it up to the last one on PCI, with their folders, and which part of
/// the path that last one is: of `sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/net/eth0` three.
fn chain(path: &[String]) -> Option<(usize, Vec<(PciParent, String)>)> {
    let place = |(index, part): (usize, &String)| Some((index, part.parse::<PciParent>().ok()?));
    let places: Vec<(usize, PciParent)> = path.iter().enumerate().filter_map(place).collect();
    // A host bridge may be below a device, as VMD's are.
    let root = places.iter().rposition(|(_, place)| matches!(place, PciParent::Root(..)))?;
    let places = places.get(root..).filter(|places| places.len() > 1)?;
    let folder = |end: usize| path.get(..=end).unwrap_or_default().join("/");
    let end = places.last()?.0;
    Some((end, places.iter().map(|(end, place)| (*place, folder(*end))).collect()))
}

/// Speeds read `32.0 GT/s PCIe`, or `2.5 GT/s`, or `Unknown`.
fn speed(text: &str) -> Option<u32> {
    let (whole, tenths) = text.split_once(" GT/s")?.0.split_once('.')?;
    let tenths: u32 = tenths.parse().ok().filter(|tenths| *tenths < 10)?;
    whole.parse::<u32>().ok()?.checked_mul(1000)?.checked_add(tenths * 100)
}
