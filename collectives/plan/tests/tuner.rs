//! What is chosen by what links take.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use proptest::prelude::*;
use ringway_plan::tuner::{Constants, Order, Saved, SavedRule, candidates, eager_write_max_bytes, tune};
use ringway_plan::{Algorithm, Blocks, Call, Layout, Origin, PlanSettings, Preference, Rule, Tuning, View};
use ringway_types::Operation;

fn layout(nodes: u32) -> Layout {
    Layout::new(&(0..nodes).collect::<Vec<_>>()).unwrap()
}

fn fastest(nodes: u32, operation: Operation, bytes: u64, constants: &Constants) -> Algorithm {
    candidates((&layout(nodes), operation, bytes), Order::Stable, constants, &Tuning::default())
        .first()
        .unwrap()
        .algorithm
}

/// A cluster whose latency is what counts, and one whose bandwidth does.
#[test]
fn latency_asks_for_few_messages_and_bandwidth_for_few_bytes() {
    let slow = Constants { latency_ns: 1e6, message_ns: 100.0, byte_ns: 0.01, ..Constants::default() };
    let rounds = |algorithm: Algorithm, operation| {
        let terms = ringway_plan::Terms { nodes: 8, most_local: 1, bytes: 65536.0, group_nodes: 0 };
        algorithm.cost(operation, &terms).unwrap()
    };
    for operation in [Operation::Allreduce, Operation::AllGather, Operation::Broadcast] {
        let found = fastest(8, operation, 64 << 10, &slow);
        assert!(rounds(found, operation).rounds <= 3.0, "{operation} by {found}");
    }
    let narrow = Constants { latency_ns: 100.0, message_ns: 10.0, byte_ns: 10.0, ..Constants::default() };
    let found = fastest(8, Operation::Allreduce, 64 << 20, &narrow);
    let least = 2.0 * 7.0 / 8.0 * 65536.0;
    assert!((rounds(found, Operation::Allreduce).sent - least).abs() < 1.0, "{found}");
}

/// Where many nodes share few processors what all of them do counts: a tree has the fewest messages in all, though it has more
/// of them one behind the other than an exchange of everybody with everybody.
#[test]
fn shared_processors_ask_for_few_messages_in_all() {
    let own = Constants { latency_ns: 10_000.0, message_ns: 2_000.0, ..Constants::default() };
    assert_eq!(fastest(4, Operation::Allreduce, 8, &own), Algorithm::Direct);
    let shared = Constants { sharing: 8.0, ..own };
    // Four nodes on two processors measured 162 to 207 us so, by a tree 163 to 219 and directly 169 to 235.
    assert_eq!(fastest(4, Operation::Allreduce, 8, &shared), Algorithm::RecursiveDoubling);
    let twice = Constants { latency_ns: 20_000.0, message_ns: 4_000.0, byte_ns: 1.0, ..own };
    let found = twice.unshared(2.0);
    assert_eq!(
        (found.latency_ns, found.message_ns, found.byte_ns, found.sharing),
        (20_000.0, 2_000.0, 0.5, 2.0)
    );
}

/// A message takes a processor's time through a kernel, also where waiting for others' turns hid it from what was measured; between
/// memories it takes as little as is found. Then long messages are cut into few chunks. What three nodes on two processors measured,
/// whose broadcast of 512 KiB takes 0.3 ms in chunks of 256 KiB and 0.58 in those of 64.
#[test]
fn what_is_measured_of_messages_is_no_less_than_they_take() {
    let measured = |latency_ns| Constants {
        latency_ns,
        message_ns: 200.0,
        byte_ns: 0.6,
        reduce_ns: 0.04,
        copy_ns: 0.03,
        ..Constants::default()
    };
    let message_ns = |latency_ns, sharing| measured(latency_ns).unshared(sharing).message_ns;
    assert_eq!(message_ns(14_000.0, 1.0), 200.0, "nobody else had turns");
    assert_eq!([14_000.0, 200_000.0].map(|latency_ns| message_ns(latency_ns, 1.5)), [2_000.0; 2]);
    assert_eq!(message_ns(400.0, 2.0), 100.0);
    let problem = (&layout(3), Operation::Broadcast, 512 << 10);
    let best = candidates(problem, Order::Stable, &measured(14_000.0).unshared(1.5), &Tuning::default());
    assert!(best[0].chunk_bytes >= 128 << 10, "{best:?}");
}

