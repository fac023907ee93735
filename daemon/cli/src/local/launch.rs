//! Ranks as processes: started together, their output told apart, ended together.

use std::{
    ffi::OsString,
    io::{self, BufRead as _, BufReader, IsTerminal as _},
    os::unix::process::CommandExt as _,
    process::{Child, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    time::{Duration, Instant},
};

use rustix::process::Signal;

use super::{
    cluster::{Cluster, random_hex},
    process::{helper_command, shell_status, signal_group},
};

/// How long ranks may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(2);

/// What to start.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) ranks: usize,
    pub(crate) program: OsString,
    pub(crate) arguments: Vec<OsString>,
    /// Set in every rank's environment besides the `RINGWAY_*` variables.
    pub(crate) environment: Vec<(String, String)>,
}

/// Something that happened in a running job.
#[derive(Debug)]
pub(crate) enum JobEvent {
    /// A rank wrote a line.
    Line { rank: usize, error_stream: bool, text: String },
    /// A rank ended, with a shell's status.
    Ended { rank: usize, status: i32 },
    /// Ctrl-C or SIGTERM.
    Interrupted,
}

/// A running job. Dropping it ends every rank.
#[derive(Debug)]
pub(crate) struct RunningJob {
    pids: Vec<u32>,
    running: Vec<bool>,
    events: Receiver<JobEvent>,
}

/// The node a rank is on: contiguous blocks, the first nodes take one more when the division is uneven.
pub(crate) fn node_of(rank: usize, ranks: usize, nodes: usize) -> usize {
    let (each, more) = (ranks / nodes, ranks % nodes);
    let in_larger = more * (each + 1);
    if rank < in_larger { rank / (each + 1) } else { more + (rank - in_larger) / each.max(1) }
}

impl RunningJob {
    /// Starts every rank of the job on the cluster's nodes.
    pub(crate) fn start(cluster: &Cluster, job: &Job) -> io::Result<Self> {
        let (sender, events) = channel();
        interrupts(&sender)?;
        let id = communicator_id(cluster)?;
        let nodes: Vec<usize> = (0..job.ranks).map(|r| node_of(r, job.ranks, cluster.nodes.len())).collect();
        let mut running = Self { pids: Vec::new(), running: Vec::new(), events };
        for (rank, node) in nodes.iter().copied().enumerate() {
            let Some(place) = cluster.nodes.get(node) else { continue };
            let local_rank = nodes.iter().take(rank).filter(|n| **n == node).count();
            let local_size = nodes.iter().filter(|n| **n == node).count();
            let mut command =
                helper_command(place.namespace.as_ref(), &job.program, job.arguments.iter().cloned())?;
            command.envs(job.environment.iter().map(|(k, v)| (k, v)));
            command.env("RINGWAY_SOCKET", &place.socket).env("RINGWAY_ID", &id);
            for (name, value) in [
                ("RINGWAY_RANK", rank),
                ("RINGWAY_WORLD_SIZE", job.ranks),
                ("RINGWAY_LOCAL_RANK", local_rank),
                ("RINGWAY_LOCAL_WORLD_SIZE", local_size),
                ("RINGWAY_NODE", node),
            ] {
                command.env(name, value.to_string());
            }
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
            let child = command.spawn()?;
            running.pids.push(child.id());
            running.running.push(true);
            watch(rank, child, &sender);
        }
        Ok(running)
    }

    /// The next thing that happens; `None` when every rank has ended and everything was told.
    pub(crate) fn next(&mut self) -> Option<JobEvent> {
        self.next_until(None)
    }

    fn next_until(&mut self, deadline: Option<Instant>) -> Option<JobEvent> {
        if !self.running.contains(&true) {
            return None;
        }
        let event = match deadline {
            None => self.events.recv().ok()?,
            Some(at) => match self.events.recv_timeout(at.saturating_duration_since(Instant::now())) {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
            },
        };
        if let JobEvent::Ended { rank, .. } = event
            && let Some(running) = self.running.get_mut(rank)
        {
            *running = false;
        }
        Some(event)
    }

