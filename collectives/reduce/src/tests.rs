//! Every kernel at every level against the oracle, bit for bit.

mod f8;

use proptest::{collection::vec, prelude::*};
use ringway_mem::{Mapping, Protection, Window};
use ringway_types::{DataType, Reduction};

use crate::samples::{scale, special, values};
use crate::{
    CopyError, ReduceError, Scalar, ScanStep, Source, Stores,
    copy::{copy_at, copy_half_at, swap_at},
    kernel::{ScanJob, level, level::Level},
    oracle, reduce, reduce_at, scan_at,
};

const PAGE: usize = 4096;

/// How much less is tried on architectures that are tested under an emulator.
const FEWER: u32 = if cfg!(target_arch = "x86_64") { 1 } else { 6 };

/// The forms of the kernels this processor runs.
fn levels() -> Vec<Level> {
    let all = [Level::Baseline, Level::Avx2, Level::Avx512];
    all.into_iter().take_while(|level| *level as u8 <= level::best() as u8).collect()
}

/// Memory cut into slots, each of whose windows starts at an offset of its own.
struct Slots {
    mapping: Mapping,
    room: usize,
}

impl Slots {
    fn new(slots: usize, length: usize) -> Self {
        let room = (length + 2 * PAGE).next_multiple_of(PAGE);
        Self { mapping: Mapping::private(room * slots).expect("map"), room }
    }

    fn window(&self, slot: usize, shift: usize, length: usize) -> Window<'_> {
        let at = (slot * self.room + PAGE / 2 + shift) as u64;
        self.mapping.window(at, length as u64).expect("inside")
    }

    fn all(&self) -> Vec<u8> {
        bytes(&self.mapping.window(0, self.mapping.length() as u64).expect("inside"))
    }
}

fn bytes(window: &Window<'_>) -> Vec<u8> {
    let mut bytes = vec![0; window.length()];
    window.read(&mut bytes);
    bytes
}

#[derive(Debug, Clone)]
struct Case {
    datatype: DataType,
    reduction: Reduction,
    inputs: Vec<(Vec<u8>, Option<Scalar>)>,
    shifts: Vec<usize>,
    destinations: usize,
    in_place: Option<usize>,
    divisor: Option<u32>,
    inclusive: bool,
    carry: bool,
    ranks_before: u32,
}

fn pairs() -> Vec<(DataType, Reduction)> {
    let all = DataType::ALL.iter().flat_map(|t| Reduction::ALL.iter().map(move |r| (*t, *r)));
    all.filter(|(t, r)| t.supports(*r)).collect()
}

/// A case for one pair of type and reduction.
fn case((datatype, reduction): (DataType, Reduction)) -> impl Strategy<Value = Case> {
    let sums = crate::is_sum(reduction);
    let inputs = (1..=9_usize, prop_oneof![0..40_usize, 0..700_usize]).prop_flat_map(move |(n, count)| {
        let factor = scale(datatype).prop_map(move |s| s.filter(|_| sums));
        vec((values(datatype, count), factor), n)
    });
    let divisor = proptest::option::of(prop_oneof![1..10_u32, any::<u32>().prop_map(|d| d.max(1))]);
    (
        inputs,
        vec(0..64_usize, 14),
        1..=4_usize,
        proptest::option::of(0..9_usize),
        divisor,
        any::<(bool, bool)>(),
        1..5_u32,
    )
        .prop_map(move |(inputs, shifts, destinations, in_place, divisor, flags, ranks_before)| Case {
            datatype,
            reduction,
            in_place: in_place.filter(|i| *i < inputs.len()),
            inputs,
            shifts,
            destinations,
            divisor: divisor.filter(|_| sums),
            inclusive: flags.0,
            carry: flags.1,
            ranks_before,
        })
}

