//! Socket addresses in the kernel's form.

use core::net::SocketAddr;

/// A socket address as the kernel reads it.
pub(crate) struct PeerAddress {
    storage: Storage,
}

enum Storage {
    V4(libc::sockaddr_in),
    V6(libc::sockaddr_in6),
}

impl core::fmt::Debug for PeerAddress {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("PeerAddress")
    }
}

impl PeerAddress {
    pub(crate) fn new(address: SocketAddr) -> Self {
        let storage = match address {
            SocketAddr::V4(v4) => Storage::V4(libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            }),
            SocketAddr::V6(v6) => Storage::V6(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            }),
        };
        Self { storage }
    }

    /// Its address and length. Valid until `self` moves.
    pub(crate) const fn raw(&self) -> (*const libc::sockaddr, libc::socklen_t) {
        match &self.storage {
            Storage::V4(v4) => ((&raw const *v4).cast(), size_of::<libc::sockaddr_in>() as libc::socklen_t),
            Storage::V6(v6) => ((&raw const *v6).cast(), size_of::<libc::sockaddr_in6>() as libc::socklen_t),
        }
    }
}
