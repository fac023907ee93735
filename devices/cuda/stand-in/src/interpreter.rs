//! Runs kernels in PTX on the processor: the part of the language that `ringway_cuda::kernel` writes, and nothing else.
//!
//! What an instruction does follows "Parallel Thread Execution ISA", version 7.8, also where it is awkward: NaNs come out
//! of `f32` arithmetic and of conversions with every bit set, registers hold garbage until they are written, addresses
//! must be aligned, and operands as large as their instructions. Threads run one after the other, so kernels must not
//! wait for each other's.

mod memory;
mod operations;
mod parse;

use operations::Function;

/// The registers that are there before a kernel declares any: the launch, as each thread sees it.
const SPECIAL: [&str; 4] = ["%tid.x", "%ntid.x", "%ctaid.x", "%nctaid.x"];

/// The threads of a block, at most.
const BLOCK_MAX: u32 = 1024;

/// Registers whose names say how large they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Width {
    Predicate = 0,
    Half = 2,
    Word = 4,
    Long = 8,
}

/// A register or a constant, by its place in a thread's file. Narrow values have zeros above them.
type Slot = u32;

/// What an instruction does.
#[derive(Debug, Clone)]
enum Action {
    Compute { function: Function, to: Slot, from: [Slot; 3] },
    Split { to: [Slot; 2], from: Slot },
    Parameter { to: Slot, offset: usize, bytes: usize },
    Load { to: Vec<Slot>, at: Slot, bytes: usize },
    Store { at: Slot, from: Vec<Slot>, bytes: usize },
    Branch { to: usize },
    Return,
}

/// An instruction, and the predicate without which it does nothing.
#[derive(Debug, Clone)]
struct Instruction {
    guard: Option<(Slot, bool)>,
    action: Action,
    line: usize,
}

/// A text's kernels.
#[derive(Debug, Clone)]
pub struct Module {
    entries: Vec<Entry>,
}

/// One kernel.
#[derive(Debug, Clone)]
pub struct Entry {
    name: String,
    parameters: Vec<(usize, usize)>,
    code: Vec<Instruction>,
    /// A thread's registers before it runs: constants where they are used, garbage elsewhere.
    file: Vec<u64>,
}

impl Module {
    /// Reads a text.
    ///
    /// # Errors
    /// The first line that is not understood, and why.
    pub fn parse(text: &str) -> Result<Self, String> {
        parse::module(text)
    }

    /// The kernel of this name.
    #[must_use]
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }
}

impl Entry {
    /// Bytes and alignment of each parameter, in order.
    #[must_use]
    pub fn parameters(&self) -> &[(usize, usize)] {
        &self.parameters
    }

    /// Runs `grid` blocks of `block` threads. The parameters lie in order, each at the next multiple of its alignment.
    ///
    /// # Errors
    /// What a driver would refuse: a block that is too large, parameters that are too short, and an address that is not
    /// a multiple of what is accessed there. In the last case the threads before have run.
    ///
    /// # Safety
    /// Wherever the kernel reads with these parameters must be valid for reads, and likewise for writes. Other threads
    /// of this process do not write there meanwhile, nor read what is written.
    pub unsafe fn run(&self, parameters: &[u8], grid: u32, block: u32) -> Result<(), String> {
        if block > BLOCK_MAX {
            return Err(format!("a block has up to {BLOCK_MAX} threads, not {block}"));
        }
        let expected = self.parameters.iter().fold(0, |end, (size, align)| end_after(end, *size, *align));
        if parameters.len() < expected {
            return Err(format!("`{}` takes {expected} bytes, not {}", self.name, parameters.len()));
        }
        let mut file = self.file.clone();
        for (index, thread) in (0..grid).flat_map(|b| (0..block).map(move |t| (b, t))) {
            file.copy_from_slice(&self.file);
            for (register, value) in file.iter_mut().zip([thread, block, index, grid]) {
                *register = value.into();
            }
            // SAFETY: the caller's promise is passed on.
            unsafe { self.thread(parameters, &mut file)? };
        }
        Ok(())
    }

    /// Runs one thread to its end.
    ///
    /// # Safety
    /// As for [`Self::run`].
    unsafe fn thread(&self, parameters: &[u8], file: &mut [u64]) -> Result<(), String> {
        let mut next = 0;
        while let Some(Instruction { guard, action, line }) = self.code.get(next) {
            next += 1;
            if guard.is_some_and(|(slot, wanted)| (file[slot as usize] != 0) != wanted) {
                continue;
            }
            match action {
                Action::Compute { function, to, from } => {
                    let [a, b, c] = from.map(|slot| file[slot as usize]);
                    file[*to as usize] = function(a, b, c);
                }
                Action::Split { to, from } => {
                    let whole = file[*from as usize];
                    file[to[0] as usize] = whole & 0xffff;
                    file[to[1] as usize] = whole >> 16;
                }
                Action::Parameter { to, offset, bytes } => {
                    let mut value = [0; 8];
                    value[..*bytes].copy_from_slice(&parameters[*offset..*offset + *bytes]);
                    file[*to as usize] = u64::from_le_bytes(value);
                }
                Action::Load { to, at, bytes } => {
                    let address = aligned(file[*at as usize], *bytes * to.len(), *line)?;
                    for (i, to) in to.iter().enumerate() {
                        // SAFETY: the kernel reads there, for which the caller vouches; aligned as a whole, and so in parts.
                        file[*to as usize] = unsafe { memory::read(address + i * bytes, *bytes) };
                    }
                }
                Action::Store { at, from, bytes } => {
                    let address = aligned(file[*at as usize], *bytes * from.len(), *line)?;
                    for (i, from) in from.iter().enumerate() {
                        // SAFETY: the kernel writes there, for which the caller vouches; aligned as for a load.
                        unsafe { memory::write(address + i * bytes, *bytes, file[*from as usize]) };
                    }
                }
                Action::Branch { to } => next = *to,
                Action::Return => break,
            }
        }
        Ok(())
    }
}

/// Where a parameter ends that comes after so many bytes.
const fn end_after(before: usize, size: usize, align: usize) -> usize {
    before.next_multiple_of(align) + size
}

fn aligned(address: u64, bytes: usize, line: usize) -> Result<usize, String> {
    let address = address as usize;
    if address.is_multiple_of(bytes) {
        Ok(address)
    } else {
        Err(format!("line {line}: misaligned address: {bytes} bytes are accessed at {address:#x}"))
    }
}
