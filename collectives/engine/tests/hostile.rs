//! A peer that says anything at all: it never does more than end the communicator.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on must fail"
)]

mod common;

use std::sync::Arc;

use common::Memory;
use proptest::prelude::*;
use ringway_engine::{
    Collective, CommunicatorSpec, Engine, EngineConfig, LocalRank, PointToPoint, RegionId, Request, Token,
    WorkspaceConfig,
};
use ringway_mem::Mapping;
use ringway_plan::{Layout, PlanSettings};
use ringway_sim::{SimConfig, SimNetwork};
use ringway_types::{DataType, Operation, Reduction};
use ringway_verbs::{
    Access, Completion, Device, LocalSlice, Operation as Verb, QueuePairConfig, ReceiveRequest, RemoteSlice,
    Role, Time, WorkRequest,
};

/// What the peer sends: a kind, where fields come from, payload bytes, and whether as a message or a notice.
#[derive(Debug, Clone)]
struct Word {
    kind: u8,
    fields: Vec<u8>,
    payload: usize,
    notice: Option<u32>,
}

fn words() -> impl Strategy<Value = Vec<Word>> {
    // Small numbers make sense more often than large ones.
    let byte = prop_oneof![4 => 0..4_u8, 1 => any::<u8>()];
    let field = proptest::collection::vec(byte, 63);
    let notice = prop::option::weighted(
        0.1,
        prop_oneof![any::<u32>(), 0..8_u32, (0..8_u32).prop_map(|k| k | 1 << 31)],
    );
    let word = (0..16_u8, field, prop_oneof![Just(0_usize), 0..300_usize], notice)
        .prop_map(|(kind, fields, payload, notice)| Word { kind, fields, payload, notice });
    proptest::collection::vec(word, 1..80)
}

fn emit(word: &Word, check: [u8; 4], out: &mut [u8; 512]) -> u64 {
    out[0] = word.kind;
    out[1..64].copy_from_slice(&word.fields);
    out[4..8].copy_from_slice(&check);
    // Most fields are small numbers in their low byte.
    for start in [8, 16, 24, 32, 40] {
        if out[start] < 128 {
            out[start + 1..start + 8].fill(0);
        }
    }
    if word.fields[30].is_multiple_of(2) {
        out[24..32].copy_from_slice(&(word.payload as u64).to_le_bytes());
    }
    64 + word.payload as u64
}

/// The digest of the communicator's name as it stands in headers: learnt from the first thing the engine says.
fn learn(memory: &Mapping) -> [u8; 4] {
    let mut bytes = [0; 4];
    memory.window(4, 4).unwrap().read(&mut bytes);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn nothing_a_peer_says_does_harm(words in words(), seed: u64) {
        let network = SimNetwork::new(SimConfig { seed, latency_ns: 100, ..SimConfig::default() });
        let (mut device, mut peer) = (network.device(), network.device());
        let regions: Vec<Arc<Mapping>> =
            [4 << 20, 64 << 10].iter().map(|n| Arc::new(Mapping::private(*n).unwrap())).collect();
        let keys = device.register(regions[0].clone(), Access::ALL).unwrap();
        let config = WorkspaceConfig { region: RegionId(0), key: keys.local, length: 4 << 20 };
        let mut engine = Engine::new(EngineConfig::new(config)).unwrap();
        let client = device.register(regions[1].clone(), Access::ALL).unwrap();
        engine.add_region(RegionId(1), client.local);
        let mut memory = Memory { regions, touched: 0, others: None };
        let layout = Layout::new(&[0, 1, 0]).unwrap();
        let settings = PlanSettings::default();
        let spec = CommunicatorSpec { layout, node: 0, name: 5, channels: 1, rails: 1, timeout_ms: None, settings, tenant: 5 };
        let (id, endpoints) = engine.open(spec, &mut device).unwrap();

        let own = Arc::new(Mapping::private(64 << 10).unwrap());
        let keys = peer.register(own.clone(), Access::ALL).unwrap();
        let pair = peer.create_queue_pair(QueuePairConfig { send_depth: 256, receive_depth: 256 }).unwrap();
        for at in 0..200 {
            let local = LocalSlice { key: keys.local, offset: 0, length: 16 << 10 };
            peer.post_receive(pair, &ReceiveRequest { id: at, local }).unwrap();
        }
        engine.connect(id, &[(1, peer.endpoint(pair).unwrap())], &mut device).unwrap();
        peer.connect(pair, &endpoints[0].1, Role::Passive).unwrap();

        let buffer = |offset, length| ringway_engine::BufferRef { region: RegionId(1), offset, length };
        let call = Collective {
            operation: Operation::Allreduce,
            datatype: DataType::U8,
            reduction: Some(Reduction::Sum),
            scale: None,
            root: 0,
            count: 2,
            counts: &[],
            input: Some(buffer(0, 2)),
            output: Some(buffer(64, 2)),
        };
        let mut now = 1_000;
        let receive = |length| PointToPoint::Receive { peer: None, tag: 1, buffer: buffer(1024, length) };
        let send = PointToPoint::Send { peer: 1, tag: 2, buffer: buffer(32 << 10, 20_000) };
        engine.submit(id, LocalRank(0), Token(1), Request::Collective(call), Time(now)).unwrap();
        engine.submit(id, LocalRank(1), Token(2), Request::Collective(call), Time(now)).unwrap();
        engine.submit(id, LocalRank(0), Token(3), Request::PointToPoint(receive(2)), Time(now)).unwrap();
        engine.submit(id, LocalRank(1), Token(4), Request::PointToPoint(receive(9000)), Time(now)).unwrap();
        engine.submit(id, LocalRank(1), Token(5), Request::PointToPoint(send), Time(now)).unwrap();
        let mut words = words.iter();
        let mut finished = 0;
        for round in 0..400 {
            now += 1_000;
            let mut completions = [Completion::EMPTY; 16];
            let n = device.poll(Time(now), &mut completions);
            engine.complete(Time(now), &completions[..n], &mut device, &mut memory);
            engine.advance(Time(now), &mut device, &mut memory);
            finished += std::iter::from_fn(|| engine.next_finished()).count();
            peer.poll(Time(now), &mut completions);
            if round > 20 && let Some(word) = words.next() {
                let mut bytes = [0; 512];
                let length = emit(word, learn(&own), &mut bytes);
                let at = 16_384 + (round * 512) % 32_768;
                own.window(at, 512).unwrap().write(&bytes);
                let local = LocalSlice { key: keys.local, offset: at, length };
                let operation = match word.notice {
                    None => Verb::Send { immediate: None },
                    Some(immediate) => {
                        let remote = RemoteSlice { key: client.remote, offset: 60_000 };
                        Verb::WriteWithImmediate { remote, immediate }
                    }
                };
                let local = [local, LocalSlice::default()];
                let request = WorkRequest { id: 0, operation, local, signalled: false, fence: false };
                let _ = peer.post_send(pair, &request);
                peer.flush();
            }
        }
        engine.close(id);
        for _ in 0..200 {
            now += 10_000_000;
            let mut completions = [Completion::EMPTY; 64];
            let n = device.poll(Time(now), &mut completions);
            engine.complete(Time(now), &completions[..n], &mut device, &mut memory);
            engine.advance(Time(now), &mut device, &mut memory);
            finished += std::iter::from_fn(|| engine.next_finished()).count();
        }
        prop_assert_eq!(finished, 5);
        prop_assert!(engine.close(id));
    }
}
