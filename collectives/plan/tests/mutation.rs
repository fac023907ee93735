//! The verifier is not fooled: a plan with one step or one wait changed is not right any more.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::{algorithms, layouts, operations, scenario, small};
use ringway_plan::verify::{Program, Scenario, check, enumerate};
use ringway_plan::{Action, Algorithm, OutputSet, Place, Span, Step, Targets};
use ringway_types::Operation;

/// Whether leaving a step out changes nothing by right: it moves no bytes, or moves them onto themselves.
fn is_idle(scenario: &Scenario, node: u32, step: &Step) -> bool {
    match step.action {
        Action::Nothing => true,
        // Rank 0 gets nothing from an exclusive scan.
        Action::Scan { carry: None, locals, .. }
            if locals.count == 1 && scenario.call.operation == Operation::Exscan =>
        {
            true
        }
        Action::Reduce { length, .. } | Action::Scan { length, .. } | Action::Fold { length, .. } => {
            length == 0
        }
        Action::Swap { a, .. } => a.length == 0,
        Action::Copy { from, into } => {
            let itself = |local: u32| {
                let rank = scenario.layout.local(node)[local as usize];
                from.place == Place::Input(local) && scenario.in_place[rank as usize]
            };
            let locals = u32::try_from(scenario.layout.local(node).len()).unwrap();
            let idle = match into.outputs {
                OutputSet::None => into.scratch.is_none(),
                OutputSet::One(local) => itself(local),
                OutputSet::All => (0..locals).all(itself),
                OutputSet::AllBut(but) => (0..locals).filter(|it| *it != but).all(itself),
            };
            idle || from.length == 0
        }
        Action::Send { .. } | Action::Receive { .. } => false,
    }
}

fn shifted(span: Span, element: u64) -> Span {
    Span { offset: span.offset + element, length: span.length.saturating_sub(element).max(element), ..span }
}

fn shifted_targets(targets: Targets, element: u64) -> Targets {
    Targets { offset: targets.offset + element, scratch: targets.scratch.map(|at| at + element), ..targets }
}

/// The step with something about it changed.
fn altered(step: &Step, element: u64) -> Vec<Step> {
    let with = |action| Step { action, after: step.after.clone() };
    match step.action {
        Action::Nothing => Vec::new(),
        Action::Send { peer, tag, from } => vec![
            with(Action::Send { peer, tag: tag + 1000, from }),
            with(Action::Send { peer: peer + 1, tag, from }),
        ],
        Action::Receive { peer, tag, into } => {
            let mut all = vec![with(Action::Receive { peer, tag: tag + 1000, into })];
            if into.length > 0 {
                all.push(with(Action::Receive { peer, tag, into: shifted(into, element) }));
            }
            all
        }
        Action::Reduce { sources, into, length, finish } if length > 0 => vec![
            with(Action::Reduce { sources, into, length, finish: !finish }),
            with(Action::Reduce { sources, into: shifted_targets(into, element), length, finish }),
            with(Action::Reduce { sources, into, length: length - element, finish }),
        ],
        Action::Copy { from, into } if from.length > 0 => {
            vec![with(Action::Copy { from, into: shifted_targets(into, element) })]
        }
        Action::Swap { a, b } if a.length > 0 => {
            vec![
                with(Action::Copy {
                    from: a,
                    into: Targets { outputs: OutputSet::None, offset: 0, scratch: None },
                }),
                with(Action::Swap { a: shifted(a, element), b }),
            ]
        }
        Action::Scan { carry: Some(_), locals, before, offset, length } if length > 0 => {
            vec![with(Action::Scan { carry: None, locals, before, offset, length })]
        }
        Action::Fold { carry, locals, offset, length, into } if length > 0 => {
            vec![with(Action::Fold { carry, locals, offset, length: length - element, into })]
        }
        _ => Vec::new(),
    }
}

fn mutants(scenario: &Scenario, node: u32, step: &Step) -> Vec<(&'static str, Step)> {
    if is_idle(scenario, node, step) {
        return Vec::new();
    }
    let element = u64::from(scenario.call.element);
    let mut all = vec![("left out", Step::free(Action::Nothing))];
    all.extend(altered(step, element).into_iter().map(|step| ("altered", step)));
    if step.after.iter().any(|range| !range.is_empty()) {
        all.push(("not waiting", Step::free(step.action)));
    }
    all
}

