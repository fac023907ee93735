//! Lives through many seeded worlds of reliable connections: `seeds [FIRST [COUNT]]`, of which the second is 10,000.
#![expect(clippy::print_stdout, reason = "a program for people")]

use std::{env, process::ExitCode};

use ringway_sim::rc::{self, Report};

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1).filter_map(|argument| argument.parse::<u64>().ok());
    let (first, count) = (arguments.next().unwrap_or(0), arguments.next().unwrap_or(10_000));
    let (mut total, mut longest, mut failures) = (Report::default(), (0, first), 0);
    for seed in first..first.saturating_add(count) {
        match rc::run(seed) {
            Ok(report) => {
                longest = longest.max((report.duration_ns, seed));
                total.packets.sent += report.packets.sent;
                total.packets.lost += report.packets.lost;
                total.requests += report.requests;
                total.refusals += report.refusals;
                total.losses += report.losses;
                total.unready += report.unready;
                total.drains += report.drains;
            }
            Err(violation) => {
                failures += 1;
                println!("seed {seed}: {violation}");
            }
        }
    }
    let Report { packets, requests, refusals, losses, unready, drains, .. } = total;
    println!(
        "{count} seeds from {first}: {failures} violations; {requests} requests, {} packets, {} lost, {refusals} streams \
         refused, {losses} peers given up, {unready} for want of a receive, send queues drained {drains} times; the \
         longest took {} ms of its time (seed {})",
        packets.sent,
        packets.lost,
        longest.0 / 1_000_000,
        longest.1
    );
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
