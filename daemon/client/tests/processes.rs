//! Ranks and daemons as processes: this program runs itself again in other roles.

#![allow(clippy::expect_used, clippy::panic, clippy::too_many_lines, reason = "these are tests")]

mod common;

use std::{
    env, fs,
    os::unix::{
        fs::PermissionsExt,
        process::{CommandExt, ExitStatusExt},
    },
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use common::{ISOLATIONS, Role, TIMEOUT, folder, role, role_of, settings};
use ringway_client::{
    Buffer, CallError, Client, Communicator, Error, Failure, MemoryError, OperationError, Reduction,
    RequestError, Status,
};
use rustix::process::{Pid, Signal, kill_process};

fn start(name: &str, variables: &[(&str, &str)]) -> Role {
    Role::start(role(name).envs(variables.iter().copied()))
}

/// The user `nobody`, who plays the roles for which root is not an ordinary user.
const NOBODY: u32 = 65534;

/// As [`start`], never as root: root's own daemon is the system's.
fn start_ordinary(program: &Path, name: &str, variables: &[(&str, &str)]) -> Role {
    let mut command = role_of(program, name);
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    Role::start(command.envs(variables.iter().copied()))
}

/// A folder of the user who plays ordinary roles.
fn ordinary_folder() -> PathBuf {
    let folder = folder();
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&folder, Some(NOBODY), Some(NOBODY)).expect("chown");
    }
    folder
}

/// A copy of this program in such a folder: who may not look into the one that it was built in can run it there.
fn ordinary_program(folder: &Path) -> PathBuf {
    let program = folder.join("this-program");
    let this = env::current_exe().expect("this program");
    fs::hard_link(&this, &program).or_else(|_| fs::copy(&this, &program).map(|_| ())).expect("a copy");
    program
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("{name} is set for this role"))
}

/// A daemon in a process of its own, which can be killed.
struct DaemonProcess {
    child: Role,
    folder: PathBuf,
}

impl DaemonProcess {
    fn start() -> Self {
        Self::start_with("cell")
    }

    fn start_with(isolation: &str) -> Self {
        let folder = folder();
        let socket = folder.join("daemon.sock");
        let variables = [("TEST_SOCKET", &*socket.display().to_string()), ("TEST_ISOLATION", isolation)];
        let child = start("play_daemon", &variables);
        let daemon = Self { child, folder };
        let started = Instant::now();
        while Client::builder().socket(&socket).connect().is_err() {
            assert!(started.elapsed() < TIMEOUT, "the daemon does not listen");
            thread::sleep(Duration::from_millis(5));
        }
        daemon
    }

    fn socket(&self) -> String {
        self.folder.join("daemon.sock").display().to_string()
    }

    /// A rank's process, with the environment that `ringway run` would give it.
    fn rank(&self, name: &str, rank: u32, size: u32, end: &str) -> Role {
        let (rank, size) = (rank.to_string(), size.to_string());
        start(
            name,
            &[
                ("RINGWAY_SOCKET", &self.socket()),
                ("RINGWAY_RANK", &rank),
                ("RINGWAY_WORLD_SIZE", &size),
                ("RINGWAY_ID", "a job of this test"),
                ("TEST_END", end),
                ("RINGWAY_TIMEOUT_MS", "60000"),
            ],
        )
    }
}

impl Drop for DaemonProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[test]
#[ignore = "a role that other tests start"]
fn play_daemon() {
    let mut settings = settings(Path::new(&variable("TEST_SOCKET")));
    settings.isolation = env::var("TEST_ISOLATION").ok();
    settings.idle_exit_s = env::var("TEST_IDLE_EXIT").ok().map(|s| s.parse().expect("seconds"));
    let (stop, stopped) = ringway_service::stop_pair().expect("stop");
    ringway_service::run(settings.resolve().expect("settings"), stopped).expect("the daemon runs");
    drop(stop);
}

fn world() -> Result<Communicator, Error> {
    Communicator::from_env(&Client::connect()?)
}

#[test]
#[ignore = "a role that other tests start"]
fn play_rank() {
    let world = world().expect("join");
    for length in [1_usize, 1000, 100_000] {
        let mut values = vec![1_u32; length];
        world.blocking().allreduce_in_place(&mut values, Reduction::Sum).expect("sum");
        assert!(values.iter().all(|v| *v == world.size()));
    }
}

