//! `ringway bench`: what the bypass is worth, measured on this machine: the same operations over every path that works
//! here, by turns, with what each costs.

mod compare;
mod costs;
mod daemons;
mod end;
mod end_process;
mod far;
mod interrupt;
mod ladder;
mod machine;
mod noise;
mod pair;
mod paths;
mod polling;
mod progress;
mod report;
mod result;
mod rings;
mod rounds;
mod statistics;
mod steps;
mod summary;
mod verbs;

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::ExitCode,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use clap::{Args, Subcommand};
use ringway_tcp::MAX_CONNECTIONS;

use self::{
    end::{Part, TOOLS, Tool},
    far::Far,
    interrupt::Interrupt,
    ladder::{Amount, Group, Ladder},
    paths::{Between, Definition, OpenPath, PATHS},
    polling::Curve,
    result::{FORMAT, Polling, Reference, Report, Settings, Spread, Test},
    rings::RING,
};
use crate::{local::cluster::Network, output, perf::place};

pub use end::{END, run_end};

pub(crate) use progress::Progress;
pub(crate) use report::{axis, plot, unit};

/// What says how to measure, which a server is told by its clients.
const OF_A_RUN: [&str; 9] =
    ["client", "quick", "output", "paths", "network", "tcp_connections", "rounds", "seconds", "json"];

/// Measure what kernel bypass is worth here, against sockets.
///
/// Starts pairs of processes, and daemons with clients, on this machine; measures the same operations over every path that
/// works here, all by turns, spinning and blocking; and writes a report. What cannot be measured here is named with the
/// reason. With --server on another machine and --client here, one of each pair is there. Where iperf3 and sockperf are
/// installed they measure as well, by turns with the paths.
#[derive(Debug, Clone, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  ringway bench --quick                          a first picture, in less than a minute\n  \
    ringway bench --output report                  everything, in less than 15 minutes: report/bench.html\n  \
    ringway bench --paths shm,tcp,sockets --network loopback\n  \
    ringway bench --server --listen 10.0.0.2       on one machine, and on the other:\n  \
    ringway bench --client 10.0.0.2 --output report\n  \
    ringway bench compare before/bench.json after/bench.json\n\n\
    As root the two ends are in network namespaces of their own, joined by a virtual link, where AF_XDP works too; otherwise\n\
    they are on loopback. Ctrl-C keeps what was measured.\n\n\
    A server takes whoever connects for a client: the connection is plain TCP, without any proof of who it is. Such a client\n\
    can have the machine measured, with the processor time and the traffic that this takes, and nothing else. So have it\n\
    listen on an address that only trusted machines reach, and end it afterwards. The key that the two daemons of a\n\
    measurement prove themselves with is made for it by the client, and sent over that connection."
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
    /// Only these paths, and tools as references, separated by commas.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = paths::names())]
    paths: Vec<String>,
    /// What is between the two ends.
    #[arg(long, value_enum, default_value_t = Network::Auto)]
    network: Network,
    /// Be the other machine's end: serve one client after the other, until Ctrl-C.
    #[arg(long, conflicts_with_all = OF_A_RUN)]
    server: bool,
    /// Where the server listens: an address of this machine, or address:port [default: 127.0.0.1:7412].
    #[arg(long, value_name = "ADDRESS", value_parser = parse_listen, requires = "server", conflicts_with_all = OF_A_RUN)]
    listen: Option<SocketAddr>,
    /// Measure between this machine and the one of this name or address, with or without a port, where a server is.
    #[arg(long, value_name = "HOST", conflicts_with = "network")]
    client: Option<String>,
    /// Connections of the paths `tcp` and `tcp-epoll`, among which long messages are divided.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=MAX_CONNECTIONS as i64))]
    tcp_connections: u32,
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

fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    let bare = || text.parse::<IpAddr>().map(|ip| (ip, far::PORT).into());
    text.parse().or_else(|_| bare()).map_err(|_| {
        format!("`{text}` is no address, such as 10.0.0.2, 10.0.0.2:{} or [fd00::2]:{0}", far::PORT)
    })
}

/// Measures and writes the report.
///
/// # Errors
/// When nothing can be measured or the report cannot be written, as a sentence.
pub fn bench(args: &BenchArgs) -> Result<ExitCode, String> {
    if let Some(BenchCommand::Compare(args)) = &args.command {
        return compare::run(args);
    }
    let interrupt = Interrupt::listen()?;
    if args.server {
        let listen = args.listen.unwrap_or_else(|| (Ipv4Addr::LOCALHOST, far::PORT).into());
        return far::serve(listen, &interrupt);
    }
    if !args.paths.is_empty() && args.paths.iter().all(|name| Tool::named(name).is_some()) {
        return Err("--paths names tools only, which measure beside a path: name a path as well".to_owned());
    }
    let between = match &args.client {
        Some(host) => Between::Machines(Box::new(Far::connect(host, &interrupt)?)),
        None if place::processors().len() < 2 => {
            return Err("the two ends need a processor each, and this process may use one only".to_owned());
        }
        None => Between::Here(paths::resolve(args.network)),
    };
    // Rather now than when everything has been measured.
    report::make_folder(&args.output)?;
    let mut progress = Progress::new();
    let report = measure(args, &between, &interrupt, &mut progress)?;
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
    match between.lost() {
        Some(why) => Err(format!("{why}; the report has what was measured until then")),
        None if report.complete => Ok(ExitCode::SUCCESS),
        None => Ok(ExitCode::from(130)),
    }
}

