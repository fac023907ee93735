//! Once a queue pair is made and warm, moving data allocates nothing.

mod common;

use allocation_counter::measure;
use common::Loopback;
use ringway_sim::conformance::{Fixture, Traffic};

#[test]
fn the_data_path_does_not_allocate() {
    let (mut fixture, pair) = Fixture::<Loopback>::connected();
    let traffic = Traffic::new(&mut fixture, pair);
    let mut rounds = |count| (0..count).for_each(|_| traffic.round(&mut fixture.harness));
    rounds(10);
    assert_eq!(measure(|| rounds(50)).count_total, 0);
}
