//! Long transfers over bad links, in virtual time: between two ends that agreed on selective acknowledgement loss costs
//! little, congestion is met without losing much, and toward plain ends notifications slow down.
#![expect(clippy::expect_used, reason = "a helper of tests may panic")]

use ringway_sim::rc::{Bulk, Faults, Transferred, transfer};

const DURATION_NS: u64 = 20_000_000;

/// A link of 10 Gb/s with a queue of a mebibyte.
const LINK: Faults = Faults { rate: 1_250_000_000, latency_ns: 5_000, queue_bytes: 1 << 20, ..Faults::NONE };

fn run(selective: bool, reads: bool, senders: usize, faults: Faults) -> Transferred {
    let bulk = Bulk { senders, reads, selective, faults, duration_ns: DURATION_NS, seed: 1 };
    transfer(&bulk).expect("the transfer works")
}

/// What part of the link was used.
fn used(transferred: &Transferred) -> f64 {
    transferred.total() as f64 * 1e9 / DURATION_NS as f64 / LINK.rate as f64
}

#[test]
fn a_clean_link_is_used_in_full() {
    for (selective, reads) in [(true, false), (true, true), (false, false), (false, true)] {
        let used = used(&run(selective, reads, 1, LINK));
        assert!(used > 0.9, "selective {selective}, reads {reads}: {used}");
    }
}

#[test]
fn a_hundredth_lost_leaves_more_than_half() {
    for reads in [false, true] {
        let clean = used(&run(true, reads, 1, LINK));
        let lossy = used(&run(true, reads, 1, Faults { loss: 10, ..LINK }));
        assert!(lossy > 0.5 * clean, "reads {reads}: {lossy} instead of {clean}");
    }
}

#[test]
fn loss_costs_more_without_selective_acknowledgement() {
    let faults = Faults { loss: 10, ..LINK };
    let (plain, selective) = (used(&run(false, false, 1, faults)), used(&run(true, false, 1, faults)));
    assert!(selective > 1.5 * plain, "{selective} and {plain}");
}

#[test]
fn a_lost_tail_does_not_wait_for_the_timeout() {
    // One request at a time would be all tail; here every fourth packet is lost.
    let lossy = used(&run(true, false, 1, Faults { loss: 250, ..LINK }));
    assert!(lossy > 0.2, "{lossy}");
}

#[test]
fn many_senders_share_a_link_that_marks() {
    let transferred = run(true, false, 8, Faults { mark_bytes: 100 << 10, ..LINK });
    let least = transferred.bytes.iter().min().copied().unwrap_or_default();
    let used = used(&transferred);
    assert!(used > 0.8, "{used}");
    assert!(least * 8 * 4 > transferred.total(), "{:?}", transferred.bytes);
    let packets = transferred.packets;
    assert!(packets.dropped * 100 < packets.sent, "{packets:?}");
}

#[test]
fn notifications_slow_plain_senders_down() {
    let marking = run(false, false, 8, Faults { mark_bytes: 100 << 10, ..LINK });
    let silent = run(false, false, 8, LINK);
    assert!(marking.packets.dropped * 2 < silent.packets.dropped, "{marking:?} and {silent:?}");
    assert!(used(&marking) > used(&silent), "{marking:?} and {silent:?}");
}
