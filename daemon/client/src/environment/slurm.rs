//! Slurm's srun: `SLURM_PROCID SLURM_STEP_NUM_TASKS SLURM_STEP_NUM_NODES SLURM_STEP_NODELIST SLURM_LOCALID SLURM_JOB_ID
//! SLURM_STEP_ID SLURM_RESTART_COUNT`. The daemons meet on the first host of the node list, or at `MASTER_ADDR` where
//! that is set.

use ringway_abi::UniqueId;

use super::{Environment, EnvironmentError, Launcher, Secret, Variables};

const HINT: &str = "start the program with srun, which sets it";

pub(super) fn read(source: Variables<'_>) -> Result<Option<Environment>, EnvironmentError> {
    let launcher = Launcher::Slurm;
    // A batch script has a rank as well, but is no step: it is one process, whatever its number of tasks says.
    let (Some(rank), Some(step)) = (source.number("SLURM_PROCID")?, source.get("SLURM_STEP_ID")) else {
        return Ok(None);
    };
    let size: u32 = match source.number("SLURM_STEP_NUM_TASKS")? {
        Some(size) => size,
        None => source.needed(launcher, "SLURM_NTASKS", HINT)?,
    };
    let job = source.get("SLURM_JOB_ID").ok_or(EnvironmentError::Missing {
        launcher,
        variable: "SLURM_JOB_ID",
        hint: HINT,
    })?;
    let restarts: u64 = source.number("SLURM_RESTART_COUNT")?.unwrap_or(0);
    let secret = Secret::new("slurm")
        .text(&source.get("SLURM_CLUSTER_NAME").unwrap_or_default())
        .text(&job)
        .text(&step)
        .number(restarts)
        .number(source.uid.into())
        .finish();
    let nodes: Option<u32> = match source.number("SLURM_STEP_NUM_NODES")? {
        Some(nodes) => Some(nodes),
        None => source.number("SLURM_NNODES")?,
    };
    let root = if nodes == Some(1) || size == 1 { None } else { Some(root(source)?) };
    let local_rank = source.number("SLURM_LOCALID")?;
    Ok(Some(Environment { launcher, rank, size, local_rank, id: UniqueId { root, secret } }))
}

fn root(source: Variables<'_>) -> Result<core::net::SocketAddr, EnvironmentError> {
    if let Some(master) = source.get("MASTER_ADDR") {
        return source.root("MASTER_ADDR", &master);
    }
    let variables = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"];
    let list = variables.into_iter().find_map(|variable| Some((variable, source.get(variable)?)));
    let Some((variable, list)) = list else {
        let (launcher, variable) = (Launcher::Slurm, "SLURM_STEP_NODELIST");
        return Err(EnvironmentError::Missing { launcher, variable, hint: HINT });
    };
    match first_host(&list) {
        Some(host) => source.root(variable, &host),
        None => Err(EnvironmentError::Bad {
            variable,
            value: list,
            expected: "a list such as node[001-004],gpu7",
        }),
    }
}

/// The first host of a node list: `node[001-004,007],gpu7` begins with `node001`. Several brackets in one name are
/// allowed, as Slurm does.
pub(super) fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list.trim();
    while let Some(at) = rest.find(['[', ',']) {
        let (before, after) = rest.split_at_checked(at)?;
        host.push_str(before);
        if after.starts_with(',') {
            rest = "";
            break;
        }
        let (numbers, behind) = after.strip_prefix('[')?.split_once(']')?;
        let first: String = numbers.chars().take_while(char::is_ascii_digit).collect();
        if first.is_empty() {
            return None;
        }
        host.push_str(&first);
        rest = behind;
    }
    host.push_str(rest);
    let plausible = !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
    plausible.then_some(host)
}
