//! cargo-fuzz target, see `ringway_fuzz::perftest::keys`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ringway_fuzz::perftest::keys(bytes));
