//! From a type and a reduction to the rule that computes it, and from a level to the code compiled for it.

use ringway_types::{DataType, Reduction};

use super::{
    Body, ReduceJob, Rule, ScanJob, f8, float, integer,
    level::Level,
    logical::{self, Truth},
    order::{self, Max, Min, Order, Plain},
    run,
};

/// Reduces a checked job. `divisor` is `None` where nothing is divided, and never zero.
pub(crate) fn reduce(
    level: Level,
    datatype: DataType,
    reduction: Reduction,
    divisor: Option<u32>,
    job: ReduceJob<'_>,
) {
    on_level(level, Request { datatype, reduction, divisor, length: job.length }, job);
}

/// Scans a checked job.
pub(crate) fn scan(level: Level, datatype: DataType, reduction: Reduction, job: ScanJob<'_>) {
    let divisor = (reduction == Reduction::Avg).then_some(1);
    on_level(level, Request { datatype, reduction, divisor, length: job.length }, job);
}

#[derive(Clone, Copy)]
struct Request {
    datatype: DataType,
    reduction: Reduction,
    divisor: Option<u32>,
    length: usize,
}

fn on_level<B: Body>(level: Level, request: Request, body: B) {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 => on_type::<Avx2, B>(request, body),
        _ => on_type::<Baseline, B>(request, body),
    }
}

/// A set of processor features the loops are compiled for.
trait Target {
    /// How binary16 is converted.
    type F16: float::Format<Raw = u16>;
    /// How bfloat16 is converted.
    type Bf16: float::Format<Raw = u16>;
    /// How E4M3 is converted.
    type F8E4M3: float::Format<Raw = u8>;
    /// How E5M2 is converted.
    type F8E5M2: float::Format<Raw = u8>;

    /// Runs the body over all elements.
    ///
    /// # Safety
    /// The processor has the target's features, and every window of the body has `length` bytes.
    unsafe fn run<R: Rule, B: Body, const L: usize, const M: usize, const S: usize>(
        rule: R,
        body: B,
        length: usize,
    );
}

struct Baseline;

impl Target for Baseline {
    type F16 = float::F16;
    type Bf16 = float::Bf16;
    type F8E4M3 = f8::F8E4M3;
    type F8E5M2 = f8::F8E5M2;

    #[inline(never)]
    unsafe fn run<R: Rule, B: Body, const L: usize, const M: usize, const S: usize>(
        rule: R,
        body: B,
        length: usize,
    ) {
        // SAFETY: the caller's promise is passed on.
        unsafe { run::<R, B, L, M, S>(rule, body, length) }
    }
}

#[cfg(target_arch = "x86_64")]
struct Avx2;

#[cfg(target_arch = "x86_64")]
impl Target for Avx2 {
    type F16 = super::avx2::F16;
    type Bf16 = super::avx2::Bf16;
    type F8E4M3 = super::avx2_f8::F8E4M3;
    type F8E5M2 = super::avx2_f8::F8E5M2;

    #[inline(always)]
    unsafe fn run<R: Rule, B: Body, const L: usize, const M: usize, const S: usize>(
        rule: R,
        body: B,
        length: usize,
    ) {
        #[target_feature(enable = "avx2,f16c,fma")]
        #[inline(never)]
        unsafe fn compiled<R: Rule, B: Body, const L: usize, const M: usize, const S: usize>(
            rule: R,
            body: B,
            length: usize,
        ) {
            // SAFETY: the caller's promise is passed on.
            unsafe { run::<R, B, L, M, S>(rule, body, length) }
        }
        // SAFETY: the caller vouches for the features and the windows.
        unsafe { compiled::<R, B, L, M, S>(rule, body, length) }
    }
}

/// Runs a rule in blocks of at most eight 256-bit registers of accumulators. The sizes are chosen by a constant, a digit for
/// the bytes of an accumulator and one for those of an element, so that the others are not compiled for this rule.
fn go<T: Target, R: Rule, B: Body>(request: Request, rule: R, body: B) {
    let length = request.length;
    // SAFETY (each arm): `on_level` was given a level this processor has, and jobs are checked where they are made.
    match const { (size_of::<R::Acc>() << 4) | size_of::<R::Raw>() } {
        // SAFETY: as above.
        0x41 | 0x42 => unsafe { T::run::<R, B, 64, 16, 4>(rule, body, length) },
        // SAFETY: as above.
        0x11 => unsafe { T::run::<R, B, 256, 32, 8>(rule, body, length) },
        // SAFETY: as above.
        0x22 => unsafe { T::run::<R, B, 128, 16, 4>(rule, body, length) },
        // SAFETY: as above.
        0x44 => unsafe { T::run::<R, B, 64, 8, 4>(rule, body, length) },
        // SAFETY: as above.
        _ => unsafe { T::run::<R, B, 32, 4, 1>(rule, body, length) },
    }
}

