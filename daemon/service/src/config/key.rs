//! The secret that daemons of one cluster share.

use std::{
    fmt,
    io::Read,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
};

use super::ConfigError;

/// 32 secret bytes that prove that two daemons belong to the same cluster. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterKey([u8; 32]);

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKey(secret)")
    }
}

const HOW: &str = "make one with `(umask 077; od -An -tx1 -N32 /dev/urandom | tr -d ' \\n' > FILE)` and copy it to \
                   every node";

impl ClusterKey {
    /// A key of these bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The secret bytes.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Reads a key from a file that nobody but its owner can read: 64 hex digits.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] when the file cannot be read, others may read it, or it holds no key.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let invalid = |allowed: String| ConfigError::Invalid {
            setting: "cluster_key_file",
            value: path.display().to_string(),
            allowed,
        };
        let cannot = |e: std::io::Error| invalid(format!("it cannot be read ({e}); {HOW}"));
        // Not blocking on open keeps a FIFO in the file's place from hanging the daemon.
        let nonblock = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
        let mut options = std::fs::OpenOptions::new();
        let file = options.read(true).custom_flags(nonblock).open(path).map_err(cannot)?;
        let metadata = file.metadata().map_err(cannot)?;
        if !metadata.is_file() {
            return Err(invalid(format!("it is not a regular file; {HOW}")));
        }
        if metadata.mode() & 0o077 != 0 {
            let mode = metadata.mode() & 0o777;
            return Err(invalid(format!(
                "its mode {mode:04o} lets other users at the key; run `chmod 600` on it, and make a new key if \
                 others may have read this one"
            )));
        }
        let owner = metadata.uid();
        let own = rustix::process::geteuid().as_raw();
        if owner != own && owner != 0 {
            return Err(invalid(format!(
                "it belongs to user {owner}; it must belong to user {own} or to root"
            )));
        }
        let mut text = String::new();
        file.take(4096).read_to_string(&mut text).map_err(cannot)?;
        Self::from_hex(text.trim()).ok_or_else(|| invalid(format!("it must hold 64 hex digits; {HOW}")))
    }

    fn from_hex(text: &str) -> Option<Self> {
        if text.len() != 64 {
            return None;
        }
        let mut bytes = [0; 32];
        let mut digits = text.chars().map(|c| c.to_digit(16));
        for byte in &mut bytes {
            let (high, low) = (digits.next()??, digits.next()??);
            *byte = u8::try_from(high * 16 + low).ok()?;
        }
        Some(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_64_hex_digits() {
        assert_eq!(ClusterKey::from_hex(&"0f".repeat(32)), Some(ClusterKey([0x0f; 32])));
        for bad in [String::new(), "0f".repeat(31), "0g".repeat(32), "é".repeat(32)] {
            assert_eq!(ClusterKey::from_hex(&bad), None);
        }
        assert!(!format!("{:?}", ClusterKey([0x0f; 32])).contains("15"));
    }
}
