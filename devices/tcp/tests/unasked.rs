//! Messages whose senders wait for nothing: what acknowledges them, and when.
#![expect(clippy::unwrap_used, clippy::panic, reason = "the parts of a test")]

#[macro_use]
mod drivers;
mod victim;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use ringway_tcp::TcpDriver;
use ringway_tcp::frame::{Frame, HEADER_LENGTH, Header, parse};
use ringway_verbs::{
    Device, LocalSlice, Operation, QueuePairState, ReceiveRequest, RemoteSlice, WorkRequest,
};
use victim::{Victim, header, remote};

/// Messages that are acknowledged at the latest when so many have come.
const UNTOLD_MAX: u32 = 8;
/// Half of the victim's send queue.
const HALF: u64 = 4;
/// Turns after which what has not been said will not be.
const QUIET_TURNS: u32 = 100;

/// A victim to which all was said, and which has said all.
fn quiet(driver: TcpDriver) -> (Victim, TcpStream) {
    let (mut victim, mut stream) = Victim::attacked(driver);
    stream.write_all(&header(Frame::Acknowledge)).unwrap();
    stream.set_nonblocking(true).unwrap();
    while said(&mut victim, &mut stream).is_none() {}
    (victim, stream)
}

/// What the victim says within some turns.
fn said(victim: &mut Victim, stream: &mut TcpStream) -> Option<Header> {
    (0..QUIET_TURNS).find_map(|_| {
        victim.turn();
        let mut bytes = [0; HEADER_LENGTH];
        match stream.read(&mut bytes) {
            Ok(count) => {
                assert_eq!(count, HEADER_LENGTH);
                Some(parse(&bytes).unwrap())
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                None
            }
        }
    })
}

/// Sends a message and waits until it is there.
fn send(victim: &mut Victim, stream: &mut TcpStream, frame: Frame) {
    let bytes = victim.counter("bytes_received") + HEADER_LENGTH as u64;
    stream.write_all(&header(frame)).unwrap();
    victim.until("it is here", |victim| victim.counter("bytes_received") == bytes);
}

/// Has the victim send a message of no bytes.
fn post(victim: &mut Victim, signalled: bool) {
    let operation = Operation::Write { remote: RemoteSlice::default() };
    let request =
        WorkRequest { id: 1, operation, local: [LocalSlice::default(); 2], signalled, fence: false };
    victim.device.post_send(victim.queue_pair, &request).unwrap();
}

with_each_driver!(
    go_with_what_is_sent_next,
    go_when_there_are_many,
    go_when_receives_run_short,
    go_before_one_that_is_waited_for,
    ask_when_half_of_the_queue_waits,
);

fn write(victim: &Victim, asks: bool) -> Frame {
    Frame::Write { length: 0, remote: remote(victim.open.1, 0), immediate: None, asks }
}

fn go_with_what_is_sent_next(driver: TcpDriver) {
    let (mut victim, mut stream) = quiet(driver);
    let unasked = write(&victim, false);
    send(&mut victim, &mut stream, unasked);
    assert_eq!(said(&mut victim, &mut stream), None);
    while !victim.device.arm() {}
    assert_eq!(said(&mut victim, &mut stream), None, "nobody is woken for it");
    post(&mut victim, false);
    let header = said(&mut victim, &mut stream).unwrap();
    assert_eq!(header.executed, 1);
    assert!(matches!(header.frame, Frame::Write { asks: false, .. }), "{header:?}");
}

fn go_when_there_are_many(driver: TcpDriver) {
    let (mut victim, mut stream) = quiet(driver);
    let unasked = write(&victim, false);
    for round in 1..=2 {
        for _ in 1..UNTOLD_MAX {
            send(&mut victim, &mut stream, unasked);
        }
        assert_eq!(said(&mut victim, &mut stream), None);
        send(&mut victim, &mut stream, unasked);
        let header = said(&mut victim, &mut stream).unwrap();
        assert_eq!((header.frame, header.executed), (Frame::Acknowledge, round * UNTOLD_MAX));
    }
}

/// Of two receives that the peer was told of one is used: a third is as many as it has left.
fn go_when_receives_run_short(driver: TcpDriver) {
    let (mut victim, mut stream) = quiet(driver);
    send(&mut victim, &mut stream, Frame::Send { length: 0, immediate: None, asks: false });
    assert_eq!(said(&mut victim, &mut stream), None);
    let receive = ReceiveRequest { id: 2, local: LocalSlice::default() };
    victim.device.post_receive(victim.queue_pair, &receive).unwrap();
    let header = said(&mut victim, &mut stream).unwrap();
    assert_eq!((header.frame, header.executed, header.receives), (Frame::Acknowledge, 1, 3));
}

fn go_before_one_that_is_waited_for(driver: TcpDriver) {
    let (mut victim, mut stream) = quiet(driver);
    let (unasked, asked) = (write(&victim, false), write(&victim, true));
    send(&mut victim, &mut stream, unasked);
    assert_eq!(said(&mut victim, &mut stream), None);
    send(&mut victim, &mut stream, asked);
    assert_eq!(said(&mut victim, &mut stream).unwrap().executed, 2);
}

fn ask_when_half_of_the_queue_waits(driver: TcpDriver) {
    let (mut victim, mut stream) = quiet(driver);
    let asks = |victim: &mut Victim, stream: &mut TcpStream| match said(victim, stream).unwrap().frame {
        Frame::Write { asks, .. } => asks,
        other => panic!("{other:?}"),
    };
    post(&mut victim, true);
    assert!(asks(&mut victim, &mut stream), "it is signalled");
    for posted in 2..=HALF + 1 {
        post(&mut victim, false);
        assert_eq!(asks(&mut victim, &mut stream), posted > HALF, "{posted} posted");
    }
    assert_eq!(victim.state(), QueuePairState::Ready);
}
