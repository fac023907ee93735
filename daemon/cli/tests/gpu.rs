//! Memory of a GPU, as users meet it: real daemons and processes, with the GPU of this machine, or without one with a
//! stand-in for NVIDIA's driver (`devices/cuda/stand-in`). `RINGWAY_TEST_PROGRAMS` names the folder of the programs where it is
//! not the one that they were built in.
#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test panics when something is wrong, and says which GPU it had"
)]

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Output, Stdio},
    sync::OnceLock,
    time::{Duration, Instant},
};

use ringway_abi::{
    Status, UniqueId,
    descriptor::{FLAG_STREAM, Submission},
};
use ringway_client::{
    Client, Communicator, Error, Reduction,
    cuda::{Gpu, Stream, count},
    raw,
};
use ringway_types::{DataType, Operation};

/// How long anything may take on a slow and loaded machine.
const LONG: Duration = Duration::from_secs(60);

/// Set in processes that are ranks: the role, the communicator's id, the rank and how many there are.
const ROLE: &str = "RINGWAY_TEST_GPU_RANK";

/// Whether this machine has a GPU.
fn is_real() -> bool {
    static REAL: OnceLock<bool> = OnceLock::new();
    *REAL.get_or_init(|| {
        let real = count().is_ok_and(|count| count > 0);
        eprintln!(
            "with {}",
            if real { "this machine's GPU" } else { "a stand-in for the driver, as there is no GPU" }
        );
        real
    })
}

/// A folder of its own, with the driver's stand-in.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("rw-gpu-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).expect("a folder");
        if !is_real() {
            ringway_cuda_stand_in::install(&path).expect("the stand-in's library");
        }
        Self(path)
    }

    fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        if !is_real() {
            command.env("LD_LIBRARY_PATH", &self.0);
        }
        command.env("XDG_RUNTIME_DIR", &self.0);
        command
    }

    fn ringway(&self, arguments: &[&str]) -> Output {
        let mut command = self.command(program(env!("CARGO_BIN_EXE_ringway")));
        command.args(arguments).output().expect("the program")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn program(built: &str) -> PathBuf {
    let built = Path::new(built);
    let name = built.file_name().expect("a program");
    std::env::var_os("RINGWAY_TEST_PROGRAMS")
        .map_or(built.to_owned(), |folder| PathBuf::from(folder).join(name))
}

/// A process that is killed with this value.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Daemon {
    process: Process,
    socket: PathBuf,
    folder: Folder,
}

impl Daemon {
    fn start(name: &str, environment: &[(&str, &str)]) -> Self {
        let folder = Folder::new(name);
        let socket = folder.0.join("s");
        let mut command = folder.command(program(env!("CARGO_BIN_EXE_ringwayd")));
        command.arg("--socket").arg(&socket).envs(environment.iter().copied()).stderr(Stdio::null());
        let process = Process(command.spawn().expect("the daemon"));
        let begun = Instant::now();
        while Client::builder().socket(&socket).connect().is_err() {
            assert!(begun.elapsed() < LONG, "the daemon does not answer");
            std::thread::sleep(Duration::from_millis(10));
        }
        Self { process, socket, folder }
    }

    fn client(&self) -> Client {
        Client::builder().socket(&self.socket).connect().expect("the daemon")
    }

    fn status(&self) -> serde_json::Value {
        serde_json::from_str(&self.client().status().expect("a status")).expect("JSON")
    }

    /// Ranks that play a role.
    fn ranks(&self, role: &str, size: u32) -> Vec<Rank> {
        let id = self.client().unique_id(false).expect("an id");
        (0..size).map(|rank| Rank::start(self, &format!("{role} {id} {rank} {size}"))).collect()
    }
}

