//! Counts what plans do, to hold it against what they say they cost.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(unreachable_pub, reason = "shared between test files")]

use ringway_plan::verify::{Program, Scenario, enumerate};
use ringway_plan::{Action, Algorithm, Terms, Tuning};

/// Messages, bytes sent and bytes combined of one node.
fn of(program: &Program) -> (f64, f64, f64) {
    let (mut messages, mut sent, mut reduced) = (0, 0, 0);
    for step in program.chunks.iter().flatten() {
        match step.action {
            Action::Send { from, .. } => {
                messages += 1;
                sent += from.length;
            }
            Action::Receive { .. } => messages += 1,
            Action::Reduce { sources, length, .. } => {
                let operands = sources.partials.count + u32::from(sources.inputs.is_some());
                reduced += u64::from(operands - 1) * length;
            }
            _ => {}
        }
    }
    let number = |it: u64| f64::from(u32::try_from(it).unwrap());
    (number(messages), number(sent), number(reduced))
}

/// The busiest node of a plan of one chunk has exactly what the algorithm's cost says.
pub fn costs_what_it_says(scenario: &Scenario, algorithm: Algorithm, tuning: &Tuning, bytes: u64) {
    let programs = enumerate(scenario, Some(algorithm), tuning).unwrap();
    assert!(programs.iter().all(|program| program.chunks.len() == 1), "{algorithm}: one chunk");
    let most = |which: fn((f64, f64, f64)) -> f64| {
        programs.iter().map(|program| which(of(program))).fold(0.0, f64::max)
    };
    let counted = (most(|it| it.0), most(|it| it.1), most(|it| it.2));
    let terms = Terms {
        nodes: scenario.layout.nodes(),
        most_local: 1,
        bytes: f64::from(u32::try_from(bytes).unwrap()),
        group_nodes: tuning.group_nodes,
    };
    let cost = algorithm.cost(scenario.call.operation, &terms).unwrap();
    let same = |a: f64, b: f64| (a - b).abs() < 1e-6 * b.max(1.0);
    assert!(
        same(cost.messages, counted.0) && same(cost.sent, counted.1) && same(cost.reduced, counted.2),
        "{algorithm} {} between {} nodes: counted {counted:?}, said {cost:?}",
        scenario.call.operation,
        terms.nodes
    );
}
