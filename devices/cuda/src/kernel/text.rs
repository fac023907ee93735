//! The text of one kernel while it is written: lines, and registers that are counted so that they can be declared.
//!
//! Registers have a size but no type: instructions of any type take operands that are untyped and as large (PTX ISA,
//! "Operand Type Checking"), so floats need no moves to and from their bits.

use core::fmt::{self, Write};

/// How large a register is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Width {
    /// One bit: the outcome of a comparison.
    Predicate,
    /// 16 bits.
    Half,
    /// 32 bits.
    Word,
    /// 64 bits.
    Long,
}

impl Width {
    const ALL: [Self; 4] = [Self::Predicate, Self::Half, Self::Word, Self::Long];

    /// Its type in a declaration, and the beginning of its registers' names.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Predicate => ("pred", "%p"),
            Self::Half => ("b16", "%h"),
            Self::Word => ("b32", "%r"),
            Self::Long => ("b64", "%d"),
        }
    }
}

/// One virtual register. Each is written by one instruction, but for the index of a loop.
#[derive(Debug, Clone, Copy)]
pub(super) struct Register {
    width: Width,
    index: u32,
}

impl fmt::Display for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.width.names().1, self.index)
    }
}

/// Registers as the braces of a vector access list them.
pub(super) fn list(registers: &[Register]) -> String {
    let names: Vec<_> = registers.iter().map(Register::to_string).collect();
    names.join(", ")
}

/// The lines so far, and how many registers of each width they use.
#[derive(Debug, Default)]
pub(super) struct Text {
    lines: String,
    used: [u32; 4],
}

impl Text {
    pub(super) fn register(&mut self, width: Width) -> Register {
        let used = &mut self.used[width as usize];
        let index = *used;
        *used += 1;
        Register { width, index }
    }

    /// An instruction.
    pub(super) fn line(&mut self, instruction: fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        _ = writeln!(self.lines, "\t{instruction};");
    }

    /// Where branches lead.
    pub(super) fn label(&mut self, name: &str) {
        _ = writeln!(self.lines, "{name}:");
    }

    /// An instruction that writes a new register.
    pub(super) fn set(&mut self, width: Width, opcode: &str, operands: fmt::Arguments<'_>) -> Register {
        let register = self.register(width);
        self.line(format_args!("{opcode} {register}, {operands}"));
        register
    }

    /// The declarations of every register used, then the lines.
    pub(super) fn finish(self) -> String {
        let mut all = String::new();
        for width in Width::ALL {
            let (kind, prefix) = width.names();
            let used = self.used[width as usize];
            if used > 0 {
                _ = writeln!(all, "\t.reg .{kind} {prefix}<{used}>;");
            }
        }
        all + &self.lines
    }
}
