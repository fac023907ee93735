//! Finds out from a launcher's environment variables which rank this process is and how the ranks meet.
//!
//! | launcher | recognised by | rank, size | what names the job |
//! |---|---|---|---|
//! | Ringway | `RINGWAY_RANK` | `RINGWAY_RANK RINGWAY_WORLD_SIZE` | `RINGWAY_ID` |
//! | torchrun | `RANK`, `WORLD_SIZE`, `MASTER_ADDR` | `RANK WORLD_SIZE` | address, `MASTER_PORT`, run id, restart count |
//! | mpirun | `OMPI_COMM_WORLD_RANK` | `OMPI_COMM_WORLD_{RANK,SIZE}` | `PMIX_NAMESPACE` |
//! | Slurm | `SLURM_PROCID`, `SLURM_STEP_ID` | `SLURM_PROCID SLURM_STEP_NUM_TASKS` | job, step, restart count |
//!
//! They are tried in this order. With all ranks on one node the daemon there needs nothing more; with several, the
//! daemons meet at Ringway's own port (7411, or `RINGWAY_PORT`) on the first node: `MASTER_ADDR`, or the first host of
//! Slurm's node list. `MASTER_PORT` is never connected to, since torchrun's agent holds it.

mod openmpi;
mod ringway;
mod secret;
mod slurm;
mod torchrun;

#[cfg(test)]
mod tests;

use core::{fmt, net::SocketAddr, str::FromStr};
use std::{io, net::ToSocketAddrs};

use ringway_abi::UniqueId;
use thiserror::Error;

pub(crate) use secret::Secret;

/// What started this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Launcher {
    /// `ringway run`, or `RINGWAY_*` set by hand.
    Ringway,
    /// `torchrun`, or the same variables set by hand.
    Torchrun,
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// Slurm's `srun`.
    Slurm,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ringway => "ringway run",
            Self::Torchrun => "torchrun",
            Self::OpenMpi => "mpirun",
            Self::Slurm => "srun",
        })
    }
}

/// A place in the communicator of all ranks that a launcher started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    /// What started this process.
    pub launcher: Launcher,
    /// This process's rank.
    pub rank: u32,
    /// How many ranks there are.
    pub size: u32,
    /// This process's place among those on its node, when the launcher says so.
    pub local_rank: Option<u32>,
    /// How the ranks find each other; the same on every rank.
    pub id: UniqueId,
}

/// Why the environment does not say which rank this is.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EnvironmentError {
    /// No launcher's variables are set.
    #[error(
        "no launcher's environment was found: start the program with `ringway run`, torchrun, mpirun or srun, or set \
         RINGWAY_RANK, RINGWAY_WORLD_SIZE and RINGWAY_ID"
    )]
    NotLaunched,
    /// A variable is needed and not set.
    #[error("the environment looks like that of {launcher}, but {variable} is not set; {hint}")]
    Missing {
        /// The launcher whose variables were found.
        launcher: Launcher,
        /// The variable.
        variable: &'static str,
        /// What to do.
        hint: &'static str,
    },
    /// A variable cannot be understood.
    #[error("{variable} is `{value}`, but {expected} was expected")]
    Bad {
        /// The variable.
        variable: &'static str,
        /// What it is set to.
        value: String,
        /// What it should be.
        expected: &'static str,
    },
    /// The first node's name cannot be resolved.
    #[error("the first node's address `{host}` (from {variable}) cannot be resolved: {reason}")]
    Unresolvable {
        /// Which variable it came from.
        variable: &'static str,
        /// The host.
        host: String,
        /// The resolver's reason.
        reason: String,
    },
}

/// The world as a launcher's variables see it: what they say, and how names become addresses.
#[derive(Clone, Copy)]
pub struct Variables<'a> {
    /// Looks a variable up.
    pub lookup: &'a dyn Fn(&str) -> Option<String>,
    /// Resolves a host and port.
    pub resolve: &'a dyn Fn(&str, u16) -> io::Result<SocketAddr>,
    /// The user, part of what names a job.
    pub uid: u32,
}

impl fmt::Debug for Variables<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Variables").field("uid", &self.uid).finish_non_exhaustive()
    }
}

impl Environment {
    /// Reads this process's environment.
    ///
    /// # Errors
    /// [`EnvironmentError`] when no launcher is recognised, or its variables are incomplete or make no sense.
    pub fn detect() -> Result<Self, EnvironmentError> {
        Self::from_variables(Variables {
            lookup: &|name| std::env::var(name).ok(),
            resolve: &resolve,
            uid: rustix::process::getuid().as_raw(),
        })
    }

    /// The same as a function of its inputs.
    ///
    /// # Errors
    /// As [`Environment::detect`].
    pub fn from_variables(source: Variables<'_>) -> Result<Self, EnvironmentError> {
        for read in [ringway::read, torchrun::read, openmpi::read, slurm::read] {
            if let Some(found) = read(source)? {
                return found.checked();
            }
        }
        Err(EnvironmentError::NotLaunched)
    }

    fn checked(self) -> Result<Self, EnvironmentError> {
        if self.rank < self.size {
            return Ok(self);
        }
        let (variable, expected) = (self.launcher.rank_variable(), "a rank below the number of ranks");
        Err(EnvironmentError::Bad { variable, value: self.rank.to_string(), expected })
    }
}

impl Launcher {
    const fn rank_variable(self) -> &'static str {
        match self {
            Self::Ringway => "RINGWAY_RANK",
            Self::Torchrun => "RANK",
            Self::OpenMpi => "OMPI_COMM_WORLD_RANK",
            Self::Slurm => "SLURM_PROCID",
        }
    }
}

/// A host's address, an IPv4 one when it has both kinds.
fn resolve(host: &str, port: u16) -> io::Result<SocketAddr> {
    let addresses: Vec<SocketAddr> = (host, port).to_socket_addrs()?.collect();
    let chosen = addresses.iter().find(|a| a.is_ipv4()).or(addresses.first());
    chosen.copied().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address"))
}

impl Variables<'_> {
    /// A variable that is set to something.
    fn get(self, name: &str) -> Option<String> {
        (self.lookup)(name).filter(|value| !value.is_empty())
    }

    /// A variable's number, when it is set.
    fn number<N: FromStr>(self, variable: &'static str) -> Result<Option<N>, EnvironmentError> {
        let Some(value) = self.get(variable) else { return Ok(None) };
        match value.trim().parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(EnvironmentError::Bad { variable, value, expected: "a number in range" }),
        }
    }

    /// A variable's number, which must be there.
    fn needed<N: FromStr>(
        self,
        launcher: Launcher,
        variable: &'static str,
        hint: &'static str,
    ) -> Result<N, EnvironmentError> {
        self.number(variable)?.ok_or(EnvironmentError::Missing { launcher, variable, hint })
    }

    /// Where the daemons meet: Ringway's port on `host`, which `variable` named.
    fn root(self, variable: &'static str, host: &str) -> Result<SocketAddr, EnvironmentError> {
        let port = self.number("RINGWAY_PORT")?.unwrap_or(ringway_abi::DEFAULT_PORT);
        self.address(variable, host, port)
    }

    fn address(self, variable: &'static str, host: &str, port: u16) -> Result<SocketAddr, EnvironmentError> {
        (self.resolve)(host, port).map_err(|reason| EnvironmentError::Unresolvable {
            variable,
            host: host.to_owned(),
            reason: reason.to_string(),
        })
    }
}
