//! The parent: starts daemons and ranks, follows them, prints their rows.

use std::{
    io::{self, IsTerminal as _, Write as _},
    process::ExitCode,
};

use clap::ValueEnum as _;
use ringway_plan::{Blocks, Call as PlanCall, Ineligible, Layout, Plan, Preference, Tuning, View};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    Form, PerfArgs,
    call::Call,
    floor::Floor,
    offsets::{OffsetSummary, Offsets},
    overlap::{self, Overlap},
    rank,
    report::{Columns, Row, header, line},
    spec::{Measured, MemoryKind, Mode, SECONDS, Spec, some_sizes},
    tenants,
};
use crate::{
    local::{
        cluster::{Cluster, ClusterOptions},
        launch::{Job, JobEvent, RunningJob, node_of},
    },
    output,
};

/// Seconds that two jobs are measured for unless said otherwise.
const TENANTS_SECONDS: f64 = 3.0;

/// Measures as the arguments say and prints the rows. The exit code tells whether every result was right.
///
/// # Errors
/// When the daemons or ranks cannot be started or fail, as a sentence.
pub fn perf(mut args: PerfArgs) -> Result<ExitCode, String> {
    if args.nodes > args.ranks {
        return Err(format!(
            "{} nodes need at least as many ranks, and there are {}",
            args.nodes, args.ranks
        ));
    }
    if args.root >= u32::from(args.ranks) {
        return Err(format!("root {} is not one of the {} ranks", args.root, args.ranks));
    }
    if args.delay_us.is_some() && args.nodes < 2 {
        return Err("--delay-us is about what arrives from other nodes; give --nodes 2 or more".to_owned());
    }
    if (args.fault.is_some() || args.pcap.is_some()) && args.nodes < 2 {
        return Err("--fault and --pcap are about packets between nodes; give --nodes 2 or more".to_owned());
    }
    leave_out(&mut args)?;
    let args = &args;
    let spec = spec(args)?;
    let cluster = cluster(args)?;
    if args.overlap || args.tenants {
        return others(args, &cluster, spec);
    }
    let several = args.operations.0.len() > 1;
    let mut printer = Printer { json: args.json, several, ..Printer::default() };
    if !args.json {
        let columns = Columns {
            offset: args.offsets.is_some() || args.input_offsets.is_some(),
            floor: args.floor,
            round_trip: args.round_trip,
            gpu: args.memory != MemoryKind::Host,
            algorithm: args.nodes > 1,
        };
        output::line(&format!(
            "# ringway perf {}, {} ranks, {}",
            Measured::names(&args.operations.0),
            args.ranks,
            cluster.description
        ));
        output::line(&header(columns));
    }
    let campaign = Campaign { ranks: usize::from(args.ranks), spec, show_progress: !args.json };
    measure(&cluster, &campaign, |row: &Row| printer.print(row))?;
    Ok(printer.finish())
}

/// That the largest size is an element at least of each operation: else nothing would be measured, and come out right. Who says 0
/// means it.
fn check_elements(args: &PerfArgs, sizes: &[u64]) -> Result<(), String> {
    let parts = args.operations.0.iter().map(|what| what.parts(args.ranks.into())).max().unwrap_or(1);
    let element = args.datatype.0.iter().map(|datatype| datatype.size()).min().unwrap_or(1) as u64;
    let (most, needed) = (sizes.iter().max().copied().unwrap_or(0), parts * element);
    if most == 0 || most >= needed {
        return Ok(());
    }
    let whose = if parts > 1 { format!(" for each of {parts} ranks") } else { String::new() };
    Err(format!(
        "{most} B has no element of {element} B{whose}; give at least {needed} B, or a shorter --type"
    ))
}

/// That there is a GPU where one is asked for.
fn check_memory(args: &PerfArgs) -> Result<(), String> {
    if args.memory == MemoryKind::Host {
        return Ok(());
    }
    match ringway_client::cuda::count() {
        Ok(0) => Err("--memory cuda needs a GPU, and the driver shows none".to_owned()),
        Ok(_) => Ok(()),
        Err(error) => Err(format!("--memory {} needs a GPU: {error}", args.memory.name())),
    }
}

/// Of all operations, leaves out those that the algorithm asked for cannot do between so many nodes, and says so; of those that were
/// named it must be able to do each. Else another would be measured.
fn leave_out(args: &mut PerfArgs) -> Result<(), String> {
    let Some(preference) = args.algorithm else { return Ok(()) };
    let (ranks, nodes) = (usize::from(args.ranks), nodes(args));
    let node_of = (0..ranks).filter_map(|rank| u32::try_from(node_of(rank, ranks, nodes)).ok());
    let Some(layout) = Layout::new(&node_of.collect::<Vec<_>>()) else { return Ok(()) };
    let refusal = |what: &Measured| {
        let operation = what.operation();
        let algorithm = preference.of(operation)?;
        let call = PlanCall { operation, element: 1, count: 1, root: args.root };
        let view = View { layout: &layout, node: 0, call, blocks: Blocks::Uniform, in_place: &[] };
        Plan::with(algorithm, &view, &Tuning::default()).err()
    };
    let all = &args.operations.0;
    let refused: Vec<_> = all.iter().filter_map(|what| Some((*what, refusal(what)?))).collect();
    let Some((_, first)) = refused.first() else { return Ok(()) };
    if refused.len() == all.len() || all != Measured::value_variants() {
        // Of an operation that it does between more nodes, if there is one.
        let about_nodes = refused
            .iter()
            .map(|(_, why)| why)
            .find(|why| !matches!(why, Ineligible::NotOffered { .. } | Ineligible::NotCollective { .. }));
        return Err(about_nodes.unwrap_or(first).to_string());
    }
    let left_out: Vec<_> = refused.iter().map(|(what, _)| *what).collect();
    output::note(&format!("left out, as the algorithm cannot do them here: {}", Measured::names(&left_out)));
    args.operations.0.retain(|what| !left_out.contains(what));
    Ok(())
}

