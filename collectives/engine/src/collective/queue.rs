//! The calls of this node's ranks, matched by their number.

use ringway_plan::{Blocks, Call, Layout, View};
use ringway_types::{Operation, digest_counts};
use ringway_verbs::Time;

use crate::message::Absent;
use crate::{BufferRef, Collective, Failure, Refused, RegionId, Signature, Token};

/// One local rank's call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LocalCall {
    pub(crate) token: Token,
    pub(crate) scale: Option<[u8; 8]>,
    pub(crate) input: Option<BufferRef>,
    pub(crate) output: Option<BufferRef>,
}

const NO_CALL: LocalCall = LocalCall { token: Token(0), scale: None, input: None, output: None };

/// The calls with one number.
#[derive(Debug)]
pub(crate) struct Slot {
    /// What the first local rank called, and which it was.
    pub(crate) signature: Option<Signature>,
    /// What was called as the last finished collective that used this slot, and its number.
    past: Option<(u64, Signature)>,
    pub(crate) first: u32,
    pub(crate) arrived: u32,
    pub(crate) since: Time,
    pub(crate) reported: bool,
    counts: Vec<u64>,
}

/// The collectives of one communicator that this node's ranks have called and that have not finished.
#[derive(Debug)]
pub(crate) struct Queue {
    node: u32,
    locals: u32,
    ranks: usize,
    capacity: u64,
    /// The number of the oldest that has not finished; the first is 1.
    pub(crate) head: u64,
    /// Calls each local rank has made.
    called: Vec<u64>,
    slots: Vec<Slot>,
    calls: Vec<LocalCall>,
    in_place: Vec<bool>,
    spare: Vec<Vec<u64>>,
}

/// What a call led to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Other local ranks have not come yet.
    Waiting,
    /// It was the last.
    Complete,
    /// It differs from another's.
    Failed(Failure),
}

impl Queue {
    pub(crate) fn new(layout: &Layout, node: u32, capacity: u32) -> Self {
        let locals = u32::try_from(layout.local(node).len()).unwrap_or(0);
        let entries = capacity as usize * locals as usize;
        let slot = || Slot {
            signature: None,
            past: None,
            first: 0,
            arrived: 0,
            since: Time(0),
            reported: false,
            counts: Vec::new(),
        };
        Self {
            node,
            locals,
            ranks: layout.ranks() as usize,
            capacity: u64::from(capacity),
            head: 1,
            called: vec![0; locals as usize],
            slots: (0..capacity).map(|_| slot()).collect(),
            calls: vec![NO_CALL; entries],
            in_place: vec![false; entries],
            spare: Vec::new(),
        }
    }

    fn index(&self, sequence: u64) -> usize {
        usize::try_from(sequence % self.capacity).unwrap_or(0)
    }

    /// The slot of a collective that has not finished.
    pub(crate) fn slot(&self, sequence: u64) -> Option<&Slot> {
        let known = sequence >= self.head && sequence - self.head < self.capacity;
        self.slots.get(self.index(sequence)).filter(|_| known)
    }

    pub(crate) fn slot_mut(&mut self, sequence: u64) -> Option<&mut Slot> {
        let known = sequence >= self.head && sequence - self.head < self.capacity;
        let index = self.index(sequence);
        self.slots.get_mut(index).filter(|_| known)
    }

    /// What the first local rank called as its collective of this number.
    pub(crate) fn signature(&self, sequence: u64) -> Option<Signature> {
        self.slot(sequence)?.signature
    }

    /// The local rank that called it first.
    pub(crate) fn first(&self, sequence: u64) -> u32 {
        self.slot(sequence).filter(|slot| slot.signature.is_some()).map_or(0, |slot| slot.first)
    }

    /// What was called as a collective that has finished, as far back as is remembered.
    pub(crate) fn past(&self, sequence: u64) -> Option<Signature> {
        let (number, signature) = self.slots.get(self.index(sequence))?.past?;
        (number == sequence).then_some(signature)
    }

    /// Whether the oldest can start.
    pub(crate) fn is_ready(&self) -> bool {
        self.slot(self.head).is_some_and(|slot| slot.arrived == self.locals)
    }

