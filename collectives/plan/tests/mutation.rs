//! The verifier is not fooled: a plan with one step or one wait changed is not right any more.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::{algorithms, layouts, operations, scenario, small};
use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use ringway_plan::verify::{At, Program, Scenario, check, enumerate};
use ringway_plan::{Action, Algorithm, OutputSet, Partials, Place, Sources, Span, Step, Targets};
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

/// As many bytes from somewhere else.
fn elsewhere(span: Span, element: u64) -> Span {
    Span { offset: span.offset + element, ..span }
}

/// One operand less, or one from somewhere else.
fn other_sources(sources: Sources, element: u64) -> Vec<Sources> {
    let Sources { partials, inputs } = sources;
    let mut all = Vec::new();
    if partials.count > 0 {
        let fewer = Partials { count: partials.count - 1, ..partials };
        let moved = Partials { offset: partials.offset + element, ..partials };
        all.extend([fewer, moved].map(|partials| Sources { partials, inputs }));
    }
    if let Some(at) = inputs {
        all.extend([None, Some(at + element)].map(|inputs| Sources { partials, inputs }));
    }
    all
}

/// The step with something about it changed.
fn altered(step: &Step, element: u64) -> Vec<Step> {
    let with = |action| Step { action, after: step.after.clone() };
    match step.action {
        Action::Nothing => Vec::new(),
        Action::Send { peer, tag, from } => {
            let mut all = vec![
                with(Action::Send { peer, tag: tag + 1000, from }),
                with(Action::Send { peer: peer + 1, tag, from }),
            ];
            if from.length > 0 {
                all.push(with(Action::Send { peer, tag, from: elsewhere(from, element) }));
            }
            all
        }
        Action::Receive { peer, tag, into } => {
            let mut all = vec![with(Action::Receive { peer, tag: tag + 1000, into })];
            if into.length > 0 {
                all.push(with(Action::Receive { peer, tag, into: shifted(into, element) }));
            }
            all
        }
        Action::Reduce { sources, into, length, finish } if length > 0 => {
            let mut all = vec![
                with(Action::Reduce { sources, into, length, finish: !finish }),
                with(Action::Reduce { sources, into: shifted_targets(into, element), length, finish }),
                with(Action::Reduce { sources, into, length: length - element, finish }),
            ];
            let read = other_sources(sources, element).into_iter();
            all.extend(read.map(|sources| with(Action::Reduce { sources, into, length, finish })));
            all
        }
        Action::Copy { from, into } if from.length > 0 => vec![
            with(Action::Copy { from, into: shifted_targets(into, element) }),
            with(Action::Copy { from: elsewhere(from, element), into }),
        ],
        Action::Swap { a, b } if a.length > 0 => {
            vec![
                with(Action::Copy {
                    from: a,
                    into: Targets { outputs: OutputSet::None, offset: 0, scratch: None },
                }),
                with(Action::Swap { a: shifted(a, element), b }),
            ]
        }
        Action::Scan { carry, locals, before, offset, length } if length > 0 => {
            let scan = |carry, offset| with(Action::Scan { carry, locals, before, offset, length });
            let mut all = vec![scan(carry, offset + element)];
            if let Some(at) = carry {
                all.extend([scan(None, offset), scan(Some(at + element), offset)]);
            }
            all
        }
        Action::Fold { carry, locals, offset, length, into } if length > 0 => {
            let fold = |carry, offset, length| with(Action::Fold { carry, locals, offset, length, into });
            let mut all = vec![fold(carry, offset, length - element), fold(carry, offset + element, length)];
            if let Some(at) = carry {
                all.extend([fold(None, offset, length), fold(Some(at + element), offset, length)]);
            }
            all
        }
        _ => Vec::new(),
    }
}

/// Nothing is waited for any more, or one of two ranges of steps is not.
const NOT_WAITING: &str = "not waiting";
const WAITING_FOR_ONE: &str = "waiting for one";

fn mutants(scenario: &Scenario, node: u32, step: &Step) -> Vec<(&'static str, Step)> {
    if is_idle(scenario, node, step) {
        return Vec::new();
    }
    let element = u64::from(scenario.call.element);
    let mut all = vec![("left out", Step::free(Action::Nothing))];
    all.extend(altered(step, element).into_iter().map(|step| ("altered", step)));
    let [first, second] = step.after.clone();
    if !first.is_empty() || !second.is_empty() {
        all.push((NOT_WAITING, Step::free(step.action)));
    }
    if !first.is_empty() && !second.is_empty() {
        let one = |after| (WAITING_FOR_ONE, Step { action: step.action, after: [after, 0..0] });
        all.extend([one(first), one(second)]);
    }
    all
}

