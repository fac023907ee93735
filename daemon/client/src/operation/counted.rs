//! Collectives with a count for each rank, in elements.

use ringway_types::Operation;

use super::{Place, Submitted, Wish, length, view};
use crate::{Buffer, CallError, Communicator, Element, Reduce};

impl Communicator {
    /// Every rank's `input`, in rank order, to every rank's `output`. Rank `r`'s has `counts[r]` elements; every rank
    /// gives the same counts.
    ///
    /// # Errors
    /// [`crate::SubmitError`] when nothing was sent: there is not one count for each rank, or a length does not fit.
    pub fn all_gather_v<T: Element>(
        &self,
        input: Buffer<T>,
        output: Buffer<T>,
        counts: &[u64],
    ) -> Submitted<'_, (Buffer<T>, Buffer<T>)> {
        self.submit_counted(Operation::AllGatherV, (input, output), counts, None)
    }

    /// As [`Communicator::all_gather_v`], each rank's input being its own block of the buffer.
    ///
    /// # Errors
    /// As [`Communicator::all_gather_v`].
    pub fn all_gather_v_in_place<T: Element>(
        &self,
        buffer: Buffer<T>,
        counts: &[u64],
    ) -> Submitted<'_, Buffer<T>> {
        self.submit_counted_in_place(Operation::AllGatherV, buffer, counts, None)
    }

    /// Combines every rank's `input`, which holds a block of `counts[r]` elements for each rank `r`; rank `r` gets the
    /// `r`-th block of the result in `output`. Every rank gives the same counts.
    ///
    /// # Errors
    /// As [`Communicator::all_gather_v`]; also when the reduction is not defined for the type.
    pub fn reduce_scatter_v<T: Element>(
        &self,
        input: Buffer<T>,
        output: Buffer<T>,
        counts: &[u64],
        reduce: impl Into<Reduce<T>>,
    ) -> Submitted<'_, (Buffer<T>, Buffer<T>)> {
        self.submit_counted(Operation::ReduceScatterV, (input, output), counts, Some(reduce.into()))
    }

    /// As [`Communicator::reduce_scatter_v`], the result being in this rank's own block of the buffer. What the other
    /// blocks then hold is not defined.
    ///
    /// # Errors
    /// As [`Communicator::reduce_scatter_v`].
    pub fn reduce_scatter_v_in_place<T: Element>(
        &self,
        buffer: Buffer<T>,
        counts: &[u64],
        reduce: impl Into<Reduce<T>>,
    ) -> Submitted<'_, Buffer<T>> {
        self.submit_counted_in_place(Operation::ReduceScatterV, buffer, counts, Some(reduce.into()))
    }

    /// Every rank's `input`, in rank order, to the root's `output`. At the root rank `r`'s has `counts[r]` elements;
    /// other ranks' `counts` are not looked at, and they need no output.
    ///
    /// # Errors
    /// As [`Communicator::all_gather_v`]; also when `root` is not a rank.
    pub fn gather_v<T: Element>(
        &self,
        input: Buffer<T>,
        output: impl Into<Option<Buffer<T>>>,
        counts: &[u64],
        root: u32,
    ) -> Submitted<'_, (Buffer<T>, Option<Buffer<T>>)> {
        let own = [length(&input)];
        let counts = if self.rank == root { counts } else { &own };
        self.start_counted((input, output.into()), [counts, &[]], |(input, output)| {
            let place = Place::Apart(Some(view(input)), output.as_ref().map(view));
            Ok(Wish::new::<T>(Operation::GatherV, 0, place).rank(root))
        })
    }

    /// As [`Communicator::gather_v`], the root's input being its own block of its buffer; other ranks' buffers are their
    /// inputs.
    ///
    /// # Errors
    /// As [`Communicator::gather_v`].
    pub fn gather_v_in_place<T: Element>(
        &self,
        buffer: Buffer<T>,
        counts: &[u64],
        root: u32,
    ) -> Submitted<'_, Buffer<T>> {
        self.rooted_v_in_place(Operation::GatherV, buffer, counts, root)
    }

    /// The `r`-th block of the root's `input`, of `counts[r]` elements, to rank `r`'s `output`. Other ranks' `counts` are
    /// not looked at, and they need no input.
    ///
    /// # Errors
    /// As [`Communicator::gather_v`].
    pub fn scatter_v<T: Element>(
        &self,
        input: impl Into<Option<Buffer<T>>>,
        output: Buffer<T>,
        counts: &[u64],
        root: u32,
    ) -> Submitted<'_, (Option<Buffer<T>>, Buffer<T>)> {
        let own = [length(&output)];
        let counts = if self.rank == root { counts } else { &own };
        self.start_counted((input.into(), output), [counts, &[]], |(input, output)| {
            let place = Place::Apart(input.as_ref().map(view), Some(view(output)));
            Ok(Wish::new::<T>(Operation::ScatterV, 0, place).rank(root))
        })
    }

    /// As [`Communicator::scatter_v`], the root's own block staying where it is in its buffer; other ranks' buffers are
    /// their outputs.
    ///
    /// # Errors
    /// As [`Communicator::gather_v`].
    pub fn scatter_v_in_place<T: Element>(
        &self,
        buffer: Buffer<T>,
        counts: &[u64],
        root: u32,
    ) -> Submitted<'_, Buffer<T>> {
        self.rooted_v_in_place(Operation::ScatterV, buffer, counts, root)
    }

    /// Rank `i`'s `input` holds a block of `send_counts[j]` elements for each rank `j`, which becomes the `i`-th block of
    /// rank `j`'s `output`, of `receive_counts[i]` elements there.
    ///
    /// # Errors
    /// As [`Communicator::all_gather_v`].
    pub fn all_to_all_v<T: Element>(
        &self,
        input: Buffer<T>,
        output: Buffer<T>,
        send_counts: &[u64],
        receive_counts: &[u64],
    ) -> Submitted<'_, (Buffer<T>, Buffer<T>)> {
        let operation = Operation::AllToAllV;
        let expected = self.size as usize;
        if let Some(actual) = [send_counts.len(), receive_counts.len()].into_iter().find(|n| *n != expected) {
            let error = CallError::Counts { operation, actual, expected };
            return Err(crate::SubmitError { error, buffers: (input, output) });
        }
        self.start_counted((input, output), [send_counts, receive_counts], |(input, output)| {
            let place = Place::Apart(Some(view(input)), Some(view(output)));
            Ok(Wish::new::<T>(operation, 0, place))
        })
    }

    fn submit_counted<T: Element>(
        &self,
        operation: Operation,
        buffers: (Buffer<T>, Buffer<T>),
        counts: &[u64],
        reduce: Option<Reduce<T>>,
    ) -> Submitted<'_, (Buffer<T>, Buffer<T>)> {
        self.start_counted(buffers, [counts, &[]], |(input, output)| {
            let place = Place::Apart(Some(view(input)), Some(view(output)));
            let wish = Wish::new::<T>(operation, 0, place);
            Ok(reduce.map_or(wish, |reduce| wish.reduce(reduce)))
        })
    }

    fn submit_counted_in_place<T: Element>(
        &self,
        operation: Operation,
        buffer: Buffer<T>,
        counts: &[u64],
        reduce: Option<Reduce<T>>,
    ) -> Submitted<'_, Buffer<T>> {
        self.start_counted(buffer, [counts, &[]], |buffer| {
            let wish = Wish::new::<T>(operation, 0, Place::Within(view(buffer)));
            Ok(reduce.map_or(wish, |reduce| wish.reduce(reduce)))
        })
    }

    fn rooted_v_in_place<T: Element>(
        &self,
        operation: Operation,
        buffer: Buffer<T>,
        counts: &[u64],
        root: u32,
    ) -> Submitted<'_, Buffer<T>> {
        let own = [length(&buffer)];
        let counts = if self.rank == root { counts } else { &own };
        self.start_counted(buffer, [counts, &[]], |buffer| {
            let place = Place::Within(view(buffer));
            Ok(Wish::new::<T>(operation, 0, place).rank(root))
        })
    }
}