/// What memory must hold after the given windows were written, starting from what it held.
fn expect(before: &[u8], slots: &Slots, written: &[(Window<'_>, Vec<u8>)]) -> Vec<u8> {
    let base = slots.mapping.window(0, 0).expect("inside").as_ptr().addr();
    let mut after = before.to_vec();
    for (window, bytes) in written {
        let at = window.as_ptr().addr() - base;
        after[at..at + bytes.len()].copy_from_slice(bytes);
    }
    after
}

fn check_reduce(case: &Case, level: Level) {
    for stores in [Stores::Cached, Stores::Streaming, Stores::StreamingBut(0), Stores::StreamingOnly(0)] {
        check_reduce_with(stores, case, level);
    }
}

fn check_reduce_with(stores: Stores, case: &Case, level: Level) {
    let length = case.inputs[0].0.len();
    let slots = Slots::new(14, length);
    let window = |slot: usize| slots.window(slot, case.shifts[slot], length);
    let sources: Vec<_> = (case.inputs.iter().enumerate())
        .map(|(i, (bytes, scale))| {
            window(i).write(bytes);
            Source { window: window(i), scale: *scale }
        })
        .collect();
    let mut destinations: Vec<_> = (9..9 + case.destinations).map(window).collect();
    destinations.extend(case.in_place.map(window));
    let inputs: Vec<_> = case.inputs.iter().map(|(bytes, scale)| (bytes.as_slice(), *scale)).collect();
    let wanted = oracle::reduce(case.datatype, case.reduction, &inputs, case.divisor);
    let written: Vec<_> = destinations.iter().map(|d| (*d, wanted.clone())).collect();
    let after = expect(&slots.all(), &slots, &written);
    reduce_at(level, stores, case.datatype, case.reduction, &sources, &destinations, case.divisor)
        .expect("reduce");
    for destination in &destinations {
        assert_eq!(bytes(destination), wanted, "{case:?} at {level:?}, {stores:?}");
    }
    assert!(slots.all() == after, "bytes outside the destinations were written: {case:?} at {level:?}");
}

fn check_scan(case: &Case, level: Level) {
    let length = case.inputs[0].0.len();
    let slots = Slots::new(2 * case.inputs.len() + 2, length);
    let window = |slot: usize| slots.window(slot, case.shifts[slot % 14], length);
    let (carry_in, carry_out) = (window(0), window(1));
    carry_in.write(&case.inputs[0].0);
    let mut written = Vec::new();
    let inputs: Vec<_> = case.inputs.iter().map(|(bytes, scale)| (bytes.as_slice(), *scale)).collect();
    let carry = case.carry.then_some(inputs[0].0);
    let (outputs, total) =
        oracle::scan(case.datatype, case.reduction, carry, &inputs, case.inclusive, case.ranks_before);
    let mut steps = Vec::new();
    for (i, wanted) in outputs.into_iter().enumerate() {
        let input = Source { window: window(2 + 2 * i), scale: inputs[i].1 };
        input.window.write(inputs[i].0);
        let output = if case.in_place == Some(i) { input.window } else { window(3 + 2 * i) };
        let output = (case.destinations != i).then_some(output);
        written.extend(output.zip(wanted));
        steps.push(ScanStep { input, output });
    }
    written.extend(total.map(|total| (carry_out, total)));
    let after = expect(&slots.all(), &slots, &written);
    let job = ScanJob {
        carry_in: case.carry.then_some(carry_in),
        steps: &steps,
        inclusive: case.inclusive,
        ranks_before: case.ranks_before,
        carry_out: Some(carry_out),
        length: 0,
    };
    scan_at(level, case.datatype, case.reduction, job).expect("scan");
    for (window, wanted) in &written {
        assert_eq!(&bytes(window), wanted, "{case:?} at {level:?}");
    }
    assert!(slots.all() == after, "bytes outside the outputs were written: {case:?} at {level:?}");
}

/// Runs a property `cases` times for every defined pair, so that none depends on luck.
fn for_every_pair(cases: u32, check: fn(&Case, Level)) {
    for pair in pairs() {
        let mut runner =
            proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(cases.div_ceil(FEWER)));
        let result = runner.run(&case(pair), |case| {
            for level in levels() {
                check(&case, level);
            }
            Ok(())
        });
        result.unwrap_or_else(|failure| panic!("{pair:?}: {failure}"));
    }
}

#[test]
fn reductions_give_the_oracle_s_bits() {
    for_every_pair(12, check_reduce);
}

/// More destinations than are streamed to, and the lengths around each threshold.
fn check_streaming(shift: fn(usize) -> usize, stores: Stores) {
    let slots = Slots::new(141, 1300);
    for length in (508..=1300).step_by(4 * FEWER as usize) {
        let window = |slot: usize| slots.window(slot, shift(slot), length);
        let input: Vec<u8> = (0..length).map(|i| (i * 7 + length) as u8).collect();
        window(0).write(&input);
        let destinations: Vec<_> = (1..=140).map(window).collect();
        let wanted = oracle::reduce(DataType::I32, Reduction::Sum, &[(input.as_slice(), None); 2], None);
        let sources = [Source::from(window(0)); 2];
        for level in levels() {
            reduce_at(level, stores, DataType::I32, Reduction::Sum, &sources, &destinations, None)
                .expect("reduce");
            for (i, destination) in destinations.iter().enumerate() {
                assert!(bytes(destination) == wanted, "{length} bytes, destination {i} at {level:?}");
                destination.write(&vec![0; length]);
            }
            copy_at(level, stores, window(0), &destinations).expect("copy");
            for (i, destination) in destinations.iter().enumerate() {
                assert!(bytes(destination) == input, "{length} bytes, copy {i} at {level:?}");
            }
        }
    }
}

#[test]
fn streaming_reaches_every_destination() {
    check_streaming(|slot| slot % 64, Stores::Streaming);
}

/// Destinations that begin with a line get what is in the registers.
#[test]
fn streaming_reaches_every_destination_that_begins_with_a_line() {
    check_streaming(|_| 0, Stores::Streaming);
    check_streaming(|_| 0, Stores::StreamingBut(70));
    check_streaming(|_| 0, Stores::StreamingOnly(70));
}

/// Results before the first line are stored singly, if that is whole elements.
#[test]
fn streaming_reaches_every_destination_equally_far_from_a_line() {
    check_streaming(|_| 4, Stores::Streaming);
    check_streaming(|_| 60, Stores::StreamingBut(70));
    check_streaming(|_| 62, Stores::Streaming);
    check_streaming(|slot| slot % 2 * 12, Stores::StreamingOnly(70));
}

#[test]
fn scans_give_the_oracle_s_bits() {
    for_every_pair(8, check_scan);
}

/// Runs every 16-bit pattern through a reduction of one or two sources at every level.
fn every_half(datatype: DataType, reduction: Reduction, other: Option<u16>, divisor: Option<u32>) {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let slots = Slots::new(3, all.len());
    let window = |slot| slots.window(slot, slot, all.len());
    window(0).write(&all);
    let mut sources = vec![Source { window: window(0), scale: None }];
    let others = other.map(|bits| bits.to_le_bytes().repeat(1 << 16));
    let mut inputs = vec![(all.as_slice(), None)];
    if let Some(others) = &others {
        window(1).write(others);
        sources.push(Source { window: window(1), scale: None });
        inputs.push((others.as_slice(), None));
    }
    let wanted = oracle::reduce(datatype, reduction, &inputs, divisor);
    for level in levels() {
        reduce_at(level, Stores::Cached, datatype, reduction, &sources, &[window(2)], divisor)
            .expect("reduce");
        assert!(bytes(&window(2)) == wanted, "{datatype} {reduction} with {other:?} at {level:?}");
    }
}

#[test]
fn every_half_value_converts_as_the_oracle_does() {
    for datatype in [DataType::F16, DataType::Bf16] {
        every_half(datatype, Reduction::Sum, None, None);
        every_half(datatype, Reduction::Max, None, None);
        every_half(datatype, Reduction::LogicalOr, None, None);
        for divisor in [3, 7, 1000, 1 << 14, u32::MAX] {
            every_half(datatype, Reduction::Avg, None, Some(divisor));
        }
        for other in special(datatype) {
            every_half(datatype, Reduction::Sum, Some(other as u16), None);
            every_half(datatype, Reduction::Prod, Some(other as u16), None);
            every_half(datatype, Reduction::Min, Some(other as u16), None);
        }
    }
}

#[test]
fn integer_averages_truncate_toward_zero_at_the_edges() {
    for datatype in [DataType::I8, DataType::U8, DataType::I32, DataType::U32, DataType::I64, DataType::U64] {
        let divisors: Vec<u32> =
            (1..300).chain([1 << 16, (1 << 31) - 1, 1 << 31, u32::MAX - 1, u32::MAX]).collect();
        for divisor in divisors {
            let wide = u64::from(divisor);
            let near = (0..5_u64).flat_map(|k| {
                [k, wide.wrapping_mul(k), wide.wrapping_mul(k).wrapping_sub(1), (1 << 31) - k, (1 << 63) - k]
            });
            let near = near.flat_map(|v| [v, v.wrapping_neg(), v.wrapping_add(0x7f)]);
            let all: Vec<u8> = near.flat_map(|v| v.to_le_bytes().into_iter().take(datatype.size())).collect();
            let slots = Slots::new(2, all.len());
            let (from, to) = (slots.window(0, 0, all.len()), slots.window(1, 1, all.len()));
            from.write(&all);
            let wanted = oracle::reduce(datatype, Reduction::Avg, &[(&all, None)], Some(divisor));
            for level in levels() {
                let source = Source { window: from, scale: None };
                reduce_at(level, Stores::Cached, datatype, Reduction::Avg, &[source], &[to], Some(divisor))
                    .expect("reduce");
                assert_eq!(bytes(&to), wanted, "{datatype} / {divisor} at {level:?}");
            }
        }
    }
}

/// The oracle itself, on values worked out by hand.
#[test]
fn the_oracle_knows_the_standards() {
    let f32s = |v: &[f32]| -> Vec<u8> { v.iter().flat_map(|v| v.to_le_bytes()).collect() };
    let of = |reduction, a: &[f32], b: &[f32]| {
        oracle::reduce(DataType::F32, reduction, &[(&f32s(a), None), (&f32s(b), None)], None)
    };
    let (zeros, negative) = ([0.0, -0.0, 1.0], [-0.0, 0.0, f32::NAN]);
    let canonical = f32::from_bits(0x7fc0_0000);
    assert_eq!(of(Reduction::Min, &zeros, &negative), f32s(&[-0.0, -0.0, canonical]));
    assert_eq!(of(Reduction::Max, &zeros, &negative), f32s(&[0.0, 0.0, canonical]));
    assert_eq!(of(Reduction::LogicalAnd, &[2.0, 1.0], &[f32::NAN, -0.0]), f32s(&[1.0, 0.0]));
    assert_eq!(of(Reduction::LogicalXor, &[2.0, 1.0], &[3.0, 0.0]), f32s(&[0.0, 1.0]));
    let inputs = [(&[200_u8, 0xff][..], None), (&[100, 0xff], Some(Scalar::signed(2)))];
    assert_eq!(oracle::reduce(DataType::U8, Reduction::PremulSum, &inputs, None), [144, 0xfd]);
    assert_eq!(oracle::reduce(DataType::I8, Reduction::Avg, &[(&[0xf9], None)], Some(2)), [0xfd]);
    // 2048 + 1 + 1 in binary16: rounding at each step would lose both ones.
    let half = |bits: u16| bits.to_le_bytes();
    let (big, one) = (half(0x6800), half(0x3c00));
    let inputs = [(&big[..], None), (&one[..], None), (&one[..], None)];
    assert_eq!(oracle::reduce(DataType::F16, Reduction::Sum, &inputs, None), half(0x6801));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256 / FEWER))]

    #[test]
    fn copies_and_swaps_move_the_bytes(
        data in prop_oneof![vec(any::<u8>(), 0..80), vec(any::<u8>(), 0..3000)],
        shifts in vec(0..64_usize, 5),
        destinations in 0..=4_usize,
        in_place: bool,
    ) {
        let other: Vec<u8> = data.iter().map(|b| b ^ 0x5a).collect();
        for level in levels() {
            let slots = Slots::new(5, data.len());
            let window = |slot: usize| slots.window(slot, shifts[slot], data.len());
            window(0).write(&data);
            let mut to: Vec<_> = (1..1 + destinations).map(window).collect();
            to.extend(in_place.then(|| window(0)));
            let written: Vec<_> = to.iter().map(|w| (*w, data.clone())).collect();
            let after = expect(&slots.all(), &slots, &written);
            copy_at(level, Stores::Cached, window(0), &to).expect("copy");
            prop_assert!(slots.all() == after);
            to.iter().filter(|w| w.as_ptr() != window(0).as_ptr()).for_each(|w| _ = w.write(&other));
            copy_at(level, Stores::Streaming, window(0), &to).expect("copy");
            prop_assert!(slots.all() == after);
            to.iter().filter(|w| w.as_ptr() != window(0).as_ptr()).for_each(|w| _ = w.write(&other));
            to.iter().try_for_each(|w| copy_half_at(level, window(0), *w)).expect("copy");
            prop_assert!(slots.all() == after);

            window(1).write(&other);
            let after = expect(&slots.all(), &slots, &[(window(0), other.clone()), (window(1), data.clone())]);
            swap_at(level, window(0), window(1)).expect("swap");
            prop_assert!(slots.all() == after);
            swap_at(level, window(0), window(0)).expect("swap");
            prop_assert!(slots.all() == after);
        }
    }
}