#[test]
#[ignore = "a role that other tests start"]
fn play_rank_that_never_ends() {
    let world = world().expect("join");
    loop {
        let mut values = vec![1_u32; 50_000];
        if let Err(error) = world.blocking().allreduce_in_place(&mut values, Reduction::Sum) {
            let error = match error {
                Error::Operation(error) => error,
                // On a busy machine the daemon may be killed before the first call has its memory.
                Error::Memory(MemoryError::Request(RequestError::DaemonLost)) => OperationError::DaemonLost,
                other => panic!("{other:?}"),
            };
            match variable("TEST_END").as_str() {
                "rank" => {
                    assert_eq!(error.status(), Some(Status::RankFailed), "{error}");
                    assert!(error.to_string().contains("rank 1"), "{error}");
                }
                _ => assert_eq!(error, OperationError::DaemonLost),
            }
            return;
        }
    }
}

/// Makes many calls at a time and waits for none before all are made, until another rank ends: the daemon makes most of
/// them in its place.
#[test]
#[ignore = "a role that other tests start"]
fn play_rank_far_ahead() {
    let client = Client::builder().timeout(Duration::from_secs(2)).connect().expect("connect");
    let world = Communicator::from_env(&client).expect("join");
    let arena = match client.arena(16 << 20) {
        // On a busy machine the daemon may be killed before.
        Err(MemoryError::Request(RequestError::DaemonLost)) if variable("TEST_END") == "daemon" => return,
        arena => arena.expect("arena"),
    };
    let length = |number: usize| if number.is_multiple_of(20) { 200_000 } else { 5 };
    loop {
        let calls: Vec<_> = (0..150)
            .map(|number| {
                let buffer = arena.buffer_from(&vec![1_u32; length(number)]).expect("buffer");
                world.allreduce_in_place(buffer, Reduction::Sum)
            })
            .collect();
        let (mut failed, mut back) = (false, Vec::new());
        for call in calls {
            let call = match call {
                Err(error) => {
                    assert_eq!(error.error, CallError::DaemonLost, "it is the only one that ends submitting");
                    failed = true;
                    continue;
                }
                Ok(call) => call,
            };
            let failure = match call.wait() {
                // A small one may be over although a large one before it never will be.
                Ok(sum) => {
                    assert!(sum.iter().all(|v| *v == world.size()));
                    continue;
                }
                Err(failure) => failure,
            };
            failed = true;
            let text = failure.to_string();
            match variable("TEST_END").as_str() {
                "rank" => {
                    assert_eq!(failure.error.status(), Some(Status::RankFailed), "{text}");
                    assert!(text.contains("rank 1"), "{text}");
                    // A process that is gone writes no more.
                    assert!(failure.into_buffers().is_some(), "{text}");
                }
                "daemon" => assert!(!failure.error.is_recoverable(), "{text}"),
                _ => back.extend(take_back(failure)),
            }
        }
        if failed {
            if variable("TEST_END") == "stop" {
                drop(keep_until_rank_1_has_ended(world.rank(), back));
            }
            return;
        }
    }
}

fn far_ahead(end: &str) -> (DaemonProcess, Vec<Role>) {
    let daemon = DaemonProcess::start();
    let ranks = (0..3).map(|rank| daemon.rank("play_rank_far_ahead", rank, 3, end)).collect();
    formed(&daemon);
    (daemon, ranks)
}

#[test]
fn a_rank_that_is_killed_ends_what_the_daemon_does_for_others() {
    for _ in 0..3 {
        let (daemon, mut ranks) = far_ahead("rank");
        let mut killed = ranks.remove(1);
        killed.kill().expect("kill");
        assert_eq!(killed.wait().expect("wait").signal(), Some(9));
        succeed(ranks);
        drop(daemon);
    }
}

#[test]
fn a_daemon_that_is_killed_ends_what_it_does_for_ranks() {
    let (mut daemon, ranks) = far_ahead("daemon");
    daemon.child.kill().expect("kill");
    succeed(ranks);
}

#[test]
fn a_rank_that_is_stopped_ends_what_the_daemon_does_for_others() {
    let (daemon, ranks) = far_ahead("stop");
    stop_rank_1_until_others_fail(&daemon, ranks);
}

/// Waits until the daemon is stopped, and ends.
#[test]
#[ignore = "a role that other tests start"]
fn play_rank_that_ends_beside_a_stopped_daemon() {
    let client = Client::connect().expect("connect");
    let world = Communicator::from_env(&client).expect("join");
    let arenas = [1 << 20; 3].map(|bytes| client.arena(bytes).expect("arena"));
    let socket = PathBuf::from(variable("RINGWAY_SOCKET"));
    fs::write(socket.with_file_name(READY), "").expect("told");
    wait_for(&socket.with_file_name(OVER));
    drop((arenas, world));
}

/// Whoever plays that leaves this there when it has all that it gives back.
const READY: &str = "ready";