/// Direct has the same messages as a ring or a binomial tree between two nodes, and copies a node's own part to where others' come.
/// Of one chunk the root of a reduce has done so before they come. What two nodes on two processors measured.
#[test]
fn what_is_combined_where_it_is_is_not_copied() {
    let measured = Constants {
        latency_ns: 4_100.0,
        message_ns: 240.0,
        byte_ns: 0.27,
        reduce_ns: 0.038,
        copy_ns: 0.027,
        ..Constants::default()
    };
    for bytes in [256 << 10, 2 << 20, 16 << 20] {
        assert_eq!(fastest(2, Operation::ReduceScatter, bytes, &measured), Algorithm::Ring, "{bytes}");
    }
    assert_eq!(fastest(2, Operation::Reduce, 256 << 10, &measured), Algorithm::Direct);
    assert_eq!(fastest(2, Operation::Reduce, 16 << 20, &measured), Algorithm::Binomial);
}

/// Of a call of one chunk it does not matter how long chunks may be, but for how long blocks are packed: between two nodes of two
/// ranks as many bytes as usual, where shorter chunks would leave four messages of 16 KiB for one.
#[test]
fn short_calls_have_the_usual_chunks() {
    let two = Layout::new(&[0, 0, 1, 1]).unwrap();
    let usual = Tuning::default();
    for bytes in [64, 64 << 10] {
        let problem = (&two, Operation::AllToAll, bytes);
        let best = candidates(problem, Order::Stable, &Constants::default(), &usual);
        assert_eq!(best[0].chunk_bytes, usual.chunk_bytes, "{bytes}");
    }
}

/// Messages that come alone take more of a processor than many at once: a double tree's, which has twice as many as direct, are too
/// many for a short call. What three nodes on two processors measured, which reduce 64 KiB in 108 us directly and in 156 so.
#[test]
fn where_processors_are_shared_a_short_call_has_few_messages() {
    let measured = |message_ns: f64| Constants {
        latency_ns: 24_000.0,
        message_ns,
        byte_ns: 0.3,
        reduce_ns: 0.03,
        copy_ns: 0.02,
        sharing: 1.5,
        ..Constants::default()
    };
    for message_ns in [3_000.0, 6_000.0, 9_000.0] {
        assert_eq!(fastest(3, Operation::Reduce, 64 << 10, &measured(message_ns)), Algorithm::Direct);
    }
}

/// A long way takes as long for eight nodes on two processors, and few messages one behind the other are what is chosen. Last are
/// six communicators with 100 us of delay, for which recursive doubling took 1.23 to 1.30 ms and trees 1.46 to 1.90.
#[test]
fn a_long_way_takes_nobodys_processor() {
    let measured = Constants {
        latency_ns: 160_000.0,
        message_ns: 8_000.0,
        byte_ns: 1.2,
        reduce_ns: 0.1,
        copy_ns: 0.1,
        ..Constants::default()
    };
    let unshared = measured.unshared(4.0);
    assert_eq!((unshared.latency_ns, unshared.message_ns), (160_000.0, 2_000.0));
    let found = fastest(8, Operation::Allreduce, 64 << 10, &unshared);
    let terms = ringway_plan::Terms { nodes: 8, most_local: 1, bytes: 65536.0, group_nodes: 0 };
    assert!(found.cost(Operation::Allreduce, &terms).unwrap().rounds <= 6.0, "{found}");
    let measured = [
        (260_500.0, 16_340.0, 0.489),
        (234_000.0, 19_070.0, 0.568),
        (255_900.0, 27_100.0, 0.572),
        (188_200.0, 19_150.0, 0.355),
        (244_100.0, 15_900.0, 0.480),
        (171_000.0, 20_690.0, 0.415),
    ];
    for (latency_ns, message_ns, byte_ns) in measured {
        let (reduce_ns, copy_ns, sharing) = (0.06, 0.025, 4.0);
        let links = Constants { latency_ns, message_ns, byte_ns, reduce_ns, copy_ns, sharing, ..unshared };
        let eager_write_max_bytes = eager_write_max_bytes(&layout(8), &links, &Tuning::default());
        let tuning = Tuning { eager_write_max_bytes, ..Tuning::default() };
        let problem = (&layout(8), Operation::Allreduce, 64 << 10);
        let best = candidates(problem, Order::Stable, &links, &tuning);
        assert_eq!(best[0].algorithm, Algorithm::RecursiveDoubling, "{latency_ns}");
    }
}