#[test]
fn refusals_name_their_reason_and_write_nothing() {
    let slots = Slots::new(2, 64);
    let (a, b) = (slots.window(0, 0, 64), slots.window(1, 0, 64));
    a.write(&[7; 64]);
    let source = |window| Source { window, scale: None };
    let scaled = Source { window: a, scale: Some(Scalar::unsigned(2)) };
    let short = b.sub(0, 60).expect("inside");
    let (u32s, max) = (DataType::U32, Reduction::Max);
    let refusal = |t, r, s: &[Source<'_>], d: &[Window<'_>], n| reduce(t, r, s, d, n).expect_err("refused");
    assert_eq!(refusal(u32s, max, &[], &[b], None), ReduceError::NoSource);
    assert_eq!(
        refusal(DataType::F32, Reduction::BitOr, &[source(a)], &[b], None),
        ReduceError::Unsupported { datatype: DataType::F32, reduction: Reduction::BitOr }
    );
    let mismatch = ReduceError::LengthMismatch { expected: 64, found: 60 };
    assert_eq!(refusal(u32s, max, &[source(a), source(short)], &[b], None), mismatch);
    assert_eq!(refusal(u32s, max, &[source(a)], &[b, short], None), mismatch);
    assert_eq!(
        refusal(DataType::F64, max, &[source(short)], &[], None),
        ReduceError::PartialElement { datatype: DataType::F64, length: 60 }
    );
    assert_eq!(refusal(u32s, max, &[scaled], &[b], None), ReduceError::ScaleRefused { reduction: max });
    assert_eq!(
        refusal(u32s, max, &[source(a)], &[b], Some(2)),
        ReduceError::DivisorRefused { reduction: max }
    );
    assert_eq!(refusal(u32s, Reduction::Avg, &[source(a)], &[b], Some(0)), ReduceError::BadDivisor);
    assert_eq!(crate::copy(a, &[b, short]), Err(CopyError::LengthMismatch { expected: 64, found: 60 }));
    let mismatch = CopyError::LengthMismatch { expected: 64, found: 60 };
    assert_eq!(crate::copy_half_streaming(a, short), Err(mismatch));
    let step = ScanStep { input: source(a), output: Some(b) };
    let average = crate::scan(u32s, Reduction::Avg, Some(a), &[step], false, 0, None);
    assert_eq!(average, Err(ReduceError::BadDivisor));
    assert_eq!(bytes(&b), [0; 64]);
}

