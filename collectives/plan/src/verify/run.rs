//! Runs programs on symbols, in some order that the rules allow.

use std::collections::BTreeMap;

use ringway_types::Operation as O;

use super::hazard::Writers;
use super::memory::{Cells, Memory};
use super::program::{Name, message};
use super::symbol::{Contribution, Symbol, Symbols, UNWRITTEN};
use super::{At, Program, Scenario, Violation, expect};
use crate::{Action, LOOKAHEAD, Step};

/// Which of the steps that can go on does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The first.
    Forward,
    /// The last.
    Reverse,
    /// Any, by a seed.
    Seeded(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    Posted,
    Done,
}

/// One chunk under way or waiting to be.
struct Chunk {
    states: Vec<State>,
    first: usize,
}

/// A step that is done.
pub(crate) struct Done<'a> {
    pub(crate) at: At,
    /// The step whose message it received.
    pub(crate) sent: Option<At>,
    /// What it moves, element by element; of what is combined already, or is here, the first.
    pub(crate) moved: &'a [Contribution],
}

/// Is told of every step, after those that it waits for.
type Watch<'a> = &'a mut dyn FnMut(Done<'_>);

struct Run<'a> {
    watch: Option<Watch<'a>>,
    scenario: &'a Scenario,
    programs: &'a [Program],
    memory: Memory<'a>,
    symbols: Symbols,
    cells: Vec<Symbol>,
    chunks: Vec<Vec<Chunk>>,
    /// Messages one end of which has been posted.
    posted: BTreeMap<Name, At>,
    order: Order,
    random: u64,
}

/// What is there in the end.
pub(super) struct Finished<'a> {
    memory: Memory<'a>,
    pub(super) symbols: Symbols,
    cells: Vec<Symbol>,
}

impl Finished<'_> {
    /// What every rank's output holds.
    pub(super) fn outputs(&self) -> impl Iterator<Item = &[Symbol]> {
        self.memory.outputs.iter().map(|output| self.cells.get(output.clone()).unwrap_or(&[]))
    }
}

/// Runs the programs and checks the outputs. A send is done when its receive has been posted, which is the latest an
/// engine may take; if that does not block, nothing less strict does, because waiting only ever ends. `writers` are named
/// where an output is wrong.
pub(super) fn run<'a>(
    scenario: &'a Scenario,
    programs: &'a [Program],
    order: Order,
    writers: &Writers,
) -> Result<Finished<'a>, Violation> {
    run_watched(scenario, programs, order, writers, None)
}

/// The same, forward, with somebody who is told of every step.
pub(crate) fn watch<'a>(
    scenario: &'a Scenario,
    programs: &'a [Program],
    watch: Watch<'a>,
) -> Result<(), Violation> {
    run_watched(scenario, programs, Order::Forward, &Writers::default(), Some(watch)).map(drop)
}

fn run_watched<'a>(
    scenario: &'a Scenario,
    programs: &'a [Program],
    order: Order,
    writers: &Writers,
    watch: Option<Watch<'a>>,
) -> Result<Finished<'a>, Violation> {
    let memory = Memory::new(scenario, programs);
    let mut symbols = Symbols::default();
    let mut cells = vec![UNWRITTEN; memory.cells];
    for (rank, input) in (0u32..).zip(&memory.inputs) {
        for (element, cell) in (0u64..).zip(input.clone()) {
            cells[cell] = symbols.input((rank, element));
        }
    }
    let initial = cells.clone();
    let chunk = |steps: &Vec<Step>| Chunk { states: vec![State::Waiting; steps.len()], first: 0 };
    let chunks = programs.iter().map(|program| program.chunks.iter().map(chunk).collect()).collect();
    let seed = if let Order::Seeded(seed) = order { seed } else { 0 };
    let random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let posted = BTreeMap::new();
    let mut run = Run { watch, scenario, programs, memory, symbols, cells, chunks, posted, order, random };
    while run.pass()? {}
    run.finished()?;
    expect::check(scenario, &run.memory, &run.symbols, (&initial, &run.cells), writers)?;
    let Run { memory, symbols, cells, .. } = run;
    Ok(Finished { memory, symbols, cells })
}

