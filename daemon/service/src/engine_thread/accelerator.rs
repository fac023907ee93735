//! Pieces of local work that a GPU does: those that touch its memory. They are put into its streams, and reported when it says
//! that they are done; the engine thread never waits for it.

use std::{
    collections::BTreeMap,
    sync::{Arc, mpsc::Sender},
};

use crossbeam_queue::ArrayQueue;
use ringway_cuda::{
    Bytes, CudaError, Direction, Gpu, Host, Kernel, Mark, Operand, Pinned, Work, Worker, kernel::Spec,
};
use ringway_engine::{BufferRef, Collected, CommunicatorId, Handed, Piece, ReduceSource, RegionId, Ticket};
use ringway_mem::Mapping;
use ringway_types::{DataType, Reduction};

use super::{memory::Regions, region_memory::RegionMemory};
use crate::gpu_thread::{Retired, Task};

/// Vain looks after which the GPU is asked whether it still works: milliseconds, while the thread spins.
const LOOKS_PER_CHECK: u32 = 1 << 14;

/// Kernels that were made, for the engine thread to take.
pub(crate) type MadeKernels = ArrayQueue<(Spec, Result<Kernel, CudaError>)>;

/// A GPU, and what it has to do.
#[derive(Debug)]
pub(crate) struct Accelerator {
    worker: Worker,
    tasks: Sender<Task>,
    made: Arc<MadeKernels>,
    /// Host memory that it reaches: the workspace, and regions that were combined with some of its own.
    pinned: BTreeMap<RegionId, Pinned>,
    /// The workspace, until its number is known.
    workspace: Option<Pinned>,
    /// What it does.
    under_way: Vec<(Ticket, Mark)>,
    /// What waits for a kernel.
    waiting: Vec<(Ticket, Spec, Job)>,
    /// Communicators to be failed, as pieces of theirs were not done, and will not be.
    victims: Vec<CommunicatorId>,
    /// It does nothing any more.
    broken: bool,
    /// Something was begun and not flushed.
    open: bool,
    looks: u32,
    // Kept for its allocations.
    job: Job,
}

/// A piece in terms of the GPU.
#[derive(Debug, Clone)]
struct Job {
    kind: Kind,
    datatype: DataType,
    reduction: Reduction,
    carry: Option<Bytes>,
    operands: Vec<Operand>,
    outputs: Vec<Bytes>,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Reduce { divisor: Option<u32> },
    Scan { before: u32, inclusive: bool },
    Copy { direction: Direction },
    Swap,
}

impl Job {
    const fn new() -> Self {
        Self {
            kind: Kind::Swap,
            datatype: DataType::U8,
            reduction: Reduction::Sum,
            carry: None,
            operands: Vec::new(),
            outputs: Vec::new(),
        }
    }

    /// `None` for one without operands, which there is not.
    fn work(&self) -> Option<Work<'_>> {
        let Self { kind, datatype, reduction, carry, operands, outputs } = self;
        let (datatype, reduction) = (*datatype, *reduction);
        Some(match *kind {
            Kind::Reduce { divisor } => {
                Work::Reduce { datatype, reduction, sources: operands, destinations: outputs, divisor }
            }
            Kind::Scan { before, inclusive } => {
                let carry = *carry;
                Work::Scan { datatype, reduction, carry, before, inputs: operands, outputs, inclusive }
            }
            Kind::Copy { direction } => {
                Work::Copy { source: operands.first()?.bytes, destinations: outputs, direction }
            }
            Kind::Swap => Work::Swap { a: *outputs.first()?, b: *outputs.get(1)? },
        })
    }
}

