use std::{collections::BTreeSet, fs};

use proptest::prelude::*;
use roxmltree::{Document as Xml, ParsingOptions};

use super::{
    super::result::{Path as Way, Percentiles, Polling, Step, Test},
    document::{Block, Document},
    sample,
    view::TESTS,
    *,
};

const SVG: &str = "http://www.w3.org/2000/svg";

/// The three files for people, found well-formed.
struct Rendered {
    html: String,
    markdown: String,
    svg: String,
}

fn parsed(text: &str) -> Xml<'_> {
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    Xml::parse_with_options(text, options).unwrap_or_else(|error| panic!("{error} in\n{text}"))
}

fn rendered(report: &Report) -> Rendered {
    let view = View::of(report);
    let document = sections::document(&view);
    let all = Rendered {
        html: html::render(&document),
        markdown: markdown::render(&document),
        svg: charts::picture(&view, &document.title),
    };
    for text in [&all.html, &all.svg] {
        let xml = parsed(text);
        for node in xml.descendants().filter(roxmltree::Node::is_element) {
            let is_outward = |name| node.attribute(name).is_some_and(|to: &str| !to.starts_with('#'));
            assert!(!["src", "href"].into_iter().any(is_outward), "{node:?} is not in the file");
            assert_ne!(node.tag_name().name(), "script");
        }
    }
    assert!(!all.html.contains("NaN") && !all.svg.contains("NaN"));
    assert!(!all.html.contains("inf\"") && !all.svg.contains("inf\""));
    all
}

fn headings(report: &Report) -> Vec<&'static str> {
    sections::document(&View::of(report)).sections.iter().map(|section| section.title).collect()
}

#[test]
fn everything_measured_is_shown() {
    let report = sample::full();
    let Rendered { html, markdown, svg } = rendered(&report);
    for point in &report.points {
        let p50 = unit::time(point.us());
        assert!(html.contains(&format!(">{p50}<")) && markdown.contains(&p50), "{point:?}");
    }
    for way in &report.paths {
        assert!(html.contains(&way.name) && markdown.contains(&way.name), "{way:?}");
    }
    for step in &report.steps {
        assert!(html.contains(&step.how) && markdown.contains(&step.name), "{step:?}");
    }
    assert!(html.contains(">within the noise<") && markdown.contains("within the noise"));
    assert!(html.contains("not separable") && html.contains("there is no RDMA adapter in this machine"));
    assert!(markdown.contains("6.55 GB/s at 1 MiB in the mean"));
    for series in View::of(&report).series(Test::Latency) {
        assert!(svg.contains(&format!(">{}<", series.route.name)), "{series:?}");
    }
}

/// Every text of every picture, with how much room it takes and where.
#[test]
fn no_text_leaves_its_picture() {
    let mut report = sample::full();
    report.machine.cpu =
        "A processor with a name that is far longer than any picture has room for, ".repeat(3);
    report.paths.iter_mut().for_each(|way| way.name += "-with-a-name-that-is-too-long");
    report.points.iter_mut().for_each(|point| point.path += "-with-a-name-that-is-too-long");
    for report in [sample::full(), report] {
        let Rendered { html, svg, .. } = rendered(&report);
        for text in [&html, &svg] {
            let xml = parsed(text);
            for picture in xml.descendants().filter(|node| node.has_tag_name((SVG, "svg"))) {
                let view_box = picture.attribute("viewBox").expect("a box");
                let width: f64 = view_box.split(' ').nth(2).and_then(|w| w.parse().ok()).expect("a width");
                for text in picture.descendants().filter(|node| node.has_tag_name((SVG, "text"))) {
                    let x: f64 = text.attribute("x").and_then(|x| x.parse().ok()).expect("a place");
                    let room = plot::text_width(text.text().unwrap_or_default());
                    let left = match text.attribute("text-anchor") {
                        Some("middle") => x - room / 2.0,
                        Some("end") => x - room,
                        _ => x,
                    };
                    let moved = text.ancestors().filter_map(|node| node.attribute("transform"));
                    let moved: f64 = moved.map(translation).sum();
                    let is_within = left + moved >= -1.0 && left + moved + room <= width + 1.0;
                    assert!(is_within, "{:?} leaves {:?}", text.text(), picture.attribute("aria-label"));
                }
            }
        }
    }
}

/// How far to the right `translate(x y)` goes.
fn translation(transform: &str) -> f64 {
    let x = transform.trim_start_matches("translate(").split(' ').next();
    x.and_then(|x| x.parse().ok()).expect("a translation")
}

