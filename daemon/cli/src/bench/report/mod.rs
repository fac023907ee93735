//! What is made of a report for people: `bench.html`, `bench.md`, `bench.svg`, and `bench.json` for `compare`.
//!
//! [`sections`] says everything once, as a [`document`]; [`html`] and [`markdown`] render it. Nothing is said that the
//! report does not show, and what it lacks is left out.

pub(crate) mod axis;
mod bars;
mod charts;
mod colours;
mod document;
mod fields;
mod headline;
mod html;
mod markdown;
pub(crate) mod plot;
mod polling;
mod ratios;
mod sections;
pub(crate) mod unit;
mod verdict;
mod view;
mod wake_up;

#[cfg(test)]
pub(super) mod sample;
#[cfg(test)]
mod tests;

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use super::result::Report;
use view::View;

/// Makes the folder where there is none, and writes the report's files into it, each of them whole or not at all.
///
/// # Errors
/// When one cannot be written, as a sentence that names it.
pub(crate) fn write(report: &Report, folder: &Path) -> Result<Vec<PathBuf>, String> {
    make_folder(folder)?;
    let json =
        serde_json::to_string_pretty(report).map_err(|error| format!("cannot write the report: {error}"))?;
    let view = View::of(report);
    let document = sections::document(&view);
    let files = [
        ("bench.json", json + "\n"),
        ("bench.html", html::render(&document)),
        ("bench.md", markdown::render(&document)),
        ("bench.svg", charts::picture(&view, &document.title)),
    ];
    let written = files.into_iter().map(|(name, text)| {
        let path = folder.join(name);
        replace(&path, &text).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        Ok(path)
    });
    written.collect()
}

/// Makes the folder for a report where there is none.
///
/// # Errors
/// When it cannot be made or written to, as a sentence.
pub(crate) fn make_folder(folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder)
        .map_err(|error| format!("cannot make the folder {}: {error}", folder.display()))?;
    rustix::fs::access(folder, rustix::fs::Access::WRITE_OK)
        .map_err(|error| format!("cannot write to the folder {}: {error}", folder.display()))
}

/// Puts a file where there may be one already: whoever reads meanwhile sees the one or the other.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}", std::process::id()));
    let write = || {
        let mut file = fs::File::create(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().inspect_err(|_| {
        let _ = fs::remove_file(&temporary);
    })
}