struct Rank {
    process: Process,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Rank {
    fn start(daemon: &Daemon, role: &str) -> Self {
        let mut command = daemon.folder.command(std::env::current_exe().expect("this program"));
        command.args(["--exact", "plays_a_rank", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, role).env("RINGWAY_SOCKET", &daemon.socket).stdout(Stdio::piped());
        let mut process = Process(command.spawn().expect("a rank"));
        let lines = BufReader::new(process.0.stdout.take().expect("its output")).lines();
        Self { process, lines }
    }

    /// What it says next.
    fn said(&mut self) -> String {
        let mut lines = self.lines.by_ref().map_while(Result::ok);
        lines
            .find_map(|line| line.strip_prefix('@').map(str::to_owned))
            .unwrap_or_else(|| "nothing any more".to_owned())
    }
}

fn say(text: &str) {
    println!("\n@{text}");
    std::io::stdout().flush().expect("the test listens");
}

/// The ranks' program.
#[test]
fn plays_a_rank() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = role.split(' ').collect();
    let &[role, id, rank, size] = words.as_slice() else { panic!("{role}") };
    let (id, rank, size) =
        (id.parse().expect("an id"), rank.parse().expect("a rank"), size.parse().expect("a size"));
    let play = match role {
        "order" => keeps_order,
        "split" => splits,
        _ => repeats,
    };
    match play(&id, rank, size) {
        Ok(()) => say("done"),
        Err(error) => say(&error.to_string()),
    }
    // Neither the test's own report nor destructors: the process ends as a program would.
    std::process::exit(0);
}

struct World {
    gpu: std::sync::Arc<Gpu>,
    stream: Stream,
    client: Client,
    world: Communicator,
}

fn join(id: &UniqueId, rank: u32, size: u32) -> Result<World, Error> {
    let client = Client::connect()?;
    let gpu = Gpu::open(0)?;
    let world = client.communicator(id, rank, size).gpu(&gpu).join()?;
    Ok(World { stream: Stream::new(&gpu)?, gpu, client, world })
}

/// Puts many operations between others of its own into two streams, and looks at the results once.
fn keeps_order(id: &UniqueId, rank: u32, size: u32) -> Result<(), Error> {
    const ROUNDS: u8 = 40;
    const LENGTH: usize = 5000;
    let World { gpu, stream, client, world } = join(id, rank, size)?;
    let arena = client.gpu_arena(&gpu, 32 << 20)?;
    let (values, others) = (arena.buffer::<u8>(LENGTH)?, arena.buffer::<u8>(LENGTH)?);
    let second = Stream::new(&gpu)?;
    let mut kept = Vec::new();
    for round in 0..ROUNDS {
        let copy = [arena.buffer::<u8>(LENGTH)?, arena.buffer::<u8>(LENGTH)?];
        values.fill(&stream, round + rank as u8)?;
        world.on(&stream).allreduce(&values, &values, Reduction::Sum)?;
        values.copy_to(&stream, &copy[0])?;
        others.fill(&second, 2 * round + rank as u8)?;
        world.on(&second).allreduce(&others, &others, Reduction::Max)?;
        others.copy_to(&second, &copy[1])?;
        kept.push(copy);
    }
    stream.synchronize()?;
    second.synchronize()?;
    world.check_streams()?;
    let size = size as u8;
    for (round, [sum, most]) in (0..ROUNDS).zip(kept) {
        let mut found = vec![0; LENGTH];
        sum.download(&stream, &mut found)?;
        let expected = (0..size).fold(0_u8, |sum, rank| sum.wrapping_add(round + rank));
        assert!(
            found.iter().all(|value| *value == expected),
            "round {round}: {} where {expected} was expected",
            found[0]
        );
        most.download(&stream, &mut found)?;
        assert!(found.iter().all(|value| *value == 2 * round + size - 1), "round {round}: {}", found[0]);
    }
    Ok(())
}

/// Has streams in a part of the communicator too, where calls are checked as everywhere.
fn splits(id: &UniqueId, rank: u32, size: u32) -> Result<(), Error> {
    let World { gpu, stream, client, world } = join(id, rank, size)?;
    let part = world.split(Some(0), -i64::from(rank))?.expect("a part");
    let arena = client.gpu_arena(&gpu, 4 << 20)?;
    let (values, all) = (arena.buffer::<u32>(3)?, arena.buffer::<u32>(3 * size as usize)?);
    values.upload(&stream, &[rank; 3])?;
    part.on(&stream).all_gather(&values, &all)?;
    stream.synchronize()?;
    part.check_streams()?;
    let mut found = vec![0; all.len()];
    all.download(&stream, &mut found)?;
    let expected: Vec<u32> = (0..size).rev().flat_map(|rank| [rank; 3]).collect();
    assert_eq!(found, expected);

    let on = part.on(&stream);
    let other = Client::connect()?.gpu_arena(&gpu, 4 << 20)?.buffer::<u32>(3)?;
    let refused = [
        on.allreduce(&values, &all, Reduction::Sum),
        on.allreduce(&values, &other, Reduction::Sum),
        on.reduce(&values, None, size, Reduction::Sum),
        on.all_to_all_v(&values, &[1], &values, &[2]),
    ];
    let said = refused.map(|refused| refused.map(drop).map_err(|error| error.to_string()));
    let wanted = ["output", "another", "is not in the communicator", "counts"];
    for (said, wanted) in said.into_iter().zip(wanted) {
        assert!(said.as_ref().is_err_and(|said| said.contains(wanted)), "{said:?} without {wanted}");
    }
    Ok(())
}

/// Allreduces until one fails. Then the stream must not be stuck.
fn repeats(id: &UniqueId, rank: u32, size: u32) -> Result<(), Error> {
    let World { gpu, stream, client, world } = join(id, rank, size)?;
    let arena = client.gpu_arena(&gpu, 8 << 20)?;
    let values = arena.buffer::<f32>(1 << 18)?;
    let mut failure = None;
    for round in 0_u64.. {
        let put = world.on(&stream).allreduce(&values, &values, Reduction::Max);
        if round == 3 {
            say("looping");
        }
        let ended = match put {
            // Every second one is left to itself.
            Ok(enqueued) if round % 2 == 0 => enqueued.wait().map(drop).map_err(Error::from),
            Ok(_) => stream
                .synchronize()
                .map_err(Error::from)
                .and_then(|()| world.check_streams().map_err(Error::from)),
            Err(error) => Err(error.into()),
        };
        if let Err(error) = ended {
            failure = Some(error);
            break;
        }
    }
    stream.synchronize()?;
    failure.map_or(Ok(()), Err)
}

/// The rows of a measurement.
fn rows(folder: &Folder, arguments: &[&str]) -> Vec<serde_json::Value> {
    let given = [&["perf"], arguments, &["-n", "2", "-w", "1", "--json"]].concat();
    let Output { status, stdout, stderr } = folder.ringway(&given);
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{given:?}: {out}{err}");
    out.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

fn assert_exact(folder: &Folder, arguments: &[&str]) {
    let rows = rows(folder, arguments);
    assert!(!rows.is_empty(), "{arguments:?}");
    for row in rows {
        assert_eq!(row["errors"], 0, "{row}");
    }
}

/// All that can be measured.
fn operations() -> impl Iterator<Item = &'static str> {
    let collectives = Operation::ALL.iter().filter(|operation| operation.is_collective());
    collectives.map(|operation| operation.name()).chain(["send_recv"])
}

fn forms(operation: &str) -> &'static str {
    if ["barrier", "send_recv", "all_to_all_v"].contains(&operation) { "no" } else { "both" }
}