/// Every number of the page's tables and tiles, as it is written.
fn numbers(document: &Document) -> BTreeSet<String> {
    let blocks = document.sections.iter().flat_map(|section| &section.blocks);
    let cells = blocks.flat_map(|block| match block {
        Block::Table(table) => table.rows.iter().flatten().cloned().collect(),
        Block::Tiles(tiles) => tiles.iter().map(|tile| tile.value.clone()).collect(),
        _ => Vec::new(),
    });
    cells.collect()
}

#[test]
fn a_number_that_changes_in_the_report_changes_on_the_page() {
    let report = sample::full();
    let before = numbers(&sections::document(&View::of(&report)));
    let mut changed = report.clone();
    // No time of the sample begins with these digits.
    for point in
        changed.points.iter_mut().filter(|p| p.test == Test::Latency && p.path == "shm" && p.bytes == 8)
    {
        point.time_us = Some(Percentiles { p50: 0.777, p99: None, p999: None });
    }
    let after = numbers(&sections::document(&View::of(&changed)));
    assert!(!before.contains("777 ns") && after.contains("777 ns"));
    assert!(before.contains("190 ns"));
}

#[test]
fn the_headline_is_of_the_fastest() {
    let report = sample::full();
    let document = sections::document(&View::of(&report));
    let Some(Block::Tiles(tiles)) = document.sections[0].blocks.first() else { panic!("no tiles") };
    let told: Vec<String> = tiles.iter().map(|tile| format!("{}: {}", tile.label, tile.value)).collect();
    let expected = [
        "shm, spinning: 190 ns",
        "roce-xdp, spinning: 2.9 us",
        "sockets, spinning: 3.7 us",
        "sockets, blocking: 52 us",
        "shm, spinning: 59.9 GB/s",
        "sockets, spinning: 6.89 GB/s",
    ];
    assert_eq!(told, expected);
}

#[test]
fn cache_lines_are_those_of_the_same_rounds() {
    let told = |lines_of_shm| {
        let report = Report { lines_of_shm, ..sample::full() };
        let section = headline::section(&View::of(&report)).expect("a section");
        format!("{section:?}")
    };
    let found = told(sample::full().lines_of_shm);
    assert!(
        found.contains("takes 2.25 times as long as it took just before and after (1.9 to 5.5)."),
        "{found}"
    );
    // Of an older file only what it has on the whole.
    let found = told(None);
    assert!(found.contains(" times as long.\"") && !found.contains("just before"), "{found}");
}

#[test]
fn the_difference_is_parted_into_wake_up_and_kernel() {
    let report = sample::full();
    let view = View::of(&report);
    let found = wake_up::wake_ups(&view, Test::Latency, 8);
    let sockets = found.iter().find(|of| of.path == "sockets").expect("sockets");
    assert!((sockets.wake_up_us() - 48.3).abs() < 1e-9);
    assert!((sockets.kernel_us().expect("through the kernel") - 3.51).abs() < 1e-2);
    let sentence = wake_up::sentence(sockets).expect("a sentence");
    assert!(sentence.contains("lie 51.8 us. The wake-up is 48.3 us (93.2 %)"), "{sentence}");
    let shm = found.iter().find(|of| of.path == "shm").expect("shm");
    assert_eq!((shm.kernel_us(), wake_up::sentence(shm)), (None, None));
}

#[test]
fn differences_of_either_sign_are_told() {
    let told = |bypass_us, spin_us, block_us| {
        let family = view::Family::Kernel;
        let of = wake_up::WakeUp { path: "tcp", family, spin_us, block_us, bypass_us: Some(bypass_us) };
        wake_up::sentence(&of).expect("a sentence")
    };
    assert!(told(1.0, 3.0, 5.0).contains("is 2 us (50 %) of that, the kernel's path 2 us (50 %)"));
    assert!(told(4.0, 3.0, 5.0).contains("takes 2 us; spinning, the kernel's path is 1 us faster"));
    assert!(told(1.0, 5.0, 3.0).contains("takes 4 us; blocking saves 2 us"));
    assert!(told(6.0, 3.0, 5.0).contains("takes no longer (5 us) than the fastest bypass path (6 us)"));
}

