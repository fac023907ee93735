//! Lines of JSON over TCP, to and from a program that may be anything.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use rustix::net::sockopt;
use serde::{Serialize, de::DeserializeOwned};

use crate::bench::interrupt::Interrupt;

/// The longest line that is read.
const LINE_BYTES_MAX: usize = 1 << 16;
/// How often an interrupt is looked for while nothing comes.
const LOOK: Duration = Duration::from_millis(100);
/// How long the other program may leave what is written unread.
const WRITING: Duration = Duration::from_secs(10);
/// After so much silence the other host is asked whether it is there, and as often as this before it counts as gone.
const ASKING: Duration = Duration::from_secs(5);
const ASKED: u32 = 4;

/// A connection, with what was read beyond the last line.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    unread: Vec<u8>,
    pub(super) local: IpAddr,
    pub(super) peer: SocketAddr,
}

impl Connection {
    pub(super) fn new(stream: TcpStream) -> Result<Self, String> {
        let prepare = || {
            stream.set_nonblocking(false)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(LOOK))?;
            stream.set_write_timeout(Some(WRITING))?;
            sockopt::set_socket_keepalive(&stream, true)?;
            sockopt::set_tcp_keepidle(&stream, ASKING)?;
            sockopt::set_tcp_keepintvl(&stream, ASKING)?;
            sockopt::set_tcp_keepcnt(&stream, ASKED)?;
            Ok((stream.local_addr()?.ip(), stream.peer_addr()?))
        };
        let (local, peer) = prepare().map_err(|e: std::io::Error| format!("the connection failed: {e}"))?;
        Ok(Self { stream, unread: Vec::new(), local, peer })
    }

    /// The largest packet that the way to the peer carries, where the system tells.
    pub(super) fn mtu_bytes(&self) -> Option<u32> {
        sockopt::ip_mtu(&self.stream).ok()
    }

    pub(super) fn send<T: Serialize>(&mut self, what: &T) -> Result<(), String> {
        let text = serde_json::to_string(what).map_err(|e| e.to_string())? + "\n";
        self.stream.write_all(text.as_bytes()).map_err(|e| format!("it has gone ({e})"))
    }

    /// The next line, which must have come as a whole after this time; `None` when the other program has gone.
    pub(super) fn receive<T: DeserializeOwned>(
        &mut self,
        patience: Duration,
        interrupt: &Interrupt,
    ) -> Result<Option<T>, String> {
        let until = Instant::now() + patience;
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                return serde_json::from_slice(&line).map(Some).map_err(|_| {
                    let start: String = String::from_utf8_lossy(&line).chars().take(60).collect();
                    format!("it said {start:?}, which is nothing that `ringway bench` says")
                });
            }
            if self.unread.len() > LINE_BYTES_MAX {
                return Err(format!("it sent a line of more than {LINE_BYTES_MAX} bytes"));
            }
            if interrupt.came() {
                return Err("interrupted".to_owned());
            }
            if Instant::now() > until {
                return Err(format!("it said nothing for {} s", patience.as_secs()));
            }
            let mut chunk = [0; 4096];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Ok(None),
                Ok(count) => self.unread.extend(chunk.iter().take(count)),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::Interrupted => {}
                    ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => return Ok(None),
                    _ => return Err(format!("the connection failed: {error}")),
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn pair() -> (Connection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let other = TcpStream::connect(listener.local_addr().expect("its address")).expect("a connection");
        (Connection::new(listener.accept().expect("a connection").0).expect("usable"), other)
    }

    fn told(bytes: &[u8]) -> Result<Option<Vec<u32>>, String> {
        let (mut here, mut there) = pair();
        there.write_all(bytes).expect("written");
        drop(there);
        here.receive(Duration::from_secs(5), &Interrupt::default())
    }

    #[test]
    fn lines_come_one_by_one() {
        let (mut here, mut there) = pair();
        there.write_all(b"[1,2]\n[3]\n[4").expect("written");
        let mut next = || here.receive::<Vec<u32>>(Duration::from_secs(5), &Interrupt::default());
        assert_eq!(next(), Ok(Some(vec![1, 2])));
        assert_eq!(next(), Ok(Some(vec![3])));
        drop(there);
        assert_eq!(next(), Ok(None));
    }

    #[test]
    fn what_is_no_line_of_ours_is_refused() {
        assert_eq!(told(b""), Ok(None));
        for bytes in [&b"SSH-2.0-OpenSSH\r\n"[..], b"\xff\xfe\n", b"{\"a\":\n"] {
            assert!(told(bytes).expect_err("refused").contains("nothing that"));
        }
        assert!(told(&[b'['; 10_000]).is_ok(), "no line yet, and then gone");
        let nested = [vec![b'['; 10_000], b"\n".to_vec()].concat();
        assert!(told(&nested).is_err());
        assert!(told(&vec![b' '; 2 * LINE_BYTES_MAX]).expect_err("refused").contains("65536"));
    }

    #[test]
    fn silence_ends() {
        let (mut here, _there) = pair();
        let nothing = here.receive::<u32>(Duration::ZERO, &Interrupt::default());
        assert!(nothing.expect_err("silence").contains("nothing for 0 s"));
    }
}
