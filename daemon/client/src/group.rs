//! Several operations submitted as one.

use crate::{CallError, Communicator, Error};

impl Communicator {
    /// Submits the operations that `body` calls together: the daemon accepts all of them or none, and starts none before
    /// it has all. Sends and receives of a group run at once, so that ranks may exchange messages in any order.
    ///
    /// Collectives in memory that the ranks share begin one after the other, in the order of the calls.
    ///
    /// They are sent when `body` returns; until then nothing can be waited for. When `body` fails, nothing is sent.
    ///
    /// ```no_run
    /// # fn f(world: &ringway_client::Communicator, arena: &ringway_client::Arena) -> Result<(), ringway_client::Error> {
    /// let (to, from) = (arena.buffer::<f32>(100)?, arena.buffer::<f32>(100)?);
    /// let right = (world.rank() + 1) % world.size();
    /// let left = (world.rank() + world.size() - 1) % world.size();
    /// let (sent, received) = world.group(|g| Ok((g.send(to, right, 0)?, g.recv(from, left, 0)?)))?;
    /// let (to, from) = (sent.wait()?, received.wait()?);
    /// # drop((to, from)); Ok(()) }
    /// ```
    ///
    /// # Errors
    /// What `body` returns; [`CallError::GroupTooLarge`] from the call that is one too many;
    /// [`CallError::InsideGroup`] in a group already; [`CallError::Full`] or [`CallError::DaemonLost`] when it could
    /// not be sent. Buffers are freed then.
    pub fn group<'c, R>(&'c self, body: impl FnOnce(&'c Self) -> Result<R, Error>) -> Result<R, Error> {
        if self.queue.borrow().is_group_open() {
            return Err(CallError::InsideGroup.into());
        }
        self.queue.borrow_mut().open_group();
        if let Some(calls) = &self.calls {
            calls.borrow_mut().open_group();
        }
        let open = Open(self);
        let result = body(self)?;
        self.when_room(|queue| queue.send_group().then_some(()))?;
        if let Some(calls) = &self.calls {
            self.send_group_to_cell(calls)?;
        }
        drop(open);
        Ok(result)
    }
}

/// An open group: given up when dropped, unless it was sent.
struct Open<'c>(&'c Communicator);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        // After sending, nothing is left to give up.
        self.0.queue.borrow_mut().cancel_group();
        if let Some(calls) = &self.0.calls {
            calls.borrow_mut().cancel_group();
        }
    }
}
