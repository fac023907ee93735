//! The two loops of a kernel, and what one turn of them does.

use ringway_types::Reduction;

use super::{
    DESTINATIONS, DIVISOR, ELEMENTS, Form, SCALES, SOURCES, Spec, VECTOR, VECTORS,
    element::{Divisor, Element},
    text::{Register, Text, Width, list},
};

/// How many sources are loaded before the first of them is combined: enough that a thread waits for memory once and not
/// for each, few enough that what was loaded fits in registers.
const IN_FLIGHT: usize = 8;

/// What one turn of a loop reads from each source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    /// 16 bytes in one access.
    Vector,
    /// One element.
    Element,
}

/// What all parts of a kernel know.
struct Body<'a> {
    spec: &'a Spec,
    element: Element,
    /// What a [`Form::Reduce`] divides by.
    divisor: Option<Divisor>,
}

/// One turn of a loop.
#[derive(Clone, Copy)]
struct Turn {
    unit: Unit,
    /// Bytes from each operand's address.
    offset: Register,
    /// Where the loop ends.
    after: &'static str,
    /// Never set, which the translator to the GPU's instructions cannot know. In an average's scan of many sources it keeps
    /// the numbers of ranks within the loop, and those of later groups from being prepared before earlier groups are done:
    /// all at once they exceed the registers.
    never: Option<Register>,
}

/// Writes everything between the braces of the entry: the vectors, each by one thread, then the elements after them.
pub(super) fn write(text: &mut Text, spec: &Spec) {
    let element = Element::of(spec.datatype, spec.reduction);
    let divisor = matches!(spec.form, Form::Reduce { divided: true, .. }).then(|| {
        let ranks = text.set(Width::Word, "ld.param.u32", format_args!("[{DIVISOR}]"));
        element.divisor(text, ranks)
    });
    let body = Body { spec, element, divisor };

    let special = |text: &mut Text, name: &str| text.set(Width::Word, "mov.u32", format_args!("{name}"));
    let (block, threads) = (special(text, "%ctaid.x"), special(text, "%ntid.x"));
    let (thread, blocks) = (special(text, "%tid.x"), special(text, "%nctaid.x"));
    let before = text.set(Width::Long, "mul.wide.u32", format_args!("{block}, {threads}"));
    let thread = text.set(Width::Long, "cvt.u64.u32", format_args!("{thread}"));
    let first = text.set(Width::Long, "add.u64", format_args!("{before}, {thread}"));
    let stride = text.set(Width::Long, "mul.wide.u32", format_args!("{threads}, {blocks}"));

    let vectors = text.set(Width::Long, "ld.param.u64", format_args!("[{VECTORS}]"));
    body.repeat(text, Unit::Vector, (first, vectors, stride));
    let shift = (VECTOR / element.size).ilog2();
    let done = text.set(Width::Long, "shl.b64", format_args!("{vectors}, {shift}"));
    let first = text.set(Width::Long, "add.u64", format_args!("{first}, {done}"));
    let elements = text.set(Width::Long, "ld.param.u64", format_args!("[{ELEMENTS}]"));
    body.repeat(text, Unit::Element, (first, elements, stride));
    text.line(format_args!("ret"));
}

