//! An end that has another tool measure, beside which ours can be seen: iperf3 and sockperf, where they are installed.

use std::{
    fs,
    net::{IpAddr, SocketAddr, TcpListener},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use ringway_tcp::Congestion;
use serde_json::Value;

use super::{
    Address, Messenger,
    job::{Job, Outcome},
};
use crate::{
    bench::{
        costs::Copied,
        result::{Percentiles, Polling, Test},
    },
    local::process::helper_command,
};

/// How long a tool measures, as its command line says.
pub(in crate::bench) const TOOL_SECONDS: f64 = 1.0;
/// How long a tool's server may take to listen.
const STARTING: Duration = Duration::from_secs(5);

/// A tool that measures between its client and its server. It sleeps while it waits, and takes a second each time.
#[derive(Debug)]
pub(in crate::bench) struct Tool {
    pub(in crate::bench) name: &'static str,
    /// What of ours is like it, at which size.
    pub(in crate::bench) test: Test,
    pub(in crate::bench) beside_bytes: u64,
    /// Of its own messages.
    pub(in crate::bench) bytes: u64,
    pub(in crate::bench) description: &'static str,
    /// What its server and its client are told; `{address}` and `{port}` are the server's.
    serve: &'static [&'static str],
    ask: &'static [&'static str],
    read: fn(&str) -> Option<Outcome>,
}

pub(in crate::bench) static TOOLS: [Tool; 2] = [
    Tool {
        name: "iperf3",
        test: Test::Bandwidth,
        beside_bytes: 1 << 20,
        bytes: 1 << 20,
        description: "one TCP connection, one way",
        serve: &["-s", "-B", "{address}", "-p", "{port}"],
        ask: &["-c", "{address}", "-p", "{port}", "-l", "1M", "-t", "1", "-J", "-C", "{congestion}"],
        read: read_iperf,
    },
    Tool {
        name: "sockperf",
        test: Test::Latency,
        beside_bytes: 8,
        // It takes no less.
        bytes: 14,
        description: "ping-pong over TCP, half round trip",
        serve: &["server", "--tcp", "-i", "{address}", "-p", "{port}"],
        ask: &["ping-pong", "--tcp", "-i", "{address}", "-p", "{port}", "-m", "14", "-t", "1"],
        read: read_sockperf,
    },
];

impl Tool {
    /// The tool of this name.
    pub(in crate::bench) fn named(name: &str) -> Option<&'static Self> {
        TOOLS.iter().find(|tool| tool.name == name)
    }

    /// Its version, or that it is not installed.
    pub(in crate::bench) fn version(&self) -> Result<String, String> {
        let failed = |_| format!("{0} is not installed (Debian has it as {0})", self.name);
        let output =
            Command::new(self.name).arg("--version").stdin(Stdio::null()).output().map_err(failed)?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = text.lines().find(|line| line.contains(char::is_numeric)).unwrap_or(self.name);
        Ok(line.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').take(60).collect())
    }

    /// A command line's words, with the address and the congestion control of our paths in their places.
    fn words(&self, words: &[&str], at: SocketAddr) -> impl Iterator<Item = String> {
        words.iter().map(move |word| match *word {
            "{address}" => at.ip().to_string(),
            "{port}" => at.port().to_string(),
            "{congestion}" => Congestion::Unpaced.name().unwrap_or_else(|_| "reno".to_owned()),
            word => word.to_owned(),
        })
    }

    fn client(&self, at: SocketAddr) -> Command {
        let mut command = Command::new(self.name);
        command.args(self.words(self.ask, at)).stdin(Stdio::null()).stderr(Stdio::piped());
        command
    }
}

/// The tool's server, or its client.
pub(super) struct ToolEnd {
    tool: &'static Tool,
    /// Where the server listens.
    at: SocketAddr,
    server: Option<Child>,
}

