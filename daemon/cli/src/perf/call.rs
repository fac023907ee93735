//! One rank's call of an operation, with its buffers.

use ringway_client::{Arena, Buffer, Communicator, Error, Failure, Reduce};
use ringway_types::Reduction;

use super::{
    offsets::{Offset, PAGE},
    pattern::{Case, Sample, scalar},
    spec::Measured,
};

/// The buffers of a call, owned by the caller between calls.
#[derive(Debug)]
pub(crate) struct Buffers<T: Sample> {
    /// `None` in place, and where the rank has no input.
    pub(crate) input: Option<Buffer<T>>,
    /// In place, the one buffer. `None` where the rank has no output.
    pub(crate) output: Option<Buffer<T>>,
}

/// Why a call failed.
#[cold]
fn said<B>(failure: Failure<B>) -> String {
    failure.error.to_string()
}

/// A buffer that begins at this place in a page, a whole number of elements.
fn place<T: Sample>(at: u64, elements: usize, arena: &Arena) -> Result<Buffer<T>, String> {
    let page = PAGE as usize / size_of::<T>();
    let whole = arena.buffer::<T>(elements + page).map_err(|e| e.to_string())?;
    let begins = whole.as_ptr().addr() as u64 % PAGE;
    let before = ((at + PAGE - begins) % PAGE) as usize / size_of::<T>();
    let no_room = |_| "an arena's buffer is shorter than asked for".to_owned();
    let (_, rest) = whole.split_at(before).map_err(no_room)?;
    rest.split_at(elements).map(|(buffer, _)| buffer).map_err(no_room)
}

/// A call that can be repeated.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) world: &'a Communicator,
    pub(crate) what: Measured,
    pub(crate) case: Case,
    pub(crate) in_place: bool,
    /// On ordinary slices rather than registered buffers.
    pub(crate) unregistered: bool,
    /// Where the buffers begin; `None` for where the arena puts them.
    pub(crate) offset: Option<Offset>,
    /// Elements of every rank's block, for operations with counts.
    pub(crate) counts: Vec<u64>,
    pub(crate) sends: Vec<u64>,
    pub(crate) receives: Vec<u64>,
}

impl<'a> Call<'a> {
    pub(crate) fn new(
        world: &'a Communicator,
        what: Measured,
        case: Case,
        in_place: bool,
        unregistered: bool,
    ) -> Self {
        let ranks = 0..case.ranks;
        let rank = world.rank();
        Self {
            world,
            what,
            case,
            in_place,
            unregistered,
            offset: None,
            counts: ranks.clone().map(|r| case.block(r)).collect(),
            sends: ranks.clone().map(|r| case.pair(rank, r)).collect(),
            receives: ranks.map(|r| case.pair(r, rank)).collect(),
        }
    }

    /// Whether the operation has an in-place form; fewer have one on ordinary slices.
    pub(crate) const fn has_in_place(what: Measured, unregistered: bool) -> bool {
        use Measured as M;
        if unregistered {
            return matches!(what, M::Allreduce | M::Reduce | M::Broadcast | M::Scan | M::Exscan);
        }
        !matches!(what, M::Barrier | M::SendRecv | M::AllToAllV)
    }

    /// Whether it has a form with an input and an output; a broadcast of ordinary slices has one slice only.
    pub(crate) const fn has_out_of_place(what: Measured, unregistered: bool) -> bool {
        !(unregistered && matches!(what, Measured::Broadcast))
    }

    fn is_root(&self) -> bool {
        self.world.rank() == self.case.root
    }

