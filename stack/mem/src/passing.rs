//! One SEQPACKET message with descriptors over a Unix socket.
//!
//! A receiver never ends up with descriptors it did not expect: they are close-on-exec from the first moment
//! (`MSG_CMSG_CLOEXEC`), a message whose bytes or descriptors were cut off is an error, and everything that came with
//! a refused message is closed.

use core::mem::MaybeUninit;
use std::{
    io::{IoSlice, IoSliceMut},
    os::fd::{BorrowedFd, OwnedFd},
};

use rustix::{
    io::Errno,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags,
    },
    process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open},
};
use thiserror::Error;

use crate::calls;

/// An owned duplicate, which the kernel makes, of a descriptor of this process of which only the number is known.
///
/// # Errors
/// The kernel's reason, which is `EBADF` when there is no such descriptor.
pub fn duplicate(number: i32) -> Result<OwnedFd, Errno> {
    // The kernel is asked about numbers that can be descriptors' only.
    if number < 0 {
        return Err(Errno::BADF);
    }
    pidfd_getfd(pidfd_open(getpid(), PidfdFlags::empty())?, number, PidfdGetfdFlags::empty())
}

/// The most descriptors one message may carry.
pub const MAX_DESCRIPTORS: usize = 8;

const SPACE: usize = rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS));

/// Why a message was not sent. Nothing was sent then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SendError {
    /// The socket's buffer is full and the socket does not block.
    #[error("the socket is full: send again when it is writable")]
    WouldBlock,
    /// The other side is gone.
    #[error("the other side closed the socket")]
    Closed,
    /// More descriptors than a message may carry.
    #[error("{0} descriptors do not fit into one message: send at most {MAX_DESCRIPTORS}")]
    TooManyDescriptors(usize),
    /// The kernel refused.
    #[error("the kernel refused to send the message: {0}")]
    Kernel(Errno),
}

/// Why no message was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ReceiveError {
    /// No message is there and the socket does not block.
    #[error("no message has come yet: receive again when the socket is readable")]
    WouldBlock,
    /// The other side is gone (or sent an empty message, which means the same).
    #[error("the other side closed the socket")]
    Closed,
    /// The message is longer than the buffer. It is lost.
    #[error("a message longer than {0} bytes came: close the socket")]
    TooLong(usize),
    /// The message carried more descriptors than allowed. They were closed, the message is lost.
    #[error("a message with more than {0} descriptors came: close the socket")]
    TooManyDescriptors(usize),
    /// The kernel could not hand over every descriptor. Those it did were closed, the message is lost.
    #[error("descriptors were lost in a message: raise the limit on open files, and close the socket")]
    DescriptorsLost,
    /// The kernel refused.
    #[error("the kernel refused to receive a message: {0}")]
    Kernel(Errno),
}

/// A message's length and the descriptors that came along.
#[derive(Debug)]
pub struct Received {
    /// Bytes of the message, now at the buffer's start; at least one.
    pub length: usize,
    /// Descriptors, in the sender's order.
    pub descriptors: Vec<OwnedFd>,
}

/// Sends one message with descriptors. Raises no SIGPIPE.
///
/// # Errors
/// [`SendError`]; nothing was sent then.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), SendError> {
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fits = descriptors.len() <= MAX_DESCRIPTORS
        && (descriptors.is_empty() || control.push(SendAncillaryMessage::ScmRights(descriptors)));
    if !fits {
        return Err(SendError::TooManyDescriptors(descriptors.len()));
    }
    let sent = rustix::io::retry_on_intr(|| {
        calls::count();
        rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
    });
    match sent {
        Ok(_) => Ok(()),
        // Linux reports both under one number; a full queue of descriptors in flight is back-pressure as well.
        Err(Errno::AGAIN) => Err(SendError::WouldBlock),
        Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => Err(SendError::Closed),
        Err(errno) => Err(SendError::Kernel(errno)),
    }
}

