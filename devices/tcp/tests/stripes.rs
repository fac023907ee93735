//! Several connections for one queue pair: raw sockets that divide payload as a device does, or not.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "the parts of a test")]

#[macro_use]
mod drivers;
mod victim;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use ringway_mem::Mapping;
use ringway_tcp::frame::{Frame, HEADER_LENGTH, Header, encode, parse};
use ringway_tcp::{MAX_CONNECTIONS, PREFACE_LENGTH, Preface, TcpDriver, TcpError, TcpFailure};
use ringway_verbs::{
    Access, Device, LocalSlice, MemoryKeys, Operation, QueuePairState, RemoteKey, RemoteSlice, Role, Status,
    WorkRequest,
};
use victim::{PATIENCE, Victim, config, header, remote};

/// The shortest part of a payload, in bytes.
const PART: usize = 64 << 10;

/// A region of the victim's that peers may write to.
type Target = (Arc<Mapping>, MemoryKeys);

/// A victim with three connections, the attacker's ends of these, and a region of so many parts.
fn striped(driver: TcpDriver, parts: usize) -> (Victim, [TcpStream; 3], Target) {
    let mut victim = Victim::new(config(driver));
    let streams = [2, 0, 1].map(|connection| victim.offer(connection, 3));
    let [last, first, second] = streams;
    victim.begin();
    let mapping = Arc::new(Mapping::private(parts * PART).unwrap());
    let keys = victim.device.register(Arc::clone(&mapping), Access::ALL).unwrap();
    (victim, [first, second, last], (mapping, keys))
}

fn write(target: &Target, offset: usize, length: usize) -> [u8; HEADER_LENGTH] {
    let remote = remote(target.1, offset as u64);
    header(Frame::Write { length: length as u64, remote, immediate: None, asks: true })
}

/// Reads frames until one says that so many requests were executed.
fn executed(victim: &mut Victim, stream: &TcpStream, count: u32) {
    let mut stream = stream.try_clone().unwrap();
    let reader = std::thread::spawn(move || {
        let mut bytes = [0; HEADER_LENGTH];
        while {
            stream.read_exact(&mut bytes).unwrap();
            parse(&bytes).unwrap().executed != count
        } {}
    });
    victim.until("it is executed", |_| reader.is_finished());
    reader.join().unwrap();
}

fn bytes_of(target: &Target, offset: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    target.0.window(offset as u64, length as u64).unwrap().read(&mut bytes);
    bytes
}

/// Bytes that differ from part to part and from byte to byte.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / PART * 7 + at % 251) as u8).collect()
}

with_each_driver!(
    parts_come_over_all_connections_in_any_order,
    connections_take_turns,
    what_is_not_there_yet_is_not_executed,
    too_much_on_one_connection_stops_nothing_else,
    half_a_part_and_then_the_end,
    the_loss_of_any_connection_is_the_end,
    connections_that_were_not_agreed_on_are_closed,
    a_peer_that_does_not_bring_all_connections_is_given_up,
    prefaces_say_which_connection_of_how_many,
    what_was_executed_by_its_word_alone_stays_held,
);

fn parts_come_over_all_connections_in_any_order(driver: TcpDriver) {
    let (mut victim, mut streams, target) = striped(driver, 3);
    let bytes = pattern(3 * PART);
    // The last part first, and each before the frame that says where it goes.
    for part in [2, 1] {
        streams[part].write_all(&bytes[part * PART..(part + 1) * PART]).unwrap();
    }
    streams[0].write_all(&write(&target, 0, 3 * PART)).unwrap();
    streams[0].write_all(&bytes[..PART]).unwrap();
    executed(&mut victim, &streams[0], 1);
    assert!(bytes_of(&target, 0, 3 * PART) == bytes);
}

fn connections_take_turns(driver: TcpDriver) {
    let (mut victim, mut streams, target) = striped(driver, 4);
    let bytes = pattern(PART);
    // Payloads of one part go over one connection each; between them one that is shorter than a part.
    for (count, at) in [0, 1, 2, 0].into_iter().enumerate() {
        let offset = count * PART;
        streams[0].write_all(&write(&target, offset, PART)).unwrap();
        streams[at].write_all(&bytes).unwrap();
        streams[0].write_all(&write(&target, offset, 1)).unwrap();
        streams[0].write_all(&[0xA5]).unwrap();
        executed(&mut victim, &streams[0], count as u32 * 2 + 2);
        assert_eq!(bytes_of(&target, offset, 1), [0xA5]);
        assert!(bytes_of(&target, offset + 1, PART - 1) == bytes[1..]);
    }
}

