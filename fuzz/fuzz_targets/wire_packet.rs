//! cargo-fuzz target, see `ringway_fuzz::wire::packet`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ringway_fuzz::wire::packet(bytes));
