//! Plans in files: what algorithms are written as, what is refused, and that nothing that is changed gets through.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use proptest::prelude::*;
use ringway_plan::file::{Entry, FileError, Inexpressible, Into, Listed, Location, Outputs, What, export};
use ringway_plan::{Algorithm, Tuning};
use ringway_types::Operation;

const OPERATIONS: [Operation; 9] = [
    Operation::Allreduce,
    Operation::Reduce,
    Operation::Broadcast,
    Operation::AllGather,
    Operation::AllGatherV,
    Operation::ReduceScatter,
    Operation::ReduceScatterV,
    Operation::Gather,
    Operation::Scatter,
];

fn exported(algorithm: Algorithm, operation: Operation, nodes: u32) -> Option<Listed> {
    match export(algorithm, operation, nodes, &Tuning::default()) {
        Ok(listed) => Some((*listed).clone()),
        Err(Inexpressible::Ineligible(_)) => None,
        Err(error) => panic!("{algorithm} {operation} {nodes}: {error}"),
    }
}

#[test]
fn every_algorithm_that_can_be_said_in_blocks_is_written_and_read_again() {
    let (mut plans, mut refused) = (0, BTreeSet::new());
    for operation in OPERATIONS {
        for algorithm in Algorithm::ALL {
            for nodes in [2, 3, 4, 5, 6, 8] {
                match export(*algorithm, operation, nodes, &Tuning::default()) {
                    Ok(plan) => {
                        assert_eq!(Listed::read(&plan.to_json()).unwrap(), *plan, "{algorithm} {operation}");
                        plans += 1;
                    }
                    Err(Inexpressible::Ineligible(_)) => {}
                    Err(_) => {
                        refused.insert(format!("{algorithm}"));
                    }
                }
            }
        }
    }
    assert_eq!(plans, 305);
    // These send blocks that do not lie one behind the other in one message, or those of several ranks.
    let sends_several = |name: &String| {
        ["bidirectional-ring", "recursive-doubling", "halving-doubling", "nhr", "bruck", "binomial"]
            .iter()
            .any(|it| name == it)
            || name.starts_with("hierarchical:")
    };
    assert!(refused.iter().all(sends_several), "{refused:?}");
}

#[test]
fn blocks_are_found() {
    let ring = exported(Algorithm::Ring, Operation::Allreduce, 5).unwrap();
    assert_eq!((ring.blocks(), ring.scratch(), ring.nodes()), (5, 5, 5));
    let direct = exported(Algorithm::Direct, Operation::Allreduce, 5).unwrap();
    assert_eq!((direct.blocks(), direct.scratch()), (1, 5));
    assert_ne!(ring.digest(), direct.digest());
}

#[test]
fn what_cannot_be_written_says_why() {
    let refused = |algorithm, operation, nodes| {
        export(algorithm, operation, nodes, &Tuning::default()).unwrap_err().to_string()
    };
    assert_eq!(
        refused(Algorithm::Direct, Operation::AllToAll, 3),
        "plans in files are for allreduce, reduce, broadcast, all_gather, all_gather_v, reduce_scatter, \
         reduce_scatter_v, gather, scatter; all_to_all is not among them"
    );
    assert_eq!(
        refused(Algorithm::Ring, Operation::Gather, 3),
        "algorithm ring does not do gather; use direct"
    );
    assert_eq!(
        refused(Algorithm::Direct, Operation::Allreduce, 1000),
        "plans in files are for 2 to 128 nodes, not for 1000"
    );
}

const SWAP: &str = r#"{
  "ringway_plan": 1, "name": "swap", "operation": "allreduce", "nodes": 2, "blocks": 1, "scratch": 2,
  "steps": [
    [
      {"reduce": {"block": 0, "inputs": true, "into": [{"scratch": 0}]}},
      {"send": {"peer": 1, "block": 0, "from": {"scratch": 0}, "after": [0]}},
      {"receive": {"peer": 1, "block": 0, "into": {"scratch": 1}}},
      {"reduce": {"block": 0, "partials": {"scratch": 0, "count": 2}, "into": ["output"], "finish": true,
        "after": [0, 2]}}
    ],
    [
      {"reduce": {"block": 0, "inputs": true, "into": [{"scratch": 1}]}},
      {"send": {"peer": 0, "block": 0, "from": {"scratch": 1}, "after": [0]}},
      {"receive": {"peer": 0, "block": 0, "into": {"scratch": 0}}},
      {"reduce": {"block": 0, "partials": {"scratch": 0, "count": 2}, "into": ["output"], "finish": true,
        "after": [0, 2]}}
    ]
  ]
}"#;

