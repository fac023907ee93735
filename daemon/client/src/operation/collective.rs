//! Collectives whose blocks are all of one length.

use ringway_types::Operation;

use super::{Place, Submitted, Wish, length, view};
use crate::{Buffer, Communicator, Element, Reduce};

impl Communicator {
    /// Combines every rank's `input`; every rank gets the result in `output`. All are of one length.
    ///
    /// # Errors
    /// [`crate::SubmitError`] when nothing was sent: lengths differ, or the reduction is not defined for the type.
    #[inline]
    pub fn allreduce<T: Element>(
        &self,
        input: Buffer<T>,
        output: Buffer<T>,
        reduce: impl Into<Reduce<T>>,
    ) -> Submitted<'_, (Buffer<T>, Buffer<T>)> {
        self.combine(Operation::Allreduce, input, output, reduce.into())
    }

    /// As [`Communicator::allreduce`], with the result in place of the input.
    ///
    /// # Errors
    /// As [`Communicator::allreduce`].
    #[inline]
    pub fn allreduce_in_place<T: Element>(
        &self,
        buffer: Buffer<T>,
        reduce: impl Into<Reduce<T>>,
    ) -> Submitted<'_, Buffer<T>> {
        self.combine_in_place(Operation::Allreduce, buffer, reduce.into())
    }

    /// Rank `r` gets the combination of the inputs of ranks `0..=r`.
    ///
    /// # Errors
    /// As [`Communicator::allreduce`].
    #[inline]
    pub fn scan<T: Element>(
        &self,
        input: Buffer<T>,
        output: Buffer<T>,
        reduce: impl Into<Reduce<T>>,
    ) -> Submitted<'_, (Buffer<T>, Buffer<T>)> {
        self.combine(Operation::Scan, input, output, reduce.into())
    }

    /// As [`Communicator::scan`], with the result in place of the input.
    ///
    /// # Errors
    /// As [`Communicator::allreduce`].
    #[inline]
    pub fn scan_in_place<T: Element>(
        &self,
        buffer: Buffer<T>,
        reduce: impl Into<Reduce<T>>,
    ) -> Submitted<'_, Buffer<T>> {
        self.combine_in_place(Operation::Scan, buffer, reduce.into())
    }

    /// Rank `r` gets the combination of the inputs of ranks `0..r`; rank 0's output is left as it is.
    ///
    /// # Errors
    /// As [`Communicator::allreduce`].
    #[inline]
    pub fn exscan<T: Element>(
        &self,
        input: Buffer<T>,
        output: Buffer<T>,
        reduce: impl Into<Reduce<T>>,
    ) -> Submitted<'_, (Buffer<T>, Buffer<T>)> {
        self.combine(Operation::Exscan, input, output, reduce.into())
    }

    /// As [`Communicator::exscan`], with the result in place of the input.
    ///
    /// # Errors
    /// As [`Communicator::allreduce`].
    #[inline]
    pub fn exscan_in_place<T: Element>(
        &self,
        buffer: Buffer<T>,
        reduce: impl Into<Reduce<T>>,
    ) -> Submitted<'_, Buffer<T>> {
        self.combine_in_place(Operation::Exscan, buffer, reduce.into())
    }

    /// Combines every rank's `input`; the root gets the result in its `output`, of the same length. Other ranks need
    /// none, and one they give is left as it is.
    ///
    /// # Errors
    /// As [`Communicator::allreduce`]; also when `root` is not a rank.
    #[inline]
    pub fn reduce<T: Element>(
        &self,
        input: Buffer<T>,
        output: impl Into<Option<Buffer<T>>>,
        root: u32,
        reduce: impl Into<Reduce<T>>,
    ) -> Submitted<'_, (Buffer<T>, Option<Buffer<T>>)> {
        let reduce = reduce.into();
        self.start((input, output.into()), |(input, output)| {
            let place = Place::Apart(Some(view(input)), output.as_ref().map(view));
            Ok(Wish::new::<T>(Operation::Reduce, length(input), place).rank(root).reduce(reduce))
        })
    }

    /// As [`Communicator::reduce`], with the result in place of the root's input.
    ///
    /// # Errors
    /// As [`Communicator::reduce`].
    #[inline]
    pub fn reduce_in_place<T: Element>(
        &self,
        buffer: Buffer<T>,
        root: u32,
        reduce: impl Into<Reduce<T>>,
    ) -> Submitted<'_, Buffer<T>> {
        let reduce = reduce.into();
        self.start(buffer, |buffer| {
            let place = Place::Within(view(buffer));
            Ok(Wish::new::<T>(Operation::Reduce, length(buffer), place).rank(root).reduce(reduce))
        })
    }

    /// The root's `input` to every rank's `output`, of the same length. Only the root needs an input.
    ///
    /// # Errors
    /// [`crate::SubmitError`] when nothing was sent: lengths differ, or `root` is not a rank.
    #[inline]
    pub fn broadcast<T: Element>(
        &self,
        input: impl Into<Option<Buffer<T>>>,
        output: Buffer<T>,
        root: u32,
    ) -> Submitted<'_, (Option<Buffer<T>>, Buffer<T>)> {
        self.start((input.into(), output), |(input, output)| {
            let place = Place::Apart(input.as_ref().map(view), Some(view(output)));
            Ok(Wish::new::<T>(Operation::Broadcast, length(output), place).rank(root))
        })
    }

    /// The root's buffer to every other rank's.
    ///
    /// # Errors
    /// As [`Communicator::broadcast`].
    #[inline]
    pub fn broadcast_in_place<T: Element>(&self, buffer: Buffer<T>, root: u32) -> Submitted<'_, Buffer<T>> {
        self.start(buffer, |buffer| {
            let place = Place::Within(view(buffer));
            Ok(Wish::new::<T>(Operation::Broadcast, length(buffer), place).rank(root))
        })
    }

    /// Every rank's `input`, in rank order, to every rank's `output`, which holds one block for each rank.
    ///
    /// # Errors
    /// [`crate::SubmitError`] when nothing was sent: `output` is not `size` times as long as `input`.
    #[inline]
    pub fn all_gather<T: Element>(
        &self,
        input: Buffer<T>,
        output: Buffer<T>,
    ) -> Submitted<'_, (Buffer<T>, Buffer<T>)> {
        self.start((input, output), |(input, output)| {
            let place = Place::Apart(Some(view(input)), Some(view(output)));
            Ok(Wish::new::<T>(Operation::AllGather, length(input), place))
        })
    }

    /// As [`Communicator::all_gather`], each rank's input being its own block of the buffer.
    ///
    /// # Errors
    /// [`crate::SubmitError`] when nothing was sent: the buffer cannot be divided among the ranks.
    #[inline]
    pub fn all_gather_in_place<T: Element>(&self, buffer: Buffer<T>) -> Submitted<'_, Buffer<T>> {
        self.start(buffer, |buffer| {
            let count = self.block(Operation::AllGather, "buffer", length(buffer))?;
            Ok(Wish::new::<T>(Operation::AllGather, count, Place::Within(view(buffer))))
        })
    }

    /// Combines every rank's `input`, which holds one block for each rank; rank `r` gets the `r`-th block of the result
    /// in `output`.
    ///
    /// # Errors
    /// As [`Communicator::allreduce`], where `input` is `size` times as long as `output`.
    #[inline]
    pub fn reduce_scatter<T: Element>(
        &self,
        input: Buffer<T>,
        output: Buffer<T>,
        reduce: impl Into<Reduce<T>>,
    ) -> Submitted<'_, (Buffer<T>, Buffer<T>)> {
        let reduce = reduce.into();
        self.start((input, output), |(input, output)| {
            let place = Place::Apart(Some(view(input)), Some(view(output)));
            Ok(Wish::new::<T>(Operation::ReduceScatter, length(output), place).reduce(reduce))
        })
    }

    /// As [`Communicator::reduce_scatter`], the result being in this rank's own block of the buffer. What the other
    /// blocks then hold is not defined.
    ///
    /// # Errors
    /// As [`Communicator::reduce_scatter`].
    #[inline]
    pub fn reduce_scatter_in_place<T: Element>(
        &self,
        buffer: Buffer<T>,
        reduce: impl Into<Reduce<T>>,
    ) -> Submitted<'_, Buffer<T>> {
        let reduce = reduce.into();
        self.start(buffer, |buffer| {
            let count = self.block(Operation::ReduceScatter, "buffer", length(buffer))?;
            let place = Place::Within(view(buffer));
            Ok(Wish::new::<T>(Operation::ReduceScatter, count, place).reduce(reduce))
        })
    }

    /// Every rank's `input`, in rank order, to the root's `output`, which holds one block for each rank. Other ranks
    /// need none.
    ///
    /// # Errors
    /// [`crate::SubmitError`] when nothing was sent: lengths do not fit, or `root` is not a rank.
    #[inline]
    pub fn gather<T: Element>(
        &self,
        input: Buffer<T>,
        output: impl Into<Option<Buffer<T>>>,
        root: u32,
    ) -> Submitted<'_, (Buffer<T>, Option<Buffer<T>>)> {
        self.start((input, output.into()), |(input, output)| {
            let place = Place::Apart(Some(view(input)), output.as_ref().map(view));
            Ok(Wish::new::<T>(Operation::Gather, length(input), place).rank(root))
        })
    }

    /// As [`Communicator::gather`], the root's input being its own block of its buffer; other ranks' buffers are their
    /// inputs.
    ///
    /// # Errors
    /// As [`Communicator::gather`].
    #[inline]
    pub fn gather_in_place<T: Element>(&self, buffer: Buffer<T>, root: u32) -> Submitted<'_, Buffer<T>> {
        self.rooted_in_place(Operation::Gather, buffer, root)
    }

    /// The `r`-th block of the root's `input`, which holds one for each rank, to rank `r`'s `output`. Other ranks need no
    /// input.
    ///
    /// # Errors
    /// As [`Communicator::gather`].
    #[inline]
    pub fn scatter<T: Element>(
        &self,
        input: impl Into<Option<Buffer<T>>>,
        output: Buffer<T>,
        root: u32,
    ) -> Submitted<'_, (Option<Buffer<T>>, Buffer<T>)> {
        self.start((input.into(), output), |(input, output)| {
            let place = Place::Apart(input.as_ref().map(view), Some(view(output)));
            Ok(Wish::new::<T>(Operation::Scatter, length(output), place).rank(root))
        })
    }

    /// As [`Communicator::scatter`], the root's own block staying where it is in its buffer; other ranks' buffers are
    /// their outputs.
    ///
    /// # Errors
    /// As [`Communicator::gather`].
    #[inline]
    pub fn scatter_in_place<T: Element>(&self, buffer: Buffer<T>, root: u32) -> Submitted<'_, Buffer<T>> {
        self.rooted_in_place(Operation::Scatter, buffer, root)
    }

    /// The `j`-th block of rank `i`'s `input` becomes the `i`-th block of rank `j`'s `output`. Both hold one block for
    /// each rank.
    ///
    /// # Errors
    /// [`crate::SubmitError`] when nothing was sent: lengths differ or cannot be divided among the ranks.
    #[inline]
    pub fn all_to_all<T: Element>(
        &self,
        input: Buffer<T>,
        output: Buffer<T>,
    ) -> Submitted<'_, (Buffer<T>, Buffer<T>)> {
        self.start((input, output), |(input, output)| {
            let count = self.block(Operation::AllToAll, "input", length(input))?;
            let place = Place::Apart(Some(view(input)), Some(view(output)));
            Ok(Wish::new::<T>(Operation::AllToAll, count, place))
        })
    }

    /// As [`Communicator::all_to_all`], with the result in place of the input.
    ///
    /// # Errors
    /// As [`Communicator::all_to_all`].
    #[inline]
    pub fn all_to_all_in_place<T: Element>(&self, buffer: Buffer<T>) -> Submitted<'_, Buffer<T>> {
        self.start(buffer, |buffer| {
            let count = self.block(Operation::AllToAll, "buffer", length(buffer))?;
            Ok(Wish::new::<T>(Operation::AllToAll, count, Place::Within(view(buffer))))
        })
    }

    /// Ends when every rank has called it.
    ///
    /// # Errors
    /// [`crate::SubmitError`] when it could not be sent.
    pub fn barrier(&self) -> Submitted<'_, ()> {
        self.start((), |()| Ok(Wish::new::<u8>(Operation::Barrier, 0, Place::Apart(None, None))))
    }

    // So that what follows from the operation is known when it is compiled.
    #[inline(always)]
    fn combine<T: Element>(
        &self,
        operation: Operation,
        input: Buffer<T>,
        output: Buffer<T>,
        reduce: Reduce<T>,
    ) -> Submitted<'_, (Buffer<T>, Buffer<T>)> {
        self.start((input, output), |(input, output)| {
            let place = Place::Apart(Some(view(input)), Some(view(output)));
            Ok(Wish::new::<T>(operation, length(input), place).reduce(reduce))
        })
    }

    #[inline(always)]
    fn combine_in_place<T: Element>(
        &self,
        operation: Operation,
        buffer: Buffer<T>,
        reduce: Reduce<T>,
    ) -> Submitted<'_, Buffer<T>> {
        self.start(buffer, |buffer| {
            Ok(Wish::new::<T>(operation, length(buffer), Place::Within(view(buffer))).reduce(reduce))
        })
    }

    #[inline(always)]
    fn rooted_in_place<T: Element>(
        &self,
        operation: Operation,
        buffer: Buffer<T>,
        root: u32,
    ) -> Submitted<'_, Buffer<T>> {
        self.start(buffer, |buffer| {
            let whole = length(buffer);
            let count = if self.rank == root { self.block(operation, "buffer", whole)? } else { whole };
            Ok(Wish::new::<T>(operation, count, Place::Within(view(buffer))).rank(root))
        })
    }
}
