//! Small collectives in a cell which are waited for at once, and with which nothing is unusual: they take about as long
//! as it takes to check them, so these checks are made for speed. Whatever does not pass goes the ordinary way, which
//! finds out what is wrong.

use ringway_abi::extent::{Caller, InPlace, in_place_offset};
use ringway_cell::{Call, Exchange, INLINE_BYTES};
use ringway_mem::Window;
use ringway_types::{Operation, Reduction};

use super::{Place, View, Wish};
use crate::{
    Communicator,
    cell::{self, Calls},
    pending::Tickets,
};

/// A part of a view, `bytes` long.
#[derive(Debug, Clone, Copy)]
struct Part<'w> {
    view: View<'w>,
    offset: u64,
    bytes: u64,
}

impl<'w> Part<'w> {
    /// All of a view, if it is that long.
    #[inline(always)]
    fn whole(view: View<'w>, bytes: u64) -> Option<Self> {
        (view.bytes() == bytes).then_some(Self { view, offset: 0, bytes })
    }

    #[inline(always)]
    fn window(&self) -> Option<Window<'w>> {
        self.view.window.sub(self.offset as usize, self.bytes as usize)
    }

    #[inline(always)]
    fn place(&self) -> ringway_cell::Place {
        let handle = self.view.handle;
        ringway_cell::Place { region: handle.region, offset: handle.offset.wrapping_add(self.offset) }
    }
}

impl Communicator {
    /// Makes such a call and waits for it for a while; `None` when it is not one, and nothing was done.
    #[inline(always)]
    pub(super) fn make_quickly(&self, wish: &Wish<'_>) -> Option<Tickets> {
        let calls = self.calls.as_ref().filter(|_| self.blocks.get())?;
        let (input, output) = self.parts_of_small(wish)?;
        let mut calls = calls.borrow_mut();
        if calls.is_group_open() {
            return None;
        }
        let call = call_of(wish, input, output);
        let windows = (input.and_then(|part| part.window()), output.and_then(|part| part.window()));
        match calls.exchange(&call, windows)? {
            Exchange::Done => Some(Tickets::Over),
            Exchange::Pending(sequence) => Some(keep(&mut calls, sequence, [input, output])),
            Exchange::Declined => None,
        }
    }

    /// What a small collective without counts reads and writes, if it is one and all is as it must be.
    #[inline(always)]
    fn parts_of_small<'w>(&self, wish: &Wish<'w>) -> Option<(Option<Part<'w>>, Option<Part<'w>>)> {
        let Wish { operation, datatype, rank: root, count, .. } = *wish;
        let has_root = operation.has_root();
        if !operation.is_collective() || operation.has_counts() || (has_root && root >= self.size) {
            return None;
        }
        if wish.reduce.is_some_and(|(reduction, _)| !datatype.supports(reduction)) {
            return None;
        }
        let element = datatype.size() as u64;
        if count > INLINE_BYTES as u64 / element || (count == 0 && operation != Operation::Barrier) {
            return None;
        }
        let block = count * element;
        let (reads, writes) = ringway_cell::blocks(operation, self.size, self.rank == root);
        let (reads, writes) = (reads * block, writes * block);
        let (input, output) = match wish.place {
            Place::Apart(input, output) => {
                let part = |view: Option<View<'w>>, bytes| match view {
                    _ if bytes == 0 => Some(None),
                    Some(view) => Some(Some(Part::whole(view, bytes)?)),
                    None => None,
                };
                (part(input, reads)?, part(output, writes)?)
            }
            Place::Within(view) => {
                let caller = Caller { rank: self.rank, size: self.size, root };
                let within = |offset, bytes| Some(Part { view, offset, bytes });
                match in_place_offset(operation, caller, element, count, &[]) {
                    Some(InPlace::InputInOutput(at)) => (within(at, reads), Some(Part::whole(view, writes)?)),
                    Some(InPlace::OutputInInput(at)) => (Some(Part::whole(view, reads)?), within(at, writes)),
                    None if reads > 0 => (Some(Part::whole(view, reads)?), None),
                    None => (None, Some(Part::whole(view, writes)?)),
                }
            }
        };
        let is_own = |part: &Option<Part<'w>>| {
            let region = part.as_ref().and_then(|part| part.view.region);
            region.is_none_or(|region| region.client.is(&self.client))
        };
        (is_own(&input) && is_own(&output)).then_some((input, output))
    }
}

#[inline(always)]
fn call_of(wish: &Wish<'_>, input: Option<Part<'_>>, output: Option<Part<'_>>) -> Call<'static> {
    let (reduction, scalar) = wish.reduce.unzip();
    Call {
        operation: wish.operation,
        datatype: wish.datatype,
        reduction,
        scale: scalar.filter(|_| reduction == Some(Reduction::PremulSum)),
        root: wish.rank,
        count: wish.count,
        counts: &[],
        input: input.map(|part| part.place()),
        output: output.map(|part| part.place()),
        staging: None,
    }
}

/// Keeps a call that is not over yet.
#[cold]
fn keep(calls: &mut Calls, sequence: u64, parts: [Option<Part<'_>>; 2]) -> Tickets {
    let memory = parts.map(|part| part.and_then(|part| part.view.region).cloned());
    calls.keep(sequence, false, memory);
    Tickets::Cell(cell::Ticket::Call(sequence))
}
