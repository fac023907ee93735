//! The counts of `ringway bench` are true: the system calls that an end and a daemon count are those that strace sees of the
//! same process, and their processor time is what getrusage(2) has.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::IpAddr,
    path::Path,
    process::{ChildStdin, ChildStdout, Command, Stdio},
};

use ringway_client::Client;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::{
    harness::{
        Folder, KEY, Process, RINGWAY, RINGWAYD, configuration, eventually, free_address, has_namespaces,
        isolate, not_tried,
    },
    machines::joined,
};

/// Whether a test that needs strace can be done.
fn has_strace() -> bool {
    let has = Command::new("strace").arg("-V").stdout(Stdio::null()).status().is_ok_and(|s| s.success());
    if !has {
        not_tried("needs strace; install it");
    }
    has
}

/// `strace -c -f` of a command, whose counts go to this file.
fn straced(file: &Path) -> Vec<String> {
    ["strace", "-c", "-f", "-o", &file.display().to_string()].map(str::to_owned).to_vec()
}

/// System calls of all kinds, after strace has ended.
fn strace_total(file: &Path) -> u64 {
    let text = std::fs::read_to_string(file).expect("what strace counted");
    let total = text.lines().find(|line| line.trim_end().ends_with(" total"));
    let calls = total.and_then(|line| line.split_whitespace().nth(3)?.parse().ok());
    calls.unwrap_or_else(|| panic!("a total: {text}"))
}

/// An end, and whatever it runs under.
struct End {
    process: Process,
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl End {
    fn start(under: &[String], place: usize) -> Self {
        let words =
            [under, &[RINGWAY.to_owned(), "internal-bench-end".to_owned(), place.to_string()]].concat();
        let (program, arguments) = words.split_first().expect("a program");
        let mut command = Command::new(program);
        isolate(&mut command);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::spawn(&mut command);
        let commands = process.0.stdin.take();
        let answers = BufReader::new(process.0.stdout.take().expect("piped"));
        Self { process, commands, answers }
    }

    fn tell(&mut self, command: &Value) {
        writeln!(self.commands.as_mut().expect("not ended"), "{command}").expect("the end runs");
    }

    fn answer(&mut self) -> Value {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("an answer");
        let answer: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
        assert_eq!(answer["Failed"], Value::Null);
        answer
    }

    /// Has it end by itself, as it does when nobody tells it anything any more.
    fn end(mut self) {
        self.commands = None;
        assert!(self.process.end().success());
    }
}

/// Two ends that are connected.
struct Ends([End; 2]);

impl Ends {
    /// Ends of these kinds, each under this command.
    fn open(kinds: &[Value; 2], under: &[Vec<String>; 2]) -> Self {
        let mut ends = Self([0, 1].map(|place| End::start(&under[place], place)));
        let opened = ends.ask(|at| json!({ "Open": kinds[at] }));
        ends.ask(|at| json!({ "Connect": { "peer": opened[1 - at]["Opened"], "active": at == 0 } }));
        ends.rest();
        ends
    }

    fn ask(&mut self, command: impl Fn(usize) -> Value) -> [Value; 2] {
        // The end that leads comes last.
        for at in [1, 0] {
            self.0[at].tell(&command(at));
        }
        self.0.each_mut().map(End::answer)
    }

    fn rest(&mut self) {
        self.0.iter_mut().for_each(|end| end.tell(&json!("Rest")));
    }

    /// What either end spent on so many round trips.
    fn run(&mut self, test: &str, polling: &str, operations: u64) -> [Value; 2] {
        let done = self.ask(|at| {
            json!({ "Run": { "test": test, "bytes": 8, "operations": operations, "polling": polling,
                "leads": at == 0, "period_ns": 0, "in_one_place": false } })
        });
        self.rest();
        done.map(|done| done["Done"]["spent"].clone())
    }

