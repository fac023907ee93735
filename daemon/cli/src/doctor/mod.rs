//! `ringway doctor`: what this host has of what Ringway's paths need.
//!
//! First the facts are gathered, from files and from a few things that are tried; what they mean is then a list of pure functions
//! of them, one for each check.

mod checks;
mod facts;
mod finding;
mod show;
mod verdict;

use std::{
    io::{self, IsTerminal as _},
    net::{IpAddr, Ipv4Addr},
    path::Path,
    process::ExitCode,
};

use clap::Args;

use self::{
    facts::{Facts, Tried},
    finding::{Finding, Status},
};
use crate::output;

/// What `--help` says last, in lines that fit a terminal of 80 columns.
const AFTER_HELP: &str = "\
Status: ok      nothing to do
        note    good to know; a faster path may want more
        warn    a path that this host could have does not work, or is slow
        fail    what every path needs does not work
        absent  there is no such hardware here

Example:
  $ ringway doctor --listen 10.0.0.1
  ok     clock              tsc
  warn   rdma_mtu           mlx5_0:1 on ens1: MTU 1500, packets carry 1024 bytes
                            RDMA packets could carry 4096 bytes, ...
                            $ ip link set dev ens1 mtu 9000
  ...
  Between nodes `auto` would pick roce-xdp; not verbs: ...

What is wrong is followed by what it costs, and after `$` by the command that
mends it, for whoever runs this.

--json prints an array of objects, one for each check, always all of them:
  check   kernel, shared_memory, tcp, io_uring, privileges, memlock,
          huge_pages, cpus, clock, congestion_control, udp_buffers, network,
          roce_port, af_xdp, rdma_ports, rdma_transport, rdma_access,
          rdma_gids, rdma_mtu, verbs, cuda, gpu_direct, auto; in this order
  status  ok, note, warn, fail or absent
  found   a line of text; of `auto` the name of the device, or none
  why     what it costs, or null; of `auto` why no better one would be picked
  mend    an array of shell commands, which may be empty

The exit status is 1 if a check has failed, else 0.";

/// Check this host for everything that Ringway's paths need.
///
/// Looks at RDMA devices, GPUs, the network, limits, privileges and the kernel, says how to mend what is wrong, and changes
/// nothing. For a moment it opens sockets, one of them at the UDP port of RoCE, and RDMA devices. The last line tells which device `auto` would
/// pick for work between nodes, as far as a host by itself can tell.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct DoctorArgs {
    /// The address at which the daemon shall listen, as of `ringwayd --listen` [default: the one towards other networks]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<IpAddr>,
    /// Print JSON for programs
    #[arg(long)]
    json: bool,
}

/// Prints what was found.
///
/// # Errors
/// When it cannot be printed.
pub fn doctor(args: &DoctorArgs) -> Result<ExitCode, String> {
    let listen = args.listen.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let address = if listen.is_unspecified() { ringway_service::own_address(listen) } else { listen };
    let facts = Facts::gather(Path::new("/"), Tried::at(address));
    let findings = findings(&facts);
    if args.json {
        output::line(&serde_json::to_string_pretty(&findings).map_err(|error| error.to_string())?);
    } else {
        let colours = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        output::line(&show::table(&findings, colours));
    }
    let failed = findings.iter().any(|finding| finding.status == Status::Fail);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Everything, in the order in which it is shown: what is basic first, the verdict last.
fn findings(facts: &Facts) -> Vec<Finding> {
    let mut all: Vec<Finding> = checks::ALL.iter().map(|check| check(facts)).collect();
    all.push(verdict::auto(facts));
    all
}

#[cfg(test)]
mod tests;
