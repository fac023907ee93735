//! `ringway bench` between two machines, which here are two network namespaces, or loopback addresses where this may not make
//! any: the report, and what either end says when the other is not what it should be.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream},
    os::fd::AsRawFd as _,
    process::Command,
};

use ringway_sim::{lacks_namespaces, network_namespace};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{
    Ended, Folder, LONG, Program, RINGWAY, assert_mentions, eventually, free_address, isolate, ringway,
};

/// A machine's network.
pub(crate) struct Machine {
    /// Kept alive by this alone.
    namespace: Option<File>,
    pub(crate) address: String,
}

impl Machine {
    pub(crate) fn namespace(address: &str) -> Self {
        Self { namespace: Some(network_namespace().expect("a namespace")), address: address.to_owned() }
    }

    pub(crate) fn path(&self) -> String {
        let path = |file: &File| format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        self.namespace.as_ref().map_or("-".to_owned(), path)
    }

    /// What a command that runs there begins with.
    pub(crate) fn under(&self) -> [String; 4] {
        [RINGWAY.to_owned(), "internal-exec".to_owned(), self.path(), std::process::id().to_string()]
    }

    /// A command that runs there.
    pub(crate) fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let [first, words @ ..] = self.under();
        let mut command = Command::new(first);
        isolate(&mut command);
        command.args(words).arg(program).args(arguments);
        command
    }

    pub(crate) fn ip(&self, words: &str) {
        let words: Vec<&str> = words.split(' ').collect();
        Program::start(&mut self.command("ip", &words)).end().success();
    }

    fn bench(&self, arguments: &[&str]) -> Program {
        Program::start(&mut self.command(RINGWAY, &[&["bench"], arguments].concat()))
    }
}

/// Two machines: joined by a virtual link where this process may make one, on loopback elsewhere.
fn machines() -> [Machine; 2] {
    let Some(lacks) = lacks_namespaces() else { return joined() };
    eprintln!("on loopback: {lacks}");
    // A client that names no address of its own is 127.0.0.1 to all of loopback.
    [Ipv4Addr::LOCALHOST.into(), free_address().ip()]
        .map(|address: IpAddr| Machine { namespace: None, address: address.to_string() })
}

/// Two machines joined by a virtual link.
pub(crate) fn joined() -> [Machine; 2] {
    let both = ["10.74.13.1", "10.74.13.2"].map(Machine::namespace);
    both[0].ip(&format!("link add rw0 mtu 9000 type veth peer name rw0 mtu 9000 netns {}", both[1].path()));
    for machine in &both {
        machine.ip("link set lo up");
        machine.ip(&format!("addr add {}/24 dev rw0", machine.address));
        machine.ip("link set rw0 up");
    }
    both
}

/// Measures between the two as soon as the server listens.
fn measured(client: &Machine, server: &str, options: &[&str]) -> Ended {
    let mut ended = None;
    eventually("a server that can be reached", || {
        let arguments = [&["--client", server, "--quick", "--rounds", "1"], options].concat();
        let one = client.bench(&arguments).end_within(5 * LONG);
        // It says so at once.
        let is_reached = !one.err.contains("cannot reach");
        ended = is_reached.then_some(one);
        is_reached
    });
    ended.expect("reached")
}

fn report(folder: &Folder) -> Value {
    let text = fs::read(folder.join("report/bench.json")).expect("bench.json");
    serde_json::from_slice(&text).expect("JSON")
}

#[test]
fn everything_that_reaches_is_measured_between_two_machines() {
    let folder = Folder::new();
    let [client, server] = machines();
    let running = server.bench(&["--server", "--listen", &server.address]);
    let output = folder.join("report").display().to_string();
    let paths = "cell,shm,roce-udp,tcp,tcp-epoll,sockets";
    let paths = if client.namespace.is_some() { format!("roce-xdp,{paths}") } else { paths.to_owned() };
    let options = ["--seconds", "0.002", "--paths", &paths, "--output", &output];
    let ended = measured(&client, &server.address, &options).success();
    let found = report(&folder);
    assert_eq!(found["complete"], true, "{}", ended.err);
    assert_eq!(found["server"]["kernel"], found["machine"]["kernel"]);
    assert_mentions(
        found["machine"]["network"].as_str().expect("a text"),
        &[&client.address, &server.address],
    );
    let has = |test: &str, path: &str| {
        let points = found["points"].as_array().expect("points").iter();
        points.clone().any(|point| point["test"] == test && point["path"] == path)
    };
    for path in found["paths"].as_array().expect("paths") {
        let name = path["name"].as_str().expect("a name");
        let is_missing = name == "cell" || name == "shm" && client.namespace.is_some();
        assert_eq!(path["missing"] != Value::Null, is_missing, "{path}");
        for (test, others) in [("bandwidth", ""), ("client_latency", "sockets"), ("allreduce", "sockets")] {
            assert_eq!(has(test, name), !is_missing && name != others, "{test} over {name}: {}", ended.err);
        }
    }
    assert_mentions(
        &fs::read_to_string(folder.join("report/bench.md")).expect("bench.md"),
        &["the server's"],
    );
    running.process.signal(Signal::INT);
    let served = running.end().success();
    assert_mentions(&served.out, &["listening on", &server.address]);
    assert_mentions(&served.err, &["serving", &client.address, "opening tcp between clients", "has gone"]);
}

