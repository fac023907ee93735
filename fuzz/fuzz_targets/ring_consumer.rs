//! cargo-fuzz target, see `ringway_fuzz::ring::consumer`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ringway_fuzz::ring::consumer(bytes));
