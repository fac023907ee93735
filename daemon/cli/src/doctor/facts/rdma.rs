//! RDMA devices, beyond their ports.

use ringway_topology::{Tree, rdma::Port};
use rustix::fs::Access as Allowed;

const DEVICES: &str = "sys/class/infiniband";

/// The file through which a process uses an RDMA device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::doctor) struct Node {
    /// The RDMA device.
    pub(in crate::doctor) device: String,
    /// `/dev/infiniband/uverbs0`, ...
    pub(in crate::doctor) file: String,
    pub(in crate::doctor) access: Access,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::doctor) enum Access {
    Allowed,
    Refused,
    Missing,
}

pub(super) fn ports(tree: &Tree) -> Result<Vec<Port>, String> {
    ringway_topology::rdma::ports_in(&tree.path(DEVICES)).map_err(|error| error.to_string())
}

/// Only software's devices have a parent.
pub(super) fn rxe(tree: &Tree) -> Vec<(String, String)> {
    let parent = |device: String| Some((tree.text(&format!("{DEVICES}/{device}/parent"))?, device));
    tree.names(DEVICES).into_iter().filter_map(parent).map(|(parent, device)| (device, parent)).collect()
}

pub(super) fn nodes(tree: &Tree) -> Vec<Node> {
    let class = "sys/class/infiniband_verbs";
    let node = |name: String| {
        let device = tree.text(&format!("{class}/{name}/ibdev"))?;
        let file = format!("/dev/infiniband/{name}");
        let path = tree.path(&file);
        let access = match rustix::fs::access(&path, Allowed::READ_OK | Allowed::WRITE_OK) {
            Ok(()) => Access::Allowed,
            Err(_) if tree.exists(&file) => Access::Refused,
            Err(_) => Access::Missing,
        };
        Some(Node { device, file, access })
    };
    tree.names(class).into_iter().filter_map(node).collect()
}
