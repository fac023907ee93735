//! What an interface's driver can do with XDP, asked for without attaching anything (`Documentation/netlink/specs/netdev.yaml`
//! of the kernel's sources, from Linux 6.3 on).

use std::io;

use super::netlink::{GENERIC, Message, Netlink, Request, attributes};

/// The family that knows the others.
const CONTROL: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

const GET_DEVICE: u8 = 1;
const DEVICE_INDEX: u16 = 1;
const DEVICE_FEATURES: u16 = 3;
/// AF_XDP sockets without copies.
const ZERO_COPY: u64 = 1 << 3;

/// Whether the driver of the interface says that it moves frames to and from AF_XDP sockets without copies.
pub(super) fn zero_copy(interface: u32) -> io::Result<bool> {
    let mut netlink = Netlink::open(GENERIC, 0)?;
    let request = Request::new(CONTROL, 0, &[&header(GET_FAMILY)]).with(FAMILY_NAME, b"netdev\0");
    let family = u16::from_ne_bytes(attribute(&netlink.ask(request)?, FAMILY_ID)?);
    let request =
        Request::new(family, 0, &[&header(GET_DEVICE)]).with(DEVICE_INDEX, &interface.to_ne_bytes());
    let features = u64::from_ne_bytes(attribute(&netlink.ask(request)?, DEVICE_FEATURES)?);
    Ok(features & ZERO_COPY != 0)
}

/// What stands before a family's attributes: command, version and nothing.
const fn header(command: u8) -> [u8; 4] {
    [command, 1, 0, 0]
}

fn attribute<const N: usize>(answer: &Message<'_>, wanted: u16) -> io::Result<[u8; N]> {
    let all = answer.body.get(header(0).len()..).unwrap_or_default();
    let found = attributes(all).find(|(kind, _)| *kind == wanted);
    found
        .and_then(|(_, value)| value.first_chunk().copied())
        .ok_or_else(|| io::Error::from_raw_os_error(libc::EIO))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loopback_interface_cannot_do_without_copies() {
        match zero_copy(1) {
            Ok(can) => assert!(!can),
            // An older kernel.
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOENT), "{error}"),
        }
    }
}
