//! The program `ringwayd`: one per node, serves the node's processes.

use std::process::ExitCode;

use clap::Parser;
use ringway::daemon::{DaemonArgs, daemon};

#[derive(Debug, Parser)]
#[command(name = "ringwayd", version)]
struct Arguments {
    #[command(flatten)]
    daemon: DaemonArgs,
}

#[expect(clippy::print_stderr, reason = "this is where errors reach the user")]
fn main() -> ExitCode {
    daemon(Arguments::parse().daemon).unwrap_or_else(|message| {
        eprintln!("ringwayd: {message}");
        ExitCode::FAILURE
    })
}
