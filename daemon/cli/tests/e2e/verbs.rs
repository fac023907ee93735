//! Work between nodes over an RDMA port of this host. In a guest that is rxe's on the interface `near0` with 10.77.0.1, which
//! is joined to `far0` with 10.77.0.2 in the network namespace `far`, and a second one on `near1` with 10.78.0.1; see
//! devices/ibverbs/guest. Elsewhere each test says so and checks nothing, unless `RINGWAY_TEST_RDMA` is set.

use std::{fs, process::Command, thread, time::Duration};

use crate::harness::{
    Daemon, Folder, KEY, Program, Rank, assert_mentions, configuration, eventually, form, free_address, node,
    spawn_daemon, tell_all, two_nodes,
};

const NEAR: &str = "10.77.0.1";
const FAR: &str = "10.77.0.2";
const RXE: &str = "/sys/class/infiniband/rxe0/ports/1/hw_counters";
/// The addresses that the interfaces of rxe0 and rxe1 have, for two nodes with a rail over each.
const RAILS: [[&str; 2]; 2] = [[NEAR, "10.78.0.1"], ["10.77.0.3", "10.78.0.3"]];

/// Collectives of four ranks, and what the elements of the first rank's result are.
const CALLS: [(&str, &str); 5] = [
    ("call allreduce f32 sum 1 0", "10.0"),
    ("call allreduce f32 sum 3000 0", "10.0"),
    ("call allreduce f64 max 400000 0", "4.0"),
    ("call broadcast i32 sum 100000 0", "1"),
    ("call allreduce i32 sum 70001 0", "10"),
];

fn is_possible() -> bool {
    let is_there = [RXE, "/sys/class/net/near0"].iter().all(|path| fs::exists(path).unwrap_or(false));
    let is_there = is_there || std::env::var_os("RINGWAY_TEST_RDMA").is_some();
    if !is_there {
        eprintln!("nothing is tested: this is not the guest with rxe0 on near0");
    }
    is_there
}

fn ip(words: &str) {
    Program::start(Command::new("ip").args(words.split(' '))).end().success();
}

fn rxe(counter: &str) -> u64 {
    rxe_at(RXE, counter)
}

fn rxe_at(folder: &str, counter: &str) -> u64 {
    let text = fs::read_to_string(format!("{folder}/{counter}")).expect("a counter of rxe");
    text.trim().parse().expect("a number")
}

/// What the daemon's device has counted.
fn counted(daemon: &Daemon, counter: &str) -> u64 {
    let status = daemon.status();
    status["devices"][0]["counters"][counter].as_u64().unwrap_or_else(|| panic!("no {counter}: {status}"))
}

#[track_caller]
fn assert_uses(daemon: &Daemon, device: &str) {
    assert_eq!(daemon.status()["communicators"][0]["device"], device, "{}", daemon.log());
}

#[track_caller]
fn assert_exact(ranks: &mut [Rank]) {
    for (call, expected) in CALLS {
        tell_all(ranks, call);
        for rank in ranks.iter_mut() {
            assert_eq!(rank.answer().as_deref(), Ok(expected), "{call}");
        }
    }
}

/// The node that has the RDMA port, at its address, and one that speaks RoCE in user space.
fn one_of_each(settings: &str) -> [Daemon; 2] {
    let folder = Folder::new();
    let key = folder.write("key", KEY).display().to_string();
    let settings = |address: &str, device: &str| {
        format!("listen = \"{address}:7411\"\ncluster_key_file = {key:?}\ndevice = {device:?}\n{settings}")
    };
    let near = Daemon::start(&settings(NEAR, "verbs"));
    let far = Daemon::start_under(&["ip", "netns", "exec", "far"], &settings(FAR, "roce-udp"));
    [near, far]
}

#[test]
fn nodes_with_hardware_compute_exactly_and_it_has_seen_the_same() {
    if !is_possible() {
        return;
    }
    let nodes = two_nodes("device = \"verbs\"");
    let mut ranks = form(&nodes, 2, "");
    nodes.iter().for_each(|node| assert_uses(node, "verbs"));
    let seen = || (rxe("rdma_recvs"), nodes.each_ref().map(|node| counted(node, "messages_received")));
    // Until what connecting brings has come.
    thread::sleep(Duration::from_millis(200));
    let (before, own) = seen();
    for _ in 0..5 {
        assert_exact(&mut ranks);
    }
    let mut last = 0;
    eventually("the same count of messages", || {
        let (now, counts) = seen();
        last = counts.iter().zip(own).map(|(now, before)| now - before).sum::<u64>();
        now - before == last
    });
    assert!(last > 50, "{last} messages");
    assert!(nodes[0].log().contains("rxe0 port 1 (RoCE v2, "), "{}", nodes[0].log());
}

