//! cargo-fuzz target, see `ringway_fuzz::shm::entry`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ringway_fuzz::shm::entry(bytes));
