//! Cells: who gets one, what their ranks may ask, how they end, and the daemon's work in them.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod common;

use std::{
    collections::BTreeMap,
    os::fd::AsFd,
    sync::Arc,
    time::{Duration, Instant},
};

use common::{Client, Daemon, PATIENCE, Rank, allreduce, assert_serves, barrier, get, join, put, ranks};
use proptest::prelude::*;
use ringway_abi::{
    Status,
    control::{COMMUNICATOR_TOKEN, RefusalKind, Reply, Request},
};
use ringway_cell::{Call, Cell, Member, Place, Poll, Regions, Verdict};
use ringway_mem::{Mapping, MemFd, Protection, Window};
use ringway_types::{DataType, Operation, Reduction};

/// The regions a rank knows, by owner and handle.
#[derive(Default)]
struct Known(BTreeMap<(u32, u64), Arc<Mapping>>);

impl Regions for Known {
    fn window(&self, rank: u32, place: Place, length: u64) -> Option<Window<'_>> {
        self.0.get(&(rank, place.region))?.window(place.offset, length)
    }
}

/// A rank of a communicator with a cell.
struct Sharer {
    client: Client,
    rank: Rank,
    cell: Cell,
    member: Member,
    known: Known,
    region: u64,
    file: MemFd,
}

const REGION: u64 = 1 << 20;

fn sharers(daemon: &Daemon, size: u32) -> Vec<Sharer> {
    let joined = (0..).zip(ranks(&daemon.socket, size));
    joined.map(|(number, (client, rank))| sharer(client, rank, number, size)).collect()
}

fn sharer(mut client: Client, rank: Rank, number: u32, size: u32) -> Sharer {
    let cell = Cell::attach(rank.cell.clone().expect("a cell"), size).expect("attach");
    let region = client.region(REGION);
    let mut known = Known::default();
    known.0.insert((number, region.handle), Arc::new(region.mapping));
    let member = Member::new(cell.clone(), number);
    Sharer { client, rank, cell, member, known, region: region.handle, file: region.file }
}

impl Sharer {
    fn memory(&self) -> &Mapping {
        self.known.0.iter().find(|((_, region), _)| *region == self.region).expect("own memory").1
    }