    /// Elements of this rank's input and output; `None` where it has none.
    pub(crate) fn lengths(&self) -> (Option<u64>, Option<u64>) {
        use Measured as M;
        let own = self.case.block(self.world.rank());
        let total: u64 = self.counts.iter().sum();
        let at_root = |n: u64| self.is_root().then_some(n);
        match self.what {
            M::Allreduce | M::Scan | M::Exscan | M::SendRecv => (Some(own), Some(own)),
            M::Reduce => (Some(own), at_root(own)),
            M::Broadcast => (at_root(own), Some(own)),
            M::AllGather | M::AllGatherV => (Some(own), Some(total)),
            M::ReduceScatter | M::ReduceScatterV => (Some(total), Some(own)),
            M::Gather | M::GatherV => (Some(own), at_root(total)),
            M::Scatter | M::ScatterV => (at_root(total), Some(own)),
            M::AllToAll | M::AllToAllV => (Some(self.sends.iter().sum()), Some(self.receives.iter().sum())),
            M::Barrier => (None, None),
        }
    }

    /// Where, in place, the input and the output lie in the one buffer, in elements: first and length of each.
    pub(crate) fn places(&self) -> ((u64, u64), (u64, u64)) {
        use Measured as M;
        let (input, output) = self.lengths();
        let (input, output) = (input.unwrap_or(0), output.unwrap_or(0));
        let rank = self.world.rank();
        let before: u64 = self.counts.iter().take(rank as usize).sum();
        match self.what {
            M::AllGather | M::AllGatherV => ((before, input), (0, output)),
            M::Gather | M::GatherV if self.is_root() => ((before, input), (0, output)),
            M::ReduceScatter | M::ReduceScatterV => ((0, input), (before, output)),
            M::Scatter | M::ScatterV if self.is_root() => ((0, input), (before, output)),
            _ => ((0, input), (0, output)),
        }
    }

    /// What this rank sends and what it gets, in elements of one buffer: first and length of each. Out of place the buffers
    /// are all of it.
    pub(crate) fn touched(&self) -> ((u64, u64), (u64, u64)) {
        let (_, output) = self.lengths();
        if self.in_place { self.places() } else { ((0, 0), (0, output.unwrap_or(0))) }
    }

    /// First and length of the input and of the output, in elements, each in its buffer.
    pub(crate) fn touched_apart(&self) -> ((u64, u64), (u64, u64)) {
        if self.in_place {
            return self.places();
        }
        let (input, output) = self.lengths();
        ((0, input.unwrap_or(0)), (0, output.unwrap_or(0)))
    }

    /// Elements that this rank's input and output have together.
    pub(crate) fn moved(&self) -> u64 {
        let (input, output) = self.lengths();
        input.unwrap_or(0) + output.unwrap_or(0)
    }

    /// Fresh buffers for the call.
    pub(crate) fn buffers<T: Sample>(&self, arena: &Arena) -> Result<Buffers<T>, String> {
        let make = |elements: u64, at: Option<u64>| match at {
            Some(at) => place(at, elements as usize, arena),
            None => arena.buffer::<T>(elements as usize).map_err(|e| e.to_string()),
        };
        let (input, output) = self.lengths();
        let output_at = self.offset.map(Offset::output_in_page);
        if self.in_place {
            let one = input.unwrap_or(0).max(output.unwrap_or(0));
            return Ok(Buffers { input: None, output: Some(make(one, output_at)?) });
        }
        let input_at = self.offset.map(|offset| offset.input);
        Ok(Buffers {
            input: input.map(|elements| make(elements, input_at)).transpose()?,
            output: output.map(|elements| make(elements, output_at)).transpose()?,
        })
    }

    fn reduce<T: Sample>(&self) -> Reduce<T> {
        match self.case.reduction {
            Some(Reduction::PremulSum) => T::premul(scalar(self.world.rank())),
            other => other.unwrap_or(Reduction::Sum).into(),
        }
    }

