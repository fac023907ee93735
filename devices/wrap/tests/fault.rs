//! What faults do to packets, by counting them: over a link in memory, in time that the test tells.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::{
    collections::VecDeque,
    net::{IpAddr, Ipv4Addr},
};

use proptest::prelude::*;
use ringway_roce::{Counters, Link, LinkError, Path, Received, Refusal, SendError};
use ringway_verbs::Time;
use ringway_wire::{
    Addresses, Bth, Check, Ecn, Flow, Header, Packet, PathMtu, Psn, QueuePair, TRANSPORT_LENGTH_MAX,
};
use ringway_wrap::{FaultCounts, FaultSpec, FaultSpecError, Faulty};

fn flow() -> Flow {
    let (source, destination) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    Flow::new(Addresses::V4 { source, destination }, 0xc000)
}

/// A link on which everything sent comes in again at the next poll.
#[derive(Debug, Default)]
struct Memory {
    waiting: VecDeque<(Vec<u8>, u8)>,
    sent: u64,
}

impl Link for Memory {
    fn local_address(&self) -> IpAddr {
        flow().addresses.source()
    }

    fn mtu(&self) -> PathMtu {
        PathMtu::Mtu4096
    }

    fn path(&mut self, _: IpAddr, _: u32, traffic_class: u8) -> Result<Path, LinkError> {
        Ok(Path { flow: flow(), mtu: PathMtu::Mtu4096, traffic_class, via: 0 })
    }

    fn takes_any_identification(&self) -> bool {
        false
    }

    fn connect(&mut self, _: &mut Path) {}

    fn disconnect(&mut self, _: &Path) {}

    fn send(
        &mut self,
        path: &Path,
        length: usize,
        write: &mut dyn FnMut(u16, &mut [u8]),
    ) -> Result<(), SendError> {
        let mut bytes = vec![0; length];
        write(0, &mut bytes);
        self.waiting.push_back((bytes, path.traffic_class));
        self.sent += 1;
        Ok(())
    }

    fn flush(&mut self) -> bool {
        true
    }

