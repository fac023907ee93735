//! Finding a daemon and starting a session with it.

use std::{
    env,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use ringway_abi::{
    Status, UniqueId, VERSION,
    control::{COMMUNICATOR_TOKEN, Reply, Request},
    handshake::{self, Greeting},
    paths,
};
use ringway_mem::{
    calls,
    passing::{self, ReceiveError, SendError},
};
use rustix::io::Errno;

use crate::{
    Arena, CommunicatorBuilder, ConnectError, MemoryError, OperationError, RequestError, autostart,
    control::{Answer, Control},
    cuda, socket,
};

/// How long the daemon may take to greet.
const GREETING: Duration = Duration::from_secs(10);
/// How long the daemon may take to answer a request that waits for nobody.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// How long the daemon may take to hear that something is given up. Nobody needs the answer but whoever takes the place next, and a
/// process whose daemon is stopped should still come to its end.
const PARTING: Duration = Duration::from_secs(5);
/// How long an operation may take unless said otherwise: half an hour, as in other libraries, long enough for a rank
/// that writes a checkpoint meanwhile.
const TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// How long ranks may take to come unless said otherwise.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// A session with the node's daemon. Cloning it is cheap and gives the same session; threads may share it.
///
/// ```no_run
/// use ringway_client::{Client, Communicator, Reduction};
///
/// # fn main() -> Result<(), ringway_client::Error> {
/// let client = Client::connect()?;
/// let world = Communicator::from_env(&client)?;
/// let mut values = [world.rank() as f32; 4];
/// world.blocking().allreduce_in_place(&mut values, Reduction::Sum)?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Client {
    session: Arc<Session>,
}

/// What the client and everything made by it share.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) control: Control,
    /// Written to wake a sleeping daemon.
    doorbell: OwnedFd,
    pub(crate) timeout: Duration,
    pub(crate) join_timeout: Duration,
    /// Whether communicators share memory with other users' ranks unless they say otherwise.
    pub(crate) share: bool,
    /// The algorithms that communicators ask for unless they say otherwise.
    pub(crate) algorithm: String,
    /// How many regions were released.
    releases: AtomicU64,
    socket: PathBuf,
}

impl Session {
    /// How many regions were released.
    #[inline]
    pub(crate) fn releases(&self) -> u64 {
        self.releases.load(Ordering::Relaxed)
    }

    pub(crate) fn count_release(&self) {
        self.releases.fetch_add(1, Ordering::Relaxed);
    }

    /// Wakes the daemon.
    pub(crate) fn ring(&self) {
        // An eventfd that cannot take more is readable anyway.
        calls::count();
        let _ = rustix::io::write(&self.doorbell, &1_u64.to_ne_bytes());
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.control.hang_up();
    }
}

/// Says which daemon to connect to, and how long things may take.
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct ClientBuilder {
    socket: Option<PathBuf>,
    autostart: Option<bool>,
    timeout: Option<Duration>,
    join_timeout: Option<Duration>,
}

impl ClientBuilder {
    /// The daemon's socket, instead of `RINGWAY_SOCKET` and the usual places. No daemon is started there.
    pub fn socket(mut self, path: impl Into<PathBuf>) -> Self {
        self.socket = Some(path.into());
        self
    }

    /// Whether to start the user's own daemon when there is none; otherwise `RINGWAY_AUTOSTART=0` turns it off.
    pub const fn autostart(mut self, start: bool) -> Self {
        self.autostart = Some(start);
        self
    }

