//! The tcp device passes the suite over loopback.
#![forbid(unsafe_code)]

mod common;

use common::Loopback;

ringway_sim::conformance_suite!(Loopback);
