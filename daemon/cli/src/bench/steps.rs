//! Where a small message's time goes, step by step: what was measured for itself, and what is left.

use super::{
    end::Part,
    result::{Point, Polling, Spread, Step, Test},
};
use crate::perf::round;

/// Bytes of the message whose steps these are.
const BYTES: u64 = 8;

/// The half round trip of the smallest message.
fn half(points: &[Point], test: Test, path: &str, polling: Polling) -> Option<f64> {
    let is_it = |point: &&Point| {
        (point.test, point.path.as_str(), point.polling, point.bytes) == (test, path, polling, BYTES)
    };
    points.iter().find(is_it).map(|point| point.time_us.p50)
}

fn step(path: &str, name: &str, us: Option<f64>, how: &str) -> Step {
    let us = us.map(|us| round(us.max(0.0), 3));
    Step { path: path.to_owned(), name: name.to_owned(), us, how: how.to_owned() }
}

/// The steps of kernel TCP from what its ends timed, and of shared memory from what the rings alone take.
pub(super) fn steps(points: &[Point], sockets: &[Part], hand_over_ns: Option<Spread>) -> Vec<Step> {
    let mut steps = Vec::new();
    if let Some(spinning) = half(points, Test::Latency, "sockets", Polling::Spin) {
        steps.extend(sockets.iter().map(|part| step("sockets", &part.name, Some(part.us), &part.how)));
        let timed: f64 = sockets.iter().map(|part| part.us).sum();
        let rest = "what is left of half a spinning round trip: what the kernel does between the two calls, and calls in vain";
        steps.push(step("sockets", "in between", Some(spinning - timed), rest));
        let wake = half(points, Test::Latency, "sockets", Polling::Block).map(|blocking| blocking - spinning);
        steps.push(step("sockets", "wake-up", wake, "half a blocking round trip less half a spinning one"));
    }
    let line = hand_over_ns.map(|spread| spread.median / 1e3);
    let ring = half(points, Test::Ring, "ring", Polling::Spin);
    if let Some(spinning) = half(points, Test::Latency, "shm", Polling::Spin) {
        steps.push(step(
            "shm",
            "a cache line",
            line,
            "handed from one processor to the other and back: half of that",
        ));
        let rest = line.map(|line| spinning - line);
        let how = "what is left of half a spinning round trip: writing the request, finding, checking and answering it";
        steps.push(step("shm", "the device", rest, how));
        let wake = half(points, Test::Latency, "shm", Polling::Block).map(|blocking| blocking - spinning);
        steps.push(step("shm", "wake-up", wake, "half a blocking round trip less half a spinning one"));
    }
    if let (Some(ring), Some(line)) = (ring, line) {
        steps.push(step(
            "ring",
            "a cache line",
            Some(line),
            "handed from one processor to the other and back: half of that",
        ));
        steps.push(step(
            "ring",
            "the client's ring",
            Some(ring - line),
            "what is left of half a round trip through a client's ring",
        ));
        let checked = half(points, Test::CheckedRing, "ring", Polling::Spin);
        steps.push(step(
            "ring",
            "validation",
            checked.map(|checked| checked - ring),
            "the same where each entry is parsed as a daemon does, less that",
        ));
    }
    for path in ["roce-xdp", "roce-udp", "tcp", "tcp-epoll"] {
        let Some(spinning) = half(points, Test::Latency, path, Polling::Spin) else { continue };
        steps.push(step(
            path,
            "spinning",
            Some(spinning),
            "half a round trip; its parts cannot be told apart from outside",
        ));
        let wake = half(points, Test::Latency, path, Polling::Block).map(|blocking| blocking - spinning);
        steps.push(step(path, "wake-up", wake, "half a blocking round trip less half a spinning one"));
    }
    steps
}