/// Where a long message goes is said ahead, so that it costs a call two ways and little of a processor: rounds of long messages
/// stay better than more rounds of short ones. What eight nodes on two processors measured, whose fastest allreduce of 64 KiB is
/// recursive doubling (1.5 ms with eager writes, else 2.0; a ring takes 3.3, and 0.33 more when its messages are asked for).
#[test]
fn long_messages_are_asked_for_once() {
    let measured = Constants {
        latency_ns: 165_000.0,
        message_ns: 27_000.0,
        byte_ns: 0.4,
        reduce_ns: 0.03,
        copy_ns: 0.02,
        sharing: 4.0,
        ..Constants::default()
    };
    let all = |bytes, eager_write_max_bytes| {
        let tuning = Tuning { eager_write_max_bytes, ..Tuning::default() };
        candidates((&layout(8), Operation::Allreduce, bytes), Order::Stable, &measured, &tuning)
    };
    let max = eager_write_max_bytes(&layout(8), &measured, &Tuning::default());
    assert_eq!(max, 64 << 10);
    for max in [0, max] {
        assert_eq!(all(64 << 10, max)[0].algorithm, Algorithm::RecursiveDoubling);
    }
    let time = |algorithm: Algorithm, bytes| {
        all(bytes, 0).iter().find(|it| it.algorithm == algorithm).unwrap().prediction.time_ns
    };
    let step = |algorithm, bytes| time(algorithm, bytes + 4096) - time(algorithm, bytes);
    let eager = u64::from(ringway_plan::EAGER_BYTES);
    // The ring's messages are an eighth.
    for (algorithm, bytes) in [(Algorithm::Tree, eager), (Algorithm::Ring, 8 * eager)] {
        let step_ns = step(algorithm, bytes);
        assert!((160_000.0..400_000.0).contains(&step_ns), "{algorithm}: {step_ns} ns");
    }
}

/// Copies spare two ways over a link, and what asking costs a processor. What nodes on shared processors measured: with eager
/// writes 64 KiB took four on two 0.71 of the time, and eight 0.76.
#[test]
fn messages_are_written_eagerly_where_ways_are_long() {
    let max = |nodes: u32, latency_ns: f64, sharing: f64| {
        let measured =
            Constants { latency_ns, message_ns: 10_000.0, byte_ns: 0.4, sharing, ..Constants::default() };
        eager_write_max_bytes(&layout(nodes), &measured, &Tuning::default())
    };
    assert_eq!(max(2, 120_000.0, 1.0), 64 << 10);
    assert_eq!(max(8, 120_000.0, 1.0), 64 << 10);
    assert_eq!(max(8, 120_000.0, 4.0), 64 << 10, "eight nodes on two processors");
    assert_eq!(max(2, 1_000.0, 1.0), 0, "no longer than a few cache lines' way");
    assert_eq!(max(1, 120_000.0, 1.0), 0, "there is no link");
}

/// How many channels chunks go over: as many as it takes to carry what all can, and one where that carries as much.
#[test]
fn channels_are_as_many_as_it_takes_to_carry_what_all_can() {
    let with = |channel_byte_ns: f64, channels: f64| {
        let none = Constants { message_ns: 100.0, reduce_ns: 0.0, copy_ns: 0.0, ..Constants::default() };
        Constants { latency_ns: 10_000.0, byte_ns: 0.1, channel_byte_ns, channels, ..none }
    };
    let chosen = |constants: &Constants, bytes: u64| {
        let call = (&layout(4), Operation::Allreduce, bytes);
        candidates(call, Order::Stable, constants, &Tuning::default())[0]
    };
    for bytes in [64 << 20, 1 << 30] {
        assert_eq!(chosen(&with(0.1, 4.0), bytes).channels, Some(1), "one carries all");
        assert_eq!(chosen(&with(0.2, 8.0), bytes).channels, Some(2), "two do");
        assert_eq!(chosen(&with(0.6, 6.0), bytes).channels, Some(6), "none to spare");
        assert_eq!(chosen(&with(0.4, 1.0), bytes).channels, None, "there is no other");
        assert_eq!(chosen(&with(0.0, 4.0), bytes).channels, None, "nobody knows");
    }
    assert_eq!(chosen(&with(0.6, 6.0), 8).channels, Some(1), "one message goes over one");
    // A network card for each of two channels: what is sent over one of them takes twice as long.
    let (alone, both) = (with(0.2, 1.0), with(0.2, 2.0));
    let over_one = Constants { byte_ns: 0.2, ..alone };
    let time = |constants| chosen(constants, 1 << 30).prediction.time_ns;
    assert!(time(&both) < 0.6 * time(&over_one), "{} {}", time(&both), time(&over_one));
}

