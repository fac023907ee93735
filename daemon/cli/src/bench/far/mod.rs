//! The other machine: what the two programs say to each other over one TCP connection, in lines of JSON.
//!
//! The server speaks first. Whatever a client says is bounded, and checked before anything is done: it can have the server
//! measure what the server knows how to measure, and nothing else.

mod client;
mod connection;
mod server;
mod session;

use serde::{Deserialize, Serialize};

use super::{
    end::{Answer, Command, Job, MESSAGE_BYTES_MAX},
    ladder::OPERATIONS_MAX,
    result::Machine,
};

pub(super) use client::{Far, FarEnd};
pub(super) use server::serve;

/// Where a server listens if it is not told.
pub(super) const PORT: u16 = 7412;

/// The form of what is said.
const PROTOCOL: u32 = 1;

/// What a server says first, and a client next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Greeting {
    /// [`PROTOCOL`], under a name that nobody else's first line has.
    ringway_bench: u32,
    /// Version of Ringway.
    version: String,
    /// Why the server does not serve this client.
    refused: Option<String>,
}

/// What a server says to a client that it serves.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Welcome {
    pub(super) machine: Machine,
    /// See [`place`].
    pub(super) place: String,
}

/// What a client asks for, with a number that the reply has as well.
#[derive(Debug, Serialize, Deserialize)]
struct Request {
    number: u64,
    order: Order,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Order {
    /// Open the far end of the path of this name, under a number of the client's choice.
    Open { end: u32, path: String, kind: FarKind },
    /// Tell that end something. [`Command::Rest`] is not replied to.
    Tell { end: u32, command: Command },
    /// That end is not needed any more. Not replied to.
    Close { end: u32 },
}

/// What a far end is made of.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum FarKind {
    /// A device or a socket in a process.
    Device,
    /// The second rank of this communicator, client of a daemon with this cluster key.
    Client { id: String, key: String },
}

#[derive(Debug, Serialize, Deserialize)]
struct Reply {
    number: u64,
    answer: Answer,
}

/// The most ends that a client can have open.
const ENDS_MAX: usize = 32;
/// The longest communicator id and cluster key that are taken.
const TEXT_BYTES_MAX: usize = 256;

impl Greeting {
    fn own(refused: Option<String>) -> Self {
        Self { ringway_bench: PROTOCOL, version: env!("CARGO_PKG_VERSION").to_owned(), refused }
    }

    /// Whether the other program can be worked with.
    fn check(&self) -> Result<(), String> {
        let own = Self::own(None);
        if (self.ringway_bench, &self.version) != (own.ringway_bench, &own.version) {
            return Err(format!(
                "versions differ: there is Ringway {} (bench protocol {}), here {} ({}); use the same version on both machines",
                self.version, self.ringway_bench, own.version, own.ringway_bench
            ));
        }
        self.refused.clone().map_or(Ok(()), Err)
    }
}

impl FarKind {
    fn check(&self) -> Result<(), String> {
        let Self::Client { id, key } = self else { return Ok(()) };
        let is_id = id.len() <= TEXT_BYTES_MAX && id.chars().all(|c| c.is_ascii_graphic());
        if !is_id {
            return Err("not a communicator's id".to_owned());
        }
        if key.len() != 64 || !key.chars().all(|c| c.is_ascii_hexdigit()) {
            return Err("a cluster key is 64 hex digits".to_owned());
        }
        Ok(())
    }
}

/// A command as the far end is told it: nothing that its process could not do, never as the end that leads.
fn checked(command: Command) -> Result<Command, String> {
    match command {
        Command::Connect { peer, .. } if peer.endpoint.len() <= TEXT_BYTES_MAX => {
            Ok(Command::Connect { peer, active: false })
        }
        Command::Run(job) if job.bytes <= MESSAGE_BYTES_MAX && job.operations <= OPERATIONS_MAX => {
            Ok(Command::Run(Job { leads: false, load: 1.0, ..job }))
        }
        Command::Rest => Ok(Command::Rest),
        Command::Parts { .. } => Ok(Command::Parts { leads: false }),
        Command::Connect { .. } | Command::Run(_) | Command::Open(_) => {
            Err("a command that a client may not give".to_owned())
        }
    }
}

/// This host, this boot and this network namespace, as far as the system tells: where two are the same, processes can share
/// memory over the `shm` device.
pub(super) fn place() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    format!("{} {}", boot.trim(), namespace.display())
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            end::{Address, Kind},
            result::{Polling, Test},
        },
        *,
    };

    fn job(bytes: u64, operations: u64) -> Job {
        Job { test: Test::Latency, bytes, operations, polling: Polling::Spin, leads: true, load: f64::NAN }
    }

    #[test]
    fn a_client_can_ask_for_nothing_but_a_measurement() {
        let Ok(Command::Run(told)) = checked(Command::Run(job(8, 100))) else { panic!("refused") };
        assert_eq!((told.leads, told.load, told.operations), (false, 1.0, 100));
        assert!(checked(Command::Run(job(MESSAGE_BYTES_MAX + 1, 1))).is_err());
        assert!(checked(Command::Run(job(8, u64::MAX))).is_err());
        let socket = "/run/x.sock".into();
        let kind = Kind::Client { socket, id: String::new(), rank: 0, size: 1 };
        assert!(checked(Command::Open(kind)).is_err());
        let peer = |length| Address { endpoint: vec![0; length], key: 0 };
        assert!(checked(Command::Connect { peer: peer(TEXT_BYTES_MAX + 1), active: true }).is_err());
        let connect = checked(Command::Connect { peer: peer(8), active: true });
        assert!(matches!(connect, Ok(Command::Connect { active: false, .. })));
    }

    #[test]
    fn ids_and_keys_are_what_they_should_be() {
        let kind = |id: &str, key: &str| FarKind::Client { id: id.to_owned(), key: key.to_owned() };
        let key = "0f".repeat(32);
        assert!(kind("0123@10.0.0.1:7411", &key).check().is_ok());
        for (id, key) in [("a b", &*key), ("a\n", &key), ("a", "0f"), ("a", &"zz".repeat(32))] {
            assert!(kind(id, key).check().is_err(), "{id} {key}");
        }
        assert!(kind(&"x".repeat(TEXT_BYTES_MAX + 1), &key).check().is_err());
    }

    #[test]
    fn versions_must_be_the_same() {
        assert_eq!(Greeting::own(None).check(), Ok(()));
        let other = Greeting { version: "0.0.1".to_owned(), ..Greeting::own(None) };
        let why = other.check().expect_err("another version");
        assert!(why.contains("0.0.1") && why.contains(env!("CARGO_PKG_VERSION")), "{why}");
        assert_eq!(Greeting::own(Some("busy".to_owned())).check(), Err("busy".to_owned()));
    }
}