impl Accelerator {
    /// With the workspace pinned. Takes a while; for any thread.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        workspace: Arc<Mapping>,
        tasks: Sender<Task>,
        made: Arc<MadeKernels>,
    ) -> Result<Self, CudaError> {
        Ok(Self {
            worker: Worker::new(gpu)?,
            tasks,
            made,
            pinned: BTreeMap::new(),
            workspace: Some(Pinned::new(gpu, workspace as Arc<dyn Host>)?),
            under_way: Vec::with_capacity(256),
            waiting: Vec::new(),
            victims: Vec::new(),
            broken: false,
            open: false,
            looks: 0,
            job: Job::new(),
        })
    }

    /// Makes it the engine thread's own. `workspace` is the number of the workspace's region.
    pub(super) fn settle_in(&mut self, workspace: RegionId) {
        if let Some(pinned) = self.workspace.take() {
            self.pinned.insert(workspace, pinned);
        }
        if let Err(error) = self.worker.gpu().settle_in() {
            self.fail(&error);
        }
    }

    /// Begins a piece.
    pub(super) fn hand(&mut self, ticket: Ticket, piece: &Piece<'_>, regions: &Regions) -> Handed {
        if self.broken {
            self.give_up(ticket.communicator);
            return Handed::Later;
        }
        let mut job = std::mem::replace(&mut self.job, Job::new());
        let begun = self.translate(piece, regions, &mut job).and_then(|()| self.begin(ticket, &job));
        self.job = job;
        if let Err(error) = begun {
            tracing::error!(%error, "the GPU does not do what it is asked to");
            self.give_up(ticket.communicator);
            self.fail_if_fatal(&error);
        }
        Handed::Later
    }

    fn begin(&mut self, ticket: Ticket, job: &Job) -> Result<(), CudaError> {
        let Some(work) = job.work() else { return Ok(()) };
        if let Some(spec) = self.worker.lacks(&work) {
            if !self.waiting.iter().any(|(_, other, _)| *other == spec) {
                // A thread that has ended takes the daemon with it.
                let _ = self.tasks.send(Task::Load(spec));
            }
            self.waiting.push((ticket, spec, job.clone()));
            return Ok(());
        }
        let mark = self.worker.begin(&work)?;
        self.open = true;
        self.under_way.push((ticket, mark));
        Ok(())
    }

    fn translate(&mut self, piece: &Piece<'_>, regions: &Regions, job: &mut Job) -> Result<(), CudaError> {
        job.operands.clear();
        job.outputs.clear();
        job.carry = None;
        match *piece {
            Piece::Reduce { datatype, reduction, sources, destinations, divisor } => {
                (job.datatype, job.reduction, job.kind) = (datatype, reduction, Kind::Reduce { divisor });
                for source in sources {
                    job.operands.push(self.operand(source, regions)?);
                }
                for destination in destinations {
                    job.outputs.push(self.bytes(*destination, regions)?);
                }
            }
            Piece::Scan { datatype, reduction, carry, before, steps, inclusive } => {
                job.kind = Kind::Scan { before, inclusive };
                (job.datatype, job.reduction) = (datatype, reduction);
                job.carry = carry.map(|carry| self.bytes(carry, regions)).transpose()?;
                for step in steps {
                    job.operands.push(self.operand(&step.input, regions)?);
                    job.outputs.push(self.bytes(step.output, regions)?);
                }
            }
            Piece::Copy { source, destinations } => {
                let is_there = |buffer: &BufferRef| regions.is_on_gpu(buffer.region);
                let direction = match (is_there(&source), destinations.iter().all(is_there)) {
                    (true, false) => Direction::ToHost,
                    (false, true) => Direction::FromHost,
                    _ => Direction::Within,
                };
                job.kind = Kind::Copy { direction };
                job.operands.push(Operand { bytes: self.bytes(source, regions)?, scale: None });
                for destination in destinations {
                    job.outputs.push(self.bytes(*destination, regions)?);
                }
            }
            Piece::Swap { a, b } => {
                job.kind = Kind::Swap;
                job.outputs.extend([self.bytes(a, regions)?, self.bytes(b, regions)?]);
            }
        }
        Ok(())
    }

    fn operand(&mut self, source: &ReduceSource, regions: &Regions) -> Result<Operand, CudaError> {
        Ok(Operand { bytes: self.bytes(source.buffer, regions)?, scale: source.scale })
    }

    /// A buffer as the GPU sees it. Host memory is pinned when it is first met here.
    fn bytes(&mut self, buffer: BufferRef, regions: &Regions) -> Result<Bytes, CudaError> {
        let gone = CudaError::TooShort { offset: buffer.offset, wanted: buffer.length, length: 0 };
        let all = match regions.memory(buffer.region).ok_or_else(|| gone.clone())? {
            RegionMemory::Gpu(memory) => memory.bytes(),
            RegionMemory::Host(mapping) => match self.pinned.get(&buffer.region) {
                Some(pinned) => pinned.bytes(),
                None => {
                    let pinned = Pinned::new(self.worker.gpu(), Arc::clone(mapping) as Arc<dyn Host>)?;
                    let bytes = pinned.bytes();
                    self.pinned.insert(buffer.region, pinned);
                    bytes
                }
            },
        };
        all.part(buffer.offset, buffer.length).ok_or(gone)
    }

    /// Has the GPU say when it has done what was begun. At the end of a turn.
    pub(super) fn flush(&mut self) {
        if std::mem::take(&mut self.open)
            && let Err(error) = self.worker.flush()
        {
            self.fail(&error);
        }
    }

    /// The pieces that have been done.
    pub(super) fn collect(&mut self, done: &mut [Collected]) -> usize {
        while let Some((spec, made)) = self.made.pop() {
            self.install(spec, made);
        }
        if self.broken {
            return 0;
        }
        let mut count = 0;
        let Self { worker, under_way, .. } = self;
        under_way.retain(|(ticket, mark)| {
            let reached = worker.is_reached(*mark);
            match done.get_mut(count).filter(|_| reached) {
                Some(place) => {
                    *place = Collected { ticket: *ticket, touched: 0 };
                    count += 1;
                    false
                }
                None => true,
            }
        });
        self.looks = if count > 0 || self.under_way.is_empty() { 0 } else { self.looks.wrapping_add(1) };
        if self.looks >= LOOKS_PER_CHECK {
            self.looks = 0;
            if let Err(error) = self.worker.check() {
                self.fail(&error);
            }
        }
        count
    }

    fn install(&mut self, spec: Spec, made: Result<Kernel, CudaError>) {
        let (ready, waiting) =
            std::mem::take(&mut self.waiting).into_iter().partition(|(_, other, _)| *other == spec);
        self.waiting = waiting;
        let ready: Vec<_> = ready;
        match made {
            Ok(kernel) => self.worker.install(spec, kernel),
            Err(error) => {
                tracing::error!(%error, ?spec, "the GPU has no kernel for an operation");
                ready.iter().for_each(|(ticket, ..)| self.give_up(ticket.communicator));
                return;
            }
        }
        for (ticket, _, job) in ready {
            if let Err(error) = self.begin(ticket, &job) {
                tracing::error!(%error, "the GPU does not do what it is asked to");
                self.give_up(ticket.communicator);
                self.fail_if_fatal(&error);
            }
        }
    }

    /// Whether nobody touches a piece's memory any more.
    pub(super) fn withdraw(&mut self, ticket: Ticket) -> bool {
        self.waiting.retain(|(other, ..)| *other != ticket);
        let Some(at) = self.under_way.iter().position(|(other, _)| *other == ticket) else { return true };
        let reached = self.under_way.get(at).is_some_and(|(_, mark)| self.worker.is_reached(*mark));
        // Where its word could not be asked for it may run all the same.
        let over = reached || (self.broken && self.worker.is_over());
        if over {
            self.under_way.swap_remove(at);
        }
        over
    }

    /// Whether it has something to do that only looking will show to be done.
    pub(super) fn is_busy(&self) -> bool {
        !self.under_way.is_empty() || !self.waiting.is_empty() || !self.victims.is_empty()
    }

    /// A communicator to be failed, as a piece of its work is not done.
    pub(super) fn next_victim(&mut self) -> Option<CommunicatorId> {
        self.victims.pop()
    }

    fn give_up(&mut self, communicator: CommunicatorId) {
        if !self.victims.contains(&communicator) {
            self.victims.push(communicator);
        }
    }

    fn fail_if_fatal(&mut self, error: &CudaError) {
        if error.is_fatal() {
            self.fail(error);
        }
    }

    /// Nothing more comes of it. What it does already is kept until it is over.
    fn fail(&mut self, error: &CudaError) {
        if std::mem::replace(&mut self.broken, true) {
            return;
        }
        tracing::error!(%error, "the GPU is lost to this daemon; start it again to use the GPU");
        let waiting = std::mem::take(&mut self.waiting).into_iter().map(|(ticket, ..)| ticket);
        let all: Vec<_> = self.under_way.iter().map(|(ticket, _)| *ticket).chain(waiting).collect();
        all.into_iter().for_each(|ticket| self.give_up(ticket.communicator));
    }

    /// A region is gone. What is left to do for that takes a while, and is done by another thread.
    pub(super) fn release(&mut self, region: RegionId, memory: RegionMemory) {
        if let Some(pinned) = self.pinned.remove(&region) {
            let _ = self.tasks.send(Task::Retire(Retired::Pinned(pinned)));
        }
        self.retire(memory);
    }

    /// The same of memory that was no region.
    pub(super) fn retire(&mut self, memory: RegionMemory) {
        if let RegionMemory::Gpu(memory) = memory {
            let _ = self.tasks.send(Task::Retire(Retired::Memory(memory)));
        }
    }
}
