//! What names a job, made from what its launcher tells every rank.

use blake2::{Blake2s, Digest, digest::consts::U16};

/// A 16-byte name under construction.
///
/// It is BLAKE2s with 16 bytes of output over a sequence of fields, each preceded by its length as eight little-endian
/// bytes. The first field is always `ringway communicator 1`, the second says what kind of name it is. This never
/// changes: ranks of different builds must arrive at the same name.
#[derive(Debug)]
pub(crate) struct Secret(Blake2s<U16>);

impl Secret {
    /// A name of this kind.
    pub(crate) fn new(kind: &str) -> Self {
        Self(Blake2s::new()).field(b"ringway communicator 1").field(kind.as_bytes())
    }

    /// With one more field.
    pub(crate) fn field(mut self, bytes: &[u8]) -> Self {
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
        self
    }

    /// With one more field, of text.
    pub(crate) fn text(self, text: &str) -> Self {
        self.field(text.as_bytes())
    }

    /// With one more field, a number.
    pub(crate) fn number(self, number: u64) -> Self {
        self.field(&number.to_le_bytes())
    }

    /// The finished name.
    pub(crate) fn finish(self) -> [u8; 16] {
        self.0.finalize().into()
    }
}
