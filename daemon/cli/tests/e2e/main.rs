//! The programs and the library as users meet them: real daemons, real processes, real sockets. Every wait is bounded,
//! and everything started is ended with its test.
#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test panics when something is wrong, and says what it measured"
)]

mod harness;
mod rank;

mod algorithms;
mod autostart;
mod bench;
mod calls;
mod counts;
mod crowded;
mod daemon;
mod devices;
mod doctor;
mod formation;
mod helping;
mod lateness;
mod limits;
#[cfg(feature = "verbs")]
mod link;
mod loss;
mod machines;
mod order;
mod plans;
mod programs;
mod rails;
mod requests;
mod roce;
mod running;
mod shm;
#[cfg(feature = "verbs")]
mod verbs;
