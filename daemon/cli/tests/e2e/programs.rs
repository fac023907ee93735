//! `ringway demo`, `perf`, `status` and the help of everything.

use std::time::Duration;

use serde_json::Value;

use crate::harness::{Daemon, Program, assert_mentions, form, ringway, run_ringway};

#[test]
fn the_demonstration_succeeds_with_a_verdict() {
    // Some 450 cases: without optimisation this takes minutes on a busy machine.
    let demo = Program::start(&mut ringway(&["demo", "--network", "loopback"]));
    let out = demo.end_within(Duration::from_secs(900)).success().out;
    let verdict = out.lines().last().unwrap_or_default();
    assert!(verdict.starts_with("OK: "), "{out}");
    assert_mentions(verdict, &["2 nodes", "4 ranks", "exact"]);
    assert_mentions(&out, &["allreduce", "all_to_all", "barrier", "send_recv", "busbw"]);
    assert!(!out.contains("WRONG") && !out.contains("FAILED"), "{out}");
}

/// Everything that a line of `--json` has, in the order of the README.
const KEYS: [&str; 16] = [
    "operation",
    "bytes",
    "datatype",
    "reduction",
    "ranks",
    "nodes",
    "device",
    "path",
    "algorithm",
    "in_place",
    "unregistered",
    "iterations",
    "time_us",
    "algbw_GBps",
    "busbw_GBps",
    "errors",
];

fn rows(arguments: &[&str]) -> Vec<Value> {
    let out = run_ringway(&[&["perf"], arguments, &["--json"]].concat()).success().out;
    out.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

#[test]
fn perf_prints_one_json_object_for_each_size() {
    let rows = rows(&["allreduce", "--ranks", "2", "-b", "8", "-e", "64K", "-f", "8", "-n", "20", "-w", "2"]);
    let sizes: Vec<u64> = rows.iter().map(|r| r["bytes"].as_u64().expect("bytes")).collect();
    assert_eq!(sizes, [8, 64, 512, 4096, 32_768]);
    for row in &rows {
        for key in KEYS {
            assert!(!row[key].is_null(), "{key} is missing in {row}");
        }
        assert_eq!(row["errors"], 0);
        assert_eq!((&row["ranks"], &row["nodes"], &row["iterations"]), (&2.into(), &1.into(), &20.into()));
        assert_eq!(row["path"], "cell");
        let time = |key: &str| row["time_us"][key].as_f64().expect("a time");
        let order = [0.0, time("min"), time("p50"), time("p99"), time("max")];
        assert!(order.is_sorted() && time("max") > 0.0, "{row}");
        let (algorithm, bus) = (row["algbw_GBps"].as_f64(), row["busbw_GBps"].as_f64());
        // With two ranks an allreduce's bus bandwidth is 2 (2 - 1) / 2 times its algorithm bandwidth.
        assert!((algorithm.expect("number") - bus.expect("number")).abs() < 0.002, "{row}");
    }
}

#[test]
fn perf_over_two_nodes_names_device_and_algorithm() {
    let rows = rows(&[
        "all_gather",
        "--ranks",
        "3",
        "--nodes",
        "2",
        "--network",
        "loopback",
        "--device",
        "tcp",
        "-b",
        "3000",
        "-e",
        "3000",
        "-n",
        "5",
        "--in-place",
        "-t",
        "bf16",
    ]);
    let [row] = rows.as_slice() else { panic!("one size: {rows:?}") };
    assert_eq!((&row["device"], &row["nodes"], &row["errors"]), (&"tcp".into(), &2.into(), &0.into()));
    assert_eq!((&row["in_place"], &row["datatype"]), (&true.into(), &"bf16".into()));
    assert!(!row["algorithm"].as_str().expect("a name").is_empty());
}

#[test]
fn perf_measures_ordinary_sockets() {
    let network = ["--ranks", "4", "--nodes", "2", "--network", "loopback", "--device", "tcp-epoll"];
    for operation in ["allreduce", "all_to_all"] {
        let given = ["--sizes", "8,1000,100K,3M", "-n", "2", "-w", "0"];
        let rows = rows(&[&[operation], &network[..], &given].concat());
        assert_eq!(rows.len(), 4);
        for row in &rows {
            assert_eq!((&row["errors"], &row["device"]), (&0.into(), &"tcp-epoll".into()), "{row}");
        }
    }
}

#[test]
fn perf_compares_with_the_bare_kernel() {
    let given = ["--sizes", "1000,8K", "--in-place", "both", "--floor", "--pin", "--seconds", "0.001"];
    for operation in ["allreduce", "all_to_all"] {
        let rows = rows(&[&[operation, "--ranks", "3"], &given[..]].concat());
        let forms: Vec<bool> = rows.iter().map(|r| r["in_place"].as_bool().expect("a form")).collect();
        assert_eq!(forms, [false, false, true, true]);
        for row in &rows {
            let number = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("no {key} in {row}"));
            assert!(number("floor_us") > 0.0 && number("of_floor") > 0.0, "{row}");
            assert_eq!(row["errors"], 0);
        }
    }
    let table = run_ringway(&["perf", "reduce", "--sizes", "64", "-n", "5", "--floor"]).success().out;
    assert_mentions(&table, &["floor", "of_floor"]);
}

