//! What is asked for, and what rules say, is done where it can be; nothing out of bounds becomes settings.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ringway_plan::{
    Algorithm, Blocks, Call, Choice, Layout, Plan, PlanSettings, Preference, Rule, SettingsError, Tuning,
    View,
};
use ringway_types::Operation;

/// What the settings choose between so many nodes, and how many chunks it has.
fn planned(settings: &PlanSettings, nodes: u32, operation: Operation, count: u64) -> (Algorithm, u64) {
    let layout = Layout::new(&(0..nodes).collect::<Vec<_>>()).unwrap();
    let call = Call { operation, element: 4, count, root: 0 };
    let view = View { layout: &layout, node: 0, call, blocks: Blocks::Uniform, in_place: &[false] };
    let plan = settings.plan(&view);
    (plan.algorithm().unwrap(), plan.shape(&view).chunks)
}

fn asking(text: &str) -> PlanSettings {
    PlanSettings::default().preferring(text.parse().unwrap())
}

const fn rule(operation: Operation, bytes_max: u64, algorithm: Algorithm, chunk_bytes: u64) -> Rule {
    Rule { operation, bytes_max, algorithm, chunk_bytes, channels: 0 }
}

#[test]
fn what_is_asked_for_is_done_where_it_can_be() {
    let ring = asking("ring");
    for count in [1, 1 << 20] {
        assert_eq!(planned(&ring, 3, Operation::Allreduce, count).0, Algorithm::Ring);
        assert_eq!(planned(&asking("allreduce=direct"), 3, Operation::Allreduce, count).0, Algorithm::Direct);
        // Between two nodes there is no ring for this; there never is for that.
        assert_eq!(planned(&ring, 2, Operation::AllGather, count).0, Algorithm::Direct);
        assert_eq!(planned(&ring, 3, Operation::Barrier, count).0, Algorithm::Direct);
        assert_eq!(planned(&ring, 1, Operation::Allreduce, count).0, Algorithm::Local);
        assert_eq!(planned(&asking("local"), 2, Operation::Barrier, count).0, Algorithm::Direct);
    }
}

#[test]
fn without_anything_the_choice_is_as_ever() {
    let layout = Layout::new(&[0, 1, 2]).unwrap();
    for &operation in Operation::ALL.iter().filter(|operation| operation.is_collective()) {
        for count in [0, 1, 1 << 14, 1 << 20] {
            let call = Call { operation, element: 4, count, root: 0 };
            let view = View { layout: &layout, node: 0, call, blocks: Blocks::Uniform, in_place: &[] };
            assert_eq!(PlanSettings::default().plan(&view), Plan::choose(&view, &Tuning::default()));
        }
    }
}

#[test]
fn rules_say_what_is_done_up_to_which_size() {
    let rules = vec![
        rule(Operation::Allreduce, 1000, Algorithm::Ring, 0),
        rule(Operation::Allreduce, 1 << 20, Algorithm::Direct, 64 << 10),
        rule(Operation::AllGather, u64::MAX, Algorithm::Direct, 0),
    ];
    let settings = PlanSettings::new(Tuning::default(), Preference::default(), rules).unwrap();
    let of = |operation, count| planned(&settings, 3, operation, count);
    assert_eq!(of(Operation::Allreduce, 250).0, Algorithm::Ring);
    assert_eq!(of(Operation::Allreduce, 251), (Algorithm::Direct, 1));
    assert_eq!(of(Operation::Allreduce, 1 << 18), (Algorithm::Direct, 16));
    // Beyond the last rule, and without any, it is as ever.
    assert_eq!(of(Operation::Allreduce, (1 << 18) + 1).0, Algorithm::Ring);
    assert_eq!(of(Operation::AllGather, 1 << 20).0, Algorithm::Direct);
    assert_eq!(of(Operation::Broadcast, 1 << 20).0, Algorithm::Ring);
    // A rule that cannot be followed between two nodes is passed over, one that is asked against as well.
    let rules = vec![rule(Operation::AllGather, u64::MAX, Algorithm::Ring, 0)];
    let settings = PlanSettings::new(Tuning::default(), Preference::default(), rules).unwrap();
    assert_eq!(planned(&settings, 2, Operation::AllGather, 4).0, Algorithm::Direct);
    assert_eq!(planned(&settings, 3, Operation::AllGather, 4).0, Algorithm::Ring);
    let asked = settings.preferring("direct".parse().unwrap());
    assert_eq!(planned(&asked, 3, Operation::AllGather, 4).0, Algorithm::Direct);
}

#[test]
fn sizes_are_what_all_nodes_know() {
    let layout = Layout::new(&[0, 0, 1]).unwrap();
    let bytes = |operation, blocks| {
        let call = Call { operation, element: 4, count: 10, root: 0 };
        View { layout: &layout, node: 0, call, blocks, in_place: &[] }.bytes()
    };
    let starts = Blocks::PerRank { starts: &[0, 5, 5, 7] };
    assert_eq!(bytes(Operation::Allreduce, Blocks::Uniform), 40);
    assert_eq!(bytes(Operation::AllGather, Blocks::Uniform), 120);
    assert_eq!(bytes(Operation::AllToAll, Blocks::Uniform), 120);
    assert_eq!(bytes(Operation::Barrier, Blocks::Uniform), 0);
    assert_eq!(bytes(Operation::AllGatherV, starts), 28);
    assert_eq!(bytes(Operation::GatherV, starts), u64::MAX);
}