#[test]
fn a_rank_ends_although_its_daemon_is_stopped() {
    let daemon = DaemonProcess::start();
    let mut rank = daemon.rank("play_rank_that_ends_beside_a_stopped_daemon", 0, 1, "");
    wait_for(&daemon.folder.join(READY));
    let pid = Pid::from_child(&daemon.child);
    kill_process(pid, Signal::STOP).expect("stop");
    fs::write(daemon.folder.join(OVER), "").expect("told");
    let started = Instant::now();
    while rank.try_wait().expect("wait").is_none() {
        assert!(started.elapsed() < TIMEOUT, "it waits for its daemon");
        thread::sleep(Duration::from_millis(5));
    }
    kill_process(pid, Signal::CONT).expect("go on");
    succeed(vec![rank]);
}

/// A rank that has failed since rank 1 was stopped leaves this in the daemon's folder.
fn failed(rank: u32) -> String {
    format!("failed-{rank}")
}

/// The test leaves this there when rank 1 has gone on and ended.
const OVER: &str = "over";

fn wait_for(file: &Path) {
    let started = Instant::now();
    while !file.exists() {
        assert!(started.elapsed() < TIMEOUT, "{} does not come", file.display());
        thread::sleep(Duration::from_millis(5));
    }
}

fn stop_rank_1_until_others_fail(daemon: &DaemonProcess, mut ranks: Vec<Role>) {
    let mut stopped = ranks.remove(1);
    let pid = Pid::from_child(&stopped);
    kill_process(pid, Signal::STOP).expect("stop");
    [0, 2].into_iter().for_each(|rank| wait_for(&daemon.folder.join(failed(rank))));
    // It finds the same when it goes on, or is the one that is named.
    kill_process(pid, Signal::CONT).expect("go on");
    assert!(stopped.wait().expect("wait").success());
    fs::write(daemon.folder.join(OVER), "").expect("told");
    succeed(ranks);
}

/// What an operation gives back that failed as another rank was stopped, which it says as well.
fn take_back(failure: Failure<Buffer<u32>>) -> Option<Buffer<u32>> {
    let text = failure.to_string();
    assert_eq!(failure.error.status(), Some(Status::TimedOut), "{text}");
    let back = failure.into_buffers();
    assert_eq!(back.is_none(), text.contains("not given back"), "{text}");
    back
}

/// Keeps buffers until rank 1, which was stopped, has gone on and ended: what an operation gives back nobody writes to any more.
fn keep_until_rank_1_has_ended(rank: u32, mut back: Vec<Buffer<u32>>) -> Vec<Buffer<u32>> {
    const MARK: u32 = 0x5EED_5EED;
    if rank != 1 {
        back.iter_mut().for_each(|buffer| buffer.fill(MARK));
        let socket = PathBuf::from(variable("RINGWAY_SOCKET"));
        fs::write(socket.with_file_name(failed(rank)), "").expect("told");
        wait_for(&socket.with_file_name(OVER));
        assert!(back.iter().all(|buffer| buffer.iter().all(|value| *value == MARK)));
    }
    back
}

fn succeed(mut ranks: Vec<Role>) {
    for rank in &mut ranks {
        assert!(rank.wait().expect("wait").success());
    }
}

#[test]
fn processes_form_a_communicator_from_their_environment() {
    for isolation in ISOLATIONS {
        let daemon = DaemonProcess::start_with(isolation);
        succeed((0..3).map(|rank| daemon.rank("play_rank", rank, 3, "")).collect());
    }
}

/// Runs ranks until they are under way.
fn under_way(daemon: &DaemonProcess, end: &str) -> Vec<Role> {
    let ranks = (0..3).map(|rank| daemon.rank("play_rank_that_never_ends", rank, 3, end)).collect();
    formed(daemon);
    ranks
}

/// Waits until the ranks have joined and work.
fn formed(daemon: &DaemonProcess) {
    let client = Client::builder().socket(daemon.socket()).connect().expect("connect");
    let started = Instant::now();
    // Once it is formed, the communicator stands in the daemon's status.
    while !client.status().expect("status").replace(' ', "").contains("\"ranks\":3") {
        assert!(started.elapsed() < TIMEOUT, "the ranks do not come");
        thread::sleep(Duration::from_millis(10));
    }
    thread::sleep(Duration::from_millis(200));
}

#[test]
fn a_rank_that_is_killed_is_named_to_the_others() {
    for isolation in ISOLATIONS {
        let daemon = DaemonProcess::start_with(isolation);
        let mut ranks = under_way(&daemon, "rank");
        let mut killed = ranks.remove(1);
        killed.kill().expect("kill");
        assert_eq!(killed.wait().expect("wait").signal(), Some(9));
        succeed(ranks);
    }
}

