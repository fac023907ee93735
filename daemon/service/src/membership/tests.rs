//! Formation over real sockets: several daemons' membership modules in one process, each with its own port.

mod failures;
mod fixture;
mod strangers;

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use ringway_abi::control::RefusalKind;
use ringway_group::{Place, Planning};
use ringway_plan::{Layout, PlanSettings, Tuning, tuner::Order};

use super::{LocalJoin, is_here};
use crate::peers::Times;
use fixture::{Cluster, Daemon, Outcome, id, refused};

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

/// Joins `node_of.len()` ranks, each at its node, last rank first, and checks that all get the same layout.
fn form(cluster: &mut Cluster, root: usize, secret: u8, node_of: &[usize]) {
    let id = id(Some(cluster.address(root)), secret);
    let size = u32::try_from(node_of.len()).expect("few");
    let tickets: Vec<_> =
        (0..size).rev().map(|rank| (rank, cluster.join(node_of[rank as usize], id, rank, size))).collect();
    cluster.run_until_settled();
    let layout = Layout::new(&node_of.iter().map(|n| *n as u32).collect::<Vec<_>>());
    let layout = layout.expect("ranks");
    let expected: Vec<u32> = (0..size).map(|r| layout.node_of(r)).collect();
    for (rank, ticket) in tickets {
        let outcome = cluster.outcome(node_of[rank as usize], ticket);
        let node = layout.node_of(rank);
        assert_eq!(outcome, Outcome::Joined { rank, node, node_of: expected.clone() });
    }
    cluster.assert_nothing_left();
}

#[test]
fn two_nodes_meet_at_either() {
    let mut cluster = Cluster::of(2);
    form(&mut cluster, 0, 1, &[0, 0, 1, 1]);
    form(&mut cluster, 1, 2, &[0, 0, 1, 1]);
    form(&mut cluster, 1, 3, &[1, 0, 1, 0, 0]);
    form(&mut cluster, 0, 4, &[1, 1]);
    form(&mut cluster, 0, 1, &[0, 1]);
}

#[test]
fn the_roots_settings_hold_for_all_nodes_and_ranks_may_ask_for_others() {
    let settings = |chunk_bytes, asked: &str| {
        let tuning = Tuning { chunk_bytes, ..Tuning::default() };
        PlanSettings::new(tuning, asked.parse().expect("algorithms"), Vec::new()).expect("within bounds")
    };
    let given = (0..3).map(|node| settings(1024 << node, if node == 1 { "broadcast=ring" } else { "auto" }));
    let mut cluster = Cluster::with_settings(given.collect());
    let id = id(Some(cluster.address(1)), 1);
    let join = |rank, asked: &str| LocalJoin {
        id,
        rank,
        size: 3,
        uid: 1000,
        session: 1,
        timeout: fixture::PATIENCE,
        preference: asked.parse().expect("algorithms"),
    };
    for (rank, asked) in [(0, "allreduce=direct"), (1, "auto"), (2, "allreduce=direct")] {
        cluster.join_with(rank as usize, join(rank, asked));
    }
    cluster.run_until_settled();
    // Of links that nobody knows, measures or has told of, the usual is taken, which the root's tuning and wishes go before.
    let layout = Arc::new(Layout::new(&[0, 1, 2]).expect("ranks"));
    let place = Place { layout, device: "test".to_owned(), hosts: None, sharing: 1.0, channels: 1 };
    let mut planning = Planning::new(settings(2048, "broadcast=ring"), Order::Stable);
    let expected = planning.settings(&place, "allreduce=direct".parse().expect("an algorithm"), None);
    assert_eq!(expected.tuning().chunk_bytes, 2048);
    assert_eq!(expected.preference().to_string(), "allreduce=direct,broadcast=ring");
    for node in 0..3 {
        assert_eq!(cluster.daemon(node).settings, std::slice::from_ref(&expected));
    }
    cluster.assert_nothing_left();
}

