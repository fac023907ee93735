//! Hosts and clusters as files.

use std::{fs::File, io::Read as _, path::Path};

use serde::{Deserialize, Serialize};

use crate::{Cluster, Invalid, Topology};

/// The version of the files that are written, and the only one that is read.
pub const VERSION: u32 = 1;
/// The most bytes of a file.
pub const FILE_BYTES_MAX: u64 = 64 << 20;

/// What a file describes: `{"format": "ringway-topology", "version": 1, ...}` in JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Document {
    /// One host, as `"host": {...}`.
    Host(Box<Topology>),
    /// Many, as `"cluster": {...}`.
    Cluster(Box<Cluster>),
}

/// Why a file is not taken.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read or written.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// It is longer than any host or cluster.
    #[error("it has more than {} MiB, the most of a topology file", FILE_BYTES_MAX >> 20)]
    TooLong,
    /// It is not JSON, or a field is wrong; the text names the place by line and column.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// It is something else's file.
    #[error("format: {found:?} instead of \"{FORMAT}\"")]
    Format {
        /// What it calls itself.
        found: String,
    },
    /// It is of another version.
    #[error("version: {found}, but this program reads version {VERSION} only")]
    Version {
        /// Its version.
        found: u32,
    },
    /// There is nothing in it, or too much.
    #[error("it has both \"host\" and \"cluster\" or neither, but must have one of them")]
    NotOne,
    /// What it says does not fit together.
    #[error(transparent)]
    Invalid(#[from] Invalid),
}

const FORMAT: &str = "ringway-topology";

/// What is looked at first, so that a file of a later version is told from a broken one.
#[derive(Deserialize)]
struct Head {
    format: String,
    version: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    format: String,
    version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    host: Option<Box<Topology>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cluster: Option<Box<Cluster>>,
}

impl Document {
    /// Takes a file's text, and checks what it says.
    ///
    /// # Errors
    /// The first thing that is wrong, where it is, and what was expected.
    pub fn parse(text: &str) -> Result<Self, FileError> {
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(FileError::TooLong);
        }
        let head: Head = serde_json::from_str(text)?;
        if head.format != FORMAT {
            return Err(FileError::Format { found: head.format.chars().take(40).collect() });
        }
        if head.version != VERSION {
            return Err(FileError::Version { found: head.version });
        }
        let body: Body = serde_json::from_str(text)?;
        let document = match (body.host, body.cluster) {
            (Some(host), None) => Self::Host(host),
            (None, Some(cluster)) => Self::Cluster(cluster),
            _ => return Err(FileError::NotOne),
        };
        match &document {
            Self::Host(host) => host.check().map_err(|error| error.within("host"))?,
            Self::Cluster(cluster) => cluster.check().map_err(|error| error.within("cluster"))?,
        }
        Ok(document)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// As [`Self::parse`], or when it cannot be read.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        let mut text = String::new();
        // One byte more, so that what is too long is told from what is just not.
        File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
        Self::parse(&text)
    }

    /// The text of a file that says this.
    ///
    /// # Panics
    /// Never: all that is in it has a place in JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        let (host, cluster) = match self.clone() {
            Self::Host(host) => (Some(host), None),
            Self::Cluster(cluster) => (None, Some(cluster)),
        };
        let body = Body { format: FORMAT.to_owned(), version: VERSION, host, cluster };
        #[expect(
            clippy::expect_used,
            reason = "there are no maps with keys that are not text, and writing to memory works"
        )]
        let text = serde_json::to_string_pretty(&body).expect("JSON");
        text + "\n"
    }
}

impl From<Topology> for Document {
    fn from(host: Topology) -> Self {
        Self::Host(Box::new(host))
    }
}

impl From<Cluster> for Document {
    fn from(cluster: Cluster) -> Self {
        Self::Cluster(Box::new(cluster))
    }
}
