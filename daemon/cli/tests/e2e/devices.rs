//! Which device nodes use that have different ones.

use std::net::UdpSocket;

use crate::harness::{
    Daemon, Folder, KEY, Program, Rank, assert_mentions, form, free_address, node, ringway, tell_all,
};

const ROCE_PORT: u16 = 4791;

fn start(device: &str) -> Daemon {
    node(KEY, &format!("device = {device:?}")).0
}

/// An allreduce of two ranks, of many messages.
#[track_caller]
fn assert_works(ranks: &mut [Rank]) {
    tell_all(ranks, "call allreduce f32 sum 400000 0");
    assert!(ranks.iter_mut().all(|rank| rank.answer().as_deref() == Ok("3.0")));
}

/// The devices of a daemon's communicators, and its devices.
fn devices(daemon: &Daemon) -> (Vec<String>, Vec<String>) {
    let status = daemon.status();
    let names = |list: &str, name: &str| -> Vec<String> {
        let list = status[list].as_array().expect("a list");
        list.iter().map(|one| one[name].as_str().expect("a name").to_owned()).collect()
    };
    let mut used = names("communicators", "device");
    used.sort();
    (used, names("devices", "name"))
}

#[test]
fn each_communicator_uses_the_best_that_its_nodes_have_in_common() {
    let nodes = ["roce-udp", "roce-udp,tcp", "tcp"].map(start);
    let mut with_roce = form(&nodes[..2], 1, "");
    let mut with_tcp = form(&nodes[1..], 1, "");
    for _ in 0..3 {
        // Both at once: the node in the middle serves two devices.
        tell_all(&mut with_roce, "call allreduce f32 sum 400000 0");
        assert_works(&mut with_tcp);
        assert!(with_roce.iter_mut().all(|rank| rank.answer().as_deref() == Ok("3.0")));
    }
    assert_eq!(devices(&nodes[0]).0, ["roce-udp"]);
    let (used, open) = devices(&nodes[1]);
    assert_eq!(
        (used.as_slice(), open.as_slice()),
        (&["roce-udp".into(), "tcp".into()][..], &["roce-udp".into(), "tcp".into()][..])
    );
    assert_eq!(devices(&nodes[2]).0, ["tcp"]);
    let socket = nodes[1].socket.display().to_string();
    let shown = Program::start(&mut ringway(&["status", "--socket", &socket])).end().success().out;
    assert_mentions(&shown, &["uses tcp; device roce-udp is not used for it: not every node has it"]);
    assert!(!shown.contains("uses roce-udp; "), "{shown}");
    // Idle for long enough that the daemons sleep, whatever they wait for.
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_works(&mut with_roce);
    assert_works(&mut with_tcp);
    // One device's failures are its own.
    drop(with_tcp);
    let [_, middle, mut last] = nodes;
    last.kill();
    let mut more = form(std::slice::from_ref(&middle), 2, "");
    assert_works(&mut more);
    assert_works(&mut with_roce);
}

#[test]
fn where_a_device_does_not_work_the_next_is_used_and_the_reason_told() {
    let folder = Folder::new();
    let key = folder.write("key", KEY).display().to_string();
    let address = free_address();
    let _taken = UdpSocket::bind((address.ip(), ROCE_PORT)).expect("free until now");
    let settings = format!("listen = \"{address}\"\ncluster_key_file = {key:?}\ndevice = \"roce-udp,tcp\"");
    let nodes = [Daemon::start(&settings), start("roce-udp,tcp")];
    assert_works(&mut form(&nodes, 1, ""));
    assert_mentions(&nodes[0].log(), &["`roce-udp` is not used", "4791", "taken", "using `tcp`"]);
    let status = nodes[0].status();
    assert_eq!((&status["device"], &status["devices"][1]["name"]), (&"tcp".into(), &"roce-udp".into()));
    assert_mentions(status["devices"][1]["refused"].as_str().expect("a reason"), &["4791", "taken"]);
    let socket = nodes[0].socket.display().to_string();
    let shown = Program::start(&mut ringway(&["status", "--socket", &socket])).end().success().out;
    assert_mentions(&shown, &["device roce-udp is not used: ", "taken"]);
    assert_eq!(nodes[1].status()["device"], "roce-udp");
}

#[test]
fn an_interface_that_does_not_have_the_address_is_refused_and_named() {
    let with = |interface: &str| {
        node(KEY, &format!("device = \"roce-udp,tcp\"\nroce_interface = {interface:?}")).0.status()
    };
    let status = with("nowhere0");
    assert_eq!(status["device"], "tcp");
    let refused = status["devices"][1]["refused"].as_str().expect("a reason");
    assert_mentions(refused, &["there is no interface nowhere0", "(lo)"]);
    assert_eq!(with("lo")["device"], "roce-udp");
}

#[test]
fn nodes_with_and_without_io_uring_work_together() {
    let nodes = ["tcp", "tcp-epoll", "tcp-epoll"].map(start);
    for (pair, used) in [(&nodes[..2], ["tcp", "tcp-epoll"]), (&nodes[1..], ["tcp-epoll", "tcp-epoll"])] {
        let mut ranks = form(pair, 1, "");
        assert_works(&mut ranks);
        // Idle for long enough that the daemons sleep: what comes then wakes them.
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert_works(&mut ranks);
        assert_eq!([0, 1].map(|node: usize| pair[node].status()["device"].clone()), used);
    }
    let status = nodes[1].status();
    let counters = &status["devices"][0]["counters"];
    for name in ["system_calls", "bytes_sent", "bytes_received", "bytes_copied"] {
        assert!(counters[name].as_u64() > Some(0), "{name}: {status}");
    }
    let socket = nodes[1].socket.display().to_string();
    let shown = Program::start(&mut ringway(&["status", "--socket", &socket])).end().success().out;
    assert_mentions(&shown, &["device tcp-epoll: ", "system calls"]);
}

#[test]
fn nodes_without_a_device_in_common_are_told_what_each_has() {
    let nodes = ["roce-udp", "tcp"].map(start);
    let mut ranks: Vec<Rank> = nodes.iter().map(Rank::start).collect();
    let id = ranks[0].must("id several");
    for (number, rank) in ranks.iter_mut().enumerate() {
        rank.tell(&format!("join {id} {number} 2"));
    }
    for rank in &mut ranks {
        let error = rank.answer().expect_err("no device in common");
        assert_mentions(&error, &["no device in common", "`roce`", "`tcp`", "ringway status"]);
    }
}
