//! Starts the user's own daemon, once, however many processes ask for it at the same time.

use std::{
    env, fs,
    fs::{File, OpenOptions, Permissions},
    io::{self, Read, Seek, SeekFrom},
    os::{
        fd::OwnedFd,
        unix::{
            fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
            process::CommandExt,
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::fs::{FlockOperation, OFlags, flock};

use crate::{StartError, socket};

/// How long a daemon that serves nobody stays.
const IDLE_EXIT: Duration = Duration::from_secs(60);
/// How long a daemon may take to listen.
const READY: Duration = Duration::from_secs(20);
/// How long another process may take to start one.
const LOCK: Duration = Duration::from_secs(40);
const PAUSE: Duration = Duration::from_millis(2);
/// How much of a failed daemon's output is shown.
const LAST_WORDS: u64 = 2048;

/// Connects to the daemon at `socket`, starting it when there is none. The lock file beside the socket makes sure that
/// of many processes one starts it and the others find it.
pub(crate) fn connect_or_start(path: &Path) -> Result<OwnedFd, StartError> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    prepare(folder)?;
    let _lock = lock(&folder.join("start.lock"))?;
    if let Ok(connected) = socket::connect(path) {
        return Ok(connected);
    }
    let program = find()?;
    let log = folder.join("ringwayd.log");
    let mut child = spawn(&program, path, &log)?;
    let started = Instant::now();
    loop {
        if let Ok(connected) = socket::connect(path) {
            return Ok(connected);
        }
        if let Ok(Some(status)) = child.try_wait() {
            let words = last_words(&log);
            return Err(StartError::Ended { program, status: status.to_string(), log, words });
        }
        let waited = started.elapsed();
        if waited > READY {
            let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
            return Err(StartError::NotReady { program, socket: path.to_owned(), waited_ms, log });
        }
        thread::sleep(PAUSE);
    }
}

/// Makes the socket's folder, and checks that nobody else can put anything into it: under `/tmp` another user could
/// have made it first.
fn prepare(folder: &Path) -> Result<(), StartError> {
    let unusable = |reason: String| StartError::Folder { folder: folder.to_owned(), reason };
    match fs::create_dir(folder) {
        Ok(()) => {
            fs::set_permissions(folder, Permissions::from_mode(0o700)).map_err(|e| unusable(e.to_string()))?
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(unusable(error.to_string())),
    }
    let found = fs::symlink_metadata(folder).map_err(|e| unusable(e.to_string()))?;
    let uid = rustix::process::geteuid().as_raw();
    if !found.is_dir() {
        return Err(unusable("it is not a folder".to_owned()));
    }
    if found.uid() != uid {
        return Err(unusable(format!("it belongs to user {}, not to user {uid}; remove it", found.uid())));
    }
    if found.mode() & 0o022 != 0 {
        return Err(unusable(format!(
            "others may write to it (mode {:o}); chmod it to 700",
            found.mode() & 0o777
        )));
    }
    Ok(())
}

fn lock(path: &Path) -> Result<File, StartError> {
    let unusable = |reason: String| StartError::Folder { folder: path.to_owned(), reason };
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)
        .map_err(|e| unusable(e.to_string()))?;
    let started = Instant::now();
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(unusable(errno.to_string())),
        }
        let waited = started.elapsed();
        if waited > LOCK {
            let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
            return Err(StartError::Locked { lock: path.to_owned(), waited_ms });
        }
        thread::sleep(PAUSE);
    }
}

/// `RINGWAY_DAEMON`, else `ringwayd` beside this executable, else in `PATH`.
fn find() -> Result<PathBuf, StartError> {
    if let Some(named) = env::var_os("RINGWAY_DAEMON").filter(|n| !n.is_empty()) {
        let named = PathBuf::from(named);
        return std::path::absolute(&named).map_err(|reason| StartError::Spawn { program: named, reason });
    }
    let path = env::var_os("PATH").unwrap_or_default();
    candidates(env::current_exe().ok().as_deref(), env::split_paths(&path))
        .find(|candidate| is_program(candidate))
        .ok_or(StartError::NoProgram)
}

/// Where a daemon may be, best first. Cargo puts examples and tests one folder below the programs.
fn candidates(
    executable: Option<&Path>,
    path: impl Iterator<Item = PathBuf>,
) -> impl Iterator<Item = PathBuf> {
    let beside = executable.and_then(Path::parent).map(Path::to_owned);
    let above = beside
        .as_deref()
        .filter(|folder| folder.ends_with("examples") || folder.ends_with("deps"))
        .and_then(Path::parent)
        .map(Path::to_owned);
    beside.into_iter().chain(above).chain(path).filter(|f| f.is_absolute()).map(|f| f.join("ringwayd"))
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.mode() & 0o111 != 0)
}

/// Runs the daemon in a process group of its own, so that a Ctrl-C meant for this program does not reach it, with its
/// output in a file.
fn spawn(program: &Path, socket: &Path, log: &Path) -> Result<Child, StartError> {
    let failed = |reason| StartError::Spawn { program: program.to_owned(), reason };
    let output = OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(log)
        .map_err(failed)?;
    let errors = output.try_clone().map_err(failed)?;
    Command::new(program)
        .arg("--socket")
        .arg(socket)
        .arg("--idle-exit-s")
        .arg(IDLE_EXIT.as_secs().to_string())
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .process_group(0)
        .spawn()
        .map_err(failed)
}

fn last_words(log: &Path) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LAST_WORDS)))?;
        let mut end = Vec::new();
        file.take(LAST_WORDS).read_to_end(&mut end)?;
        Ok(end)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_daemon_is_looked_for_beside_the_executable_then_in_path() {
        let path = || [PathBuf::from("/usr/bin"), PathBuf::from("relative")].into_iter();
        let of = |exe: &str| candidates(Some(Path::new(exe)), path()).collect::<Vec<_>>();
        assert_eq!(of("/opt/a"), [Path::new("/opt/ringwayd"), Path::new("/usr/bin/ringwayd")]);
        assert_eq!(
            of("/t/debug/examples/hello"),
            ["/t/debug/examples/ringwayd", "/t/debug/ringwayd", "/usr/bin/ringwayd"].map(PathBuf::from)
        );
        assert_eq!(candidates(None, path()).collect::<Vec<_>>(), [Path::new("/usr/bin/ringwayd")]);
    }

    #[test]
    fn a_folder_that_others_can_write_to_is_refused() {
        let folder = env::temp_dir().join(format!("ringway-client-folder-{}", std::process::id()));
        prepare(&folder).expect("made");
        prepare(&folder).expect("found");
        fs::set_permissions(&folder, Permissions::from_mode(0o777)).expect("chmod");
        let error = prepare(&folder).expect_err("refused");
        assert!(error.to_string().contains("others may write"), "{error}");
        fs::remove_dir(&folder).expect("remove");
        fs::write(&folder, "").expect("file");
        assert!(prepare(&folder).is_err());
        fs::remove_file(&folder).expect("remove");
    }
}
