//! What a cell holds: an input, or what was combined from others, in order.

use std::collections::BTreeMap;

/// One rank's input element.
pub(super) type Contribution = (u32, u64);

/// A value, by its number. Equal numbers are equal values, and the other way round: the same inputs, combined in the same
/// order and association.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Symbol(u32);

/// Nothing, or what was there before.
pub(super) const UNWRITTEN: Symbol = Symbol(0);

/// How a value came about.
#[derive(Debug, Clone)]
pub(super) struct Value {
    /// The inputs in it, in the order they were combined.
    pub(super) contributions: Vec<Contribution>,
    /// What one step combined, in order; nothing for an input.
    pub(super) operands: Vec<Symbol>,
    pub(super) finished: bool,
}

/// All values there are.
#[derive(Debug, Default)]
pub(super) struct Symbols {
    values: Vec<Value>,
    inputs: BTreeMap<Contribution, Symbol>,
    combined: BTreeMap<(Vec<Symbol>, bool), Symbol>,
}

impl Symbols {
    /// An element of a rank's input.
    pub(super) fn input(&mut self, contribution: Contribution) -> Symbol {
        if let Some(known) = self.inputs.get(&contribution) {
            return *known;
        }
        let value = Value { contributions: vec![contribution], operands: Vec::new(), finished: false };
        let symbol = self.add(value);
        self.inputs.insert(contribution, symbol);
        symbol
    }

    fn add(&mut self, value: Value) -> Symbol {
        self.values.push(value);
        Symbol(u32::try_from(self.values.len()).unwrap_or(u32::MAX))
    }

    pub(super) fn value(&self, symbol: Symbol) -> Option<&Value> {
        self.values.get((symbol.0 as usize).checked_sub(1)?)
    }

    /// The combination in this order by one step; `Err` says whether one is final already, or else nothing.
    pub(super) fn combine(&mut self, symbols: &[Symbol], finish: bool) -> Result<Symbol, bool> {
        if let Some(known) = self.combined.get(&(symbols.to_vec(), finish)) {
            return Ok(*known);
        }
        let mut contributions = Vec::new();
        for symbol in symbols {
            let value = self.value(*symbol).ok_or(false)?;
            if value.finished {
                return Err(true);
            }
            contributions.extend_from_slice(&value.contributions);
        }
        // A partial result alone is rounded already, and stays what it is. An input alone is scaled where the reduction
        // does that.
        let symbol = match symbols {
            [] => return Err(false),
            [one] if !finish && self.value(*one).is_some_and(|value| !value.operands.is_empty()) => *one,
            _ => self.add(Value { contributions, operands: symbols.to_vec(), finished: finish }),
        };
        self.combined.insert((symbols.to_vec(), finish), symbol);
        Ok(symbol)
    }
}
