//! What is known of each type: how its elements lie in registers, what they are combined in, and which instructions
//! do that. [`Element::of`] is the table; a type that widens to `f32` needs a line there and its two conversions in
//! [`Element::decode`] and [`Element::encode`].
//!
//! Additions, multiplications, divisions and conversions of floats name their rounding: instructions with `.rn` are
//! never fused, and without `.ftz` subnormal values are kept (PTX ISA, "Floating Point Instructions").

use ringway_types::{DataType, Reduction};

use super::text::{Register, Text, Width, list};

/// What values are combined in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arithmetic {
    /// `f32`.
    Single,
    /// `f64`.
    Double,
    /// 32 bits, of which narrower types use the low ones.
    Word { signed: bool },
    /// 64 bits.
    Long { signed: bool },
}

/// How elements lie in a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Coding {
    /// One fills a register, or every bit stands for itself.
    Whole,
    /// Four integers.
    Bytes,
    /// Two of binary16.
    F16,
    /// Two of bfloat16.
    Bf16,
    /// Four of eight bits, converted in pairs by `cvt` with this type in its name. `infinite`: the type has infinities, and a
    /// NaN of another pattern than what `cvt` gives.
    Pairs { kind: &'static str, infinite: bool },
}

/// What is known of a type.
#[derive(Debug, Clone, Copy)]
pub(super) struct Element {
    /// Bytes.
    pub(super) size: usize,
    arithmetic: Arithmetic,
    coding: Coding,
}

/// What totals are divided by, in the form that [`Element::divide`] needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Divisor(Register);

impl Element {
    /// The table.
    pub(super) const fn of(datatype: DataType, reduction: Reduction) -> Self {
        use Arithmetic::{Double, Long, Single, Word};
        let (arithmetic, coding) = match datatype {
            DataType::I8 => (Word { signed: true }, Coding::Bytes),
            DataType::U8 => (Word { signed: false }, Coding::Bytes),
            DataType::I32 => (Word { signed: true }, Coding::Whole),
            DataType::U32 => (Word { signed: false }, Coding::Whole),
            DataType::I64 => (Long { signed: true }, Coding::Whole),
            DataType::U64 => (Long { signed: false }, Coding::Whole),
            DataType::F16 => (Single, Coding::F16),
            DataType::Bf16 => (Single, Coding::Bf16),
            DataType::F8E4M3 => (Single, Coding::Pairs { kind: "e4m3x2", infinite: false }),
            DataType::F8E5M2 => (Single, Coding::Pairs { kind: "e5m2x2", infinite: true }),
            DataType::F32 => (Single, Coding::Whole),
            DataType::F64 => (Double, Coding::Whole),
        };
        // What works on bits needs no element by itself.
        let coding = if reduction.is_bitwise() { Coding::Whole } else { coding };
        Self { size: datatype.size(), arithmetic, coding }
    }

    /// The registers that a load fills: those of eight-byte types are as large, all others have 32 bits.
    pub(super) const fn width(self) -> Width {
        match self.arithmetic {
            Arithmetic::Single | Arithmetic::Word { .. } => Width::Word,
            Arithmetic::Double | Arithmetic::Long { .. } => Width::Long,
        }
    }

    /// The registers that 16 bytes fill.
    pub(super) const fn per_vector(self) -> usize {
        match self.width() {
            Width::Long => 2,
            _ => 4,
        }
    }

    const fn is_float(self) -> bool {
        matches!(self.arithmetic, Arithmetic::Single | Arithmetic::Double)
    }

    const fn is_signed(self) -> bool {
        matches!(self.arithmetic, Arithmetic::Word { signed: true } | Arithmetic::Long { signed: true })
    }

