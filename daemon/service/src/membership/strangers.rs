//! Whoever else is at the other end: daemons of other clusters and versions, other programs, nobody.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::{BorrowedFd, OwnedFd},
    sync::mpsc,
    thread,
    time::Duration,
};

use ringway_abi::control::RefusalKind;

use super::fixture::{Cluster, Daemon, PATIENCE, any_port, id, refused};
use crate::peers::{DATA_PREFACE_BYTES, DataDoor, Times};

/// A listener that answers every connection with these bytes and keeps it open.
fn impostor(answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind(any_port().expect("address")).expect("bind");
    let address = listener.local_addr().expect("address");
    thread::spawn(move || {
        let mut open = Vec::new();
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.write_all(answer);
            open.push(stream);
        }
    });
    address
}

fn join_at(root: SocketAddr, timeout: Duration, kind: RefusalKind) -> String {
    let times = Times { connect: Duration::from_millis(300), ..Times::default() };
    let mut cluster = Cluster::with(1, times);
    let ticket = cluster.join_as(0, id(Some(root), 1), (0, 2), 1000, timeout);
    let text = refused(cluster.settle(0, ticket), kind);
    cluster.assert_nothing_left();
    assert!(text.contains(&root.to_string()), "{text}");
    text
}

#[test]
fn another_cluster_key_is_refused() {
    let mut cluster = Cluster::of(1);
    cluster.daemons.push(Some(Daemon::new(any_port(), 6, "test", Times::default())));
    let id = id(Some(cluster.address(0)), 1);
    let first = cluster.join(0, id, 0, 2);
    let second = cluster.join(1, id, 1, 2);
    let text = refused(cluster.settle(1, second), RefusalKind::Key);
    assert!(
        text.contains(&id.root.expect("root").to_string()) && text.contains("another cluster key"),
        "{text}"
    );
    assert!(cluster.is_waiting(0, first));
}

#[test]
fn another_version_is_named() {
    let root = impostor(b"RINGCTRL\x09\0\0\0\0\0\0\0");
    let text = join_at(root, PATIENCE, RefusalKind::Incompatible);
    assert!(text.contains("version 9") && text.contains("this one version 5"), "{text}");
}

#[test]
fn a_dialer_of_another_version_is_told_ours() {
    let mut cluster = Cluster::of(1);
    let mut stream = TcpStream::connect(cluster.address(0)).expect("connect");
    stream.write_all(b"RINGCTRL\x09\0\0\0\0\0\0\0").expect("write");
    let reader = thread::spawn(move || {
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        said
    });
    cluster.run_until(|_| reader.is_finished());
    assert_eq!(reader.join().expect("reader"), b"RINGCTRL\x05\0\0\0\0\0\0\0");
}

#[test]
fn a_root_that_is_something_else_is_named_as_such() {
    for answer in [b"HTTP/1.1 400 Bad Request\r\n\r\n".as_slice(), b"SSH-2.0-x\r\n", b"\0", &[0xff; 64]] {
        let text = join_at(impostor(answer), PATIENCE, RefusalKind::Incompatible);
        assert!(text.contains("not a Ringway daemon"), "{text}");
    }
}

#[test]
fn a_root_that_does_not_answer_is_tried_until_time_is_up() {
    let text = join_at(impostor(b""), Duration::from_secs(2), RefusalKind::Unreachable);
    assert!(text.contains("did not answer like a Ringway daemon"), "{text}");
    let text = join_at(impostor(b"RINGCTRL"), Duration::from_secs(2), RefusalKind::Unreachable);
    assert!(text.contains("did not answer like a Ringway daemon"), "{text}");
}

#[test]
fn an_unreachable_root_is_named_with_the_system_s_reason() {
    let address =
        TcpListener::bind(any_port().expect("address")).expect("bind").local_addr().expect("address");
    let text = join_at(address, Duration::from_millis(300), RefusalKind::Unreachable);
    assert!(text.contains("refused"), "{text}");
}

