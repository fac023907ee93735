//! What each rank of `ringway perf` does: the first one tells the parent, a JSON object per row.

use std::{hint::black_box, process::ExitCode, time::Instant};

use half::{bf16, f16};
use ringway_client::{Arena, Buffer, Client, Communicator, Environment, cuda};
use ringway_service::status::{CommunicatorStatus, DaemonStatus};
use ringway_types::{DataType, F8E4M3, F8E5M2, Reduction};

use super::{
    call::{Buffers, Call},
    check::wrong_elements,
    cuda::{GpuBuffers, Side},
    floor::{Floor, Kernel},
    offsets::Offset,
    overlap,
    pace::Pace,
    pattern::{Case, Sample},
    place,
    report::{Row, Times, percentile, round},
    round_trip::round_trip_ns,
    spec::{Measured, MemoryKind, Mode, Spec},
    tenants,
};
use crate::{local::launch::node_of, output};

/// The hidden first argument under which this program is a rank; the second is what to measure, as JSON.
pub const RANK: &str = "internal-perf-rank";

/// Bytes of what is written into inputs at once.
const ONES_BYTES: usize = 4096;

/// Samples about which ranks agree at once, for which every rank's arena has room.
const AGREED_AT_ONCE: usize = 4096;

/// Runs a rank.
///
/// # Errors
/// As a sentence; the parent prints it.
pub fn run_rank(spec: &str) -> Result<ExitCode, String> {
    let spec: Spec = serde_json::from_str(spec).map_err(|e| e.to_string())?;
    // The floor's threads choose theirs from all there are, wherever this one is kept.
    let processors = place::processors();
    // Before it joins: then others learn where it runs, and its memory is near.
    let environment = Environment::detect().map_err(|e| e.to_string())?;
    keep_in_place(&spec, (environment.rank as usize, environment.size as usize), &processors)?;
    let client = Client::connect().map_err(|e| e.to_string())?;
    let gpu = open_gpu(&spec, &environment)?;
    let world = client.communicator(&environment.id, environment.rank, environment.size);
    let world = gpu.iter().fold(world, |world, gpu| world.gpu(gpu)).join().map_err(|e| e.to_string())?;
    let largest = spec.sizes.iter().copied().max().unwrap_or(0);
    // Two buffers of the largest size, or as many as are under way at once, with room for uneven blocks and a stagger
    // between buffers.
    let buffers = tenants::depth(spec.mode, largest).max(2);
    let room = buffers * largest + u64::from(world.size()).pow(2) * 64 + (1 << 16);
    let arena = client.arena(room as usize).map_err(|e| e.to_string())?;
    let floor = if spec.floor && world.rank() == 0 {
        Some(Floor::new(world.size() as usize, largest as usize, processors.clone())?)
    } else {
        None
    };
    match spec.mode {
        Mode::Time => {}
        Mode::Overlap => return overlap::run_rank(&spec, &world, &arena).map(|()| ExitCode::SUCCESS),
        Mode::Bulk { .. } | Mode::Small => {
            return tenants::run_rank(&spec, &world, &arena).map(|()| ExitCode::SUCCESS);
        }
    }
    let mut side = gpu.map(|gpu| Side::new(&client, gpu, room)).transpose()?;
    barrier(&world)?;
    if let Some(side) = side.as_mut().filter(|_| world.rank() == 0) {
        side.measure_copy()?;
    }
    barrier(&world)?;
    let bench = Bench { spec: &spec, world: &world, arena: &arena, floor, processors, side };
    for point in bench.points() {
        bench.run(point)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The GPU of a rank that has its buffers there.
fn open_gpu(spec: &Spec, environment: &Environment) -> Result<Option<std::sync::Arc<cuda::Gpu>>, String> {
    if !spec.memory.is_on_gpu(environment.rank) {
        return Ok(None);
    }
    // A daemon works with one.
    cuda::Gpu::open(0).map(Some).map_err(|e| e.to_string())
}

/// Keeps a rank, of so many, on the processor that is meant for it, if one is.
fn keep_in_place(spec: &Spec, (rank, ranks): (usize, usize), processors: &[usize]) -> Result<(), String> {
    match spec.mode {
        Mode::Overlap => place::pin_to(overlap::places()?.0),
        _ if !spec.pin => {}
        Mode::Time => {
            let node = node_of(rank, ranks, spec.nodes);
            let before = (0..rank).filter(|other| node_of(*other, ranks, spec.nodes) == node).count();
            place::pin(before, place::of_node(processors, node, spec.nodes));
        }
        Mode::Bulk { .. } | Mode::Small => place::pin(rank, processors),
    }
    Ok(())
}

#[derive(Debug)]
struct Bench<'a> {
    spec: &'a Spec,
    world: &'a Communicator,
    arena: &'a Arena,
    /// Rank 0 measures it, when it is to be measured.
    floor: Option<Floor>,
    processors: Vec<usize>,
    /// The GPU, when this rank has its buffers there.
    side: Option<Side>,
}

/// What was measured.
#[derive(Debug)]
struct Timed {
    /// How many calls were timed.
    iterations: u64,
    /// Of each sample on this rank.
    nanoseconds: Vec<f64>,
    /// What did the calls, as the first rank's daemon says.
    algorithm: String,
    /// Nanoseconds to put a call into a stream, median.
    launch_ns: Option<f64>,
}

/// One row to be.
#[derive(Debug, Clone, Copy)]
struct Point {
    what: Measured,
    datatype: DataType,
    reduction: Option<Reduction>,
    in_place: bool,
    offset: Option<Offset>,
    size: u64,
}

impl Bench<'_> {
    /// Every combination that is defined.
    fn points(&self) -> Vec<Point> {
        let mut points = Vec::new();
        for &what in &self.spec.operations {
            let reduces = what.operation().reduces();
            let reductions: Vec<Option<Reduction>> =
                if reduces { self.spec.reductions.iter().copied().map(Some).collect() } else { vec![None] };
            let bare = what == Measured::Barrier;
            let datatypes = if bare { &[DataType::U8][..] } else { &self.spec.datatypes };
            let sizes = if bare { &[0][..] } else { &self.spec.sizes };
            for &datatype in datatypes {
                for &reduction in reductions.iter().filter(|r| r.is_none_or(|r| datatype.supports(r))) {
                    let forms: Vec<bool> = self
                        .spec
                        .in_place
                        .iter()
                        .copied()
                        .filter(|in_place| {
                            let has = if *in_place { Call::has_in_place } else { Call::has_out_of_place };
                            has(what, self.spec.unregistered)
                        })
                        .collect();
                    // An operation without the form that was asked for is measured as it is.
                    let as_it_is = !Call::has_out_of_place(what, self.spec.unregistered);
                    let forms = if forms.is_empty() { vec![as_it_is] } else { forms };
                    for in_place in forms {
                        let point = Point { what, datatype, reduction, in_place, offset: None, size: 0 };
                        points.extend(sizes.iter().flat_map(|&size| self.places(Point { size, ..point })));
                    }
                }
            }
        }
        points
    }

    /// The point with every offset that is asked for.
    fn places(&self, point: Point) -> Vec<Point> {
        if self.spec.offsets.is_empty() {
            return vec![point];
        }
        self.spec.offsets.iter().map(|&offset| Point { offset: Some(offset), ..point }).collect()
    }

    fn run(&self, point: Point) -> Result<(), String> {
        match point.datatype {
            DataType::I8 => self.measure::<i8>(point),
            DataType::U8 => self.measure::<u8>(point),
            DataType::I32 => self.measure::<i32>(point),
            DataType::U32 => self.measure::<u32>(point),
            DataType::I64 => self.measure::<i64>(point),
            DataType::U64 => self.measure::<u64>(point),
            DataType::F16 => self.measure::<f16>(point),
            DataType::Bf16 => self.measure::<bf16>(point),
            DataType::F8E4M3 => self.measure::<F8E4M3>(point),
            DataType::F8E5M2 => self.measure::<F8E5M2>(point),
            DataType::F32 => self.measure::<f32>(point),
            DataType::F64 => self.measure::<f64>(point),
        }
    }

    fn measure<T: Sample>(&self, point: Point) -> Result<(), String> {
        let ranks = self.world.size();
        let (count, bytes) = point.what.count(point.size, point.datatype, u64::from(ranks));
        let case = Case {
            operation: point.what.operation(),
            reduction: point.reduction,
            ranks,
            root: self.spec.root.min(ranks - 1),
            count,
        };
        if self.world.rank() == 0 {
            // Not a row: the parent shows it on a terminal until the row comes.
            output::line(&format!("measuring {} {} {bytes} B ...", point.what.name(), point.datatype));
        }
        let mut call = Call::new(self.world, point.what, case, point.in_place, self.spec.unregistered);
        call.offset = point.offset;
        let wrong = if self.spec.check { Some(self.total(self.wrong_elements::<T>(&call)?)?) } else { None };
        let mut trips = self.round_trip();
        let Timed { iterations, nanoseconds, algorithm, launch_ns } = self.time::<T>(&call, bytes)?;
        let moved = self.total(call.moved() * size_of::<T>() as u64)?;
        trips.extend(self.round_trip());
        let slowest = agree_slowest(self.world, self.arena, &nanoseconds)?;
        let floor = self.floor_us(point, &case, bytes);
        if self.spec.floor {
            trips.extend(self.round_trip());
            // The others sleep here while the first one measures.
            barrier(self.world)?;
        }
        if self.world.rank() == 0 {
            let mut row = self.row(point, &case, bytes, slowest, wrong);
            row.iterations = iterations;
            row.algorithm = algorithm;
            row.round_trip_ns = trips;
            row.floor_us = floor;
            row.of_floor = floor.map(|floor| round(floor / row.time_us.p50.max(0.001), 3));
            if let Some(side) = &self.side {
                row.launch_us = launch_ns.map(|ns| round(ns / 1e3, 3));
                row.copy_GBps = Some(round(side.copy_gbps, 1));
                let rate = moved as f64 / (row.time_us.p50 * 1e3).max(1.0);
                row.of_copy = Some(round(rate / side.copy_gbps.max(1e-9), 3));
            }
            output::line(&serde_json::to_string(&row).map_err(|e| e.to_string())?);
        }
        Ok(())
    }

    fn row(&self, point: Point, case: &Case, bytes: u64, nanoseconds: Vec<f64>, errors: Option<u64>) -> Row {
        let time_us = Times::of(nanoseconds);
        let algbw = if time_us.p50 > 0.0 { bytes as f64 / time_us.p50 / 1e3 } else { 0.0 };
        let seen = as_the_daemon_sees(self.world);
        let combines = point.reduction.map_or("none", Reduction::name);
        Row {
            operation: point.what.name().to_owned(),
            bytes,
            count: case.count,
            datatype: point.datatype.name().to_owned(),
            reduction: combines.to_owned(),
            root: if case.operation.has_root() { i64::from(case.root) } else { -1 },
            ranks: self.world.size(),
            nodes: self.world.nodes(),
            device: if self.world.nodes() > 1 { self.world.device().to_owned() } else { "none".to_owned() },
            path: seen.path,
            rank_bytes: (self.world.nodes() > 1).then_some(seen.rank_bytes),
            algorithm: String::new(),
            in_place: point.in_place,
            unregistered: self.spec.unregistered,
            iterations: 0,
            time_us,
            algbw_GBps: round(algbw, 3),
            busbw_GBps: round(algbw * point.what.bus_factor(self.world.size()), 3),
            errors,
            offset: point.offset,
            floor_us: None,
            of_floor: None,
            round_trip_ns: Vec::new(),
            memory: (self.spec.memory != MemoryKind::Host).then(|| self.spec.memory.name().to_owned()),
            launch_us: None,
            copy_GBps: None,
            of_copy: None,
        }
    }

    /// How far the first two processors are apart now, when this rank is to measure it: one value or none.
    fn round_trip(&self) -> Vec<f64> {
        let measures = self.spec.round_trip && self.world.rank() == 0;
        let found = if measures { round_trip_ns(&self.processors) } else { None };
        found.map(|ns| round(ns, 1)).into_iter().collect()
    }

    /// What the bare kernel takes, when this rank is to measure it.
    fn floor_us(&self, point: Point, case: &Case, bytes: u64) -> Option<f64> {
        let kernel = Kernel {
            what: point.what,
            datatype: point.datatype,
            reduction: point.reduction.unwrap_or(Reduction::Sum),
            root: case.root as usize,
            in_place: point.in_place,
            block: case.count as usize * point.datatype.size(),
            bytes,
        };
        let floor = self.floor.as_ref().filter(|_| Floor::has(point.what))?;
        Some(floor.time(&kernel, self.spec))
    }

    fn wrong_elements<T: Sample>(&self, call: &Call<'_>) -> Result<u64, String> {
        match &self.side {
            Some(side) => side.wrong_elements::<T>(call, self.arena),
            None => wrong_elements::<T>(call, self.arena),
        }
    }

    /// Whether each call is timed by itself. All ranks must decide alike.
    fn is_aligned(&self, bytes: u64) -> bool {
        self.spec.memory != MemoryKind::Host || Pace::is_aligned(bytes, self.world.nodes())
    }

    /// The same as [`Bench::time`], step by step, in a stream.
    fn time_on_gpu<T: Sample>(&self, call: &Call<'_>, side: &Side) -> Result<Timed, String> {
        let buffers: GpuBuffers<T> = side.buffers(call)?;
        let mut each = f64::INFINITY;
        for _ in 0..self.spec.warmup {
            each = each.min(side.run(call, &buffers)?.stream_ns);
        }
        let pace = Pace::of(self.spec, true, self.agreed_maximum(each)?);
        let (mut times, mut launches) = (Vec::new(), Vec::new());
        let mut algorithm = String::new();
        let started = Instant::now();
        for sample in 0..pace.samples {
            barrier(self.world)?;
            let took = side.run(call, &buffers)?;
            times.push(took.stream_ns);
            launches.push(took.launch_ns);
            if sample == 0 && self.world.rank() == 0 {
                algorithm = as_the_daemon_sees(self.world).algorithm;
            }
            barrier(self.world)?;
            let spent = || self.agreed_maximum(started.elapsed().as_nanos() as f64);
            if pace.looks_after(self.spec, sample) && Pace::is_over(self.spec, spent()?) {
                break;
            }
        }
        launches.sort_by(f64::total_cmp);
        let launch_ns = Some(percentile(&launches, 500));
        Ok(Timed { iterations: times.len() as u64, nanoseconds: times, algorithm, launch_ns })
    }

    fn time<T: Sample>(&self, call: &Call<'_>, bytes: u64) -> Result<Timed, String> {
        if let Some(side) = &self.side {
            return self.time_on_gpu::<T>(call, side);
        }
        let mut buffers = call.buffers::<T>(self.arena)?;
        let places = call.touched();
        let ones = vec![T::of(1); ONES_BYTES / size_of::<T>()];
        // The fastest call tells what one takes: others may have been interrupted.
        let mut each = f64::INFINITY;
        for _ in 0..self.spec.warmup {
            touch(&mut buffers, &ones, places);
            let begun = Instant::now();
            call.run(&mut buffers)?;
            each = each.min(begun.elapsed().as_nanos() as f64);
        }
        let aligned = self.is_aligned(bytes);
        // All ranks must decide alike, or they would call different numbers of operations.
        let pace = Pace::of(self.spec, aligned, self.agreed_maximum(each)?);
        let mut times = Vec::with_capacity(pace.samples as usize);
        let mut algorithm = String::new();
        let started = Instant::now();
        for sample in 0..pace.samples {
            if aligned {
                touch(&mut buffers, &ones, places);
            }
            barrier(self.world)?;
            let begun = Instant::now();
            for _ in 0..pace.calls {
                if !aligned {
                    touch(&mut buffers, &ones, places);
                }
                call.run(&mut buffers)?;
            }
            times.push(begun.elapsed().as_nanos() as f64 / f64::from(pace.calls));
            if sample == 0 && self.world.rank() == 0 {
                // Now, while no other collective can have run after those that are measured.
                algorithm = as_the_daemon_sees(self.world).algorithm;
            }
            if aligned {
                // With more ranks than processors, whoever is first to touch its buffers again would take the processor
                // from others that are about to read the clock.
                barrier(self.world)?;
            }
            let spent = || self.agreed_maximum(started.elapsed().as_nanos() as f64);
            if pace.looks_after(self.spec, sample) && Pace::is_over(self.spec, spent()?) {
                break;
            }
        }
        let iterations = times.len() as u64 * u64::from(pace.calls);
        Ok(Timed { iterations, nanoseconds: times, algorithm, launch_ns: None })
    }

    fn agreed_maximum(&self, value: f64) -> Result<f64, String> {
        Ok(agree_slowest(self.world, self.arena, &[value])?.first().copied().unwrap_or(value))
    }

    fn total(&self, value: u64) -> Result<u64, String> {
        let mut buffer = self.arena.buffer::<u64>(1).map_err(|e| e.to_string())?;
        buffer.fill(value);
        combine(self.world, buffer, Reduction::Sum).map(|b| b.first().copied().unwrap_or(0))
    }
}

