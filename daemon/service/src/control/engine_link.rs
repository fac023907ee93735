//! The control thread's end of the queues to and from the engine thread.

use std::{collections::VecDeque, sync::Arc, thread::JoinHandle};

use crate::engine_thread::{Command, Event, Lane};

/// The control thread's end.
#[derive(Debug)]
pub(super) struct EngineLink {
    commands: Arc<Lane<Command>>,
    events: Arc<Lane<Event>>,
    /// Commands that found the queue full.
    waiting: VecDeque<Command>,
    thread: JoinHandle<()>,
}

impl EngineLink {
    pub(super) fn new(
        commands: Arc<Lane<Command>>,
        events: Arc<Lane<Event>>,
        thread: JoinHandle<()>,
    ) -> Self {
        Self { commands, events, waiting: VecDeque::new(), thread }
    }

    /// The queue of events, whose descriptor says when there are some.
    pub(super) fn events(&self) -> &Arc<Lane<Event>> {
        &self.events
    }

    /// Sends a command, after those that wait.
    pub(super) fn send(&mut self, command: Command) {
        self.waiting.push_back(command);
        self.flush();
    }

    /// Sends what waits, as far as there is room.
    pub(super) fn flush(&mut self) {
        while let Some(command) = self.waiting.pop_front() {
            if let Err(command) = self.commands.push(command) {
                self.waiting.push_front(command);
                return;
            }
        }
    }

    /// Whether commands wait for room.
    pub(super) fn is_backlogged(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether the thread has ended.
    pub(super) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the thread's end.
    pub(super) fn join(self) {
        let _ = self.thread.join();
    }
}