/// What is put in the place of what in [`SWAP`], and what is said of it; nothing makes an empty file.
const WRONG: &[(&str, &str, &str)] = &[
    ("", "", "line 1, column 0: EOF while parsing a value"),
    (SWAP, "[]", "expected an object with ringway_plan, name, operation, nodes, blocks and steps"),
    (
        SWAP,
        "[1, \"swap\", \"allreduce\", 2, 1, []]",
        "line 1, column 0: invalid type: sequence, expected an object with",
    ),
    (
        "{\"send\": {\"peer\": 1, \"block\": 0, \"from\": {\"scratch\": 0}, \"after\": [0]}}",
        "{\"send\": [1, 0, 0, 1, \"input\"]}",
        "invalid type: sequence, expected an object with named fields",
    ),
    (
        "{\"scratch\": 0, \"count\": 2}",
        "[0, 2]",
        "invalid type: sequence, expected an object with named fields",
    ),
    (
        "\"block\": 0, \"inputs\"",
        "\"block\": -1, \"inputs\"",
        "line 5, column 29: invalid value: integer `-1`, expected u32",
    ),
    ("\"scratch\": 2,", "\"scratch\": 2, \"wait\": 1,", "unknown field `wait`, expected one of"),
    (
        "{\"send\"",
        "{\"sent\"",
        "line 6, column 13: unknown variant `sent`, expected one of `send`, `receive`",
    ),
    (
        "[\"output\"]",
        "[\"outputs\"]",
        "unknown variant `outputs`, expected one of `input`, `output`, `others`",
    ),
    (
        "\"after\": [0]",
        "\"after\": [true]",
        "invalid type: boolean `true`, expected a step's number, or `[first, last]`",
    ),
    ("\"ringway_plan\": 1", "\"ringway_plan\": 2", "`ringway_plan` is 2; this program reads version 1"),
    ("\"swap\"", "\"a b\"", "`name` is `a b`; it must be 1 to 64 letters, digits, `-`, `_` and `.`"),
    ("\"allreduce\"", "\"scan\"", "`operation` is `scan`; it must be one of allreduce, reduce,"),
    ("\"nodes\": 2", "\"nodes\": 3", "`steps` is 2 lists; there must be 3, as `nodes` says"),
    ("\"blocks\": 1", "\"blocks\": 4097", "`blocks` is 4097; it must be 1 to 4096"),
    (
        "\"peer\": 1",
        "\"peer\": 0",
        "plan swap: node 0 step 1: `peer` is 0; it must be another one of 2 nodes",
    ),
    (
        "\"after\": [0]",
        "\"after\": [1]",
        "plan swap: node 0 step 1: waits for step 1, which does not come before it",
    ),
    ("\"block\": 0, \"from\"", "\"block\": 1, \"from\"", "plan swap: node 0 step 1: blocks 1 to 1 of 1"),
    (
        "\"count\": 2",
        "\"count\": 3",
        "plan swap: node 0 step 3: place 2 in scratch memory, of which the plan has 2",
    ),
    (
        "{\"scratch\": 0}, \"after\"",
        "\"input\", \"after\"",
        "plan swap: node 0 step 1: the inputs of a node's ranks are combined first, by `reduce`",
    ),
    (
        "\"peer\": 1, \"block\": 0, \"from\"",
        "\"peer\": 1, \"tag\": 7, \"block\": 0, \"from\"",
        "plan swap: node 0 step 1: node 1 never receives it: no step there has tag 7",
    ),
    (
        ", \"finish\": true",
        "",
        "plan swap: rank 0: element 0 of its output is wrong: it is finished wrongly; node 0 chunk 0 step 3 wrote it last (allreduce of 1 elements",
    ),
    ("\"after\": [0, 2]", "\"after\": [0]", "node 0 chunk 0 step 3 touch the same bytes in no certain order"),
];

