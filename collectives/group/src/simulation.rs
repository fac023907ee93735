//! Daemons that form communicators over a simulated network: every interleaving of joins, messages, lost connections,
//! lost ranks, failing devices and time ends with all nodes formed with one roster or all failed, and nothing left.

mod network;

use proptest::prelude::*;

use std::time::Duration;

use ringway_plan::Preference;
use ringway_verbs::Time;

use crate::{
    FailureKind, Host, JoinRequest, Key, Member, MemberConfig, MemberEvent, Offer, Request, RootAt, Width,
};
use network::{Action, JOIN_MS, Network, Outcome};

fn any_action() -> impl Strategy<Value = Action> {
    let pick = any::<usize>();
    prop_oneof![
        3 => (0..3_usize, 0..2_usize, 0..4_u32, 2..4_u32, any::<bool>()).prop_map(|(node, root, rank, size, odd)| {
            Action::Join { node, root, rank, size: if odd { size } else { 3 } }
        }),
        30 => pick.prop_map(Action::Deliver),
        12 => pick.prop_map(Action::Work),
        6 => pick.prop_map(Action::Connect),
        1 => pick.prop_map(Action::Break),
        1 => pick.prop_map(Action::Cancel),
        1 => pick.prop_map(Action::FailWork),
        2 => (0_u64..JOIN_MS / 2).prop_map(Action::Advance),
    ]
}

/// Deliveries and work in any order, but nothing that fails.
fn kind_action() -> impl Strategy<Value = Action> {
    let pick = any::<usize>();
    prop_oneof![pick.prop_map(Action::Deliver), pick.prop_map(Action::Work), pick.prop_map(Action::Connect)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn everything_ends_the_same_way_everywhere(
        placement in proptest::collection::vec(0..3_usize, 3),
        every in 0..20_usize,
        actions in proptest::collection::vec(any_action(), 0..160),
    ) {
        let mut network = Network::new(3);
        // Ranks that belong together come now and then among everything else that happens.
        let mut joins = (0..).zip(placement);
        for (at, action) in actions.into_iter().enumerate() {
            if at % (every + 1) == every && let Some((rank, node)) = joins.next() {
                network.join(node, 0, rank, 3);
            }
            network.act(action);
        }
        network.finish();
        network.check();
    }

    #[test]
    fn without_failures_all_ranks_meet(
        placement in proptest::collection::vec(0..3_usize, 1..9),
        order in any::<proptest::sample::Index>(),
        actions in proptest::collection::vec(kind_action(), 0..200),
    ) {
        let mut network = Network::new(3);
        let size = placement.len() as u32;
        let first = order.index(placement.len()) as u32;
        let mut tickets = Vec::new();
        let mut actions = actions.into_iter();
        for at in 0..size {
            let rank = (first + at) % size;
            tickets.push(network.join(placement[rank as usize], 0, rank, size));
            actions.by_ref().take(5).for_each(|a| network.act(a));
        }
        actions.for_each(|a| network.act(a));
        network.settle();
        for (node, ticket) in tickets {
            prop_assert_eq!(network.outcome(node, ticket), Some(&Outcome::Formed));
        }
        network.finish();
        network.check();
    }
}

#[test]
fn a_leave_that_crosses_a_failure_does_not_block_the_next_attempt() {
    let mut network = Network::new(2);
    network.join(0, 0, 0, 3);
    let (_, first) = network.join(1, 0, 1, 3);
    network.settle();
    // The failure is on its way to node 1 while node 1's next rank is on its way to the root.
    network.cancel(0, 0);
    let (_, second) = network.join(1, 0, 2, 3);
    network.settle();
    for ticket in [first, second] {
        assert_eq!(network.outcome(1, ticket), Some(&Outcome::Failed(FailureKind::RankFailed)));
    }
    let tickets = [network.join(0, 0, 2, 3), network.join(0, 0, 0, 3), network.join(1, 0, 1, 3)];
    network.settle();
    for (node, ticket) in tickets {
        assert_eq!(network.outcome(node, ticket), Some(&Outcome::Formed));
    }
    network.finish();
    network.check();
}

/// A device that broke is not offered any more, but for one that is the only one, which says itself what is wrong.
#[test]
fn withdrawn_devices_are_not_offered() {
    let devices = ["verbs", "tcp"].map(|name| Offer { device: name.to_owned(), width: Width::ONE }).to_vec();
    let (grace, setup) = (Duration::from_secs(1), Duration::from_secs(1));
    let mut member =
        Member::new(MemberConfig { devices, host: Host::default(), plans: Vec::new(), grace, setup });
    let offered = |member: &mut Member, rank| {
        let (timeout, preference) = (Duration::from_secs(1), Preference::default());
        let request = JoinRequest {
            root: RootAt::Here,
            key: Key { secret: [7; 16], uid: 0 },
            rank,
            size: 9,
            timeout,
            preference,
        };
        member.join(request, Time(0));
        let Some(MemberEvent::Send { message, .. }) = member.next_event() else { panic!("says nothing") };
        let Request::Join { devices, .. } = message.body else { panic!("{message:?}") };
        devices.into_iter().map(|offer| offer.device).collect::<Vec<_>>()
    };
    assert_eq!(offered(&mut member, 0), ["verbs", "tcp"]);
    member.withdraw("verbs");
    assert_eq!(offered(&mut member, 1), ["tcp"]);
    member.withdraw("tcp");
    assert_eq!(offered(&mut member, 2), ["verbs", "tcp"]);
}
