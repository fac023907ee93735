//! Handshakes, regions, joins, quotas and the control socket's manners.
#![allow(clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use std::os::fd::AsFd;

use common::{Client, Daemon, assert_serves, connect, folder, is_closed, join, receive, settings};
use ringway_abi::{
    VERSION,
    control::{RefusalKind, Reply, Request},
    handshake::{Greeting, TOO_MANY_CLIENTS, WRONG_VERSION},
};
use ringway_mem::{MemFd, passing};
use ringway_service::{ServiceError, stop_pair};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

fn refused(reply: Reply) -> (RefusalKind, String) {
    match reply {
        Reply::Refused { kind, message } => (kind, message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn another_version_is_told_so_and_strangers_are_not_answered() {
    let daemon = Daemon::start();
    let socket = connect(&daemon.socket).expect("connect");
    let other = Greeting { version: VERSION + 1, verdict: 0 };
    passing::send(socket.as_fd(), &other.encode(), &[]).expect("send");
    let (bytes, fds) = receive(&socket).expect("an answer");
    assert_eq!(Greeting::parse(&bytes), Some(Greeting { version: VERSION, verdict: WRONG_VERSION }));
    assert!(fds.is_empty());
    assert!(receive(&socket).is_none());

    for words in [&b"GET / HTTP/1.1\r\n"[..], &[0; 64], &[0xff; 70_000]] {
        let socket = connect(&daemon.socket).expect("connect");
        passing::send(socket.as_fd(), words, &[]).expect("send");
        assert!(receive(&socket).is_none());
    }
    assert_serves(&daemon.socket);
}

#[test]
fn rubbish_after_the_handshake_ends_the_session_only() {
    let daemon = Daemon::start();
    let mut good = Client::connect(&daemon.socket);
    for words in [&[0xff; 40][..], &[1, 200], &[0; 66_000]] {
        let bad = Client::connect(&daemon.socket);
        passing::send(bad.socket.as_fd(), words, &[]).expect("send");
        assert!(is_closed(&bad.socket));
    }
    let bad = Client::connect(&daemon.socket);
    let fd = bad.socket.as_fd();
    passing::send(fd, &[0; 8], &[fd, fd, fd]).expect("send");
    assert!(is_closed(&bad.socket));
    assert_eq!(good.status().sessions.len(), 1);
    assert!(good.status().counters.faults >= 4);
}

#[test]
fn regions_must_be_what_they_should() {
    let daemon = Daemon::with(|s| s.quotas.region_mib = Some(1));
    let mut client = Client::connect(&daemon.socket);
    let file = |size: u64, seals: SealFlags| {
        let fd = memfd_create("t", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd");
        ftruncate(&fd, size).expect("size");
        fcntl_add_seals(&fd, seals).expect("seal");
        fd
    };
    let fixed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let pipe = rustix::pipe::pipe().expect("pipe").0;
    for (what, fd, kind, part) in [
        ("a pipe", pipe, RefusalKind::Memory, "memory file"),
        ("unsealed", file(4096, SealFlags::empty()), RefusalKind::Memory, "F_SEAL_SHRINK"),
        ("can shrink", file(4096, SealFlags::GROW | SealFlags::SEAL), RefusalKind::Memory, "F_SEAL_SHRINK"),
        ("holes", file(65536, fixed), RefusalKind::Memory, "populate"),
        ("empty", file(0, fixed), RefusalKind::Memory, "empty"),
        ("too big", file(2 << 20, fixed), RefusalKind::Quota, "region_mib"),
    ] {
        let (found, message) = refused(client.ask(Request::RegisterRegion, &[fd.as_fd()]));
        assert!(found == kind && message.contains(part), "{what}: {message}");
    }
    let (_, message) = refused(client.ask(Request::RegisterRegion, &[]));
    assert!(message.contains("exactly one descriptor"), "{message}");

    // What was refused was not charged.
    let region = client.region(1 << 20);
    let (other, _mapping) = MemFd::region("t", 4096).expect("region");
    assert_eq!(refused(client.ask(Request::RegisterRegion, &[other.as_fd()])).0, RefusalKind::Quota);
    assert_eq!(client.ask(Request::ReleaseRegion { region: region.handle }, &[]), Reply::Done);
    let again = Request::ReleaseRegion { region: region.handle };
    assert_eq!(refused(client.ask(again, &[])).0, RefusalKind::Unknown);
    let fresh = client.region(4096);
    assert_ne!(fresh.handle, region.handle);

    // Handles belong to their session.
    let mut stranger = Client::connect(&daemon.socket);
    let theirs = Request::ReleaseRegion { region: fresh.handle };
    assert_eq!(refused(stranger.ask(theirs, &[])).0, RefusalKind::Unknown);
}

#[test]
fn what_a_client_held_is_free_when_it_is_gone() {
    let daemon = Daemon::with(|s| {
        s.quotas.region_mib = Some(1);
        s.quotas.communicators = Some(1);
        s.quotas.sessions = Some(2);
    });
    let mut observer = Client::connect(&daemon.socket);
    for _ in 0..5 {
        let mut client = Client::connect(&daemon.socket);
        let _region = client.region(1 << 20);
        let rank = client.alone();
        let id = client.new_id();
        let (kind, message) = refused(client.ask(Request::Join(join(id, 0, 1)), &[]));
        assert!(kind == RefusalKind::Quota && message.contains("quotas.communicators"), "{message}");
        let third = connect(&daemon.socket).expect("connect");
        let (bytes, _) = receive(&third).expect("an answer");
        assert_eq!(Greeting::parse(&bytes).map(|g| g.verdict), Some(TOO_MANY_CLIENTS));
        drop((rank, client));
        while observer.status().sessions.len() > 1 || !observer.status().communicators.is_empty() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        // The books are closed right after the last trace is gone.
        while !can_connect(&daemon.socket) {}
    }
}

fn can_connect(path: &std::path::Path) -> bool {
    let socket = connect(path).expect("connect");
    let greeting = Greeting { version: VERSION, verdict: 0 };
    let _ = passing::send(socket.as_fd(), &greeting.encode(), &[]);
    let verdict = receive(&socket).and_then(|(bytes, _)| Greeting::parse(&bytes)).map(|g| g.verdict);
    let accepted = verdict == Some(0);
    drop(socket);
    std::thread::sleep(std::time::Duration::from_millis(if accepted { 50 } else { 1 }));
    accepted
}

#[test]
fn joins_that_make_no_sense_are_refused_with_a_reason() {
    let daemon = Daemon::start();
    let mut client = Client::connect(&daemon.socket);
    let id = client.new_id();
    for (join, part) in [
        (join(id, 2, 2), "rank 2"),
        (join(id, 0, 0), "1 to"),
        (join(id, 0, u32::MAX), "1 to"),
        (
            ringway_abi::control::Join { algorithm: "rings".to_owned(), ..join(id, 0, 1) },
            "auto, local, direct",
        ),
        (ringway_abi::control::Join { algorithm: "x".repeat(2000), ..join(id, 0, 1) }, "more than the 1024"),
        (ringway_abi::control::Join { submissions: 3, ..join(id, 0, 1) }, "power of two"),
        (ringway_abi::control::Join { submissions: 1 << 20, ..join(id, 0, 1) }, "power of two"),
    ] {
        let (kind, message) = refused(client.ask(Request::Join(join), &[]));
        assert!(kind == RefusalKind::Invalid && message.contains(part), "{message}");
    }
    let (kind, message) = refused(client.ask(Request::NewUniqueId { several_nodes: true }, &[]));
    assert!(kind == RefusalKind::Invalid && message.contains("--cluster-key-file"), "{message}");
    for request in [
        Request::Leave { communicator: 9 },
        Request::Abort { communicator: 9 },
        Request::Explain { communicator: 9, token: 1 },
    ] {
        assert_eq!(refused(client.ask(request, &[])).0, RefusalKind::Unknown);
    }

    let mut other = Client::connect(&daemon.socket);
    client.join(id, 0, 3);
    while client.status().joining.is_empty() {}
    let (kind, message) = refused(other.ask(Request::Join(join(id, 0, 3)), &[]));
    assert!(kind == RefusalKind::DuplicateRank && message.contains("rank 0"), "{message}");
    let (kind, message) = refused(other.ask(Request::Join(join(id, 1, 2)), &[]));
    assert!(kind == RefusalKind::SizeMismatch && message.contains('2') && message.contains('3'), "{message}");
}

#[test]
fn a_rank_that_never_comes_is_named() {
    let daemon = Daemon::start();
    let mut client = Client::connect(&daemon.socket);
    let id = client.new_id();
    let join = ringway_abi::control::Join { join_timeout_ms: 200, ..join(id, 0, 3) };
    let (kind, message) = refused(client.ask(Request::Join(join), &[]));
    assert_eq!(kind, RefusalKind::JoinTimeout);
    assert!(message.contains('1') && message.contains('2'), "{message}");
}

#[test]
fn a_second_daemon_is_refused_and_a_dead_one_is_replaced() {
    let daemon = Daemon::start();
    let again = |path: &std::path::Path| {
        let folder = path.parent().expect("folder");
        let (_handle, stop) = stop_pair().expect("pair");
        ringway_service::run(settings(folder).resolve().expect("settings"), stop)
    };
    let error = again(&daemon.socket).expect_err("two on one socket");
    let text = error.to_string();
    assert!(matches!(error, ServiceError::AlreadyRunning { .. }));
    assert!(text.contains(&std::process::id().to_string()) && text.contains("--socket"), "{text}");
    assert_serves(&daemon.socket);

    // A socket file that nobody listens on is what a killed daemon leaves.
    let stale = folder();
    drop(std::os::unix::net::UnixListener::bind(stale.join("d.sock")).expect("bind"));
    let path = stale.display().to_string();
    let daemon = Daemon::with(|s| s.socket = Some(format!("{path}/d.sock")));
    assert_serves(&daemon.socket);
    let socket = daemon.socket.clone();
    daemon.stop().expect("a clean end");
    assert!(!socket.exists() && !stale.join("d.sock.lock").exists());

    // Anything else of that name is left alone.
    std::fs::write(stale.join("d.sock"), "precious").expect("write");
    let text = again(&stale.join("d.sock")).expect_err("not a socket").to_string();
    assert!(text.contains("not a socket"), "{text}");
    assert_eq!(std::fs::read_to_string(stale.join("d.sock")).expect("read"), "precious");
    let text = again(&stale.join("missing").join("d.sock")).expect_err("no folder").to_string();
    assert!(text.contains("create it first"), "{text}");
    std::fs::remove_dir_all(stale).expect("remove");
}

#[test]
fn an_idle_daemon_leaves_when_told_so() {
    let daemon = Daemon::with(|s| s.idle_exit_s = Some(1));
    let mut client = Client::connect(&daemon.socket);
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert_eq!(client.status().sessions.len(), 1, "it stays while there is a client");
    drop(client);
    daemon.wait().expect("a clean end");
}