    /// The type in the names of instructions that treat signed and unsigned integers alike.
    const fn suffix(self) -> &'static str {
        match self.arithmetic {
            Arithmetic::Single => "f32",
            Arithmetic::Double => "f64",
            Arithmetic::Word { .. } => "u32",
            Arithmetic::Long { .. } => "u64",
        }
    }

    const fn bits(self) -> &'static str {
        match self.width() {
            Width::Long => "b64",
            _ => "b32",
        }
    }

    /// The elements of one loaded register, as values to combine. With `alone` there is one, in the low bits.
    pub(super) fn decode(self, text: &mut Text, word: Register, alone: bool) -> Vec<Register> {
        let count = if alone { 1 } else { 4 / self.size.min(4) };
        match self.coding {
            Coding::Whole => vec![word],
            Coding::Bytes => (0..count)
                .map(|lane| {
                    // The other bytes are zero, or copies of this one's sign: `8 + lane`.
                    let rest = if self.is_signed() { 0x8880 | (lane * 0x1110) } else { 0x4440 };
                    text.set(Width::Word, "prmt.b32", format_args!("{word}, 0, {:#x}", rest | lane))
                })
                .collect(),
            Coding::F16 => widen_halves(text, word, count),
            Coding::Bf16 => [("shl.b32", "16"), ("and.b32", "0xffff0000")][..count]
                .iter()
                .map(|(opcode, by)| text.set(Width::Word, opcode, format_args!("{word}, {by}")))
                .collect(),
            Coding::Pairs { kind, .. } => {
                let pairs = split(text, word);
                let each = pairs[..count.div_ceil(2)].iter().flat_map(|pair| {
                    let opcode = format!("cvt.rn.f16x2.{kind}");
                    let halves = text.set(Width::Word, &opcode, format_args!("{pair}"));
                    widen_halves(text, halves, count.min(2))
                });
                each.collect()
            }
        }
    }

    /// What [`Self::decode`] gave, after arithmetic, as a register to store. Every NaN becomes the type's own one: what
    /// `cvt` makes of it, and what arithmetic does, has other bits (PTX ISA, `cvt` and "Floating-Point Data Types").
    pub(super) fn encode(self, text: &mut Text, values: &[Register]) -> Register {
        match (self.coding, values) {
            (Coding::F16, _) => narrow_halves(text, "cvt.rn.f16.f32", "0x7e00", values),
            (Coding::Bf16, _) => narrow_halves(text, "cvt.rn.bf16.f32", "0x7fc0", values),
            (Coding::Bytes, &[a, b, c, d]) => {
                let low = text.set(Width::Word, "prmt.b32", format_args!("{a}, {b}, 0x0040"));
                let high = text.set(Width::Word, "prmt.b32", format_args!("{c}, {d}, 0x0040"));
                text.set(Width::Word, "prmt.b32", format_args!("{low}, {high}, 0x5410"))
            }
            (Coding::Pairs { kind, infinite }, _) => narrow_pairs(text, kind, infinite, values),
            (Coding::Whole | Coding::Bytes, _) if self.is_float() => {
                let kind = self.suffix();
                let (value, canonical) = (values[0], self.constant("7fc00000", "7ff8000000000000"));
                let nan = is_nan(text, kind, value, value);
                text.set(
                    self.width(),
                    &format!("selp.{}", self.bits()),
                    format_args!("{canonical}, {value}, {nan}"),
                )
            }
            (Coding::Whole | Coding::Bytes, _) => values[0],
        }
    }

    /// The bits of a constant, as an operand of the size this is combined in.
    fn constant(self, single: &str, double: &str) -> String {
        format!("0x{}", if self.width() == Width::Long { double } else { single })
    }

    /// 0, or the 1 of what is combined in, for the logical reductions: they then are those of bits.
    pub(super) fn truth(self, text: &mut Text, value: Register) -> Register {
        if !self.is_float() {
            return text.set(self.width(), &format!("min.{}", self.suffix()), format_args!("{value}, 1"));
        }
        // True of a NaN as well.
        let compare = format!("setp.neu.{}", self.suffix());
        let zero = if self.width() == Width::Long { "0d0000000000000000" } else { "0f00000000" };
        let is_true = text.set(Width::Predicate, &compare, format_args!("{value}, {zero}"));
        let one = self.constant("3f800000", "3ff0000000000000");
        text.set(self.width(), &format!("selp.{}", self.bits()), format_args!("{one}, 0, {is_true}"))
    }

    /// Two values as one.
    pub(super) fn combine(self, text: &mut Text, reduction: Reduction, a: Register, b: Register) -> Register {
        let opcode = match reduction {
            Reduction::Sum | Reduction::Avg | Reduction::PremulSum => self.sum(),
            Reduction::Prod => return self.multiply(text, a, b),
            Reduction::Min => return self.extreme(text, "min", a, b),
            Reduction::Max => return self.extreme(text, "max", a, b),
            Reduction::LogicalAnd | Reduction::BitAnd => format!("and.{}", self.bits()),
            Reduction::LogicalOr | Reduction::BitOr => format!("or.{}", self.bits()),
            Reduction::LogicalXor | Reduction::BitXor => format!("xor.{}", self.bits()),
        };
        text.set(self.width(), &opcode, format_args!("{a}, {b}"))
    }

    fn sum(self) -> String {
        format!("add.{}{}", if self.is_float() { "rn." } else { "" }, self.suffix())
    }

    /// The product; of integers its low bits.
    pub(super) fn multiply(self, text: &mut Text, a: Register, b: Register) -> Register {
        let opcode = format!("mul.{}.{}", if self.is_float() { "rn" } else { "lo" }, self.suffix());
        text.set(self.width(), &opcode, format_args!("{a}, {b}"))
    }

    /// The minimum or maximum. Either instruction takes -0 as below +0; with `.NaN`, which `f64` lacks, a NaN wins
    /// (PTX ISA, "Floating Point Instructions: min", "max").
    fn extreme(self, text: &mut Text, which: &str, a: Register, b: Register) -> Register {
        match self.arithmetic {
            Arithmetic::Single => {
                text.set(Width::Word, &format!("{which}.NaN.f32"), format_args!("{a}, {b}"))
            }
            Arithmetic::Double => {
                let nan = is_nan(text, "f64", a, b);
                let value = text.set(Width::Long, &format!("{which}.f64"), format_args!("{a}, {b}"));
                text.set(Width::Long, "selp.b64", format_args!("0x7ff8000000000000, {value}, {nan}"))
            }
            Arithmetic::Word { signed: true } => {
                text.set(Width::Word, &format!("{which}.s32"), format_args!("{a}, {b}"))
            }
            Arithmetic::Long { signed: true } => {
                text.set(Width::Long, &format!("{which}.s64"), format_args!("{a}, {b}"))
            }
            Arithmetic::Word { .. } | Arithmetic::Long { .. } => {
                text.set(self.width(), &format!("{which}.{}", self.suffix()), format_args!("{a}, {b}"))
            }
        }
    }

    /// The factor at a parameter's place, in the precision it is used in. Narrower integers take its low bits.
    pub(super) fn factor(self, text: &mut Text, at: &str) -> Register {
        match self.arithmetic {
            Arithmetic::Single => {
                let given = text.set(Width::Long, "ld.param.b64", format_args!("[{at}]"));
                text.set(Width::Word, "cvt.rn.f32.f64", format_args!("{given}"))
            }
            Arithmetic::Word { .. } => text.set(Width::Word, "ld.param.b32", format_args!("[{at}]")),
            Arithmetic::Double | Arithmetic::Long { .. } => {
                text.set(Width::Long, "ld.param.b64", format_args!("[{at}]"))
            }
        }
    }

    /// A number of ranks as [`Self::divide`] takes it.
    ///
    /// Bytes are multiplied by `m = 65536 / ranks + 1` and shifted instead, because each takes a share of the memory's
    /// time for which a division is too slow. `m * ranks` exceeds 65536 by 1 to `ranks`, so for values `v` up to 255 and
    /// up to 256 ranks the product exceeds the quotient by `v / 65536`, less than what is left to the next integer; for
    /// more ranks `v * m` is below 65536.
    pub(super) fn divisor(self, text: &mut Text, ranks: Register) -> Divisor {
        Divisor(match self.arithmetic {
            Arithmetic::Single => text.set(Width::Word, "cvt.rn.f32.u32", format_args!("{ranks}")),
            Arithmetic::Double => text.set(Width::Long, "cvt.rn.f64.u32", format_args!("{ranks}")),
            Arithmetic::Word { .. } if self.size == 1 => {
                let quotient = text.set(Width::Word, "div.u32", format_args!("0x10000, {ranks}"));
                text.set(Width::Word, "add.u32", format_args!("{quotient}, 1"))
            }
            Arithmetic::Word { .. } => ranks,
            Arithmetic::Long { .. } => text.set(Width::Long, "cvt.u64.u32", format_args!("{ranks}")),
        })
    }

    /// The quotient; of integers truncated toward zero. Magnitudes are divided, since the divisor may be larger than any
    /// signed integer.
    pub(super) fn divide(self, text: &mut Text, value: Register, Divisor(by): Divisor) -> Register {
        let (width, kind, bits) = (self.width(), self.suffix(), self.bits());
        if self.is_float() {
            return text.set(width, &format!("div.rn.{kind}"), format_args!("{value}, {by}"));
        }
        // Sums have left the byte.
        let value = if self.size > 1 { value } else { self.decode(text, value, true)[0] };
        if !self.is_signed() {
            return self.divide_magnitude(text, value, by);
        }
        // All ones below zero: `(v ^ sign) - sign` is the magnitude, and gives a magnitude its sign back.
        let (shift, last) = if width == Width::Long { ("shr.s64", 63) } else { ("shr.s32", 31) };
        let sign = text.set(width, shift, format_args!("{value}, {last}"));
        let (flip, sub) = (format!("xor.{bits}"), format!("sub.{kind}"));
        let flipped = text.set(width, &flip, format_args!("{value}, {sign}"));
        let magnitude = text.set(width, &sub, format_args!("{flipped}, {sign}"));
        let quotient = self.divide_magnitude(text, magnitude, by);
        let flipped = text.set(width, &flip, format_args!("{quotient}, {sign}"));
        text.set(width, &sub, format_args!("{flipped}, {sign}"))
    }

    fn divide_magnitude(self, text: &mut Text, value: Register, by: Register) -> Register {
        if self.size > 1 {
            return text.set(self.width(), &format!("div.{}", self.suffix()), format_args!("{value}, {by}"));
        }
        let product = text.set(Width::Word, "mul.lo.u32", format_args!("{value}, {by}"));
        text.set(Width::Word, "shr.u32", format_args!("{product}, 16"))
    }
}

