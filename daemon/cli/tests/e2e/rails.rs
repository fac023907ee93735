//! Nodes with several network cards: addresses of the loopback network, and for root virtual links of limited speed.

use std::time::{Duration, Instant};

use ringway_service::read_tuning;
use serde_json::Value;

use crate::{
    harness::{
        Daemon, Folder, KEY, LONG, Program, Rank, assert_mentions, form, free_address, has_namespaces,
        not_tried, ringway, tell_all,
    },
    machines::Machine,
};

/// What one virtual link carries each way.
const MBIT: u32 = 400;
/// Elements of an allreduce whose bytes take a while: 16 MiB.
const COUNT: usize = 4 << 20;

/// Has all rails used: where one processor does the work of all, one carries as much, and would be taken alone.
const ALL_RAILS: &str = "link_constants = \"usual\"\n";

/// A daemon with rails and such settings that is started by a command which such words begin.
fn daemon(under: &[String], listen: &str, device: &str, rails: &[String], settings: &str) -> Daemon {
    let folder = Folder::new();
    let key = folder.write("key", KEY).display().to_string();
    let rails = if rails.is_empty() { String::new() } else { format!("rails = {rails:?}\n") };
    let under: Vec<&str> = under.iter().map(String::as_str).collect();
    let settings = format!(
        "listen = \"{listen}\"\ncluster_key_file = {key:?}\ndevice = \"{device}\"\n{rails}{settings}"
    );
    Daemon::start_under(&under, &settings)
}

/// What the devices of each rail have counted.
fn counted(daemon: &Daemon, counter: &str) -> Vec<(String, u64)> {
    let status = daemon.status();
    let devices = status["devices"].as_array().expect("devices").iter();
    let of_rails = devices.filter(|device| device["rail"] != "" && device["refused"] == "");
    let count = |device: &Value| {
        let rail = device["rail"].as_str().expect("a text").to_owned();
        (rail, device["counters"][counter].as_u64().unwrap_or_else(|| panic!("no {counter}: {device}")))
    };
    of_rails.map(count).collect()
}

/// Each rail has carried about its share of what it has carried since.
#[track_caller]
fn assert_shared(before: &[(String, u64)], after: &[(String, u64)], rails: &[String]) {
    let names: Vec<&String> = after.iter().map(|(rail, _)| rail).collect();
    assert_eq!(names, rails.iter().collect::<Vec<_>>());
    let carried: Vec<u64> = before.iter().zip(after).map(|((_, a), (_, b))| b - a).collect();
    let share = carried.iter().sum::<u64>() / carried.len() as u64;
    assert!(share > 0 && carried.iter().all(|one| one.abs_diff(share) < share / 5), "{carried:?}");
}

/// What ranks 1, 2, ... sum up to.
fn sum(ranks: usize) -> String {
    format!("{:?}", (ranks * (ranks + 1) / 2) as f32)
}

/// How long an allreduce of all ranks takes, the least of some.
fn timed(ranks: &mut [Rank], count: usize) -> Duration {
    let expected = sum(ranks.len());
    let mut once = || {
        let start = Instant::now();
        tell_all(ranks, &format!("call allreduce f32 sum {count} 0"));
        for rank in &mut *ranks {
            assert_eq!(rank.answer().as_deref(), Ok(expected.as_str()));
        }
        start.elapsed()
    };
    (0..3).map(|_| once()).min().expect("some")
}

/// Small and large, each exact.
fn exact(ranks: &mut [Rank]) {
    let (all, last) = (sum(ranks.len()), format!("{:?}", ranks.len() as f32));
    for count in [1, 700, 75_000, 600_000] {
        tell_all(ranks, &format!("call allreduce f32 sum {count} 0"));
        for rank in &mut *ranks {
            assert_eq!(rank.answer().as_deref(), Ok(all.as_str()), "{count}");
        }
        tell_all(ranks, &format!("call broadcast f32 sum {count} {}", ranks.len() - 1));
        for rank in &mut *ranks {
            assert_eq!(rank.answer().as_deref(), Ok(last.as_str()), "{count}");
        }
    }
}