#[test]
fn what_is_out_of_bounds_is_refused() {
    let usual = Tuning::default();
    let with = |tuning, rules| PlanSettings::new(tuning, Preference::default(), rules).unwrap_err();
    let tunings = [
        (Tuning { chunk_bytes: 255, ..usual }, "chunk_bytes is 255; it must be 256 to 67108864"),
        (Tuning { chunk_bytes: u64::MAX, ..usual }, "chunk_bytes is 18446744073709551615; it must"),
        (Tuning { depth: 0, ..usual }, "depth is 0; it must be 1 to 8"),
        (Tuning { depth: 9, ..usual }, "depth is 9;"),
        (Tuning { pack_max_bytes: 1 << 30, ..usual }, "pack_max_bytes is 1073741824;"),
    ];
    for (tuning, text) in tunings {
        let error = with(tuning, Vec::new()).to_string();
        assert!(error.contains(text), "{error}");
    }
    let one = |operation, bytes_max| rule(operation, bytes_max, Algorithm::Ring, 0);
    let order = SettingsError::Order { operation: Operation::Reduce };
    assert_eq!(with(usual, vec![one(Operation::Reduce, 5), one(Operation::Reduce, 5)]), order);
    assert_eq!(with(usual, vec![one(Operation::Broadcast, 5), one(Operation::Reduce, 9)]), order);
    let many: Vec<Rule> = (0..65).map(|bytes| one(Operation::Reduce, bytes)).collect();
    assert_eq!(with(usual, many), SettingsError::Rules { operation: Operation::Reduce, count: 65 });
    let send = SettingsError::NotCollective { operation: Operation::Send };
    assert_eq!(with(usual, vec![one(Operation::Send, 5)]), send);
    let chunk = with(usual, vec![rule(Operation::Reduce, 5, Algorithm::Ring, 1)]);
    assert!(matches!(chunk, SettingsError::Range { name: "chunk_bytes", given: 1, .. }));
}

/// Bytes that one channel had to itself go over all of them, with scratch memory for as many.
#[test]
fn over_several_channels_chunks_are_shorter_and_more_are_under_way() {
    let layout = Layout::new(&[0, 1, 2]).unwrap();
    let call = Call { operation: Operation::Allreduce, element: 4, count: 1 << 22, root: 0 };
    let view = View { layout: &layout, node: 0, call, blocks: Blocks::Uniform, in_place: &[false] };
    let ruled = vec![rule(Operation::Allreduce, u64::MAX, Algorithm::Ring, 1 << 20)];
    for rules in [Vec::new(), ruled] {
        let settings = PlanSettings::new(Tuning::default(), Preference::default(), rules).unwrap();
        assert_eq!(settings.choice_over(&view, 1), settings.choice(&view));
        let alone = settings.plan(&view).shape(&view);
        for channels in [2, 4, 8] {
            let Choice { plan, channels: used, .. } = settings.choice_over(&view, channels);
            assert_eq!(used, channels);
            let shape = plan.shape(&view);
            assert_eq!(plan.algorithm(), settings.plan(&view).algorithm());
            assert!(
                shape.chunks + 8 >= alone.chunks * u64::from(channels) && shape.depth >= channels,
                "{shape:?}"
            );
            assert!(shape.scratch * u64::from(channels) <= alone.scratch + 4096, "{shape:?} {alone:?}");
        }
    }
    let small = PlanSettings::new(
        Tuning { chunk_bytes: PlanSettings::CHUNK_BYTES_MIN, ..Tuning::default() },
        Preference::default(),
        Vec::new(),
    );
    let small = small.unwrap();
    let chunks = small.plan(&view).shape(&view).chunks;
    assert_eq!(small.choice_over(&view, 8).plan.shape(&view).chunks, chunks, "they cannot be shorter");
}

/// A rule can leave channels aside: then chunks are as if there were no more than it takes.
#[test]
fn a_rule_says_over_how_many_channels_its_chunks_go() {
    let layout = Layout::new(&[0, 1, 2]).unwrap();
    let call = Call { operation: Operation::Allreduce, element: 4, count: 1 << 22, root: 0 };
    let view = View { layout: &layout, node: 0, call, blocks: Blocks::Uniform, in_place: &[false] };
    let over = |of_rule: u32, there_are: u32, asked: &str| {
        let rule =
            Rule { channels: of_rule, ..rule(Operation::Allreduce, u64::MAX, Algorithm::Ring, 1 << 20) };
        let settings = PlanSettings::new(Tuning::default(), asked.parse().unwrap(), vec![rule]).unwrap();
        let Choice { channels, chunk_bytes, .. } = settings.choice_over(&view, there_are);
        (channels, chunk_bytes)
    };
    assert_eq!(over(0, 4, "auto"), (4, 256 << 10), "all");
    assert_eq!(over(1, 4, "auto"), (1, 1 << 20));
    assert_eq!(over(2, 4, "ring"), (2, 512 << 10), "the rule is that of what is asked for");
    assert_eq!(over(8, 4, "auto"), (4, 256 << 10), "there are no more");
    assert_eq!(over(1, 4, "direct"), (4, Tuning::default().chunk_bytes / 4), "the rule is another one's");
    let nine = Rule { channels: 9, ..rule(Operation::Reduce, 5, Algorithm::Ring, 0) };
    let error = PlanSettings::new(Tuning::default(), Preference::default(), vec![nine]).unwrap_err();
    assert_eq!(error.to_string(), "channels is 9; it must be 0 to 8");
}
