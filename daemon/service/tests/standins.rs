//! The daemon acts for ranks in their cells, whatever they ask of it.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod common;

use std::{collections::BTreeMap, sync::Arc};

use common::{Client, Daemon, PATIENCE, Rank, allreduce, assert_serves, barrier, get, put, ranks};
use proptest::prelude::*;
use ringway_abi::{
    Status,
    control::Request,
    descriptor::{FLAG_CELL, FLAG_GROUP, FLAG_PUBLISHED, Submission, join},
};
use ringway_cell::{Cell, Member};
use ringway_mem::Mapping;
use ringway_types::{DataType, Operation, Reduction};

const REGION: u64 = 1 << 20;

/// A rank whose client leaves all of its calls to the daemon.
struct Asker {
    client: Client,
    rank: Rank,
    cell: Cell,
    region: u64,
    memory: Arc<Mapping>,
}

fn askers(daemon: &Daemon, size: u32) -> Vec<Asker> {
    let joined = ranks(&daemon.socket, size).into_iter();
    let asker = |(mut client, rank): (Client, Rank)| {
        let cell = Cell::attach(rank.cell.clone().expect("a cell"), size).expect("attach");
        let region = client.region(REGION);
        let memory = Arc::new(region.mapping);
        Asker { client, rank, cell, region: region.handle, memory }
    };
    joined.map(asker).collect()
}

fn in_cell(submission: Submission) -> Submission {
    Submission { flags: submission.flags | FLAG_CELL, ..submission }
}

impl Asker {
    /// A sum of `count` elements, at a place of its own for each token.
    fn sum(&self, token: u32, count: u64) -> Submission {
        let at = u64::from(token) * count * 16;
        in_cell(allreduce(token, (self.region, at), (self.region, at + count * 8), count))
    }

    fn status_of(&mut self, submission: &Submission) -> Status {
        self.rank.submit(submission);
        let (token, status) = self.rank.wait();
        assert_eq!(token, submission.token);
        status.expect("a status")
    }
}

#[test]
fn clients_may_leave_everything_to_the_daemon() {
    let daemon = Daemon::start();
    let mut askers = askers(&daemon, 3);
    for count in [1, 1000] {
        for round in 0..4 {
            for (asker, value) in askers.iter_mut().zip(1..) {
                for token in 0..30 {
                    let submission = asker.sum(token, count);
                    let at = submission.input.expect("given").offset;
                    (0..count).for_each(|n| put(&asker.memory, at + n * 8, value * round + n));
                    asker.rank.submit(&submission);
                }
            }
            for asker in &mut askers {
                for token in 0..30 {
                    assert_eq!(asker.rank.wait(), (token, Some(Status::Success)));
                    let at = asker.sum(token, count).output.expect("given").offset;
                    for n in 0..count {
                        assert_eq!(get(&asker.memory, at + n * 8), 6 * round + 3 * n, "call {token}");
                    }
                }
            }
        }
    }
    assert!(askers.iter().all(|asker| asker.cell.called(0) == 240 && !asker.cell.has_stand_in()));
    let status = askers[0].client.status();
    assert!(status.communicators[0].local.iter().all(|rank| rank.finished == 240 && rank.outstanding == 0));
}

#[test]
fn each_mistake_has_its_status() {
    let daemon = Daemon::start();
    let mut askers = askers(&daemon, 2);
    let (theirs, asker) = (askers[1].region, &mut askers[0]);
    let good = asker.sum(5, 1);
    let published =
        |argument, count| Submission { flags: FLAG_CELL | FLAG_PUBLISHED, argument, count, ..good };
    let place = good.output.map(|at| ringway_abi::descriptor::BufferHandle { region: theirs, ..at });
    let outside = good.output.map(|at| ringway_abi::descriptor::BufferHandle { offset: REGION, ..at });
    for (submission, status) in [
        (Submission { flags: FLAG_PUBLISHED, ..good }, Status::BadFlags),
        (Submission { operation: Operation::Send, reduction: None, ..good }, Status::BadFlags),
        (Submission { output: place, ..good }, Status::BadRegion),
        (Submission { output: outside, ..good }, Status::BadRange),
        (Submission { count: u64::MAX, ..good }, Status::TooLarge),
        (
            Submission {
                argument: join(u32::MAX, 2),
                reduction: None,
                operation: Operation::AllGatherV,
                ..good
            },
            Status::BadCounts,
        ),
        (published(0, 1), Status::BadCall),
        (published(1, 1), Status::BadCall),
        (published(u64::MAX, u64::MAX), Status::BadCall),
        (Submission { output: place, ..published(1, 1) }, Status::BadRegion),
    ] {
        assert_eq!(asker.status_of(&submission), status, "{submission:?}");
        let why = asker.client.explain(&asker.rank, 5);
        assert!(!why.is_empty());
    }
    // What was published is taken over as it was published only.
    let mut member = Member::new(asker.cell.clone(), 0);
    assert_eq!(member.begin(&ringway_cell::Call::BARRIER, false, &Nothing), Some(1));
    assert_eq!(asker.status_of(&published(1, 1)), Status::BadCall);
    assert_eq!(asker.status_of(&published(2, 0)), Status::BadCall);
    let flags = FLAG_CELL | FLAG_PUBLISHED;
    let taken = Submission { flags, argument: 1, datatype: DataType::U8, ..barrier(5) };
    asker.rank.submit(&taken);
    asker.rank.submit(&Submission { token: 6, ..taken });
    assert_eq!(asker.rank.wait(), (6, Some(Status::BadCall)), "it is taken over already");
    askers[1].rank.submit(&in_cell(barrier(9)));
    assert_eq!(askers[1].rank.wait(), (9, Some(Status::Success)));
    assert_eq!(askers[0].rank.wait(), (5, Some(Status::Success)));
}

