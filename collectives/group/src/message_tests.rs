use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use proptest::prelude::*;
use ringway_plan::{Algorithm, Rule, Tuning};
use ringway_types::Operation;
use ringway_verbs::Time;

use super::*;
use crate::{
    FailureKind, JoinRequest, Limits, Member, MemberConfig, MemberEvent, NodeRef, PLANS_MAX, Root, RootAt,
    Ticket,
};

const WIDE: Width = Width { rails: 2, channels: 2 };
const KEY: Key = Key { secret: [0xff; 16], uid: u32::MAX };

#[test]
fn the_largest_messages_fit() {
    let group = GroupId(u64::MAX);
    let node_of: Vec<u32> = (0..8192).collect();
    let device = "x".repeat(32);
    let roster = Answer::Roster { node: 8191, node_of, device, width: WIDE, measure: true };
    for body in [roster, Answer::Go { settings: largest_settings() }] {
        let message = ToMember { group, body };
        assert_eq!(ToMember::decode(&message.encode().expect("fits")), Ok(message));
    }
    let endpoint = Endpoint::new(&[0xff; Endpoint::CAPACITY]).expect("fits");
    let list: Vec<_> =
        (0..ENDPOINTS_MAX).map(|_| PeerEndpoint { node: u32::MAX, channel: u8::MAX, endpoint }).collect();
    let mut endpoints = ToRoot { key: KEY, group, body: Request::Endpoints(list.clone()) };
    assert_eq!(ToRoot::decode(&endpoints.encode().expect("fits")), Ok(endpoints.clone()));
    endpoints.body = Request::Endpoints([list.clone(), list.get(..1).unwrap_or_default().to_vec()].concat());
    assert_eq!(ToRoot::decode(&endpoints.encode().expect("fits")), Err(MalformedMessage));
}

#[test]
fn nodes_of_different_widths_use_the_fewest_rails_with_as_many_channels_on_each() {
    for (widths, common) in [
        (&[(1, 1)][..], (1, 1)),
        (&[(2, 2), (3, 3)], (2, 2)),
        (&[(2, 4), (3, 3), (4, 8)], (2, 2)),
        (&[(2, 4), (1, 3), (3, 3)], (1, 3)),
        (&[(8, 8), (4, 8)], (4, 8)),
    ] {
        let widths = widths.iter().map(|(rails, channels)| Width { rails: *rails, channels: *channels });
        let found = Width::common(widths.clone()).expect("some nodes");
        assert_eq!((found.rails, found.channels), common);
        assert!(found.is_possible() && widths.clone().all(|one| one.is_possible() && one.allows(found)));
        assert_eq!(Width::common(widths.rev()), Some(found), "whoever comes first");
    }
    for (rails, channels) in [(0, 1), (1, 0), (2, 3), (2, 1), (1, 9), (9, 9)] {
        let width = Width { rails, channels };
        assert!(!width.is_possible() && !Width { rails: 8, channels: 8 }.allows(width));
        let offer = Offer { device: "x".into(), width };
        let (preference, host) = (Preference::default(), Host::default());
        let (devices, plans) = (vec![offer], Vec::new());
        let body = Request::Join { rank: 0, size: 1, timeout_ms: 1, devices, preference, host, plans };
        let message = ToRoot { key: KEY, group: GroupId(1), body };
        assert_eq!(ToRoot::decode(&message.encode().expect("fits")), Err(MalformedMessage));
        let body = Answer::Roster { node: 0, node_of: vec![0], device: "x".into(), width, measure: false };
        let message = ToMember { group: GroupId(1), body };
        assert_eq!(ToMember::decode(&message.encode().expect("fits")), Err(MalformedMessage));
    }
}

#[test]
fn texts_of_peers_are_cleaned() {
    let text = format!("\u{1b}[31m{}", "x".repeat(5000));
    let body = Request::Fail(Failure::new(FailureKind::RankFailed, text));
    let message = ToRoot { key: KEY, group: GroupId(1), body };
    let Ok(ToRoot { body: Request::Fail(failure), .. }) = ToRoot::decode(&message.encode().expect("fits"))
    else {
        panic!("a failure comes back")
    };
    assert!(failure.text.starts_with("[31mxxx") && failure.text.len() == 1000);
    for names in [&["a\nb"][..], &["a", ""], &["a"; DEVICES_MAX + 1], &[]] {
        let devices = names.iter().map(|name| Offer::narrow(name)).collect();
        let (preference, host) = (Preference::default(), Host::default());
        let body =
            Request::Join { rank: 0, size: 1, timeout_ms: 1, devices, preference, host, plans: Vec::new() };
        let message = ToRoot { key: KEY, group: GroupId(1), body };
        let decoded = ToRoot::decode(&message.encode().expect("fits"));
        assert_eq!(decoded, Err(MalformedMessage), "{names:?}");
    }
}

