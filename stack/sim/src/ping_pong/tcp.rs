//! The same between two TCP sockets, with nothing of ours behind them: what devices are compared with.

use std::{
    io::{ErrorKind, Read, Write},
    net::{IpAddr, TcpListener, TcpStream},
    sync::mpsc,
    thread,
    time::Instant,
};

use super::{Amount, LARGE, PingPong, SMALL};

fn spin_read(stream: &mut TcpStream, mut into: &mut [u8]) {
    while !into.is_empty() {
        match stream.read(into) {
            Ok(count) => {
                assert!(count > 0, "the other side is gone");
                into = &mut into[count..];
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
}

fn spin_write(stream: &mut TcpStream, mut from: &[u8]) {
    while !from.is_empty() {
        match stream.write(from) {
            Ok(count) => from = &from[count..],
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
}

fn spinning(stream: TcpStream) -> TcpStream {
    stream.set_nodelay(true).expect("no delay");
    stream.set_nonblocking(true).expect("non-blocking");
    stream
}

fn answer(mut stream: TcpStream, Amount { rounds, large_count, .. }: Amount) {
    let mut bytes = [0; SMALL as usize];
    for _ in 0..rounds {
        spin_read(&mut stream, &mut bytes);
        spin_write(&mut stream, &bytes);
    }
    let mut large = vec![0; LARGE as usize];
    for _ in 0..large_count {
        spin_read(&mut stream, &mut large);
    }
    spin_write(&mut stream, &bytes);
}

fn measure(mut stream: TcpStream, Amount { rounds, large_count, .. }: Amount) -> PingPong {
    let mut bytes = [0; SMALL as usize];
    let mut half_round_trips = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let start = Instant::now();
        spin_write(&mut stream, &bytes);
        spin_read(&mut stream, &mut bytes);
        half_round_trips.push(start.elapsed() / 2);
    }
    let large = vec![1; LARGE as usize];
    let start = Instant::now();
    for _ in 0..large_count {
        spin_write(&mut stream, &large);
    }
    spin_read(&mut stream, &mut bytes);
    PingPong { half_round_trips, writing: start.elapsed(), large_count }
}

/// Measures two TCP sockets that spin, of which the one that answers has this address. `enter` is called as by
/// [`ping_pong_between`](super::ping_pong_between).
pub fn ping_pong_over_tcp(address: IpAddr, amount: Amount, enter: impl Fn(usize) + Sync) -> PingPong {
    let enter = &enter;
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            enter(1);
            let listener = TcpListener::bind((address, 0)).expect("a listener");
            tell.send(listener.local_addr().expect("its address")).expect("the other side waits for it");
            let (stream, _) = listener.accept().expect("a connection");
            answer(spinning(stream), amount);
        });
        let measuring = scope.spawn(move || {
            enter(0);
            let stream = TcpStream::connect(told.recv().expect("a listener")).expect("a connection");
            measure(spinning(stream), amount)
        });
        measuring.join().expect("no panic")
    })
}
