//! The system calls of the UDP link that no crate in use has a safe form of, and all its unsafe code: batches of
//! messages with control data.
//!
//! Every pointer handed to the kernel is made from a live slice or field right before the call that uses it, and the
//! kernel keeps none of them beyond the call.

use core::{
    ffi::c_int,
    mem::{size_of, zeroed},
    net::SocketAddr,
    ops::Range,
    ptr,
};
use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

use crate::link::system::Name;

/// The most bytes of one incoming message: what UDP can say.
pub(super) const MESSAGE_BYTES_MAX: usize = 65_535;

/// Room for the control data of one message: two values.
const CONTROL_BYTES: usize = 64;
/// Bytes of a control message's header: its length, its level, its type.
const CONTROL_HEADER: usize = size_of::<usize>() + 2 * size_of::<c_int>();

/// Control data of a message.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(8))]
struct Control {
    bytes: [u8; CONTROL_BYTES],
}

impl Control {
    const EMPTY: Self = Self { bytes: [0; CONTROL_BYTES] };

    /// Adds a value behind the first `used` bytes; returns how many are used then.
    fn put(&mut self, used: usize, level: c_int, kind: c_int, value: &[u8]) -> usize {
        let length = CONTROL_HEADER + value.len();
        let parts: [&[u8]; 4] = [&length.to_ne_bytes(), &level.to_ne_bytes(), &kind.to_ne_bytes(), value];
        let to = self.bytes.get_mut(used..).unwrap_or_default().iter_mut();
        for (to, from) in to.zip(parts.iter().flat_map(|part| part.iter())) {
            *to = *from;
        }
        used + length.next_multiple_of(size_of::<usize>())
    }
}

/// The values in a message's control data, with their level and type.
fn values(mut control: &[u8]) -> impl Iterator<Item = (c_int, c_int, &[u8])> {
    core::iter::from_fn(move || {
        let (length, rest) = control.split_first_chunk()?;
        let (level, rest) = rest.split_first_chunk()?;
        let (kind, _) = rest.split_first_chunk()?;
        let length = usize::from_ne_bytes(*length);
        let value = control.get(CONTROL_HEADER..length)?;
        control = control.get(length.next_multiple_of(size_of::<usize>())..).unwrap_or_default();
        Some((c_int::from_ne_bytes(*level), c_int::from_ne_bytes(*kind), value))
    })
}

/// A control value that is a number: a byte or an integer, as the kernel likes.
fn number(value: &[u8]) -> Option<c_int> {
    match *value {
        [byte] => Some(c_int::from(byte)),
        _ => value.first_chunk().map(|bytes| c_int::from_ne_bytes(*bytes)),
    }
}

/// Memory for the headers of a batch. The pointers in them are made anew for every call.
#[derive(Debug)]
struct Headers {
    messages: Vec<libc::mmsghdr>,
    vectors: Vec<libc::iovec>,
}

// SAFETY: the pointers inside are used only by the call that they were made for; between calls they are never
// dereferenced, by whatever thread.
unsafe impl Send for Headers {}

impl Headers {
    fn new(capacity: usize) -> Self {
        // SAFETY: a `mmsghdr` of zero bytes is a valid one that names nothing.
        let message: libc::mmsghdr = unsafe { zeroed() };
        let vector = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        Self { messages: vec![message; capacity], vectors: vec![vector; capacity] }
    }
}

/// One message to be sent: a range of the memory that the batch is sent from.
#[derive(Debug, Clone)]
pub(super) struct Outgoing {
    /// `None` where the socket is connected.
    pub(super) destination: Option<SocketAddr>,
    pub(super) range: Range<usize>,
    /// Where the kernel shall cut it.
    pub(super) segment: Option<u16>,
}

/// Sends several messages with one call.
#[derive(Debug)]
pub(super) struct SendBatch {
    headers: Headers,
    names: Vec<(Name, usize)>,
    controls: Vec<(Control, usize)>,
    ranges: Vec<Range<usize>>,
    capacity: usize,
}

