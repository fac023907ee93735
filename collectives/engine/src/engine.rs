//! The engine: communicators, whose turn it is, and what clients and the daemon ask of it.

use std::collections::{BTreeMap, VecDeque};

use ringway_plan::PlanSettings;
use ringway_verbs::{Device, Endpoint, LocalKey, PostError, QueuePairError, QueuePairNumber, Role, Time};
use thiserror::Error;

use crate::collective::run::{Peers, Scratch};
use crate::communicator::{Communicator, CommunicatorSpec, State};
use crate::link::{Channel, ChannelPlace, Link, LinkPlace, MAX_CHANNELS};
use crate::network::Network;
use crate::progress::{COLLECTED, NOTHING};
use crate::schedule::{Schedule, Tenants};
use crate::turn::{Known, MessagePool, Operands, Shared, elapsed_ms};
use crate::windows::Windows;
use crate::workspace::Workspace;
use crate::{
    Collected, CommunicatorId, CommunicatorStatus, ConfigError, EngineConfig, Failure, Finished, Late,
    LocalRank, Readiness, Refused, RegionId, Request, Token,
};

/// The most communicators at once; their index has 16 bits in ids.
const MAX_COMMUNICATORS: usize = 1 << 16;

/// Why a communicator could not be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum OpenError {
    /// The layout has no such node.
    #[error("the layout has no node {node}")]
    Node {
        /// The node given.
        node: u32,
    },
    /// There are too many communicators.
    #[error("too many communicators are open; close some")]
    Full,
    /// There can be no such number of channels.
    #[error("{given} channels to each node are not possible; there can be 1 to {MAX_CHANNELS}")]
    Channels {
        /// The number given.
        given: u32,
    },
    /// The workspace has no room for the buffers of another connection.
    #[error("the daemon's workspace has no room for another connection; give it more")]
    Workspace,
    /// The device refused a queue pair.
    #[error("the device refused a queue pair: {0}")]
    QueuePair(QueuePairError),
}

/// Why a communicator's queue pairs could not be connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum LinkError {
    /// There is no such communicator.
    #[error("no such communicator on this node")]
    Unknown,
    /// It is connected already, or ending.
    #[error("the communicator is already connected or ending")]
    WrongState,
    /// The endpoint of a node is missing.
    #[error("the endpoint of node {node} is missing")]
    Missing {
        /// The node.
        node: u32,
    },
    /// The device refused to connect.
    #[error("the connection to node {node} was refused: {reason}")]
    Connect {
        /// The node.
        node: u32,
        /// Why.
        reason: ringway_verbs::ConnectError,
    },
    /// The device refused a receive.
    #[error("the device refused to post a receive: {0}")]
    Post(PostError),
}

#[derive(Debug, Default)]
pub(crate) struct Entry {
    generation: u16,
    pub(crate) communicator: Option<Box<Communicator>>,
    /// There is work for it beside the engine's.
    pub(crate) beside: bool,
}

/// Executes collectives and messages of many communicators on one node.
#[derive(Debug)]
pub struct Engine {
    pub(crate) shared: Shared,
    pub(crate) entries: Vec<Entry>,
    tenants: Tenants,
    /// Whose turn it is to work.
    pub(crate) schedule: Schedule,
    pub(crate) starved: Vec<u32>,
    /// Room for the pieces of local work that are taken note of in a turn: to clear it in each would take a tenth of one that
    /// finds nothing.
    pub(crate) collected: Box<[Collected]>,
    /// Communicators for which there is work beside the engine's.
    pub(crate) beside: u32,
    pub(crate) now: Time,
    pub(crate) last_tick: Time,
    pub(crate) next_tick: Time,
}

