//! What becomes of a host, whatever was said.

use std::path::Path;

use proptest::prelude::*;

use super::{
    said::{Peers, Said, SaidGpu},
    *,
};
use crate::{Gpu, NvLinkEnd, PathClass, PciDevice, PciParent, Place};

fn address(bus: u8) -> PciAddress {
    PciAddress { domain: 0, bus, device: 0, function: 0 }
}

/// A host with GPUs on these buses, and nothing else.
fn host(buses: impl IntoIterator<Item = u8>) -> Topology {
    let pci = |bus| PciDevice { address: address(bus), parent: PciParent::Root(0, 0), link: None };
    let gpu = |bus| Gpu {
        name: Some("of sysfs".to_owned()),
        uuid: None,
        memory_bytes: None,
        driver: None,
        numa_node: None,
        pci: pci(bus),
        nvlinks: None,
        peers: None,
    };
    Topology {
        gpus: buses.into_iter().map(gpu).collect(),
        ..Topology::read(Path::new("/there is no such folder"))
    }
}

fn said(bus: u8, links: &[Option<u8>], nvlink: &[u8]) -> SaidGpu {
    let nvlink = nvlink.iter().map(|bus| address(*bus)).collect();
    SaidGpu {
        address: address(bus),
        name: None,
        uuid: None,
        memory_bytes: None,
        links: Ok(links.iter().map(|end| end.map(address)).collect()),
        peers: Some(Peers { memory: Default::default(), nvlink }),
    }
}

fn add(said: &Said, host: &mut Topology, classes: &[(u8, u32)]) {
    let numbers = (0..).zip(&host.gpus).map(|(number, gpu)| (gpu.pci.address, number)).collect();
    let classes = classes.iter().map(|(bus, class)| (address(*bus), *class)).collect();
    said.add_to(host, &numbers, &classes);
}

/// Four in a square, each with two links to two neighbours and none to the third, as they were before there were switches.
#[test]
fn a_square_has_no_links_across() {
    let mut square = host(1..=4);
    let corner =
        |bus, left, right| said(bus, &[Some(left), Some(right), Some(left), Some(right)], &[left, right]);
    let gpus = vec![corner(1, 2, 4), corner(2, 1, 3), corner(3, 2, 4), corner(4, 1, 3)];
    add(&Said { gpus, failure: None }, &mut square, &[]);
    square.check().expect("it fits");
    let between = |a, b| square.path(Place::Gpu(a), Place::Gpu(b));
    assert_eq!((between(0, 1), between(0, 3)), (Some(PathClass::NvLink(2)), Some(PathClass::NvLink(2))));
    assert_eq!((between(0, 2), between(1, 3)), (Some(PathClass::HostBridge), Some(PathClass::HostBridge)));
    assert!(square.notes.is_empty() && square.gpus[0].name.as_deref() == Some("of sysfs"));
}

#[test]
fn ends_are_what_the_kernel_says_that_they_are() {
    let links = [Some(9), Some(8), Some(7), Some(6), None, Some(1), Some(2)];
    let kinds = |nvlink: &[u8]| {
        let mut pair = host([1, 2]);
        let gpus = vec![said(1, &links, nvlink), said(2, &[], &[1])];
        let classes = [(9, 0x06_80_00), (8, 0x06_80_01), (7, 0x02_00_00)];
        add(&Said { gpus, failure: None }, &mut pair, &classes);
        let ends = pair.gpus[0].nvlinks.clone().unwrap_or_default();
        ends.iter().map(|end| (end.to, end.links)).collect::<Vec<_>>()
    };
    let (second, switch, cpu) = (NvLinkEnd::Gpu(address(2)), NvLinkEnd::Switch, NvLinkEnd::Cpu);
    let unknown = NvLinkEnd::Unknown;
    assert_eq!(kinds(&[2]), [(second, 1), (switch, 3), (cpu, 1), (unknown, 2)]);
    assert_eq!(kinds(&[]), [(second, 1), (switch, 1), (cpu, 1), (unknown, 4)]);
    // One alone reaches all others that there are, which proves nothing.
    let mut alone = host([1]);
    add(&Said { gpus: vec![said(1, &[None; 18], &[])], failure: None }, &mut alone, &[]);
    assert_eq!(alone.gpus[0].nvlinks.as_deref().map(|ends| ends[0].to), Some(unknown));
}

#[test]
fn notes_are_bounded() {
    let mut many = host([]);
    for number in 0..1000 {
        note(&mut many, &[number].into_iter().collect(), &"why ".repeat(1000));
    }
    many.check().expect("it fits");
}

prop_compose! {
    fn anything()(
        bus in 0_u8..6,
        texts in any::<[Option<String>; 2]>(),
        memory_bytes in any::<Option<u64>>(),
        links in prop::collection::vec(prop::option::of(0_u8..8), 0..600),
        failure in prop::option::of(any::<String>()),
        peers in prop::option::of((prop::collection::btree_set(0_u8..8, 0..8), prop::collection::btree_set(0_u8..8, 0..8))),
    ) -> SaidGpu {
        let [name, uuid] = texts;
        let of = |buses: std::collections::BTreeSet<u8>| buses.into_iter().map(address).collect();
        SaidGpu {
            address: address(bus),
            name, uuid, memory_bytes,
            links: failure.map_or(Ok(links.into_iter().map(|end| end.map(address)).collect()), Err),
            peers: peers.map(|(memory, nvlink)| Peers { memory: of(memory), nvlink: of(nvlink) }),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A host fits together whatever was said of it, and says the same of where its GPUs are.
    #[test]
    fn whatever_is_said_fits(
        buses in prop::collection::btree_set(0_u8..5, 0..5),
        gpus in prop::collection::vec(anything(), 0..8),
        failure in prop::option::of(any::<String>()),
        classes in prop::collection::vec((0_u8..8, prop::sample::select(vec![0x06_80_00, 0x06_80_01, 0x02_00_00])), 0..8),
    ) {
        let mut one = host(buses);
        let before: Vec<PciDevice> = one.gpus.iter().map(|gpu| gpu.pci.clone()).collect();
        add(&Said { gpus, failure }, &mut one, &classes);
        prop_assert_eq!(one.check(), Ok(()));
        prop_assert_eq!(before, one.gpus.iter().map(|gpu| gpu.pci.clone()).collect::<Vec<_>>());
    }
}