    fn end(self) {
        self.0.into_iter().for_each(End::end);
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("a count: {value}"))
}

/// By how many calls one start and end may differ from another, as whoever waits for the other end to connect looks now and then.
const STARTS_DIFFER: u64 = 100;

/// Within two per cent of what strace saw beyond the start and the end.
#[track_caller]
fn assert_counted(what: &str, counted: u64, straced: u64) {
    let difference = counted.abs_diff(straced);
    assert!(difference * 50 <= straced, "{what}: {counted} counted, {straced} seen by strace");
    eprintln!("{what}: {counted} system calls counted, {straced} seen by strace");
}

/// Ends with this device, on loopback.
fn device(name: &str) -> [Value; 2] {
    device_at(name, [free_address(), free_address()].map(|at| at.ip()))
}

fn device_at(name: &str, addresses: [IpAddr; 2]) -> [Value; 2] {
    addresses.map(|address| match name {
        "sockets" => json!({ "Sockets": { "address": address } }),
        _ => json!({ "Device": { "name": name, "address": address, "roce_port": 4791, "connections": 1 } }),
    })
}

/// What strace sees of two ends, each under its command, and what they count, over so many round trips.
fn ends(kinds: &[Value; 2], under: &[Vec<String>; 2], polling: &str, operations: u64) -> [(u64, u64); 2] {
    let folder = Folder::new();
    let files = ["0", "1"].map(|name| folder.join(name));
    let under = [0, 1].map(|end| [under[end].clone(), straced(&files[end])].concat());
    let mut ends = Ends::open(kinds, &under);
    let spent = ends.run("latency", polling, operations);
    ends.end();
    [0, 1].map(|end| (number(&spent[end]["system_calls"]), strace_total(&files[end])))
}

/// What these ends count of many round trips beyond what one takes is what strace sees of them beyond that.
#[track_caller]
fn assert_ends_count(name: &str, kinds: impl Fn() -> [Value; 2], under: &[Vec<String>; 2]) {
    // Ends that spin make hundreds of calls more or less while they wait for the other one to begin: what these are a small part
    // of takes more operations.
    for (polling, operations) in [("block", 8000), ("spin", 24_000)] {
        let one = ends(&kinds(), under, polling, 1);
        let many = ends(&kinds(), under, polling, operations);
        for end in 0..2 {
            let [counted, straced] =
                [many[end].0.saturating_sub(one[end].0), many[end].1.saturating_sub(one[end].1)];
            let what = format!("{name}, {polling}, end {end}");
            if (name, polling) == ("shm", "spin") {
                // It makes none but to give its CPU away where others want it: of so few there are no two per cent.
                eprintln!("{what}: {counted} system calls counted, {straced} seen by strace");
                assert!(
                    counted.abs_diff(straced) <= STARTS_DIFFER && counted.max(straced) < operations / 10,
                    "{what}: {counted} counted, {straced} seen by strace, of {operations} round trips"
                );
            } else {
                assert_counted(&what, counted, straced);
            }
        }
    }
}

#[test]
fn ends_count_the_system_calls_that_strace_sees() {
    if !has_strace() {
        return;
    }
    for name in ["sockets", "shm", "tcp", "tcp-epoll", "roce-udp"] {
        assert_ends_count(name, || device(name), &[vec![], vec![]]);
    }
}

#[test]
fn ends_with_af_xdp_count_the_system_calls_that_strace_sees() {
    if !has_strace() {
        return;
    }
    if !has_namespaces() {
        return;
    }
    let machines = joined();
    let addresses = machines.each_ref().map(|machine| machine.address.parse().expect("an address"));
    let under = machines.each_ref().map(|machine| machine.under().to_vec());
    assert_ends_count("roce-xdp", || device_at("roce-xdp", addresses), &under);
}

/// A daemon under strace.
struct Daemon {
    strace: Process,
    socket: std::path::PathBuf,
    folder: Folder,
    address: std::net::SocketAddr,
}

impl Daemon {
    fn start() -> Self {
        let (folder, address) = (Folder::new(), free_address());
        let (socket, key) = (folder.join("d.sock"), folder.write("key", KEY).display().to_string());
        let network = format!("listen = \"{address}\"\ncluster_key_file = {key:?}\ndevice = \"tcp\"");
        let settings = format!("polling = \"block\"\nlog_level = \"warn\"\n{network}");
        let config = folder.write("c.toml", &configuration(&socket, &settings)).display().to_string();
        let words =
            [straced(&folder.join("calls")), vec![RINGWAYD.to_owned(), "--config".to_owned(), config]];
        let words = words.concat();
        let mut command = Command::new(&words[0]);
        isolate(&mut command);
        let strace = Process::spawn(command.args(&words[1..]).stdin(Stdio::null()));
        let daemon = Self { strace, socket, folder, address };
        eventually("a daemon that serves", || Client::builder().socket(&daemon.socket).connect().is_ok());
        daemon
    }

