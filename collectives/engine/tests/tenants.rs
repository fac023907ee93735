//! Tenants get equal shares of a node, and a small operation hardly waits for a neighbour's large ones.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on must fail"
)]

mod common;

use std::sync::Arc;

use common::oracle::Job;
use common::{Setup, World};
use proptest::prelude::*;
use ringway_engine::{
    BufferRef, Collective, CommunicatorId, CommunicatorSpec, Engine, EngineConfig, LocalMemory, LocalRank,
    PointToPoint, ReduceSource, RegionId, Request, ScanStep, Token, WorkspaceConfig,
};
use ringway_mem::Mapping;
use ringway_plan::{Layout, PlanSettings, Tuning};
use ringway_sim::{SimConfig, SimDevice, SimNetwork};
use ringway_types::{DataType, Operation, Reduction};
use ringway_verbs::{Access, Device, Time};

/// Ranks of every communicator, all on this node.
const RANKS: u32 = 2;
/// What a bulk operation moves.
const BULK: u64 = 64 << 20;
/// What a piece of local work touches at most, with so few operands.
const PIECE: u64 = 128 << 10;
/// What a tenant may spend before others have their turn.
const QUANTUM: u64 = 128 << 10;
/// What is asked for in one turn beside the engine's own work.
const BESIDE: u64 = 128 << 10;

/// Memory that only counts what is touched, by communicator: region `1 + c` is communicator `c`'s.
#[derive(Debug, Default)]
struct Counting {
    total: u64,
    touched: Vec<u64>,
    /// How much had been touched when a communicator was served first since it was last forgotten.
    first: Vec<Option<u64>>,
}

impl Counting {
    fn touch(&mut self, buffers: &[BufferRef], times: u64) {
        let Some(of) = buffers.iter().find(|buffer| buffer.region.0 > 0) else { return };
        let communicator = of.region.0 as usize - 1;
        assert!(of.length <= 64 << 10, "a piece of {} bytes", of.length);
        if self.touched.len() <= communicator {
            self.touched.resize(communicator + 1, 0);
            self.first.resize(communicator + 1, None);
        }
        self.first[communicator].get_or_insert(self.total);
        self.touched[communicator] += of.length * times;
        self.total += of.length * times;
    }
}

impl LocalMemory for Counting {
    fn reduce(
        &mut self,
        _: DataType,
        _: Reduction,
        sources: &[ReduceSource],
        destinations: &[BufferRef],
        _: Option<u32>,
    ) {
        self.touch(&[sources[0].buffer, destinations[0]], (sources.len() + destinations.len()) as u64);
    }

    fn scan(&mut self, _: DataType, _: Reduction, _: Option<BufferRef>, _: u32, steps: &[ScanStep], _: bool) {
        self.touch(&[steps[0].output], 2 * steps.len() as u64);
    }

    fn copy(&mut self, source: BufferRef, destinations: &[BufferRef]) {
        self.touch(&[source, destinations[0]], 1 + destinations.len() as u64);
    }

    fn swap(&mut self, a: BufferRef, b: BufferRef) {
        self.touch(&[a, b], 4);
    }

    fn read(&self, _: BufferRef, into: &mut [u8]) {
        into.fill(0);
    }

    fn write(&mut self, _: BufferRef, _: &[u8]) {}
}

/// One node whose communicators are of several tenants.
struct Node {
    engine: Engine,
    device: SimDevice,
    memory: Counting,
    ids: Vec<CommunicatorId>,
    tenants: Vec<u64>,
    /// Calls that have not finished, of each communicator.
    outstanding: Vec<u32>,
    /// Communicators for which there is always work beside the engine's, and the bytes of it that were done.
    beside: Vec<Option<u64>>,
    now: u64,
}

impl Node {
    fn new(tenants: &[u64]) -> Self {
        let network = SimNetwork::new(SimConfig::default());
        let mut device = network.device();
        let workspace = Arc::new(Mapping::private(4 << 20).unwrap());
        let keys = device.register(workspace, Access::ALL).unwrap();
        let workspace = WorkspaceConfig { region: RegionId(0), key: keys.local, length: 4 << 20 };
        let mut engine = Engine::new(EngineConfig::new(workspace)).unwrap();
        let mut ids = Vec::new();
        for (name, tenant) in (0..).zip(tenants) {
            let layout = Layout::new(&[0; RANKS as usize]).unwrap();
            let (timeout_ms, settings) = (None, PlanSettings::default());
            let spec = CommunicatorSpec {
                layout,
                node: 0,
                name,
                channels: 1,
                rails: 1,
                timeout_ms,
                settings,
                tenant: *tenant,
            };
            ids.push(engine.open(spec, &mut device).unwrap().0);
        }
        let outstanding = vec![0; ids.len()];
        let memory = Counting { total: 0, touched: vec![0; ids.len()], first: vec![None; ids.len()] };
        let beside = vec![None; ids.len()];
        Self { engine, device, memory, ids, tenants: tenants.to_vec(), outstanding, beside, now: 0 }
    }

