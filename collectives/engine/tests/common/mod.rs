//! Several nodes' engines over simulated devices, in one thread.
#![allow(dead_code, reason = "each test file uses a part")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test that cannot go on must fail"
)]

pub(crate) mod oracle;
mod others;
mod reordered;

pub(crate) use others::Others;
use others::{HOLDER, Owned};
pub(crate) use reordered::{Order, Reordered};

use std::collections::BTreeMap;
use std::sync::Arc;

use ringway_engine::{
    BufferRef, Collected, CommunicatorId, CommunicatorSpec, Engine, EngineConfig, Failure, Handed,
    LocalMemory, LocalRank, Piece, Readiness, ReduceSource, RegionId, Request, ScanStep, Ticket, Token,
    WorkspaceConfig,
};
use ringway_mem::{Mapping, Window};
use ringway_plan::file::{Listed, export};
use ringway_plan::{Algorithm, Layout, PlanSettings, Preference, Rule, Tuning};
use ringway_reduce::{Scalar, Source};
use ringway_sim::{SimConfig, SimNetwork};
use ringway_types::{DataType, Operation, Reduction};
use ringway_verbs::{Access, Completion, Device, Time};

/// A node's memory: region 0 is the workspace, region `1 + l` local rank `l`'s.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(crate) regions: Vec<Arc<Mapping>>,
    /// Bytes touched since it was last set to zero.
    pub(crate) touched: u64,
    /// Who does pieces later, if anybody.
    pub(crate) others: Option<Others>,
    /// Memory of an accelerator, which `others` are then.
    pub(crate) accelerators: Vec<RegionId>,
    /// They are at work.
    pub(crate) at_work: bool,
}

impl Memory {
    fn window(&self, buffer: BufferRef) -> Window<'_> {
        let most = if self.at_work && !self.accelerators.is_empty() { 64 << 20 } else { 64 << 10 };
        assert!(buffer.length <= most, "a piece of {} bytes", buffer.length);
        assert!(self.at_work || !self.accelerators.contains(&buffer.region), "an accelerator's memory");
        let mapping = &self.regions[buffer.region.0 as usize];
        mapping.window(buffer.offset, buffer.length).expect("inside the region")
    }

    fn source(&self, source: &ReduceSource) -> Source<'_> {
        Source { window: self.window(source.buffer), scale: source.scale.map(Scalar::from_bytes) }
    }
}

/// A list of at most 32 operands without allocating.
fn list<'a, T: Copy, U: Copy>(from: &'a [T], empty: U, make: impl Fn(&'a T) -> U) -> ([U; 32], usize) {
    let mut out = [empty; 32];
    assert!(from.len() <= 32);
    for (into, from) in out.iter_mut().zip(from) {
        *into = make(from);
    }
    (out, from.len())
}

impl LocalMemory for Memory {
    fn hand(&mut self, ticket: Ticket, piece: &Piece<'_>, hurried: bool) -> Handed {
        if self.others.is_none() || (hurried && self.accelerators.is_empty()) {
            self.perform(piece);
            return Handed::Done;
        }
        let owned = Owned::of(piece);
        let accelerated = owned.touches_any(&self.accelerators);
        if hurried && !accelerated {
            self.perform(piece);
            return Handed::Done;
        }
        let piece = owned;
        let others = self.others.iter().flat_map(|others| &others.pieces);
        let conflict = others.clone().find(|(_, other)| other.conflicts(&piece));
        assert!(conflict.is_none(), "{piece:?} meets {conflict:?}");
        assert!(!others.clone().any(|(other, _)| *other == ticket), "{ticket:?} is with others already");
        if let Some(others) = &mut self.others
            && (accelerated || others.stopped || others.random(4) > 0)
        {
            others.had += 1;
            others.pieces.push((ticket, piece));
            return Handed::Later;
        }
        self.at_work = true;
        piece.run(self);
        self.at_work = false;
        Handed::Done
    }

    fn holder(&self, ticket: Ticket) -> Option<LocalRank> {
        let others = self.others.as_ref().filter(|others| others.stopped)?;
        others.pieces.iter().find(|(other, _)| *other == ticket).map(|_| HOLDER)
    }

    fn collect(&mut self, _: u64, done: &mut [Collected]) -> usize {
        let Some(mut others) = self.others.take() else { return 0 };
        let mut count = 0;
        if !others.stopped && !others.pieces.is_empty() {
            for into in done.iter_mut().take(1 + others.random(3)) {
                if others.pieces.is_empty() {
                    break;
                }
                let at = others.random(others.pieces.len());
                let (ticket, piece) = others.pieces.swap_remove(at);
                self.at_work = true;
                piece.run(self);
                self.at_work = false;
                *into = Collected { ticket, touched: 0 };
                count += 1;
            }
        }
        self.others = Some(others);
        count
    }

