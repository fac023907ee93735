//! A daemon in this process, and ranks as threads.
#![allow(dead_code, reason = "every test file uses a part of it")]
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    missing_debug_implementations,
    reason = "these are tests"
)]
#![allow(unreachable_pub, reason = "it is a module of each test program")]

use std::{
    env, fs,
    ops::{Deref, DerefMut},
    path::{Path, PathBuf},
    process::{self, Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread::{self, JoinHandle},
    time::Duration,
};

use ringway_client::{Client, Communicator, Reduction, UniqueId};
use ringway_service::{Settings, StopHandle, run, stop_pair};

/// Long enough for a loaded machine, short enough for a test that hangs.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// A daemon that serves this node only, on a socket of its own. Dropping it stops it.
pub struct Daemon {
    folder: PathBuf,
    stop: Option<StopHandle>,
    thread: Option<JoinHandle<()>>,
}

/// A folder of its own for one test.
pub fn folder() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = env::temp_dir().join(format!("ringway-client-{}-{number}", process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir(&folder).expect("a folder for the test");
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).expect("mode");
    folder
}

/// What the tests' daemons are told.
pub fn settings(socket: &Path) -> Settings {
    Settings {
        socket: Some(socket.display().to_string()),
        log_level: Some("error".to_owned()),
        ..Settings::default()
    }
}

/// This program again, to play a role, which is a test of it that only runs so.
pub fn role(name: &str) -> Command {
    role_of(&env::current_exe().expect("this program"), name)
}

/// As [`role`], by a copy of this program.
pub fn role_of(program: &Path, name: &str) -> Command {
    let mut command = Command::new(program);
    command.args([name, "--exact", "--ignored", "--nocapture", "--test-threads=1"]).stdout(Stdio::null());
    command
}

/// A process that plays a role. It ends with this value at the latest, stopped or not: one that outlived a failing test
/// would hold what reads the test's output.
pub struct Role(Child);

impl Role {
    pub fn start(command: &mut Command) -> Self {
        Self(command.spawn().expect("this program runs again"))
    }
}

impl Deref for Role {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Role {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The ways in which ranks of a node may work together.
pub const ISOLATIONS: [&str; 2] = ["cell", "strict"];

impl Daemon {
    /// One whose clients share memory, as is usual.
    pub fn start() -> Self {
        Self::start_with("cell")
    }

    /// One of each kind, one after the other.
    pub fn of_each_kind() -> impl Iterator<Item = Self> {
        ISOLATIONS.into_iter().map(Self::start_with)
    }

    fn start_with(isolation: &str) -> Self {
        Self::start_as(|settings| Settings { isolation: Some(isolation.to_owned()), ..settings })
    }

    /// One that is told besides what `adapt` says.
    pub fn start_as(adapt: impl FnOnce(Settings) -> Settings) -> Self {
        let folder = folder();
        let config = adapt(settings(&folder.join("daemon.sock"))).resolve().expect("settings");
        let (stop, stopped) = stop_pair().expect("stop");
        let thread = thread::spawn(move || run(config, stopped).expect("the daemon runs"));
        let daemon = Self { folder, stop: Some(stop), thread: Some(thread) };
        let started = std::time::Instant::now();
        while Client::builder().socket(daemon.socket()).connect().is_err() {
            assert!(started.elapsed() < TIMEOUT, "the daemon does not listen");
            thread::sleep(Duration::from_millis(2));
        }
        daemon
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.join("daemon.sock")
    }

    pub fn client(&self) -> Client {
        Client::builder()
            .socket(self.socket())
            .timeout(TIMEOUT)
            .join_timeout(TIMEOUT)
            .connect()
            .expect("connect")
    }

    /// Runs `body` as each rank of a new communicator, each with a client of its own; gives what they return.
    pub fn world<R: Send>(&self, size: u32, body: impl Fn(&Communicator) -> R + Sync) -> Vec<R> {
        let id = self.client().unique_id(false).expect("id");
        self.world_of(&id, size, &body)
    }

    pub fn world_of<R: Send>(
        &self,
        id: &UniqueId,
        size: u32,
        body: &(impl Fn(&Communicator) -> R + Sync),
    ) -> Vec<R> {
        thread::scope(|scope| {
            let ranks: Vec<_> = (0..size)
                .map(|rank| {
                    scope.spawn(move || {
                        let client = self.client();
                        body(&client.communicator(id, rank, size).join().expect("join"))
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().expect("the rank's thread")).collect()
        })
    }

    pub fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the daemon's thread");
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// What a rank contributes: small whole numbers, so that sums of every type are exact.
pub fn value(rank: u32, index: usize) -> i64 {
    (i64::from(rank) * 3 + index as i64) % 5 + 1
}

/// The combination of the values of ranks at one index.
pub fn combined(ranks: impl Iterator<Item = u32>, index: usize, reduction: Reduction) -> i64 {
    let values = ranks.map(|rank| value(rank, index));
    match reduction {
        Reduction::Sum => values.sum(),
        Reduction::Max => values.max().unwrap_or(0),
        Reduction::Min => values.min().unwrap_or(0),
        _ => panic!("not used here"),
    }
}
