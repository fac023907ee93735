//! `ringway perftest` on both sides, between addresses of this host. That it understands perftest itself is shown by
//! `devices/perftest/interop`.
#![expect(clippy::unwrap_used, reason = "a test panics when something is wrong")]

use std::{
    net::TcpListener,
    process::{self, Child, Command, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

/// One side, which checks what comes and writes JSON.
fn side(test: &str, own: &str, port: u16, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringway"));
    command.args(["perftest", test, "--address", own, "--port", &port.to_string(), "--check", "--json"]);
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Two addresses that nobody else has, and a free port.
fn place() -> ([String; 2], u16) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let own = NEXT.fetch_add(1, Ordering::Relaxed);
    let (high, low) = (process::id() >> 6 & 0x3f, (process::id() & 0x3f) << 2 | own & 3);
    let address = |last: u32| format!("127.{}.{low}.{}", 128 + high, 1 + last + 2 * (own >> 2));
    let port = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).unwrap().port();
    ([address(0), address(1)], port)
}

/// Starts a server and a client; what both say.
fn run(test: &str, server: &[&str], client: &[&str]) -> [Output; 2] {
    let ([here, there], port) = place();
    let server: Child = side(test, &here, port, server).spawn().unwrap();
    let client = side(test, &there, port, client).arg(&here).output().unwrap();
    [server.wait_with_output().unwrap(), client]
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs a test with the same arguments on both sides; the JSON of both.
fn succeeds(test: &str, arguments: &[&str]) -> [serde_json::Value; 2] {
    run(test, arguments, arguments).map(|output| {
        assert!(output.status.success(), "{test} {arguments:?}: {}", text(&output));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["packets"]["malformed"], 0);
        let link = report["link"].as_str().unwrap();
        // The loopback interface has no driver.
        assert!(link.starts_with("UDP sockets; not AF_XDP: "), "{link}");
        report
    })
}

/// Whether the sides, server and client, have checked what came.
fn checked(reports: &[serde_json::Value; 2]) -> [bool; 2] {
    reports.each_ref().map(|report| report["rows"][0]["checked"] == true)
}

#[test]
fn the_link_that_is_asked_for_is_taken() {
    for output in run("send-lat", &["--device", "roce-udp"], &["--device", "roce-udp"]) {
        assert!(output.status.success(), "{}", text(&output));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["link"], "UDP sockets");
    }
}

#[test]
fn every_test_runs_and_the_right_bytes_come() {
    for (test, expected) in [
        ("send-lat", [true, true]),
        ("write-lat", [true, true]),
        ("read-lat", [false, true]),
        ("atomic-lat", [false, true]),
        ("send-bw", [true, false]),
        ("write-bw", [true, false]),
        ("read-bw", [false, true]),
        ("atomic-bw", [true, true]),
    ] {
        let mut arguments = vec!["-n", "60", "--first-psn", "16777210"];
        if test.ends_with("bw") {
            arguments.extend(["-q", "3"]);
        }
        if !test.starts_with("atomic") {
            arguments.extend(["-s", "10001", "-m", "1024"]);
        }
        let reports = succeeds(test, &arguments);
        assert_eq!(checked(&reports), expected, "{test}");
        let [server, client] = &reports;
        for report in reports.iter().filter(|report| report["rows"][0].is_object()) {
            let messages = if test.ends_with("bw") { 180 } else { 60 };
            assert_eq!(report["rows"][0]["iterations"], messages, "{test}");
        }
        // What one sends the other gets; only when one is done it may miss what the other says last.
        let count = |side: &serde_json::Value, what: &str| side["packets"][what].as_u64().unwrap();
        assert!(count(client, "received") <= count(server, "sent"), "{test}");
        assert!(count(server, "received") <= count(client, "sent"), "{test}");
    }
}

#[test]
fn compare_and_swap_runs() {
    assert_eq!(
        checked(&succeeds("atomic-bw", &["-A", "CMP_AND_SWAP", "-n", "100", "-q", "2"])),
        [true, true]
    );
}

#[test]
fn all_sizes_run_one_after_the_other() {
    let [server, client] = succeeds("send-bw", &["--all", "-n", "5"]);
    for report in [server, client] {
        let sizes: Vec<u64> =
            report["rows"].as_array().unwrap().iter().map(|row| row["bytes"].as_u64().unwrap()).collect();
        assert_eq!(sizes, (1..24).map(|power| 1 << power).collect::<Vec<u64>>());
    }
}

#[test]
fn nothing_is_wrong_when_packets_are_lost_and_damaged() {
    let fault = "loss=0.02,duplicate=0.02,reorder=0.02,corrupt=0.01,seed=5";
    for (test, size) in [("send-bw", "3000"), ("read-bw", "3000"), ("write-lat", "3000")] {
        let [server, client] =
            succeeds(test, &["-n", "100", "-s", size, "-m", "1024", "--fault", fault, "-u", "10"]);
        let damaged = |side: &serde_json::Value| side["packets"]["bad_icrc"].as_u64().unwrap();
        assert!(damaged(&server) + damaged(&client) > 0, "{test}");
    }
}

#[test]
fn addresses_of_two_kinds_are_said() {
    let ([here, _], port) = place();
    let server = side("send-lat", &here, port, &[]).spawn().unwrap();
    let client = side("send-lat", "::1", port, &[]).arg(&here).output().unwrap();
    for (output, local) in [(server.wait_with_output().unwrap(), here.as_str()), (client, "::1")] {
        let said = text(&output);
        assert!(!output.status.success() && said.contains(&format!("this side at {local}")), "{said}");
    }
}

#[test]
fn what_does_not_fit_together_is_said() {
    for (test, server, client, said) in [
        ("send-lat", &["-s", "100", "-n", "5"][..], &["-s", "101", "-n", "5"][..], "-s"),
        ("send-lat", &["-n", "9"], &["-n", "5"], "5 messages, and 9 were expected"),
        ("send-bw", &["-n", "50"], &["-n", "20"], "20 messages, and 50 were expected"),
        ("send-lat", &["-n", "5"], &["-n", "9"], "more than the 5 messages"),
        ("send-bw", &["-n", "20"], &["-n", "50"], "more than the 20 messages"),
        ("write-bw", &["-s", "100", "-n", "5"], &["-s", "101", "-n", "5"], "100 were expected"),
        ("read-lat", &["-q", "2"], &["-q", "2"], "the number of queue pairs is 2"),
        ("atomic-lat", &["-s", "16"], &["-s", "16"], "8 bytes"),
        ("write-lat", &["-s", "0"], &["-s", "0"], "the size is 0"),
    ] {
        let outputs = run(test, server, client);
        assert!(
            outputs.iter().any(|output| !output.status.success() && text(output).contains(said)),
            "{outputs:?}"
        );
    }
    let unknown = side("send-rate", "127.0.0.1", 1, &[]).output().unwrap();
    assert!(text(&unknown).contains("write-lat"), "{}", text(&unknown));
}
