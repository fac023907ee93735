use proptest::prelude::*;

use super::{super::report::sample, *};

fn compared(before: [f64; 3], after: [f64; 3]) -> Verdict {
    let with = |[least, median, most]: [f64; 3]| {
        let mut point = sample::point(Test::Latency, "tcp", Polling::Spin, 8, median);
        point.p50_spread_us = [least, most];
        Report { points: vec![point], ..Report::default() }
    };
    compare(&with(before), &with(after)).points[0].verdict
}

#[test]
fn a_change_is_one_beyond_the_noise() {
    assert_eq!(compared([4.0, 4.1, 4.2], [4.4, 4.5, 4.6]), Verdict::Regressed);
    assert_eq!(compared([4.4, 4.5, 4.6], [4.0, 4.1, 4.2]), Verdict::Improved);
    // The rounds overlap.
    assert_eq!(compared([4.0, 4.1, 4.5], [4.4, 4.5, 4.6]), Verdict::Same);
    // Medians are less than 5 % apart.
    assert_eq!(compared([4.0, 4.0, 4.0], [4.1, 4.1, 4.1]), Verdict::Same);
    // What is no number is no change.
    assert_eq!(compared([f64::NAN; 3], [4.1, 4.1, 4.1]), Verdict::Same);
}

#[test]
fn a_report_of_everything_is_the_same_as_itself() {
    let report = sample::full();
    let same = compare(&report, &report);
    assert_eq!(same.points.len(), report.points.len());
    assert!(same.points.iter().all(|change| change.verdict == Verdict::Same));
    assert_eq!(same.warnings, Vec::<String>::new());
    assert_eq!((same.only_in_a.len(), same.only_in_b.len()), (0, 0));
}

#[test]
fn the_table_aligns_and_tells_the_rule() {
    let before = sample::full();
    let mut after = before.clone();
    after.points.retain(|p| p.path != "tcp-epoll");
    for point in after.points.iter_mut().filter(|p| p.test == Test::Latency && p.path == "tcp") {
        point.time_us.p50 *= 2.0;
        point.p50_spread_us = point.p50_spread_us.map(|us| us * 2.0);
    }
    let lines = compare(&before, &after).lines();
    let text = lines.join("\n");
    let rows = lines.len() - 2;
    assert!(lines[1..rows].iter().all(|line| line.find("tcp") == lines[0].find("path")), "{text}");
    assert!(
        lines.iter().any(|line| line.starts_with("regressed  latency") && line.contains("2.00")),
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
    assert_eq!(compare(&loaded, &report).points.len(), report.points.len());
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
    let as_before =
        serde_json::to_value(sample::point(Test::Bandwidth, "iperf3", Polling::Block, 1 << 20, 160.0));
    value["references"][0]["point"] = as_before.expect("JSON");
    let path = folder.0.join("bench.json");
    fs::write(&path, value.to_string()).expect("a file");
    let loaded = load(&path).expect("a report");
    let told = loaded.references[0].point.clone().expect("a point");
    assert_eq!((told.us(), told.mean_us, told.spread_us[0]), (160.0, None, 153.6));
    let changes = compare(&loaded, &report).points;
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
        point.p50_spread_us = [p50 * (1.0 - noise), p50 * (1.0 + noise)];
        point
    });
    prop::collection::vec(point, 0..6).prop_map(|points| Report { points, ..Report::default() })
}

proptest! {
    #[test]
    fn nothing_changes_between_a_report_and_itself(report in any_report()) {
        let same = compare(&report, &report);
        prop_assert!(same.points.iter().all(|change| change.verdict == Verdict::Same));
        prop_assert!(same.only_in_a.is_empty() && same.only_in_b.is_empty());
    }

    #[test]
    fn the_other_way_round_what_improved_regressed(a in any_report(), b in any_report()) {
        let (there, back) = (compare(&a, &b), compare(&b, &a));
        prop_assert_eq!(&there.only_in_a, &back.only_in_b);
        prop_assert_eq!(&there.only_in_b, &back.only_in_a);
        for (change, reverse) in there.points.iter().zip(&back.points) {
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
