//! `ringway bench --server`: waits for clients, and serves one after the other.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    process::ExitCode,
    thread::{self, JoinHandle},
    time::Duration,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Greeting, connection::Connection, session};
use crate::{bench::interrupt::Interrupt, output};

/// How often an interrupt is looked for.
const LOOK: Duration = Duration::from_millis(200);

/// Serves until it is interrupted.
///
/// # Errors
/// When it cannot listen there, as a sentence.
pub(in crate::bench) fn serve(listen: SocketAddr, interrupt: &Interrupt) -> Result<ExitCode, String> {
    let failed = |e: std::io::Error| format!("cannot listen on {listen}: {e}");
    let listener = TcpListener::bind(listen).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let listen = listener.local_addr().map_err(failed)?;
    let reach =
        if listen.ip().is_loopback() { " (this machine only: `--listen ADDRESS` serves others)" } else { "" };
    output::line(&format!(
        "# listening on {listen}{reach}; anyone who reaches it can have this machine measured"
    ));
    let mut serving: Option<(SocketAddr, JoinHandle<()>)> = None;
    let timeout = Timespec::try_from(LOOK).map_err(|e| e.to_string())?;
    while !interrupt.came() {
        let _ = poll(&mut [PollFd::new(&listener, PollFlags::IN)], Some(&timeout));
        let Ok((stream, peer)) = listener.accept() else { continue };
        match &serving {
            Some((busy_with, thread)) if !thread.is_finished() => refuse(stream, *busy_with),
            _ => {
                let interrupt = interrupt.clone();
                serving = Some((peer, thread::spawn(move || session::serve(stream, peer, &interrupt))));
            }
        }
    }
    if let Some((_, thread)) = serving {
        let _ = thread.join();
    }
    Ok(ExitCode::SUCCESS)
}

/// Says that another client is served. One who does not read that has gone.
fn refuse(stream: TcpStream, busy_with: SocketAddr) {
    let why = format!("it serves another client now, {}; try again later", busy_with.ip());
    let _ = Connection::new(stream).and_then(|mut connection| connection.send(&Greeting::own(Some(why))));
}