    /// Every rank of the communicator calls the operation.
    fn call(&mut self, communicator: usize, operation: Operation, bytes: u64) {
        let region = RegionId(1 + communicator as u32);
        let blocks = match operation {
            Operation::AllToAll => u64::from(RANKS),
            _ => 1,
        };
        let call = Collective {
            operation,
            datatype: DataType::U8,
            reduction: operation.reduces().then_some(Reduction::Sum),
            scale: None,
            root: 0,
            count: bytes / blocks,
            counts: &[],
            input: Some(BufferRef { region, offset: 0, length: bytes }),
            output: Some(BufferRef { region, offset: 1 << 30, length: bytes }),
        };
        self.memory.first[communicator] = None;
        for local in 0..RANKS {
            let (id, request) = (self.ids[communicator], Request::Collective(call));
            self.engine.submit(id, LocalRank(local), Token(0), request, Time(self.now)).unwrap();
            self.outstanding[communicator] += 1;
        }
    }

    fn turn(&mut self) {
        self.now += 10_000;
        self.engine.advance(Time(self.now), &mut self.device, &mut self.memory);
        self.turn_beside();
        while let Some(finished) = self.engine.next_finished() {
            assert_eq!(finished.outcome.map(|(_, bytes)| bytes), Ok(0));
            let at = self.ids.iter().position(|id| *id == finished.communicator).unwrap();
            self.outstanding[at] -= 1;
        }
    }

    /// The part of a turn in which there is work beside the engine's, in pieces of more bytes than asked for.
    fn turn_beside(&mut self) {
        let Self { engine, device, memory, ids, beside, .. } = self;
        for (id, _) in ids.iter().zip(beside.iter()).filter(|(_, beside)| beside.is_some()) {
            engine.wake_beside(*id);
        }
        let mut all = 0;
        let mut work = |id, bytes| {
            let at = ids.iter().position(|other| *other == id).unwrap();
            let Some(done) = &mut beside[at] else { return 0 };
            let bytes = bytes + 10_000;
            *done += bytes;
            all += bytes;
            bytes
        };
        engine.advance_beside(BESIDE, device, memory, &mut work);
        assert!(all <= BESIDE + PIECE, "a turn must be short");
    }

    fn of_tenant(&self, tenant: u64) -> u64 {
        let touched =
            self.memory.touched.iter().zip(&self.beside).map(|(of, beside)| of + beside.unwrap_or(0));
        self.tenants.iter().zip(touched).filter(|(of, _)| **of == tenant).map(|(_, bytes)| bytes).sum()
    }
}

/// Bytes that neighbours may touch before a small operation is served: what is left of a round, for each tenant.
fn bound(tenants: u64) -> u64 {
    tenants * (QUANTUM + PIECE)
}

#[test]
fn tenants_share_the_local_work_whatever_they_call_and_however_many_communicators_they_have() {
    // Four communicators against one; large operations of two kinds against large and middling ones.
    let mut node = Node::new(&[1, 1, 1, 1, 2, 3]);
    let mut least = u64::MAX;
    while least > 0 {
        for at in 0..node.ids.len() {
            if node.outstanding[at] == 0 {
                let operation = if at % 2 == 0 { Operation::Allreduce } else { Operation::AllToAll };
                node.call(at, operation, if at == 5 { 300_000 } else { BULK });
            }
        }
        let before = node.memory.total;
        node.turn();
        assert!(node.memory.total - before <= (256 << 10) + PIECE, "a turn must be short");
        let shares = [1, 2, 3].map(|tenant| node.of_tenant(tenant));
        let (most, fewest) = (*shares.iter().max().unwrap(), *shares.iter().min().unwrap());
        // The third has nothing to do at times, for which it gains a little.
        assert!(shares[0].abs_diff(shares[1]) <= 2 * (QUANTUM + PIECE), "{shares:?}");
        assert!((most - fewest) * 20 <= most + 40 * (QUANTUM + PIECE), "{shares:?}");
        least = (512_u64 << 20).saturating_sub(fewest);
    }
    let members = &node.memory.touched[..4];
    let (most, fewest) = (*members.iter().max().unwrap(), *members.iter().min().unwrap());
    assert!(most - fewest <= most / 10, "communicators of one tenant share as well: {members:?}");
}

