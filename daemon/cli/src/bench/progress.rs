//! What is being measured, on one line of a terminal that the next replaces.

use std::io::{self, IsTerminal as _, Write as _};

use super::result::{Polling, Test};

/// The line.
#[derive(Debug)]
pub(crate) struct Progress {
    is_terminal: bool,
    round: String,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self { is_terminal: io::stderr().is_terminal(), round: String::new() }
    }

    pub(super) fn round(&mut self, round: u32, rounds: u32) {
        self.round = format!("round {round} of {rounds}: ");
    }

    pub(super) fn point(&self, test: Test, bytes: u64, polling: Polling, path: &str) {
        self.line(&format!("{}{} over {path}, {bytes} B, {}", self.round, test.name(), polling.name()));
    }

    pub(crate) fn line(&self, text: &str) {
        if self.is_terminal {
            let _ = write!(io::stderr().lock(), "\r\x1b[2K{text}");
        }
    }

    /// A line that stays.
    pub(super) fn note(&self, text: &str) {
        self.line("");
        crate::output::note(text);
    }
}