    fn poll(&mut self, _: Time, receive: &mut dyn FnMut(&Received<'_>)) -> usize {
        let count = self.waiting.len();
        for (bytes, class) in self.waiting.drain(..) {
            let check = Check::Exact(flow().icrc(0, bytes.len() as u16));
            let ecn = Ecn::of(class);
            receive(&Received { flow: flow(), ecn, identification: 0, check, transport: &bytes });
        }
        count
    }

    fn deadline(&self) -> Option<Time> {
        None
    }

    fn refusals(&mut self, _: &mut dyn FnMut(&Refusal<'_>)) {}

    fn event_descriptor(&self) -> Option<i32> {
        None
    }

    fn counters(&self) -> Counters {
        Counters { sent: self.sent, ..Counters::default() }
    }
}

/// A packet handed over: its number if its CRC is right, and its mark.
type Seen = (Option<u32>, Ecn);

struct Bench {
    link: Faulty<Memory>,
    path: Path,
    next: u32,
}

impl Bench {
    fn new(spec: &str) -> Self {
        let mut link = Faulty::new(Memory::default(), spec.parse().unwrap());
        let path = link.path(flow().addresses.destination(), 0, Ecn::Capable0 as u8).unwrap();
        Self { link, path, next: 0 }
    }

    fn send(&mut self, packets: u32) {
        for _ in 0..packets {
            let bth = Bth::new(QueuePair::new(1).unwrap(), Psn::new(self.next));
            let packet = Packet { bth, header: Header::SendOnly, payload: b"some payload" };
            let path = self.path;
            self.link
                .send(&path, packet.length(), &mut |id, memory| {
                    packet.emit(&path.flow, id, memory).unwrap();
                })
                .unwrap();
            self.next += 1;
        }
    }

    fn poll(&mut self, now_us: u64) -> Vec<Seen> {
        let mut seen = Vec::new();
        let count = self.link.poll(Time(now_us * 1000), &mut |received| {
            let packet = Packet::parse(received.transport, received.check);
            seen.push((packet.ok().map(|packet| packet.bth.psn.value()), received.ecn));
        });
        assert_eq!(count, seen.len());
        seen
    }
}

fn numbers(seen: &[Seen]) -> Vec<u32> {
    seen.iter().filter_map(|(number, _)| *number).collect()
}

#[test]
fn without_faults_everything_passes() {
    let mut bench = Bench::new("seed=3");
    bench.send(100);
    assert_eq!(numbers(&bench.poll(0)), (0..100).collect::<Vec<_>>());
    assert_eq!(bench.link.counts(), FaultCounts { arrived: 100, ..FaultCounts::default() });
}

#[test]
fn packets_are_lost_at_the_rate_asked_for_and_the_same_ones_for_a_seed() {
    let run = |spec: &str| {
        let mut bench = Bench::new(spec);
        bench.send(100_000);
        (numbers(&bench.poll(0)), bench.link.counts())
    };
    let (kept, counts) = run("loss=0.01,seed=7");
    assert_eq!(kept.len() as u64 + counts.lost, 100_000);
    // Five standard deviations.
    assert!((842..1158).contains(&counts.lost), "{}", counts.lost);
    assert_eq!(run("loss=0.01,seed=7").0, kept);
    assert_ne!(run("loss=0.01,seed=8").0, kept);
    assert_eq!(run("loss=1").0, []);
}

#[test]
fn a_duplicate_follows_at_once() {
    let mut bench = Bench::new("duplicate=1");
    bench.send(3);
    assert_eq!(numbers(&bench.poll(0)), [0, 0, 1, 1, 2, 2]);
    assert_eq!(bench.link.counts().duplicated, 3);
}

#[test]
fn a_corrupted_packet_is_noticed() {
    let mut bench = Bench::new("corrupt=0.5,seed=2");
    bench.send(1000);
    let seen = bench.poll(0);
    assert_eq!(seen.len(), 1000);
    let refused = seen.iter().filter(|(number, _)| number.is_none()).count() as u64;
    let counts = bench.link.counts();
    // A flipped congestion bit in the packet's header is not covered by the CRC, as it may change on the way.
    assert!(refused <= counts.corrupted && refused * 10 >= counts.corrupted * 9, "{refused} {counts:?}");
    assert!((400..600).contains(&counts.corrupted));
}

#[test]
fn a_delay_keeps_the_order_and_tells_when() {
    let mut bench = Bench::new("delay_us=30");
    bench.send(3);
    assert_eq!(bench.poll(100), []);
    assert_eq!(bench.link.deadline(), Some(Time(130_000)));
    bench.send(1);
    assert_eq!(bench.poll(110), []);
    assert_eq!(bench.poll(129), []);
    assert_eq!(numbers(&bench.poll(130)), [0, 1, 2]);
    assert_eq!(bench.link.deadline(), Some(Time(140_000)));
    assert_eq!(numbers(&bench.poll(1000)), [3]);
    assert_eq!(bench.link.deadline(), None);
}

#[test]
fn held_back_packets_are_passed_and_come_all_the_same() {
    for spec in ["reorder=0.2,reorder_us=20", "jitter_us=20", "delay_us=5,jitter_us=9,reorder=0.1"] {
        let mut bench = Bench::new(spec);
        let mut seen = Vec::new();
        for now in 0..200 {
            if now < 100 {
                bench.send(5);
            }
            seen.extend(numbers(&bench.poll(now)));
        }
        assert!(!seen.is_sorted(), "{spec}");
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..500), "{spec}");
    }
}

#[test]
fn only_what_may_be_marked_is() {
    let mut bench = Bench::new("ecn=1");
    bench.send(2);
    assert!(bench.poll(0).iter().all(|(_, ecn)| *ecn == Ecn::CongestionExperienced));
    bench.path.traffic_class = 0;
    bench.send(2);
    assert!(bench.poll(0).iter().all(|(_, ecn)| *ecn == Ecn::NotCapable));
    assert_eq!(bench.link.counts().marked, 2);
}

#[test]
fn what_cannot_be_held_is_lost() {
    let mut bench = Bench::new("delay_us=10");
    bench.send(2000);
    assert_eq!(bench.poll(0), []);
    let kept = numbers(&bench.poll(10));
    assert_eq!(kept, (0..1024).collect::<Vec<_>>());
    assert_eq!(bench.link.counts().overflowed, 2000 - 1024);
    // And there is room again.
    bench.send(1);
    bench.poll(20);
    assert_eq!(numbers(&bench.poll(30)), [2000]);
    // Rubbish longer than any packet.
    let path = bench.path;
    bench.link.send(&path, TRANSPORT_LENGTH_MAX + 1, &mut |_, memory| memory.fill(1)).unwrap();
    assert_eq!(bench.poll(30), []);
    assert_eq!(bench.poll(60), []);
}

#[test]
fn everything_at_once_adds_up() {
    let spec = "loss=0.1,duplicate=0.1,corrupt=0.1,reorder=0.1,delay_us=3,jitter_us=4,ecn=0.1,seed=99";
    let mut bench = Bench::new(spec);
    let mut handed = 0;
    for now in 0..3000 {
        bench.send(1);
        handed += bench.poll(now).len() as u64;
    }
    handed += bench.poll(4000).len() as u64;
    let counts = bench.link.counts();
    assert_eq!(handed, counts.arrived + counts.duplicated - counts.lost);
    let FaultCounts { lost, duplicated, corrupted, reordered, marked, .. } = counts;
    for count in [lost, duplicated, corrupted, reordered, marked] {
        assert!((150..450).contains(&count), "{counts:?}");
    }
    assert_eq!(bench.link.counters().sent, 3000);
}

#[test]
fn a_wrong_spec_is_explained() {
    let wrong = |text: &str| text.parse::<FaultSpec>().unwrap_err();
    assert_eq!(wrong(" "), FaultSpecError::Empty);
    assert_eq!(wrong("loss"), FaultSpecError::Form { part: "loss".to_owned() });
    assert_eq!(wrong("loss=0.1,"), FaultSpecError::Form { part: String::new() });
    assert_eq!(wrong("los=0.1"), FaultSpecError::Name { name: "los".to_owned() });
    assert_eq!(wrong("loss=0.1,loss=0.2"), FaultSpecError::Twice { name: "loss".to_owned() });
    for value in ["1.1", "-0.1", "1%", "nan", "inf", ""] {
        let (name, value) = ("loss".to_owned(), value.to_owned());
        assert_eq!(wrong(&format!("loss={value}")), FaultSpecError::Probability { name, value });
    }
    for value in ["1.5", "-1", "3600000001", "10us"] {
        assert!(matches!(wrong(&format!("delay_us={value}")), FaultSpecError::Number { .. }), "{value}");
    }
    assert!(matches!(wrong("seed=x"), FaultSpecError::Number { .. }));
    let message = wrong("los=0.1").to_string();
    assert!(message.contains("`los`") && message.contains("loss=0.01,seed=7"), "{message}");

    let right: FaultSpec = " loss = 0.01 , seed=7".parse().unwrap();
    assert_eq!(right, FaultSpec { loss: 0.01, seed: 7, ..FaultSpec::default() });
}

proptest! {
    #[test]
    fn a_spec_comes_back_from_its_text(
        probabilities in any::<[f64; 5]>(), times in any::<[u32; 3]>(), seed: u64,
    ) {
        let [loss, duplicate, corrupt, reorder, ecn] = probabilities.map(|p| p.abs().fract()).map(|p| if p.is_nan() { 0.5 } else { p });
        let [reorder_us, delay_us, jitter_us] = times.map(|us| u64::from(us) % 3_600_000_001);
        let spec = FaultSpec { loss, duplicate, corrupt, reorder, reorder_us, delay_us, jitter_us, ecn, seed };
        prop_assert_eq!(spec.to_string().parse(), Ok(spec));
    }

    #[test]
    fn no_text_makes_it_panic(text in ".{0,60}") {
        let _ = text.parse::<FaultSpec>();
    }
}
