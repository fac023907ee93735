//! This host as links see it: which interface has an address, what it carries, and sockets bound to the address.

use core::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
    path::Path as FilePath,
};

use ringway_wire::PathMtu;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, socket_with,
    sockopt::{
        Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
        set_ipv6_v6only,
    },
};

use super::{
    LinkError,
    system::{self, InterfaceAddress, errno},
};

/// The smallest IP packets that RoCE can do with: the least path MTU and what `PathMtu::for_interface` keeps.
pub(super) const INTERFACE_BYTES_MIN: usize = 256 + 80;

/// An address of this host, where it is.
#[derive(Debug, Clone)]
pub(super) struct LocalAddress {
    pub(super) address: IpAddr,
    pub(super) interface: String,
    /// The interface's index where the address needs it.
    pub(super) scope: u32,
    /// Everything the host has, for errors.
    known: String,
}

impl LocalAddress {
    /// Finds the address, which must be on the interface if one is named.
    pub(super) fn find(address: IpAddr, interface: Option<&str>) -> Result<Self, LinkError> {
        let known = system::interface_addresses().map_err(refused("list the interfaces"))?;
        let found = find_address(address, interface, &known)?;
        let scope = if is_link_local(address) { found.scope } else { 0 };
        Ok(Self { address, interface: found.interface, scope, known: known_addresses(&known) })
    }

    /// Binds a UDP socket from [`open`] to a port that others send to.
    pub(super) fn bind_port(&self, socket: &OwnedFd, port: u16) -> Result<(), LinkError> {
        let address = self.address;
        bind(socket, &socket_address(address, port, self.scope)).map_err(|error| match error.raw_os_error() {
            libc::EADDRINUSE => {
                let rxe = FilePath::new("/sys/module/rdma_rxe").exists();
                LinkError::PortTaken { address, port, rxe }
            }
            libc::EADDRNOTAVAIL => LinkError::NotLocal { address, known: self.known.clone() },
            _ => refused("bind a UDP socket to the RoCE port")(error.into()),
        })
    }

    /// The path MTU that the interface carries.
    pub(super) fn mtu(&self, socket: BorrowedFd<'_>) -> Result<PathMtu, LinkError> {
        let mtu_bytes =
            system::interface_mtu(socket, &self.interface).map_err(refused("read the interface's MTU"))?;
        path_mtu(mtu_bytes, || format!("interface {}", self.interface))
    }
}

/// The interface of this host that has an address: where a link at that address would be.
///
/// # Errors
/// When none has it, or the system does not tell.
pub fn interface_of(address: IpAddr) -> Result<String, LinkError> {
    Ok(LocalAddress::find(address, None)?.interface)
}

/// What the interface that has an address carries, in bytes per second; `None` where it does not say: some virtual ones, wireless
/// ones, and cards without a link.
pub(crate) fn line_rate(address: IpAddr) -> Option<u64> {
    let interface = interface_of(address).ok()?;
    let told_mbps = std::fs::read_to_string(format!("/sys/class/net/{interface}/speed")).ok()?;
    bytes_per_second(&told_mbps)
}

/// Of so many megabits per second as the system writes them: -1 where nobody knows.
fn bytes_per_second(told_mbps: &str) -> Option<u64> {
    let mbps: u64 = told_mbps.trim().parse().ok()?;
    mbps.checked_mul(1_000_000 / 8).filter(|rate| *rate > 0)
}

/// The path MTU for packets of so many bytes.
pub(super) fn path_mtu(mtu_bytes: usize, place: impl FnOnce() -> String) -> Result<PathMtu, LinkError> {
    PathMtu::for_interface(mtu_bytes).ok_or_else(|| LinkError::MtuTooSmall {
        place: place(),
        mtu_bytes,
        needed_bytes: INTERFACE_BYTES_MIN,
    })
}

/// The system refused something.
pub(super) fn refused(what: &'static str) -> impl Fn(io::Error) -> LinkError {
    move |error| match errno(&error) {
        errno @ (libc::EPERM | libc::EACCES) => LinkError::Privilege { what, errno },
        errno => LinkError::System { what, errno },
    }
}

pub(super) const fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

pub(super) fn socket_address(address: IpAddr, port: u16, scope: u32) -> SocketAddr {
    match address {
        IpAddr::V4(_) => SocketAddr::new(address, port),
        IpAddr::V6(v6) => SocketAddrV6::new(v6, port, 0, scope).into(),
    }
}

/// A UDP socket that never fragments, and sends whatever the interface carries: news of narrower ways can be forged by
/// anybody, and would hold back all that goes to that peer.
pub(super) fn open(address: IpAddr) -> Result<OwnedFd, LinkError> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::DGRAM, flags, None)
        .map_err(|error| refused("open a UDP socket")(error.into()))?;
    let options = || match address {
        IpAddr::V4(_) => set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::PROBE),
        IpAddr::V6(_) => {
            set_ipv6_v6only(&socket, true)?;
            set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::PROBE)
        }
    };
    options().map_err(|error| refused("forbid fragments on a UDP socket")(error.into()))?;
    Ok(socket)
}

fn known_addresses(known: &[InterfaceAddress]) -> String {
    let list: Vec<_> = known.iter().map(|one| format!("{} ({})", one.address, one.interface)).collect();
    if list.is_empty() { "none".to_owned() } else { list.join(", ") }
}

/// The interface that has the address, checked against the one that was asked for.
fn find_address(
    address: IpAddr,
    interface: Option<&str>,
    known: &[InterfaceAddress],
) -> Result<InterfaceAddress, LinkError> {
    let has_it = |one: &&InterfaceAddress| {
        // All of 127.0.0.0/8 is local where one of it is.
        one.address == address || (address.is_ipv4() && address.is_loopback() && one.address.is_loopback())
    };
    if let Some(wanted) = interface {
        if !known.iter().any(|one| one.interface == *wanted) {
            let (interface, known) = (wanted.to_owned(), known_addresses(known));
            return Err(LinkError::NoInterface { interface, known });
        }
        if let Some(found) = known.iter().filter(has_it).find(|one| one.interface == *wanted) {
            return Ok(found.clone());
        }
    }
    let found = known
        .iter()
        .find(has_it)
        .ok_or_else(|| LinkError::NotLocal { address, known: known_addresses(known) })?;
    match interface {
        Some(wanted) => {
            let (wanted, found) = (wanted.to_owned(), found.interface.clone());
            Err(LinkError::WrongInterface { address, wanted, found })
        }
        None => Ok(found.clone()),
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;

    #[test]
    fn an_interface_carries_what_its_driver_says() {
        assert_eq!(bytes_per_second("100000\n"), Some(12_500_000_000));
        for unknown in ["-1\n", "0", "", "fast", "99999999999999999999"] {
            assert_eq!(bytes_per_second(unknown), None, "{unknown}");
        }
        assert_eq!(line_rate(Ipv4Addr::LOCALHOST.into()), None, "nothing drives the loopback interface");
        assert_eq!(line_rate(Ipv4Addr::new(192, 0, 2, 1).into()), None, "it is not here");
    }
}