fn on_type<T: Target, B: Body>(request: Request, body: B) {
    match request.datatype {
        DataType::I8 => whole::<T, B, u8, i8>(request, body),
        DataType::U8 => whole::<T, B, u8, u8>(request, body),
        DataType::I32 => whole::<T, B, u32, i32>(request, body),
        DataType::U32 => whole::<T, B, u32, u32>(request, body),
        DataType::I64 => whole::<T, B, u64, i64>(request, body),
        DataType::U64 => whole::<T, B, u64, u64>(request, body),
        DataType::F16 => {
            floating::<T, B, T::F16, order::F16, u16>(request, Truth { mask: 0x7fff, one: 0x3c00 }, body);
        }
        DataType::Bf16 => {
            floating::<T, B, T::Bf16, order::Bf16, u16>(request, Truth { mask: 0x7fff, one: 0x3f80 }, body);
        }
        DataType::F8E4M3 => {
            floating::<T, B, T::F8E4M3, order::F8E4M3, u8>(request, Truth { mask: 0x7f, one: 0x38 }, body);
        }
        DataType::F8E5M2 => {
            floating::<T, B, T::F8E5M2, order::F8E5M2, u8>(request, Truth { mask: 0x7f, one: 0x3c }, body);
        }
        DataType::F32 => floating::<T, B, float::F32, order::F32, u32>(
            request,
            Truth { mask: 0x7fff_ffff, one: 0x3f80_0000 },
            body,
        ),
        DataType::F64 => floating::<T, B, float::F64, order::F64, u64>(
            request,
            Truth { mask: u64::MAX >> 1, one: 0x3ff0_0000_0000_0000 },
            body,
        ),
    }
}

/// Integers: `W` is the word of their width, `I` the type itself.
fn whole<T, B, W, I>(request: Request, body: B)
where
    T: Target,
    B: Body,
    W: integer::Word + From<bool> + core::ops::Not<Output = W>,
    I: integer::Divide + Ord,
{
    let truth = Truth { mask: !W::default(), one: W::from(true) };
    match (request.reduction, request.divisor) {
        (Reduction::Sum | Reduction::Avg | Reduction::PremulSum, None) => {
            go::<T, _, B>(request, integer::Sum::<W>::NEW, body);
        }
        (Reduction::Sum | Reduction::Avg | Reduction::PremulSum, Some(ranks)) => {
            go::<T, _, B>(request, integer::Average::<I>::new(ranks), body);
        }
        (Reduction::Prod, _) => go::<T, _, B>(request, integer::Product::<W>::NEW, body),
        (Reduction::Min, _) => go::<T, _, B>(request, Min::<Plain<I>>::NEW, body),
        (Reduction::Max, _) => go::<T, _, B>(request, Max::<Plain<I>>::NEW, body),
        (Reduction::LogicalAnd, _) => go::<T, _, B>(request, logical::All(truth), body),
        (Reduction::LogicalOr, _) => go::<T, _, B>(request, logical::Any(truth), body),
        (Reduction::LogicalXor, _) => go::<T, _, B>(request, logical::Odd(truth), body),
        (Reduction::BitAnd, _) => go::<T, _, B>(request, integer::And::<W>::NEW, body),
        (Reduction::BitOr, _) => go::<T, _, B>(request, integer::Or::<W>::NEW, body),
        (Reduction::BitXor, _) => go::<T, _, B>(request, integer::Xor::<W>::NEW, body),
    }
}

/// Floats: `F` is their arithmetic, `O` their order, `W` the word of their width.
fn floating<T, B, F, O, W>(request: Request, truth: Truth<W>, body: B)
where
    T: Target,
    B: Body,
    F: float::Format,
    O: Order,
    W: integer::Word,
{
    match (request.reduction, request.divisor) {
        (Reduction::Sum | Reduction::Avg | Reduction::PremulSum, None) => {
            go::<T, _, B>(request, float::Sum::<F>::new(1), body);
        }
        (Reduction::Sum | Reduction::Avg | Reduction::PremulSum, Some(ranks)) => {
            go::<T, _, B>(request, float::Average::<F>::new(ranks), body);
        }
        (Reduction::Prod, _) => go::<T, _, B>(request, float::Product::<F>::new(1), body),
        (Reduction::Min, _) => go::<T, _, B>(request, Min::<O>::NEW, body),
        (Reduction::Max, _) => go::<T, _, B>(request, Max::<O>::NEW, body),
        (Reduction::LogicalAnd, _) => go::<T, _, B>(request, logical::All(truth), body),
        (Reduction::LogicalOr, _) => go::<T, _, B>(request, logical::Any(truth), body),
        (Reduction::LogicalXor, _) => go::<T, _, B>(request, logical::Odd(truth), body),
        // The type-by-reduction table has no bitwise reductions of floats; such requests are refused before.
        (Reduction::BitAnd | Reduction::BitOr | Reduction::BitXor, _) => {}
    }
}