impl Engine {
    /// An engine without communicators.
    ///
    /// # Errors
    /// [`ConfigError`] when the configuration cannot work.
    pub fn new(config: EngineConfig) -> Result<Self, ConfigError> {
        config.check()?;
        let workspace = config.workspace;
        let mut space = Workspace::new(workspace.region, workspace.key, workspace.length);
        let needed = config.pool_bytes();
        let pool =
            space.take_long(needed).ok_or(ConfigError::Workspace { length: workspace.length, needed })?;
        let pool = MessagePool::new(pool, u64::from(config.eager_max_bytes), config.message_pool);
        let scratch = crate::scratch::Scratch::new(&mut space, workspace.length);
        Ok(Self {
            shared: Shared {
                config,
                workspace: space,
                regions: BTreeMap::new(),
                finished: VecDeque::with_capacity(1024),
                late: VecDeque::new(),
                operands: Operands::default(),
                pool,
                network: Network::default(),
                copied: 0,
                unflushed: false,
                soon: false,
                outstanding: 0,
                scratch,
                windows: Windows::default(),
            },
            entries: Vec::new(),
            tenants: Tenants::default(),
            schedule: Schedule::default(),
            starved: Vec::with_capacity(64),
            collected: vec![NOTHING; COLLECTED].into_boxed_slice(),
            beside: 0,
            now: Time(0),
            last_tick: Time(0),
            next_tick: Time(0),
        })
    }

    /// Makes a region known by the device's key for it, so that its bytes can be sent to other nodes.
    pub fn add_region(&mut self, region: RegionId, key: LocalKey) {
        self.shared.regions.insert(region, Known { key: Some(key), numa_node: None });
    }

    /// Makes a region in the memory of an accelerator known. Neither processors nor devices between nodes reach its bytes:
    /// they are touched by pieces of local work alone ([`crate::LocalMemory::hand`]), and what goes to other nodes or comes from
    /// there is staged in the workspace. `false`, and nothing is known, when that has no room for it.
    pub fn add_accelerator_region(&mut self, region: RegionId) -> bool {
        let Shared { windows, workspace, regions, .. } = &mut self.shared;
        let room = windows.make(workspace);
        if room {
            regions.insert(region, Known { key: None, numa_node: None });
        }
        room
    }

    /// Says which NUMA node a known region's memory is on: what comes into it from other nodes goes over the network cards on
    /// the same one, where the device has several and says which these are.
    pub fn place_region(&mut self, region: RegionId, numa_node: u32) {
        if let Some(known) = self.shared.regions.get_mut(&region) {
            known.numa_node = Some(numa_node);
        }
    }

    /// Forgets a region. `false` while an operation still uses it: try again later.
    pub fn remove_region(&mut self, region: RegionId) -> bool {
        let mut communicators = self.entries.iter().filter_map(|entry| entry.communicator.as_ref());
        if communicators.any(|communicator| communicator.uses(region)) {
            return false;
        }
        self.shared.regions.remove(&region);
        true
    }

    /// Makes a communicator and the queue pairs for each of its other nodes, as many as it has channels. Each node's
    /// endpoints, which come in the order of the channels, must be carried to that node and given to [`Engine::connect`]
    /// there. With one node it can be used at once.
    ///
    /// # Errors
    /// [`OpenError`]; then nothing was made.
    pub fn open<D: Device + ?Sized>(
        &mut self,
        spec: CommunicatorSpec,
        device: &mut D,
    ) -> Result<(CommunicatorId, Vec<(u32, Endpoint)>), OpenError> {
        if spec.node >= spec.layout.nodes() {
            return Err(OpenError::Node { node: spec.node });
        }
        if !(1..=MAX_CHANNELS).contains(&spec.channels) {
            return Err(OpenError::Channels { given: spec.channels });
        }
        let index = self.entries.iter().position(|entry| entry.communicator.is_none());
        let index = index.unwrap_or(self.entries.len());
        if index >= MAX_COMMUNICATORS {
            return Err(OpenError::Full);
        }
        if index == self.entries.len() {
            self.entries.push(Entry::default());
        }
        let number = u32::try_from(index).map_err(|_| OpenError::Full)?;
        let mut peers = Peers { links: Vec::new(), of: vec![u32::MAX; spec.layout.nodes() as usize] };
        let mut endpoints = Vec::new();
        if let Err(error) = self.open_links(&spec, number, &mut peers, &mut endpoints, device) {
            for link in &mut peers.links {
                let _ = link.destroy(device);
                link.free(&mut self.shared);
            }
            return Err(error);
        }
        let config = &self.shared.config;
        let (operations, eager_max) = (config.operations_per_rank, u64::from(config.eager_max_bytes));
        let tenant = self.tenants.join(spec.tenant);
        self.schedule.add(number, tenant);
        self.shared.network.add(number, tenant);
        self.shared.scratch.add(self.entries.len());
        let Some(entry) = self.entries.get_mut(index) else { return Err(OpenError::Full) };
        let id = CommunicatorId((u32::from(entry.generation) << 16) | number);
        entry.communicator = Some(Box::new(Communicator::new(id, spec, peers, operations, eager_max)));
        Ok((id, endpoints))
    }

