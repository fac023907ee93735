//! cargo-fuzz target, see `ringway_fuzz::tcp::header`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ringway_fuzz::tcp::header(bytes));