#[test]
fn a_tenant_gets_the_same_share_whether_the_engine_works_for_it_or_others_beside_it_or_both() {
    // For each communicator its tenant, and whether there is work of the engine's and beside it.
    let (engine, beside, both) = ((true, false), (false, true), (true, true));
    for communicators in [
        &[(1, engine), (2, beside)][..],
        &[(1, engine), (1, beside), (2, beside)],
        &[(1, engine), (1, beside), (2, engine)],
        &[(1, both), (2, beside), (3, engine)],
        &[(1, beside), (1, beside), (1, beside), (1, beside), (2, engine)],
        &[(1, engine), (2, beside), (3, engine), (3, beside), (4, both)],
    ] {
        let tenants: Vec<u64> = communicators.iter().map(|(tenant, _)| *tenant).collect();
        let mut node = Node::new(&tenants);
        node.beside = communicators.iter().map(|(_, (_, beside))| beside.then_some(0)).collect();
        let last = tenants.iter().copied().max().unwrap();
        let shares = loop {
            for (at, (_, (engine, _))) in communicators.iter().enumerate() {
                if *engine && node.outstanding[at] == 0 {
                    node.call(at, Operation::Allreduce, BULK);
                }
            }
            node.turn();
            let shares: Vec<u64> = (1..=last).map(|tenant| node.of_tenant(tenant)).collect();
            if shares.iter().any(|share| *share >= 64 << 20) {
                break shares;
            }
        };
        let (most, fewest) = (shares.iter().max().unwrap(), shares.iter().min().unwrap());
        assert!((most - fewest) * 10 <= *most, "{shares:?} bytes of {communicators:?}");
    }
}

#[test]
fn what_there_is_beside_the_engine_ends_with_its_communicator_and_when_there_is_none() {
    let mut node = Node::new(&[1, 2]);
    node.beside = vec![Some(0), Some(0)];
    node.turn();
    assert!(node.engine.has_work());
    node.beside[0] = None;
    assert!(node.engine.close(node.ids[1]));
    node.beside[1] = None;
    node.turn();
    assert!(!node.engine.has_work());
}

