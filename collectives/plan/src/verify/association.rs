//! In which order and association contributions are combined, on which the bits of a result depend.
//!
//! A step that combines several values takes them from the first to the last; half types are widened before it and rounded
//! once after it. So two ways to combine the same inputs are sure to give the same bits, whatever the type and the
//! reduction, where they are the same tree: the same inputs as leaves, one inner vertex for each step, the same order
//! below each of them. That is what is compared here.

use std::collections::BTreeMap;

use ringway_types::Operation as O;

use super::hazard::Writers;
use super::run::{self, Finished};
use super::symbol::{Symbol, Symbols};
use super::{Order, Program, Scenario, Violation};

/// How a value came about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Term {
    /// It is an element of a rank's input.
    Input {
        /// The rank.
        rank: u32,
        /// The element of its input.
        element: u64,
    },
    /// One step combined other values.
    Combined {
        /// Their places in [`Associations::terms`], in the order they were combined; all come before this one.
        operands: Vec<usize>,
        /// The result is final: an average is divided here.
        finish: bool,
    },
}

/// How every element of every output came about. Equal if and only if all trees are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Associations {
    terms: Vec<Term>,
    outputs: Vec<Vec<Option<usize>>>,
}

impl Associations {
    /// All values that results were made of, operands before what was made of them.
    #[must_use]
    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    /// The place in [`Associations::terms`] of each element of a rank's output; `None` for one that nothing was written to. No
    /// elements where an operation leaves an output alone, nor for a rank that does not exist.
    #[must_use]
    pub fn output(&self, rank: u32) -> &[Option<usize>] {
        self.outputs.get(rank as usize).map_or(&[], Vec::as_slice)
    }

    fn new(symbols: &Symbols, outputs: &[Vec<Symbol>]) -> Self {
        let mut all = Self::default();
        let mut places = BTreeMap::new();
        for output in outputs {
            let output = output.iter().map(|symbol| all.add(symbols, *symbol, &mut places)).collect();
            all.outputs.push(output);
        }
        all
    }

    /// Adds a value behind what it was made of, unless it is there. As deep as a plan has combinations behind one another.
    fn add(
        &mut self,
        symbols: &Symbols,
        symbol: Symbol,
        places: &mut BTreeMap<Symbol, usize>,
    ) -> Option<usize> {
        if let Some(place) = places.get(&symbol) {
            return Some(*place);
        }
        let value = symbols.value(symbol)?;
        let term = match (value.operands.as_slice(), value.contributions.as_slice()) {
            ([], &[(rank, element)]) => Term::Input { rank, element },
            (operands, _) => Term::Combined {
                operands: operands.iter().filter_map(|it| self.add(symbols, *it, places)).collect(),
                finish: value.finished,
            },
        };
        self.terms.push(term);
        let place = self.terms.len() - 1;
        places.insert(symbol, place);
        Some(place)
    }
}

/// How the programs make every output, when steps go on in some order.
///
/// # Errors
/// What [`super::check`] finds by running them.
pub fn associations(
    scenario: &Scenario,
    programs: &[Program],
    order: Order,
) -> Result<Associations, Violation> {
    let finished = run::run(scenario, programs, order, &Writers::default())?;
    let written = |cells: &[Symbol], rank: u32| {
        if scenario.call.operation == O::Exscan && rank == 0 { Vec::new() } else { cells.to_vec() }
    };
    let outputs: Vec<_> =
        (0u32..).zip(finished.outputs()).map(|(rank, cells)| written(cells, rank)).collect();
    Ok(Associations::new(&finished.symbols, &outputs))
}

/// Proves that the programs of an operation that reduces combine contributions as `order = "strict"` promises. That they are
/// right otherwise is [`super::check`]'s to prove; so timing does not matter, as steps on the same bytes are ordered.
///
/// # What is promised
/// A node's part is one combination of its ranks' inputs, ranks ascending, and the result is one combination of the parts of
/// all nodes, nodes ascending (numbered by their lowest rank): `((0 1) (2 3) (4))` for ranks 0 to 4 on three nodes. On one
/// node the part is the result: `(0 1 2 3 4)`. An average is divided in the last combination.
///
/// A scan cannot have that, as ranks may be on the nodes in any order. There a part is of a run ([`crate::Layout::runs`]).
/// What comes before a run is one combination of the parts of all runs before it, but that on a node which has an earlier
/// run it begins with what comes before that one. A rank's result is one combination of what comes before its run with the
/// inputs of the run's ranks up to its own, or up to the one before it in an exclusive scan: `((0 1) 2 3)` for rank 3.
///
/// All of it follows from the layout, and for a scan from the rank. Sizes, counts, chunks, algorithms, roots, places and
/// timing do not matter. Layouts do: floating-point sums may differ where ranks are on other nodes.
///
/// # Errors
/// [`Violation::Association`], or what running them finds.
pub fn check_strict(scenario: &Scenario, programs: &[Program]) -> Result<(), Violation> {
    if !scenario.call.operation.reduces() {
        return Ok(());
    }
    let mut finished = run::run(scenario, programs, Order::Forward, &Writers::default())?;
    let outputs: Vec<Vec<Symbol>> = finished.outputs().map(<[Symbol]>::to_vec).collect();
    for (rank, output) in (0u32..).zip(outputs) {
        for (element, found) in (0u64..).zip(output) {
            let promised = Promise { scenario, symbols: &mut finished.symbols }.of(rank, element);
            if promised.is_some_and(|promised| promised != found) {
                return Err(differs(&finished, rank, element, (found, promised)));
            }
        }
    }
    Ok(())
}