    fn sums(&self, count: u64) -> Call<'static> {
        Call {
            operation: Operation::Allreduce,
            datatype: DataType::U64,
            reduction: Some(Reduction::Sum),
            scale: None,
            root: 0,
            count,
            counts: &[],
            input: Some(Place { region: self.region, offset: 0 }),
            output: Some(Place { region: self.region, offset: REGION / 2 }),
            staging: None,
        }
    }

    fn begin(&mut self, call: &Call<'_>, help: bool) -> u64 {
        let sequence = self.member.begin(call, help, &self.known).expect("room");
        if help {
            self.rank.ring();
        }
        sequence
    }

    fn communicator(&self) -> u32 {
        self.rank.joined.communicator
    }

    fn inspect(&mut self, sequence: u64, waited_ms: u64) {
        let communicator = self.communicator();
        let request = Request::Inspect { communicator, sequence, waited_ms };
        assert_eq!(self.client.ask(request, &[]), Reply::Done);
    }

    fn why(&mut self) -> String {
        self.client.explain(&self.rank, COMMUNICATOR_TOKEN)
    }

    /// The verdict, which must come.
    fn verdict(&self) -> Verdict {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(verdict) = self.cell.verdict() {
                return verdict;
            }
            assert!(Instant::now() < deadline, "no verdict");
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

fn verdict(status: Status, rank: u32) -> Verdict {
    Verdict { status: status.code(), rank }
}

fn refusal(reply: Reply) -> RefusalKind {
    match reply {
        Reply::Refused { kind, .. } => kind,
        other => panic!("{other:?}"),
    }
}

#[test]
fn ranks_of_one_user_share_a_cell_unless_isolation_is_strict() {
    let daemon = Daemon::start();
    let mut sharers = sharers(&daemon, 3);
    let offer = sharers[2].rank.joined.cell.expect("a cell");
    assert_eq!((offer.ranks, Some(offer.bytes)), (3, ringway_cell::bytes(3)));
    assert_eq!(offer.late_after_ms, 5000);
    let calls: Vec<_> = sharers.iter_mut().map(|s| (s.begin(&Call::BARRIER, false), Call::BARRIER)).collect();
    for (sharer, (sequence, _)) in sharers.iter_mut().zip(calls) {
        assert_eq!(sharer.member.poll(sequence, &sharer.known), Poll::Done);
    }
    let status = sharers[0].client.status();
    let communicator = &status.communicators[0];
    assert_eq!((communicator.path.as_str(), communicator.sequence), ("cell", 1));

    let strict = Daemon::with(|s| s.isolation = Some("strict".to_owned()));
    let mut ranks = ranks(&strict.socket, 2);
    assert!(ranks.iter().all(|(_, rank)| rank.joined.cell.is_none() && rank.cell.is_none()));
    ranks.iter_mut().for_each(|(_, rank)| rank.submit(&barrier(1)));
    ranks.iter_mut().for_each(|(_, rank)| assert_eq!(rank.wait(), (1, Some(Status::Success))));
    let (client, rank) = &mut ranks[0];
    assert_eq!(client.status().communicators[0].path, "engine");
    let communicator = rank.joined.communicator;
    for request in [
        Request::MapRegion { communicator, rank: 1, region: 1 },
        Request::Inspect { communicator, sequence: 1, waited_ms: 1 },
    ] {
        assert_eq!(refusal(client.ask(request, &[])), RefusalKind::Invalid);
    }
}

#[test]
fn a_cell_is_charged_to_its_users_and_there_is_none_without_room() {
    // Room for one cell, and not for two.
    const ROOM: u64 = 3 << 20;
    let daemon = Daemon::with(|s| s.quotas.region_mib = Some(3));
    let bytes = ringway_cell::bytes(2).expect("ranks");
    assert!((ROOM / 2..ROOM).contains(&bytes));
    let mut ranks = ranks(&daemon.socket, 2);
    assert!(ranks.iter().all(|(_, rank)| rank.cell.is_some()));
    let (client, _) = &mut ranks[0];
    let may = |client: &mut Client, bytes| client.ask(Request::MayRegister { bytes }, &[]);
    assert_eq!(may(client, ROOM - bytes), Reply::Done);
    assert_eq!(refusal(may(client, ROOM - bytes + 1)), RefusalKind::Quota);
    let _region = client.region((ROOM - bytes) & !4095);

    // The next communicator does without.
    let mut others = common::ranks(&daemon.socket, 2);
    assert!(others.iter().all(|(_, rank)| rank.cell.is_none()));
    others.iter_mut().for_each(|(_, rank)| rank.submit(&barrier(1)));
    others.iter_mut().for_each(|(_, rank)| assert_eq!(rank.wait(), (1, Some(Status::Success))));

    // What ranks held is free when they have left, or are gone.
    let (mut first, second) = (ranks.remove(0), ranks.remove(0));
    let leave = Request::Leave { communicator: first.1.joined.communicator };
    assert_eq!(first.0.ask(leave, &[]), Reply::Done);
    drop(second);
    drop(first);
    let (client, _) = &mut others[0];
    let deadline = Instant::now() + PATIENCE;
    while may(client, ROOM) != Reply::Done {
        assert!(Instant::now() < deadline, "still charged");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_daemon_does_the_work_when_nobody_waits() {
    let daemon = Daemon::start();
    let mut sharers = sharers(&daemon, 3);
    let count = REGION / 16;
    for round in 1..=5_u64 {
        for (sharer, value) in sharers.iter_mut().zip(1..) {
            (0..count).for_each(|at| put(sharer.memory(), at * 8, value * round + at));
        }
        let mut begun = Vec::new();
        for sharer in &mut sharers {
            let call = sharer.sums(count);
            begun.push(sharer.begin(&call, true));
        }
        // Nobody polls: what is written is written by the daemon.
        let deadline = Instant::now() + PATIENCE;
        for sharer in &sharers {
            for at in 0..count {
                while get(sharer.memory(), REGION / 2 + at * 8) != 6 * round + 3 * at {
                    assert!(Instant::now() < deadline, "round {round}, element {at}");
                    std::thread::sleep(Duration::from_micros(100));
                }
            }
        }
        for (sharer, sequence) in sharers.iter_mut().zip(begun) {
            while sharer.member.poll(sequence, &sharer.known) != Poll::Done {
                assert!(Instant::now() < deadline, "round {round}");
            }
        }
    }
    let counters = sharers[0].client.status().counters;
    assert!(counters.help_turns > 0 && counters.help_bytes >= 5 * 6 * count * 8, "{counters:?}");
}

#[test]
fn regions_are_mapped_by_ranks_of_the_same_cell_only() {
    let daemon = Daemon::start();
    let mut sharers = sharers(&daemon, 2);
    let mut strangers = self::sharers(&daemon, 2);
    let (theirs, communicator) = (sharers[1].region, sharers[0].communicator());
    put(sharers[1].memory(), 8, 77);

    let request = |rank, region| Request::MapRegion { communicator, rank, region };
    let asker = &mut sharers[0].client;
    let number = asker.send(request(1, theirs), &[]);
    let (reply, mut fds) = asker.reply(number);
    assert_eq!(reply, Reply::Region { region: theirs, length: REGION });
    let file = fds.pop().expect("a descriptor");
    let length = usize::try_from(REGION).expect("fits");
    let mapped = Mapping::shared(file.as_fd(), length, Protection::ReadWrite).expect("map");
    assert_eq!(get(&mapped, 8), 77);

    let strange = strangers[0].region;
    for (rank, region) in
        [(0, theirs), (1, theirs + 1), (2, theirs), (u32::MAX, theirs), (1, strange), (1, 0)]
    {
        assert_eq!(
            refusal(asker.ask(request(rank, region), &[])),
            RefusalKind::Unknown,
            "{rank} {region:#x}"
        );
    }
    // Whoever is in another communicator gets nothing, whatever name it gives.
    for communicator in 0..4 {
        let request = Request::MapRegion { communicator, rank: 1, region: theirs };
        assert_eq!(refusal(strangers[0].client.ask(request, &[])), RefusalKind::Unknown);
        let request = Request::MapRegion { communicator, rank: 1, region: theirs };
        assert_eq!(refusal(Client::connect(&daemon.socket).ask(request, &[])), RefusalKind::Unknown);
    }
    // A region that was released is gone, and so is that of a rank that left.
    let release = Request::ReleaseRegion { region: theirs };
    assert_eq!(sharers[1].client.ask(release, &[]), Reply::Done);
    assert_eq!(refusal(sharers[0].client.ask(request(1, theirs), &[])), RefusalKind::Unknown);
    let fresh = sharers[1].client.region(REGION).handle;
    assert!(matches!(sharers[0].client.ask(request(1, fresh), &[]), Reply::Region { .. }));
    let leave = Request::Leave { communicator: sharers[1].communicator() };
    assert_eq!(sharers[1].client.ask(leave, &[]), Reply::Done);
    assert_eq!(refusal(sharers[0].client.ask(request(1, fresh), &[])), RefusalKind::Unknown);
}

#[test]
fn every_end_of_a_communicator_reaches_its_cell() {
    let daemon = Daemon::start();
    type End = fn(&mut Vec<Sharer>);
    let ends: [(&str, End, Verdict, &str); 3] = [
        (
            "abort",
            |sharers| {
                let abort = Request::Abort { communicator: sharers[1].communicator() };
                assert_eq!(sharers[1].client.ask(abort, &[]), Reply::Done);
            },
            verdict(Status::Aborted, 1),
            "rank 1 aborted",
        ),
        (
            "hang-up",
            |sharers| drop(sharers.pop()),
            verdict(Status::RankFailed, 1),
            "rank 1 failed: its process ended",
        ),
        (
            "misbehaviour",
            |sharers| {
                let _ = ringway_mem::passing::send(sharers[1].client.socket.as_fd(), &[0xff; 40], &[]);
            },
            verdict(Status::RankFailed, 1),
            "broke the protocol",
        ),
    ];
    for (what, end, expected, part) in ends {
        let mut sharers = sharers(&daemon, 2);
        let sequence = sharers[0].begin(&Call::BARRIER, false);
        end(&mut sharers);
        assert_eq!(sharers[0].verdict(), expected, "{what}");
        let sharer = &mut sharers[0];
        assert_eq!(sharer.member.poll(sequence, &sharer.known), Poll::Failed(expected));
        let text = sharer.why();
        assert!(text.contains(part), "{text}");
        // What goes through the rings fails with the same reason.
        sharer.rank.submit(&barrier(5));
        assert_eq!(sharer.rank.wait(), (5, Status::from_code(expected.status)));
        let status = sharer.client.status();
        let failed = status.communicators.iter().find(|c| !c.failure.is_empty()).expect("a failed one");
        assert!(failed.failure.contains(part), "{failed:?}");
    }
    let sharers = sharers(&daemon, 2);
    daemon.stop().expect("a clean end");
    assert_eq!(sharers[1].verdict().status, Status::ShuttingDown.code());
}

#[test]
fn a_failure_found_by_the_engine_ends_the_cell_too() {
    let daemon = Daemon::start();
    let mut sharers = sharers(&daemon, 2);
    let region = sharers[0].region;
    sharers[0].rank.submit(&allreduce(1, (region, 0), (region, 0), 4));
    sharers[1].rank.submit(&barrier(2));
    assert_eq!(sharers[0].verdict().status, Status::Mismatch.code());
    let text = sharers[1].why();
    assert!(text.contains("barrier") && text.contains("allreduce u64 sum x4"), "{text}");
}

#[test]
fn a_rank_that_left_fails_those_that_need_it() {
    let daemon = Daemon::start();
    let mut sharers = sharers(&daemon, 2);
    let first = [sharers[0].begin(&Call::BARRIER, false), sharers[1].begin(&Call::BARRIER, false)];
    let leave = Request::Leave { communicator: sharers[1].communicator() };
    assert_eq!(sharers[1].client.ask(leave, &[]), Reply::Done);
    let sharer = &mut sharers[0];
    assert!(sharer.cell.has_left(1) && !sharer.cell.has_exited(1));
    // What it had called before goes on.
    sharer.inspect(first[0], 1);
    assert_eq!(sharer.member.poll(first[0], &sharer.known), Poll::Done);
    let sequence = sharer.begin(&Call::BARRIER, false);
    assert_eq!(sharer.member.poll(sequence, &sharer.known), Poll::Pending);
    sharer.inspect(sequence, 0);
    assert_eq!(sharer.verdict(), verdict(Status::RankFailed, 1));
    let text = sharer.why();
    assert!(text.contains("rank 1 failed: it left"), "{text}");
}

#[test]
fn differing_calls_are_found_and_both_are_named() {
    let daemon = Daemon::start();
    let mut sharers = sharers(&daemon, 3);
    let sums = sharers[2].sums(100_000 / 8);
    let calls = [sharers[0].begin(&Call::BARRIER, false), sharers[2].begin(&sums, true)];
    sharers[0].inspect(calls[0], 0);
    for sharer in &mut sharers {
        assert_eq!(sharer.verdict().status, Status::Mismatch.code());
        let text = sharer.why();
        for part in ["rank 0 called `barrier`", "rank 2 called `allreduce u64 sum x12500`", "number 1"] {
            assert!(text.contains(part), "{text}");
        }
    }
}

#[test]
fn late_ranks_are_named_and_in_the_end_the_timeout_names_them_too() {
    let daemon = Daemon::with(|s| s.late_after_s = Some(1));
    let mut clients: Vec<_> = (0..3).map(|_| Client::connect(&daemon.socket)).collect();
    let id = clients[0].new_id();
    let numbers: Vec<_> = clients
        .iter_mut()
        .zip(0..)
        .map(|(client, rank)| {
            let join = ringway_abi::control::Join { operation_timeout_ms: 9000, ..join(id, rank, 3) };
            client.send(Request::Join(join), &[])
        })
        .collect();
    let mut sharers: Vec<_> = (0..)
        .zip(clients.into_iter().zip(numbers))
        .map(|(rank, (mut client, number))| {
            let joined = client.joined(number);
            sharer(client, joined, rank, 3)
        })
        .collect();
    assert_eq!(sharers[0].rank.joined.cell.map(|offer| offer.late_after_ms), Some(1000));
    let sequence = sharers[1].begin(&Call::BARRIER, false);
    // Too early to say anything, and a call that was never made.
    sharers[1].inspect(sequence, 999);
    sharers[0].inspect(70, 8999);
    sharers[0].inspect(u64::MAX, 8999);
    assert_eq!(sharers[0].client.status().communicators[0].waited_ms, 0);
    sharers[1].inspect(sequence, 1500);
    let status = sharers[0].client.status();
    let communicator = &status.communicators[0];
    assert_eq!((communicator.current.as_str(), &communicator.late_ranks[..]), ("barrier", &[0, 2][..]));
    assert!(communicator.waited_ms >= 1500, "{communicator:?}");
    sharers[1].inspect(sequence, 8999);
    assert_eq!(sharers[1].cell.verdict(), None);
    sharers[1].inspect(sequence, 9000);
    assert_eq!(sharers[2].verdict(), verdict(Status::TimedOut, 0));
    let text = sharers[2].why();
    assert!(
        text.contains("`barrier` timed out after 9000 ms: rank 0 has not called it, nor have 2"),
        "{text}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Whatever stands in a cell, the daemon lives, serves others, and touches nothing that is not the cell's.
    #[test]
    fn no_words_in_a_cell_harm_anybody_else(
        words in proptest::collection::vec((any::<u32>(), any::<u64>(), 0_u8..4), 200..2000),
        seed in any::<u64>(),
    ) {
        let daemon = Daemon::start();
        let mut bystanders = sharers(&daemon, 2);
        let mut sharers = sharers(&daemon, 2);
        // A region that is of this session, but not of this communicator's: the handles are what an attacker guesses.
        let theirs = bystanders[0].region;
        (0..REGION / 8).for_each(|at| put(bystanders[0].memory(), at * 8, at ^ seed));
        let memory = Arc::clone(sharers[0].rank.cell.as_ref().expect("a cell"));
        for sharer in &mut sharers {
            let call = sharer.sums(REGION / 16);
            sharer.begin(&call, true);
        }
        let (own, length) = (sharers[0].region, memory.length() as u64 / 8);
        for (nth, (at, value, kind)) in words.into_iter().enumerate() {
            // Most of the file is payload; what matters is in front.
            let at = if at % 4 == 0 { u64::from(at) % length } else { u64::from(at) % 512 };
            let value = match kind {
                0 => value,
                1 => value % 130,
                2 => theirs,
                _ => own,
            };
            put(&memory, at * 8, value);
            if nth % 16 == 0 {
                sharers[1].rank.ring();
            }
        }
        assert_serves(&daemon.socket);
        let mut begun = Vec::new();
        for sharer in &mut bystanders {
            let call = sharer.sums(4096);
            begun.push(sharer.begin(&call, true));
        }
        let deadline = Instant::now() + PATIENCE;
        while (0..2).any(|at| get(bystanders[at].memory(), REGION / 2 + 8 * 4095) != 4095 ^ seed) {
            // The other one's memory is zeroes.
            assert!(Instant::now() < deadline, "the bystanders are not served");
            std::thread::yield_now();
        }
        for at in 0..REGION / 16 {
            prop_assert_eq!(get(bystanders[0].memory(), at * 8), at ^ seed);
        }
        drop(sharers);
        assert_serves(&daemon.socket);
        daemon.stop().expect("a clean end");
    }
}

#[test]
fn pages_taken_away_from_a_region_cost_only_the_thief() {
    let daemon = Daemon::start();
    let mut sharers = sharers(&daemon, 2);
    let mode = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    // A hole alone is only zeroes: the kernel gives new pages for as long as there are some.
    rustix::fs::fallocate(&sharers[1].file, mode, 0, REGION).expect("punch");
    for sharer in &mut sharers {
        let call = sharer.sums(REGION / 16);
        sharer.begin(&call, true);
    }
    let deadline = Instant::now() + PATIENCE;
    while sharers[0].client.status().counters.help_bytes < 2 * REGION && sharers[0].cell.verdict().is_none() {
        assert!(Instant::now() < deadline, "neither served nor ended");
    }
    // The same for the cell itself.
    rustix::fs::fallocate(sharers[0].rank.cell_file.as_ref().expect("a cell"), mode, 0, 4096).expect("punch");
    let call = sharers[0].sums(REGION / 16);
    sharers[0].begin(&call, true);
    assert_serves(&daemon.socket);
}
