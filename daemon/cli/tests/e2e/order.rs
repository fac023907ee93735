//! What each `order` promises of the bits, with real daemons, at all sizes, on one node and between several: `strict` those of a
//! scalar oracle, `stable` the same ones on every rank and in every run, `any` a sum.
//!
//! The oracle combines the inputs of each node's ranks, ascending, and then what these gave, nodes ascending; half types are
//! widened, and rounded once, in each of these combinations. On one node there is one.

use std::{net::SocketAddr, sync::Mutex, thread};

use ringway_client::{Client, Communicator, Element, Reduction, UniqueId, bf16, f16};
use ringway_plan::{Algorithm, Layout};
use ringway_reduce::oracle::reduce;
use ringway_types::{DataType, Operation};

use crate::harness::{Daemon, Folder, KEY, assert_mentions, free_address, node, node_at};

/// Elements whose sums depend on the order in which they are combined.
trait Value: Element {
    /// A sign, a mantissa, and one of few exponents, of bits that look random.
    fn of(mixed: u64) -> Self;
    fn bytes(self) -> Vec<u8>;
}

impl Value for f32 {
    fn of(mixed: u64) -> Self {
        let [a, b, c, d, exponent, ..] = mixed.to_le_bytes();
        let bits = u32::from_le_bytes([a, b, c, d]) & 0x807F_FFFF;
        Self::from_bits(bits | (124 + u32::from(exponent % 8)) << 23)
    }

    fn bytes(self) -> Vec<u8> {
        self.to_le_bytes().to_vec()
    }
}

impl Value for bf16 {
    fn of(mixed: u64) -> Self {
        Self::from_f32(f32::of(mixed))
    }

    fn bytes(self) -> Vec<u8> {
        self.to_le_bytes().to_vec()
    }
}

impl Value for f16 {
    fn of(mixed: u64) -> Self {
        Self::from_f32(f32::of(mixed))
    }

    fn bytes(self) -> Vec<u8> {
        self.to_le_bytes().to_vec()
    }
}

/// What is at this place of a rank's input, however long that is.
fn value<T: Value>(rank: u32, at: usize) -> T {
    let mut mixed = (u64::from(rank) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (at as u64 + 7);
    for _ in 0..2 {
        mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xC2B2_AE3D_27D4_EB4F);
    }
    T::of(mixed ^ (mixed >> 32))
}

fn values<T: Value>(rank: u32, count: usize) -> Vec<T> {
    (0..count).map(|at| value(rank, at)).collect()
}

fn bytes<T: Value>(values: &[T]) -> Vec<u8> {
    values.iter().flat_map(|value| value.bytes()).collect()
}

fn sum(datatype: DataType, operands: &[Vec<u8>]) -> Vec<u8> {
    let operands: Vec<_> = operands.iter().map(|bytes| (bytes.as_slice(), None)).collect();
    reduce(datatype, Reduction::Sum, &operands, None)
}

/// The sum of all ranks' inputs as strict promises it.
fn oracle<T: Value>(node_of: &[u32], count: usize) -> Vec<u8> {
    let layout = Layout::new(node_of).expect("ranks");
    let input = |rank: &u32| bytes(&values::<T>(*rank, count));
    let part = |node| sum(T::DATATYPE, &layout.local(node).iter().map(input).collect::<Vec<_>>());
    let parts: Vec<Vec<u8>> = (0..layout.nodes()).map(part).collect();
    if parts.len() == 1 { parts.concat() } else { sum(T::DATATYPE, &parts) }
}

/// Every rank in a thread of its own, at the daemon of its node.
fn as_ranks(daemons: &[Daemon], node_of: &[u32], what: impl Fn(&Client, &UniqueId, u32) + Sync) {
    let several = daemons.len() > 1;
    let id = daemons[0].client().unique_id(several).expect("an id");
    thread::scope(|scope| {
        for (rank, node) in (0..).zip(node_of) {
            let (what, id) = (&what, &id);
            scope.spawn(move || what(&daemons[*node as usize].client(), id, rank));
        }
    });
}

