//! cargo-fuzz target, see `ringway_fuzz::cell::helper`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ringway_fuzz::cell::helper(bytes));
