//! cargo-fuzz target, see `ringway_fuzz::engine::failure`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ringway_fuzz::engine::failure(bytes));
