//! `ringway status`: what the daemon is doing.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;
use ringway_client::Client;
use ringway_service::status::{CommunicatorStatus, DaemonStatus, DeviceStatus};

use crate::output;

/// Show what the daemon of this node is doing.
///
/// Lists the clients, the communicators with the operation each waits for and the ranks that have not come, and
/// counters.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// The daemon's socket; else RINGWAY_SOCKET, the system's daemon, the user's own.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Print the daemon's JSON as it is.
    #[arg(long)]
    json: bool,
}

/// Prints the status.
///
/// # Errors
/// When no daemon answers, as a sentence.
pub fn status(args: &StatusArgs) -> Result<ExitCode, String> {
    let mut builder = Client::builder().autostart(false);
    if let Some(socket) = &args.socket {
        builder = builder.socket(socket);
    }
    let client = builder.connect().map_err(|e| e.to_string())?;
    let text = client.status().map_err(|e| e.to_string())?;
    if args.json {
        output::line(text.trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    let status: DaemonStatus = serde_json::from_str(&text).map_err(|e| {
        format!("the daemon's status cannot be read ({e}); is it of this version? try --json")
    })?;
    print(&status);
    Ok(ExitCode::SUCCESS)
}

fn print(status: &DaemonStatus) {
    let or_none = |text: &str| if text.is_empty() { "none".to_owned() } else { text.to_owned() };
    output::line(&format!("ringwayd {}  pid {}  up {:.0} s", status.version, status.pid, status.uptime_s));
    output::line(&format!(
        "socket {}  polling {} (spins {:.0} us)  device {}  address {}",
        status.socket,
        status.polling,
        status.spin_us,
        status.device,
        or_none(&status.address)
    ));
    output::line(&format!(
        "\n{:>7} {:>8} {:>6} {:>8} {:>12} {:>13}",
        "client", "pid", "uid", "regions", "MiB", "communicators"
    ));
    for session in &status.sessions {
        output::line(&format!(
            "{:>7} {:>8} {:>6} {:>8} {:>12.1} {:>13}",
            session.session,
            session.pid,
            session.uid,
            session.regions,
            session.region_bytes as f64 / f64::from(1 << 20),
            session.communicators
        ));
    }
    for joining in &status.joining {
        output::line(&format!(
            "client {} waits for {} s to be rank {} of {}",
            joining.session, joining.waiting_s, joining.rank, joining.size
        ));
    }
    output::line(&format!(
        "\n{:>12} {:>6} {:>6} {:>6} {:>12} {:>12} {:>9}  state",
        "communicator", "ranks", "nodes", "path", "collectives", "outstanding", "algorithm"
    ));
    status.communicators.iter().for_each(communicator);
    status.communicators.iter().filter(|one| one.channels > 1).for_each(channels);
    for one in &status.communicators {
        for device in &one.passed_over {
            let (group, used) = (one.group, &one.device);
            let DeviceStatus { name, refused, .. } = device;
            output::line(&format!(
                "communicator {group} uses {used}; device {name} is not used for it: {refused}"
            ));
        }
    }
    let counters = &status.counters;
    output::line(&format!(
        "\noperations {} submitted, {} finished, {} failed;  {} MiB read and written in cells in {} turns;  {} MiB read and \
         written by waiting ranks in {} pieces;  {} sleeps, {} wake-ups;  {} clients served, {} refused, {} disconnected \
         for breaking the protocol;  {} system calls",
        counters.submitted,
        counters.finished,
        counters.failed,
        counters.help_bytes >> 20,
        counters.help_turns,
        counters.rank_bytes >> 20,
        counters.rank_pieces,
        counters.sleeps,
        counters.wake_ups,
        counters.sessions,
        counters.refused,
        counters.faults,
        status.system_calls
    ));
    status.devices.iter().for_each(device);
}

/// How wide the connections of a communicator are.
fn channels(status: &CommunicatorStatus) {
    let CommunicatorStatus { group, device, channels, rails, .. } = status;
    let over = if *rails > 1 { format!(" over {rails} rails") } else { String::new() };
    output::line(&format!("communicator {group} uses {device} with {channels} channels to each node{over}"));
}

/// What a device has counted, without what never happened.
fn device(status: &DeviceStatus) {
    if !status.refused.is_empty() {
        return output::line(&format!("device {} is not used: {}", status.name, status.refused));
    }
    let happened = status.counters.iter().filter(|(_, value)| **value > 0);
    let counts: Vec<String> =
        happened.map(|(name, value)| format!("{} {value}", name.replace('_', " "))).collect();
    let rail = if status.rail.is_empty() { String::new() } else { format!(" on rail {}", status.rail) };
    // Rails are listed also where nothing has gone over them.
    if !counts.is_empty() || !rail.is_empty() {
        let counts = if counts.is_empty() { "nothing yet".to_owned() } else { counts.join(", ") };
        output::line(&format!("device {}{rail}: {counts}", status.name));
    }
}

fn communicator(status: &CommunicatorStatus) {
    let state = if !status.failure.is_empty() {
        format!("failed: {}", status.failure)
    } else if status.late_ranks.is_empty() {
        if status.current.is_empty() { "idle".to_owned() } else { status.current.clone() }
    } else {
        let ranks: Vec<String> = status.late_ranks.iter().map(u32::to_string).collect();
        let waited =
            if status.waited_ms > 0 { format!(" for {} ms", status.waited_ms) } else { String::new() };
        format!("{} waits for rank {}{waited}", status.current, ranks.join(", "))
    };
    output::line(&format!(
        "{:>12} {:>6} {:>6} {:>6} {:>12} {:>12} {:>9}  {state}",
        status.group,
        status.ranks,
        status.nodes,
        status.path,
        status.sequence,
        status.outstanding,
        status.algorithm
    ));
}
