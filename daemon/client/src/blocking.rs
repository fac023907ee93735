//! Operations on ordinary slices.

use ringway_types::Operation;

use crate::{
    CallError, Communicator, Element, Error, Received, Reduce, Source, slices::Uniform, staging::copy,
};

/// The blocking operations of a communicator, on ordinary slices; made by [`Communicator::blocking`].
///
/// Nobody else can reach the caller's slices. Where ranks share memory, what is small is exchanged as it is, and what is
/// large moves through staging memory while the ranks work on it. Otherwise, and in operations with counts for each rank,
/// slices are copied into memory that the daemon can reach and results back out. Where that matters, keep data in
/// [`crate::Buffer`]s. Lengths are as for the non-blocking forms. Every method fails with [`Error::Call`] when nothing
/// was sent, [`Error::Operation`] when the operation failed, and [`Error::Memory`] or [`Error::Request`] when there is
/// no memory to copy to. What an output holds after a failure is not defined.
#[derive(Debug, Clone, Copy)]
pub struct Blocking<'c>(&'c Communicator);

impl Communicator {
    /// Blocking operations on ordinary slices.
    ///
    /// ```no_run
    /// # use ringway_client::Reduction;
    /// # fn f(world: &ringway_client::Communicator) -> Result<(), ringway_client::Error> {
    /// let mut sum = [0.0_f32; 3];
    /// world.blocking().allreduce(&[1.0, 2.0, 3.0], &mut sum, Reduction::Sum)?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub const fn blocking(&self) -> Blocking<'_> {
        Blocking(self)
    }
}

/// A message to the slice it was received for: the sender, and the elements.
fn take<T: Element>(received: &Received<T>, into: &mut [T]) -> (u32, usize) {
    let message = received.message();
    let elements = message.len().min(into.len());
    copy(&message[..elements], &mut into[..elements]);
    (received.source(), received.elements())
}

