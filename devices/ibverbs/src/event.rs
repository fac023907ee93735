//! What an RDMA device says on its own.

/// One thing that it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceEvent {
    /// A queue pair has failed.
    QueuePair {
        /// By the device's number for it, which `IbverbsDevice::device_number` gives.
        number: u32,
        /// For a reason of the device's own; otherwise it refused a request of the peer.
        is_fatal: bool,
    },
    /// Completions are lost.
    CompletionQueue,
    /// The port carries packets again, or not any more.
    Port {
        /// Which one.
        number: u8,
        /// It does again.
        is_up: bool,
    },
    /// The device is broken, or being removed.
    Device,
    /// Addresses of ports have changed.
    Addresses,
    /// Of no consequence here.
    Other,
}
