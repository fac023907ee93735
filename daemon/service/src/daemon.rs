//! Putting a daemon together and running it.

use std::time::Instant;

use ringway_tcp::{TcpConfig, TcpDevice};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{
    Config, DeviceChoice, ServiceError, Stop,
    control::{Control, Listener, Parts},
    door::TcpDoor,
    engine_thread::{EngineThread, Lane, NoDevice, NodeDevice},
    membership::{Membership, PeersConfig},
    peers::{DataDoor, Times},
    poller::Poller,
};

/// Runs a daemon until it is told to stop, or has been idle for as long as configured.
///
/// # Errors
/// [`ServiceError`] when it cannot start, or cannot go on; its text says what to do.
pub fn run(config: Config, stop: Stop) -> Result<(), ServiceError> {
    allow_descriptors();
    let listener = Listener::bind(&config)?;
    let (device, door, device_name) = make_device(&config)?;
    let commands = Lane::new().map_err(ServiceError::system("make an eventfd"))?;
    let events = Lane::new().map_err(ServiceError::system("make an eventfd"))?;
    let poller = Poller::new().map_err(ServiceError::system("make an epoll instance"))?;
    let peers = peers_config(&config, device_name);
    let membership = Membership::new(peers, door, poller.clone())
        .map_err(|error| ServiceError::Network(error.to_string()))?;
    let engine = EngineThread::new(&config, device, commands.clone(), events.clone())?;
    let (polling, spin) = engine.polling();
    let thread = engine.spawn(config.engine_cpu)?;
    tracing::info!(
        socket = %config.socket.display(),
        device = device_name,
        address = membership.advertised().map(tracing::field::display),
        polling,
        spin_us = spin.as_micros(),
        pid = std::process::id(),
        "serving"
    );
    let parts = Parts { config, poller, listener, stop, membership, commands, events, thread };
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

type Made = (NodeDevice, Option<Box<dyn DataDoor>>, &'static str);

/// The device between nodes; one line in the log says why it is this one.
fn make_device(config: &Config) -> Result<Made, ServiceError> {
    let Some(network) = &config.network else {
        if config.device == DeviceChoice::Tcp {
            tracing::info!(
                "device `tcp` is not used: without cluster_key_file this daemon serves one node only"
            );
        }
        return Ok((Box::new(NoDevice::default()), None, "none"));
    };
    if config.device == DeviceChoice::Auto {
        tracing::info!("device `tcp` is used: it is the only kind this version has");
    }
    let mut tcp = TcpConfig::new(network.advertise);
    tcp.source = Some(network.listen.ip()).filter(|ip| !ip.is_unspecified());
    tcp.max_regions = u32::from(u16::MAX);
    let (device, acceptor) = TcpDevice::new(tcp)
        .map_err(|error| ServiceError::Device { device: "tcp", reason: error.to_string() })?;
    Ok((Box::new(device), Some(Box::new(TcpDoor(acceptor))), "tcp"))
}

fn peers_config(config: &Config, device: &str) -> PeersConfig {
    let network = config.network.as_ref();
    let mut times = Times::default();
    if let Some(network) = network {
        times.silence = times.silence.max(network.peer_timeout);
    }
    PeersConfig {
        listen: network.map(|n| n.listen),
        advertised: network.map(|n| n.advertise),
        key: network.map(|n| n.cluster_key.clone()),
        device: device.to_owned(),
        times,
    }
}
