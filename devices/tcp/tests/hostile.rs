//! Peers that are not devices: raw sockets that send what no device would.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "the parts of a test")]

#[macro_use]
mod drivers;
mod victim;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use proptest::prelude::*;
use ringway_mem::Mapping;
use ringway_tcp::frame::{Frame, HEADER_LENGTH, Header, MAX_READS, encode, parse};
use ringway_tcp::{DATA_MAGIC, PREFACE_LENGTH, Preface, TcpDriver, TcpFailure, ZeroCopy};
use ringway_verbs::{
    Access, CompletionKind, Device, LocalSlice, Operation, QueuePairState, RegisterError, RemoteKey,
    RemoteSlice, Role, Status, WorkRequest,
};
use rustix::net::sockopt;
use victim::{Victim, config, header, remote, sockets};

/// Sends bytes and expects the connection to be ended as a breach of the protocol.
fn breaks_the_protocol(driver: TcpDriver, bytes: &[u8]) {
    let (mut victim, mut stream) = Victim::attacked(driver);
    stream.write_all(bytes).unwrap();
    let failure = victim.expect_failed();
    assert!(matches!(failure, TcpFailure::Protocol(_)), "{failure}");
    // The attacker sees the end as well, however it comes.
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
}

with_each_driver!(
    garbage_ends_the_connection,
    a_message_beyond_every_limit_ends_the_connection,
    acknowledging_what_was_not_sent_ends_the_connection,
    taking_receives_back_ends_the_connection,
    responses_to_nothing_end_the_connection,
    too_many_reads_at_once_end_the_connection,
    messages_without_a_receive_end_the_connection,
    a_half_header_and_then_the_end,
    half_a_write_and_then_the_end,
    refusals_reach_the_peer_and_say_why,
    a_wrong_token_is_closed_and_harms_nobody,
    a_peer_that_never_comes_or_never_speaks_is_given_up,
    nobody_listening_is_a_refusal,
    regions_that_a_peer_reads_are_in_use,
);

fn garbage_ends_the_connection(driver: TcpDriver) {
    breaks_the_protocol(driver, &[0xA5; 200]);
    breaks_the_protocol(driver, &[0; HEADER_LENGTH]);
    breaks_the_protocol(driver, &DATA_MAGIC.repeat(20));
}

fn a_message_beyond_every_limit_ends_the_connection(driver: TcpDriver) {
    let mut bytes = header(Frame::Send { length: 8, immediate: None, asks: true });
    bytes[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    breaks_the_protocol(driver, &bytes);
}

fn acknowledging_what_was_not_sent_ends_the_connection(driver: TcpDriver) {
    breaks_the_protocol(driver, &encode(&Header { frame: Frame::Acknowledge, executed: 1, receives: 0 }));
}

fn taking_receives_back_ends_the_connection(driver: TcpDriver) {
    let mut bytes = encode(&Header { frame: Frame::Acknowledge, executed: 0, receives: 9 }).to_vec();
    bytes.extend(encode(&Header { frame: Frame::Acknowledge, executed: 0, receives: 8 }));
    breaks_the_protocol(driver, &bytes);
}

fn responses_to_nothing_end_the_connection(driver: TcpDriver) {
    breaks_the_protocol(driver, &header(Frame::ReadResponse { length: 8 }));
    breaks_the_protocol(driver, &header(Frame::AtomicResponse { old: 8 }));
}

fn too_many_reads_at_once_end_the_connection(driver: TcpDriver) {
    let (victim, _) = Victim::attacked(driver);
    let read = header(Frame::Read { length: 8, remote: remote(victim.open.1, 0) });
    breaks_the_protocol(driver, &read.repeat(MAX_READS + 1));
}

fn messages_without_a_receive_end_the_connection(driver: TcpDriver) {
    let (mut victim, mut stream) = Victim::attacked(driver);
    stream.write_all(&header(Frame::Send { length: 0, immediate: None, asks: true }).repeat(3)).unwrap();
    victim.until("the failure", |victim| victim.state() == QueuePairState::Error);
    let failure = victim.device.last_error(victim.queue_pair).unwrap();
    assert!(matches!(failure, TcpFailure::Protocol(_)), "{failure}");
    assert!(victim.seen.iter().all(|completion| completion.kind == CompletionKind::Receive));
}

fn a_half_header_and_then_the_end(driver: TcpDriver) {
    let (mut victim, mut stream) = Victim::attacked(driver);
    stream.write_all(&header(Frame::Acknowledge)[..20]).unwrap();
    drop(stream);
    assert!(matches!(victim.expect_failed(), TcpFailure::Closed | TcpFailure::Reset));
}

fn half_a_write_and_then_the_end(driver: TcpDriver) {
    for (announced, sent) in [(100, 50), (4096, 1), (4000, 3999)] {
        let (mut victim, mut stream) = Victim::attacked(driver);
        let write =
            Frame::Write { length: announced, remote: remote(victim.open.1, 0), immediate: None, asks: true };
        stream.write_all(&header(write)).unwrap();
        stream.write_all(&vec![7; sent]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert!(matches!(victim.expect_failed(), TcpFailure::Closed | TcpFailure::Reset));
    }
}

fn refusals_reach_the_peer_and_say_why(driver: TcpDriver) {
    let (mut victim, mut stream) = Victim::attacked(driver);
    stream
        .write_all(&header(Frame::Write {
            length: 8,
            remote: remote(victim.closed.1, 0),
            immediate: None,
            asks: true,
        }))
        .unwrap();
    // More than the socket buffers hold follows: the refusal gets through all the same.
    let writer = stream.try_clone().unwrap();
    let flood = std::thread::spawn(move || {
        let mut writer = writer;
        for _ in 0..200 {
            if writer.write_all(&[0; 1 << 16]).is_err() {
                return;
            }
        }
        let _ = writer.shutdown(Shutdown::Write);
    });
    assert_eq!(victim.expect_failed(), TcpFailure::RefusedHere(Status::RemoteAccess));
    let answer = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        bytes
    });
    victim.until("the peer has read the answer", |_| answer.is_finished());
    let bytes = answer.join().unwrap();
    let last = bytes.last_chunk::<HEADER_LENGTH>().unwrap();
    assert_eq!(parse(last).unwrap().frame, Frame::Refuse { status: Status::RemoteAccess });
    victim.until("the flood is over", |_| flood.is_finished());
    flood.join().unwrap();
    assert!((0..4096).all(|at| {
        let mut byte = [1];
        victim.closed.0.window(at, 1).unwrap().read(&mut byte);
        byte == [0]
    }));
}

