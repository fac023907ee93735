//! What the control thread asks for.

use ringway_engine::{CommunicatorSpec, Failure, LocalRank, RankFailure};
use ringway_group::Width;
use ringway_plan::{Layout, PlanSettings};
use ringway_verbs::{Access, Device as _, Endpoint, Time};

use super::{
    Attach, COMMANDS_PER_TURN, Client, Command, EngineThread, Event, Group, Region, RegionMemory,
    RegionRefusal, packets, ring::Ring,
};
use crate::{membership::GroupKey, session::SessionKey};

impl EngineThread {
    /// Does what the control thread asks, up to a bounded number of commands.
    pub(super) fn obey(&mut self, now: Time) -> bool {
        let mut worked = false;
        for _ in 0..COMMANDS_PER_TURN {
            let Some(command) = self.commands.pop() else { break };
            self.execute(command, now);
            worked = true;
        }
        worked
    }

    fn execute(&mut self, command: Command, now: Time) {
        match command {
            Command::AddSession { session, doorbell, reasons } => {
                self.listen(&doorbell);
                let client = Client {
                    doorbell,
                    reasons,
                    rings: Vec::new(),
                    regions: Vec::new(),
                    tenant: None,
                    ended: None,
                    faulted: false,
                };
                self.clients.insert(session, client);
            }
            Command::EndSession { session, how } => self.end_session(session, how),
            Command::AddRegion { session, number, memory, shared } => {
                let length = memory.length();
                let result = self.add_region(session, memory, shared);
                self.tell(Event::RegionAdded { session, number, length, result });
            }
            Command::Accelerate(mut accelerator) => {
                accelerator.settle_in(self.workspace.0);
                self.memory.accelerator = Some(accelerator);
            }
            Command::RemoveRegion { session, number, region } => {
                let result = self.remove_region(session, region);
                self.tell(Event::RegionRemoved { session, number, result });
            }
            Command::Open { group, layout, node, protocol, width, measure, timeout_ms, name } => {
                let device = (protocol.as_str(), width, measure);
                let result = self.open(group, (layout, node), device, (timeout_ms, name));
                self.tell(Event::Opened { group, result });
            }
            Command::Connect { group, endpoints } => self.connect(group, &endpoints),
            Command::Plan { group, settings } => {
                if let Some(group) = self.groups.get(&group) {
                    self.engine.set_settings(group.id, *settings);
                }
            }
            Command::Attach(attach) => self.attach(*attach),
            Command::FailRank { group, rank, how } => self.fail_rank(group, rank, how),
            Command::Leave { session, number, communicator } => {
                if let Some(index) = self.rings.named(session, communicator) {
                    self.leave(index, Some(number));
                } else {
                    self.tell(Event::Left { session, number, communicator });
                }
            }
            Command::Abort { session, communicator } => {
                if let Some(index) = self.rings.named(session, communicator)
                    && let Some((_, ring)) = self.rings.get_mut(index)
                {
                    let (group, rank) = (ring.group, ring.rank);
                    self.fail_group(group, Failure::Aborted { rank });
                }
            }
            Command::Cell(command) => self.execute_in_cell(command, now),
            Command::Close { group } => {
                if let Some(group) = self.groups.get_mut(&group) {
                    group.closing = true;
                } else {
                    self.tell(Event::GroupClosed { group });
                }
            }
            Command::Status { session, number } => {
                let status = Box::new(self.snapshot());
                self.tell(Event::Status { session, number, status });
            }
            Command::Shutdown => self.begin_shutdown(now),
        }
    }

    fn add_region(
        &mut self,
        session: SessionKey,
        memory: RegionMemory,
        shared: bool,
    ) -> Result<u64, RegionRefusal> {
        let no_room = |why: String| RegionRefusal::NoRoom(format!("the daemon has no room for it: {why}"));
        let Some(client) = self.clients.get_mut(&session).filter(|c| c.ended.is_none()) else {
            self.memory.retire(memory);
            return Err(no_room("the session has ended".to_owned()));
        };
        let register = |mapping| self.device.register(mapping, Access::ALL).map(|keys| keys.local);
        let key = memory.host().cloned().map(register).transpose().map_err(|e| no_room(e.to_string()))?;
        let id = self.memory.add(memory.clone());
        match key {
            Some(key) => self.engine.add_region(id, key),
            None if self.engine.add_accelerator_region(id) => {}
            None => {
                drop(memory);
                self.memory.remove(id);
                return Err(no_room("its workspace is in use; give it more (`workspace_mib`)".to_owned()));
            }
        }
        if self.device.are_apart()
            && let Some(node) = memory.host().and_then(|mapping| mapping.numa_node())
        {
            self.engine.place_region(id, node);
        }
        let region = Region { session, id, key, memory, shared, uses: 0 };
        match self.regions.insert(region) {
            Ok(handle) => {
                self.memory.set_owner(id, session, handle);
                client.regions.push(handle);
                Ok(handle)
            }
            Err(_) => {
                self.engine.remove_region(id);
                if let Some(key) = key {
                    let _ = self.device.deregister(key);
                }
                self.memory.remove(id);
                Err(no_room(format!("{} regions are registered", self.regions.len())))
            }
        }
    }

