//! Once a queue pair is made and warm, moving data allocates nothing.

mod common;
mod memory;

use allocation_counter::measure;
use common::{Files, Private};
use ringway_sim::conformance::{Fixture, Harness, Traffic};

fn does_not_allocate<H: Harness>() {
    let (mut fixture, pair) = Fixture::<H>::connected();
    let traffic = Traffic::new(&mut fixture, pair);
    let mut rounds = |count| (0..count).for_each(|_| traffic.round(&mut fixture.harness));
    rounds(10);
    assert_eq!(measure(|| rounds(50)).count_total, 0);
}

#[test]
fn the_data_path_does_not_allocate() {
    does_not_allocate::<Private>();
    does_not_allocate::<Files>();
}
