//! Proves that steps on the same bytes are ordered whatever the timing.
//!
//! Every step has a start, from which it may touch its bytes, and an end. A step starts after the ends of those it
//! waits for; a receive touches its bytes only after the matching send has started. The first step of a chunk starts
//! after the end of the chunk [`crate::Shape::depth`] before it. The limit on looking ahead is not relied on.

use std::collections::{BTreeMap, BTreeSet};

use ringway_types::Operation as O;

use super::memory::Memory;
use super::program::{message, steps};
use super::{At, Program, Scenario, Stats, Violation};

/// What comes before what. Vertex `2 i` is the start of step `i`, `2 i + 1` its end; then each chunk's start and end.
struct Graph {
    places: Vec<At>,
    before: Vec<Vec<u32>>,
    /// The position of each vertex in an order that respects all edges.
    position: Vec<u32>,
    seen: Vec<u32>,
    round: u32,
    /// Each chunk's start vertex, by node; its end is the next.
    chunks: Vec<Vec<u32>>,
}

/// Which step writes each cell last.
#[derive(Debug, Default)]
pub(super) struct Writers {
    places: Vec<At>,
    /// Of every cell, by its number among the steps.
    last: Vec<Option<u32>>,
}

impl Writers {
    /// `None` where no step does, or nothing is known.
    pub(super) fn of(&self, cell: usize) -> Option<At> {
        let step = self.last.get(cell).copied().flatten()?;
        self.places.get(step as usize).copied()
    }
}

/// Proves it; what was looked at, and which step writes each cell last.
pub(super) fn check(scenario: &Scenario, programs: &[Program]) -> Result<(Stats, Writers), Violation> {
    let memory = Memory::new(scenario, programs);
    let mut graph = Graph::new(programs)?;
    let mut order: Vec<(u32, At)> =
        graph.places.iter().enumerate().map(|(i, at)| (graph.position[2 * i], *at)).collect();
    let index: BTreeMap<At, u32> = (0u32..).zip(&graph.places).map(|(i, at)| (*at, i)).collect();
    order.sort_unstable();
    let mut writer: Vec<Option<u32>> = vec![None; memory.cells];
    let mut readers: Vec<Vec<u32>> = vec![Vec::new(); memory.cells];
    let mut pairs: BTreeSet<(u32, u32)> = BTreeSet::new();
    for (_, at) in order {
        let action = &programs[at.node as usize].chunks[at.chunk as usize][at.step as usize].action;
        let touched = memory.touched(at, action)?;
        let step = index[&at];
        // Being ordered is transitive, so that it is enough to look at the last write and at the reads since.
        for cell in touched.reads.into_iter().flatten() {
            pairs.extend(writer[cell].map(|other| (other, step)));
            readers[cell].push(step);
        }
        for cell in touched.writes.into_iter().flatten() {
            pairs.extend(writer[cell].replace(step).map(|other| (other, step)));
            pairs.extend(readers[cell].drain(..).map(|other| (other, step)));
        }
    }
    let mut stats = Stats::default();
    for (first, second) in pairs {
        if first == second {
            continue;
        }
        if !graph.reaches(2 * first + 1, 2 * second) {
            let place = |step: u32| graph.places[step as usize];
            return Err(Violation::Hazard { first: place(first), second: place(second) });
        }
        stats.ordered_pairs += 1;
    }
    if scenario.call.operation == O::Barrier {
        check_barrier(&mut graph, programs)?;
    }
    Ok((stats, Writers { places: graph.places, last: writer }))
}

/// No node may leave before every other one has come.
fn check_barrier(graph: &mut Graph, programs: &[Program]) -> Result<(), Violation> {
    let nodes = u32::try_from(programs.len()).unwrap_or(0);
    for node in 0..nodes {
        for other in (0..nodes).filter(|other| *other != node) {
            let vertex = |graph: &Graph, node: u32| graph.chunks[node as usize].first().copied();
            let ordered = match (vertex(graph, other), vertex(graph, node)) {
                (Some(start), Some(end)) => graph.reaches(start, end + 1),
                _ => false,
            };
            if !ordered {
                return Err(Violation::Barrier { node, other });
            }
        }
    }
    Ok(())
}

