//! Putting a daemon together and running it.

use std::time::Instant;

use ringway_group::{Offer, Planning};
use ringway_plan::{PlanSettings, tuner::Saved};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{
    Config, ServiceError, Stop,
    control::{Claim, Control, Parts},
    devices::{self, Made, Open},
    engine_thread::{EngineThread, Lane},
    membership::{Membership, PeersConfig},
    peers::Times,
    poller::Poller,
    polling::processors_of,
    tuning_file::read_tuning,
};

/// Runs a daemon until it is told to stop, or has been idle for as long as configured.
///
/// # Errors
/// [`ServiceError`] when it cannot start, or cannot go on; its text says what to do.
pub fn run(config: Config, stop: Stop) -> Result<(), ServiceError> {
    allow_descriptors();
    let claim = Claim::take(&config)?;
    for plan in &config.plans {
        tracing::info!(plan = plan.name(), operation = %plan.operation(), nodes = plan.nodes(), "has a listed plan");
    }
    let Made { devices, open, refused, door } = devices::make(&config)?;
    let commands = Lane::new().map_err(ServiceError::system("make an eventfd"))?;
    let events = Lane::new().map_err(ServiceError::system("make an eventfd"))?;
    let poller = Poller::new().map_err(ServiceError::system("make an epoll instance"))?;
    let peers = peers_config(&config, &open)?;
    let membership = Membership::new(peers, door, poller.clone())
        .map_err(|error| ServiceError::Network(error.to_string()))?;
    let engine = EngineThread::new(&config, devices, commands.clone(), events.clone())?;
    let (polling, spin) = engine.polling();
    let workspace = engine.workspace();
    let thread = engine.spawn(config.engine_cpu)?;
    let listener = claim.listen(config.users)?;
    tracing::info!(
        socket = %config.socket.display(),
        device = open.first().map(|open| open.name),
        address = membership.advertised().map(tracing::field::display),
        polling,
        spin_us = spin.as_micros(),
        pid = std::process::id(),
        "serving"
    );
    let parts = Parts {
        config,
        open_devices: open,
        refused_devices: refused,
        poller,
        listener,
        stop,
        membership,
        commands,
        events,
        thread,
        workspace,
    };
    let control = Control::new(parts, Instant::now())?;
    // Without a service manager there is nobody to tell.
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    control.run()
}

/// Every client, communicator and region holds descriptors: takes as many as the system allows this process.
fn allow_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current < limit.maximum || (limit.current.is_some() && limit.maximum.is_none()) {
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        if let Err(errno) = setrlimit(Resource::Nofile, raised) {
            tracing::debug!(%errno, "the limit on open files stays at {:?}", limit.current);
        }
    }
}

fn peers_config(config: &Config, open: &[Open]) -> Result<PeersConfig, ServiceError> {
    let network = config.network.as_ref();
    let mut times = Times::default();
    if let Some(network) = network {
        times.silence = times.silence.max(network.peer_timeout);
    }
    Ok(PeersConfig {
        listen: network.map(|n| n.listen),
        advertised: network.map(|n| n.advertise),
        key: network.map(|n| n.cluster_key.clone()),
        rails: network.map(|n| n.rails.clone()).unwrap_or_default(),
        processors: processors_of(config.engine_cpu),
        devices: open.iter().map(|open| Offer { device: open.protocol.clone(), width: open.width }).collect(),
        planning: planning(config)?,
        plans: config.plans.iter().map(|plan| (&**plan).into()).collect(),
        times,
    })
}

/// What the plans of communicators that are rooted here are chosen by.
fn planning(config: &Config) -> Result<Planning, ServiceError> {
    let settings = PlanSettings::default().preferring(config.algorithm).grouping(config.group_nodes);
    let mut planning = Planning::new(settings, config.order);
    if let Some(path) = &config.tuning_file {
        planning = planning.with_given(read_tuning(path)?);
    }
    let learned = match config.link_cache.as_deref().filter(|path| path.exists()).map(read_tuning) {
        Some(Ok(learned)) => learned,
        Some(Err(error)) => {
            tracing::warn!(%error, "what was measured of links before is not used");
            Saved::default()
        }
        None => Saved::default(),
    };
    planning = planning.with_learned(learned);
    Ok(if config.measures_links { planning.measuring() } else { planning })
}
