//! The program `ringway`: everything a person does with Ringway.

use std::{ffi::OsString, process::ExitCode};

use clap::{Parser, Subcommand};
use ringway::{
    bench, daemon, demo, doctor, explain, local::process, perf, perftest, plan, run, simulate, status, topo,
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
    Demo(demo::DemoArgs),
    Run(run::RunArgs),
    Perf(Box<perf::PerfArgs>),
    Explain(Box<explain::ExplainArgs>),
    Bench(Box<bench::BenchArgs>),
    Perftest(Box<perftest::PerftestArgs>),
    Plan(plan::PlanArgs),
    Simulate(Box<simulate::SimulateArgs>),
    Status(status::StatusArgs),
    Doctor(doctor::DoctorArgs),
    Topo(topo::TopoArgs),
    Daemon(Box<daemon::DaemonArgs>),
}

fn main() -> ExitCode {
    let raw: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some((first, rest)) = raw.split_first()
        && first == process::HELPER
    {
        fail(&process::run_helper(rest));
        // What a shell gives for a command that cannot be found.
        return ExitCode::from(127);
    }
    if let [first, spec] = raw.as_slice()
        && first == perf::RANK
    {
        return perf::run_rank(&spec.to_string_lossy()).unwrap_or_else(|message| fail(&message));
    }
    if let [first, place] = raw.as_slice()
        && first == bench::END
    {
        return bench::run_end(&place.to_string_lossy()).unwrap_or_else(|message| fail(&message));
    }
    let result = match Arguments::parse().command {
        Command::Demo(args) => demo::demo(args),
        Command::Run(args) => run::run(args),
        Command::Perf(args) => perf::perf(*args),
        Command::Explain(args) => explain::explain(&args),
        Command::Bench(args) => bench::bench(&args),
        Command::Perftest(args) => perftest::perftest(&args),
        Command::Plan(args) => plan::plan(args),
        Command::Simulate(args) => simulate::simulate(&args),
        Command::Status(args) => status::status(&args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Topo(args) => topo::topo(&args),
        Command::Daemon(args) => daemon::daemon(*args),
    };
    result.unwrap_or_else(|message| fail(&message))
}

#[expect(clippy::print_stderr, reason = "this is where errors reach the user")]
fn fail(message: &str) -> ExitCode {
    eprintln!("ringway: {message}");
    ExitCode::FAILURE
}
