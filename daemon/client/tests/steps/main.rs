//! Ranks as processes that are stopped, resumed and killed at every step of a call. Built with the feature `steps`:
//! `cargo test -p ringway-client --features steps --test steps`.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    reason = "these are tests"
)]

#[path = "../common/mod.rs"]
mod common;
mod kind;

use std::{
    env, fs,
    io::{self, Read},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use common::{Role, TIMEOUT, folder, role, settings};
use kind::{Kind, OPERATIONS, Slices, scenes};
use ringway_cell::{
    monotonic_ns,
    step::{Step, set_hook},
};
use ringway_client::{Client, Communicator, OperationError, Status};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};

/// Calls before it happens, and in all at least: they go on until it has happened.
const WARM: u32 = 20;
const CALLS: u32 = 60;
/// How long a call may take when nobody is to come back.
const PATIENCE: Duration = Duration::from_millis(300);

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("{name} is set for this role"))
}

fn start(name: &str, variables: &[(&str, String)]) -> Role {
    Role::start(role(name).stdin(Stdio::piped()).envs(variables.iter().map(|(name, value)| (*name, value))))
}

#[test]
#[ignore = "a role that other tests start"]
fn play_daemon() {
    let (stop, stopped) = ringway_service::stop_pair().expect("stop");
    let settings = settings(Path::new(&variable("TEST_SOCKET")));
    ringway_service::run(settings.resolve().expect("settings"), stopped).expect("the daemon runs");
    drop(stop);
}

/// Leaves word for the test of when something happened to this rank.
fn tell_when() {
    fs::write(variable("TEST_TOLD"), monotonic_ns().to_string()).expect("told");
}

/// Whether it has happened.
static HAPPENED: AtomicBool = AtomicBool::new(false);

/// What happens to the victim, by its environment. The kernel may hand the signal to another thread of the process, and
/// this one would go on for many calls before it is stopped too: it goes no further until it is told to.
fn happen(step: Step) {
    if format!("{step:?}") != variable("TEST_STEP") || HAPPENED.swap(true, Ordering::Relaxed) {
        return;
    }
    if variable("TEST_END") == "kill" {
        tell_when();
        kill_process(getpid(), Signal::KILL).expect("to itself");
        thread::sleep(TIMEOUT);
        panic!("a process that is killed goes no further");
    }
    kill_process(getpid(), Signal::STOP).expect("to itself");
    assert_eq!(io::stdin().read(&mut [0]).expect("the test holds the other end"), 0, "and only closes it");
}

/// Lets a process go on that stopped itself.
fn resume(stopped: &mut Child) {
    drop(stopped.stdin.take());
    kill_process(Pid::from_child(stopped), Signal::CONT).expect("go on");
}

/// The kind of calls that a role is told to make.
fn told_kind(ranks: u32) -> Kind {
    let number = |name| variable(name).parse::<usize>().expect("a number");
    Kind {
        operation: OPERATIONS[number("TEST_OPERATION")],
        ranks,
        bytes: number("TEST_BYTES"),
        root: number("TEST_ROOT") as u32,
        victim: number("TEST_VICTIM") as u32,
        blocking: number("TEST_BLOCKING") == 1,
        slices: Slices::ALL[number("TEST_SLICES")],
    }
}

