//! What is simulated in part agrees with what is simulated in whole: classes of nodes with all nodes, the first chunks with all
//! chunks. And the sizes that nobody has here take seconds.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ringway_plan::simulate::{Description, Detail, Failure, Limits, Network, Outcome, Request, simulate};
use ringway_plan::{Algorithm, Call, Layout, Tuning};
use ringway_types::Operation;

const NETWORKS: [(&str, &str); 5] = [
    ("mesh", "kind = 'mesh'"),
    ("ports", "kind = 'ports'"),
    ("fat tree", "nodes_per_leaf = 16\nspines = 4"),
    ("oversubscribed", "nodes_per_leaf = 8\nspines = 2\noversubscription = 4"),
    ("rails", "kind = 'rail-optimised'\nrails = 2\nnodes_per_leaf = 16\nspines = 4\noversubscription = 2"),
];

fn network(toml: &str, nodes: u32) -> Network {
    Description::from_toml(toml).unwrap().network(nodes, 1)
}

/// A call of `bytes` bytes in all on one or more ranks a node.
fn call(operation: Operation, bytes: u64, layout: &Layout) -> Call {
    use Operation as O;
    let total = matches!(operation, O::AllGather | O::ReduceScatter | O::AllToAll | O::Gather | O::Scatter);
    let parts = if total { u64::from(layout.ranks()) } else { 1 };
    Call { operation, element: 4, count: bytes / 4 / parts, root: 0 }
}

fn layout(nodes: u32, each: u32) -> Layout {
    Layout::new(&(0..nodes * each).map(|rank| rank / each).collect::<Vec<_>>()).unwrap()
}

fn run(
    network: &Network,
    layout: &Layout,
    (algorithm, operation, bytes): (Algorithm, Operation, u64),
    (detail, limits): (Detail, Limits),
) -> Result<Outcome, Failure> {
    let call = call(operation, bytes, layout);
    let tuning = &Tuning::default();
    simulate(&Request { network, layout, call, algorithm, tuning, detail, limits }, &mut |_| {})
}

const WHOLE: Limits = Limits { nodes: 512, whole_steps: u64::MAX, most_steps: u64::MAX, most_work: u64::MAX };

fn difference(a: &Outcome, b: &Outcome) -> f64 {
    (a.time as f64 - b.time as f64).abs() / b.time as f64
}

/// Those with hundreds of thousands of messages that share links, which take long.
fn is_dense(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::Direct | Algorithm::TwoShot | Algorithm::Hierarchical(_))
}

/// The algorithms of an allreduce of which every node does the same, moved: all but trees.
const ALIKE: [Algorithm; 7] = [
    Algorithm::Ring,
    Algorithm::TwoShot,
    Algorithm::BidirectionalRing,
    Algorithm::RecursiveDoubling,
    Algorithm::HalvingDoubling,
    Algorithm::Nhr,
    Algorithm::Pipeline,
];

#[test]
fn classes_agree_with_all_nodes() {
    let (mut compared, mut without, mut worst) = (0, 0, 0.0_f64);
    for (nodes, each, bytes) in [(64, 2, 64 << 10), (64, 1, 4 << 20), (128, 4, 1 << 20)] {
        let layout = layout(nodes, each);
        for (name, toml) in NETWORKS {
            let network = network(toml, nodes);
            for &algorithm in Algorithm::ALL {
                for operation in [Operation::Allreduce, Operation::AllGather, Operation::ReduceScatter] {
                    let what = (algorithm, operation, bytes);
                    if is_dense(algorithm) && u64::from(nodes) * bytes > 32 << 20 {
                        continue;
                    }
                    let classes = match run(&network, &layout, what, (Detail::Classes, WHOLE)) {
                        Ok(found) => found,
                        Err(Failure::NoClasses(why)) => {
                            let is_alike = operation == Operation::Allreduce && ALIKE.contains(&algorithm);
                            assert!(!is_alike, "{algorithm} on {nodes} nodes over {name}: {why}");
                            without += 1;
                            continue;
                        }
                        Err(Failure::Ineligible(_)) => continue,
                        Err(failure) => panic!("{algorithm} {operation} over {name}: {failure}"),
                    };
                    assert!(classes.nodes_run < nodes);
                    let all = run(&network, &layout, what, (Detail::Nodes, WHOLE)).unwrap();
                    let off = difference(&classes, &all);
                    assert!(
                        off < 0.01,
                        "{algorithm} {operation} on {nodes} nodes over {name}: {classes:?} {all:?}"
                    );
                    let (used, of_all) = (classes.busiest.unwrap().1, all.busiest.unwrap().1);
                    assert!((used - of_all).abs() < 0.01, "{algorithm} {operation} {name}: {used} {of_all}");
                    (compared, worst) = (compared + 1, worst.max(off));
                }
            }
        }
    }
    println!("{compared} compared, {worst:.5} apart at most; {without} without classes");
    assert!(compared >= 60, "{compared}");
}

