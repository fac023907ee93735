//! What a daemon has a GPU do: combinations and copies, put into a few streams, and the words by which it sees that they
//! are done. Nothing waits for the GPU here.

use std::{collections::HashMap, ffi::c_void, ptr, sync::Arc};

use cudarc::driver::sys::{CUfunction, CUmodule};
use ringway_mem::Mapping;
use ringway_types::{DataType, Reduction};

use crate::{
    Bytes, Gpu, Pinned, Stream, WordStep,
    error::{CudaError, driver},
    kernel::{self, Form, Operands, Parameters, Spec},
};

/// Blocks for each multiprocessor: with fewer, what the last ones do alone shows (0.88 of a copy's bandwidth with one, 0.93
/// with sixteen of twice the threads, on an H100).
const BLOCKS_EACH: u32 = 32;
/// Bytes of a vector access.
const VECTOR: u64 = 16;
/// Bytes between words, so that each has a cache line of its own.
const WORD: usize = 128;

/// One operand of a combination.
#[derive(Debug, Clone, Copy)]
pub struct Operand {
    /// The values.
    pub bytes: Bytes,
    /// Multiplies the values first: eight bytes, as `ringway_reduce::Scalar` has them.
    pub scale: Option<[u8; 8]>,
}

/// Something to do. All operands are of one length, a multiple of the element's size.
#[derive(Debug, Clone, Copy)]
pub enum Work<'a> {
    /// Combines the sources in order, and writes the result to every destination.
    Reduce {
        /// The elements' type.
        datatype: DataType,
        /// How values combine.
        reduction: Reduction,
        /// What is combined.
        sources: &'a [Operand],
        /// Where the result goes; each may be a source.
        destinations: &'a [Bytes],
        /// Divides the result, for an average.
        divisor: Option<u32>,
    },
    /// A running combination.
    Scan {
        /// The elements' type.
        datatype: DataType,
        /// How values combine.
        reduction: Reduction,
        /// The combination of the ranks that come first.
        carry: Option<Bytes>,
        /// How many those are.
        before: u32,
        /// What each rank has.
        inputs: &'a [Operand],
        /// Where its result goes.
        outputs: &'a [Bytes],
        /// Whether a rank's result has its own values in it.
        inclusive: bool,
    },
    /// Copies the source to every destination.
    Copy {
        /// What is copied.
        source: Bytes,
        /// Where to.
        destinations: &'a [Bytes],
        /// Between which memories.
        direction: Direction,
    },
    /// Exchanges two ranges.
    Swap {
        /// One.
        a: Bytes,
        /// The other.
        b: Bytes,
    },
}

/// Between which memories bytes are copied. Each direction has a stream, as it has a copy engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Within the GPU's memory.
    Within,
    /// From it to the host's.
    ToHost,
    /// From the host's to it.
    FromHost,
}

/// Names work that was begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    lane: u8,
    value: u32,
}

/// A stream and the word that says how far it is.
#[derive(Debug)]
struct Lane {
    stream: Stream,
    /// What its word will be when everything that was begun is done.
    begun: u32,
    /// Something was begun since the word was last put into the stream.
    open: bool,
}

/// A kernel that was loaded.
#[derive(Debug)]
pub struct Kernel {
    gpu: Arc<Gpu>,
    module: CUmodule,
    function: CUfunction,
}

// SAFETY: modules and functions may be used by any thread (CUDA Driver API, "Module Management"); the handles are only given
// to the driver.
unsafe impl Send for Kernel {}

impl Kernel {
    /// Makes the kernel for a combination, which the driver compiles: milliseconds, the first time on a host.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn load(gpu: &Arc<Gpu>, spec: &Spec) -> Result<Self, CudaError> {
        let text = kernel::ptx(spec, gpu.capability())?;
        let text = std::ffi::CString::new(text).unwrap_or_default();
        let _current = gpu.enter()?;
        let mut module = ptr::null_mut();
        driver!(
            "it reads a terminated text and writes a local variable",
            cuModuleLoadData(&raw mut module, text.as_ptr().cast())
        )?;
        let mut kernel = Self { gpu: Arc::clone(gpu), module, function: ptr::null_mut() };
        let name = std::ffi::CString::new(kernel::ENTRY).unwrap_or_default();
        driver!(
            "it reads a terminated text and writes a local variable",
            cuModuleGetFunction(&raw mut kernel.function, module, name.as_ptr())
        )?;
        Ok(kernel)
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        let _ = self.gpu.synchronize();
        if let Ok(_current) = self.gpu.enter() {
            let _ = driver!("loaded when this was made; nothing of it runs", cuModuleUnload(self.module));
        }
    }
}

