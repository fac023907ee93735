//! Operations through the rings: right ones, wrong ones, rubbish, and clients that break the rings' protocol.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod common;

use std::time::Duration;

use common::{Client, Daemon, PATIENCE, Rank, allreduce, assert_serves, barrier, get, is_closed, put, ranks};
use proptest::prelude::*;
use ringway_abi::{
    Status,
    control::{RefusalKind, Reply, Request},
    descriptor::{BufferHandle, FLAG_ANY_SOURCE, FLAG_GROUP, Submission},
};
use ringway_ring::layout;
use ringway_types::Operation;

fn message(operation: Operation, token: u32, peer: u32, tag: u64, at: (u64, u64), count: u64) -> Submission {
    let buffer = Some(BufferHandle { region: at.0, offset: at.1 });
    let send = operation == Operation::Send;
    Submission {
        operation,
        reduction: None,
        rank: peer,
        argument: tag,
        input: if send { buffer } else { None },
        output: if send { None } else { buffer },
        ..allreduce(token, at, at, count)
    }
}

#[test]
fn ranks_reduce_meet_and_exchange_messages() {
    let daemon = Daemon::start();
    let mut ranks = ranks(&daemon.socket, 3);
    let regions: Vec<_> = ranks.iter_mut().map(|(client, _)| client.region(1 << 16)).collect();
    for (region, value) in regions.iter().zip(1..) {
        (0..4096).for_each(|at| put(&region.mapping, at * 8, value * 1000 + at));
    }
    for ((_, rank), region) in ranks.iter_mut().zip(&regions) {
        rank.submit(&allreduce(5, (region.handle, 0), (region.handle, 32768), 4096));
        rank.submit(&barrier(6));
    }
    for ((_, rank), region) in ranks.iter_mut().zip(&regions) {
        assert_eq!(rank.wait(), (5, Some(Status::Success)));
        assert_eq!(rank.wait(), (6, Some(Status::Success)));
        (0..4096).for_each(|at| assert_eq!(get(&region.mapping, 32768 + at * 8), 6000 + 3 * at));
    }

    let (handle, from) = (regions[2].handle, regions[0].handle);
    let receive = message(Operation::Receive, 9, u32::MAX, 44, (handle, 0), 100);
    ranks[2].1.submit(&Submission { flags: FLAG_ANY_SOURCE, ..receive });
    ranks[0].1.submit(&message(Operation::Send, 8, 2, 44, (from, 32768), 5));
    assert_eq!(ranks[0].1.wait(), (8, Some(Status::Success)));
    let completion = ranks[2].1.completion(PATIENCE).expect("a message");
    assert_eq!((completion.token, completion.rank, completion.bytes), (9, 0, 40));
    assert_eq!(get(&regions[2].mapping, 32), get(&regions[0].mapping, 32768 + 32));

    let status = ranks[0].0.status();
    assert_eq!(status.communicators.len(), 1);
    let communicator = &status.communicators[0];
    assert_eq!((communicator.ranks, communicator.nodes, communicator.sequence), (3, 1, 2));
    assert_eq!(communicator.local.iter().map(|r| r.finished).collect::<Vec<_>>(), [3, 2, 3]);
    assert_eq!(status.counters.submitted, 8);
}

#[test]
fn every_polling_mode_serves() {
    for polling in ["spin", "adaptive", "block"] {
        let daemon = Daemon::with(|s| s.polling = Some(polling.to_owned()));
        let mut ranks = ranks(&daemon.socket, 2);
        for token in 0..200 {
            ranks.iter_mut().for_each(|(_, rank)| rank.submit(&barrier(token)));
            for (_, rank) in &mut ranks {
                assert_eq!(rank.wait(), (token, Some(Status::Success)), "{polling}");
            }
        }
        assert_eq!(ranks[0].0.status().polling, polling);
    }
}

#[test]
fn a_wrong_request_is_completed_with_its_reason_and_nothing_else_happens() {
    let daemon = Daemon::start();
    let mut client = Client::connect(&daemon.socket);
    let region = client.region(4096);
    let mut stranger = Client::connect(&daemon.socket);
    let theirs = stranger.region(4096);
    let mut rank = client.alone();
    let good = allreduce(1, (region.handle, 0), (region.handle, 2048), 8);
    let at = |handle, offset| Some(BufferHandle { region: handle, offset });
    for (submission, status, part) in [
        (Submission { input: at(12345, 0), ..good }, Status::BadRegion, "0x3039"),
        (Submission { input: at(theirs.handle, 0), ..good }, Status::BadRegion, "not registered"),
        (Submission { output: at(region.handle, 4040), ..good }, Status::BadRange, "64 bytes at offset 4040"),
        (Submission { output: at(region.handle, u64::MAX), ..good }, Status::BadRange, "region of 4096"),
        (Submission { output: at(region.handle, 8), ..good }, Status::Overlap, "overlap"),
        (Submission { output: None, ..good }, Status::BadRange, "missing"),
        (Submission { count: u64::MAX, ..good }, Status::TooLarge, "overflow"),
        (Submission { rank: 3, operation: Operation::Reduce, ..good }, Status::BadRank, "rank 3"),
    ] {
        let token = 100 + u32::from(status.code());
        rank.submit(&Submission { token, ..submission });
        assert_eq!(rank.wait(), (token, Some(status)));
        let text = client.explain(&rank, token);
        assert!(text.contains(part), "{text}");
    }
    rank.submit(&good);
    assert_eq!(rank.wait(), (1, Some(Status::Success)));
    let request = Request::Explain { communicator: rank.joined.communicator, token: 1 };
    assert!(matches!(client.ask(request, &[]), Reply::Refused { kind: RefusalKind::Unknown, .. }));
}