fn a_wrong_token_is_closed_and_harms_nobody(driver: TcpDriver) {
    let mut victim = Victim::new(config(driver));
    victim.expect_peer();
    let (mut stream, other) = sockets();
    let mut preface = [0; PREFACE_LENGTH];
    preface[..8].copy_from_slice(&DATA_MAGIC);
    preface[8..11].copy_from_slice(&[3, 0, 1]);
    victim.acceptor.offer(Preface::parse(&preface).unwrap(), OwnedFd::from(other)).unwrap();
    victim.turn();
    assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0, "closed");
    assert_eq!(victim.state(), QueuePairState::Connecting);
    // A token works once.
    let _first = victim.offer(0, 1);
    victim.until("ready", |victim| victim.state() == QueuePairState::Ready);
    let mut second = victim.offer(0, 1);
    victim.turn();
    assert_eq!(second.read(&mut [0; 8]).unwrap(), 0, "closed");
    assert_eq!(victim.state(), QueuePairState::Ready);
}

fn a_peer_that_never_comes_or_never_speaks_is_given_up(driver: TcpDriver) {
    let mut config = config(driver);
    config.connect_timeout_ns = 100_000_000;
    let mut victim = Victim::new(config);
    victim.expect_peer();
    assert!(victim.device.deadline().is_some());
    victim.until("the failure", |victim| victim.state() == QueuePairState::Error);
    assert_eq!(victim.device.last_error(victim.queue_pair), Some(TcpFailure::TimedOut));

    // Somebody listens and accepts, but is no device.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    config.advertised = listener.local_addr().unwrap();
    let mut victim = Victim::new(config);
    let there = victim.device.endpoint(victim.queue_pair).unwrap();
    victim.device.connect(victim.queue_pair, &there, Role::Active).unwrap();
    let request = WorkRequest {
        id: 5,
        operation: Operation::Send { immediate: None },
        local: [LocalSlice::default(); 2],
        signalled: true,
        fence: false,
    };
    victim.device.post_send(victim.queue_pair, &request).unwrap();
    victim.until("the failure", |victim| !victim.seen.is_empty());
    assert_eq!((victim.seen[0].id, victim.seen[0].status), (5, Status::TransportLost));
    assert_eq!(victim.device.last_error(victim.queue_pair), Some(TcpFailure::TimedOut));
}