/// Whether a wait may be there for nothing: a receive waits for its stage, which the slot before may not have used;
/// where nodes are no power of two, everyone may hear of everyone without one message of a barrier's last rounds. A
/// pairwise exchange waits for the rounds before so that few messages are under way, which is no matter of right or
/// wrong (`tests/all_to_all.rs` proves that it does).
fn may_wait_for_nothing(
    scenario: &Scenario,
    algorithm: Option<Algorithm>,
    programs: &[Program],
    step: &Step,
) -> bool {
    match scenario.call.operation {
        _ if algorithm == Some(Algorithm::Pairwise) => {
            matches!(step.action, Action::Receive { .. } | Action::Send { .. })
        }
        Operation::AllToAll => matches!(step.action, Action::Receive { .. }),
        Operation::Barrier => is_barrier(programs),
        _ => false,
    }
}

/// A step's start, or its end.
type Moment = (At, bool);

/// What comes right after a moment: a step starts after the ends of those it waits for and of the chunk whose memory it takes,
/// a receive ends after its message's send has started.
fn successors(programs: &[Program]) -> BTreeMap<Moment, Vec<Moment>> {
    let mut next: BTreeMap<Moment, Vec<Moment>> = BTreeMap::new();
    let mut sends = BTreeMap::new();
    let mut receives = BTreeMap::new();
    for (node, program) in (0_u32..).zip(programs) {
        let depth = program.shape.depth as usize;
        for (chunk, steps) in program.chunks.iter().enumerate() {
            let at = |chunk: usize, step: u32| At { node, chunk: chunk as u64, step };
            for (index, step) in (0_u32..).zip(steps) {
                let mine = at(chunk, index);
                next.entry((mine, false)).or_default().push((mine, true));
                for before in step.after.iter().flat_map(Clone::clone) {
                    next.entry((at(chunk, before), true)).or_default().push((mine, false));
                }
                let later = program.chunks.get(chunk + depth).map_or(0, Vec::len);
                let later = (0..u32::try_from(later).unwrap()).map(|step| (at(chunk + depth, step), false));
                next.entry((mine, true)).or_default().extend(later);
                match step.action {
                    Action::Send { peer, tag, .. } => sends.insert((chunk, node, peer, tag), mine),
                    Action::Receive { peer, tag, .. } => receives.insert((chunk, peer, node, tag), mine),
                    _ => None,
                };
            }
        }
    }
    for (name, send) in sends {
        if let Some(receive) = receives.get(&name) {
            next.entry((send, false)).or_default().push((*receive, true));
        }
    }
    next
}

/// These moments and all that come after any of them.
fn coming_after(next: &BTreeMap<Moment, Vec<Moment>>, mut open: Vec<Moment>) -> BTreeSet<Moment> {
    let mut seen = BTreeSet::new();
    while let Some(moment) = open.pop() {
        if seen.insert(moment) {
            open.extend(next.get(&moment).into_iter().flatten());
        }
    }
    seen
}

/// Whether no node ends before every other has started.
fn is_barrier(programs: &[Program]) -> bool {
    let next = successors(programs);
    let nodes = || 0..u32::try_from(programs.len()).unwrap();
    nodes().all(|first| {
        let started = next.keys().filter(|(at, ended)| at.node == first && !ended).copied();
        let after = coming_after(&next, started.collect());
        nodes().all(|last| after.iter().any(|(at, ended)| at.node == last && *ended))
    })
}

/// Bytes of a node's memory, and whether they are written.
type Touched = (Place, core::ops::Range<u64>, bool);

