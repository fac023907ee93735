//! The device passes the suite on a network that loses, repeats, delays and spoils packets, with selective
//! acknowledgement and without.
#![forbid(unsafe_code)]

mod common;

use ringway_roce::{Link, RoceConfig, UdpLink};
use ringway_wrap::{FaultSpec, Faulty};

/// What happens to the packets that come to a side.
fn faults(side: usize) -> FaultSpec {
    FaultSpec {
        loss: 0.01,
        duplicate: 0.01,
        reorder: 0.02,
        corrupt: 0.005,
        ecn: 0.01,
        seed: 11 + side as u64,
        ..FaultSpec::default()
    }
}

fn faulty(side: usize, link: UdpLink) -> Box<dyn Link> {
    Box::new(Faulty::new(link, faults(side)))
}

harness!(Selective, common::config(), faulty);
harness!(GoBackN, RoceConfig { selective: false, timeout: 12, ..common::config() }, faulty);

mod selective {
    ringway_sim::conformance_suite!(super::Selective);
}

mod go_back_n {
    ringway_sim::conformance_suite!(super::GoBackN);
}