/// The algorithm of the last collective.
fn ran(client: &Client) -> Algorithm {
    let status: serde_json::Value = serde_json::from_str(&client.status().expect("a status")).expect("JSON");
    let name = status["communicators"][0]["algorithm"].as_str().expect("a name");
    Algorithm::from_name(name).expect("an algorithm")
}

/// Bytes of a vector, from a few to many chunks.
const SIZES: [usize; 7] = [4, 64, 1028, 16 << 10, 128 << 10, 1 << 20, 4 << 20];

/// An allreduce of every size gives how the one of the largest begins, on every rank, out of place and in place.
fn allreduces_are_exact<T: Value>(world: &Communicator, expected: &[u8], check: impl Fn()) {
    for size in SIZES {
        let input: Vec<T> = values(world.rank(), size / size_of::<T>());
        let mut output = input.clone();
        world.blocking().allreduce(&input, &mut output, Reduction::Sum).expect("an allreduce");
        check();
        let mut both = input;
        world.blocking().allreduce_in_place(&mut both, Reduction::Sum).expect("an allreduce");
        for got in [bytes(&output), bytes(&both)] {
            let wrong = got.iter().zip(expected).position(|(a, b)| a != b);
            assert_eq!(wrong, None, "{} of {size} B, rank {}", T::DATATYPE, world.rank());
        }
    }
}

/// The same of a reduce, of which one rank has the result.
fn reduces_are_exact<T: Value>(world: &Communicator, expected: &[u8]) {
    for (root, size) in (0..world.size()).zip(SIZES) {
        let input: Vec<T> = values(world.rank(), size / size_of::<T>());
        let mut output = input.clone();
        world.blocking().reduce(&input, Some(&mut output), root, Reduction::Sum).expect("a reduce");
        let wrong = bytes(&output).iter().zip(expected).position(|(a, b)| a != b);
        assert!(root != world.rank() || wrong.is_none(), "{} of {size} B: {wrong:?}", T::DATATYPE);
    }
}

fn strict_is_exact(daemons: &[Daemon], node_of: &[u32]) {
    let count = SIZES[SIZES.len() - 1];
    let single = oracle::<f32>(node_of, count / 4);
    let halves = [oracle::<bf16>(node_of, count / 2), oracle::<f16>(node_of, count / 2)];
    // One node where there are several, two where there is one.
    let ranks = 0..node_of.len() as u32;
    let elsewhere: Vec<u32> = ranks.map(|rank| if daemons.len() == 1 { rank.min(1) } else { 0 }).collect();
    let matters = oracle::<f32>(&elsewhere, 1000) != single[..4000];
    assert!(matters, "it does not matter which ranks are together");
    as_ranks(daemons, node_of, |client, id, rank| {
        let world = client.communicator(id, rank, node_of.len() as u32).join().expect("a communicator");
        // On one node ranks do it themselves, and no algorithm ran.
        let strict = || {
            let is_strict = daemons.len() == 1 || ran(client).is_strict(Operation::Allreduce);
            assert!(is_strict, "by {}", ran(client));
        };
        allreduces_are_exact::<f32>(&world, &single, strict);
        allreduces_are_exact::<bf16>(&world, &halves[0], strict);
        allreduces_are_exact::<f16>(&world, &halves[1], strict);
        reduces_are_exact::<f32>(&world, &single);
        reduces_are_exact::<bf16>(&world, &halves[0]);
    });
}

#[test]
fn strict_bits_are_those_of_the_oracle_on_one_node() {
    strict_is_exact(&[Daemon::start("order = \"strict\"")], &[0, 0, 0]);
}

#[test]
fn strict_bits_are_those_of_the_oracle_between_three_nodes() {
    let daemons = [(); 3].map(|()| node(KEY, "order = \"strict\"\nlink_cache = \"off\"").0);
    strict_is_exact(&daemons, &[0, 0, 1, 2, 2]);
}

/// Nodes at their addresses, and a folder in which their daemons keep what they measure of links.
struct Nodes {
    addresses: Vec<SocketAddr>,
    kept: Folder,
}

impl Nodes {
    fn of(node_of: &[u32]) -> Self {
        let nodes = node_of.iter().max().map_or(0, |last| last + 1);
        Self { addresses: (0..nodes).map(|_| free_address()).collect(), kept: Folder::new() }
    }

