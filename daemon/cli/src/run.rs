//! `ringway run`: ranks on this machine, as on a cluster.

use std::{ffi::OsString, process::ExitCode};

use clap::Args;

use crate::local::{
    cluster::{Cluster, ClusterOptions, Network},
    launch::{Job, JobEvent, RunningJob, print_line},
    parse_device,
};

/// Run a program as several ranks on this machine.
///
/// Starts one daemon for each node and the ranks with their environment set, prefixes what they write with their rank,
/// and ends everything when one fails. Nothing is left behind; of a run that was killed a folder is, which the next one removes. A
/// program whose operations depend on nothing but its input gives the same bits in every run.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ringway run -n 4 -- ./my_program --epochs 3\n  ringway run -n 4 --nodes 2 -- ./train_digits\n\n\
    A rank connects with `Client::connect()` and `Communicator::from_env()`; the variables are RINGWAY_RANK,\n\
    RINGWAY_WORLD_SIZE, RINGWAY_LOCAL_RANK, RINGWAY_LOCAL_WORLD_SIZE, RINGWAY_NODE, RINGWAY_ID and RINGWAY_SOCKET."
)]
pub struct RunArgs {
    /// How many ranks to start.
    #[arg(short = 'n', long = "ranks", value_name = "RANKS", value_parser = clap::value_parser!(u16).range(1..=1024))]
    ranks: u16,
    /// How many nodes to divide them over, each with a daemon of its own.
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=250))]
    nodes: u16,
    /// The device between nodes; auto takes shm where the nodes share the loopback network. Also shm, verbs (or
    /// verbs:NAME:PORT:GID), roce-xdp, roce-udp, tcp, tcp-epoll, or several of them with commas between.
    #[arg(long, value_name = "D", default_value = "auto", value_parser = parse_device)]
    device: String,
    /// How the nodes reach each other.
    #[arg(long, value_enum, default_value_t = Network::Auto)]
    network: Network,
    /// Choose algorithms by what the links between the nodes are measured to take, as daemons that stay do, rather than by
    /// what such links usually take. Another run measures something else, may choose others, and end with other bits.
    #[arg(long)]
    measure_links: bool,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Runs the program; the exit code is that of the first rank that fails, 130 after Ctrl-C.
///
/// # Errors
/// When the daemons or the ranks cannot be started, as a sentence.
pub fn run(args: RunArgs) -> Result<ExitCode, String> {
    if args.nodes > args.ranks {
        return Err(format!(
            "{} nodes need at least as many ranks, and there are {}",
            args.nodes, args.ranks
        ));
    }
    let mut command = args.command.into_iter();
    let program = find_program(command.next().unwrap_or_default());
    let options = ClusterOptions {
        nodes: usize::from(args.nodes),
        device: args.device,
        network: args.network,
        apart: false,
        daemon_arguments: if args.measure_links {
            Vec::new()
        } else {
            vec!["--link-constants".to_owned(), "usual".to_owned()]
        },
        pcap: None,
    };
    let cluster = Cluster::start(&options).map_err(|e| e.to_string())?;
    let job = Job {
        ranks: usize::from(args.ranks),
        program,
        arguments: command.collect(),
        environment: Vec::new(),
    };
    let mut running = RunningJob::start(&cluster, &job).map_err(|e| e.to_string())?;
    let status = supervise(&mut running, job.ranks);
    Ok(ExitCode::from(u8::try_from(status).unwrap_or(1)))
}

/// Follows the job to its end. The first failure, or an interruption, ends the other ranks.
fn supervise(running: &mut RunningJob, ranks: usize) -> i32 {
    while let Some(event) = running.next() {
        let (status, why) = match event {
            JobEvent::Line { rank, error_stream, text } => {
                print_line(rank, ranks, error_stream, &text);
                continue;
            }
            JobEvent::Ended { status: 0, .. } => continue,
            JobEvent::Ended { rank, status } => (status, format!("rank {rank} ended with status {status}")),
            JobEvent::Interrupted => (130, "interrupted".to_owned()),
        };
        crate::output::note(&format!("{why}; ending the other ranks"));
        running.end(|rank, error_stream, text| print_line(rank, ranks, error_stream, text));
        return status;
    }
    0
}

/// A name without a slash that is a file here and not on PATH is meant as that file: `train_digits` works beside
/// `./train_digits`, and so does an example of this workspace beside the running executable.
fn find_program(name: OsString) -> OsString {
    let path = std::path::Path::new(&name);
    let on_path = || {
        let paths = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&paths).any(|folder| folder.join(path).is_file())
    };
    if path.components().count() != 1 || on_path() {
        return name;
    }
    let beside = std::env::current_exe().ok().and_then(|exe| exe.parent().map(std::path::Path::to_path_buf));
    let candidates = beside.iter().flat_map(|folder| [folder.join(path), folder.join("examples").join(path)]);
    std::iter::once(std::path::Path::new(".").join(path))
        .chain(candidates)
        .find(|candidate| candidate.is_file())
        .map_or(name, Into::into)
}