/// Puts work into streams of a GPU. For one thread, in which the GPU's context is current.
#[derive(Debug)]
pub struct Worker {
    gpu: Arc<Gpu>,
    lanes: [Lane; 3],
    kernels: HashMap<Spec, Kernel>,
    words: Arc<Mapping>,
    pinned: Pinned,
    // Empty between calls; kept for their allocations.
    addresses: Vec<u64>,
    targets: Vec<u64>,
    scales: Vec<u64>,
    parameters: Parameters,
}

impl Worker {
    /// A worker without kernels.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self, CudaError> {
        let words = Mapping::private(4096).map_err(|error| CudaError::Driver {
            call: "mmap",
            reason: error.to_string(),
            code: 0,
        })?;
        let words = Arc::new(words);
        let lane = || Ok::<_, CudaError>(Lane { stream: Stream::new(gpu)?, begun: 0, open: false });
        Ok(Self {
            gpu: Arc::clone(gpu),
            lanes: [lane()?, lane()?, lane()?],
            kernels: HashMap::new(),
            pinned: Pinned::new(gpu, Arc::clone(&words) as Arc<dyn crate::Host>)?,
            words,
            addresses: Vec::new(),
            targets: Vec::new(),
            scales: Vec::new(),
            parameters: Parameters::new(),
        })
    }

    /// The GPU.
    #[must_use]
    pub const fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// The kernel that work needs, when it is not there: to be loaded, by any thread, and given to [`Worker::install`].
    #[must_use]
    pub fn lacks(&self, work: &Work<'_>) -> Option<Spec> {
        spec_of(work).filter(|spec| !self.kernels.contains_key(spec))
    }

    /// Takes a kernel.
    pub fn install(&mut self, spec: Spec, kernel: Kernel) {
        self.kernels.insert(spec, kernel);
    }

    /// Begins work whose kernel is there. What is under way in other directions may not touch the same bytes.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn begin(&mut self, work: &Work<'_>) -> Result<Mark, CudaError> {
        let lane = lane_of(work);
        match *work {
            Work::Copy { source, destinations: [only], .. } => {
                self.lane(lane).stream.copy(source, *only)?;
            }
            Work::Swap { a, b } => {
                // By exclusive or, three times, as a kernel has one result.
                let sources = [a, b].map(|bytes| Operand { bytes, scale: None });
                for destination in [a, b, a] {
                    let destinations = [destination];
                    self.launch(&combine_bits(Reduction::BitXor, &sources, &destinations))?;
                }
            }
            Work::Copy { source, destinations, .. } => {
                let sources = [Operand { bytes: source, scale: None }];
                self.launch(&combine_bits(Reduction::BitOr, &sources, destinations))?;
            }
            Work::Reduce { .. } | Work::Scan { .. } => self.launch(work)?,
        }
        let lane_state = self.lane(lane);
        if !lane_state.open {
            lane_state.open = true;
            lane_state.begun = lane_state.begun.wrapping_add(1);
        }
        Ok(Mark { lane, value: lane_state.begun })
    }

    fn lane(&mut self, lane: u8) -> &mut Lane {
        let [within, to_host, from_host] = &mut self.lanes;
        match lane {
            0 => within,
            1 => to_host,
            _ => from_host,
        }
    }

    /// Has the streams say when what was begun is done. Marks are not reached before.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn flush(&mut self) -> Result<(), CudaError> {
        for (at, lane) in self.lanes.iter_mut().enumerate().filter(|(_, lane)| lane.open) {
            let word = self.pinned.bytes().part((at * WORD) as u64, 4);
            let word = word.ok_or(CudaError::TooShort { offset: 0, wanted: 4, length: 0 })?;
            lane.stream.words(&[WordStep::Write(word, lane.begun)])?;
            lane.open = false;
        }
        Ok(())
    }

    /// Whether work is done.
    #[must_use]
    pub fn is_reached(&self, mark: Mark) -> bool {
        let window = self.words.window(0, self.words.length() as u64);
        let reached = window.and_then(|window| window.load_word(usize::from(mark.lane) * WORD)).unwrap_or(0);
        reached.wrapping_sub(mark.value) <= u32::MAX / 2
    }

    /// Looks whether the GPU still works on what was begun, rather than having failed.
    ///
    /// # Errors
    /// [`CudaError`] of what was begun.
    pub fn check(&self) -> Result<(), CudaError> {
        self.lanes.iter().try_for_each(|lane| lane.stream.is_done().map(drop))
    }

    /// Whether nothing that was begun runs any more, be it done or failed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.lanes.iter().all(|lane| lane.stream.is_done().unwrap_or(true))
    }

    /// Starts the kernel of a combination in the stream for work within the GPU.
    fn launch(&mut self, work: &Work<'_>) -> Result<(), CudaError> {
        let (Some(spec), Some((length, divisor))) = (spec_of(work), self.list(work)) else { return Ok(()) };
        let Some(kernel) = self.kernels.get(&spec) else { return Ok(()) };
        let size = spec.datatype.size() as u64;
        let (sources, destinations) = (self.addresses.as_slice(), self.targets.as_slice());
        let scales = if spec.scaled { self.scales.as_slice() } else { &[] };
        let operands = Operands { sources, destinations, scales, elements: length / size, divisor };
        self.parameters.fill(&spec, &operands)?;
        let most = self.gpu.multiprocessors().max(1) * BLOCKS_EACH;
        let blocks = (length / VECTOR).max(VECTOR / size).div_ceil(u64::from(kernel::BLOCK_MAX));
        let grid = u32::try_from(blocks).unwrap_or(u32::MAX).min(most);
        let mut parameters: [*mut c_void; 6] = [ptr::null_mut(); 6];
        let bytes = self.parameters.as_bytes();
        for (into, start) in parameters.iter_mut().zip(self.parameters.starts(&spec)) {
            *into = bytes.get(start..).unwrap_or_default().as_ptr().cast_mut().cast();
        }
        let [lane, ..] = &self.lanes;
        driver!(
            "the parameters are as the kernel for this spec declares them, and are copied by the call; what it touches is \
             mapped for the GPU, by `Bytes`, whose owners wait for the GPU before they go",
            cuLaunchKernel(
                kernel.function,
                grid,
                1,
                1,
                kernel::BLOCK_MAX,
                1,
                1,
                0,
                lane.stream.raw(),
                parameters.as_mut_ptr(),
                ptr::null_mut()
            )
        )
    }

    /// Lists the operands' addresses; gives their length and the divisor.
    fn list(&mut self, work: &Work<'_>) -> Option<(u64, u32)> {
        self.addresses.clear();
        self.targets.clear();
        self.scales.clear();
        let (datatype, operands, outputs, carry, divisor) = match *work {
            Work::Reduce { datatype, sources, destinations, divisor, .. } => {
                (datatype, sources, destinations, None, divisor.unwrap_or(1))
            }
            Work::Scan { datatype, carry, before, inputs, outputs, .. } => {
                (datatype, inputs, outputs, carry, before)
            }
            Work::Copy { .. } | Work::Swap { .. } => return None,
        };
        let one = one(datatype);
        self.addresses.extend(carry.map(|bytes| bytes.address));
        self.scales.extend(carry.map(|_| one));
        self.addresses.extend(operands.iter().map(|operand| operand.bytes.address));
        self.scales.extend(operands.iter().map(|operand| operand.scale.map_or(one, u64::from_le_bytes)));
        self.targets.extend(outputs.iter().map(|bytes| bytes.address));
        let lengths = operands.iter().map(|o| o.bytes.length).chain(outputs.iter().map(|b| b.length));
        lengths.chain(carry.map(|bytes| bytes.length)).min().map(|length| (length, divisor))
    }
}