    /// How many collectives the local rank has called.
    pub(crate) fn called(&self, local: u32) -> u64 {
        self.called.get(local as usize).copied().unwrap_or(0)
    }

    /// The local ranks that have not called the collective of this number.
    pub(crate) fn absent(&self, sequence: u64, stopped: Option<u32>) -> Absent {
        Absent::of(sequence, self.locals, |local| self.called(local) < sequence || stopped == Some(local))
    }

    /// How many collectives have been called by any.
    pub(crate) fn started(&self) -> u64 {
        self.called.iter().copied().max().unwrap_or(0)
    }

    /// Calls that have not finished.
    pub(crate) fn outstanding(&self) -> u64 {
        self.called.iter().map(|n| (n + 1).saturating_sub(self.head)).sum()
    }

    /// The calls with this number, one for each local rank.
    pub(crate) fn calls(&self, sequence: u64) -> &[LocalCall] {
        let start = self.index(sequence) * self.locals as usize;
        self.calls.get(start..start + self.locals as usize).unwrap_or_default()
    }

    /// What a node needs to compute its part of the collective.
    pub(crate) fn view<'a>(&'a self, layout: &'a Layout, sequence: u64, signature: &Signature) -> View<'a> {
        let start = self.index(sequence) * self.locals as usize;
        let counts = self.slots.get(self.index(sequence)).map_or(&[][..], |slot| &slot.counts);
        let rows = self.locals as usize * (self.ranks + 1);
        let operation = signature.operation;
        let blocks = if operation == Operation::AllToAllV {
            Blocks::PerPair {
                sends: counts.get(..rows).unwrap_or_default(),
                receives: counts.get(rows..).unwrap_or_default(),
            }
        } else if operation.has_counts() {
            Blocks::PerRank { starts: counts.get(..=self.ranks).unwrap_or_default() }
        } else {
            Blocks::Uniform
        };
        View {
            layout,
            node: self.node,
            call: Call {
                operation,
                element: u32::try_from(signature.datatype.size()).unwrap_or(1),
                count: if operation.has_counts() { 0 } else { signature.count },
                root: signature.root,
            },
            blocks,
            in_place: self.in_place.get(start..start + self.locals as usize).unwrap_or_default(),
        }
    }

    /// Takes a local rank's call.
    pub(crate) fn call(
        &mut self,
        layout: &Layout,
        local: u32,
        token: Token,
        call: &Collective<'_>,
        now: Time,
    ) -> Result<Arrival, Refused> {
        self.check(layout, local, call)?;
        let sequence = self.called(local) + 1;
        if sequence - self.head >= self.capacity {
            return Err(Refused::Full);
        }
        let signature = sign(call);
        let index = self.index(sequence);
        let entry = index * self.locals as usize + local as usize;
        if let Some(called) = self.called.get_mut(local as usize) {
            *called = sequence;
        }
        if let Some(slot) = self.calls.get_mut(entry) {
            *slot = LocalCall { token, scale: call.scale, input: call.input, output: call.output };
        }
        let rank = rank_of(layout, self.node, local);
        let Some(slot) = self.slots.get_mut(index) else { return Err(Refused::Unknown) };
        let first = *slot.signature.get_or_insert_with(|| {
            (slot.first, slot.since) = (local, now);
            signature
        });
        slot.arrived += 1;
        if first != signature {
            let other_rank = rank_of(layout, self.node, slot.first);
            return Ok(Arrival::Failed(Failure::Mismatch {
                rank: other_rank,
                call: first,
                other_rank: rank,
                other: signature,
                sequence,
            }));
        }
        if signature.operation.has_counts() {
            let length = 2 * self.locals as usize * (self.ranks + 1);
            if slot.counts.is_empty() {
                slot.counts = self.spare.pop().unwrap_or_default();
                slot.counts.clear();
                slot.counts.resize(length, 0);
            }
            note_counts(&mut slot.counts, self.ranks, self.locals as usize, local, rank, call);
        }
        let complete = slot.arrived == self.locals;
        let in_place = is_in_place(rank, call);
        if let Some(flag) = self.in_place.get_mut(entry) {
            *flag = in_place;
        }
        Ok(if complete { Arrival::Complete } else { Arrival::Waiting })
    }