/// Many messages that share links, in large chunks: which of a node's messages comes first is no matter of chance.
#[test]
fn classes_of_dense_exchanges_agree_with_all_nodes() {
    let mut compared = 0;
    for (nodes, each, bytes) in [(32, 1, 16 << 20), (64, 2, 2 << 20)] {
        let layout = layout(nodes, each);
        for (name, toml) in NETWORKS {
            let network = network(toml, nodes);
            let pair = Algorithm::from_name("hierarchical:two-shot+two-shot").unwrap();
            for algorithm in [Algorithm::Direct, Algorithm::TwoShot, pair] {
                let what = (algorithm, Operation::Allreduce, bytes);
                let Ok(classes) = run(&network, &layout, what, (Detail::Classes, WHOLE)) else { continue };
                let all = run(&network, &layout, what, (Detail::Nodes, WHOLE)).unwrap();
                let off = difference(&classes, &all);
                assert!(off < 0.01, "{algorithm} on {nodes} nodes over {name}: {off} {classes:?} {all:?}");
                compared += 1;
            }
        }
    }
    assert!(compared >= 12, "{compared}");
}

#[test]
fn the_largest_that_is_run_whole_agrees_with_its_classes() {
    let layout = layout(512, 8);
    for (bytes, toml) in [(1 << 20, NETWORKS[2].1), (1 << 20, NETWORKS[3].1)] {
        let network = network(toml, 512);
        for &algorithm in Algorithm::ALL.iter().filter(|algorithm| !is_dense(**algorithm)) {
            let what = (algorithm, Operation::Allreduce, bytes);
            let Ok(classes) = run(&network, &layout, what, (Detail::Classes, WHOLE)) else { continue };
            let all = run(&network, &layout, what, (Detail::Auto, WHOLE)).unwrap();
            assert_eq!(all.nodes_run, 512);
            assert!(difference(&classes, &all) < 0.01, "{algorithm}: {classes:?} {all:?}");
        }
    }
}

#[test]
fn the_first_chunks_tell_of_all() {
    let few = Limits { whole_steps: 0, ..WHOLE };
    let layout = layout(16, 2);
    let mut compared = 0;
    for (name, toml) in NETWORKS {
        let network = network(toml, 16);
        for &algorithm in Algorithm::ALL {
            for operation in [Operation::Broadcast, Operation::Reduce, Operation::Allreduce] {
                if (algorithm, operation) == (Algorithm::Direct, Operation::Allreduce) {
                    // All nodes share all links all the time: the whole takes too long without optimisation.
                    continue;
                }
                let what = (algorithm, operation, 256 << 20);
                let Ok(part) = run(&network, &layout, what, (Detail::Nodes, few)) else { continue };
                if part.chunks_run == part.chunks {
                    continue;
                }
                let all = run(&network, &layout, what, (Detail::Nodes, WHOLE)).unwrap();
                assert_eq!(all.chunks_run, all.chunks);
                let off = difference(&part, &all);
                assert!(off < 0.01, "{algorithm} {operation} over {name}: {part:?} {all:?}");
                compared += 1;
            }
        }
    }
    println!("{compared} compared");
    assert!(compared >= 15, "{compared}");
}