#[test]
fn a_server_that_goes_away_leaves_what_was_measured() {
    let folder = Folder::new();
    let machine = Machine { namespace: None, address: free_address().to_string() };
    let server = machine.bench(&["--server", "--listen", &machine.address]);
    let output = folder.join("report").display().to_string();
    let pid = server.process.pid();
    let options = ["--seconds", "2", "--paths", "sockets", "--output", &output];
    let ended = std::thread::scope(|scope| {
        let client = scope.spawn(|| measured(&machine, &machine.address, &options));
        // An end of the server's: it was reached, and measures.
        // It comes after the rings, which are measured in the client itself.
        eventually("an end at the server that works", || children(pid).iter().any(|end| ticks(*end) > 50));
        server.process.signal(Signal::KILL);
        client.join().expect("no panic")
    });
    drop(server);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert_mentions(&ended.err, &["the server at", &machine.address, "gone", "what was measured until then"]);
    assert_eq!(report(&folder)["complete"], false);
}

fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let of_task = |task: fs::DirEntry| fs::read_to_string(task.path().join("children")).unwrap_or_default();
    let all: String = tasks.map(of_task).collect();
    all.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Hundredths of a second that a process has worked for.
fn ticks(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let times = text.split_whitespace().skip(13).take(2).filter_map(|time| time.parse::<u64>().ok());
    times.sum()
}

#[test]
fn who_cannot_be_reached_is_named() {
    let (address, folder) = (free_address().to_string(), Folder::new());
    let output = folder.join("report");
    let arguments = ["bench", "--client", &address, "--output", &output.display().to_string()];
    let ended = Program::start(&mut ringway(&arguments)).end().failure();
    assert_mentions(&ended.err, &["cannot reach", &address, "ringway bench --server --listen"]);
    assert!(!output.exists(), "nothing was measured, and a folder for it is left");
}

/// One line of JSON, and the lines that come back.
struct Raw(BufReader<TcpStream>);

impl Raw {
    fn connect(address: SocketAddr) -> Self {
        let mut stream = None;
        eventually("a server that listens", || {
            stream = TcpStream::connect(address).ok();
            stream.is_some()
        });
        let stream = stream.expect("connected");
        stream.set_read_timeout(Some(LONG)).expect("a time-out");
        Self(BufReader::new(stream))
    }

    fn say(&mut self, bytes: &[u8]) {
        // A server that has hung up does not hear it.
        let _ = self.0.get_mut().write_all(bytes);
    }

    fn hear(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a line");
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"))
    }

    /// Whether the server says nothing more, and hangs up.
    fn hangs_up(mut self) -> bool {
        let mut rest = Vec::new();
        // What it had not read when it hung up makes that a reset.
        let _ = self.0.read_to_end(&mut rest);
        rest.is_empty()
    }
}

#[test]
fn a_server_takes_nothing_but_what_it_can_measure() {
    let address = free_address();
    let machine = Machine { namespace: None, address: address.to_string() };
    let server = machine.bench(&["--server", "--listen", &machine.address]);
    let mut client = Raw::connect(address);
    let greeting = client.hear();
    assert_eq!(greeting["refused"], Value::Null);
    client.say(format!("{greeting}\n").as_bytes());
    assert!(client.hear()["machine"]["kernel"].is_string());

    let mut busy = Raw::connect(address);
    assert_mentions(busy.hear()["refused"].as_str().expect("a reason"), &["another client", "127."]);

    let open = |path: &str, kind: Value| json!({ "Open": { "end": 1, "path": path, "kind": kind } });
    let tell = |command: Value| json!({ "Tell": { "end": 1, "command": command } });
    let job = |bytes: u64, operations: u64| {
        json!({ "Run": { "test": "latency", "bytes": bytes, "operations": operations, "polling": "block",
            "leads": true, "period_ns": 0, "in_one_place": false } })
    };
    let id = format!("{}@127.0.0.1:7411", "01".repeat(16));
    let someone = |id: &str| json!({ "Client": { "id": id, "key": "../../etc/passwd", "tcp_connections": 1, "polling": "block" } });
    let daemon = json!({ "Open": { "Client": { "socket": "/run/x", "id": "0", "rank": 0, "size": 1 } } });
    for (number, (order, why)) in [
        (open("/bin/sh", json!("Device")), "no path"),
        (open("cell", json!("Device")), "no device"),
        (open("tcp", someone(&id)), "64 hex digits"),
        (open("tcp", someone(&id.replace("127", "10"))), "at the client's address"),
        (tell(json!("Rest")), "no end"),
        (open("sockets", json!("Device")), ""),
        (open("sockets", json!("Device")), "a number of its own"),
        (tell(daemon), "may not give"),
        (tell(job(1 << 60, 1)), "may not give"),
        (tell(job(8, u64::MAX)), "may not give"),
        (tell(job(8, 1)), "not connected"),
    ]
    .into_iter()
    .enumerate()
    {
        client.say(format!("{}\n", json!({ "number": number, "order": order })).as_bytes());
        let reply = client.hear();
        assert_eq!(reply["number"], number, "{reply}");
        match reply["answer"]["Failed"].as_str() {
            Some(failed) => assert!(!why.is_empty() && failed.contains(why), "{order}: {failed}"),
            None => assert!(why.is_empty() && reply["answer"]["Opened"].is_object(), "{order}: {reply}"),
        }
    }
    client.say(b"GET / HTTP/1.1\r\n\r\n");
    assert!(client.hangs_up());

    for first in [&b"\0\0\0\n"[..], &[b'['; 1 << 17], b"{\"ringway_bench\":1,\"version\":\"0.0.0\"}\n"] {
        // Until the server has found the client before to be gone, it serves that.
        eventually("a free server", || {
            let mut other = Raw::connect(address);
            let is_free = other.hear()["refused"] == Value::Null;
            other.say(first);
            assert!(other.hangs_up());
            is_free
        });
    }
    server.process.signal(Signal::INT);
    let ended = server.end().success();
    assert_mentions(&ended.err, &["nothing that", "more than 65536 bytes", "versions differ", "0.0.0"]);
}
