//! cargo-fuzz target, see `ringway_fuzz::rc::queue_pair`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ringway_fuzz::rc::queue_pair(bytes));