    fn remove_region(&mut self, session: SessionKey, handle: u64) -> Result<u64, RegionRefusal> {
        let found = self.regions.get(handle).filter(|region| region.session == session);
        let length = found.ok_or(RegionRefusal::Unknown)?.memory.length();
        if !self.release(handle) {
            return Err(RegionRefusal::Busy);
        }
        if let Some(client) = self.clients.get_mut(&session) {
            client.regions.retain(|h| *h != handle);
        }
        Ok(length)
    }

    /// Lets go of a region when nothing uses it any more.
    pub(super) fn release(&mut self, handle: u64) -> bool {
        let Some(region) = self.regions.get(handle) else { return true };
        if region.uses > 0 || !self.engine.remove_region(region.id) {
            return false;
        }
        // A device that is still busy with it says so; the engine knows the region no more, so nothing new begins.
        if let Some(key) = region.key
            && matches!(self.device.deregister(key), Err(ringway_verbs::RegisterError::Busy))
        {
            return false;
        }
        let id = region.id;
        // What lets go of memory of a GPU last waits for it: not this thread.
        self.regions.remove(handle);
        self.memory.remove(id);
        true
    }

    fn open(
        &mut self,
        key: GroupKey,
        (layout, node): (Layout, u32),
        (protocol, width, measure): (&str, Width, bool),
        (timeout_ms, name): (u32, u64),
    ) -> Result<Vec<(u32, Endpoint)>, String> {
        let device =
            self.device.choose(protocol).ok_or_else(|| format!("this node has no device `{protocol}`"))?;
        let spec = CommunicatorSpec {
            layout: layout.clone(),
            node,
            name,
            channels: width.channels.into(),
            rails: width.rails.into(),
            timeout_ms: (timeout_ms > 0).then_some(u64::from(timeout_ms)),
            settings: PlanSettings::default(),
            tenant: name,
        };
        let (id, endpoints) = self.engine.open(spec, &mut self.device).map_err(|e| e.to_string())?;
        let expected = u32::try_from(layout.local(node).len()).unwrap_or(u32::MAX);
        let group = Group {
            id,
            device: if layout.nodes() > 1 { device } else { "" },
            width,
            layout,
            node,
            name,
            tenant: None,
            timeout_ms,
            expected,
            attached: 0,
            connecting: false,
            measure,
            closing: false,
            failure: None,
        };
        self.groups.insert(key, group);
        self.group_of.insert(id, key);
        Ok(endpoints)
    }

    fn connect(&mut self, key: GroupKey, endpoints: &[(u32, Endpoint)]) {
        let Some(group) = self.groups.get_mut(&key) else { return };
        match self.engine.connect(group.id, endpoints, &mut self.device) {
            Ok(()) => {
                group.connecting = true;
                let queue_pairs = self.engine.queue_pairs(group.id);
                packets::tell_unequal(key, group.node, queue_pairs, &self.device);
            }
            Err(e) => self.tell(Event::Connected { group: key, result: Err(e.to_string()) }),
        }
    }

    fn attach(&mut self, attach: Attach) {
        let Attach { group: key, rank, session, communicator, rings, client_memory, stream_words } = attach;
        let words = stream_words.and_then(|place| self.stream_words(session, place));
        let Some(group) = self.groups.get_mut(&key) else { return };
        group.expected = group.expected.saturating_sub(1);
        group.attached = group.attached.saturating_add(1);
        let local = LocalRank(group.layout.local_index(rank));
        let (id, size) = (group.id, group.layout.ranks());
        let ring =
            Ring::new((rings, client_memory), (key, id, local), (rank, size), communicator).with_words(words);
        let index = self.rings.add(session, ring);
        if let Some(cell) = self.cells.get_mut(key) {
            cell.seat(rank, session);
        }
        if let Some(board) = self.memory.boards.get_mut(id) {
            board.seat(local, rank, session);
        }
        match self.clients.get_mut(&session) {
            Some(client) => {
                // A job's processes meet in one communicator first; those they split off are the same tenant's.
                let tenant = *client.tenant.get_or_insert(group.tenant.unwrap_or(group.name));
                if group.tenant.is_none() {
                    group.tenant = Some(tenant);
                    self.engine.set_tenant(id, tenant);
                }
                client.rings.push(index);
                if let Some(how) = client.ended {
                    self.lose(index, how);
                }
            }
            None => self.lose(index, RankFailure::Exited),
        }
    }

    fn fail_rank(&mut self, key: GroupKey, rank: u32, how: RankFailure) {
        if let Some(group) = self.groups.get_mut(&key) {
            group.expected = group.expected.saturating_sub(1);
            let (id, local) = (group.id, LocalRank(group.layout.local_index(rank)));
            self.memory.boards.never_came(id, local);
            self.fail_group(key, Failure::Rank { rank, how });
            if let Some(cell) = self.cells.get(key) {
                // It never got the cell.
                cell.cell.set_exited(rank);
            }
        }
    }
}