#[test]
fn every_operation_is_exact_on_one_node() {
    let folder = Folder::new("operations");
    for operation in operations() {
        for (memory, ranks) in [("cuda", "1"), ("cuda", "3"), ("mixed", "4")] {
            let given = [operation, "--memory", memory, "--ranks", ranks, "--in-place", forms(operation)];
            assert_exact(
                &folder,
                &[&given[..], &["--root", if ranks == "1" { "0" } else { "1" }, "--sizes", "0,100,100K"]]
                    .concat(),
            );
        }
    }
}

#[test]
fn every_type_and_reduction_is_exact() {
    let folder = Folder::new("types");
    for (operation, ranks) in
        [("allreduce", "2"), ("allreduce", "5"), ("reduce_scatter", "3"), ("scan", "3"), ("exscan", "4")]
    {
        // Vectors of 16 bytes, and what is left of them.
        let given = ["-t", "all", "-o", "all", "--sizes", "1000,4096", "--ranks", ranks, "--memory", "cuda"];
        assert_exact(&folder, &[&[operation], &given[..]].concat());
    }
}

#[test]
fn every_operation_is_exact_between_nodes() {
    let folder = Folder::new("nodes");
    for (device, ranks, memory) in [("tcp", "2", "cuda"), ("shm", "4", "cuda"), ("shm", "3", "mixed")] {
        for operation in operations() {
            let given = [
                "--nodes",
                "2",
                "--network",
                "loopback",
                "--device",
                device,
                "--ranks",
                ranks,
                "--memory",
                memory,
            ];
            assert_exact(&folder, &[&[operation, "--sizes", "100,8192,100K,1M"], &given[..]].concat());
        }
    }
}