impl Graph {
    fn new(programs: &[Program]) -> Result<Self, Violation> {
        let places: Vec<At> = steps(programs).map(|(at, _)| at).collect();
        let mut before: Vec<Vec<u32>> = vec![Vec::new(); 2 * places.len()];
        let mut sends = BTreeMap::new();
        let mut first_step = 0u32;
        let mut chunks: Vec<Vec<u32>> = Vec::new();
        for (node, program) in (0u32..).zip(programs) {
            let mut starts: Vec<u32> = Vec::new();
            let depth = program.shape.depth.max(1) as usize;
            for (number, chunk) in (0u64..).zip(&program.chunks) {
                let start = u32::try_from(before.len()).unwrap_or(u32::MAX);
                let earlier = starts.len().checked_sub(depth).map(|at| starts[at] + 1);
                before.push(earlier.into_iter().collect());
                before.push(vec![start]);
                starts.push(start);
                for (step, it) in (0u32..).zip(chunk) {
                    let vertex = 2 * (first_step + step);
                    let waits = it.after.iter().flat_map(Clone::clone).map(|i| 2 * (first_step + i) + 1);
                    before[vertex as usize] = core::iter::once(start).chain(waits).collect();
                    before[vertex as usize + 1].push(vertex);
                    before[start as usize + 1].push(vertex + 1);
                    if let Some((name, _, true)) = message(At { node, chunk: number, step }, &it.action) {
                        sends.insert(name, vertex);
                    }
                }
                first_step += u32::try_from(chunk.len()).unwrap_or(0);
            }
            chunks.push(starts);
        }
        for (i, (at, step)) in steps(programs).enumerate() {
            if let Some((name, _, false)) = message(at, &step.action) {
                before[2 * i].extend(sends.get(&name));
            }
        }
        let count = before.len();
        let mut graph =
            Self { places, before, position: vec![0; count], seen: vec![0; count], round: 0, chunks };
        graph.sort()?;
        Ok(graph)
    }

    /// Finds positions; a circle of steps that wait for one another is a deadlock.
    fn sort(&mut self) -> Result<(), Violation> {
        let count = self.before.len();
        let mut left: Vec<usize> = self.before.iter().map(Vec::len).collect();
        let mut after: Vec<Vec<u32>> = vec![Vec::new(); count];
        for (vertex, before) in (0u32..).zip(&self.before) {
            for earlier in before {
                after[*earlier as usize].push(vertex);
            }
        }
        let mut ready: Vec<u32> = (0u32..).zip(&left).filter(|(_, n)| **n == 0).map(|(v, _)| v).collect();
        let mut next = 0;
        while let Some(vertex) = ready.pop() {
            next += 1;
            self.position[vertex as usize] = next;
            for &later in &after[vertex as usize] {
                left[later as usize] -= 1;
                if left[later as usize] == 0 {
                    ready.push(later);
                }
            }
        }
        match (0..self.places.len()).find(|i| self.position[2 * i] == 0) {
            Some(stuck) => Err(Violation::Deadlock { at: self.places[stuck] }),
            None => Ok(()),
        }
    }

    /// Whether one vertex comes before another one.
    fn reaches(&mut self, from: u32, to: u32) -> bool {
        self.round += 1;
        let limit = self.position[from as usize];
        let mut stack = vec![to];
        while let Some(vertex) = stack.pop() {
            if vertex == from {
                return true;
            }
            for &earlier in &self.before[vertex as usize] {
                let at = earlier as usize;
                if self.position[at] >= limit && self.seen[at] != self.round {
                    self.seen[at] = self.round;
                    stack.push(earlier);
                }
            }
        }
        false
    }
}