/// Whether a wait may be there for nothing: a receive waits for its stage, which the slot before may not have used;
/// among three nodes everyone hears of everyone directly. A pairwise exchange waits for the rounds before so that few
/// messages are under way, which is no matter of right or wrong (`tests/all_to_all.rs` proves that it does).
fn may_wait_for_nothing(scenario: &Scenario, algorithm: Option<Algorithm>, step: &Step) -> bool {
    match scenario.call.operation {
        _ if algorithm == Some(Algorithm::Pairwise) => {
            matches!(step.action, Action::Receive { .. } | Action::Send { .. })
        }
        Operation::AllToAll => matches!(step.action, Action::Receive { .. }),
        Operation::Barrier => scenario.layout.nodes() == 3,
        _ => false,
    }
}

/// What became of the mutants.
#[derive(Default)]
struct Attack {
    noticed: usize,
    excused_noticed: usize,
}

impl Attack {
    /// Changes every `stride`-th step of every node in turn.
    fn run(
        &mut self,
        scenario: &Scenario,
        algorithm: Option<Algorithm>,
        programs: &mut [Program],
        stride: usize,
    ) {
        for node in 0..programs.len() {
            for chunk in 0..programs[node].chunks.len() {
                let steps = programs[node].chunks[chunk].len();
                for index in (0..steps).skip((node + chunk) % stride).step_by(stride) {
                    let original = programs[node].chunks[chunk][index].clone();
                    for (what, mutant) in mutants(scenario, u32::try_from(node).unwrap(), &original) {
                        programs[node].chunks[chunk][index] = mutant.clone();
                        let noticed = check(scenario, programs).is_err();
                        let excused = may_wait_for_nothing(scenario, algorithm, &original);
                        assert!(
                            noticed || (excused && what == "not waiting"),
                            "{algorithm:?} {what} at node {node} chunk {chunk} step {index}: {original:?} became {mutant:?}\n{scenario:?}"
                        );
                        self.noticed += usize::from(noticed);
                        self.excused_noticed += usize::from(noticed && excused && what == "not waiting");
                    }
                    programs[node].chunks[chunk][index] = original;
                }
            }
        }
    }
}

#[test]
fn any_change_to_a_plan_is_noticed() {
    let tunings = [small(8, 0), small(8, 4), small(16, 16)];
    let choices: [fn(u32) -> bool; 3] = [|_| false, |_| true, |rank| rank % 2 == 1];
    for operation in operations() {
        let mut attack = Attack::default();
        for nodes in 1..=4 {
            for (i, layout) in layouts(nodes).into_iter().enumerate() {
                let scenario = scenario(operation, &layout, 9, 1, 1, choices[(i + nodes as usize) % 3]);
                for (j, algorithm) in algorithms(&scenario).into_iter().enumerate() {
                    // Each pair has one of the layouts.
                    if matches!(algorithm, Some(Algorithm::Hierarchical(_))) && j % 4 != i {
                        continue;
                    }
                    let mut programs = enumerate(&scenario, algorithm, &tunings[(i + j) % 3]).unwrap();
                    let steps: usize = programs.iter().flat_map(|it| &it.chunks).map(Vec::len).sum();
                    attack.run(&scenario, algorithm, &mut programs, 1 + steps / 60);
                }
            }
        }
        assert!(attack.noticed > 30, "{operation}: only {} mutants", attack.noticed);
        if operation == Operation::AllToAll {
            assert!(attack.excused_noticed > 0, "no wait for a stage that was in use was tried");
        }
    }
}

/// Numbers that are no powers of two, and more rounds.
#[test]
fn any_change_to_a_plan_of_rounds_is_noticed() {
    use Operation as O;
    let choices: [fn(u32) -> bool; 3] = [|_| false, |_| true, |rank| rank % 2 == 1];
    for (i, operation) in [O::Allreduce, O::ReduceScatter, O::AllGatherV].into_iter().enumerate() {
        let mut attack = Attack::default();
        for nodes in [5, 6, 7, 8] {
            let layout = &layouts(nodes)[(nodes as usize + i) % 4];
            let scenario = scenario(operation, layout, 21, 1, 0, choices[(i + nodes as usize) % 3]);
            for (j, algorithm) in algorithms(&scenario).into_iter().enumerate() {
                // Of the two halves of an allreduce each pair has one.
                let half = operation != O::Allreduce && j % 2 != i % 2;
                if half && matches!(algorithm, Some(Algorithm::Hierarchical(_))) {
                    continue;
                }
                let mut programs = enumerate(&scenario, algorithm, &small(24, 0)).unwrap();
                let steps: usize = programs.iter().flat_map(|it| &it.chunks).map(Vec::len).sum();
                attack.run(&scenario, algorithm, &mut programs, 1 + steps / 40);
            }
        }
        assert!(attack.noticed > 300, "{operation}: only {} mutants", attack.noticed);
    }
}
