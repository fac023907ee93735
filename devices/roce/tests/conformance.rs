//! The device passes the suite over UDP on loopback, with selective acknowledgement and without.
#![forbid(unsafe_code)]

mod common;

use ringway_roce::RoceConfig;

harness!(Selective, common::config(), |_, link| Box::new(link));
harness!(GoBackN, RoceConfig { selective: false, ..common::config() }, |_, link| Box::new(link));

mod selective {
    ringway_sim::conformance_suite!(super::Selective);
}

mod go_back_n {
    ringway_sim::conformance_suite!(super::GoBackN);
}
