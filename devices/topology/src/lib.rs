//! What a host has, from the files in which the kernel shows it.
#![forbid(unsafe_code)]

pub mod rdma;
mod tree;

pub use tree::Tree;
