//! Files below a folder, as the kernel shows them below `/`.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The folder: `/`, or one into which files of another host were copied.
#[derive(Debug, Clone)]
pub struct Tree(PathBuf);

impl Tree {
    /// What is below this folder.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self(root.into())
    }

    /// Where the folder is.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.0
    }

    /// Where a file is that would be at this path below `/`.
    #[must_use]
    pub fn path(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    /// A file's text without space around it; `None` if it cannot be read.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<String> {
        let bytes = fs::read(self.path(path)).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// A file's text as a number; `None` also if it is something else.
    #[must_use]
    pub fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// A file's text, parted at spaces; nothing if it cannot be read.
    #[must_use]
    pub fn words(&self, path: &str) -> Vec<String> {
        self.text(path).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
    }

    /// Of a list of choices the one in brackets.
    #[must_use]
    pub fn chosen(&self, path: &str) -> Option<String> {
        let word = self.words(path).into_iter().find(|word| word.starts_with('['))?;
        Some(word.trim_matches(['[', ']']).to_owned())
    }

    /// What is in a folder, sorted; nothing if it cannot be read.
    #[must_use]
    pub fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// The last part of what a link points to.
    #[must_use]
    pub fn link(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }

    /// The parts of the path that a file or folder has when all links are followed; `None` if it is not there, or not below the
    /// folder.
    #[must_use]
    pub fn real(&self, path: &str) -> Option<Vec<String>> {
        let (root, path) = (fs::canonicalize(&self.0).ok()?, fs::canonicalize(self.path(path)).ok()?);
        let parts = path.strip_prefix(root).ok()?;
        parts.iter().map(|part| part.to_str().map(str::to_owned)).collect()
    }

    /// Whether there is such a file or folder.
    #[must_use]
    pub fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }
}
