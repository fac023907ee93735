//! Real processes: clients that are killed, and a daemon that is told to stop or is killed.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod common;

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use common::{Client, Daemon, PATIENCE, Rank, assert_serves, barrier, folder, is_closed, settings, wait_for};
use ringway_abi::{
    Status, UniqueId,
    control::{Reply, Request},
};
use ringway_cell::{Cell, Verdict};
use ringway_service::stop_pair;
use rustix::process::{Pid, Signal, kill_process};

const ROLE: &str = "RINGWAY_TEST_ROLE";
const SOCKET: &str = "RINGWAY_TEST_SOCKET";
const ID: &str = "RINGWAY_TEST_ID";

/// Not a test of its own: what the other tests run in processes of their own.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let socket = PathBuf::from(std::env::var(SOCKET).expect("a socket"));
    match role.as_str() {
        "daemon" => {
            let (handle, stop) = stop_pair().expect("pair");
            handle.on_signals(&[15, 2]).expect("signals");
            let folder = socket.parent().expect("folder");
            let config = settings(folder).resolve().expect("settings");
            ringway_service::run(config, stop).expect("a clean end");
        }
        "rank" => {
            let id: UniqueId = std::env::var(ID).expect("an id").parse().expect("an id");
            let mut client = Client::connect(&socket);
            let number = client.join(id, 1, 2);
            let _rank = client.joined(number);
            std::thread::sleep(Duration::from_secs(600));
        }
        "hangs up" => {
            let id: UniqueId = std::env::var(ID).expect("an id").parse().expect("an id");
            let mut client = Client::connect(&socket);
            let number = client.join(id, 1, 2);
            let _rank = client.joined(number);
            drop(client);
            std::thread::sleep(Duration::from_secs(600));
        }
        other => panic!("{other}"),
    }
}

/// A process that is killed when the test ends.
struct Process(Child);

impl Process {
    fn start(role: &str, socket: &Path, id: Option<UniqueId>) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "role", "--nocapture"]).env(ROLE, role).env(SOCKET, socket);
        if let Some(id) = id {
            command.env(ID, id.to_string());
        }
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("spawn"))
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.0.id().try_into().expect("a pid")).expect("a pid");
        kill_process(pid, signal).expect("signal");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Rank 0 here, rank 1 in a process of its own.
fn with_a_child(socket: &Path) -> (Client, Rank, Process) {
    with("rank", socket)
}

fn with(role: &str, socket: &Path) -> (Client, Rank, Process) {
    let mut client = Client::connect(socket);
    let id = client.new_id();
    let child = Process::start(role, socket, Some(id));
    let number = client.join(id, 0, 2);
    let rank = client.joined(number);
    (client, rank, child)
}

#[test]
fn a_killed_client_is_named_to_the_others() {
    let daemon = Daemon::start();
    let (mut client, mut rank, child) = with_a_child(&daemon.socket);
    rank.submit(&barrier(1));
    assert_eq!(rank.completion(Duration::from_millis(50)), None);
    let killed = Instant::now();
    child.signal(Signal::KILL);
    assert_eq!(rank.wait(), (1, Some(Status::RankFailed)));
    // 100 ms is promised on a machine with room; what is checked is that no timeout is behind it.
    assert!(killed.elapsed() < Duration::from_secs(5), "{:?}", killed.elapsed());
    let text = client.explain(&rank, 1);
    assert!(text.contains("rank 1") && text.contains("process ended"), "{text}");
    // What is called afterwards fails at once, with the same reason.
    rank.submit(&barrier(2));
    assert_eq!(rank.wait(), (2, Some(Status::RankFailed)));
    while client.status().sessions.len() > 1 {}
    assert_serves(&daemon.socket);
}

/// The cell of a rank, once it satisfies the condition.
fn cell_that(rank: &Rank, condition: impl Fn(&Cell) -> bool) -> Cell {
    let cell = Cell::attach(rank.cell.clone().expect("a cell"), 2).expect("attach");
    let deadline = Instant::now() + PATIENCE;
    while !condition(&cell) {
        assert!(Instant::now() < deadline, "{:?}", cell.verdict());
        std::thread::sleep(Duration::from_millis(1));
    }
    cell
}

