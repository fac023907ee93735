//! Two hosts with a node of two ranks each, over an RDMA port of each on a link that goes away for two seconds in the middle of
//! allreduces. This program runs on both at once: where `RINGWAY_TEST_LINK` says `near OWN OTHER` or `far OWN OTHER`, which names
//! their addresses, see devices/ibverbs/guest/link-down. Elsewhere each test says so and checks nothing.
//!
//! On a line of its own the near one says `link off` and `link on` to whoever has the cable in hand.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use crate::harness::{Daemon, Folder, KEY, LONG, Rank, assert_mentions, eventually, tell_all};

const VARIABLE: &str = "RINGWAY_TEST_LINK";
/// Two MiB in each allreduce.
const ELEMENTS: usize = 1 << 19;
/// For how long there is no link.
const GAP: Duration = Duration::from_secs(2);
/// After so long a silence a node counts as lost, whatever its device says.
const PATIENCE: Duration = Duration::from_secs(20);
/// For how long allreduces go on where nothing hinders them.
const SECONDS: u64 = 8;

/// This host, and what the tests on both say to each other, a line at a time and over the same link.
struct Host {
    own: String,
    is_near: bool,
    other: BufReader<TcpStream>,
}

impl Host {
    /// `None` where there is no other host. Waits for it.
    fn this() -> Option<Self> {
        let Ok(words) = std::env::var(VARIABLE) else {
            eprintln!("nothing is tested: {VARIABLE} names no other host");
            return None;
        };
        let words: Vec<&str> = words.split(' ').collect();
        let &[side, own, other] = words.as_slice() else { panic!("{VARIABLE} is three words") };
        let is_near = side == "near";
        let stream = if is_near {
            TcpListener::bind((own, 7412)).and_then(|door| door.accept()).expect("the other test").0
        } else {
            let mut found = None;
            eventually("the other test listens", || {
                found = TcpStream::connect((other, 7412)).ok();
                found.is_some()
            });
            found.expect("a connection")
        };
        stream.set_read_timeout(Some(2 * LONG)).expect("a time");
        Some(Self { own: own.to_owned(), is_near, other: BufReader::new(stream) })
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.other.get_mut(), "{line}").expect("the other test runs");
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.other.read_line(&mut line).expect("the other test says something");
        assert!(line.ends_with('\n'), "the other test has ended");
        line.trim_end().to_owned()
    }

    /// Both have come so far.
    fn meet(&mut self, place: &str) {
        self.tell(place);
        assert_eq!(self.hear(), place);
    }

    fn daemon(&self, settings: &str) -> Daemon {
        let folder = Folder::new();
        let key = folder.write("key", KEY).display().to_string();
        Daemon::start(&format!(
            "listen = \"{}:7411\"\ncluster_key_file = {key:?}\ndevice = \"verbs\"\npeer_timeout_ms = {}\n{settings}",
            self.own,
            PATIENCE.as_millis()
        ))
    }

    /// This host's two ranks of four.
    fn form(&mut self, daemon: &Daemon) -> [Rank; 2] {
        let mut ranks = [(); 2].map(|()| Rank::start(daemon));
        let id = if self.is_near {
            let id = ranks[0].must("id several");
            self.tell(&id);
            id
        } else {
            self.hear()
        };
        let first = if self.is_near { 0 } else { 2 };
        for (number, rank) in (first..).zip(&mut ranks) {
            rank.tell(&format!("join {id} {number} 4"));
        }
        for rank in &mut ranks {
            assert_eq!(rank.answer().as_deref(), Ok("2 nodes"), "{}", daemon.log());
        }
        ranks
    }
}

/// To whoever reads what the tests write.
#[expect(clippy::print_stdout, reason = "that is how the link is taken away")]
fn ask(what: &str) {
    println!("\n{what}");
}

fn counted(daemon: &Daemon, counter: &str) -> u64 {
    let status = daemon.status();
    status["devices"][0]["counters"][counter].as_u64().unwrap_or_else(|| panic!("no {counter}: {status}"))
}

/// Allreduces while the link goes away and comes back: what each rank of this host says of them, and how long after the link went;
/// afterwards a new communicator of the same daemons computes exactly.
fn around_a_gap(host: &mut Host, settings: &str) -> (Vec<Result<String, String>>, Duration) {
    let daemon = host.daemon(settings);
    // Both daemons are there.
    host.meet("daemons");
    let mut ranks = host.form(&daemon);
    tell_all(&mut ranks, &format!("loop {ELEMENTS} {SECONDS}"));
    for rank in &mut ranks {
        assert_eq!(rank.answer().as_deref(), Ok("looping"), "{}", daemon.log());
    }
    thread::sleep(Duration::from_millis(500));
    let begun = Instant::now();
    if host.is_near {
        ask("link off");
        thread::sleep(GAP);
        ask("link on");
    }
    let ends: Vec<Result<String, String>> = ranks.iter_mut().map(Rank::answer).collect();
    let after = begun.elapsed();
    eprintln!("{} ms after the link went away: {ends:?}", after.as_millis());
    // The cable of the near one is what was out; the far one hears of it as of a switch's.
    if host.is_near {
        eventually("the port's own word of it", || {
            ["port_downs", "port_ups"].iter().all(|counter| counted(&daemon, counter) >= 1)
        });
    }
    drop(ranks);
    host.meet("over");
    let mut ranks = host.form(&daemon);
    for (call, expected) in [
        ("call allreduce f32 sum 1 0", "10.0"),
        ("call allreduce f64 max 400000 0", "4.0"),
        ("call broadcast i32 sum 100000 0", "1"),
    ] {
        tell_all(&mut ranks, call);
        for rank in &mut ranks {
            assert_eq!(rank.answer().as_deref(), Ok(expected), "{call}: {}", daemon.log());
        }
    }
    host.meet("done");
    (ends, after)
}

/// The longest round, in milliseconds, of what a loop says at its end.
fn longest_ms(end: &str) -> u64 {
    let words: Vec<&str> = end.split(' ').collect();
    let number = words.iter().rev().nth(1).and_then(|word| word.parse().ok());
    number.unwrap_or_else(|| panic!("`{end}` names no time"))
}

/// Seven times a second is longer than the gap.
#[test]
fn allreduces_outlast_a_gap_that_is_shorter_than_the_retries() {
    let Some(mut host) = Host::this() else { return };
    for end in around_a_gap(&mut host, "verbs_timeout = 18").0 {
        let end = end.expect("every round was exact");
        // The link was away in the middle of a round, and rounds went on afterwards.
        assert!(longest_ms(&end) >= 1500, "{end}");
    }
}

/// Twice half a second is not: all ranks are told which node is lost, before anybody has lost patience.
#[test]
fn allreduces_fail_by_name_in_a_gap_that_is_longer_than_the_retries() {
    let Some(mut host) = Host::this() else { return };
    let other = if host.is_near { "node 1" } else { "node 0" };
    let (ends, after) = around_a_gap(&mut host, "verbs_timeout = 17\nverbs_retries = 1");
    for end in ends {
        let error = end.expect_err("the link was away for longer than that");
        assert_mentions(&error, &[other, "is lost", "verbs_retries"]);
    }
    assert!(after < PATIENCE, "{after:?}");
}
