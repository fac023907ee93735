//! What the kernel knows about interfaces, routes and neighbours, asked for in messages (netlink(7), rtnetlink(7)).

use core::net::IpAddr;
use std::{io, os::fd::OwnedFd, time::Duration};

use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, bind,
    netlink::{self, SocketAddrNetlink},
    recv, send, socket_with,
    sockopt::{Timeout, set_socket_timeout},
};

/// About routes, neighbours and interfaces.
pub(super) const ROUTE: Option<Protocol> = None;
/// About what has a name instead of a number.
pub(super) const GENERIC: Option<Protocol> = Some(netlink::GENERIC);
/// Messages that tell about neighbours (`RTMGRP_NEIGH`).
pub(super) const GROUP_NEIGHBOURS: u32 = 4;
/// Bytes that one answer may have. An interface's is the longest.
const ANSWER_BYTES: usize = 32 << 10;
/// The kernel answers at once; no answer is no reason to wait for ever.
const PATIENCE: Duration = Duration::from_secs(2);

/// Asks about something; combined with others that say how.
pub(super) const REQUEST: u16 = 1;
/// Makes what is not there (`NLM_F_CREATE`).
pub(super) const CREATE: u16 = 0x400;
/// Wants an answer even if there is nothing to say (`NLM_F_ACK`).
pub(super) const ACKNOWLEDGE: u16 = 4;

const KIND_ERROR: u16 = 2;
const HEADER: usize = 16;
const ALIGN: usize = 4;

/// A message to the kernel, of bounded size.
#[derive(Debug)]
pub(super) struct Request {
    bytes: [u8; 160],
    length: usize,
}

impl Request {
    /// A message of this kind that begins with these bytes.
    pub(super) fn new(kind: u16, flags: u16, body: &[&[u8]]) -> Self {
        let mut request = Self { bytes: [0; 160], length: 0 };
        // The length is filled in by `finish`, the sequence number by `Netlink`; the sender is the socket.
        request.put(&[0; 4]);
        request.put(&(kind.to_ne_bytes()));
        request.put(&(flags | REQUEST).to_ne_bytes());
        request.put(&[0; 8]);
        for part in body {
            request.put(part);
        }
        request
    }

    /// Adds an attribute.
    pub(super) fn with(mut self, kind: u16, value: &[u8]) -> Self {
        self.length = self.length.next_multiple_of(ALIGN);
        let length = u16::try_from(4 + value.len()).unwrap_or_default();
        self.put(&length.to_ne_bytes());
        self.put(&kind.to_ne_bytes());
        self.put(value);
        self
    }

    /// Adds an address as an attribute.
    pub(super) fn with_address(self, kind: u16, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => self.with(kind, &v4.octets()),
            IpAddr::V6(v6) => self.with(kind, &v6.octets()),
        }
    }

    fn put(&mut self, bytes: &[u8]) {
        for (to, from) in self.bytes.iter_mut().skip(self.length).zip(bytes) {
            *to = *from;
        }
        self.length = (self.length + bytes.len()).min(self.bytes.len());
    }

    fn finish(&mut self, sequence: u32) -> &[u8] {
        let length = u32::try_from(self.length).unwrap_or_default();
        for (at, value) in [(0, length), (8, sequence)] {
            for (to, from) in self.bytes.iter_mut().skip(at).zip(value.to_ne_bytes()) {
                *to = from;
            }
        }
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// A message of the kernel's.
#[derive(Debug, Clone, Copy)]
pub(super) struct Message<'a> {
    pub(super) kind: u16,
    sequence: u32,
    pub(super) body: &'a [u8],
}

impl Message<'_> {
    /// The error that it reports, if it reports one.
    fn error(&self) -> Option<io::Error> {
        let errno = i32::from_ne_bytes(*self.body.first_chunk()?);
        (self.kind == KIND_ERROR && errno != 0).then(|| io::Error::from_raw_os_error(errno.wrapping_neg()))
    }
}

/// The messages in these bytes, as far as they are whole.
pub(super) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    core::iter::from_fn(move || {
        let header: &[u8; HEADER] = bytes.first_chunk()?;
        let [l0, l1, l2, l3, k0, k1, _, _, s0, s1, s2, s3, ..] = *header;
        let length = usize::try_from(u32::from_ne_bytes([l0, l1, l2, l3])).ok()?;
        let body = bytes.get(HEADER..length)?;
        bytes = bytes.get(length.next_multiple_of(ALIGN)..).unwrap_or_default();
        let sequence = u32::from_ne_bytes([s0, s1, s2, s3]);
        Some(Message { kind: u16::from_ne_bytes([k0, k1]), sequence, body })
    })
}

