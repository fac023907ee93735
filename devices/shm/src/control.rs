//! The Unix socket of a connection: who connects to whom, the files that are shared, and that the peer lives.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ringway_mem::{
    is_written_by_owner_only,
    passing::{self, ReceiveError, SendError},
};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::endpoint::{Name, TOKEN_BYTES, Token, VERSION};
use crate::{ShmError, ShmFailure};

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const REGION: u8 = 3;
const FORGET: u8 = 4;
/// Bytes of every message: what it is, the version, two zeros, a key, a token.
const MESSAGE_BYTES: usize = 8 + TOKEN_BYTES;
const BACKLOG: i32 = 128;

/// A message, with what came along.
#[derive(Debug)]
pub(crate) enum Message {
    /// The first of who connects: the token it was given, its file and its doorbell.
    Hello { token: Token, file: OwnedFd, doorbell: OwnedFd },
    /// The answer: the token of who connected, file and doorbell.
    Welcome { token: Token, file: OwnedFd, doorbell: OwnedFd },
    /// A region that entries will name.
    Region { key: u32, file: OwnedFd },
    /// A region that no entry will name any more.
    Forget { key: u32 },
}

fn emit(tag: u8, key: u32, token: &Token) -> [u8; MESSAGE_BYTES] {
    let mut bytes = [0; MESSAGE_BYTES];
    bytes[0] = tag;
    bytes[1] = VERSION;
    bytes[4..8].copy_from_slice(&key.to_le_bytes());
    bytes[8..].copy_from_slice(token);
    bytes
}

/// What a message says; `None` when it means nothing.
fn parse(bytes: &[u8], descriptors: Vec<OwnedFd>) -> Option<Message> {
    let bytes: &[u8; MESSAGE_BYTES] = bytes.try_into().ok()?;
    let [tag, version, _, _, key @ ..] = *bytes.first_chunk::<8>()?;
    let (key, token) = (u32::from_le_bytes(key), bytes.last_chunk::<TOKEN_BYTES>()?);
    if version != VERSION {
        return None;
    }
    let mut files = descriptors.into_iter();
    let message = match tag {
        HELLO => Message::Hello { token: *token, file: files.next()?, doorbell: files.next()? },
        WELCOME => Message::Welcome { token: *token, file: files.next()?, doorbell: files.next()? },
        REGION => Message::Region { key, file: files.next()? },
        FORGET => Message::Forget { key },
        _ => return None,
    };
    files.next().is_none().then_some(message)
}

/// Receives a message; `None` when there is none now.
pub(crate) fn receive(socket: BorrowedFd<'_>) -> Result<Option<Message>, ShmFailure> {
    let mut bytes = [0; MESSAGE_BYTES];
    match passing::receive(socket, &mut bytes, 2) {
        Ok(received) => {
            let bytes = bytes.get(..received.length).ok_or(ShmFailure::Protocol)?;
            parse(bytes, received.descriptors).map(Some).ok_or(ShmFailure::Protocol)
        }
        Err(ReceiveError::WouldBlock) => Ok(None),
        Err(ReceiveError::Closed) => Err(ShmFailure::Closed),
        Err(ReceiveError::DescriptorsLost) => Err(ShmFailure::Memory),
        Err(_) => Err(ShmFailure::Protocol),
    }
}

pub(crate) fn say_hello(
    socket: BorrowedFd<'_>,
    token: &Token,
    files: [BorrowedFd<'_>; 2],
) -> Result<(), ShmFailure> {
    send(socket, &emit(HELLO, 0, token), &files)
}

pub(crate) fn say_welcome(
    socket: BorrowedFd<'_>,
    token: &Token,
    files: [BorrowedFd<'_>; 2],
) -> Result<(), ShmFailure> {
    send(socket, &emit(WELCOME, 0, token), &files)
}

pub(crate) fn share(socket: BorrowedFd<'_>, key: u32, file: BorrowedFd<'_>) -> Result<(), ShmFailure> {
    send(socket, &emit(REGION, key, &[0; TOKEN_BYTES]), &[file])
}

pub(crate) fn forget(socket: BorrowedFd<'_>, key: u32) -> Result<(), ShmFailure> {
    send(socket, &emit(FORGET, key, &[0; TOKEN_BYTES]), &[])
}

fn send(socket: BorrowedFd<'_>, bytes: &[u8], files: &[BorrowedFd<'_>]) -> Result<(), ShmFailure> {
    passing::send(socket, bytes, files).map_err(|error| match error {
        SendError::Closed => ShmFailure::Closed,
        _ => ShmFailure::Memory,
    })
}

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

fn socket() -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)
}