#[test]
fn strays_are_closed_and_harm_nobody() {
    let times = Times { identify: Duration::from_millis(500), ..Times::default() };
    let mut cluster = Cluster::with(2, times);
    let root = cluster.address(0);
    let mut strays: Vec<TcpStream> = Vec::new();
    for greeting in [
        b"GET / HTTP/1.1\r\n\r\n".as_slice(),
        b"",
        b"RING",
        b"RINGCTRL",
        b"RINGCTRL\x01\0\0\0\0\0\0\0",
        &[0xff; 4096],
    ] {
        let mut stream = TcpStream::connect(root).expect("connect");
        stream.write_all(greeting).expect("write");
        strays.push(stream);
    }
    // A dialer that stops in the middle of a frame, and one that sends a wrong one.
    for tail in [b"\x30\0aaa".as_slice(), b"\xff\xff", &[0x30; 200]] {
        let mut stream = TcpStream::connect(root).expect("connect");
        stream.write_all(b"RINGCTRL\x01\0\0\0\0\0\0\0").expect("write");
        stream.write_all(tail).expect("write");
        strays.push(stream);
    }
    for _ in 0..300 {
        strays.push(TcpStream::connect(root).expect("connect"));
        cluster.daemon(0).turn(Duration::ZERO);
    }
    super::form(&mut cluster, 0, 1, &[0, 1]);
    // Every one of them is closed by the daemon, without waiting for them to leave.
    let reader = thread::spawn(move || {
        for stream in &mut strays {
            stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
            let mut buffer = [0; 64];
            while stream.read(&mut buffer).expect_or_reset() > 0 {}
        }
    });
    cluster.run_until(|_| reader.is_finished());
    reader.join().expect("all were closed");
}

/// A reset closes a connection as well as an orderly end.
trait ExpectOrReset {
    fn expect_or_reset(self) -> usize;
}

impl ExpectOrReset for io::Result<usize> {
    fn expect_or_reset(self) -> usize {
        match self {
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => 0,
            Err(e) => panic!("not closed: {e}"),
        }
    }
}

#[derive(Debug)]
struct Door(mpsc::Sender<([u8; DATA_PREFACE_BYTES], TcpStream)>);

impl DataDoor for Door {
    fn magic(&self) -> [u8; 8] {
        *b"DATADATA"
    }

    fn prepare(&self, _listener: BorrowedFd<'_>) -> io::Result<()> {
        Ok(())
    }

    fn take(&mut self, preface: &[u8; DATA_PREFACE_BYTES], socket: OwnedFd) {
        self.0.send((*preface, socket.into())).expect("the test listens");
    }
}

#[test]
fn data_connections_are_handed_on_with_nothing_missing() {
    let (sender, receiver) = mpsc::channel();
    let door: Box<dyn DataDoor> = Box::new(Door(sender));
    let daemon = Daemon::with_door(any_port(), 5, "test", Times::default(), Some(door));
    let mut cluster = Cluster { daemons: vec![Some(daemon)] };
    let mut stream = TcpStream::connect(cluster.address(0)).expect("connect");
    let mut preface = [b'x'; DATA_PREFACE_BYTES];
    preface[..8].copy_from_slice(b"DATADATA");
    stream.write_all(&preface[..20]).expect("write");
    (0..5).for_each(|_| cluster.turn());
    stream.write_all(&preface[20..]).expect("write");
    stream.write_all(b"payload").expect("write");
    let mut taken = None;
    cluster.run_until(|_| {
        taken = receiver.try_recv().ok();
        taken.is_some()
    });
    let (seen, mut socket) = taken.expect("handed on");
    assert_eq!(seen, preface);
    socket.set_nonblocking(false).expect("blocking");
    let mut payload = [0; 7];
    socket.read_exact(&mut payload).expect("read");
    assert_eq!(&payload, b"payload");
}