/// The nodes that daemons run on, or are given for.
fn nodes(args: &PerfArgs) -> usize {
    args.socket.len().max(usize::from(args.nodes))
}

fn cluster(args: &PerfArgs) -> Result<Cluster, String> {
    if !args.socket.is_empty() {
        return Cluster::running(&args.socket).map_err(|e| e.to_string());
    }
    let mut daemon_arguments = vec!["--polling".to_owned(), args.polling.clone()];
    if let Some(isolation) = &args.isolation {
        daemon_arguments.extend(["--isolation".to_owned(), isolation.clone()]);
    }
    if let Some(spec) = &args.fault {
        daemon_arguments.extend(["--fault".to_owned(), spec.clone()]);
    }
    if let Some(delay) = args.delay_us {
        daemon_arguments.extend(["--delay-us".to_owned(), delay.to_string()]);
    }
    if args.overlap {
        daemon_arguments.extend(["--engine-cpu".to_owned(), overlap::places()?.1.to_string()]);
    }
    let options = ClusterOptions {
        nodes: usize::from(args.nodes),
        device: args.device.clone(),
        network: args.network,
        apart: true,
        daemon_arguments,
        pcap: args.pcap.clone(),
    };
    Cluster::start(&options).map_err(|e| e.to_string())
}

/// A row for people or machines.
fn say<R: Serialize>(args: &PerfArgs, row: &R, line: fn(&R) -> String) {
    output::line(&if args.json { serde_json::to_string(row).unwrap_or_default() } else { line(row) });
}