/// The lengths of a bar's parts by their numbers, as they are told, and the bar's own.
fn bar_of(times: &[f64]) -> (Vec<(String, String)>, String) {
    let step = |(index, us): (usize, &f64)| Step {
        path: "sockets".to_owned(),
        name: (index + 1).to_string(),
        us: Some(*us),
        is_lost: false,
        how: String::new(),
    };
    let steps: Vec<Step> = times.iter().enumerate().map(step).collect();
    let report = sample::full();
    let path = ("sockets", steps.iter().collect());
    let svg = charts::steps(&View::of(&report), "Steps", &[path]).expect("a picture");
    let xml = parsed(&svg);
    let texts = |name| xml.descendants().filter(move |node| node.has_tag_name((SVG, name)));
    let told = texts("title").filter_map(|node| node.text()?.split_once(": "));
    let whole = texts("text").next_back().and_then(|node| node.text()).expect("a value");
    (told.map(|(name, time)| (name.to_owned(), time.to_owned())).collect(), whole.to_owned())
}

#[test]
fn what_overlaps_is_drawn_between_what_is_left_of_both() {
    let bar = |times: &[f64]| {
        let (parts, whole) = bar_of(times);
        let parts: Vec<String> = parts.iter().map(|(name, time)| format!("{name} {time}")).collect();
        format!("{}; {whole}", parts.join(", "))
    };
    assert_eq!(bar(&[2.0, 1.0, 0.5, 40.0]), "1 2 us, 2 1 us, 3 500 ns, 4 40 us; 43.5 us");
    assert_eq!(bar(&[2.0, 1.0, -0.5, 40.0]), "1 1.5 us, 3 500 ns, 2 500 ns, 4 40 us; 42.5 us");
    // One of the two is within the other.
    assert_eq!(bar(&[3.87, 1.0, -1.27]), "1 2.33 us, 3 1.27 us, 2 0 ns; 3.6 us");
    assert_eq!(bar(&[1.0, 3.0, -1.5]), "1 0 ns, 3 1.5 us, 2 1 us; 2.5 us");
    // More than both ends can do at the same time.
    assert_eq!(bar(&[4.0, 1.0, -3.0]), "1 0 ns, 3 2 us, 2 0 ns; 2 us");
}

/// Without what only aligns columns, or keeps signs from meaning something.
fn plain(markdown: &str) -> String {
    let lines = markdown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.collect::<Vec<_>>().join("\n").replace('\\', "")
}

#[test]
fn layers_and_polling_are_put_into_words() {
    let markdown = plain(&rendered(&sample::full()).markdown);
    let expected = [
        "answers in 270 ns (spin): 2.7 times the round trip through a bare ring, 1.69 times that through a client's ring alone.",
        "keeps this much of a processor busy: spin 100 %, adaptive 0.3 % and block 0.01 %.",
        "p50 with adaptive, compared with spin: 132 times at 1 % load (0.659 % achieved), 32.1 times at 10 % load (3 % achieved) and \
         1.07 times at 100 % load.",
        "Interrupts (irq and softirq) kept 21 % of a processor of the whole machine busy where most (",
        "A load that was missed by more than 20 % is marked with *",
        "| block | 1 % | 0.443 % * |",
    ];
    for words in expected {
        assert!(markdown.contains(words), "{words}");
    }
}

#[test]
fn ratios_are_of_the_same_rounds() {
    let mut report = sample::full();
    // In the rounds in which shared memory takes longer the sockets do as well.
    for point in report.points.iter_mut().filter(|p| p.test == Test::Latency && p.bytes == 8) {
        let us = point.us();
        let rounds = if point.path == "sockets" { [4.0, 8.0, 12.0] } else { [1.0, 2.0, 4.0] };
        point.rounds = rounds.map(|of| sample::round(Test::Latency, us * of)).to_vec();
    }
    let sockets =
        report.points.iter().find(|p| p.path == "sockets" && p.polling == Polling::Spin && p.bytes == 8);
    let shm = report.points.iter().find(|p| p.path == "shm" && p.polling == Polling::Spin && p.bytes == 8);
    let ratio = sockets.expect("one").us() / shm.expect("one").us();
    let [most, least] = [4.0, 3.0].map(|times| unit::number(ratio * times));
    let markdown = plain(&rendered(&report).markdown);
    let expected = [
        format!("| half round trip, 8 B: sockets (spin) by shm (spin) | {most} | {least} to {most} |"),
        "| half round trip, 8 B: shm (spin) by a cache line's hand-over | 2.25 | 1.9 to 5.5 |".to_owned(),
        "| daemon's no-op (spin) by a round trip through a bare ring | 2.7 |".to_owned(),
        "| tcp by iperf3 | 1.02 | 0.91 to 1.2 |".to_owned(),
    ];
    for row in expected {
        assert!(markdown.contains(&row), "{row}");
    }
    // Of a file without rounds nothing can be paired.
    report.points.iter_mut().for_each(|point| point.rounds.clear());
    assert!(!rendered(&report).markdown.contains("sockets (spin) by shm (spin)"));
}

