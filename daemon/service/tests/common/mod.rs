//! A daemon on a socket of its own, and a client that speaks the protocol by hand, so that it can also speak it wrong.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    missing_debug_implementations,
    reason = "each test file uses its own part"
)]
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

use std::{
    collections::BTreeMap,
    io::Write,
    net::{SocketAddr, TcpListener},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use ringway_abi::{
    MAX_CONTROL_BYTES, Status, UniqueId, VERSION,
    control::{self, Envelope, Join, Joined, Reply, Request},
    descriptor::{BufferHandle, Completion, Submission},
    handshake::{ACCEPTED, Greeting},
};
use ringway_mem::{Mapping, MemFd, Protection, admit, passing};
use ringway_ring::{ClientRings, Geometry};
use ringway_service::{ServiceError, Settings, StopHandle, stop_pair};
use ringway_types::{DataType, Operation, Reduction};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

/// Long enough for a machine with other things to do.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A fresh folder under the system's temporary one.
pub fn folder() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("ringway-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let path = std::env::temp_dir().join(name);
    // A process of this number may have been killed before.
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("create a folder");
    path
}

/// A daemon in a thread of this process; stopped when dropped.
pub struct Daemon {
    pub socket: PathBuf,
    folder: PathBuf,
    stop: Option<StopHandle>,
    thread: Option<JoinHandle<Result<(), ServiceError>>>,
}

/// What most tests start a daemon with.
pub fn settings(folder: &Path) -> Settings {
    let socket = folder.join("d.sock").display().to_string();
    Settings { socket: Some(socket), ..Settings::default() }
}

impl Daemon {
    pub fn start() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let folder = folder();
        let mut settings = settings(&folder);
        change(&mut settings);
        let config = settings.resolve().expect("good settings");
        let socket = config.socket.clone();
        let (handle, stop) = stop_pair().expect("stop pair");
        let thread = std::thread::spawn(move || ringway_service::run(config, stop));
        wait_for(&socket);
        Self { socket, folder, stop: Some(handle), thread: Some(thread) }
    }

    /// Stops it; what it returned.
    pub fn stop(mut self) -> Result<(), ServiceError> {
        self.stop.take();
        self.thread.take().expect("running").join().expect("no panic")
    }

    /// Waits until it stops by itself.
    pub fn wait(mut self) -> Result<(), ServiceError> {
        self.thread.take().expect("running").join().expect("no panic")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A file with a cluster key.
pub fn key_file(folder: &Path, name: &str, byte: &str) -> PathBuf {
    let path = folder.join(name);
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(&path).expect("create");
    file.write_all(byte.repeat(32).as_bytes()).expect("write");
    path
}

/// A port that was free a moment ago.
fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port")
}

/// A daemon that stands for one node of several, joined as those of different hosts are: by TCP, unless something else is
/// asked for.
pub fn node(key: &Path, change: impl FnOnce(&mut Settings)) -> Daemon {
    let (address, key) = (free_address(), key.display().to_string());
    Daemon::with(|s| {
        s.listen = Some(address.to_string());
        s.cluster_key_file = Some(key);
        s.late_after_s = Some(1);
        s.device = Some("tcp".to_owned());
        change(s);
    })
}

/// Waits until somebody listens.
pub fn wait_for(socket: &Path) {
    let deadline = Instant::now() + PATIENCE;
    while connect(socket).is_err() {
        assert!(Instant::now() < deadline, "no daemon at {}", socket.display());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A connected socket that has said nothing.
pub fn connect(path: &Path) -> rustix::io::Result<OwnedFd> {
    let kind = SocketType::SEQPACKET;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(PATIENCE))?;
    Ok(socket)
}

/// The next message; `None` when the other side closed.
pub fn receive(socket: &OwnedFd) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; MAX_CONTROL_BYTES];
    match passing::receive(socket.as_fd(), &mut bytes, 8) {
        Ok(got) => {
            bytes.truncate(got.length);
            Some((bytes, got.descriptors))
        }
        Err(passing::ReceiveError::Closed) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Whether the daemon closes the connection, perhaps after some replies.
pub fn is_closed(socket: &OwnedFd) -> bool {
    loop {
        if receive(socket).is_none() {
            return true;
        }
    }
}

/// A client.
pub struct Client {
    pub socket: OwnedFd,
    doorbell: Arc<OwnedFd>,
    number: u32,
    early: BTreeMap<u32, (Reply, Vec<OwnedFd>)>,
}

/// A registered region.
pub struct Region {
    pub mapping: Mapping,
    pub handle: u64,
    pub file: MemFd,
}

impl Client {
    pub fn connect(path: &Path) -> Self {
        let socket = connect(path).expect("connect");
        let greeting = Greeting { version: VERSION, verdict: 0 };
        passing::send(socket.as_fd(), &greeting.encode(), &[]).expect("greet");
        let (bytes, mut fds) = receive(&socket).expect("an answer");
        let greeting = Greeting::parse(&bytes).expect("a greeting");
        assert_eq!((greeting.version, greeting.verdict), (VERSION, ACCEPTED));
        let doorbell = Arc::new(fds.pop().expect("the doorbell"));
        Self { socket, doorbell, number: 0, early: BTreeMap::new() }
    }

    pub fn send(&mut self, body: Request, fds: &[BorrowedFd<'_>]) -> u32 {
        self.number += 1;
        let bytes = control::encode(&Envelope { number: self.number, body }).expect("encode");
        passing::send(self.socket.as_fd(), &bytes, fds).expect("send");
        self.number
    }

    pub fn reply(&mut self, number: u32) -> (Reply, Vec<OwnedFd>) {
        loop {
            if let Some(reply) = self.early.remove(&number) {
                return reply;
            }
            let (bytes, fds) = receive(&self.socket).expect("a reply");
            let envelope: Envelope<Reply> = control::decode(&bytes).expect("decode");
            self.early.insert(envelope.number, (envelope.body, fds));
        }
    }

    pub fn ask(&mut self, body: Request, fds: &[BorrowedFd<'_>]) -> Reply {
        let number = self.send(body, fds);
        self.reply(number).0
    }

    pub fn region(&mut self, bytes: u64) -> Region {
        let (file, mapping) = MemFd::region("test", bytes).expect("a region");
        let reply = self.ask(Request::RegisterRegion, &[file.as_fd()]);
        let Reply::Region { region, length } = reply else { panic!("{reply:?}") };
        assert_eq!(length, bytes);
        Region { mapping, handle: region, file }
    }

    pub fn new_id(&mut self) -> UniqueId {
        self.new_id_for(false)
    }

    pub fn new_id_for(&mut self, several_nodes: bool) -> UniqueId {
        match self.ask(Request::NewUniqueId { several_nodes }, &[]) {
            Reply::UniqueId(id) => id,
            other => panic!("{other:?}"),
        }
    }

    /// Asks to join; [`Client::joined`] takes the answer.
    pub fn join(&mut self, id: UniqueId, rank: u32, size: u32) -> u32 {
        self.send(Request::Join(join(id, rank, size)), &[])
    }

    pub fn joined(&mut self, number: u32) -> Rank {
        let (reply, fds) = self.reply(number);
        let Reply::Joined(joined) = reply else { panic!("{reply:?}") };
        let mut fds = fds.into_iter();
        let (c, d) = (fds.next().expect("C"), fds.next().expect("D"));
        let cell_file = joined.cell.map(|_| fds.next().expect("the cell"));
        let cell = joined.cell.zip(cell_file.as_ref()).map(|(offer, file)| {
            let length = usize::try_from(offer.bytes).expect("bytes");
            let mapping = Mapping::shared(file.as_fd(), length, Protection::ReadWrite).expect("map the cell");
            Arc::new(mapping)
        });
        let board = joined.board.map(|offer| {
            let mut map = |bytes: u64| {
                let (file, length) = (fds.next().expect("its file"), usize::try_from(bytes).expect("bytes"));
                Arc::new(Mapping::shared(file.as_fd(), length, Protection::ReadWrite).expect("map"))
            };
            [map(offer.bytes), map(offer.scratch_bytes)]
        });
        assert_eq!(fds.next().map(drop), None);
        let (submissions, completions, slab) = joined.geometry;
        let geometry = Geometry::new(submissions, completions, slab).expect("geometry");
        let c = admit::map_client_written(c.as_fd(), geometry.client_bytes()).expect("map C");
        let d = admit::map_daemon_written(d.as_fd(), geometry.daemon_bytes()).expect("map D");
        let (c, d) = (Arc::new(c), Arc::new(d));
        let rings = ClientRings::attach(&c, &d, geometry).expect("attach");
        Rank { rings, joined, doorbell: Arc::clone(&self.doorbell), client_memory: c, cell, cell_file, board }
    }

    /// Alone in a communicator.
    pub fn alone(&mut self) -> Rank {
        let id = self.new_id();
        let number = self.join(id, 0, 1);
        self.joined(number)
    }

    pub fn explain(&mut self, rank: &Rank, token: u32) -> String {
        match self.ask(Request::Explain { communicator: rank.joined.communicator, token }, &[]) {
            Reply::Text(text) | Reply::Failure { message: text, .. } => text,
            other => panic!("{other:?}"),
        }
    }

    pub fn status(&mut self) -> ringway_service::status::DaemonStatus {
        use std::io::{Read, Seek};
        let number = self.send(Request::Status, &[]);
        let (reply, mut fds) = self.reply(number);
        assert_eq!(reply, Reply::Done);
        let mut file = std::fs::File::from(fds.pop().expect("a memfd"));
        file.rewind().expect("rewind");
        let mut text = String::new();
        file.read_to_string(&mut text).expect("read");
        serde_json::from_str(&text).expect("JSON")
    }
}

pub fn join(id: UniqueId, rank: u32, size: u32) -> Join {
    Join {
        id,
        rank,
        size,
        submissions: 64,
        join_timeout_ms: 30_000,
        operation_timeout_ms: 0,
        share: false,
        algorithm: "auto".to_owned(),
        stream_words: None,
    }
}

/// Ranks `0..size`, each in a client of its own.
pub fn ranks(path: &Path, size: u32) -> Vec<(Client, Rank)> {
    let mut clients: Vec<_> = (0..size).map(|_| Client::connect(path)).collect();
    let id = clients[0].new_id();
    let numbers: Vec<_> =
        clients.iter_mut().zip(0..).map(|(client, rank)| client.join(id, rank, size)).collect();
    let joined = clients.into_iter().zip(numbers).map(|(mut client, number)| {
        let rank = client.joined(number);
        (client, rank)
    });
    joined.collect()
}

/// A rank's rings.
pub struct Rank {
    pub rings: ClientRings,
    pub joined: Joined,
    doorbell: Arc<OwnedFd>,
    pub client_memory: Arc<Mapping>,
    /// The cell's memory.
    pub cell: Option<Arc<Mapping>>,
    pub cell_file: Option<OwnedFd>,
    /// The board's memory, and the scratch memory.
    pub board: Option<[Arc<Mapping>; 2]>,
}

impl Rank {
    pub fn submit(&mut self, submission: &Submission) {
        self.submit_words(&submission.encode());
    }

    pub fn submit_words(&mut self, words: &[u64; 8]) {
        self.rings.submissions.send(words).expect("room in the ring");
        self.ring();
    }

    /// As [`Rank::submit`], when the daemon has taken enough of what was submitted before.
    pub fn submit_when_room(&mut self, submission: &Submission) {
        let deadline = Instant::now() + PATIENCE;
        while self.rings.submissions.send(&submission.encode()).is_err() {
            assert!(Instant::now() < deadline, "the daemon takes nothing");
            std::thread::sleep(Duration::from_micros(100));
        }
        self.ring();
    }

    /// Wakes the daemon if it sleeps.
    pub fn ring(&mut self) {
        if self.rings.need_wakeup() {
            rustix::io::write(&*self.doorbell, &1_u64.to_ne_bytes()).expect("ring");
        }
    }

    /// The next completion; `None` when none came within the time.
    pub fn completion(&mut self, within: Duration) -> Option<Completion> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(words) = self.rings.completions.pop().expect("an honest daemon") {
                self.rings.completions.release();
                return Some(Completion::parse(&words));
            }
            if Instant::now() > deadline {
                return None;
            }
            self.rings.sleep(Some(Duration::from_millis(20)));
        }
    }

    pub fn wait(&mut self) -> (u32, Option<Status>) {
        let completion = self.completion(PATIENCE).expect("a completion");
        (completion.token, Status::from_code(completion.status))
    }
}

/// An allreduce of `count` sums of u64.
pub fn allreduce(token: u32, input: (u64, u64), output: (u64, u64), count: u64) -> Submission {
    let buffer = |(region, offset)| Some(BufferHandle { region, offset });
    Submission {
        token,
        operation: Operation::Allreduce,
        datatype: DataType::U64,
        reduction: Some(Reduction::Sum),
        flags: 0,
        rank: 0,
        argument: 0,
        input: buffer(input),
        output: buffer(output),
        count,
    }
}

pub fn barrier(token: u32) -> Submission {
    Submission {
        operation: Operation::Barrier,
        reduction: None,
        input: None,
        output: None,
        count: 0,
        ..allreduce(token, (0, 0), (0, 0), 0)
    }
}

pub fn put(mapping: &Mapping, offset: u64, value: u64) {
    assert_eq!(mapping.window(offset, 8).expect("inside").write(&value.to_le_bytes()), 8);
}

pub fn get(mapping: &Mapping, offset: u64) -> u64 {
    let mut bytes = [0; 8];
    mapping.window(offset, 8).expect("inside").read(&mut bytes);
    u64::from_le_bytes(bytes)
}

/// The daemon answers and works: a new client does a barrier with itself.
pub fn assert_serves(path: &Path) {
    let mut client = Client::connect(path);
    let mut rank = client.alone();
    rank.submit(&barrier(77));
    assert_eq!(rank.wait(), (77, Some(Status::Success)));
}
