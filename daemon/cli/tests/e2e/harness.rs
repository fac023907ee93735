//! Daemons, ranks and programs as guarded child processes.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read, Write as _},
    net::{SocketAddr, TcpListener},
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::{
        atomic::{AtomicU32, Ordering},
        mpsc::{Receiver, RecvTimeoutError, channel},
    },
    time::{Duration, Instant},
};

use ringway_client::Client;
use ringway_sim::lacks_namespaces;
pub(crate) use ringway_sim::not_tried;
use rustix::process::{Pid, Signal, kill_process};

/// How long anything may take on a slow and loaded machine before its test fails.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The variable that is set where nothing that a test needs may be missing.
pub(crate) const ALL_TOOLS: &str = "RINGWAY_TEST_ALL_TOOLS";

pub(crate) const RINGWAY: &str = env!("CARGO_BIN_EXE_ringway");
pub(crate) const RINGWAYD: &str = env!("CARGO_BIN_EXE_ringwayd");

/// Whether this process may make network namespaces; says that a test is left out where it may not.
pub(crate) fn has_namespaces() -> bool {
    let lacks = lacks_namespaces();
    if let Some(what) = lacks {
        not_tried(what);
    }
    lacks.is_none()
}

/// Waits until something is true.
#[track_caller]
pub(crate) fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !is_true() {
        assert!(Instant::now() < deadline, "{what} did not happen within {LONG:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Asserts that a text mentions every part.
#[track_caller]
pub(crate) fn assert_mentions(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` is missing in: {text}");
    }
}

/// A private folder, removed with this value. Its path is short, so that sockets fit.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("rw-e2e-{}-{number}", std::process::id()));
        // A process of this number may have been killed before.
        let _ = fs::remove_dir_all(&path);
        fs::DirBuilder::new().mode(0o700).create(&path).expect("a folder");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file that only its owner may read.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.join(name);
        fs::write(&path, text).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its mode");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A child process that is killed with this value.
#[derive(Debug)]
pub(crate) struct Process(pub(crate) Child);

impl Process {
    pub(crate) fn spawn(command: &mut Command) -> Self {
        Self(command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}")))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).expect("a process id");
        kill_process(pid, signal).expect("the process is there");
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.0.try_wait().expect("a child").is_none()
    }

    /// Waits for the end.
    #[track_caller]
    pub(crate) fn end(&mut self) -> ExitStatus {
        self.end_within(LONG)
    }

    /// Waits for the end of something that does much.
    #[track_caller]
    pub(crate) fn end_within(&mut self, time: Duration) -> ExitStatus {
        let deadline = Instant::now() + time;
        loop {
            if let Some(status) = self.0.try_wait().expect("a child") {
                return status;
            }
            assert!(Instant::now() < deadline, "process {} did not end within {time:?}", self.pid());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How a program ended and what it wrote.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    #[track_caller]
    pub(crate) fn success(self) -> Self {
        assert!(self.status.success(), "{self:?}");
        self
    }

    #[track_caller]
    pub(crate) fn failure(self) -> Self {
        assert!(!self.status.success(), "{self:?}");
        self
    }
}

/// A running program whose output is collected.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) process: Process,
    out: Receiver<String>,
    err: Receiver<String>,
}

impl Program {
    pub(crate) fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = Process::spawn(command);
        let out = collect(process.0.stdout.take().expect("piped"));
        let err = collect(process.0.stderr.take().expect("piped"));
        Self { process, out, err }
    }

    #[track_caller]
    pub(crate) fn end(self) -> Ended {
        self.end_within(LONG)
    }

    #[track_caller]
    pub(crate) fn end_within(mut self, time: Duration) -> Ended {
        let status = self.process.end_within(time);
        let text = |from: &Receiver<String>| {
            from.recv_timeout(LONG).expect("whoever holds the output open has ended as well")
        };
        Ended { status, out: text(&self.out), err: text(&self.err) }
    }
}

fn collect(mut stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}

/// A command of `ringway` that is not touched by the environment the tests run in.
pub(crate) fn ringway(arguments: &[&str]) -> Command {
    let mut command = Command::new(RINGWAY);
    command.args(arguments);
    isolate(&mut command);
    command
}

/// Runs `ringway` to its end.
#[track_caller]
pub(crate) fn run_ringway(arguments: &[&str]) -> Ended {
    Program::start(&mut ringway(arguments)).end()
}

/// Takes away what would lead a client or daemon elsewhere.
pub(crate) fn isolate(command: &mut Command) {
    for variable in [
        "RINGWAY_SOCKET",
        "RINGWAY_DAEMON",
        "RINGWAY_ID",
        "RINGWAY_RANK",
        "RINGWAY_TIMEOUT_MS",
        "RINGWAY_ALGORITHM",
    ] {
        command.env_remove(variable);
    }
    command.env("RINGWAY_AUTOSTART", "0");
}

/// A running daemon with a folder of its own.
#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) process: Process,
    pub(crate) socket: PathBuf,
    pub(crate) folder: Folder,
}

impl Daemon {
    /// A daemon for one node, with further lines for its configuration.
    pub(crate) fn start(settings: &str) -> Self {
        Self::start_under(&[], settings)
    }

    /// The same, by a command that such words begin.
    pub(crate) fn start_under(under: &[&str], settings: &str) -> Self {
        let folder = Folder::new();
        let socket = folder.join("d.sock");
        let config = folder.write("c.toml", &configuration(&socket, settings));
        let process = spawn_daemon_under(under, &folder, &config);
        let mut daemon = Self { process, socket, folder };
        daemon.await_serving();
        daemon
    }

    fn await_serving(&mut self) {
        let deadline = Instant::now() + LONG;
        while self.try_client().is_none() {
            let runs = self.process.is_running();
            assert!(runs && Instant::now() < deadline, "the daemon does not serve: {}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn try_client(&self) -> Option<Client> {
        Client::builder().socket(&self.socket).connect().ok()
    }

    /// A session of this process.
    #[track_caller]
    pub(crate) fn client(&self) -> Client {
        Client::builder().socket(&self.socket).connect().unwrap_or_else(|e| panic!("{e}: {}", self.log()))
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// The status as JSON.
    #[track_caller]
    pub(crate) fn status(&self) -> serde_json::Value {
        let text = self.client().status().expect("a status");
        serde_json::from_str(&text).expect("JSON")
    }

    pub(crate) fn kill(&mut self) {
        self.process.signal(Signal::KILL);
        self.process.end();
    }
}

/// A configuration file's text. A test's daemon leaves by itself should the test be killed.
pub(crate) fn configuration(socket: &Path, settings: &str) -> String {
    format!("socket = {:?}\nidle_exit_s = 120\n{settings}\n", socket.display().to_string())
}

pub(crate) fn spawn_daemon(folder: &Folder, config: &Path) -> Process {
    spawn_daemon_under(&[], folder, config)
}

fn spawn_daemon_under(under: &[&str], folder: &Folder, config: &Path) -> Process {
    let log = fs::OpenOptions::new().create(true).append(true).open(folder.join("log")).expect("a log");
    let words = [under, &[RINGWAYD]].concat();
    let (program, arguments) = words.split_first().expect("a program");
    let mut command = Command::new(program);
    command.args(arguments);
    isolate(&mut command);
    command.arg("--config").arg(config).stdin(Stdio::null());
    command.stdout(log.try_clone().expect("a descriptor")).stderr(log);
    Process::spawn(&mut command)
}

/// Two daemons that stand for two nodes, joined by loopback.
pub(crate) fn two_nodes(settings: &str) -> [Daemon; 2] {
    [KEY, KEY].map(|key| node(key, settings).0)
}

/// A cluster key.
pub(crate) const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// A daemon that works with other nodes as if they were on other hosts, by TCP, unless the settings name a device; and where
/// it listens.
pub(crate) fn node(key: &str, settings: &str) -> (Daemon, SocketAddr) {
    let address = free_address();
    (node_at(address, key, settings), address)
}

/// As [`node`], at an address.
pub(crate) fn node_at(address: SocketAddr, key: &str, settings: &str) -> Daemon {
    let device = if settings.contains("device =") { "" } else { "device = \"tcp\"\n" };
    let key_folder = Folder::new();
    let key_file = key_folder.write("key", key);
    let network =
        format!("listen = \"{address}\"\ncluster_key_file = {:?}\n", key_file.display().to_string());
    // The key is read once, at the start.
    Daemon::start(&format!("{network}{device}{settings}"))
}

/// An address that nobody listens on. Tests of other processes and other tests of this one get other addresses of the
/// loopback network, so that none can take the port meanwhile.
pub(crate) fn free_address() -> SocketAddr {
    static NUMBER: AtomicU32 = AtomicU32::new(1);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let ip = std::net::Ipv4Addr::new(127, high.max(1), low, u8::try_from(number % 250 + 1).expect("small"));
    TcpListener::bind((ip, 0)).and_then(|l| l.local_addr()).expect("a loopback address")
}

/// A rank in a process of its own, see [`crate::rank`].
#[derive(Debug)]
pub(crate) struct Rank {
    pub(crate) process: Process,
    commands: ChildStdin,
    answers: Receiver<String>,
}

impl Rank {
    /// A process connected to the daemon.
    pub(crate) fn start(daemon: &Daemon) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this test"));
        isolate(&mut command);
        command.args(["--exact", crate::rank::TEST, "--nocapture", "--test-threads=1"]);
        command.env(crate::rank::VARIABLE, "1").env("RINGWAY_SOCKET", &daemon.socket);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::spawn(&mut command);
        let commands = process.0.stdin.take().expect("piped");
        let stdout = process.0.stdout.take().expect("piped");
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(answer) = line.strip_prefix('@')
                    && sender.send(answer.to_owned()).is_err()
                {
                    return;
                }
            }
        });
        Self { process, commands, answers }
    }

    /// Sends a command.
    #[track_caller]
    pub(crate) fn tell(&mut self, command: &str) {
        writeln!(self.commands, "{command}").expect("the rank runs");
    }

    /// The answer to the oldest command without one.
    #[track_caller]
    pub(crate) fn answer(&mut self) -> Result<String, String> {
        let line = match self.answers.recv_timeout(LONG) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("no answer within {LONG:?}"),
            Err(RecvTimeoutError::Disconnected) => panic!("the rank ended"),
        };
        match line.split_once(' ') {
            Some(("ok", rest)) => Ok(rest.to_owned()),
            Some(("error", rest)) => Err(rest.to_owned()),
            _ => panic!("a rank says `{line}`"),
        }
    }

    /// Whether an answer has come, waiting a moment for it.
    pub(crate) fn has_answered_within(&self, time: Duration) -> bool {
        self.answers.recv_timeout(time).is_ok()
    }

    #[track_caller]
    pub(crate) fn ask(&mut self, command: &str) -> Result<String, String> {
        self.tell(command);
        self.answer()
    }

    /// Asks for what succeeds.
    #[track_caller]
    pub(crate) fn must(&mut self, command: &str) -> String {
        self.ask(command).unwrap_or_else(|e| panic!("{command}: {e}"))
    }

    /// Asks for what fails.
    #[track_caller]
    pub(crate) fn must_fail(&mut self, command: &str) -> String {
        self.ask(command).expect_err(command)
    }

    pub(crate) fn kill(&mut self) {
        self.process.signal(Signal::KILL);
        self.process.end();
    }
}

/// Ranks of one communicator: `per_node` on each daemon, in order. `options` go to every join.
pub(crate) fn form(daemons: &[Daemon], per_node: usize, options: &str) -> Vec<Rank> {
    let mut ranks: Vec<Rank> = daemons.iter().flat_map(|d| (0..per_node).map(|_| Rank::start(d))).collect();
    let size = ranks.len();
    let scope = if daemons.len() > 1 { "id several" } else { "id" };
    let id = ranks.first_mut().expect("a rank").must(scope);
    for (number, rank) in ranks.iter_mut().enumerate() {
        rank.tell(&format!("join {id} {number} {size} {options}"));
    }
    for (number, rank) in ranks.iter_mut().enumerate() {
        if let Err(error) = rank.answer() {
            let logs: Vec<String> = daemons.iter().map(Daemon::log).collect();
            panic!("rank {number}: {error}\n{}", logs.join("\n---\n"));
        }
    }
    ranks
}

/// Sends a command to every rank.
pub(crate) fn tell_all(ranks: &mut [Rank], command: &str) {
    for rank in ranks {
        rank.tell(command);
    }
}
