//! What `order = "strict"` and `order = "stable"` promise is proved of every algorithm.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::{layouts, operations, scenario, small};
use proptest::prelude::*;
use ringway_plan::tuner::{self, Constants, tune};
use ringway_plan::verify::{
    Order, Program, Scenario, Violation, associations, check, check_strict, enumerate,
};
use ringway_plan::{
    Action, Algorithm, Blocks, Call, Layout, OutputSet, Partials, Place, PlanSettings, Preference, Sources,
    Span, Step, Targets, Tuning, View,
};
use ringway_types::Operation;

const IN_PLACE: [fn(u32) -> bool; 3] = [|_| false, |_| true, |rank| rank % 2 == 1];

fn reducing() -> impl Iterator<Item = Operation> {
    operations().filter(|operation| operation.reduces())
}

/// The algorithms that do it.
fn offered(scenario: &Scenario) -> impl Iterator<Item = Algorithm> {
    Algorithm::ALL.iter().copied().filter(|algorithm| scenario.offers(*algorithm))
}

/// Why an algorithm does not combine as strict promises, by its name.
fn broken(scenario: &Scenario, algorithm: Algorithm, tuning: &Tuning) -> Option<String> {
    let programs = enumerate(scenario, Some(algorithm), tuning).unwrap();
    let violation = check_strict(scenario, &programs).err()?;
    Some(format!("{algorithm} does not do {} strictly: {violation}", scenario.call.operation))
}

/// Every algorithm that claims to be strict is, on some layouts of so many nodes.
fn strict_is_true(node_of: &[Vec<u32>], turn: usize) {
    // Messages of some elements and of one, whole vectors in one chunk, several chunks.
    let tunings = [small(8, 0), small(8, 4), small(24, 16), Tuning::default()];
    for (i, layout) in node_of.iter().enumerate() {
        for (j, operation) in reducing().enumerate() {
            for (k, size) in [1, 3, 13].into_iter().enumerate() {
                let turn = turn + i + j + k;
                let root = u32::try_from(turn).unwrap();
                let scenario = scenario(operation, layout, size, 1, root, IN_PLACE[turn % 3]);
                for algorithm in offered(&scenario).filter(|it| it.is_strict(operation)) {
                    let broken = broken(&scenario, algorithm, &tunings[turn % 4]);
                    assert!(broken.is_none(), "{} {scenario:?}", broken.unwrap());
                }
            }
        }
    }
}

#[test]
fn strict_methods_are_strict_on_one_to_eight_nodes_of_any_layout() {
    for nodes in 1..=8 {
        strict_is_true(&layouts(nodes), nodes as usize);
    }
}

/// Each operation has each kind of layout in turn; vectors have fewer elements than nodes, or more but no multiple of them.
#[test]
fn strict_methods_are_strict_on_up_to_64_nodes() {
    for nodes in 9..=64 {
        for (i, operation) in reducing().enumerate() {
            let turn = nodes as usize + i;
            let layout = &layouts(nodes)[turn % 4];
            let sizes = match operation {
                Operation::ReduceScatter => [1, 2],
                Operation::ReduceScatterV => [2, 3],
                _ => [u64::from(nodes) / 2, u64::from(nodes) + 1],
            };
            for (j, size) in sizes.into_iter().enumerate() {
                let scenario = scenario(operation, layout, size, 1, nodes / 2, IN_PLACE[(turn + j) % 3]);
                let tuning = small([32, 16 * u64::from(nodes)][(turn / 4 + j) % 2], 0);
                for algorithm in offered(&scenario).filter(|it| it.is_strict(operation)) {
                    let broken = broken(&scenario, algorithm, &tuning);
                    assert!(broken.is_none(), "{} {scenario:?}", broken.unwrap());
                }
            }
        }
    }
}

/// No algorithm that could be chosen under strict is left out: each of the others breaks the promise on one to five nodes.
#[test]
fn methods_that_do_not_claim_to_be_strict_are_not() {
    for operation in reducing() {
        for &algorithm in Algorithm::ALL.iter().filter(|algorithm| !algorithm.is_strict(operation)) {
            let mut of_it = 0;
            let mut holds = |nodes: u32| {
                layouts(nodes).iter().all(|layout| {
                    let scenario = scenario(operation, layout, 9, 1, 0, |_| false);
                    let offers = scenario.offers(algorithm);
                    of_it += u32::from(offers);
                    !offers || broken(&scenario, algorithm, &small(8, 0)).is_none()
                })
            };
            let holds = (1..=6).all(&mut holds);
            assert!(!holds || of_it == 0, "{algorithm} does {operation} strictly, and does not say so");
        }
    }
}