impl Body<'_> {
    /// A loop over every `stride`-th unit from `first` up to `end`. Indices have 64 bits.
    fn repeat(&self, text: &mut Text, unit: Unit, (first, end, stride): (Register, Register, Register)) {
        let (turn, after, bytes) = match unit {
            Unit::Vector => ("$vector", "$vectors_done", VECTOR),
            Unit::Element => ("$element", "$elements_done", self.element.size),
        };
        let index = text.set(Width::Long, "mov.u64", format_args!("{first}"));
        let none = text.set(Width::Predicate, "setp.ge.u64", format_args!("{index}, {end}"));
        text.line(format_args!("@{none} bra {after}"));
        text.label(turn);
        let offset = text.set(Width::Long, "shl.b64", format_args!("{index}, {}", bytes.ilog2()));
        let one = Turn { unit, offset, after, never: self.never(text, offset) };
        match self.spec.form {
            Form::Reduce { destinations, .. } => self.reduce(text, one, destinations),
            Form::Scan { carry, inclusive } => self.scan(text, one, carry, inclusive),
        }
        text.line(format_args!("add.u64 {index}, {index}, {stride}"));
        let more = text.set(Width::Predicate, "setp.lt.u64", format_args!("{index}, {end}"));
        text.line(format_args!("@{more} bra {turn}"));
        text.label(after);
    }

    /// For [`Turn::never`]: offsets do not reach their highest bit.
    fn never(&self, text: &mut Text, offset: Register) -> Option<Register> {
        let Spec { form, reduction, sources, .. } = *self.spec;
        let many = sources as usize > IN_FLIGHT + 1;
        let needed = many && reduction == Reduction::Avg && matches!(form, Form::Scan { .. });
        needed
            .then(|| text.set(Width::Predicate, "setp.ge.u64", format_args!("{offset}, {:#x}", 1_u64 << 63)))
    }

    /// Combines every source, then writes to every destination.
    fn reduce(&self, text: &mut Text, turn: Turn, destinations: u32) {
        let mut total = Vec::new();
        self.in_groups(text, turn, self.spec.sources, |text, source, loaded| {
            self.accumulate(text, turn, &mut total, source, loaded);
        });
        let result = self.finish(text, turn, &total, self.divisor);
        for destination in 0..destinations {
            store(text, turn, self.element, destination, &result);
        }
    }

    /// Writes the running combination as each source is reached: after it was loaded, since it may be what is written over.
    /// The last source of an exclusive scan is not read, and its first destination is only written to if something
    /// comes before.
    fn scan(&self, text: &mut Text, turn: Turn, carry: bool, inclusive: bool) {
        let step_of = |source: u32| source.checked_sub(u32::from(carry));
        let last = self.spec.sources - 1;
        let mut total = Vec::new();
        self.in_groups(text, turn, last + u32::from(inclusive), |text, source, loaded| {
            if let Some(step) = step_of(source).filter(|_| !inclusive) {
                self.put_step(text, turn, &total, step, step);
            }
            self.accumulate(text, turn, &mut total, source, loaded);
            if let Some(step) = step_of(source).filter(|_| inclusive) {
                self.put_step(text, turn, &total, step, step + 1);
            }
        });
        if let Some(step) = step_of(last).filter(|_| !inclusive) {
            self.put_step(text, turn, &total, step, step);
        }
    }

    /// Writes a step's result, which combines the ranks in the carry and so many `more`.
    fn put_step(&self, text: &mut Text, turn: Turn, total: &[Register], step: u32, more: u32) {
        if total.is_empty() {
            return;
        }
        let divisor = (self.spec.reduction == Reduction::Avg).then(|| {
            let before = Self::ranks_before(text, turn);
            let ranks = text.set(Width::Word, "add.u32", format_args!("{before}, {more}"));
            self.element.divisor(text, ranks)
        });
        let result = self.finish(text, turn, total, divisor);
        store(text, turn, self.element, step, &result);
    }

    /// The ranks in the carry.
    fn ranks_before(text: &mut Text, turn: Turn) -> Register {
        let given = text.set(Width::Word, "ld.param.u32", format_args!("[{DIVISOR}]"));
        let Some(never) = turn.never else { return given };
        text.set(Width::Word, "selp.b32", format_args!("0, {given}, {never}"))
    }

    /// Loads groups of sources, and hands over each source of a group after all of it was loaded.
    fn in_groups(
        &self,
        text: &mut Text,
        turn: Turn,
        sources: u32,
        mut each: impl FnMut(&mut Text, u32, &[Register]),
    ) {
        let all: Vec<u32> = (0..sources).collect();
        for group in all.chunks(IN_FLIGHT) {
            if let Some(never) = turn.never {
                text.line(format_args!("@{never} bra {}", turn.after));
            }
            let loaded: Vec<_> = group.iter().map(|s| load(text, turn, self.element, *s)).collect();
            for (source, registers) in group.iter().zip(&loaded) {
                each(text, *source, registers);
            }
        }
    }

    /// Combines what was loaded of a source into the total, which is empty before the first.
    fn accumulate(
        &self,
        text: &mut Text,
        turn: Turn,
        total: &mut Vec<Register>,
        source: u32,
        loaded: &[Register],
    ) {
        let (element, reduction) = (self.element, self.spec.reduction);
        let factor = self.spec.scaled.then(|| element.factor(text, &format!("{SCALES}+{}", 8 * source)));
        let mut values = Vec::new();
        for register in loaded {
            for value in element.decode(text, *register, turn.unit == Unit::Element) {
                let value = factor.map_or(value, |factor| element.multiply(text, value, factor));
                values.push(if is_logical(reduction) { element.truth(text, value) } else { value });
            }
        }
        if total.is_empty() {
            *total = values;
            return;
        }
        for (total, value) in total.iter_mut().zip(values) {
            *total = element.combine(text, reduction, *total, value);
        }
    }

    /// The registers to store for a total.
    fn finish(
        &self,
        text: &mut Text,
        turn: Turn,
        total: &[Register],
        divisor: Option<Divisor>,
    ) -> Vec<Register> {
        let element = self.element;
        let quotients: Vec<_> =
            total.iter().map(|v| divisor.map_or(*v, |d| element.divide(text, *v, d))).collect();
        let registers = match turn.unit {
            Unit::Vector => element.per_vector(),
            Unit::Element => 1,
        };
        quotients.chunks(quotients.len() / registers).map(|values| element.encode(text, values)).collect()
    }
}

