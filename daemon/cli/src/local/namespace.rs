//! Network namespaces that vanish with this process: each is held by a file descriptor only, and joined by path.

use std::{fs::File, io, os::fd::AsRawFd, process::Command};

use rustix::thread::UnshareFlags;

use super::process::helper_command;

/// A network namespace without a name.
#[derive(Debug)]
pub(crate) struct Namespace {
    file: File,
}

impl Namespace {
    /// A fresh namespace with its loopback interface up.
    pub(crate) fn new() -> io::Result<Self> {
        // The namespace belongs to a thread; when the thread ends, the descriptor keeps it alive.
        let file = std::thread::spawn(|| {
            #[expect(
                deprecated,
                reason = "a new network namespace alone does not touch what the unsafe form warns of"
            )]
            rustix::thread::unshare(UnshareFlags::NEWNET)?;
            File::open("/proc/thread-self/ns/net")
        })
        .join()
        .map_err(|_| io::Error::other("the thread that makes a network namespace failed"))??;
        let namespace = Self { file };
        namespace.ip(&["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// A path that names the namespace to any process while this value lives.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// Runs `ip` inside.
    pub(crate) fn ip(&self, arguments: &[&str]) -> io::Result<()> {
        let mut command = helper_command(Some(self), "ip", arguments.iter().map(Into::into))?;
        check(&mut command)
    }

    /// Keeps what its bridges pass on from the host's packet filters (Linux's module br_netfilter), which no switch has. Where
    /// the system does not let it, the filters stay: they cost time only.
    fn leave_filters_out(&self) -> io::Result<()> {
        let write =
            "for way in /proc/sys/net/bridge/bridge-nf-call-*; do [ ! -e $way ] || echo 0 > $way; done";
        helper_command(Some(self), "sh", ["-c", write].iter().map(Into::into))?.output().map(drop)
    }
}

fn check(command: &mut Command) -> io::Result<()> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    let reason = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("`ip` failed: {}", reason.trim())))
}

/// What the networks of clusters carry.
pub(crate) const MTU_BYTES: &str = "9000";

/// The address of node `node` in a network of namespaces.
pub(crate) fn address(node: usize) -> String {
    format!("10.74.11.{}", node + 1)
}

/// Makes `nodes` namespaces that reach each other: two by one veth pair, more by a bridge in a further one.
///
/// # Errors
/// When this process may not make namespaces or `ip` is missing.
pub(crate) fn network(nodes: usize) -> io::Result<(Vec<Namespace>, Option<Namespace>)> {
    let namespaces = (0..nodes).map(|_| Namespace::new()).collect::<io::Result<Vec<_>>>()?;
    let hub = match namespaces.as_slice() {
        [] | [_] => None,
        [first, second] => {
            first.ip(&[
                "link",
                "add",
                "rw0",
                "type",
                "veth",
                "peer",
                "name",
                "rw0",
                "netns",
                &second.path(),
            ])?;
            None
        }
        _ => Some(bridge(&namespaces)?),
    };
    for (node, namespace) in namespaces.iter().enumerate().filter(|_| nodes > 1) {
        namespace.ip(&["addr", "add", &format!("{}/24", address(node)), "dev", "rw0"])?;
        namespace.ip(&["link", "set", "rw0", "mtu", MTU_BYTES, "up"])?;
    }
    Ok((namespaces, hub))
}

fn bridge(namespaces: &[Namespace]) -> io::Result<Namespace> {
    let hub = Namespace::new()?;
    hub.leave_filters_out()?;
    hub.ip(&["link", "add", "bridge", "type", "bridge"])?;
    hub.ip(&["link", "set", "bridge", "up"])?;
    for (node, namespace) in namespaces.iter().enumerate() {
        let port = format!("port{node}");
        hub.ip(&["link", "add", &port, "type", "veth", "peer", "name", "rw0", "netns", &namespace.path()])?;
        hub.ip(&["link", "set", &port, "master", "bridge"])?;
        hub.ip(&["link", "set", &port, "mtu", MTU_BYTES, "up"])?;
    }
    Ok(hub)
}