    fn withdraw(&mut self, ticket: Ticket) -> bool {
        let Some(others) = &mut self.others else { return true };
        if others.stopped {
            return false;
        }
        // An accelerator goes on with what it has begun.
        let begun =
            |(other, piece): &(Ticket, Owned)| *other == ticket && piece.touches_any(&self.accelerators);
        if others.pieces.iter().any(begun) {
            return false;
        }
        others.pieces.retain(|(other, _)| *other != ticket);
        true
    }

    fn reduce(
        &mut self,
        datatype: DataType,
        reduction: Reduction,
        sources: &[ReduceSource],
        destinations: &[BufferRef],
        divisor: Option<u32>,
    ) {
        let pieces = sources.len() + destinations.len();
        self.touched += sources[0].buffer.length * pieces as u64;
        let first = self.source(&sources[0]);
        let (sources, n) = list(sources, first, |source| self.source(source));
        let (destinations, m) = list(destinations, first.window, |buffer| self.window(*buffer));
        ringway_reduce::reduce(datatype, reduction, &sources[..n], &destinations[..m], divisor)
            .expect("reduce");
    }

    fn scan(
        &mut self,
        datatype: DataType,
        reduction: Reduction,
        carry: Option<BufferRef>,
        before: u32,
        steps: &[ScanStep],
        inclusive: bool,
    ) {
        let step = |step: &ScanStep| ringway_reduce::ScanStep {
            input: self.source(&step.input),
            output: Some(self.window(step.output)),
        };
        let (steps, n) = list(steps, step(&steps[0]), step);
        let carry = carry.map(|carry| self.window(carry));
        ringway_reduce::scan(datatype, reduction, carry, &steps[..n], inclusive, before, None).expect("scan");
    }

    fn copy(&mut self, source: BufferRef, destinations: &[BufferRef]) {
        self.touched += source.length * (1 + destinations.len()) as u64;
        let source = self.window(source);
        let (destinations, m) = list(destinations, source, |buffer| self.window(*buffer));
        ringway_reduce::copy(source, &destinations[..m]).expect("copy");
    }

    fn swap(&mut self, a: BufferRef, b: BufferRef) {
        ringway_reduce::swap(self.window(a), self.window(b)).expect("swap");
    }

    fn read(&self, from: BufferRef, into: &mut [u8]) {
        self.window(from).read(into);
    }

    fn write(&mut self, into: BufferRef, from: &[u8]) {
        self.window(into).write(from);
    }
}

pub(crate) type Outcome = Result<(u32, u64), Failure>;

/// One node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) engine: Engine,
    /// `None` once the node has died.
    pub(crate) device: Option<Reordered>,
    pub(crate) memory: Memory,
    pub(crate) ids: Vec<CommunicatorId>,
}

/// What a world is made with.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    pub(crate) node_of: Vec<u32>,
    /// Queue pairs to each other node, each on a rail of its own.
    pub(crate) channels: u32,
    /// The NUMA nodes of the rails' network cards, one channel each.
    pub(crate) numa_nodes: Vec<u32>,
    /// In which order completions of different queue pairs are seen.
    pub(crate) order: Order,
    pub(crate) region: usize,
    pub(crate) workspace: usize,
    pub(crate) communicators: usize,
    /// Whose each communicator is; its own without an entry.
    pub(crate) tenants: Vec<u64>,
    pub(crate) timeout_ms: Option<u64>,
    pub(crate) network: SimConfig,
    pub(crate) configure: fn(&mut EngineConfig),
    pub(crate) tuning: Tuning,
    /// The algorithms that are asked for.
    pub(crate) preference: Preference,
    pub(crate) rules: Vec<Rule>,
    /// Others that do local work.
    pub(crate) others: Option<Others>,
    /// Ranks whose region is memory of an accelerator.
    pub(crate) accelerated: Vec<u32>,
}

impl Setup {
    pub(crate) fn new(node_of: &[u32]) -> Self {
        Self {
            node_of: node_of.to_vec(),
            channels: 1,
            numa_nodes: Vec::new(),
            order: Order::AsTheyCome,
            region: 4 << 20,
            workspace: 8 << 20,
            communicators: 1,
            tenants: Vec::new(),
            timeout_ms: None,
            network: SimConfig { latency_ns: 2_000, jitter_ns: 3_000, seed: 7, ..SimConfig::default() },
            configure: |_| {},
            tuning: Tuning::default(),
            preference: Preference::default(),
            rules: Vec::new(),
            others: None,
            accelerated: Vec::new(),
        }
    }

