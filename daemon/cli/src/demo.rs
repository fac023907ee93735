//! `ringway demo`: everything once, on this machine.

use std::{collections::BTreeMap, process::ExitCode, time::Instant};

use clap::Args;
use ringway_types::{DataType, Reduction};

use crate::{
    local::{
        cluster::{Cluster, ClusterOptions, Network},
        parse_device,
    },
    output,
    perf::{Campaign, Columns, Measured, MemoryKind, Mode, Row, SECONDS, Spec, header, line, measure, sizes},
};

/// Show that Ringway works on this machine.
///
/// Starts two daemons as two nodes with two client processes each, runs every collective over both nodes with every
/// result checked exactly, then times an allreduce over a few sizes. The exit status tells whether all was right.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Device between the nodes; auto takes shm where the nodes share the loopback network. Also shm, verbs (or
    /// verbs:NAME:PORT:GID), roce-xdp, roce-udp, tcp, tcp-epoll, or several of them with commas between.
    #[arg(long, value_name = "D", default_value = "auto", value_parser = parse_device)]
    device: String,
    /// How the nodes reach each other.
    #[arg(long, value_enum, default_value_t = Network::Auto)]
    network: Network,
}

const NODES: usize = 2;
const RANKS: usize = 4;

/// Runs the demonstration.
///
/// # Errors
/// When the daemons or ranks cannot be started or fail, as a sentence.
pub fn demo(args: DemoArgs) -> Result<ExitCode, String> {
    let begun = Instant::now();
    let options = ClusterOptions {
        nodes: NODES,
        device: args.device,
        network: args.network,
        apart: false,
        daemon_arguments: Vec::new(),
        pcap: None,
    };
    let cluster = Cluster::start(&options).map_err(|e| e.to_string())?;
    output::line(&format!(
        "Two daemons run as two nodes ({}), with {} ranks each.\n",
        cluster.description,
        RANKS / NODES
    ));
    let (cases, wrong) = check_everything(&cluster)?;
    output::line("");
    let sweep_wrong = sweep(&cluster)?;
    drop(cluster);
    let seconds = begun.elapsed().as_secs_f64();
    if wrong + sweep_wrong > 0 {
        output::line(&format!("\nFAILED: {} wrong elements. Please report this.", wrong + sweep_wrong));
        return Ok(ExitCode::FAILURE);
    }
    output::line(&format!(
        "\nOK: Ringway works here. {} operations in {cases} cases over {NODES} nodes and {RANKS} ranks, every result \
         exact ({seconds:.1} s).",
        Measured::ALL.len()
    ));
    Ok(ExitCode::SUCCESS)
}

fn spec(operations: Vec<Measured>, datatypes: Vec<DataType>, list: Vec<u64>) -> Spec {
    Spec {
        operations,
        datatypes,
        reductions: vec![Reduction::Sum],
        sizes: list,
        root: 1,
        iterations: 2,
        warmup: 0,
        check: true,
        unregistered: false,
        in_place: vec![false, true],
        nodes: NODES,
        seconds: SECONDS,
        pin: false,
        floor: false,
        round_trip: false,
        algorithm: None,
        mode: Mode::Time,
        offsets: Vec::new(),
        memory: MemoryKind::Host,
    }
}

/// Every operation with types of each family, sizes from nothing to several chunks, out of place and in place. Returns
/// the cases and the wrong elements.
fn check_everything(cluster: &Cluster) -> Result<(u64, u64), String> {
    let mut totals: BTreeMap<String, (u64, u64, f64)> = BTreeMap::new();
    let spec = spec(
        Measured::ALL.to_vec(),
        vec![DataType::F32, DataType::Bf16, DataType::I64],
        vec![0, 8, 1000, 64 << 10, 3 << 20],
    );
    let campaign = Campaign { ranks: RANKS, spec, show_progress: true };
    measure(cluster, &campaign, |row: &Row| {
        let total = totals.entry(row.operation.clone()).or_default();
        total.0 += 1;
        total.1 += row.errors.unwrap_or(1);
        total.2 = total.2.max(row.time_us.p50);
    })?;
    output::line(&format!(
        "{:<18} {:>6} {:>15} {:>22}",
        "operation", "cases", "wrong elements", "slowest case (3 MiB)"
    ));
    for operation in Measured::ALL {
        let (cases, wrong, slowest) = totals.get(operation.name()).copied().unwrap_or((0, 1, 0.0));
        let verdict = if wrong == 0 { "exact" } else { "WRONG" };
        output::line(&format!(
            "{:<18} {cases:>6} {wrong:>15} {:>19.2} ms  {verdict}",
            operation.name(),
            slowest / 1e3
        ));
    }
    let missing = Measured::ALL.iter().filter(|o| !totals.contains_key(o.name())).count() as u64;
    Ok(totals.values().fold((0, missing), |(cases, wrong), t| (cases + t.0, wrong + t.1)))
}

fn sweep(cluster: &Cluster) -> Result<u64, String> {
    output::line(&format!("allreduce f32 sum, {RANKS} ranks on {NODES} nodes:"));
    output::line(&header(Columns::default()));
    let spec = Spec {
        iterations: 0,
        warmup: 5,
        in_place: vec![false],
        ..spec(vec![Measured::Allreduce], vec![DataType::F32], sizes(8, 4 << 20, 8))
    };
    let campaign = Campaign { ranks: RANKS, spec, show_progress: true };
    let mut wrong = 0;
    let print = |row: &Row| {
        wrong += row.errors.unwrap_or(1);
        output::line(&line(row));
    };
    measure(cluster, &campaign, print)?;
    Ok(wrong)
}