/// Where many nodes share links, and of plans whose first chunks take other times than those behind them.
#[test]
fn the_first_chunks_of_many_nodes_tell_of_all() {
    let (nodes, layout) = (64, layout(64, 4));
    let (few, mut in_part) = (Limits { whole_steps: 0, ..WHOLE }, 0);
    for toml in [NETWORKS[2].1, NETWORKS[3].1] {
        let network = network(toml, nodes);
        for algorithm in [
            Algorithm::Tree,
            Algorithm::DoubleTree,
            Algorithm::HalvingDoubling,
            Algorithm::RecursiveDoubling,
            Algorithm::Nhr,
        ] {
            let what = (algorithm, Operation::Allreduce, 512 << 20);
            let part = run(&network, &layout, what, (Detail::Nodes, few)).unwrap();
            in_part += u32::from(part.chunks_run < part.chunks);
            let all = run(&network, &layout, what, (Detail::Nodes, WHOLE)).unwrap();
            let off = difference(&part, &all);
            assert!(off < 0.01, "{algorithm} over {toml}: {off} {part:?} {all:?}");
        }
    }
    assert!(in_part >= 4, "{in_part}");
}

/// What is the same but for where its nodes are takes as long on a thousand nodes whether all are simulated or their classes.
#[test]
fn a_thousand_nodes_agree_with_their_classes() {
    let layout = layout(1024, 2);
    for toml in ["nodes_per_leaf = 64\nspines = 32", "nodes_per_leaf = 32\nspines = 8\noversubscription = 2"]
    {
        let network = network(toml, 1024);
        for algorithm in [Algorithm::BidirectionalRing, Algorithm::HalvingDoubling, Algorithm::Nhr] {
            let what = (algorithm, Operation::Allreduce, 1 << 20);
            let classes = run(&network, &layout, what, (Detail::Auto, Limits::default())).unwrap();
            assert!(classes.nodes_run <= 64, "{algorithm}: {classes:?}");
            let all = run(&network, &layout, what, (Detail::Nodes, WHOLE)).unwrap();
            assert!(difference(&classes, &all) < 0.01, "{algorithm}: {classes:?} {all:?}");
        }
    }
}

#[test]
fn a_hundred_thousand_ranks_take_seconds() {
    let (nodes, layout) = (16384, layout(16384, 8));
    let network = Description::default().network(nodes, 1);
    let what = (Algorithm::Ring, Operation::Allreduce, 1 << 30);
    let found = run(&network, &layout, what, (Detail::Auto, Limits::default())).unwrap();
    assert_eq!((found.nodes_run, found.symmetry), (32, Some("rotation")));
    // 2 (N - 1) messages of 64 KiB one behind the other, and what they wait for.
    let least = 2.0 * 16383.0 * (65536.0 / 50e9) * 1e12;
    assert!(found.time as f64 > least, "{found:?}");
}

#[test]
fn what_would_take_too_long_says_why() {
    let layout = layout(16384, 1);
    let mut network = Description::default().network(16384, 1);
    network.slow_down(7, 2.0).unwrap();
    let what = (Algorithm::Ring, Operation::Allreduce, 1 << 30);
    let failure = run(&network, &layout, what, (Detail::Auto, Limits::default())).unwrap_err();
    let told = failure.to_string();
    assert!(told.contains("steps would have to be simulated"), "{told}");
    assert!(told.contains("some nodes are slower than others"), "{told}");
    let network = Description::from_toml("nodes_per_leaf = 48").unwrap().network(16384, 1);
    let told = run(&network, &layout, what, (Detail::Auto, Limits::default())).unwrap_err().to_string();
    assert!(told.contains("the last leaf switch has fewer nodes"), "{told}");
    let direct = (Algorithm::Direct, Operation::Allreduce, 1 << 30);
    let network = Description::default().network(16384, 1);
    let failure = run(&network, &layout, direct, (Detail::Auto, Limits::default())).unwrap_err();
    assert!(matches!(failure, Failure::Scratch { .. }), "{failure}");
}