    /// Small chunks, so that ordinary sizes have many of them.
    pub(crate) fn with_small_chunks(self) -> Self {
        let tuning = Tuning { chunk_bytes: 4096, direct_max_bytes: 20_000, ..self.tuning };
        Self { tuning, configure: |config| config.eager_max_bytes = 1024, ..self }
    }

    pub(crate) fn settings(&self) -> PlanSettings {
        PlanSettings::new(self.tuning, self.preference, self.rules.clone()).expect("settings within bounds")
    }
}

/// Everything.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) network: SimNetwork,
    pub(crate) layout: Layout,
    pub(crate) nodes: Vec<Node>,
    pub(crate) now: u64,
    pub(crate) finished: BTreeMap<(usize, u32, u32), Outcome>,
    next_token: u32,
    seed: u64,
}

/// Every algorithm that can be written to a file, for these numbers of nodes; rings behind direct exchanges.
pub(crate) fn listed(nodes: &[u32], tuning: &Tuning) -> Vec<Arc<Listed>> {
    let mut plans = Vec::new();
    for algorithm in [Algorithm::Direct, Algorithm::Ring] {
        for &nodes in nodes {
            for operation in Operation::ALL {
                plans.extend(export(algorithm, *operation, nodes, tuning).ok());
            }
        }
    }
    plans
}

impl World {
    pub(crate) fn of(node_of: &[u32]) -> Self {
        Self::new(&Setup::new(node_of))
    }

    pub(crate) fn new(setup: &Setup) -> Self {
        let layout = Layout::new(&setup.node_of).expect("layout");
        let network = SimNetwork::new(setup.network);
        let mut nodes: Vec<Node> =
            (0..layout.nodes()).map(|node| make_node(setup, &layout, node, &network)).collect();
        for communicator in 0..setup.communicators {
            let spec = |node| CommunicatorSpec {
                layout: layout.clone(),
                node,
                name: 77 + communicator as u64,
                channels: setup.channels,
                rails: setup.channels,
                timeout_ms: setup.timeout_ms,
                settings: setup.settings(),
                tenant: setup.tenants.get(communicator).copied().unwrap_or(communicator as u64),
            };
            let mut endpoints = Vec::new();
            for (number, node) in (0..).zip(&mut nodes) {
                let device = node.device.as_mut().unwrap();
                let (id, made) = node.engine.open(spec(number), device).expect("open");
                node.ids.push(id);
                endpoints.push(made);
            }
            for number in 0..nodes.len() {
                let theirs: Vec<_> = (0..nodes.len())
                    .filter(|other| *other != number)
                    .flat_map(|other| {
                        let for_this = endpoints[other].iter().filter(|(node, _)| *node as usize == number);
                        for_this.map(move |(_, endpoint)| (other as u32, *endpoint)).collect::<Vec<_>>()
                    })
                    .collect();
                let Node { engine, device, ids, .. } = &mut nodes[number];
                engine.connect(ids[communicator], &theirs, device.as_mut().unwrap()).expect("connect");
            }
        }
        let finished = BTreeMap::new();
        let mut world = Self { network, layout, nodes, now: 1_000_000, finished, next_token: 0, seed: 99 };
        world.until(|world| {
            world.nodes.iter().all(|node| {
                let ready = |id: &CommunicatorId| node.engine.readiness(*id, node.device.as_ref().unwrap());
                node.ids.iter().all(|id| ready(id) == Readiness::Ready)
            })
        });
        world
    }

    fn place(&self, rank: u32) -> (usize, u32) {
        (self.layout.node_of(rank) as usize, self.layout.local_index(rank))
    }

    /// Bytes of a rank's region.
    pub(crate) fn buffer(&self, rank: u32, offset: u64, length: u64) -> BufferRef {
        let (_, local) = self.place(rank);
        BufferRef { region: RegionId(1 + local), offset, length }
    }

    pub(crate) fn write(&self, rank: u32, offset: u64, bytes: &[u8]) {
        let (node, local) = self.place(rank);
        let mapping = &self.nodes[node].memory.regions[1 + local as usize];
        mapping.window(offset, bytes.len() as u64).unwrap().write(bytes);
    }

    pub(crate) fn read(&self, rank: u32, offset: u64, length: u64) -> Vec<u8> {
        let (node, local) = self.place(rank);
        let mut bytes = vec![0; length as usize];
        let mapping = &self.nodes[node].memory.regions[1 + local as usize];
        mapping.window(offset, length).unwrap().read(&mut bytes);
        bytes
    }

    pub(crate) fn submit(&mut self, rank: u32, request: Request<'_>) -> u32 {
        self.submit_on(0, rank, request)
    }

