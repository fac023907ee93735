//! An end that is a client of a daemon, and a rank.

use std::path::Path;

use ringway_client::{Arena, Buffer, Client, Communicator, Failure};
use ringway_types::Reduction;

use super::{Address, MESSAGE_BYTES_MAX, Messenger};
use crate::bench::{
    costs::Copied,
    result::{Polling, Test},
};

/// Room for the buffers of one size.
const ARENA_BYTES: usize = 4 * MESSAGE_BYTES_MAX as usize;
/// The tag of messages.
const TAG: u64 = 1;

/// One rank.
pub(super) struct ClientEnd {
    world: Communicator,
    arena: Arena,
    /// Of the size last used.
    buffers: Option<Buffers>,
}

struct Buffers {
    bytes: u64,
    test: Option<Test>,
    input: Option<Buffer<f32>>,
    output: Option<Buffer<f32>>,
}

#[cold]
fn said<B>(failure: Failure<B>) -> String {
    failure.error.to_string()
}

fn lost() -> String {
    "a buffer was lost".to_owned()
}

impl ClientEnd {
    /// Joins the communicator; returns when all ranks have.
    pub(super) fn open(socket: &Path, id: &str, rank: u32, size: u32) -> Result<Self, String> {
        let client =
            Client::builder().autostart(false).socket(socket).connect().map_err(|e| e.to_string())?;
        let id = id.parse().map_err(|e| format!("{e}"))?;
        let world = client.communicator(&id, rank, size).join().map_err(|e| e.to_string())?;
        let arena = client.arena(ARENA_BYTES).map_err(|e| e.to_string())?;
        Ok(Self { world, arena, buffers: None })
    }

    /// Buffers for calls of this size: for messages both of the size, for collectives as `ringway perf` counts bytes.
    fn buffers(&mut self, test: Option<Test>, bytes: u64) -> Result<&mut Buffers, String> {
        if self.buffers.as_ref().is_none_or(|held| (held.bytes, held.test) != (bytes, test)) {
            // The old ones go first: the arena has room for those of one size.
            self.buffers = None;
            let elements = (bytes as usize).div_ceil(size_of::<f32>());
            let share = elements.div_ceil(self.world.size() as usize);
            let (input, output) = match test {
                Some(Test::AllGather) => (share, share * self.world.size() as usize),
                Some(Test::AllToAll) => {
                    (share * self.world.size() as usize, share * self.world.size() as usize)
                }
                _ => (elements, elements),
            };
            let make = |length| self.arena.buffer(length).map_err(|e| e.to_string());
            self.buffers =
                Some(Buffers { bytes, test, input: Some(make(input)?), output: Some(make(output)?) });
        }
        self.buffers.as_mut().ok_or_else(lost)
    }

    fn peer(&self) -> u32 {
        1 - self.world.rank().min(1)
    }
}

impl Messenger for ClientEnd {
    fn connect(&mut self, _peer: &Address, _active: bool) -> Result<(), String> {
        Ok(())
    }

    /// Clients wait as the library does; how their daemons do is said to those.
    fn set_polling(&mut self, _polling: Polling) -> Result<(), String> {
        Ok(())
    }

    fn send(&mut self, bytes: u64) -> Result<(), String> {
        let peer = self.peer();
        let buffer = self.buffers(None, bytes)?.input.take().ok_or_else(lost)?;
        let buffer = self.world.run(|world| world.send(buffer, peer, TAG)).map_err(said)?;
        self.buffers(None, bytes)?.input = Some(buffer);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn receive(&mut self, bytes: u64) -> Result<(), String> {
        let peer = self.peer();
        let buffer = self.buffers(None, bytes)?.output.take().ok_or_else(lost)?;
        let received = self.world.run(|world| world.recv(buffer, peer, TAG)).map_err(said)?;
        self.buffers(None, bytes)?.output = Some(received.buffer);
        Ok(())
    }

    fn call(&mut self, test: Test, bytes: u64) -> Result<(), String> {
        if test == Test::DaemonNoop {
            return self.world.run(Communicator::barrier).map_err(said);
        }
        let held = self.buffers(Some(test), bytes)?;
        let (input, output) = (held.input.take().ok_or_else(lost)?, held.output.take().ok_or_else(lost)?);
        let world = &self.world;
        let ended = match test {
            Test::Allreduce => world.run(|world| world.allreduce(input, output, Reduction::Sum)),
            Test::AllGather => world.run(|world| world.all_gather(input, output)),
            Test::AllToAll => world.run(|world| world.all_to_all(input, output)),
            _ => return Err(format!("{} is not a call of clients", test.name())),
        };
        let (input, output) = ended.map_err(said)?;
        let held = self.buffers(Some(test), bytes)?;
        (held.input, held.output) = (Some(input), Some(output));
        Ok(())
    }

    fn counts(&self) -> (u64, Option<Copied>) {
        (0, None)
    }
}
