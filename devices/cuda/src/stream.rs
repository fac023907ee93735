//! Streams of work on a GPU, and how two processes order theirs by words of host memory that both GPUs reach.

use std::sync::Arc;

use cudarc::driver::sys::{
    self, CUevent, CUstream, CUstream_flags, CUstreamBatchMemOpParams,
    CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st as WaitParams,
    CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st__bindgen_ty_1 as AwaitedValue,
    CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st as WriteParams,
    CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st__bindgen_ty_1 as WriteValue,
    CUstreamBatchMemOpType,
};

use crate::{
    Bytes, Gpu,
    error::{CudaError, driver},
};

/// A stream: what is put into it is done in that order.
#[derive(Debug)]
pub struct Stream {
    gpu: Arc<Gpu>,
    raw: CUstream,
    /// It is ended when this is dropped.
    owned: bool,
}

// SAFETY: a stream may be used by any thread (CUDA Driver API, "Stream Management"); the handle is only given to the driver.
unsafe impl Send for Stream {}
// SAFETY: as for `Send`; calls of several threads are put into it in some order.
unsafe impl Sync for Stream {}

/// The most steps with words at a time.
pub const STEPS_MAX: usize = 8;

/// Something that a stream does with a word.
#[derive(Debug, Clone, Copy)]
pub enum WordStep {
    /// Writes it, when everything before in the stream is done and can be seen.
    Write(Bytes, u32),
    /// Goes on when it has reached a value: their difference, modulo 2^32, is not negative.
    Await(Bytes, u32),
}