    fn check(&self, layout: &Layout, local: u32, call: &Collective<'_>) -> Result<(), Refused> {
        if local >= self.locals || !call.operation.is_collective() {
            return Err(Refused::Unknown);
        }
        if call.operation.has_root() && call.root >= layout.ranks() {
            return Err(Refused::Rank { rank: call.root, size: layout.ranks() });
        }
        let needed =
            match call.operation {
                Operation::AllGatherV | Operation::ReduceScatterV => self.ranks,
                Operation::GatherV | Operation::ScatterV => {
                    if call.root == rank_of(layout, self.node, local) { self.ranks } else { 1 }
                }
                Operation::AllToAllV => 2 * self.ranks,
                _ => return Ok(()),
            };
        if call.counts.len() != needed {
            return Err(Refused::Counts { given: call.counts.len(), needed });
        }
        Ok(())
    }

    /// Turns the counts of the oldest collective into prefix sums.
    pub(crate) fn settle(&mut self, layout: &Layout) -> Result<(), Failure> {
        let (ranks, index) = (self.ranks, self.index(self.head));
        let Some(slot) = self.slots.get_mut(index) else { return Ok(()) };
        let Some(signature) = slot.signature.filter(|s| s.operation.has_counts()) else { return Ok(()) };
        let local_ranks = layout.local(self.node);
        let element = signature.datatype.size() as u64;
        let counts = &mut slot.counts;
        match signature.operation {
            Operation::AllToAllV => {
                check_pairs(counts, ranks, local_ranks, element)?;
                counts.chunks_exact_mut(ranks + 1).for_each(prefix);
            }
            Operation::GatherV | Operation::ScatterV if layout.node_of(signature.root) == self.node => {
                let (own, root) = counts.split_at_mut(ranks + 1);
                for &rank in local_ranks.iter().filter(|rank| **rank != signature.root) {
                    check_count(
                        own.get(rank as usize).copied().unwrap_or(0),
                        root.get(rank as usize).copied().unwrap_or(0),
                        if signature.operation == Operation::GatherV {
                            (rank, signature.root)
                        } else {
                            (signature.root, rank)
                        },
                        signature.operation == Operation::GatherV,
                        element,
                    )?;
                }
                own.copy_from_slice(root.get(..=ranks).unwrap_or(&[]).get(..own.len()).unwrap_or(&[]));
                prefix(own);
            }
            _ => {
                if let Some(row) = counts.get_mut(..=ranks) {
                    prefix(row);
                }
            }
        }
        Ok(())
    }

    /// Calls that have not finished: whose, and what.
    pub(crate) fn pending(&self) -> impl Iterator<Item = (u32, &LocalCall)> {
        (self.head..=self.started()).flat_map(move |sequence| {
            (0_u32..).zip(self.calls(sequence)).filter(move |(local, _)| self.called(*local) >= sequence)
        })
    }

    /// Whether a call that has not finished uses the region.
    pub(crate) fn uses(&self, region: RegionId) -> bool {
        self.pending()
            .any(|(_, call)| [call.input, call.output].iter().flatten().any(|buffer| buffer.region == region))
    }

    /// Forgets every call.
    pub(crate) fn clear(&mut self) {
        while self.head <= self.started() {
            self.retire();
        }
    }

    /// Local ranks that have not called the oldest collective, which others have.
    pub(crate) fn missing(&self) -> impl Iterator<Item = u32> {
        (0_u32..).zip(&self.called).filter(|(_, called)| **called < self.head).map(|(local, _)| local)
    }

    /// The oldest collective has ended: its slot is free for a later one.
    pub(crate) fn retire(&mut self) {
        let (index, sequence) = (self.index(self.head), self.head);
        self.head += 1;
        let Some(slot) = self.slots.get_mut(index) else { return };
        slot.past = slot.signature.take().map(|signature| (sequence, signature));
        slot.arrived = 0;
        slot.reported = false;
        if !slot.counts.is_empty() {
            self.spare.push(core::mem::take(&mut slot.counts));
        }
    }
}

