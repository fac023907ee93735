//! Communicators: from the ranks that join to the rings they get, between membership and the engine thread.

use std::{os::fd::OwnedFd, sync::Arc, time::Instant};

use ringway_abi::control::{BoardOffer, CellOffer, Joined, RefusalKind, Reply};
use ringway_engine::RankFailure;
use ringway_mem::{Mapping, MemFd};
use ringway_plan::Layout;
use ringway_ring::{DaemonRings, Geometry};

use super::{
    Control,
    boards::MadeBoard,
    cells::MadeCell,
    client::{self, Seat},
};
use crate::{
    devices::Open,
    engine_thread::{Attach, CellCommand, Command, Event, LOST, RegionRefusal},
    membership::{GroupKey, JoinTicket, MembershipEvent},
    session::SessionKey,
    tuning_file::write_tuning,
};

/// A communicator with ranks on this node.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) layout: Layout,
    /// The device between its nodes; empty with one node.
    pub(super) device: &'static str,
    /// The ranks on this node that join, until they have their rings.
    pub(super) local: Vec<(u32, JoinTicket)>,
}

/// Fresh rings.
#[derive(Debug)]
struct Made {
    geometry: Geometry,
    rings: DaemonRings,
    client_memory: Arc<Mapping>,
    descriptors: Vec<OwnedFd>,
}

/// The memory that a communicator's ranks on this node share.
#[derive(Debug)]
struct Shared {
    cell: Option<MadeCell>,
    board: Option<MadeBoard>,
}

impl Shared {
    /// For a rank.
    fn descriptors(&self) -> std::io::Result<Vec<OwnedFd>> {
        let mut all = Vec::new();
        if let Some(cell) = &self.cell {
            all.push(cell.descriptor()?);
        }
        if let Some(board) = &self.board {
            all.extend(board.descriptors()?);
        }
        Ok(all)
    }

    fn offers(&self) -> (Option<CellOffer>, Option<BoardOffer>) {
        (self.cell.as_ref().map(|cell| cell.offer), self.board.as_ref().map(|board| board.offer))
    }
}

impl Control {
    pub(super) fn handle_membership(&mut self, event: MembershipEvent) {
        match event {
            MembershipEvent::Open { group, layout, node, device: protocol, width, measure, local } => {
                let joins = local.iter().filter_map(|(_, ticket)| self.joins.get(ticket));
                // Where ranks differ the strictest limit holds for all of the node.
                let timeouts = joins.clone().map(|p| p.join.operation_timeout_ms).filter(|ms| *ms > 0);
                let timeout_ms = timeouts.min().unwrap_or(0);
                let mut joins = joins;
                let name = joins.next().map_or(0, |p| name_of(&p.join.id.secret));
                let device = if layout.nodes() > 1 { self.device_of(group, &protocol) } else { "" };
                self.groups.insert(group, Group { layout: layout.clone(), device, local });
                let open = Command::Open { group, layout, node, protocol, width, measure, timeout_ms, name };
                self.engine.send(open);
            }
            MembershipEvent::Connect { group, endpoints } => {
                self.engine.send(Command::Connect { group, endpoints });
            }
            MembershipEvent::Joined { group, settings } => {
                self.engine.send(Command::Plan { group, settings });
                self.keep_learned();
                self.tell_refused();
                self.joined(group);
            }
            MembershipEvent::Failed { group, tickets, kind, message } => {
                for ticket in tickets {
                    self.join_failed(ticket, kind, message.clone());
                }
                if let Some(group) = group {
                    self.groups.remove(&group);
                    self.engine.send(Command::Close { group });
                }
            }
        }
    }