fn nobody_listening_is_a_refusal(driver: TcpDriver) {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut config = config(driver);
    config.advertised = free;
    let mut victim = Victim::new(config);
    let there = victim.device.endpoint(victim.queue_pair).unwrap();
    victim.device.connect(victim.queue_pair, &there, Role::Active).unwrap();
    victim.until("the failure", |victim| victim.state() == QueuePairState::Error);
    assert_eq!(victim.device.last_error(victim.queue_pair), Some(TcpFailure::Refused));
}

/// More than a socket takes of which nobody reads, and less than a socket has room for to be sent.
const UNREAD: usize = 1 << 20;
/// What the peer's socket takes, in bytes: the kernel doubles it.
const TAKEN: usize = 64 << 10;

/// Memory that is written from, and its segment.
type Source = (Arc<Mapping>, LocalSlice);

/// A victim that has written to a peer that reads nothing, without a copy: the kernel holds what did not fit there.
fn written_to_nobody() -> (Victim, TcpStream, Source) {
    let mut config = config(TcpDriver::IoUring);
    config.zero_copy = ZeroCopy::Always;
    let (mut victim, stream) = Victim::attacked_with(config);
    sockopt::set_socket_recv_buffer_size(&stream, TAKEN).unwrap();
    let mapping = Arc::new(Mapping::private(UNREAD).unwrap());
    let keys = victim.device.register(Arc::clone(&mapping), Access::LOCAL).unwrap();
    let local = LocalSlice { key: keys.local, offset: 0, length: UNREAD as u64 };
    let operation = Operation::Write { remote: RemoteSlice { key: RemoteKey(1), offset: 0 } };
    let local_and_none = [local, LocalSlice::default()];
    let write = WorkRequest { id: 3, operation, local: local_and_none, signalled: true, fence: false };
    victim.device.post_send(victim.queue_pair, &write).unwrap();
    victim.until("the socket has it", |victim| victim.counter("bytes_sent") > UNREAD as u64);
    (victim, stream, (mapping, local))
}

/// The peer says that it has executed what it has not read.
fn lie(victim: &mut Victim, stream: &mut TcpStream) {
    stream.write_all(&encode(&Header { frame: Frame::Acknowledge, executed: 1, receives: 0 })).unwrap();
    let heard = victim.counter("bytes_received") + HEADER_LENGTH as u64;
    victim.until("the lie is heard", |victim| victim.counter("bytes_received") == heard);
}

/// Reads what was written meanwhile.
fn read_all(mut stream: TcpStream) -> std::thread::JoinHandle<TcpStream> {
    std::thread::spawn(move || {
        stream.read_exact(&mut vec![0; HEADER_LENGTH + UNREAD]).unwrap();
        stream
    })
}

/// Bytes of which the kernel has said whether it copied them.
fn counted(victim: &Victim) -> u64 {
    victim.counter("bytes_sent_without_copy") + victim.counter("bytes_copied_after_all")
}

/// Whether this kernel sends so much without a copy, as far as this user may lock memory; says so if not.
#[expect(clippy::print_stderr, reason = "whoever runs the tests is to see it")]
fn can_lend() -> bool {
    let (mut victim, mut stream, _source) = written_to_nobody();
    let reader = read_all(stream.try_clone().unwrap());
    lie(&mut victim, &mut stream);
    victim.until("the write is complete", |victim| !victim.seen.is_empty());
    drop(reader.join().unwrap());
    let all = counted(&victim) >= UNREAD as u64;
    if !all {
        eprintln!(
            "NOT TESTED: the system does not send {UNREAD} bytes without a copy (an old kernel, or `ulimit -l`)"
        );
    }
    all
}

/// A victim to which a peer lied that has not read what the kernel still reads.
fn lent_to_a_liar() -> (Victim, TcpStream, Source) {
    let (mut victim, mut stream, source) = written_to_nobody();
    lie(&mut victim, &mut stream);
    assert_eq!(victim.seen, [], "the kernel still reads that memory");
    assert!(victim.device.is_busy(source.1.key));
    (victim, stream, source)
}

#[test]
fn nothing_completes_that_the_kernel_still_reads() {
    if !can_lend() {
        return;
    }
    let (mut victim, stream, (_, local)) = lent_to_a_liar();
    let reader = read_all(stream);
    victim.until("the write is complete", |victim| !victim.seen.is_empty());
    assert_eq!((victim.seen[0].id, victim.seen[0].status), (3, Status::Success));
    assert!(counted(&victim) >= UNREAD as u64, "{}", counted(&victim));
    victim.device.deregister(local.key).unwrap();
    drop(reader.join().unwrap());
}

