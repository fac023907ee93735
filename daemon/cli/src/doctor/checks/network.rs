//! The network between nodes, as paths without RDMA hardware use it.

use std::net::IpAddr;

use ringway_roce::LinkError;
use ringway_wire::{PathMtu, ROCE_PORT};

use crate::doctor::{
    facts::{Capability, Facts},
    finding::{Finding, Status},
};

/// What a roce-udp link asks for.
const BUFFER_BYTES: u64 = 8 << 20;
/// What the largest packets of RoCE take with their headers, a little more than it is.
const MTU_WANTED: usize = 4200;

pub(super) fn congestion_control(facts: &Facts) -> Finding {
    let name = "congestion_control";
    let system = facts.congestion.as_deref().unwrap_or("unknown");
    let used = facts.tried.congestion.as_deref().unwrap_or(system);
    if used.starts_with("bbr") {
        return Finding::new(name, Status::Warn, format!("{system}, also for Ringway's connections"))
            .why("it paces what is sent by timers, for which collectives would wait; no other may be chosen here")
            .mend(facts.as_root("sysctl -w net.ipv4.tcp_allowed_congestion_control='reno cubic bbr'"));
    }
    match used == system {
        true => Finding::ok(name, system),
        false => {
            Finding::ok(name, format!("{system}; Ringway's own connections have {used}, which does not pace"))
        }
    }
}

pub(super) fn udp_buffers(facts: &Facts) -> Finding {
    let name = "udp_buffers";
    let [Some(receive), Some(send)] = facts.buffer_bytes else {
        return Finding::ok(name, "their limits are another network namespace's");
    };
    let found =
        format!("sockets may have {} to receive and {} to send", super::bytes(receive), super::bytes(send));
    if receive >= BUFFER_BYTES && send >= BUFFER_BYTES {
        return Finding::ok(name, found);
    }
    if facts.user.has(Capability::NetAdmin) {
        return Finding::ok(name, format!("{found}; CAP_NET_ADMIN lifts that"));
    }
    Finding::new(name, Status::Note, found)
        .why("roce-udp wants 8 MiB each way: packets that come faster than they are taken are lost, and sent again")
        .mend(facts.as_root("sysctl -w net.core.rmem_max=8388608 net.core.wmem_max=8388608"))
}

pub(super) fn network(facts: &Facts) -> Finding {
    let (name, address) = ("network", facts.tried.address);
    let interface = match (&facts.tried.interface, facts.own_interface()) {
        (_, Some(interface)) => interface,
        (Err(error), _) => {
            return Finding::new(name, Status::Warn, error.as_str()).why("no daemon could listen there");
        }
        (Ok(interface), None) => return Finding::ok(name, format!("{address} on {interface}")),
    };
    let found = format!("{address} on {}, MTU {}", interface.name, interface.mtu_bytes);
    if address.is_loopback() {
        let finding = Finding::new(name, Status::Note, found);
        let finding = finding.why(
            "there is no default route: without --listen ADDRESS other nodes cannot reach a daemon here",
        );
        return match facts.addresses.first() {
            Some(other) => finding.mend(format!("ringway doctor --listen {other}")),
            None => finding,
        };
    }
    let packets = packet_bytes(interface.mtu_bytes);
    if packets >= 4096 {
        return Finding::ok(name, format!("{found}: RoCE packets carry {packets} bytes"));
    }
    Finding::new(name, Status::Note, format!("{found}: RoCE packets carry {packets} bytes"))
        .why(format!(
            "with less than 4096 roce-udp takes longer than tcp, and `auto` passes it over; an MTU of {MTU_WANTED} would do, 9000 \
             is usual; every node and switch must have it"
        ))
        .mend(facts.as_root(&format!("ip link set dev {} mtu 9000", interface.name)))
}

/// What a packet of RoCE carries over an interface.
pub(in crate::doctor) fn packet_bytes(mtu_bytes: usize) -> usize {
    PathMtu::for_interface(mtu_bytes).map_or(0, PathMtu::bytes)
}

