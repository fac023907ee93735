//! Calls collected for a group, which are published together.

use core::{cell::RefCell, ops::Range};
use std::sync::Arc;

use ringway_cell::{Call, Place};
use ringway_types::{DataType, Operation, Reduction};

use super::{Calls, memory::Kept};
use crate::{CallError, Communicator, arena::Registered, pending::Tickets};

/// Names a call from submission until its result is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ticket {
    /// Published under this number.
    Call(u64),
    /// Made in a group, under a number of the group's own.
    Grouped(u32),
}

/// What became of a call that was made in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The group is still open.
    Staged,
    /// It was published, or given to the daemon.
    Sent(Tickets),
    /// The group was given up.
    NotSent,
}

/// A call to be published later.
#[derive(Debug)]
struct Staged {
    token: u32,
    operation: Operation,
    datatype: DataType,
    reduction: Option<Reduction>,
    scale: Option<u64>,
    root: u32,
    count: u64,
    /// In the group's list.
    counts: Range<usize>,
    input: Option<Place>,
    output: Option<Place>,
    kept: Kept,
}

impl Staged {
    fn call<'a>(&self, counts: &'a [u64]) -> Call<'a> {
        Call {
            operation: self.operation,
            datatype: self.datatype,
            reduction: self.reduction,
            scale: self.scale,
            root: self.root,
            count: self.count,
            counts: counts.get(self.counts.clone()).unwrap_or_default(),
            input: self.input,
            output: self.output,
            staging: None,
        }
    }
}

/// Calls collected for a group.
#[derive(Debug)]
pub(super) struct Group {
    open: bool,
    max: usize,
    next: u32,
    staged: Vec<Staged>,
    counts: Vec<u64>,
    /// Calls of groups that are closed, until somebody asks for them.
    closed: Vec<(u32, Option<Tickets>)>,
}

impl Group {
    pub(super) fn new(max: usize) -> Self {
        let (staged, closed) = (Vec::with_capacity(max), Vec::with_capacity(max));
        Self { open: false, max, next: 0, staged, counts: Vec::new(), closed }
    }
}

impl Calls {
    pub(crate) const fn is_group_open(&self) -> bool {
        self.group.open
    }

    pub(crate) const fn open_group(&mut self) {
        self.group.open = true;
    }

    /// Takes a call into the open group; `None` when the group has as many as it may.
    pub(crate) fn stage(&mut self, call: &Call<'_>, memory: [Option<&Arc<Registered>>; 2]) -> Option<Ticket> {
        let group = &mut self.group;
        if group.staged.len() >= group.max {
            return None;
        }
        let start = group.counts.len();
        group.counts.extend_from_slice(call.counts);
        group.next = group.next.wrapping_add(1);
        group.staged.push(Staged {
            token: group.next,
            operation: call.operation,
            datatype: call.datatype,
            reduction: call.reduction,
            scale: call.scale,
            root: call.root,
            count: call.count,
            counts: start..group.counts.len(),
            input: call.input,
            output: call.output,
            kept: memory.map(|region| region.map(Arc::clone)),
        });
        Some(Ticket::Grouped(group.next))
    }

    /// Gives the open group up: nothing of it is published.
    pub(crate) fn cancel_group(&mut self) {
        let Group { open, staged, counts, closed, .. } = &mut self.group;
        closed.extend(staged.drain(..).map(|call| (call.token, None)));
        counts.clear();
        *open = false;
    }

    /// Takes one call out of the open group.
    pub(crate) fn cancel(&mut self, token: u32) {
        // Its counts stay in the list unused: ranges of the others need not move.
        self.group.staged.retain(|call| call.token != token);
    }

    /// What became of a call of a group. Asked once it is closed, the group forgets it.
    pub(crate) fn fate(&mut self, token: u32) -> Fate {
        let Group { staged, closed, .. } = &mut self.group;
        if staged.iter().any(|call| call.token == token) {
            return Fate::Staged;
        }
        let at = closed.iter().position(|(of, _)| *of == token);
        match at.map(|at| closed.swap_remove(at)) {
            Some((_, Some(tickets))) => Fate::Sent(tickets),
            _ => Fate::NotSent,
        }
    }
}

impl Communicator {
    /// Publishes the calls of the group, one after the other.
    pub(crate) fn send_group_to_cell(&self, cell: &RefCell<Calls>) -> Result<(), CallError> {
        let (mut staged, mut counts) = {
            let group = &mut cell.borrow_mut().group;
            group.open = false;
            (core::mem::take(&mut group.staged), core::mem::take(&mut group.counts))
        };
        let mut outcome = Ok(());
        for one in staged.drain(..) {
            let sent = match outcome {
                Ok(()) => {
                    let memory = one.kept.each_ref().map(Option::as_ref);
                    self.submit_to_cell((cell, cell.borrow_mut()), &one.call(&counts), memory, false)
                }
                Err(error) => Err(error),
            };
            let tickets = sent.as_ref().ok().copied();
            outcome = sent.map(drop);
            cell.borrow_mut().group.closed.push((one.token, tickets));
        }
        counts.clear();
        let group = &mut cell.borrow_mut().group;
        (group.staged, group.counts) = (staged, counts);
        outcome
    }
}