    fn open_links<D: Device + ?Sized>(
        &mut self,
        spec: &CommunicatorSpec,
        communicator: u32,
        peers: &mut Peers,
        endpoints: &mut Vec<(u32, Endpoint)>,
        device: &mut D,
    ) -> Result<(), OpenError> {
        let check = digest(spec.name);
        for node in (0..spec.layout.nodes()).filter(|node| *node != spec.node) {
            let link = u32::try_from(peers.links.len()).map_err(|_| OpenError::Full)?;
            let rank = spec.layout.local(node).first().copied().unwrap_or(0);
            let place = LinkPlace { communicator, link, node, rank, check };
            let mut channels = Vec::new();
            let made = self.make_channels(spec, &mut channels, device).and_then(|()| {
                Link::new(place, &channels, &mut self.shared, device).ok_or(OpenError::Workspace)
            });
            let made = made.inspect_err(|_| {
                for channel in &channels {
                    let _ = device.destroy_queue_pair(channel.queue_pair);
                }
            })?;
            peers.links.push(made);
            if let Some(of) = peers.of.get_mut(node as usize) {
                *of = link;
            }
            for channel in &channels {
                let endpoint = device.endpoint(channel.queue_pair).map_err(OpenError::QueuePair)?;
                endpoints.push((node, endpoint));
            }
        }
        Ok(())
    }

    /// A queue pair for each channel, on the rails by turns.
    fn make_channels<D: Device + ?Sized>(
        &self,
        spec: &CommunicatorSpec,
        channels: &mut Vec<ChannelPlace>,
        device: &mut D,
    ) -> Result<(), OpenError> {
        let config = Link::queue_pair_config(&self.shared.config);
        for channel in 0..spec.channels {
            let rail = channel % spec.rails.max(1);
            let queue_pair = device.create_queue_pair_on(rail, config).map_err(OpenError::QueuePair)?;
            let several = (spec.rails > 1).then_some(rail);
            let numa_node = several.and_then(|_| device.numa_node(queue_pair));
            channels.push(ChannelPlace { queue_pair, rail: several, numa_node });
        }
        Ok(())
    }

    /// Connects a communicator's queue pairs with what the other nodes' engines gave for this one: of each node as many as
    /// there are channels, in their order.
    ///
    /// # Errors
    /// [`LinkError`]; close the communicator then.
    pub fn connect<D: Device + ?Sized>(
        &mut self,
        id: CommunicatorId,
        endpoints: &[(u32, Endpoint)],
        device: &mut D,
    ) -> Result<(), LinkError> {
        let now = self.now;
        let Some(communicator) = find(&mut self.entries, id) else { return Err(LinkError::Unknown) };
        if communicator.state != State::Opened {
            return match communicator.state {
                State::Running if communicator.peers.links.is_empty() => Ok(()),
                _ => Err(LinkError::WrongState),
            };
        }
        let this = communicator.node;
        for link in &mut communicator.peers.links {
            let node = link.node;
            link.post_receives(&mut self.shared, device).map_err(LinkError::Post)?;
            link.heard = now;
            let role = if this < node { Role::Active } else { Role::Passive };
            let mut of_node = endpoints.iter().filter(|(other, _)| *other == node);
            for channel in link.channels() {
                let (_, endpoint) = of_node.next().ok_or(LinkError::Missing { node })?;
                device
                    .connect(channel.queue_pair, endpoint, role)
                    .map_err(|reason| LinkError::Connect { node, reason })?;
            }
        }
        communicator.state = State::Running;
        device.flush();
        self.activate(id);
        Ok(())
    }

