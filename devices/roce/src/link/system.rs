//! The system calls of links that no crate in use has a safe form of: socket options, and what the host knows about its
//! interfaces.
//!
//! Every pointer handed to the kernel is made from a live value right before the call that uses it, and the kernel keeps
//! none of them beyond the call.

use core::{
    ffi::{CStr, c_int},
    mem::{size_of, zeroed},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6},
    ptr,
};
use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

/// The value of `errno`.
pub(super) fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// A socket address as the kernel lays it out.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct Name {
    pub(super) bytes: [u8; Self::LENGTH],
}

impl Name {
    /// Of the longer one, IPv6's.
    pub(super) const LENGTH: usize = size_of::<libc::sockaddr_in6>();
    pub(super) const EMPTY: Self = Self { bytes: [0; Self::LENGTH] };
    const V4_LENGTH: usize = size_of::<libc::sockaddr_in>();

    /// The address, and how many of the bytes it takes.
    pub(super) fn of(address: SocketAddr) -> (Self, usize) {
        let family = |family: c_int| u16::try_from(family).unwrap_or_default().to_ne_bytes();
        let port = address.port().to_be_bytes();
        let mut name = Self::EMPTY;
        let length = match address {
            SocketAddr::V4(v4) => {
                name.fill(&[&family(libc::AF_INET), &port, &v4.ip().octets()]);
                Self::V4_LENGTH
            }
            SocketAddr::V6(v6) => {
                let (flow, scope) = (v6.flowinfo().to_be_bytes(), v6.scope_id().to_ne_bytes());
                name.fill(&[&family(libc::AF_INET6), &port, &flow, &v6.ip().octets(), &scope]);
                Self::LENGTH
            }
        };
        (name, length)
    }

    fn fill(&mut self, parts: &[&[u8]]) {
        for (to, from) in self.bytes.iter_mut().zip(parts.iter().flat_map(|part| part.iter())) {
            *to = *from;
        }
    }

    /// The address in the bytes, if it is one of the Internet's.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        let (family, rest) = self.bytes.split_first_chunk()?;
        let (port, rest) = rest.split_first_chunk()?;
        let port = u16::from_be_bytes(*port);
        match c_int::from(u16::from_ne_bytes(*family)) {
            libc::AF_INET => {
                let octets: &[u8; 4] = rest.first_chunk()?;
                Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(*octets)), port))
            }
            libc::AF_INET6 => {
                let (_flow, rest) = rest.split_first_chunk::<4>()?;
                let (octets, rest) = rest.split_first_chunk::<16>()?;
                let scope = u32::from_ne_bytes(*rest.first_chunk()?);
                Some(SocketAddrV6::new(Ipv6Addr::from(*octets), port, 0, scope).into())
            }
            _ => None,
        }
    }
}

/// Sets an option that is an integer.
pub(super) fn set_option(socket: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    let length = u32::try_from(size_of::<c_int>()).unwrap_or_default();
    // SAFETY: the value is a live integer of the length given, which the kernel reads during the call.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// An option that is an integer.
pub(super) fn option(socket: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut length = u32::try_from(size_of::<c_int>()).unwrap_or_default();
    // SAFETY: value and length are live and exclusively borrowed; the kernel writes no more than the length given.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut length)
    };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// An address of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InterfaceAddress {
    pub(super) interface: String,
    pub(super) address: IpAddr,
    /// The interface's index, for link-local addresses.
    pub(super) scope: u32,
}

/// The Internet addresses of this host's interfaces.
pub(super) fn interface_addresses() -> io::Result<Vec<InterfaceAddress>> {
    let mut first: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: `first` is live; the call stores the head of a list there if it succeeds.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = first;
    // SAFETY: the list was made by `getifaddrs` and is freed only below; each `ifa_next` is null or its next element.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        if let Some(socket) = entry_address(entry) {
            // SAFETY: `ifa_name` of an element is a string that lives as long as the list.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) };
            let scope = if let SocketAddr::V6(v6) = socket { v6.scope_id() } else { 0 };
            let interface = name.to_string_lossy().into_owned();
            found.push(InterfaceAddress { interface, address: socket.ip(), scope });
        }
    }
    // SAFETY: the list comes from `getifaddrs`, and nothing refers to it any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// The Internet address of an element of the list.
fn entry_address(entry: &libc::ifaddrs) -> Option<SocketAddr> {
    // SAFETY: `ifa_addr` is null or points to an address that lives as long as the element.
    let family = unsafe { entry.ifa_addr.as_ref() }?.sa_family;
    let length = match c_int::from(family) {
        libc::AF_INET => Name::V4_LENGTH,
        libc::AF_INET6 => Name::LENGTH,
        _ => return None,
    };
    let mut name = Name::EMPTY;
    // SAFETY: an address of this family has at least `length` bytes, and `name` has room for them.
    unsafe { ptr::copy_nonoverlapping(entry.ifa_addr.cast::<u8>(), name.bytes.as_mut_ptr(), length) };
    name.address()
}

/// A request about the interface of this name, otherwise of zero bytes.
fn interface_request(interface: &str) -> libc::ifreq {
    // SAFETY: an `ifreq` of zero bytes is a valid one.
    let mut request: libc::ifreq = unsafe { zeroed() };
    // The last byte stays zero, so that the name ends.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name.iter_mut().take(room).zip(interface.bytes()) {
        *to = from.cast_signed();
    }
    request
}

/// The MTU of an interface, in bytes of IP packets.
pub(super) fn interface_mtu(socket: BorrowedFd<'_>, interface: &str) -> io::Result<usize> {
    let mut request = interface_request(interface);
    // SAFETY: the request is live and exclusively borrowed, and this call reads and writes an `ifreq`.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: after a successful SIOCGIFMTU this is the field that was written.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    Ok(usize::try_from(mtu).unwrap_or_default())
}

/// How many queues of an interface receive, and how many send; `None` if its driver does not say.
pub(super) fn channels(socket: BorrowedFd<'_>, interface: &str) -> Option<(u32, u32)> {
    /// `struct ethtool_channels` (`linux/ethtool.h`).
    #[repr(C)]
    #[derive(Default)]
    struct Channels {
        command: u32,
        maxima: [u32; 4],
        receiving: u32,
        sending: u32,
        other: u32,
        combined: u32,
    }
    const ETHTOOL_GCHANNELS: u32 = 0x3c;
    const SIOCETHTOOL: libc::Ioctl = 0x8946;
    let mut channels = Channels { command: ETHTOOL_GCHANNELS, ..Channels::default() };
    let mut request = interface_request(interface);
    request.ifr_ifru.ifru_data = (&raw mut channels).cast();
    // SAFETY: the request is live and exclusively borrowed, and so is what it points to: as the command in its first word
    // says, a structure that the kernel fills in.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    let Channels { receiving, sending, combined, .. } = channels;
    (result == 0).then(|| (receiving.saturating_add(combined), sending.saturating_add(combined)))
}
