//! From text to instructions. One directive, label or instruction a line.

use std::collections::BTreeMap;

use super::{Action, Entry, Instruction, Module, SPECIAL, Slot, Width, end_after, operations};

/// What a register holds before it is written: nothing that a kernel's result could rest on unnoticed.
const GARBAGE: u64 = 0xa5a5_5a5a_a5a5_5a5a;

/// What is known of the kernel that is being read.
#[derive(Default)]
struct Draft {
    name: String,
    parameters: Vec<(usize, usize)>,
    /// Where each parameter begins, and its bytes.
    places: BTreeMap<String, (usize, usize)>,
    end: usize,
    registers: BTreeMap<String, (Slot, Width)>,
    constants: BTreeMap<u64, Slot>,
    file: Vec<u64>,
    labels: BTreeMap<String, usize>,
    /// Branches whose labels may come later.
    branches: Vec<(usize, String)>,
    code: Vec<Instruction>,
}

/// Where in a text a line is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Top,
    Parameters,
    Opening,
    Body,
}

pub(super) fn module(text: &str) -> Result<Module, String> {
    let mut entries = Vec::new();
    let mut draft = Draft::default();
    let mut place = Place::Top;
    for (number, whole) in (1..).zip(text.lines()) {
        let line = whole.split("//").next().unwrap_or("").trim();
        let wrong = |why: String| format!("line {number}: {why}: `{line}`");
        match (place, line) {
            (_, "") => {}
            (Place::Parameters, ")") => place = Place::Opening,
            (Place::Parameters, _) => draft.parameter(line).map_err(wrong)?,
            (Place::Opening, "{") => place = Place::Body,
            (Place::Opening, _) => return Err(wrong("a brace opens a kernel's instructions".into())),
            (Place::Body, "}") => {
                entries.push(core::mem::take(&mut draft).finish().map_err(wrong)?);
                place = Place::Top;
            }
            (Place::Body, _) => draft.statement(line, number).map_err(wrong)?,
            (Place::Top, _) => {
                if let Some(name) = line.strip_prefix(".visible .entry ").and_then(|l| l.strip_suffix('(')) {
                    draft = Draft::new(name);
                    place = Place::Parameters;
                } else if ![".version ", ".target sm_", ".address_size 64"]
                    .iter()
                    .any(|d| line.starts_with(d))
                {
                    return Err(wrong("unknown directive".into()));
                }
            }
        }
    }
    if place == Place::Top { Ok(Module { entries }) } else { Err("the text ends inside a kernel".into()) }
}

impl Draft {
    fn new(name: &str) -> Self {
        let mut draft = Self { name: name.to_owned(), ..Self::default() };
        for special in SPECIAL {
            draft.register(special, Width::Word);
        }
        draft
    }

    fn register(&mut self, name: &str, width: Width) {
        self.registers.insert(name.to_owned(), (self.file.len() as Slot, width));
        let held = if width == Width::Long { u64::MAX } else { (1 << (8 * width as u32)) - 1 };
        self.file.push(GARBAGE & held.max(1));
    }

    /// `.param .u64 NAME` or `.param .align N .b8 NAME[BYTES]`.
    fn parameter(&mut self, line: &str) -> Result<(), String> {
        let words: Vec<_> = line.trim_end_matches(',').split_whitespace().collect();
        let (name, size, align) = match *words {
            [".param", ".u64", name] => (name, 8, 8),
            [".param", ".u32", name] => (name, 4, 4),
            [".param", ".align", align, ".b8", array] => {
                let (name, size) = array
                    .strip_suffix(']')
                    .and_then(|a| a.split_once('['))
                    .ok_or("a parameter of bytes is an array")?;
                (name, number(size)?, number(align)?)
            }
            _ => return Err("unknown parameter".into()),
        };
        if size == 0 || !align.is_power_of_two() {
            return Err("a parameter has bytes, and a power of two as its alignment".into());
        }
        self.end = end_after(self.end, size, align);
        self.parameters.push((size, align));
        self.places.insert(name.to_owned(), (self.end - size, size));
        Ok(())
    }

