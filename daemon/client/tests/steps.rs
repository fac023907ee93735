//! Ranks as processes that are stopped, resumed and killed at every step of a call. Built with the feature `steps`:
//! `cargo test -p ringway-client --features steps --test steps`.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    reason = "these are tests"
)]

mod common;

use std::{
    env, fs,
    io::{self, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use common::{TIMEOUT, folder, settings};
use ringway_cell::{
    monotonic_ns,
    step::{Step, set_hook},
};
use ringway_client::{
    Buffer, Client, Communicator, Failure, Operation, OperationError, Reduction, Returned, Status, Submitted,
};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};

/// Calls before it happens, and in all at least: they go on until it has happened.
const WARM: u32 = 20;
const CALLS: u32 = 60;
/// How long a call may take when nobody is to come back.
const PATIENCE: Duration = Duration::from_millis(300);

/// Calls that ranks make again and again.
#[derive(Debug, Clone, Copy)]
struct Kind {
    operation: Operation,
    ranks: u32,
    /// Of the longest buffer, about.
    bytes: usize,
    root: u32,
    /// With [`Communicator::run`]; else submitted, then waited for.
    blocking: bool,
}

const SMALL: Kind = Kind { operation: Operation::Allreduce, ranks: 3, bytes: 64, root: 0, blocking: true };
/// Done from beginning to end in one place where every rank has a processor.
const SHORT: Kind = Kind { ranks: 2, bytes: 64 << 10, ..SMALL };
const LARGE: Kind = Kind { bytes: 1 << 20, ..SMALL };
/// Its payload is in the cell's pool.
const POOLED: Kind = Kind { operation: Operation::Broadcast, bytes: 32 << 10, ..SMALL };
const KINDS: [Kind; 4] = [SMALL, SHORT, LARGE, POOLED];

const OPERATIONS: [Operation; 10] = [
    Operation::Allreduce,
    Operation::Broadcast,
    Operation::Reduce,
    Operation::AllGather,
    Operation::ReduceScatter,
    Operation::AllToAll,
    Operation::Scatter,
    Operation::Gather,
    Operation::Scan,
    Operation::Barrier,
];

/// What happens to the victim at every step of some kinds of calls, and of others at one, drawn by this seed: each operation
/// small and large, one of them blocking.
fn scenes(seed: u64) -> Vec<(Kind, Step)> {
    let mut scenes: Vec<_> =
        KINDS.into_iter().flat_map(|kind| kind.steps().map(move |s| (kind, s))).collect();
    let mut state = seed;
    let mut draw = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for operation in OPERATIONS {
        let mut blocking = draw(2) == 0;
        for bytes in [SMALL.bytes, LARGE.bytes] {
            let root = draw(SMALL.ranks as usize) as u32;
            let kind = Kind { operation, bytes, root, blocking, ..SMALL };
            let steps: Vec<_> = kind.steps().collect();
            scenes.push((kind, steps[draw(steps.len())]));
            blocking = !blocking;
        }
    }
    scenes
}

impl Kind {
    /// The one to which it happens, the last. Of three that is not the rank that somebody would name who only knows that
    /// it is not the one that waits.
    const fn victim(self) -> u32 {
        self.ranks - 1
    }

    /// Steps that the victim reaches. Whether it gets a block of a large call is left to chance, and to the daemon when
    /// nobody waits for it at once.
    fn steps(self) -> impl Iterator<Item = Step> {
        let is_of_work = |step: &Step| {
            matches!(step, Step::Entered | Step::Claimed | Step::Worked | Step::Reported | Step::Left)
        };
        let works = self.bytes > POOLED.bytes && self.operation != Operation::Barrier && self.blocking;
        Step::ALL.into_iter().filter(move |step| works || !is_of_work(step))
    }

    /// Blocks of a rank's buffer.
    fn blocks(self, rank: u32) -> u32 {
        match self.operation {
            Operation::AllGather | Operation::ReduceScatter | Operation::AllToAll => self.ranks,
            Operation::Scatter | Operation::Gather if rank == self.root => self.ranks,
            _ => 1,
        }
    }

    /// Elements of a block.
    fn length(self) -> usize {
        let most = (0..self.ranks).map(|rank| self.blocks(rank)).max().expect("ranks");
        self.bytes / size_of::<u32>() / most as usize
    }

    /// What rank `rank` fills a block of its buffer with.
    const fn given(call: u32, rank: u32, block: u32) -> u32 {
        call + (rank << 24) + (block << 28)
    }

    /// What is in blocks of a rank's buffer then.
    fn expected(self, call: u32, rank: u32) -> Vec<(u32, u32)> {
        let Self { operation, ranks, root, .. } = self;
        let given = |rank, block| Self::given(call, rank, block);
        let sum = |ranks: std::ops::Range<u32>, block| ranks.map(|rank| given(rank, block)).sum::<u32>();
        match operation {
            Operation::Allreduce => vec![(0, sum(0..ranks, 0))],
            Operation::Reduce if rank == root => vec![(0, sum(0..ranks, 0))],
            Operation::Scan => vec![(0, sum(0..rank + 1, 0))],
            Operation::ReduceScatter => vec![(rank, sum(0..ranks, rank))],
            Operation::Broadcast => vec![(0, given(root, 0))],
            Operation::Scatter if rank == root => vec![(root, given(root, root))],
            Operation::Scatter => vec![(0, given(root, rank))],
            Operation::AllGather => (0..ranks).map(|from| (from, given(from, from))).collect(),
            Operation::AllToAll => (0..ranks).map(|from| (from, given(from, rank))).collect(),
            Operation::Gather if rank == root => {
                (0..ranks).map(|from| (from, given(from, if from == root { root } else { 0 }))).collect()
            }
            _ => Vec::new(),
        }
    }

    fn submit(self, world: &Communicator, buffer: Buffer<u32>) -> Submitted<'_, Buffer<u32>> {
        let Self { operation, root, .. } = self;
        match operation {
            Operation::Broadcast => world.broadcast_in_place(buffer, root),
            Operation::Reduce => world.reduce_in_place(buffer, root, Reduction::Sum),
            Operation::AllGather => world.all_gather_in_place(buffer),
            Operation::ReduceScatter => world.reduce_scatter_in_place(buffer, Reduction::Sum),
            Operation::AllToAll => world.all_to_all_in_place(buffer),
            Operation::Scatter => world.scatter_in_place(buffer, root),
            Operation::Gather => world.gather_in_place(buffer, root),
            Operation::Scan => world.scan_in_place(buffer, Reduction::Sum),
            _ => world.allreduce_in_place(buffer, Reduction::Sum),
        }
    }

    /// Makes the call, unless it is a barrier, which [`Self::agree`] is as well.
    fn make(self, world: &Communicator, buffer: Buffer<u32>) -> Result<Buffer<u32>, (OperationError, bool)> {
        match (self.operation, self.blocking) {
            (Operation::Barrier, true) => world.run(Communicator::barrier).map(|()| buffer).map_err(failed),
            (Operation::Barrier, false) => {
                world.barrier().expect("as it must be").wait().map(|()| buffer).map_err(failed)
            }
            (_, true) => world.run(|world| self.submit(world, buffer)).map_err(failed),
            (_, false) => self.submit(world, buffer).expect("as it must be").wait().map_err(failed),
        }
    }

    /// Whether any rank says that it has happened, the same for all: all make as many calls as the victim needs to come to
    /// its step. And whoever only gives would be through with many calls before anything happens.
    fn agree(
        self,
        world: &Communicator,
        mut flag: Buffer<u32>,
        happened: bool,
    ) -> Result<Buffer<u32>, (OperationError, bool)> {
        flag.fill(u32::from(happened));
        match self.blocking {
            true => world.run(|world| world.allreduce_in_place(flag, Reduction::Max)).map_err(failed),
            false => {
                world.allreduce_in_place(flag, Reduction::Max).expect("as it must be").wait().map_err(failed)
            }
        }
    }
}

