//! Peers whose host says that nobody takes packets there: they are given up soon when it is true, and kept when it is not.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "the parts of a test")]

mod common;

use std::{
    cell::RefCell,
    net::IpAddr,
    time::{Duration, Instant},
};

use ringway_roce::{
    Counters, Link, LinkError, Path, Received, Refusal, RefusalReason, RoceConfig, RoceEndpoint, RoceFailure,
    SendError, UdpLink,
};
use ringway_sim::conformance::{Fixture, Side, request};
use ringway_verbs::{Access, Device, Endpoint, Operation, QueuePairNumber, QueuePairState, Status, Time};
use ringway_wire::{Flow, PathMtu};

/// Patient for longer than any test, and asking seldom: what ends sooner has been heard of.
fn config() -> RoceConfig {
    RoceConfig {
        patience_ns: 600_000_000_000,
        keep_alive_ns: 200_000_000,
        refused_patience_ns: 50_000_000,
        ..common::config()
    }
}

harness!(Pair, config(), |_, link| Box::new(link));
harness!(Narrow, common::config(), |_, link: UdpLink| Box::new(Forging(link)));
harness!(Deceived, config(), |_, link: UdpLink| Box::new(Forging(link)));

fn is_failed<D: Device>(device: &D, number: QueuePairNumber) -> bool {
    device.state(number) == Some(QueuePairState::Error)
}

/// Kills the right side; gives how long the left one needed to give up all these queue pairs.
fn kill(fixture: &mut Fixture<Pair>, numbers: &[QueuePairNumber]) -> Duration {
    fixture.kill(Side::Right);
    let since = Instant::now();
    fixture.until("the peer is given up", |fixture| {
        let device = fixture.device(Side::Left);
        numbers.iter().all(|number| is_failed(device, *number))
    });
    for number in numbers {
        let device = fixture.device(Side::Left);
        let failure = device.last_error(*number).unwrap();
        assert!(matches!(failure, RoceFailure::Refused(_)), "{failure}");
        assert!(failure.to_string().contains("nobody takes packets"), "{failure}");
    }
    since.elapsed()
}

#[test]
fn a_peer_that_is_killed_under_load_is_given_up_soon() {
    let (mut fixture, [left, right]) = Fixture::<Pair>::connected();
    let from = fixture.memory(Side::Left, 4096, Access::ALL);
    let into = fixture.memory(Side::Right, 4096, Access::ALL);
    fixture.receive(Side::Right, right, 1, into.slice(0, 4096));
    fixture.send(Side::Left, left, &request(1, Operation::Send { immediate: None }, &[from.slice(0, 4096)]));
    fixture.expect(Side::Left, 1, Status::Success);
    fixture.send(Side::Left, left, &request(2, Operation::Send { immediate: None }, &[from.slice(0, 64)]));
    let took = kill(&mut fixture, &[left]);
    // Without the news this takes ten minutes.
    assert!(took < Duration::from_secs(10), "{took:?}");
    let counters = fixture.device(Side::Left).counters();
    assert!(counters.refused > 0 && counters.failures == 1, "{counters:?}");
    assert_ne!(fixture.take(Side::Left, 1)[0].status, Status::Success);
}

#[test]
fn a_peer_that_is_killed_is_given_up_on_every_queue_pair() {
    let (mut fixture, [first, _]) = Fixture::<Pair>::connected();
    let mut numbers = vec![first];
    numbers.extend((0..20).map(|_| fixture.connect(4)[0]));
    let took = kill(&mut fixture, &numbers);
    assert!(took < Duration::from_secs(10), "{took:?}");
}

/// The ways that links have found, and what shall be said to have been refused.
#[derive(Default)]
struct Forgery {
    flows: Vec<Flow>,
    refusals: Vec<(RefusalReason, Flow, Vec<u8>)>,
}

thread_local! {
    static FORGERY: RefCell<Forgery> = RefCell::default();
}

/// A link over a network in which somebody forges refusals.
#[derive(Debug)]
struct Forging(UdpLink);

impl Link for Forging {
    fn local_address(&self) -> IpAddr {
        self.0.local_address()
    }

    fn mtu(&self) -> PathMtu {
        self.0.mtu()
    }

    fn path(&mut self, peer: IpAddr, entropy: u32, traffic_class: u8) -> Result<Path, LinkError> {
        let path = self.0.path(peer, entropy, traffic_class)?;
        FORGERY.with_borrow_mut(|forgery| forgery.flows.push(path.flow));
        Ok(path)
    }

    fn takes_any_identification(&self) -> bool {
        self.0.takes_any_identification()
    }

