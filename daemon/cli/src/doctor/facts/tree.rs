//! Files below a folder, as the kernel shows them below `/`.

use std::{fs, path::PathBuf};

/// The folder.
#[derive(Debug, Clone)]
pub(super) struct Tree(pub(super) PathBuf);

impl Tree {
    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    /// A file's text without space around it; `None` if it cannot be read.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        let bytes = fs::read(self.path(path)).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    pub(super) fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    pub(super) fn words(&self, path: &str) -> Vec<String> {
        self.text(path).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
    }

    /// Of a list of choices the one in brackets.
    pub(super) fn chosen(&self, path: &str) -> Option<String> {
        let word = self.words(path).into_iter().find(|word| word.starts_with('['))?;
        Some(word.trim_matches(['[', ']']).to_owned())
    }

    /// What is in a folder, sorted; nothing if it cannot be read.
    pub(super) fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// The last part of what a link points to.
    pub(super) fn link(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }
}