    /// A line between the braces.
    fn statement(&mut self, line: &str, number: usize) -> Result<(), String> {
        if let Some(label) = line.strip_suffix(':') {
            let again = self.labels.insert(label.to_owned(), self.code.len()).is_some();
            return if again { Err("the label is there already".into()) } else { Ok(()) };
        }
        let line = line.strip_suffix(';').ok_or("an instruction ends with a semicolon")?;
        if let Some(registers) = line.strip_prefix(".reg ") {
            return self.declare(registers);
        }
        let (guard, line) = match line.strip_prefix('@') {
            None => (None, line),
            Some(guarded) => {
                let (name, line) = guarded.split_once(' ').ok_or("a predicate guards nothing")?;
                let positive = name.strip_prefix('!');
                let slot = self.written(positive.unwrap_or(name), Width::Predicate)?;
                (Some((slot, positive.is_none())), line)
            }
        };
        let (opcode, operands) = line.split_once(' ').unwrap_or((line, ""));
        let action = self.action(opcode, &split(operands))?;
        self.code.push(Instruction { guard, action, line: number });
        Ok(())
    }

    /// `.b32 %r<N>`.
    fn declare(&mut self, registers: &str) -> Result<(), String> {
        let (kind, names) = registers.split_once(' ').ok_or("registers without names")?;
        let width = match kind {
            ".pred" => Width::Predicate,
            ".b16" => Width::Half,
            ".b32" => Width::Word,
            ".b64" => Width::Long,
            _ => return Err("unknown type of registers".into()),
        };
        let (prefix, count) = names
            .strip_suffix('>')
            .and_then(|n| n.split_once('<'))
            .ok_or("registers are declared by their number")?;
        for index in 0..number(count)? {
            self.register(&format!("{prefix}{index}"), width);
        }
        Ok(())
    }

    fn action(&mut self, opcode: &str, operands: &[&str]) -> Result<Action, String> {
        match (opcode, operands) {
            ("ret", []) => Ok(Action::Return),
            ("bra", [label]) => {
                self.branches.push((self.code.len(), (*label).to_owned()));
                Ok(Action::Branch { to: 0 })
            }
            ("mov.b32", [to, from]) if from.starts_with('{') => {
                let halves = self.list(from, |draft, name| draft.read(name, Width::Half))?;
                let [low, high] = halves[..] else { return Err("a word has two halves".into()) };
                let to = self.written(to, Width::Word)?;
                Ok(Action::Compute { function: |low, high, _| low | high << 16, to, from: [low, high, low] })
            }
            ("mov.b32", [to, from]) if to.starts_with('{') => {
                let halves = self.list(to, |draft, name| draft.written(name, Width::Half))?;
                let [low, high] = halves[..] else { return Err("a word has two halves".into()) };
                Ok(Action::Split { to: [low, high], from: self.read(from, Width::Word)? })
            }
            (_, [first, second]) if opcode.starts_with("ld.") || opcode.starts_with("st.") => {
                self.access(opcode, first, second)
            }
            (_, [to, from @ ..]) => {
                let operation = operations::find(opcode).ok_or("unknown instruction")?;
                if from.len() != operation.operands.len() {
                    return Err(format!("`{opcode}` takes {} operands", operation.operands.len()));
                }
                let mut slots = [0; 3];
                for ((slot, name), width) in slots.iter_mut().zip(from).zip(operation.operands) {
                    *slot = self.read(name, *width)?;
                }
                let to = self.written(to, operation.result)?;
                Ok(Action::Compute { function: operation.function, to, from: slots })
            }
            _ => Err("unknown instruction".into()),
        }
    }

