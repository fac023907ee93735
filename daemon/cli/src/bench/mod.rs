//! `ringway bench`: what the bypass is worth, measured on this machine: the same operations over every path that works
//! here, by turns, with what each costs.

mod compare;
mod costs;
mod end;
mod interrupt;
mod ladder;
mod machine;
mod pair;
mod paths;
mod polling;
mod progress;
mod report;
mod result;
mod rings;
mod statistics;
mod steps;
mod summary;

use std::{
    path::PathBuf,
    process::ExitCode,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use clap::{Args, Subcommand};

use self::{
    end::Part,
    interrupt::Interrupt,
    ladder::{Amount, Ladder},
    paths::PATHS,
    polling::Curve,
    progress::Progress,
    result::{FORMAT, Path, Report, Settings, Spread},
};
use crate::{local::cluster::Network, output, perf::place};

pub use end::{END, run_end};

/// Measure what kernel bypass is worth here, against sockets.
///
/// Starts pairs of processes, and daemons with clients, on this machine; measures the same operations over every path that
/// works here, all by turns, spinning and blocking; and writes a report. What cannot be measured here is named with the
/// reason.
#[derive(Debug, Clone, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  ringway bench --quick                          a first picture, in less than a minute\n  \
    ringway bench --output report                  everything, in less than 15 minutes: report/bench.html\n  \
    ringway bench --paths shm,tcp,sockets --network loopback\n  \
    ringway bench compare before/bench.json after/bench.json\n\n\
    As root the two ends are in network namespaces of their own, joined by a virtual link, where AF_XDP works too; otherwise\n\
    they are on loopback. Ctrl-C keeps what was measured."
)]
pub struct BenchArgs {
    #[command(subcommand)]
    command: Option<BenchCommand>,
    /// A few sizes, less than a minute.
    #[arg(long)]
    quick: bool,
    /// Where the report goes: bench.html, bench.md, bench.json and bench.svg.
    #[arg(short, long, value_name = "DIR", default_value = "ringway-bench")]
    output: PathBuf,
    /// Only these paths, separated by commas.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = paths::names())]
    paths: Vec<String>,
    /// What is between the two ends.
    #[arg(long, value_enum, default_value_t = Network::Auto)]
    network: Network,
    /// How often everything is measured, by turns [default: 5, with --quick 3].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Seconds of each measurement [default: 0.15, with --quick 0.02].
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    seconds: Option<f64>,
    /// Print what bench.json has instead of the summary.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Subcommand)]
enum BenchCommand {
    Compare(compare::CompareArgs),
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 60.0 => Ok(seconds),
        _ => Err(format!("`{text}` is not a number of seconds above 0 and up to 60")),
    }
}

/// Measures and writes the report.
///
/// # Errors
/// When nothing can be measured or the report cannot be written, as a sentence.
pub fn bench(args: &BenchArgs) -> Result<ExitCode, String> {
    if let Some(BenchCommand::Compare(args)) = &args.command {
        return compare::run(args);
    }
    if place::processors().len() < 2 {
        return Err("the two ends need a processor each, and this process may use one only".to_owned());
    }
    let interrupt = Interrupt::listen()?;
    let mut progress = Progress::new();
    let report = measure(args, &interrupt, &mut progress)?;
    progress.line("");
    let files = report::write(&report, &args.output)?;
    if args.json {
        output::line(&serde_json::to_string(&report).map_err(|e| e.to_string())?);
    } else {
        summary::print(&report);
        for file in files {
            output::line(&format!("# {}", file.display()));
        }
    }
    Ok(if report.complete { ExitCode::SUCCESS } else { ExitCode::from(130) })
}

fn measure(args: &BenchArgs, interrupt: &Interrupt, progress: &mut Progress) -> Result<Report, String> {
    let begun = Instant::now();
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut amount = if args.quick { Amount::QUICK } else { Amount::FULL };
    amount.rounds = args.rounds.unwrap_or(amount.rounds);
    amount.seconds = args.seconds.unwrap_or(amount.seconds);
    let (rounds, seconds) = (amount.rounds, amount.seconds);
    let network = paths::resolve(args.network);
    let (name, mtu_bytes) = paths::describe(network);
    let mut ladder = Ladder::new(amount);
    let paths = open(args, network, &mut ladder, interrupt, progress);
    let mut complete = ladder.climb(interrupt, progress);
    let parts = parts(&mut ladder);
    let mut points = ladder.points();
    let failures = std::mem::take(&mut ladder.failures);
    let hand_overs = std::mem::take(&mut ladder.hand_overs_ns);
    // Nothing else runs while daemons are measured that poll.
    drop(ladder);
    let mut curve = Curve::default();
    if args.paths.is_empty() && !interrupt.came() {
        curve = polling::curve(rounds, (seconds * 4.0).max(0.2), interrupt, progress);
    }
    points.extend(curve.full);
    complete &= !interrupt.came();
    let hand_over_ns = (!hand_overs.is_empty()).then(|| Spread::of(hand_overs));
    if points.is_empty() {
        return Err(format!("nothing was measured\n{}", failures.join("\n")));
    }
    Ok(Report {
        format: FORMAT,
        ringway: env!("CARGO_PKG_VERSION").to_owned(),
        started_unix_s: started.as_secs(),
        took_s: begun.elapsed().as_secs_f64(),
        complete,
        machine: machine::describe(&name, mtu_bytes),
        settings: Settings { quick: args.quick, rounds, seconds },
        hand_over_ns,
        paths,
        steps: steps::steps(&points, &parts, hand_over_ns),
        points,
        polling: curve.points,
    })
}

/// Opens every path that was asked for and works; says of the others why not.
fn open(
    args: &BenchArgs,
    network: Network,
    ladder: &mut Ladder,
    interrupt: &Interrupt,
    progress: &Progress,
) -> Vec<Path> {
    let mut described = Vec::new();
    let wanted = |name: &str| args.paths.is_empty() || args.paths.iter().any(|path| path == name);
    for path in PATHS.iter().filter(|path| wanted(path.name)) {
        if interrupt.came() {
            break;
        }
        progress.line(&format!("opening {}", path.name));
        let mut reasons = Vec::new();
        if path.is_between_devices {
            match paths::between_devices(path, network, interrupt) {
                Ok(open) => ladder.devices.push(open),
                Err(why) => reasons.push(why),
            }
        }
        if path.is_between_clients {
            match paths::between_clients(path, network, interrupt) {
                Ok(open) => ladder.clients.push(open),
                Err(why) => reasons.push(format!("between daemons: {why}")),
            }
        }
        for why in &reasons {
            progress.note(&format!("{} is not measured: {why}", path.name));
        }
        described.push(path.describe((!reasons.is_empty()).then(|| reasons.join("; "))));
    }
    described
}

/// The parts of a message's way through sockets.
fn parts(ladder: &mut Ladder) -> Vec<Part> {
    let sockets = ladder.devices.iter_mut().find(|path| path.name == "sockets");
    sockets.and_then(|path| path.ends.parts().ok()).unwrap_or_default()
}
