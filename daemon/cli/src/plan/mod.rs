//! `ringway plan`: plans of collectives as tables, pictures and files.

mod picture;
mod shown;
mod table;
mod words;

use std::{fs, io::Read as _, path::PathBuf, process::ExitCode};

use clap::{Args, Subcommand};
use ringway_plan::{
    Algorithm, Tuning,
    file::{FILE_BYTES_MAX, Listed, Proof, export},
};
use ringway_types::Operation;

use self::shown::Shown;
use crate::output;

/// What `--help` says last, in lines that fit a terminal of 80 columns.
const AFTER_HELP: &str = "\
A plan lists for every node what it does in a collective: what it sends, to
whom, what it combines, and what each step waits for. Write one, change it, and
let daemons use it:

  $ ringway plan export --operation allreduce --algorithm ring --nodes 4 \\
      --output ring.json
  $ ringway plan show ring.json --svg ring.svg
  $ ringway plan verify ring.json
  $ ringwayd --plans ring.json ...      (on every node)

What daemons read is proved first: every element of every output gets each
contribution exactly once, in the same order everywhere, whatever the timing.";

/// The widest pictures that programs commonly show.
const WIDEST: u32 = 32767;

/// Plans of collectives: print them, prove them right, write them to files.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct PlanArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Show(ShowArgs),
    Verify(VerifyArgs),
    Export(ExportArgs),
}

/// Print a plan as a table and, with --svg, as a picture.
///
/// Each line is a step of a node: what it moves, of which blocks, and which steps of that node it waits for. `time` counts what must
/// happen before it, step after step and message after message. Blocks have the same names everywhere: numbers, and `0:2` for what
/// rank 0 has for rank 2 (`0:2.1` for a part of it). Nodes have two ranks in operations on vectors, else one. Steps that do nothing and
/// wait for nothing are left out, so that numbers may have gaps.
#[derive(Debug, Args)]
struct ShowArgs {
    /// The plan's file; else an algorithm's steps are shown
    #[arg(conflicts_with_all = ["algorithm", "operation", "nodes"])]
    file: Option<PathBuf>,
    /// The algorithm
    #[arg(long, value_name = "NAME", value_parser = algorithm, requires_all = ["operation", "nodes"])]
    algorithm: Option<Algorithm>,
    /// The operation
    #[arg(long, value_name = "NAME", value_parser = operation)]
    operation: Option<Operation>,
    /// The number of nodes
    #[arg(long, value_name = "N")]
    nodes: Option<u32>,
    /// Draw a picture into this file: nodes across, time down, arrows for messages, in the colour of the first block that is moved
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON for programs: the plan's name, operation, nodes, named_blocks (how many), parts (of a rank's vector or block),
    /// scratch, chunk_bytes and digest (of a file's plan), and its steps with node, step, time, what, peer, tag, blocks, from, into
    /// and after (first and last steps of ranges)
    #[arg(long)]
    json: bool,
}

/// Prove plans right: steps of all nodes are enumerated and run on symbols, for calls of all kinds.
///
/// The exit status is 1 if any of them is wrong; the reason names node, chunk and step. Where what comes
/// out is wrong, that is the step that wrote it last, beside the rank, the element and what is wrong with it.
#[derive(Debug, Args)]
struct VerifyArgs {
    /// The plans' files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print JSON for programs: an array of objects with file, plan, error (null when it is right), and what was proved: calls,
    /// steps, messages, message_bytes, ordered_pairs
    #[arg(long)]
    json: bool,
}

