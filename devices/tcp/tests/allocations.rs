//! Once a queue pair is made and warm, moving data allocates nothing.

mod common;

use allocation_counter::measure;
use common::{EPOLL, IO_URING, Loopback, STRIPED, STRIPED_EPOLL, ZERO_COPY};
use ringway_sim::conformance::{Fixture, Traffic};

fn the_data_path_does_not_allocate<const DRIVER: usize>() {
    let (mut fixture, pair) = Fixture::<Loopback<DRIVER, DRIVER>>::connected();
    let traffic = Traffic::new(&mut fixture, pair);
    let mut rounds = |count| (0..count).for_each(|_| traffic.round(&mut fixture.harness));
    rounds(10);
    assert_eq!(measure(|| rounds(50)).count_total, 0);
}

#[test]
fn with_io_uring() {
    the_data_path_does_not_allocate::<IO_URING>();
}

#[test]
fn with_epoll() {
    the_data_path_does_not_allocate::<EPOLL>();
}

#[test]
fn without_a_copy_of_what_is_sent() {
    the_data_path_does_not_allocate::<ZERO_COPY>();
}

#[test]
fn over_several_connections() {
    the_data_path_does_not_allocate::<STRIPED>();
    the_data_path_does_not_allocate::<STRIPED_EPOLL>();
}
