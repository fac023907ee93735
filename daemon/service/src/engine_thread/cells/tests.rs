//! Turns of work in several cells.

use ringway_cell::{Call, Member};
use ringway_engine::{CommunicatorSpec, EngineConfig, RegionId, WorkspaceConfig};
use ringway_plan::{Layout, PlanSettings};
use ringway_types::{DataType, Operation, Reduction};
use ringway_verbs::LocalKey;

use super::*;
use crate::engine_thread::{NoDevice, RegionMemory, memory::Memory};

const REGION: u64 = 1 << 20;

/// Bytes of memory that a piece of work of three ranks reads and writes at most, beyond what was asked for.
const PIECE: u64 = 6 * (64 << 10);

/// By how much what tenants got may differ: a round of the engine's schedule, and a piece of each.
const ROUND: u64 = 2 * ((128 << 10) + PIECE);

/// A rank publishes only places: nothing of its memory is touched by it here.
struct Nothing;

impl Regions for Nothing {
    fn window(&self, _: u32, _: Place, _: u64) -> Option<Window<'_>> {
        None
    }
}

fn map(bytes: u64) -> Arc<Mapping> {
    Arc::new(Mapping::private(usize::try_from(bytes).expect("fits")).expect("map"))
}

/// What an engine thread has for cells.
struct Node {
    cells: Cells,
    engine: Engine,
    device: NoDevice,
    memory: Memory,
    regions: HandleTable<Region>,
}

impl Node {
    fn new() -> Self {
        let (mut device, mut memory) = (NoDevice::default(), Memory::default());
        let workspace = map(4 << 20);
        let keys = device.register(Arc::clone(&workspace), ringway_verbs::Access::ALL).expect("registers");
        let region = memory.add(RegionMemory::Host(workspace));
        let workspace = WorkspaceConfig { region, key: keys.local, length: 4 << 20 };
        let engine = Engine::new(EngineConfig::new(workspace)).expect("a configuration that works");
        Self { cells: Cells::new(2), engine, device, memory, regions: HandleTable::with_capacity(64) }
    }

    fn help(&mut self) -> Helped {
        let Self { cells, engine, device, memory, regions } = self;
        cells.help(engine, (device, memory), regions)
    }
}

/// A communicator whose ranks have a region each.
struct Job {
    members: Vec<(Member, u64)>,
}

impl Job {
    /// Of a tenant of its own.
    fn new(node: &mut Node, number: u64, ranks: u32) -> Self {
        Self::of_tenant(node, number, ranks, number)
    }

    fn of_tenant(node: &mut Node, number: u64, ranks: u32, tenant: u64) -> Self {
        let Node { cells, engine, device, regions, .. } = node;
        let spec = CommunicatorSpec {
            layout: Layout::new(&vec![0; ranks as usize]).expect("ranks"),
            node: 0,
            name: number,
            channels: 1,
            rails: 1,
            timeout_ms: None,
            settings: PlanSettings::default(),
            tenant,
        };
        let (id, _) = engine.open(spec, device).expect("room");
        let mapping = map(ringway_cell::bytes(ranks).expect("ranks"));
        let cell = Cell::attach(Arc::clone(&mapping), ranks).expect("attach");
        let mut group = GroupCell::new((key(number), id), CellMemory { cell: cell.clone(), mapping });
        let mut members = Vec::new();
        for rank in 0..ranks {
            let session = SessionKey(number * 100 + u64::from(rank));
            group.seat(rank, session);
            let mapping = map(REGION);
            mapping.window(0, REGION).expect("whole").write(&1_u64.to_le_bytes().repeat(REGION as usize / 8));
            let region = Region {
                session,
                id: RegionId(0),
                key: Some(LocalKey(0)),
                memory: RegionMemory::Host(mapping),
                shared: false,
                uses: 0,
            };
            members.push((Member::new(cell.clone(), rank), regions.insert(region).expect("room")));
        }
        cells.add(group);
        Self { members }
    }

