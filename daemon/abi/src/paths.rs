//! Where a daemon's socket is, unless somebody says otherwise: pure rules, the same for daemon and client.

use alloc::{format, string::String, vec::Vec};

/// The socket of the system's daemon.
pub const SYSTEM_SOCKET: &str = "/run/ringway/ringwayd.sock";

/// The file name of a socket.
pub const SOCKET_NAME: &str = "ringwayd.sock";

/// The folder of a user's own daemon: under the login session's runtime folder where there is one
/// (`$XDG_RUNTIME_DIR`, an absolute path), else under `/tmp`, named by the user. Whoever makes it gives it mode 0700;
/// whoever uses it checks that the user owns it.
#[must_use]
pub fn user_socket_folder(uid: u32, xdg_runtime_dir: Option<&str>) -> String {
    match xdg_runtime_dir {
        Some(folder) if folder.starts_with('/') => format!("{}/ringway", folder.trim_end_matches('/')),
        _ => format!("/tmp/ringway-{uid}"),
    }
}

/// The socket of a user's own daemon.
#[must_use]
pub fn user_socket(uid: u32, xdg_runtime_dir: Option<&str>) -> String {
    format!("{}/{SOCKET_NAME}", user_socket_folder(uid, xdg_runtime_dir))
}

/// Where a daemon started by this user listens.
#[must_use]
pub fn daemon_socket(uid: u32, xdg_runtime_dir: Option<&str>) -> String {
    if uid == 0 { String::from(SYSTEM_SOCKET) } else { user_socket(uid, xdg_runtime_dir) }
}

/// Where a client looks for a daemon, in this order: the system's, then the user's own.
#[must_use]
pub fn default_socket_paths(uid: u32, xdg_runtime_dir: Option<&str>) -> Vec<String> {
    [String::from(SYSTEM_SOCKET), user_socket(uid, xdg_runtime_dir)].into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_found_where_daemons_put_them() {
        assert_eq!(daemon_socket(0, Some("/run/user/0")), SYSTEM_SOCKET);
        assert_eq!(daemon_socket(7, Some("/run/user/7/")), "/run/user/7/ringway/ringwayd.sock");
        assert_eq!(daemon_socket(7, Some("relative")), "/tmp/ringway-7/ringwayd.sock");
        for uid in [0, 7] {
            assert!(default_socket_paths(uid, None).contains(&daemon_socket(uid, None)));
        }
    }
}
