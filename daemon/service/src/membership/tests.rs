//! Formation over real sockets: several daemons' membership modules in one process, each with its own port.

mod fixture;

use std::time::Duration;

use ringway_abi::control::RefusalKind;

use fixture::{Cluster, Outcome, id, refused};

#[test]
fn one_node_needs_no_network() {
    let mut cluster = Cluster::alone();
    let id = id(None, 1);
    let tickets: Vec<_> = (0..3).map(|rank| cluster.join(0, id, rank, 3)).collect();
    cluster.run_until_settled();
    for (rank, ticket) in (0..).zip(tickets) {
        assert_eq!(cluster.outcome(0, ticket), Outcome::Joined { rank, node: 0, node_of: vec![0, 0, 0] });
    }
    cluster.assert_nothing_left();
}

#[test]
fn users_do_not_meet() {
    let mut cluster = Cluster::alone();
    let id = id(None, 1);
    let mine = cluster.join(0, id, 0, 2);
    let theirs = cluster.join_as(0, id, (1, 2), 77, Duration::from_millis(300));
    let text = refused(cluster.settle(0, theirs), RefusalKind::JoinTimeout);
    assert!(text.contains("rank 0 of 2 never came"), "{text}");
    assert!(cluster.is_waiting(0, mine));
}

#[test]
fn a_remote_root_needs_configuration() {
    let mut cluster = Cluster::alone();
    let ticket = cluster.join(0, id(Some("192.0.2.1:7411".parse().expect("address")), 1), 0, 2);
    let text = refused(cluster.settle(0, ticket), RefusalKind::Unreachable);
    assert!(text.contains("listen") && text.contains("cluster_key_file"), "{text}");
    cluster.assert_nothing_left();
}