#[test]
fn every_kind_of_device_is_one_for_each_rail() {
    for (device, counter) in [("tcp", "bytes_sent"), ("tcp-epoll", "bytes_sent"), ("roce-udp", "bytes_sent")]
    {
        let nodes: Vec<(Daemon, Vec<String>)> = (0..2)
            .map(|_| {
                let listen = free_address();
                let rails = [listen.ip(), free_address().ip()].map(|ip| ip.to_string()).to_vec();
                (daemon(&[], &listen.to_string(), device, &rails, ALL_RAILS), rails)
            })
            .collect();
        let (daemons, rails): (Vec<Daemon>, Vec<Vec<String>>) = nodes.into_iter().unzip();
        let mut ranks = form(&daemons, 1, "");
        exact(&mut ranks);
        let before: Vec<_> = daemons.iter().map(|one| counted(one, counter)).collect();
        timed(&mut ranks, COUNT);
        for ((one, before), rails) in daemons.iter().zip(&before).zip(&rails) {
            assert_shared(before, &counted(one, counter), rails);
            let status = one.status();
            let communicator = &status["communicators"][0];
            assert_eq!((&communicator["channels"], &communicator["rails"]), (&2.into(), &2.into()));
        }
        let socket = daemons[0].socket.display().to_string();
        let shown = Program::start(&mut ringway(&["status", "--socket", &socket])).end().success().out;
        let lines = rails[0].iter().map(|rail| format!("device {device} on rail {rail}: "));
        let lines: Vec<String> = lines.collect();
        let said = [&lines[0], &lines[1], "with 2 channels to each node over 2 rails"];
        assert_mentions(&shown, &said);
    }
}

#[test]
fn nodes_with_different_numbers_of_rails_use_the_fewest() {
    let daemons: Vec<Daemon> = [3, 2, 1]
        .map(|rails| {
            let listen = free_address();
            let further = (1..rails).map(|_| free_address().ip());
            let rails: Vec<String> =
                std::iter::once(listen.ip()).chain(further).map(|ip| ip.to_string()).collect();
            daemon(&[], &listen.to_string(), "tcp", &rails, ALL_RAILS)
        })
        .into();
    for (nodes, channels) in [(&daemons[..2], 2), (&daemons[1..], 1)] {
        let mut ranks = form(nodes, 1, "");
        exact(&mut ranks);
        for one in nodes {
            let status = one.status();
            let communicators = status["communicators"].as_array().expect("some");
            let newest = communicators.iter().max_by_key(|one| one["group"].as_u64()).expect("one");
            assert_eq!((&newest["channels"], &newest["rails"]), (&channels.into(), &channels.into()));
        }
    }
}

#[test]
fn a_rail_that_this_host_has_not_is_named() {
    let folder = Folder::new();
    let key = folder.write("key", KEY).display().to_string();
    let listen = free_address();
    let rails = format!("rails = [\"{}\", \"192.0.2.7\"]", listen.ip());
    for device in ["tcp", "roce-udp"] {
        let network =
            format!("listen = \"{listen}\"\ncluster_key_file = {key:?}\ndevice = \"{device}\"\n{rails}");
        let settings = crate::harness::configuration(&folder.join("d.sock"), &network);
        let config = folder.write("c.toml", &settings);
        assert!(!crate::harness::spawn_daemon(&folder, &config).end().success());
        let log = std::fs::read_to_string(folder.join("log")).expect("a log");
        assert_mentions(&log, &["192.0.2.7", "rail"]);
    }
}

/// Machines with two rails each, `rw0` and `rw1`, all first ones in one network and all second ones in another.
struct Wired {
    machines: Vec<Machine>,
    /// In which the networks are.
    _switch: Machine,
}

impl Wired {
    /// For root, where the kernel can limit what a link carries.
    fn new(count: usize) -> Option<Self> {
        if !has_namespaces() {
            return None;
        }
        let switch = Machine::namespace("");
        for rail in 0..2 {
            switch.ip(&format!("link add br{rail} mtu 9000 type bridge"));
            switch.ip(&format!("link set br{rail} up"));
        }
        let machines: Vec<Machine> = (1..=count).map(|n| Machine::namespace(&address(0, n))).collect();
        for (machine, n) in machines.iter().zip(1..) {
            machine.ip("link set lo up");
            for rail in 0..2 {
                let (port, there) = (format!("p{rail}-{n}"), switch.path());
                machine.ip(&format!(
                    "link add rw{rail} mtu 9000 type veth peer name {port} mtu 9000 netns {there}"
                ));
                machine.ip(&format!("addr add {}/24 dev rw{rail}", address(rail, n)));
                machine.ip(&format!("link set rw{rail} up"));
                switch.ip(&format!("link set {port} master br{rail}"));
                switch.ip(&format!("link set {port} up"));
                let limit =
                    format!("qdisc add dev rw{rail} root tbf rate {MBIT}mbit burst 256kb latency 50ms");
                let words: Vec<&str> = limit.split(' ').collect();
                let limited = Program::start(&mut machine.command("tc", &words)).end();
                if !limited.status.success() {
                    not_tried(&format!("`tc {limit}` does not work here: {}", limited.err));
                    return None;
                }
            }
        }
        Some(Self { machines, _switch: switch })
    }