/// What a step reads and writes on a node of so many ranks.
fn touched(action: &Action, locals: u32) -> Vec<Touched> {
    let span = |it: Span, writes| (it.place, it.offset..it.offset + it.length, writes);
    let scratch = |at: u64, length: u64, writes| (Place::Scratch, at..at + length, writes);
    let inputs = |range: core::ops::Range<u32>, at: u64, length: u64| {
        range.map(move |local| (Place::Input(local), at..at + length, false))
    };
    let targets = |into: Targets, length: u64| {
        let outputs = (0..locals).filter(move |local| into.outputs.has(*local));
        let outputs =
            outputs.map(move |local| (Place::Output(local), into.offset..into.offset + length, true));
        outputs.chain(into.scratch.map(move |at| (Place::Scratch, at..at + length, true)))
    };
    match *action {
        Action::Nothing => Vec::new(),
        Action::Send { from, .. } => vec![span(from, false)],
        Action::Receive { into, .. } => vec![span(into, true)],
        Action::Copy { from, into } => targets(into, from.length).chain([span(from, false)]).collect(),
        Action::Swap { a, b } => vec![span(a, true), span(b, true)],
        Action::Reduce { sources, into, length, .. } => {
            let Partials { offset, stride, count } = sources.partials;
            let partials = (0..u64::from(count)).map(|i| scratch(offset + i * stride, length, false));
            let inputs = sources.inputs.into_iter().flat_map(|at| inputs(0..locals, at, length));
            targets(into, length).chain(partials).chain(inputs).collect()
        }
        Action::Scan { carry, locals: of, offset, length, .. } => {
            let range = of.first..of.first + of.count;
            let outputs = range.clone().map(|local| (Place::Output(local), offset..offset + length, true));
            let carry = carry.map(|at| scratch(at, length, false));
            outputs.chain(carry).chain(inputs(range, offset, length)).collect()
        }
        Action::Fold { carry, locals: of, offset, length, into } => {
            let carry = carry.map(|at| scratch(at, length, false));
            let inputs = inputs(of.first..of.first + of.count, offset, length);
            carry.into_iter().chain(inputs).chain([scratch(into, length, true)]).collect()
        }
    }
}

/// Whether a step touches bytes that one of those does which it neither waits for any more nor starts after nevertheless, and one of
/// both writes them: then there is a right and a wrong order of them.
fn meets(scenario: &Scenario, programs: &[Program], at: At, original: &Step) -> bool {
    let steps = &programs[at.node as usize].chunks[at.chunk as usize];
    let changed = &steps[at.step as usize];
    let locals = u32::try_from(scenario.layout.local(at.node).len()).unwrap();
    let mine = touched(&original.action, locals);
    let meets_one = |step: &u32| {
        touched(&steps[*step as usize].action, locals).iter().any(|(place, range, writes)| {
            mine.iter().any(|(other, of, write)| {
                place == other && range.start < of.end && of.start < range.end && (*writes || *write)
            })
        })
    };
    let removed = original.after.iter().filter(|range| !changed.after.contains(range));
    let met: Vec<u32> = removed.flat_map(Clone::clone).filter(meets_one).collect();
    !met.is_empty() && !starts_after(programs, at, met)
}

/// Whether a change is none by right: of waits only, and those for nothing (`may`), for what is waited for anyway, or, where others
/// stay, for steps on other bytes.
fn is_harmless(
    what: &str,
    may: bool,
    scenario: &Scenario,
    programs: &[Program],
    at: At,
    original: &Step,
) -> bool {
    match what {
        NOT_WAITING => may || waits_anyway(programs, at, original),
        WAITING_FOR_ONE => !meets(scenario, programs, at, original),
        _ => false,
    }
}

/// Whether a step that has been changed starts after all those that the original waits for nevertheless: so that the change is
/// none.
fn waits_anyway(programs: &[Program], at: At, original: &Step) -> bool {
    let changed = &programs[at.node as usize].chunks[at.chunk as usize][at.step as usize];
    if changed.action != original.action {
        return false;
    }
    starts_after(programs, at, original.after.iter().flat_map(Clone::clone))
}

/// Whether a step starts after all of these of its chunk have ended.
fn starts_after(programs: &[Program], at: At, steps: impl IntoIterator<Item = u32>) -> bool {
    let next = successors(programs);
    steps
        .into_iter()
        .all(|before| coming_after(&next, vec![(At { step: before, ..at }, true)]).contains(&(at, false)))
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
                        let at = At {
                            node: u32::try_from(node).unwrap(),
                            chunk: chunk as u64,
                            step: u32::try_from(index).unwrap(),
                        };
                        let may = may_wait_for_nothing(scenario, algorithm, programs, &original);
                        assert!(
                            noticed || is_harmless(what, may, scenario, programs, at, &original),
                            "{algorithm:?} {what} at node {node} chunk {chunk} step {index}: {original:?} became {mutant:?}\n{scenario:?}"
                        );
                        self.noticed += usize::from(noticed);
                        self.excused_noticed += usize::from(noticed && may && what == NOT_WAITING);
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
                    attack.run(&scenario, algorithm, &mut programs, 1 + steps / 40);
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
                attack.run(&scenario, algorithm, &mut programs, 1 + steps / 25);
            }
        }
        assert!(attack.noticed > 300, "{operation}: only {} mutants", attack.noticed);
    }
}

