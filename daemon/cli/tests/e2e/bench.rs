//! `ringway bench`: a report of what was really measured, and only of that.

use std::{fs, process::Command, time::Duration};

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{Ended, Folder, Program, assert_mentions, eventually, ringway, run_ringway};

/// Measurements too short to tell anything but that they were made.
const SHORT: [&str; 7] = ["bench", "--quick", "--rounds", "1", "--seconds", "0.002", "--network"];

fn bench(folder: &Folder, options: &[&str]) -> Ended {
    let output = folder.join("report").display().to_string();
    let options = [&SHORT[..], &["loopback", "--output", &output], options].concat();
    Program::start(&mut ringway(&options)).end_within(Duration::from_secs(300))
}

fn report(folder: &Folder) -> Value {
    let text = fs::read(folder.join("report/bench.json")).expect("bench.json");
    serde_json::from_slice(&text).expect("JSON")
}

fn points<'r>(report: &'r Value, test: &str, path: &str) -> Vec<&'r Value> {
    let all = report["points"].as_array().expect("points").iter();
    all.filter(|point| point["test"] == test && point["path"] == path).collect()
}

/// Why this program has no path over RDMA hardware on this machine, if so.
fn verbs_missing() -> Option<String> {
    if !cfg!(feature = "verbs") {
        let why = "this binary was built without it: build with `--features verbs` (needs libibverbs-dev, librdmacm-dev and \
                   libclang-dev)";
        return Some(why.to_owned());
    }
    let ports = ringway_ibverbs::ports().expect("the kernel's list");
    let choice = ringway_ibverbs::Choice::best(&ports, &ringway_ibverbs::Selector::default(), None);
    choice.err().map(|why| why.to_string())
}

/// What every point of a test tells.
fn check_point(test: &str, point: &Value) {
    let (time, mean) = (&point["time_us"], &point["mean_us"]);
    let is_flow = ["bandwidth", "message_rate"].contains(&test);
    assert_eq!((time.is_object(), mean.is_f64()), (!is_flow, is_flow), "{point}");
    let us = time["p50"].as_f64().or(mean.as_f64()).expect("a time");
    assert!(us > 0.0 && point["rounds"][0]["us"].as_f64() == Some(us), "{point}");
    // Neither of fewer times than it takes.
    for (name, least) in [("p99", 100), ("p999", 1000)] {
        let is_told = !is_flow && point["samples"].as_u64() >= Some(least);
        assert_eq!(time[name].as_f64().is_some_and(|percentile| percentile >= us), is_told, "{point}");
    }
    assert!(point["goodput_gb_s"].as_f64() > Some(0.0), "{point}");
    assert!(point["costs"]["cpu_s_per_million"].as_f64() > Some(0.0), "{point}");
    assert!(point["costs"]["system_calls"].is_number(), "{point}");
}

