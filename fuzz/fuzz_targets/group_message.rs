//! cargo-fuzz target, see `ringway_fuzz::group::message`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ringway_fuzz::group::message(bytes));
