//! Ranks with memory of a GPU: operations in a stream, timed there.

use std::{sync::Arc, time::Instant};

use ringway_client::{
    Arena, Client, Reduce,
    cuda::{CudaError, Enqueued, Event, Gpu, GpuArena, GpuBuffer, OnStream, Stream},
};
use ringway_types::Reduction;

use super::{
    call::{Buffers, Call},
    check,
    pattern::{Sample, scalar},
    report::percentile,
    spec::Measured,
};

/// Copies by which the bandwidth of the GPU's memory is told.
const COPIES: usize = 10;
/// Bytes of each, if there is room: more than its caches hold.
const COPIED: u64 = 256 << 20;

/// This rank's GPU.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) gpu: Arc<Gpu>,
    stream: Stream,
    arena: GpuArena,
    /// Bytes per nanosecond, read and written, that a copy within its memory moves.
    pub(crate) copy_gbps: f64,
}

/// A call's buffers.
#[derive(Debug)]
pub(crate) struct GpuBuffers<T: Sample> {
    input: Option<GpuBuffer<T>>,
    output: Option<GpuBuffer<T>>,
}

/// What one call took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Took {
    /// Nanoseconds from the stream's coming to it until it went on.
    pub(crate) stream_ns: f64,
    /// Nanoseconds that this thread took to put it there.
    pub(crate) launch_ns: f64,
}

fn said(error: CudaError) -> String {
    error.to_string()
}

impl Side {
    pub(crate) fn new(client: &Client, gpu: Arc<Gpu>, bytes: u64) -> Result<Self, String> {
        let stream = Stream::new(&gpu).map_err(said)?;
        let arena = client.gpu_arena(&gpu, bytes).map_err(|e| e.to_string())?;
        Ok(Self { gpu, stream, arena, copy_gbps: 0.0 })
    }

    /// Measures what a copy moves; the other ranks' GPU is quiet meanwhile.
    pub(crate) fn measure_copy(&mut self) -> Result<(), String> {
        let bytes = (self.arena.bytes() / 2).min(COPIED) & !255;
        let make = || self.arena.buffer::<u8>(bytes as usize).map_err(|e| e.to_string());
        let (from, to) = (make()?, make()?);
        let mut took = Vec::new();
        for _ in 0..COPIES {
            let ns = self.between(|| from.copy_to(&self.stream, &to).map_err(said))?;
            took.push(ns);
        }
        took.sort_by(f64::total_cmp);
        self.copy_gbps = 2.0 * bytes as f64 / percentile(&took, 500).max(1.0);
        Ok(())
    }

    /// Nanoseconds in the stream of what is put there.
    fn between(&self, put: impl FnOnce() -> Result<(), String>) -> Result<f64, String> {
        let (before, after) = (Event::new(&self.gpu).map_err(said)?, Event::new(&self.gpu).map_err(said)?);
        before.record(&self.stream).map_err(said)?;
        put()?;
        after.record(&self.stream).map_err(said)?;
        self.stream.synchronize().map_err(said)?;
        after.since_us(&before).map(|us| us * 1e3).map_err(said)
    }

    /// Fresh buffers for the call.
    pub(crate) fn buffers<T: Sample>(&self, call: &Call<'_>) -> Result<GpuBuffers<T>, String> {
        let make = |elements: u64| self.arena.buffer::<T>(elements as usize).map_err(|e| e.to_string());
        let (input, output) = call.lengths();
        if !call.in_place {
            return Ok(GpuBuffers {
                input: input.map(make).transpose()?,
                output: output.map(make).transpose()?,
            });
        }
        let whole = make(input.unwrap_or(0).max(output.unwrap_or(0)))?;
        let (input_at, output_at) = call.places();
        let part = |(first, length): (u64, u64)| whole.slice(first as usize..(first + length) as usize);
        Ok(GpuBuffers {
            input: input.and_then(|_| part(input_at)),
            output: output.and_then(|_| part(output_at)),
        })
    }

    /// Makes the call, and waits for the stream.
    pub(crate) fn run<T: Sample>(&self, call: &Call<'_>, buffers: &GpuBuffers<T>) -> Result<Took, String> {
        let mut launch_ns = 0.0;
        let mut ended = None;
        let stream_ns = self.between(|| {
            let begun = Instant::now();
            let enqueued = self.enqueue(call, buffers)?;
            launch_ns = begun.elapsed().as_nanos() as f64;
            ended = Some(enqueued);
            Ok(())
        })?;
        for enqueued in ended.into_iter().flatten().flatten() {
            enqueued.wait().map_err(|e| e.to_string())?;
        }
        Ok(Took { stream_ns, launch_ns })
    }

