//! What the daemon does in cells.
