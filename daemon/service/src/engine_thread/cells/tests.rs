//! Turns of work in several cells.

use ringway_cell::{Call, Member};
use ringway_engine::RegionId;
use ringway_types::{DataType, Operation, Reduction};
use ringway_verbs::LocalKey;

use super::*;

const REGION: u64 = 1 << 20;

/// Bytes of memory that a piece of work of three ranks reads and writes at most, beyond what was asked for.
const PIECE: u64 = 6 * (64 << 10);

/// A rank publishes only places: nothing of its memory is touched by it here.
struct Nothing;

impl Regions for Nothing {
    fn window(&self, _: u32, _: Place, _: u64) -> Option<Window<'_>> {
        None
    }
}

struct Tenant {
    members: Vec<(Member, u64)>,
}

impl Tenant {
    /// A communicator whose ranks have a region each.
    fn new(cells: &mut Cells, regions: &mut HandleTable<Region>, number: u64, ranks: u32) -> Self {
        let map =
            |bytes: u64| Arc::new(Mapping::private(usize::try_from(bytes).expect("fits")).expect("map"));
        let mapping = map(ringway_cell::bytes(ranks).expect("ranks"));
        let cell = Cell::attach(Arc::clone(&mapping), ranks).expect("attach");
        let mut group = GroupCell::new(key(number), CellMemory { cell: cell.clone(), mapping });
        let mut members = Vec::new();
        for rank in 0..ranks {
            let session = SessionKey(number * 100 + u64::from(rank));
            group.seat(rank, session);
            let mapping = map(REGION);
            let region =
                Region { session, id: RegionId(0), key: LocalKey(0), mapping, shared: false, uses: 0 };
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

fn setup() -> (Cells, HandleTable<Region>) {
    (Cells::new(2), HandleTable::with_capacity(64))
}

fn served(cells: &Cells) -> Vec<u64> {
    cells.cells.iter().map(|cell| cell.served).collect()
}

#[test]
fn a_turn_is_bounded_and_tenants_are_served_alike() {
    let (mut cells, mut regions) = setup();
    let mut tenants = [(1, 2), (2, 3)].map(|(n, ranks)| Tenant::new(&mut cells, &mut regions, n, ranks));
    tenants.iter_mut().for_each(|tenant| (0..8).for_each(|_| tenant.call()));
    let mut total = 0;
    while total < 8 << 20 {
        let helped = cells.help(&regions);
        assert!(helped.bytes > 0 && helped.bytes <= TURN_BYTES + PIECE, "{helped:?}");
        assert!(helped.thief.is_none() && helped.spoiled.is_none() && !helped.held);
        total += helped.bytes;
        let [a, b] = served(&cells)[..] else { panic!("two cells") };
        assert!(a.abs_diff(b) <= QUANTUM + PIECE, "{a} and {b}");
    }
    assert!(cells.is_outstanding());
}

/// Bytes read and written for a tenant of two ranks whose words were ones, by what sums have made of them since: not by what
/// is counted when turns are given out.
fn done(tenant: &Tenant, regions: &HandleTable<Region>) -> u64 {
    let sums = |(_, region): &(Member, u64)| -> u64 {
        let mut bytes = vec![0; REGION as usize];
        regions.get(*region).expect("registered").mapping.window(0, REGION).expect("whole").read(&mut bytes);
        let words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight")));
        words.map(|word| u64::from(word.trailing_zeros())).sum()
    };
    // Every sum doubles a word: it is read once and written once.
    tenant.members.iter().map(sums).sum::<u64>() * 16
}

#[test]
fn jobs_of_long_and_of_short_calls_get_as_many_bytes() {
    const SHORT: u64 = 32 << 10;
    let (mut cells, mut regions) = setup();
    let mut tenants = [1, 2].map(|n| Tenant::new(&mut cells, &mut regions, n, 2));
    for (_, region) in tenants.iter().flat_map(|tenant| &tenant.members) {
        let window = regions.get(*region).expect("registered").mapping.window(0, REGION).expect("whole");
        window.write(&1_u64.to_le_bytes().repeat(REGION as usize / 8));
    }
    (0..8).for_each(|_| tenants[0].call());
    (0..60).for_each(|_| tenants[1].call_of(SHORT));
    let [all_long, all_short] = [8 * 4 * REGION, 60 * 4 * SHORT];
    loop {
        (0..8).for_each(|_| _ = cells.help(&regions));
        let [long, short] = tenants.each_ref().map(|tenant| done(tenant, &regions));
        if short == all_short {
            assert!(long < all_long / 2, "the long calls are not done first: {long} bytes");
            break;
        }
        assert!(long.abs_diff(short) <= QUANTUM + PIECE, "{long} and {short} bytes");
    }
}

#[test]
fn who_wanted_nothing_for_a_while_does_not_catch_up() {
    let (mut cells, mut regions) = setup();
    let mut tenants = [1, 2].map(|n| Tenant::new(&mut cells, &mut regions, n, 2));
    (0..8).for_each(|_| tenants[0].call());
    while served(&cells)[0] < 8 << 20 {
        assert!(cells.help(&regions).bytes > 0);
    }
    (0..8).for_each(|_| tenants[1].call());
    let before = served(&cells)[0];
    for _ in 0..32 {
        assert!(cells.help(&regions).bytes > 0);
    }
    let [first, second] = served(&cells)[..] else { panic!("two cells") };
    assert!(first - before >= 1 << 20, "the first one goes on: {}", first - before);
    assert!(first.abs_diff(second) <= QUANTUM + PIECE, "{first} and {second}");
}

#[test]
fn everything_wanted_is_done_and_then_nothing_is() {
    let (mut cells, mut regions) = setup();
    let mut tenant = Tenant::new(&mut cells, &mut regions, 1, 3);
    assert!(!cells.is_outstanding());
    assert_eq!(cells.help(&regions).bytes, 0);
    tenant.call();
    let mut bytes = 0;
    loop {
        match cells.help(&regions).bytes {
            0 => break,
            more => bytes += more,
        }
    }
    assert_eq!(bytes, 6 * REGION, "three inputs read, three outputs written");
    assert!(!cells.is_outstanding());
    assert_eq!(cells.get(key(1)).map(GroupCell::sequence), Some(1));
}

#[test]
fn ranks_that_have_yet_to_come_keep_the_daemon_awake_but_give_it_nothing_to_do() {
    let (mut cells, mut regions) = setup();
    let mut tenant = Tenant::new(&mut cells, &mut regions, 1, 2);
    let late = tenant.members.pop().expect("two");
    tenant.call();
    assert_eq!(cells.help(&regions).bytes, 0);
    assert!(cells.is_outstanding());
    assert_eq!(cells.get(key(1)).and_then(GroupCell::current), Some((1, vec![1])));
    let mut late = Tenant { members: vec![late] };
    late.call();
    assert!(cells.help(&regions).bytes > 0);
}

#[test]
fn after_a_verdict_nobody_is_helped_and_the_first_reason_stands() {
    let (mut cells, mut regions) = setup();
    let mut tenant = Tenant::new(&mut cells, &mut regions, 1, 2);
    tenant.call();
    let cell = cells.get_mut(key(1)).expect("it is there");
    let failure = ringway_engine::Failure::Aborted { rank: 1 };
    assert!(cell.fail(Reason::Engine(failure)));
    assert!(!cell.fail(Reason::ShuttingDown));
    let expected = Verdict { status: ringway_abi::Status::Aborted.code(), rank: 1 };
    assert_eq!(cell.cell.verdict(), Some(expected));
    assert_eq!(cells.help(&regions).bytes, 0);
    assert!(!cells.is_outstanding());
    cells.remove(key(1));
    assert!(cells.get(key(1)).is_none());
}

#[test]
fn regions_of_ranks_that_left_and_of_others_are_not_touched() {
    let (mut cells, mut regions) = setup();
    let mut tenant = Tenant::new(&mut cells, &mut regions, 1, 2);
    let stranger = Tenant::new(&mut cells, &mut regions, 2, 2);
    let own = tenant.members[0].1;
    tenant.members[0].1 = stranger.members[0].1;
    tenant.call();
    assert_eq!(cells.help(&regions).bytes, 0, "a stranger's region");
    tenant.members[0].1 = own;
    let (mut cells, mut regions) = setup();
    let mut tenant = Tenant::new(&mut cells, &mut regions, 1, 2);
    tenant.call();
    cells.get_mut(key(1)).expect("it is there").leave(1);
    assert_eq!(cells.help(&regions).bytes, 0, "a rank that left");
}

#[test]
fn a_cpu_that_a_rank_needs_is_left_to_it() {
    assert!(is_needed(0, 1) && is_needed(1, 2) && is_needed(7, 8));
    assert!(!is_needed(1, 1) && !is_needed(2, 2) && !is_needed(9, 8));
}
