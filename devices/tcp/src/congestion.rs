//! Which congestion control connections have.
//!
//! The system's may be one that paces: it spreads what a connection sends over time, by timers, to keep queues of distant
//! networks short. Between the nodes of a cluster that has a collective wait for timers, more so as all ranks of two nodes
//! share a connection. All others send as their window allows.
//!
//! A connection that began to pace does so for good, whatever it is given later (`sk_pacing_status` in Linux's `bbr_init`). One
//! that is accepted begins with what its listener has, so listeners are given it as well.

use std::os::fd::AsFd;

use rustix::net::{AddressFamily, SocketType, sockopt};

use crate::error::TcpError;

/// How those begin that pace: BBR and its successors (Cardwell et al., "BBR: Congestion-Based Congestion Control", 2016).
const PACING: &str = "bbr";
/// What is taken instead, the best first. The last one every kernel has, and every process may choose.
const UNPACED: [&str; 2] = ["cubic", "reno"];

/// The congestion control of a device's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Congestion {
    /// The system's, but for one that paces: then another.
    Unpaced,
    /// The system's.
    System,
    /// The one that the kernel has under this name.
    Named(&'static str),
}

impl Congestion {
    /// Gives it to a connection that is still to be made, or to a listener for those that it accepts. One that was made with a
    /// pacing one goes on pacing.
    ///
    /// # Errors
    /// When the system refuses it.
    pub fn apply(self, socket: impl AsFd) -> rustix::io::Result<()> {
        let socket = socket.as_fd();
        match self {
            Self::System => Ok(()),
            Self::Named(name) => sockopt::set_tcp_congestion(socket, name),
            Self::Unpaced if sockopt::tcp_congestion(socket)?.starts_with(PACING) => {
                // Where none is allowed the connection is slower, but works.
                let _ = UNPACED.iter().any(|name| sockopt::set_tcp_congestion(socket, name).is_ok());
                Ok(())
            }
            Self::Unpaced => Ok(()),
        }
    }

    /// The kernel's name of what connections have with it.
    ///
    /// # Errors
    /// When the system refuses it.
    pub fn name(self) -> rustix::io::Result<String> {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
        self.apply(&socket)?;
        sockopt::tcp_congestion(&socket)
    }

    /// Whether the system allows it, before there is any connection.
    pub(crate) fn check(self) -> Result<(), TcpError> {
        let Self::Named(name) = self else { return Ok(()) };
        self.name().map(drop).map_err(|errno| TcpError::Congestion { name, errno: errno.raw_os_error() })
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;

    use super::*;

    fn socket() -> OwnedFd {
        rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap()
    }

    #[test]
    fn no_connection_paces_unless_that_is_asked_for() {
        let socket = socket();
        let system = sockopt::tcp_congestion(&socket).unwrap();
        Congestion::System.apply(&socket).unwrap();
        assert_eq!(sockopt::tcp_congestion(&socket).unwrap(), system);
        Congestion::Unpaced.apply(&socket).unwrap();
        let chosen = sockopt::tcp_congestion(&socket).unwrap();
        assert!(!chosen.starts_with(PACING));
        assert!(
            chosen == system || system.starts_with(PACING),
            "{system} does not pace, and is {chosen} now"
        );
    }

    #[test]
    fn what_a_listener_accepts_never_paced() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Congestion::Unpaced.apply(&listener).unwrap();
        let _active = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let accepted = listener.accept().unwrap().0;
        assert!(!sockopt::tcp_congestion(accepted).unwrap().starts_with(PACING));
    }

    #[test]
    fn what_is_named_is_taken_or_refused() {
        let named = Congestion::Named("reno");
        named.check().unwrap();
        let socket = socket();
        named.apply(&socket).unwrap();
        assert_eq!(sockopt::tcp_congestion(&socket).unwrap(), "reno");
        let unknown = Congestion::Named("no such").check();
        assert!(matches!(unknown, Err(TcpError::Congestion { name: "no such", .. })), "{unknown:?}");
    }
}