impl SendBatch {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            headers: Headers::new(capacity),
            names: Vec::with_capacity(capacity),
            controls: Vec::with_capacity(capacity),
            ranges: Vec::with_capacity(capacity),
            capacity,
        }
    }

    pub(super) fn clear(&mut self) {
        self.names.clear();
        self.controls.clear();
        self.ranges.clear();
    }

    /// Adds a message; `false` when the batch is full.
    pub(super) fn push(&mut self, message: Outgoing) -> bool {
        if self.ranges.len() == self.capacity {
            return false;
        }
        let mut control = Control::EMPTY;
        let mut used = 0;
        if let Some(segment) = message.segment {
            used = control.put(used, libc::SOL_UDP, libc::UDP_SEGMENT, &segment.to_ne_bytes());
        }
        self.names.push(message.destination.map_or((Name::EMPTY, 0), Name::of));
        self.controls.push((control, used));
        self.ranges.push(message.range);
        true
    }

    /// Sends the messages from `bytes`; returns how many the kernel took, at least one.
    pub(super) fn send(&mut self, socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
        let Headers { messages, vectors } = &mut self.headers;
        let mut count = 0;
        let parts = self.names.iter_mut().zip(&mut self.controls).zip(&self.ranges);
        for ((message, vector), ((name, control), range)) in
            messages.iter_mut().zip(vectors.iter_mut()).zip(parts)
        {
            let Some(piece) = bytes.get(range.clone()) else { break };
            *vector = libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() };
            let header = &mut message.msg_hdr;
            header.msg_name = if name.1 == 0 { ptr::null_mut() } else { name.0.bytes.as_mut_ptr().cast() };
            header.msg_namelen = u32::try_from(name.1).unwrap_or_default();
            header.msg_iov = ptr::from_mut(vector);
            header.msg_iovlen = 1;
            header.msg_control =
                if control.1 == 0 { ptr::null_mut() } else { control.0.bytes.as_mut_ptr().cast() };
            header.msg_controllen = control.1;
            count += 1;
        }
        let flags = libc::MSG_DONTWAIT;
        if let (1, Some(only), Some(vector)) = (count, messages.first(), vectors.first())
            && only.msg_hdr.msg_controllen == 0
        {
            let header = &only.msg_hdr;
            // SAFETY: the vector and the header were just filled with pointers to bytes and a name that are borrowed until
            // this call returns, and with their lengths. The kernel reads them.
            let sent = unsafe {
                libc::sendto(
                    socket.as_raw_fd(),
                    vector.iov_base,
                    vector.iov_len,
                    flags,
                    header.msg_name.cast(),
                    header.msg_namelen,
                )
            };
            return if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(1) };
        }
        // SAFETY: the first `count` headers were just filled with pointers to names, vectors, control data and bytes
        // that are borrowed until this call returns, and with their lengths. The kernel reads all but `msg_len`.
        let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), count, flags) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

/// One message that came in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Incoming<'a> {
    pub(super) source: SocketAddr,
    pub(super) bytes: &'a [u8],
    /// The length of the packets in it but the last, if the kernel has joined several.
    pub(super) segment: Option<usize>,
    pub(super) traffic_class: u8,
}

/// Receives several messages with one call, into memory of its own.
#[derive(Debug)]
pub(super) struct ReceiveBatch {
    headers: Headers,
    names: Vec<Name>,
    controls: Vec<Control>,
    memory: Box<[u8]>,
    /// How many messages the next call asks for: one, until one has come. To learn that there is no second costs as much
    /// as half the first.
    wanted: usize,
}

