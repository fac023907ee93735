//! Every algorithm does every operation that it is offered for, between daemons in network namespaces where this process may
//! make them, exactly, and is the one that did it.
//!
//! The daemons of one number of nodes are started once: each algorithm has a communicator of its own, which asks for it.
//! Whatever is added to [`Algorithm::ALL`] is tried as well.

use ringway_client::{Client, Communicator, Reduction, UniqueId};
use ringway_plan::{Algorithm, Blocks, Call, Layout, Plan, Terms, Tuning, View};
use ringway_service::status::DaemonStatus;
use ringway_sim::lacks_namespaces;
use ringway_types::Operation;

use crate::harness::{ALL_TOOLS, LONG, Program, assert_mentions, ringway, run_ringway};

/// The test that is the ranks' program, when the variable is set.
const RANK: &str = "algorithms::as_a_rank";
const VARIABLE: &str = "RINGWAY_TEST_ALGORITHMS";

/// Bytes of a call: in one small message, odd and in one larger message, in several, and in many chunks, which is between few nodes
/// as it takes long.
const SIZES: [usize; 4] = [8, 3001, 300_000, 1_300_000];

/// How nodes reach each other: in network namespaces where this process may make them, or where no tool that a test needs may be
/// missing.
fn network() -> [&'static str; 2] {
    let may = lacks_namespaces().is_none();
    ["--network", if may || std::env::var_os(ALL_TOOLS).is_some() { "namespaces" } else { "loopback" }]
}

/// Runs everything with so many ranks on so many nodes.
#[track_caller]
fn run(nodes: u32, ranks: u32) {
    let exe = std::env::current_exe().expect("this test");
    let (nodes_text, ranks_text) = (nodes.to_string(), ranks.to_string());
    let run = ["run", "-n", &ranks_text, "--nodes", &nodes_text, "--device", "tcp"];
    let mut command = ringway(&[&run[..], &network(), &["--"]].concat());
    command.arg(exe).args(["--exact", RANK, "--nocapture", "--test-threads=1"]).env(VARIABLE, "1");
    let out = Program::start(&mut command).end_within(8 * LONG).success().out;
    let layout: Vec<u32> = (0..ranks).map(|rank| rank * nodes / ranks).collect();
    for &algorithm in Algorithm::ALL {
        let offered = offered(algorithm, &Layout::new(&layout).expect("ranks"));
        let said = format!("{algorithm} did {} operations", offered.len());
        assert!(offered.is_empty() || out.contains(&said), "`{said}` is missing in: {out}");
    }
}

#[test]
fn two_nodes() {
    run(2, 2);
}

#[test]
fn two_nodes_with_two_ranks_each() {
    run(2, 4);
}

#[test]
fn three_nodes() {
    run(3, 3);
}

#[test]
fn four_nodes() {
    run(4, 4);
}

#[test]
fn five_nodes() {
    run(5, 5);
}

#[test]
fn eight_nodes() {
    run(8, 8);
}

