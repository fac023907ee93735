use proptest::prelude::*;

use super::{
    super::{noise::tests::Noise, report::sample, result::Round},
    *,
};

/// One point of these times in its rounds.
fn with(us: &[f64]) -> Report {
    let median = Spread::of(us.to_vec()).median;
    let mut point = sample::point(Test::Latency, "tcp", Polling::Spin, 8, median);
    point.rounds = us.iter().map(|us| sample::round(Test::Latency, *us)).collect();
    Report { points: vec![point], ..Report::default() }
}

fn compared(before: &[f64], after: &[f64]) -> Verdict {
    let changes = compare(&with(before), &with(after)).changes;
    let found: Vec<Aspect> = changes.iter().map(|change| change.aspect).collect();
    assert_eq!(found, [Aspect::Time, Aspect::P99, Aspect::Cpu]);
    changes[0].verdict
}

#[test]
fn a_change_is_one_beyond_the_noise() {
    assert_eq!(compared(&[4.0, 4.1, 4.2], &[4.5, 4.6, 4.7]), Verdict::Regressed);
    assert_eq!(compared(&[4.7, 4.5, 4.6], &[4.2, 4.0, 4.1]), Verdict::Improved);
    // Three rounds that do not overlap come about by chance in one case of ten.
    assert_eq!(compared(&[4.0, 4.1, 4.3], &[4.4, 4.5, 4.6]), Verdict::Same);
    assert_eq!(compared(&[4.0, 4.1, 4.2, 4.25, 4.3], &[4.4, 4.5, 4.6, 4.7, 4.8]), Verdict::Regressed);
    // Medians are less than 5 % apart.
    assert_eq!(compared(&[4.0, 4.0, 4.0], &[4.1, 4.1, 4.1]), Verdict::Same);
    // What is no number is no change.
    assert_eq!(compared(&[f64::NAN; 3], &[4.1, 4.1, 4.1]), Verdict::Same);
}

/// Everything is measured twice with nothing but noise between, by as many rounds as a quick and a full run have.
#[test]
fn noise_gives_few_alarms() {
    let mut noise = Noise::new();
    for (rounds, share) in [(3, 0.02), (3, 0.2), (5, 0.02), (5, 0.2)] {
        let mut run = || {
            let mut report = sample::full();
            for point in &mut report.points {
                let us = point.us();
                let one = |_| Round {
                    us: noise.about(us, share),
                    p99_us: (!point.test.is_flow()).then(|| noise.about(us * 2.0, share * 2.0)),
                    cpu_s_per_million: Some(noise.about(us, share)),
                };
                point.rounds = (0..rounds).map(one).collect();
            }
            report
        };
        let found = compare(&run(), &run());
        let alarms = found.changes.len() - found.count(Verdict::Same);
        assert!(
            found.changes.len() > 1000 && alarms * 50 <= found.changes.len(),
            "{rounds} {share}: {alarms}"
        );
    }
}

#[test]
fn each_aspect_has_its_better_direction() {
    let mut before = with(&[4.0, 4.1, 4.2]);
    before.points.push(sample::point(Test::Bandwidth, "tcp", Polling::Spin, 1 << 20, 100.0));
    let mut after = before.clone();
    for round in after.points.iter_mut().flat_map(|point| &mut point.rounds) {
        (round.us, round.p99_us, round.cpu_s_per_million) =
            (round.us * 2.0, round.p99_us.map(|us| us / 2.0), round.cpu_s_per_million.map(|s| s * 2.0));
    }
    let found: Vec<(Aspect, Verdict)> =
        compare(&before, &after).changes.iter().map(|change| (change.aspect, change.verdict)).collect();
    let (better, worse) = (Verdict::Improved, Verdict::Regressed);
    let of_latency = [(Aspect::Time, worse), (Aspect::P99, better), (Aspect::Cpu, worse)];
    assert_eq!(found, [of_latency.as_slice(), &[(Aspect::Goodput, worse), (Aspect::Cpu, worse)]].concat());
}

#[test]
fn a_report_of_everything_is_the_same_as_itself() {
    let report = sample::full();
    let same = compare(&report, &report);
    assert!(same.changes.len() > report.points.len());
    assert!(same.changes.iter().all(|change| change.verdict == Verdict::Same));
    assert_eq!(same.warnings, Vec::<String>::new());
    assert_eq!((same.only_in_a.len(), same.only_in_b.len()), (0, 0));
}

#[test]
fn the_table_aligns_and_tells_the_rule() {
    let before = sample::full();
    let mut after = before.clone();
    after.points.retain(|p| p.path != "tcp-epoll");
    for point in after.points.iter_mut().filter(|p| p.test == Test::Latency && p.path == "tcp") {
        point.rounds.iter_mut().for_each(|round| round.us *= 2.0);
    }
    let lines = compare(&before, &after).lines();
    let text = lines.join("\n");
    let rows = lines.len() - 2;
    assert!(lines[1..rows].iter().all(|line| line.find("tcp") == lines[0].find("path")), "{text}");
    assert!(
        lines.iter().any(|line| line.starts_with("regressed  latency")
            && line.contains("p50 (us)")
            && line.contains("2.00")),
        "{text}"
    );
    assert!(lines.iter().any(|line| line.starts_with("only in A") && line.contains("tcp-epoll")), "{text}");
    assert!(text.contains(" 0 improved, ") && text.contains(" 0 only in B"), "{text}");
    assert_eq!(lines.last().map(String::as_str), Some(RULE));
}

#[test]
fn nothing_in_common_is_no_change() {
    let lines = compare(&Report::default(), &Report::default()).lines();
    assert_eq!(lines.len(), 4, "two warnings that both were ended, the summary and the rule: {lines:?}");
}