#[test]
fn every_path_is_measured_and_every_file_written() {
    let folder = Folder::new();
    let paths = "cell,shm,verbs,roce-udp,tcp,tcp-epoll,sockets";
    let ended = bench(&folder, &["--paths", paths, "--tcp-connections", "2"]).success();
    let found = report(&folder);
    let verbs = verbs_missing();
    assert_eq!((&found["complete"], &found["format"]), (&Value::Bool(true), &Value::from(3)));
    assert_eq!(found["settings"]["tcp_connections"], 2);
    for path in found["paths"].as_array().expect("paths") {
        match path["name"].as_str() {
            Some("verbs") => assert_eq!(path["missing"].as_str(), verbs.as_deref(), "{path}"),
            _ => assert_eq!(path["missing"], Value::Null, "{path}"),
        }
    }
    for (test, paths) in [
        ("bare_ring", &["ring"][..]),
        ("ring", &["ring"]),
        ("checked_ring", &["ring"]),
        ("latency", &["shm", "roce-udp", "tcp", "tcp-epoll", "sockets"]),
        ("bandwidth", &["shm", "roce-udp", "tcp", "tcp-epoll", "sockets"]),
        ("message_rate", &["shm", "roce-udp", "tcp", "tcp-epoll", "sockets"]),
        ("client_latency", &["cell", "shm", "roce-udp", "tcp", "tcp-epoll"]),
        ("allreduce", &["cell", "shm", "roce-udp", "tcp", "tcp-epoll"]),
        ("all_gather", &["cell", "shm", "roce-udp", "tcp", "tcp-epoll"]),
        ("all_to_all", &["cell", "shm", "roce-udp", "tcp", "tcp-epoll"]),
    ] {
        for path in paths {
            let measured = points(&found, test, path);
            assert!(!measured.is_empty(), "{test} over {path} is missing\n{}", ended.err);
            // A quick run has collectives with adaptive daemons alone.
            let pollings = match test {
                "client_latency" => &["spin", "adaptive", "block"][..],
                "latency" | "bandwidth" | "message_rate" => &["spin", "block"],
                "allreduce" | "all_gather" | "all_to_all" => &["adaptive"],
                _ => &["spin"],
            };
            for polling in pollings {
                assert!(
                    measured.iter().any(|point| point["polling"] == *polling),
                    "{test}, {path}, {polling}"
                );
            }
            for point in measured {
                check_point(test, point);
            }
        }
    }
    if let Some(why) = &verbs {
        assert_mentions(&ended.out, &[&format!("not measured: verbs: {why}\n")]);
        let page = fs::read_to_string(folder.join("report/bench.md")).expect("bench.md");
        // Without what Markdown has in another form.
        assert_mentions(&page, &[why.split(':').next().expect("a beginning")]);
    } else {
        for test in ["latency", "bandwidth", "message_rate", "client_latency"] {
            assert!(!points(&found, test, "verbs").is_empty(), "{test} over verbs is missing\n{}", ended.err);
        }
    }
    for file in ["bench.html", "bench.md", "bench.svg"] {
        let text = fs::read_to_string(folder.join(&format!("report/{file}"))).expect(file);
        assert_mentions(&text, &["roce-udp", "sockets"]);
    }
    let json = folder.join("report/bench.json").display().to_string();
    run_ringway(&["bench", "compare", &json, &json, "--fail-on-regression"]).success();
}

#[test]
fn what_got_worse_can_fail_a_script() {
    let folder = Folder::new();
    bench(&folder, &["--paths", "sockets"]).success();
    let mut found = report(&folder);
    let mut write = |name: &str, times: f64| {
        for point in found["points"].as_array_mut().expect("points") {
            let us = |round: f64| 5.0 * times + round / 10.0;
            let rounds =
                (0..5_u8).map(|at| serde_json::json!({ "us": us(at.into()), "cpu_s_per_million": null }));
            point["rounds"] = rounds.collect();
        }
        let path = folder.join(name);
        fs::write(&path, found.to_string()).expect("a file");
        path.display().to_string()
    };
    let (before, after) = (write("before.json", 1.0), write("after.json", 2.0));
    run_ringway(&["bench", "compare", &before, &after]).success();
    let compare = |a, b| run_ringway(&["bench", "compare", a, b, "--fail-on-regression"]).failure();
    assert_mentions(&compare(&before, &after).out, &["regressed", "p50 (us)"]);
}

/// What polling costs is measured where no paths are named: with whatever else there is.
#[test]
fn polling_is_measured_at_every_load() {
    let folder = Folder::new();
    let ended = bench(&folder, &[]).success();
    let found = report(&folder);
    let polling = found["polling"].as_array().expect("points");
    assert_eq!(polling.len(), 12, "{}", ended.err);
    for mode in ["spin", "adaptive", "block"] {
        let own: Vec<&Value> = polling.iter().filter(|point| point["polling"] == mode).collect();
        let loads: Vec<f64> = own.iter().filter_map(|point| point["load"].as_f64()).collect();
        assert_eq!(loads, [0.0, 0.01, 0.1, 1.0], "{mode}");
        for point in own {
            let is_called = point["load"].as_f64() > Some(0.0);
            assert_eq!(point["time_us"]["p50"].as_f64().is_some_and(|us| us > 0.0), is_called, "{point}");
            assert_eq!(point["achieved_load"].as_f64().is_some_and(|load| load > 0.0), is_called, "{point}");
            let is_idle = mode != "spin" && !is_called;
            assert!(!is_idle || point["daemon_cpus"].as_f64() <= Some(0.02), "{point}");
        }
        let noop = points(&found, "daemon_noop", "daemon");
        assert_eq!(noop.iter().filter(|point| point["polling"] == mode).count(), 1, "{mode}");
    }
    let page = fs::read_to_string(folder.join("report/bench.md")).expect("bench.md");
    assert_mentions(
        &page,
        &["What polling costs", "Ratios", "daemon's no-op (spin) by a round trip through a bare ring"],
    );
}

