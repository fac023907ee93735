//! What a host has, and what lies between: packages, cores and caches, NUMA nodes, the PCIe tree, NICs and GPUs; and clusters of
//! such hosts.
//!
//! [`Topology::of_this_host`] reads it from the files in which Linux shows it; [`Topology::read`] reads the same below
//! another folder. [`Topology::path`] says what is between two things in the words of `nvidia-smi topo -m`, and
//! [`Topology::nearest_nic`] which NIC to use for a GPU or for memory. [`Document`] is a host or a [`Cluster`] as a file, so that
//! they can be described without being there; whatever such a file says, what comes of it is checked or an error.
//!
//! What the kernel does not say is missing, not guessed: a virtual machine has perhaps one NIC without speed.
//!
//! # GPUs
//! Those of NVIDIA and AMD are found on PCI. Names are those that NVIDIA's driver shows in `/proc/driver/nvidia`, and what a
//! driver shows as `product_name`. Which NVLinks there are the kernel does not show: it is for the management library to
//! tell, which cannot be called without unsafe code. So [`Gpu::nvlinks`] is known of hosts that are described by a file, and
//! not of this one.
#![forbid(unsafe_code)]

mod check;
mod cluster;
mod file;
mod host;
mod index_set;
mod paths;
mod pci;
pub mod rdma;
mod read;
mod tree;

pub use check::{Invalid, limits};
pub use cluster::{Cluster, Group, Hosts, NODES_MAX};
pub use file::{Document, FILE_BYTES_MAX, FileError, VERSION};
pub use host::{
    CacheKind, Caches, Gpu, LinkState, Nic, NumaNode, NvLinkEnd, NvLinks, Package, RdmaPort, Topology,
};
pub use index_set::{IndexSet, NoIndexSet};
pub use paths::{PathClass, Place};
pub use pci::{NoPciAddress, PciAddress, PciDevice, PciLink, PciParent};
pub use tree::Tree;
