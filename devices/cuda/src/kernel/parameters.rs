//! What a launch hands to a kernel.

use thiserror::Error;

use super::{Form, Spec, VECTOR};

/// The operands of one launch.
#[derive(Debug, Clone, Copy)]
pub struct Operands<'a> {
    /// Where each source begins in the GPU's address space, a multiple of the element's size.
    pub sources: &'a [u64],
    /// Where each destination begins, likewise.
    pub destinations: &'a [u64],
    /// Each source's factor as `ringway_reduce::Scalar` holds it: the bits of an `f64` for floats, else an integer. Empty
    /// if the kernel is not scaled; a source that has none is given the type's 1.
    pub scales: &'a [u64],
    /// Elements of each operand.
    pub elements: u64,
    /// Ranks: what a divided total is divided by, or how many a scan's carry combines. Read for these only.
    pub divisor: u32,
}

/// What is wrong with operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Mismatch {
    /// A list is longer or shorter than the kernel's.
    #[error("a launch takes as many {what} as its kernel was made for: expected {expected}, found {found}")]
    Count {
        /// Which list.
        what: &'static str,
        /// What the kernel was made for.
        expected: u32,
        /// What was given.
        found: usize,
    },
    /// An address is none of an element.
    #[error("{address:#x} is not where an element begins: give a multiple of the type's {size} bytes")]
    Misaligned {
        /// The address.
        address: u64,
        /// Bytes of an element.
        size: usize,
    },
    /// There are more bytes than addresses.
    #[error("{elements} elements of {size} bytes exceed 64-bit addresses")]
    Length {
        /// The number given.
        elements: u64,
        /// Bytes of an element.
        size: usize,
    },
    /// A result would be divided by zero.
    #[error("the number of ranks to divide by must be between 1 and 4294967295")]
    Divisor,
}

/// A launch's parameters, one after the other as the entry declares them, which is also what `CU_LAUNCH_PARAM_BUFFER_POINTER`
/// takes: the addresses of the sources, those of the destinations, the factors if there are any, the number of elements and of
/// vectors in eight bytes each, the divisor in four. Filled again for each launch, it allocates for the largest only.
#[derive(Debug, Clone, Default)]
pub struct Parameters {
    bytes: Vec<u8>,
}

impl Parameters {
    /// Nothing yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: Vec::new() }
    }

    /// Lays out a launch of the kernel made for `spec`. Vectors are used where every address is a multiple of 16.
    ///
    /// # Errors
    /// [`Mismatch`]; what was laid out before is gone then.
    pub fn fill(&mut self, spec: &Spec, operands: &Operands<'_>) -> Result<(), Mismatch> {
        self.bytes.clear();
        let Operands { sources, destinations, scales, elements, divisor } = *operands;
        check_count("sources", spec.sources, sources)?;
        check_count("destinations", spec.destinations(), destinations)?;
        check_count("scales", if spec.scaled { spec.sources } else { 0 }, scales)?;
        if divisor == 0 && matches!(spec.form, Form::Reduce { divided: true, .. }) {
            return Err(Mismatch::Divisor);
        }
        let size = spec.datatype.size();
        let bytes = elements.checked_mul(size as u64).ok_or(Mismatch::Length { elements, size })?;
        let addresses = || sources.iter().chain(destinations);
        if let Some(&address) = addresses().find(|a| !a.is_multiple_of(size as u64)) {
            return Err(Mismatch::Misaligned { address, size });
        }
        let aligned = addresses().all(|a| a.is_multiple_of(VECTOR as u64));
        let vectors = if aligned { bytes / VECTOR as u64 } else { 0 };
        for word in addresses().chain(scales).chain(&[elements, vectors]) {
            self.bytes.extend_from_slice(&word.to_le_bytes());
        }
        self.bytes.extend_from_slice(&divisor.to_le_bytes());
        Ok(())
    }

    /// Where each parameter begins, in their order.
    pub fn starts(&self, spec: &Spec) -> impl Iterator<Item = usize> {
        let factors = spec.scaled.then_some(spec.sources);
        let arrays = [Some(spec.sources), Some(spec.destinations()), factors];
        let lengths = arrays.into_iter().flatten().map(|count| 8 * count as usize).chain([8, 8, 4]);
        lengths.scan(0, |at, length| {
            let start = *at;
            *at += length;
            Some(start)
        })
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

fn check_count(what: &'static str, expected: u32, given: &[u64]) -> Result<(), Mismatch> {
    let found = given.len();
    if found == expected as usize { Ok(()) } else { Err(Mismatch::Count { what, expected, found }) }
}
