//! Hosts and clusters as files: what is written is read, and what is wrong is told.
#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests may panic")]

use std::collections::BTreeSet;

use proptest::prelude::*;
use ringway_topology::{
    CacheKind, Caches, Cluster, Document, Gpu, Group, Hosts, IndexSet, LinkState, Nic, NumaNode, NvLinkEnd,
    NvLinks, Package, PciAddress, PciDevice, PciLink, PciParent, RdmaPort, Topology, rdma::LinkLayer,
};

const SERVER: &str = include_str!("hosts/server.json");

fn pci(bus: u8, parent: PciParent, link: bool) -> PciDevice {
    let link = link.then_some(PciLink { speed_mts: 16_000, lanes: 8, max_speed_mts: 32_000, max_lanes: 16 });
    PciDevice { address: PciAddress { domain: 0, bus, device: 0, function: 0 }, parent, link }
}

prop_compose! {
    fn nic()(
        names in (prop::option::of("[a-z]{1,8}"), "[a-z0-9_]{1,12}", prop::option::of("[\\PC]{1,9}")),
        numbers in (any::<Option<u64>>(), any::<Option<u32>>(), any::<u8>()),
        state in prop::sample::select(vec![LinkState::Up, LinkState::Down, LinkState::Unknown]),
        layer in prop::option::of(prop::sample::select(vec![LinkLayer::InfiniBand, LinkLayer::Ethernet])),
        is_software in any::<bool>(),
    ) -> Nic {
        let (interface, device, driver) = names;
        let (speed_mbps, mtu_bytes, port) = numbers;
        let rdma = (interface.is_none() || port > 99).then_some(RdmaPort { device, port });
        Nic {
            interface, rdma, driver, speed_mbps, state, mtu_bytes, link_layer: layer, numa_node: None, pci: None, is_software,
        }
    }
}

prop_compose! {
    /// A host with everything that a file can say, though no such one was ever built.
    fn host()(
        name in "[\\PC]{1,20}",
        cores in prop::collection::vec(1_u32..4, 1..9),
        nodes in 1_u32..4,
        mut nics in prop::collection::vec(nic(), 0..4),
        gpus in 0_u8..4,
        bridges in 0_u8..4,
        links in prop::option::of(1_u8..19),
        memory_bytes in any::<Option<u64>>(),
    ) -> Topology {
        let mut next = 0;
        let cores: Vec<IndexSet> = cores
            .into_iter()
            .map(|threads| { next += threads; (next - threads..next).collect() })
            .collect();
        let node = |id: u32| NumaNode {
            id: id * 3,
            memory_bytes,
            cpus: if id == 0 { (0..next).collect() } else { IndexSet::default() },
            distances: (0..nodes).map(|other| if other == id { 10 } else { 32 }).collect(),
        };
        let up = |index: u8| match index {
            0 => PciParent::Root(0, 0x10),
            _ => PciParent::Bridge(PciAddress { domain: 0, bus: index, device: 0, function: 0 }),
        };
        let gpu = |index: u8| Gpu {
            name: links.map(|links| format!("GPU of {links}")),
            uuid: links.map(|links| format!("GPU-{links}")),
            memory_bytes,
            driver: None,
            numa_node: Some(0),
            pci: pci(100 + index, up(index % (bridges + 1)), links.is_none()),
            nvlinks: links.map(|links| {
                let other = NvLinkEnd::Gpu(pci(100 + (index + 1) % gpus, up(0), false).address);
                let ends = [NvLinkEnd::Switch, NvLinkEnd::Cpu, NvLinkEnd::Unknown, other];
                ends.into_iter().take(3 + usize::from(gpus > 1)).map(|to| NvLinks { to, links }).collect()
            }),
            peers: links.map(|_| {
                let others = (0..gpus).filter(|other| *other != index);
                others.map(|other| pci(100 + other, up(0), false).address).collect()
            }),
        };
        for (index, nic) in (0..).zip(&mut nics) {
            nic.pci = (!nic.is_software).then(|| pci(200 + index, up(index % (bridges + 1)), true));
            nic.numa_node = nic.is_software.then(|| (nodes - 1) * 3);
        }
        Topology {
            name,
            packages: vec![Package { id: 5, model: links.map(|_| "x".to_owned()), cores: cores.clone() }],
            numa: (0..nodes).map(node).collect(),
            caches: vec![Caches { level: 2, kind: CacheKind::Unified, bytes: 1 << 20, each: cores }],
            bridges: (0..bridges).map(|index| pci(index + 1, up(index), index % 2 == 0)).collect(),
            nics,
            gpus: (0..gpus).map(gpu).collect(),
            notes: links.map(|links| format!("{links} could not be read")).into_iter().collect(),
        }
    }
}

