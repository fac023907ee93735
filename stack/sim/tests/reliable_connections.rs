//! Reliable connections under everything a network does; `examples/seeds.rs` tries many more seeds.

use ringway_sim::rc;

/// Worlds that are lived through.
const SEEDS: u64 = 300;

#[test]
fn random_requests_survive_what_the_network_does() {
    let (mut refusals, mut losses, mut unready, mut lost, mut drains) = (0, 0, 0, 0, 0);
    for seed in 0..SEEDS {
        match rc::run(seed) {
            Ok(report) => {
                refusals += report.refusals;
                losses += report.losses;
                unready += report.unready;
                lost += report.packets.lost;
                drains += report.drains;
            }
            Err(violation) => panic!("seed {seed}: {violation}"),
        }
    }
    // The worlds are as bad as they are meant to be.
    assert!(refusals > 0 && losses > 0 && lost > 1_000, "{refusals} refusals, {losses} losses, {lost} lost");
    assert!(unready > 0, "none gave up for want of a receive");
    assert!(drains > SEEDS, "send queues were drained {drains} times");
}