#[test]
fn a_wrong_claim_is_told_by_name() {
    let told = |operation, layout: &[u32], algorithm| {
        let scenario = scenario(operation, layout, 9, 1, 0, |_| false);
        broken(&scenario, algorithm, &Tuning::default()).unwrap()
    };
    assert_eq!(
        told(Operation::Allreduce, &[0, 0, 1, 2, 2, 3], Algorithm::RecursiveDoubling),
        "recursive-doubling does not do allreduce strictly: rank 0: element 0 of its output is \
         (((0 1) (2)) ((3 4) (5))), where strict promises ((0 1) (2) (3 4) (5))"
    );
    assert_eq!(
        told(Operation::Reduce, &[0, 1, 2], Algorithm::Ring),
        "ring does not do reduce strictly: rank 0: element 0 of its output is (((1) 2) 0), where strict promises \
         ((0) (1) (2))"
    );
}

/// The step is replaced; what is put before it waits for what it waited for, and it for that.
fn put_before(program: &mut Program, chunk: usize, at: u32, action: Action, instead: Action) {
    let steps = &mut program.chunks[chunk];
    for step in steps.iter_mut().skip(at as usize + 1) {
        for range in &mut step.after {
            if range.end > at {
                *range = range.start + u32::from(range.start > at)..range.end + 1;
            }
        }
    }
    let step = &mut steps[at as usize];
    let before = Step { action, after: step.after.clone() };
    *step = Step { action: instead, after: [at..at + 1, 0..0] };
    steps.insert(at as usize, before);
    program.shape.steps += 1;
}

/// A change to how partial results `a b c d` are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    /// To `((a b) c d)`: half types are rounded once more.
    FirstTwoFirst,
    /// To `(a b (c d))`.
    LastTwoFirst,
    /// To `(b a c d)`.
    FirstTwoSwapped,
}

const CHANGES: [Change; 3] = [Change::FirstTwoFirst, Change::LastTwoFirst, Change::FirstTwoSwapped];

impl Change {
    /// What is done before partial results of so many bytes are combined, and which are combined then.
    fn of(self, partials: Partials, length: u64) -> (Action, Partials) {
        let Partials { offset, stride, count } = partials;
        let slot = |number: u32| offset + stride * u64::from(number);
        // The two are combined to the second or the first of them, whichever lets the rest follow evenly.
        let (first, to, rest) = match self {
            Self::FirstTwoFirst => (0, 1, slot(1)),
            Self::LastTwoFirst => (count - 2, count - 2, slot(0)),
            Self::FirstTwoSwapped => {
                let span = |number| Span { place: Place::Scratch, offset: slot(number), length };
                return (Action::Swap { a: span(0), b: span(1) }, partials);
            }
        };
        let two = Partials { offset: slot(first), stride, count: 2 };
        let into = Targets { outputs: OutputSet::None, offset: 0, scratch: Some(slot(to)) };
        let sources = Sources { partials: two, inputs: None };
        let before = Action::Reduce { sources, into, length, finish: false };
        (before, Partials { offset: rest, stride, count: count - 1 })
    }

    /// Changes every combination of three partial results or more; how many there were.
    fn make(self, programs: &mut [Program]) -> usize {
        let mut changed = 0;
        for program in programs {
            for chunk in 0..program.chunks.len() {
                for at in (0..program.chunks[chunk].len()).rev() {
                    let Action::Reduce { sources, into, length, finish } = program.chunks[chunk][at].action
                    else {
                        continue;
                    };
                    if length > 0 && sources.partials.count >= 3 {
                        let (before, partials) = self.of(sources.partials, length);
                        let sources = Sources { partials, ..sources };
                        let instead = Action::Reduce { sources, into, length, finish };
                        put_before(program, chunk, u32::try_from(at).unwrap(), before, instead);
                        changed += 1;
                    }
                }
            }
        }
        changed
    }
}

/// Where all nodes do the same wrong thing every rank still has each contribution once and the same bits as the others: only
/// the promise is broken. Of a scan the order is wrong as well.
#[test]
fn another_order_or_association_on_all_nodes_is_noticed() {
    let layouts = [&[0, 1, 2, 3][..], &[0, 0, 1, 2, 2, 3], &[0, 1, 2, 3, 3, 2, 1, 0]];
    let mut noticed = 0;
    for (operation, layout) in reducing().flat_map(|it| layouts.map(|layout| (it, layout))) {
        let scenario = scenario(operation, layout, 9, 1, 1, |_| false);
        for algorithm in offered(&scenario).filter(|it| it.is_strict(operation)) {
            let programs = enumerate(&scenario, Some(algorithm), &small(8, 0)).unwrap();
            assert_eq!(check_strict(&scenario, &programs), Ok(()), "{algorithm} {operation}");
            for change in CHANGES {
                let mut programs = programs.clone();
                assert!(change.make(&mut programs) > 0, "{algorithm} {operation}: nothing to change");
                let is_scan = matches!(operation, Operation::Scan | Operation::Exscan);
                let is_right = !is_scan || change != Change::FirstTwoSwapped;
                let right = check(&scenario, &programs);
                assert_eq!(right.is_ok(), is_right, "{algorithm} {operation} {change:?}: {right:?}");
                let found = check_strict(&scenario, &programs).unwrap_err();
                let by_name = matches!(found, Violation::Association { .. });
                assert_eq!(by_name, is_right, "{algorithm} {operation} {change:?}: {found}");
                noticed += usize::from(by_name);
            }
        }
    }
    assert!(noticed > 50, "{noticed}");
}