impl Run<'_> {
    /// Goes once over all nodes, chunks and steps; whether anything went on.
    fn pass(&mut self) -> Result<bool, Violation> {
        let mut progress = false;
        for node in self.shuffled(self.programs.len()) {
            let depth = self.programs[node].shape.depth.max(1) as usize;
            for chunk in self.shuffled(self.chunks[node].len()) {
                if chunk >= depth && !self.is_finished(node, chunk - depth) {
                    continue;
                }
                let states = &mut self.chunks[node][chunk];
                while states.states.get(states.first) == Some(&State::Done) {
                    states.first += 1;
                    progress = true;
                }
                let window = (states.states.len() - states.first).min(LOOKAHEAD as usize + 1);
                let first = states.first;
                for step in self.shuffled(window) {
                    let at = At {
                        node: u32::try_from(node).unwrap_or(0),
                        chunk: chunk as u64,
                        step: u32::try_from(first + step).unwrap_or(0),
                    };
                    progress |= self.advance(at)?;
                }
            }
        }
        Ok(progress)
    }

    fn shuffled(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        match self.order {
            Order::Forward => {}
            Order::Reverse => order.reverse(),
            Order::Seeded(_) => {
                for i in (1..count).rev() {
                    self.random ^= self.random << 13;
                    self.random ^= self.random >> 7;
                    self.random ^= self.random << 17;
                    order.swap(i, usize::try_from(self.random % (i as u64 + 1)).unwrap_or(0));
                }
            }
        }
        order
    }

    fn is_finished(&self, node: usize, chunk: usize) -> bool {
        let chunk = &self.chunks[node][chunk];
        chunk.states[chunk.first..].iter().all(|state| *state == State::Done)
    }

    fn finished(&self) -> Result<(), Violation> {
        for (node, chunks) in (0u32..).zip(&self.chunks) {
            for (number, chunk) in (0u64..).zip(chunks) {
                if let Some(step) = chunk.states.iter().position(|state| *state != State::Done) {
                    let step = u32::try_from(step).unwrap_or(0);
                    return Err(Violation::Deadlock { at: At { node, chunk: number, step } });
                }
            }
        }
        Ok(())
    }

    fn set(&mut self, at: At, state: State) {
        self.chunks[at.node as usize][at.chunk as usize].states[at.step as usize] = state;
    }

    fn advance(&mut self, at: At) -> Result<bool, Violation> {
        let states = &self.chunks[at.node as usize][at.chunk as usize].states;
        let programs = self.programs;
        let step = &programs[at.node as usize].chunks[at.chunk as usize][at.step as usize];
        let done = |index: u32| states.get(index as usize) == Some(&State::Done);
        let ready = states[at.step as usize] == State::Waiting
            && step.after.iter().all(|range| range.clone().all(done));
        if !ready {
            return Ok(false);
        }
        let Some((name, _, send)) = message(at, &step.action) else {
            let moved = self.moved(at, &step.action)?;
            self.execute(at, &step.action)?;
            self.tell(at, None, &moved);
            self.set(at, State::Done);
            return Ok(true);
        };
        let Some(other) = self.posted.remove(&name) else {
            self.posted.insert(name, at);
            self.set(at, State::Posted);
            return Ok(true);
        };
        let (from, to) = if send { (at, other) } else { (other, at) };
        self.deliver(from, to)?;
        self.set(at, State::Done);
        self.set(other, State::Done);
        Ok(true)
    }

    /// What a step is about to move; nothing where nobody is told.
    fn moved(&self, at: At, action: &Action) -> Result<Vec<Contribution>, Violation> {
        if self.watch.is_none() {
            return Ok(Vec::new());
        }
        let cells = match *action {
            Action::Send { from, .. } | Action::Copy { from, .. } => vec![self.memory.span(at, from)?],
            Action::Swap { a, b } => vec![self.memory.span(at, a)?, self.memory.span(at, b)?],
            _ => self.memory.sources(at, action)?.into_iter().take(1).collect(),
        };
        let first = |cell: usize| self.symbols.value(self.cells[cell])?.contributions.first().copied();
        Ok(cells.into_iter().flatten().filter_map(first).collect())
    }

    fn tell(&mut self, at: At, sent: Option<At>, moved: &[Contribution]) {
        if let Some(watch) = &mut self.watch {
            watch(Done { at, sent, moved });
        }
    }

    fn deliver(&mut self, from: At, to: At) -> Result<(), Violation> {
        let programs = self.programs;
        let action = |at: At| &programs[at.node as usize].chunks[at.chunk as usize][at.step as usize].action;
        if let (Action::Send { from: source, .. }, Action::Receive { into, .. }) = (action(from), action(to))
        {
            let (source, target) = (self.memory.span(from, *source)?, self.memory.span(to, *into)?);
            let moved = self.moved(from, action(from))?;
            self.copy(from, source, &target)?;
            self.tell(from, None, &moved);
            self.tell(to, Some(from), &moved);
        }
        Ok(())
    }

    fn copy(&mut self, at: At, from: Cells, to: &Cells) -> Result<(), Violation> {
        for (from, to) in from.zip(to.clone()) {
            if self.cells[from] == UNWRITTEN {
                return Err(Violation::Unwritten { at });
            }
            self.cells[to] = self.cells[from];
        }
        Ok(())
    }

    fn execute(&mut self, at: At, action: &Action) -> Result<(), Violation> {
        match *action {
            Action::Nothing | Action::Send { .. } | Action::Receive { .. } => Ok(()),
            Action::Copy { from, .. } => {
                let from = self.memory.span(at, from)?;
                for to in self.memory.results(at, action)? {
                    self.copy(at, from.clone(), &to)?;
                }
                Ok(())
            }
            Action::Swap { a, b } => {
                let (a, b) = (self.memory.span(at, a)?, self.memory.span(at, b)?);
                for (a, b) in a.zip(b) {
                    self.cells.swap(a, b);
                }
                Ok(())
            }
            Action::Reduce { finish, .. } => self.combine(at, action, finish),
            Action::Fold { .. } => self.combine(at, action, false),
            Action::Scan { .. } => self.scan(at, action),
        }
    }

    fn symbol(&mut self, at: At, symbols: &[Symbol], finish: bool) -> Result<Symbol, Violation> {
        self.symbols.combine(symbols, finish).map_err(|finished| {
            if finished { Violation::FinishedTwice { at } } else { Violation::Unwritten { at } }
        })
    }

    fn combine(&mut self, at: At, action: &Action, finish: bool) -> Result<(), Violation> {
        let sources = self.memory.sources(at, action)?;
        let targets = self.memory.results(at, action)?;
        let length = targets.first().map_or(0, Cells::len);
        for i in 0..length {
            let symbols: Vec<_> = sources.iter().map(|cells| self.cells[cells.start + i]).collect();
            let result = self.symbol(at, &symbols, finish)?;
            for target in &targets {
                self.cells[target.start + i] = result;
            }
        }
        Ok(())
    }

    fn scan(&mut self, at: At, action: &Action) -> Result<(), Violation> {
        let Action::Scan { carry, locals, before, .. } = *action else { return Ok(()) };
        let sources = self.memory.sources(at, action)?;
        let mut results = self.memory.results(at, action)?.into_iter();
        let exclusive = usize::from(self.scenario.call.operation == O::Exscan);
        let carried = usize::from(carry.is_some());
        // Taken first, because in place a result may be the bytes of a source.
        let symbols: Vec<Vec<Symbol>> =
            sources.iter().map(|cells| cells.clone().map(|cell| self.cells[cell]).collect()).collect();
        for local in 0..locals.count as usize {
            let many = carried + local + 1 - exclusive;
            if many == 0 {
                continue;
            }
            let Some(target) = results.next() else { return Err(Violation::Overlap { at }) };
            for (i, cell) in target.enumerate() {
                let column: Vec<_> = symbols.iter().take(many).map(|source| source[i]).collect();
                if carry.is_some()
                    && self.symbols.value(column[0]).map(|it| it.contributions.len()) != Some(before as usize)
                {
                    return Err(Violation::Unwritten { at });
                }
                self.cells[cell] = self.symbol(at, &column, true)?;
            }
        }
        Ok(())
    }
}