#[test]
fn differing_calls_are_named_on_both_sides() {
    let daemon = Daemon::start();
    let mut ranks = ranks(&daemon.socket, 2);
    let region = ranks[0].0.region(4096);
    ranks[0].1.submit(&allreduce(1, (region.handle, 0), (region.handle, 0), 4));
    ranks[1].1.submit(&barrier(2));
    for (client, rank) in &mut ranks {
        let (token, status) = rank.wait();
        assert_eq!(status, Some(Status::Mismatch));
        let text = client.explain(rank, token);
        assert!(text.contains("barrier") && text.contains("allreduce u64 sum x4"), "{text}");
    }
}

#[test]
fn a_full_ring_loses_nothing() {
    let daemon = Daemon::start();
    let mut client = Client::connect(&daemon.socket);
    let mut rank = client.alone();
    let (mut sent, mut done) = (0, 0);
    while done < 1000 {
        // As much as there is room for, completions left lying for as long as possible.
        while sent < 1000 && rank.rings.submissions.push(&barrier(sent).encode()).is_ok() {
            sent += 1;
        }
        rank.rings.submissions.publish();
        rank.ring();
        if sent == 1000 || rank.rings.completions.is_ready() {
            assert_eq!(rank.wait(), (done, Some(Status::Success)));
            done += 1;
        }
    }
    assert_eq!(rank.completion(Duration::from_millis(1)), None);
}

#[test]
fn a_group_is_taken_as_a_whole() {
    let daemon = Daemon::start();
    let mut ranks = ranks(&daemon.socket, 2);
    let region = ranks[0].0.region(4096);
    let other = ranks[1].0.region(4096);
    put(&region.mapping, 0, 11);
    let receive = message(Operation::Receive, 1, 1, 0, (region.handle, 64), 1);
    let send = message(Operation::Send, 2, 1, 0, (region.handle, 0), 1);
    let rank = &mut ranks[0].1;
    rank.submit(&Submission { flags: FLAG_GROUP, ..send });
    ranks[1].1.submit(&message(Operation::Receive, 3, 0, 0, (other.handle, 0), 1));
    assert_eq!(ranks[1].1.completion(Duration::from_millis(100)), None, "the group is not there yet");
    ranks[0].1.submit(&receive);
    assert_eq!(ranks[1].1.wait(), (3, Some(Status::Success)));
    assert_eq!(get(&other.mapping, 0), 11);
    ranks[1].1.submit(&message(Operation::Send, 4, 0, 0, (other.handle, 0), 1));
    assert_eq!(ranks[0].1.wait().1, Some(Status::Success));
    assert_eq!(ranks[0].1.wait().1, Some(Status::Success));
    assert_eq!(get(&region.mapping, 64), 11);

    // A group that never ends does not fit its ring: no client does that.
    let (bad, rank) = &mut ranks[0];
    for token in 0..64 {
        let _ = rank.rings.submissions.send(&Submission { flags: FLAG_GROUP, ..barrier(token) }.encode());
    }
    rank.ring();
    assert!(is_closed(&bad.socket));
    assert_serves(&daemon.socket);
}

#[test]
fn a_region_in_use_is_kept_and_a_rank_that_left_is_missed() {
    let daemon = Daemon::start();
    let mut ranks = ranks(&daemon.socket, 2);
    let region = ranks[0].0.region(4096);
    let (client, rank) = &mut ranks[0];
    rank.submit(&allreduce(1, (region.handle, 0), (region.handle, 0), 4));
    while client.status().communicators[0].outstanding == 0 {}
    let release = Request::ReleaseRegion { region: region.handle };
    let reply = client.ask(release.clone(), &[]);
    assert!(matches!(reply, Reply::Refused { kind: RefusalKind::Busy, .. }), "{reply:?}");
    let status = client.status();
    assert_eq!(status.communicators[0].late_ranks, [1]);
    assert_eq!(status.communicators[0].current, "allreduce u64 sum x4");

    let leave = Request::Leave { communicator: ranks[1].1.joined.communicator };
    assert_eq!(ranks[1].0.ask(leave, &[]), Reply::Done);
    let (client, rank) = &mut ranks[0];
    assert_eq!(rank.wait(), (1, Some(Status::RankFailed)));
    let text = client.explain(rank, 1);
    assert!(text.contains("rank 1") && text.contains("left"), "{text}");
    assert_eq!(client.ask(release, &[]), Reply::Done);
    let leave = Request::Leave { communicator: rank.joined.communicator };
    assert_eq!(client.ask(leave, &[]), Reply::Done);
    while !client.status().communicators.is_empty() {}
}