#[test]
fn runs_that_do_not_compare_are_warned_of() {
    let before = sample::full();
    let mut after = before.clone();
    after.machine.kernel = String::new();
    after.settings.quick = !after.settings.quick;
    after.complete = false;
    after.hand_over_ns = Some(Spread { least: 190.0, median: 200.0, most: 210.0 });
    let warnings = compare(&before, &after).warnings;
    let expected =
        ["in the kernel: Linux 6.12.0 and unknown", "in the quick run", "200 ns in B", "B was ended"];
    assert_eq!(warnings.len(), expected.len(), "{warnings:?}");
    for part in expected {
        assert!(warnings.iter().any(|warning| warning.contains(part)), "{part} is not in {warnings:?}");
    }
}

#[test]
fn what_is_written_is_what_is_loaded() {
    let folder = sample::Folder::new("load");
    let report = sample::full();
    super::super::report::write(&report, &folder.0).expect("files");
    let page = || fs::read_to_string(folder.0.join("bench.md")).expect("a page");
    let first = page();
    let loaded = load(&folder.0.join("bench.json")).expect("a report");
    let changes = compare(&loaded, &report).changes;
    assert_eq!(changes.len(), compare(&report, &report).changes.len());
    assert!(changes.iter().all(|change| change.verdict == Verdict::Same));
    super::super::report::write(&loaded, &folder.0).expect("files");
    assert_eq!(page(), first);
}

/// A tool's mean was written as if it were a point with percentiles that are all alike.
#[test]
fn a_report_of_the_format_before_is_read() {
    let folder = sample::Folder::new("before");
    let report = sample::full();
    let mut value = serde_json::to_value(&report).expect("JSON");
    value["format"] = 1.into();
    for point in value["points"].as_array_mut().expect("points") {
        // As it was: a mean in the place of percentiles, no samples and no rounds.
        let fields = point.as_object_mut().expect("a point");
        for name in ["samples", "rounds"] {
            fields.remove(name);
        }
        if let Some(mean) = fields.remove("mean_us").filter(|mean| mean.is_f64()) {
            let time = [("p50", &mean), ("p99", &mean), ("p999", &mean)]
                .map(|(name, us)| (name.to_owned(), us.clone()));
            fields.insert("time_us".to_owned(), serde_json::Value::Object(time.into_iter().collect()));
        }
        let spread = fields.remove("spread_us").expect("a spread");
        fields.insert("p50_spread_us".to_owned(), spread);
    }
    let flow = value["points"].as_array().and_then(|points| points.iter().find(|p| p["test"] == "bandwidth"));
    value["references"][0]["point"] = flow.expect("one").clone();
    let path = folder.0.join("bench.json");
    fs::write(&path, value.to_string()).expect("a file");
    let loaded = load(&path).expect("a report");
    let told = loaded.references[0].point.clone().expect("a point");
    assert!(told.us() > 0.0 && told.mean_us.is_none() && told.spread_us[0] > 0.0);
    let flow =
        |report: &Report| report.points.iter().find(|p| p.test == Test::Bandwidth).cloned().expect("one");
    assert_eq!((flow(&loaded).time_us, flow(&loaded).mean_us), (None, flow(&report).mean_us));
    let changes = compare(&loaded, &report).changes;
    assert!(
        changes.len() == report.points.len() && changes.iter().all(|change| change.verdict == Verdict::Same)
    );
}

#[test]
fn what_is_no_report_is_refused_with_its_reason() {
    let folder = sample::Folder::new("refused");
    let refusal = |text: &str| {
        let path = folder.0.join("bench.json");
        fs::write(&path, text).expect("a file");
        load(&path).expect_err("no report")
    };
    assert!(refusal("{").contains("bench.json is not JSON"));
    assert!(refusal("[1]").contains("is no report of `ringway bench`"));
    assert!(refusal("{\"format\": 1}").contains("missing field"));
    assert!(refusal(&format!("{{\"format\": {}}}", FORMAT + 1)).contains("a newer Ringway"));
    assert!(load(&folder.0.join("none.json")).expect_err("no file").contains("cannot read"));
}

/// A few points with any times, some in both reports.
fn any_report() -> impl Strategy<Value = Report> {
    let point = (0..4_u64, 0.1..100.0_f64, 0.0..0.2_f64).prop_map(|(bytes, p50, noise)| {
        let mut point = sample::point(Test::Latency, "tcp", Polling::Spin, bytes, p50);
        let times = [p50 * (1.0 - noise), p50, p50 * (1.0 + noise)];
        point.rounds = times.map(|us| sample::round(Test::Latency, us)).to_vec();
        point
    });
    prop::collection::vec(point, 0..6).prop_map(|points| Report { points, ..Report::default() })
}

proptest! {
    #[test]
    fn nothing_changes_between_a_report_and_itself(report in any_report()) {
        let same = compare(&report, &report);
        prop_assert!(same.changes.iter().all(|change| change.verdict == Verdict::Same));
        prop_assert!(same.only_in_a.is_empty() && same.only_in_b.is_empty());
    }

    #[test]
    fn the_other_way_round_what_improved_regressed(a in any_report(), b in any_report()) {
        let (there, back) = (compare(&a, &b), compare(&b, &a));
        prop_assert_eq!(&there.only_in_a, &back.only_in_b);
        prop_assert_eq!(&there.only_in_b, &back.only_in_a);
        for (change, reverse) in there.changes.iter().zip(&back.changes) {
            prop_assert_eq!(&change.key, &reverse.key);
            let expected = match change.verdict {
                Verdict::Improved => Verdict::Regressed,
                Verdict::Regressed => Verdict::Improved,
                Verdict::Same => Verdict::Same,
            };
            prop_assert_eq!(reverse.verdict, expected);
        }
    }
}
