//! Kernels that combine values in a GPU's memory, as text in PTX: the language in which NVIDIA's driver takes programs
//! and from which it makes those of each GPU. Sections are those of "Parallel Thread Execution ISA", version 7.8.
//!
//! # What is computed
//! Bit for bit what `ringway_reduce::oracle` defines: half types widen to `f32` and round once, nothing is fused, every
//! NaN that is written is its type's own.
//!
//! # A launch
//! The entry [`ENTRY`] takes what [`Parameters`] lays out. Any one-dimensional grid of blocks of up to [`BLOCK_MAX`]
//! threads computes all of it: each thread takes every so many'th unit, first of the vectors, which are 16 bytes long,
//! then of the elements after them. Bytes of one element are read and written by one thread only.
//!
//! # Aliasing and alignment
//! A destination may be the very address of any source of a [`Form::Reduce`], whose sources are all read before it is
//! written, and of its own source in a [`Form::Scan`]. Addresses are multiples of an element's size; vectors are used
//! where all are multiples of 16.
//!
//! # Speed
//! Sources are unrolled, and up to eight are loaded before the first is combined. On an H100 this reaches 0.91 to 0.95
//! of the rate at which memory is copied, a loop over the sources 0.7 to 0.8.

mod body;
mod element;
mod parameters;
mod text;

use ringway_types::{DataType, Reduction};
use thiserror::Error;

pub use parameters::{Mismatch, Operands, Parameters};

/// The name of the entry.
pub const ENTRY: &str = "combine";

/// The sources that one kernel combines, and the destinations that it writes to, at most. With as many scales they take
/// three of the four KiB that parameters may.
pub const MAX_OPERANDS: u32 = 128;

/// The threads of a block, at most: with the 255 registers that a thread may have, so many fit on any multiprocessor's
/// 65,536. The text does not say so (`.maxntid`), because the translator then spills registers to have more blocks at once.
pub const BLOCK_MAX: u32 = 256;

/// The first compute capability with what the kernels need: `cvt.rn.bf16.f32` and `min.NaN.f32`.
const CAPABILITY_MIN: (u32, u32) = (8, 0);

/// The first with the conversions of types of eight bits, which PTX 8.1 brought there and 7.8 to what came after it.
const CAPABILITY_F8: (u32, u32) = (8, 9);

const fn is_f8(datatype: DataType) -> bool {
    matches!(datatype, DataType::F8E4M3 | DataType::F8E5M2)
}

/// The last compute capability that PTX 7.8 knows. Text for it runs on every later one.
const CAPABILITY_KNOWN: (u32, u32) = (9, 0);

/// The bytes of a vector.
const VECTOR: usize = 16;

const SOURCES: &str = "sources";
const DESTINATIONS: &str = "destinations";
const SCALES: &str = "scales";
const ELEMENTS: &str = "elements";
const VECTORS: &str = "vectors";
const DIVISOR: &str = "divisor";

/// What a kernel does to each element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Spec {
    /// The type of every operand.
    pub datatype: DataType,
    /// How values combine.
    pub reduction: Reduction,
    /// What is written where.
    pub form: Form,
    /// Operands that are read, 1 to [`MAX_OPERANDS`].
    pub sources: u32,
    /// Whether each source is multiplied by a factor of its own first. Sums only.
    pub scaled: bool,
}

/// What a kernel writes where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Form {
    /// Combines all sources and writes the result to every destination.
    Reduce {
        /// 1 to [`MAX_OPERANDS`].
        destinations: u32,
        /// Whether the total is divided by a number of ranks before it is rounded. Sums only.
        divided: bool,
    },
    /// Running combination: there is one destination for each source that is not the carry. For [`Reduction::Avg`] each
    /// result is divided by the number of ranks it combines.
    Scan {
        /// Whether the first source holds the combination of the ranks before.
        carry: bool,
        /// Whether a destination gets its own source too. Otherwise the last source is not read, and the first
        /// destination is only written to if there is a carry.
        inclusive: bool,
    },
}

