//! The tuning file: constants of links, and rules of which algorithm is used up to how many bytes. TOML, so that it can be
//! written by hand and kept with a cluster's configuration:
//!
//! ```toml
//! [[links]]                # what a plan is priced by
//! device = "tcp"
//! hosts = ["10.0.0.1", "10.0.0.2"]     # the nodes' addresses; leave out for any
//! latency_ns = 18000.0
//! message_ns = 2500.0
//! byte_ns = 0.8
//! reduce_ns = 0.1
//! copy_ns = 0.08
//! channels = 2             # of each link; leave out with the next where there is one, or to use all always
//! channel_byte_ns = 1.5    # a byte over one of them alone
//!
//! [[rules]]                # instead of what would be chosen
//! nodes = 4
//! operation = "allreduce"
//! up_to_bytes = 65536      # leave out for all larger ones
//! algorithm = "direct"
//! chunk_bytes = 131072     # over one channel, over n an n-th; leave out for the usual
//! channels = 1             # leave out for all
//! ```

use std::{io::Write as _, path::Path};

use ringway_plan::{
    Algorithm, PlanSettings, Preference, Rule, Tuning,
    tuner::{Constants, Saved, SavedLinks, SavedRule},
};
use ringway_types::Operation;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The most bytes of a file.
const FILE_MAX: u64 = 4 << 20;