#[test]
fn a_daemon_that_is_killed_ends_every_operation() {
    for isolation in ISOLATIONS {
        let mut daemon = DaemonProcess::start_with(isolation);
        let ranks = under_way(&daemon, "daemon");
        daemon.child.kill().expect("kill");
        succeed(ranks);
    }
}

/// Works on registered buffers until another rank stops.
#[test]
#[ignore = "a role that other tests start"]
fn play_rank_beside_one_that_stops() {
    /// Most of an arena.
    const LENGTH: usize = 1_000_000;
    let client = Client::builder().timeout(Duration::from_millis(500)).connect().expect("connect");
    let world = Communicator::from_env(&client).expect("join");
    let arena = client.arena(4 << 20).expect("arena");
    let mut buffer = arena.buffer::<u32>(LENGTH).expect("buffer");
    let failure = loop {
        buffer = match world.run(|w| w.allreduce_in_place(buffer, Reduction::Max)) {
            Ok(buffer) => buffer,
            Err(failure) => break failure,
        }
    };
    // It stopped somewhere in a call, or between two: then the buffer is nobody else's.
    let back = keep_until_rank_1_has_ended(world.rank(), take_back(failure).into_iter().collect());
    let is_back = !back.is_empty();
    drop(back);
    // What is not back is never used for anything else.
    assert_eq!(arena.buffer::<u32>(LENGTH).is_ok(), is_back);
    let next = world.blocking().barrier().expect_err("over");
    assert!(matches!(next, Error::Operation(OperationError::Failed { .. })), "{next}");
}

#[test]
fn a_rank_that_is_stopped_ends_the_others_operations_in_time() {
    for isolation in ISOLATIONS {
        let daemon = DaemonProcess::start_with(isolation);
        let rank = |rank| daemon.rank("play_rank_beside_one_that_stops", rank, 3, "");
        let ranks = (0..3).map(rank).collect();
        formed(&daemon);
        stop_rank_1_until_others_fail(&daemon, ranks);
    }
}

/// Connects as a client that finds no daemon and may start one.
#[test]
#[ignore = "a role that other tests start"]
fn play_newcomer() {
    let world = world().expect("a daemon was started, and the others are there");
    let mut values = [1_u64];
    world.blocking().allreduce_in_place(&mut values, Reduction::Sum).expect("sum");
    assert_eq!(values, [4]);
}

#[test]
fn many_processes_at_once_start_one_daemon() {
    let folder = ordinary_folder();
    // What `ringwayd --socket PATH --idle-exit-s N` would do, counting its starts.
    let program = folder.join("ringwayd");
    let this = ordinary_program(&folder);
    let script = format!(
        "#!/bin/sh\necho started >> {starts}\nTEST_SOCKET=$2 TEST_IDLE_EXIT=1 exec {this} play_daemon --exact --ignored \
         --nocapture\n",
        starts = folder.join("starts").display(),
        this = this.display(),
    );
    fs::write(&program, script).expect("script");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("mode");
    let folder_text = folder.display().to_string();
    let ranks = (0..4_u32)
        .map(|rank| {
            let rank = rank.to_string();
            start_ordinary(
                &this,
                "play_newcomer",
                &[
                    ("XDG_RUNTIME_DIR", &folder_text),
                    ("RINGWAY_SOCKET", ""),
                    ("RINGWAY_DAEMON", &program.display().to_string()),
                    ("RINGWAY_RANK", &rank),
                    ("RINGWAY_WORLD_SIZE", "4"),
                    ("RINGWAY_ID", "newcomers"),
                ],
            )
        })
        .collect();
    succeed(ranks);
    let starts = fs::read_to_string(folder.join("starts")).expect("a daemon was started");
    assert_eq!(starts.lines().count(), 1, "one daemon was started");
    fs::remove_dir_all(&folder).expect("remove");
}

#[test]
#[ignore = "a role that other tests start"]
fn play_unlucky() {
    let error = Client::connect().expect_err("the daemon does not start").to_string();
    assert!(error.contains("ended with exit status: 3") && error.contains("bad luck"), "{error}");
}

#[test]
fn a_daemon_that_does_not_start_is_quoted() {
    let folder = ordinary_folder();
    let program = folder.join("ringwayd");
    fs::write(&program, "#!/bin/sh\necho bad luck >&2\nexit 3\n").expect("script");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("mode");
    let child = start_ordinary(
        &ordinary_program(&folder),
        "play_unlucky",
        &[
            ("XDG_RUNTIME_DIR", &folder.display().to_string()),
            ("RINGWAY_SOCKET", ""),
            ("RINGWAY_DAEMON", &program.display().to_string()),
        ],
    );
    succeed(vec![child]);
    fs::remove_dir_all(&folder).expect("remove");
}
