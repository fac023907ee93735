//! cargo-fuzz target, see `ringway_fuzz::abi::control`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ringway_fuzz::abi::control(bytes));
