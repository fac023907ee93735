//! The judgements: each is a function of the facts.

mod gpu;
mod kernel;
mod machine;
mod memory;
mod network;
mod rdma;
mod verbs;

pub(super) use self::network::packet_bytes;
use super::{facts::Facts, finding::Finding};

/// All of them, in the order in which they are shown.
pub(super) const ALL: [fn(&Facts) -> Finding; 22] = [
    kernel::kernel,
    kernel::shared_memory,
    kernel::tcp,
    kernel::io_uring,
    kernel::privileges,
    memory::memlock,
    memory::huge_pages,
    machine::cpus,
    machine::clock,
    network::congestion_control,
    network::udp_buffers,
    network::network,
    network::roce_port,
    network::af_xdp,
    rdma::ports,
    rdma::transport,
    rdma::access,
    rdma::gids,
    rdma::mtu,
    verbs::verbs,
    gpu::cuda,
    gpu::gpu_direct,
];

/// Bytes for people.
fn bytes(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        1_048_576..1_073_741_824 => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}