/// One node alone that does otherwise gives its ranks other bits than the others have.
#[test]
fn another_association_on_one_node_is_noticed() {
    let scenario = scenario(Operation::Allreduce, &[0, 0, 1, 2, 2, 3], 9, 1, 1, |_| false);
    for change in CHANGES {
        let mut programs = enumerate(&scenario, Some(Algorithm::Direct), &small(8, 0)).unwrap();
        assert!(change.make(&mut programs[2..3]) > 0);
        let found = check(&scenario, &programs).unwrap_err();
        assert!(found.to_string().contains("combined in a different order"), "{found}");
        assert!(check_strict(&scenario, &programs).is_err());
    }
}

/// However steps follow one another, and whichever ranks gave the same memory as input and output, every element of every
/// algorithm's result is the same tree: it depends on layout, call and settings alone.
#[test]
fn associations_do_not_depend_on_timing_or_place() {
    let orders = [Order::Forward, Order::Reverse, Order::Seeded(1), Order::Seeded(2), Order::Seeded(3)];
    for operation in reducing() {
        for nodes in 1..=8 {
            for (i, layout) in layouts(nodes).iter().enumerate() {
                // Each pair of a hierarchical algorithm has one of the layouts.
                let at = |in_place| scenario(operation, layout, 11, 1, 1, in_place);
                let its_turn = |(j, algorithm): &(usize, Algorithm)| {
                    !matches!(algorithm, Algorithm::Hierarchical(_)) || j % 4 == i
                };
                for (j, algorithm) in offered(&at(IN_PLACE[0])).enumerate().filter(its_turn) {
                    let tuning = [small(8, 0), small(16, 4)][(i + j) % 2];
                    let made = |in_place, order| {
                        let scenario = at(in_place);
                        let programs = enumerate(&scenario, Some(algorithm), &tuning).unwrap();
                        associations(&scenario, &programs, order).unwrap()
                    };
                    let first = made(IN_PLACE[0], Order::Forward);
                    for (k, order) in orders.into_iter().enumerate() {
                        let same = first == made(IN_PLACE[k % 3], order);
                        assert!(same, "{algorithm} {operation} {order:?} on {layout:?}");
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn strict_methods_are_strict_on_random_layouts(
        layout in prop::collection::vec(0_u32..7, 1..=14),
        operation in prop::sample::select(reducing().collect::<Vec<_>>()),
        (size, element, root) in (0_u64..30, prop::sample::select(vec![1_u32, 2, 4, 8]), any::<u32>()),
        (chunk_bytes, depth, in_place) in (1_u64..300, 1_u32..5, 0_usize..3),
    ) {
        let scenario = scenario(operation, &layout, size, element, root, IN_PLACE[in_place]);
        let tuning = Tuning { depth, ..small(chunk_bytes, 0) };
        for algorithm in offered(&scenario).filter(|it| it.is_strict(operation)) {
            prop_assert_eq!(broken(&scenario, algorithm, &tuning), None);
        }
    }

    /// Whatever links were found to take, and however long the call is.
    #[test]
    fn what_the_tuner_chooses_under_strict_is_strict(
        layout in prop::collection::vec(0_u32..20, 1..=24),
        (latency_ns, message_ns, byte_ns) in (0.0..1e7, 0.0..1e6, 0.0..1e3),
        (log2, beyond) in (0_u32..40, 0_u64..100),
    ) {
        let layout = Layout::new(&layout).unwrap();
        let constants = Constants { latency_ns, message_ns, byte_ns, ..Constants::default() };
        let asked = &Preference::default();
        let rules = tune(&layout, tuner::Order::Strict, &constants, &Tuning::default(), asked);
        let settings = PlanSettings::new(Tuning::default(), Preference::default(), rules).unwrap();
        for operation in reducing() {
            let call = Call { operation, element: 1, count: (1 << log2) + beyond, root: 0 };
            let view = View { layout: &layout, node: 0, call, blocks: Blocks::Uniform, in_place: &[] };
            let algorithm = settings.plan(&view).algorithm().unwrap();
            prop_assert!(algorithm.is_strict(operation), "{} by {}", operation, algorithm);
        }
    }
}
