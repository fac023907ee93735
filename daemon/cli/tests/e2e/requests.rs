//! Requests that make no sense: each is answered with what is wrong, and harms nobody else.

use std::time::Duration;

use ringway_abi::descriptor::{BufferHandle, SUBMISSION_WORDS, Submission};
use ringway_client::{Arena, Client, Communicator, Reduction, Status, raw};
use ringway_types::{DataType, Operation};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType, connect, recv, send, socket,
};

use crate::harness::{Daemon, LONG, assert_mentions, eventually};

/// A communicator of one rank, and its memory.
struct Alone {
    daemon: Daemon,
    client: Client,
    world: Communicator,
    arena: Arena,
}

const ARENA: u64 = 1 << 16;

fn alone() -> Alone {
    let daemon = Daemon::start("");
    let client = daemon.client();
    let id = client.unique_id(false).expect("an id");
    let world = client.communicator(&id, 0, 1).join().expect("joined");
    let arena = client.arena(ARENA as usize).expect("memory");
    Alone { daemon, client, world, arena }
}

/// An allreduce of 16 floats in place.
fn good(at: BufferHandle) -> Submission {
    Submission {
        token: 0,
        operation: Operation::Allreduce,
        datatype: DataType::F32,
        reduction: Some(Reduction::Sum),
        flags: 0,
        rank: 0,
        argument: 0,
        input: Some(at),
        output: Some(at),
        count: 16,
    }
}

/// Submits and gives the status and the daemon's sentence.
fn attempt(world: &Communicator, submission: Submission, slab: &[u64]) -> (Option<Status>, String) {
    let token = raw::submit(world, submission, slab).expect("room");
    let completion = raw::wait(world, token, LONG).expect("a completion");
    let text = raw::explain(world, completion).to_string();
    (Status::from_code(completion.status), text)
}

#[test]
fn a_buffer_outside_its_region_is_named() {
    let Alone { daemon: _daemon, client: _client, world, arena } = alone();
    let buffer = arena.buffer::<f32>(16).expect("memory");
    let at = raw::handle(&buffer);
    for (offset, count) in
        [(ARENA - 60, 16), (ARENA, 1), (u64::MAX - 3, 1), (0, ARENA / 4 + 1), (0, u64::MAX / 8)]
    {
        let outside = BufferHandle { offset, ..at };
        let (status, text) = attempt(
            &world,
            Submission { input: Some(outside), output: Some(outside), count, ..good(at) },
            &[],
        );
        assert_eq!(status, Some(Status::BadRange), "{offset} {count}: {text}");
        assert_mentions(&text, &["outside its region", &offset.to_string(), &ARENA.to_string()]);
    }
    let (status, text) = attempt(&world, Submission { output: None, ..good(at) }, &[]);
    assert_eq!(status, Some(Status::BadRange));
    assert_mentions(&text, &["output is missing", "64 bytes"]);
    assert_eq!(attempt(&world, good(at), &[]).0, Some(Status::Success), "the communicator can be used on");
}

#[test]
fn an_unknown_region_is_named() {
    let Alone { daemon, client: _client, world, arena } = alone();
    let buffer = arena.buffer::<f32>(16).expect("memory");
    let at = raw::handle(&buffer);
    let neighbour = daemon.client();
    let theirs = neighbour.arena(ARENA as usize).expect("memory");
    let (mine, foreign) =
        (theirs.buffer::<f32>(16).expect("memory"), theirs.buffer::<f32>(16).expect("memory"));
    drop(foreign);
    let nobodys = [at.region ^ (1 << 40), at.region.wrapping_add(1), 0, u64::MAX - 1];
    for region in nobodys.into_iter().chain(Some(raw::handle(&mine).region).filter(|r| *r != at.region)) {
        let elsewhere = BufferHandle { region, ..at };
        let (status, text) = attempt(&world, Submission { input: Some(elsewhere), ..good(at) }, &[]);
        assert_eq!(status, Some(Status::BadRegion), "{region:#x}: {text}");
        assert_mentions(&text, &["input", &format!("{region:#x}"), "has not registered"]);
    }
}

#[test]
fn a_released_region_is_unknown() {
    let Alone { daemon: _daemon, client, world, arena } = alone();
    let released = {
        let gone = client.arena(ARENA as usize).expect("memory");
        raw::handle(&gone.buffer::<f32>(16).expect("memory"))
    };
    // Another region takes its place, under another handle.
    let _next = client.arena(ARENA as usize).expect("memory");
    let (status, text) = attempt(&world, good(released), &[]);
    assert_eq!(status, Some(Status::BadRegion), "{text}");
    drop(arena);
}

