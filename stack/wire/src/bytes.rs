//! Taking fixed numbers of bytes off the front of a slice.

/// The first `N` bytes and the rest, or how many there are if they are too few.
pub(crate) fn take<const N: usize>(bytes: &[u8]) -> Result<(&[u8; N], &[u8]), usize> {
    bytes.split_first_chunk().ok_or(bytes.len())
}

/// The lower 24 bits.
pub(crate) const fn low_24(value: u32) -> [u8; 3] {
    let [_, a, b, c] = value.to_be_bytes();
    [a, b, c]
}
