//! Where a small message's time goes, step by step: what was measured for itself, and what is left.

use super::{
    end::Part,
    result::{Point, Polling, Spread, Step, Test},
};
use crate::perf::round;

/// Bytes of the message whose steps these are.
const BYTES: u64 = 8;

/// How a time was measured that no part is known of.
const UNPARTED: &str = "half a round trip; its parts cannot be told apart from outside";

/// The name of what checking an entry takes.
pub(super) const VALIDATION: &str = "validation";
/// Told where a difference is no more than what the measurements it is of differ by themselves.
pub(super) const WITHIN_NOISE: &str = "within the noise";

/// The half round trip of the smallest message.
fn half(points: &[Point], test: Test, path: &str, polling: Polling) -> Option<f64> {
    let is_it = |point: &&Point| {
        (point.test, point.path.as_str(), point.polling, point.bytes) == (test, path, polling, BYTES)
    };
    points.iter().find(is_it).map(|point| point.us())
}

/// A step, whose time cannot be told where it is a difference that comes to nothing.
fn step(path: &str, name: &str, us: Option<f64>, how: &str) -> Step {
    let time = us.map(|us| round(us, 3)).filter(|us| *us > 0.0);
    let is_lost = us.is_some() && time.is_none();
    Step { path: path.to_owned(), name: name.to_owned(), us: time, is_lost, how: how.to_owned() }
}

/// What is left of half a spinning round trip beside the calls that were timed alone. They take longer than the whole where
/// one goes on while the other end is in its own: that counts twice, so that it is taken off once.
fn rest_of_sockets(spinning: f64, timed: &[Part]) -> Step {
    if timed.is_empty() {
        return step("sockets", "spinning", Some(spinning), UNPARTED);
    }
    let rest = spinning - timed.iter().map(|part| part.us).sum::<f64>();
    let between = "what is left of half a spinning round trip: what the kernel does between the two calls, and calls in vain";
    let overlap = "what both ends do at the same time, taken off once: the calls, each timed alone, take so much longer than half a \
                   spinning round trip, as send(2) goes on when the receiver has the data already";
    let (name, how) = if rest < 0.0 { ("overlap", overlap) } else { ("in between", between) };
    Step { us: Some(round(rest, 3)), ..step("sockets", name, None, how) }
}

/// The steps of kernel TCP from what its ends timed, and of shared memory from what the rings alone take.
///
/// What validation adds is given, as it is a small part of two times that are the same only within one round.
pub(super) fn steps(
    points: &[Point],
    sockets: &[Part],
    [hand_over_ns, lines_of_shm]: [Option<Spread>; 2],
    validation_us: Option<f64>,
) -> Vec<Step> {
    let mut steps = Vec::new();
    if let Some(spinning) = half(points, Test::Latency, "sockets", Polling::Spin) {
        steps.extend(sockets.iter().map(|part| step("sockets", &part.name, Some(part.us), &part.how)));
        steps.push(rest_of_sockets(spinning, sockets));
        let wake = half(points, Test::Latency, "sockets", Polling::Block).map(|blocking| blocking - spinning);
        steps.push(step("sockets", "wake-up", wake, "half a blocking round trip less half a spinning one"));
    }
    let line = hand_over_ns.map(|spread| spread.median / 1e3);
    let ring = half(points, Test::Ring, "ring", Polling::Spin);
    if let Some(spinning) = half(points, Test::Latency, "shm", Polling::Spin) {
        // Of the same rounds, if that is known: processors may have been elsewhere when it was measured else.
        let line = lines_of_shm.map(|lines| spinning / lines.median).or(line);
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
        steps.push(step(
            "ring",
            VALIDATION,
            validation_us,
            "of each round the same where each entry is parsed as a daemon does, less that: the median of these differences",
        ));
    }
    for path in ["roce-xdp", "verbs", "roce-udp", "tcp", "tcp-epoll"] {
        let Some(spinning) = half(points, Test::Latency, path, Polling::Spin) else { continue };
        steps.push(step(path, "spinning", Some(spinning), UNPARTED));
        let wake = half(points, Test::Latency, path, Polling::Block).map(|blocking| blocking - spinning);
        steps.push(step(path, "wake-up", wake, "half a blocking round trip less half a spinning one"));
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::{super::report::sample, *};

    /// The names and times of the sockets' steps where half a spinning round trip takes so long.
    fn of_sockets(spinning: f64, timed: &[f64]) -> Vec<(String, Option<f64>)> {
        let points = [(Polling::Spin, spinning), (Polling::Block, 50.0)]
            .map(|(polling, us)| sample::point(Test::Latency, "sockets", polling, BYTES, us));
        let part = |us: &f64| Part { name: "call".to_owned(), us: *us, how: String::new() };
        let parts: Vec<Part> = timed.iter().map(part).collect();
        steps(&points, &parts, [None; 2], None).into_iter().map(|step| (step.name, step.us)).collect()
    }

    fn named(name: &str, us: f64) -> (String, Option<f64>) {
        (name.to_owned(), Some(us))
    }

    #[test]
    fn steps_add_up_to_the_whole() {
        for (spinning, rest) in [(5.0, ("in between", 0.13)), (3.6, ("overlap", -1.27))] {
            let found = of_sockets(spinning, &[3.87, 1.0]);
            let wake = round(50.0 - spinning, 3);
            let expected =
                [named("call", 3.87), named("call", 1.0), named(rest.0, rest.1), named("wake-up", wake)];
            assert_eq!(found, expected);
            let sum: f64 = found.iter().filter_map(|(_, us)| *us).sum();
            assert!((sum - 50.0).abs() < 1e-9, "{found:?}");
        }
    }

    #[test]
    fn validation_that_comes_to_nothing_is_said_to_be_within_the_noise() {
        let points = [(Test::Ring, 0.2), (Test::CheckedRing, 0.15)]
            .map(|(test, us)| sample::point(test, "ring", Polling::Spin, 8, us));
        let line = Some(Spread { least: 23.0, median: 80.0, most: 200.0 });
        let found = |validation| {
            let step = steps(&points, &[], [line, None], validation).pop().expect("steps");
            assert_eq!((step.path.as_str(), step.name.as_str()), ("ring", VALIDATION));
            (step.us, step.is_lost)
        };
        // Whatever the difference of the medians over rounds is.
        assert_eq!(found(Some(0.012)), (Some(0.012), false));
        assert_eq!(found(Some(-0.004)), (None, true));
        assert_eq!(found(Some(0.0)), (None, true));
        assert_eq!(found(None), (None, false));
    }

    #[test]
    fn calls_that_were_not_timed_are_not_told_apart() {
        assert_eq!(of_sockets(4.0, &[]), [named("spinning", 4.0), named("wake-up", 46.0)]);
    }
}