/// The scale that leaves values as they are.
const fn one(datatype: DataType) -> u64 {
    if datatype.is_float() { 1.0_f64.to_bits() } else { 1 }
}

const fn combine_bits<'a>(
    reduction: Reduction,
    sources: &'a [Operand],
    destinations: &'a [Bytes],
) -> Work<'a> {
    Work::Reduce { datatype: DataType::U8, reduction, sources, destinations, divisor: None }
}

const fn lane_of(work: &Work<'_>) -> u8 {
    match work {
        Work::Copy { direction: Direction::ToHost, destinations: [_], .. } => 1,
        Work::Copy { direction: Direction::FromHost, destinations: [_], .. } => 2,
        _ => 0,
    }
}

/// The kernel that work needs, if it needs one.
fn spec_of(work: &Work<'_>) -> Option<Spec> {
    let count = |operands: usize| u32::try_from(operands).unwrap_or(u32::MAX);
    match *work {
        Work::Reduce { datatype, reduction, sources, destinations, divisor } => Some(Spec {
            datatype,
            reduction,
            form: Form::Reduce { destinations: count(destinations.len()), divided: divisor.is_some() },
            sources: count(sources.len()),
            scaled: sources.iter().any(|source| source.scale.is_some()),
        }),
        Work::Scan { datatype, reduction, carry, inputs, inclusive, .. } => Some(Spec {
            datatype,
            reduction,
            form: Form::Scan { carry: carry.is_some(), inclusive },
            sources: count(inputs.len() + usize::from(carry.is_some())),
            scaled: inputs.iter().any(|input| input.scale.is_some()),
        }),
        Work::Copy { destinations: [_], .. } => None,
        Work::Copy { destinations, .. } => Some(bits_spec(Reduction::BitOr, 1, count(destinations.len()))),
        Work::Swap { .. } => Some(bits_spec(Reduction::BitXor, 2, 1)),
    }
}

const fn bits_spec(reduction: Reduction, sources: u32, destinations: u32) -> Spec {
    let form = Form::Reduce { destinations, divided: false };
    Spec { datatype: DataType::U8, reduction, form, sources, scaled: false }
}
