//! Open MPI's mpirun: `OMPI_COMM_WORLD_{RANK,SIZE,LOCAL_RANK,LOCAL_SIZE}` and `PMIX_NAMESPACE`. It does not say where
//! the first node is, so that several nodes need `MASTER_ADDR`.

use ringway_abi::UniqueId;

use super::{Environment, EnvironmentError, Launcher, Secret, Variables};

pub(super) fn read(source: Variables<'_>) -> Result<Option<Environment>, EnvironmentError> {
    let launcher = Launcher::OpenMpi;
    let Some(rank) = source.number("OMPI_COMM_WORLD_RANK")? else { return Ok(None) };
    let size: u32 = source.needed(
        launcher,
        "OMPI_COMM_WORLD_SIZE",
        "mpirun sets it: is the environment passed on whole?",
    )?;
    let local: Option<u32> = source.number("OMPI_COMM_WORLD_LOCAL_SIZE")?;
    let namespace = source.get("PMIX_NAMESPACE").ok_or(EnvironmentError::Missing {
        launcher,
        variable: "PMIX_NAMESPACE",
        hint: "mpirun of Open MPI 4 or newer sets it; with another, set RINGWAY_RANK, RINGWAY_WORLD_SIZE and RINGWAY_ID",
    })?;
    let secret = Secret::new("openmpi").text(&namespace).number(source.uid.into()).finish();
    let root = if local == Some(size) || size == 1 {
        None
    } else {
        let master = source.get("MASTER_ADDR").ok_or(EnvironmentError::Missing {
            launcher,
            variable: "MASTER_ADDR",
            hint: "with ranks on several nodes, give the first node's address: `mpirun -x MASTER_ADDR=HOST ...`",
        })?;
        Some(source.root("MASTER_ADDR", &master)?)
    };
    let local_rank = source.number("OMPI_COMM_WORLD_LOCAL_RANK")?;
    Ok(Some(Environment { launcher, rank, size, local_rank, id: UniqueId { root, secret } }))
}
