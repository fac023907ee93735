//! Nodes joined by RoCEv2 in user space, on good networks and bad ones.

use std::{fs, net::UdpSocket};

use serde_json::Value;

use crate::harness::{
    Folder, KEY, LONG, Program, assert_mentions, configuration, form, free_address, has_namespaces, ringway,
    spawn_daemon, tell_all, two_nodes,
};

const PORT: u16 = 4791;

fn rows(arguments: &[&str]) -> Vec<Value> {
    let network = ["--nodes", "2", "--network", "loopback", "--device", "roce-udp", "--json"];
    let mut command = ringway(&[&["perf"], arguments, &network[..]].concat());
    let out = Program::start(&mut command).end_within(5 * LONG).success().out;
    out.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

fn assert_exact(rows: &[Value], count: usize) {
    assert_eq!(rows.len(), count, "{rows:?}");
    for row in rows {
        assert_eq!((&row["errors"], &row["device"]), (&0.into(), &"roce-udp".into()), "{row}");
    }
}

#[test]
fn collectives_over_roce_are_exact() {
    for operation in ["allreduce", "all_to_all", "scan"] {
        let given = ["--ranks", "4", "--sizes", "8,1000,100K,3M", "-n", "2", "-w", "0"];
        assert_exact(&rows(&[&[operation], &given[..]].concat()), 4);
    }
}

#[test]
fn collectives_over_a_bad_network_are_exact_and_can_be_captured() {
    let folder = Folder::new();
    let file = folder.join("all.pcap").display().to_string();
    let faults = "loss=0.01,duplicate=0.01,reorder=0.02,corrupt=0.005,ecn=0.01,seed=7";
    let given =
        ["allreduce", "--ranks", "3", "--sizes", "8,100K,1M", "-n", "5", "--fault", faults, "--pcap", &file];
    assert_exact(&rows(&given), 3);
    for node in 0..2 {
        let capture = fs::read(folder.join(&format!("all.{node}.pcap"))).expect("a capture of each node");
        // The magic number of captures with times in nanoseconds, in either byte order.
        let magic: [u8; 4] = capture.first_chunk().copied().expect("a header");
        assert!(matches!(u32::from_le_bytes(magic), 0xa1b2_3c4d | 0x4d3c_b2a1 | 0xa1b2_c3d4), "{magic:02x?}");
        assert!(capture.len() > 1 << 20, "{} bytes", capture.len());
    }
}

#[test]
fn a_taken_port_is_named() {
    let folder = Folder::new();
    let key = folder.write("key", KEY).display().to_string();
    let address = free_address();
    let _taken = UdpSocket::bind((address.ip(), PORT)).expect("free until now");
    let network = format!("listen = \"{address}\"\ncluster_key_file = {key:?}\ndevice = \"roce-udp\"");
    let config = folder.write("c.toml", &configuration(&folder.join("d.sock"), &network));
    assert!(!spawn_daemon(&folder, &config).end().success());
    let log = fs::read_to_string(folder.join("log")).expect("a log");
    assert_mentions(
        &log,
        &["device `roce-udp` does not work here", "4791", &address.ip().to_string(), "taken"],
    );
}

#[test]
fn faults_and_captures_need_a_device_that_handles_packets() {
    let folder = Folder::new();
    let key = folder.write("key", KEY).display().to_string();
    for (setting, needs) in [
        ("device = \"tcp\"\nfault = \"loss=0.1\"", "roce-udp"),
        ("device = \"tcp\"\npcap = \"all.pcap\"", "roce-udp"),
        ("fault = \"los=0.1\"", "there is no fault `los`"),
    ] {
        let text = format!("cluster_key_file = {key:?}\n{setting}");
        let config = folder.write("c.toml", &configuration(&folder.join("d.sock"), &text));
        assert!(!spawn_daemon(&folder, &config).end().success());
        assert_mentions(&fs::read_to_string(folder.join("log")).expect("a log"), &[needs]);
    }
    let refused = Program::start(&mut ringway(&["perf", "allreduce", "--fault", "loss=0.1"])).end().failure();
    assert_mentions(&refused.err, &["--fault", "--nodes 2"]);
}

#[test]
fn the_status_names_the_device() {
    let nodes = two_nodes("device = \"roce-udp\"");
    assert_eq!(nodes[0].status()["device"], "roce-udp");
    assert_mentions(&nodes[1].log(), &["roce-udp"]);
}

#[test]
fn the_status_counts_what_a_bad_network_costs() {
    let nodes = two_nodes("device = \"roce-udp\"\nfault = \"loss=0.01,corrupt=0.01,seed=7\"");
    let mut ranks = form(&nodes, 1, "");
    for _ in 0..10 {
        tell_all(&mut ranks, "call allreduce f32 sum 400000 0");
        assert!(ranks.iter_mut().all(|rank| rank.answer().as_deref() == Ok("3.0")));
    }
    let mut retransmitted = 0;
    for node in &nodes {
        let status = node.status();
        let device = &status["devices"][0];
        assert_eq!((&device["name"], &device["refused"]), (&"roce-udp".into(), &"".into()), "{device}");
        let count =
            |name: &str| device["counters"][name].as_u64().unwrap_or_else(|| panic!("{name}: {device}"));
        assert!(count("packets_sent") > 100 && count("packets_received") > 100, "{device}");
        assert!(count("bad_icrc") + count("malformed") > 0, "{device}");
        assert_eq!(count("failures"), 0, "{device}");
        retransmitted += count("retransmitted");
        let shown = Program::start(&mut ringway(&["status", "--socket", &node.socket.display().to_string()]))
            .end()
            .success()
            .out;
        assert_mentions(&shown, &["device roce-udp: ", "packets sent", "retransmitted"]);
    }
    assert!(retransmitted > 0);
}

/// Allreduces of four ranks on two nodes in network namespaces, which only root may make: exact, over the device `used` when
/// `asked` is asked for.
fn exact_between_namespaces(asked: &str, used: &str) {
    if !has_namespaces() {
        return;
    }
    let given = ["--ranks", "4", "--nodes", "2", "--network", "namespaces", "--device", asked];
    let sizes = ["--sizes", "8,1000,100K,1M", "-n", "2", "-w", "0", "--json"];
    let mut command = ringway(&[&["perf", "allreduce"], &given[..], &sizes[..]].concat());
    let out = Program::start(&mut command).end_within(5 * LONG).success().out;
    let rows: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(rows.len(), 4, "{out}");
    assert!(rows.iter().all(|row| row["errors"] == 0 && row["device"] == used), "{out}");
}

#[test]
fn collectives_over_af_xdp_are_exact() {
    exact_between_namespaces("roce-xdp", "roce-xdp");
}

/// A virtual interface copies AF_XDP's frames, and its packets are large enough for UDP.
#[test]
fn collectives_over_what_auto_chooses_are_exact() {
    exact_between_namespaces("auto", "roce-udp");
}

#[test]
fn auto_says_what_it_passes_over_and_why() {
    for node in &two_nodes("device = \"auto\"") {
        let status = node.status();
        let [shm, tcp, verbs, xdp, udp] = status["devices"].as_array().expect("a list").as_slice() else {
            panic!("five devices: {status}")
        };
        for (device, name) in [(shm, "shm"), (tcp, "tcp")] {
            assert_eq!((&device["name"], &device["refused"]), (&name.into(), &"".into()));
        }
        for (device, name) in [(verbs, "verbs"), (xdp, "roce-xdp"), (udp, "roce-udp")] {
            assert_eq!(device["name"], name);
            assert_ne!(device["refused"], "", "{device}");
        }
        assert_mentions(udp["refused"].as_str().expect("a text"), &["loopback", "TCP"]);
    }
}