/// A receive of a pairwise exchange waits for its stage and for the rounds before. One that used the stage is among these, but comes
/// before what the stage's wait is for, so that it is waited for without them.
#[test]
fn a_wait_that_another_one_makes_is_not_missed() {
    let scenario = scenario(Operation::AllToAll, &layouts(4)[3], 2, 1, 2, |rank| rank % 3 == 1);
    let mut programs = enumerate(&scenario, Some(Algorithm::Pairwise), &small(16, 0)).unwrap();
    let mut attack = Attack::default();
    attack.run(&scenario, Some(Algorithm::Pairwise), &mut programs, 1);
    assert!(attack.noticed > 100, "only {} mutants", attack.noticed);
}

/// With five nodes the last round's messages need not wait for what came before; with six, of which each hears of two by its last
/// message, they must.
#[test]
fn waits_of_a_barrier_are_noticed_where_they_matter() {
    for (nodes, last_matters) in
        [(2, false), (3, false), (4, true), (5, false), (6, true), (7, true), (8, true)]
    {
        let scenario = scenario(Operation::Barrier, &layouts(nodes)[0], 1, 1, 0, |_| false);
        let mut programs = enumerate(&scenario, algorithms(&scenario)[0], &small(16, 0)).unwrap();
        assert!(is_barrier(&programs), "{nodes} nodes");
        let steps = &mut programs[0].chunks[0];
        let send = steps.iter_mut().rfind(|it| matches!(it.action, Action::Send { .. })).unwrap();
        *send = Step::free(send.action);
        assert_eq!(check(&scenario, &programs).is_err(), last_matters, "{nodes} nodes");
        assert_eq!(is_barrier(&programs), !last_matters, "{nodes} nodes");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any algorithm and operation, up to 16 nodes, any step and any change to it.
    #[test]
    fn any_change_anywhere_is_noticed(
        operation in prop::sample::select(operations().collect::<Vec<_>>()),
        nodes in 1_u32..=16,
        (kind, places, size, pack) in (any::<prop::sample::Index>(), 0..4_usize, 2_u64..24, 0_u64..5),
        (node, chunk, step) in any::<(prop::sample::Index, prop::sample::Index, prop::sample::Index)>(),
        mutation in any::<prop::sample::Index>(),
    ) {
        // Where every pair of ranks has a block, ranks are few.
        let pairs = matches!(operation, Operation::AllToAll | Operation::AllToAllV);
        let layout = &layouts(nodes)[if pairs && nodes > 8 { 0 } else { places }];
        let size = if pairs { 1 + size % 4 } else { size };
        let scenario = scenario(operation, layout, size, 1, nodes / 2, |rank| rank % 3 == 1);
        let algorithm = *kind.get(&algorithms(&scenario));
        let mut programs = enumerate(&scenario, algorithm, &small(16, pack)).unwrap();
        let node = node.index(programs.len());
        prop_assume!(!programs[node].chunks.is_empty());
        let chunk = chunk.index(programs[node].chunks.len());
        let of = |step: &Step| mutants(&scenario, u32::try_from(node).unwrap(), step);
        let steps = programs[node].chunks[chunk].iter().enumerate();
        let all: Vec<_> = steps.map(|(index, step)| (index, of(step))).filter(|it| !it.1.is_empty()).collect();
        prop_assume!(!all.is_empty());
        let (index, mutants) = step.get(&all);
        let (what, mutant) = mutation.get(mutants).clone();
        let at = At {
            node: u32::try_from(node).unwrap(),
            chunk: chunk as u64,
            step: u32::try_from(*index).unwrap(),
        };
        let original = std::mem::replace(&mut programs[node].chunks[chunk][*index], mutant.clone());
        let may = may_wait_for_nothing(&scenario, algorithm, &programs, &original);
        prop_assert!(
            check(&scenario, &programs).is_err() || is_harmless(what, may, &scenario, &programs, at, &original),
            "{algorithm:?} {what} at {at:?}: {original:?} became {mutant:?}\n{scenario:?}"
        );
    }
}