/// Values of eight bits, in pairs. `cvt` makes infinities the largest finite value, whose pattern an infinity's follows; the
/// one NaN of a type without infinities is what it gives.
fn narrow_pairs(text: &mut Text, kind: &str, infinite: bool, values: &[Register]) -> Register {
    let mut finite = values.to_vec();
    let mut rest = Vec::new();
    for (lane, value) in finite.iter_mut().enumerate().filter(|_| infinite) {
        let nan = is_nan(text, "f32", *value, *value);
        let size = text.set(Width::Word, "abs.f32", format_args!("{value}"));
        let boundless = text.set(Width::Predicate, "setp.eq.f32", format_args!("{size}, 0f7F800000"));
        let (one, own_nan) = (1_u32 << (8 * lane), 0x7e_u32 << (8 * lane));
        let more = text.set(Width::Word, "selp.b32", format_args!("{one}, 0, {boundless}"));
        rest.push(text.set(Width::Word, "selp.b32", format_args!("{own_nan}, {more}, {nan}")));
        *value = text.set(Width::Word, "selp.b32", format_args!("0, {value}, {nan}"));
    }
    let opcode = format!("cvt.rn.satfinite.{kind}.f32");
    let pairs: Vec<_> = (finite.chunks(2))
        .map(|pair| text.set(Width::Half, &opcode, format_args!("{}, {}", pair[pair.len() - 1], pair[0])))
        .collect();
    let word = join(text, &pairs);
    rest.into_iter().fold(word, |word, more| text.set(Width::Word, "add.u32", format_args!("{word}, {more}")))
}

