//! What the programs say to people.

use std::io::{self, Write as _};

/// A line on standard error, from this program itself.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "ringway: {text}");
}

/// A line on standard output.
pub(crate) fn line(text: &str) {
    let _ = writeln!(io::stdout().lock(), "{text}");
}
