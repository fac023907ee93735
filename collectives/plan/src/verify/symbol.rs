//! What a cell holds: contributions in the order they were combined.

use std::collections::BTreeMap;

/// One rank's input element.
pub(super) type Contribution = (u32, u64);

/// A value, by its number. Equal numbers are equal values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Symbol(u32);

/// Nothing, or what was there before.
pub(super) const UNWRITTEN: Symbol = Symbol(0);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Value {
    pub(super) contributions: Vec<Contribution>,
    pub(super) finished: bool,
}

/// All values there are.
#[derive(Debug, Default)]
pub(super) struct Symbols {
    values: Vec<Value>,
    numbers: BTreeMap<Value, u32>,
    combined: BTreeMap<(Vec<Symbol>, bool), Symbol>,
}

impl Symbols {
    pub(super) fn add(&mut self, contributions: Vec<Contribution>, finished: bool) -> Symbol {
        let value = Value { contributions, finished };
        if let Some(number) = self.numbers.get(&value) {
            return Symbol(*number);
        }
        self.values.push(value.clone());
        let number = u32::try_from(self.values.len()).unwrap_or(u32::MAX);
        self.numbers.insert(value, number);
        Symbol(number)
    }

    pub(super) fn value(&self, symbol: Symbol) -> Option<&Value> {
        self.values.get((symbol.0 as usize).checked_sub(1)?)
    }

    /// The combination in this order; `Err` says whether one is final already, or else nothing.
    pub(super) fn combine(&mut self, symbols: &[Symbol], finish: bool) -> Result<Symbol, bool> {
        if let Some(known) = self.combined.get(&(symbols.to_vec(), finish)) {
            return Ok(*known);
        }
        let mut all = Vec::new();
        for symbol in symbols {
            let value = self.value(*symbol).ok_or(false)?;
            if value.finished {
                return Err(true);
            }
            all.extend_from_slice(&value.contributions);
        }
        if all.is_empty() {
            return Err(false);
        }
        let symbol = self.add(all, finish);
        self.combined.insert((symbols.to_vec(), finish), symbol);
        Ok(symbol)
    }
}