    fn enqueue<'c, T: Sample>(
        &'c self,
        call: &Call<'c>,
        buffers: &GpuBuffers<T>,
    ) -> Result<[Option<Enqueued<'c>>; 2], String> {
        use Measured as M;
        let (on, root) = (call.world.on(&self.stream), call.case.root);
        let reduce = || match call.case.reduction {
            Some(Reduction::PremulSum) => T::premul(scalar(call.world.rank())),
            other => Reduce::from(other.unwrap_or(Reduction::Sum)),
        };
        let GpuBuffers { input, output } = buffers;
        let (input, output) = (input.as_ref(), output.as_ref());
        let enqueued = match (call.what, input, output) {
            (M::Barrier, ..) => on.barrier(),
            (M::Broadcast, _, Some(output)) => on.broadcast(input, output, root),
            (M::Scatter, _, Some(output)) => on.scatter(input, output, root),
            (M::ScatterV, _, Some(output)) => on.scatter_v(input, output, &call.counts, root),
            (M::Reduce, Some(input), _) => on.reduce(input, output, root, reduce()),
            (M::Gather, Some(input), _) => on.gather(input, output, root),
            (M::GatherV, Some(input), _) => on.gather_v(input, output, &call.counts, root),
            (M::SendRecv, Some(input), Some(output)) => {
                let (next, before) = call.neighbours();
                let both = on.send_recv((input, next, 1), (output, before, 1));
                return both.map(|both| both.map(Some)).map_err(|e| e.to_string());
            }
            (_, Some(input), Some(output)) => both(call, &on, (input, output), reduce()),
            _ => return Ok([None, None]),
        };
        enqueued.map(|enqueued| [Some(enqueued), None]).map_err(|e| e.to_string())
    }

    /// Runs the call once on known inputs; how many elements of this rank's buffers are wrong afterwards.
    pub(crate) fn wrong_elements<T: Sample>(&self, call: &Call<'_>, arena: &Arena) -> Result<u64, String> {
        let mut host = call.buffers::<T>(arena)?;
        check::fill(call, &mut host);
        let buffers = self.buffers::<T>(call)?;
        self.exchange(call, &buffers, &mut host, true)?;
        self.run(call, &buffers)?;
        self.exchange(call, &buffers, &mut host, false)?;
        Ok(check::count_wrong(call, &host))
    }

    /// Copies a call's buffers between the host's memory and the GPU's.
    fn exchange<T: Sample>(
        &self,
        call: &Call<'_>,
        buffers: &GpuBuffers<T>,
        host: &mut Buffers<T>,
        up: bool,
    ) -> Result<(), String> {
        let (input_at, output_at) = call.touched_apart();
        let mut pairs = Vec::new();
        if call.in_place {
            // Whichever is longer has the other in it.
            let whole = if input_at.1 > output_at.1 {
                (&buffers.input, input_at)
            } else {
                (&buffers.output, output_at)
            };
            pairs.push((whole.0, whole.1, host.output.as_deref_mut()));
        } else {
            pairs.push((&buffers.input, input_at, host.input.as_deref_mut()));
            pairs.push((&buffers.output, output_at, host.output.as_deref_mut()));
        }
        for (there, (first, length), here) in pairs {
            let (Some(there), Some(here)) = (there, here) else { continue };
            let Some(here) = here.get_mut(first as usize..(first + length) as usize) else { continue };
            let copied =
                if up { there.upload(&self.stream, here) } else { there.download(&self.stream, here) };
            copied.map_err(said)?;
        }
        Ok(())
    }
}

/// The operations for which every rank has both buffers.
fn both<'c, T: Sample>(
    call: &Call<'_>,
    on: &OnStream<'c>,
    (input, output): (&GpuBuffer<T>, &GpuBuffer<T>),
    reduce: Reduce<T>,
) -> Result<Enqueued<'c>, ringway_client::CallError> {
    use Measured as M;
    match call.what {
        M::Scan => on.scan(input, output, reduce),
        M::Exscan => on.exscan(input, output, reduce),
        M::AllGather => on.all_gather(input, output),
        M::AllGatherV => on.all_gather_v(input, output, &call.counts),
        M::ReduceScatter => on.reduce_scatter(input, output, reduce),
        M::ReduceScatterV => on.reduce_scatter_v(input, output, &call.counts, reduce),
        M::AllToAll => on.all_to_all(input, output),
        M::AllToAllV => on.all_to_all_v(input, &call.sends, output, &call.receives),
        _ => on.allreduce(input, output, reduce),
    }
}
