//! Messages between two ranks.
//!
//! Messages of one sender to one receiver with the same tag arrive in the order sent. Up to
//! [`ringway_abi::EAGER_MAX_BYTES`] a send may end before its message is received; a larger one ends with the receive.

use ringway_abi::descriptor::FLAG_ANY_SOURCE;
use ringway_types::Operation;

use super::{Place, Submitted, View, Wish, view};
use crate::{
    Buffer, CallError, Communicator, Element, Pending, Received, SubmitError, pending::Tickets, queue::Ticket,
};

/// Whose message to receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// That of one rank.
    Rank(u32),
    /// That of any rank.
    Any,
}

impl From<u32> for Source {
    fn from(rank: u32) -> Self {
        Self::Rank(rank)
    }
}

impl<V: Copy> Wish<V> {
    pub(crate) fn send<T: Element>((buffer, elements): (V, usize), to: u32, tag: u64) -> Self {
        let wish = Self::new::<T>(Operation::Send, elements as u64, Place::Apart(Some(buffer), None));
        Self { tag, ..wish.rank(to) }
    }

    pub(crate) fn receive<T: Element>((buffer, elements): (V, usize), from: Source, tag: u64) -> Self {
        let wish = Self::new::<T>(Operation::Receive, elements as u64, Place::Apart(None, Some(buffer)));
        match from {
            Source::Rank(rank) => Self { tag, ..wish.rank(rank) },
            Source::Any => Self { tag, flags: FLAG_ANY_SOURCE, ..wish },
        }
    }
}

fn outgoing<T: Element>(buffer: &Buffer<T>, to: u32, tag: u64) -> Wish<View<'_>> {
    Wish::send::<T>((view(buffer), buffer.len()), to, tag)
}

fn incoming<T: Element>(buffer: &Buffer<T>, from: Source, tag: u64) -> Wish<View<'_>> {
    Wish::receive::<T>((view(buffer), buffer.len()), from, tag)
}

impl Communicator {
    /// Sends the buffer's elements to rank `to`, to be received with the same `tag`.
    ///
    /// # Errors
    /// [`SubmitError`] when nothing was sent: `to` is not a rank.
    pub fn send<T: Element>(&self, buffer: Buffer<T>, to: u32, tag: u64) -> Submitted<'_, Buffer<T>> {
        self.start(buffer, |buffer| Ok(outgoing(buffer, to, tag)))
    }

    /// Receives one message with this `tag` into the buffer, from one rank or from [`Source::Any`]. The message may be
    /// shorter than the buffer; with a longer one the receive fails with [`ringway_abi::Status::Truncated`].
    ///
    /// # Errors
    /// [`SubmitError`] when it could not be submitted: `from` is not a rank.
    pub fn recv<T: Element>(
        &self,
        buffer: Buffer<T>,
        from: impl Into<Source>,
        tag: u64,
    ) -> Submitted<'_, Received<T>> {
        let from = from.into();
        self.start(Received::into(buffer), |held| Ok(incoming(&held.buffer, from, tag)))
    }

    /// Sends one message and receives another at the same time, so that ranks may exchange messages in any order.
    ///
    /// # Errors
    /// As [`Communicator::send`] and [`Communicator::recv`].
    pub fn send_recv<T: Element, U: Element>(
        &self,
        (buffer, to, send_tag): (Buffer<T>, u32, u64),
        (into, from, receive_tag): (Buffer<U>, impl Into<Source>, u64),
    ) -> Submitted<'_, (Buffer<T>, Received<U>)> {
        let from = from.into();
        let buffers = (buffer, Received::into(into));
        let sent =
            self.exchange(outgoing(&buffers.0, to, send_tag), incoming(&buffers.1.buffer, from, receive_tag));
        match sent {
            Ok((sent, received)) => {
                Ok(Pending::new(self, Tickets::Ring([Some(sent), Some(received)]), buffers))
            }
            Err(error) => Err(SubmitError { error, buffers }),
        }
    }

    /// Submits two calls as one group, or into the open one.
    fn exchange(&self, first: Wish<View<'_>>, second: Wish<View<'_>>) -> Result<(Ticket, Ticket), CallError> {
        let first = self.check(&first, [&[], &[]])?;
        let second = self.check(&second, [&[], &[]])?;
        let nested = self.queue.borrow().is_group_open();
        let mut queue = self.queue.borrow_mut();
        queue.open_group();
        let max = u32::try_from(queue.group_max()).unwrap_or(u32::MAX);
        let staged = (queue.submit(&first), queue.submit(&second));
        let (Some(first), Some(second)) = staged else {
            for ticket in [staged.0, staged.1].into_iter().flatten() {
                queue.cancel(ticket);
            }
            if !nested {
                queue.cancel_group();
            }
            return Err(CallError::GroupTooLarge { max });
        };
        drop(queue);
        if !nested && let Err(error) = self.when_room(|queue| queue.send_group().then_some(())) {
            let mut queue = self.queue.borrow_mut();
            queue.cancel_group();
            queue.take(first);
            queue.take(second);
            return Err(error);
        }
        Ok((first, second))
    }
}
