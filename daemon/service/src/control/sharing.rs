//! Who may share memory with whom.
//!
//! Ranks that share a cell write to each other's buffers, so they must be of one user and in the same namespaces: then
//! each could read and write the others' memory anyway (ptrace(2), `/proc/PID/mem`). Where they differ, every one of
//! them must have consented.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The namespaces that set processes of one user apart.
const NAMESPACES: [&str; 3] = ["user", "pid", "mnt"];

/// Who a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    uid: u32,
    /// Device and inode of each of [`NAMESPACES`].
    namespaces: [(u64, u64); NAMESPACES.len()],
}

impl Identity {
    /// Who the process is now; `None` when that cannot be told: it has ended, or it keeps itself from being looked at.
    pub(super) fn of(pid: i32, uid: u32, pidfd: &OwnedFd) -> Option<Self> {
        let mut namespaces = [(0, 0); NAMESPACES.len()];
        for (name, identity) in NAMESPACES.iter().zip(&mut namespaces) {
            let stat = rustix::fs::stat(format!("/proc/{pid}/ns/{name}")).ok()?;
            *identity = (stat.st_dev, stat.st_ino);
        }
        // A process that still lives has kept its number to itself since its pidfd was opened.
        is_alive(pidfd).then_some(Self { uid, namespaces })
    }
}

/// Whether a process has not ended yet.
fn is_alive(pidfd: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(pidfd, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut polled, Some(&now)), Ok(0))
}

/// A rank, for the question whether all of them share memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    /// Who it is, if that is known.
    pub(super) identity: Option<Identity>,
    /// Whether it shares with others whoever they are.
    pub(super) consents: bool,
}

/// Whether these ranks share memory: all are alike, or all have consented.
pub(super) fn may_share(candidates: &[Candidate]) -> bool {
    let first = candidates.first().and_then(|c| c.identity);
    // With two kinds of ranks each of them differs from some other one. One whose identity is unknown differs from all.
    let alike = first.is_some() && candidates.iter().all(|c| c.identity == first);
    !candidates.is_empty() && (alike || candidates.iter().all(|c| c.consents))
}

#[cfg(test)]
mod tests {
    use rustix::process::{PidfdFlags, getpid, getuid, pidfd_open};

    use super::*;

    const ALIKE: Identity = Identity { uid: 1000, namespaces: [(4, 1), (4, 2), (4, 3)] };

    fn candidates(list: &[(Option<Identity>, bool)]) -> Vec<Candidate> {
        list.iter()
            .map(|(identity, consents)| Candidate { identity: *identity, consents: *consents })
            .collect()
    }

    #[test]
    fn ranks_that_are_alike_share() {
        assert!(may_share(&candidates(&[(Some(ALIKE), false)])));
        assert!(may_share(&candidates(&[(Some(ALIKE), false), (Some(ALIKE), true), (Some(ALIKE), false)])));
        assert!(!may_share(&[]));
    }

    #[test]
    fn ranks_that_differ_share_only_when_every_one_consents() {
        let mut others = vec![None, Some(Identity { uid: 1001, ..ALIKE })];
        for at in 0..NAMESPACES.len() {
            let mut other = ALIKE;
            other.namespaces[at].1 += 100;
            others.push(Some(other));
        }
        for other in others {
            let ask = |first, second, third| {
                may_share(&candidates(&[(Some(ALIKE), first), (other, second), (Some(ALIKE), third)]))
            };
            assert!(!ask(false, false, false), "{other:?}");
            assert!(!ask(false, true, false), "its consent is not theirs: {other:?}");
            assert!(!ask(true, false, true), "their consent is not its own: {other:?}");
            assert!(!ask(true, true, false), "the last one differs from the second: {other:?}");
            assert!(ask(true, true, true), "{other:?}");
        }
        assert!(
            !may_share(&candidates(&[(None, false), (None, false)])),
            "nobody knows whether these are alike"
        );
    }

    #[test]
    fn this_process_has_an_identity_and_one_that_has_ended_has_none() {
        let own = pidfd_open(getpid(), PidfdFlags::empty()).expect("pidfd");
        let (pid, uid) = (getpid().as_raw_nonzero().get(), getuid().as_raw());
        let identity = Identity::of(pid, uid, &own).expect("an identity");
        assert_eq!(Identity::of(pid, uid, &own), Some(identity));
        assert_ne!(Identity::of(pid, uid + 1, &own), Some(identity));

        let mut child = std::process::Command::new("sleep").arg("600").spawn().expect("a process");
        let number = i32::try_from(child.id()).expect("a number");
        let pidfd = pidfd_open(rustix::process::Pid::from_child(&child), PidfdFlags::empty()).expect("pidfd");
        assert_eq!(Identity::of(number, uid, &pidfd), Some(identity));
        child.kill().expect("kill");
        child.wait().expect("wait");
        assert_eq!(Identity::of(number, uid, &pidfd), None);
    }
}
