//! Collectives in a cell which are waited for at once, and with which nothing is unusual: small ones take about as long as
//! it takes to check them, so these checks are made for speed. Whatever does not pass goes the ordinary way, which finds
//! out what is wrong.

use std::sync::Arc;

use ringway_cell::{Call, CallMemory, Exchange, Signature};
use ringway_mem::Window;
use ringway_types::Reduction;

use super::{Operand, Place, View, Wish};
use crate::{
    Communicator,
    arena::Registered,
    cell::{self, Calls, Known},
    pending::Tickets,
};

/// A part of a view.
#[derive(Debug, Clone, Copy)]
struct Part<'w> {
    window: Window<'w>,
    place: ringway_cell::Place,
}

impl<'w> Part<'w> {
    #[inline(always)]
    fn of(view: View<'w>, offset: u64, bytes: u64) -> Option<Self> {
        let handle = view.handle;
        Some(Self {
            window: view.window.sub(offset as usize, bytes as usize)?,
            place: ringway_cell::Place { region: handle.region, offset: handle.offset.wrapping_add(offset) },
        })
    }
}

impl Communicator {
    /// Makes such a call and waits for it for a while; `None` when it is not one, and nothing was done.
    #[inline(always)]
    pub(super) fn make_quickly(&self, wish: Wish<View<'_>>) -> Option<Tickets> {
        let calls = self.calls.as_ref().filter(|_| self.blocks.get())?;
        let mut calls = calls.borrow_mut();
        if calls.is_group_open() {
            return None;
        }
        let Wish { operation, datatype, rank, count, .. } = wish;
        let (reduction, scalar) = wish.reduce.unzip();
        let root = if operation.has_root() { rank } else { 0 };
        let polls = calls.polls();
        let known = calls.recall(&Signature { operation, datatype, reduction, root, count })?;
        let (input, output) = self.parts(known, wish.place)?;
        let scalar = scalar.filter(|_| reduction == Some(Reduction::PremulSum));
        if !known.prepared.is_prompt(polls) {
            let [input, output] = [input, output].map(|part| part.map(|part| part.place));
            let (scale, counts, staging) = (scalar, &[][..], None);
            let call =
                Call { operation, datatype, reduction, scale, root, count, counts, input, output, staging };
            return make_large(&mut calls, &call, wish.place);
        }
        let large = !known.prepared.is_small();
        let memory = CallMemory {
            input: input.map(|part| part.window),
            output: output.map(|part| part.window),
            places: [input.map(|part| part.place), output.map(|part| part.place)],
            scale: scalar.unwrap_or(0),
        };
        match calls.exchange(&memory)? {
            Exchange::Done => Some(Tickets::Over),
            Exchange::Pending(sequence) => Some(keep(&mut calls, (sequence, large), wish.place)),
            Exchange::Declined => None,
        }
    }

    /// What a call reads and writes, if its memory is as long as it must be, and this client's.
    #[inline(always)]
    fn parts<'w>(
        &self,
        known: &Known,
        place: Place<View<'w>>,
    ) -> Option<(Option<Part<'w>>, Option<Part<'w>>)> {
        let (reads, writes) = known.prepared.bytes();
        let whole = |view: Option<View<'w>>, bytes: u64| match view {
            _ if bytes == 0 => Some(None),
            Some(view) if view.bytes() == bytes && view.is_of(&self.client) => Some(Part::of(view, 0, bytes)),
            _ => None,
        };
        match place {
            Place::Apart(input, output) => Some((whole(input, reads)?, whole(output, writes)?)),
            Place::Within(view) if view.bytes() == reads.max(writes) && view.is_of(&self.client) => {
                let part = |offset, bytes| if bytes == 0 { None } else { Part::of(view, offset, bytes) };
                Some((part(known.within.0, reads), part(known.within.1, writes)))
            }
            Place::Within(_) => None,
        }
    }
}

/// The registered memory that a call names.
fn regions<'b>(place: Place<View<'b>>) -> [Option<&'b Arc<Registered>>; 2] {
    place.operands().map(|view| view.and_then(|view| view.region))
}

/// Publishes a large call, if there is a slot for it, and works on it for a while.
#[inline(always)]
fn make_large(calls: &mut Calls, call: &Call<'_>, place: Place<View<'_>>) -> Option<Tickets> {
    let sequence = calls.submit(call, regions(place), true)?;
    Some(Tickets::Cell(cell::Ticket::Call(sequence)))
}

/// Keeps a call that is not over yet.
#[cold]
fn keep(calls: &mut Calls, (sequence, large): (u64, bool), place: Place<View<'_>>) -> Tickets {
    calls.keep(sequence, large, regions(place).map(|region| region.cloned()));
    Tickets::Cell(cell::Ticket::Call(sequence))
}