struct Nothing;

impl ringway_cell::Regions for Nothing {
    fn window(&self, _: u32, _: ringway_cell::Place, _: u64) -> Option<ringway_mem::Window<'_>> {
        None
    }
}

#[test]
fn without_a_cell_there_is_nobody_to_act_for() {
    let daemon = Daemon::with(|s| s.isolation = Some("strict".to_owned()));
    let mut ranks = ranks(&daemon.socket, 2);
    let (client, rank) = &mut ranks[0];
    rank.submit(&in_cell(barrier(3)));
    assert_eq!(rank.wait(), (3, Some(Status::BadFlags)));
    assert!(client.explain(rank, 3).contains("no cell"));
}

#[test]
fn everything_ends_with_its_communicator() {
    let daemon = Daemon::start();
    let endings: [fn(&mut Vec<Asker>); 3] = [
        |askers| {
            let communicator = askers[1].rank.joined.communicator;
            let _ = askers[1].client.ask(Request::Abort { communicator }, &[]);
        },
        |askers| drop(askers.remove(1)),
        |askers| askers[1].rank.submit(&in_cell(barrier(1))),
    ];
    for (ending, status) in endings.into_iter().zip([Status::Aborted, Status::RankFailed, Status::Mismatch]) {
        let mut askers = askers(&daemon, 2);
        // Also more than there are slots in the cell.
        for token in 0..100 {
            let submission = askers[0].sum(token, 1);
            askers[0].rank.submit_when_room(&submission);
        }
        ending(&mut askers);
        let asker = &mut askers[0];
        for token in 0..100 {
            assert_eq!(asker.rank.wait(), (token, Some(status)));
        }
        let more = asker.sum(7, 1);
        assert_eq!(asker.status_of(&more), status, "nothing more is begun");
        assert!(!asker.cell.has_stand_in());
        let region = asker.region;
        let reply = asker.client.ask(Request::ReleaseRegion { region }, &[]);
        assert_eq!(reply, ringway_abi::control::Reply::Done, "nothing uses it any more");
    }
    // Somebody who leaves with calls under way.
    let mut askers = askers(&daemon, 2);
    for token in 0..100 {
        let submission = askers[0].sum(token, 1);
        askers[0].rank.submit_when_room(&submission);
    }
    let communicator = askers[0].rank.joined.communicator;
    let reply = askers[0].client.ask(Request::Leave { communicator }, &[]);
    assert_eq!(reply, ringway_abi::control::Reply::Done);
    assert_serves(&daemon.socket);
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 50, ..ProptestConfig::with_cases(40) })]

    /// Rubbish for the cell, while anything changes in it: every submission is completed or the communicator is at its
    /// end, and the daemon serves others all the same.
    #[test]
    fn rubbish_harms_nobody_else(
        submissions in proptest::collection::vec(
            (0_u32..2, (0_u8..19, 0_u8..10, 0_u8..13, 4_u8..16), 0_u64..4, 0_u64..3000, 0_u64..5000, any::<bool>()),
            1..60,
        ),
        words in proptest::collection::vec((0_u64..400, prop_oneof![0_u64..200, any::<u64>()]), 0..20),
    ) {
        let daemon = Daemon::start();
        let mut askers = askers(&daemon, 2);
        let mut sent = BTreeMap::new();
        let mut words = words.into_iter();
        for (number, (rank, codes, argument, count, offset, wild)) in (0..).zip(submissions) {
            let asker = &mut askers[rank as usize];
            let (operation, datatype, reduction, flags) = codes;
            // A group that never ends is accepted never.
            let flags = flags & !FLAG_GROUP;
            let head = join(u32::from_le_bytes([operation, datatype, reduction, flags]), rank);
            let argument = if wild { u64::MAX - argument } else { argument };
            let region = asker.region;
            let submitted = [head, argument, region, 0, region, offset, count, join(0, number)];
            asker.rank.submit_words(&submitted);
            *sent.entry(rank).or_insert(0) += 1;
            if let Some((word, value)) = words.next() {
                let file = asker.rank.cell.as_ref().expect("a cell");
                put(file, word * 8, value);
            }
        }
        // What waits for the other rank ends with the communicator.
        let communicator = askers[0].rank.joined.communicator;
        let _ = askers[0].client.ask(Request::Abort { communicator }, &[]);
        for (rank, count) in sent {
            for _ in 0..count {
                prop_assert!(askers[rank as usize].rank.completion(PATIENCE / 3).is_some());
            }
        }
        assert_serves(&daemon.socket);
    }
}

#[test]
fn sums_are_of_what_was_there_when_the_call_was_made_and_scaled_as_asked() {
    let daemon = Daemon::start();
    let mut askers = askers(&daemon, 2);
    for (asker, value) in askers.iter_mut().zip([3, 5]) {
        put(&asker.memory, 0, value);
        let submission =
            Submission { reduction: Some(Reduction::PremulSum), argument: value * 10, ..asker.sum(0, 1) };
        asker.rank.submit(&submission);
    }
    for asker in &mut askers {
        assert_eq!(asker.rank.wait(), (0, Some(Status::Success)));
        assert_eq!(get(&asker.memory, 8), 3 * 30 + 5 * 50);
    }
}
