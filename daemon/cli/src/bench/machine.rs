//! What is recorded about the machine.

use std::{fs, net::IpAddr};

use ringway_tcp::Congestion;

use super::result::Machine;
use crate::perf::place;

/// The value of the first line of a file that begins with this word.
fn value(text: &str, word: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(word))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn read(path: &str) -> String {
    fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

/// This machine, and the network between the two ends.
pub(super) fn describe(network: &str, mtu_bytes: Option<u32>) -> Machine {
    let cpus = read("/proc/cpuinfo");
    let memory = value(&read("/proc/meminfo"), "MemTotal");
    let memory_kib = memory.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
    Machine {
        // Arm's kernels give no name, but numbers.
        cpu: value(&cpus, "model name").or_else(|| value(&cpus, "CPU part")).unwrap_or_default(),
        cpus: place::processors().len(),
        kernel: read("/proc/sys/kernel/osrelease"),
        congestion: Congestion::Unpaced.name().unwrap_or_default(),
        governor: read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        is_virtual: value(&cpus, "flags")
            .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
        memory_bytes: memory_kib.unwrap_or(0) * 1024,
        network: network.to_owned(),
        mtu_bytes,
    }
}

/// The largest packet of an interface of this namespace.
pub(super) fn mtu_of_loopback(address: IpAddr) -> Option<u32> {
    address.is_loopback().then(|| read("/sys/class/net/lo/mtu").parse().ok()).flatten()
}