#[test]
fn a_bypass_that_does_not_pay_is_named() {
    let mut report = sample::full();
    report.points.retain(|p| p.test == Test::Latency && ["roce-xdp", "tcp"].contains(&p.path.as_str()));
    report.points.retain(|p| p.polling == Polling::Spin && [8, 1024, 1 << 20].contains(&p.bytes));
    let verdict = |report: &Report| {
        let document = sections::document(&View::of(report));
        let section = document.sections.into_iter().find(|s| s.title == "Where the bypass does not pay");
        section.map(|section| format!("{:?}", section.blocks)).unwrap_or_default()
    };
    let text = verdict(&report);
    assert!(
        text.contains("faster in 1 of 3 (the same within the noise in 0)")
            && text.contains("cheaper in CPU time in 1 of 3"),
        "{text}"
    );
    assert!(text.contains("at 1 MiB the fastest kernel path (tcp) is 1.61 times as fast"), "{text}");
    // Rounds that differ as much by themselves: nothing is said to be faster.
    let mut noisy = report.clone();
    for point in &mut noisy.points {
        let us = point.us();
        point.rounds = [0.1, 0.5, 1.0, 2.0, 10.0].map(|of| sample::round(point.test, us * of)).to_vec();
    }
    let text = verdict(&noisy);
    assert!(text.contains("faster in 0 of 3 (the same within the noise in 3)"), "{text}");
    assert!(text.contains("(roce-xdp) are the same within the noise"), "{text}");
    report.points.retain(|p| p.bytes < 1 << 20);
    let text = verdict(&report);
    assert!(
        text.contains("faster in 0 of 2 (the same within the noise in 0)")
            && text.contains("At no size is the fastest kernel path as fast"),
        "{text}"
    );
    report.points.retain(|p| p.path == "tcp");
    assert_eq!(verdict(&report), "");
}

#[test]
fn nothing_is_taken_for_markup() {
    const NASTY: &str = "<script>alert('x')</script> & \"quoted\" | `code` \u{0}\u{7}\u{fffe}]]>";
    let mut report = sample::full();
    let rename = |name: &mut String| {
        if name == "shm" {
            *name = NASTY.to_owned();
        }
    };
    report.points.iter_mut().for_each(|point| rename(&mut point.path));
    report.paths.iter_mut().for_each(|way| rename(&mut way.name));
    report.steps.iter_mut().for_each(|step| rename(&mut step.path));
    report.paths.push(Way { missing: Some(NASTY.to_owned()), ..Way::default() });
    report.steps.push(Step {
        path: "tcp".to_owned(),
        name: NASTY.to_owned(),
        us: Some(1.0),
        is_lost: false,
        how: NASTY.to_owned(),
    });
    let machine = &mut report.machine;
    for text in [
        &mut machine.cpu,
        &mut machine.kernel,
        &mut machine.governor,
        &mut machine.congestion,
        &mut machine.network,
        &mut report.ringway,
    ] {
        *text = NASTY.to_owned();
    }
    let Rendered { html, markdown, svg } = rendered(&report);
    assert!(html.contains("&lt;script&gt;") && markdown.contains("&lt;script&gt;"));
    assert!(!markdown.contains("<script") && !svg.contains("<script"));
    let rows = |text: &str| text.lines().filter(|line| line.starts_with('|')).count();
    assert_eq!(rows(&markdown), markdown.matches("\n|").count());
}

#[test]
fn what_was_sent_without_a_copy_is_no_copy_of_the_kernels() {
    let copies = |sent_without_copy| {
        let mut report = sample::full();
        report.points.retain(|p| p.test == Test::Bandwidth && p.path == "tcp" && p.bytes == 1 << 20);
        report.points.iter_mut().for_each(|point| point.costs.sent_without_copy = sent_without_copy);
        let text = rendered(&report).markdown;
        let head = text.lines().find(|line| line.contains("rounds' means")).expect("a table of all");
        let row = text.lines().skip_while(|line| *line != head).nth(2).expect("a row");
        let at = head.split('|').position(|cell| cell.trim() == "kernel's copies").expect("a column");
        row.split('|').nth(at).map(str::trim).map(str::to_owned).expect("a cell")
    };
    assert_eq!([None, Some(0.75), Some(3.0)].map(copies), ["2", "1.25", "0"]);
}