impl Blocking<'_> {
    /// Combines every rank's `input`; every rank gets the result.
    ///
    /// # Errors
    /// As [`Blocking`] says.
    pub fn allreduce<T: Element>(
        self,
        input: &[T],
        output: &mut [T],
        reduce: impl Into<Reduce<T>>,
    ) -> Result<(), Error> {
        let call = Uniform::new(Operation::Allreduce, input.len()).reduce(reduce);
        self.0.apart(call, Some(input), Some(output))
    }

    /// As [`Blocking::allreduce`], with the result in place of the input.
    ///
    /// # Errors
    /// As [`Blocking`] says.
    pub fn allreduce_in_place<T: Element>(
        self,
        values: &mut [T],
        reduce: impl Into<Reduce<T>>,
    ) -> Result<(), Error> {
        self.0.within(Uniform::new(Operation::Allreduce, values.len()).reduce(reduce), values)
    }

    /// Rank `r` gets the combination of the inputs of ranks `0..=r`.
    ///
    /// # Errors
    /// As [`Blocking`] says.
    pub fn scan<T: Element>(
        self,
        input: &[T],
        output: &mut [T],
        reduce: impl Into<Reduce<T>>,
    ) -> Result<(), Error> {
        let call = Uniform::new(Operation::Scan, input.len()).reduce(reduce);
        self.0.apart(call, Some(input), Some(output))
    }

    /// As [`Blocking::scan`], with the result in place of the input.
    ///
    /// # Errors
    /// As [`Blocking`] says.
    pub fn scan_in_place<T: Element>(
        self,
        values: &mut [T],
        reduce: impl Into<Reduce<T>>,
    ) -> Result<(), Error> {
        self.0.within(Uniform::new(Operation::Scan, values.len()).reduce(reduce), values)
    }

    /// Rank `r` gets the combination of the inputs of ranks `0..r`; rank 0's output is left as it is.
    ///
    /// # Errors
    /// As [`Blocking`] says.
    pub fn exscan<T: Element>(
        self,
        input: &[T],
        output: &mut [T],
        reduce: impl Into<Reduce<T>>,
    ) -> Result<(), Error> {
        let call = Uniform::new(Operation::Exscan, input.len()).reduce(reduce);
        self.0.apart(call, Some(input), Some(output))
    }

    /// As [`Blocking::exscan`], with the result in place of the input.
    ///
    /// # Errors
    /// As [`Blocking`] says.
    pub fn exscan_in_place<T: Element>(
        self,
        values: &mut [T],
        reduce: impl Into<Reduce<T>>,
    ) -> Result<(), Error> {
        self.0.within(Uniform::new(Operation::Exscan, values.len()).reduce(reduce), values)
    }

    /// Combines every rank's `input`; the root gets the result. Other ranks need no output.
    ///
    /// # Errors
    /// As [`Blocking`] says.
    pub fn reduce<T: Element>(
        self,
        input: &[T],
        output: Option<&mut [T]>,
        root: u32,
        reduce: impl Into<Reduce<T>>,
    ) -> Result<(), Error> {
        let output = output.filter(|_| self.0.rank() == root);
        let call = Uniform::new(Operation::Reduce, input.len()).root(root).reduce(reduce);
        self.0.apart(call, Some(input), output)
    }

    /// As [`Blocking::reduce`], with the result in place of the root's input.
    ///
    /// # Errors
    /// As [`Blocking`] says.
    pub fn reduce_in_place<T: Element>(
        self,
        values: &mut [T],
        root: u32,
        reduce: impl Into<Reduce<T>>,
    ) -> Result<(), Error> {
        self.0.within(Uniform::new(Operation::Reduce, values.len()).root(root).reduce(reduce), values)
    }

    /// The root's values to every other rank's slice.
    ///
    /// # Errors
    /// As [`Blocking`] says.
    pub fn broadcast<T: Element>(self, values: &mut [T], root: u32) -> Result<(), Error> {
        self.0.within(Uniform::new(Operation::Broadcast, values.len()).root(root), values)
    }

    /// Every rank's `input`, in rank order, to every rank's `output`, which holds one block for each rank.
    ///
    /// # Errors
    /// As [`Blocking`] says.
    pub fn all_gather<T: Element>(self, input: &[T], output: &mut [T]) -> Result<(), Error> {
        self.0.apart(Uniform::new(Operation::AllGather, input.len()), Some(input), Some(output))
    }

    /// Every rank's `input`, in rank order, to every rank's `output`; rank `r`'s has `counts[r]` elements.
    ///
    /// # Errors
    /// As [`Blocking`] says.
    pub fn all_gather_v<T: Element>(
        self,
        input: &[T],
        output: &mut [T],
        counts: &[u64],
    ) -> Result<(), Error> {
        let stage = self.0.stage()?;
        let (from, to) = (stage.input(input)?, stage.output(output.len())?);
        stage.end(self.0.run(|c| c.all_gather_v(from, to, counts))?, Some(output));
        Ok(())
    }

    /// Combines every rank's `input`, which holds one block for each rank; rank `r` gets the `r`-th block of the result.
    ///
    /// # Errors
    /// As [`Blocking`] says.
    pub fn reduce_scatter<T: Element>(
        self,
        input: &[T],
        output: &mut [T],
        reduce: impl Into<Reduce<T>>,
    ) -> Result<(), Error> {
        let call = Uniform::new(Operation::ReduceScatter, output.len()).reduce(reduce);
        self.0.apart(call, Some(input), Some(output))
    }

    /// As [`Blocking::reduce_scatter`], with a block of `counts[r]` elements for each rank `r`.
    ///
    /// # Errors
    /// As [`Blocking`] says.
    pub fn reduce_scatter_v<T: Element>(
        self,
        input: &[T],
        output: &mut [T],
        counts: &[u64],
        reduce: impl Into<Reduce<T>>,
    ) -> Result<(), Error> {
        let stage = self.0.stage()?;
        let (from, to) = (stage.input(input)?, stage.output(output.len())?);
        stage.end(self.0.run(|c| c.reduce_scatter_v(from, to, counts, reduce))?, Some(output));
        Ok(())
    }

    /// Every rank's `input`, in rank order, to the root's `output`. Other ranks need none.
    ///
    /// # Errors
    /// As [`Blocking`] says.
    pub fn gather<T: Element>(self, input: &[T], output: Option<&mut [T]>, root: u32) -> Result<(), Error> {
        let output = output.filter(|_| self.0.rank() == root);
        let call = Uniform::new(Operation::Gather, input.len()).root(root);
        self.0.apart(call, Some(input), output)
    }

    /// The `r`-th block of the root's `input` to rank `r`'s `output`. Other ranks need no input.
    ///
    /// # Errors
    /// As [`Blocking`] says.
    pub fn scatter<T: Element>(self, input: Option<&[T]>, output: &mut [T], root: u32) -> Result<(), Error> {
        let input = input.filter(|_| self.0.rank() == root);
        let call = Uniform::new(Operation::Scatter, output.len()).root(root);
        self.0.apart(call, input, Some(output))
    }

    /// Every rank's `input`, in rank order, to the root's `output`. Other ranks need none. At the root rank `r`'s has `counts[r]` elements; elsewhere `counts` is not looked at.
    ///
    /// # Errors
    /// As [`Blocking`] says.
    pub fn gather_v<T: Element>(
        self,
        input: &[T],
        output: Option<&mut [T]>,
        counts: &[u64],
        root: u32,
    ) -> Result<(), Error> {
        let output = output.filter(|_| self.0.rank() == root);
        let stage = self.0.stage()?;
        let from = stage.input(input)?;
        let to = output.as_deref().map(|slice| stage.output(slice.len())).transpose()?;
        stage.end(self.0.run(|c| c.gather_v(from, to, counts, root))?, output);
        Ok(())
    }

    /// The `r`-th block of the root's `input` to rank `r`'s `output`. Other ranks need no input. At the root rank `r`'s block has `counts[r]` elements; elsewhere `counts` is not looked at.
    ///
    /// # Errors
    /// As [`Blocking`] says.
    pub fn scatter_v<T: Element>(
        self,
        input: Option<&[T]>,
        output: &mut [T],
        counts: &[u64],
        root: u32,
    ) -> Result<(), Error> {
        let input = input.filter(|_| self.0.rank() == root);
        let stage = self.0.stage()?;
        let from = input.map(|slice| stage.input(slice)).transpose()?;
        let to = stage.output(output.len())?;
        stage.end(self.0.run(|c| c.scatter_v(from, to, counts, root))?, Some(output));
        Ok(())
    }

    /// The `j`-th block of rank `i`'s `input` becomes the `i`-th block of rank `j`'s `output`.
    ///
    /// # Errors
    /// As [`Blocking`] says.
    pub fn all_to_all<T: Element>(self, input: &[T], output: &mut [T]) -> Result<(), Error> {
        self.0.block(Operation::AllToAll, "input", input.len() as u64)?;
        let call = Uniform::new(Operation::AllToAll, input.len() / self.0.size() as usize);
        self.0.apart(call, Some(input), Some(output))
    }

    /// As [`Blocking::all_to_all`], with a count for each block sent and each block received.
    ///
    /// # Errors
    /// As [`Blocking`] says.
    pub fn all_to_all_v<T: Element>(
        self,
        input: &[T],
        output: &mut [T],
        send_counts: &[u64],
        receive_counts: &[u64],
    ) -> Result<(), Error> {
        let stage = self.0.stage()?;
        let (from, to) = (stage.input(input)?, stage.output(output.len())?);
        stage.end(self.0.run(|c| c.all_to_all_v(from, to, send_counts, receive_counts))?, Some(output));
        Ok(())
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// As [`Blocking`] says.
    pub fn barrier(self) -> Result<(), Error> {
        if self.0.queue.borrow().is_group_open() {
            return Err(CallError::InsideGroup.into());
        }
        Ok(self.0.run(Communicator::barrier)?)
    }

    /// Sends `values` to rank `to`. Messages of at most [`ringway_abi::EAGER_MAX_BYTES`] may still be under way then.
    ///
    /// # Errors
    /// As [`Blocking`] says.
    pub fn send<T: Element>(self, values: &[T], to: u32, tag: u64) -> Result<(), Error> {
        let stage = self.0.stage()?;
        stage.keep_input(self.0.send(stage.input(values)?, to, tag)?.wait()?);
        Ok(())
    }

    /// Receives one message with this `tag`; gives the sender's rank and how many elements were received.
    ///
    /// # Errors
    /// As [`Blocking`] says.
    pub fn recv<T: Element>(
        self,
        values: &mut [T],
        from: impl Into<Source>,
        tag: u64,
    ) -> Result<(u32, usize), Error> {
        let stage = self.0.stage()?;
        let received = self.0.recv(stage.output(values.len())?, from, tag)?.wait()?;
        let taken = take(&received, values);
        stage.keep_output(received.buffer);
        Ok(taken)
    }

    /// Sends one message and receives another at the same time; gives what [`Blocking::recv`] gives.
    ///
    /// # Errors
    /// As [`Blocking`] says.
    pub fn send_recv<T: Element, U: Element>(
        self,
        (values, to, send_tag): (&[T], u32, u64),
        (into, from, receive_tag): (&mut [U], impl Into<Source>, u64),
    ) -> Result<(u32, usize), Error> {
        let stage = self.0.stage()?;
        let (out, room) = (stage.input(values)?, stage.output(into.len())?);
        let (out, received) = self.0.send_recv((out, to, send_tag), (room, from, receive_tag))?.wait()?;
        let taken = take(&received, into);
        stage.keep_input(out);
        stage.keep_output(received.buffer);
        Ok(taken)
    }
}