#[test]
fn a_killed_process_is_out_of_its_cell() {
    let daemon = Daemon::start();
    let (_client, rank, child) = with_a_child(&daemon.socket);
    assert_eq!(cell_that(&rank, |_| true).verdict(), None);
    // A stopped process is waited for: it may go on.
    child.signal(Signal::STOP);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(cell_that(&rank, |_| true).verdict(), None);
    child.signal(Signal::KILL);
    let cell = cell_that(&rank, |cell| cell.has_exited(1));
    assert_eq!(cell.verdict(), Some(Verdict { status: Status::RankFailed.code(), rank: 1 }));
    assert!(!cell.has_exited(0) && !cell.has_left(1));
}

#[test]
fn a_process_that_hung_up_is_in_its_cell_until_it_ends() {
    let daemon = Daemon::start();
    let (mut client, rank, child) = with("hangs up", &daemon.socket);
    let cell = cell_that(&rank, |cell| cell.verdict().is_some());
    std::thread::sleep(Duration::from_millis(50));
    assert!(!cell.has_exited(1), "it could still write");
    child.signal(Signal::KILL);
    cell_that(&rank, |cell| cell.has_exited(1));
    let leave = Request::Leave { communicator: rank.joined.communicator };
    assert_eq!(client.ask(leave, &[]), Reply::Done);
    assert_serves(&daemon.socket);
}

#[test]
fn a_client_killed_while_joining_fails_the_join() {
    let daemon = Daemon::start();
    let mut client = Client::connect(&daemon.socket);
    let id = client.new_id();
    let child = Process::start("rank", &daemon.socket, Some(id));
    while client.status().joining.is_empty() {}
    child.signal(Signal::KILL);
    while client.status().sessions.len() > 1 {}
    // The communicator that was being formed is gone with it: its ranks start again.
    let mut other = Client::connect(&daemon.socket);
    let (a, b) = (client.join(id, 0, 2), other.join(id, 1, 2));
    let answers = (client.reply(a).0, other.reply(b).0);
    assert!(matches!(answers.0, Reply::Joined(_)), "{answers:?}");
}

#[test]
fn sigterm_ends_the_daemon_in_good_order() {
    let folder = folder();
    let socket = folder.join("d.sock");
    let mut daemon = Process::start("daemon", &socket, None);
    wait_for(&socket);
    let (client, mut rank, _child) = with_a_child(&socket);
    rank.submit(&barrier(1));
    assert_eq!(rank.completion(Duration::from_millis(50)), None);
    daemon.signal(Signal::TERM);
    assert_eq!(rank.wait(), (1, Some(Status::ShuttingDown)));
    assert!(is_closed(&client.socket));
    assert!(daemon.0.wait().expect("wait").success());
    assert!(!socket.exists());
    std::fs::remove_dir_all(folder).expect("remove");
}

#[test]
fn a_killed_daemon_is_noticed_and_can_be_started_again() {
    let folder = folder();
    let socket = folder.join("d.sock");
    let daemon = Process::start("daemon", &socket, None);
    wait_for(&socket);
    let client = Client::connect(&socket);
    daemon.signal(Signal::KILL);
    assert!(is_closed(&client.socket));
    drop(daemon);
    let daemon = Process::start("daemon", &socket, None);
    wait_for(&socket);
    assert_serves(&socket);
    drop(daemon);
    std::fs::remove_dir_all(folder).expect("remove");
}

#[test]
fn an_idle_daemon_costs_next_to_nothing() {
    let folder = folder();
    let socket = folder.join("d.sock");
    let daemon = Process::start("daemon", &socket, None);
    wait_for(&socket);
    let _client = Client::connect(&socket);
    assert_serves(&socket);
    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", daemon.0.id())).expect("stat");
        let fields: Vec<_> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
        fields[11].parse::<u64>().expect("ticks") + fields[12].parse::<u64>().expect("ticks")
    };
    std::thread::sleep(Duration::from_millis(300));
    let before = ticks();
    std::thread::sleep(Duration::from_secs(3));
    // A tick is 10 ms: at most 3 in 3 s are 1 %.
    assert!(ticks() - before <= 3, "{} ticks in 3 s", ticks() - before);
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.0.id())).expect("status");
    let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
    let kib: u64 = rss.split_whitespace().next().expect("a number").parse().expect("a number");
    assert!(kib < 32 * 1024, "{kib} KiB");
    drop(daemon);
    std::fs::remove_dir_all(folder).expect("remove");
}