fn what_is_not_there_yet_is_not_executed(driver: TcpDriver) {
    let (mut victim, mut streams, target) = striped(driver, 3);
    let bytes = pattern(3 * PART);
    streams[0].write_all(&write(&target, 0, 3 * PART)).unwrap();
    streams[0].write_all(&bytes[..PART]).unwrap();
    // What follows on the first connection waits for the rest, which comes a byte short.
    streams[0].write_all(&header(Frame::Send { length: 0, immediate: Some(1), asks: true })).unwrap();
    streams[1].write_all(&bytes[PART..2 * PART]).unwrap();
    streams[2].write_all(&bytes[2 * PART..3 * PART - 1]).unwrap();
    let all = (HEADER_LENGTH * 2 + 3 * PART - 1) as u64;
    victim.until("that is heard", |victim| victim.counter("bytes_received") >= all - HEADER_LENGTH as u64);
    for _ in 0..100 {
        victim.turn();
    }
    assert_eq!(victim.seen, []);
    streams[2].write_all(&bytes[3 * PART - 1..]).unwrap();
    victim.until("the message after it is there", |victim| !victim.seen.is_empty());
    assert_eq!(victim.seen[0].immediate, Some(1));
    assert!(bytes_of(&target, 0, 3 * PART) == bytes);
}

fn too_much_on_one_connection_stops_nothing_else(driver: TcpDriver) {
    let (mut victim, mut streams, target) = striped(driver, 3);
    let bytes = pattern(PART);
    // A flood that nothing announced: as much as the sockets hold.
    let mut flood = streams[1].try_clone().unwrap();
    flood.set_nonblocking(true).unwrap();
    let mut flooded = 0_usize;
    while let Ok(count) = flood.write(&bytes[flooded % PART..]) {
        flooded += count;
    }
    for (id, immediate) in [Some(7), None].into_iter().enumerate() {
        streams[0].write_all(&header(Frame::Send { length: 0, immediate, asks: true })).unwrap();
        victim.until("a message is there", |victim| victim.seen.len() > id);
        assert_eq!((victim.seen[id].status, victim.seen[id].immediate), (Status::Success, immediate));
    }
    // It is the second part of what is announced then.
    streams[0].write_all(&write(&target, 0, 2 * PART)).unwrap();
    streams[0].write_all(&bytes).unwrap();
    executed(&mut victim, &streams[0], 3);
    assert!(bytes_of(&target, 0, PART) == bytes && bytes_of(&target, PART, PART) == bytes);
    assert!(bytes_of(&target, 2 * PART, PART).iter().all(|byte| *byte == 0));
    drop(streams);
    victim.until("the end", |victim| {
        !victim.device.is_busy(target.1.local) && victim.state() == QueuePairState::Error
    });
    victim.device.deregister(target.1.local).unwrap();
}

fn half_a_part_and_then_the_end(driver: TcpDriver) {
    let (mut victim, [mut first, mut second, _third], target) = striped(driver, 3);
    first.write_all(&write(&target, 0, 3 * PART)).unwrap();
    first.write_all(&vec![7; PART]).unwrap();
    second.write_all(&vec![7; PART / 2]).unwrap();
    drop(second);
    assert!(matches!(victim.expect_failed(), TcpFailure::Closed | TcpFailure::Reset));
    victim.device.deregister(target.1.local).unwrap();
    victim.device.destroy_queue_pair(victim.queue_pair).unwrap();
}

fn the_loss_of_any_connection_is_the_end(driver: TcpDriver) {
    for lost in 0..3 {
        let (mut victim, streams, _target) = striped(driver, 1);
        let mut streams = streams.map(Some);
        streams[lost] = None;
        assert!(matches!(victim.expect_failed(), TcpFailure::Closed | TcpFailure::Reset));
        // The others end as well.
        for mut stream in streams.into_iter().flatten() {
            let _ = stream.read_to_end(&mut Vec::new());
        }
    }
}

/// Whether the victim closes a connection that says this of itself.
fn is_closed(victim: &mut Victim, connection: u8, connections: u8) -> bool {
    let mut stream = victim.offer(connection, connections);
    victim.turn();
    stream.read(&mut [0; 8]).unwrap() == 0
}

fn connections_that_were_not_agreed_on_are_closed(driver: TcpDriver) {
    let mut victim = Victim::new(config(driver));
    victim.expect_peer();
    let _second = victim.offer(1, 2);
    victim.turn();
    // Two were spoken of: no third one, none of another count, none twice.
    for (connection, connections) in [(2, 3), (0, 1), (0, 8), (1, 2)] {
        assert!(is_closed(&mut victim, connection, connections), "{connection} of {connections}");
        assert_eq!(victim.state(), QueuePairState::Connecting);
    }
    let _first = victim.offer(0, 2);
    victim.until("ready", |victim| victim.state() == QueuePairState::Ready);
    for connection in 0..2 {
        assert!(is_closed(&mut victim, connection, 2));
    }
    assert_eq!(victim.state(), QueuePairState::Ready);
}