/// Why a tuning file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TuningFileError {
    /// It cannot be read or written.
    #[error("the tuning file `{path}` cannot be {what}: {reason}")]
    Inaccessible {
        /// The file.
        path: String,
        /// Read or written.
        what: &'static str,
        /// The system's reason.
        reason: String,
    },
    /// Something in it makes no sense.
    #[error("the tuning file `{path}` is wrong:\n{message}")]
    Wrong {
        /// The file.
        path: String,
        /// Where and why.
        message: String,
    },
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct FileForm {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    links: Vec<LinksForm>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rules: Vec<RuleForm>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinksForm {
    device: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hosts: Option<Vec<String>>,
    latency_ns: f64,
    message_ns: f64,
    byte_ns: f64,
    reduce_ns: f64,
    copy_ns: f64,
    #[serde(default = "unshared", skip_serializing_if = "is_unshared")]
    sharing: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    channels: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    channel_byte_ns: Option<f64>,
}

const fn unshared() -> f64 {
    1.0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_unshared(sharing: &f64) -> bool {
    *sharing <= 1.0
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleForm {
    nodes: u32,
    operation: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    up_to_bytes: Option<u64>,
    algorithm: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    chunk_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    channels: Option<u32>,
}

/// Reads a tuning file.
///
/// # Errors
/// [`TuningFileError`], which says what is wrong and what was expected.
pub fn read_tuning(path: &Path) -> Result<Saved, TuningFileError> {
    let name = path.display().to_string();
    let inaccessible =
        |reason: String| TuningFileError::Inaccessible { path: name.clone(), what: "read", reason };
    let length = std::fs::metadata(path).map_err(|e| inaccessible(e.to_string()))?.len();
    if length > FILE_MAX {
        return Err(inaccessible(format!("it has {length} bytes; {FILE_MAX} are the most")));
    }
    let text = std::fs::read_to_string(path).map_err(|e| inaccessible(e.to_string()))?;
    parse(&text).map_err(|message| TuningFileError::Wrong { path: name, message })
}

/// Writes a tuning file, so that whoever reads it meanwhile has the old one or the new one whole.
///
/// # Errors
/// [`TuningFileError::Inaccessible`].
pub fn write_tuning(path: &Path, saved: &Saved) -> Result<(), TuningFileError> {
    let write = || -> std::io::Result<()> {
        let text = toml::to_string(&form(saved)).map_err(std::io::Error::other)?;
        let beside = path.with_extension(format!("new-{}", std::process::id()));
        let mut file = std::fs::File::create(&beside)?;
        file.write_all(text.as_bytes())?;
        std::fs::rename(&beside, path)
    };
    write().map_err(|e| TuningFileError::Inaccessible {
        path: path.display().to_string(),
        what: "written",
        reason: e.to_string(),
    })
}

fn parse(text: &str) -> Result<Saved, String> {
    let form: FileForm = toml::from_str(text).map_err(|e| e.to_string().trim_end().to_owned())?;
    let links = form
        .links
        .into_iter()
        .enumerate()
        .map(|(at, links)| read_links(links).map_err(|why| format!("links {}: {why}", at + 1)));
    let links = links.collect::<Result<Vec<_>, _>>()?;
    let rules = form.rules.iter().enumerate();
    let rules = rules.map(|(at, rule)| read_rule(rule).map_err(|why| format!("rule {}: {why}", at + 1)));
    let rules = rules.collect::<Result<Vec<_>, _>>()?;
    let saved = Saved { links, rules };
    for nodes in saved.rules.iter().map(|saved| saved.nodes) {
        let of_nodes = saved.over(nodes, Vec::new());
        PlanSettings::new(Tuning::default(), Preference::default(), of_nodes)
            .map_err(|why| format!("the rules for {nodes} nodes: {why}"))?;
    }
    Ok(saved)
}

fn read_links(form: LinksForm) -> Result<SavedLinks, String> {
    let LinksForm { device, hosts, latency_ns, message_ns, byte_ns, reduce_ns, copy_ns, sharing, .. } = form;
    let channels = form.channels.unwrap_or(0).into();
    let channel_byte_ns = form.channel_byte_ns.unwrap_or(0.0);
    let constants =
        Constants { latency_ns, message_ns, byte_ns, channel_byte_ns, reduce_ns, copy_ns, sharing, channels };
    let constants = constants.checked().map_err(|why| why.to_string())?;
    let hosts = hosts.map(|mut hosts| {
        hosts.sort();
        hosts
    });
    Ok(SavedLinks { device, hosts, constants })
}

fn read_rule(form: &RuleForm) -> Result<SavedRule, String> {
    let operation = Operation::from_name(&form.operation)
        .filter(|operation| operation.is_collective())
        .ok_or_else(|| format!("`{}` is not a collective operation", form.operation))?;
    let known = || Algorithm::ALL.iter().map(|algorithm| algorithm.name()).collect::<Vec<_>>().join(", ");
    let algorithm = Algorithm::from_name(&form.algorithm)
        .ok_or_else(|| format!("`{}` is not an algorithm; there are {}", form.algorithm, known()))?;
    let terms = ringway_plan::Terms { nodes: form.nodes, most_local: 1, bytes: 0.0, group_nodes: 0 };
    if algorithm.cost(operation, &terms).is_none() {
        return Err(format!("{algorithm} does not do {} between {} nodes", operation.name(), form.nodes));
    }
    let bytes_max = form.up_to_bytes.unwrap_or(u64::MAX);
    let chunk_bytes = form.chunk_bytes.unwrap_or(0);
    let channels = form.channels.unwrap_or(0);
    Ok(SavedRule { nodes: form.nodes, rule: Rule { operation, bytes_max, algorithm, chunk_bytes, channels } })
}

fn form(saved: &Saved) -> FileForm {
    let links = saved.links.iter().map(|links| {
        let Constants { latency_ns, message_ns, byte_ns, reduce_ns, copy_ns, sharing, .. } = links.constants;
        let (device, hosts) = (links.device.clone(), links.hosts.clone());
        let channels = links.constants.known_channels();
        let channel_byte_ns = Some(links.constants.channel_byte_ns).filter(|ns| *ns > 0.0);
        LinksForm {
            device,
            hosts,
            latency_ns,
            message_ns,
            byte_ns,
            reduce_ns,
            copy_ns,
            sharing,
            channels,
            channel_byte_ns,
        }
    });
    let rules = saved.rules.iter().map(|SavedRule { nodes, rule }| RuleForm {
        nodes: *nodes,
        operation: rule.operation.name().to_owned(),
        up_to_bytes: (rule.bytes_max < u64::MAX).then_some(rule.bytes_max),
        algorithm: rule.algorithm.name().to_string(),
        chunk_bytes: (rule.chunk_bytes > 0).then_some(rule.chunk_bytes),
        channels: (rule.channels > 0).then_some(rule.channels),
    });
    FileForm { links: links.collect(), rules: rules.collect() }
}

#[cfg(test)]
#[path = "tuning_file_tests.rs"]
mod tests;