#[test]
fn three_nodes_meet_and_a_root_need_not_have_ranks() {
    let mut cluster = Cluster::of(4);
    form(&mut cluster, 0, 1, &[2, 0, 1]);
    form(&mut cluster, 3, 2, &[0, 1, 2, 2, 1, 0]);
}

#[test]
fn many_ranks_fit() {
    let mut cluster = Cluster::of(2);
    let node_of: Vec<usize> = (0..300).map(|r| r % 2).collect();
    form(&mut cluster, 0, 1, &node_of);
}

#[test]
fn several_communicators_form_at_once() {
    let mut cluster = Cluster::of(3);
    let roots: Vec<SocketAddr> = (0..3).map(|n| cluster.address(n)).collect();
    let mut tickets = Vec::new();
    for rank in 0..3_u32 {
        for secret in 0..12_u8 {
            let id = id(Some(roots[usize::from(secret) % 3]), secret);
            tickets.push((rank as usize, cluster.join(rank as usize, id, rank, 3)));
        }
    }
    cluster.run_until_settled();
    for (node, ticket) in tickets {
        let rank = node as u32;
        assert_eq!(
            cluster.outcome(node, ticket),
            Outcome::Joined { rank, node: rank, node_of: vec![0, 1, 2] }
        );
    }
    cluster.assert_nothing_left();
}

#[test]
fn a_root_may_start_late() {
    let mut cluster = Cluster::of(2);
    // An address of its own, so that no other test is given the port while nobody listens on it.
    let own = Some(SocketAddr::from(([127, 0, 7, 7], 0)));
    cluster.daemons[0] = Some(Daemon::new(own, 5, "test", Times::default()));
    let address = cluster.address(0);
    cluster.daemons[0] = None;
    let id = id(Some(address), 1);
    let first = cluster.join(1, id, 1, 2);
    let since = Instant::now();
    cluster.run_until(|_| since.elapsed() > Duration::from_millis(400));
    assert!(cluster.is_waiting(1, first));
    cluster.daemons[0] = Some(Daemon::new(Some(address), 5, "test", Times::default()));
    let second = cluster.join(0, id, 0, 2);
    cluster.run_until_settled();
    assert_eq!(cluster.outcome(1, first), Outcome::Joined { rank: 1, node: 1, node_of: vec![0, 1] });
    assert_eq!(cluster.outcome(0, second), Outcome::Joined { rank: 0, node: 0, node_of: vec![0, 1] });
}

#[test]
fn an_idle_connection_is_closed_and_made_again() {
    let times = Times { idle: Duration::from_millis(200), ..Times::default() };
    let mut cluster = Cluster::with(2, times);
    form(&mut cluster, 0, 1, &[0, 1]);
    cluster.run_until(|c| c.daemons.iter().flatten().all(|d| d.membership.peers.connections() == 0));
    assert_eq!(cluster.daemon(0).membership.deadline(), None);
    form(&mut cluster, 0, 2, &[0, 1]);
}

#[test]
fn an_address_is_taken_for_ones_own_only_when_it_is() {
    let at = |text: &str| Some(text.parse::<SocketAddr>().expect("address"));
    let here = |root: &str, listen: Option<SocketAddr>, advertised| {
        is_here(root.parse().expect("address"), listen, advertised)
    };
    assert!(here("127.0.0.1:7411", at("127.0.0.1:7411"), None));
    assert!(!here("127.0.0.2:7411", at("127.0.0.1:7411"), None));
    assert!(!here("127.0.0.1:7412", at("127.0.0.1:7411"), None));
    assert!(here("127.0.0.1:7411", at("0.0.0.0:7411"), None));
    assert!(!here("127.0.0.1:7412", at("0.0.0.0:7411"), None));
    assert!(!here("192.0.2.1:7411", at("0.0.0.0:7411"), None));
    assert!(here("192.0.2.1:7411", at("0.0.0.0:7411"), at("192.0.2.1:7411")));
    assert!(here("127.0.0.1:7411", at("192.0.2.1:7411"), None));
    assert!(here("127.0.0.1:7411", None, None));
    assert!(!here("192.0.2.1:7411", None, None));
}