/// What is predicted of a candidate is what the plan of its rule makes of a call.
#[test]
fn rules_say_the_chunks_and_channels_that_were_priced() {
    let constants = Constants { byte_ns: 0.1, channel_byte_ns: 0.3, channels: 4.0, ..Constants::default() };
    let layout = layout(4);
    let rules = tune(&layout, Order::Stable, &constants, &Tuning::default(), &Preference::default());
    assert!(rules.iter().any(|rule| rule.channels == 1) && rules.iter().any(|rule| rule.channels == 4));
    let settings = PlanSettings::new(Tuning::default(), Preference::default(), rules).unwrap();
    for log2 in 0..=30 {
        let call = (&layout, Operation::Allreduce, 1 << log2);
        let found = candidates(call, Order::Stable, &constants, &Tuning::default())[0];
        let call = Call { operation: Operation::Allreduce, element: 1, count: 1 << log2, root: 0 };
        let view = View { layout: &layout, node: 0, call, blocks: Blocks::Uniform, in_place: &[false] };
        let choice = settings.choice_over(&view, 4);
        let planned = (choice.plan.algorithm(), choice.chunk_bytes, Some(choice.channels));
        assert_eq!(planned, (Some(found.algorithm), found.chunk_bytes, found.channels), "2^{log2}");
        assert_eq!(choice.plan.shape(&view).chunks, found.prediction.chunks, "2^{log2}");
    }
}

/// Processor time is shared; what one channel takes beyond all of them is not.
#[test]
fn a_slow_channel_takes_nobodys_processor() {
    let measured = Constants { byte_ns: 1.0, channel_byte_ns: 3.0, channels: 2.0, ..Constants::default() };
    let unshared = measured.unshared(4.0);
    assert_eq!((unshared.byte_ns, unshared.channel_byte_ns), (0.25, 2.25));
}

#[test]
fn strict_leaves_what_combines_in_order() {
    let all = |order, operation| {
        candidates((&layout(8), operation, 1 << 20), order, &Constants::default(), &Tuning::default())
    };
    for operation in Operation::ALL.iter().copied().filter(|operation| operation.is_collective()) {
        let strict = all(Order::Strict, operation);
        assert!(!strict.is_empty(), "{operation}");
        assert!(strict.iter().all(|it| !operation.reduces() || it.algorithm.is_strict(operation)));
        assert!(operation.reduces() || strict.len() == all(Order::Stable, operation).len());
    }
}

#[test]
fn wished_rules_replace_those_of_their_operation() {
    let rule = Rule {
        operation: Operation::Allreduce,
        bytes_max: u64::MAX,
        algorithm: Algorithm::Ring,
        chunk_bytes: 0,
        channels: 0,
    };
    let saved = Saved { links: Vec::new(), rules: vec![SavedRule { nodes: 4, rule }] };
    let made =
        tune(&layout(4), Order::Stable, &Constants::default(), &Tuning::default(), &Preference::default());
    let over = saved.over(4, made.clone());
    let of = |rules: &[Rule]| rules.iter().filter(|it| it.operation == Operation::Allreduce).count();
    assert_eq!(of(&over), 1);
    assert_eq!(over.len(), made.len() - of(&made) + 1);
    assert!(PlanSettings::new(Tuning::default(), Preference::default(), over).is_ok());
    assert_eq!(saved.over(3, made.clone()), made);
}

/// What is asked for keeps the chunks that the model finds best for it.
#[test]
fn an_algorithm_that_is_asked_for_has_its_best_chunks() {
    let (layout, constants) = (layout(4), Constants::default());
    let mut unusual = 0;
    for &algorithm in Algorithm::ALL {
        let asked = Preference::everywhere(algorithm);
        let rules = tune(&layout, Order::Stable, &constants, &Tuning::default(), &asked);
        let settings = PlanSettings::new(Tuning::default(), asked, rules).unwrap();
        for (operation, log2) in [Operation::Allreduce, Operation::Broadcast]
            .into_iter()
            .flat_map(|operation| (0..=32).step_by(4).map(move |log2| (operation, log2)))
        {
            let call = Call { operation, element: 1, count: 1 << log2, root: 0 };
            let view = View { layout: &layout, node: 0, call, blocks: Blocks::Uniform, in_place: &[false] };
            let all =
                candidates((&layout, operation, 1 << log2), Order::Stable, &constants, &Tuning::default());
            let choice = settings.choice(&view);
            let expected = all.iter().find(|it| it.algorithm == algorithm).unwrap_or(&all[0]);
            assert_eq!(choice.plan.algorithm(), Some(expected.algorithm));
            assert_eq!(choice.chunk_bytes, expected.chunk_bytes, "{algorithm} {operation} of 2^{log2}");
            unusual += u32::from(choice.chunk_bytes != Tuning::default().chunk_bytes);
        }
    }
    assert!(unusual > 100, "{unusual} have another chunk than the usual one");
}

