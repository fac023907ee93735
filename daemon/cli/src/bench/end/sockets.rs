//! An end that is a bare TCP socket: what everything else is compared with.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use ringway_tcp::Congestion;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{AddressFamily, SocketFlags, SocketType},
};

use super::{Address, MESSAGE_BYTES_MAX, Messenger, Part};
use crate::{
    bench::{
        costs::Copied,
        result::{Percentiles, Polling},
    },
    local::cluster::random_hex,
};

/// What messages are written from and read into: one after the other, as in memory that a device has.
const AREA_BYTES: usize = 2 * MESSAGE_BYTES_MAX as usize;
/// The tcp devices' congestion control: with the system's, if that paces, it would be pacing that is compared.
const CONGESTION: Congestion = Congestion::Unpaced;
/// Letters of what the ends know each other by: with the longest address they fit into an endpoint.
const SECRET_LENGTH: usize = 32;
/// How long the other end may take to connect, and whoever connects to say that it is that.
const PATIENCE: Duration = Duration::from_secs(10);
pub(super) const SAYING: Duration = Duration::from_millis(500);
/// Messages whose parts are timed.
const PARTS: usize = 2000;

/// One socket.
pub(super) struct SocketEnd {
    listener: TcpListener,
    address: SocketAddr,
    /// What the other end says first: whoever reaches the address can connect.
    secret: String,
    source: IpAddr,
    stream: Option<TcpStream>,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    next: usize,
    /// How many places further that is each time.
    step: usize,
    calls: u64,
}

fn failed(error: std::io::Error) -> String {
    format!("a socket failed: {error}")
}

fn connect(peer: SocketAddr) -> rustix::io::Result<TcpStream> {
    let family = if peer.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    CONGESTION.apply(&socket)?;
    rustix::net::connect(&socket, &peer)?;
    Ok(TcpStream::from(socket))
}

impl SocketEnd {
    pub(super) fn open(source: IpAddr) -> Result<Self, String> {
        let listener = TcpListener::bind((source, 0)).map_err(failed)?;
        CONGESTION.apply(&listener).map_err(|errno| failed(errno.into()))?;
        let address = listener.local_addr().map_err(failed)?;
        let mut secret = random_hex().map_err(failed)?;
        secret.truncate(SECRET_LENGTH);
        // Written once, so that the pages are there.
        let memory = || vec![1; AREA_BYTES];
        let (outgoing, incoming) = (memory(), memory());
        let (stream, next, step, calls) = (None, 0, 1, 0);
        Ok(Self { listener, address, secret, source, stream, outgoing, incoming, next, step, calls })
    }

    pub(super) fn address(&self) -> Address {
        Address { endpoint: format!("{} {}", self.address, self.secret).into_bytes(), key: 0 }
    }

    /// Takes the connection of the other end; whoever else connects meanwhile is hung up on.
    fn accept(&self) -> Result<TcpStream, String> {
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).map_err(|e| e.to_string())?;
            if poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&timeout)) == Ok(0) {
                return Err(format!("the other end did not connect within {} s", PATIENCE.as_secs()));
            }
            let Ok((mut stream, _)) = self.listener.accept() else { continue };
            let mut said = vec![0; self.secret.len()];
            let heard = stream.set_read_timeout(Some(SAYING)).and_then(|()| stream.read_exact(&mut said));
            if heard.is_ok() && said == self.secret.as_bytes() {
                stream.set_read_timeout(None).map_err(failed)?;
                return Ok(stream);
            }
        }
    }

    /// Where the next message lies.
    fn place(&mut self, bytes: u64) -> std::ops::Range<usize> {
        let length = (bytes as usize).clamp(1, AREA_BYTES);
        let first = self.next % (AREA_BYTES / length) * length;
        self.next += self.step;
        first..first + length
    }

    fn stream(&self) -> Result<&TcpStream, String> {
        self.stream.as_ref().ok_or_else(|| "the socket is not connected".to_owned())
    }

    /// Nanoseconds of a call.
    fn timed(mut call: impl FnMut() -> Result<(), String>) -> Result<f64, String> {
        let begun = Instant::now();
        call()?;
        Ok(begun.elapsed().as_nanos() as f64)
    }

    /// Waits without reading until something can be read.
    fn wait_readable(&self) -> Result<(), String> {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        while poll(&mut [PollFd::new(self.stream()?, PollFlags::IN)], Some(&now))
            .map_err(|e| e.to_string())?
            == 0
        {
            std::hint::spin_loop();
        }
        Ok(())
    }
}