/// Whether input and output are the same memory in the operation's in-place form.
fn is_in_place(rank: u32, call: &Collective<'_>) -> bool {
    let (Some(input), Some(output)) = (call.input, call.output) else { return false };
    if input.region != output.region {
        return false;
    }
    let element = call.datatype.size() as u64;
    let block = if call.operation.has_counts() && call.operation != Operation::AllToAllV {
        // At the root of gather_v and scatter_v, and everywhere else, all counts are in the call itself.
        let before = call.counts.get(..rank as usize).unwrap_or_default();
        before.iter().fold(0_u64, |sum, n| sum.saturating_add(*n)).saturating_mul(element)
    } else {
        u64::from(rank).saturating_mul(call.count).saturating_mul(element)
    };
    match call.operation {
        Operation::AllGather | Operation::AllGatherV | Operation::Gather | Operation::GatherV => {
            output.offset.checked_add(block) == Some(input.offset)
        }
        Operation::ReduceScatter | Operation::ReduceScatterV | Operation::Scatter | Operation::ScatterV => {
            input.offset.checked_add(block) == Some(output.offset)
        }
        _ => input.offset == output.offset,
    }
}

/// The rank in the communicator of a local rank.
pub(crate) fn rank_of(layout: &Layout, node: u32, local: u32) -> u32 {
    layout.local(node).get(local as usize).copied().unwrap_or(0)
}

/// What must agree.
fn sign(call: &Collective<'_>) -> Signature {
    let operation = call.operation;
    let barrier = operation == Operation::Barrier;
    Signature {
        operation,
        datatype: if barrier { ringway_types::DataType::U8 } else { call.datatype },
        reduction: if operation.reduces() { call.reduction } else { None },
        root: if operation.has_root() { call.root } else { 0 },
        count: match operation {
            Operation::AllGatherV | Operation::ReduceScatterV => digest_counts(call.counts),
            Operation::Barrier | Operation::GatherV | Operation::ScatterV | Operation::AllToAllV => 0,
            _ => call.count,
        },
    }
}

fn note_counts(table: &mut [u64], ranks: usize, locals: usize, local: u32, rank: u32, call: &Collective<'_>) {
    let row = ranks + 1;
    let mut put = |start: usize, from: &[u64]| {
        if let Some(into) = table.get_mut(start..start + from.len()) {
            into.copy_from_slice(from);
        }
    };
    match call.operation {
        Operation::AllToAllV => {
            let (sends, receives) = call.counts.split_at(ranks.min(call.counts.len()));
            put(local as usize * row, sends);
            put((locals + local as usize) * row, receives);
        }
        Operation::GatherV | Operation::ScatterV if call.root == rank => put(row, call.counts),
        Operation::GatherV | Operation::ScatterV => put(rank as usize, call.counts),
        _ => put(0, call.counts),
    }
}

/// Counts to prefix sums, in place; the last entry becomes the total.
fn prefix(row: &mut [u64]) {
    let mut sum = 0_u64;
    for entry in row {
        let count = core::mem::replace(entry, sum);
        sum = sum.saturating_add(count);
    }
}

fn check_pairs(table: &[u64], ranks: usize, locals: &[u32], element: u64) -> Result<(), Failure> {
    let row = ranks + 1;
    let at = |index: usize| table.get(index).copied().unwrap_or(0);
    for (i, &sender) in locals.iter().enumerate() {
        for (j, &receiver) in locals.iter().enumerate() {
            let sent = at(i * row + receiver as usize);
            let expected = at((locals.len() + j) * row + sender as usize);
            check_count(sent, expected, (sender, receiver), true, element)?;
        }
    }
    Ok(())
}

fn check_count(
    one: u64,
    other: u64,
    (sender, receiver): (u32, u32),
    one_sends: bool,
    element: u64,
) -> Result<(), Failure> {
    if one == other {
        return Ok(());
    }
    let (sent, expected) = if one_sends { (one, other) } else { (other, one) };
    Err(Failure::Count {
        sender,
        receiver,
        sent: sent.saturating_mul(element),
        expected: expected.saturating_mul(element),
    })
}