fn combine<T: Sample>(
    world: &Communicator,
    buffer: Buffer<T>,
    reduction: Reduction,
) -> Result<Buffer<T>, String> {
    world.run(|w| w.allreduce_in_place(buffer, reduction)).map_err(|e| e.error.to_string())
}

/// The slowest rank's time of every sample.
pub(crate) fn agree_slowest(world: &Communicator, arena: &Arena, mine: &[f64]) -> Result<Vec<f64>, String> {
    let mut slowest = Vec::with_capacity(mine.len());
    for piece in mine.chunks(AGREED_AT_ONCE) {
        let buffer = arena.buffer_from(piece).map_err(|e| e.to_string())?;
        slowest.extend_from_slice(&combine(world, buffer, Reduction::Max)?);
    }
    Ok(slowest)
}

/// The communicator of this size that was formed last, as the daemon sees it: the one that is measured.
fn as_the_daemon_sees(world: &Communicator) -> CommunicatorStatus {
    let status = world.client().status().ok();
    let status = status.and_then(|text| serde_json::from_str::<DaemonStatus>(&text).ok());
    let communicators = status.map(|s| s.communicators).unwrap_or_default();
    communicators.into_iter().rfind(|c| c.ranks == world.size()).unwrap_or_default()
}

/// Who does the communicator's collectives: `cell`, its ranks, or `engine`, the daemon.
pub(crate) fn path(world: &Communicator) -> String {
    as_the_daemon_sees(world).path
}

pub(crate) fn barrier(world: &Communicator) -> Result<(), String> {
    world.run(Communicator::barrier).map_err(|e| e.error.to_string())
}

/// What an application does between operations: it reads what it got and writes what it sends. In place both lie in the
/// one buffer, at the given first element and length. It writes `ones`, over and over: copied, which takes as long as
/// writing does when compiled for this processor, as the other libraries' programs are.
fn touch<T: Sample>(buffers: &mut Buffers<T>, ones: &[T], (input, output): ((u64, u64), (u64, u64))) {
    let part = |(first, length): (u64, u64)| first as usize..(first + length) as usize;
    if let Some(got) = buffers.output.as_deref().and_then(|values| values.get(part(output))) {
        let stride = (64 / size_of::<T>()).max(1);
        for value in got.iter().step_by(stride) {
            black_box(*value);
        }
    }
    let sent = match &mut buffers.input {
        Some(sent) => Some(&mut **sent),
        None => buffers.output.as_deref_mut().and_then(|values| values.get_mut(part(input))),
    };
    for piece in sent.into_iter().flat_map(|sent| sent.chunks_mut(ones.len().max(1))) {
        if let Some(ones) = ones.get(..piece.len()) {
            piece.copy_from_slice(ones);
        }
    }
}