    /// How long an operation may take unless the communicator says otherwise; zero for no limit. Otherwise
    /// `RINGWAY_TIMEOUT_MS`, else 30 minutes.
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// How long the other ranks may take to join unless the communicator says otherwise. Otherwise
    /// `RINGWAY_JOIN_TIMEOUT_MS`, else 5 minutes.
    pub const fn join_timeout(mut self, timeout: Duration) -> Self {
        self.join_timeout = Some(timeout);
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// [`ConnectError`]: there is no daemon, none can be started, or it does not serve this process.
    pub fn connect(self) -> Result<Client, ConnectError> {
        let timeout = setting(self.timeout, "RINGWAY_TIMEOUT_MS", TIMEOUT)?;
        let join_timeout = setting(self.join_timeout, "RINGWAY_JOIN_TIMEOUT_MS", JOIN_TIMEOUT)?;
        let named = self
            .socket
            .or_else(|| env::var_os("RINGWAY_SOCKET").filter(|path| !path.is_empty()).map(PathBuf::from));
        let (connected, socket) = match named {
            Some(path) => match socket::connect(&path) {
                Ok(connected) => (connected, path),
                Err(errno) => return Err(ConnectError::NotThere { socket: path, reason: errno.into() }),
            },
            None => {
                let autostart = self.autostart.unwrap_or_else(|| {
                    env::var("RINGWAY_AUTOSTART")
                        .map_or(true, |value| !matches!(value.as_str(), "0" | "false" | "no"))
                });
                find(autostart)?
            }
        };
        let doorbell = greet(connected.as_fd(), &socket)?;
        let control = Control::new(connected);
        let share =
            env::var("RINGWAY_SHARE").is_ok_and(|value| matches!(value.as_str(), "1" | "true" | "yes"));
        let algorithm = env::var("RINGWAY_ALGORITHM").unwrap_or_else(|_| "auto".to_owned());
        let releases = AtomicU64::new(0);
        let session =
            Session { control, doorbell, timeout, join_timeout, share, algorithm, releases, socket };
        Ok(Client { session: Arc::new(session) })
    }
}

/// A duration that the program gave, else one that the environment gives in milliseconds, else the default.
fn setting(
    given: Option<Duration>,
    variable: &'static str,
    default: Duration,
) -> Result<Duration, ConnectError> {
    if let Some(given) = given {
        return Ok(given);
    }
    let Ok(value) = env::var(variable) else { return Ok(default) };
    match value.trim().parse() {
        Ok(ms) => Ok(Duration::from_millis(ms)),
        Err(_) => Err(ConnectError::Setting { variable, value }),
    }
}

/// The system's daemon, else the user's own, else one that is started.
fn find(start: bool) -> Result<(OwnedFd, PathBuf), ConnectError> {
    let uid = rustix::process::geteuid().as_raw();
    let runtime = env::var("XDG_RUNTIME_DIR").ok();
    let mut tried = String::new();
    for path in paths::default_socket_paths(uid, runtime.as_deref()) {
        match socket::connect(Path::new(&path)) {
            Ok(connected) if path == paths::SYSTEM_SOCKET || belongs_to(&connected, uid) => {
                return Ok((connected, PathBuf::from(path)));
            }
            Ok(_) => note(&mut tried, &path, "it belongs to another user"),
            Err(errno) => note(&mut tried, &path, explain(errno)),
        }
    }
    if !start {
        return Err(ConnectError::NoDaemon { tried });
    }
    let path = PathBuf::from(paths::daemon_socket(uid, runtime.as_deref()));
    match autostart::connect_or_start(&path) {
        Ok(connected) => Ok((connected, path)),
        Err(reason) => Err(ConnectError::Start { tried, reason: Box::new(reason) }),
    }
}

/// Whether whoever listens at the other end is this user, or root: in a folder that others can write to it might be
/// anybody.
fn belongs_to(socket: &OwnedFd, uid: u32) -> bool {
    rustix::net::sockopt::socket_peercred(socket).is_ok_and(|peer| [uid, 0].contains(&peer.uid.as_raw()))
}

fn note(tried: &mut String, path: &str, reason: &str) {
    if !tried.is_empty() {
        tried.push_str(" or ");
    }
    tried.push_str(path);
    tried.push_str(" (");
    tried.push_str(reason);
    tried.push(')');
}

fn explain(errno: Errno) -> &'static str {
    match errno {
        Errno::NOENT => "not there",
        Errno::CONNREFUSED => "nobody listens",
        Errno::ACCESS | Errno::PERM => "not allowed",
        Errno::AGAIN => "too many wait to be served",
        _ => "cannot be connected to",
    }
}

