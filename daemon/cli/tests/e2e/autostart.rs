//! Clients that find no daemon start one, which leaves when nobody needs it any more.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

use crate::harness::{Folder, Program, RINGWAYD, assert_mentions, eventually};

/// Names the user's folder for a client that connects to whatever daemon it finds.
const VARIABLE: &str = "RINGWAY_TEST_AUTOSTART";

/// What the started clients run: this test again.
#[test]
fn a_client_of_whatever_daemon_there_is() {
    if std::env::var_os(VARIABLE).is_none() {
        return;
    }
    match ringway_client::Client::connect() {
        Ok(client) => {
            let status = client.status().expect("a status");
            eprintln!("served by {} of {status}", client.socket().display());
        }
        Err(error) => {
            eprintln!("error: {error}");
            std::process::exit(3);
        }
    }
}

/// A user with a runtime folder of its own. As root the user's daemon would be the system's, so another user plays
/// the part.
struct User {
    folder: Folder,
    program: std::path::PathBuf,
    uid: Option<u32>,
}

impl User {
    fn new() -> Self {
        let folder = Folder::new();
        let root = rustix::process::geteuid().is_root();
        let uid = root.then_some(65_534);
        let runtime = folder.join("run");
        fs::create_dir(&runtime).expect("a folder");
        fs::set_permissions(&runtime, fs::Permissions::from_mode(0o700)).expect("its mode");
        let program = folder.join("test");
        fs::copy(std::env::current_exe().expect("this test"), &program).expect("a copy");
        fs::copy(RINGWAYD, folder.join("real")).expect("a copy");
        // Counts the starts, and leaves sooner than it is asked to.
        let script = format!(
            "#!/bin/sh\necho $$ >> {0}/run/starts\nexec {0}/real --socket \"$2\" --idle-exit 2\n",
            folder.path().display()
        );
        let daemon = folder.write("daemon", &script);
        fs::set_permissions(&daemon, fs::Permissions::from_mode(0o755)).expect("its mode");
        if let Some(uid) = uid {
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).expect("its mode");
            std::os::unix::fs::chown(&runtime, Some(uid), Some(uid)).expect("root may");
        }
        Self { folder, program, uid }
    }

    fn client(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["--exact", "autostart::a_client_of_whatever_daemon_there_is", "--nocapture"]);
        command.env(VARIABLE, "1").env("XDG_RUNTIME_DIR", self.folder.join("run"));
        command.env("RINGWAY_DAEMON", self.folder.join("daemon")).env_remove("RINGWAY_SOCKET");
        command.env_remove("RINGWAY_AUTOSTART").current_dir("/");
        if let Some(uid) = self.uid {
            std::os::unix::process::CommandExt::uid(&mut command, uid);
            std::os::unix::process::CommandExt::gid(&mut command, uid);
        }
        command
    }

    fn starts(&self) -> Vec<u32> {
        let text = fs::read_to_string(self.folder.join("run/starts")).unwrap_or_default();
        text.lines().map(|pid| pid.parse().expect("a process id")).collect()
    }
}

#[test]
fn many_clients_at_once_start_one_daemon_that_leaves_when_idle() {
    let user = User::new();
    let clients: Vec<Program> = (0..6).map(|_| Program::start(&mut user.client())).collect();
    for client in clients {
        assert_mentions(&client.end().success().err, &["served by", "run/ringway/ringwayd.sock"]);
    }
    let starts = user.starts();
    assert_eq!(starts.len(), 1, "one was started: {starts:?}");
    let process = format!("/proc/{}", starts[0]);
    eventually("leaving", || !Path::new(&process).exists());
    assert!(!user.folder.join("run/ringway/ringwayd.sock").exists());
    Program::start(&mut user.client()).end().success();
    assert_eq!(user.starts().len(), 2, "the next one starts another");
    let process = format!("/proc/{}", user.starts()[1]);
    eventually("leaving", || !Path::new(&process).exists());
}

#[test]
fn autostart_can_be_turned_off() {
    let user = User::new();
    let ended = Program::start(user.client().env("RINGWAY_AUTOSTART", "0")).end().failure();
    assert_mentions(&ended.err, &["no daemon answers", "RINGWAY_AUTOSTART=0", "ringwayd.sock"]);
    assert!(user.starts().is_empty());
}

#[test]
fn a_daemon_that_cannot_be_started_says_why() {
    let user = User::new();
    let ended = Program::start(user.client().env("RINGWAY_DAEMON", "/nowhere/ringwayd")).end().failure();
    assert_mentions(&ended.err, &["/nowhere/ringwayd", "could not be run"]);
    user.folder.write("daemon", "#!/bin/sh\necho cannot serve today; exit 4\n");
    fs::set_permissions(user.folder.join("daemon"), fs::Permissions::from_mode(0o755)).expect("its mode");
    let ended = Program::start(&mut user.client()).end().failure();
    assert_mentions(&ended.err, &["ended with", "4", "cannot serve today"]);
}