#[test]
fn what_is_wrong_is_told_with_its_place() {
    let (plan, proof) = Listed::prove_file(SWAP).unwrap();
    assert_eq!((plan.name(), plan.chunk_bytes()), ("swap", 512 << 10));
    assert!(proof.calls == 18 && proof.stats.messages > 30 && proof.stats.ordered_pairs > 100, "{proof:?}");
    for &(from, to, expected) in WRONG {
        let text = if from.is_empty() { String::new() } else { SWAP.replacen(from, to, 1) };
        assert_ne!(text, SWAP, "{from}");
        let refused = Listed::read(&text).unwrap_err().to_string();
        assert!(refused.contains(expected), "{refused}\nnot\n{expected}");
    }
}

#[test]
fn a_file_may_not_be_endless() {
    let long = " ".repeat(17 << 20);
    assert_eq!(Listed::read(&long).unwrap_err(), FileError::TooLong { bytes: 17 << 20 });
    // Nesting does not exhaust the stack.
    assert!(Listed::read(&"[".repeat(1 << 20)).is_err());
}

/// What may become of a step.
fn mutants(entry: &Entry, blocks: u32) -> Vec<(&'static str, Entry)> {
    let with = |what| Entry { what, ..entry.clone() };
    let mut all = vec![("left out", Entry { what: What::Nothing, ..entry.clone() })];
    if blocks > 1 && entry.count == 1 {
        all.push(("of another block", Entry { block: (entry.block + 1) % blocks, ..entry.clone() }));
    }
    if entry.after.iter().any(|range| !range.is_empty()) {
        all.push(("not waiting", Entry { after: [0..0, 0..0], ..entry.clone() }));
    }
    match entry.what {
        What::Nothing => all.clear(),
        What::Send { peer, tag, from } => {
            all.push(("with another tag", with(What::Send { peer, tag: tag + 100, from })));
            if let Location::Scratch(at) = from {
                all.push(("from elsewhere", with(What::Send { peer, tag, from: Location::Scratch(at + 1) })));
            }
        }
        What::Receive { peer, tag, into } => {
            all.push(("with another tag", with(What::Receive { peer, tag: tag + 100, into })));
            if let Location::Scratch(at) = into {
                all.push(("elsewhere", with(What::Receive { peer, tag, into: Location::Scratch(at + 1) })));
            }
        }
        What::Reduce { scratch, stride, partials, inputs, into, finish } => {
            let reduce = |partials, inputs, finish| {
                with(What::Reduce { scratch, stride, partials, inputs, into, finish })
            };
            all.push(("finished otherwise", reduce(partials, inputs, !finish)));
            all.push(("with other inputs", reduce(partials, !inputs, finish)));
            if partials > 1 {
                all.push(("of fewer", reduce(partials - 1, inputs, finish)));
            }
        }
        What::Copy { from, into } => {
            let into = Into { outputs: Outputs::None, scratch: into.scratch };
            all.push(("to nowhere", with(What::Copy { from, into })));
        }
    }
    all
}

#[test]
fn any_change_to_a_file_is_refused() {
    let mut refused = 0;
    for operation in OPERATIONS {
        for algorithm in
            [Algorithm::Direct, Algorithm::Ring, Algorithm::BidirectionalRing, Algorithm::HalvingDoubling]
        {
            let Ok(plan) = export(algorithm, operation, 3, &Tuning::default()) else { continue };
            for node in 0..3 {
                for (step, entry) in plan.steps(node).iter().enumerate() {
                    for (what, mutant) in mutants(entry, plan.blocks()) {
                        let text = plan.with_step(node, step, mutant.clone()).to_json();
                        let error = Listed::read(&text).err();
                        assert!(
                            error.is_some(),
                            "{algorithm} {operation}: {what} at node {node} step {step}: {entry:?} became {mutant:?}"
                        );
                        refused += 1;
                    }
                }
            }
        }
    }
    assert!(refused > 500, "{refused}");
}