pub(super) fn roce_port(facts: &Facts) -> Finding {
    let (name, address) = ("roce_port", facts.tried.address);
    let Some(holder) = facts.holder() else {
        return Finding::ok(name, format!("UDP port {ROCE_PORT} of {address} is free"));
    };
    let taken = |by: &str| format!("UDP port {ROCE_PORT} of {} is taken by {by}", spoken(holder.address));
    match &holder.process {
        Some(process) if facts.is_served() => {
            Finding::ok(name, taken(&format!("{process}, a daemon of ours")))
        }
        Some(process) => Finding::new(name, Status::Note, taken(process))
            .why(format!("{USERS}; another port works too, the same on all nodes"))
            .mend("ringwayd --roce-port 4792 ..."),
        None if facts.has_module("rdma_rxe") => {
            let devices: Vec<&str> = facts.rxe.iter().map(|(device, _)| device.as_str()).collect();
            let lost = match devices.is_empty() {
                true => String::new(),
                false => format!("; the command removes {} as well", devices.join(", ")),
            };
            Finding::new(name, Status::Note, taken("the kernel's own RoCE, rdma_rxe"))
                .why(format!("{USERS}{lost}"))
                .mend(facts.as_root("rmmod rdma_rxe"))
        }
        None => Finding::new(name, Status::Note, taken("a process that this user may not see"))
            .why(USERS)
            .mend("sudo ss -lunp 'sport = :4791'"),
    }
}

const USERS: &str = "roce-udp and roce-xdp cannot be used at this address";

fn spoken(address: IpAddr) -> String {
    if address.is_unspecified() { "every address".to_owned() } else { address.to_string() }
}

pub(super) fn af_xdp(facts: &Facts) -> Finding {
    let name = "af_xdp";
    let lacks = facts.lacks_for_xdp();
    let note = |found: String| Finding::new(name, Status::Note, found);
    let error = match &facts.tried.roce_xdp {
        Err(LinkError::NoCapability { .. }) if !lacks.is_empty() => {
            return without_capabilities(facts, &lacks);
        }
        // Whose port it is, or address, is another check's business.
        Ok(()) | Err(LinkError::PortTaken { .. } | LinkError::NotLocal { .. }) if lacks.is_empty() => {
            return Finding::ok(name, "a program can be loaded, and a socket opened");
        }
        Ok(()) | Err(LinkError::PortTaken { .. } | LinkError::NotLocal { .. }) => {
            return without_capabilities(facts, &lacks);
        }
        Err(error) => error,
    };
    match error {
        LinkError::Copies { interface, known: true } => note(format!(
            "it works, but the driver of {interface} copies each frame: `auto` passes roce-xdp over"
        )),
        LinkError::Copies { interface, .. } => note(format!(
            "it works, but Linux before 6.3 does not say whether the driver of {interface} copies frames: `auto` passes roce-xdp over"
        )),
        LinkError::TooManyQueues { interface, queues, most } => {
            note(format!("{interface} has {queues} receive queues, and one thread serves {most} at most"))
                .why("roce-xdp cannot be used; roce-udp can")
                .mend(facts.as_root(&format!("ethtool -L {interface} combined 4")))
        }
        LinkError::ProgramAttached { interface, .. } if facts.is_served() => {
            Finding::ok(name, format!("{interface} has a daemon's program"))
        }
        LinkError::ProgramAttached { interface, .. } => {
            note(format!("{interface} has an XDP program already"))
                .why("roce-xdp cannot be used beside it")
                .mend(facts.as_root(&format!("ip link set dev {interface} xdp off")))
        }
        other => note(other.to_string()).why("roce-xdp cannot be used"),
    }
}

fn without_capabilities(facts: &Facts, lacks: &[&str]) -> Finding {
    let finding = Finding::new("af_xdp", Status::Note, format!("this process lacks {}", lacks.join(", ")))
        .why("roce-xdp cannot be used, unless the daemon has them; roce-udp needs none");
    if facts.user.uid == 0 {
        return finding.mend("docker run --cap-add NET_RAW --cap-add NET_ADMIN --cap-add BPF ...");
    }
    let daemon = std::env::current_exe().map(|exe| exe.with_file_name("ringwayd").display().to_string());
    let daemon = daemon.unwrap_or_else(|_| "/usr/bin/ringwayd".to_owned());
    finding.mend(format!("sudo setcap cap_net_raw,cap_net_admin,cap_bpf+ep {daemon}"))
}
