//! The folder of daemons that live as long as this process: their sockets, their logs and the key that they share.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rustix::{fs::OFlags, process::geteuid};

use super::cluster::random_hex;

/// What the names of such folders begin with; the process follows, and random digits.
const PREFIX: &str = "ringway-";
/// How many of those.
const DIGITS: usize = 8;

/// A folder that only this user may enter. Dropping it removes it; where a process was killed, the next one that makes a folder does.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// Locked until this is dropped or the process has ended.
    _lock: File,
}

impl Folder {
    /// Makes one where this user's programs keep such things.
    pub(super) fn new() -> io::Result<Self> {
        let base = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let base = if base.is_dir() { base } else { std::env::temp_dir() };
        Self::new_in(&base)
    }

    fn new_in(base: &Path) -> io::Result<Self> {
        remove_abandoned(base);
        let digits = random_hex()?;
        let digits = digits.get(..DIGITS).unwrap_or_default();
        let path = base.join(format!("{PREFIX}{}-{digits}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        let lock = open_folder(&path)?;
        lock.try_lock()?;
        Ok(Self { path, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn open_folder(path: &Path) -> io::Result<File> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
    fs::OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)
}

/// The process whose folder this is, by its name.
fn process_of(name: &str) -> Option<u32> {
    let (process, digits) = name.strip_prefix(PREFIX)?.split_once('-')?;
    let is_random = digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    process.parse().ok().filter(|_| is_random)
}

/// Removes this user's folders whose processes were killed, as far as that can be done. That a process is not seen is not enough: it
/// may be in another container, and have the folder locked.
fn remove_abandoned(base: &Path) {
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(process) = name.to_str().and_then(process_of) else { continue };
        if Path::new("/proc").join(process.to_string()).exists() {
            continue;
        }
        let path = entry.path();
        let Ok(folder) = open_folder(&path) else { continue };
        let is_own = folder.metadata().is_ok_and(|folder| folder.uid() == geteuid().as_raw());
        if is_own && folder.try_lock().is_ok() {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More than processes have.
    const NOBODY: u32 = u32::MAX;

    #[test]
    fn what_a_killed_process_left_is_removed_and_nothing_else() {
        let base = Folder::new().expect("a folder");
        let make = |name: &str| {
            let path = base.path().join(name);
            fs::create_dir(&path).expect("make");
            fs::write(path.join("cluster.key"), "secret").expect("write");
            path
        };
        let abandoned = make(&format!("ringway-{NOBODY}-0123abcd"));
        let kept = [
            // Of a process that is there, or is seen elsewhere only; and what is no such folder.
            format!("ringway-{}-0123abcd", std::process::id()),
            format!("ringway-{NOBODY}-4567abcd"),
            format!("ringway-{NOBODY}-0123"),
            format!("ringway-{NOBODY}-0123abcx"),
            "ringway-bench-0123abcd".to_owned(),
        ];
        let kept = kept.map(|name| make(&name));
        let elsewhere = open_folder(&kept[1]).expect("open");
        elsewhere.try_lock().expect("lock");
        let link = base.path().join(format!("ringway-{NOBODY}-89abcdef"));
        std::os::unix::fs::symlink(&kept[0], &link).expect("link");

        let fresh = Folder::new_in(base.path()).expect("a folder");
        assert!(!abandoned.exists());
        assert!(kept.iter().all(|path| path.join("cluster.key").exists()) && link.exists());
        let path = fresh.path().to_owned();
        assert!(path.is_dir());
        drop(fresh);
        assert!(!path.exists());
    }
}