/// A rule of another algorithm says nothing of the one that is asked for.
#[test]
fn the_chunk_of_another_algorithms_rule_is_not_taken() {
    let layout = layout(4);
    let rule = Rule {
        operation: Operation::Allreduce,
        bytes_max: u64::MAX,
        algorithm: Algorithm::Direct,
        chunk_bytes: 4096,
        channels: 0,
    };
    let call = Call { operation: Operation::Allreduce, element: 1, count: 1 << 20, root: 0 };
    let view = View { layout: &layout, node: 0, call, blocks: Blocks::Uniform, in_place: &[false] };
    let chosen = |asked: &str| {
        let asked = asked.parse().unwrap();
        PlanSettings::new(Tuning::default(), asked, vec![rule]).unwrap().choice(&view)
    };
    let (asked, both, ruled) = (chosen("ring"), chosen("direct"), chosen("auto"));
    assert_eq!((asked.chunk_bytes, asked.origin), (Tuning::default().chunk_bytes, Origin::Asked));
    assert_eq!((both.chunk_bytes, both.origin), (4096, Origin::Asked));
    assert_eq!((ruled.chunk_bytes, ruled.origin), (4096, Origin::Rule(rule)));
    assert_eq!(ruled.plan.algorithm(), Some(Algorithm::Direct));
}

#[test]
fn beyond_wished_rules_those_made_hold() {
    let rule = |bytes_max| Rule {
        operation: Operation::Allreduce,
        bytes_max,
        algorithm: Algorithm::Ring,
        chunk_bytes: 0,
        channels: 0,
    };
    let made =
        tune(&layout(4), Order::Strict, &Constants::default(), &Tuning::default(), &Preference::default());
    for wishes in [1, PlanSettings::RULES_MAX - 1, PlanSettings::RULES_MAX] {
        let wished = (1..=wishes as u64).map(|bytes| SavedRule { nodes: 4, rule: rule(bytes) });
        let saved = Saved { links: Vec::new(), rules: wished.collect() };
        let over = saved.over(4, made.clone());
        let of: Vec<_> = over.iter().filter(|it| it.operation == Operation::Allreduce).collect();
        assert_eq!(of.iter().filter(|it| ***it == rule(it.bytes_max)).count(), wishes);
        let is_made = made.contains(of[of.len() - 1]) && of[of.len() - 1].bytes_max == u64::MAX;
        assert_eq!(is_made, wishes < PlanSettings::RULES_MAX);
        assert!(PlanSettings::new(Tuning::default(), Preference::default(), over).is_ok());
    }
}

proptest! {
    /// Whatever was measured, there are rules for every operation and size, as settings take them; the same every time.
    #[test]
    fn rules_are_settings(
        nodes in 2_u32..20,
        (latency_ns, message_ns, byte_ns) in (0.0..1e7, 0.0..1e6, 0.0..1e3),
        (reduce_ns, copy_ns, sharing) in (0.0..10.0, 0.0..10.0, 1.0..16.0),
        (channel_byte_ns, channels) in (0.0..1e3, 0_u32..=8),
        order in prop::sample::select(Order::ALL),
    ) {
        let values =
            [latency_ns, message_ns, byte_ns, reduce_ns, copy_ns, sharing, channel_byte_ns, channels.into()];
        let constants = Constants::of(values).checked().unwrap();
        prop_assert_eq!(constants.named().map(|(_, value)| value), values);
        let rules = tune(&layout(nodes), order, &constants, &Tuning::default(), &Preference::default());
        prop_assert_eq!(&rules, &tune(&layout(nodes), order, &constants, &Tuning::default(), &Preference::default()));
        for operation in Operation::ALL.iter().filter(|operation| operation.is_collective()) {
            let last = rules.iter().rfind(|rule| rule.operation == *operation);
            prop_assert_eq!(last.map(|rule| rule.bytes_max), Some(u64::MAX));
        }
        prop_assert!(PlanSettings::new(Tuning::default(), Preference::default(), rules).is_ok());
    }
}