/// The socket on which peers find this device.
pub(crate) fn listen(name: &Name) -> Result<OwnedFd, ShmError> {
    let system = |errno: Errno| ShmError::System { what: "a Unix socket", errno: errno.raw_os_error() };
    let address = SocketAddrUnix::new_abstract_name(name).map_err(system)?;
    let listener = socket().map_err(system)?;
    rustix::net::bind(&listener, &address).map_err(system)?;
    rustix::net::listen(&listener, BACKLOG).map_err(system)?;
    Ok(listener)
}

/// A peer that has connected, if there is one.
pub(crate) fn accept(listener: BorrowedFd<'_>) -> Option<OwnedFd> {
    rustix::net::accept_with(listener, FLAGS).ok()
}

/// Connects to a device. Unix sockets do so at once.
pub(crate) fn connect(name: &Name) -> Result<OwnedFd, ShmFailure> {
    let address = SocketAddrUnix::new_abstract_name(name).map_err(|_| ShmFailure::Refused)?;
    let connection = socket().map_err(|_| ShmFailure::Memory)?;
    rustix::net::connect(&connection, &address).map_err(|_| ShmFailure::Refused)?;
    Ok(connection)
}

/// A descriptor for the same memory that cannot be used to write it, neither as it is nor by opening the file again; `None`
/// where there can be none.
pub(crate) fn read_only(file: BorrowedFd<'_>) -> Option<OwnedFd> {
    use std::os::fd::AsRawFd;
    if !is_written_by_owner_only(file) {
        return None;
    }
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::open(path, flags, rustix::fs::Mode::empty()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::random;

    #[test]
    fn a_message_comes_with_what_it_needs_and_nothing_else() {
        let name = random().expect("random");
        let listener = listen(&name).expect("listening");
        assert!(accept(listener.as_fd()).is_none());
        let one = connect(&name).expect("connected");
        let other = accept(listener.as_fd()).expect("a connection");
        assert!(receive(other.as_fd()).expect("nothing").is_none());
        let token = random().expect("random");
        let file = listener.as_fd();
        say_hello(one.as_fd(), &token, [file, file]).expect("sent");
        share(one.as_fd(), 7, file).expect("sent");
        forget(one.as_fd(), 8).expect("sent");
        let came = receive(other.as_fd()).expect("no fault");
        assert!(matches!(came, Some(Message::Hello { token: t, .. }) if t == token), "{came:?}");
        assert!(matches!(receive(other.as_fd()), Ok(Some(Message::Region { key: 7, .. }))));
        assert!(matches!(receive(other.as_fd()), Ok(Some(Message::Forget { key: 8 }))));
        send(one.as_fd(), &emit(WELCOME, 0, &token), &[file]).expect("sent");
        assert!(matches!(receive(other.as_fd()), Err(ShmFailure::Protocol)), "the doorbell is missing");
        send(one.as_fd(), &emit(FORGET, 0, &token), &[file]).expect("sent");
        assert!(matches!(receive(other.as_fd()), Err(ShmFailure::Protocol)), "a file too many");
        send(one.as_fd(), &[1; 3], &[]).expect("sent");
        assert!(matches!(receive(other.as_fd()), Err(ShmFailure::Protocol)));
        drop(one);
        assert!(matches!(receive(other.as_fd()), Err(ShmFailure::Closed)));
        drop((listener, came));
        assert_eq!(connect(&name).expect_err("nobody"), ShmFailure::Refused);
    }
}