    /// A load or a store.
    fn access(&mut self, opcode: &str, first: &str, second: &str) -> Result<Action, String> {
        let (space, shape) = opcode[3..].split_once('.').ok_or("an access has a type")?;
        let (count, kind) = match shape.split_once('.') {
            None => (1, shape),
            Some(("v2", kind)) => (2, kind),
            Some(("v4", kind)) => (4, kind),
            Some(_) => return Err("unknown access".into()),
        };
        let bytes = match kind {
            "u8" => 1,
            "u16" => 2,
            "u32" | "b32" => 4,
            "u64" | "b64" => 8,
            _ => return Err("unknown type of an access".into()),
        };
        let store = opcode.starts_with("st.");
        let (at, registers) = if store { (first, second) } else { (second, first) };
        let at = at.strip_prefix('[').and_then(|a| a.strip_suffix(']')).ok_or("an address is in brackets")?;
        let slots = self.list(registers, |draft, name| draft.at_least(name, bytes))?;
        if slots.len() != count {
            return Err(format!("{count} registers are accessed, {} given", slots.len()));
        }
        match (space, &slots[..]) {
            ("global", _) if store => {
                Ok(Action::Store { at: self.read(at, Width::Long)?, from: slots, bytes })
            }
            ("global", _) => Ok(Action::Load { at: self.read(at, Width::Long)?, to: slots, bytes }),
            ("param", [to]) if !store => {
                let (name, within) = at.split_once('+').unwrap_or((at, "0"));
                let (begin, size) = *self.places.get(name).ok_or("there is no such parameter")?;
                let within = number(within)?;
                if within + bytes > size || !(begin + within).is_multiple_of(bytes) {
                    return Err("the parameter holds no such number there".into());
                }
                Ok(Action::Parameter { to: *to, offset: begin + within, bytes })
            }
            _ => Err("unknown access".into()),
        }
    }

    /// One operand, or those between braces.
    fn list(
        &mut self,
        operand: &str,
        mut slot: impl FnMut(&mut Self, &str) -> Result<Slot, String>,
    ) -> Result<Vec<Slot>, String> {
        match operand.strip_prefix('{').and_then(|o| o.strip_suffix('}')) {
            None => Ok(vec![slot(self, operand)?]),
            Some(names) => names.split(',').map(|name| slot(self, name.trim())).collect(),
        }
    }

    /// A register that an instruction writes.
    fn written(&self, name: &str, width: Width) -> Result<Slot, String> {
        match self.registers.get(name) {
            None => Err(format!("`{name}` is no register")),
            Some(_) if SPECIAL.contains(&name) => Err(format!("`{name}` cannot be written")),
            Some((_, found)) if *found != width => Err(format!("`{name}` has another size")),
            Some((slot, _)) => Ok(*slot),
        }
    }

    /// A register that is accessed in memory, which may be larger than what is.
    fn at_least(&self, name: &str, bytes: usize) -> Result<Slot, String> {
        match self.registers.get(name) {
            Some((slot, width)) if *width as usize >= bytes && !SPECIAL.contains(&name) => Ok(*slot),
            _ => Err(format!("`{name}` is no register of {bytes} bytes")),
        }
    }

    /// A register or a constant that an instruction reads.
    fn read(&mut self, name: &str, width: Width) -> Result<Slot, String> {
        if name.starts_with('%') {
            return match self.registers.get(name) {
                Some((slot, found)) if *found == width => Ok(*slot),
                Some(_) => Err(format!("`{name}` has another size")),
                None => Err(format!("`{name}` is no register")),
            };
        }
        let value = match name.split_at_checked(2) {
            Some(("0x", digits)) => u64::from_str_radix(digits, 16),
            Some(("0f", digits)) if digits.len() == 8 => u64::from_str_radix(digits, 16),
            Some(("0d", digits)) if digits.len() == 16 => u64::from_str_radix(digits, 16),
            _ => name.parse(),
        };
        let value = value.map_err(|_| format!("`{name}` is no operand"))?;
        if width < Width::Long && value >> (8 * width as u32) != 0 {
            return Err(format!("`{name}` is too large"));
        }
        let next = self.file.len() as Slot;
        let slot = *self.constants.entry(value).or_insert(next);
        if slot == next {
            self.file.push(value);
        }
        Ok(slot)
    }

    fn finish(mut self) -> Result<Entry, String> {
        for (at, label) in &self.branches {
            let to = *self.labels.get(label).ok_or_else(|| format!("there is no label `{label}`"))?;
            self.code[*at].action = Action::Branch { to };
        }
        Ok(Entry { name: self.name, parameters: self.parameters, code: self.code, file: self.file })
    }
}

/// Operands between commas, those in braces together.
fn split(operands: &str) -> Vec<&str> {
    let mut depth = 0;
    let between = operands.split(move |c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    });
    between.map(str::trim).filter(|o| !o.is_empty()).collect()
}

fn number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("`{text}` is no number"))
}
