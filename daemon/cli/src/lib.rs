//! The programs `ringway` and `ringwayd`.
#![forbid(unsafe_code)]

pub mod daemon;
pub mod local;
mod output;
pub mod run;
