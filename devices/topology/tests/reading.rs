//! Hosts are read from the kernel's files as they are.
#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests may panic")]

mod gpus;
mod library;
mod trees;

use ringway_topology::{CacheKind, LinkState, PathClass, Place, RdmaPort, Topology, rdma::LinkLayer};
use trees::{Host, board, machine, server};

use PathClass::{HostBridge, NumaNode, Same, Switch, Switches, System};

fn read(host: &Host) -> Topology {
    let topology = Topology::read(host.root());
    topology.check().expect("what is read fits together");
    topology
}

fn path(host: &Topology, from: Place, to: Place) -> PathClass {
    let there = host.path(from, to).expect("both are there");
    assert_eq!(host.path(to, from), Some(there), "the way back is the same");
    there
}

#[test]
fn a_small_virtual_machine_has_what_it_has() {
    let host = read(&machine());
    assert_eq!((host.name.as_str(), host.gpus.len(), host.bridges.len()), ("vm", 0, 0));
    let [package] = host.packages.as_slice() else { panic!("{:?}", host.packages) };
    assert_eq!((package.model.as_deref(), package.cores.len()), (Some("AMD EPYC"), 2));
    let [node] = host.numa.as_slice() else { panic!("{:?}", host.numa) };
    assert_eq!((node.memory_bytes, node.cpus.to_string().as_str()), (Some(24 << 30), "0-1"));
    let sizes: Vec<_> =
        host.caches.iter().map(|one| (one.level, one.kind, one.bytes, one.each.len())).collect();
    let expected = [
        (1, CacheKind::Data, 48 << 10, 2),
        (1, CacheKind::Instruction, 32 << 10, 2),
        (2, CacheKind::Unified, 1 << 20, 2),
        (3, CacheKind::Unified, 32 << 20, 1),
    ];
    assert_eq!(sizes, expected);
    let names: Vec<(&str, bool)> = host.nics.iter().map(|nic| (nic.name(), nic.is_software)).collect();
    assert_eq!(names, [("eth0", false), ("ifb0", true), ("lo", true)]);
    let eth0 = &host.nics[0];
    assert_eq!(
        (eth0.driver.as_deref(), eth0.speed_mbps, eth0.mtu_bytes),
        (Some("virtio_net"), None, Some(1500))
    );
    assert_eq!(
        (eth0.state, eth0.link_layer, eth0.numa_node),
        (LinkState::Up, Some(LinkLayer::Ethernet), Some(0))
    );
    let pci = eth0.pci.as_ref().expect("a place");
    assert_eq!(
        (pci.address.to_string().as_str(), pci.parent.to_string().as_str()),
        ("0000:00:03.0", "pci0000:00")
    );
    assert_eq!(pci.link, None);
    assert_eq!(path(&host, Place::Nic(0), Place::Numa(0)), HostBridge);
    assert_eq!(host.nearest_nic(Place::Numa(0)), Some(0));
    assert_eq!(host.path(Place::Nic(0), Place::Gpu(0)), None);
    assert_eq!(path(&host, Place::Nic(2), Place::Nic(2)), Same);
    assert_eq!(path(&host, Place::Nic(0), Place::Nic(2)), System, "nobody says where software is");
}

#[test]
fn a_server_has_switches_and_cards_near_its_gpus() {
    let host = read(&server());
    assert_eq!((host.packages.len(), host.numa.len(), host.gpus.len(), host.nics.len()), (2, 2, 8, 11));
    // The root port, the upstream port and four downstream ports of each switch, and the management card's root port.
    assert_eq!(host.bridges.len(), 4 * 6 + 1);
    assert_eq!(host.packages[1].cores[0].to_string(), "8,24");
    assert_eq!(host.numa[1].distances, [21, 10]);
    let gpu = &host.gpus[7];
    assert_eq!((gpu.name.as_deref(), gpu.driver.as_deref()), (Some("NVIDIA H100 80GB HBM3"), Some("nvidia")));
    assert_eq!((gpu.numa_node, gpu.nvlinks.as_ref(), gpu.memory_bytes), (Some(1), None, None));
    assert_eq!(gpu.uuid.as_deref(), Some("GPU-00000000-0000-0000-0000-000000074000"));
    assert_eq!(gpu.pci.link.map(|link| (link.speed_mts, link.lanes)), Some((32_000, 16)));
    let names: Vec<&str> = host.nics.iter().map(ringway_topology::Nic::name).collect();
    assert_eq!(names, ["eno1", "ib0", "ib1", "ib2", "ib3", "ib4", "ib5", "ib6", "mlx5_7", "docker0", "lo"]);
    let ib0 = &host.nics[1];
    assert_eq!(ib0.rdma, Some(RdmaPort { device: "mlx5_0".to_owned(), port: 1 }));
    assert_eq!((ib0.speed_mbps, ib0.link_layer), (Some(400_000), Some(LinkLayer::InfiniBand)));
    let alone = &host.nics[8];
    assert_eq!((alone.interface.as_deref(), alone.state, alone.numa_node), (None, LinkState::Up, Some(1)));
    assert_eq!(host.nics[0].speed_mbps, Some(1000));

    let paths: Vec<PathClass> =
        [1, 2, 3, 4, 5, 0].map(|nic| path(&host, Place::Gpu(0), Place::Nic(nic))).to_vec();
    assert_eq!(paths, [Switch, Switch, NumaNode, NumaNode, System, NumaNode]);
    assert_eq!(path(&host, Place::Gpu(0), Place::Gpu(1)), Switch);
    assert_eq!(path(&host, Place::Gpu(0), Place::Numa(0)), HostBridge);
    assert_eq!(path(&host, Place::Gpu(0), Place::Numa(1)), System);
    assert_eq!(path(&host, Place::Numa(0), Place::Numa(1)), System);
}