#[test]
fn a_small_operation_waits_for_one_piece_of_each_tenant_at_most() {
    // The last communicator of each row calls small operations.
    for tenants in [&[1_u64, 2][..], &[1, 1], &[1, 1, 1, 1, 2], &[1, 2, 3, 4, 5, 6, 7, 8], &[1, 2, 3, 3]] {
        let mut node = Node::new(tenants);
        let last = tenants.len() - 1;
        let mut others = tenants.to_vec();
        others.sort_unstable();
        others.dedup();
        let bound = bound(others.len() as u64);
        for pause in (0..400).map(|i| i * 7 % 5) {
            for at in 0..last {
                if node.outstanding[at] == 0 {
                    node.call(at, Operation::Allreduce, BULK);
                }
            }
            (0..pause).for_each(|_| node.turn());
            let before = node.memory.total;
            node.call(last, Operation::Allreduce, 4096);
            while node.outstanding[last] > 0 {
                node.turn();
            }
            let waited = node.memory.first[last].unwrap() - before;
            assert!(waited <= bound, "{waited} bytes came first, of {tenants:?}");
            if pause > 2 && others.len() == 2 {
                assert!(waited == 0 || tenants.len() > 2, "who had nothing to do comes first");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is called, everything is served: nothing waits for more than a few rounds.
    #[test]
    fn nothing_starves(
        tenants in proptest::collection::vec(0_u64..4, 2..9),
        calls in proptest::collection::vec(
            (any::<prop::sample::Index>(), 0_u32..28, 1_u32..4, 0_u32..6), 1..60
        ),
    ) {
        let mut node = Node::new(&tenants);
        let bound = 4 * tenants.len() as u64 * (QUANTUM + PIECE);
        let mut served = vec![(0_u64, 0_u64); tenants.len()];
        let mut watch = |node: &Node| {
            for (at, (bytes, when)) in served.iter_mut().enumerate() {
                let now = node.memory.touched[at];
                if *bytes != now || node.outstanding[at] == 0 {
                    (*bytes, *when) = (now, node.memory.total);
                }
                assert!(node.memory.total - *when <= bound, "communicator {at} starves");
            }
        };
        for (at, magnitude, shape, turns) in calls {
            let at = at.index(tenants.len());
            if node.outstanding[at] < 20 {
                let operation = if shape == 1 { Operation::AllToAll } else { Operation::Allreduce };
                node.call(at, operation, u64::from(shape) << magnitude.max(1));
            }
            (0..turns).for_each(|_| { node.turn(); watch(&node); });
        }
        for _ in 0..200_000 {
            if node.outstanding.iter().all(|n| *n == 0) {
                break;
            }
            node.turn();
            watch(&node);
        }
        prop_assert!(node.outstanding.iter().all(|n| *n == 0));
    }
}

/// Messages of this many bytes.
const MESSAGE: u64 = 1 << 20;

/// One rank on each of two nodes; every communicator keeps so many messages under way. Returns how many each has
/// finished when one of the tenants has finished `until`.
fn stream(tenants: &[u64], until: u64) -> Vec<u64> {
    let network = SimConfig { latency_ns: 20_000, jitter_ns: 3_000, seed: 7, ..SimConfig::default() };
    let setup = Setup {
        communicators: tenants.len(),
        tenants: tenants.to_vec(),
        workspace: 16 << 20,
        network,
        ..Setup::new(&[0, 1])
    };
    let mut world = World::new(&setup);
    let mut under_way = vec![0; tenants.len()];
    let mut done = vec![0_u64; tenants.len()];
    while (0..8)
        .all(|t| done.iter().zip(tenants).filter(|(_, of)| **of == t).map(|(n, _)| n).sum::<u64>() < until)
    {
        for (at, n) in under_way.iter_mut().enumerate() {
            while *n < 8 {
                let (from, into) = (world.buffer(0, 0, MESSAGE), world.buffer(1, 0, MESSAGE));
                let send = PointToPoint::Send { peer: 1, tag: 0, buffer: from };
                let receive = PointToPoint::Receive { peer: Some(0), tag: 0, buffer: into };
                world.submit_on(at, 0, Request::PointToPoint(send));
                world.submit_on(at, 1, Request::PointToPoint(receive));
                *n += 1;
            }
        }
        world.round();
        for ((communicator, rank, _), outcome) in std::mem::take(&mut world.finished) {
            assert!(outcome.is_ok(), "{outcome:?}");
            if rank == 1 {
                under_way[communicator] -= 1;
                done[communicator] += 1;
            }
        }
    }
    done
}

#[test]
fn tenants_share_the_network_however_many_communicators_they_have() {
    let done = stream(&[1, 1, 1, 1, 2], 200);
    let (many, one) = (done[..4].iter().sum::<u64>(), done[4]);
    assert!(many.abs_diff(one) * 10 <= many.max(one), "{done:?}");
    let most = done[..4].iter().max().unwrap();
    let fewest = done[..4].iter().min().unwrap();
    assert!((most - fewest) * 10 <= *most + 20, "communicators of one tenant share as well: {done:?}");
}

/// How many operations each communicator has finished by the time the last one has finished `until`, when the last
/// calls one operation of so many elements at a time and the others always have several waiting.
fn contend(elements: u64, until: u64) -> Vec<u64> {
    const BULK_ELEMENTS: u64 = 40_000;
    let setup = Setup {
        communicators: 5,
        tenants: vec![1, 1, 1, 1, 2],
        workspace: 2 << 20,
        tuning: Tuning { chunk_bytes: 64 << 10, ..Tuning::default() },
        configure: |config| {
            config.message_pool = 8;
            config.credits = 4;
        },
        ..Setup::new(&[0, 1])
    };
    let mut world = World::new(&setup);
    let (bulk, own) =
        (Job::new(Operation::Allreduce, BULK_ELEMENTS, 2, 1), Job::new(Operation::Allreduce, elements, 2, 1));
    let mut under_way = [0_u64; 5];
    let mut done = vec![0_u64; 5];
    for _ in 0..200_000 {
        for (at, n) in under_way.iter_mut().enumerate() {
            let (job, most) = if at == 4 { (&own, 2) } else { (&bulk, 6) };
            while *n < most {
                for rank in 0..2 {
                    job.call(&mut world, at, rank);
                }
                *n += 2;
            }
        }
        world.round();
        for ((communicator, _, _), outcome) in std::mem::take(&mut world.finished) {
            assert!(outcome.is_ok(), "{outcome:?}");
            under_way[communicator] -= 1;
            done[communicator] += 1;
        }
        if done[4] >= 2 * until {
            return done;
        }
    }
    panic!("it starves: {done:?}");
}

#[test]
fn nobody_waits_for_scratch_memory_while_others_take_it_again_and_again() {
    let done = contend(40_000, 20);
    let most = *done.iter().max().unwrap();
    assert!(most <= 2 * done[4], "{done:?}");
    // Small operations have memory of their own.
    let done = contend(500, 50);
    assert!(done[..4].iter().all(|n| *n <= done[4]), "{done:?}");
}
