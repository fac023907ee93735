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
//! Those of NVIDIA and AMD are found on PCI, by sysfs alone. Names and UUIDs are those that NVIDIA's driver shows in
//! `/proc/driver/nvidia`, and what a driver shows as `product_name`. Memory, NVLinks and which GPUs reach each other's memory
//! only NVIDIA's management library tells ([`Nvml`]). It is loaded where such a GPU is found, and nothing needs it: without it
//! that is missing, and [`Topology::notes`] says why.
#![forbid(unsafe_code)]

mod check;
mod cluster;
mod file;
mod host;
mod index_set;
mod nvml;
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
pub use nvml::Nvml;
pub use paths::{PathClass, Place};
pub use pci::{NoPciAddress, PciAddress, PciDevice, PciLink, PciParent};
pub use tree::Tree;
