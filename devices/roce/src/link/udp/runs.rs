//! Packets waiting to be sent, in runs that the kernel cuts up again: one run is one message of one system call.

use core::ops::Range;

use crate::link::{Path, SendError};

/// The most packets of a run: what every kernel that segments allows.
pub(crate) const RUN_PACKETS_MAX: u16 = 64;
/// The most bytes of a run: what UDP over IPv4 can say.
pub(crate) const RUN_BYTES_MAX: usize = 65_507;

/// Packets of one way that lie behind each other: all of one length, but for a shorter last one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub(super) path: Path,
    start: usize,
    length: usize,
    /// Bytes of each packet but the last.
    pub(super) segment: usize,
    pub(super) packets: u16,
    open: bool,
}

impl Run {
    pub(super) const fn range(&self) -> Range<usize> {
        self.start..self.start + self.length
    }

    /// Whether a packet of this length may follow.
    fn takes(&self, path: &Path, length: usize) -> bool {
        self.open
            && self.path == *path
            && length <= self.segment
            && self.packets < RUN_PACKETS_MAX
            && self.length + length <= RUN_BYTES_MAX
    }
}

/// The memory they wait in. What has been sent makes room when nothing is left.
#[derive(Debug)]
pub(super) struct Runs {
    bytes: Box<[u8]>,
    used: usize,
    runs: Vec<Run>,
    /// How many of the runs have been sent.
    sent: usize,
    runs_max: usize,
    /// Whether a run may have more than one packet.
    pub(super) joined: bool,
}

impl Runs {
    pub(super) fn new(bytes: usize, runs_max: usize, joined: bool) -> Self {
        let runs = Vec::with_capacity(runs_max);
        Self { bytes: vec![0; bytes].into_boxed_slice(), used: 0, runs, sent: 0, runs_max, joined }
    }

    /// Makes room for a packet; gives its place in its run, which is the identification that the kernel will give it,
    /// and its memory.
    pub(super) fn push(&mut self, path: &Path, length: usize) -> Result<(u16, &mut [u8]), SendError> {
        if length > RUN_BYTES_MAX || length == 0 {
            return Err(SendError::TooLong);
        }
        let start = self.used;
        let memory =
            self.bytes.get_mut(start..).and_then(|free| free.get_mut(..length)).ok_or(SendError::Full)?;
        let room = self.runs.len() < self.runs_max;
        let last = self.runs.get_mut(self.sent..).and_then(<[Run]>::last_mut);
        let place = match last.filter(|run| self.joined && run.takes(path, length)) {
            Some(run) => {
                run.open = length == run.segment;
                run.length += length;
                run.packets += 1;
                run.packets - 1
            }
            None if room => {
                self.runs.push(Run { path: *path, start, length, segment: length, packets: 1, open: true });
                0
            }
            None => return Err(SendError::Full),
        };
        self.used += length;
        Ok((place, memory))
    }

    /// What has not been sent, in order.
    pub(super) fn waiting(&self) -> &[Run] {
        self.runs.get(self.sent..).unwrap_or_default()
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The first `runs` of what waits are sent.
    pub(super) fn advance(&mut self, runs: usize) {
        self.sent += runs;
        if self.sent >= self.runs.len() {
            self.runs.clear();
            self.sent = 0;
            self.used = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use ringway_wire::{Addresses, Flow, PathMtu};

    use super::*;

    fn path(port: u16) -> Path {
        let addresses = Addresses::V4 { source: Ipv4Addr::LOCALHOST, destination: Ipv4Addr::LOCALHOST };
        Path { flow: Flow::new(addresses, port), mtu: PathMtu::Mtu4096, traffic_class: 0, via: 0 }
    }

    fn shape(runs: &Runs) -> Vec<(usize, u16, usize)> {
        runs.waiting().iter().map(|run| (run.segment, run.packets, run.range().len())).collect()
    }

    #[test]
    fn equal_packets_and_a_shorter_last_one_make_a_run() {
        let mut runs = Runs::new(1 << 20, 8, true);
        let lengths = [4112, 4112, 4112, 100, 4112, 4128, 16];
        let places = lengths.map(|length| runs.push(&path(1), length).map(|(place, _)| place));
        assert_eq!(places, [Ok(0), Ok(1), Ok(2), Ok(3), Ok(0), Ok(0), Ok(1)]);
        assert_eq!(shape(&runs), [(4112, 4, 12_436), (4112, 1, 4112), (4128, 2, 4144)]);
        let ends: Vec<_> = runs.waiting().iter().map(Run::range).collect();
        assert_eq!(ends, [0..12_436, 12_436..16_548, 16_548..20_692]);
    }

    #[test]
    fn another_way_begins_another_run() {
        let mut runs = Runs::new(1 << 20, 8, true);
        for port in [1, 2, 2, 1] {
            runs.push(&path(port), 40).unwrap();
        }
        assert_eq!(shape(&runs), [(40, 1, 40), (40, 2, 80), (40, 1, 40)]);
    }

    #[test]
    fn no_run_is_longer_than_a_packet_of_udp_may_be() {
        let mut runs = Runs::new(1 << 20, 8, true);
        for _ in 0..17 {
            runs.push(&path(1), 4112).unwrap();
        }
        assert_eq!(shape(&runs), [(4112, 15, 61_680), (4112, 2, 8224)]);
        runs.advance(2);
        for _ in 0..65 {
            runs.push(&path(1), 24).unwrap();
        }
        assert_eq!(shape(&runs), [(24, 64, 1536), (24, 1, 24)]);
        assert_eq!(runs.push(&path(1), RUN_BYTES_MAX + 1), Err(SendError::TooLong));
    }

    #[test]
    fn what_is_full_takes_nothing_until_all_is_sent() {
        let mut runs = Runs::new(100, 2, true);
        runs.push(&path(1), 60).unwrap();
        assert_eq!(runs.push(&path(1), 60), Err(SendError::Full));
        runs.push(&path(2), 20).unwrap();
        assert_eq!(runs.push(&path(3), 20), Err(SendError::Full), "no third run");
        runs.advance(1);
        assert_eq!(shape(&runs), [(20, 1, 20)]);
        assert_eq!(runs.push(&path(3), 20), Err(SendError::Full));
        runs.advance(1);
        assert!(runs.waiting().is_empty());
        assert_eq!(runs.push(&path(3), 100).map(|(place, memory)| (place, memory.len())), Ok((0, 100)));
    }

    #[test]
    fn a_run_that_is_being_sent_is_not_added_to() {
        let mut runs = Runs::new(1000, 4, true);
        runs.push(&path(1), 60).unwrap();
        runs.push(&path(2), 60).unwrap();
        runs.advance(1);
        assert_eq!(runs.push(&path(1), 60).map(|(place, _)| place), Ok(0));
        let mut alone = Runs::new(1000, 4, false);
        alone.push(&path(1), 60).unwrap();
        assert_eq!(alone.push(&path(1), 60).map(|(place, _)| place), Ok(0));
        assert_eq!(shape(&alone), [(60, 1, 60), (60, 1, 60)]);
    }
}
