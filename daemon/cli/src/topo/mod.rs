//! `ringway topo`: what this host has, and what lies between.

mod cluster;
mod cores;
mod matrix;
mod text;
mod tree;

use std::{
    fs,
    io::{self, IsTerminal as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use ringway_topology::{Cluster, Document, Topology};

use self::text::Paint;
use crate::output;

const AFTER_HELP: &str = "\
The tree shows processors, NUMA nodes, caches, and what is attached to them by PCI
Express. Bridges that lead to one device only are left out. A link that is narrower
or slower than its end could be is shown as `PCIe 4.0 x8 (of 5.0 x16)`; some GPUs and
cards slow down while nobody uses them.

The matrix says what is between any two, in the words of `nvidia-smi topo -m`, the
nearest first:
  NV#   # NVLinks                PHB   the processor's host bridge
  PIX   at most one PCIe switch  NODE  several host bridges of one NUMA node
  PXB   several PCIe switches    SYS   what connects processors, or not known
`near` is the NIC that is best for a GPU, or for memory of a NUMA node.

Memory and NVLinks of NVIDIA's GPUs, and which of them reach each other's memory (P2P),
are what NVIDIA's management library says (libnvidia-ml.so.1, which comes with the
driver). Without it a line says why they are missing. --json has GPUs' UUIDs as well.

Examples:
  ringway topo                              this host
  ringway topo --json                       the same for programs
  ringway topo --write here.json            keep it in a file
  ringway topo --read here.json             show the file, on whatever host
  ringway topo --hosts 64 --leaf 16 --write cluster.json
                                            64 hosts like this one, 16 at each leaf switch

A file may be written by hand: what is missing is named when it is read. Lists of CPUs
and nodes are texts such as \"0-7,16-23\". A cluster has
  hosts   name, and if you like count (1) and topology, which is the host of a file
  groups  name, nodes that are near each other by their numbers from 0 on, in the
          order of hosts, and if you like uplink_mbps, what leaves the group;
          a group may lie within another, as leaf switches do within a pod";

/// Show what this host has: cores, caches, NUMA nodes, PCIe, NICs and GPUs, and what lies between.
///
/// Prints a tree, and below it which of NICs, GPUs and memory are near each other. It reads what Linux says, and NVIDIA's
/// driver of its GPUs, needs no privilege, and changes nothing. A host can be kept in a file, and a cluster be described by one,
/// without being there.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct TopoArgs {
    /// Show what a file describes instead of this host
    #[arg(long, value_name = "FILE")]
    read: Option<PathBuf>,
    /// Write it to a file, which --read takes, instead of showing it
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Describe a cluster of so many hosts, all like this one
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=i64::from(ringway_topology::NODES_MAX)))]
    hosts: Option<u32>,
    /// With --hosts: put so many of them at each leaf switch
    #[arg(long, value_name = "COUNT", requires = "hosts", value_parser = clap::value_parser!(u32).range(1..))]
    leaf: Option<u32>,
    /// Print JSON for programs: what --write writes
    #[arg(long)]
    json: bool,
}

/// Prints or writes what there is.
///
/// # Errors
/// When a file cannot be read or written, or says what makes no sense, as a sentence.
pub fn topo(args: &TopoArgs) -> Result<ExitCode, String> {
    let document = document(args)?;
    if let Some(path) = &args.write {
        fs::write(path, document.to_json()).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    if args.json {
        output::line(document.to_json().trim_end());
    } else if args.write.is_none() {
        let colours = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        output::line(&shown(&document, Paint(colours)));
    }
    Ok(ExitCode::SUCCESS)
}

fn document(args: &TopoArgs) -> Result<Document, String> {
    let document = match &args.read {
        Some(path) => read(path)?,
        None => Topology::of_this_host().into(),
    };
    match (args.hosts, document) {
        (None, document) => Ok(document),
        (Some(count), Document::Host(host)) => {
            let cluster = Cluster::uniform(*host, count, args.leaf.unwrap_or(count));
            cluster.check().map_err(|error| error.to_string())?;
            Ok(cluster.into())
        }
        (Some(_), Document::Cluster(_)) => {
            Err("--hosts takes one host, but the file describes a cluster already".to_owned())
        }
    }
}

fn read(path: &Path) -> Result<Document, String> {
    Document::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// What is shown to people.
fn shown(document: &Document, paint: Paint) -> String {
    match document {
        Document::Host(host) => shown_host(host, paint),
        Document::Cluster(cluster) => cluster::shown(cluster, paint),
    }
}

fn shown_host(host: &Topology, paint: Paint) -> String {
    let mut lines = tree::lines(host, paint);
    lines.push(String::new());
    lines.extend(matrix::lines(host, paint));
    lines.join("\n")
}

#[cfg(test)]
mod tests;
