//! What goes wrong among daemons of one cluster.

use std::time::Duration;

use ringway_abi::control::RefusalKind;

use super::{
    super::LocalJoin,
    fixture::{Cluster, Daemon, Hold, Outcome, PATIENCE, any_port, id, refused},
};
use crate::peers::Times;

const JOINED: fn(u32) -> Outcome = |rank| Outcome::Joined { rank, node: rank, node_of: vec![0, 1] };

#[test]
fn a_second_process_as_the_same_rank_is_refused_and_the_first_stays() {
    let mut cluster = Cluster::of(2);
    let id = id(Some(cluster.address(0)), 1);
    let first = cluster.join(0, id, 0, 2);
    let same_node = cluster.join(0, id, 0, 2);
    let other_node = cluster.join(1, id, 0, 2);
    for (node, ticket) in [(0, same_node), (1, other_node)] {
        let text = refused(cluster.settle(node, ticket), RefusalKind::DuplicateRank);
        assert!(text.contains("rank 0"), "{text}");
    }
    let last = cluster.join(1, id, 1, 2);
    cluster.run_until_settled();
    assert_eq!((cluster.outcome(0, first), cluster.outcome(1, last)), (JOINED(0), JOINED(1)));
    cluster.assert_nothing_left();
}

#[test]
fn ranks_that_disagree_about_the_size_are_both_named() {
    let mut cluster = Cluster::of(2);
    let id = id(Some(cluster.address(0)), 1);
    let first = cluster.join(0, id, 0, 2);
    let second = cluster.join(1, id, 1, 3);
    cluster.run_until_settled();
    for (node, ticket) in [(0, first), (1, second)] {
        let text = refused(cluster.outcome(node, ticket), RefusalKind::SizeMismatch);
        assert!(text.contains("rank 1 was started with 3") && text.contains("rank 0 with 2"), "{text}");
    }
    cluster.assert_nothing_left();
}

#[test]
fn ranks_that_ask_for_different_algorithms_are_both_named() {
    let mut cluster = Cluster::of(3);
    let id = id(Some(cluster.address(0)), 1);
    let join = |rank, preference: &str| LocalJoin {
        id,
        rank,
        size: 3,
        uid: 1000,
        session: 1,
        timeout: PATIENCE,
        preference: preference.parse().expect("algorithms"),
    };
    let asked = [(0, "auto"), (1, "ring,allreduce=direct"), (2, "ring")];
    let tickets = asked.map(|(rank, text)| (rank, cluster.join_with(rank as usize, join(rank, text))));
    cluster.run_until_settled();
    for (node, ticket) in tickets {
        let text = refused(cluster.outcome(node as usize, ticket), RefusalKind::Invalid);
        let first =
            text.contains("rank 1 asks for the algorithm `ring,allreduce=direct` but rank 2 for `ring`");
        let second =
            text.contains("rank 2 asks for the algorithm `ring` but rank 1 for `ring,allreduce=direct`");
        assert!(first || second, "{text}");
    }
    cluster.assert_nothing_left();
}

#[test]
fn a_rank_outside_the_size_and_too_many_ranks_are_refused() {
    let mut cluster = Cluster::of(2);
    let id = id(Some(cluster.address(0)), 1);
    for (rank, size, kind) in [
        (2, 2, RefusalKind::Invalid),
        (0, 0, RefusalKind::Invalid),
        (0, ringway_abi::MAX_RANKS + 1, RefusalKind::Quota),
    ] {
        let ticket = cluster.join(1, id, rank, size);
        refused(cluster.settle(1, ticket), kind);
    }
    cluster.assert_nothing_left();
}

#[test]
fn ranks_that_never_come_are_named_on_every_node() {
    let mut cluster = Cluster::of(2);
    let id = id(Some(cluster.address(0)), 1);
    let patient = cluster.join(0, id, 0, 5);
    let hasty = cluster.join_as(1, id, (2, 5), 1000, Duration::from_millis(500));
    cluster.run_until_settled();
    for (node, ticket) in [(0, patient), (1, hasty)] {
        let text = refused(cluster.outcome(node, ticket), RefusalKind::JoinTimeout);
        assert!(text.contains("ranks 1 and 3-4 of 5 never came"), "{text}");
    }
    cluster.assert_nothing_left();
}

#[test]
fn a_client_that_dies_fails_the_join_everywhere() {
    let mut cluster = Cluster::of(2);
    let id = id(Some(cluster.address(0)), 1);
    let first = cluster.join(0, id, 0, 3);
    let dying = cluster.join(1, id, 1, 3);
    let neighbour = cluster.join(1, id, 2, 4);
    refused(cluster.settle(1, neighbour), RefusalKind::SizeMismatch);
    cluster.run_until_settled();
    let (first, dying) = (cluster.outcome(0, first), cluster.outcome(1, dying));
    refused(first, RefusalKind::SizeMismatch);
    refused(dying, RefusalKind::SizeMismatch);

    let first = cluster.join(0, id, 0, 3);
    let dying = cluster.join(1, id, 1, 3);
    cluster.run_until(|c| c.daemon(0).membership.root.ranks_joined() == 2);
    cluster.daemon(1).membership.cancel(dying);
    cluster.daemon(1).act();
    let text = refused(cluster.settle(0, first), RefusalKind::RankFailed);
    assert!(text.contains("rank 1"), "{text}");
    cluster.assert_nothing_left();
}

