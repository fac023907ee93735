//! What a device is told.

use std::net::IpAddr;

#[cfg(feature = "verbs")]
use rustix::io::Errno;

#[cfg(feature = "verbs")]
use crate::IbverbsError;
use crate::{Own, Selector};

/// Whether the PCIe bus may reorder what the device writes to memory (`IBV_ACCESS_RELAXED_ORDERING`). What is written is in place
/// before the completion that tells of it all the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RelaxedOrdering {
    /// Where library, kernel and device take it: they are free to pass it over, and memory that is refused with it is registered
    /// without.
    #[default]
    Auto,
    /// As `Auto`, but memory that is refused with it stays refused.
    On,
    /// Never.
    Off,
}

#[cfg(feature = "verbs")]
impl RelaxedOrdering {
    /// Registers memory by `register`, which is told whether to ask for it.
    pub(crate) fn apply<T>(self, register: impl Fn(bool) -> Result<T, Errno>) -> Result<T, Errno> {
        match (self, register(self != Self::Off)) {
            // What the system says of an access that it does not know. With memory alone the second try fails alike.
            (Self::Auto, Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS)) => register(false),
            (_, result) => result,
        }
    }
}

/// What a device needs to know.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct IbverbsConfig {
    /// Which device, port and address.
    pub selector: Selector,
    /// Where the node is to others: a port there is preferred.
    pub own: Option<Own>,
    /// The most queue pairs, up to 65,535.
    pub max_queue_pairs: u32,
    /// The most registered regions, up to 65,535.
    pub max_regions: u32,
    /// How long connecting may take, in nanoseconds.
    pub connect_timeout_ns: u64,
    /// A connection on which nothing was heard for so long is tried, in nanoseconds.
    pub keep_alive_ns: u64,
    /// An unanswered request is repeated after 4.096 us times two to this power (at least; devices may take up to four times as
    /// long): 1 to 31. IBA volume 1, 9.9.2.1.1.
    pub timeout: u8,
    /// How often it is repeated before the connection counts as broken: up to 7, which Linux's software RoCE (rxe) takes for
    /// ever.
    pub retries: u8,
    /// How long peers wait before they repeat a message for which nothing was posted here: a code of IBA volume 1, table 45, up
    /// to 31.
    pub min_rnr_timer: u8,
    /// READs and atomics under way on a queue pair, as far as the device allows.
    pub rd_atomic: u8,
    /// Traffic class of packets: of RoCE the type-of-service byte.
    pub traffic_class: u8,
    /// InfiniBand's service level, or of RoCE the priority.
    pub service_level: u8,
    /// Whether the PCIe bus may reorder what the device writes to memory.
    pub relaxed_ordering: RelaxedOrdering,
}

impl IbverbsConfig {
    /// With 4096 queue pairs and regions, 5 s to connect, a sign of life every second, and six retries of 268 ms, which is how
    /// long a link may be down.
    #[must_use]
    pub fn new(selector: Selector, own_address: Option<IpAddr>) -> Self {
        Self {
            selector,
            own: own_address.map(Own::from),
            max_queue_pairs: 4096,
            max_regions: 4096,
            connect_timeout_ns: 5_000_000_000,
            keep_alive_ns: 1_000_000_000,
            // Longer than a peer in software may be kept from a processor. One that answers while rxe repeats to it makes rxe
            // (seen on Linux 6.1) go wrong: an acknowledgement of a request's last packet that comes while its first ones are
            // repeated moves rxe past the request without ending it, and the next time it repeats an empty rest of it, by
            // which all later packet numbers are off by one.
            timeout: 16,
            // Once less than what rxe takes for ever.
            retries: 6,
            min_rnr_timer: 8,
            rd_atomic: 16,
            traffic_class: 0,
            service_level: 0,
            relaxed_ordering: RelaxedOrdering::Auto,
        }
    }

    /// Refuses what is out of range.
    #[cfg(feature = "verbs")]
    pub(crate) fn check(&self) -> Result<(), IbverbsError> {
        let most = u32::from(u16::MAX);
        let limits = [
            ("max_queue_pairs", self.max_queue_pairs, most),
            ("max_regions", self.max_regions, most),
            ("timeout", self.timeout.into(), 31),
            ("retries", self.retries.into(), 7),
            ("rd_atomic", self.rd_atomic.into(), 128),
        ];
        let wrong = limits.into_iter().find(|(_, value, most)| *value == 0 || value > most);
        wrong.map_or(Ok(()), |(limit, _, most)| Err(IbverbsError::Limit { limit, most }))
    }
}

#[cfg(all(test, feature = "verbs"))]
mod tests {
    use core::cell::RefCell;

    use super::*;

    /// What a system is asked for that answers requests for relaxed ordering like this, and what comes of it.
    fn asked(ordering: RelaxedOrdering, relaxed: Result<(), Errno>) -> (Vec<bool>, Result<(), Errno>) {
        let asked = RefCell::new(Vec::new());
        let result = ordering.apply(|is_relaxed| {
            asked.borrow_mut().push(is_relaxed);
            if is_relaxed { relaxed } else { Ok(()) }
        });
        (asked.into_inner(), result)
    }

    #[test]
    fn relaxed_ordering_is_given_up_where_only_that_is_refused_and_may_be() {
        use RelaxedOrdering::{Auto, Off, On};
        for unknown in [Errno::INVAL, Errno::OPNOTSUPP] {
            assert_eq!(asked(Auto, Err(unknown)), (vec![true, false], Ok(())));
            assert_eq!(asked(On, Err(unknown)), (vec![true], Err(unknown)));
            assert_eq!(asked(Off, Err(unknown)), (vec![false], Ok(())));
        }
        // Without locked memory nothing else helps.
        assert_eq!(asked(Auto, Err(Errno::NOMEM)), (vec![true], Err(Errno::NOMEM)));
        for ordering in [Auto, On] {
            assert_eq!(asked(ordering, Ok(())), (vec![true], Ok(())));
        }
    }
}
