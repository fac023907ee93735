//! `ringway run`, or the same variables set by hand: `RINGWAY_RANK`, `RINGWAY_WORLD_SIZE` and `RINGWAY_ID`.
//!
//! `RINGWAY_ID` is a communicator id as [`UniqueId`] prints it, or any text that names the job; with the latter and
//! several nodes, `RINGWAY_ROOT` says where the root daemon listens (`host` or `host:port`).

use ringway_abi::UniqueId;

use super::{Environment, EnvironmentError, Launcher, Secret, Variables};

const HINT: &str = "set RINGWAY_RANK, RINGWAY_WORLD_SIZE and RINGWAY_ID on every rank";

pub(super) fn read(source: Variables<'_>) -> Result<Option<Environment>, EnvironmentError> {
    let launcher = Launcher::Ringway;
    let Some(rank) = source.number("RINGWAY_RANK")? else { return Ok(None) };
    let size = source.needed(launcher, "RINGWAY_WORLD_SIZE", HINT)?;
    let missing = EnvironmentError::Missing { launcher, variable: "RINGWAY_ID", hint: HINT };
    let name = source.get("RINGWAY_ID").ok_or(missing)?;
    let mut id = match name.parse::<UniqueId>() {
        Ok(id) => id,
        Err(_) if name.contains('@') => {
            let expected = "32 hex digits and `@address:port`, or a text without `@`";
            return Err(EnvironmentError::Bad { variable: "RINGWAY_ID", value: name, expected });
        }
        Err(_) => {
            let secret = Secret::new("ringway").text(&name).number(source.uid.into()).finish();
            UniqueId { root: None, secret }
        }
    };
    if let Some(root) = source.get("RINGWAY_ROOT") {
        id.root = Some(match root.rsplit_once(':') {
            Some((host, port)) if !host.ends_with(':') && port.parse::<u16>().is_ok() => {
                let port = port.parse().unwrap_or(ringway_abi::DEFAULT_PORT);
                source.address("RINGWAY_ROOT", host.trim_matches(['[', ']']), port)?
            }
            _ => source.root("RINGWAY_ROOT", &root)?,
        });
    }
    let local_rank = source.number("RINGWAY_LOCAL_RANK")?;
    Ok(Some(Environment { launcher, rank, size, local_rank, id }))
}
