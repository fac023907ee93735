//! A cluster on this machine: several daemons that act as the nodes, and the ranks they serve.

pub(crate) mod cluster;
pub(crate) mod launch;
pub(crate) mod namespace;
pub mod process;