#[test]
fn perf_times_more_calls_one_by_one_than_an_arena_has_room_for() {
    let rows = rows(&["allreduce", "--sizes", "4K", "-n", "10000"]);
    assert_eq!(rows[0]["iterations"], 10_000);
}

#[test]
fn perf_refuses_sizes_of_which_none_has_an_element() {
    for (given, needed) in [(["allreduce", "--sizes", "3"], "4 B"), (["all_gather", "--sizes", "4,7"], "8 B")]
    {
        let refused = run_ringway(&[&["perf"], &given[..]].concat()).failure().err;
        assert_mentions(&refused, &["element of 4 B", needed]);
    }
    assert_eq!(rows(&["allreduce", "--sizes", "3,4", "-n", "1"]).len(), 2);
    assert_eq!(rows(&["allreduce", "--sizes", "0", "-n", "1"])[0]["count"], 0);
}

#[test]
fn perf_can_keep_ranks_apart() {
    let rows = rows(&["allreduce", "--isolation", "strict", "--sizes", "64,64K", "-n", "5"]);
    assert!(rows.iter().all(|row| row["path"] == "engine" && row["errors"] == 0), "{rows:?}");
}

#[test]
fn perf_places_buffers_where_it_is_told() {
    let given = ["allreduce", "--sizes", "8K", "-n", "3", "--in-place", "both", "--offsets", "0,12,4088"];
    let ordinary = ["--unregistered", "--input-offsets", "4,64", "--isolation"];
    for (memory, isolation) in
        [(&[][..], None), (&ordinary[..], Some("cell")), (&ordinary[..], Some("strict"))]
    {
        let given = [&given[..], memory, isolation.as_slice()].concat();
        let inputs = if memory.is_empty() { &[0][..] } else { &[4, 64] };
        let (summaries, rows): (Vec<_>, Vec<_>) =
            rows(&given).into_iter().partition(|row| row["summary"] == "offsets");
        let offset =
            |row: &Value| ["input", "output"].map(|key| row["offset"][key].as_u64().expect("an offset"));
        let pairs = inputs.iter().flat_map(|&input| [0, 12, 4088].map(|output| [input, output]));
        let pairs: Vec<_> = pairs.collect();
        assert_eq!(rows.iter().map(offset).collect::<Vec<_>>(), pairs.repeat(2));
        assert!(rows.iter().all(|row| row["errors"] == 0), "{rows:?}");
        assert!(rows.iter().all(|row| row["unregistered"] == !memory.is_empty()), "{rows:?}");
        let forms: Vec<_> = summaries.iter().map(|s| s["in_place"].as_bool().expect("a form")).collect();
        assert_eq!(forms, [false, true]);
        for summary in &summaries {
            assert_eq!((&summary["bytes"], &summary["offsets"]), (&8192.into(), &pairs.len().into()));
            assert!(summary["slowest_to_median"].as_f64().expect("a ratio") >= 1.0, "{summary}");
            assert!(summary.get("median_pass").is_none(), "of one pass: {summary}");
        }
        let table = run_ringway(&[&["perf"], &given[..]].concat()).success().out;
        assert_mentions(&table, &["offset", "slowest", "out of place", "times the median"]);
    }
}

#[test]
fn perf_counts_an_offset_with_its_fastest_pass() {
    let given =
        ["broadcast", "--unregistered", "--sizes", "1000", "-n", "20", "--offsets", "0,8", "--passes", "3"];
    let rows = rows(&given);
    let [times @ .., summary] = rows.as_slice() else { panic!("no summary: {rows:?}") };
    assert_eq!((times.len(), &summary["offsets"]), (6, &2.into()));
    // A broadcast of ordinary slices has one slice.
    assert!(times.iter().all(|row| row["in_place"] == true && row["errors"] == 0), "{times:?}");
    let slowest = &summary["slowest"];
    let passes = times.iter().filter(|row| row["offset"] == *slowest);
    let fastest =
        passes.map(|row| row["time_us"]["p50"].as_f64().expect("a time")).fold(f64::INFINITY, f64::min);
    assert_eq!(summary["slowest_us"].as_f64(), Some(fastest));
    let by_median = &summary["median_pass"]["slowest_us"];
    assert!(by_median.as_f64().is_some_and(|time| time >= fastest), "{summary}");
}

