//! A thread for what takes long with a GPU: opening it, mapping clients' memory, compiling kernels, letting go of memory. It
//! starts with the first client that has memory of one.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
    time::Duration,
};

use crossbeam_queue::ArrayQueue;
use ringway_cuda::{CudaError, Gpu, IpcHandle, Kernel, Memory, Pinned, kernel::Spec, show};
use ringway_mem::Mapping;

use crate::{
    engine_thread::{Accelerator, Command, Event, Lane, MadeKernels, RegionMemory, RegionRefusal},
    session::SessionKey,
};

/// How long to wait when the engine thread's queue is full.
const RETRY: Duration = Duration::from_millis(1);

/// Kernels that may wait for the engine thread to take them.
const KERNELS: usize = 256;

/// What it is asked to do.
#[derive(Debug)]
pub(crate) enum Task {
    /// Map a client's memory, and have it admitted as a region.
    Import(Box<Import>),
    /// Make a kernel.
    Load(Spec),
    /// Let go of something.
    Retire(Retired),
}

/// Memory of a client on a GPU.
#[derive(Debug)]
pub(crate) struct Import {
    pub(crate) session: SessionKey,
    pub(crate) number: u32,
    pub(crate) gpu: ringway_cuda::Uuid,
    pub(crate) source: Source,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// How it is shared.
#[derive(Debug)]
pub(crate) enum Source {
    Descriptor(OwnedFd),
    Ipc(IpcHandle),
}

/// Something that is let go of by dropping it, which waits for the GPU.
#[derive(Debug)]
pub(crate) enum Retired {
    Memory(#[expect(dead_code, reason = "dropping it is all that is wanted")] Arc<Memory>),
    Pinned(#[expect(dead_code, reason = "dropping it is all that is wanted")] Pinned),
}

/// The thread as others see it.
#[derive(Debug)]
pub(crate) struct GpuThread {
    commands: Arc<Lane<Command>>,
    events: Arc<Lane<Event>>,
    workspace: Arc<Mapping>,
    tasks: Option<Sender<Task>>,
}

impl GpuThread {
    /// A thread that has not started.
    pub(crate) const fn new(
        commands: Arc<Lane<Command>>,
        events: Arc<Lane<Event>>,
        workspace: Arc<Mapping>,
    ) -> Self {
        Self { commands, events, workspace, tasks: None }
    }

    /// Asks for something; whether it can be done.
    pub(crate) fn send(&mut self, task: Task) -> bool {
        if self.tasks.is_none() {
            let (tasks, asked) = channel();
            let thread = Thread {
                commands: Arc::clone(&self.commands),
                events: Arc::clone(&self.events),
                workspace: Arc::clone(&self.workspace),
                tasks: tasks.clone(),
                made: Arc::new(ArrayQueue::new(KERNELS)),
                gpu: None,
            };
            let name = std::thread::Builder::new().name("ringway-gpu".to_owned());
            if name.spawn(move || thread.run(&asked)).is_err() {
                return false;
            }
            self.tasks = Some(tasks);
        }
        self.tasks.as_ref().is_some_and(|tasks| tasks.send(task).is_ok())
    }
}

#[derive(Debug)]
struct Thread {
    commands: Arc<Lane<Command>>,
    events: Arc<Lane<Event>>,
    workspace: Arc<Mapping>,
    /// For the engine thread.
    tasks: Sender<Task>,
    made: Arc<MadeKernels>,
    gpu: Option<Arc<Gpu>>,
}

impl Thread {
    fn run(mut self, asked: &Receiver<Task>) {
        while let Ok(task) = asked.recv() {
            match task {
                Task::Import(import) => self.admit(*import),
                Task::Load(spec) => self.load(spec),
                Task::Retire(retired) => drop(retired),
            }
        }
    }

    fn admit(&mut self, import: Import) {
        let (session, number, length) = (import.session, import.number, import.length);
        match self.import(import) {
            Ok(memory) => {
                let memory = RegionMemory::Gpu(Arc::new(memory));
                self.command(Command::AddRegion { session, number, memory, shared: false });
            }
            Err(reason) => {
                let result = Err(RegionRefusal::NoRoom(reason));
                let mut event = Event::RegionAdded { session, number, length, result };
                while let Err(back) = self.events.push(event) {
                    event = back;
                    std::thread::sleep(RETRY);
                }
            }
        }
    }

    fn import(&mut self, import: Import) -> Result<Memory, String> {
        let Import { gpu: wanted, source, offset, length, .. } = import;
        let cannot = |error: CudaError| format!("the daemon cannot map this memory of a GPU: {error}");
        let gpu = match &self.gpu {
            Some(gpu) if *gpu.uuid() != wanted => {
                return Err(format!(
                    "this daemon works with {} ({}), the GPU of its first client, but this memory is on {}; start another \
                     daemon for that one",
                    gpu.name(),
                    show(gpu.uuid()),
                    show(&wanted)
                ));
            }
            Some(gpu) => Arc::clone(gpu),
            None => self.open(&wanted).map_err(cannot)?,
        };
        match source {
            Source::Descriptor(descriptor) => Memory::import(&gpu, descriptor.as_fd(), length),
            Source::Ipc(handle) => Memory::open(&gpu, &handle, offset, length),
        }
        .map_err(cannot)
    }

    fn open(&mut self, uuid: &ringway_cuda::Uuid) -> Result<Arc<Gpu>, CudaError> {
        let gpu = Gpu::open_uuid(uuid)?;
        let made = (self.tasks.clone(), Arc::clone(&self.made));
        let accelerator = Accelerator::new(&gpu, Arc::clone(&self.workspace), made.0, made.1)?;
        tracing::info!(
            gpu = gpu.name(),
            uuid = show(gpu.uuid()),
            mps = gpu.is_shared_by_mps(),
            "working with a GPU; its memory is staged in pinned host memory between nodes"
        );
        self.gpu = Some(Arc::clone(&gpu));
        self.command(Command::Accelerate(Box::new(accelerator)));
        Ok(gpu)
    }

    fn load(&self, spec: Spec) {
        let Some(gpu) = &self.gpu else { return };
        let mut made = (spec, Kernel::load(gpu, &spec));
        while let Err(back) = self.made.push(made) {
            made = back;
            std::thread::sleep(RETRY);
        }
    }

    fn command(&self, mut command: Command) {
        while let Err(back) = self.commands.push(command) {
            command = back;
            std::thread::sleep(RETRY);
        }
    }
}
