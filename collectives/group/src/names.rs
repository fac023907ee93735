//! How things are named while a communicator is being formed.

use std::{net::SocketAddr, time::Duration};

use ringway_verbs::Time;
use serde::{Deserialize, Serialize};

/// Names a communicator to be formed at its root. The user is part of it, so that nobody joins another user's
/// communicator even if its secret leaks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    /// The secret of the communicator's id.
    pub secret: [u8; 16],
    /// The user whose processes join.
    pub uid: u32,
}

impl core::fmt::Debug for Key {
    /// Leaves the secret out: keys end up in logs.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Key").field("uid", &self.uid).finish_non_exhaustive()
    }
}

/// One attempt of one member daemon to form one communicator. Never used twice by a daemon, so that an answer to an
/// earlier attempt is not taken for one to a later attempt under the same key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GroupId(pub u64);

/// One rank's wish to join, as its daemon names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A member's connection, as the root names it. A member that connects again is another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeRef(pub u64);

impl NodeRef {
    /// The root's own node.
    pub const HERE: Self = Self(0);
}

/// Where a communicator's root is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RootAt {
    /// In this daemon.
    Here,
    /// In the daemon that listens there.
    There(SocketAddr),
}

/// The point in time `duration` after `time`.
pub(crate) fn after(time: Time, duration: Duration) -> Time {
    Time(time.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
}

/// Ranks for people: `rank 3`, `ranks 0-2 and 7`, `ranks 0, 2, 4 and 90 more`.
pub(crate) fn list_ranks(ranks: impl IntoIterator<Item = u32>) -> String {
    const RUNS_SHOWN: usize = 8;
    let mut runs: Vec<(u32, u32)> = Vec::new();
    let mut count = 0_usize;
    for rank in ranks {
        count += 1;
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(rank) => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let shown = runs.iter().take(RUNS_SHOWN);
    let covered: usize = shown.clone().map(|(a, b)| (b - a) as usize + 1).sum();
    let mut parts: Vec<String> =
        shown.map(|(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") }).collect();
    if covered < count {
        parts.push(format!("{} more", count - covered));
    }
    let noun = if count == 1 { "rank" } else { "ranks" };
    match parts.split_last() {
        None => "no rank".into(),
        Some((only, [])) => format!("{noun} {only}"),
        Some((last, rest)) => format!("{noun} {} and {last}", rest.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_listed_for_people() {
        assert_eq!(list_ranks([]), "no rank");
        assert_eq!(list_ranks([3]), "rank 3");
        assert_eq!(list_ranks([0, 1, 2, 7]), "ranks 0-2 and 7");
        assert_eq!(list_ranks([1, 3]), "ranks 1 and 3");
        let text = list_ranks((0..40).map(|r| r * 2));
        assert_eq!(text, "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 32 more");
    }

    #[test]
    fn secrets_stay_out_of_logs() {
        let text = format!("{:?}", Key { secret: [0x5a; 16], uid: 7 });
        assert!(!text.contains("90") && !text.contains("5a"), "{text}");
    }
}
