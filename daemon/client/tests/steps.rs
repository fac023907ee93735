//! Ranks as processes that are stopped, resumed and killed at every step of a call. Built with the feature `steps`:
//! `cargo test -p ringway-client --features steps --test steps`.
#![allow(clippy::expect_used, clippy::panic, clippy::print_stderr, reason = "these are tests")]

mod common;

use std::{
    env, fs,
    io::{self, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use common::{TIMEOUT, folder, settings};
use ringway_cell::{
    monotonic_ns,
    step::{Step, set_hook},
};
use ringway_client::{Client, Communicator, Reduction, Status};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};

/// Calls before it happens, and in all.
const WARM: u32 = 20;
const CALLS: u32 = 60;
/// How long a call may take when nobody is to come back.
const PATIENCE: Duration = Duration::from_millis(300);

/// A call of so many ranks and bytes.
#[derive(Debug, Clone, Copy)]
struct Kind {
    ranks: u32,
    bytes: usize,
}

const SMALL: Kind = Kind { ranks: 3, bytes: 64 };
/// Done from beginning to end in one place where every rank has a processor.
const SHORT: Kind = Kind { ranks: 2, bytes: 64 << 10 };
const LARGE: Kind = Kind { ranks: 3, bytes: 1 << 20 };
const KINDS: [Kind; 3] = [SMALL, SHORT, LARGE];

impl Kind {
    /// The one to which it happens, the last. Of three that is not the rank that somebody would name who only knows that
    /// it is not the one that waits.
    const fn victim(self) -> u32 {
        self.ranks - 1
    }

    /// Steps that every call reaches on the victim. Whether it gets a block of a large call is left to chance.
    fn steps(self) -> impl Iterator<Item = Step> {
        let is_of_large = |step: &Step| {
            matches!(step, Step::Entered | Step::Claimed | Step::Worked | Step::Reported | Step::Left)
        };
        let is_small = self.bytes == SMALL.bytes;
        Step::ALL.into_iter().filter(move |step| !is_small || !is_of_large(step))
    }
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("{name} is set for this role"))
}

