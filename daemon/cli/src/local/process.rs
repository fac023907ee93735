//! Child processes that never outlive this one.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::unix::process::CommandExt as _,
    process::{Command, ExitStatus, Stdio},
};

use rustix::{
    process::{Pid, Signal},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

use super::namespace::Namespace;

/// The hidden first argument under which this program starts another one, see [`run_helper`].
pub const HELPER: &str = "internal-exec";

/// A command that runs `program` in a network namespace, in a process group of its own, and dies with this process.
pub(crate) fn helper_command(
    namespace: Option<&Namespace>,
    program: impl AsRef<OsStr>,
    arguments: impl IntoIterator<Item = OsString>,
) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(HELPER).arg(namespace.map_or_else(|| "-".to_owned(), Namespace::path));
    command.arg(std::process::id().to_string()).arg(program).args(arguments);
    command.process_group(0).stdin(Stdio::null());
    Ok(command)
}

/// What `ringway internal-exec NAMESPACE PARENT PROGRAM ARGUMENTS` does: become PROGRAM, in the namespace, to be
/// killed when the parent dies. Returns only on failure, with what to say.
#[must_use]
pub fn run_helper(arguments: &[OsString]) -> String {
    let [namespace, parent, program, rest @ ..] = arguments else {
        return "internal-exec: NAMESPACE PARENT PROGRAM [ARGUMENTS]".to_owned();
    };
    if let Err(error) = prepare(namespace, parent) {
        return format!("cannot prepare `{}`: {error}", program.display());
    }
    let error = Command::new(program).args(rest).exec();
    format!("cannot run `{}`: {error}; give the path of an executable file", program.display())
}

fn prepare(namespace: &OsStr, parent: &OsStr) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have died before the line above took effect.
    let parent_now = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    if parent.to_str().and_then(|p| p.parse().ok()) != Some(parent_now) {
        return Err(io::Error::other("the parent has gone"));
    }
    if namespace != "-" {
        let file = File::open(namespace)?;
        move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), Some(LinkNameSpaceType::Network))?;
    }
    Ok(())
}

/// Sends a signal to a child's whole process group.
pub(crate) fn signal_group(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // A group that has gone already is what we want.
        let _ = rustix::process::kill_process_group(pid, signal);
    }
}

/// A child's exit status as a shell would give it: 128 and the signal's number for a child that was killed.
pub(crate) fn shell_status(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt as _;
    status.code().or_else(|| status.signal().map(|s| 128 + s)).unwrap_or(1)
}