#[test]
fn each_wrong_field_is_named() {
    let Alone { daemon: _daemon, client: _client, world, arena } = alone();
    let buffer = arena.buffer::<f32>(64).expect("memory");
    let at = raw::handle(&buffer);
    let further = BufferHandle { offset: at.offset + 4, ..at };
    let good = good(at);
    let cases: [(Submission, Status, &str); 7] = [
        (Submission { output: Some(further), ..good }, Status::Overlap, "overlap"),
        (
            Submission { operation: Operation::Broadcast, reduction: None, rank: 5, ..good },
            Status::BadRank,
            "rank 5",
        ),
        (
            Submission { operation: Operation::Send, reduction: None, rank: 1, ..good },
            Status::BadRank,
            "rank 1",
        ),
        (Submission { reduction: None, ..good }, Status::BadReduction, "reduction"),
        (Submission { reduction: Some(Reduction::BitXor), ..good }, Status::UnsupportedPair, "not defined"),
        (Submission { flags: 0x40, ..good }, Status::BadFlags, "flags"),
        (Submission { count: u64::MAX, ..good }, Status::TooLarge, "overflow"),
    ];
    for (submission, expected, part) in cases {
        let (status, text) = attempt(&world, submission, &[]);
        assert_eq!(status, Some(expected), "{submission:?}: {text}");
        assert_mentions(&text, &[part]);
    }
    let counted = Submission { operation: Operation::AllGatherV, reduction: None, ..good };
    let (status, text) = attempt(&world, counted, &[16, 16, 16]);
    assert_eq!(status, Some(Status::BadCounts));
    assert_mentions(&text, &["3 counts", "1"]);
    assert_eq!(attempt(&world, good, &[]).0, Some(Status::Success), "the communicator can be used on");
}

#[test]
fn nonsense_in_the_ring_reaches_nobody_else() {
    let Alone { daemon, client: _client, world, arena } = alone();
    let buffer = arena.buffer::<f32>(16).expect("memory");
    let words: [[u64; SUBMISSION_WORDS]; 4] =
        [[u64::MAX; 8], [0; 8], [0x0102_0304_0506_0708; 8], [0xee, 0, 0, 0, 0, 0, 0, 7 << 32]];
    for nonsense in words {
        assert!(raw::submit_words(&world, &nonsense));
    }
    let neighbour = daemon.client();
    let id = neighbour.unique_id(false).expect("an id");
    let theirs = neighbour.communicator(&id, 0, 1).join().expect("joined");
    theirs.blocking().barrier().expect("the neighbour is served");
    // Whatever became of this session: it was served, or it was ended; nothing hangs.
    if let Some(token) = raw::submit(&world, good(raw::handle(&buffer)), &[]) {
        let _ = raw::wait(&world, token, Duration::from_secs(5));
    }
    theirs.blocking().barrier().expect("the neighbour is served");
}

#[test]
fn a_client_that_breaks_the_protocol_is_disconnected_alone() {
    let daemon = Daemon::start("");
    let connected = || {
        let client = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
        connect(&client, &SocketAddrUnix::new(&daemon.socket).expect("a path")).expect("connect");
        client
    };
    let read = |client: &std::os::fd::OwnedFd| {
        let mut bytes = [0; 128];
        recv(client, &mut bytes[..], RecvFlags::empty()).map_or(0, |(n, _)| n)
    };
    let hello = ringway_abi::handshake::Greeting { version: ringway_abi::VERSION, verdict: 0 }.encode();
    for nonsense in [&[0xff; 40][..], &[0], &[7; 4096]] {
        let client = connected();
        send(&client, &hello, SendFlags::NOSIGNAL).expect("send");
        assert_eq!(read(&client), ringway_abi::handshake::LENGTH);
        send(&client, nonsense, SendFlags::NOSIGNAL).expect("send");
        assert_eq!(read(&client), 0, "the session ends");
    }
    for nonsense in [&b"GET / HTTP/1.1"[..], &[0; 64], &[1; 500]] {
        let client = connected();
        send(&client, nonsense, SendFlags::NOSIGNAL).expect("send");
        assert_eq!(read(&client), 0, "there is no session");
    }
    // One that connects and says nothing holds nobody up.
    let _silent = connected();
    let mut ranks = crate::harness::form(std::slice::from_ref(&daemon), 2, "");
    crate::harness::tell_all(&mut ranks, "call allreduce f32 sum 8 0");
    assert!(ranks.iter_mut().all(|r| r.answer().as_deref() == Ok("3.0")));
    eventually("counting the faults", || daemon.status()["counters"]["faults"].as_u64() >= Some(3));
}
