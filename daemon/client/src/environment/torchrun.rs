//! torchrun (and programs that set the same variables): `RANK WORLD_SIZE MASTER_ADDR MASTER_PORT LOCAL_WORLD_SIZE
//! TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT`.

use core::net::IpAddr;

use ringway_abi::UniqueId;

use super::{Environment, EnvironmentError, Launcher, Secret, Variables};

pub(super) fn read(source: Variables<'_>) -> Result<Option<Environment>, EnvironmentError> {
    let launcher = Launcher::Torchrun;
    let (Some(rank), Some(size), Some(master)) =
        (source.number("RANK")?, source.number::<u32>("WORLD_SIZE")?, source.get("MASTER_ADDR"))
    else {
        return Ok(None);
    };
    let port = source.get("MASTER_PORT").unwrap_or_default();
    let run = source.get("TORCHELASTIC_RUN_ID").unwrap_or_default();
    let restarts: u64 = source.number("TORCHELASTIC_RESTART_COUNT")?.unwrap_or(0);
    let secret = Secret::new("torchrun")
        .text(&master)
        .text(&port)
        .text(&run)
        .number(restarts)
        .number(source.uid.into())
        .finish();
    let single = match source.number::<u32>("LOCAL_WORLD_SIZE")? {
        Some(local) => local == size,
        None => size == 1 || is_this_host(&master),
    };
    let root = if single { None } else { Some(source.root("MASTER_ADDR", &master)?) };
    let local_rank = source.number("LOCAL_RANK")?;
    Ok(Some(Environment { launcher, rank, size, local_rank, id: UniqueId { root, secret } }))
}

/// Whether an address can only mean the host it is used on, so that all ranks must be there.
fn is_this_host(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}
