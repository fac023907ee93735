//! Prints what long transfers make of links of many kinds.
#![expect(clippy::print_stdout, reason = "a program for people")]

use ringway_sim::rc::{Bulk, Faults, transfer};

fn main() -> Result<(), String> {
    const DURATION_NS: u64 = 50_000_000;
    let base = Faults { rate: 1_250_000_000, latency_ns: 5_000, queue_bytes: 1 << 20, ..Faults::NONE };
    let cases = [
        ("clean", base, 1),
        ("0.1 % loss", Faults { loss: 1, ..base }, 1),
        ("1 % loss", Faults { loss: 10, ..base }, 1),
        ("5 % loss", Faults { loss: 50, ..base }, 1),
        ("1 % reordered", Faults { reorder: 10, ..base }, 1),
        ("1 % loss, 100 us", Faults { loss: 10, latency_ns: 50_000, ..base }, 1),
        ("8 to 1", base, 8),
        ("8 to 1, short queue", Faults { queue_bytes: 64 << 10, ..base }, 8),
        ("8 to 1, marks", Faults { mark_bytes: 100 << 10, ..base }, 8),
    ];
    println!(
        "{:22} {:>9} {:>6} {:>9} {:>9} {:>9} {:>9}",
        "link of 10 Gb/s", "mode", "Gb/s", "least", "sent", "lost", "dropped"
    );
    for (name, faults, senders) in cases {
        for (mode, selective, reads) in
            [("plain", false, false), ("selective", true, false), ("sel. READ", true, true)]
        {
            let bulk = Bulk { senders, reads, selective, faults, duration_ns: DURATION_NS, seed: 1 };
            let done = transfer(&bulk)?;
            let gigabits = |bytes: u64| bytes as f64 * 8.0 / DURATION_NS as f64;
            let least = done.bytes.iter().min().copied().unwrap_or_default();
            println!(
                "{name:22} {mode:>9} {:6.2} {:9.2} {:9} {:9} {:9}",
                gigabits(done.total()),
                gigabits(least),
                done.packets.sent,
                done.packets.lost,
                done.packets.dropped
            );
        }
    }
    Ok(())
}