prop_compose! {
    fn cluster()(
        hosts in prop::collection::vec(("[\\PC]{1,9}", 1_u32..50, prop::option::of(host())), 1..4),
        leaf in 1_u32..20,
        uplink_mbps in any::<Option<u64>>(),
    ) -> Cluster {
        let hosts: Vec<Hosts> =
            hosts.into_iter().map(|(name, count, topology)| Hosts { name, count, topology }).collect();
        let nodes: u32 = hosts.iter().map(|hosts| hosts.count).sum();
        let leaves = (0..nodes).step_by(leaf as usize).filter(|first| first + leaf < nodes);
        let group = |first: u32| Group {
            name: format!("leaf {first}"), nodes: (first..first + leaf).collect(), uplink_mbps,
        };
        let mut groups: Vec<Group> = leaves.map(group).collect();
        groups.push(Group { name: "all".to_owned(), nodes: (0..nodes).collect(), uplink_mbps: None });
        Cluster { name: "c".to_owned(), hosts, groups }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn what_is_written_is_read(host in host(), cluster in cluster()) {
        for document in [Document::from(host), Document::from(cluster)] {
            let text = document.to_json();
            prop_assert_eq!(Document::parse(&text).map_err(|e| e.to_string()), Ok(document));
        }
    }

    /// Whatever somebody makes of a file, it is a host or an error with words.
    #[test]
    fn nothing_in_a_file_does_harm(
        at in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0_u8..4), 1..4)
    ) {
        let mut bytes = SERVER.as_bytes().to_vec();
        for (index, byte, how) in at {
            let at = index.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => drop(bytes.remove(at)),
                2 => bytes[at] = b'0' + byte % 10,
                _ => bytes.insert(at, byte),
            }
        }
        if let Ok(text) = String::from_utf8(bytes) {
            match Document::parse(&text) {
                Ok(document) => prop_assert_eq!(Document::parse(&document.to_json()).expect("again"), document),
                Err(error) => prop_assert!(error.to_string().len() > 10, "{}", error),
            }
        }
    }

    /// Groups are taken exactly when any two of them are apart or one is in the other, and no two are the same.
    #[test]
    fn groups_do_not_cross(sets in prop::collection::vec(prop::collection::btree_set(0_u32..6, 1..6), 1..5)) {
        let groups = sets.iter().enumerate().map(|(index, nodes)| {
            Group { name: format!("g{index}"), nodes: nodes.iter().copied().collect(), uplink_mbps: None }
        });
        let cluster = Cluster {
            name: "c".to_owned(),
            hosts: vec![Hosts { name: "h".to_owned(), count: 6, topology: None }],
            groups: groups.collect(),
        };
        let fit = |(i, a): (usize, &BTreeSet<u32>)| sets.iter().enumerate().all(|(j, b)| {
            i == j || a != b && (a.is_disjoint(b) || a.is_subset(b) || b.is_subset(a))
        });
        prop_assert_eq!(cluster.check().is_ok(), sets.iter().enumerate().all(fit), "{:?}", cluster.check());
    }
}

#[track_caller]
fn refused(from: &str, to: &str, words: &[&str]) {
    assert!(SERVER.contains(from), "{from}");
    let error = Document::parse(&SERVER.replacen(from, to, 1)).expect_err("refused").to_string();
    assert!(words.iter().all(|word| error.contains(word)), "{error}");
}

#[test]
fn errors_name_the_place_and_what_was_expected() {
    refused("\"ringway-topology\"", "\"pcap\"", &["format", "\"pcap\"", "\"ringway-topology\""]);
    refused("\"version\": 1", "\"version\": 2", &["version: 2", "version 1 only"]);
    refused("\"host\": {", "\"cluster\": {", &["line ", "column "]);
    refused(
        "\"name\": \"dgx-01\"",
        "\"colour\": 1, \"name\": \"x\"",
        &["colour", "expected", "`packages`", "line 5"],
    );
    refused("\"name\": \"dgx-01\"", "\"name\": \"\"", &["host.name", "empty"]);
    refused("\"name\": \"dgx-01\"", "\"name\": \"\\u001b[31m\"", &["host.name", "control characters"]);
    refused("\"id\": 1", "\"id\": 0", &["host.packages[1].id", "package 0 is there twice"]);
    refused("\"0,16\"", "\"0,17\"", &["host.packages[0].cores[1]", "CPU 17"]);
    refused("\"0,16\"", "\"0-16,99999\"", &["host.packages[0].cores[0]", "below 8192"]);
    refused("\"0,16\"", "\"zero\"", &["\"zero\"", "0-3,8", "line "]);
    refused("\"0-7,16-23\"", "\"0-7,16-99\"", &["CPU 32"]);
    refused("\"numa_node\": 1", "\"numa_node\": 9", &["].numa_node", "no NUMA node 9, only 0-1"]);
    refused(
        "\"parent\": \"0000:10:01.0\"",
        "\"parent\": \"0000:99:01.0\"",
        &["host.bridges[", "].parent", "0000:99:01.0"],
    );
    refused("\"parent\": \"0000:10:01.0\"", "\"parent\": \"0000:99\"", &["0000:99", "pci0000:17", "line "]);
    refused(
        "\"to\": \"switch\"",
        "\"to\": {\"gpu\": \"0000:99:00.0\"}",
        &["gpus[0].nvlinks[0].to", "no GPU"],
    );
    refused("\"uuid\": \"GPU-", "\"uuid\": \"\\n", &["gpus[0].uuid", "control characters"]);
    refused(
        "\"peers\": [\n          \"0000:14:00.0\"",
        "\"peers\": [\"0000:13:00.0\"",
        &["gpus[0].peers[0]", "the GPU itself"],
    );
    refused("\"name\": \"dgx-01\"", "\"name\": \"x\", \"notes\": [\"\"]", &["host.notes[0]", "empty"]);
    refused(
        "\"distances\": [",
        "\"distances\": [10,",
        &["host.numa[", "distances", "there are 2 NUMA nodes"],
    );
    for (text, words) in [("", "EOF"), ("[", "EOF"), ("{}", "format"), ("\u{0}", "line 1")] {
        let error = Document::parse(text).expect_err("refused").to_string();
        assert!(error.contains(words), "{error}");
    }
    let nested = "[".repeat(1 << 20);
    Document::parse(&nested).expect_err("refused");
    let deep = SERVER.replacen("\"packages\": [", &format!("\"packages\": [{nested}"), 1);
    assert!(Document::parse(&deep).expect_err("refused").to_string().contains("line "));
    let neither = "{\"format\": \"ringway-topology\", \"version\": 1}";
    assert!(Document::parse(neither).expect_err("refused").to_string().contains("must have one of them"));
}

