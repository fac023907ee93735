//! Every kernel against the definition of its result, bit for bit, run by the interpreter.

#![expect(clippy::expect_used, clippy::panic, reason = "tests may panic")]

use core::ops::Range;

use proptest::{collection::vec, prelude::*, test_runner::TestRunner};
use ringway_cuda::kernel::{self, Form, Mismatch, Operands, Parameters, Spec, Unsupported};
use ringway_cuda_stand_in::interpreter::Module;
use ringway_reduce::{
    Scalar, oracle,
    samples::{scale, special, values},
};
use ringway_types::{DataType, Reduction};

const CAPABILITY: (u32, u32) = (9, 0);

/// Bytes around each operand, in which nothing may be written.
const MARGIN: usize = 32;

fn to_bytes(datatype: DataType, bits: &[u64]) -> Vec<u8> {
    bits.iter().flat_map(|v| v.to_le_bytes().into_iter().take(datatype.size())).collect()
}

#[derive(Debug, Clone)]
struct Case {
    datatype: DataType,
    reduction: Reduction,
    inputs: Vec<(Vec<u8>, Option<Scalar>)>,
    /// Whether the kernel is one that multiplies; `inputs` have factors only if so.
    scaled: bool,
    /// Elements by which each operand is past a multiple of 16 bytes.
    shifts: Vec<usize>,
    destinations: usize,
    in_place: Option<usize>,
    divisor: Option<u32>,
    inclusive: bool,
    carry: bool,
    ranks_before: u32,
    grid: u32,
    block: u32,
}

fn pairs() -> Vec<(DataType, Reduction)> {
    let all = DataType::ALL.iter().flat_map(|t| Reduction::ALL.iter().map(move |r| (*t, *r)));
    all.filter(|(t, r)| t.supports(*r)).collect()
}

const fn is_sum(reduction: Reduction) -> bool {
    matches!(reduction, Reduction::Sum | Reduction::Avg | Reduction::PremulSum)
}

/// A case for one pair of type and reduction, with this many sources.
fn case(
    (datatype, reduction): (DataType, Reduction),
    sources: Range<usize>,
    lengths: Range<usize>,
) -> impl Strategy<Value = Case> {
    let sums = is_sum(reduction);
    let inputs = (sources, lengths, any::<bool>()).prop_flat_map(move |(n, count, scaled)| {
        let scaled = scaled && sums;
        let factor = scale(datatype).prop_map(move |s| s.filter(|_| scaled));
        (vec((values(datatype, count), factor), n), Just(scaled))
    });
    let shifts = prop_oneof![Just(vec![0; 16]), vec(0..16_usize, 16)];
    let divisor = proptest::option::of(prop_oneof![1..10_u32, any::<u32>().prop_map(|d| d.max(1))]);
    let launch = (1..4_u32, prop_oneof![Just(1_u32), 2..9_u32, Just(32_u32)]);
    (
        inputs,
        shifts,
        1..=4_usize,
        proptest::option::of(0..9_usize),
        divisor,
        any::<(bool, bool)>(),
        1..5_u32,
        launch,
    )
        .prop_map(
            move |((inputs, scaled), shifts, destinations, in_place, divisor, flags, ranks, launch)| Case {
                datatype,
                reduction,
                in_place: in_place.filter(|i| *i < inputs.len()),
                inputs,
                scaled,
                shifts,
                destinations,
                divisor: divisor.filter(|_| sums),
                inclusive: flags.0,
                carry: flags.1,
                ranks_before: ranks,
                grid: launch.0,
                block: launch.1,
            },
        )
}

/// Memory cut into slots, in each of which an operand begins some bytes past a multiple of 16.
struct Slots {
    memory: Vec<u128>,
    room: usize,
}

impl Slots {
    fn new(slots: usize, length: usize) -> Self {
        let room = (length + 16 + 2 * MARGIN).next_multiple_of(16);
        let mut slots = Self { memory: vec![0; slots * room / 16], room };
        slots.bytes_mut().iter_mut().zip(0..).for_each(|(byte, i)| *byte = (i as u8).wrapping_mul(37));
        slots
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        let length = self.memory.len() * 16;
        // SAFETY: these are the bytes of the memory, borrowed as long as it is.
        unsafe { core::slice::from_raw_parts_mut(self.memory.as_mut_ptr().cast(), length) }
    }