/// What an operation failed with, and whether its buffers are back.
fn failed<B>(failure: Failure<B>) -> (OperationError, bool) {
    let Failure { error, returned } = failure;
    (error, matches!(returned, Returned::Buffers(_)))
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

/// Whether it has happened.
static HAPPENED: AtomicBool = AtomicBool::new(false);

/// What happens to the victim, by its environment. The kernel may hand the signal to another thread of the process, and
/// this one would go on for many calls before it is stopped too: it goes no further until it is told to.
fn happen(step: Step) {
    if format!("{step:?}") != variable("TEST_STEP") || HAPPENED.swap(true, Ordering::Relaxed) {
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

/// The kind of calls that a role is told to make.
fn told_kind(ranks: u32) -> Kind {
    let number = |name| variable(name).parse::<usize>().expect("a number");
    Kind {
        operation: OPERATIONS[number("TEST_OPERATION")],
        ranks,
        bytes: number("TEST_BYTES"),
        root: number("TEST_ROOT") as u32,
        blocking: number("TEST_BLOCKING") == 1,
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
        if call == WARM && rank == kind.victim() {
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
                fs::write(variable("TEST_TOLD"), monotonic_ns().to_string()).expect("told");
                check_failure(&end, kind.victim(), &error, returned);
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

/// Checks what a rank is told of a victim, itself or another; `returned` says whether it has its buffers back.
fn check_failure(end: &str, victim: u32, error: &OperationError, returned: bool) {
    let text = error.to_string();
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
        }
        _ => panic!("nothing fails when the rank comes back: {text}"),
    }
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
        let operation = OPERATIONS.iter().position(|of| *of == kind.operation).expect("one of them");
        let of = |rank: u32| {
            let _ = fs::remove_file(self.told(rank));
            role(
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
                    ("TEST_BLOCKING", u32::from(kind.blocking).to_string()),
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
    for (kind, step) in scenes(1) {
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
    eprintln!("the others were told within {longest_ms} ms");
    assert!(longest_ms < 5000, "much too late even for a machine that is busy with something else");
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