#[test]
fn a_peer_that_reads_nothing_keeps_nothing() {
    if !can_lend() {
        return;
    }
    let (mut victim, _stream, (_, local)) = lent_to_a_liar();
    victim.device.fail_queue_pair(victim.queue_pair);
    victim.until("everything is back", |victim| victim.seen.len() == 3);
    victim.device.deregister(local.key).unwrap();
    victim.device.destroy_queue_pair(victim.queue_pair).unwrap();
    // A device can also go at once: it would keep for good what the kernel did not give back in time.
    let (victim, _stream, (mapping, _)) = lent_to_a_liar();
    drop(victim);
    assert_eq!(Arc::strong_count(&mapping), 1);
}

/// A region that a peer reads is in use until its bytes are out of the kernel's hands, however they are sent.
fn regions_that_a_peer_reads_are_in_use(driver: TcpDriver) {
    let mut config = config(driver);
    config.zero_copy = ZeroCopy::Always;
    // More than both sockets have room for, so that the answer stays with the device until it is read.
    let length = 64_usize << 20;
    let (mut victim, mut stream) = Victim::attacked_with(config);
    let mapping = Arc::new(Mapping::private(length).unwrap());
    let keys = victim.device.register(mapping, Access::ALL).unwrap();
    stream.write_all(&header(Frame::Read { length: length as u64, remote: remote(keys, 0) })).unwrap();
    victim.until("that is heard", |victim| victim.counter("bytes_received") == HEADER_LENGTH as u64);
    assert!(victim.device.is_busy(keys.local));
    assert_eq!(victim.device.deregister(keys.local), Err(RegisterError::Busy));
    let reader = std::thread::spawn(move || {
        stream.read_exact(&mut vec![0; HEADER_LENGTH + length]).unwrap();
        stream
    });
    victim.until("it is out", |victim| !victim.device.is_busy(keys.local));
    let sent = victim.counter("bytes_sent");
    assert!(sent >= (HEADER_LENGTH + length) as u64, "{sent} bytes");
    victim.device.deregister(keys.local).unwrap();
    drop(reader.join().unwrap());
    // And so it is when the connection ends instead.
    let (mut victim, mut stream) = Victim::attacked_with(config);
    let mapping = Arc::new(Mapping::private(length).unwrap());
    let keys = victim.device.register(Arc::clone(&mapping), Access::ALL).unwrap();
    stream.write_all(&header(Frame::Read { length: length as u64, remote: remote(keys, 0) })).unwrap();
    victim.until("that is heard", |victim| victim.counter("bytes_received") == HEADER_LENGTH as u64);
    drop(stream);
    victim.until("both receives are done", |victim| victim.seen.len() >= 2);
    victim.device.deregister(keys.local).unwrap();
    assert_eq!(Arc::strong_count(&mapping), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Any bytes, some of them shaped like frames: no panic, nothing written where no peer may, and an end.
    #[test]
    fn any_bytes_are_survived(
        driver in prop::sample::select(TcpDriver::ALL.to_vec()),
        parts in prop::collection::vec((0_u8..12, any::<[u8; 48]>(), 0_usize..300, any::<[bool; 4]>()), 1..20),
    ) {
        let (mut victim, mut stream) = Victim::attacked(driver);
        for (kind, mut bytes, payload, [plain, own_key, small, counts]) in parts {
            bytes[0] = kind;
            if plain {
                bytes[1..4].fill(0);
                bytes[32..40].fill(0);
            }
            if own_key {
                bytes[4..8].copy_from_slice(&victim.open.1.remote.0.to_le_bytes());
                bytes[16..24].fill(0);
            }
            if small {
                bytes[8..16].copy_from_slice(&(payload as u64).to_le_bytes());
            }
            if counts {
                bytes[40..48].fill(0);
            }
            let _ = stream.write_all(&bytes);
            let _ = stream.write_all(&vec![0x5A; payload]);
        }
        drop(stream);
        victim.until("the failure", |victim| victim.state() == QueuePairState::Error && victim.seen.len() >= 2);
        // Receives got at most their own 64 bytes each; what lies behind is untouched.
        let mut rest = vec![0; 4096 - 128];
        victim.closed.0.window(128, 4096 - 128).unwrap().read(&mut rest);
        prop_assert!(rest.iter().all(|byte| *byte == 0));
        victim.device.deregister(victim.open.1.local).unwrap();
        victim.device.deregister(victim.closed.1.local).unwrap();
    }
}
