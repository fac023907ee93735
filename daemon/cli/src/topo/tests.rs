use ringway_topology::{NvLinkEnd, NvLinks};

use super::*;

fn host(text: &str) -> Topology {
    match Document::parse(text).expect("a file") {
        Document::Host(host) => *host,
        Document::Cluster(_) => panic!("a cluster"),
    }
}

fn machine() -> Topology {
    host(include_str!("../../../../devices/topology/tests/hosts/machine.json"))
}

fn server() -> Topology {
    host(include_str!("../../../../devices/topology/tests/hosts/server.json"))
}

fn workstation() -> Topology {
    host(include_str!("../../../../devices/topology/tests/hosts/workstation.json"))
}

fn board() -> Topology {
    host(include_str!("../../../../devices/topology/tests/hosts/board.json"))
}

fn plain(document: impl Into<Document>) -> String {
    shown(&document.into(), Paint(false))
}

/// Compares with what was looked at, in `tests/NAME.txt`.
#[track_caller]
fn same(name: &str, shown: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("src/topo/tests/{name}.txt"));
    if std::env::var_os("RINGWAY_WRITE_SHOWN").is_some() {
        fs::write(&path, format!("{shown}\n")).expect("written");
    }
    let expected = fs::read_to_string(&path).expect("a file");
    assert!(expected.trim_end() == shown, "{name} is now (RINGWAY_WRITE_SHOWN=1 writes it):\n{shown}");
}

#[test]
fn a_virtual_machine_is_a_few_lines() {
    same("machine", &plain(machine()));
    same("board", &plain(board()));
}

#[test]
fn a_server_is_shown_by_its_switches() {
    same("server", &plain(server()));
}

#[test]
fn gpus_are_shown_with_what_they_are_linked_to() {
    same("workstation", &plain(workstation()));

    let mut host = server();
    let [first, third] = [0, 2].map(|gpu: usize| host.gpus[gpu].pci.address);
    let to = |to, links| NvLinks { to, links };
    host.gpus[1].nvlinks =
        Some(vec![to(NvLinkEnd::Gpu(first), 4), to(NvLinkEnd::Cpu, 3), to(NvLinkEnd::Unknown, 1)]);
    host.gpus[1].peers = Some(vec![first, third]);
    host.gpus[2].peers = Some(Vec::new());
    host.gpus[3].memory_bytes = None;
    host.notes = vec!["GPU 3: what is missing".to_owned()];
    let text = plain(host);
    let links = "80 GiB, 4 NVLinks to GPU0, 3 NVLinks to a processor, 1 NVLink to what is not shown here, P2P with GPU0,2\n";
    assert!(text.contains(links), "{text}");
    assert!(text.contains("18 NVLinks to switches, no P2P\n"), "{text}");
    assert!(text.contains("\nGPU 3: what is missing\n"), "{text}");
}

#[test]
fn columns_stand_below_each_other_whatever_is_in_them() {
    let text = plain(server());
    let column = |line: &str, of: &str| line.find(of).map(|at| line[..at].chars().count());
    let devices: Vec<&str> = text.lines().filter(|line| line.contains("PCIe 5.0 x16")).collect();
    let columns: Vec<_> = devices.iter().map(|line| column(line, "PCIe 5.0 x16")).collect();
    assert!(columns.len() == 20 && columns.windows(2).all(|pair| pair[0] == pair[1]), "{text}");
    assert!(text.lines().all(|line| line.trim_end() == line && line.chars().count() <= 160), "{text}");
    // Colours change nothing but colours.
    let coloured = shown(&server().into(), Paint(true));
    let mut parts = coloured.split("\x1b[");
    let mut bare = parts.next().expect("a part").to_owned();
    bare.extend(parts.map(|part| part.split_once('m').expect("a colour").1));
    assert_eq!(bare.lines().map(str::trim_end).collect::<Vec<_>>(), text.lines().collect::<Vec<_>>());
}

#[test]
fn links_that_are_slower_than_they_could_be_stand_out() {
    let mut host = server();
    let link = host.gpus[0].pci.link.as_mut().expect("a link");
    (link.lanes, link.speed_mts) = (8, 16_000);
    host.gpus[1].pci.link.as_mut().expect("a link").lanes = 4;
    let text = plain(host);
    assert!(text.contains("PCIe 4.0 x8 (of 5.0 x16)") && text.contains("PCIe 5.0 x4 (of x16)"), "{text}");
}

#[test]
fn the_legend_has_what_the_matrix_has() {
    let text = plain(machine());
    assert!(
        text.contains("PHB ") && !text.contains("NODE") && !text.contains("SYS ") && !text.contains("NV#")
    );
    let mut host = server();
    let [first, second] = [0, 1].map(|gpu: usize| host.gpus[gpu].pci.address);
    host.gpus.iter_mut().for_each(|gpu| gpu.nvlinks = None);
    host.gpus[0].nvlinks = Some(vec![NvLinks { to: NvLinkEnd::Gpu(second), links: 4 }]);
    host.gpus[1].nvlinks = Some(vec![NvLinks { to: NvLinkEnd::Gpu(first), links: 4 }]);
    let text = plain(host);
    assert!(text.contains("4 NVLinks to GPU1") && text.contains("NV4 ") && text.contains("NV#"), "{text}");
}

#[test]
fn a_cluster_shows_its_groups_and_its_sorts_of_hosts() {
    let mut cluster = Cluster::uniform(machine(), 20, 8);
    let pod = ringway_topology::Group {
        name: "pod".to_owned(),
        nodes: (0..16).collect(),
        uplink_mbps: Some(1_600_000),
    };
    cluster.groups.push(pod);
    cluster.check().expect("it fits");
    same("cluster", &plain(cluster));
}

#[test]
fn very_many_are_not_all_shown() {
    let mut host = machine();
    let nic = host.nics[0].clone();
    for index in 0..100 {
        let mut more = nic.clone();
        more.interface = Some(format!("vf{index}"));
        host.nics.push(more.clone());
        more.is_software = true;
        host.nics.push(more);
    }
    let text = plain(host);
    assert!(text.contains("102 GPUs, NICs and NUMA nodes") && text.contains(", and 90 more"), "{text}");
}
