//! Communicators that cannot be formed, and what each rank is told.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::OwnedFd,
    path::Path,
    thread,
    time::Duration,
};

use ringway_abi::{
    VERSION,
    handshake::{Greeting, LENGTH, WRONG_VERSION},
};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType, accept, bind, connect, listen, recv,
    send, socket,
};

use crate::harness::{Daemon, Folder, KEY, Rank, assert_mentions, form, node, run_ringway, two_nodes};

/// How daemons begin to talk on TCP: magic, version, zeroes.
const PEER_MAGIC: &[u8; 8] = b"RINGCTRL";

fn seqpacket() -> OwnedFd {
    socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket")
}

/// A socket at which something answers every client with these bytes.
fn impostor(path: &Path, answer: Vec<u8>) {
    let listener = seqpacket();
    bind(&listener, &SocketAddrUnix::new(path).expect("a path")).expect("bind");
    listen(&listener, 4).expect("listen");
    thread::spawn(move || {
        while let Ok(client) = accept(&listener) {
            let mut bytes = [0; 256];
            let _ = recv(&client, &mut bytes[..], RecvFlags::empty());
            let _ = send(&client, &answer, SendFlags::NOSIGNAL);
            let _ = recv(&client, &mut bytes[..], RecvFlags::empty());
        }
    });
}

#[test]
fn a_client_names_both_versions() {
    let folder = Folder::new();
    let path = folder.join("s");
    impostor(&path, Greeting { version: 99, verdict: WRONG_VERSION }.encode().to_vec());
    let ended = run_ringway(&["status", "--socket", &path.display().to_string()]).failure();
    assert_mentions(&ended.err, &["version 99", &format!("version {VERSION}"), "same release", "s:"]);
}

#[test]
fn a_client_knows_a_daemon_from_something_else() {
    let folder = Folder::new();
    let path = folder.join("s");
    impostor(&path, b"220 mail.example.org ESMTP".to_vec());
    let ended = run_ringway(&["status", "--socket", &path.display().to_string()]).failure();
    assert_mentions(&ended.err, &["not a Ringway daemon"]);
    let ended = run_ringway(&["status", "--socket", &folder.join("nobody").display().to_string()]).failure();
    assert_mentions(&ended.err, &["no daemon answers", "nobody", "start one"]);
}

#[test]
fn a_daemon_tells_a_client_of_another_version_its_own() {
    let daemon = Daemon::start("");
    let client = seqpacket();
    connect(&client, &SocketAddrUnix::new(&daemon.socket).expect("a path")).expect("connect");
    send(&client, &Greeting { version: VERSION + 98, verdict: 0 }.encode(), SendFlags::NOSIGNAL)
        .expect("send");
    let mut bytes = [0; LENGTH];
    let (length, _) = recv(&client, &mut bytes[..], RecvFlags::empty()).expect("an answer");
    assert_eq!(length, LENGTH);
    assert_eq!(Greeting::parse(&bytes), Some(Greeting { version: VERSION, verdict: WRONG_VERSION }));
    let rest = recv(&client, &mut bytes[..], RecvFlags::empty()).map_or(0, |(n, _)| n);
    assert_eq!(rest, 0, "the daemon hangs up");
    drop(daemon.client());
}

/// An id whose root is at this address.
fn id_at(address: SocketAddr) -> String {
    format!("00112233445566778899aabbccddeeff@{address}")
}

/// Something on TCP that is no daemon: reads what comes and answers with these bytes, again and again.
fn stranger(answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || answer_once(stream, answer));
        }
    });
    address
}

fn answer_once(mut stream: TcpStream, answer: &[u8]) {
    let mut bytes = [0; 256];
    let _ = stream.read(&mut bytes);
    let _ = stream.write_all(answer);
    let _ = stream.read(&mut bytes);
}

fn join_error(daemon: &Daemon, id: &str) -> String {
    Rank::start(daemon).must_fail(&format!("join {id} 1 2 join_ms=20000"))
}

#[test]
fn another_cluster_key_is_said() {
    let (root, address) = node(KEY, "");
    let (other, _) = node(&KEY.replace('0', "f"), "");
    let mut first = Rank::start(&root);
    let id = first.must("id several");
    first.tell(&format!("join {id} 0 2 join_ms=3000"));
    let error = join_error(&other, &id);
    assert_mentions(&error, &["another cluster key", "cluster_key_file", &address.to_string()]);
    let error = first.answer().expect_err("nobody else came");
    assert_mentions(&error, &["rank 1", "never came"]);
}

#[test]
fn a_peer_daemon_of_another_version_is_named() {
    let (daemon, _) = node(KEY, "");
    let address = stranger(b"RINGCTRL\x63\0\0\0\0\0\0\0");
    let error = join_error(&daemon, &id_at(address));
    assert_mentions(&error, &["version 99", "version 5", "same version", &address.to_string()]);
}