#[test]
fn read_only_windows_are_read_but_never_written() {
    let file = std::fs::File::open(std::env::current_exe().expect("own path")).expect("own program");
    let fd = std::os::fd::AsFd::as_fd(&file);
    let mapping = Mapping::shared(fd, 64, Protection::Read).expect("map");
    let fixed = mapping.window(0, 64).expect("inside");
    let slots = Slots::new(1, 64);
    let free = slots.window(0, 0, 64);
    let source = |window| Source { window, scale: None };
    let (t, r) = (DataType::U8, Reduction::Sum);
    assert_eq!(reduce(t, r, &[source(fixed)], &[free], None), Ok(()));
    assert_eq!(reduce(t, r, &[source(fixed)], &[free, fixed], None), Err(ReduceError::ReadOnly));
    let step = ScanStep { input: source(free), output: None };
    assert_eq!(crate::scan(t, r, None, &[step], true, 0, Some(fixed)), Err(ReduceError::ReadOnly));
    assert_eq!(crate::copy(fixed, &[free]), Ok(()));
    assert_eq!(crate::copy(free, &[fixed]), Err(CopyError::ReadOnly));
    assert_eq!(crate::copy_half_streaming(free, fixed), Err(CopyError::ReadOnly));
    assert_eq!(crate::swap(free, fixed), Err(CopyError::ReadOnly));
    assert_eq!(bytes(&free), bytes(&fixed));
}
