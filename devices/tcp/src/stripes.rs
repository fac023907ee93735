//! How payload is divided among the connections of a queue pair.
//!
//! # Why several
//! One connection is one flow: one path of those that a network has side by side, one window, which a lost packet halves, and
//! at the receiving host one processor that the card's interrupts and the protocol's work go to. Where one of these is less
//! than the link, several connections fill more of it. They cost system calls and wake-ups, each of which moves less, so
//! that there is one unless the connecting side is told to make more ([`TcpConfig::connections`](crate::TcpConfig)).
//!
//! # What goes where
//! The first connection carries all frames, in order. A payload of less than [`PART_MIN`] bytes follows its frame. A longer
//! one is cut into as many parts of about that length as fit into it, at most one for each connection, and each part goes over
//! one connection as bare bytes, one behind the other. Connections take turns, so that payloads of one part use all of them as well. Both
//! sides count the turns and know the length from the frame, so nothing else is said about it: what a peer sends beyond a part
//! is the next part's, and what it leaves out is waited for, as on one connection.
//!
//! # Order
//! A frame is executed when all parts of its payload are in their places, and the next frame is looked at after that, so
//! everything happens in the order of the frames, as with one connection. Bytes of later parts wait in their sockets.
//!
//! # Why that cannot deadlock
//! A connection's parts are sent in the order of their frames, without waiting for other connections. Of the oldest frame
//! that is not executed the missing parts are therefore the first that their connections still have to bring, and the
//! receiver reads just these. Meanwhile it does not read acknowledgements that are behind the frame on the first connection;
//! the sender needs none of them to send the missing parts.
//!
//! # The end
//! The loss of any connection is the end of the queue pair, as soon as that connection is read again. Bytes that the others
//! brought before it and that were not read yet are lost with it, acknowledgements among them.

/// The most connections of a queue pair.
pub const MAX_CONNECTIONS: usize = 8;
/// The shortest part of a payload, in bytes: with shorter ones the system calls cost more than the bytes.
const PART_MIN: u64 = 64 << 10;
/// Parts begin at multiples of so many bytes of the payload.
const ALIGNMENT: u64 = 4 << 10;

/// Whose turn it is in one direction, among so many connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turns {
    connections: usize,
    next: usize,
}

impl Turns {
    pub(crate) const fn new(connections: usize) -> Self {
        Self { connections, next: 0 }
    }

    /// How the next payload is divided, which is this long.
    pub(crate) fn divide(self, length: u64) -> Division {
        let Self { connections, next } = self;
        if connections <= 1 || length < PART_MIN {
            return Division { connections, first: 0, parts: 1, part: length, length };
        }
        // No more than there are connections, so it fits.
        let parts = (length / PART_MIN).min(connections as u64) as usize;
        let part = length.div_ceil(parts as u64).next_multiple_of(ALIGNMENT);
        Division { connections, first: next, parts, part, length }
    }

    /// Takes note of a payload that was divided so.
    pub(crate) fn advance(&mut self, division: &Division) {
        if division.length >= PART_MIN {
            self.next = (self.next + division.parts) % self.connections.max(1);
        }
    }
}

/// A payload's parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Division {
    connections: usize,
    /// The connection that has the first part; the others follow.
    first: usize,
    parts: usize,
    /// Bytes of each part but the last.
    part: u64,
    length: u64,
}

impl Division {
    /// What goes over a connection: from where, and how many bytes, which may be none.
    pub(crate) fn of(&self, connection: usize) -> (u64, u64) {
        let place = (connection + self.connections.max(1) - self.first) % self.connections.max(1);
        let start = self.part * place as u64;
        match self.length.checked_sub(start) {
            Some(rest) if place < self.parts => (start, rest.min(self.part)),
            _ => (0, 0),
        }
    }
}

/// What of two pieces lies in a range of the bytes that they are together: for each where that begins in it, and its length.
pub(crate) fn cut(lengths: [u64; 2], (start, length): (u64, u64)) -> [(u64, u64); 2] {
    let [first, second] = lengths;
    let in_first = length.min(first.saturating_sub(start));
    let after = start.saturating_sub(first);
    [(start.min(first), in_first), (after.min(second), (length - in_first).min(second.saturating_sub(after)))]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Every byte goes over exactly one connection, in parts that are worth it, and all connections are used alike.
        #[test]
        fn parts_are_the_whole(
            connections in 1..=MAX_CONNECTIONS,
            lengths in prop::collection::vec(prop_oneof![0..4 * PART_MIN, 0..1_u64 << 30], 1..20),
        ) {
            let mut turns = Turns::new(connections);
            let mut parts_of = vec![0_u32; connections];
            for length in lengths {
                let division = turns.divide(length);
                let mut parts: Vec<_> = (0..connections).map(|connection| division.of(connection)).collect();
                if length < PART_MIN {
                    prop_assert_eq!(parts[0], (0, length));
                } else {
                    parts.iter().zip(&mut parts_of).for_each(|(part, count)| *count += u32::from(part.1 > 0));
                }
                parts.retain(|part| part.1 > 0);
                parts.sort_unstable();
                let mut next = 0;
                for (start, part) in &parts {
                    prop_assert_eq!(*start, next);
                    prop_assert!(parts.len() == 1 || *part >= PART_MIN - 8 * ALIGNMENT);
                    next += part;
                }
                prop_assert_eq!(next, length);
                turns.advance(&division);
            }
            let (least, most) = (parts_of.iter().min(), parts_of.iter().max());
            prop_assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 1), "{:?}", parts_of);
        }

        #[test]
        fn pieces_are_cut_where_the_range_is(
            (first, second) in (0_u64..100, 0_u64..100),
            (start, length) in (0_u64..100, 0_u64..100),
        ) {
            let cut = cut([first, second], (start, length));
            let byte = |at: u64| if at < first { (0, at) } else { (1, at - first) };
            let expected: Vec<_> = (start..start + length).filter(|at| *at < first + second).map(byte).collect();
            let found: Vec<_> = (0..2).flat_map(|piece| {
                let (start, length) = cut[piece];
                (start..start + length).map(move |at| (piece, at))
            }).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
