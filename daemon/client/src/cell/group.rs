//! Calls collected for a group, which are published together.

use core::ops::Range;
use std::sync::Arc;

use ringway_cell::{Call, Place};
use ringway_types::{DataType, Operation, Reduction};

use super::{Calls, memory::Kept};
use crate::{CallError, arena::Registered};

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
    /// It was published.
    Sent(u64),
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

/// Calls collected for a group.
#[derive(Debug)]
pub(super) struct Group {
    open: bool,
    max: usize,
    next: u32,
    staged: Vec<Staged>,
    counts: Vec<u64>,
    /// Calls of groups that are closed, until somebody asks for them.
    closed: Vec<(u32, Option<u64>)>,
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

    /// Publishes the group's calls, one after the other. Whether the daemon's help was asked for.
    pub(crate) fn send_group(&mut self) -> Result<bool, CallError> {
        let mut staged = core::mem::take(&mut self.group.staged);
        let counts = core::mem::take(&mut self.group.counts);
        self.group.open = false;
        let mut outcome = Ok(false);
        for Staged {
            token,
            operation,
            datatype,
            reduction,
            scale,
            root,
            count,
            counts: range,
            input,
            output,
            kept,
        } in staged.drain(..)
        {
            let sequence = match outcome {
                Err(_) => None,
                Ok(_) => {
                    let counts = counts.get(range).unwrap_or_default();
                    let call = Call {
                        operation,
                        datatype,
                        reduction,
                        scale,
                        root,
                        count,
                        counts,
                        input,
                        output,
                        staging: None,
                    };
                    match self.submit(&call, [kept[0].as_ref(), kept[1].as_ref()], false) {
                        Ok(sequence) => Some(sequence),
                        Err(error) => {
                            outcome = Err(error);
                            None
                        }
                    }
                }
            };
            if let (Ok(help), Some(sequence)) = (&mut outcome, sequence) {
                *help |= self.wants_help(sequence);
            }
            self.group.closed.push((token, sequence));
        }
        (self.group.staged, self.group.counts) = (staged, counts);
        self.group.counts.clear();
        outcome
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
            Some((_, Some(sequence))) => Fate::Sent(sequence),
            _ => Fate::NotSent,
        }
    }
}