#[test]
fn a_node_with_hardware_and_one_with_roce_in_user_space_compute_together() {
    if !is_possible() {
        return;
    }
    let nodes = one_of_each("");
    let mut ranks = form(&nodes, 2, "");
    assert_uses(&nodes[0], "verbs");
    assert_uses(&nodes[1], "roce-udp");
    for _ in 0..3 {
        assert_exact(&mut ranks);
    }
}

/// Nodes whose interfaces have different MTUs work with the smaller packets, and both say so.
#[test]
fn nodes_whose_packets_differ_say_which_carries_what() {
    if !is_possible() {
        return;
    }
    ip("-n far link set far0 mtu 1500");
    let nodes = one_of_each("");
    ip("-n far link set far0 mtu 9000");
    let mut ranks = form(&nodes, 2, "");
    assert_exact(&mut ranks);
    let near = "between node 0, this one, and node 1 carry 1024 bytes: the port of node 0 could take 4096, that of node 1 1024";
    let far = "between node 1, this one, and node 0 carry 1024 bytes: the port of node 1 could take 1024, that of node 0 4096";
    assert_mentions(&nodes[0].log(), &[near]);
    assert_mentions(&nodes[1].log(), &[far]);
}

/// Two nodes with a rail over each of two RDMA devices.
fn with_rails(device: &str) -> [Daemon; 2] {
    let folder = Folder::new();
    let key = folder.write("key", KEY).display().to_string();
    let mut port = 7410;
    RAILS.map(|rails| {
        port += 1;
        Daemon::start(&format!(
            "listen = \"{NEAR}:{port}\"\ncluster_key_file = {key:?}\ndevice = {device:?}\nrails = {rails:?}\n\
             link_constants = \"usual\""
        ))
    })
}

/// Whether they are found by their addresses or named, one for each.
#[test]
fn each_rail_has_a_device_of_its_own() {
    if !is_possible() {
        return;
    }
    let carried = || [RXE, &RXE.replace("rxe0", "rxe1")].map(|folder| rxe_at(folder, "rcvd_pkts"));
    for device in ["verbs", "verbs:rxe0,verbs:rxe1"] {
        let nodes = with_rails(device);
        let mut ranks = form(&nodes, 2, "");
        nodes.iter().for_each(|node| assert_uses(node, "verbs"));
        let before = carried();
        for _ in 0..3 {
            assert_exact(&mut ranks);
        }
        let after = carried();
        let more = [after[0] - before[0], after[1] - before[1]];
        // Long messages go over both by turns, in packets of 4 KiB; small ones over the first alone.
        assert!(more.iter().all(|packets| *packets > 1000), "{device}: {more:?} packets");
        let status = nodes[0].status();
        let devices = &status["devices"];
        assert_eq!((&devices[0]["rail"], &devices[1]["rail"]), (&NEAR.into(), &"10.78.0.1".into()));
        assert_mentions(
            &nodes[0].log(),
            &["rxe0 port 1 (RoCE v2, 10.77.0.1", "rxe1 port 1 (RoCE v2, 10.78.0.1"],
        );
    }
}

#[test]
fn rails_without_a_port_of_their_own_are_named() {
    if !is_possible() {
        return;
    }
    let refused = |device: &str, rails: &str| {
        let folder = Folder::new();
        let key = folder.write("key", KEY).display().to_string();
        let settings = format!(
            "listen = \"{NEAR}:7411\"\ncluster_key_file = {key:?}\ndevice = {device:?}\nrails = {rails}"
        );
        let config = folder.write("c.toml", &configuration(&folder.join("d.sock"), &settings));
        assert!(!spawn_daemon(&folder, &config).end().success());
        fs::read_to_string(folder.join("log")).expect("a log")
    };
    let log = refused("verbs", "[\"10.77.0.1\", \"127.0.0.1\"]");
    assert_mentions(&log, &["no RDMA port is at 127.0.0.1", "rxe1:1"]);
    let log = refused("verbs", "[\"10.77.0.1\", \"10.77.0.3\"]");
    assert_mentions(&log, &["port 1 of RDMA device `rxe0` would be rail 0 and rail 1"]);
    let log = refused("verbs:rxe0,verbs:rxe0:1", "[\"10.77.0.1\", \"10.78.0.1\"]");
    assert_mentions(&log, &["would be rail 0 and rail 1"]);
}