impl ReceiveBatch {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            headers: Headers::new(capacity),
            names: vec![Name::EMPTY; capacity],
            controls: vec![Control::EMPTY; capacity],
            memory: vec![0; capacity * MESSAGE_BYTES_MAX].into_boxed_slice(),
            wanted: 1,
        }
    }

    /// Receives what is there, or the first of it; returns how many messages.
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let Headers { messages, vectors } = &mut self.headers;
        let mut count = 0;
        let pieces = self.memory.chunks_exact_mut(MESSAGE_BYTES_MAX);
        let parts = self.names.iter_mut().zip(&mut self.controls).zip(pieces);
        let headers = messages.iter_mut().zip(vectors).take(self.wanted);
        for ((message, vector), ((name, control), piece)) in headers.zip(parts) {
            *vector = libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: piece.len() };
            let header = &mut message.msg_hdr;
            header.msg_name = name.bytes.as_mut_ptr().cast();
            header.msg_namelen = u32::try_from(Name::LENGTH).unwrap_or_default();
            header.msg_iov = ptr::from_mut(vector);
            header.msg_iovlen = 1;
            header.msg_control = control.bytes.as_mut_ptr().cast();
            header.msg_controllen = CONTROL_BYTES;
            header.msg_flags = 0;
            count += 1;
        }
        let flags = libc::MSG_DONTWAIT;
        if let (1, Some(only)) = (count, messages.first_mut()) {
            // SAFETY: the header was just filled with pointers to a name, a vector, control data and memory that are
            // exclusively borrowed until this call returns, and with their lengths.
            let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut only.msg_hdr, flags) };
            only.msg_len = u32::try_from(length).map_err(|_| io::Error::last_os_error())?;
            self.wanted = self.names.len();
            return Ok(1);
        }
        // SAFETY: the first `count` headers were just filled with pointers to names, vectors, control data and memory
        // that are exclusively borrowed until this call returns, and with their lengths. There is no timeout.
        let received = unsafe {
            libc::recvmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), count, flags, ptr::null_mut())
        };
        usize::try_from(received).map_err(|_| {
            self.wanted = 1;
            io::Error::last_os_error()
        })
    }

    /// The message at this place of the last call's, if it has an address and is whole.
    pub(super) fn message(&self, at: usize) -> Option<Incoming<'_>> {
        let header = self.headers.messages.get(at)?;
        if header.msg_hdr.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
            return None;
        }
        let piece = self.memory.get(at * MESSAGE_BYTES_MAX..)?;
        let bytes = piece.get(..usize::try_from(header.msg_len).ok()?)?;
        let control = self.controls.get(at)?.bytes.get(..header.msg_hdr.msg_controllen)?;
        let (mut segment, mut traffic_class) = (None, 0);
        for (level, kind, value) in values(control) {
            match (level, kind) {
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    segment = number(value).and_then(|n| usize::try_from(n).ok())
                }
                (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    traffic_class = number(value).and_then(|n| u8::try_from(n).ok()).unwrap_or_default();
                }
                _ => {}
            }
        }
        Some(Incoming { source: self.names.get(at)?.address()?, bytes, segment, traffic_class })
    }
}

/// What is in a socket's error queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Notice<'a> {
    /// Where the packet went that it is about.
    pub(super) destination: SocketAddr,
    /// It came in an ICMP message; otherwise this host says it of itself.
    pub(super) from_network: bool,
    /// ICMP's type and code.
    pub(super) kind: u8,
    pub(super) code: u8,
    /// The beginning of what the packet carried.
    pub(super) quoted: &'a [u8],
}

/// Bytes that are wanted of a packet that is quoted.
const QUOTED_BYTES: usize = 64;

/// Memory to read error queues with.
#[derive(Debug)]
pub(super) struct ErrorMemory {
    name: Name,
    control: Control,
    quoted: [u8; QUOTED_BYTES],
}

impl ErrorMemory {
    pub(super) const fn new() -> Self {
        Self { name: Name::EMPTY, control: Control::EMPTY, quoted: [0; QUOTED_BYTES] }
    }

    /// Takes the next notice out of a socket's error queue; `None` when it makes no sense.
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<Option<Notice<'_>>> {
        self.name = Name::EMPTY;
        let mut vector = libc::iovec { iov_base: self.quoted.as_mut_ptr().cast(), iov_len: QUOTED_BYTES };
        // SAFETY: a header of zero bytes is a valid one, which names nothing.
        let mut header: libc::msghdr = unsafe { zeroed() };
        header.msg_name = self.name.bytes.as_mut_ptr().cast();
        header.msg_namelen = u32::try_from(Name::LENGTH).unwrap_or_default();
        header.msg_iov = &raw mut vector;
        header.msg_iovlen = 1;
        header.msg_control = self.control.bytes.as_mut_ptr().cast();
        header.msg_controllen = CONTROL_BYTES;
        let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
        // SAFETY: the header was just filled with pointers to a name, a vector, control data and memory that are
        // exclusively borrowed until this call returns, and with their lengths.
        let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };
        let length = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        Ok(self.notice(header.msg_controllen, length))
    }

    fn notice(&self, control_bytes: usize, length: usize) -> Option<Notice<'_>> {
        let control = self.control.bytes.get(..control_bytes)?;
        let mut all = values(control);
        let (_, _, value) = all.find(|(level, kind, _)| {
            matches!(
                (*level, *kind),
                (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
            )
        })?;
        // `struct sock_extended_err` (`linux/errqueue.h`): the error number, then origin, type and code.
        let (_, [origin, kind, code, ..]) = value.split_first_chunk::<4>()? else { return None };
        let from_network = matches!(*origin, libc::SO_EE_ORIGIN_ICMP | libc::SO_EE_ORIGIN_ICMP6);
        let destination = self.name.address()?;
        Some(Notice {
            destination,
            from_network,
            kind: *kind,
            code: *code,
            quoted: self.quoted.get(..length)?,
        })
    }
}
