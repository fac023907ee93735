//! cargo-fuzz target, see `ringway_fuzz::configuration::file`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ringway_fuzz::configuration::file(bytes));