/// Makes calls of one kind; each result is checked.
#[test]
#[ignore = "a role that other tests start"]
fn play_rank() {
    let end = variable("TEST_END");
    let timeout = if end == "freeze" { PATIENCE } else { TIMEOUT };
    let client = Client::builder().timeout(timeout).connect().expect("connect");
    let world = Communicator::from_env(&client).expect("join");
    assert!(world.shares_memory());
    let arena = client.arena(4 << 20).expect("arena");
    let (rank, kind) = (world.rank(), told_kind(world.size()));
    let length = kind.length();
    let mut buffer = arena.buffer::<u32>(length * kind.blocks(rank) as usize).expect("buffer");
    let mut flag = arena.buffer::<u32>(1).expect("buffer");
    let started = Instant::now();
    for call in 0.. {
        if call == WARM && rank == kind.victim {
            assert!(set_hook(happen));
        }
        for (block, elements) in (0..).zip(buffer.chunks_mut(length)) {
            elements.fill(Kind::given(call, rank, block));
        }
        let happened = HAPPENED.load(Ordering::Relaxed);
        let made = kind.make(&world, buffer).and_then(|made| Ok((made, kind.agree(&world, flag, happened)?)));
        (buffer, flag) = match made {
            Ok(made) => made,
            Err((error, returned)) => {
                tell_when();
                check_failure(&end, (kind, rank), &error, returned);
                return;
            }
        };
        for (block, value) in kind.expected(call, rank) {
            let start = block as usize * length;
            let block = buffer.get(start..start + length).expect("inside");
            assert!(block.iter().all(|element| *element == value), "call {call}");
        }
        if call >= CALLS && flag[0] == 1 {
            break;
        }
        assert!(started.elapsed() < TIMEOUT, "not reached in {call} calls");
    }
    assert_eq!(end, "resume", "others are told that it happened only then");
}

/// Checks what a rank is told of the victim, which may be itself; `returned` says whether it has its buffers back.
fn check_failure(end: &str, (kind, rank): (Kind, u32), error: &OperationError, returned: bool) {
    let (text, victim) = (error.to_string(), kind.victim);
    match end {
        "kill" => {
            assert_eq!(error.status(), Some(Status::RankFailed), "{text}");
            assert!(text.contains(&format!("rank {victim}")), "{text}");
            assert!(returned, "a process that is gone writes no more: {text}");
        }
        "freeze" => {
            assert_eq!(error.status(), Some(Status::TimedOut), "{text}");
            // The victim hears of the failure that it is.
            assert!(text.contains(&format!("rank {victim} has not")), "{text}");
            let step = variable("TEST_STEP");
            let step = Step::ALL.into_iter().find(|of| format!("{of:?}") == step).expect("one of them");
            let expected = kind.returns_buffers(rank, step).unwrap_or(returned);
            assert_eq!(returned, expected, "whether rank {rank} has its buffers back: {text}");
        }
        _ => panic!("nothing fails when the rank comes back: {text}"),
    }
}

/// A daemon and ranks.
struct Scene {
    folder: PathBuf,
    daemon: Role,
}

impl Scene {
    fn new() -> Self {
        let folder = folder();
        let socket = folder.join("daemon.sock");
        let daemon = start("play_daemon", &[("TEST_SOCKET", socket.display().to_string())]);
        let started = Instant::now();
        while Client::builder().socket(&socket).connect().is_err() {
            assert!(started.elapsed() < TIMEOUT, "the daemon does not listen");
            thread::sleep(Duration::from_millis(2));
        }
        Self { folder, daemon }
    }

    fn told(&self, rank: u32) -> PathBuf {
        self.folder.join(format!("told-{rank}"))
    }

    /// When something happened to a rank, by its own word.
    fn when_ns(&self, rank: u32) -> u64 {
        let told = fs::read_to_string(self.told(rank)).expect("it was told");
        told.parse().expect("a number")
    }

