//! One end of what is measured: a process of its own, told what to do in lines of JSON, one answer to each.

mod client;
mod device;
mod job;
mod make;
mod sockets;
mod tool;

use std::{
    io::{self, BufRead as _, Write as _},
    net::IpAddr,
    path::PathBuf,
    process::ExitCode,
    sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel},
    thread,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use self::{client::ClientEnd, device::DeviceEnd, job::Outcome, sockets::SocketEnd, tool::ToolEnd};
use super::{
    costs::Copied,
    result::{Polling, Test},
};
use crate::perf::place;

pub(super) use job::{Job, Outcome as EndOutcome};
pub(super) use tool::{TOOL_SECONDS, TOOLS, Tool};

/// The hidden first argument under which this program is an end.
pub const END: &str = "internal-bench-end";

/// The most bytes of one message.
pub(super) const MESSAGE_BYTES_MAX: u64 = 4 << 20;

/// How often an end that rests answers questions whether it is there.
const TENDING: Duration = Duration::from_millis(50);

/// What an end is told.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Command {
    /// Become an end of this kind.
    Open(Kind),
    /// Connect to the other end. After that, as after measuring, the end goes on working for its peer.
    Connect { peer: Address, active: bool },
    /// Measure. The peer may still wait for something then.
    Run(Job),
    /// Nobody waits any more. Not answered.
    Rest,
    /// Time the parts of a message's way.
    Parts { leads: bool },
}

/// What an end is made of.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Kind {
    /// A device in this very process; `roce_port` is for those that have packets, `connections` for those over TCP.
    Device { name: String, address: IpAddr, roce_port: u16, connections: u32 },
    /// Two TCP sockets with nothing of ours behind them.
    Sockets { address: IpAddr },
    /// A client of a daemon, a rank of a communicator.
    Client { socket: PathBuf, id: String, rank: u32, size: u32 },
    /// Another tool's server, or its client.
    Tool { name: String, address: IpAddr, serves: bool },
}

/// What the other end must know to connect.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Address {
    pub(super) endpoint: Vec<u8>,
    /// Names the memory that large messages are written to.
    pub(super) key: u32,
}

/// What an end answers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Opened(Address),
    Connected,
    Done(Outcome),
    Parts(Vec<Part>),
    Failed(String),
}

/// The time of a part of a message's way.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) name: String,
    pub(super) us: f64,
    pub(super) how: String,
}

/// Anything that messages go between.
trait Messenger {
    /// Connects to the other end.
    fn connect(&mut self, peer: &Address, active: bool) -> Result<(), String>;

    /// How waiting is done from now on.
    fn set_polling(&mut self, polling: Polling) -> Result<(), String>;

    /// Whether every message lies where the last one did, from now on, or beside it.
    fn set_place(&mut self, _in_one_place: bool) {}

    /// Posts a message; waits for room at most.
    fn send(&mut self, bytes: u64) -> Result<(), String>;

    /// Has everything that was posted go out.
    fn flush(&mut self) -> Result<(), String>;

    /// Waits for the next message, of so many bytes.
    fn receive(&mut self, bytes: u64) -> Result<(), String>;

    /// Makes a call among all ends.
    fn call(&mut self, test: Test, _bytes: u64) -> Result<(), String> {
        Err(format!("{} is measured between clients of daemons only", test.name()))
    }

    /// Does what the other end may wait for, and nothing else.
    fn tend(&mut self) {}

    /// Whether it is to tend without a rest after measuring, for a peer that may still be at it. That takes a whole processor.
    fn is_waited_for(&self) -> bool {
        true
    }

    /// Since it was made: system calls of its device or its own, which [`ringway_mem::calls`] has not; and payload bytes that our
    /// own code has copied, where that is counted.
    fn counts(&self) -> (u64, Option<Copied>);

    /// How often the kernel copies each byte at this end, if that is known better than from the path's definition.
    fn kernel_copies(&self) -> Option<f64> {
        None
    }

