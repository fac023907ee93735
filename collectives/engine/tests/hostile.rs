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
    BufferRef, Collective, CommunicatorId, CommunicatorSpec, Engine, EngineConfig, LocalRank, PointToPoint,
    RegionId, Request, Token, WorkspaceConfig,
};
use ringway_mem::Mapping;
use ringway_plan::{Layout, PlanSettings, Preference, Tuning};
use ringway_sim::{SimConfig, SimDevice, SimNetwork};
use ringway_types::{DataType, Operation, Reduction};
use ringway_verbs::{
    Access, Completion, Device, LocalSlice, MemoryKeys, Operation as Verb, QueuePairConfig, QueuePairNumber,
    ReceiveRequest, RemoteSlice, Role, Time, WorkRequest,
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
        prop_oneof![any::<u32>(), 0..8_u32, (0..8_u32).prop_map(|k| k | 1 << 31), u32::MAX - 3..=u32::MAX],
    );
    let word = (0..18_u8, field, prop_oneof![Just(0_usize), 0..300_usize], notice)
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

/// An engine with ranks 0 and 2, and a device that is connected with it as rank 1's node.
struct Scene {
    engine: Engine,
    device: SimDevice,
    memory: Memory,
    id: CommunicatorId,
    client: MemoryKeys,
    peer: SimDevice,
    pair: QueuePairNumber,
    own: Arc<Mapping>,
    keys: MemoryKeys,
    now: u64,
}

impl Scene {
    fn new(seed: u64, settings: PlanSettings) -> Self {
        let network = SimNetwork::new(SimConfig { seed, latency_ns: 100, ..SimConfig::default() });
        let (mut device, mut peer) = (network.device(), network.device());
        let regions: Vec<Arc<Mapping>> =
            [8 << 20, 64 << 10].iter().map(|n| Arc::new(Mapping::private(*n).unwrap())).collect();
        let keys = device.register(regions[0].clone(), Access::ALL).unwrap();
        let config = WorkspaceConfig { region: RegionId(0), key: keys.local, length: 8 << 20 };
        let mut engine = Engine::new(EngineConfig::new(config)).unwrap();
        let client = device.register(regions[1].clone(), Access::ALL).unwrap();
        engine.add_region(RegionId(1), client.local);
        let memory = Memory { regions, ..Memory::default() };
        let layout = Layout::new(&[0, 1, 0]).unwrap();
        let spec = CommunicatorSpec {
            layout,
            node: 0,
            name: 5,
            channels: 1,
            rails: 1,
            timeout_ms: None,
            settings,
            tenant: 5,
        };
        let (id, endpoints) = engine.open(spec, &mut device).unwrap();

        let own = Arc::new(Mapping::private(256 << 10).unwrap());
        let keys = peer.register(own.clone(), Access::ALL).unwrap();
        let pair = peer.create_queue_pair(QueuePairConfig { send_depth: 256, receive_depth: 256 }).unwrap();
        for at in 0..200 {
            let local = LocalSlice { key: keys.local, offset: 0, length: 16 << 10 };
            peer.post_receive(pair, &ReceiveRequest { id: at, local }).unwrap();
        }
        engine.connect(id, &[(1, peer.endpoint(pair).unwrap())], &mut device).unwrap();
        peer.connect(pair, &endpoints[0].1, Role::Passive).unwrap();
        Self { engine, device, memory, id, client, peer, pair, own, keys, now: 1_000 }
    }

    fn submit(&mut self, rank: u32, token: u32, request: Request<'_>) {
        self.engine.submit(self.id, LocalRank(rank), Token(token), request, Time(self.now)).unwrap();
    }

    /// A turn of the engine; how many operations have finished.
    fn turn(&mut self, nanoseconds: u64) -> usize {
        self.now += nanoseconds;
        let mut completions = [Completion::EMPTY; 64];
        let n = self.device.poll(Time(self.now), &mut completions);
        self.engine.complete(Time(self.now), &completions[..n], &mut self.device, &mut self.memory);
        self.engine.advance(Time(self.now), &mut self.device, &mut self.memory);
        std::iter::from_fn(|| self.engine.next_finished()).count()
    }

    /// What has come to the peer.
    fn come(&mut self) -> Vec<Completion> {
        let mut completions = [Completion::EMPTY; 64];
        let n = self.peer.poll(Time(self.now), &mut completions);
        completions[..n].to_vec()
    }

    /// The peer says something.
    fn say(&mut self, at: u64, bytes: &[u8], operation: Verb) {
        self.own.window(at, bytes.len() as u64).unwrap().write(bytes);
        let local = LocalSlice { key: self.keys.local, offset: at, length: bytes.len() as u64 };
        let local = [local, LocalSlice::default()];
        let request = WorkRequest { id: 0, operation, local, signalled: false, fence: false };
        let _ = self.peer.post_send(self.pair, &request);
        self.peer.flush();
    }

    /// Closes the communicator; how many operations have finished meanwhile.
    fn close(&mut self) -> usize {
        self.engine.close(self.id);
        let finished = (0..200).map(|_| self.turn(10_000_000)).sum();
        assert!(self.engine.close(self.id));
        finished
    }
}

const fn buffer(offset: u64, length: u64) -> BufferRef {
    BufferRef { region: RegionId(1), offset, length }
}

