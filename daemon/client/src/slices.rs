//! How the blocking operations get at ordinary slices: in the cell as they are, else through registered copies.

use ringway_cell::{OWN_INPUT, OWN_OUTPUT};
use ringway_mem::Window;
use ringway_types::Operation;
use zerocopy::IntoBytes as _;

use crate::{
    Buffer, Communicator, Element, Error, Reduce,
    cell::{self, Own},
    operation::{Place, Wish, view, view_of_slice},
    staging::copy,
};

/// A collective whose blocks are all of one length.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Uniform<T> {
    operation: Operation,
    count: u64,
    root: u32,
    reduce: Option<Reduce<T>>,
}

impl<T: Element> Uniform<T> {
    /// Of `count` elements: of the whole vector, or of one rank's block.
    #[inline]
    pub(crate) const fn new(operation: Operation, count: usize) -> Self {
        Self { operation, count: count as u64, root: 0, reduce: None }
    }

    #[inline]
    pub(crate) const fn root(mut self, root: u32) -> Self {
        self.root = root;
        self
    }

    #[inline]
    pub(crate) fn reduce(mut self, reduce: impl Into<Reduce<T>>) -> Self {
        self.reduce = Some(reduce.into());
        self
    }

    #[inline]
    fn wish<V: Copy>(self, place: Place<V>) -> Wish<V> {
        let wish = Wish::new::<T>(self.operation, self.count, place).rank(self.root);
        self.reduce.map_or(wish, |reduce| wish.reduce(reduce))
    }
}

impl Communicator {
    /// Runs a collective from one slice to another; a rank may lack one.
    #[inline]
    pub(crate) fn apart<T: Element>(
        &self,
        call: Uniform<T>,
        input: Option<&[T]>,
        output: Option<&mut [T]>,
    ) -> Result<(), Error> {
        let Some(calls) = &self.calls else { return self.apart_in_copies(call, input, output) };
        let input = input.map(|slice| Window::of(slice.as_bytes()));
        let output = output.map(|slice| Window::of_mut(slice.as_mut_bytes()));
        let from = input.map(|window| view_of_slice(window, OWN_INPUT));
        let to = output.map(|window| view_of_slice(window, OWN_OUTPUT));
        let checked = self.check(&call.wish(Place::Apart(from, to)), [&[], &[]])?;
        let nothing = Window::of(&[]);
        let own = Own::slices(input.unwrap_or(nothing), output.unwrap_or(nothing));
        self.run_in_cell(calls, &cell::call_of(&checked, &[]), own)
    }

    /// Runs a collective in place of one slice.
    #[inline]
    pub(crate) fn within<T: Element>(&self, call: Uniform<T>, values: &mut [T]) -> Result<(), Error> {
        let Some(calls) = &self.calls else { return self.within_copy(call, values) };
        let whole = Window::of_mut(values.as_mut_bytes());
        let view = view_of_slice(whole, OWN_OUTPUT);
        let checked = self.check(&call.wish(Place::Within(view)), [&[], &[]])?;
        self.run_in_cell(calls, &cell::call_of(&checked, &[]), Own::slices(whole, whole))
    }

    fn apart_in_copies<T: Element>(
        &self,
        call: Uniform<T>,
        input: Option<&[T]>,
        output: Option<&mut [T]>,
    ) -> Result<(), Error> {
        let stage = self.stage()?;
        let from = input.map(|slice| stage.input(slice)).transpose()?;
        let mut to = output.as_deref().map(|slice| stage.output(slice.len())).transpose()?;
        // What is not written must come back as it was.
        if let (Operation::Exscan, Some(to), Some(slice)) = (call.operation, &mut to, output.as_deref()) {
            stage.fill(to, slice)?;
        }
        let ended = self.run(|c| {
            c.start((from, to), |(from, to): &(Option<Buffer<T>>, Option<Buffer<T>>)| {
                Ok(call.wish(Place::Apart(from.as_ref().map(view), to.as_ref().map(view))))
            })
        })?;
        stage.end(ended, output);
        Ok(())
    }

    fn within_copy<T: Element>(&self, call: Uniform<T>, values: &mut [T]) -> Result<(), Error> {
        let stage = self.stage()?;
        let buffer = stage.input(values)?;
        let buffer =
            self.run(|c| c.start(buffer, |buffer: &Buffer<T>| Ok(call.wish(Place::Within(view(buffer))))))?;
        // Other ranks' memory is only read then.
        if call.operation != Operation::Reduce || self.rank == call.root {
            copy(&buffer, values);
        }
        stage.keep_input(buffer);
        Ok(())
    }
}
