//! cargo-fuzz target, see `ringway_fuzz::stand_in::stand_in`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ringway_fuzz::stand_in::stand_in(bytes));