    /// Makes the call and waits for it. Buffers are moved as little as possible: the call may take less time than that.
    #[inline]
    pub(crate) fn run<T: Sample>(&self, buffers: &mut Buffers<T>) -> Result<(), String> {
        match (self.unregistered, self.in_place) {
            (true, in_place) => {
                let Buffers { input, output } = buffers;
                let (input, output) = (input.as_deref(), output.as_deref_mut());
                let ended = if in_place { self.slices_in_place(output) } else { self.slices(input, output) };
                ended.map_err(|e| e.to_string())
            }
            (false, true) => self.run_in_place(buffers),
            (false, false) => self.run_apart(buffers),
        }
    }

    fn run_apart<T: Sample>(&self, buffers: &mut Buffers<T>) -> Result<(), String> {
        use Measured as M;
        let (world, root) = (self.world, self.case.root);
        let (input, output) = match (self.what, buffers.input.take(), buffers.output.take()) {
            (M::Barrier, ..) => return world.run(Communicator::barrier).map_err(said),
            (M::Broadcast | M::Scatter | M::ScatterV, input, Some(output)) => {
                let ended = match self.what {
                    M::Broadcast => world.run(|w| w.broadcast(input, output, root)),
                    M::Scatter => world.run(|w| w.scatter(input, output, root)),
                    _ => world.run(|w| w.scatter_v(input, output, &self.counts, root)),
                };
                return ended.map_err(said).map(|(input, output)| {
                    buffers.input = input;
                    buffers.output = Some(output);
                });
            }
            (M::Reduce | M::Gather | M::GatherV, Some(input), output) => {
                let ended = match self.what {
                    M::Reduce => world.run(|w| w.reduce(input, output, root, self.reduce())),
                    M::Gather => world.run(|w| w.gather(input, output, root)),
                    _ => world.run(|w| w.gather_v(input, output, &self.counts, root)),
                };
                return ended.map_err(said).map(|(input, output)| {
                    buffers.input = Some(input);
                    buffers.output = output;
                });
            }
            (_, Some(input), Some(output)) => (input, output),
            (_, input, output) => {
                *buffers = Buffers { input, output };
                return Ok(());
            }
        };
        let ended = match self.what {
            M::Scan => world.run(|w| w.scan(input, output, self.reduce())),
            M::Exscan => world.run(|w| w.exscan(input, output, self.reduce())),
            M::AllGather => world.run(|w| w.all_gather(input, output)),
            M::AllGatherV => world.run(|w| w.all_gather_v(input, output, &self.counts)),
            M::ReduceScatter => world.run(|w| w.reduce_scatter(input, output, self.reduce())),
            M::ReduceScatterV => {
                world.run(|w| w.reduce_scatter_v(input, output, &self.counts, self.reduce()))
            }
            M::AllToAll => world.run(|w| w.all_to_all(input, output)),
            M::AllToAllV => world.run(|w| w.all_to_all_v(input, output, &self.sends, &self.receives)),
            M::SendRecv => {
                let (next, before) = self.neighbours();
                let (sent, received) =
                    world.run(|w| w.send_recv((input, next, 1), (output, before, 1))).map_err(said)?;
                Ok((sent, received.buffer))
            }
            _ => world.run(|w| w.allreduce(input, output, self.reduce())),
        };
        let (input, output) = ended.map_err(said)?;
        buffers.input = Some(input);
        buffers.output = Some(output);
        Ok(())
    }

    /// The next rank, which a message goes to, and the one before, which one comes from.
    pub(crate) fn neighbours(&self) -> (u32, u32) {
        let (rank, size) = (self.world.rank(), self.world.size());
        ((rank + 1) % size, (rank + size - 1) % size)
    }