fn join(rank: u32, size: u32, plans: Vec<ListedPlan>) -> Request {
    let (preference, host) = (Preference::default(), Host::default());
    let devices = vec![Offer::narrow("x")];
    Request::Join { rank, size, timeout_ms: 1000, devices, preference, host, plans }
}

#[test]
fn plans_of_peers_are_bounded() {
    let plan = |name: &str| ListedPlan {
        operation: Operation::Allreduce,
        nodes: 2,
        name: name.to_owned(),
        digest: u64::MAX,
    };
    let decoded = |plans: Vec<ListedPlan>| {
        let body = join(0, 1, plans);
        let message = ToRoot { key: KEY, group: GroupId(1), body };
        ToRoot::decode(&message.encode().expect("fits")) == Ok(message)
    };
    assert!(decoded(vec![plan(&"x".repeat(64)); PLANS_MAX]));
    for plans in
        [vec![plan("x"); PLANS_MAX + 1], vec![plan("")], vec![plan("a b")], vec![plan(&"x".repeat(65))]]
    {
        assert!(!decoded(plans));
    }
}

/// Two ranks on two nodes with these plans join: what is said to both.
fn formed(plans: [Vec<ListedPlan>; 2]) -> Result<(), String> {
    let mut root = Root::new(Limits::default());
    for (rank, plans) in (0..).zip(plans) {
        let body = join(rank, 2, plans);
        root.receive(NodeRef(u64::from(rank)), ToRoot { key: KEY, group: GroupId(1), body }, Time(0));
    }
    let said: Vec<Answer> = core::iter::from_fn(|| root.next_message()).map(|(_, it)| it.body).collect();
    assert_eq!(said.len(), 2, "both are told");
    match &said[..] {
        [Answer::Fail(first), Answer::Fail(second)] if first == second => {
            assert_eq!(first.kind, FailureKind::Incompatible);
            Err(first.text.clone())
        }
        [Answer::Roster { .. }, Answer::Roster { .. }] => Ok(()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn nodes_with_different_plans_do_not_come_together() {
    let plan =
        |operation, nodes, name: &str, digest| ListedPlan { operation, nodes, name: name.into(), digest };
    let mine = plan(Operation::Allreduce, 2, "mine", 7);
    assert_eq!(formed([vec![mine.clone()], vec![mine.clone()]]), Ok(()));
    // What is not used does not matter: an earlier plan for the same, and those for other numbers of nodes.
    let earlier = plan(Operation::Allreduce, 2, "old", 1);
    let other = plan(Operation::Allreduce, 3, "other", 2);
    assert_eq!(formed([vec![earlier, mine.clone()], vec![mine.clone(), other]]), Ok(()));
    assert_eq!(
        formed([vec![mine.clone()], Vec::new()]).unwrap_err(),
        "for allreduce between 2 nodes the daemon of rank 0 has the plan mine (0000000000000007), that of rank 1 no plan: \
         list the same files in `plans` on every node and start the daemons again"
    );
    let theirs = plan(Operation::Allreduce, 2, "mine", 8);
    let text = formed([vec![mine], vec![theirs]]).unwrap_err();
    assert!(
        text.contains(
            "has the plan mine (0000000000000007), that of rank 1 the plan mine (0000000000000008)"
        ),
        "{text}"
    );
}

proptest! {
    #[test]
    fn rubbish_is_refused_or_means_itself(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(message) = ToRoot::decode(&bytes) {
            let _ = message.encode();
        }
        if let Ok(message) = ToMember::decode(&bytes) {
            let _ = message.encode();
        }
    }

    #[test]
    fn a_hostile_member_cannot_break_the_root(
        said in proptest::collection::vec((0_u64..3, 0_u64..2, request()), 0..60),
    ) {
        let mut root = Root::new(Limits::default());
        for (node, group, body) in said {
            let message = ToRoot { key: KEY, group: GroupId(group), body };
            root.receive(NodeRef(node), message, Time(0));
        }
        root.tick(Time(u64::MAX));
        prop_assert_eq!(root.rendezvous(), 0);
    }

    #[test]
    fn a_hostile_root_cannot_break_a_member(
        said in proptest::collection::vec((1_u64..3, answer(), any::<bool>()), 0..40),
    ) {
        let config = MemberConfig {
            devices: vec![Offer { device: "x".into(), width: WIDE }],
            host: Host::default(),
            plans: Vec::new(),
            grace: Duration::ZERO,
            setup: Duration::ZERO,
        };
        let mut member = Member::new(config);
        let root = RootAt::There(([10, 0, 0, 1], 1).into());
        let now = Time(0);
        member.root_connected(([10, 0, 0, 1], 1).into(), now);
        let mut waiting = BTreeSet::new();
        for rank in 0..2 {
            let timeout = Duration::from_secs(1);
            let preference = Preference::default();
            let request = JoinRequest { root, key: KEY, rank, size: 3, timeout, preference };
            waiting.insert(member.join(request, now));
        }
        let mut local = BTreeMap::new();
        for (group, body, acts) in said {
            member.receive(root, ToMember { group: GroupId(group), body }, now);
            if acts {
                let endpoint = Endpoint::new(b"e").expect("fits");
                member.opened(GroupId(group), vec![(1, endpoint); usize::from(WIDE.channels)]);
                member.ready(GroupId(group), None);
            }
            drain(&mut member, &mut local, &mut waiting);
        }
        member.tick(Time(u64::MAX));
        drain(&mut member, &mut local, &mut waiting);
        prop_assert!(waiting.is_empty(), "every ticket is answered");
        prop_assert_eq!(member.forming(), 0);
    }
}

type Tickets = BTreeSet<Ticket>;

fn drain(member: &mut Member, local: &mut BTreeMap<GroupId, Tickets>, waiting: &mut Tickets) {
    while let Some(event) = member.next_event() {
        match event {
            MemberEvent::Open { group, local: ranks, .. } => {
                local.insert(group, ranks.into_iter().map(|(_, t)| t).collect());
            }
            MemberEvent::Formed { group, .. } => {
                let formed = local.remove(&group).expect("opened before");
                assert!(formed.iter().all(|t| waiting.remove(t)));
            }
            MemberEvent::Failed { tickets, .. } => {
                assert!(tickets.iter().all(|t| waiting.remove(t)))
            }
            MemberEvent::Send { .. } | MemberEvent::Connect { .. } => {}
        }
    }
}

fn endpoints() -> impl Strategy<Value = Vec<PeerEndpoint>> {
    let endpoint = Endpoint::new(b"e").expect("fits");
    let one = (0_u32..4, 0_u8..3);
    let one = one.prop_map(move |(node, channel)| PeerEndpoint { node, channel, endpoint });
    proptest::collection::vec(one, 0..4)
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        4 => (0_u32..4, 0_u32..4, 0_u32..9).prop_map(|(rank, size, timeout_ms)| Request::Join {
            rank,
            size,
            timeout_ms,
            devices: vec![Offer { device: "x".into(), width: WIDE }],
            preference: if timeout_ms > 6 { ring() } else { Preference::default() },
            host: Host::default(),
            plans: Vec::new(),
        }),
        2 => endpoints().prop_map(Request::Endpoints),
        1 => Just(Request::Ready { measured: None }),
        1 => Just(Request::Ready { measured: Some(Constants::default()) }),
        1 => Just(Request::Fail(Failure::new(FailureKind::Invalid, "x"))),
        1 => Just(Request::Leave),
    ]
}

fn roster(node: u32, node_of: Vec<u32>) -> Answer {
    let width = if node == 2 { Width::ONE } else { WIDE };
    Answer::Roster { node, node_of, device: "x".into(), width, measure: node == 1 }
}

fn ring() -> Preference {
    Preference::everywhere(Algorithm::Ring)
}

/// As many rules as there can be, with numbers as long as there are.
fn largest_settings() -> PlanSettings {
    let operations = Operation::ALL.iter().filter(|operation| operation.is_collective());
    let rules = operations.flat_map(|&operation| {
        (0..PlanSettings::RULES_MAX as u64).rev().map(move |at| Rule {
            operation,
            bytes_max: u64::MAX - at,
            algorithm: Algorithm::Ring,
            chunk_bytes: PlanSettings::CHUNK_BYTES_MAX,
            channels: PlanSettings::CHANNELS_MAX,
        })
    });
    PlanSettings::new(Tuning { direct_max_bytes: u64::MAX, ..Tuning::default() }, ring(), rules.collect())
        .expect("within bounds")
}

fn answer() -> impl Strategy<Value = Answer> {
    let failure = Failure::new(FailureKind::Invalid, "x");
    let refused = failure.clone();
    prop_oneof![
        4 => (0_u32..3, proptest::collection::vec(0_u32..3, 0..4))
            .prop_map(|(node, node_of)| roster(node, node_of)),
        4 => Just(roster(0, vec![0, 0, 1])),
        4 => endpoints().prop_map(Answer::Endpoints),
        2 => Just(Answer::Go { settings: PlanSettings::default() }),
        1 => Just(Answer::Fail(failure)),
        1 => (0_u32..3).prop_map(move |rank| Answer::Refuse { rank, failure: refused.clone() }),
    ]
}