/// Why there is no kernel for a [`Spec`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Unsupported {
    /// The type-by-reduction table has no such pair.
    #[error("{reduction} of {datatype} is not defined: bitwise reductions need an integer type")]
    Pair {
        /// The type asked for.
        datatype: DataType,
        /// The reduction asked for.
        reduction: Reduction,
    },
    /// The GPU lacks instructions.
    #[error(
        "a GPU of compute capability {}.{} cannot combine {datatype}, which needs {}.{} or later: combine its values on the \
         host", found.0, found.1, needed.0, needed.1
    )]
    Capability {
        /// The type asked for.
        datatype: DataType,
        /// The GPU's.
        found: (u32, u32),
        /// The first that will do.
        needed: (u32, u32),
    },
    /// There are no sources, or too many.
    #[error("a kernel reads 1 to {MAX_OPERANDS} sources, not {found}: combine more in several launches")]
    Sources {
        /// The number asked for.
        found: u32,
    },
    /// There are no destinations, or too many.
    #[error(
        "a kernel writes to 1 to {MAX_OPERANDS} destinations, not {found}: write to more in several launches"
    )]
    Destinations {
        /// The number asked for.
        found: u32,
    },
    /// A scan has a carry and nothing else.
    #[error("a scan needs a source after its carry, none was given")]
    OnlyCarry,
    /// Factors were given for a reduction that is no sum.
    #[error("{reduction} takes no scale: only sum, avg and premul_sum multiply their inputs first")]
    Scaled {
        /// The reduction asked for.
        reduction: Reduction,
    },
    /// A divisor was given for a reduction that is no sum.
    #[error("{reduction} takes no divisor: only sum, avg and premul_sum can be divided")]
    Divided {
        /// The reduction asked for.
        reduction: Reduction,
    },
}

impl Spec {
    /// How many addresses to write to a launch has.
    #[must_use]
    pub const fn destinations(&self) -> u32 {
        match self.form {
            Form::Reduce { destinations, .. } => destinations,
            Form::Scan { carry, .. } => self.sources.saturating_sub(carry as u32),
        }
    }

    fn check(&self, capability: (u32, u32)) -> Result<(), Unsupported> {
        let Self { datatype, reduction, form, sources, scaled } = *self;
        let sum = matches!(reduction, Reduction::Sum | Reduction::Avg | Reduction::PremulSum);
        if !datatype.supports(reduction) {
            return Err(Unsupported::Pair { datatype, reduction });
        }
        let needed = if is_f8(datatype) { CAPABILITY_F8 } else { CAPABILITY_MIN };
        if capability < needed {
            return Err(Unsupported::Capability { datatype, found: capability, needed });
        }
        if !(1..=MAX_OPERANDS).contains(&sources) {
            return Err(Unsupported::Sources { found: sources });
        }
        if scaled && !sum {
            return Err(Unsupported::Scaled { reduction });
        }
        match form {
            Form::Reduce { destinations, .. } if !(1..=MAX_OPERANDS).contains(&destinations) => {
                Err(Unsupported::Destinations { found: destinations })
            }
            Form::Reduce { divided: true, .. } if !sum => Err(Unsupported::Divided { reduction }),
            Form::Scan { carry: true, .. } if sources == 1 => Err(Unsupported::OnlyCarry),
            _ => Ok(()),
        }
    }
}

/// The text of a kernel for GPUs of a compute capability, major number first.
///
/// # Errors
/// [`Unsupported`], for a spec or a GPU.
pub fn ptx(spec: &Spec, compute_capability: (u32, u32)) -> Result<String, Unsupported> {
    spec.check(compute_capability)?;
    let mut text = text::Text::default();
    body::write(&mut text, spec);
    let (major, minor) = compute_capability.min(CAPABILITY_KNOWN);
    let array = |name, count| format!("\t.param .align 8 .b8 {name}[{}]", 8 * count);
    let mut parameters = vec![array(SOURCES, spec.sources), array(DESTINATIONS, spec.destinations())];
    parameters.extend(spec.scaled.then(|| array(SCALES, spec.sources)));
    parameters.extend([ELEMENTS, VECTORS].map(|name| format!("\t.param .u64 {name}")));
    parameters.push(format!("\t.param .u32 {DIVISOR}"));
    let version = if (major, minor) == CAPABILITY_F8 { "8.1" } else { "7.8" };
    Ok(format!(
        ".version {version}\n.target sm_{major}{minor}\n.address_size 64\n\n.visible .entry {ENTRY}(\n{}\n)\n{{\n{}}}\n",
        parameters.join(",\n"),
        text.finish(),
    ))
}
