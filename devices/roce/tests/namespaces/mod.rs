//! Two nodes: network namespaces of their own, which vanish with this process, joined by a veth pair.
#![allow(dead_code, reason = "not every test file uses all of it")]
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::{
    fs::File,
    net::IpAddr,
    os::fd::{AsFd, AsRawFd},
    process::{self, Command},
    thread,
    time::{Duration, Instant},
};

use ringway_roce::{Link, LinkError, Path};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The name of a node's interface.
pub(crate) const INTERFACE: &str = "rw0";

/// A network namespace.
#[derive(Debug)]
pub(crate) struct Node {
    file: File,
    number: usize,
}

impl Node {
    fn new(number: usize) -> Self {
        let node = Self { file: ringway_sim::network_namespace().unwrap(), number };
        node.ip("link set lo up");
        node
    }

    /// Another handle of the same.
    pub(crate) fn again(&self) -> Self {
        Self { file: self.file.try_clone().unwrap(), number: self.number }
    }

    /// Moves this thread inside, for good.
    pub(crate) fn enter(&self) {
        move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    }

    /// Runs something inside, in a thread of its own. Sockets that it opens stay there.
    pub(crate) fn inside<R: Send>(&self, run: impl FnOnce() -> R + Send) -> R {
        let inside = || {
            self.enter();
            run()
        };
        thread::scope(|scope| match scope.spawn(inside).join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    }

    /// A path that names the namespace to any process while this value lives.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", process::id(), self.file.as_raw_fd())
    }

    /// Runs `ip` inside, with these words as its arguments.
    pub(crate) fn ip(&self, words: &str) {
        let output = self.inside(|| Command::new("ip").args(words.split_whitespace()).output().unwrap());
        let reason = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "`ip {words}` failed: {reason}");
    }

    /// Its address.
    pub(crate) fn address(&self, v6: bool) -> IpAddr {
        let text = if v6 { format!("fd77::{}", self.number) } else { format!("10.77.0.{}", self.number) };
        text.parse().unwrap()
    }
}

/// Two nodes whose interfaces have this MTU and so many queues; `None`, having said so, without the privilege.
pub(crate) fn network(mtu: usize, queues: usize) -> Option<[Node; 2]> {
    if let Some(lacks) = ringway_sim::lacks_namespaces() {
        ringway_sim::not_tried(lacks);
        return None;
    }
    let nodes = [1, 2].map(Node::new);
    let [one, other] = &nodes;
    let queues = format!("numrxqueues {queues} numtxqueues {queues}");
    one.ip(&format!(
        "link add {INTERFACE} mtu {mtu} {queues} type veth peer name {INTERFACE} mtu {mtu} {queues} netns {}",
        other.path()
    ));
    for node in &nodes {
        node.ip(&format!("addr add {}/24 dev {INTERFACE}", node.address(false)));
        // Smaller ones carry no IPv6.
        if mtu >= 1280 {
            node.ip(&format!("addr add {}/64 dev {INTERFACE} nodad", node.address(true)));
        }
        node.ip(&format!("link set {INTERFACE} up"));
    }
    Some(nodes)
}

/// The way to a peer, when it is known. An interface that was just made asks over IPv6 only after it has made sure of its own
/// address.
pub(crate) fn way(
    link: &mut dyn Link,
    peer: IpAddr,
    entropy: u32,
    traffic_class: u8,
) -> Result<Path, LinkError> {
    let start = Instant::now();
    loop {
        match link.path(peer, entropy, traffic_class) {
            Err(LinkError::Resolving { .. }) => thread::sleep(Duration::from_millis(1)),
            Err(LinkError::NoNeighbour { .. })
                if start.elapsed() < Duration::from_secs(5) && peer.is_ipv6() => {}
            known => return known,
        }
    }
}
