//! What the control thread knows of one client.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    os::fd::OwnedFd,
    sync::Arc,
};

use crossbeam_queue::ArrayQueue;
use ringway_abi::control::{self, Envelope, RefusalKind, Reply};

use super::connection::{Connection, Unsendable};
use crate::{
    engine_thread::{Explained, REASONS_KEPT, Reason},
    membership::{GroupKey, JoinTicket},
};

/// Requests of one session that may wait for an answer.
const OUTSTANDING_MAX: u32 = 64;

/// A refusal before it is sent.
pub(super) type Refusal = (RefusalKind, String);

/// A communicator that a client is in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seat {
    pub(super) group: GroupKey,
    /// Bytes of its cell or board that the client's user is charged for; zero when its ranks share no memory.
    pub(super) shared_bytes: u64,
}

/// One client.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) pid: i32,
    pub(super) uid: u32,
    pub(super) connection: Connection,
    pub(super) pidfd: Option<OwnedFd>,
    /// Whether the handshake is done.
    pub(super) greeted: bool,
    /// Whether the socket is watched for room to write.
    pub(super) watched_for_room: bool,
    pub(super) doorbell: Arc<OwnedFd>,
    pub(super) regions: u32,
    pub(super) region_bytes: u64,
    pub(super) communicators: BTreeMap<u32, Seat>,
    pub(super) next_communicator: u32,
    pub(super) joins: Vec<JoinTicket>,
    outstanding: u32,
    incoming_reasons: Arc<ArrayQueue<Explained>>,
    reasons: VecDeque<Explained>,
}

impl Session {
    pub(super) fn new(
        connection: Connection,
        (pid, uid): (i32, u32),
        pidfd: Option<OwnedFd>,
        doorbell: Arc<OwnedFd>,
    ) -> Self {
        Self {
            pid,
            uid,
            connection,
            pidfd,
            greeted: false,
            watched_for_room: false,
            doorbell,
            regions: 0,
            region_bytes: 0,
            communicators: BTreeMap::new(),
            next_communicator: 1,
            joins: Vec::new(),
            outstanding: 0,
            incoming_reasons: Arc::new(ArrayQueue::new(REASONS_KEPT)),
            reasons: VecDeque::with_capacity(REASONS_KEPT),
        }
    }

    /// Where the engine thread puts reasons for failed operations.
    pub(super) fn reason_queue(&self) -> Arc<ArrayQueue<Explained>> {
        Arc::clone(&self.incoming_reasons)
    }

    /// Why an operation failed, if that is still known.
    pub(super) fn explain(&mut self, communicator: u32, token: u32) -> Option<&Reason> {
        while let Some(explained) = self.incoming_reasons.pop() {
            if self.reasons.len() == REASONS_KEPT {
                self.reasons.pop_front();
            }
            self.reasons.push_back(explained);
        }
        let known = self.reasons.iter().rev().find(|(c, t, _)| (*c, *t) == (communicator, token));
        known.map(|(_, _, reason)| reason)
    }

    /// The communicators whose ranks share memory.
    pub(super) fn sharing(&self) -> BTreeSet<GroupKey> {
        self.communicators.values().filter(|seat| seat.shared_bytes > 0).map(|seat| seat.group).collect()
    }

    /// Counts a request whose answer comes later; `false` when too many wait already.
    pub(super) fn begin(&mut self) -> bool {
        let room = self.outstanding < OUTSTANDING_MAX;
        self.outstanding = self.outstanding.saturating_add(u32::from(room));
        room
    }

    /// The answer to such a request goes out.
    pub(super) fn end(&mut self) {
        self.outstanding = self.outstanding.saturating_sub(1);
    }

    /// Sends a reply.
    pub(super) fn reply(
        &mut self,
        number: u32,
        body: Reply,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), Unsendable> {
        // Everything that is sent fits: a layout has at most MAX_RANKS entries, texts are cut.
        let bytes = control::encode(&Envelope { number, body }).map_err(|_| Unsendable)?;
        self.connection.send(bytes, descriptors)
    }
}