fn role(name: &str, variables: &[(&str, String)]) -> Child {
    let mut command = Command::new(env::current_exe().expect("this program"));
    command.args([name, "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    command.envs(variables.iter().map(|(name, value)| (*name, value)));
    command.spawn().expect("this program runs again")
}

#[test]
#[ignore = "a role that other tests start"]
fn play_daemon() {
    let (stop, stopped) = ringway_service::stop_pair().expect("stop");
    let settings = settings(Path::new(&variable("TEST_SOCKET")));
    ringway_service::run(settings.resolve().expect("settings"), stopped).expect("the daemon runs");
    drop(stop);
}

/// How often the step is still to be reached before it happens.
static LEFT: AtomicU32 = AtomicU32::new(1);

/// What happens to the victim, by its environment. The kernel may hand the signal to another thread of the process, and
/// this one would go on for many calls before it is stopped too: it goes no further until it is told to.
fn happen(step: Step) {
    if format!("{step:?}") != variable("TEST_STEP") || LEFT.fetch_sub(1, Ordering::Relaxed) != 1 {
        return;
    }
    if variable("TEST_END") == "kill" {
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

/// Adds numbers of every rank, again and again; each result is checked.
#[test]
#[ignore = "a role that other tests start"]
fn play_rank() {
    let end = variable("TEST_END");
    let timeout = if end == "freeze" { PATIENCE } else { TIMEOUT };
    let client = Client::builder().timeout(timeout).connect().expect("connect");
    let world = Communicator::from_env(&client).expect("join");
    assert!(world.shares_memory());
    let arena = client.arena(4 << 20).expect("arena");
    let bytes: usize = variable("TEST_BYTES").parse().expect("a number");
    let mut buffer = arena.buffer::<u32>(bytes / 4).expect("buffer");
    let (ranks, victim) = (world.size(), world.size() - 1);
    for call in 0..CALLS {
        if call == WARM && world.rank() == victim {
            assert!(set_hook(happen));
        }
        buffer.fill(call + world.rank());
        buffer = match world.run(|w| w.allreduce_in_place(buffer, Reduction::Sum)) {
            Ok(buffer) => buffer,
            Err(failure) => {
                fs::write(variable("TEST_TOLD"), monotonic_ns().to_string()).expect("told");
                let text = failure.to_string();
                match end.as_str() {
                    "kill" => {
                        assert_eq!(failure.error.status(), Some(Status::RankFailed), "{text}");
                        assert!(text.contains(&format!("rank {victim}")), "{text}");
                        assert!(
                            failure.into_buffers().is_some(),
                            "a process that is gone writes no more: {text}"
                        );
                    }
                    "freeze" => {
                        assert_eq!(failure.error.status(), Some(Status::TimedOut), "{text}");
                        // The victim hears of the failure that it is.
                        assert!(text.contains(&format!("rank {victim} has not")), "{text}");
                        assert_eq!(
                            failure.into_buffers().is_none(),
                            text.contains("not given back"),
                            "{text}"
                        );
                    }
                    _ => panic!("nothing fails when the rank comes back: {text}"),
                }
                return;
            }
        };
        let expected = ranks * call + ranks * (ranks - 1) / 2;
        assert!(buffer.iter().all(|sum| *sum == expected), "call {call}");
    }
    assert_eq!(end, "resume", "the calls must not have been enough for all");
}

/// A daemon and ranks.
struct Scene {
    folder: PathBuf,
    daemon: Child,
}

impl Scene {
    fn new() -> Self {
        let folder = folder();
        let socket = folder.join("daemon.sock");
        let daemon = role("play_daemon", &[("TEST_SOCKET", socket.display().to_string())]);
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

    /// The survivors and the victim of something that happens at a step.
    fn ranks(&self, step: Step, kind: Kind, end: &str) -> (Vec<Child>, Child) {
        let of = |rank: u32| {
            let _ = fs::remove_file(self.told(rank));
            role(
                "play_rank",
                &[
                    ("RINGWAY_SOCKET", self.folder.join("daemon.sock").display().to_string()),
                    ("RINGWAY_RANK", rank.to_string()),
                    ("RINGWAY_WORLD_SIZE", kind.ranks.to_string()),
                    ("RINGWAY_ID", format!("{step:?} {} {end}", kind.bytes)),
                    ("TEST_STEP", format!("{step:?}")),
                    ("TEST_BYTES", kind.bytes.to_string()),
                    ("TEST_END", end.to_owned()),
                    ("TEST_TOLD", self.told(rank).display().to_string()),
                ],
            )
        };
        ((0..kind.victim()).map(of).collect(), of(kind.victim()))
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn succeed(step: Step, kind: Kind, ranks: Vec<Child>) {
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

#[test]
fn a_rank_that_is_killed_at_any_step_is_named_to_the_others() {
    let scene = Scene::new();
    let mut longest_ms = 0;
    for kind in KINDS {
        for step in kind.steps() {
            let (survivors, mut victim) = scene.ranks(step, kind, "kill");
            let ended = victim.wait().expect("wait");
            let ended_ns = i128::from(monotonic_ns());
            assert!(!ended.success(), "step {step:?} of {kind:?} was not reached");
            succeed(step, kind, survivors);
            for rank in 0..kind.victim() {
                let told = fs::read_to_string(scene.told(rank)).expect("an error was told");
                let ms = (told.parse::<i128>().expect("a number") - ended_ns) / 1_000_000;
                longest_ms = longest_ms.max(ms);
            }
        }
    }
    eprintln!("the others were told within {longest_ms} ms");
    assert!(longest_ms < 5000, "much too late even for a machine that is busy with something else");
}

#[test]
fn a_rank_that_is_stopped_and_resumed_at_any_step_does_no_harm() {
    let scene = Scene::new();
    for kind in KINDS {
        for step in kind.steps() {
            let (survivors, mut victim) = scene.ranks(step, kind, "resume");
            assert!(is_stopped(&victim), "step {step:?} of {kind:?} was not reached");
            // Long enough for the others to have done all that they can do, and to sleep.
            thread::sleep(Duration::from_millis(20));
            resume(&mut victim);
            succeed(step, kind, survivors);
            assert!(victim.wait().expect("wait").success(), "step {step:?}, {kind:?}");
        }
    }
}

#[test]
fn a_rank_that_stays_stopped_at_any_step_is_not_waited_for_and_comes_back_to_an_error() {
    let scene = Scene::new();
    for kind in KINDS {
        for step in kind.steps() {
            let (survivors, mut victim) = scene.ranks(step, kind, "freeze");
            assert!(is_stopped(&victim), "step {step:?} of {kind:?} was not reached");
            succeed(step, kind, survivors);
            resume(&mut victim);
            assert!(victim.wait().expect("wait").success(), "step {step:?}, {kind:?}");
        }
    }
}