#[test]
fn perf_measures_what_is_hidden_behind_computation() {
    // Where there is only one processor it says that it needs two.
    let given = ["perf", "allreduce", "--overlap", "--sizes", "64K", "-n", "3", "--json"];
    if std::thread::available_parallelism().map_or(1, std::num::NonZero::get) < 2 {
        assert_mentions(&run_ringway(&given).failure().err, &["processors"]);
        return;
    }
    let out = run_ringway(&given).success().out;
    let row: Value = serde_json::from_str(out.trim()).expect("one row");
    for key in ["communication_us", "unattended_us", "computation_us", "both_us"] {
        assert!(row[key].as_f64().expect("a time") > 0.0, "{row}");
    }
    assert!(row["hidden"].is_number() && row["bytes"] == 64 << 10, "{row}");
}

/// How equal the shares are is measured where nothing else runs; among other tests nobody may be left without.
#[test]
fn perf_measures_two_jobs_on_one_daemon() {
    for (daemon, path) in [(&[][..], "cell"), (&["--isolation", "strict"], "engine")] {
        let given = ["perf", "allreduce", "--tenants", "--sizes", "2M", "--seconds", "1", "--json"];
        let out = run_ringway(&[&given, daemon].concat()).success().out;
        let found: Vec<Value> = out.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
        let kinds: Vec<_> = found.iter().map(|f| f["measure"].as_str().expect("a name")).collect();
        assert_eq!(kinds, ["shares", "delay", "shares", "delay"]);
        assert!(found.iter().all(|f| f["path"] == path), "{found:?}");
        for shares in found.iter().filter(|f| f["measure"] == "shares") {
            assert!((0.1..=0.9).contains(&shares["share"][0].as_f64().expect("a share")), "{found:?}");
        }
        for delay in found.iter().filter(|f| f["measure"] == "delay") {
            assert!(delay["delay_p50_us"].is_number() && delay["small_bytes"] == 8, "{found:?}");
        }
    }
}

#[test]
fn perf_prints_a_table_for_people() {
    let out = run_ringway(&["perf", "reduce", "-b", "64", "-e", "128", "-n", "5", "-r", "1"]).success().out;
    assert_mentions(&out, &["size", "count", "type", "redop", "root", "algbw", "busbw", "#wrong", "(GB/s)"]);
    let rows: Vec<Vec<&str>> =
        out.lines().filter(|l| !l.starts_with('#')).map(|l| l.split_whitespace().collect()).collect();
    let of_size =
        |size: &str| rows.iter().find(|r| r.first() == Some(&size)).unwrap_or_else(|| panic!("{out}"));
    for (size, count) in [("64", "16"), ("128", "32")] {
        let row = of_size(size);
        assert_eq!(row[1..5], [count, "f32", "sum", "1"], "{out}");
        assert_eq!(row.last(), Some(&"0"), "{out}");
    }
}

#[test]
fn perf_measures_several_operations_one_after_the_other() {
    let forms = |given: &[&str]| -> Vec<(String, bool)> {
        let name = |row: &Value| row["operation"].as_str().expect("a name").to_owned();
        rows(given).iter().map(|row| (name(row), row["in_place"] == true)).collect()
    };
    let given = ["all_gather,barrier,allreduce", "--sizes", "64,8K", "-n", "2", "--in-place"];
    let found = forms(&given);
    let expected = [
        ("all_gather", true),
        ("all_gather", true),
        ("barrier", false),
        ("allreduce", true),
        ("allreduce", true),
    ];
    assert_eq!(found, expected.map(|(name, in_place)| (name.to_owned(), in_place)));
    let mut all: Vec<String> =
        forms(&["all", "--sizes", "64", "-n", "1"]).into_iter().map(|(name, _)| name).collect();
    all.dedup();
    assert_eq!((all.len(), all[0].as_str(), all[16].as_str()), (17, "allreduce", "all_to_all_v"));

    let table = run_ringway(&["perf", "scan,broadcast", "--sizes", "64", "-n", "2", "--floor"]).success().out;
    assert_mentions(
        &table,
        &["# ringway perf scan,broadcast", "\n# scan\n", "\n# broadcast\n", "wrong elements: 0 OK"],
    );
    assert!(!table.contains("average"), "over operations it says nothing: {table}");
}

#[test]
fn perf_uses_a_daemon_that_runs() {
    let daemon = Daemon::start("");
    let socket = daemon.socket.display().to_string();
    let before = daemon.status()["counters"]["sessions"].as_u64().expect("a count");
    let rows = rows(&[
        "broadcast",
        "--ranks",
        "2",
        "--socket",
        &socket,
        "-b",
        "8",
        "-e",
        "8",
        "-n",
        "7",
        "--unregistered",
    ]);
    assert_eq!((&rows[0]["unregistered"], &rows[0]["errors"]), (&true.into(), &0.into()));
    // Two ranks came and the one that asks.
    assert!(daemon.status()["counters"]["sessions"].as_u64().expect("a count") >= before + 3);
}

