//! What a server does for one client.

use std::{
    collections::BTreeMap,
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use super::{ENDS_MAX, FarKind, Greeting, Order, Reply, Request, Welcome, checked, connection::Connection};
use crate::{
    bench::{
        daemons::Daemons,
        end::{Answer, Command, Kind, Tool},
        end_process::EndProcess,
        interrupt::Interrupt,
        machine, paths,
        progress::Progress,
    },
    local::cluster::Cluster,
    output,
};

/// How long a client may take to greet.
const GREETING: Duration = Duration::from_secs(5);
/// How long a client that is there may be silent, which measures things of its own meanwhile.
const SILENCE: Duration = Duration::from_secs(600);

/// An end, with the daemon that it is a client of.
#[derive(Debug)]
struct Opened {
    path: &'static str,
    end: EndProcess,
    daemons: Daemons,
    _cluster: Option<Cluster>,
}

/// One client, and what it has open. All ends with this.
struct Session {
    connection: Connection,
    ends: BTreeMap<u32, Opened>,
    interrupt: Interrupt,
    progress: Progress,
}

/// Serves a client until it goes.
pub(super) fn serve(stream: TcpStream, peer: SocketAddr, interrupt: &Interrupt) {
    let served = Connection::new(stream).and_then(|connection| {
        let (interrupt, progress) = (interrupt.clone(), Progress::new());
        let mut session = Session { connection, ends: BTreeMap::new(), interrupt, progress };
        let served = session.welcome().and_then(|is_there| if is_there { session.work() } else { Ok(()) });
        session.progress.line("");
        served
    });
    match served {
        Ok(()) => output::note(&format!("{peer} has gone")),
        Err(why) => output::note(&format!("{peer} is not served any more: {why}")),
    }
}

impl Session {
    /// Greets; whether the client did as well.
    fn welcome(&mut self) -> Result<bool, String> {
        self.connection.send(&Greeting::own(None))?;
        let Some(greeting) = self.connection.receive::<Greeting>(GREETING, &self.interrupt)? else {
            return Ok(false);
        };
        greeting.check()?;
        output::note(&format!("serving {} on {}", self.connection.peer, self.connection.local));
        let machine = machine::describe("", None);
        let place = ringway_service::place().unwrap_or_default();
        self.connection.send(&Welcome { machine, place })?;
        Ok(true)
    }

    fn work(&mut self) -> Result<(), String> {
        while let Some(request) = self.connection.receive::<Request>(SILENCE, &self.interrupt)? {
            let Request { number, order } = request;
            let answer = match order {
                Order::Open { end, path, kind } => self.open(end, &path, &kind),
                Order::Tell { end, command } => self.tell(end, command),
                Order::Close { end } => {
                    self.ends.remove(&end);
                    Ok(None)
                }
            };
            let answer = match answer {
                Ok(None) => continue,
                Ok(Some(answer)) => answer,
                Err(why) => {
                    self.progress.note(&format!("refused or failed: {why}"));
                    Answer::Failed(why)
                }
            };
            self.connection.send(&Reply { number, answer })?;
        }
        Ok(())
    }

    fn open(&mut self, end: u32, path: &str, kind: &FarKind) -> Result<Option<Answer>, String> {
        kind.check(self.connection.peer.ip())?;
        if self.ends.len() >= ENDS_MAX || self.ends.contains_key(&end) {
            return Err(format!("at most {ENDS_MAX} ends, each with a number of its own"));
        }
        let between = if matches!(kind, FarKind::Client { .. }) { " between clients" } else { "" };
        let opened = self.start(path, kind)?;
        self.progress.note(&format!("opening {}{between}", opened.path));
        let answer = opened.end.answer(&self.interrupt)?;
        self.ends.insert(end, opened);
        Ok(Some(answer))
    }

    /// Starts an end of the path, told to open.
    fn start(&self, path: &str, kind: &FarKind) -> Result<Opened, String> {
        let local = self.connection.local;
        let known = || paths::named(path).ok_or("there is no path of this name here");
        let (path, kind, cluster) = match kind {
            // The client opens the connections.
            FarKind::Device => (known()?.name, known()?.kind(local, 1)?, None),
            FarKind::Tool => {
                let name = Tool::named(path).ok_or("there is no tool of this name here")?.name;
                (name, Kind::Tool { name: name.to_owned(), address: local, serves: true }, None)
            }
            FarKind::Client { id, key, tcp_connections, polling } => {
                let cluster = paths::daemon(known()?, local, key, *tcp_connections, *polling)?;
                let node = cluster.nodes.first().ok_or("a cluster without nodes")?;
                let kind = Kind::Client { socket: node.socket.clone(), id: id.clone(), rank: 1, size: 2 };
                (known()?.name, kind, Some(cluster))
            }
        };
        let daemons = cluster.as_ref().map(Daemons::of).transpose()?.unwrap_or_default();
        let mut end = EndProcess::start(1, None)?;
        end.tell(&Command::Open(kind))?;
        Ok(Opened { path, end, daemons, _cluster: cluster })
    }

    /// Tells an end something. One that did not answer in time is ended: its next answer would be taken for another one.
    fn tell(&mut self, end: u32, command: Command) -> Result<Option<Answer>, String> {
        let told = self.tell_open(end, command);
        self.ends.retain(|_, opened| !opened.end.is_behind());
        told
    }

    fn tell_open(&mut self, end: u32, command: Command) -> Result<Option<Answer>, String> {
        let opened = self.ends.get_mut(&end).ok_or("there is no end of this number")?;
        let command = checked(command, opened.path, self.connection.peer.ip())?;
        if let Command::Run(job) = &command {
            self.progress.point(job.test, job.bytes, job.polling, opened.path);
        }
        if matches!(command, Command::Rest) {
            return opened.end.tell(&command).map(|()| None);
        }
        let before = opened.daemons.account()?;
        opened.end.tell(&command)?;
        let mut answer = opened.end.answer(&self.interrupt)?;
        if let Answer::Done(outcome) = &mut answer {
            outcome.add(&opened.daemons.spent_since(&before)?);
        }
        Ok(Some(answer))
    }
}
