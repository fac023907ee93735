//! What can be put around a [`Link`](ringway_roce::Link), which is a link again: [`Capture`] writes every packet to a
//! file that Wireshark opens, [`Faulty`] does to incoming packets what bad networks do, the same in every run.
//!
//! The order says what is seen: a capture around faults has what the node works with, faults around a capture leave
//! in the file what came over the wire.
//!
//! Around any [`Device`](ringway_verbs::Device) stands [`Delayed`], on which everything takes longer to arrive.
#![forbid(unsafe_code)]

mod capture;
mod delay;
mod fault;
mod pcap;

pub use capture::Capture;
pub use delay::Delayed;
pub use fault::{FaultCounts, FaultSpec, FaultSpecError, Faulty};
pub use pcap::PcapWriter;