    /// Every rank calls a sum over its whole region, in place.
    fn call(&mut self) {
        self.call_of(REGION);
    }

    /// The same over the first so many bytes.
    fn call_of(&mut self, bytes: u64) {
        for (member, region) in &mut self.members {
            let place = Some(Place { region: *region, offset: 0 });
            let call = Call {
                operation: Operation::Allreduce,
                datatype: DataType::U64,
                reduction: Some(Reduction::Sum),
                scale: None,
                root: 0,
                count: bytes / 8,
                counts: &[],
                input: place,
                output: place,
                staging: None,
            };
            assert!(member.begin(&call, true, &Nothing).is_some(), "room");
        }
    }
}

fn key(number: u64) -> GroupKey {
    ringway_group::GroupId(number)
}

/// Bytes read and written for a communicator, whose words were ones, by what sums have made of them since: not by what is
/// counted when turns are given out.
fn done(job: &Job, node: &Node) -> u64 {
    let ranks = job.members.len() as u32;
    let (_, region) = job.members[0];
    let region = node.regions.get(region).expect("registered");
    let mut bytes = vec![0; REGION as usize];
    region.memory.host().expect("host memory").window(0, REGION).expect("whole").read(&mut bytes);
    let words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight")));
    // Every sum makes a word so many times what it was: each rank's is read once and written once.
    words.map(|word| u64::from(word.ilog(u64::from(ranks)))).sum::<u64>() * 16 * u64::from(ranks)
}

#[test]
fn a_turn_is_bounded_and_tenants_are_served_alike() {
    let mut node = Node::new();
    let mut jobs = [(1, 2), (2, 3)].map(|(n, ranks)| Job::new(&mut node, n, ranks));
    jobs.iter_mut().for_each(|job| (0..8).for_each(|_| job.call()));
    let mut total = 0;
    while total < 8 << 20 {
        let helped = node.help();
        assert!(helped.bytes > 0 && helped.bytes <= TURN_BYTES + PIECE, "{helped:?}");
        assert!(helped.thief.is_none() && helped.spoiled.is_none() && !helped.held);
        total += helped.bytes;
        let [a, b] = jobs.each_ref().map(|job| done(job, &node));
        assert!(a.abs_diff(b) <= ROUND, "{a} and {b}");
    }
    assert!(node.cells.is_outstanding());
}

#[test]
fn four_communicators_of_one_tenant_share_what_one_of_another_gets_alone() {
    let mut node = Node::new();
    let mut jobs = [1, 2, 3, 4, 5].map(|n| Job::of_tenant(&mut node, n, 2, n / 5));
    jobs.iter_mut().for_each(|job| (0..16).for_each(|_| job.call()));
    while done(&jobs[4], &node) < 32 << 20 {
        assert!(node.help().bytes > 0);
    }
    let served = jobs.each_ref().map(|job| done(job, &node));
    let (four, one) = (served[..4].iter().sum::<u64>(), served[4]);
    assert!(four.abs_diff(one) * 10 <= one, "{served:?}");
    assert!(served[..4].iter().all(|bytes| bytes.abs_diff(one / 4) * 5 <= one / 4), "{served:?}");
}

#[test]
fn jobs_of_long_and_of_short_calls_get_as_many_bytes() {
    const SHORT: u64 = 32 << 10;
    let mut node = Node::new();
    let mut jobs = [1, 2].map(|n| Job::new(&mut node, n, 2));
    (0..8).for_each(|_| jobs[0].call());
    (0..60).for_each(|_| jobs[1].call_of(SHORT));
    let [all_long, all_short] = [8 * 4 * REGION, 60 * 4 * SHORT];
    loop {
        (0..8).for_each(|_| _ = node.help());
        let [long, short] = jobs.each_ref().map(|job| done(job, &node));
        if short == all_short {
            assert!(long < all_long / 2, "the long calls are not done first: {long} bytes");
            break;
        }
        assert!(long.abs_diff(short) <= ROUND, "{long} and {short} bytes");
    }
}

