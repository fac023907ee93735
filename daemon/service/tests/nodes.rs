//! Two daemons as two nodes on this host.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod common;

use std::time::Duration;

use common::{Client, Daemon, Rank, allreduce, barrier, folder, get, key_file, node, put};
use ringway_abi::{
    Status,
    control::{RefusalKind, Reply, Request},
};

fn joined(nodes: &[Daemon], device: &str) -> Vec<(Client, Rank)> {
    let mut clients: Vec<_> = nodes.iter().map(|node| Client::connect(&node.socket)).collect();
    let Reply::UniqueId(id) = clients[0].ask(Request::NewUniqueId { several_nodes: true }, &[]) else {
        panic!("no id");
    };
    assert!(id.root.is_some());
    let size = u32::try_from(nodes.len()).expect("few");
    let numbers: Vec<_> = clients.iter_mut().zip(0..).map(|(c, rank)| c.join(id, rank, size)).collect();
    let ranks = clients.into_iter().zip(numbers).map(|(mut client, number)| {
        let rank = client.joined(number);
        assert_eq!((rank.joined.node_of.as_slice(), rank.joined.device.as_str()), (&[0, 1][..], device));
        (client, rank)
    });
    ranks.collect()
}

#[test]
fn ranks_on_two_nodes_reduce_and_a_lost_node_is_named_over_tcp() {
    ranks_on_two_nodes_reduce_and_a_lost_node_is_named("tcp");
}

#[test]
fn ranks_on_two_nodes_reduce_and_a_lost_node_is_named_over_shm() {
    ranks_on_two_nodes_reduce_and_a_lost_node_is_named("shm");
}

fn ranks_on_two_nodes_reduce_and_a_lost_node_is_named(device: &str) {
    let folder = folder();
    let key = key_file(&folder, "key", "a7");
    let mut nodes: Vec<_> = (0..2).map(|_| node(&key, |s| s.device = Some(device.to_owned()))).collect();
    let mut ranks = joined(&nodes, device);
    let regions: Vec<_> = ranks.iter_mut().map(|(client, _)| client.region(1 << 20)).collect();
    for (count, round) in [(1, 1), (100, 2), (1 << 16, 3)] {
        for ((_, rank), region) in ranks.iter_mut().zip(&regions) {
            (0..count).for_each(|at| put(&region.mapping, at * 8, at + round));
            rank.submit(&allreduce(5, (region.handle, 0), (region.handle, 1 << 19), count));
        }
        for ((_, rank), region) in ranks.iter_mut().zip(&regions) {
            assert_eq!(rank.wait(), (5, Some(Status::Success)));
            (0..count).for_each(|at| assert_eq!(get(&region.mapping, (1 << 19) + at * 8), 2 * (at + round)));
        }
    }
    let status = ranks[0].0.status();
    assert_eq!((status.device.as_str(), status.communicators[0].nodes), (device, 2));

    // A rank that is alive but late is named, on the node that waits.
    ranks[0].1.submit(&barrier(6));
    assert_eq!(ranks[0].1.completion(Duration::from_millis(1500)), None);
    assert_eq!(ranks[0].0.status().communicators[0].late_ranks, [1]);

    nodes.pop().expect("the second").stop().expect("a clean end");
    let (token, status) = ranks[0].1.wait();
    let (client, rank) = &mut ranks[0];
    let text = client.explain(rank, token);
    assert!(matches!(status, Some(Status::NodeLost | Status::RankFailed)), "{status:?}: {text}");
    assert!(text.contains("rank 1"), "{text}");
    drop((ranks, nodes));
    std::fs::remove_dir_all(folder).expect("remove");
}

#[test]
fn a_daemon_with_another_key_is_refused() {
    let folder = folder();
    let nodes =
        [node(&key_file(&folder, "key", "a7"), |_| {}), node(&key_file(&folder, "other", "b8"), |_| {})];
    let mut clients: Vec<_> = nodes.iter().map(|node| Client::connect(&node.socket)).collect();
    let Reply::UniqueId(id) = clients[0].ask(Request::NewUniqueId { several_nodes: true }, &[]) else {
        panic!("no id");
    };
    clients[0].join(id, 0, 2);
    let number = clients[1].join(id, 1, 2);
    let (reply, _) = clients[1].reply(number);
    assert!(matches!(reply, Reply::Refused { kind: RefusalKind::Key, .. }), "{reply:?}");
    drop(nodes);
    std::fs::remove_dir_all(folder).expect("remove");
}
