//! Criterion benchmarks (`benches/`) and tests about the repository as a whole (`tests/`).
#![forbid(unsafe_code)]