#[test]
fn a_node_that_cannot_open_or_connect_fails_the_join_everywhere() {
    for hold in [Hold::Open, Hold::Connect] {
        let mut cluster = Cluster::of(2);
        let id = id(Some(cluster.address(0)), 1);
        cluster.daemon(1).hold = hold;
        let (first, second) = (cluster.join(0, id, 0, 2), cluster.join(1, id, 1, 2));
        cluster.run_until(|c| !c.daemon(1).held.is_empty());
        let daemon = cluster.daemon(1);
        daemon.membership.open_failed(daemon.held[0], "no queue pair is left".into());
        daemon.act();
        cluster.run_until_settled();
        for (node, ticket) in [(0, first), (1, second)] {
            let text = refused(cluster.outcome(node, ticket), RefusalKind::RankFailed);
            assert_eq!(text, "no queue pair is left");
        }
        cluster.assert_nothing_left();
    }
}

#[test]
fn a_daemon_that_is_killed_fails_the_join_in_every_phase() {
    for (victim, text_has) in [(2, "the daemon of rank 2"), (0, "the root daemon at")] {
        for hold in [Hold::Nothing, Hold::Open, Hold::Connect] {
            let mut cluster = Cluster::of(3);
            let id = id(Some(cluster.address(0)), 1);
            let size = if hold == Hold::Nothing { 4 } else { 3 };
            cluster.daemon(1).hold = hold;
            let tickets: Vec<_> = (0..3).map(|n| cluster.join(n, id, n as u32, size)).collect();
            cluster.run_until(|c| match hold {
                Hold::Nothing => c.daemon(0).membership.root.ranks_joined() == 3,
                _ => !c.daemon(1).held.is_empty(),
            });
            cluster.daemons[victim] = None;
            cluster.run_until_settled();
            for node in (0..3).filter(|n| *n != victim) {
                let text = refused(cluster.outcome(node, tickets[node]), RefusalKind::RankFailed);
                assert!(text.contains(text_has), "{hold:?}: {text}");
            }
            cluster.assert_nothing_left();
        }
    }
}

#[test]
fn a_daemon_that_falls_silent_counts_as_lost() {
    let times =
        Times { keep_alive: Duration::from_millis(100), silence: Duration::from_secs(3), ..Times::default() };
    let mut cluster = Cluster::with(2, times);
    let id = id(Some(cluster.address(0)), 1);
    let first = cluster.join(0, id, 0, 3);
    cluster.join(1, id, 1, 3);
    cluster.run_until(|c| c.daemon(0).membership.root.ranks_joined() == 2);
    // It lives and its sockets stay open, but it does nothing any more.
    let frozen = cluster.daemons[1].take();
    let text = refused(cluster.settle(0, first), RefusalKind::RankFailed);
    assert!(text.contains("rank 1") && text.contains("silent"), "{text}");
    drop(frozen);
}

#[test]
fn nodes_with_different_devices_do_not_form_a_communicator() {
    let mut cluster = Cluster::of(1);
    cluster.daemons.push(Some(Daemon::new(any_port(), 5, "other", Times::default())));
    let id = id(Some(cluster.address(0)), 1);
    let (first, second) = (cluster.join(0, id, 0, 2), cluster.join(1, id, 1, 2));
    cluster.run_until_settled();
    for (node, ticket) in [(0, first), (1, second)] {
        let text = refused(cluster.outcome(node, ticket), RefusalKind::Incompatible);
        assert!(text.contains("`test`") && text.contains("`other`"), "{text}");
    }
}

#[test]
fn nodes_that_differ_take_the_best_device_that_all_have() {
    let mut cluster = Cluster::of(0);
    for devices in ["a,b,c", "c,b", "b,a,c"] {
        cluster.daemons.push(Some(Daemon::new(any_port(), 5, devices, Times::default())));
    }
    for (number, ranks, device) in
        [(1, &[0, 1, 2][..], "b"), (2, &[1, 0], "c"), (3, &[2, 0], "b"), (4, &[0, 2], "a")]
    {
        let id = id(Some(cluster.address(0)), number);
        let size = u32::try_from(ranks.len()).expect("few");
        let tickets: Vec<_> =
            (0..).zip(ranks).map(|(rank, node)| (*node, cluster.join(*node, id, rank, size))).collect();
        cluster.run_until_settled();
        for (node, _) in tickets {
            assert_eq!(cluster.daemon(node).devices.pop().as_deref(), Some(device), "communicator {number}");
        }
    }
}

#[test]
fn a_daemon_that_shuts_down_says_so() {
    let mut cluster = Cluster::of(2);
    let id = id(Some(cluster.address(0)), 1);
    let (first, second) = (cluster.join(0, id, 0, 3), cluster.join(1, id, 1, 3));
    cluster.run_until(|c| c.daemon(0).membership.root.ranks_joined() == 2);
    cluster.daemon(0).membership.shut_down();
    cluster.daemon(0).act();
    cluster.run_until_settled();
    for (node, ticket) in [(0, first), (1, second)] {
        refused(cluster.outcome(node, ticket), RefusalKind::ShuttingDown);
    }
    cluster.assert_nothing_left();
}