/// Whether either is a NaN.
fn is_nan(text: &mut Text, kind: &str, a: Register, b: Register) -> Register {
    text.set(Width::Predicate, &format!("setp.nan.{kind}"), format_args!("{a}, {b}"))
}

/// The two halves of a register, the low one first.
fn split(text: &mut Text, word: Register) -> [Register; 2] {
    let halves = [text.register(Width::Half), text.register(Width::Half)];
    text.line(format_args!("mov.b32 {{{}}}, {word}", list(&halves)));
    halves
}

/// One half twice, or two, as one register.
fn join(text: &mut Text, halves: &[Register]) -> Register {
    text.set(Width::Word, "mov.b32", format_args!("{{{}, {}}}", halves[0], halves[halves.len() - 1]))
}

/// The first values of binary16 in a register.
fn widen_halves(text: &mut Text, word: Register, count: usize) -> Vec<Register> {
    let halves = split(text, word);
    halves[..count].iter().map(|h| text.set(Width::Word, "cvt.f32.f16", format_args!("{h}"))).collect()
}

/// One or two values rounded once, with the type's NaN.
fn narrow_halves(text: &mut Text, convert: &str, canonical: &str, values: &[Register]) -> Register {
    let halves: Vec<_> = (values.iter())
        .map(|value| {
            let nan = is_nan(text, "f32", *value, *value);
            let half = text.set(Width::Half, convert, format_args!("{value}"));
            text.set(Width::Half, "selp.b16", format_args!("{canonical}, {half}, {nan}"))
        })
        .collect();
    join(text, &halves)
}
