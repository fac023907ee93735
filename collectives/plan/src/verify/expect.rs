//! What every cell must hold in the end.

use ringway_types::Operation as O;

use super::hazard::Writers;
use super::memory::Memory;
use super::symbol::{Contribution, Symbol, Symbols, UNWRITTEN};
use super::{Scenario, Violation, Wrong};

pub(super) fn check(
    scenario: &Scenario,
    memory: &Memory<'_>,
    symbols: &Symbols,
    (initial, cells): (&[Symbol], &[Symbol]),
    writers: &Writers,
) -> Result<(), Violation> {
    let mut written = vec![false; memory.cells];
    for (rank, output) in (0u32..).zip(&memory.outputs) {
        for (element, cell) in (0u64..).zip(output.clone()) {
            if scenario.call.operation == O::Exscan && rank == 0 {
                continue;
            }
            written[cell] = true;
            check_element(scenario, symbols, rank, element, cells[cell])
                .map_err(|what| Violation::Result { rank, element, what, last: writers.of(cell) })?;
            if scenario.call.operation == O::Allreduce {
                // The same order and association, hence the same bits, for every rank.
                let same = memory.outputs.first().map(|first| cells[first.start + (cell - output.start)]);
                if same != Some(cells[cell]) {
                    return Err(Violation::Result {
                        rank,
                        element,
                        what: Wrong::Order,
                        last: writers.of(cell),
                    });
                }
            }
        }
    }
    for (rank, (input, output)) in (0u32..).zip(memory.inputs.iter().zip(&memory.outputs)) {
        let changed = |cell: usize| !written[cell] && cells[cell] != initial[cell];
        if let Some(cell) = input.clone().chain(output.clone()).find(|cell| changed(*cell)) {
            return Err(Violation::Stray { rank, last: writers.of(cell) });
        }
    }
    Ok(())
}

fn check_element(
    scenario: &Scenario,
    symbols: &Symbols,
    rank: u32,
    element: u64,
    symbol: Symbol,
) -> Result<(), Wrong> {
    if symbol == UNWRITTEN {
        return Err(Wrong::Missing);
    }
    let value = symbols.value(symbol).ok_or(Wrong::Missing)?;
    let expected = expected(scenario, rank, element);
    let mut found = value.contributions.clone();
    if matches!(scenario.call.operation, O::Scan | O::Exscan) && found != expected {
        found.sort_unstable();
        return Err(if found == expected { Wrong::Order } else { Wrong::Contributions });
    }
    found.sort_unstable();
    if found != expected {
        return Err(Wrong::Contributions);
    }
    if value.finished != scenario.call.operation.reduces() {
        return Err(Wrong::Finish);
    }
    Ok(())
}

/// The contributions of an output element, ranks ascending.
fn expected(scenario: &Scenario, rank: u32, element: u64) -> Vec<Contribution> {
    let ranks = scenario.layout.ranks();
    let root = scenario.call.root;
    match scenario.call.operation {
        O::Allreduce | O::Reduce => (0..ranks).map(|from| (from, element)).collect(),
        O::Broadcast => vec![(root, element)],
        O::Scan => (0..=rank).map(|from| (from, element)).collect(),
        O::Exscan => (0..rank).map(|from| (from, element)).collect(),
        O::ReduceScatter | O::ReduceScatterV => {
            (0..ranks).map(|from| (from, scenario.start(rank) + element)).collect()
        }
        O::AllGather | O::AllGatherV | O::Gather | O::GatherV => {
            origin(element, ranks, |from| scenario.count(from), |_| 0)
        }
        O::Scatter | O::ScatterV => vec![(root, scenario.start(rank) + element)],
        O::AllToAll | O::AllToAllV => origin(
            element,
            ranks,
            |from| scenario.pair(from, rank),
            |from| (0..rank).map(|to| scenario.pair(from, to)).sum(),
        ),
        O::Barrier | O::Send | O::Receive => Vec::new(),
    }
}

/// Whose element this is in a row of one block for each rank, and which of its input's.
fn origin(
    element: u64,
    ranks: u32,
    length: impl Fn(u32) -> u64,
    start: impl Fn(u32) -> u64,
) -> Vec<Contribution> {
    let mut left = element;
    for from in 0..ranks {
        if left < length(from) {
            return vec![(from, start(from) + left)];
        }
        left -= length(from);
    }
    Vec::new()
}