    /// The queue pairs to a communicator's other nodes, each with its node.
    pub fn queue_pairs(&self, id: CommunicatorId) -> impl Iterator<Item = (u32, QueuePairNumber)> {
        let links = self.get(id).into_iter().flat_map(|communicator| &communicator.peers.links);
        links.flat_map(|link| link.channels().map(move |channel| (link.node, channel.queue_pair)))
    }

    /// Whether a communicator's connections are made.
    pub fn readiness<D: Device + ?Sized>(&self, id: CommunicatorId, device: &D) -> Readiness {
        let gone = Readiness::Failed(Failure::Aborted { rank: 0 });
        let Some(communicator) = self.get(id) else { return gone };
        match &communicator.state {
            State::Opened => Readiness::Connecting,
            State::Failing { failure, .. } | State::Failed { failure, .. } => {
                Readiness::Failed(failure.clone())
            }
            State::Closing { .. } | State::Closed => gone,
            State::Running => {
                use ringway_verbs::QueuePairState::{Error, Ready};
                let state = |channel: &Channel| device.state(channel.queue_pair).unwrap_or(Error);
                let is_broken = |channel: &Channel| state(channel) == Error;
                let links = &communicator.peers.links;
                for link in links {
                    if let Some(broken) = link.channels().find(|channel| is_broken(channel)) {
                        let rail = link.rail(is_broken);
                        return Readiness::Failed(communicator.loss(link, broken, rail, device));
                    }
                }
                if links.iter().flat_map(Link::channels).all(|channel| state(channel) == Ready) {
                    Readiness::Ready
                } else {
                    Readiness::Connecting
                }
            }
        }
    }

    /// Takes a local rank's request. It finishes by [`Engine::next_finished`], also when the communicator has failed.
    ///
    /// # Errors
    /// [`Refused`]; then nothing was taken.
    pub fn submit(
        &mut self,
        id: CommunicatorId,
        local: LocalRank,
        token: Token,
        request: Request<'_>,
        now: Time,
    ) -> Result<(), Refused> {
        self.now = now;
        let Some(communicator) = find(&mut self.entries, id) else { return Err(Refused::Unknown) };
        if communicator.submit(local.0, token, &request, now, &mut self.shared)? {
            self.schedule.wake(id.0 & 0xffff);
        }
        Ok(())
    }

    /// The next operation that has finished.
    pub fn next_finished(&mut self) -> Option<Finished> {
        self.shared.finished.pop_front()
    }

    /// The next collective that has waited long for ranks; each is reported once.
    pub fn next_late(&mut self) -> Option<Late> {
        self.shared.late.pop_front()
    }

    /// Ends a communicator because of what happened outside of the engine: a local rank was lost, or aborts. Its
    /// operations finish with the failure once the device touches no buffer of theirs any more; its other nodes are
    /// told.
    pub fn fail(&mut self, id: CommunicatorId, failure: Failure) {
        if let Some(communicator) = find(&mut self.entries, id) {
            communicator.pending.get_or_insert(failure);
            self.activate(id);
        }
    }

    /// A local rank leaves. The communicator fails when operations need it that have not finished, or later call for
    /// it.
    pub fn leave(&mut self, id: CommunicatorId, local: LocalRank) {
        if let Some(communicator) = find(&mut self.entries, id) {
            communicator.leave(local.0);
            self.activate(id);
        }
    }

    /// Makes a communicator another tenant's, for when it is known only later whose it is. Before anything was
    /// submitted.
    pub fn set_tenant(&mut self, id: CommunicatorId, tenant: u64) {
        let Some(communicator) = find(&mut self.entries, id) else { return };
        let before = core::mem::replace(&mut communicator.tenant, tenant);
        // The new one first: a tenant that stays keeps its number.
        let number = self.tenants.join(tenant);
        self.tenants.leave(before);
        self.schedule.move_to(id.0 & 0xffff, number);
        self.shared.network.move_to(id.0 & 0xffff, number);
    }