    fn run_in_place<T: Sample>(&self, buffers: &mut Buffers<T>) -> Result<(), String> {
        use Measured as M;
        let (world, root) = (self.world, self.case.root);
        let Some(buffer) = buffers.output.take() else { return Ok(()) };
        let ended = match self.what {
            M::Scan => world.run(|w| w.scan_in_place(buffer, self.reduce())),
            M::Exscan => world.run(|w| w.exscan_in_place(buffer, self.reduce())),
            M::Reduce => world.run(|w| w.reduce_in_place(buffer, root, self.reduce())),
            M::Broadcast => world.run(|w| w.broadcast_in_place(buffer, root)),
            M::AllGather => world.run(|w| w.all_gather_in_place(buffer)),
            M::AllGatherV => world.run(|w| w.all_gather_v_in_place(buffer, &self.counts)),
            M::ReduceScatter => world.run(|w| w.reduce_scatter_in_place(buffer, self.reduce())),
            M::ReduceScatterV => {
                world.run(|w| w.reduce_scatter_v_in_place(buffer, &self.counts, self.reduce()))
            }
            M::Gather => world.run(|w| w.gather_in_place(buffer, root)),
            M::GatherV => world.run(|w| w.gather_v_in_place(buffer, &self.counts, root)),
            M::Scatter => world.run(|w| w.scatter_in_place(buffer, root)),
            M::ScatterV => world.run(|w| w.scatter_v_in_place(buffer, &self.counts, root)),
            M::AllToAll => world.run(|w| w.all_to_all_in_place(buffer)),
            // Barrier, send_recv and all_to_all_v have no such form and are never asked for one.
            _ => world.run(|w| w.allreduce_in_place(buffer, self.reduce())),
        };
        buffers.output = Some(ended.map_err(said)?);
        Ok(())
    }

    fn slices<T: Sample>(&self, input: Option<&[T]>, output: Option<&mut [T]>) -> Result<(), Error> {
        use Measured as M;
        let (world, root) = (self.world.blocking(), self.case.root);
        match (self.what, input, output) {
            (M::Barrier, ..) => world.barrier(),
            (M::Scatter, input, Some(output)) => world.scatter(input, output, root),
            (M::ScatterV, input, Some(output)) => world.scatter_v(input, output, &self.counts, root),
            (M::Reduce, Some(input), output) => world.reduce(input, output, root, self.reduce()),
            (M::Gather, Some(input), output) => world.gather(input, output, root),
            (M::GatherV, Some(input), output) => world.gather_v(input, output, &self.counts, root),
            (M::Scan, Some(input), Some(output)) => world.scan(input, output, self.reduce()),
            (M::Exscan, Some(input), Some(output)) => world.exscan(input, output, self.reduce()),
            (M::AllGather, Some(input), Some(output)) => world.all_gather(input, output),
            (M::AllGatherV, Some(input), Some(output)) => world.all_gather_v(input, output, &self.counts),
            (M::ReduceScatter, Some(input), Some(output)) => {
                world.reduce_scatter(input, output, self.reduce())
            }
            (M::ReduceScatterV, Some(input), Some(output)) => {
                world.reduce_scatter_v(input, output, &self.counts, self.reduce())
            }
            (M::AllToAll, Some(input), Some(output)) => world.all_to_all(input, output),
            (M::AllToAllV, Some(input), Some(output)) => {
                world.all_to_all_v(input, output, &self.sends, &self.receives)
            }
            (M::SendRecv, Some(input), Some(output)) => {
                let (next, before) = self.neighbours();
                world.send_recv((input, next, 1), (output, before, 1)).map(|_| ())
            }
            (_, Some(input), Some(output)) => world.allreduce(input, output, self.reduce()),
            _ => Ok(()),
        }
    }

    fn slices_in_place<T: Sample>(&self, values: Option<&mut [T]>) -> Result<(), Error> {
        let (world, root) = (self.world.blocking(), self.case.root);
        let Some(values) = values else { return Ok(()) };
        match self.what {
            Measured::Scan => world.scan_in_place(values, self.reduce()),
            Measured::Exscan => world.exscan_in_place(values, self.reduce()),
            Measured::Reduce => world.reduce_in_place(values, root, self.reduce()),
            Measured::Broadcast => world.broadcast(values, root),
            _ => world.allreduce_in_place(values, self.reduce()),
        }
    }
}