#[test]
fn copies_that_are_not_counted_are_explained() {
    const WHY: &str = "Between clients our copies are not counted";
    let mut report = sample::full();
    assert!(rendered(&report).markdown.contains(WHY));
    report.points.iter_mut().for_each(|point| point.costs.copies = Some(1.0));
    assert!(!rendered(&report).markdown.contains(WHY));
    // Nothing is explained that is not there.
    report.points.retain(|point| point.test == Test::Latency);
    report.points.iter_mut().for_each(|point| point.costs.copies = None);
    assert!(!rendered(&report).markdown.contains(WHY));
}

#[test]
fn an_empty_report_says_where_it_ran_and_no_more() {
    let report = Report::default();
    let Rendered { html, .. } = rendered(&report);
    assert_eq!(headings(&report), ["Machine, settings, paths", "How to read this"]);
    assert!(html.contains("ended before everything was measured"));
}

#[test]
fn every_test_alone_makes_a_page() {
    let full = sample::full();
    for test in TESTS {
        let mut report = Report { points: full.points.clone(), ..Report::default() };
        report.points.retain(|point| point.test == test);
        // Without descriptions of paths nothing can be said of sides.
        rendered(&report);
        assert!(!headings(&report).contains(&"Where the bypass does not pay"), "{test:?}");
        report.paths = full.paths.clone();
        rendered(&report);
        let compares = report.points.iter().any(|point| full.paths.iter().any(|way| way.name == point.path));
        assert_eq!(headings(&report).contains(&"Where the bypass does not pay"), compares, "{test:?}");
    }
}

#[test]
fn markdown_tables_align() {
    let Rendered { markdown, .. } = rendered(&sample::full());
    let mut width = None;
    for line in markdown.lines() {
        let own = line.starts_with('|').then(|| line.chars().count());
        assert!(own.is_none() || width.is_none() || own == width, "{line}");
        width = own;
    }
    assert!(markdown.lines().filter(|line| line.starts_with("| -") || line.starts_with("| :")).count() > 10);
}

#[test]
fn files_replace_older_ones_whole() {
    let folder = sample::Folder::new("write");
    let inner = folder.0.join("a/b");
    let report = sample::full();
    let names: BTreeSet<String> =
        ["bench.html", "bench.json", "bench.md", "bench.svg"].map(str::to_owned).into();
    for _ in 0..2 {
        let written = write(&report, &inner).expect("files");
        let told: BTreeSet<String> =
            written.iter().map(|p| p.file_name().expect("a name").to_string_lossy().into_owned()).collect();
        let there = fs::read_dir(&inner).expect("a folder");
        let there: BTreeSet<String> =
            there.map(|entry| entry.expect("a file").file_name().to_string_lossy().into_owned()).collect();
        assert_eq!((&told, &there), (&names, &names));
        assert!(written.iter().all(|path| fs::metadata(path).expect("a file").len() > 1000));
    }
    fs::write(folder.0.join("file"), "").expect("a file");
    let refused = write(&report, &folder.0.join("file")).expect_err("not a folder");
    assert!(refused.contains("cannot make the folder"), "{refused}");
}

/// Numbers as a broken or an interrupted run may leave them.
fn any_number() -> impl Strategy<Value = f64> {
    prop_oneof![
        3 => 0.01..1e4_f64,
        1 => prop::sample::select(vec![0.0, -1.0, f64::NAN, f64::INFINITY, f64::MIN_POSITIVE, f64::MAX]),
    ]
}

fn any_point() -> impl Strategy<Value = super::super::result::Point> {
    let names = prop::sample::select(vec!["shm", "tcp", "sockets", "unheard-of"]);
    let pollings = prop::sample::select(view::POLLINGS.to_vec());
    let sizes = prop::sample::select(vec![0, 1, 8, 1000, 1 << 20, u64::MAX]);
    let tests = prop::sample::select(TESTS.to_vec());
    (tests, names, pollings, sizes, [any_number(), any_number(), any_number(), any_number()]).prop_map(
        |(test, path, polling, bytes, [p50, least, goodput, cpu])| {
            let mut point = sample::point(test, path, polling, bytes, p50);
            point.spread_us = [least, p50];
            point.goodput_gb_s = goodput;
            point.costs.cpu_s_per_million = Some(cpu);
            point
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_points_there_are_the_files_are_well_formed(
        points in prop::collection::vec(any_point(), 0..40),
        steps in prop::collection::vec(prop::option::of(any_number()), 0..5),
    ) {
        let step = |us| Step { path: "tcp".to_owned(), name: "a step".to_owned(), us, is_lost: false, how: String::new() };
        let full = sample::full();
        let report = Report { points, steps: steps.into_iter().map(step).collect(), paths: full.paths, ..Report::default() };
        rendered(&report);
    }
}