#[test]
fn perf_refuses_what_makes_no_sense() {
    let cases: [(&[&str], &[&str]); 16] = [
        (&["allreduce", "--offsets", "4096"], &["4096", "offset"]),
        (&["allreduce", "--offsets", "step:0"], &["step:0", "offset"]),
        (&["allreduce", "--input-offsets", "6"], &["6", "multiples of 4"]),
        (&["reduce", "--overlap"], &["allreduce"]),
        (&["allreduce,reduce", "--tenants"], &["allreduce"]),
        (&["allreduce,", "--sizes", "8"], &["``", "allreduce", "all"]),
        (&["barrier,send_recv", "--in-place"], &["barrier,send_recv", "in-place"]),
        (&["allreduce", "--isolation", "none"], &["isolation", "none", "strict"]),
        (&["allreduce", "--floor", "--ranks", "2", "--nodes", "2"], &["--floor", "node"]),
        (&["scan", "--floor"], &["scan", "--floor"]),
        (&["allreduce", "--seconds", "long"], &["long", "seconds"]),
        (&["all_reduce"], &["all_reduce", "allreduce"]),
        (&["allreduce", "-b", "8x"], &["8x", "size"]),
        (&["allreduce", "-t", "f8"], &["f8", "bf16"]),
        (&["allreduce", "-o", "mean"], &["mean", "avg"]),
        (&["allreduce", "--ranks", "0"], &["0"]),
    ];
    for (arguments, parts) in cases {
        let ended = run_ringway(&[&["perf"], arguments].concat()).failure();
        assert_mentions(&ended.err, parts);
    }
}

#[test]
fn status_shows_clients_communicators_and_counters() {
    let daemon = Daemon::start("");
    let mut ranks = form(std::slice::from_ref(&daemon), 2, "");
    crate::harness::tell_all(&mut ranks, "call allreduce f32 sum 1000 0");
    assert!(ranks.iter_mut().all(|r| r.answer().is_ok()));
    let socket = daemon.socket.display().to_string();
    let text = run_ringway(&["status", "--json", "--socket", &socket]).success().out;
    let status: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(status["pid"], daemon.process.pid());
    assert_eq!(status["socket"], socket.as_str());
    let communicator = &status["communicators"][0];
    assert_eq!((&communicator["ranks"], &communicator["sequence"]), (&2.into(), &1.into()));
    let pids: Vec<_> = status["sessions"].as_array().expect("a list").iter().map(|s| &s["pid"]).collect();
    for rank in &ranks {
        assert!(pids.contains(&&rank.process.pid().into()), "{status}");
    }
    let of_rank = status["sessions"].as_array().expect("a list").iter().find(|s| s["regions"] == 1);
    assert_eq!(of_rank.expect("a rank")["region_bytes"], 64 << 20);
    let finished = |rank: usize| communicator["local"][rank]["finished"].as_u64();
    assert_eq!((finished(0), finished(1)), (Some(1), Some(1)), "{status}");
    let table = run_ringway(&["status", "--socket", &socket]).success().out;
    let pid = daemon.process.pid().to_string();
    assert_mentions(&table, &[&pid, &socket, "communicator", "clients", "64.0"]);
}

#[test]
fn every_command_explains_its_flags() {
    let cases: [(&[&str], &[&str]); 8] = [
        (&["--help"], &["demo", "run", "perf", "status", "doctor", "daemon"]),
        (&["doctor", "--help"], &["--json", "--listen", "Example", "exit status", "rdma_gids"]),
        (&["demo", "--help"], &["--device", "--network"]),
        (&["run", "--help"], &["-n", "--nodes", "--device", "PROGRAM", "RINGWAY_RANK", "RINGWAY_SOCKET"]),
        (
            &["perf", "--help"],
            &[
                "-b",
                "-e",
                "-f",
                "-n",
                "-w",
                "-c",
                "-t",
                "-o",
                "--ranks",
                "--nodes",
                "--device",
                "--unregistered",
                "--in-place",
                "--sizes",
                "--seconds",
                "--floor",
                "--pin",
                "--offsets",
                "--input-offsets",
                "--overlap",
                "--tenants",
                "--isolation",
                "--json",
                "--socket",
                "busbw",
                "allreduce",
                "send_recv",
                "exscan",
            ],
        ),
        (&["status", "--help"], &["--json", "--socket"]),
        (
            &["daemon", "--help"],
            &["--config", "--print-config", "--socket", "--polling", "--cluster-key-file"],
        ),
        (&["--version"], &[env!("CARGO_PKG_VERSION")]),
    ];
    for (arguments, parts) in cases {
        let ended = Program::start(&mut ringway(arguments)).end().success();
        assert_mentions(&ended.out, parts);
    }
}
