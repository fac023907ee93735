//! An end in a process of its own, on this machine, as whoever tells it what to do has it.

use std::{
    cell::Cell,
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdin, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::{Duration, Instant},
};

use super::{
    end::{Answer, Command, END},
    interrupt::Interrupt,
};
use crate::local::{
    namespace::Namespace,
    process::{helper_command, signal_group},
};

/// How long an answer may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(40);
/// How often an interrupt is looked for meanwhile.
const LOOK: Duration = Duration::from_millis(200);

/// The process, gone with this.
#[derive(Debug)]
pub(super) struct EndProcess {
    process: Child,
    commands: ChildStdin,
    answers: Receiver<String>,
    /// Commands that it has not answered.
    unanswered: Cell<u32>,
}

impl EndProcess {
    /// Starts it at the place of this number, see [`crate::perf::place`].
    pub(super) fn start(place: usize, namespace: Option<&Namespace>) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|e| e.to_string())?;
        let arguments = [END.into(), place.to_string().into()];
        let mut command = helper_command(namespace, program, arguments).map_err(|e| e.to_string())?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(|e| format!("cannot start an end: {e}"))?;
        let (Some(commands), Some(answers)) = (process.stdin.take(), process.stdout.take()) else {
            return Err("an end without pipes".to_owned());
        };
        let (tell, told) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(answers).lines().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self { process, commands, answers: told, unanswered: Cell::new(0) })
    }

    pub(super) fn tell(&mut self, command: &Command) -> Result<(), String> {
        let text = serde_json::to_string(command).map_err(|e| e.to_string())?;
        self.unanswered.update(|count| count + u32::from(!matches!(command, Command::Rest)));
        let written = writeln!(self.commands, "{text}").and_then(|()| self.commands.flush());
        written.map_err(|e| format!("an end has gone: {e}"))
    }

    /// Whether the next answer may be to an earlier command.
    pub(super) const fn is_behind(&self) -> bool {
        self.unanswered.get() > 0
    }

    /// The answer to the oldest command without one.
    pub(super) fn answer(&self, interrupt: &Interrupt) -> Result<Answer, String> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.answers.recv_timeout(LOOK) {
                Ok(line) => {
                    self.unanswered.update(|count| count.saturating_sub(1));
                    return match serde_json::from_str(&line) {
                        Ok(Answer::Failed(why)) => Err(why),
                        Ok(answer) => Ok(answer),
                        Err(_) => Err(format!("an end said `{line}`")),
                    };
                }
                Err(RecvTimeoutError::Disconnected) => return Err("an end has gone".to_owned()),
                Err(RecvTimeoutError::Timeout) if interrupt.came() => return Err("interrupted".to_owned()),
                Err(RecvTimeoutError::Timeout) if Instant::now() > until => {
                    return Err(format!("an end said nothing for {} s", PATIENCE.as_secs()));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

impl Drop for EndProcess {
    fn drop(&mut self) {
        signal_group(self.process.id(), rustix::process::Signal::KILL);
        let _ = self.process.wait();
    }
}
