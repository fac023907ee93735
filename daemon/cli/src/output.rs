//! What the programs say to people.

use std::io::{self, Write as _};

/// A line on standard error, from this program itself. Parts of it may be another machine's words: what would steer a terminal
/// is left out.
pub(crate) fn note(text: &str) {
    let text: String = text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect();
    let _ = writeln!(io::stderr().lock(), "ringway: {text}");
}

/// A line on standard output.
pub(crate) fn line(text: &str) {
    let _ = writeln!(io::stdout().lock(), "{text}");
}
