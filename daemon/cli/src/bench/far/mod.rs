//! The other machine: what the two programs say to each other over one TCP connection, in lines of JSON.
//!
//! The server speaks first. Whatever a client says is bounded, and checked before anything is done: it can have the server
//! measure what the server knows how to measure, and nothing else.

mod client;
mod connection;
mod server;
mod session;

use std::net::IpAddr;

use ringway_client::UniqueId;
use ringway_roce::RoceEndpoint;
use ringway_tcp::MAX_CONNECTIONS;
use ringway_verbs::Endpoint;
use serde::{Deserialize, Serialize};

use super::{
    end::{Address, Answer, Command, Job, MESSAGE_BYTES_MAX},
    ladder::OPERATIONS_MAX,
    result::{Machine, Polling},
    verbs,
};

pub(super) use client::{Far, FarEnd};
pub(super) use server::serve;

/// Where a server listens if it is not told.
pub(super) const PORT: u16 = 7412;

/// The form of what is said.
const PROTOCOL: u32 = 3;

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
    /// Where the server's processes can share memory; empty where the system does not tell. See [`ringway_service::place`].
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
    /// The server of another tool, which the path is named after.
    Tool,
    /// The second rank of this communicator, client of a daemon with this cluster key.
    Client { id: String, key: String, tcp_connections: u32, polling: Polling },
}

#[derive(Debug, Serialize, Deserialize)]
struct Reply {
    number: u64,
    answer: Answer,
}

/// The most ends that a client can have open.
const ENDS_MAX: usize = 32;

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
    /// Whether a client at this address may have it: the communicator's root is its own daemon.
    fn check(&self, client: IpAddr) -> Result<(), String> {
        let Self::Client { id, key, tcp_connections, .. } = self else { return Ok(()) };
        if !(1..=MAX_CONNECTIONS).contains(&(*tcp_connections as usize)) {
            return Err(format!("1 to {MAX_CONNECTIONS} connections can be had"));
        }
        let root = id.parse::<UniqueId>().map_err(|e| e.to_string())?.root;
        if root.is_none_or(|root| root.ip() != client) {
            return Err(format!("the communicator's root must be at the client's address, {client}"));
        }
        if key.len() != 64 || !key.chars().all(|c| c.is_ascii_hexdigit()) {
            return Err("a cluster key is 64 hex digits".to_owned());
        }
        Ok(())
    }
}

/// A command as the far end of a path is told it: nothing that its process could not do, never as the end that leads, and with
/// nobody but the client.
fn checked(command: Command, path: &str, client: IpAddr) -> Result<Command, String> {
    match command {
        Command::Connect { peer, .. } if leads_to(&peer, path, client) => {
            Ok(Command::Connect { peer, active: false })
        }
        Command::Run(job) if job.bytes <= MESSAGE_BYTES_MAX && job.operations <= OPERATIONS_MAX => {
            Ok(Command::Run(Job { leads: false, period_ns: 0, ..job }))
        }
        Command::Rest => Ok(Command::Rest),
        Command::Parts { .. } => Ok(Command::Parts { leads: false }),
        Command::Connect { .. } | Command::Run(_) | Command::Open(_) => {
            Err("a command that a client may not give".to_owned())
        }
    }
}

/// Whether what goes to this address goes to the client. RoCE's packets go wherever it says, RDMA hardware's as well, but for
/// InfiniBand's, which stay within its subnet; other far ends are connected to, and clients of daemons have none.
fn leads_to(address: &Address, path: &str, client: IpAddr) -> bool {
    let endpoint = Endpoint::new(&address.endpoint);
    match endpoint {
        Some(endpoint) if path.starts_with("roce") && !endpoint.as_bytes().is_empty() => {
            RoceEndpoint::decode(&endpoint).is_some_and(|roce| roce.address == client)
        }
        Some(endpoint) if path == verbs::NAME => {
            RoceEndpoint::decode(&endpoint).is_none_or(|roce| roce.address == client)
        }
        Some(_) => true,
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use ringway_wire::PathMtu;

    use super::{
        super::{end::Kind, result::Test},
        *,
    };

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

    fn job(bytes: u64, operations: u64) -> Job {
        Job {
            test: Test::Latency,
            bytes,
            operations,
            polling: Polling::Spin,
            leads: true,
            period_ns: u64::MAX,
            in_one_place: false,
        }
    }

    #[test]
    fn a_client_can_ask_for_nothing_but_a_measurement() {
        let checked = |command| checked(command, "tcp", CLIENT);
        let Ok(Command::Run(told)) = checked(Command::Run(job(8, 100))) else { panic!("refused") };
        assert_eq!((told.leads, told.period_ns, told.operations), (false, 0, 100));
        assert!(checked(Command::Run(job(MESSAGE_BYTES_MAX + 1, 1))).is_err());
        assert!(checked(Command::Run(job(8, u64::MAX))).is_err());
        let socket = "/run/x.sock".into();
        let kind = Kind::Client { socket, id: String::new(), rank: 0, size: 1 };
        assert!(checked(Command::Open(kind)).is_err());
    }

    #[test]
    fn an_end_is_connected_with_the_client_alone() {
        let connect = |endpoint: &[u8], path| {
            let peer = Address { endpoint: endpoint.to_vec(), key: 0 };
            checked(Command::Connect { peer, active: true }, path, CLIENT)
        };
        assert!(matches!(connect(b"10.0.0.1:99", "sockets"), Ok(Command::Connect { active: false, .. })));
        assert!(connect(&[0; Endpoint::CAPACITY + 1], "sockets").is_err());
        let roce = |address: &str| {
            let address = address.parse().expect("an address");
            RoceEndpoint::plain(address, 7, 0, PathMtu::Mtu1024, 1).expect("an endpoint").encode()
        };
        assert!(connect(roce("10.0.0.1").as_bytes(), "roce-udp").is_ok());
        assert!(connect(roce("10.0.0.9").as_bytes(), "roce-udp").is_err());
        assert!(connect(b"10.0.0.1:99", "roce-xdp").is_err());
        assert!(connect(roce("10.0.0.1").as_bytes(), "verbs").is_ok());
        assert!(connect(roce("10.0.0.9").as_bytes(), "verbs").is_err());
    }

    #[test]
    fn ids_and_keys_are_what_they_should_be() {
        let secret = "0123456789abcdef".repeat(2);
        let of = |id, key: &str, tcp_connections| {
            let (key, polling) = (key.to_owned(), Polling::Spin);
            FarKind::Client { id, key, tcp_connections, polling }.check(CLIENT)
        };
        let kind = |id: String, key: &str| of(id, key, 1);
        let (key, own) = ("0f".repeat(32), format!("{secret}@10.0.0.1:7411"));
        assert_eq!(kind(own.clone(), &key), Ok(()));
        for id in [secret.clone(), format!("{secret}@10.0.0.9:7411"), "a\n".to_owned()] {
            assert!(kind(id, &key).is_err());
        }
        for key in ["0f", &"zz".repeat(32)] {
            assert!(kind(own.clone(), key).is_err(), "{key}");
        }
        assert!(of(own.clone(), &key, 0).is_err() && of(own, &key, u32::MAX).is_err());
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