/// The attributes in these bytes, as far as they are whole: their kinds and values.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    core::iter::from_fn(move || {
        let header: &[u8; 4] = bytes.first_chunk()?;
        let [l0, l1, k0, k1] = *header;
        let length = usize::from(u16::from_ne_bytes([l0, l1]));
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(ALIGN)..).unwrap_or_default();
        // The upper bits say how the value is built.
        Some((u16::from_ne_bytes([k0, k1]) & 0x3fff, value))
    })
}

/// A number in an attribute.
pub(super) fn number(value: &[u8]) -> Option<u32> {
    value.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// An address in an attribute.
pub(super) fn address(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => value.first_chunk::<4>().map(|octets| IpAddr::from(*octets)),
        16 => value.first_chunk::<16>().map(|octets| IpAddr::from(*octets)),
        _ => None,
    }
}

/// The number of an address's family.
pub(super) const fn family(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 2,
        IpAddr::V6(_) => 10,
    }
}

/// A socket to ask the kernel over, or to be told by it.
#[derive(Debug)]
pub(super) struct Netlink {
    socket: OwnedFd,
    buffer: Box<[u8]>,
    sequence: u32,
}

impl Netlink {
    /// Opens one of this protocol that is told what concerns these groups.
    pub(super) fn open(protocol: Option<Protocol>, groups: u32) -> io::Result<Self> {
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
        bind(&socket, &SocketAddrNetlink::new(0, groups))?;
        Ok(Self { socket, buffer: vec![0; ANSWER_BYTES].into_boxed_slice(), sequence: 0 })
    }

    /// Sends a request and does not wait for what becomes of it.
    pub(super) fn tell(&mut self, mut request: Request) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        send(&self.socket, request.finish(self.sequence), SendFlags::DONTWAIT)?;
        Ok(())
    }

    /// Sends a request; returns the kernel's answer.
    pub(super) fn ask(&mut self, request: Request) -> io::Result<Message<'_>> {
        self.tell(request)?;
        let wanted = self.sequence;
        let is_answer = |message: &Message<'_>| message.sequence == wanted;
        let length = loop {
            let (length, _) = recv(&self.socket, &mut self.buffer[..], RecvFlags::empty())?;
            // Answers to what was asked before and not awaited may come first.
            if messages(self.buffer.get(..length).unwrap_or_default()).any(|message| is_answer(&message)) {
                break length;
            }
        };
        let answer = messages(self.buffer.get(..length).unwrap_or_default()).find(is_answer);
        let answer = answer.ok_or_else(|| io::Error::from_raw_os_error(libc::EIO))?;
        answer.error().map_or(Ok(answer), Err)
    }

    /// News that have come, without waiting; `None` when there are no more.
    pub(super) fn news(&mut self) -> Option<io::Result<impl Iterator<Item = Message<'_>>>> {
        match recv(&self.socket, &mut self.buffer[..], RecvFlags::DONTWAIT) {
            Ok((length, _)) => Some(Ok(messages(self.buffer.get(..length).unwrap_or_default()))),
            Err(rustix::io::Errno::AGAIN) => None,
            Err(error) => Some(Err(error.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_can_be_looked_at(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for message in messages(&bytes) {
                let _ = message.error();
                for (_, value) in attributes(message.body) {
                    let _ = (number(value), address(value));
                }
            }
            for (_, value) in attributes(&bytes) {
                prop_assert!(value.len() < bytes.len());
            }
        }
    }

    #[test]
    fn a_request_reads_back_as_what_was_asked() {
        let mut request = Request::new(26, ACKNOWLEDGE, &[&[1, 2, 3, 4]])
            .with(3, b"eth0\0")
            .with_address(1, "10.1.2.3".parse().unwrap());
        let bytes = request.finish(77).to_vec();
        let message = messages(&bytes).next().unwrap();
        assert_eq!((message.kind, message.sequence), (26, 77));
        let found: Vec<_> = attributes(&message.body[4..]).collect();
        assert_eq!(found, [(3, &b"eth0\0"[..]), (1, &[10, 1, 2, 3])]);
    }
}
