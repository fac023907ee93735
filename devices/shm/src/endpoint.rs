//! What a peer must know: the name of this device's socket and a queue pair's token.

use ringway_verbs::Endpoint;
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// Bytes of a socket's name and of a token.
pub(crate) const NAME_BYTES: usize = 16;
pub(crate) const TOKEN_BYTES: usize = 32;

const MAGIC: [u8; 4] = *b"RSHM";
/// The version of endpoint, messages and rings.
pub(crate) const VERSION: u8 = 1;
const LENGTH: usize = MAGIC.len() + 1 + NAME_BYTES + TOKEN_BYTES;

/// A socket's name in the system's abstract name space.
pub(crate) type Name = [u8; NAME_BYTES];
/// A one-time secret that names a queue pair.
pub(crate) type Token = [u8; TOKEN_BYTES];

/// Random bytes of the kernel's.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], Errno> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        filled += getrandom(rest, GetRandomFlags::empty())?;
    }
    Ok(bytes)
}

pub(crate) fn encode(name: &Name, token: &Token) -> Option<Endpoint> {
    let mut bytes = [0; LENGTH];
    let (magic, rest) = bytes.split_at_mut(MAGIC.len());
    magic.copy_from_slice(&MAGIC);
    let (version, rest) = rest.split_at_mut(1);
    version.copy_from_slice(&[VERSION]);
    let (to_name, to_token) = rest.split_at_mut(NAME_BYTES);
    to_name.copy_from_slice(name);
    to_token.copy_from_slice(token);
    Endpoint::new(&bytes)
}

/// `None` when it is not one of this device.
pub(crate) fn decode(endpoint: &Endpoint) -> Option<(Name, Token)> {
    let rest = endpoint.as_bytes().strip_prefix(&MAGIC)?.strip_prefix(&[VERSION])?;
    let (name, token) = rest.split_first_chunk()?;
    Some((*name, token.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_come_back_and_others_do_not() {
        let (name, token) = (random().expect("random"), random().expect("random"));
        let endpoint = encode(&name, &token).expect("fits");
        assert_eq!(decode(&endpoint), Some((name, token)));
        for cut in 0..LENGTH {
            assert_eq!(decode(&Endpoint::new(&endpoint.as_bytes()[..cut]).expect("short")), None);
        }
        assert_eq!(decode(&Endpoint::EMPTY), None);
    }
}