/// Receives one message of at most `bytes.len()` bytes and `limit` descriptors (at most [`MAX_DESCRIPTORS`]).
///
/// # Errors
/// [`ReceiveError`]. Unless it is [`ReceiveError::WouldBlock`] the socket is of no further use.
pub fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8], limit: usize) -> Result<Received, ReceiveError> {
    let limit = limit.min(MAX_DESCRIPTORS);
    let room = bytes.len();
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = rustix::io::retry_on_intr(|| {
        calls::count();
        let mut parts = [IoSliceMut::new(bytes)];
        rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    });
    let message = match message {
        Ok(message) => message,
        Err(Errno::AGAIN) => return Err(ReceiveError::WouldBlock),
        Err(Errno::CONNRESET | Errno::NOTCONN) => return Err(ReceiveError::Closed),
        Err(errno) => return Err(ReceiveError::Kernel(errno)),
    };
    // Owned from here on: whatever is returned below, what is not kept is closed.
    let mut descriptors = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            descriptors.extend(rights);
        }
    }
    if message.flags.contains(ReturnFlags::TRUNC) {
        return Err(ReceiveError::TooLong(room));
    }
    if descriptors.len() > limit {
        return Err(ReceiveError::TooManyDescriptors(limit));
    }
    if message.flags.contains(ReturnFlags::CTRUNC) {
        return Err(if descriptors.len() >= limit {
            ReceiveError::TooManyDescriptors(limit)
        } else {
            ReceiveError::DescriptorsLost
        });
    }
    if message.bytes == 0 {
        return Err(ReceiveError::Closed);
    }
    Ok(Received { length: message.bytes, descriptors })
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::{Read, Write},
        os::fd::AsFd,
    };

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("socketpair")
    }

    #[test]
    fn a_duplicate_is_the_same_file_and_outlives_it() {
        let (read, write) = rustix::pipe::pipe().expect("pipe");
        let number = std::os::fd::AsRawFd::as_raw_fd(&write);
        let other = duplicate(number).expect("open");
        drop(write);
        File::from(other).write_all(b"x").expect("write");
        let mut bytes = Vec::new();
        File::from(read).read_to_end(&mut bytes).expect("read");
        assert_eq!(bytes, b"x");
        assert_eq!(duplicate(-1).expect_err("no descriptor"), Errno::BADF);
    }

    #[test]
    fn messages_keep_their_bounds_and_descriptors() {
        let (a, b) = pair();
        let (read, write) = rustix::pipe::pipe().expect("pipe");
        send(a.as_fd(), b"first", &[write.as_fd()]).expect("send");
        send(a.as_fd(), b"second", &[]).expect("send");
        let mut buffer = [0; 64];
        let got = receive(b.as_fd(), &mut buffer, 1).expect("receive");
        assert_eq!((&buffer[..got.length], got.descriptors.len()), (&b"first"[..], 1));
        let flags = rustix::io::fcntl_getfd(&got.descriptors[0]).expect("flags");
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        let mut pipe = File::from(got.descriptors.into_iter().next().expect("one"));
        pipe.write_all(b"!").expect("write");
        drop((pipe, write));
        let mut text = String::new();
        File::from(read).read_to_string(&mut text).expect("read");
        assert_eq!(text, "!");
        let got = receive(b.as_fd(), &mut buffer, 1).expect("receive");
        assert_eq!((&buffer[..got.length], got.descriptors.len()), (&b"second"[..], 0));
        assert_eq!(receive(b.as_fd(), &mut buffer, 1).expect_err("empty"), ReceiveError::WouldBlock);
        drop(a);
        assert_eq!(receive(b.as_fd(), &mut buffer, 1).expect_err("closed"), ReceiveError::Closed);
        assert_eq!(send(b.as_fd(), b"x", &[]).expect_err("closed"), SendError::Closed);
    }

    /// Sends a pipe's write end several times with a message that must be refused, and sees that all were closed.
    fn refused(descriptors: usize, room: usize, limit: usize) -> ReceiveError {
        let (a, b) = pair();
        let (read, write) = rustix::pipe::pipe().expect("pipe");
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = vec![write.as_fd(); descriptors];
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        rustix::net::sendmsg(&a, &[IoSlice::new(&[7; 32])], &mut control, SendFlags::empty()).expect("send");
        drop(write);
        let mut buffer = vec![0; room];
        let error = receive(b.as_fd(), &mut buffer, limit).expect_err("refused");
        // The pipe ends only when no writer is left anywhere.
        assert_eq!(File::from(read).read(&mut [0; 1]).expect("end of file"), 0);
        error
    }

    #[test]
    fn refused_messages_leave_no_descriptors_behind() {
        assert_eq!(refused(1, 16, 1), ReceiveError::TooLong(16));
        assert_eq!(refused(2, 64, 1), ReceiveError::TooManyDescriptors(1));
        assert_eq!(refused(1, 64, 0), ReceiveError::TooManyDescriptors(0));
        assert_eq!(refused(20, 64, 8), ReceiveError::TooManyDescriptors(8));
    }

    #[test]
    fn a_full_socket_says_so() {
        let (a, _b) = pair();
        let error = loop {
            if let Err(error) = send(a.as_fd(), &[0; 4096], &[]) {
                break error;
            }
        };
        assert_eq!(error, SendError::WouldBlock);
        let many = [a.as_fd(); MAX_DESCRIPTORS + 1];
        assert_eq!(send(a.as_fd(), b"x", &many), Err(SendError::TooManyDescriptors(9)));
    }
}