    /// The survivors and the victim of something that happens at a step; a number after it tells attempts apart.
    fn ranks(&self, step: Step, kind: Kind, end: &str) -> (Vec<Role>, Role) {
        let operation = OPERATIONS.iter().position(|of| *of == kind.operation).expect("one of them");
        let of = |rank: u32| {
            let _ = fs::remove_file(self.told(rank));
            start(
                "play_rank",
                &[
                    ("RINGWAY_SOCKET", self.folder.join("daemon.sock").display().to_string()),
                    ("RINGWAY_RANK", rank.to_string()),
                    ("RINGWAY_WORLD_SIZE", kind.ranks.to_string()),
                    (
                        "RINGWAY_ID",
                        format!("{step:?} {end} {kind:?}").chars().filter(|c| c.is_alphanumeric()).collect(),
                    ),
                    ("TEST_OPERATION", operation.to_string()),
                    ("TEST_ROOT", kind.root.to_string()),
                    ("TEST_VICTIM", kind.victim.to_string()),
                    ("TEST_SLICES", (kind.slices as usize).to_string()),
                    ("TEST_BLOCKING", u32::from(kind.blocking).to_string()),
                    ("TEST_STEP", format!("{step:?}")),
                    ("TEST_BYTES", kind.bytes.to_string()),
                    ("TEST_END", end.trim_end_matches(char::is_numeric).to_owned()),
                    ("TEST_TOLD", self.told(rank).display().to_string()),
                ],
            )
        };
        (kind.survivors().map(of).collect(), of(kind.victim))
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn succeed(step: Step, kind: Kind, ranks: Vec<Role>) {
    for mut rank in ranks {
        assert!(rank.wait().expect("wait").success(), "step {step:?}, {kind:?}");
    }
}

/// Waits until a process has stopped itself; whether it has, and not ended.
fn is_stopped(child: &Child) -> bool {
    let (_, status) =
        waitpid(Some(Pid::from_child(child)), WaitOptions::UNTRACED).expect("wait").expect("blocking");
    status.stopped()
}

/// The others of a rank that is killed have their error within this.
const PROMISED_MS: f64 = 100.0;
/// How often a step may be tried on a machine that does something else meanwhile.
const TRIES: u32 = 3;

#[test]
fn a_rank_that_is_killed_at_any_step_is_named_to_the_others() {
    let scene = Scene::new();
    // How long it takes from the kill until the last of the others has its error.
    let took_ms = |step: Step, kind: Kind, attempt: u32| {
        let (survivors, mut victim) = scene.ranks(step, kind, &format!("kill{attempt}"));
        assert!(!victim.wait().expect("wait").success(), "step {step:?} of {kind:?} was not reached");
        succeed(step, kind, survivors);
        let last_ns = kind.survivors().map(|rank| scene.when_ns(rank)).max().expect("survivors");
        let took_ms = (last_ns - scene.when_ns(kind.victim)) as f64 / 1e6;
        assert!(took_ms < 5000.0, "much too late even for a machine that is busy with something else");
        took_ms
    };
    let mut all_ms = Vec::new();
    for (kind, step) in scenes(1) {
        let first_ms = took_ms(step, kind, 0);
        let again = |best_ms: f64, attempt| {
            if best_ms < PROMISED_MS { best_ms } else { took_ms(step, kind, attempt).min(best_ms) }
        };
        let best_ms = (1..TRIES).fold(first_ms, again);
        assert!(best_ms < PROMISED_MS, "step {step:?} of {kind:?}: {best_ms} ms, the fastest of {TRIES}");
        all_ms.push(first_ms);
    }
    all_ms.sort_by(f64::total_cmp);
    let (median_ms, longest_ms) = (all_ms[all_ms.len() / 2], all_ms[all_ms.len() - 1]);
    eprintln!(
        "the others have their error {median_ms:.1} ms after the kill (median), at most {longest_ms:.1} ms"
    );
    assert!(median_ms < PROMISED_MS, "at the first try: {median_ms} ms");
}

#[test]
fn a_rank_that_is_stopped_and_resumed_at_any_step_does_no_harm() {
    let scene = Scene::new();
    for (kind, step) in scenes(2) {
        let (survivors, mut victim) = scene.ranks(step, kind, "resume");
        assert!(is_stopped(&victim), "step {step:?} of {kind:?} was not reached");
        // Long enough for the others to have done all that they can do, and to sleep.
        thread::sleep(Duration::from_millis(20));
        resume(&mut victim);
        succeed(step, kind, survivors);
        assert!(victim.wait().expect("wait").success(), "step {step:?}, {kind:?}");
    }
}

#[test]
fn a_rank_that_stays_stopped_at_any_step_is_not_waited_for_and_comes_back_to_an_error() {
    let scene = Scene::new();
    for (kind, step) in scenes(3) {
        let (survivors, mut victim) = scene.ranks(step, kind, "freeze");
        assert!(is_stopped(&victim), "step {step:?} of {kind:?} was not reached");
        succeed(step, kind, survivors);
        resume(&mut victim);
        assert!(victim.wait().expect("wait").success(), "step {step:?}, {kind:?}");
    }
}
