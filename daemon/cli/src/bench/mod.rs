//! `ringway bench`: what the bypass is worth.

#![expect(dead_code, reason = "what measures calls this")]

mod compare;
mod report;
pub(crate) mod result;