    /// The device that speaks this protocol, which all nodes of a communicator have. Better ones of this node that are not
    /// used for it are told, with the reason.
    fn device_of(&self, group: GroupKey, protocol: &str) -> &'static str {
        let Some(used) = self.open_devices.iter().find(|open| open.protocol == protocol) else { return "" };
        let used = used.name;
        for open in self.better_than(used) {
            let why = open.why_not_common();
            tracing::info!(
                communicator = group.0,
                "device `{}` is not used: {why}; using `{used}`",
                open.name
            );
        }
        used
    }

    /// A device broke, or was removed: no further communicator uses it, nor the same kind's on other rails.
    fn device_lost(&mut self, protocol: &str) {
        for open in self.open_devices.iter_mut().filter(|open| open.protocol == protocol) {
            tracing::error!(
                "device `{}` is not used any more: {LOST}; start the daemon again when it is back",
                open.name
            );
            open.is_lost = true;
        }
        self.membership.withdraw(protocol);
    }

    /// The open devices that this node would rather use than that of this name.
    pub(super) fn better_than(&self, used: &str) -> impl Iterator<Item = &Open> {
        let at = self.open_devices.iter().position(|open| open.name == used).unwrap_or(0);
        self.open_devices.iter().take(at)
    }

    pub(super) fn handle_engine(&mut self, event: Event, now: Instant) {
        match event {
            Event::RegionAdded { session, number, length, result } => {
                self.region_added(session, number, length, result);
            }
            Event::RegionRemoved { session, number, result } => self.region_removed(session, number, result),
            Event::Opened { group, result: Ok(endpoints) } => self.membership.opened(group, endpoints),
            Event::Opened { group, result: Err(text) } | Event::Connected { group, result: Err(text) } => {
                self.membership.open_failed(group, text);
            }
            Event::Connected { group, result: Ok(measured) } => self.membership.ready(group, measured),
            Event::Left { session, number, communicator } => self.left(session, number, communicator),
            Event::GroupClosed { group } => {
                self.groups.remove(&group);
                self.forget_exits(group);
                self.membership.closed(group);
            }
            Event::Fault { session, what } => self.ring_fault(session, &what),
            Event::SessionGone { session } => self.session_gone(session),
            Event::Late { group, text } => tracing::warn!(communicator = group.0, "{text}"),
            Event::Failed { group, failure } => {
                tracing::warn!(communicator = group.0, %failure, "a communicator failed");
            }
            Event::DeviceLost { protocol } => self.device_lost(&protocol),
            Event::RegionMapped { session, number, result } => self.region_mapped(session, number, result),
            Event::Inspected { session, number } => self.answer(session, number, Ok(Reply::Done)),
            Event::Explained { session, number, reason } => self.failure_explained(session, number, reason),
            Event::Status { session, number, status } => self.report(session, number, *status, now),
        }
    }

    /// Keeps what was measured for the next time, so that the same plans are chosen then.
    fn keep_learned(&mut self) {
        let Some(learned) = self.membership.take_learned() else { return };
        if let Some(path) = &self.config.link_cache
            && let Err(error) = write_tuning(path, learned)
        {
            tracing::warn!(%error, "what was measured of links is not kept: it will be measured again");
        }
    }

    /// Says which algorithms are not used although somebody named them.
    fn tell_refused(&mut self) {
        let Some(refused) = self.membership.take_refused() else { return };
        tracing::warn!(
            "order = \"strict\" goes before {refused}, which would combine in another order: set order = \"stable\" to have it"
        );
    }

    /// Every rank has come and every connection stands: the local ranks get their rings.
    fn joined(&mut self, group: GroupKey) {
        let Some(found) = self.groups.remove(&group) else { return };
        let mut cell = self.make_cell(group, &found);
        if let Some(memory) = cell.as_mut().and_then(|made| made.memory.take()) {
            self.engine.send(Command::Cell(CellCommand::Add { group, memory }));
        }
        let shared = Shared { cell, board: self.make_board(group, &found) };
        let Group { layout, device, local } = found;
        self.groups.insert(group, Group { layout: layout.clone(), device, local: Vec::new() });
        let node_of: Vec<u32> = (0..layout.ranks()).map(|rank| layout.node_of(rank)).collect();
        for (rank, ticket) in local {
            let attached = self.attach((group, rank), ticket, (node_of.clone(), device.to_owned()), &shared);
            if !attached {
                self.engine.send(Command::FailRank { group, rank, how: RankFailure::Exited });
            }
        }
    }

    fn attach(
        &mut self,
        (group, rank): (GroupKey, u32),
        ticket: JoinTicket,
        (node_of, device): (Vec<u32>, String),
        shared: &Shared,
    ) -> bool {
        let Some(pending) = self.joins.remove(&ticket) else { return false };
        let (key, number, shared_bytes) = (pending.session, pending.number, pending.shared_bytes);
        let made = self.make_rings(pending.join.submissions).and_then(|mut made| {
            made.descriptors.extend(shared.descriptors().map_err(|e| e.to_string())?);
            Ok(made)
        });
        let Some(session) = self.sessions.get_mut(&key) else { return false };
        session.joins.retain(|t| *t != ticket);
        let Made { geometry, rings, client_memory, descriptors } = match made {
            Ok(made) => made,
            Err(reason) => {
                self.users.remove_communicator(session.uid);
                self.users.remove_regions(session.uid, 0, shared_bytes);
                let message = format!("the daemon cannot make the rings: {reason}; try a smaller ring");
                self.answer(key, number, Err((RefusalKind::Memory, message)));
                return false;
            }
        };
        let communicator = session.next_communicator;
        session.next_communicator = session.next_communicator.wrapping_add(1).max(1);
        session.communicators.insert(communicator, Seat { group, shared_bytes });
        session.end();
        let stream_words = pending.join.stream_words;
        let attach = Attach { group, rank, session: key, communicator, rings, client_memory, stream_words };
        self.engine.send(Command::Attach(Box::new(attach)));
        let geometry = (geometry.submissions(), geometry.completions(), geometry.slab_words());
        let (cell, board) = shared.offers();
        let joined = Joined { communicator, geometry, node_of, device, cell, board };
        self.reply(key, number, Reply::Joined(joined), descriptors);
        true
    }

    /// The two memory files of a rank and the daemon's end of the rings in them. The client gets a completion slot for
    /// each submission and as many again, so that one that takes completions late is not held back at once.
    fn make_rings(&self, submissions: u32) -> Result<Made, String> {
        let completions = submissions.saturating_mul(2);
        let geometry = Geometry::new(submissions, completions, self.config.ring_argument_words);
        let geometry = geometry.map_err(|e| e.to_string())?;
        let (c, ours) = MemFd::client_written("ringway-client", geometry.client_bytes() as u64)
            .map_err(|e| e.to_string())?;
        let client_memory = Arc::new(ours);
        let (d, ours) = MemFd::daemon_written("ringway-daemon", geometry.daemon_bytes() as u64)
            .map_err(|e| e.to_string())?;
        let daemon_memory = Arc::new(ours);
        let rings =
            DaemonRings::attach(&client_memory, &daemon_memory, geometry).map_err(|e| e.to_string())?;
        Ok(Made { geometry, rings, client_memory, descriptors: vec![c.into_fd(), d.into_fd()] })
    }

    fn join_failed(&mut self, ticket: JoinTicket, kind: RefusalKind, message: String) {
        let Some(pending) = self.joins.remove(&ticket) else { return };
        if let Some(session) = self.sessions.get_mut(&pending.session) {
            session.joins.retain(|t| *t != ticket);
            self.users.remove_communicator(session.uid);
            self.users.remove_regions(session.uid, 0, pending.shared_bytes);
        }
        self.answer(pending.session, pending.number, Err((kind, message)));
    }

    fn left(&mut self, key: SessionKey, number: u32, communicator: u32) {
        if let Some(session) = self.sessions.get_mut(&key)
            && let Some(seat) = session.communicators.remove(&communicator)
        {
            self.users.remove_communicator(session.uid);
            self.users.remove_regions(session.uid, 0, seat.shared_bytes);
        }
        self.answer(key, number, Ok(Reply::Done));
    }

    fn region_added(
        &mut self,
        key: SessionKey,
        number: u32,
        length: u64,
        result: Result<u64, RegionRefusal>,
    ) {
        if result.is_err() {
            self.uncount_region(key, length);
        }
        let answer = result.map(|region| Reply::Region { region, length }).map_err(refusal);
        self.answer(key, number, answer);
    }

    fn region_removed(&mut self, key: SessionKey, number: u32, result: Result<u64, RegionRefusal>) {
        if let Ok(length) = result {
            self.uncount_region(key, length);
        }
        self.answer(key, number, result.map(|_| Reply::Done).map_err(refusal));
    }

    /// A region is gone; those of a session that ended are uncounted together when it is gone.
    fn uncount_region(&mut self, key: SessionKey, length: u64) {
        if let Some(session) = self.sessions.get_mut(&key) {
            session.regions = session.regions.saturating_sub(1);
            session.region_bytes = session.region_bytes.saturating_sub(length);
            self.users.remove_regions(session.uid, 1, length);
        }
    }
}

fn refusal(refusal: RegionRefusal) -> client::Refusal {
    match refusal {
        RegionRefusal::Unknown => {
            (RefusalKind::Unknown, "this client has no region with that handle".to_owned())
        }
        RegionRefusal::Busy => {
            let message = "an operation still uses the region; wait for it, then release the region";
            (RefusalKind::Busy, message.to_owned())
        }
        RegionRefusal::NoRoom(message) => (RefusalKind::Memory, message),
    }
}

/// A digest of a communicator's secret (FNV-1a), for telling communicators apart where the secret must not go.
fn name_of(secret: &[u8; 16]) -> u64 {
    secret
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
