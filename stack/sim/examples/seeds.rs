//! Lives through many seeded worlds of reliable connections: `seeds [FIRST [COUNT]]`, of which the second is 10,000.
#![expect(clippy::print_stdout, reason = "a program for people")]

use std::{env, process::ExitCode};

use ringway_sim::rc;

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1).filter_map(|argument| argument.parse::<u64>().ok());
    let (first, count) = (arguments.next().unwrap_or(0), arguments.next().unwrap_or(10_000));
    let (mut packets, mut lost, mut requests, mut refusals, mut losses, mut drains, mut failures) =
        (0, 0, 0, 0, 0, 0, 0);
    for seed in first..first.saturating_add(count) {
        match rc::run(seed) {
            Ok(report) => {
                packets += report.packets.sent;
                lost += report.packets.lost;
                requests += report.requests;
                refusals += report.refusals;
                losses += report.losses;
                drains += report.drains;
            }
            Err(violation) => {
                failures += 1;
                println!("seed {seed}: {violation}");
            }
        }
    }
    println!(
        "{count} seeds from {first}: {failures} violations; {requests} requests, {packets} packets, {lost} lost, \
         {refusals} streams refused, {losses} peers given up, send queues drained {drains} times"
    );
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
