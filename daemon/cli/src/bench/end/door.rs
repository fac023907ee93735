//! Takes the connections of a tcp device, as a daemon's door does.

use std::{
    io::{ErrorKind, Read as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    os::fd::OwnedFd,
};

use ringway_tcp::{PREFACE_LENGTH, TcpAcceptor, parse_preface};

/// A listener that never blocks, and connections that have not said yet whose they are.
pub(super) struct Door {
    listener: TcpListener,
    acceptor: Option<TcpAcceptor>,
    arriving: Vec<(TcpStream, Vec<u8>)>,
}

impl Door {
    pub(super) fn open(address: IpAddr) -> Result<(Self, SocketAddr), String> {
        let failed = |error: std::io::Error| format!("cannot listen on {address}: {error}");
        let listener = TcpListener::bind((address, 0)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let at = listener.local_addr().map_err(failed)?;
        Ok((Self { listener, acceptor: None, arriving: Vec::new() }, at))
    }

    /// Connections go to this device.
    pub(super) fn leads_to(&mut self, acceptor: TcpAcceptor) {
        self.acceptor = Some(acceptor);
    }

    /// Takes what has come.
    pub(super) fn turn(&mut self) {
        let Some(acceptor) = &self.acceptor else { return };
        while let Ok((stream, _)) = self.listener.accept() {
            if stream.set_nonblocking(true).is_ok() {
                self.arriving.push((stream, Vec::new()));
            }
        }
        let arriving = std::mem::take(&mut self.arriving);
        for (mut stream, mut bytes) in arriving {
            let mut rest = [0; PREFACE_LENGTH];
            let room = rest.get_mut(bytes.len()..).unwrap_or_default();
            match stream.read(room) {
                Ok(0) => continue,
                Ok(count) => bytes.extend(room.iter().take(count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => continue,
            }
            match bytes.first_chunk::<PREFACE_LENGTH>().map(parse_preface) {
                // An offer that finds no room is closed, and its end says that it could not connect.
                Some(Some(token)) => _ = acceptor.offer(token, OwnedFd::from(stream)),
                Some(None) => {}
                None => self.arriving.push((stream, bytes)),
            }
        }
    }
}