/// A barrier, of which other calls of bytes are made.
const BARRIER: Collective<'static> = Collective {
    operation: Operation::Barrier,
    datatype: DataType::U8,
    reduction: None,
    scale: None,
    root: 0,
    count: 0,
    counts: &[],
    input: None,
    output: None,
};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn nothing_a_peer_says_does_harm(words in words(), seed: u64, eager_write_max_bytes in prop::sample::select(vec![0, 64_u64 << 10])) {
        let tuning = Tuning { eager_write_max_bytes, ..Tuning::default() };
        let settings = PlanSettings::new(tuning, Preference::default(), Vec::new()).unwrap();
        let mut scene = Scene::new(seed, settings);
        let call = Collective {
            operation: Operation::Allreduce,
            reduction: Some(Reduction::Sum),
            count: 2,
            input: Some(buffer(0, 2)),
            output: Some(buffer(64, 2)),
            ..BARRIER
        };
        let receive = |length| PointToPoint::Receive { peer: None, tag: 1, buffer: buffer(1024, length) };
        let send = PointToPoint::Send { peer: 1, tag: 2, buffer: buffer(32 << 10, 20_000) };
        scene.submit(0, 1, Request::Collective(call));
        scene.submit(1, 2, Request::Collective(call));
        scene.submit(0, 3, Request::PointToPoint(receive(2)));
        scene.submit(1, 4, Request::PointToPoint(receive(9000)));
        scene.submit(1, 5, Request::PointToPoint(send));
        let mut words = words.iter();
        let mut finished = 0;
        for round in 0..400 {
            finished += scene.turn(1_000);
            scene.come();
            if round > 20 && let Some(word) = words.next() {
                let mut bytes = [0; 512];
                let length = emit(word, learn(&scene.own), &mut bytes);
                let remote = RemoteSlice { key: scene.client.remote, offset: 60_000 };
                let operation = word.notice.map_or(Verb::Send { immediate: None }, |immediate| {
                    Verb::WriteWithImmediate { remote, immediate }
                });
                scene.say(16_384 + (round * 512) % 32_768, &bytes[..length as usize], operation);
            }
        }
        prop_assert_eq!(finished + scene.close(), 5);
    }
}

/// A peer that gives back places which it never lent is written to where it lent memory, and from nowhere else.
#[test]
fn places_that_were_not_lent_are_not_written_to() {
    const LENT: u64 = 64 << 10;
    let tuning = Tuning { eager_write_max_bytes: 64 << 10, ..Tuning::default() };
    let mut scene = Scene::new(1, PlanSettings::new(tuning, Preference::default(), Vec::new()).unwrap());
    let broadcast = |scene: &mut Scene, token: u32, count: u64| {
        for (rank, at) in [(0, 0), (1, 24 << 10)] {
            let call = Collective {
                operation: Operation::Broadcast,
                count,
                input: (rank == 0).then_some(buffer(at, count)),
                output: Some(buffer(at, count)),
                ..BARRIER
            };
            scene.submit(rank, 2 * token + rank, Request::Collective(call));
        }
        let step = |scene: &mut Scene| {
            scene.turn(1_000);
            scene.come()
        };
        let come: Vec<Completion> = (0..20).flat_map(|_| step(scene)).collect();
        come.iter().filter_map(|completion| completion.immediate).collect::<Vec<u32>>()
    };
    broadcast(&mut scene, 0, 2);
    let check = learn(&scene.own);
    let header = |kind: u8, offset: u64, key: u32, slot: u32| {
        let mut bytes = [0; 64];
        bytes[0] = kind;
        bytes[4..8].copy_from_slice(&check);
        bytes[40..48].copy_from_slice(&offset.to_le_bytes());
        bytes[56..60].copy_from_slice(&key.to_le_bytes());
        bytes[60..64].copy_from_slice(&slot.to_le_bytes());
        bytes
    };
    let send = Verb::Send { immediate: None };
    scene.say(32 << 10, &header(16, LENT, scene.keys.remote.0, 1), send);
    // Places given back: all that sixteen bits can name.
    scene.say(33 << 10, &header(8, 0xffff << 32, 0, 0), send);
    let _: usize = (0..9).map(|_| scene.turn(1_000)).sum();
    let notices: Vec<u32> = (1..5).flat_map(|token| broadcast(&mut scene, token, 20_000)).collect();
    assert_eq!(notices, [u32::MAX - 1, u32::MAX], "the others are announced");
    scene.close();
}

/// A peer that leaves without a word of what it lends is not waited for.
#[test]
fn who_leaves_before_he_lends_ends_what_waits_for_that() {
    let tuning = Tuning { eager_write_max_bytes: 64 << 10, ..Tuning::default() };
    for leaves_first in [false, true] {
        let settings = PlanSettings::new(tuning, Preference::default(), Vec::new()).unwrap();
        let mut scene = Scene::new(1, settings);
        let turns = |scene: &mut Scene| (0..20).map(|_| scene.turn(10_000_000)).sum::<usize>();
        let leave = |scene: &mut Scene| {
            scene.come();
            let mut left = [0; 64];
            left[0] = 11;
            left[4..8].copy_from_slice(&learn(&scene.own));
            left[48] = 1;
            left[60] = 1;
            scene.say(32 << 10, &left, Verb::Send { immediate: None });
            turns(scene)
        };
        assert_eq!(turns(&mut scene), 0);
        let mut finished = if leaves_first { leave(&mut scene) } else { 0 };
        for (rank, token) in [(0, 1), (1, 2)] {
            scene.submit(rank, token, Request::Collective(BARRIER));
        }
        finished += turns(&mut scene);
        if !leaves_first {
            assert_eq!(finished, 0, "it may still lend");
            finished += leave(&mut scene);
        }
        assert_eq!(finished, 2);
        scene.close();
    }
}
