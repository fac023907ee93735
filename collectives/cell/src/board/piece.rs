//! What a piece is, and how it is described in a slot.

use ringway_types::{DataType, Reduction};

use super::{LINE, OPERAND, OPERANDS_MAX, PIECE_BYTES};
use crate::{Place, shared::Words};

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The first `sources` operands are combined in order, and the result is written to the others.
    Reduce {
        /// The elements' type.
        datatype: DataType,
        /// How values combine.
        reduction: Reduction,
        /// How many operands are combined.
        sources: u32,
        /// Divides the result; not zero.
        divisor: Option<u32>,
    },
    /// A running combination: operands are pairs of a rank's values and where its result goes, after the carry, if
    /// there is one.
    Scan {
        /// The elements' type.
        datatype: DataType,
        /// How values combine.
        reduction: Reduction,
        /// The first operand combines the ranks that come first.
        carry: bool,
        /// How many those are.
        before: u32,
        /// Whether a rank's result has its own values in it.
        inclusive: bool,
    },
    /// The first operand is copied to the others.
    Copy,
    /// Two operands exchange their bytes.
    Swap,
}

/// Bytes of a rank's region, or of scratch memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Operand {
    /// Whose region it is.
    pub rank: u32,
    /// Where; [`super::SCRATCH`] as region for scratch memory.
    pub place: Place,
    /// Multiplies the values first.
    pub scale: Option<u64>,
}

/// A piece of work.
#[derive(Debug, Clone, Copy)]
pub struct Work<'a> {
    /// What is done.
    pub kind: Kind,
    /// Bytes of each operand, at most [`PIECE_BYTES`].
    pub length: u64,
    /// What it is done to, at most [`OPERANDS_MAX`].
    pub operands: &'a [Operand],
}

const REDUCE: u64 = 1;
const SCAN: u64 = 2;
const COPY: u64 = 3;
const SWAP: u64 = 4;
const CARRY: u64 = 1;
const INCLUSIVE: u64 = 2;
const SCALED: u64 = 1 << 32;

/// Where the description of a slot begins.
const CODES: usize = LINE;
const LENGTH: usize = LINE + 1;
const OPERANDS: usize = LINE + 2;

/// Whether a piece makes sense, so that it can be described.
pub(super) fn is_sound(kind: Kind, length: u64, operands: usize) -> bool {
    let fits = length <= PIECE_BYTES && operands <= OPERANDS_MAX;
    fits && match kind {
        Kind::Reduce { datatype, reduction, sources, divisor } => {
            let few = sources > 0 && sources as usize <= operands;
            few && divisor != Some(0) && datatype.supports(reduction)
        }
        Kind::Scan { datatype, reduction, carry, .. } => {
            let pairs = operands.checked_sub(usize::from(carry));
            pairs.is_some_and(|n| n > 0 && n % 2 == 0) && datatype.supports(reduction)
        }
        Kind::Copy => operands > 0,
        Kind::Swap => operands == 2,
    }
}

/// Describes a piece in the slot that begins at a word. It [`is_sound`].
pub(super) fn describe(words: &Words, at: usize, work: &Work<'_>) {
    let codes = |kind: u64, datatype: DataType, reduction: Reduction, flags: u64, sources: u32| {
        let types = u64::from(datatype.code()) << 8 | u64::from(reduction.code()) << 16;
        kind | types | flags << 24 | u64::from(sources & 0xffff) << 32
    };
    let (first, number) = match work.kind {
        Kind::Reduce { datatype, reduction, sources, divisor } => {
            (codes(REDUCE, datatype, reduction, 0, sources), divisor.unwrap_or(0))
        }
        Kind::Scan { datatype, reduction, carry, before, inclusive } => {
            let flags = if carry { CARRY } else { 0 } | if inclusive { INCLUSIVE } else { 0 };
            (codes(SCAN, datatype, reduction, flags, 0), before)
        }
        Kind::Copy => (COPY, 0),
        Kind::Swap => (SWAP, 0),
    };
    words.store(at + CODES, first | (work.operands.len() as u64) << 48);
    words.store(at + LENGTH, work.length | u64::from(number) << 32);
    for (nth, operand) in work.operands.iter().enumerate().take(OPERANDS_MAX) {
        let at = at + OPERANDS + nth * OPERAND;
        words.store(at, u64::from(operand.rank) | if operand.scale.is_some() { SCALED } else { 0 });
        words.store(at + 1, operand.place.region);
        words.store(at + 2, operand.place.offset);
        words.store(at + 3, operand.scale.unwrap_or(0));
    }
}

/// Reads a description into `operands`; `None` when it makes no sense.
pub(super) fn read(words: &Words, at: usize, operands: &mut Vec<Operand>) -> Option<(Kind, u64)> {
    let (codes, second) = (words.load(at + CODES), words.load(at + LENGTH));
    let [kind, datatype, reduction, flags, ..] = codes.to_le_bytes();
    let (sources, count) = ((codes >> 32) as u32 & 0xffff, (codes >> 48) as usize);
    let (length, number) = (second & 0xffff_ffff, (second >> 32) as u32);
    let types = || Some((DataType::from_code(datatype)?, Reduction::from_code(reduction)?));
    let kind = match u64::from(kind) {
        REDUCE => {
            let (datatype, reduction) = types()?;
            Kind::Reduce { datatype, reduction, sources, divisor: (number > 0).then_some(number) }
        }
        SCAN => {
            let (datatype, reduction) = types()?;
            let (carry, inclusive) = (u64::from(flags) & CARRY != 0, u64::from(flags) & INCLUSIVE != 0);
            Kind::Scan { datatype, reduction, carry, before: number, inclusive }
        }
        COPY => Kind::Copy,
        SWAP => Kind::Swap,
        _ => return None,
    };
    if !is_sound(kind, length, count) {
        return None;
    }
    operands.clear();
    for nth in 0..count {
        let at = at + OPERANDS + nth * OPERAND;
        let [rank, region, offset, scale] = [0, 1, 2, 3].map(|word| words.load(at + word));
        let scale = (rank & SCALED != 0).then_some(scale);
        operands.push(Operand { rank: (rank & 0xffff_ffff) as u32, place: Place { region, offset }, scale });
    }
    Some((kind, length))
}