    fn connect(&mut self, path: &mut Path) {
        self.0.connect(path);
    }

    fn disconnect(&mut self, path: &Path) {
        self.0.disconnect(path);
    }

    fn send(
        &mut self,
        path: &Path,
        length: usize,
        write: &mut dyn FnMut(u16, &mut [u8]),
    ) -> Result<(), SendError> {
        self.0.send(path, length, write)
    }

    fn flush(&mut self) -> bool {
        self.0.flush()
    }

    fn poll(&mut self, now: Time, receive: &mut dyn FnMut(&Received<'_>)) -> usize {
        self.0.poll(now, receive)
    }

    fn deadline(&self) -> Option<Time> {
        self.0.deadline()
    }

    fn refusals(&mut self, report: &mut dyn FnMut(&Refusal<'_>)) {
        let own = self.local_address();
        let forged = FORGERY.with_borrow(|forgery| forgery.refusals.clone());
        for (reason, flow, quoted) in forged.iter().filter(|(_, flow, _)| flow.addresses.source() == own) {
            report(&Refusal { reason: *reason, flow: *flow, transport: quoted });
        }
    }

    fn event_descriptor(&self) -> Option<i32> {
        self.0.event_descriptor()
    }

    fn counters(&self) -> Counters {
        self.0.counters()
    }
}

/// The beginning of a packet to that end.
fn packet_to(endpoint: &Endpoint) -> Vec<u8> {
    let [q0, q1, q2] =
        *RoceEndpoint::decode(endpoint).unwrap().queue_pair.number().to_be_bytes().last_chunk().unwrap();
    vec![4, 0, 0xff, 0xff, 0, q0, q1, q2, 0, 0, 0, 0]
}

#[test]
fn a_peer_that_is_there_survives_what_is_forged() {
    use RefusalReason::{NobodyListens, TooLong};
    let (mut fixture, [left, right]) = Fixture::<Deceived>::connected();
    let truth = packet_to(&fixture.device(Side::Right).endpoint(right).unwrap());
    let mut other = truth.clone();
    other[7] ^= 1;
    // Left connected first.
    let flow = FORGERY.with_borrow(|forgery| forgery.flows[0]);
    let wrong_port = Flow { source_port: flow.source_port ^ 1, ..flow };
    let say = |refusals| FORGERY.with_borrow_mut(|forgery| forgery.refusals = refusals);
    let wait = |fixture: &mut Fixture<Deceived>| {
        let start = Instant::now();
        fixture.until("some patience is over", |_| start.elapsed() > Duration::from_millis(300));
    };

    let counters = fixture.device(Side::Left).counters();
    say(vec![
        (NobodyListens, flow, other),
        (TooLong, wrong_port, truth.clone()),
        (NobodyListens, flow, truth[..8].to_vec()),
    ]);
    wait(&mut fixture);
    let later = fixture.device(Side::Left).counters();
    assert!(later.refused_unknown >= counters.refused_unknown + 3, "{later:?}");
    assert_eq!((later.refused, later.too_long), (0, 0), "it is not believed, and not asked for");

    say(vec![(NobodyListens, flow, truth.clone()), (TooLong, flow, truth)]);
    wait(&mut fixture);
    say(Vec::new());
    let later = fixture.device(Side::Left).counters();
    assert!(later.refused > 0 && later.too_long > 0, "{later:?}");
    assert_eq!(fixture.state(Side::Left, left), QueuePairState::Ready);
    assert_eq!(later.failures, 0);
}

#[test]
fn a_silence_after_packets_that_were_too_long_says_so() {
    let (mut fixture, [left, right]) = Fixture::<Narrow>::connected();
    let quoted = packet_to(&fixture.device(Side::Right).endpoint(right).unwrap());
    FORGERY.with_borrow_mut(|forgery| {
        forgery.refusals = vec![(RefusalReason::TooLong, forgery.flows[0], quoted)];
    });
    fixture.until("it is heard", |fixture| fixture.device(Side::Left).counters().too_long > 0);
    FORGERY.with_borrow_mut(|forgery| forgery.refusals.clear());
    assert_eq!(fixture.state(Side::Left, left), QueuePairState::Ready, "nothing fails for it");
    fixture.kill(Side::Right);
    fixture.until("the peer is given up", |fixture| is_failed(fixture.device(Side::Left), left));
    let failure = fixture.device(Side::Left).last_error(left).unwrap();
    assert!(matches!(failure, RoceFailure::TooLong(_)), "{failure}");
    let text = failure.to_string();
    assert!(text.starts_with("nothing has been heard of the peer") && text.contains("EMSGSIZE"), "{text}");
}