/// Takes the link between the nodes away for two seconds in the middle of allreduces. Whether the communicator went on.
fn goes_on(link: &str, settings: &str) -> bool {
    let nodes = one_of_each(&format!("peer_timeout_ms = 20000\n{settings}"));
    let mut ranks = form(&nodes, 2, "");
    tell_all(&mut ranks, "loop 100000");
    assert!(ranks.iter_mut().all(|rank| rank.answer().as_deref() == Ok("looping")));
    thread::sleep(Duration::from_millis(300));
    ip(&format!("{link} down"));
    thread::sleep(Duration::from_secs(2));
    let before = counted(&nodes[0], "messages_received");
    ip(&format!("{link} up"));
    let first = ranks.remove(0);
    let mut broke = false;
    eventually("an end, or further messages", || {
        broke |= first.has_answered_within(Duration::ZERO);
        broke || counted(&nodes[0], "messages_received") > before + 100
    });
    if broke {
        for rank in &mut ranks {
            assert_mentions(&rank.answer().expect_err("a link that broke"), &["node", "is lost"]);
        }
    }
    eventually("the port's own word of it", || {
        counted(&nodes[0], "port_downs") >= 1 && counted(&nodes[0], "port_ups") >= 1
    });
    drop(ranks);
    assert_exact(&mut form(&nodes, 2, ""));
    !broke
}

/// A connection whose retries outlast it goes on; one whose retries do not ends with an error at all ranks, and the nodes find each
/// other again.
#[test]
fn a_link_that_comes_back_is_used_again() {
    if !is_possible() {
        return;
    }
    // The carrier, as by a cable that is pulled out.
    assert!(goes_on("-n far link set far0", "verbs_timeout = 18"), "the retries take seven seconds");
    // With less than it takes to answer in a busy guest rxe retries while the answer comes, and may then send a WRITE of no
    // bytes as the rest of one that was whole, which shifts all PSNs behind it, so that the peer has to refuse them.
    assert!(!goes_on("-n far link set far0", "verbs_timeout = 15"), "the retries take a second");
    // The interface, with which the way to the peer is gone: rxe does not retry then.
    assert!(!goes_on("link set near0", "verbs_timeout = 18"));
}

#[test]
fn a_killed_daemon_is_an_error_that_names_its_node() {
    if !is_possible() {
        return;
    }
    let mut nodes = two_nodes("device = \"verbs\"");
    let mut ranks = form(&nodes, 2, "");
    tell_all(&mut ranks, "loop 100000");
    assert!(ranks.iter_mut().all(|rank| rank.answer().as_deref() == Ok("looping")));
    nodes[1].kill();
    for rank in ranks.iter_mut().take(2) {
        assert_mentions(&rank.answer().expect_err("node 1 is gone"), &["node 1", "rank 2", "lost"]);
    }
    // What is left goes on.
    let mut more = form(&nodes[..1], 2, "");
    tell_all(&mut more, "call allreduce f32 sum 1000 0");
    assert!(more.iter_mut().all(|rank| rank.answer().as_deref() == Ok("3.0")));
}

#[test]
fn a_device_that_is_not_there_is_named_with_those_that_are() {
    if !is_possible() {
        return;
    }
    let folder = Folder::new();
    let key = folder.write("key", KEY).display().to_string();
    let address = free_address();
    let settings = format!("listen = \"{address}\"\ncluster_key_file = {key:?}\ndevice = \"verbs:nothing0\"");
    let config = folder.write("c.toml", &configuration(&folder.join("d.sock"), &settings));
    assert!(!spawn_daemon(&folder, &config).end().success());
    let log = fs::read_to_string(folder.join("log")).expect("a log");
    assert_mentions(&log, &["`nothing0`", "there are: rxe0"]);
    let named = node(KEY, "device = \"verbs:rxe0:1,tcp\"").0;
    assert_eq!(named.status()["device"], "verbs");
}