/// The measurements beside the table of times.
fn others(args: &PerfArgs, cluster: &Cluster, mut spec: Spec) -> Result<ExitCode, String> {
    spec.sizes.clone_from(&args.sizes);
    if args.overlap {
        if spec.sizes.is_empty() {
            spec.sizes.push(16 << 20);
        }
        spec.mode = Mode::Overlap;
        if !args.json {
            output::line(&overlap::header());
        }
        let campaign = Campaign { ranks: usize::from(args.ranks), spec, show_progress: false };
        measure(cluster, &campaign, |row: &Overlap| say(args, row, overlap::line))?;
    } else {
        tenants::tenants(cluster, &spec, u32::from(args.ranks), |finding| say(args, finding, tenants::line))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn spec(args: &PerfArgs) -> Result<Spec, String> {
    check_memory(args)?;
    let operations = &args.operations.0;
    let reductions = args.reduction.0.clone();
    let defined = args.datatype.0.iter().any(|t| reductions.iter().any(|r| t.supports(*r)));
    if operations.iter().any(|what| what.operation().reduces()) && !defined {
        return Err("this reduction is not defined for this type: bitwise reductions are for integers only"
            .to_owned());
    }
    if args.in_place != Form::No
        && !operations.iter().any(|what| Call::has_in_place(*what, args.unregistered))
    {
        let slices = if args.unregistered { " on ordinary slices (--unregistered)" } else { "" };
        return Err(format!(
            "{}: no in-place form{slices}; leave out --in-place",
            Measured::names(operations)
        ));
    }
    let list = if operations.iter().all(|what| *what == Measured::Barrier) {
        vec![0]
    } else if args.sizes.is_empty() {
        some_sizes(args.begin, args.end, args.factor)?
    } else {
        args.sizes.clone()
    };
    check_elements(args, &list)?;
    if (args.overlap || args.tenants) && *operations != [Measured::Allreduce] {
        return Err("--overlap and --tenants are measured with allreduce".to_owned());
    }
    let nodes = nodes(args);
    if args.floor && nodes > 1 {
        return Err("the floor is that of ranks on one node; leave out --floor or --nodes".to_owned());
    }
    if args.floor && !operations.iter().any(|what| Floor::has(*what)) {
        return Err(format!(
            "{}: no bare kernel to compare with; leave out --floor",
            Measured::names(operations)
        ));
    }
    let largest = args.datatype.0.iter().map(|datatype| datatype.size()).max().unwrap_or(1);
    let offsets = Offsets::pairs(args.input_offsets.as_ref(), args.offsets.as_ref(), largest as u64)?;
    Ok(Spec {
        operations: operations.clone(),
        datatypes: args.datatype.0.clone(),
        reductions,
        sizes: list,
        root: args.root,
        iterations: args.iterations.unwrap_or(0),
        warmup: args.warmup,
        check: args.check == 1,
        unregistered: args.unregistered,
        in_place: match args.in_place {
            Form::No => vec![false],
            Form::Yes => vec![true],
            Form::Both => vec![false, true],
        },
        nodes,
        seconds: args.seconds.unwrap_or(if args.tenants { TENANTS_SECONDS } else { SECONDS }),
        pin: args.pin,
        floor: args.floor,
        round_trip: args.round_trip,
        mode: Mode::Time,
        algorithm: args.algorithm.as_ref().map(Preference::to_string),
        offsets: offsets.repeat(usize::from(args.passes)),
        memory: args.memory,
    })
}

/// A spec and who runs it.
#[derive(Debug)]
pub(crate) struct Campaign {
    pub(crate) ranks: usize,
    pub(crate) spec: Spec,
    pub(crate) show_progress: bool,
}

/// Runs the campaign's ranks on the cluster and gives every row as it comes.
pub(crate) fn measure<R: DeserializeOwned>(
    cluster: &Cluster,
    campaign: &Campaign,
    mut row: impl FnMut(&R),
) -> Result<(), String> {
    let spec = serde_json::to_string(&campaign.spec).map_err(|e| e.to_string())?;
    let asked = campaign.spec.algorithm.clone().into_iter();
    let job = Job {
        ranks: campaign.ranks,
        program: std::env::current_exe().map_err(|e| e.to_string())?.into(),
        arguments: vec![rank::RANK.into(), spec.into()],
        environment: asked.map(|asked| ("RINGWAY_ALGORITHM".to_owned(), asked)).collect(),
    };
    let mut running = RunningJob::start(cluster, &job).map_err(|e| e.to_string())?;
    let terminal = campaign.show_progress && io::stderr().is_terminal();
    let mut complaints = Vec::new();
    let mut failed = None;
    while let Some(event) = running.next() {
        match event {
            JobEvent::Line { rank: 0, error_stream: false, text } => match serde_json::from_str::<R>(&text) {
                Ok(measured) => {
                    progress(terminal, "");
                    row(&measured);
                }
                Err(_) => progress(terminal, &text),
            },
            JobEvent::Line { rank, text, .. } => complaints.push(format!("[{rank}] {text}")),
            JobEvent::Ended { status: 0, .. } => {}
            JobEvent::Ended { rank, status } => {
                failed = Some(format!("rank {rank} ended with status {status}"));
                running.end(|rank, _, text| complaints.push(format!("[{rank}] {text}")));
            }
            JobEvent::Interrupted => {
                failed = Some("interrupted".to_owned());
                running.end(|_, _, _| {});
            }
        }
    }
    progress(terminal, "");
    failed.map_or(Ok(()), |why| Err(format!("{why}\n{}", complaints.join("\n")).trim_end().to_owned()))
}

/// One line on a terminal that the next one replaces.
fn progress(terminal: bool, text: &str) {
    if terminal {
        let _ = write!(io::stderr().lock(), "\r\x1b[2K{text}");
    }
}

#[derive(Debug, Default)]
struct Printer {
    json: bool,
    /// Rows of several operations are to come, each under its name.
    several: bool,
    operation: String,
    rows: u32,
    wrong: u64,
    unchecked: bool,
    bus_bandwidth: f64,
    /// What moved data between nodes.
    device: Option<String>,
    /// Those measured at chosen offsets.
    at_offsets: Vec<Row>,
}

impl Printer {
    fn print(&mut self, row: &Row) {
        if self.several && !self.json && self.operation != row.operation {
            output::line(&format!("# {}", row.operation));
            self.operation.clone_from(&row.operation);
        }
        self.rows += 1;
        self.wrong += row.errors.unwrap_or(0);
        self.unchecked |= row.errors.is_none();
        self.bus_bandwidth += row.busbw_GBps;
        if row.nodes > 1 && self.device.is_none() {
            self.device = Some(row.device.clone());
        }
        if row.offset.is_some() {
            self.at_offsets.push(row.clone());
        }
        let text = if self.json { serde_json::to_string(row).unwrap_or_default() } else { line(row) };
        output::line(&text);
    }

    fn finish(&self) -> ExitCode {
        let right = self.wrong == 0 && self.rows > 0;
        for summary in OffsetSummary::of(&self.at_offsets) {
            let json = || serde_json::to_string(&summary).unwrap_or_default();
            output::line(&if self.json { json() } else { summary.line() });
        }
        if !self.json {
            let verdict = match (right, self.unchecked) {
                (true, false) => "OK",
                (true, true) => "not checked",
                (false, _) => "FAILED",
            };
            if let Some(device) = &self.device {
                output::line(&format!("# between nodes: {device}"));
            }
            output::line(&format!("# wrong elements: {} {verdict}", self.wrong));
            if !self.several {
                let average = self.bus_bandwidth / f64::from(self.rows.max(1));
                output::line(&format!("# average bus bandwidth: {average:.3} GB/s"));
            }
        }
        if right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