/// Between places in scratch memory the block says only how much is moved, which most calls' sizes do not tell apart.
#[test]
fn a_step_that_says_another_block_than_it_moves_is_refused() {
    let mut refused = 0;
    for algorithm in Algorithm::ALL {
        for (operation, nodes) in
            [(Operation::Allreduce, 3), (Operation::Allreduce, 4), (Operation::ReduceScatter, 3)]
        {
            let Ok(plan) = export(*algorithm, operation, nodes, &Tuning::default()) else { continue };
            for node in 0..nodes {
                for (step, entry) in plan.steps(node).iter().enumerate() {
                    let is_inside =
                        matches!(entry.what, What::Reduce { into: Into { outputs: Outputs::None, .. }, .. });
                    if !is_inside || entry.count > 1 || plan.blocks() == 1 {
                        continue;
                    }
                    let block = (entry.block + 1) % plan.blocks();
                    let mutant = plan.with_step(node, step, Entry { block, ..entry.clone() });
                    let read = Listed::read(&mutant.to_json());
                    assert!(
                        read.is_err(),
                        "{algorithm} {operation} {nodes}: node {node} step {step} {entry:?}"
                    );
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 100, "{refused}");
    // That of a bidirectional ring, of which all that is wrong is the length of a step in calls whose blocks 2 and 3 differ.
    let plan = exported(Algorithm::BidirectionalRing, Operation::Allreduce, 3).unwrap();
    let entry = plan.steps(0)[6].clone();
    let mutant = plan.with_step(0, 6, Entry { block: 3, ..entry });
    let error = Listed::read(&mutant.to_json()).unwrap_err().to_string();
    assert!(error.ends_with("node 0 step 6: says that it moves block 3 where it moves block 2"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    /// Whatever a file's bytes are, reading ends with a plan or an error: and a plan has the steps it was read from.
    #[test]
    fn no_text_makes_it_panic(
        at in 0..SWAP.len(),
        length in 0_usize..6,
        text in prop_oneof![
            "[0-9]{1,20}",
            "[\\[\\]{},:\"]{1,3}",
            Just("4294967295".to_owned()),
            Just("\"input\"".to_owned()),
            Just("{\"scratch\": 4294967295}".to_owned()),
        ],
    ) {
        let end = (at + length).min(SWAP.len());
        let mutant = format!("{}{text}{}", &SWAP[..at], &SWAP[end..]);
        if let Ok(plan) = Listed::read(&mutant) {
            prop_assert_eq!(Listed::read(&plan.to_json()).unwrap(), plan);
        }
    }
}

/// So is what moves more than can be followed.
#[test]
fn blocks_are_counted() {
    let step = r#"{"reduce":{"block":0,"count":4096,"inputs":true,"into":["output"],"finish":true}}"#;
    let steps = |count: usize| format!("[{}]", vec![step; count].join(","));
    let text = format!(
        "{{\"ringway_plan\":1,\"name\":\"blocks\",\"operation\":\"allreduce\",\"nodes\":2,\"blocks\":4096,\
         \"scratch\":1,\"steps\":[{},{}]}}",
        steps(512),
        steps(1)
    );
    let told = Listed::read(&text).unwrap_err().to_string();
    assert_eq!(told, "`steps` is about 2101248 blocks in all; there may be 2097152");
}

/// What takes as much time and memory as the square of a file's length is refused before anything is proved.
#[test]
fn waits_are_counted() {
    let wait = |step: usize| format!("{{\"nothing\":{{\"after\":[[0,{}]]}}}}", step - 1);
    let steps: Vec<String> = (1..4000).map(wait).collect();
    let steps = format!("[{{\"nothing\":{{}}}},{}]", steps.join(","));
    let text = format!(
        "{{\"ringway_plan\":1,\"name\":\"waits\",\"operation\":\"allreduce\",\"nodes\":2,\"blocks\":1,\"scratch\":2,\
         \"steps\":[{steps},{steps}]}}"
    );
    let told = Listed::read(&text).unwrap_err().to_string();
    assert_eq!(
        told,
        "`after` is 15996000 steps that others wait for; steps may wait for 4194304 others in all"
    );
}