    /// Does a job in a way of its own.
    fn measure(&mut self, _job: &Job) -> Option<Result<Outcome, String>> {
        None
    }

    /// Times the parts of a message's way.
    fn parts(&mut self, _leads: bool) -> Result<Vec<Part>, String> {
        Ok(Vec::new())
    }
}

/// What an end does: answers commands until there are no more. `place` says which processor it keeps to.
///
/// # Errors
/// When it cannot be told anything, or not answer.
pub fn run_end(place: &str) -> Result<ExitCode, String> {
    if let Ok(place) = place.parse() {
        place::pin(place, &place::processors());
    }
    let (tell, commands) = channel();
    thread::spawn(move || {
        io::stdin().lock().lines().map_while(Result::ok).try_for_each(|line| tell.send(line))
    });
    let mut messenger: Option<Box<dyn Messenger>> = None;
    let mut rests = true;
    loop {
        let line = match next(&commands, rests) {
            Ok(line) => line,
            Err(RecvTimeoutError::Disconnected) => return Ok(ExitCode::SUCCESS),
            Err(RecvTimeoutError::Timeout) => {
                messenger.iter_mut().for_each(|messenger| messenger.tend());
                continue;
            }
        };
        let command = serde_json::from_str(&line).map_err(|e| format!("not a command: {e}"));
        rests = !matches!(command, Ok(Command::Connect { .. } | Command::Run(_)));
        if matches!(command, Ok(Command::Rest)) {
            continue;
        }
        let answer = command.and_then(|command| obey(&mut messenger, command)).unwrap_or_else(Answer::Failed);
        rests |= messenger.as_ref().is_some_and(|messenger| !messenger.is_waited_for());
        let text = serde_json::to_string(&answer).map_err(|e| e.to_string())?;
        let mut out = io::stdout().lock();
        writeln!(out, "{text}").and_then(|()| out.flush()).map_err(|e| e.to_string())?;
    }
}

/// The next command, or that it is time to look after the connection: now and then for one that rests.
fn next(commands: &Receiver<String>, rests: bool) -> Result<String, RecvTimeoutError> {
    if rests {
        return commands.recv_timeout(TENDING);
    }
    commands.try_recv().map_err(|error| match error {
        TryRecvError::Empty => RecvTimeoutError::Timeout,
        TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
    })
}

fn obey(messenger: &mut Option<Box<dyn Messenger>>, command: Command) -> Result<Answer, String> {
    if let Command::Open(kind) = command {
        let (made, address) = open(kind)?;
        *messenger = Some(made);
        return Ok(Answer::Opened(address));
    }
    let messenger = messenger.as_mut().ok_or("nothing was opened")?;
    match command {
        Command::Connect { peer, active } => {
            messenger.connect(&peer, active)?;
            Ok(Answer::Connected)
        }
        Command::Run(job) => job.run(messenger.as_mut()).map(Answer::Done),
        Command::Parts { leads } => messenger.parts(leads).map(Answer::Parts),
        Command::Open(_) | Command::Rest => Err("opened twice".to_owned()),
    }
}

fn open(kind: Kind) -> Result<(Box<dyn Messenger>, Address), String> {
    match kind {
        Kind::Device { name, address, roce_port, connections } => {
            let end = DeviceEnd::open(make::device(&name, address, roce_port, connections)?)?;
            let address = end.address()?;
            Ok((Box::new(end), address))
        }
        Kind::Sockets { address } => {
            let end = SocketEnd::open(address)?;
            let address = end.address();
            Ok((Box::new(end), address))
        }
        Kind::Tool { name, address, serves } => {
            let end = ToolEnd::open(&name, address, serves)?;
            let address = end.address();
            Ok((Box::new(end), address))
        }
        Kind::Client { socket, id, rank, size } => {
            Ok((Box::new(ClientEnd::open(&socket, &id, rank, size)?), Address::default()))
        }
    }
}