    pub(crate) fn submit_on(&mut self, communicator: usize, rank: u32, request: Request<'_>) -> u32 {
        let (node, local) = self.place(rank);
        let token = self.next_token;
        self.next_token += 1;
        let now = Time(self.now);
        let Node { engine, ids, .. } = &mut self.nodes[node];
        engine.submit(ids[communicator], LocalRank(local), Token(token), request, now).expect("submitted");
        token
    }

    /// One turn of a node.
    pub(crate) fn turn(&mut self, node: usize) {
        let now = Time(self.now);
        let Node { engine, device, memory, ids } = &mut self.nodes[node];
        let Some(device) = device else { return };
        let mut completions = [Completion::EMPTY; 16];
        let n = device.poll(now, &mut completions);
        engine.complete(now, &completions[..n], device, memory);
        engine.advance(now, device, memory);
        while let Some(finished) = engine.next_finished() {
            let communicator = ids.iter().position(|id| *id == finished.communicator).unwrap();
            let rank = self.layout.local(node as u32)[finished.local.0 as usize];
            let key = (communicator, rank, finished.token.0);
            assert!(self.finished.insert(key, finished.outcome).is_none(), "finished twice");
        }
    }

    /// A turn of every node, in an order that differs each time.
    pub(crate) fn round(&mut self) {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let n = self.nodes.len();
        let start = (self.seed >> 33) as usize % n;
        for i in 0..n {
            self.turn((start + i) % n);
        }
        self.now += 1_000;
    }

    /// Rounds until something holds; when nothing happens for long, time leaps.
    pub(crate) fn until(&mut self, holds: impl Fn(&Self) -> bool) {
        for round in 0..60_000_u64 {
            if holds(self) {
                return;
            }
            self.round();
            if round > 20_000 {
                self.now += 1_000_000;
            }
        }
        for node in &self.nodes {
            for id in &node.ids {
                eprintln!("{:?}", node.engine.status(*id));
            }
        }
        panic!("a hang; finished so far: {:?}", self.finished);
    }

    /// Rounds for a while.
    pub(crate) fn pass(&mut self, milliseconds: u64) {
        let end = self.now + milliseconds * 1_000_000;
        while self.now < end {
            self.round();
            self.now += 200_000;
        }
    }

    /// Takes an operation's outcome, waiting for it.
    pub(crate) fn wait_on(&mut self, communicator: usize, rank: u32, token: u32) -> Outcome {
        self.until(|world| world.finished.contains_key(&(communicator, rank, token)));
        self.finished.remove(&(communicator, rank, token)).unwrap()
    }

    pub(crate) fn wait(&mut self, rank: u32, token: u32) -> Outcome {
        self.wait_on(0, rank, token)
    }

    /// Fails the communicator at a node because of one of its ranks.
    pub(crate) fn fail(&mut self, rank: u32, failure: Failure) {
        let (node, _) = self.place(rank);
        let Node { engine, ids, .. } = &mut self.nodes[node];
        engine.fail(ids[0], failure);
    }

    /// A node dies with all its ranks.
    pub(crate) fn kill(&mut self, node: usize) {
        self.nodes[node].device = None;
    }

    pub(crate) fn break_link(&self, a: usize, b: usize) {
        let device = |node: usize| &self.nodes[node].device.as_ref().unwrap().inner;
        self.network.break_link(device(a), device(b));
    }
}

fn make_node(setup: &Setup, layout: &Layout, node: u32, network: &SimNetwork) -> Node {
    let order = match setup.order {
        Order::Random(seed) => Order::Random(seed.wrapping_add(u64::from(node) << 17)),
        Order::AsTheyCome => Order::AsTheyCome,
    };
    let mut device = Reordered::new(network.device(), order);
    device.numa_nodes.clone_from(&setup.numa_nodes);
    let workspace = Arc::new(Mapping::private(setup.workspace).expect("map"));
    let keys = device.register(workspace.clone(), Access::ALL).expect("register");
    let config = WorkspaceConfig { region: RegionId(0), key: keys.local, length: setup.workspace as u64 };
    let mut config = EngineConfig::new(config);
    (setup.configure)(&mut config);
    let mut engine = Engine::new(config).expect("configuration");
    let mut memory = Memory { regions: vec![workspace], others: setup.others.clone(), ..Memory::default() };
    for (local, rank) in (0..).zip(layout.local(node)) {
        let region = Arc::new(Mapping::private(setup.region).expect("map"));
        if setup.accelerated.contains(rank) {
            assert!(engine.add_accelerator_region(RegionId(1 + local)), "room for windows");
            memory.accelerators.push(RegionId(1 + local));
            memory.regions.push(region);
            continue;
        }
        let keys = device.register(region.clone(), Access::ALL).expect("register");
        engine.add_region(RegionId(1 + local), keys.local);
        memory.regions.push(region);
    }
    Node { engine, device: Some(device), memory, ids: Vec::new() }
}