#[test]
fn clusters_tell_how_many_nodes_the_smallest_groups_have() {
    let Ok(Document::Host(host)) = Document::parse(SERVER) else { panic!("a host") };
    let mut cluster = Cluster::uniform(*host, 24, 8);
    assert_eq!(cluster.group_nodes(), Some(8));
    let pod = |nodes: std::ops::Range<u32>| Group {
        name: "pod".to_owned(),
        nodes: nodes.collect(),
        uplink_mbps: None,
    };
    cluster.groups.insert(0, pod(0..16));
    assert_eq!(cluster.group_nodes(), Some(8), "a wider group has others within");
    cluster.groups.push(pod(0..4));
    assert_eq!(cluster.group_nodes(), None, "the smallest groups do not have all nodes");
    cluster.groups.clear();
    assert_eq!(cluster.group_nodes(), None);
    // Every other node is no group of consecutive ones.
    cluster.groups =
        [0, 1].map(|odd| Group { nodes: (0..12).map(|i| 2 * i + odd).collect(), ..pod(0..1) }).into();
    assert_eq!(cluster.group_nodes(), None);
}

#[test]
fn clusters_tell_who_is_near() {
    let Ok(Document::Host(host)) = Document::parse(SERVER) else { panic!("a host") };
    let mut cluster = Cluster::uniform(*host, 20, 8);
    cluster.check().expect("it fits");
    assert_eq!(cluster.group_nodes(), None, "the last leaf switch has fewer");
    let sizes: Vec<u64> = cluster.groups.iter().map(|group| group.nodes.len()).collect();
    assert_eq!((cluster.nodes(), &sizes[..]), (20, &[8, 8, 4][..]));
    assert_eq!((cluster.nearest_group(0, 7), cluster.nearest_group(7, 8)), (Some(0), None));
    let pod = Group { name: "pod".to_owned(), nodes: (0..16).collect(), uplink_mbps: Some(1) };
    cluster.groups.insert(0, pod);
    cluster.check().expect("groups may be within others");
    assert_eq!((cluster.nearest_group(0, 7), cluster.nearest_group(7, 8)), (Some(1), Some(0)));
    assert_eq!(cluster.host(19).map(|hosts| hosts.count), Some(20));
    assert!(cluster.host(20).is_none());

    let refused = |spoil: fn(&mut Cluster), words: &str| {
        let mut cluster = cluster.clone();
        spoil(&mut cluster);
        let error = Document::parse(&Document::from(cluster).to_json()).expect_err("refused").to_string();
        assert!(error.contains(words), "{error}");
    };
    refused(|c| c.hosts[0].count = 0, "cluster.hosts[0].count: 0 hosts");
    refused(|c| c.hosts.clear(), "cluster.hosts: it is empty");
    refused(|c| c.hosts[0].count = u32::MAX, "4294967295 nodes, but there can be 1048576");
    refused(
        |c| c.groups[3].nodes = (16..21).collect(),
        "cluster.groups[3].nodes: there is no node 20, only 0-19",
    );
    refused(|c| c.groups[3].nodes = (15..20).collect(), "but neither is within the other");
    refused(|c| c.groups[3].nodes = (8..16).collect(), "has the same nodes");
    refused(
        |c| c.hosts[0].topology.iter_mut().for_each(|host| host.numa.clear()),
        "cluster.hosts[0].topology.numa: it is empty",
    );
}
