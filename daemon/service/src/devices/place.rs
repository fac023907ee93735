//! Where daemons can share memory with this one.

use std::{fs, os::unix::fs::MetadataExt as _};

/// Random for each boot of a kernel: `xxxxxxxx-xxxx-4xxx-xxxx-xxxxxxxxxxxx`.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";
/// The network namespace that this process is in. The numbers of those that exist differ.
const NETWORK: &str = "/proc/self/ns/net";

/// The host and the network namespace: daemons that say the same reach each other's Unix sockets that have no path. At most
/// 25 printable characters, so that a protocol's name has room for it.
///
/// # Errors
/// When `/proc` does not tell, as a sentence.
pub fn place() -> Result<String, String> {
    let unreadable = |path, error| {
        format!("cannot tell which daemons are on this host and in this network namespace: {path}: {error}")
    };
    let boot = fs::read_to_string(BOOT).map_err(|error| unreadable(BOOT, error))?;
    let network = fs::metadata(NETWORK).map_err(|error| unreadable(NETWORK, error))?.ino();
    name(&boot, network).ok_or_else(|| {
        format!("cannot tell which host this is: {BOOT} has `{}`, not a boot's number", boot.trim())
    })
}

/// The first half of the boot's number is random enough; numbers of namespaces have 32 bits.
fn name(boot: &str, network: u64) -> Option<String> {
    let digits: String = boot.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    let network = u32::try_from(network).ok()?;
    (digits.len() == 16).then(|| format!("{digits}.{network:x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: &str = "2f1c7a50-93ab-4f0e-8a61-0123456789ab\n";

    #[test]
    fn a_place_is_a_boot_and_a_network_namespace() {
        assert_eq!(name(BOOT, 0xf000_0001).as_deref(), Some("2f1c7a5093ab4f0e.f0000001"));
        assert_ne!(name(BOOT, 1), name(BOOT, 2));
        assert_ne!(name(BOOT, 1), name(&BOOT.replace("93ab", "93ac"), 1));
        assert_eq!(name("unknown\n", 1), None);
        assert_eq!(name(BOOT, 1 << 32), None);
    }

    #[test]
    fn every_process_here_says_the_same_and_it_fits_into_a_protocols_name() {
        let here = place().expect("this host has /proc");
        assert_eq!(place().as_ref(), Ok(&here));
        assert!("shm:".len() + here.len() <= 32 && here.bytes().all(|b| b.is_ascii_graphic()), "{here}");
    }
}