fn a_peer_that_does_not_bring_all_connections_is_given_up(driver: TcpDriver) {
    let mut config = config(driver);
    config.connect_timeout_ns = 100_000_000;
    let mut victim = Victim::new(config);
    victim.expect_peer();
    let mut first = victim.offer(0, 2);
    // A frame does not make up for what is missing.
    first.write_all(&header(Frame::Acknowledge)).unwrap();
    victim.until("the failure", |victim| victim.state() == QueuePairState::Error);
    assert_eq!(victim.device.last_error(victim.queue_pair), Some(TcpFailure::TimedOut));
    victim.device.destroy_queue_pair(victim.queue_pair).unwrap();
}

fn prefaces_say_which_connection_of_how_many(driver: TcpDriver) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = config(driver);
    config.advertised = listener.local_addr().unwrap();
    config.connections = MAX_CONNECTIONS as u32;
    let mut victim = Victim::new(config);
    let there = victim.device.endpoint(victim.queue_pair).unwrap();
    victim.device.connect(victim.queue_pair, &there, Role::Active).unwrap();
    let peer = std::thread::spawn(move || {
        let mut streams: Vec<_> = (0..MAX_CONNECTIONS)
            .map(|_| {
                let mut stream = listener.accept().unwrap().0;
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let mut bytes = [0; PREFACE_LENGTH];
                stream.read_exact(&mut bytes).unwrap();
                (Preface::parse(&bytes).unwrap(), stream)
            })
            .collect();
        streams.sort_by_key(|(preface, _)| preface.connection);
        streams
    });
    victim.until("all are there", |_| peer.is_finished());
    let mut streams = peer.join().unwrap();
    for (at, (preface, _)) in streams.iter().enumerate() {
        assert_eq!(
            (usize::from(preface.connection), usize::from(preface.connections)),
            (at, MAX_CONNECTIONS)
        );
        assert_eq!(preface.token, victim.preface_of(0, 1).token);
    }
    assert_eq!(victim.state(), QueuePairState::Connecting);
    streams[0].1.write_all(&header(Frame::Acknowledge)).unwrap();
    victim.until("ready", |victim| victim.state() == QueuePairState::Ready);
}

/// More than sockets hold for each of three connections.
const LONG: usize = 96 << 20;

fn what_was_executed_by_its_word_alone_stays_held(driver: TcpDriver) {
    let (mut victim, streams, _) = striped(driver, 1);
    let mapping = Arc::new(Mapping::private(LONG).unwrap());
    let keys = victim.device.register(mapping, Access::LOCAL).unwrap();
    let local = [LocalSlice { key: keys.local, offset: 0, length: LONG as u64 }, LocalSlice::default()];
    let operation = Operation::Write { remote: RemoteSlice { key: RemoteKey(1), offset: 0 } };
    let write = WorkRequest { id: 3, operation, local, signalled: true, fence: false };
    victim.device.post_send(victim.queue_pair, &write).unwrap();
    let [mut first, second, third] = streams;
    // The first acknowledgement, of nothing, and the frame with its part: that is all the peer reads before it lies.
    let reader = std::thread::spawn(move || {
        first.read_exact(&mut vec![0; HEADER_LENGTH * 2 + LONG / 3]).unwrap();
        first.write_all(&encode(&Header { frame: Frame::Acknowledge, executed: 1, receives: 0 })).unwrap();
        first
    });
    victim.until("the lie is heard", |victim| victim.counter("bytes_received") == HEADER_LENGTH as u64);
    assert_eq!(victim.seen, [], "other connections still read that memory");
    assert!(victim.device.is_busy(keys.local));
    let readers = [second, third].map(|mut stream| {
        std::thread::spawn(move || {
            stream.read_exact(&mut vec![0; LONG / 3]).unwrap();
            stream
        })
    });
    victim.until("the write is complete", |victim| !victim.seen.is_empty());
    assert_eq!((victim.seen[0].id, victim.seen[0].status), (3, Status::Success));
    drop((reader.join().unwrap(), readers.map(|reader| reader.join().unwrap())));
}

#[test]
fn there_is_a_limit() {
    for connections in [0, MAX_CONNECTIONS as u32 + 1] {
        let mut config = config(TcpDriver::Epoll);
        config.connections = connections;
        let refused = ringway_tcp::TcpDevice::new(config).map(|_| ());
        assert!(matches!(refused, Err(TcpError::Limit { limit: "connections", most: 8 })), "{refused:?}");
    }
}