#[test]
fn who_wanted_nothing_for_a_while_does_not_catch_up() {
    let mut node = Node::new();
    let mut jobs = [1, 2].map(|n| Job::new(&mut node, n, 2));
    (0..16).for_each(|_| jobs[0].call());
    while done(&jobs[0], &node) < 8 << 20 {
        assert!(node.help().bytes > 0);
    }
    (0..16).for_each(|_| jobs[1].call());
    let before = done(&jobs[0], &node);
    for _ in 0..32 {
        assert!(node.help().bytes > 0);
    }
    let [first, second] = jobs.each_ref().map(|job| done(job, &node));
    assert!(first - before >= 1 << 20, "the first one goes on: {}", first - before);
    assert!((first - before).abs_diff(second) <= ROUND, "{} and {second}", first - before);
}

#[test]
fn everything_wanted_is_done_and_then_nothing_is() {
    let mut node = Node::new();
    let mut job = Job::new(&mut node, 1, 3);
    assert!(!node.cells.is_outstanding());
    assert_eq!(node.help().bytes, 0);
    job.call();
    let mut bytes = 0;
    loop {
        match node.help().bytes {
            0 => break,
            more => bytes += more,
        }
    }
    assert_eq!(bytes, 6 * REGION, "three inputs read, three outputs written");
    assert!(!node.cells.is_outstanding());
    assert_eq!(node.cells.get(key(1)).map(GroupCell::sequence), Some(1));
}

#[test]
fn ranks_that_have_yet_to_come_keep_the_daemon_awake_but_give_it_nothing_to_do() {
    let mut node = Node::new();
    let mut job = Job::new(&mut node, 1, 2);
    let late = job.members.pop().expect("two");
    job.call();
    assert_eq!(node.help().bytes, 0);
    assert!(node.cells.is_outstanding());
    assert_eq!(node.cells.get(key(1)).and_then(GroupCell::current), Some((1, vec![1])));
    let mut late = Job { members: vec![late] };
    late.call();
    assert!(node.help().bytes > 0);
}

#[test]
fn after_a_verdict_nobody_is_helped_and_the_first_reason_stands() {
    let mut node = Node::new();
    let mut job = Job::new(&mut node, 1, 2);
    job.call();
    let cell = node.cells.get_mut(key(1)).expect("it is there");
    let failure = ringway_engine::Failure::Aborted { rank: 1 };
    assert!(cell.fail(Reason::Engine(failure)));
    assert!(!cell.fail(Reason::ShuttingDown));
    let expected = Verdict { status: ringway_abi::Status::Aborted.code(), rank: 1 };
    assert_eq!(cell.cell.verdict(), Some(expected));
    assert_eq!(node.help().bytes, 0);
    assert!(!node.cells.is_outstanding());
    node.cells.remove(key(1));
    assert!(node.cells.get(key(1)).is_none());
}

#[test]
fn regions_of_ranks_that_left_and_of_others_are_not_touched() {
    let mut node = Node::new();
    let mut job = Job::new(&mut node, 1, 2);
    let stranger = Job::new(&mut node, 2, 2);
    let own = job.members[0].1;
    job.members[0].1 = stranger.members[0].1;
    job.call();
    assert_eq!(node.help().bytes, 0, "a stranger's region");
    job.members[0].1 = own;
    let mut node = Node::new();
    let mut job = Job::new(&mut node, 1, 2);
    job.call();
    node.cells.get_mut(key(1)).expect("it is there").leave(1);
    assert_eq!(node.help().bytes, 0, "a rank that left");
}

#[test]
fn a_cpu_that_a_rank_needs_is_left_to_it() {
    assert!(is_needed(0, 1) && is_needed(1, 2) && is_needed(7, 8));
    assert!(!is_needed(1, 1) && !is_needed(2, 2) && !is_needed(9, 8));
}
