//! Half round trip and goodput of the tcp device on loopback beside those of bare `TcpStream`s, in one run.
//!
//! `cargo run --release -p ringway-tcp --example pingpong`
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement at the terminal")]

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::thread;
use std::time::Instant;

use ringway_sim::ping_pong::{LARGE, LARGE_COUNT, PingPong, ROUNDS, SMALL, ping_pong};
use ringway_tcp::{PREFACE_LENGTH, TcpConfig, TcpDevice, parse_preface};

/// Makes the device with a listener, of which a thread accepts the connection.
fn device() -> TcpDevice {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (device, acceptor) = TcpDevice::new(TcpConfig::new(listener.local_addr().unwrap())).unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut preface = [0; PREFACE_LENGTH];
        stream.read_exact(&mut preface).unwrap();
        acceptor.offer(parse_preface(&preface).unwrap(), OwnedFd::from(stream)).unwrap();
    });
    device
}

fn spin_read(stream: &mut TcpStream, mut into: &mut [u8]) {
    while !into.is_empty() {
        match stream.read(into) {
            Ok(count) => {
                assert!(count > 0);
                into = &mut into[count..];
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
}

fn bare() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let other = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut bytes = [0; SMALL as usize];
        for _ in 0..ROUNDS {
            spin_read(&mut stream, &mut bytes);
            stream.write_all(&bytes).unwrap();
        }
        let mut large = vec![0; LARGE as usize];
        for _ in 0..LARGE_COUNT {
            spin_read(&mut stream, &mut large);
        }
        stream.write_all(&bytes).unwrap();
    });
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_nonblocking(true).unwrap();
    let mut bytes = [0; SMALL as usize];
    let mut half_round_trips = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        stream.write_all(&bytes).unwrap();
        spin_read(&mut stream, &mut bytes);
        half_round_trips.push(start.elapsed() / 2);
    }
    stream.set_nonblocking(false).unwrap();
    let large = vec![1; LARGE as usize];
    let start = Instant::now();
    for _ in 0..LARGE_COUNT {
        stream.write_all(&large).unwrap();
    }
    stream.read_exact(&mut bytes).unwrap();
    let figures = PingPong { half_round_trips, writing: start.elapsed(), large_count: LARGE_COUNT };
    println!("{:<24} {figures}", "bare, spinning");
    other.join().unwrap();
}

fn main() {
    bare();
    let (figures, _) = ping_pong([device(), device()]);
    println!("{:<24} {figures}", "tcp device");
}
