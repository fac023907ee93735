//! The daemon's state, for `ringway status`.

use std::{io::Write, os::fd::OwnedFd, time::Instant};

use ringway_abi::control::{RefusalKind, Reply};
use ringway_mem::calls;
use rustix::fs::{MemfdFlags, SealFlags, memfd_create};

use super::Control;
use crate::{
    session::SessionKey,
    status::{DaemonStatus, DeviceStatus, EngineStatus, JoiningStatus, SessionStatus},
};

impl Control {
    /// Answers a status request.
    pub(super) fn report(&mut self, key: SessionKey, number: u32, engine: EngineStatus, now: Instant) {
        let status = self.status(engine, now);
        if let Some(session) = self.sessions.get_mut(&key) {
            session.end();
        }
        match write_memfd(&status) {
            Ok(fd) => self.reply(key, number, Reply::Done, vec![fd]),
            Err(e) => self.refuse(key, number, (RefusalKind::Busy, format!("cannot write the state ({e})"))),
        }
    }

    fn status(&self, engine: EngineStatus, now: Instant) -> DaemonStatus {
        let mut counters = engine.counters;
        counters.sessions = self.counters.sessions;
        counters.refused = self.counters.refused;
        counters.faults = self.counters.faults;
        let sessions = self.sessions.iter().filter(|(_, s)| s.greeted).map(|(key, s)| SessionStatus {
            session: key.0,
            pid: s.pid,
            uid: s.uid,
            regions: s.regions,
            region_bytes: s.region_bytes,
            communicators: u32::try_from(s.communicators.len()).unwrap_or(u32::MAX),
        });
        let joining = self.joins.values().map(|p| JoiningStatus {
            session: p.session.0,
            rank: p.join.rank,
            size: p.join.size,
            waiting_s: now.saturating_duration_since(p.since).as_secs(),
        });
        let (forming_here, forming_rooted) = self.membership.forming();
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let mut communicators = engine.communicators;
        for communicator in &mut communicators {
            let better = self.better_than(&communicator.device).map(|open| DeviceStatus {
                name: open.name.to_owned(),
                refused: open.why_not_common().to_owned(),
                ..DeviceStatus::default()
            });
            communicator.passed_over = better.collect();
        }
        let of_devices = engine.devices.iter().filter_map(|device| device.counters.get("system_calls"));
        let system_calls = calls::made() + of_devices.sum::<u64>();
        DaemonStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: now.saturating_duration_since(self.started).as_secs_f64(),
            socket: self.config.socket.display().to_string(),
            polling: self.config.polling.name().to_owned(),
            spin_us: engine.spin_us,
            device: engine.device.to_owned(),
            devices: engine.devices.into_iter().chain(self.refused_devices.iter().cloned()).collect(),
            address: self.config.network.as_ref().map_or_else(String::new, |n| n.advertise.to_string()),
            sessions: sessions.collect(),
            communicators,
            joining: joining.collect(),
            forming_here: count(forming_here),
            forming_rooted: count(forming_rooted),
            peers: count(self.membership.connections()),
            system_calls,
            counters,
        }
    }
}

fn write_memfd(status: &DaemonStatus) -> std::io::Result<OwnedFd> {
    let text = serde_json::to_vec(status)?;
    let fd = memfd_create("ringway-status", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = std::fs::File::from(fd);
    file.write_all(&text)?;
    let fd = OwnedFd::from(file);
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&fd, seals)?;
    Ok(fd)
}