impl Stream {
    /// A stream of its own, which waits for no other.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self, CudaError> {
        let _current = gpu.enter()?;
        let mut raw = core::ptr::null_mut();
        driver!(
            "it writes a local variable",
            cuStreamCreate(&raw mut raw, CUstream_flags::CU_STREAM_NON_BLOCKING as u32)
        )?;
        Ok(Self { gpu: Arc::clone(gpu), raw, owned: true })
    }

    /// A stream that somebody else has made, in the primary context of the GPU: `cudaStream_t` of the runtime,
    /// `torch.cuda.Stream.cuda_stream`. Zero is the default stream.
    ///
    /// # Safety
    /// It is one, and is not destroyed while this lives.
    #[must_use]
    pub unsafe fn from_raw(gpu: &Arc<Gpu>, raw: usize) -> Self {
        Self { gpu: Arc::clone(gpu), raw: core::ptr::with_exposed_provenance_mut(raw), owned: false }
    }

    /// The GPU that it is on.
    #[must_use]
    pub const fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Puts steps with words into the stream, at most [`STEPS_MAX`] and all at once.
    ///
    /// # Errors
    /// [`CudaError`]; a step with other than four aligned bytes is refused by the driver.
    #[expect(non_snake_case, reason = "fields of the driver's")]
    pub fn words(&self, steps: &[WordStep]) -> Result<(), CudaError> {
        let _current = self.gpu.enter()?;
        let mut parameters = [CUstreamBatchMemOpParams { pad: [0; 6] }; STEPS_MAX];
        let count = steps.len().min(STEPS_MAX);
        for (into, step) in parameters.iter_mut().zip(steps) {
            *into = match *step {
                WordStep::Write(word, value) => {
                    let operation = CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_32;
                    let value = WriteValue { value64: value.into() };
                    let writeValue = WriteParams {
                        operation,
                        address: word.address,
                        __bindgen_anon_1: value,
                        flags: 0,
                        alias: 0,
                    };
                    CUstreamBatchMemOpParams { writeValue }
                }
                WordStep::Await(word, value) => {
                    let operation = CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WAIT_VALUE_32;
                    let flags = sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32;
                    let value = AwaitedValue { value64: value.into() };
                    let waitValue = WaitParams {
                        operation,
                        address: word.address,
                        __bindgen_anon_1: value,
                        flags,
                        alias: 0,
                    };
                    CUstreamBatchMemOpParams { waitValue }
                }
            };
        }
        driver!(
            "it reads as many parameters as there are; the words are in memory that is mapped for the GPU, or it is refused",
            cuStreamBatchMemOp_v2(self.raw, count as u32, parameters.as_mut_ptr(), 0)
        )
    }

    /// Copies bytes from one place to another of the same length.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn copy(&self, from: Bytes, to: Bytes) -> Result<(), CudaError> {
        let _current = self.gpu.enter()?;
        let length = from.length.min(to.length) as usize;
        driver!(
            "both ranges are mapped for the GPU for as long as their owners live, who wait for the GPU before they go",
            cuMemcpyAsync(to.address, from.address, length, self.raw)
        )
    }

    /// Copies bytes of this process to the GPU, and waits for that.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn upload(&self, from: &[u8], to: Bytes) -> Result<(), CudaError> {
        let _current = self.gpu.enter()?;
        let length = from.len().min(to.length as usize);
        let begun = driver!(
            "the slice is borrowed until the copy is over, as this waits for it; the range is mapped for the GPU",
            cuMemcpyHtoDAsync_v2(to.address, from.as_ptr().cast(), length, self.raw)
        );
        begun.and(self.synchronize())
    }

    /// Copies bytes of the GPU to this process, and waits for that.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn download(&self, from: Bytes, to: &mut [u8]) -> Result<(), CudaError> {
        let _current = self.gpu.enter()?;
        let length = to.len().min(from.length as usize);
        let begun = driver!(
            "the slice is borrowed until the copy is over, as this waits for it; the range is mapped for the GPU",
            cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), from.address, length, self.raw)
        );
        begun.and(self.synchronize())
    }

    /// Sets bytes.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn fill(&self, to: Bytes, value: u8) -> Result<(), CudaError> {
        let _current = self.gpu.enter()?;
        driver!(
            "the range is mapped for the GPU for as long as its owner lives",
            cuMemsetD8Async(to.address, value, to.length as usize, self.raw)
        )
    }

    /// Waits until everything in it is done.
    ///
    /// # Errors
    /// [`CudaError`], also of something that was put into it before.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        let _current = self.gpu.enter()?;
        driver!("the stream lives", cuStreamSynchronize(self.raw))
    }

    /// Whether everything in it is done.
    ///
    /// # Errors
    /// [`CudaError`] of something that was put into it.
    pub fn is_done(&self) -> Result<bool, CudaError> {
        let _current = self.gpu.enter()?;
        // SAFETY: the stream lives.
        let result = unsafe { sys::cuStreamQuery(self.raw) };
        if result == sys::CUresult::CUDA_ERROR_NOT_READY {
            return Ok(false);
        }
        crate::error::check("cuStreamQuery", result).map(|()| true)
    }

    pub(crate) const fn raw(&self) -> CUstream {
        self.raw
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.owned
            && let Ok(_current) = self.gpu.enter()
        {
            let _ = driver!("it is ours, and used no more", cuStreamDestroy_v2(self.raw));
        }
    }
}

/// A point in a stream, of which is known when it was passed.
#[derive(Debug)]
pub struct Event {
    gpu: Arc<Gpu>,
    raw: CUevent,
}

impl Event {
    /// One that is in no stream yet.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self, CudaError> {
        let _current = gpu.enter()?;
        let mut raw = core::ptr::null_mut();
        driver!("it writes a local variable", cuEventCreate(&raw mut raw, 0))?;
        Ok(Self { gpu: Arc::clone(gpu), raw })
    }

    /// Puts it at the end of what is in a stream now.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        let _current = self.gpu.enter()?;
        driver!("both live", cuEventRecord(self.raw, stream.raw))
    }

    /// Microseconds from another one to this, when both were passed; they are known to half of one.
    ///
    /// # Errors
    /// [`CudaError`], also when one was not passed yet.
    pub fn since_us(&self, earlier: &Self) -> Result<f64, CudaError> {
        let _current = self.gpu.enter()?;
        let mut ms = 0.0;
        driver!("it writes a local variable", cuEventElapsedTime(&raw mut ms, earlier.raw, self.raw))?;
        Ok(f64::from(ms) * 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_current) = self.gpu.enter() {
            let _ = driver!("it is ours, and used no more", cuEventDestroy_v2(self.raw));
        }
    }
}