fn differs(
    finished: &Finished<'_>,
    rank: u32,
    element: u64,
    (found, promised): (Symbol, Option<Symbol>),
) -> Violation {
    let text = |symbol| {
        let mut text = String::new();
        write(&finished.symbols, symbol, &mut text);
        text
    };
    let promised = promised.map(text).unwrap_or_default();
    Violation::Association { rank, element, found: text(found), promised }
}

/// The ranks of a value, each combination in brackets.
fn write(symbols: &Symbols, symbol: Symbol, into: &mut String) {
    let Some(value) = symbols.value(symbol) else { return };
    match (value.operands.as_slice(), value.contributions.as_slice()) {
        ([], &[(rank, _)]) => into.push_str(&rank.to_string()),
        (operands, _) => {
            into.push('(');
            for (number, operand) in operands.iter().enumerate() {
                if number > 0 {
                    into.push(' ');
                }
                write(symbols, *operand, into);
            }
            into.push(')');
        }
    }
}

/// What `strict` promises of a call.
struct Promise<'a> {
    scenario: &'a Scenario,
    symbols: &'a mut Symbols,
}

impl Promise<'_> {
    /// The value of an element of a rank's output; `None` where there is none.
    fn of(&mut self, rank: u32, element: u64) -> Option<Symbol> {
        match self.scenario.call.operation {
            O::Allreduce | O::Reduce => self.whole(element),
            O::ReduceScatter | O::ReduceScatterV => self.whole(self.scenario.start(rank) + element),
            O::Scan => self.prefix(rank, element, rank + 1),
            O::Exscan if rank > 0 => self.prefix(rank, element, rank),
            _ => None,
        }
    }

    /// The inputs of some ranks, behind what comes before them.
    fn combined(
        &mut self,
        before: Option<Symbol>,
        ranks: impl Iterator<Item = u32>,
        element: u64,
        finish: bool,
    ) -> Option<Symbol> {
        let mut operands: Vec<Symbol> = before.into_iter().collect();
        operands.extend(ranks.map(|rank| self.symbols.input((rank, element))));
        self.symbols.combine(&operands, finish).ok()
    }

    /// All ranks, node by node.
    fn whole(&mut self, element: u64) -> Option<Symbol> {
        let layout = &self.scenario.layout;
        let one = layout.nodes() == 1;
        let mut parts = Vec::new();
        for node in 0..layout.nodes() {
            parts.push(self.combined(None, layout.local(node).iter().copied(), element, one)?);
        }
        if one { parts.first().copied() } else { self.symbols.combine(&parts, true).ok() }
    }

    /// The ranks before `end`, of which the last ones are those of `rank`'s run.
    fn prefix(&mut self, rank: u32, element: u64, end: u32) -> Option<Symbol> {
        let at = self.scenario.layout.runs().partition_point(|run| run.first_rank <= rank).checked_sub(1)?;
        let first = self.scenario.layout.runs().get(at)?.first_rank;
        let before = if at == 0 { None } else { Some(self.before(at, element)?) };
        self.combined(before, first..end, element, true)
    }

    /// What comes before a run, which is not the first one.
    fn before(&mut self, at: usize, element: u64) -> Option<Symbol> {
        let layout = &self.scenario.layout;
        let runs = layout.runs();
        let node = runs.get(at)?.node;
        let earlier = (1..at).rev().find(|earlier| runs.get(*earlier).is_some_and(|run| run.node == node));
        let mut parts: Vec<Symbol> = Vec::new();
        if let Some(earlier) = earlier {
            parts.push(self.before(earlier, element)?);
        }
        for run in runs.get(earlier.unwrap_or(0)..at)? {
            let ranks = run.first_rank..run.first_rank + run.count;
            parts.push(self.combined(None, ranks, element, false)?);
        }
        self.symbols.combine(&parts, false).ok()
    }
}
