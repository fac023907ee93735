//! `ringway run`: environment, output, failures, and that nothing is left behind.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf, process::Command};

use rustix::process::Signal;

use crate::harness::{Ended, Folder, Program, assert_mentions, eventually, isolate, ringway, run_ringway};

/// A `ringway run` whose temporary folder is known, so that what it leaves can be seen.
struct Traced {
    runtime: Folder,
    marks: Folder,
}

impl Traced {
    fn new() -> Self {
        Self { runtime: Folder::new(), marks: Folder::new() }
    }

    fn command(&self, options: &[&str], script: &str) -> Command {
        let mut command = ringway(&[&["run"], options, &["--", "sh", "-c", script]].concat());
        command.env("XDG_RUNTIME_DIR", self.runtime.path()).env("TMPDIR", self.runtime.path());
        command.env("MARKS", self.marks.path());
        command
    }

    fn run(&self, options: &[&str], script: &str) -> Ended {
        Program::start(&mut self.command(options, script)).end()
    }

    /// Waits until every rank has made its mark.
    fn await_ranks(&self, ranks: usize) {
        eventually("the ranks' start", || fs::read_dir(self.marks.path()).is_ok_and(|d| d.count() == ranks));
    }

    /// No folder, no socket, no process of the daemons or ranks.
    #[track_caller]
    fn assert_nothing_left(&self) {
        let left: Vec<PathBuf> =
            fs::read_dir(self.runtime.path()).expect("the folder").flatten().map(|e| e.path()).collect();
        assert!(left.is_empty(), "{left:?} was left behind");
        let traces = [&self.runtime, &self.marks].map(|f| f.path().display().to_string());
        // The kernel may need a moment to reap.
        eventually("the end of every process", || processes(&traces).is_empty());
    }
}

/// Processes whose command line or environment mentions one of these; zombies have neither.
fn processes(traces: &[String]) -> Vec<String> {
    let read = |path: PathBuf| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
    fs::read_dir("/proc")
        .expect("proc")
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().bytes().all(|b| b.is_ascii_digit())))
        .filter(|p| {
            let text = read(p.join("cmdline")) + &read(p.join("environ"));
            traces.iter().any(|t| text.contains(t))
        })
        .map(|p| p.display().to_string() + &read(p.join("cmdline")))
        .collect()
}

const LOOPBACK: [&str; 2] = ["--network", "loopback"];

#[test]
fn ranks_get_their_environment_and_their_lines_a_prefix() {
    let traced = Traced::new();
    let script = "echo rank $RINGWAY_RANK of $RINGWAY_WORLD_SIZE, $RINGWAY_LOCAL_RANK of $RINGWAY_LOCAL_WORLD_SIZE \
                  on $RINGWAY_NODE; test -S $RINGWAY_SOCKET && echo id $RINGWAY_ID >&2";
    let ended = traced.run(&[&["-n", "3", "--nodes", "2"], &LOOPBACK[..]].concat(), script).success();
    let mut lines: Vec<&str> = ended.out.lines().collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        ["[0] rank 0 of 3, 0 of 2 on 0", "[1] rank 1 of 3, 1 of 2 on 0", "[2] rank 2 of 3, 0 of 1 on 1"]
    );
    let ids: Vec<&str> = ended.err.lines().filter_map(|l| l.split_once("] id ")).map(|(_, id)| id).collect();
    assert!(
        ids.len() == 3 && ids.iter().all(|id| *id == ids[0] && id.contains("@127.") && id.contains(".1:")),
        "{}",
        ended.err
    );
    traced.assert_nothing_left();
}

#[test]
fn a_failing_rank_ends_the_others_with_its_status() {
    let traced = Traced::new();
    let script = "if [ $RINGWAY_RANK = 1 ]; then echo going >&2; exit 7; fi; sleep 1000";
    let ended = traced.run(&["-n", "3"], script);
    assert_eq!(ended.status.code(), Some(7), "{ended:?}");
    assert_mentions(&ended.err, &["[1] going", "rank 1 ended with status 7", "ending the other ranks"]);
    traced.assert_nothing_left();
}

#[test]
fn a_killed_rank_gives_a_shells_status() {
    let traced = Traced::new();
    let ended = traced.run(&["-n", "2"], "if [ $RINGWAY_RANK = 0 ]; then kill -9 $$; fi; sleep 1000");
    assert_eq!(ended.status.code(), Some(128 + 9), "{ended:?}");
    assert_mentions(&ended.err, &["rank 0 ended with status 137"]);
    traced.assert_nothing_left();
}

#[test]
fn ranks_that_ignore_the_end_are_killed() {
    let traced = Traced::new();
    let script = "trap '' TERM; if [ $RINGWAY_RANK = 1 ]; then exit 3; fi; while :; do sleep 1; done";
    let ended = traced.run(&["-n", "2"], script);
    assert_eq!(ended.status.code(), Some(3), "{ended:?}");
    traced.assert_nothing_left();
}

