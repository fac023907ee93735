//! cargo-fuzz target, see `ringway_fuzz::wire::frame`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ringway_fuzz::wire::frame(bytes));
