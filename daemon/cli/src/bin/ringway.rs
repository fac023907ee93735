//! The program `ringway`: everything a person does with Ringway.

use std::{ffi::OsString, process::ExitCode};

use clap::{Parser, Subcommand};
use ringway::{
    daemon::{self, DaemonArgs},
    local::process,
    run,
};

/// Collectives between processes, through one daemon per node.
#[derive(Debug, Parser)]
#[command(name = "ringway", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::RunArgs),
    Daemon(DaemonArgs),
}

fn main() -> ExitCode {
    let raw: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some((first, rest)) = raw.split_first()
        && first == process::HELPER
    {
        return fail(&process::run_helper(rest));
    }
    let result = match Arguments::parse().command {
        Command::Run(args) => run::run(args),
        Command::Daemon(args) => daemon::daemon(args),
    };
    result.unwrap_or_else(|message| fail(&message))
}

#[expect(clippy::print_stderr, reason = "this is where errors reach the user")]
fn fail(message: &str) -> ExitCode {
    eprintln!("ringway: {message}");
    ExitCode::FAILURE
}
