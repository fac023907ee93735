//! What other daemons send while a communicator is being formed.

use std::{collections::BTreeSet, time::Duration};

use ringway_group::{
    Answer, Failure, FailureKind, GroupId, Host, Key, Limits, ListedPlan, MESSAGE_BYTES_MAX, NodeRef, Offer,
    PeerEndpoint, Request, Root, ToMember, ToRoot, Width,
};
use ringway_plan::{Algorithm, PlanSettings, Preference, Rule, Tuning, tuner::Constants};
use ringway_types::Operation;
use ringway_verbs::{Endpoint, Time};

use crate::Reader;

/// A membership message of either direction: what is understood survives being said again.
pub fn message(bytes: &[u8]) {
    if let Ok(message) = ToRoot::decode(bytes) {
        assert!(bytes.len() <= MESSAGE_BYTES_MAX);
        let again = message.encode();
        assert!(again.is_err() || again.is_ok_and(|b| ToRoot::decode(&b) == Ok(message)));
    }
    if let Ok(message) = ToMember::decode(bytes) {
        let again = message.encode();
        assert!(again.is_err() || again.is_ok_and(|b| ToMember::decode(&b) == Ok(message)));
    }
}

fn endpoints() -> Vec<PeerEndpoint> {
    let endpoint = |length: usize| Endpoint::new(&vec![7; length]);
    [0, 56, 96]
        .into_iter()
        .flat_map(endpoint)
        .zip(0..)
        .map(|(endpoint, node)| PeerEndpoint { node, channel: 0, endpoint })
        .collect()
}

/// Devices with two network cards each.
fn offers(names: &[&str]) -> Vec<Offer> {
    let width = Width { rails: 2, channels: 2 };
    names.iter().map(|name| Offer { device: (*name).to_owned(), width }).collect()
}

/// Most ask for nothing, some for the same, some for something else.
fn preference(choice: u8) -> Preference {
    match choice {
        1..=60 => Preference::everywhere(Algorithm::Ring),
        61 => Preference::everywhere(Algorithm::Direct),
        _ => Preference::default(),
    }
}

fn settings() -> PlanSettings {
    let rule = |bytes_max| Rule {
        operation: Operation::Allreduce,
        bytes_max,
        algorithm: Algorithm::Ring,
        chunk_bytes: 4096,
        channels: 2,
    };
    let rules = vec![rule(1 << 10), rule(1 << 20)];
    PlanSettings::new(Tuning::default(), preference(1), rules).unwrap_or_default()
}

/// As many plans, for two nodes.
fn plans(count: u8) -> Vec<ListedPlan> {
    let plan = |i| ListedPlan { operation: Operation::Allreduce, nodes: 2, name: "p".into(), digest: i };
    (0..u64::from(count)).map(plan).collect()
}

/// Every message, cut short, and with lengths that lie.
#[must_use]
pub fn message_samples() -> Vec<Vec<u8>> {
    let key = Key { secret: *b"0123456789abcdef", uid: 1000 };
    let failure = || Failure::new(FailureKind::JoinTimeout, "rank 3 did not come\u{7}");
    let requests = [
        Request::Join {
            rank: 1,
            size: 4,
            timeout_ms: 1000,
            devices: offers(&["roce", "tcp"]),
            preference: preference(1),
            host: Host { name: "10.0.0.1".to_owned(), processors: 7, processor_count: 2 },
            plans: plans(1),
        },
        Request::Endpoints(endpoints()),
        Request::Ready { measured: None },
        Request::Ready { measured: Some(Constants::default()) },
        Request::Fail(failure()),
        Request::Leave,
    ];
    let answers = [
        Answer::Refuse { rank: 1, failure: failure() },
        Answer::Roster {
            node: 1,
            node_of: vec![0, 0, 1, 1],
            device: "tcp".to_owned(),
            width: Width { rails: 2, channels: 4 },
            measure: true,
        },
        Answer::Endpoints(endpoints()),
        Answer::Go { settings: settings() },
        Answer::Fail(failure()),
    ];
    let group = GroupId(5);
    let mut samples: Vec<Vec<u8>> = Vec::new();
    samples.extend(requests.into_iter().flat_map(|body| ToRoot { key, group, body }.encode()));
    samples.extend(answers.into_iter().flat_map(|body| ToMember { group, body }.encode()));
    let lies: Vec<_> = samples
        .iter()
        .filter_map(|s| s.get(..s.len() - 1))
        .map(|s| [s, &[0xff, 0xff, 0xff, 0xff, 0x0f]].concat())
        .collect();
    samples.extend(lies);
    samples.extend([vec![0xff; 30], Vec::new()]);
    samples
}

