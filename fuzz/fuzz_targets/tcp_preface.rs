//! cargo-fuzz target, see `ringway_fuzz::tcp::data_preface`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ringway_fuzz::tcp::data_preface(bytes));