fn measure(
    args: &BenchArgs,
    between: &Between,
    interrupt: &Interrupt,
    progress: &mut Progress,
) -> Result<Report, String> {
    let begun = Instant::now();
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut amount = if args.quick { Amount::QUICK } else { Amount::FULL };
    amount.rounds = args.rounds.unwrap_or(amount.rounds);
    amount.seconds = args.seconds.unwrap_or(amount.seconds);
    let (rounds, seconds) = (amount.rounds, amount.seconds);
    let (name, mtu_bytes) = between.describe();
    let mut ladder = Ladder::new(amount);
    let Climbed { mut missing, parts, references } = climb(&mut ladder, args, between, interrupt, progress);
    let mut curve = Curve::default();
    if args.paths.is_empty() && !interrupt.came() {
        curve = polling::curve(rounds, (seconds * 4.0).max(0.2), interrupt, progress);
    }
    let mut points = ladder.points();
    let validation_us = ladder.adds_us(Test::CheckedRing, Test::Ring, RING);
    points.extend(curve.full);
    let described = wanted(args).map(|path| {
        let mut told = path.describe(missing.remove(path.name), between);
        told.kernel_copies = ladder.kernel_copies(path.name).unwrap_or(told.kernel_copies);
        told
    });
    let paths = described.collect();
    let spread = |values: Vec<f64>| (!values.is_empty()).then(|| Spread::of(values));
    let (hand_over_ns, lines_of_shm) = (spread(ladder.hand_overs_ns), spread(ladder.lines_of_shm));
    if points.is_empty() {
        return Err([&["nothing was measured".to_owned()], ladder.failures.as_slice()].concat().join("\n"));
    }
    Ok(Report {
        format: FORMAT,
        ringway: env!("CARGO_PKG_VERSION").to_owned(),
        started_unix_s: started.as_secs(),
        took_s: begun.elapsed().as_secs_f64(),
        complete: !interrupt.came(),
        machine: machine::describe(&name, mtu_bytes),
        server: between.far().map(|far| far.welcome.machine.clone()),
        settings: Settings { quick: args.quick, rounds, seconds, tcp_connections: args.tcp_connections },
        hand_over_ns,
        lines_of_shm,
        paths,
        steps: steps::steps(&points, &parts, [hand_over_ns, lines_of_shm], validation_us),
        points,
        references,
        polling: curve.points,
    })
}

/// What is known beside points.
struct Climbed {
    /// Why paths were not measured.
    missing: BTreeMap<&'static str, String>,
    parts: Vec<Part>,
    references: Vec<Reference>,
}

/// Measures all tests over all paths.
fn climb(
    ladder: &mut Ladder,
    args: &BenchArgs,
    between: &Between,
    interrupt: &Interrupt,
    progress: &mut Progress,
) -> Climbed {
    let (mut missing, mut parts, mut references) = (BTreeMap::new(), Vec::new(), Vec::new());
    for group in Group::ALL {
        ladder.paths = open(args, group, between, &mut missing, interrupt, progress);
        if group == Group::Clients {
            let blocking = wanted_clients(args, &missing);
            ladder.paths.extend(open_clients(blocking, args, between, Polling::Block, interrupt, progress));
        }
        if group == Group::Devices {
            (ladder.tools, references) = open_tools(args, between, interrupt, progress);
        }
        ladder.climb(group, interrupt, progress);
        if group == Group::Devices {
            parts = self::parts(ladder);
        }
        // The other group's ends have the same addresses, and nothing else runs while daemons are measured that poll.
        ladder.paths.clear();
        ladder.tools.clear();
    }
    climb_spinning(ladder, wanted_clients(args, &missing), args, between, interrupt, progress);
    for reference in &mut references {
        let Some(tool) = Tool::named(&reference.name) else { continue };
        reference.point = ladder.reference(tool);
        reference.beside = ladder.beside_tool(tool);
    }
    Climbed { missing, parts, references }
}

impl BenchArgs {
    fn wants(&self, name: &str) -> bool {
        self.paths.is_empty() || self.paths.iter().any(|path| path == name)
    }
}

/// The paths that were asked for.
fn wanted(args: &BenchArgs) -> impl Iterator<Item = &'static Definition> {
    PATHS.iter().filter(|path| args.wants(path.name))
}