#[test]
fn a_peer_that_is_no_daemon_is_named() {
    let (daemon, _) = node(KEY, "");
    let address = stranger(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    let error = join_error(&daemon, &id_at(address));
    assert_mentions(&error, &["not a Ringway daemon", &address.to_string()]);
}

#[test]
fn an_unreachable_root_is_named() {
    let (daemon, _) = node(KEY, "");
    let address = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port");
    let mut rank = Rank::start(&daemon);
    let error = rank.must_fail(&format!("join {} 1 2 join_ms=1500", id_at(address)));
    assert_mentions(&error, &["cannot be reached", &address.to_string(), "listens on this address"]);
}

#[test]
fn a_daemon_without_a_key_says_what_it_needs_for_other_nodes() {
    let daemon = Daemon::start("");
    let mut rank = Rank::start(&daemon);
    assert_mentions(&rank.must_fail("id several"), &["one node only", "--cluster-key-file"]);
    // An address that is reserved for documentation, and so not this host's.
    let elsewhere = id_at("192.0.2.1:7411".parse().expect("an address"));
    let error = rank.must_fail(&format!("join {elsewhere} 1 2 join_ms=20000"));
    assert_mentions(&error, &["192.0.2.1:7411", "its own node only", "cluster_key_file"]);
}

#[test]
fn strangers_at_the_port_get_nothing_and_harm_nobody() {
    let (daemon, address) = node(KEY, "");
    let try_with = |hello: &[u8]| {
        let mut stream = TcpStream::connect(address).expect("connect");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("timeout");
        stream.write_all(hello).expect("write");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    };
    assert_eq!(try_with(b"GET / HTTP/1.1\r\n\r\n"), b"", "closed without a word");
    let mut hello = PEER_MAGIC.to_vec();
    hello.extend([99, 0, 0, 0, 0, 0, 0, 0]);
    let answer = try_with(&hello);
    assert!(answer.starts_with(PEER_MAGIC) && answer.get(8) == Some(&5), "its own version: {answer:x?}");
    let ranks = form(std::slice::from_ref(&daemon), 2, "");
    assert_eq!(ranks.len(), 2);
}

#[test]
fn a_duplicate_rank_is_refused_and_the_others_go_on() {
    let daemon = Daemon::start("");
    let [mut first, mut second, mut third] = [(); 3].map(|()| Rank::start(&daemon));
    let id = first.must("id");
    first.tell(&format!("join {id} 0 2"));
    // Either may come first; the one that is refused may try again as another rank.
    second.tell(&format!("join {id} 0 2 join_ms=1000"));
    let error = second.answer().expect_err("rank 0 twice, or nobody else in time");
    if error.contains("already joined") {
        assert_mentions(&error, &["rank 0", "every rank joins once"]);
        third.must(&format!("join {id} 1 2"));
        first.answer().expect("formed");
    } else {
        assert_mentions(&first.answer().expect_err("rank 0 twice"), &["rank 0", "every rank joins once"]);
    }
}

#[test]
fn a_duplicate_rank_on_another_node_is_refused() {
    let nodes = two_nodes("");
    let [mut first, mut second] = [0, 1].map(|n| Rank::start(&nodes[n]));
    let id = first.must("id several");
    first.tell(&format!("join {id} 0 2 join_ms=8000"));
    second.tell(&format!("join {id} 0 2 join_ms=4000"));
    let errors = [first.answer(), second.answer()].map(|a| a.expect_err("two ranks 0 of 2"));
    let told = errors.iter().find(|e| e.contains("already joined")).expect("one is told");
    assert_mentions(told, &["rank 0", "every rank joins once"]);
}

#[test]
fn a_number_of_ranks_that_differs_is_said() {
    let daemon = Daemon::start("");
    let [mut first, mut second] = [(); 2].map(|()| Rank::start(&daemon));
    let id = first.must("id");
    first.tell(&format!("join {id} 0 2 join_ms=20000"));
    thread::sleep(Duration::from_millis(200));
    let error = second.must_fail(&format!("join {id} 1 3 join_ms=20000"));
    assert_mentions(&error, &["rank 1", "2", "3 ranks", "same number"]);
}

#[test]
fn a_number_of_ranks_that_differs_between_nodes_is_said() {
    let nodes = two_nodes("");
    let [mut first, mut second] = [0, 1].map(|n| Rank::start(&nodes[n]));
    let id = first.must("id several");
    first.tell(&format!("join {id} 0 2 join_ms=20000"));
    thread::sleep(Duration::from_millis(300));
    let error = second.must_fail(&format!("join {id} 1 3 join_ms=20000"));
    assert_mentions(&error, &["rank 1", "2", "3 ranks", "same number"]);
}

#[test]
fn ranks_that_never_come_are_named() {
    let daemon = Daemon::start("");
    let mut rank = Rank::start(&daemon);
    let id = rank.must("id");
    let error = rank.must_fail(&format!("join {id} 1 4 join_ms=700"));
    assert_mentions(&error, &["ranks 0 and 2-3", "of 4", "never came", "are they running"]);
    let error = rank.must_fail(&format!("join {id} 4 4 join_ms=700"));
    assert_mentions(&error, &["rank 4", "4 ranks"]);
}

#[test]
fn a_rank_of_another_node_that_never_comes_is_named() {
    let nodes = two_nodes("");
    let [mut first, mut second] = [0, 1].map(|n| Rank::start(&nodes[n]));
    let id = first.must("id several");
    first.tell(&format!("join {id} 0 3 join_ms=2500"));
    second.tell(&format!("join {id} 1 3 join_ms=2500"));
    for rank in [&mut first, &mut second] {
        assert_mentions(&rank.answer().expect_err("rank 2 is missing"), &["rank 2", "of 3", "never came"]);
    }
}