    /// What the communicator's plans are chosen by from the next collective on: the same on every node.
    pub fn set_settings(&mut self, id: CommunicatorId, settings: PlanSettings) {
        if let Some(communicator) = find(&mut self.entries, id) {
            communicator.settings = settings;
        }
    }

    /// Gives a communicator scratch memory of its own, which other communicators do not use, from the next collective
    /// on; `None`: it uses the workspace again. The region was added and has so many bytes; a collective that needs
    /// more uses the workspace. It may be removed when the communicator has none or another, or is closed.
    pub fn set_scratch(&mut self, id: CommunicatorId, scratch: Option<(RegionId, u64)>) {
        if let Some(communicator) = find(&mut self.entries, id) {
            communicator.scratch = scratch.map(|(region, length)| Scratch { region, length });
        }
    }

    /// Whether nobody touches the memory of a communicator's operations that have finished any more. Not so only after a
    /// failure, while somebody to whom a piece of local work was handed has not let go of it, or a peer that has not heard
    /// of the failure may still write.
    #[must_use]
    pub fn is_settled(&self, id: CommunicatorId) -> bool {
        self.get(id).is_none_or(|communicator| !communicator.is_unsettled())
    }

    /// Closes a communicator: operations that have not finished fail, the peers are told, the queue pairs destroyed.
    /// Returns whether it is gone; until then call again after later turns.
    pub fn close(&mut self, id: CommunicatorId) -> bool {
        let now = self.now;
        let Some(communicator) = find(&mut self.entries, id) else { return true };
        if !communicator.close(now) {
            self.activate(id);
            return false;
        }
        let tenant = communicator.tenant;
        if let Some(entry) = self.entries.get_mut((id.0 & 0xffff) as usize) {
            entry.communicator = None;
            self.beside -= u32::from(core::mem::take(&mut entry.beside));
            entry.generation = entry.generation.wrapping_add(1);
            self.schedule.remove(id.0 & 0xffff);
            self.shared.network.remove(id.0 & 0xffff);
            self.tenants.leave(tenant);
        }
        true
    }

    /// When [`Engine::advance`] must be called again even if nothing happens.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        (self.has_work() || self.shared.soon).then_some(self.next_tick)
    }

    /// Whether anything is outstanding.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.shared.outstanding > 0 || self.schedule.is_busy()
    }

    /// A communicator at this moment.
    #[must_use]
    pub fn status(&self, id: CommunicatorId) -> Option<CommunicatorStatus> {
        let communicator = self.get(id)?;
        let queue = &communicator.queue;
        let slot = queue.slot(queue.head).filter(|slot| slot.signature.is_some());
        Some(CommunicatorStatus {
            sequence: queue.head - 1,
            outstanding: communicator.outstanding(),
            call: slot.and_then(|slot| slot.signature),
            missing: slot.map(|_| communicator.missing()).unwrap_or_default(),
            waited_ms: slot.map_or(0, |slot| elapsed_ms(slot.since, self.now)),
            algorithm: communicator.run.source().cloned(),
            bytes: communicator.bytes + communicator.point.bytes,
            failure: match &communicator.state {
                State::Failing { failure, .. } | State::Failed { failure, .. } => Some(failure.clone()),
                _ => communicator.pending.clone(),
            },
        })
    }

    pub(crate) fn get_mut(&mut self, id: CommunicatorId) -> Option<&mut Communicator> {
        find(&mut self.entries, id)
    }

    pub(crate) fn get(&self, id: CommunicatorId) -> Option<&Communicator> {
        let entry = self.entries.get((id.0 & 0xffff) as usize)?;
        entry.communicator.as_deref().filter(|communicator| communicator.id == id)
    }

    pub(crate) fn activate(&mut self, id: CommunicatorId) {
        if find(&mut self.entries, id).is_some() {
            self.schedule.wake(id.0 & 0xffff);
        }
    }
}

fn find(entries: &mut [Entry], id: CommunicatorId) -> Option<&mut Communicator> {
    let entry = entries.get_mut((id.0 & 0xffff) as usize)?;
    entry.communicator.as_deref_mut().filter(|communicator| communicator.id == id)
}

/// 32 bits of a communicator's name.
const fn digest(name: u64) -> u32 {
    (name.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}