/// Opens the tools that were asked for and are installed at both ends; says of the others why not.
fn open_tools(
    args: &BenchArgs,
    between: &Between,
    interrupt: &Interrupt,
    progress: &Progress,
) -> (Vec<(&'static Tool, OpenPath)>, Vec<Reference>) {
    let (mut open, mut references) = (Vec::new(), Vec::new());
    for tool in TOOLS.iter().filter(|tool| args.wants(tool.name)) {
        if interrupt.came() {
            break;
        }
        let opened = tool.version().and_then(|version| {
            open.push((tool, paths::between_tools(tool, between, interrupt)?));
            Ok(version)
        });
        let (version, missing) = match opened {
            Ok(version) => (version, None),
            Err(why) => (String::new(), Some(why)),
        };
        if let Some(why) = &missing {
            progress.note(&format!("{} is not a reference: {why}", tool.name));
        }
        let (name, description) = (tool.name.to_owned(), tool.description.to_owned());
        references.push(Reference { name, description, version, missing, point: None, beside: Vec::new() });
    }
    (open, references)
}

/// Opens the ends of a group on every path that was asked for and works; says of the others why not.
fn open(
    args: &BenchArgs,
    group: Group,
    between: &Between,
    missing: &mut BTreeMap<&'static str, String>,
    interrupt: &Interrupt,
    progress: &Progress,
) -> Vec<OpenPath> {
    let mut open = Vec::new();
    for path in wanted(args).filter(|path| path.has(group)) {
        if interrupt.came() {
            break;
        }
        progress.line(&format!("opening {}", path.name));
        let opened = match group {
            Group::Devices => paths::between_devices(path, between, args.tcp_connections, interrupt),
            Group::Clients => clients(path, args, between, Polling::Adaptive, interrupt)
                .map_err(|why| format!("between daemons: {why}")),
        };
        match opened {
            Ok(path) => open.push(path),
            Err(_) if interrupt.came() => {}
            Err(why) => {
                let told = missing.entry(path.name).or_default();
                // What keeps devices apart often keeps daemons apart as well.
                if told.is_empty() || !why.ends_with(&*told) {
                    progress.note(&format!("{} is not measured: {why}", path.name));
                    *told = if told.is_empty() { why } else { format!("{told}; {why}") };
                }
            }
        }
    }
    open
}

fn clients(
    path: &'static Definition,
    args: &BenchArgs,
    between: &Between,
    polling: Polling,
    interrupt: &Interrupt,
) -> Result<OpenPath, String> {
    paths::between_clients(path, between, args.tcp_connections, polling, interrupt)
}

/// Paths between clients that are there.
fn wanted_clients(args: &BenchArgs, missing: &BTreeMap<&'static str, String>) -> Vec<&'static Definition> {
    wanted(args).filter(|path| path.has(Group::Clients) && !missing.contains_key(path.name)).collect()
}

/// Opens paths between clients once more, with daemons that wait in this manner.
fn open_clients(
    paths: Vec<&'static Definition>,
    args: &BenchArgs,
    between: &Between,
    polling: Polling,
    interrupt: &Interrupt,
    progress: &Progress,
) -> Vec<OpenPath> {
    let paths = paths.into_iter().take_while(|_| !interrupt.came());
    let opened = paths.filter_map(|path| {
        progress.line(&format!("opening {} with daemons that poll by `{}`", path.name, polling.name()));
        let opened = clients(path, args, between, polling, interrupt);
        opened.inspect_err(|why| progress.note(&format!("{}, {}: {why}", path.name, polling.name()))).ok()
    });
    opened.collect()
}

/// Measures clients of daemons that spin. Each path's are started for their turn and ended after it: others would have no processor
/// meanwhile. A brief run has one turn for each.
fn climb_spinning(
    ladder: &mut Ladder,
    mut spinning: Vec<&'static Definition>,
    args: &BenchArgs,
    between: &Between,
    interrupt: &Interrupt,
    progress: &mut Progress,
) {
    let turns: Vec<Vec<u32>> = match ladder.amount.is_brief {
        true => vec![(0..ladder.amount.rounds).collect()],
        false => (0..ladder.amount.rounds).map(|round| vec![round]).collect(),
    };
    for rounds in turns {
        spinning.retain(|path| {
            ladder.paths = open_clients(vec![*path], args, between, Polling::Spin, interrupt, progress);
            for round in &rounds {
                ladder.climb_once(Group::Clients, *round, interrupt, progress);
            }
            let is_there = ladder.paths.iter().any(|path| path.can(Polling::Spin));
            ladder.paths.clear();
            is_there
        });
    }
}

/// The parts of a message's way through sockets.
fn parts(ladder: &mut Ladder) -> Vec<Part> {
    let sockets = ladder.paths.iter_mut().find(|path| path.name == "sockets");
    sockets.and_then(|path| path.ends.parts().ok()).unwrap_or_default()
}
