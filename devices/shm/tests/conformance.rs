//! The shm device passes the suite, with memory that peers can map and with memory that they cannot.
#![forbid(unsafe_code)]

mod common;
mod memory;

mod private {
    ringway_sim::conformance_suite!(super::common::Private);
}

mod files {
    ringway_sim::conformance_suite!(super::common::Files);
}