#[test]
fn operations_keep_to_the_order_of_their_streams() {
    let daemon = Daemon::start("order", &[]);
    for size in [1, 3] {
        for mut rank in daemon.ranks("order", size) {
            assert_eq!(rank.said(), "done");
        }
    }
}

#[test]
fn a_part_of_a_communicator_has_streams_and_checks_calls() {
    let daemon = Daemon::start("split", &[]);
    for mut rank in daemon.ranks("split", 3) {
        assert_eq!(rank.said(), "done");
    }
}

fn regions_are_gone(daemon: &Daemon) {
    let begun = Instant::now();
    // One session is the one that asks.
    while daemon.status()["sessions"].as_array().is_some_and(|sessions| sessions.len() > 1) {
        assert!(begun.elapsed() < LONG, "{}", daemon.status());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_killed_rank_is_named_and_nothing_of_it_is_left() {
    let daemon = Daemon::start("killed", &[]);
    let mut before = None;
    for _ in 0..3 {
        let mut ranks = daemon.ranks("repeat", 3);
        for rank in &mut ranks {
            assert_eq!(rank.said(), "looping");
        }
        ranks[1].process.0.kill().expect("a rank");
        for rank in [0, 2] {
            let said = ranks[rank].said();
            assert!(said.contains("rank 1 failed: its process ended"), "{said}");
        }
        drop(ranks);
        regions_are_gone(&daemon);
        if is_real() {
            // Memory comes back a moment after the last process has let go of it.
            std::thread::sleep(Duration::from_millis(500));
            let (free, _) = Gpu::open(0).and_then(|gpu| gpu.memory()).expect("the GPU");
            let first = *before.get_or_insert(free);
            assert!(free + (1 << 20) > first, "{first} bytes were free, and {free} are");
        }
    }
}

#[test]
fn streams_go_on_when_the_daemon_is_gone() {
    let mut daemon = Daemon::start("gone", &[]);
    let mut ranks = daemon.ranks("repeat", 2);
    for rank in &mut ranks {
        assert_eq!(rank.said(), "looping");
    }
    daemon.process.0.kill().expect("the daemon");
    for rank in &mut ranks {
        let said = rank.said();
        assert!(said.contains("the daemon is gone"), "{said}");
    }
}

#[test]
fn a_gpu_that_fails_is_named() {
    if is_real() {
        eprintln!("not tried: this machine's GPU does not fail");
        return;
    }
    for function in ["cuLaunchKernel:5", "cuStreamBatchMemOp_v2:9", "cuModuleLoadData"] {
        let daemon = Daemon::start("failing", &[("RINGWAY_STAND_IN_FAIL", function)]);
        for mut rank in daemon.ranks("repeat", 2) {
            let said = rank.said();
            let said = if said == "looping" { rank.said() } else { said };
            assert!(said.contains("its GPU has failed"), "{function}: {said}");
        }
        assert_eq!(daemon.status()["sessions"].as_array().map(Vec::len), Some(1), "the daemon serves others");
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let daemon = Daemon::start("refused", &[]);
    let client = daemon.client();
    let id = client.unique_id(false).expect("an id");
    let world = client.communicator(&id, 0, 1).join().expect("a communicator");
    let submission = Submission {
        token: 0,
        operation: Operation::Barrier,
        datatype: DataType::U8,
        reduction: None,
        flags: FLAG_STREAM,
        rank: 0,
        argument: 0,
        input: None,
        output: None,
        count: 0,
    };
    let token = raw::submit(&world, submission, &[]).expect("room");
    let completion = raw::wait(&world, token, LONG).expect("a completion");
    assert_eq!(completion.status, Status::BadFlags.code());
    let reason = raw::explain(&world, completion).to_string();
    assert!(reason.contains("without words for that"), "{reason}");
}

#[test]
fn without_a_driver_it_says_so() {
    if is_real() {
        eprintln!("not tried: this machine has a driver");
        return;
    }
    let output = Command::new(program(env!("CARGO_BIN_EXE_ringway")))
        .args(["perf", "allreduce", "--memory", "cuda"])
        .env_remove("LD_LIBRARY_PATH")
        .output()
        .expect("the program");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("no CUDA driver on this host"), "{said}");
}
