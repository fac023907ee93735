//! How packets find a peer.

use core::net::Ipv6Addr;

use crate::endpoint::Place;

/// What a queue pair is told of where its peer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    /// The peer in its InfiniBand subnet; zero on Ethernet.
    pub(crate) lid: u16,
    /// The global route, with which packets carry a GRH (IBA volume 1, 8.3); on Ethernet that is the address itself.
    pub(crate) route: Option<Route>,
}

/// From one GID to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) to: Ipv6Addr,
    /// This side's place in the port's table.
    pub(crate) from: u8,
}

impl Address {
    /// The address of a peer from this place, which is at `index` of its port's table. InfiniBand needs no route within a subnet,
    /// unless the port is one that wants one always; to another subnet packets go through routers, to which the peer's LID
    /// must mean something.
    pub(crate) fn of(peer: Place, own: Place, index: u8, wants_route: bool) -> Self {
        let (lid, to, is_routed) = match (peer, own) {
            (Place::Gid(to), _) => (0, to, true),
            (Place::Lid { lid, gid }, Place::Lid { gid: here, .. } | Place::Gid(here)) => {
                (lid, gid, wants_route || prefix(gid) != prefix(here))
            }
        };
        Self { lid, route: is_routed.then_some(Route { to, from: index }) }
    }
}

/// The subnet of a GID.
const fn prefix(gid: Ipv6Addr) -> u64 {
    (gid.to_bits() >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(text: &str) -> Ipv6Addr {
        text.parse().expect("an address")
    }

    fn infiniband(lid: u16, text: &str) -> Place {
        Place::Lid { lid, gid: gid(text) }
    }

    #[test]
    fn on_ethernet_the_gid_is_the_address() {
        let (here, there) = (gid("::ffff:10.0.0.1"), gid("::ffff:10.0.0.2"));
        for wants_route in [false, true] {
            let address = Address::of(Place::Gid(there), Place::Gid(here), 3, wants_route);
            assert_eq!(address, Address { lid: 0, route: Some(Route { to: there, from: 3 }) });
        }
    }

    #[test]
    fn within_a_subnet_the_lid_is_enough_unless_the_port_wants_a_route() {
        let (here, there) = (infiniband(1, "fe80::1"), infiniband(7, "fe80::7"));
        assert_eq!(Address::of(there, here, 2, false), Address { lid: 7, route: None });
        let route = Some(Route { to: gid("fe80::7"), from: 2 });
        assert_eq!(Address::of(there, here, 2, true), Address { lid: 7, route });
    }

    #[test]
    fn to_another_subnet_packets_are_routed() {
        let (here, there) = (infiniband(1, "fec0:0:0:1::1"), infiniband(7, "fec0:0:0:2::7"));
        let route = Some(Route { to: gid("fec0:0:0:2::7"), from: 0 });
        assert_eq!(Address::of(there, here, 0, false), Address { lid: 7, route });
    }
}
