//! A cluster on this machine: several daemons that act as the nodes, and the ranks they serve.

pub(crate) mod cluster;
mod folder;
pub(crate) mod launch;
pub(crate) mod namespace;
pub mod process;

/// A text that a daemon takes for its setting `device`.
///
/// # Errors
/// What it may be.
pub(crate) fn parse_device(text: &str) -> Result<String, String> {
    ringway_service::check_device(text).map(|()| text.to_owned()).map_err(|error| error.to_string())
}