/// Joins a communicator of both nodes, and says which files lie beside the socket then.
fn files_after_joining(options: &[&str]) -> String {
    let rank = std::env::current_exe().expect("this program");
    let script = format!(
        "echo join $RINGWAY_ID $RINGWAY_RANK 2 | {}=1 {} --exact {} --nocapture; ls $(dirname $RINGWAY_SOCKET)",
        crate::rank::VARIABLE,
        rank.display(),
        crate::rank::TEST
    );
    let traced = Traced::new();
    let ended =
        traced.run(&[&["-n", "2", "--nodes", "2"], &LOOPBACK[..], options].concat(), &script).success();
    assert_mentions(&ended.out, &["[0] @ok", "[1] @ok", "node1.sock"]);
    traced.assert_nothing_left();
    ended.out
}

/// What is measured differs from run to run, and algorithms that are chosen by it may give other bits.
#[test]
fn nothing_is_measured_unless_asked_for_so_that_every_run_gives_the_same_bits() {
    assert!(!files_after_joining(&[]).contains("links.toml"));
    assert!(files_after_joining(&["--measure-links"]).contains("node0.links.toml"));
}

fn interrupted(options: &[&str], signal: Signal) {
    let traced = Traced::new();
    let script = "touch $MARKS/$RINGWAY_RANK; sleep 1000 & wait";
    let program = Program::start(&mut traced.command(&[&["-n", "4"], options].concat(), script));
    traced.await_ranks(4);
    program.process.signal(signal);
    let ended = program.end();
    assert_eq!(ended.status.code(), Some(130), "{ended:?}");
    assert_mentions(&ended.err, &["interrupted"]);
    traced.assert_nothing_left();
}

#[test]
fn ctrl_c_leaves_nothing_behind() {
    interrupted(&[&["--nodes", "2"], &LOOPBACK[..]].concat(), Signal::INT);
}

/// With privilege these nodes are network namespaces.
#[test]
fn ctrl_c_leaves_nothing_behind_of_namespaces_either() {
    let links = || fs::read_dir("/sys/class/net").map(Iterator::count).unwrap_or_default();
    let before = links();
    interrupted(&["--nodes", "3"], Signal::TERM);
    eventually("the links' end", || links() <= before);
}

#[test]
fn even_a_killed_run_leaves_no_process() {
    let traced = Traced::new();
    let script = "touch $MARKS/$RINGWAY_RANK; exec sleep 1000";
    let mut program = Program::start(&mut traced.command(&["-n", "2"], script));
    traced.await_ranks(2);
    program.process.signal(Signal::KILL);
    program.process.end();
    let traces = [traced.runtime.path().display().to_string(), traced.marks.path().display().to_string()];
    eventually("the end of every process", || processes(&traces).is_empty());
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let ended = run_ringway(&["run", "-n", "2", "--", "no-such-program-here"]).failure();
    assert_mentions(&ended.err, &["cannot run `no-such-program-here`", "path of an executable file"]);
    let folder = Folder::new();
    let plain = folder.write("plain", "text").display().to_string();
    let ended = run_ringway(&["run", "-n", "1", "--", &plain]).failure();
    assert_mentions(&ended.err, &[&plain]);
}

#[test]
fn arguments_that_make_no_sense_are_refused() {
    let cases: [(&[&str], &[&str]); 4] = [
        (&["-n", "2", "--nodes", "3", "--", "true"], &["3 nodes", "2"]),
        (&["-n", "0", "--", "true"], &["0"]),
        (&["-n", "2"], &["PROGRAM"]),
        (
            &["-n", "2", "--nodes", "2", "--network", "loopback", "--device", "carrier-pigeon", "--", "true"],
            &["carrier-pigeon", "tcp"],
        ),
    ];
    for (arguments, parts) in cases {
        let ended = run_ringway(&[&["run"], arguments].concat()).failure();
        assert_mentions(&ended.err, parts);
    }
}

/// Ranks that are real users of the library, over two nodes: this test again.
#[test]
fn ranks_find_each_other() {
    const VARIABLE: &str = "RINGWAY_TEST_RUN";
    if std::env::var_os(VARIABLE).is_some() {
        let client = ringway_client::Client::connect().expect("the node's daemon");
        let world = ringway_client::Communicator::from_env(&client).expect("the others");
        let mut sum = [world.rank() + 1];
        world.blocking().allreduce_in_place(&mut sum, ringway_client::Reduction::Sum).expect("a sum");
        assert_eq!(sum, [10]);
        assert_eq!((world.size(), world.nodes()), (4, 2));
        return;
    }
    let this = std::env::current_exe().expect("this test").display().to_string();
    let test = ["--exact", "running::ranks_find_each_other", "--nocapture"];
    let mut command = ringway(&[&["run", "-n", "4", "--nodes", "2", "--", &this], &test[..]].concat());
    isolate(&mut command);
    command.env(VARIABLE, "1");
    let ended = Program::start(&mut command).end().success();
    assert_eq!(ended.out.matches("1 passed").count(), 4, "{ended:?}");
}

#[test]
fn a_rank_without_a_path_is_found_here() {
    let folder = Folder::new();
    let program = folder.write("my_rank", "#!/bin/sh\necho found\n");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("its mode");
    let mut command = ringway(&["run", "-n", "1", "--", "my_rank"]);
    command.current_dir(folder.path());
    assert_eq!(Program::start(&mut command).end().success().out.trim(), "[0] found");
}
