//! `ringwayd` as a program: settings, starting twice, ending in good order.

use std::{fs, process::Command};

use rustix::process::Signal;

use crate::harness::{
    Daemon, Ended, Folder, KEY, Program, RINGWAYD, assert_mentions, configuration, eventually, form, isolate,
    ringway, spawn_daemon,
};

fn ringwayd(arguments: &[&str]) -> Ended {
    let mut command = Command::new(RINGWAYD);
    isolate(&mut command);
    command.args(arguments);
    Program::start(&mut command).end()
}

#[test]
fn the_printed_configuration_reads_as_itself() {
    let folder = Folder::new();
    let socket = folder.join("s").display().to_string();
    let key = folder.write("key", KEY).display().to_string();
    let flags =
        ["--socket", &socket, "--polling", "block", "--cluster-key-file", &key, "--listen", "127.0.0.1:7999"];
    let first =
        ringwayd(&[&flags[..], &["--quota-region-mib", "77", "--print-config"]].concat()).success().out;
    assert_mentions(
        &first,
        &["polling = \"block\"", "127.0.0.1:7999", "region_mib = 77", "late_after_s = 5"],
    );
    let file = folder.write("c.toml", &first).display().to_string();
    let second = ringwayd(&["--config", &file, "--print-config"]).success().out;
    assert_eq!(first, second);
    // Flags win over the file; `ringway daemon` is the same program.
    let mut command = ringway(&["daemon", "--config", &file, "--polling", "spin", "--print-config"]);
    let third = Program::start(&mut command).end().success().out;
    assert_eq!(third, first.replace("\"block\"", "\"spin\""));
}

#[test]
fn wrong_settings_are_named_with_what_is_allowed() {
    let folder = Folder::new();
    let path = |name: &str| folder.join(name).display().to_string();
    let short_key = folder.write("short", "0011").display().to_string();
    let open_key = folder.write("open", KEY).display().to_string();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    fs::set_permissions(&open_key, mode).expect("chmod");
    let unknown = folder.write("unknown.toml", "colour = \"red\"\n").display().to_string();
    let wrong = folder.write("wrong.toml", "\npolling = 7\n").display().to_string();
    let cases: [(&[&str], &[&str]); 11] = [
        (&["--polling", "sometimes"], &["`polling`", "sometimes", "`spin`", "`adaptive`", "`block`"]),
        (&["--spin-us", "-1"], &["`spin_us`", "-1", "microseconds"]),
        (&["--ring-submissions-max", "100"], &["`ring_submissions_max`", "100", "power of two"]),
        (&["--socket", "relative"], &["`socket`", "relative", "absolute"]),
        (&["--engine-cpu", "70000"], &["`engine_cpu`", "70000", "CPU"]),
        (&["--listen", "10.0.0.1"], &["`listen`", "`cluster_key_file`", "prove"]),
        (&["--cluster-key-file", &short_key], &["`cluster_key_file`", "64 hex digits"]),
        (&["--cluster-key-file", &open_key], &["`cluster_key_file`", "0644", "chmod 600"]),
        (&["--config", &path("missing")], &["missing", "cannot be read"]),
        (&["--config", &unknown], &["unknown.toml", "colour"]),
        (&["--config", &wrong], &["wrong.toml", "polling", "line 2"]),
    ];
    for (flags, parts) in cases {
        let ended =
            ringwayd(&[&["--socket", &path("s")][..usize::from(flags[0] != "--socket") * 2], flags].concat());
        assert_mentions(&ended.failure().err, parts);
    }
    assert!(!folder.join("s").exists(), "nothing was started");
}

#[test]
fn a_second_daemon_on_the_same_socket_is_refused() {
    let mut first = Daemon::start("");
    let ended = ringwayd(&["--socket", &first.socket.display().to_string()]).failure();
    let pid = format!("process {}", first.process.pid());
    assert_mentions(&ended.err, &["another ringwayd", &pid, "already serves", "d.sock", "--socket"]);
    assert!(first.process.is_running());
    drop(first.client());
}

#[test]
fn what_a_killed_daemon_left_is_taken_over() {
    let mut first = Daemon::start("");
    first.kill();
    assert!(first.socket.exists(), "a killed daemon cannot clean up");
    let config = first.folder.write("again.toml", &configuration(&first.socket, ""));
    first.process = spawn_daemon(&first.folder, &config);
    eventually("serving again", || ringway_client::Client::builder().socket(&first.socket).connect().is_ok());
}

#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    let folder = Folder::new();
    let path = folder.write("precious", "data");
    let ended = ringwayd(&["--socket", &path.display().to_string()]).failure();
    assert_mentions(&ended.err, &["precious", "not a socket"]);
    assert_eq!(fs::read_to_string(path).expect("still there"), "data");
}

#[test]
fn sigterm_ends_it_in_good_order() {
    for (signal, isolation) in [(Signal::TERM, "cell"), (Signal::INT, "cell"), (Signal::TERM, "strict")] {
        let mut daemon = Daemon::start(&format!("isolation = \"{isolation}\""));
        let mut ranks = form(std::slice::from_ref(&daemon), 2, "");
        ranks[0].tell("call allreduce f32 sum 8 0");
        if isolation == "strict" {
            eventually("the operation", || daemon.status()["counters"]["submitted"].as_u64() >= Some(1));
        } else {
            // The daemon is not told of it; whether the rank has called by then or not, it is told of the end.
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
        daemon.process.signal(signal);
        let error = ranks[0].answer().expect_err("the daemon ends");
        assert!(error.contains("shutting down") || error.contains("daemon is gone"), "{error}");
        assert!(daemon.process.end().success(), "{}", daemon.log());
        assert!(!daemon.socket.exists(), "its socket is removed");
    }
}

#[test]
fn an_idle_daemon_leaves_when_told_to() {
    let folder = Folder::new();
    let socket = folder.join("s").display().to_string();
    assert!(ringwayd(&["--socket", &socket, "--idle-exit", "1"]).success().status.success());
    assert!(!folder.join("s").exists());
}