impl Drop for ToolEnd {
    fn drop(&mut self) {
        if let Some(server) = &mut self.server {
            // One that has ended already is what we want.
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

impl ToolEnd {
    /// Starts the server, if it is to be that.
    pub(super) fn open(name: &str, address: IpAddr, serves: bool) -> Result<Self, String> {
        let tool = Tool::named(name).ok_or("there is no tool of this name")?;
        tool.version()?;
        let mut end = Self { tool, at: (address, 0).into(), server: None };
        if serves {
            // A free port of this moment.
            let free = TcpListener::bind(end.at).and_then(|listener| listener.local_addr());
            end.at = free.map_err(|e| format!("cannot listen on {address}: {e}"))?;
            // It ends when this process does, however that happens.
            let words = tool.words(tool.serve, end.at).map(Into::into);
            let mut command =
                helper_command(None, tool.name, words).map_err(|e| format!("cannot start {name}: {e}"))?;
            command.stdout(Stdio::null()).stderr(Stdio::null());
            end.server = Some(command.spawn().map_err(|e| format!("cannot start {name}: {e}"))?);
            end.wait_until_listening()?;
        }
        Ok(end)
    }

    pub(super) fn address(&self) -> Address {
        Address { endpoint: self.at.to_string().into_bytes(), key: 0 }
    }

    fn wait_until_listening(&mut self) -> Result<(), String> {
        let until = Instant::now() + STARTING;
        while !is_listened_on(self.at.port()) {
            let has_ended = self.server.as_mut().is_some_and(|server| !matches!(server.try_wait(), Ok(None)));
            if has_ended || Instant::now() > until {
                return Err(format!("{}'s server does not listen on {}", self.tool.name, self.at));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

/// Whether a TCP socket of this network namespace listens on this port: connecting would be taken for a client.
fn is_listened_on(port: u16) -> bool {
    const LISTENING: &str = "0A";
    let tables = ["tcp", "tcp6"].map(|name| fs::read_to_string(format!("/proc/self/net/{name}")));
    let (port, mut lines) = (format!(":{port:04X}"), tables.iter().flatten().flat_map(|table| table.lines()));
    lines.any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next().is_some_and(|local| local.ends_with(&port)) && fields.nth(1) == Some(LISTENING)
    })
}

/// What iperf3 says in JSON: the bytes that came, and their time.
fn read_iperf(text: &str) -> Option<Outcome> {
    let value: Value = serde_json::from_str(text).ok()?;
    let received = &value["end"]["sum_received"];
    let (bytes, seconds) = (received["bytes"].as_u64()?, received["seconds"].as_f64()?);
    let operations = bytes >> 20;
    (operations > 0 && seconds > 0.0).then(|| Outcome { operations, seconds, ..Outcome::default() })
}

/// What sockperf says in words, of half round trips in microseconds.
fn read_sockperf(text: &str) -> Option<Outcome> {
    let number = |words: &str| {
        let mut after = text.match_indices(words).filter_map(|(at, _)| text.get(at + words.len()..));
        after.find_map(|rest| rest.split_whitespace().next()?.parse::<f64>().ok())
    };
    let time_us = Percentiles {
        p50: number("percentile 50.000 =")?,
        p99: number("percentile 99.000 ="),
        p999: number("percentile 99.900 ="),
    };
    let operations = number("Total ")? as u64;
    Some(Outcome {
        operations,
        seconds: time_us.p50 * 2e-6 * operations as f64,
        samples: operations,
        time_us,
        ..Outcome::default()
    })
}

impl Messenger for ToolEnd {
    fn connect(&mut self, peer: &Address, active: bool) -> Result<(), String> {
        if active {
            let text = String::from_utf8_lossy(&peer.endpoint).into_owned();
            self.at = text.parse().map_err(|_| format!("`{text}` is not an address"))?;
        }
        Ok(())
    }

    fn measure(&mut self, job: &Job) -> Option<Result<Outcome, String>> {
        if !job.leads {
            return Some(Ok(Outcome::default()));
        }
        let tool = self.tool;
        let output = tool.client(self.at).output().map_err(|e| format!("cannot start {}: {e}", tool.name));
        Some(output.and_then(|output| {
            let text = String::from_utf8_lossy(&output.stdout);
            (tool.read)(&text).ok_or_else(|| {
                let said =
                    if output.stderr.is_empty() { text } else { String::from_utf8_lossy(&output.stderr) };
                let said: String = said.chars().filter(|c| !c.is_control()).take(200).collect();
                format!("{} said nothing that is understood: {said}", tool.name)
            })
        }))
    }

    /// The tool's server works by itself, on the processor that this has.
    fn is_waited_for(&self) -> bool {
        false
    }

    fn set_polling(&mut self, _polling: Polling) -> Result<(), String> {
        Ok(())
    }

    fn send(&mut self, _bytes: u64) -> Result<(), String> {
        Err("a tool measures by itself".to_owned())
    }

    fn flush(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn receive(&mut self, bytes: u64) -> Result<(), String> {
        self.send(bytes)
    }

    fn counts(&self) -> (u64, Option<Copied>) {
        (0, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tools_say_is_understood() {
        let said = "sockperf: [Total Run] RunTime=1.000 sec; SentMessages=72247\n\
            sockperf: Summary: Latency is 6.687 usec\n\
            sockperf: \x1b[2;35mTotal 41227 observations\x1b[0m; each percentile contains 412.27 observations\n\
            sockperf: ---> percentile 99.990 =   96.739\nsockperf: ---> percentile 99.900 =   32.553\n\
            sockperf: ---> percentile 99.000 =   15.693\nsockperf: ---> percentile 50.000 =    6.344\n";
        let found = read_sockperf(said).expect("understood");
        assert_eq!(found.time_us, Percentiles { p50: 6.344, p99: Some(15.693), p999: Some(32.553) });
        assert_eq!(found.operations, 41227);
        assert!(read_sockperf("sockperf: ERROR: connection refused").is_none());
        let said = r#"{ "end": { "sum_received": { "seconds": 0.5, "bytes": 104857600 } } }"#;
        let found = read_iperf(said).expect("understood");
        assert_eq!((found.operations, found.seconds), (100, 0.5));
        assert!(read_iperf(r#"{ "error": "unable to connect to server" }"#).is_none());
    }

    #[test]
    fn who_listens_is_seen() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let port = listener.local_addr().expect("its address").port();
        assert!(is_listened_on(port));
        drop(listener);
        assert!(!is_listened_on(port));
    }
}
