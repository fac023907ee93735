//! cargo-fuzz target, see `ringway_fuzz::topology::file`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ringway_fuzz::topology::file(bytes));