    /// A daemon on each machine, with so many rails.
    fn daemons(&self, rails: usize, port: u16) -> Vec<Daemon> {
        let all = self.machines.iter().zip(1..);
        all.map(|(machine, n)| {
            let rails: Vec<String> = (0..rails).map(|rail| address(rail, n)).collect();
            daemon(&machine.under(), &format!("{}:{port}", machine.address), "tcp", &rails, "")
        })
        .collect()
    }
}

fn address(rail: usize, machine: usize) -> String {
    format!("10.75.{rail}.{machine}")
}

#[test]
fn two_rails_carry_half_of_the_bytes_each() {
    for nodes in [2, 3] {
        let Some(wired) = Wired::new(nodes) else { return };
        let one = wired.daemons(1, 7411);
        let alone = timed(&mut form(&one, 1, ""), COUNT);
        drop(one);
        let two = wired.daemons(2, 7412);
        let mut ranks = form(&two, 1, "");
        exact(&mut ranks);
        let before: Vec<_> = two.iter().map(|one| counted(one, "bytes_sent")).collect();
        let both = timed(&mut ranks, COUNT);
        eprintln!(
            "{nodes} nodes, allreduce of 16 MiB, {MBIT} Mbit/s each way on each rail: {alone:?} over one rail, {both:?} \
             over two: {:.2} of it",
            both.as_secs_f64() / alone.as_secs_f64()
        );
        // As the links were measured: what one rail carries is half of what both do.
        let known = two.iter().find_map(|one| read_tuning(&one.socket.with_extension("links.toml")).ok());
        let constants = known.expect("links were measured").links[0].constants;
        let ratio = constants.channel_byte_ns / constants.byte_ns;
        assert!(constants.channels == 2.0 && ratio > 1.5, "{constants:?}");
        for (n, (daemon, before)) in two.iter().zip(&before).enumerate() {
            let rails = [0, 1].map(|rail| address(rail, n + 1));
            assert_shared(before, &counted(daemon, "bytes_sent"), &rails);
        }
    }
}

/// How many rails are used is what links are said to carry over one of them alone.
#[test]
fn one_rail_is_enough_where_it_carries_what_both_do() {
    for (channel_byte_ns, is_enough) in [(0.5, true), (1.0, false)] {
        let folder = Folder::new();
        let links = format!(
            "[[links]]\ndevice = \"tcp\"\nlatency_ns = 2e4\nmessage_ns = 2e3\nbyte_ns = 0.5\nreduce_ns = 0.1\n\
             copy_ns = 0.1\nchannels = 2\nchannel_byte_ns = {channel_byte_ns}\n"
        );
        let settings = format!("tuning_file = {:?}\n", folder.write("links.toml", &links));
        let nodes: Vec<(Daemon, Vec<String>)> = (0..2)
            .map(|_| {
                let listen = free_address();
                let rails = [listen.ip(), free_address().ip()].map(|ip| ip.to_string()).to_vec();
                (daemon(&[], &listen.to_string(), "tcp", &rails, &settings), rails)
            })
            .collect();
        let (daemons, rails): (Vec<Daemon>, Vec<Vec<String>>) = nodes.into_iter().unzip();
        let mut ranks = form(&daemons, 1, "");
        exact(&mut ranks);
        let before: Vec<_> = daemons.iter().map(|one| counted(one, "bytes_sent")).collect();
        timed(&mut ranks, COUNT);
        for ((one, before), rails) in daemons.iter().zip(&before).zip(&rails) {
            let after = counted(one, "bytes_sent");
            if is_enough {
                let carried = [0, 1].map(|rail| after[rail].1 - before[rail].1);
                assert!(carried[0] > COUNT as u64 && carried[1] < carried[0] / 1000, "{carried:?}");
            } else {
                assert_shared(before, &after, rails);
            }
        }
    }
}

#[test]
fn a_rail_that_fails_is_named() {
    let Some(wired) = Wired::new(2) else { return };
    let daemons = wired.daemons(2, 7411);
    let mut ranks = form(&daemons, 1, "");
    tell_all(&mut ranks, "loop 1000000");
    for rank in &mut ranks {
        assert_eq!(rank.answer().as_deref(), Ok("looping"));
    }
    let start = Instant::now();
    wired.machines[0].ip("link set rw1 down");
    for rank in &mut ranks {
        let error = rank.answer().expect_err("a rail is gone");
        assert_mentions(&error, &["is lost", "on rail 1"]);
    }
    assert!(start.elapsed() < LONG / 4, "it took {:?}", start.elapsed());
    let text = daemons[0].status().to_string();
    assert_mentions(&text, &["on rail 1"]);
}
