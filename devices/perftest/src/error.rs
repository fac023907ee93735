//! Why a test ended before its end.

use core::net::IpAddr;

use ringway_mem::MapError;
use ringway_roce::RoceError;
use ringway_verbs::{ConnectError, PostError, QueuePairError, RegisterError, Status};
use ringway_wire::PathMtu;
use thiserror::Error;

use crate::{channel::ChannelError, options::OptionsError};

/// Why a test failed.
#[derive(Debug, Error)]
pub enum Failure {
    /// Both sides do not understand each other.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The device cannot be had so.
    #[error(transparent)]
    Device(#[from] RoceError),
    /// No memory for messages.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// No queue pair.
    #[error(transparent)]
    QueuePair(#[from] QueuePairError),
    /// The queue pair cannot be connected.
    #[error("the peer's queue pair cannot be connected to: {0}")]
    Connect(#[from] ConnectError),
    /// One side's packets go over IPv4, the other's over IPv6.
    #[error(
        "the peer sends and takes packets at {peer}, this side at {local}: give this side an address of the peer's kind \
         (-x ADDRESS), or the peer the gid of one of this side's (-x INDEX)"
    )]
    Family {
        /// The peer's address.
        peer: IpAddr,
        /// This side's.
        local: IpAddr,
    },
    /// A request failed.
    #[error(
        "queue pair {index}: a request ended with {status:?} after {done} of {expected} messages: {reason} \
         (are both sides given the same test, -s, -n and -q?)"
    )]
    Request {
        /// Which queue pair.
        index: usize,
        /// How the request ended.
        status: Status,
        /// Messages before.
        done: u64,
        /// Messages in all.
        expected: u64,
        /// Why the queue pair failed, and what became of its packets.
        reason: String,
    },
    /// A request was not taken.
    #[error("queue pair {index}: a request was refused: {error}")]
    Post {
        /// Which queue pair.
        index: usize,
        /// Why.
        error: PostError,
    },
    /// Wrong bytes came.
    #[error("queue pair {index}, message {message}: byte {at} is {found:#04x} and must be {expected:#04x}")]
    Content {
        /// Which queue pair.
        index: usize,
        /// Which message.
        message: u64,
        /// Where in it.
        at: u64,
        /// What is there.
        found: u8,
        /// What the peer sent.
        expected: u8,
    },
    /// A message of another length came.
    #[error(
        "queue pair {index}: a message of {found} bytes came, and {expected} were expected; give both sides the same -s"
    )]
    Length {
        /// Which queue pair.
        index: usize,
        /// Its bytes.
        found: u64,
        /// Bytes of a message.
        expected: u64,
    },
    /// The peer's buffer is not what perftest fills it with.
    #[error(
        "the bytes that came are not those that perftest fills its buffers with, at this time by this host's clock; \
         set the clocks, or leave --check out"
    )]
    Unknown,
    /// Nothing happens any more.
    #[error(
        "the peer hung up after {done} of {expected} messages; its own output says why, or it was given another -n"
    )]
    Gone {
        /// Messages before.
        done: u64,
        /// Messages in all.
        expected: u64,
    },
    /// The peer goes on, and messages are missing.
    #[error(
        "the peer is done after {received} messages, and {expected} were expected; give both sides the same -n and -q"
    )]
    Fewer {
        /// Messages that came.
        received: u64,
        /// Messages in all.
        expected: u64,
    },
    /// Messages come that nobody waits for.
    #[error(
        "the peer sends more than the {expected} messages that were expected; give both sides the same -n and -q"
    )]
    More {
        /// Messages in all.
        expected: u64,
    },
    /// A wish that cannot be.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// Too much is wanted.
    #[error("there is no memory for the messages: {0}; fewer queue pairs, or shorter messages, need less")]
    Memory(#[from] MapError),
    /// The wished path MTU.
    #[error("the interface carries a path MTU of {} bytes at most, and {} was asked for", carried.bytes(), wished.bytes())]
    Mtu {
        /// What it carries.
        carried: PathMtu,
        /// What was asked for.
        wished: PathMtu,
    },
}
