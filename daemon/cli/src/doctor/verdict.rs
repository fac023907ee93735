//! Which device `auto` would pick for work between nodes.

use ringway_ibverbs::{Choice, LinkLayer, Own, Selector};
use ringway_roce::LinkError;
use ringway_service::{DeviceKind, udp_is_worth_it, verbs_is_worth_it};

use super::{
    checks::packet_bytes,
    facts::{Access, Facts},
    finding::{Finding, Status},
};

/// The best that would work, with why better ones would not. Daemons of one host have shm, which is not asked for here.
pub(super) fn auto(facts: &Facts) -> Finding {
    let mut passed = Vec::new();
    for kind in DeviceKind::ALL {
        let answer = match kind {
            // Not between nodes.
            DeviceKind::Shm => continue,
            DeviceKind::Verbs => verbs(facts),
            DeviceKind::RoceXdp => roce_xdp(facts),
            DeviceKind::RoceUdp => roce_udp(facts),
            DeviceKind::Tcp => facts.tried.io_uring.map_err(|_| "no ring can be made".to_owned()),
            DeviceKind::TcpEpoll => facts.tried.sockets.clone(),
        };
        match answer {
            Ok(()) => return finished(Finding::ok("auto", kind.name()), &passed),
            Err(reason) => passed.push(format!("not {}: {reason}", kind.name())),
        }
    }
    finished(Finding::new("auto", Status::Fail, "none"), &passed)
}

fn finished(finding: Finding, passed: &[String]) -> Finding {
    if passed.is_empty() { finding } else { finding.why(passed.join("; ")) }
}

fn verbs(facts: &Facts) -> Result<(), String> {
    if facts.ports().is_empty() {
        return Err("no RDMA device".to_owned());
    }
    if !facts.tried.has_verbs {
        return Err("this program is built without it".to_owned());
    }
    let own = Own { address: facts.tried.address, interface: facts.tried.interface.as_ref().ok().cloned() };
    let choice =
        Choice::best(facts.ports(), &Selector::default(), Some(&own)).map_err(|error| error.to_string())?;
    if choice.port.link_layer == LinkLayer::Ethernet && facts.interface_of(&choice.port).is_none() {
        return Err(format!("the interface of {} is in another network namespace", choice.port.device));
    }
    if facts.libibverbs.is_none() {
        return Err("libibverbs.so.1 is not installed".to_owned());
    }
    verbs_is_worth_it(&choice, facts.tried.address)?;
    let is_allowed =
        |device: &str| facts.nodes.iter().any(|node| node.device == device && node.access == Access::Allowed);
    match is_allowed(&choice.port.device) {
        true => Ok(()),
        false => Err(format!("{} may not be used", choice.port.device)),
    }
}

fn roce_xdp(facts: &Facts) -> Result<(), String> {
    let lacks = facts.lacks_for_xdp();
    match &facts.tried.roce_xdp {
        // A process outside of the host's first user namespace may seem to.
        Ok(()) if lacks.is_empty() => Ok(()),
        Err(LinkError::PortTaken { .. } | LinkError::ProgramAttached { .. })
            if facts.is_served() && lacks.is_empty() =>
        {
            Ok(())
        }
        Ok(()) | Err(LinkError::NoCapability { .. }) => {
            Err(format!("this process lacks {}", lacks.join(", ")))
        }
        Err(LinkError::Copies { interface, known: true }) => {
            Err(format!("the driver of {interface} copies each frame"))
        }
        Err(LinkError::Copies { .. }) => {
            Err("Linux before 6.3 does not say whether frames are copied".to_owned())
        }
        Err(error) => Err(brief(error)),
    }
}

fn roce_udp(facts: &Facts) -> Result<(), String> {
    match &facts.tried.roce_udp {
        Ok(packet_bytes) => worth_it(facts, *packet_bytes),
        Err(LinkError::PortTaken { .. }) if facts.is_served() => {
            worth_it(facts, facts.own_interface().map_or(0, |interface| packet_bytes(interface.mtu_bytes)))
        }
        Err(error) => Err(brief(error)),
    }
}

fn worth_it(facts: &Facts, packet_bytes: usize) -> Result<(), String> {
    let worth = udp_is_worth_it(facts.tried.address, packet_bytes);
    worth.map_err(|reason| reason.split(';').next().unwrap_or_default().to_owned())
}

/// What a check has said at length.
fn brief(error: &LinkError) -> String {
    match error {
        LinkError::PortTaken { port, .. } => format!("UDP port {port} is taken"),
        LinkError::NotLocal { address, .. } => format!("{address} is not an address of this host"),
        other => other.to_string(),
    }
}