    fn start(&self, order: &str) -> Vec<Daemon> {
        let start = |(at, address): (usize, &SocketAddr)| {
            let links = self.kept.join(&format!("links-{at}.toml"));
            let settings = format!("order = \"{order}\"\nlink_cache = {:?}", links.display().to_string());
            if self.addresses.len() == 1 {
                Daemon::start(&settings)
            } else {
                node_at(*address, KEY, &settings)
            }
        };
        self.addresses.iter().enumerate().map(start).collect()
    }
}

/// What allreduces of all sizes give on every rank, in a run of its own: one after the other, by rank.
fn run_with(order: &str, node_of: &[u32], nodes: &Nodes) -> Vec<Vec<f32>> {
    let daemons = nodes.start(order);
    let results = Mutex::new(vec![Vec::new(); node_of.len()]);
    as_ranks(&daemons, node_of, |client, id, rank| {
        let world = client.communicator(id, rank, node_of.len() as u32).join().expect("a communicator");
        for size in SIZES {
            let mut both: Vec<f32> = values(rank, size / 4);
            world.blocking().allreduce_in_place(&mut both, Reduction::Sum).expect("an allreduce");
            results.lock().expect("nobody panicked")[rank as usize].extend(both);
        }
    });
    results.into_inner().expect("nobody panicked")
}

/// One node, and three of which two have two ranks.
const LAYOUTS: [&[u32]; 2] = [&[0, 0, 0], &[0, 0, 1, 2, 2]];

#[test]
fn stable_bits_are_the_same_on_every_rank_and_in_every_run() {
    for node_of in LAYOUTS {
        let nodes = Nodes::of(node_of);
        let runs = [(); 3].map(|()| run_with("stable", node_of, &nodes));
        let first = bytes(&runs[0][0]);
        for (run, results) in runs.iter().enumerate() {
            for (rank, result) in results.iter().enumerate() {
                let differs = bytes(result).iter().zip(&first).position(|(a, b)| a != b);
                assert_eq!(differs, None, "run {run}, rank {rank} of {node_of:?}");
            }
        }
    }
}

#[test]
fn any_order_gives_the_sum() {
    for node_of in LAYOUTS {
        let ranks = node_of.len() as u32;
        for (rank, result) in run_with("any", node_of, &Nodes::of(node_of)).iter().enumerate() {
            let places = SIZES.iter().flat_map(|size| 0..size / 4);
            for (at, got) in places.zip(result) {
                let inputs = (0..ranks).map(|rank| f64::from(value::<f32>(rank, at)));
                let (sum, most) = inputs.fold((0.0, 0.0), |(sum, most), x| (sum + x, most + x.abs()));
                // Each of the additions rounds by no more than half a unit in the last place.
                let error = f64::from(ranks) * most * f64::from(f32::EPSILON);
                assert!((f64::from(*got) - sum).abs() <= error, "{got}, not {sum}, at {at}, rank {rank}");
            }
        }
    }
}

/// A program, or the configuration, asks for an algorithm that does not combine as strict promises: the promise goes before
/// it, and the daemon where the communicator is rooted says so.
fn strict_goes_before(setting: &str, asked: &str) {
    let settings = format!("order = \"strict\"\nlink_cache = \"off\"\n{setting}");
    let daemons = [(); 3].map(|()| node(KEY, &settings).0);
    let (node_of, count) = ([0, 0, 1, 2, 2], 100_000);
    let expected = oracle::<f32>(&node_of, count);
    as_ranks(&daemons, &node_of, |client, id, rank| {
        let world = client.communicator(id, rank, 5).algorithm(asked).join().expect("a communicator");
        let mut values: Vec<f32> = values(rank, count);
        world.blocking().allreduce_in_place(&mut values, Reduction::Sum).expect("an allreduce");
        assert!(bytes(&values) == expected, "strict is broken by {}", ran(client));
    });
    assert_mentions(&daemons[0].log(), &["strict", "ring"]);
}

#[test]
fn strict_goes_before_an_algorithm_that_a_program_asks_for() {
    strict_goes_before("", "ring");
}

#[test]
fn strict_goes_before_an_algorithm_of_the_configuration() {
    strict_goes_before("algorithm = \"ring\"", "auto");
}
