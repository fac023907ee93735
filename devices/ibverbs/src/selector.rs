//! Which device, port and GID to use.

use core::{fmt, str::FromStr};

use thiserror::Error;

/// A device by its name, and of it a port and the GID that names this node: `NAME[:PORT[:GID]]`. What is not said is chosen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selector {
    /// As in `/sys/class/infiniband`: `mlx5_0`, `rxe0`, ...
    pub device: Option<String>,
    /// From 1.
    pub port: Option<u8>,
    /// Its place in the port's table, from 0.
    pub gid: Option<u8>,
}

/// A text that is no [`Selector`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "it must be NAME[:PORT[:GID]], as `mlx5_0`, `mlx5_0:1` or `mlx5_0:1:3`; `ls /sys/class/infiniband` lists the names"
)]
pub struct SelectorError;

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        let mut parts = text.split(':');
        let name = parts.next().filter(|name| is_name(name)).ok_or(SelectorError)?;
        let mut number = || parts.next().map(str::parse).transpose().map_err(|_| SelectorError);
        let (port, gid) = (number()?, number()?);
        if port == Some(0) || parts.next().is_some() {
            return Err(SelectorError);
        }
        Ok(Self { device: Some(name.to_owned()), port, gid })
    }
}

/// Whether it can be the name of a device, which is that of a folder as well.
fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() < 64
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
        && !name.starts_with('.')
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.device.as_deref().unwrap_or("any device"))?;
        for number in [self.port, self.gid].into_iter().flatten() {
            write!(f, ":{number}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_a_port_and_a_gid_are_taken_and_given_back() {
        for (text, port, gid) in
            [("mlx5_0", None, None), ("rxe0:1", Some(1), None), ("bnxt_re-bond.0:2:13", Some(2), Some(13))]
        {
            let selector: Selector = text.parse().expect("valid");
            assert_eq!((selector.port, selector.gid), (port, gid));
            assert_eq!(selector.to_string(), text);
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            ":1",
            "../x",
            "a/b",
            "rxe0:",
            "rxe0:0",
            "rxe0:256",
            "rxe0:1:",
            "rxe0:1:x",
            "rxe0:1:2:3",
            "a b",
        ] {
            assert_eq!(text.parse::<Selector>(), Err(SelectorError), "{text}");
        }
    }
}
