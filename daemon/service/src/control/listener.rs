//! The listening socket: found by its path, held by one daemon at a time.

use std::{
    fs::{DirBuilder, File, OpenOptions, Permissions},
    io::{Read, Seek, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
};

use crate::{
    ServiceError,
    config::{Config, Users},
};

const BACKLOG: i32 = 128;

/// The right to listen at a path, which one daemon has at a time.
#[derive(Debug)]
pub(crate) struct Claim {
    path: PathBuf,
    lock_path: PathBuf,
    // Held until the end: closing it gives the lock to the next daemon.
    _lock: File,
}

/// The listening socket. It and the lock are gone from the file system when this is dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    _claim: Claim,
    socket: OwnedFd,
}

impl Claim {
    /// Takes the lock and removes a dead daemon's socket.
    pub(crate) fn take(config: &Config) -> Result<Self, ServiceError> {
        let path = config.socket.clone();
        prepare_folder(&path).map_err(|reason| ServiceError::Listen { socket: path.clone(), reason })?;
        let lock_path = lock_path(&path);
        let lock = take_lock(&path, &lock_path)?;
        remove_stale(&path)?;
        Ok(Self { path, lock_path, _lock: lock })
    }

    /// Listens. Whoever sees the socket believes that the daemon serves.
    pub(crate) fn listen(self, users: Users) -> Result<Listener, ServiceError> {
        let path = &self.path;
        let refuse = |reason: String| ServiceError::Listen { socket: path.clone(), reason };
        let socket = listen(path).map_err(|errno| refuse(format!("{errno}; is the path right?")))?;
        let mode = if users == Users::All { 0o666 } else { 0o600 };
        std::fs::set_permissions(path, Permissions::from_mode(mode))
            .map_err(|e| refuse(format!("its mode cannot be set to {mode:04o} ({e})")))?;
        Ok(Listener { _claim: self, socket })
    }
}

impl Listener {
    /// The next client's connection, if one waits.
    pub(crate) fn accept(&self) -> rustix::io::Result<Option<OwnedFd>> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::accept_with(&self.socket, flags) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        let _ = std::fs::remove_file(&self.lock_path);
    }
}

fn lock_path(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

/// Makes the socket's own folder when it is one of the default ones, and checks that nobody else can put things there.
fn prepare_folder(socket: &Path) -> Result<(), String> {
    let folder = socket.parent().ok_or("it has no folder")?;
    let uid = rustix::process::geteuid().as_raw();
    let private = folder.starts_with("/tmp") && folder.parent() == Some(Path::new("/tmp"))
        || std::env::var_os("XDG_RUNTIME_DIR").is_some_and(|xdg| folder.parent() == Some(Path::new(&xdg)));
    let system = Some(folder) == Path::new(ringway_abi::paths::SYSTEM_SOCKET).parent();
    if (private || system) && !folder.exists() {
        let mode = if system { 0o755 } else { 0o700 };
        match DirBuilder::new().mode(mode).create(folder) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(format!("its folder cannot be made ({e})"));
            }
            _ => {}
        }
    }
    let metadata = std::fs::symlink_metadata(folder)
        .map_err(|e| format!("its folder `{}` cannot be used ({e}); create it first", folder.display()))?;
    // In a folder made for Ringway under /tmp anybody could have been first.
    if folder == Path::new(&format!("/tmp/ringway-{uid}"))
        && (!metadata.is_dir() || metadata.uid() != uid || metadata.mode() & 0o077 != 0)
    {
        return Err(format!(
            "its folder `{}` must be a real folder that only user {uid} can use (mode 0700); remove it, or give \
             another --socket",
            folder.display()
        ));
    }
    Ok(())
}

/// Takes the lock file's lock, or names the process that has it.
fn take_lock(socket: &Path, path: &Path) -> Result<File, ServiceError> {
    let refuse = |reason: String| ServiceError::Listen { socket: socket.to_owned(), reason };
    let no_follow = i32::try_from((rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits());
    for _ in 0..16 {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        options.custom_flags(no_follow.unwrap_or(0));
        let mut file = options
            .open(path)
            .map_err(|e| refuse(format!("its lock file `{}` cannot be opened ({e})", path.display())))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut text = String::new();
                let _ = (&mut file).take(32).read_to_string(&mut text);
                let pid = Some(text.trim()).filter(|t| !t.is_empty()).unwrap_or("?").to_owned();
                return Err(ServiceError::AlreadyRunning { socket: socket.to_owned(), pid });
            }
            Err(errno) => {
                return Err(refuse(format!("its lock file `{}` cannot be locked ({errno})", path.display())));
            }
        }
        // A daemon that leaves removes the file while holding the lock: the one just locked may be that one.
        let (held, named) = (file.metadata(), std::fs::metadata(path));
        if let (Ok(held), Ok(named)) = (held, named)
            && (held.dev(), held.ino()) == (named.dev(), named.ino())
        {
            let write = |file: &mut File| {
                file.set_len(0)?;
                file.rewind()?;
                writeln!(file, "{}", std::process::id())
            };
            write(&mut file).map_err(|e| refuse(format!("its lock file cannot be written ({e})")))?;
            return Ok(file);
        }
    }
    Err(refuse("its lock file keeps disappearing; is something else removing it?".to_owned()))
}

/// Removes what a daemon that died left behind; refuses anything that lives or is no socket.
fn remove_stale(path: &Path) -> Result<(), ServiceError> {
    let refuse = |reason: String| ServiceError::Listen { socket: path.to_owned(), reason };
    let metadata = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(refuse(e.to_string())),
    };
    if !metadata.file_type().is_socket() {
        return Err(refuse("there is something else of that name, not a socket; remove it first".to_owned()));
    }
    let socket = seqpacket().map_err(|errno| refuse(errno.to_string()))?;
    let address = SocketAddrUnix::new(path).map_err(|errno| refuse(errno.to_string()))?;
    match rustix::net::connect(&socket, &address) {
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path).map_err(|e| refuse(e.to_string())),
        Err(Errno::NOENT) => Ok(()),
        Ok(()) | Err(Errno::AGAIN) => {
            let pid = rustix::net::sockopt::socket_peercred(&socket)
                .map_or_else(|_| "?".to_owned(), |c| c.pid.as_raw_nonzero().to_string());
            Err(ServiceError::AlreadyRunning { socket: path.to_owned(), pid })
        }
        Err(errno) => Err(refuse(format!("the socket that is there cannot be tried ({errno})"))),
    }
}

fn seqpacket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

fn listen(path: &Path) -> rustix::io::Result<OwnedFd> {
    let socket = seqpacket()?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}
