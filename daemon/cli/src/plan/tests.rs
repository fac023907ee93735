use super::*;

fn ring() -> Shown {
    Shown::algorithm(Algorithm::Ring, Operation::Allreduce, 3).expect("a ring")
}

#[test]
fn the_table_says_what_every_step_does() {
    let plan = Shown::algorithm(Algorithm::Direct, Operation::Allreduce, 2).expect("an exchange");
    let expected = "\
allreduce-direct-2: allreduce between 2 nodes; a chunk of up to 524288 bytes has 1 block, scratch memory holds 2 blocks; 2 messages in 4 steps

node  step  time  what     peer  tag  blocks  from         into       waits for
   0     0     0  reduce              0       inputs       scratch 0
   0     1     2  receive     1    0  0                    scratch 1
   0     2     1  send        1    0  0       scratch 0               0
   0     3     3  finish              0       scratch 0-1  output     0-1
   1     0     0  reduce              0       inputs       scratch 1
   1     1     2  receive     0    0  0                    scratch 0
   1     2     1  send        0    0  0       scratch 1               0
   1     3     3  finish              0       scratch 0-1  output     0-1";
    assert_eq!(table::text(&plan), expected);
}

#[test]
fn the_picture_has_a_box_for_each_step_and_an_arrow_for_each_message() {
    let plan = ring();
    let (svg, _) = picture::svg(&plan);
    let steps: usize = (0..3).map(|node| plan.steps(node).count()).sum();
    assert_eq!(svg.matches("class=\"box").count(), steps);
    // Every node sends two partial results and two final ones.
    assert_eq!((plan.trace.messages.len(), svg.matches("class=\"tip\"").count()), (12, 12));
    assert!(svg.contains("prefers-color-scheme:dark") && svg.contains("block 2</text>"));
    // A block goes round twice: combine, then four times send and receive with what lies between.
    assert!((9..=13).contains(&plan.end()), "{}", plan.end());
}

#[test]
fn json_has_every_step() {
    let plan = ring();
    let json = table::json(&plan);
    assert_eq!(json["name"], "allreduce-ring-3");
    let steps = json["steps"].as_array().expect("steps");
    assert_eq!(steps.len(), 3 * plan.steps(0).count());
    assert!(
        steps.iter().any(|step| step["what"] == "finish" && step["after"] == serde_json::json!([[5, 5]])),
        "{json}"
    );
}

#[test]
fn what_only_the_bytes_of_scratch_memory_tell_has_names_as_well() {
    let plan = Shown::algorithm(Algorithm::Bruck, Operation::AllToAll, 4).expect("an exchange");
    let table = table::text(&plan);
    assert!(
        table.starts_with(
            "all_to_all-bruck-4: all_to_all between 4 nodes; a chunk has 1 block for each pair of ranks"
        ),
        "{table}"
    );
    // Node 0 passes on to node 2 what node 3 has for it.
    assert!(table.contains("send        2    1  0:2, 3:2"), "{table}");
    let json = table::json(&plan);
    assert_eq!(json["steps"][8]["blocks"], serde_json::json!(["2:0", "1:0"]), "{json}");
    assert!(picture::svg(&plan).0.contains("0:2\u{2026} \u{2192} 2</text>"));
}

#[test]
fn messages_of_no_bytes_have_no_blocks() {
    let plan = Shown::algorithm(Algorithm::Direct, Operation::Barrier, 4).expect("a barrier");
    assert_eq!(
        plan.headline(),
        "barrier-direct-4: barrier between 4 nodes; scratch memory holds 0 blocks; 8 messages in 4 steps"
    );
    assert_eq!(picture::svg(&plan).0.matches("class=\"none\"").count(), 8);
}

/// Algorithms of which no file can be written are shown all the same.
#[test]
fn whatever_an_algorithm_does_is_shown() {
    for (operation, algorithm) in [
        (Operation::AllToAllV, "pairwise"),
        (Operation::GatherV, "direct"),
        (Operation::ScatterV, "direct"),
        (Operation::Scan, "direct"),
        (Operation::Exscan, "direct"),
        (Operation::AllGather, "bidirectional-ring"),
        (Operation::Allreduce, "nhr"),
    ] {
        let algorithm = Algorithm::from_name(algorithm).expect("a name");
        assert!(export(algorithm, operation, 5, &Tuning::default()).is_err(), "{operation} {algorithm}");
        let plan = Shown::algorithm(algorithm, operation, 5).expect("shown");
        assert!(table::text(&plan).lines().count() > 10, "{operation} {algorithm}");
    }
}

#[test]
fn a_file_is_shown_as_it_says() {
    let exported = export(Algorithm::Direct, Operation::AllGather, 3, &Tuning::default()).expect("exported");
    let plan = Shown::listed(std::sync::Arc::unwrap_or_clone(exported)).expect("shown");
    let table = table::text(&plan);
    // Steps that give to a node's other ranks what came for the first one are there for nodes that have others.
    assert!(table.lines().any(|line| line.contains("copy") && line.contains("others")), "{table}");
    assert!(!table.contains("nothing"), "{table}");
    assert!(table.contains("a chunk has 1 block for each rank"), "{table}");
}

#[test]
fn what_waits_for_nothing_that_is_shown_comes_first() {
    let plan = Shown::algorithm(Algorithm::HalvingDoubling, Operation::Allreduce, 3).expect("shown");
    for node in 0..3 {
        for (step, traced) in plan.steps(node) {
            let is_received = matches!(traced.step.action, ringway_plan::Action::Receive { .. });
            let waits = !plan.waits(node, traced).is_empty();
            assert!(waits || is_received || traced.time == 0, "node {node} step {step}: {traced:?}");
        }
    }
}