    const fn at(&self, slot: usize, shift: usize) -> usize {
        slot * self.room + MARGIN + shift
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.bytes_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Where the kernel finds the memory.
    fn base(&mut self) -> u64 {
        self.memory.as_mut_ptr().expose_provenance() as u64
    }
}

/// A launch on the slots, and what the memory must hold afterwards.
struct Job {
    spec: Spec,
    slots: Slots,
    sources: Vec<usize>,
    destinations: Vec<usize>,
    scales: Vec<u64>,
    elements: usize,
    divisor: u32,
    written: Vec<(usize, Vec<u8>)>,
}

impl Job {
    /// Runs it, and compares all of the memory.
    fn check(mut self, grid: u32, block: u32, case: &dyn core::fmt::Debug) {
        let text = kernel::ptx(&self.spec, CAPABILITY).expect("a kernel");
        let module = Module::parse(&text).expect("a kernel of the known instructions");
        let entry = module.entry(kernel::ENTRY).expect("the entry");
        let base = self.slots.base();
        let addresses =
            |offsets: &[usize]| -> Vec<u64> { offsets.iter().map(|o| base + *o as u64).collect() };
        let mut parameters = Parameters::new();
        parameters
            .fill(
                &self.spec,
                &Operands {
                    sources: &addresses(&self.sources),
                    destinations: &addresses(&self.destinations),
                    scales: &self.scales,
                    elements: self.elements as u64,
                    divisor: self.divisor,
                },
            )
            .expect("operands of the kernel");
        let size: usize = entry.parameters().iter().map(|(size, _)| size).sum();
        assert_eq!(parameters.as_bytes().len(), size);
        let mut wanted = self.slots.bytes_mut().to_vec();
        for (at, bytes) in &self.written {
            wanted[*at..*at + bytes.len()].copy_from_slice(bytes);
        }
        // SAFETY: all operands lie in the memory, which nothing else uses.
        unsafe { entry.run(parameters.as_bytes(), grid, block) }.expect("a launch");
        for (at, bytes) in &self.written {
            let found = &self.slots.bytes_mut()[*at..*at + bytes.len()];
            assert_eq!(found, bytes, "{:?}: {case:?}", self.spec);
        }
        assert!(self.slots.bytes_mut() == wanted, "other bytes were written: {:?}: {case:?}", self.spec);
    }
}

fn scales(case: &Case) -> impl Iterator<Item = u64> {
    let datatype = case.datatype;
    (case.inputs.iter().filter(|_| case.scaled))
        .map(move |(_, scale)| u64::from_le_bytes(scale.unwrap_or(Scalar::one(datatype)).to_bytes()))
}

fn check_reduce(case: &Case) {
    let (size, sources) = (case.datatype.size(), case.inputs.len());
    let length = case.inputs[0].0.len();
    let mut slots = Slots::new(sources + case.destinations, length);
    let at = |slots: &Slots, slot: usize| slots.at(slot, case.shifts[slot % 16] * size % 16);
    for (i, (bytes, _)) in case.inputs.iter().enumerate() {
        slots.write(at(&slots, i), bytes);
    }
    let mut destinations: Vec<_> = (sources..sources + case.destinations).map(|s| at(&slots, s)).collect();
    destinations.extend(case.in_place.map(|i| at(&slots, i)));
    let inputs: Vec<_> = case.inputs.iter().map(|(bytes, scale)| (bytes.as_slice(), *scale)).collect();
    let wanted = oracle::reduce(case.datatype, case.reduction, &inputs, case.divisor);
    let form = Form::Reduce { destinations: destinations.len() as u32, divided: case.divisor.is_some() };
    let job = Job {
        spec: Spec {
            datatype: case.datatype,
            reduction: case.reduction,
            form,
            sources: sources as u32,
            scaled: case.scaled,
        },
        sources: (0..sources).map(|s| at(&slots, s)).collect(),
        written: destinations.iter().map(|d| (*d, wanted.clone())).collect(),
        destinations,
        scales: scales(case).collect(),
        elements: length / size,
        divisor: case.divisor.unwrap_or(0),
        slots,
    };
    job.check(case.grid, case.block, case);
}

fn check_scan(case: &Case) {
    let (size, steps) = (case.datatype.size(), case.inputs.len());
    let length = case.inputs[0].0.len();
    let mut slots = Slots::new(2 * steps + 1, length);
    let at = |slots: &Slots, slot: usize| slots.at(slot, case.shifts[slot % 16] * size % 16);
    let carry = case.carry.then_some(case.inputs[0].0.as_slice());
    slots.write(at(&slots, 0), &case.inputs[0].0);
    for (i, (bytes, _)) in case.inputs.iter().enumerate() {
        slots.write(at(&slots, 1 + i), bytes);
    }
    let output = |i: usize| if case.in_place == Some(i) { 1 + i } else { 1 + steps + i };
    let destinations: Vec<_> = (0..steps).map(|i| at(&slots, output(i))).collect();
    let inputs: Vec<_> = case.inputs.iter().map(|(bytes, scale)| (bytes.as_slice(), *scale)).collect();
    let (outputs, _) =
        oracle::scan(case.datatype, case.reduction, carry, &inputs, case.inclusive, before(case));
    let first = usize::from(!case.carry);
    let unscaled = u64::from_le_bytes(Scalar::one(case.datatype).to_bytes());
    let job = Job {
        spec: Spec {
            datatype: case.datatype,
            reduction: case.reduction,
            form: Form::Scan { carry: case.carry, inclusive: case.inclusive },
            sources: (steps + 1 - first) as u32,
            scaled: case.scaled,
        },
        sources: (first..=steps).map(|s| at(&slots, s)).collect(),
        written: destinations.iter().copied().zip(outputs).filter_map(|(d, o)| Some((d, o?))).collect(),
        destinations,
        scales: (case.carry && case.scaled).then_some(unscaled).into_iter().chain(scales(case)).collect(),
        elements: length / size,
        divisor: before(case),
        slots,
    };
    job.check(case.grid, case.block, case);
}

/// The ranks in the carry.
const fn before(case: &Case) -> u32 {
    if case.carry { case.ranks_before } else { 0 }
}

/// Runs a property `cases` times for every defined pair, so that none depends on luck.
fn for_every_pair(cases: u32, sources: Range<usize>, lengths: Range<usize>, check: fn(&Case)) {
    for pair in pairs() {
        let mut runner = TestRunner::new(ProptestConfig::with_cases(cases));
        let result = runner.run(&case(pair, sources.clone(), lengths.clone()), |case| {
            check(&case);
            Ok(())
        });
        result.unwrap_or_else(|failure| panic!("{pair:?}: {failure}"));
    }
}

#[test]
fn reductions_give_the_oracle_s_bits() {
    for_every_pair(24, 1..10, 0..100, check_reduce);
}

#[test]
fn reductions_of_many_sources_give_the_oracle_s_bits() {
    for_every_pair(2, 10..129, 0..20, check_reduce);
}

#[test]
fn scans_give_the_oracle_s_bits() {
    for_every_pair(24, 1..10, 0..100, check_scan);
}

#[test]
fn scans_of_many_sources_give_the_oracle_s_bits() {
    for_every_pair(2, 10..128, 0..20, check_scan);
}

/// A case without factors, in place of nothing, whose operands are all aligned.
fn plain(
    (datatype, reduction): (DataType, Reduction),
    inputs: Vec<(Vec<u8>, Option<Scalar>)>,
    divisor: Option<u32>,
) -> Case {
    Case {
        datatype,
        reduction,
        inputs,
        scaled: false,
        shifts: vec![0; 16],
        destinations: 1,
        in_place: None,
        divisor,
        inclusive: true,
        carry: false,
        ranks_before: 0,
        grid: 2,
        block: 32,
    }
}

/// Combines every pair of a list, and each with itself alone.
fn check_all(datatype: DataType, reduction: Reduction, bits: &[u64], divisor: Option<u32>) {
    let pairs = || bits.iter().flat_map(|a| bits.iter().map(move |b| (*a, *b)));
    let (a, b): (Vec<_>, Vec<_>) = pairs().unzip();
    let (a, b) = (to_bytes(datatype, &a), to_bytes(datatype, &b));
    for inputs in [vec![(a.clone(), None)], vec![(a, None), (b, None)]] {
        check_reduce(&plain((datatype, reduction), inputs, divisor));
    }
}

#[test]
fn corner_cases_meet_each_other() {
    for (datatype, reduction) in pairs() {
        check_all(datatype, reduction, &special(datatype), None);
    }
}

#[test]
fn every_half_value_converts_as_the_oracle_does() {
    let all: Vec<u64> = (0..=0xffff).collect();
    for datatype in [DataType::F16, DataType::Bf16] {
        let bytes = to_bytes(datatype, &all);
        for divisor in [None, Some(3), Some(1000), Some(u32::MAX)] {
            check_reduce(&plain((datatype, Reduction::Avg), vec![(bytes.clone(), None)], divisor));
        }
    }
}

/// A byte's quotient comes from a multiplication, which must be exact for every value and number of ranks.
#[test]
fn bytes_divide_exactly() {
    let all: Vec<u64> = (0..=0xff).collect();
    let divisors = (1..=600).chain([65535, 65536, 65537, (1 << 31) - 1, 1 << 31, u32::MAX]);
    for divisor in divisors {
        for datatype in [DataType::I8, DataType::U8] {
            let bytes = to_bytes(datatype, &all);
            check_reduce(&plain((datatype, Reduction::Avg), vec![(bytes, None)], Some(divisor)));
        }
    }
}

#[test]
fn integer_averages_truncate_toward_zero_at_the_edges() {
    for datatype in [DataType::I32, DataType::U32, DataType::I64, DataType::U64] {
        for divisor in [1, 2, 3, 255, 1 << 16, (1 << 31) - 1, 1 << 31, u32::MAX - 1, u32::MAX] {
            let wide = u64::from(divisor);
            let near = [0, 1, wide, wide - 1, wide + 1, 2 * wide, 1 << 31, (1 << 31) - 1, 1 << 63];
            let bits: Vec<_> = near.iter().flat_map(|v| [*v, v.wrapping_neg()]).collect();
            check_all(datatype, Reduction::Avg, &bits, Some(divisor));
        }
    }
}

fn spec(datatype: DataType, reduction: Reduction) -> Spec {
    Spec {
        datatype,
        reduction,
        form: Form::Reduce { destinations: 1, divided: false },
        sources: 1,
        scaled: false,
    }
}

#[test]
fn what_has_no_kernel_is_told() {
    let (sum, max) = (spec(DataType::F32, Reduction::Sum), spec(DataType::F32, Reduction::Max));
    let refusal = |spec, capability| kernel::ptx(&spec, capability).expect_err("refused");
    let (datatype, reduction) = (DataType::F16, Reduction::BitOr);
    assert_eq!(refusal(spec(datatype, reduction), CAPABILITY), Unsupported::Pair { datatype, reduction });
    assert_eq!(
        refusal(sum, (7, 5)),
        Unsupported::Capability { datatype: DataType::F32, found: (7, 5), needed: (8, 0) }
    );
    let short = spec(DataType::F8E5M2, Reduction::Sum);
    let needed = Unsupported::Capability { datatype: DataType::F8E5M2, found: (8, 6), needed: (8, 9) };
    assert_eq!(refusal(short, (8, 6)), needed);
    for found in [0, 129] {
        assert_eq!(refusal(Spec { sources: found, ..sum }, CAPABILITY), Unsupported::Sources { found });
        let form = Form::Reduce { destinations: found, divided: false };
        assert_eq!(refusal(Spec { form, ..sum }, CAPABILITY), Unsupported::Destinations { found });
    }
    let reduction = Reduction::Max;
    assert_eq!(refusal(Spec { scaled: true, ..max }, CAPABILITY), Unsupported::Scaled { reduction });
    let form = Form::Reduce { destinations: 1, divided: true };
    assert_eq!(refusal(Spec { form, ..max }, CAPABILITY), Unsupported::Divided { reduction });
    let form = Form::Scan { carry: true, inclusive: true };
    assert_eq!(refusal(Spec { form, ..sum }, CAPABILITY), Unsupported::OnlyCarry);
}

#[test]
fn later_devices_get_text_that_earlier_drivers_take() {
    for (capability, target) in [((8, 0), "sm_80"), ((8, 9), "sm_89"), ((9, 0), "sm_90"), ((12, 1), "sm_90")]
    {
        let text = kernel::ptx(&spec(DataType::F32, Reduction::Sum), capability).expect("a kernel");
        assert!(text.contains(&format!(".target {target}\n")), "{capability:?}");
    }
}

#[test]
fn operands_that_do_not_fit_the_kernel_are_told() {
    let sum = spec(DataType::F32, Reduction::Sum);
    let fill = |spec: &Spec, sources: &[u64], scales: &[u64], elements| {
        let operands = Operands { sources, destinations: &[32], scales, elements, divisor: 0 };
        Parameters::new().fill(spec, &operands)
    };
    assert_eq!(fill(&sum, &[16], &[], 4), Ok(()));
    let count = |what, expected, found| Err(Mismatch::Count { what, expected, found });
    assert_eq!(fill(&sum, &[16, 16], &[], 4), count("sources", 1, 2));
    assert_eq!(fill(&sum, &[16], &[1], 4), count("scales", 0, 1));
    assert_eq!(fill(&Spec { scaled: true, ..sum }, &[16], &[], 4), count("scales", 1, 0));
    assert_eq!(fill(&sum, &[18], &[], 4), Err(Mismatch::Misaligned { address: 18, size: 4 }));
    let elements = u64::MAX / 2;
    assert_eq!(fill(&sum, &[16], &[], elements), Err(Mismatch::Length { elements, size: 4 }));
    let form = Form::Reduce { destinations: 1, divided: true };
    assert_eq!(fill(&Spec { form, ..sum }, &[16], &[], 4), Err(Mismatch::Divisor));
}