/// A blocking socket takes one call to send a message and one to receive it. Whoever spins makes more.
#[test]
fn system_calls_are_counted() {
    let folder = Folder::new();
    bench(&folder, &["--paths", "sockets"]).success();
    let found = report(&folder);
    for point in points(&found, "latency", "sockets").iter().filter(|point| point["bytes"] == 8) {
        let calls = point["costs"]["system_calls"].as_f64().expect("counted");
        match point["polling"].as_str() {
            Some("block") => assert!((calls - 2.0).abs() < 0.01, "{point}"),
            _ => assert!(calls >= 2.0, "{point}"),
        }
    }
}

/// Without a fault on its way each byte is copied into a frame and out of one.
#[test]
fn copies_of_the_roce_device_are_counted() {
    let folder = Folder::new();
    bench(&folder, &["--paths", "roce-udp"]).success();
    let found = report(&folder);
    let large = |point: &&&Value| point["bytes"] == 1 << 20;
    for point in points(&found, "bandwidth", "roce-udp").iter().filter(large) {
        let copies = point["costs"]["copies"].as_f64().expect("counted");
        assert!((1.99..2.5).contains(&copies), "{point}");
    }
}

/// Where they are installed, with bare sockets beside them.
#[test]
fn references_are_measured_or_said_to_be_missing() {
    let folder = Folder::new();
    let ended = bench(&folder, &["--paths", "sockets,iperf3,sockperf"]).success();
    let found = report(&folder);
    let page = fs::read_to_string(folder.join("report/bench.md")).expect("bench.md");
    for (at, name) in ["iperf3", "sockperf"].into_iter().enumerate() {
        let reference = &found["references"][at];
        assert_eq!(reference["name"], name);
        let is_installed = Command::new(name).arg("--version").output().is_ok();
        let missing = reference["missing"].as_str();
        assert_eq!(
            (missing.is_none(), reference["point"].is_object()),
            (is_installed, is_installed),
            "{}",
            ended.err
        );
        assert!(missing.is_none_or(|why| why.contains("not installed")), "{reference}");
        let point = &reference["point"];
        let has_mean = is_installed && name == "iperf3";
        assert_eq!(
            (point["mean_us"].is_f64(), point["time_us"].is_object()),
            (has_mean, is_installed && !has_mean)
        );
        assert_mentions(&page, &["Beside other tools", name]);
        assert!(points(&found, "latency", name).is_empty());
    }
}

/// Hundredths of a second that a process has worked for.
fn ticks(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process is there");
    text.split_whitespace().nth(13).expect("the time in user mode").parse().expect("a number")
}

#[test]
fn an_interrupt_keeps_what_was_measured() {
    let folder = Folder::new();
    let output = folder.join("report").display().to_string();
    let options =
        ["bench", "--rounds", "1000", "--paths", "sockets", "--network", "loopback", "--output", &output];
    let program = Program::start(&mut ringway(&options));
    // The rings come first, and are measured in the program itself, which does not work so long for anything else.
    eventually("the first measurement", || ticks(program.process.pid()) > 20);
    program.process.signal(Signal::INT);
    let ended = program.end_within(Duration::from_secs(60));
    assert_eq!(ended.status.code(), Some(130), "{}", ended.err);
    let found = report(&folder);
    assert_eq!(found["complete"], Value::Bool(false));
    assert!(!points(&found, "bare_ring", "ring").is_empty());
    assert_mentions(&ended.out, &["interrupted"]);
}

#[test]
fn what_cannot_be_measured_is_named() {
    let folder = Folder::new();
    let ended = bench(&folder, &["--paths", "nothing"]).failure();
    assert_mentions(&ended.err, &["nothing", "shm", "sockets"]);
    let ended = bench(&folder, &["--paths", "iperf3"]).failure();
    assert_mentions(&ended.err, &["--paths", "a path as well"]);
    let missing = folder.join("none.json").display().to_string();
    let ended = run_ringway(&["bench", "compare", &missing, &missing]).failure();
    assert_mentions(&ended.err, &["none.json"]);
}

#[test]
fn what_cannot_be_done_is_said_before_anything_is_measured() {
    let ended = run_ringway(&["bench", "--quick", "--output", "/proc/report"]).failure();
    assert_mentions(&ended.err, &["/proc/report"]);
    assert!(!ended.err.contains("opening"), "{}", ended.err);
    let ended = run_ringway(&["bench", "--quick", "--listen", "127.0.0.1"]).failure();
    assert_mentions(&ended.err, &["--listen", "--quick"]);
}