/// Write an algorithm as a file that lists its steps.
#[derive(Debug, Args)]
struct ExportArgs {
    /// The operation
    #[arg(long, value_name = "NAME", value_parser = operation)]
    operation: Operation,
    /// The algorithm
    #[arg(long, value_name = "NAME", value_parser = algorithm)]
    algorithm: Algorithm,
    /// The number of nodes
    #[arg(long, value_name = "N")]
    nodes: u32,
    /// The file [default: standard output]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

fn algorithm(name: &str) -> Result<Algorithm, String> {
    let names = Algorithm::ALL.iter().map(|algorithm| algorithm.name()).collect::<Vec<_>>().join(", ");
    Algorithm::from_name(name).ok_or_else(|| format!("expected one of {names}"))
}

fn operation(name: &str) -> Result<Operation, String> {
    let all = Operation::ALL.iter().filter(|operation| operation.is_collective());
    let names = all.map(|operation| operation.name()).collect::<Vec<_>>().join(", ");
    Operation::from_name(name).ok_or_else(|| format!("expected one of {names}"))
}

/// Does what is asked for.
///
/// # Errors
/// A line for the user: what is wrong and what to do.
pub fn plan(args: PlanArgs) -> Result<ExitCode, String> {
    match args.command {
        Command::Show(args) => show(&args),
        Command::Verify(args) => verify(&args),
        Command::Export(args) => write(&args),
    }
}

fn show(args: &ShowArgs) -> Result<ExitCode, String> {
    let plan = match (&args.file, args.algorithm, args.operation, args.nodes) {
        (Some(file), ..) => Shown::listed(read(file)?.0),
        (None, Some(algorithm), Some(operation), Some(nodes)) => {
            Shown::algorithm(algorithm, operation, nodes)
        }
        _ => Err("give a file, or --algorithm, --operation and --nodes".to_owned()),
    }?;
    if let Some(file) = &args.svg {
        let (text, width) = picture::svg(&plan);
        if width > WIDEST {
            output::note(&format!(
                "the picture is {width} pixels wide; many programs show no more than {WIDEST}"
            ));
        }
        fs::write(file, text).map_err(|error| format!("cannot write `{}`: {error}", file.display()))?;
    }
    if args.json {
        let json = serde_json::to_string_pretty(&table::json(&plan));
        output::line(&json.map_err(|error| error.to_string())?);
    } else {
        output::line(&table::text(&plan));
    }
    Ok(ExitCode::SUCCESS)
}

fn verify(args: &VerifyArgs) -> Result<ExitCode, String> {
    let results: Vec<_> = args.files.iter().map(|file| (file, read(file))).collect();
    let mut found = Vec::new();
    for (file, result) in &results {
        match result {
            Ok((plan, proof)) => {
                let Proof { calls, stats } = proof;
                if !args.json {
                    output::line(&format!(
                        "{}: the plan {} is right: {} between {} nodes, in {calls} calls {} steps, {} messages, {} bytes, {} \
                         pairs of steps on the same bytes in order",
                        file.display(),
                        plan.name(),
                        plan.operation(),
                        plan.nodes(),
                        stats.steps,
                        stats.messages,
                        stats.message_bytes,
                        stats.ordered_pairs
                    ));
                }
                found.push(serde_json::json!({
                    "file": file, "plan": plan.name(), "error": null, "calls": calls, "steps": stats.steps,
                    "messages": stats.messages, "message_bytes": stats.message_bytes,
                    "ordered_pairs": stats.ordered_pairs,
                }));
            }
            Err(error) => {
                if !args.json {
                    output::note(error);
                }
                found.push(serde_json::json!({ "file": file, "plan": null, "error": error }));
            }
        }
    }
    if args.json {
        output::line(&serde_json::to_string_pretty(&found).map_err(|error| error.to_string())?);
    }
    let wrong = results.iter().any(|(_, result)| result.is_err());
    Ok(if wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn write(args: &ExportArgs) -> Result<ExitCode, String> {
    let plan = export(args.algorithm, args.operation, args.nodes, &Tuning::default());
    let text = plan.map_err(|error| error.to_string())?.to_json();
    match &args.output {
        Some(file) => {
            fs::write(file, text).map_err(|error| format!("cannot write `{}`: {error}", file.display()))?;
        }
        None => output::line(text.trim_end()),
    }
    Ok(ExitCode::SUCCESS)
}

/// A plan's file, proved.
fn read(file: &PathBuf) -> Result<(Listed, Proof), String> {
    let mut text = String::new();
    // A little more than a plan may have says that it has too much.
    fs::File::open(file)
        .and_then(|file| file.take(FILE_BYTES_MAX as u64 + 1).read_to_string(&mut text))
        .map_err(|error| format!("cannot read `{}`: {error}", file.display()))?;
    Listed::prove_file(&text).map_err(|error| format!("{}: {error}", file.display()))
}

#[cfg(test)]
mod tests;