    /// Ends every rank: SIGTERM, and SIGKILL for those still there after a moment. Lines written meanwhile go to
    /// `line`.
    pub(crate) fn end(&mut self, mut line: impl FnMut(usize, bool, &str)) {
        self.signal(Signal::TERM);
        let deadline = Instant::now() + GRACE;
        while let Some(event) = self.next_until(Some(deadline)) {
            if let JobEvent::Line { rank, error_stream, text } = event {
                line(rank, error_stream, &text);
            }
        }
        self.signal(Signal::KILL);
        while let Some(event) = self.next_until(Some(Instant::now() + GRACE)) {
            if let JobEvent::Line { rank, error_stream, text } = event {
                line(rank, error_stream, &text);
            }
        }
    }

    fn signal(&self, signal: Signal) {
        for (pid, _) in self.pids.iter().zip(&self.running).filter(|(_, running)| **running) {
            signal_group(*pid, signal);
        }
    }
}

impl Drop for RunningJob {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// A fresh id for the communicator of all ranks, rooted at the first node.
pub(crate) fn communicator_id(cluster: &Cluster) -> io::Result<String> {
    let secret = random_hex()?.get(..32).unwrap_or_default().to_owned();
    Ok(cluster.root.map_or_else(|| secret.clone(), |root| format!("{secret}@{root}")))
}

fn interrupts(sender: &Sender<JobEvent>) -> io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let sender = sender.clone();
    std::thread::spawn(move || {
        for _ in signals.forever() {
            if sender.send(JobEvent::Interrupted).is_err() {
                return;
            }
        }
    });
    Ok(())
}

/// Tells what a child writes and how it ends. All its lines come before its end.
fn watch(rank: usize, mut child: Child, sender: &Sender<JobEvent>) {
    let streams = [
        (false, child.stdout.take().map(|s| Box::new(s) as Box<dyn io::Read + Send>)),
        (true, child.stderr.take().map(|s| Box::new(s) as Box<dyn io::Read + Send>)),
    ];
    let readers: Vec<_> = streams
        .into_iter()
        .filter_map(|(error_stream, stream)| stream.map(|s| (error_stream, s)))
        .map(|(error_stream, stream)| {
            let sender = sender.clone();
            std::thread::spawn(move || tell_lines(rank, error_stream, stream, &sender))
        })
        .collect();
    let sender = sender.clone();
    std::thread::spawn(move || {
        let status = child.wait().map_or(1, shell_status);
        for reader in readers {
            let _ = reader.join();
        }
        let _ = sender.send(JobEvent::Ended { rank, status });
    });
}

fn tell_lines(rank: usize, error_stream: bool, stream: Box<dyn io::Read + Send>, sender: &Sender<JobEvent>) {
    let mut reader = BufReader::new(stream);
    let mut bytes = Vec::new();
    while matches!(reader.read_until(b'\n', &mut bytes), Ok(n) if n > 0) {
        let text = String::from_utf8_lossy(bytes.strip_suffix(b"\n").unwrap_or(&bytes)).into_owned();
        if sender.send(JobEvent::Line { rank, error_stream, text }).is_err() {
            return;
        }
        bytes.clear();
    }
}

/// Writes a rank's line with the rank before it, in a colour of its own on a terminal.
pub(crate) fn print_line(rank: usize, ranks: usize, error_stream: bool, text: &str) {
    let width = ranks.saturating_sub(1).to_string().len();
    let colour = 31 + (rank + 1) % 6;
    let write = |out: &mut dyn io::Write, terminal: bool| {
        if terminal {
            let _ = writeln!(out, "\x1b[{colour}m[{rank:>width$}]\x1b[0m {text}");
        } else {
            let _ = writeln!(out, "[{rank:>width$}] {text}");
        }
    };
    if error_stream {
        write(&mut io::stderr().lock(), io::stderr().is_terminal());
    } else {
        write(&mut io::stdout().lock(), io::stdout().is_terminal());
    }
}