/// The address of an operand's part in this turn.
fn address(text: &mut Text, turn: Turn, operands: &str, operand: u32) -> Register {
    let given = text.set(Width::Long, "ld.param.u64", format_args!("[{operands}+{}]", 8 * operand));
    let global = text.set(Width::Long, "cvta.to.global.u64", format_args!("{given}"));
    text.set(Width::Long, "add.u64", format_args!("{global}, {}", turn.offset))
}

/// What one turn reads from a source.
fn load(text: &mut Text, turn: Turn, element: Element, source: u32) -> Vec<Register> {
    let from = address(text, turn, SOURCES, source);
    let count = if turn.unit == Unit::Vector { element.per_vector() } else { 1 };
    let registers: Vec<_> = (0..count).map(|_| text.register(element.width())).collect();
    let (access, names) = access(turn.unit, element, &registers);
    text.line(format_args!("ld.global.{access} {names}, [{from}]"));
    registers
}

/// Writes what one turn gives to a destination.
fn store(text: &mut Text, turn: Turn, element: Element, destination: u32, registers: &[Register]) {
    let to = address(text, turn, DESTINATIONS, destination);
    let (access, names) = access(turn.unit, element, registers);
    text.line(format_args!("st.global.{access} [{to}], {names}"));
}

/// The type in the name of an access, and its registers. Registers larger than an element hold it in their low bits,
/// with zeros above after a load (PTX ISA, "Operand Size Exceeding Instruction-Type Size").
fn access(unit: Unit, element: Element, registers: &[Register]) -> (&'static str, String) {
    match (unit, element.size) {
        (Unit::Vector, 8) => ("v2.b64", format!("{{{}}}", list(registers))),
        (Unit::Vector, _) => ("v4.b32", format!("{{{}}}", list(registers))),
        (Unit::Element, 1) => ("u8", list(registers)),
        (Unit::Element, 2) => ("u16", list(registers)),
        (Unit::Element, 4) => ("b32", list(registers)),
        (Unit::Element, _) => ("b64", list(registers)),
    }
}

const fn is_logical(reduction: Reduction) -> bool {
    matches!(reduction, Reduction::LogicalAnd | Reduction::LogicalOr | Reduction::LogicalXor)
}
