//! A simulated device and the conformance suite every device passes. For tests only.
//!
//! [`SimNetwork`] joins any number of [`SimDevice`]s inside one thread. Time is what callers of
//! [`Device::poll`](ringway_verbs::Device::poll) say it is, delays come from a seed, and so a run repeats exactly.
//! [`conformance`] holds the rules of `ringway-verbs` as tests over any device.
//!
//! [`ping_pong`] measures two devices against each other; [`rc`] is the simulation of the reliable connections of `ringway-rc`, packet by packet.
#![forbid(unsafe_code)]

pub mod conformance;
mod device;
mod network;
mod node;
pub mod ping_pong;
mod random;
pub mod rc;

/// Says that a test is left out for want of a privilege or tool.
///
/// # Panics
/// Where the environment's `RINGWAY_TEST_ALL_TOOLS` says that nothing may be left out, as in CI.
pub fn not_tried(why: &str) {
    assert!(std::env::var_os("RINGWAY_TEST_ALL_TOOLS").is_none(), "this test cannot be done: {why}");
    say_not_tried(why);
}

/// A new network namespace, which lives as long as the file.
///
/// # Errors
/// Without the privilege to make one.
pub fn network_namespace() -> std::io::Result<std::fs::File> {
    // It belongs to a thread; when that ends, the descriptor keeps it alive.
    let made = std::thread::spawn(|| {
        #[expect(
            deprecated,
            reason = "a new network namespace alone does not touch what the unsafe form warns of"
        )]
        rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNET)?;
        std::fs::File::open("/proc/thread-self/ns/net")
    });
    made.join().map_err(|_| std::io::Error::other("the thread that makes a network namespace failed"))?
}

/// What this process lacks to make network namespaces and links between them, and how to get it; `None` when it lacks nothing.
#[must_use]
pub fn lacks_namespaces() -> Option<&'static str> {
    if network_namespace().is_err() {
        return Some("needs the privilege to make network namespaces; run the tests as root");
    }
    let has_ip = std::process::Command::new("ip").arg("-V").output().is_ok();
    (!has_ip).then_some("needs `ip`, to link network namespaces; install iproute2")
}

#[expect(clippy::print_stdout, reason = "what a test says is shown with it")]
fn say_not_tried(why: &str) {
    println!("NOT TRIED: {why}");
}

pub use device::SimDevice;
pub use network::{SimConfig, SimNetwork};
pub use random::Random;