#[test]
fn an_aborted_communicator_fails_for_everybody() {
    let daemon = Daemon::start();
    let mut ranks = ranks(&daemon.socket, 2);
    ranks[0].1.submit(&barrier(1));
    let abort = Request::Abort { communicator: ranks[1].1.joined.communicator };
    assert_eq!(ranks[1].0.ask(abort, &[]), Reply::Done);
    assert_eq!(ranks[0].1.wait(), (1, Some(Status::Aborted)));
    ranks[1].1.submit(&barrier(2));
    assert_eq!(ranks[1].1.wait(), (2, Some(Status::Aborted)));
    let (client, rank) = &mut ranks[1];
    let text = client.explain(rank, 2);
    assert!(text.contains("rank 1 aborted"), "{text}");
}

/// Writes a word into the memory file that the client owns.
fn scribble(rank: &Rank, offset: usize, value: u64) {
    put(&rank.client_memory, offset as u64, value);
}

#[test]
fn a_client_that_scribbles_over_its_indices_is_disconnected_and_others_are_told() {
    let daemon = Daemon::start();
    for scribbles in [
        |rank: &mut Rank| {
            // It claims to have consumed what was never published; seen when a completion needs the count.
            scribble(rank, layout::COMPLETIONS_CONSUMED, u64::MAX / 2);
            for token in 0..200 {
                let _ = rank.rings.submissions.send(&barrier(1000 + token).encode());
                rank.ring();
                std::thread::sleep(Duration::from_micros(200));
            }
        },
        |rank: &mut Rank| {
            // A phase that is neither this lap's nor the last one's.
            scribble(rank, layout::SUBMISSIONS + 56, 0x1234_5678);
            rank.ring();
        },
    ] {
        let mut ranks = ranks(&daemon.socket, 2);
        let alone = {
            // The rank that misbehaves is alone in a second communicator, where its barriers finish.
            let (client, _) = &mut ranks[1];
            client.alone()
        };
        ranks[0].1.submit(&barrier(1));
        let mut bad = alone;
        scribbles(&mut bad);
        assert!(is_closed(&ranks[1].0.socket));
        assert_eq!(ranks[0].1.wait(), (1, Some(Status::RankFailed)));
        let (client, rank) = &mut ranks[0];
        let text = client.explain(rank, 1);
        assert!(text.contains("rank 1") && text.contains("broke the protocol"), "{text}");
    }
    assert_serves(&daemon.socket);
}

#[test]
fn pages_taken_away_cost_only_the_thief() {
    let daemon = Daemon::start();
    let mut ranks = ranks(&daemon.socket, 2);
    let (good, bad) = (ranks[0].0.region(1 << 16), ranks[1].0.region(1 << 16));
    // Sealed memory keeps its size, but its owner can still punch holes into it.
    let mode = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&bad.file, mode, 0, 1 << 16).expect("punch");
    for ((_, rank), region) in ranks.iter_mut().zip([&good, &bad]) {
        rank.submit(&allreduce(1, (region.handle, 0), (region.handle, 0), 8192));
    }
    let (_, status) = ranks[0].1.wait();
    assert!(matches!(status, Some(Status::Success | Status::RankFailed)), "{status:?}");
    assert_serves(&daemon.socket);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn no_words_in_a_ring_stop_the_daemon(
        entries in proptest::collection::vec((any::<[u64; 8]>(), 0_u8..20, 0_u8..11, 0_u8..14, 0_u8..5, any::<bool>()), 1..40),
        slab in proptest::collection::vec(any::<u64>(), 0..64),
    ) {
        let daemon = Daemon::start();
        let mut client = Client::connect(&daemon.socket);
        let region = client.region(1 << 16);
        let mut rank = client.alone();
        let _ = rank.rings.write_slab(0, &slab);
        for (mut words, operation, datatype, reduction, flags, wild) in entries {
            if !wild {
                let codes = u32::from_le_bytes([operation, datatype, reduction, flags]);
                words[0] = u64::from(codes);
                words[1] %= 1 << 34;
                (words[2], words[4]) = (region.handle, region.handle);
                (words[3], words[5]) = (words[3] % 70_000, words[5] % 70_000);
                words[6] %= 10_000;
            }
            if rank.rings.submissions.send(&words).is_err() {
                break;
            }
            rank.ring();
        }
        while rank.completion(Duration::from_millis(5)).is_some() {}
        assert_serves(&daemon.socket);
        // A group left open, or a receive that nobody answers, ends with its client.
        drop((rank, client));
        assert_serves(&daemon.socket);
        daemon.stop().expect("a clean end");
    }
}