    fn counted(&self) -> (u64, i32) {
        let client = Client::builder().socket(&self.socket).connect().expect("a client");
        let status: Value = serde_json::from_str(&client.status().expect("a state")).expect("JSON");
        (number(&status["system_calls"]), i32::try_from(number(&status["pid"])).expect("a process"))
    }

    /// What it counted when it was told to end, and what strace saw.
    fn end(mut self) -> (u64, u64) {
        let (counted, pid) = self.counted();
        kill_process(Pid::from_raw(pid).expect("a process"), Signal::TERM).expect("it is there");
        assert!(self.strace.end().success());
        (counted, strace_total(&self.folder.join("calls")))
    }
}

/// What strace sees of a daemon and of a rank that is its client, and what they count.
fn daemon_and_client(operations: u64) -> [(u64, u64); 2] {
    let (daemons, folder) = ([Daemon::start(), Daemon::start()], Folder::new());
    let id = format!("{}@{}", "0123456789abcdef".repeat(2), daemons[0].address);
    let kind = |rank: usize| json!({ "Client": { "socket": daemons[rank].socket, "id": id, "rank": rank, "size": 2 } });
    let files = ["0", "1"].map(|name| folder.join(name));
    let mut ends = Ends::open(&[kind(0), kind(1)], &files.each_ref().map(|file| straced(file)));
    let mut counted = 0;
    if operations > 0 {
        counted = number(&ends.run("client_latency", "adaptive", operations)[0]["system_calls"]);
    }
    ends.end();
    let [first, second] = daemons;
    second.end();
    [first.end(), (counted, strace_total(&files[0]))]
}

#[test]
fn daemons_and_clients_count_the_system_calls_that_strace_sees() {
    if !has_strace() {
        return;
    }
    let [idle_daemon, idle_client] = daemon_and_client(0);
    // Ranks look hundreds of times more or less while a communicator is made: what these are a small part of takes many operations.
    let [daemon, client] = daemon_and_client(12_000);
    assert_counted("daemon", daemon.0 - idle_daemon.0, daemon.1 - idle_daemon.1);
    assert_counted("client", client.0, client.1 - idle_client.1);
}

/// Processor time in seconds that both ends report of so many messages, and that getrusage(2) has of their processes.
fn processor_time(name: &str, polling: &str, messages: u64) -> [(f64, f64); 2] {
    let folder = Folder::new();
    let files = ["0", "1"].map(|name| folder.join(name));
    // A shell waits for the end, and has what getrusage(2) says of it.
    let timed = files.each_ref().map(|file| {
        let script = format!("TIMEFORMAT='%U %S'; {{ time \"$@\" 2>&3; }} 3>&2 2>{}", file.display());
        ["bash", "-c", &script, "bash"].map(str::to_owned).to_vec()
    });
    let mut ends = Ends::open(&device(name), &timed);
    let spent = ends.run("latency", polling, messages);
    ends.end();
    [0, 1].map(|end| {
        let text = std::fs::read_to_string(&files[end]).expect("what the shell wrote");
        let used = text.split_whitespace().map(|s| s.parse::<f64>().expect("seconds")).sum();
        (number(&spent[end]["cpu_ns"]) as f64 / 1e9, used)
    })
}

/// At least this share of what getrusage(2) has is reported: the rest is starting, and sorting the times.
#[track_caller]
fn assert_processor_time(name: &str, polling: &str, messages: u64, share: f64) {
    // An end that waits for the other to begin spins for nothing, for long where others want the processors: then again.
    for attempt in 1.. {
        let times = processor_time(name, polling, messages);
        eprintln!("{name}, {polling}: seconds of processor time reported, and by getrusage: {times:?}");
        for (reported, used) in times {
            assert!(used > 0.2 && reported <= used + 0.002, "{reported} s, {used} s");
        }
        if times.iter().all(|(reported, used)| *reported > share * used) {
            break;
        }
        assert!(attempt < 5, "{name}, {polling}: {times:?}");
    }
}

#[test]
fn processor_time_is_what_getrusage_has() {
    assert_processor_time("sockets", "spin", 400_000, 0.95);
    // Where a round trip takes a microsecond, sorting the times is a larger part.
    assert_processor_time("shm", "spin", 600_000, 0.85);
    assert_processor_time("shm", "block", 60_000, 0.95);
    assert_processor_time("tcp", "spin", 200_000, 0.95);
    assert_processor_time("tcp", "block", 60_000, 0.95);
}