impl Messenger for SocketEnd {
    fn connect(&mut self, peer: &Address, active: bool) -> Result<(), String> {
        let stream = if active {
            let text = String::from_utf8_lossy(&peer.endpoint).into_owned();
            let no_address = || format!("`{text}` is not an address");
            let (at, secret) = text.split_once(' ').ok_or_else(no_address)?;
            let at: SocketAddr = at.parse().map_err(|_| no_address())?;
            let mut stream =
                connect(at).map_err(|e| format!("cannot connect {} to {at}: {e}", self.source))?;
            stream.write_all(secret.as_bytes()).map_err(failed)?;
            stream
        } else {
            self.accept()?
        };
        stream.set_nodelay(true).map_err(failed)?;
        self.stream = Some(stream);
        Ok(())
    }

    fn set_place(&mut self, in_one_place: bool) {
        self.next = 0;
        self.step = (!in_one_place).into();
    }

    fn set_polling(&mut self, polling: Polling) -> Result<(), String> {
        self.stream()?.set_nonblocking(polling == Polling::Spin).map_err(failed)
    }

    fn send(&mut self, bytes: u64) -> Result<(), String> {
        let mut place = self.place(bytes);
        while !place.is_empty() {
            let rest = self.outgoing.get(place.clone()).unwrap_or_default();
            let written = self.stream.as_ref().ok_or("the socket is not connected")?.write(rest);
            self.calls += 1;
            match written {
                Ok(count) => place.start += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn receive(&mut self, bytes: u64) -> Result<(), String> {
        let mut place = self.place(bytes);
        while !place.is_empty() {
            let room = self.incoming.get_mut(place.clone()).unwrap_or_default();
            let read = self.stream.as_ref().ok_or("the socket is not connected")?.read(room);
            self.calls += 1;
            match read {
                Ok(0) => return Err("the other end has gone".to_owned()),
                Ok(count) => place.start += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(())
    }

    fn counts(&self) -> (u64, Option<Copied>) {
        (self.calls, Some(Copied::default()))
    }

    fn parts(&mut self, leads: bool) -> Result<Vec<Part>, String> {
        self.set_polling(Polling::Spin)?;
        let (mut sending, mut reading) = (Vec::new(), Vec::new());
        for _ in 0..PARTS {
            if leads {
                sending.push(Self::timed(|| self.send(8))?);
            }
            self.wait_readable()?;
            reading.push(Self::timed(|| self.receive(8))?);
            if !leads {
                sending.push(Self::timed(|| self.send(8))?);
            }
        }
        let part = |name: &str, times: &mut Vec<f64>, how: &str| Part {
            name: name.to_owned(),
            us: Percentiles::of(times).p50,
            how: how.to_owned(),
        };
        Ok(vec![
            part(
                "send",
                &mut sending,
                "send(2) of 8 bytes; on a virtual link it carries the packet to the peer's socket",
            ),
            part("recv", &mut reading, "recv(2) of 8 bytes that are there"),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_else_connects_is_not_taken_for_the_other_end() {
        let address = IpAddr::from([127, 0, 0, 1]);
        let [mut one, mut other] = [0; 2].map(|_| SocketEnd::open(address).expect("open"));
        let silent = TcpStream::connect(other.address).expect("connected");
        let mut wrong = TcpStream::connect(other.address).expect("connected");
        wrong.write_all(&[b'0'; SECRET_LENGTH]).expect("written");
        one.connect(&other.address(), true).expect("connected");
        other.connect(&Address::default(), false).expect("connected");
        one.send(8).expect("sent");
        other.receive(8).expect("received");
        drop(silent);
    }
}
