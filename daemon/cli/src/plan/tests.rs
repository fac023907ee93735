use super::*;

fn ring() -> Listed {
    made(Algorithm::Ring, Operation::Allreduce, 3).expect("a ring")
}

#[test]
fn the_table_says_what_every_step_does() {
    let plan = made(Algorithm::Direct, Operation::Allreduce, 2).expect("an exchange");
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
    assert_eq!(table::text(&plan, &Levels::of(&plan)), expected);
}

#[test]
fn the_picture_has_a_box_for_each_step_and_an_arrow_for_each_message() {
    let plan = ring();
    let levels = Levels::of(&plan);
    let svg = picture::svg(&plan, &levels);
    let steps: usize = (0..3).map(|node| plan.steps(node).len()).sum();
    assert_eq!(svg.matches("class=\"box").count(), steps);
    // Every node sends two partial results and two final ones.
    assert_eq!((levels.messages.len(), svg.matches("class=\"tip\"").count()), (12, 12));
    assert!(svg.contains("prefers-color-scheme:dark") && svg.contains("block 2</text>"));
    // A block goes round twice: combine, then four times send and receive with what lies between.
    assert!((9..=13).contains(&levels.end()), "{}", levels.end());
}

#[test]
fn json_has_every_step() {
    let plan = ring();
    let json = table::json(&plan, &Levels::of(&plan));
    assert_eq!(json["name"], "allreduce-ring-3");
    let steps = json["steps"].as_array().expect("steps");
    assert_eq!(steps.len(), 3 * plan.steps(0).len());
    assert!(
        steps.iter().any(|step| step["what"] == "finish" && step["after"] == serde_json::json!([[5, 5]])),
        "{json}"
    );
}