const LIMITS: Limits = Limits { ranks: 16, rendezvous: 3, setup: Duration::from_secs(10) };

/// Steps of members that say whatever they like, in any order, to a root: it stays within its limits, answers only
/// members that spoke to it, and forgets everybody in the end.
pub fn root(bytes: &[u8]) {
    let mut reader = Reader(bytes);
    let mut root = Root::new(LIMITS);
    let mut spoke = BTreeSet::new();
    let mut now = 0_u64;
    while !reader.is_empty() {
        let [step, node, key, group] = reader.bytes();
        let node = NodeRef(u64::from(node % 4));
        let key = Key { secret: [key % 5; 16], uid: u32::from(key % 2) };
        let group = GroupId(u64::from(group % 3));
        let body = match step % 9 {
            0..=2 => {
                let [rank, size, timeout, device] = reader.bytes();
                let devices = offers(match device {
                    251.. => &["other"],
                    200.. => &["roce", "tcp"],
                    100.. => &["tcp", "roce"],
                    _ => &["tcp"],
                });
                let size = if size > 250 { u32::MAX } else { u32::from(size % 6) };
                Request::Join {
                    rank: u32::from(rank % 7),
                    size,
                    timeout_ms: u32::from(timeout) * 100,
                    devices,
                    preference: preference(timeout),
                    host: Host {
                        name: format!("host{device}"),
                        processors: 0,
                        processor_count: u32::from(device),
                    },
                    plans: plans(rank % 2),
                }
            }
            3 => {
                let mut list = endpoints();
                for endpoint in &mut list {
                    let byte = reader.u8();
                    (endpoint.node, endpoint.channel) = (u32::from(byte % 5), byte / 5 % 3);
                }
                list.truncate(usize::from(reader.u8() % 4));
                Request::Endpoints(list)
            }
            4 => {
                let measured = Constants {
                    latency_ns: f64::from(node.0 as u32 + u32::from(step)),
                    ..Constants::default()
                };
                Request::Ready { measured: (step > 100).then_some(measured) }
            }
            5 => Request::Fail(Failure::new(FailureKind::Invalid, "because")),
            6 => Request::Leave,
            7 => {
                now = now.saturating_add(u64::from(reader.u32()));
                root.tick(Time(now));
                continue;
            }
            _ => {
                root.node_lost(node, "its connection broke");
                assert!(!root.involves(node));
                continue;
            }
        };
        spoke.insert(node.0);
        root.receive(node, ToRoot { key, group, body }, Time(now));
        assert!(root.rendezvous() <= LIMITS.rendezvous, "{} at once", root.rendezvous());
        drain(&mut root, &spoke);
    }
    root.tick(Time(u64::MAX));
    drain(&mut root, &spoke);
    assert_eq!(root.rendezvous(), 0, "everything ends");
}

fn drain(root: &mut Root, spoke: &BTreeSet<u64>) {
    while let Some((node, message)) = root.next_message() {
        assert!(spoke.contains(&node.0), "{node:?} never asked");
        assert!(message.encode().is_ok(), "{message:?} fits into a message");
    }
}

/// Two nodes that form a communicator, a duplicate rank, a size that differs, a node that is lost, time that runs out.
#[must_use]
pub fn root_samples() -> Vec<Vec<u8>> {
    let join = |node: u8, rank: u8, size: u8| vec![0, node, 1, node, rank, size, 200, 0];
    let formed = [
        join(1, 0, 2),
        join(2, 1, 2),
        vec![3, 1, 1, 1, 1, 1, 1, 1],
        vec![3, 2, 1, 2, 0, 0, 0, 1],
        vec![4, 1, 1, 1],
        vec![4, 2, 1, 2],
    ];
    vec![
        formed.concat(),
        [join(1, 0, 2), join(2, 0, 2)].concat(),
        [join(1, 0, 2), join(2, 1, 3)].concat(),
        [join(1, 0, 2), vec![8, 1, 0, 0]].concat(),
        [join(1, 0, 3), vec![7, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]].concat(),
        [join(1, 0, 2), vec![6, 1, 1, 1], join(1, 0, 2)].concat(),
        [join(1, 0, 0), join(1, 6, 5), join(1, 0, 251)].concat(),
        (0..10).flat_map(|key| vec![0, 1, key, 1, 0, 2, 200, 0]).collect(),
        Vec::new(),
    ]
}
