//! Gather and scatter along the binomial tree are proved right for every number of nodes up to 64, cost what they say, and
//! take the published time.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;
mod count;

use common::{layouts, scenario, small};
use ringway_plan::simulate::{Costs, Detail, Fabric, Limits, Link, Network, Request, simulate};
use ringway_plan::verify::verify;
use ringway_plan::{Algorithm, Call, Layout, Terms, Tuning};
use ringway_types::Operation;

const OPERATIONS: [Operation; 2] = [Operation::Gather, Operation::Scatter];

fn prove(operation: Operation, layout: &[u32], size: u64, root: u32, chunk_bytes: u64) {
    let scenario = scenario(operation, layout, size, 2, root, |rank| rank % 2 == 0);
    if let Err(violation) = verify(&scenario, Some(Algorithm::Binomial), &small(chunk_bytes, 0)) {
        panic!("{operation}: {violation}\n{scenario:?}");
    }
}

/// One rank a node: blocks of nothing, of one element, and of several in chunks of one element and a half.
#[test]
fn any_number_of_nodes_to_64_is_right() {
    for nodes in 2..=64 {
        let layout: Vec<u32> = (0..nodes).collect();
        for operation in OPERATIONS {
            for (i, size) in [0, 1, 3].into_iter().enumerate() {
                prove(operation, &layout, size, u32::try_from(i).unwrap() * 17, 3 * u64::from(nodes) / 2);
            }
        }
    }
}

/// Several ranks a node, next to each other or not, and every root.
#[test]
fn any_layout_and_root_is_right() {
    for nodes in 2..=9 {
        for layout in layouts(nodes) {
            for operation in OPERATIONS {
                for root in 0..u32::try_from(layout.len()).unwrap() {
                    prove(operation, &layout, 5, root, 8 * u64::from(nodes));
                }
            }
        }
    }
}

#[test]
fn costs_are_those_of_the_steps() {
    for nodes in 2..=64 {
        let layout: Vec<u32> = (0..nodes).collect();
        for operation in OPERATIONS {
            let scenario = scenario(operation, &layout, 128, 1, nodes / 3, |_| false);
            let bytes = 128 * u64::from(nodes);
            count::costs_what_it_says(&scenario, Algorithm::Binomial, &Tuning::default(), bytes);
        }
    }
}

/// Of any number of nodes where messages take no time, and of powers of two where they do: `lg p a + n (p - 1) / p b`.
#[test]
fn times_are_those_of_the_closed_formula() {
    const A: u64 = 3_000_000;
    const B: f64 = 40.0;
    let costs = Costs { message: 0, reduce: 0.0, copy: 0.0, scratch: u64::MAX, eager: u64::MAX };
    for nodes in 2..=64_u32 {
        let layout = Layout::new(&(0..nodes).collect::<Vec<_>>()).unwrap();
        for operation in OPERATIONS {
            let call = Call { operation, element: 4, count: 1024, root: 1 };
            let tuning = &Tuning { chunk_bytes: 1 << 40, ..Tuning::default() };
            let terms = Terms { nodes, most_local: 1, bytes: 4096.0 * f64::from(nodes), group_nodes: 0 };
            let cost = Algorithm::Binomial.cost(operation, &terms).unwrap();
            let a = if nodes.is_power_of_two() { A } else { 0 };
            let network =
                &Network::new(nodes, Fabric::Mesh(Link { latency: a, gap: 0, bandwidth: 1e12 / B }), costs);
            let (layout, algorithm, limits) = (&layout, Algorithm::Binomial, Limits::default());
            let request = Request { network, layout, call, algorithm, tuning, detail: Detail::Nodes, limits };
            let found = simulate(&request, &mut |_| {}).unwrap().time as f64;
            let expected = cost.rounds * a as f64 + cost.link_bytes * B;
            assert!((found - expected).abs() < 1e-9 * expected, "{operation} {nodes}: {found}, {expected}");
            if nodes.is_power_of_two() {
                assert_eq!(cost.link_bytes, terms.bytes - 4096.0);
                assert_eq!(cost.rounds, f64::from(nodes).log2());
            }
        }
    }
}
