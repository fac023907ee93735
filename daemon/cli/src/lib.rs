//! The programs `ringway` and `ringwayd`.
#![forbid(unsafe_code)]

pub mod bench;
pub mod daemon;
pub mod demo;
pub mod doctor;
pub mod explain;
pub mod local;
mod output;
pub mod perf;
pub mod perftest;
pub mod plan;
pub mod run;
pub mod simulate;
pub mod status;
pub mod topo;