#[test]
fn every_gpu_has_a_card_of_its_own() {
    let host = read(&server());
    let cards: Vec<_> = (0..8).map(|gpu| host.nearest_nic(Place::Gpu(gpu))).collect();
    assert_eq!(cards, (1..=8).map(Some).collect::<Vec<_>>());
    assert_eq!(host.nearest_nic(Place::Numa(1)), Some(5));
    assert_eq!(host.nearest_nic(Place::Numa(0)), Some(1), "the fastest of those that are equally near");
    assert_eq!(host.nearest_nics(Place::Gpu(0)), [1, 2, 3, 4, 0, 5, 6, 7, 8]);

    // A card that is down is worse than one that is far.
    let mut host = host;
    host.nics[1].state = LinkState::Down;
    host.nics[2].state = LinkState::Down;
    assert_eq!(host.nearest_nic(Place::Gpu(0)), Some(3));
    assert_eq!(host.nearest_nics(Place::Gpu(0))[7..], [1, 2]);
}

#[test]
fn what_is_unknown_is_far_or_missing() {
    let host = read(&board());
    assert_eq!((host.packages.len(), host.packages[0].id, host.packages[0].cores.len()), (1, 0, 4));
    let [node] = host.numa.as_slice() else { panic!("{:?}", host.numa) };
    assert_eq!((node.id, node.memory_bytes, node.cpus.len()), (0, Some(8_000_000 << 10), 4));
    assert!(host.caches.is_empty() && host.nics[0].pci.is_none());
    assert_eq!((host.nics[0].numa_node, host.nics[0].driver.as_deref()), (Some(0), Some("bcmgenet")));
    assert_eq!(host.nearest_nic(Place::Numa(0)), Some(0));

    // Nothing at all is a host as well.
    let host = read(&Host::new("empty"));
    assert_eq!((host.packages.len(), host.numa.len(), host.nearest_nic(Place::Numa(0))), (0, 1, None));
    // This one, whatever it is.
    Topology::of_this_host().check().expect("what is read fits together");
}

#[test]
fn switches_behind_switches_and_other_domains() {
    let host = machine();
    let deep = "pci0000:40/0000:40:01.0/0000:41:00.0";
    let inner = format!("{deep}/0000:42:00.0/0000:43:00.0");
    let gpu = |path: &str| host.pci(path, "0x030200", "0x10de", 0, None);
    for bridge in ["pci0000:40/0000:40:01.0", deep, &inner] {
        host.pci(bridge, "0x060400", "0x1000", 0, None);
    }
    gpu(&format!("{deep}/0000:42:01.0/0000:44:00.0"));
    gpu(&format!("{inner}/0000:45:00.0/0000:46:00.0"));
    gpu(&format!("{inner}/0000:45:01.0/0000:47:00.0"));
    // Two functions of one card, at the same root port as nothing else; and a host bridge behind a device.
    gpu("pci0000:60/0000:60:01.0/0000:61:00.0");
    gpu("pci0000:60/0000:60:01.0/0000:61:00.1");
    gpu("pci0000:60/0000:60:02.0/0000:62:00.0");
    gpu("pci0000:60/0000:60:05.5/pci10000:e0/10000:e0:01.0/10000:e1:00.0");
    let host = read(&host);
    let of = |a, b| path(&host, Place::Gpu(a), Place::Gpu(b));
    assert_eq!((of(0, 1), of(1, 2), of(0, 3)), (Switches, Switch, NumaNode));
    assert_eq!((of(3, 4), of(3, 5)), (Switch, HostBridge));
    assert_eq!(host.gpus[6].pci.address.to_string(), "10000:e1:00.0");
    assert_eq!(host.above(&host.gpus[6].pci).last().map(ToString::to_string).as_deref(), Some("pci10000:e0"));
    assert_eq!(of(3, 6), NumaNode);
}

#[test]
fn files_that_make_no_sense_are_passed_over() {
    let host = server();
    for (path, text) in [
        ("sys/devices/system/node/node1/distance", "21"),
        ("sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: lots"),
        ("sys/devices/system/node/node0/cpulist", "0-4294967295"),
        ("sys/devices/system/cpu/cpu3/topology/core_cpus_list", "0,1,77"),
        ("sys/devices/system/cpu/cpu5/cache/index3/size", "99999999999999999999M"),
        ("sys/devices/system/cpu/cpu6/cache/index3/shared_cpu_list", "x"),
        ("sys/devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0/0000:13:00.0/numa_node", "7"),
        ("sys/devices/pci0000:10/0000:10:01.0/current_link_speed", "Unknown"),
        ("proc/driver/nvidia/gpus/0000:33:00.0/information", "Model: \x1b[31m"),
        ("sys/class/net/ib0/mtu", "-5"),
    ] {
        host.write(path, text);
    }
    host.remove("sys/class/net/ib1/device");
    let host = read(&host);
    assert_eq!((host.numa[0].cpus.len(), host.numa[1].cpus.len()), (32, 0), "a CPU is in one node only");
    assert_eq!((host.numa[1].memory_bytes, &host.numa[1].distances[..]), (None, &[20, 10][..]));
    assert_eq!((host.gpus[0].numa_node, host.gpus[2].name.as_deref()), (None, Some("[31m")));
    assert_eq!(path(&host, Place::Gpu(0), Place::Numa(0)), System);
    assert_eq!(host.nics[1].mtu_bytes, None);
    assert!(host.nics.iter().any(|nic| nic.interface.as_deref() == Some("ib1") && nic.is_software));
}
