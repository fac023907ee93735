//! Cells: which communicators get one, what they cost, and what their ranks ask about them.

use std::{
    collections::BTreeSet,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use ringway_abi::control::{CellOffer, RefusalKind, Reply};
use ringway_cell::Cell;
use ringway_mem::{Mapping, MemFd, Protection};
use rustix::io::Errno;

use super::{
    Control,
    client::Refusal,
    groups::Group,
    sharing::{Candidate, Identity, may_share},
};
use crate::{
    config::Isolation,
    engine_thread::{CellCommand, CellMemory, Command, MapRefusal, Reason},
    membership::{GroupKey, JoinTicket},
    session::SessionKey,
};

/// A fresh cell.
#[derive(Debug)]
pub(super) struct MadeCell {
    file: MemFd,
    pub(super) offer: CellOffer,
    pub(super) memory: Option<CellMemory>,
}

impl MadeCell {
    /// A descriptor of its memory, for a rank.
    pub(super) fn descriptor(&self) -> std::io::Result<OwnedFd> {
        self.file.as_fd().try_clone_to_owned()
    }
}

/// A process whose session ended while others shared a cell with it: until it is gone it could still write there.
#[derive(Debug)]
pub(super) struct Exiting {
    pidfd: OwnedFd,
    /// Communicators with ranks here that care.
    groups: BTreeSet<GroupKey>,
}

impl Control {
    /// The cell of a communicator whose ranks share memory; `None` for one whose collectives the engine does. Each
    /// rank's user has been charged for its share.
    pub(super) fn make_cell(&mut self, key: GroupKey, group: &Group) -> Option<MadeCell> {
        if self.config.isolation == Isolation::Strict || group.layout.nodes() != 1 {
            return None;
        }
        let ranks = group.layout.ranks();
        let Some(bytes) = ringway_cell::bytes(ranks) else {
            tracing::info!(communicator = key.0, ranks, "no cell: it has too many ranks");
            return None;
        };
        let tickets: Vec<JoinTicket> = group.local.iter().map(|(_, ticket)| *ticket).collect();
        if tickets.len() != ranks as usize || tickets.iter().any(|ticket| !self.joins.contains_key(ticket)) {
            return None;
        }
        if self.any_streams(&tickets) {
            // Their operations are the GPU's to do, and the daemon's to ask for.
            return None;
        }
        if !self.may_share(&tickets) {
            tracing::info!(
                communicator = key.0,
                ranks,
                "no cell: its ranks are of different users or namespaces and did not all consent to share memory"
            );
            return None;
        }
        let share_bytes = bytes.div_ceil(u64::from(ranks));
        let charged = self.charge_all(&tickets, share_bytes).map_err(|(_, message)| message);
        let made = charged.and_then(|()| self.fresh_cell(ranks, bytes));
        made.inspect_err(|reason| {
            tracing::warn!(communicator = key.0, ranks, bytes, "no cell: {reason}");
            self.uncharge_all(&tickets);
        })
        .ok()
    }

    /// Whether one of these ranks has operations in the order of a GPU's streams.
    fn any_streams(&self, tickets: &[JoinTicket]) -> bool {
        let mut joins = tickets.iter().filter_map(|ticket| self.joins.get(ticket));
        joins.any(|pending| pending.join.stream_words.is_some())
    }

    /// Whether these ranks share memory.
    pub(super) fn may_share(&self, tickets: &[JoinTicket]) -> bool {
        let joins = tickets.iter().filter_map(|ticket| self.joins.get(ticket));
        let candidates: Vec<_> = joins
            .map(|pending| {
                let session = self.sessions.get(&pending.session);
                let identity = session
                    .and_then(|s| s.pidfd.as_ref().and_then(|pidfd| Identity::of(s.pid, s.uid, pidfd)));
                Candidate { identity, consents: pending.join.share }
            })
            .collect();
        may_share(&candidates)
    }

    fn fresh_cell(&self, ranks: u32, bytes: u64) -> Result<MadeCell, String> {
        let (file, populated) = MemFd::region("ringway-cell", bytes).map_err(|e| e.to_string())?;
        drop(populated);
        // The ranks can punch holes into it, which must not be the daemon's end.
        let mapping = Mapping::foreign(file.as_fd(), file.length(), Protection::ReadWrite);
        let mapping = Arc::new(mapping.map_err(|e| e.to_string())?);
        let cell = Cell::attach(Arc::clone(&mapping), ranks).map_err(|e| e.to_string())?;
        let late_after_ms = u32::try_from(self.config.late_after.as_millis()).unwrap_or(u32::MAX);
        let offer = CellOffer { ranks, bytes, late_after_ms };
        Ok(MadeCell { file, offer, memory: Some(CellMemory { cell, mapping }) })
    }

    /// Charges the users of those who join.
    pub(super) fn charge_all(&mut self, tickets: &[JoinTicket], bytes: u64) -> Result<(), Refusal> {
        for ticket in tickets {
            let Some(pending) = self.joins.get_mut(ticket) else { continue };
            let Some(session) = self.sessions.get(&pending.session) else { continue };
            self.users.add_bytes(session.uid, bytes)?;
            pending.shared_bytes = bytes;
        }
        Ok(())
    }

    pub(super) fn uncharge_all(&mut self, tickets: &[JoinTicket]) {
        for ticket in tickets {
            let Some(pending) = self.joins.get_mut(ticket) else { continue };
            let bytes = std::mem::take(&mut pending.shared_bytes);
            if let Some(session) = self.sessions.get(&pending.session) {
                self.users.remove_regions(session.uid, 0, bytes);
            }
        }
    }

    /// The engine's answer to a request to map a region.
    pub(super) fn region_mapped(
        &mut self,
        key: SessionKey,
        number: u32,
        result: Result<(u64, Arc<Mapping>), MapRefusal>,
    ) {
        let answer = result.map_err(map_refusal).and_then(|(region, mapping)| {
            // Every region that was admitted has its file.
            let file = mapping.file().map_or(Err(Errno::BADF.into()), |file| file.try_clone_to_owned());
            let file = file.map_err(|e| {
                (RefusalKind::Busy, format!("the daemon has no descriptor for it ({e}); try again"))
            })?;
            Ok((Reply::Region { region, length: mapping.length() as u64 }, file))
        });
        if let Some(session) = self.sessions.get_mut(&key) {
            session.end();
        }
        match answer {
            Ok((reply, file)) => self.reply(key, number, reply, vec![file]),
            Err(refusal) => self.refuse(key, number, refusal),
        }
    }

    /// The engine's answer to the question why a communicator failed.
    pub(super) fn failure_explained(&mut self, key: SessionKey, number: u32, reason: Option<Reason>) {
        let failure =
            |reason: Reason| Reply::Failure { status: reason.status().code(), message: reason.to_string() };
        let answer = reason.map(failure).ok_or_else(|| {
            let message = "the communicator has not failed, as far as the daemon knows".to_owned();
            (RefusalKind::Unknown, message)
        });
        self.answer(key, number, answer);
    }

    /// A session has ended: its process is watched for as long as it may still write where others read.
    pub(super) fn watch_exit(&mut self, key: SessionKey, pidfd: Option<OwnedFd>, groups: BTreeSet<GroupKey>) {
        let Some(pidfd) = pidfd else { return };
        if groups.is_empty() {
            self.poller.remove(&pidfd);
        } else {
            self.exiting.insert(key, Exiting { pidfd, groups });
        }
    }

    /// The process of a session that has ended is gone as well.
    pub(super) fn process_gone(&mut self, key: SessionKey) {
        if let Some(exiting) = self.exiting.remove(&key) {
            self.poller.remove(&exiting.pidfd);
            self.engine.send(Command::Cell(CellCommand::ProcessExited { session: key }));
        }
    }

    /// A communicator is closed: nobody waits for its processes any more.
    pub(super) fn forget_exits(&mut self, group: GroupKey) {
        let Self { exiting, poller, .. } = self;
        exiting.retain(|_, process| {
            process.groups.remove(&group);
            let watched = !process.groups.is_empty();
            if !watched {
                poller.remove(&process.pidfd);
            }
            watched
        });
    }
}

fn map_refusal(refusal: MapRefusal) -> Refusal {
    match refusal {
        MapRefusal::NoCell => {
            let message = "the communicator's ranks share no memory (any more)";
            (RefusalKind::Invalid, message.to_owned())
        }
        MapRefusal::Rank { rank } => {
            (RefusalKind::Unknown, format!("rank {rank} is not in the communicator (any more)"))
        }
        MapRefusal::Region { rank, region } => {
            let message = format!("rank {rank} has no region {region:#x} (any more)");
            (RefusalKind::Unknown, message)
        }
    }
}