/// Exchanges greetings; gives the session's eventfd.
fn greet(connected: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, ConnectError> {
    let failed = |reason: String| ConnectError::Socket { socket: path.to_owned(), reason };
    let stranger = || ConnectError::NotRingway { socket: path.to_owned() };
    let greeting = Greeting { version: VERSION, verdict: 0 };
    // A daemon that refuses may answer and hang up before it reads.
    match passing::send(connected, &greeting.encode(), &[]) {
        Ok(()) | Err(SendError::Closed) => {}
        Err(error) => return Err(failed(error.to_string())),
    }
    let mut bytes = [0; handshake::LENGTH + 1];
    if !socket::readable(connected, GREETING).map_err(|errno| failed(errno.to_string()))? {
        let waited_ms = u64::try_from(GREETING.as_millis()).unwrap_or(u64::MAX);
        return Err(ConnectError::Silent { socket: path.to_owned(), waited_ms });
    }
    let received = match passing::receive(connected, &mut bytes, 1) {
        // A daemon that hung up before it read our greeting resets the connection, which is told first; what it said
        // before is still there.
        Err(ReceiveError::Closed) => passing::receive(connected, &mut bytes, 1),
        received => received,
    };
    let received = received.map_err(|error| match error {
        ReceiveError::Closed | ReceiveError::TooLong(_) => stranger(),
        other => failed(other.to_string()),
    })?;
    let passing::Received { length, descriptors } = received;
    let answer = bytes.get(..length).and_then(Greeting::parse).ok_or_else(stranger)?;
    let reason = match answer.verdict {
        handshake::ACCEPTED if answer.version == VERSION => {
            return descriptors.into_iter().next().ok_or_else(stranger);
        }
        handshake::ACCEPTED | handshake::WRONG_VERSION => {
            let (theirs, ours) = (answer.version, VERSION);
            return Err(ConnectError::Version { socket: path.to_owned(), theirs, ours });
        }
        handshake::TOO_MANY_CLIENTS => {
            "this user has as many connections as it may (`quotas.sessions` in its configuration)"
        }
        handshake::WRONG_USER => {
            "it does not serve this user (see its configuration, or start your own daemon)"
        }
        handshake::SHUTTING_DOWN => "it is shutting down; try again",
        _ => "for a reason that this version does not know",
    };
    Err(ConnectError::Refused { socket: path.to_owned(), reason })
}

impl Client {
    /// Connects to the daemon that `RINGWAY_SOCKET` names; else to the system's; else to the user's own, which is
    /// started when there is none (`RINGWAY_DAEMON`, else `ringwayd` beside this executable, else in `PATH`; turned off
    /// by `RINGWAY_AUTOSTART=0`). A daemon started so leaves when nobody has used it for a minute.
    ///
    /// # Errors
    /// [`ConnectError`], which says what was tried.
    pub fn connect() -> Result<Self, ConnectError> {
        Self::builder().connect()
    }

    /// To say which daemon, and how long things may take.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// The socket of the daemon.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.session.socket
    }

    /// Memory that the daemon can reach, of at least `bytes` bytes, to take buffers from.
    ///
    /// # Errors
    /// [`MemoryError`] when the kernel has none, or a limit of the daemon would be exceeded.
    pub fn arena(&self, bytes: usize) -> Result<Arena, MemoryError> {
        Arena::new(self.clone(), bytes)
    }

    /// Memory of a GPU, of at least `bytes` bytes, that the daemon can reach, to take buffers from.
    ///
    /// # Errors
    /// [`MemoryError`] when the GPU has none, the daemon does not see the GPU, or a limit of it would be exceeded.
    pub fn gpu_arena(&self, gpu: &Arc<cuda::Gpu>, bytes: u64) -> Result<cuda::GpuArena, MemoryError> {
        cuda::GpuArena::allocate(self.clone(), gpu, bytes)
    }

    /// The same of memory that this process has already: `length` bytes from an address of its GPU on, inside one plain
    /// allocation (`cudaMalloc`; of torch's, without `expandable_segments`). It must stay allocated until the arena is gone. The
    /// daemon can reach the whole allocation, and so whatever else is in it.
    ///
    /// # Errors
    /// As [`Client::gpu_arena`].
    pub fn gpu_import(
        &self,
        gpu: &Arc<cuda::Gpu>,
        address: u64,
        length: u64,
    ) -> Result<cuda::GpuArena, MemoryError> {
        cuda::GpuArena::import(self.clone(), gpu, address, length)
    }

    /// An id for a new communicator: one rank asks for it and gives it to the others, by whatever means it has.
    /// `several_nodes` says whether some of them are on other nodes, so that it must name this node's daemon.
    ///
    /// # Errors
    /// [`RequestError`], among others when the daemon has no address for other nodes.
    pub fn unique_id(&self, several_nodes: bool) -> Result<UniqueId, RequestError> {
        match self.request(Request::NewUniqueId { several_nodes })?.reply {
            Reply::UniqueId(id) => Ok(id),
            _ => Err(RequestError::Protocol { what: "no id where one was asked for" }),
        }
    }

    /// To join the communicator `id` as `rank` of `size`.
    pub fn communicator(&self, id: &UniqueId, rank: u32, size: u32) -> CommunicatorBuilder {
        CommunicatorBuilder::new(self.clone(), *id, rank, size)
    }

    /// The daemon's state as JSON text: clients, communicators, regions, devices, counters.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn status(&self) -> Result<String, RequestError> {
        let Answer { reply: _, descriptors } = self.request(Request::Status)?;
        let malformed = |_| RequestError::Protocol { what: "a status that cannot be read" };
        let text = descriptors.into_iter().next().ok_or(RequestError::Protocol { what: "no status" })?;
        let mut text = std::fs::File::from(text);
        // The daemon's offset is shared with this descriptor: it stands where the daemon stopped writing.
        std::io::Seek::rewind(&mut text).map_err(malformed)?;
        std::io::read_to_string(text).map_err(malformed)
    }

    /// Whether the daemon has gone; then nothing works on this client any more.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.session.control.is_lost()
    }

    /// Why a communicator of this session failed, in the daemon's words; `None` while it stands, or as nobody answers in time.
    pub(crate) fn failure_of(&self, communicator: u32) -> Option<OperationError> {
        let request = Request::Explain { communicator, token: COMMUNICATOR_TOKEN };
        match self.request(request).map(|answer| answer.reply) {
            Ok(Reply::Failure { status: code, message }) => Some(match Status::from_code(code) {
                Some(status) => OperationError::Failed { status, message },
                None => OperationError::UnknownStatus { code },
            }),
            Err(RequestError::DaemonLost) => Some(OperationError::DaemonLost),
            _ => None,
        }
    }

    pub(crate) fn request(&self, request: Request) -> Result<Answer, RequestError> {
        self.session.control.request(request, &[], PATIENCE)
    }

    /// Gives something up. A daemon that is gone, refuses or does not answer leaves nothing to do.
    pub(crate) fn give_up(&self, request: Request) {
        let control = &self.session.control;
        // One who did not answer the last time is not waited for again.
        let patience = if control.is_silent() { Duration::ZERO } else { PARTING };
        let _ = control.request(request, &[], patience);
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// Whether both are the same session.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.session, &other.session)
    }
}