/// The rows of a measurement between two nodes over tcp, as JSON.
fn measured(arguments: &[&str]) -> Vec<serde_json::Value> {
    let two = ["--ranks", "2", "--nodes", "2", "--device", "tcp", "--json", "-n", "20", "-w", "2"];
    let out = run_ringway(&[&["perf"], arguments, &two].concat()).success().out;
    out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn perf_measures_the_algorithm_that_is_asked_for_or_none() {
    for algorithm in ["direct", "ring"] {
        let rows = measured(&["allreduce", "--sizes", "8,300000", "--algorithm", algorithm]);
        assert!(rows.len() == 2 && rows.iter().all(|row| row["algorithm"] == algorithm), "{rows:?}");
    }
    let refused = run_ringway(&["perf", "all_gather", "--ranks", "2", "--nodes", "2", "--algorithm", "ring"]);
    let text = refused.failure().err;
    assert_mentions(&text, &["algorithm ring needs at least 3 nodes, but the ranks are on 2; use direct"]);
    // Of all operations those are measured that it can do.
    let all = ["all", "--sizes", "4096", "-n", "1", "--algorithm", "bruck"];
    let ended =
        run_ringway(&[&["perf"], &all[..], &["--ranks", "2", "--nodes", "2", "--json"]].concat()).success();
    assert_mentions(&ended.err, &["left out, as the algorithm cannot do them here: allreduce,"]);
    let rows = ended.out.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    let operations: Vec<_> = rows.map(|row| row["operation"].to_string()).collect();
    assert!(operations.iter().any(|operation| operation.contains("all_gather")), "{operations:?}");
    assert!(!operations.iter().any(|operation| operation.contains("allreduce")), "{operations:?}");
    let unknown = run_ringway(&["perf", "allreduce", "--algorithm", "rings"]).failure().err;
    assert_mentions(&unknown, &["`rings` is not an algorithm", "direct, ring"]);
}

/// Both exchange one message, which takes the delay.
#[test]
fn a_delay_is_the_least_that_a_collective_takes() {
    let rows = measured(&["allreduce", "--sizes", "8", "--delay-us", "3000"]);
    let least = rows[0]["time_us"]["min"].as_f64().expect("a time");
    assert!((3000.0..100_000.0).contains(&least), "{least} us with a delay of 3000");
    assert_eq!(rows[0]["errors"], 0);
}

/// What takes few messages one behind the other is chosen where each of them takes long: of eight nodes a ring has fourteen.
#[test]
fn over_slow_links_few_messages_are_chosen() {
    let eight = ["perf", "allreduce", "--ranks", "8", "--nodes", "8", "--device", "tcp", "--sizes", "64K"];
    let slow = ["--delay-us", "500", "-n", "5", "-w", "1", "--json"];
    let out = run_ringway(&[&eight[..], &slow, &network()].concat()).success().out;
    let row: serde_json::Value = serde_json::from_str(out.trim()).expect("JSON");
    assert_eq!(row["errors"], 0);
    let chosen = row["algorithm"].as_str().and_then(Algorithm::from_name).expect("an algorithm");
    let terms = Terms { nodes: 8, most_local: 1, bytes: 65536.0, group_nodes: 0 };
    let rounds = chosen.cost(Operation::Allreduce, &terms).expect("its cost").rounds;
    assert!(rounds <= 6.0, "{chosen} has {rounds} messages one behind the other");
}

/// What an algorithm does on these nodes.
fn offered(algorithm: Algorithm, layout: &Layout) -> Vec<Operation> {
    let can = |operation: &Operation| {
        let call = Call { operation: *operation, element: 1, count: 1, root: 0 };
        let view = View { layout, node: 0, call, blocks: Blocks::Uniform, in_place: &[] };
        Plan::with(algorithm, &view, &Tuning::default()).is_ok()
    };
    Operation::ALL.iter().copied().filter(can).collect()
}

/// One rank: all algorithms, operations and sizes, one after the other.
#[test]
fn as_a_rank() {
    if std::env::var_os(VARIABLE).is_none() {
        return;
    }
    let client = Client::connect().expect("the daemon");
    let world = Communicator::from_env(&client).expect("the other ranks");
    let node_of: Vec<u32> = (0..world.size()).filter_map(|rank| world.node_of(rank)).collect();
    let layout = Layout::new(&node_of).expect("ranks");
    for &algorithm in Algorithm::ALL {
        let offered = offered(algorithm, &layout);
        if offered.is_empty() {
            continue;
        }
        let id = agree_on_id(&client, &world);
        let own = client.communicator(&id, world.rank(), world.size()).algorithm(algorithm.name());
        let own = own.join().expect("a communicator that asks for an algorithm");
        for &operation in &offered {
            for bytes in SIZES.into_iter().filter(|bytes| *bytes < 1 << 20 || own.nodes() <= 3) {
                let root = own.size() - 1;
                let job = Job { world: &own, bytes, root };
                let (got, expected) = job.run(operation);
                let wrong = got.iter().zip(&expected).position(|(a, b)| a != b);
                assert!(
                    got.len() == expected.len() && wrong.is_none(),
                    "rank {}: {operation} of {bytes} B by {algorithm}: first wrong at {wrong:?}",
                    own.rank()
                );
                assert_eq!(ran(&client, &own), algorithm.name(), "{operation} of {bytes} B");
            }
        }
        if own.rank() == 0 {
            println_line(&format!("{algorithm} did {} operations", offered.len()));
        }
    }
}

/// A line of its own: the harness of the test may have begun one.
fn println_line(text: &str) {
    use std::io::Write as _;
    writeln!(std::io::stdout().lock(), "\n{text}").expect("somebody reads");
}

/// A fresh id, from the first rank.
fn agree_on_id(client: &Client, world: &Communicator) -> UniqueId {
    let mut text = [b' '; 256];
    if world.rank() == 0 {
        let id = client.unique_id(world.nodes() > 1).expect("an id").to_string();
        text[..id.len()].copy_from_slice(id.as_bytes());
    }
    world.blocking().broadcast(&mut text, 0).expect("a broadcast");
    String::from_utf8_lossy(&text).trim().parse().expect("an id")
}

/// The algorithm of the last collective of the communicator that was made last, as this rank's daemon says.
fn ran(client: &Client, world: &Communicator) -> String {
    let status: DaemonStatus = serde_json::from_str(&client.status().expect("status")).expect("a status");
    let own = status.communicators.into_iter().filter(|c| c.ranks == world.size());
    own.max_by_key(|c| c.group).expect("the communicator").algorithm
}

/// What is at this place of a rank's input.
fn value(rank: usize, at: usize) -> u8 {
    let mixed = (rank as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (at as u64 + 7);
    (mixed.wrapping_mul(0xC2B2_AE3D_27D4_EB4F) >> 56).to_le_bytes()[0]
}

fn values(rank: usize, range: std::ops::Range<usize>) -> Vec<u8> {
    range.map(|at| value(rank, at)).collect()
}

/// The sum of the inputs of these ranks; it wraps, and is exact.
fn sums(ranks: std::ops::Range<usize>, range: std::ops::Range<usize>) -> Vec<u8> {
    range.map(|at| ranks.clone().fold(0, |sum: u8, rank| sum.wrapping_add(value(rank, at)))).collect()
}

/// One call of one rank.
struct Job<'a> {
    world: &'a Communicator,
    bytes: usize,
    root: u32,
}

impl Job<'_> {
    fn rank(&self) -> usize {
        self.world.rank() as usize
    }

    fn ranks(&self) -> usize {
        self.world.size() as usize
    }

    /// Bytes of a block of which there is one for each rank.
    fn block(&self) -> usize {
        self.bytes.div_ceil(self.ranks())
    }

    fn is_root(&self) -> bool {
        self.world.rank() == self.root
    }

    /// The blocks of uneven operations: one has nothing.
    fn counts(&self) -> Vec<usize> {
        (0..self.ranks()).map(|rank| if rank == 1 { 0 } else { self.block() + rank * 5 % 7 }).collect()
    }

    /// What one rank sends another in all_to_all_v.
    fn sent(&self, from: usize, to: usize) -> usize {
        if from == to + 1 { 0 } else { self.block() + (3 * from + to) % 5 }
    }

    /// Makes the call: what came out, and what must.
    fn run(&self, operation: Operation) -> (Vec<u8>, Vec<u8>) {
        use Operation as O;
        match operation {
            O::Allreduce | O::Reduce | O::Broadcast | O::Scan | O::Exscan => self.vector(operation),
            O::AllGatherV | O::ReduceScatterV | O::GatherV | O::ScatterV => self.uneven(operation),
            O::AllToAllV => self.pairs(),
            O::Barrier => {
                self.world.blocking().barrier().expect("barrier");
                (Vec::new(), Vec::new())
            }
            _ => self.blocks(operation),
        }
    }

    fn vector(&self, operation: Operation) -> (Vec<u8>, Vec<u8>) {
        let (me, all, whole) = (self.rank(), 0..self.ranks(), 0..self.bytes);
        let (calls, root, sum) = (self.world.blocking(), self.root, Reduction::Sum);
        let input = values(me, whole.clone());
        let mut out = vec![77; self.bytes];
        let (done, expected) = match operation {
            Operation::Allreduce => (calls.allreduce(&input, &mut out, sum), sums(all, whole)),
            Operation::Scan => (calls.scan(&input, &mut out, sum), sums(0..me + 1, whole)),
            Operation::Exscan => {
                let expected = if me == 0 { out.clone() } else { sums(0..me, whole) };
                (calls.exscan(&input, &mut out, sum), expected)
            }
            Operation::Reduce => {
                let expected = if self.is_root() { sums(all, whole) } else { out.clone() };
                (calls.reduce(&input, Some(&mut out), root, sum), expected)
            }
            _ => {
                if self.is_root() {
                    out.copy_from_slice(&input);
                }
                (calls.broadcast(&mut out, root), values(root as usize, whole))
            }
        };
        done.unwrap_or_else(|error| panic!("{operation}: {error}"));
        (out, expected)
    }

    fn blocks(&self, operation: Operation) -> (Vec<u8>, Vec<u8>) {
        let (me, ranks, block) = (self.rank(), self.ranks(), self.block());
        let (calls, root) = (self.world.blocking(), self.root);
        let own = values(me, 0..block);
        let whole = values(me, 0..block * ranks);
        let mine = block * me..block * (me + 1);
        let gathered: Vec<u8> = (0..ranks).flat_map(|rank| values(rank, 0..block)).collect();
        let (mut one, mut all) = (vec![77; block], vec![77; block * ranks]);
        match operation {
            Operation::AllGather => calls.all_gather(&own, &mut all).map(|()| (all, gathered)),
            Operation::Gather => {
                let expected = if self.is_root() { gathered } else { all.clone() };
                calls.gather(&own, Some(&mut all), root).map(|()| (all, expected))
            }
            Operation::Scatter => {
                let expected = values(root as usize, mine);
                calls.scatter(Some(&whole), &mut one, root).map(|()| (one, expected))
            }
            Operation::ReduceScatter => {
                let expected = sums(0..ranks, mine);
                calls.reduce_scatter(&whole, &mut one, Reduction::Sum).map(|()| (one, expected))
            }
            _ => {
                let expected = (0..ranks).flat_map(|rank| values(rank, mine.clone())).collect();
                calls.all_to_all(&whole, &mut all).map(|()| (all, expected))
            }
        }
        .unwrap_or_else(|error| panic!("{operation}: {error}"))
    }

    fn uneven(&self, operation: Operation) -> (Vec<u8>, Vec<u8>) {
        let (me, ranks, lengths) = (self.rank(), self.ranks(), self.counts());
        let (calls, root) = (self.world.blocking(), self.root);
        let counts: Vec<u64> = lengths.iter().map(|length| *length as u64).collect();
        let total: usize = lengths.iter().sum();
        let before: usize = lengths[..me].iter().sum();
        let mine = before..before + lengths[me];
        let (own, whole) = (values(me, 0..lengths[me]), values(me, 0..total));
        let gathered: Vec<u8> = (0..ranks).flat_map(|rank| values(rank, 0..lengths[rank])).collect();
        let (mut one, mut all) = (vec![77; lengths[me]], vec![77; total]);
        match operation {
            Operation::AllGatherV => calls.all_gather_v(&own, &mut all, &counts).map(|()| (all, gathered)),
            Operation::ReduceScatterV => {
                let expected = sums(0..ranks, mine);
                calls.reduce_scatter_v(&whole, &mut one, &counts, Reduction::Sum).map(|()| (one, expected))
            }
            Operation::GatherV => {
                let expected = if self.is_root() { gathered } else { all.clone() };
                calls.gather_v(&own, Some(&mut all), &counts, root).map(|()| (all, expected))
            }
            _ => {
                let expected = values(root as usize, mine);
                calls.scatter_v(Some(&whole), &mut one, &counts, root).map(|()| (one, expected))
            }
        }
        .unwrap_or_else(|error| panic!("{operation}: {error}"))
    }

    fn pairs(&self) -> (Vec<u8>, Vec<u8>) {
        let (me, ranks) = (self.rank(), self.ranks());
        let sends: Vec<u64> = (0..ranks).map(|to| self.sent(me, to) as u64).collect();
        let receives: Vec<u64> = (0..ranks).map(|from| self.sent(from, me) as u64).collect();
        let input = values(me, 0..sends.iter().sum::<u64>() as usize);
        let mut out = vec![77; receives.iter().sum::<u64>() as usize];
        let from_each = (0..ranks).flat_map(|from| {
            let before: usize = (0..me).map(|to| self.sent(from, to)).sum();
            values(from, before..before + self.sent(from, me))
        });
        let expected = from_each.collect();
        self.world.blocking().all_to_all_v(&input, &mut out, &sends, &receives).expect("all_to_all_v");
        (out, expected)
    }
}
