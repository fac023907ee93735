//! One communicator's operations between submission and result: tokens, the rings, the group being collected.

use std::sync::Arc;

use ringway_abi::{
    Status,
    descriptor::{Completion, FLAG_GROUP, Submission, join},
    stream,
};

use crate::{
    arena::Registered,
    helping::Helping,
    rings::Rings,
    slab::{Slab, SlabRange},
};

/// Bits of a token that say which slot it belongs to; the others count the slot's uses, so that a token of an earlier
/// operation is not taken for that of a later one.
const SLOT_BITS: u32 = 20;
const SLOTS_MAX: usize = 1 << SLOT_BITS;

/// Names an operation from submission until its result is taken. It is the token that the daemon sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket(pub(crate) u32);

impl Ticket {
    const fn slot(self) -> usize {
        (self.0 as usize) & (SLOTS_MAX - 1)
    }
}

/// Where an operation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Collected in a group that is not sent yet.
    Staged,
    /// Sent.
    Outstanding,
    /// Ended.
    Ended(Completion),
    /// Was part of a group that was not sent.
    NotSent,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    token: u32,
    progress: Option<Progress>,
    /// What it uses of the argument slab.
    slab: Option<SlabRange>,
    /// The daemon does it in the cell, in this rank's place.
    in_cell: bool,
    /// Other ranks work on its memory meanwhile.
    exposed: bool,
    /// Nobody waits for its result.
    detached: bool,
}

/// One call, checked: its descriptor but for token and slab range, and what goes into the slab.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) submission: Submission,
    /// The scalar of premul_sum.
    pub(crate) scalar: Option<u64>,
    pub(crate) counts: [&'a [u64]; 2],
    /// The regions that input and output are in, where they are registered.
    pub(crate) memory: [Option<&'a Arc<Registered>>; 2],
}

impl Call<'_> {
    /// Words in the slab: none unless there are counts.
    #[inline]
    pub(crate) fn slab_words(&self) -> usize {
        let counts: usize = self.counts.iter().map(|c| c.len()).sum();
        if counts == 0 { 0 } else { counts + usize::from(self.scalar.is_some()) }
    }
}

/// Operations collected for a group.
#[derive(Debug, Default)]
struct Group {
    open: bool,
    staged: Vec<(Submission, core::ops::Range<usize>)>,
    /// The slab words of all of them.
    words: Vec<u64>,
}

/// One communicator's operations.
#[derive(Debug)]
pub(crate) struct Queue {
    rings: Rings,
    slab: Slab,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots of operations that are ordered with streams, the first ones: a slot's words tell its uses apart only while no
    /// others come between.
    free_streamed: Vec<u32>,
    streamed: u32,
    group: Group,
    /// How many that are not over the daemon does in the cell.
    in_cell: u32,
    /// What this rank does for the daemon while it waits, where it may.
    helping: Option<Helping>,
    /// Operations that have ended without anybody waiting for them, until they are told of, and whether somebody may still
    /// write to their memory.
    ended: Vec<(u32, bool)>,
    /// The first of them that failed since somebody asked.
    failure: Option<Completion>,
}

impl Queue {
    pub(crate) fn new(rings: Rings, helping: Option<Helping>) -> Self {
        // As many slots as can be in the rings at once; results that nobody has taken yet may need more.
        let usual = (rings.submissions() as usize).saturating_add(rings.completions() as usize);
        let mut queue = Self {
            slab: Slab::new(rings.slab_words(), rings.submissions()),
            rings,
            slots: Vec::with_capacity(usual),
            free: Vec::with_capacity(usual),
            free_streamed: Vec::new(),
            streamed: 0,
            group: Group::default(),
            in_cell: 0,
            helping,
            ended: Vec::new(),
            failure: None,
        };
        queue.group.staged.reserve(queue.group_max());
        queue
    }

    /// With slots for operations that are ordered with streams.
    pub(crate) fn with_streams(mut self) -> Self {
        let slot = |token| Slot {
            token,
            progress: None,
            slab: None,
            in_cell: false,
            exposed: false,
            detached: false,
        };
        self.slots.extend((0..stream::SLOTS).map(slot));
        self.free_streamed.extend((0..stream::SLOTS).rev());
        self.streamed = stream::SLOTS;
        self
    }

    /// Whether operations that are ordered with streams have not ended.
    pub(crate) fn has_streamed(&self) -> bool {
        let streamed = self.slots.get(..self.streamed as usize).unwrap_or_default();
        streamed.iter().any(|slot| slot.progress == Some(Progress::Outstanding))
    }

    /// The most operations of a group.
    pub(crate) fn group_max(&self) -> usize {
        self.rings.submissions().min(self.rings.completions()) as usize
    }

    /// The most words that calls can have in the slab at once.
    pub(crate) fn slab_room(&self) -> usize {
        self.rings.slab_words() as usize
    }

    pub(crate) const fn is_group_open(&self) -> bool {
        self.group.open
    }

    /// Sends a call, or takes it into the open group; `None` when the ring, the slab or the tokens are used up.
    pub(crate) fn submit(&mut self, call: &Call<'_>) -> Option<Ticket> {
        if self.group.open {
            return self.stage(call);
        }
        if !self.rings.has_room(1) || !self.has_tokens() {
            return None;
        }
        let (argument, slab) = self.write_arguments(call)?;
        let ticket = self.open(Progress::Outstanding, slab)?;
        self.rings.put(&Submission { token: ticket.0, argument, ..call.submission }.encode());
        self.rings.publish();
        Some(ticket)
    }

    /// Writes what a call has in the slab; its argument, and what of the slab is used.
    #[inline]
    fn write_arguments(&mut self, call: &Call<'_>) -> Option<(u64, Option<SlabRange>)> {
        let words = call.slab_words();
        if words == 0 {
            return Some((call.scalar.unwrap_or(call.submission.argument), None));
        }
        let (first, range) = self.slab.reserve(words, 1)?;
        let mut at = first;
        for part in [call.scalar.as_slice(), call.counts[0], call.counts[1]] {
            self.rings.write_slab(at, part);
            at = at.saturating_add(u32::try_from(part.len()).unwrap_or(u32::MAX));
        }
        Some((slab_range(first, words), Some(range)))
    }

    /// Sends calls that are ordered with a stream, after `order` has put the order of their tokens there; `None` when there is
    /// no room, or no slot that has words for the order.
    pub(crate) fn submit_streamed<const N: usize, E>(
        &mut self,
        calls: [&Call<'_>; N],
        order: impl FnOnce([u32; N]) -> Result<(), E>,
    ) -> Result<Option<[Ticket; N]>, E> {
        if !self.has_room(N as u64) {
            return Ok(None);
        }
        let mut submissions = [None; N];
        for (place, call) in submissions.iter_mut().zip(calls) {
            let written = self.write_arguments(call);
            let ticket = written.and_then(|(_, slab)| self.open_streamed(slab));
            *place = written.zip(ticket).map(|((argument, _), Ticket(token))| Submission {
                token,
                argument,
                ..call.submission
            });
        }
        let tokens = submissions.map(|submission| submission.map(|submission| submission.token));
        let known = tokens.iter().all(Option::is_some);
        let tokens = tokens.map(Option::unwrap_or_default);
        let ordered = if known { order(tokens).map(Some) } else { Ok(None) };
        if !matches!(ordered, Ok(Some(()))) {
            for submission in submissions.into_iter().flatten() {
                self.give_up(Ticket(submission.token));
            }
            return ordered.map(|_| None);
        }
        for submission in submissions.into_iter().flatten() {
            self.rings.put(&submission.encode());
        }
        self.rings.publish();
        Ok(Some(tokens.map(Ticket)))
    }

    /// An operation is not sent after all.
    fn give_up(&mut self, ticket: Ticket) {
        if let Some(range) = self.slots.get_mut(ticket.slot()).and_then(|slot| slot.slab.take()) {
            self.slab.release(range);
        }
        self.take(ticket);
    }

    /// Nobody waits for an operation's result any more.
    pub(crate) fn detach(&mut self, ticket: Ticket) {
        let Some(slot) = self.slots.get_mut(ticket.slot()).filter(|slot| slot.token == ticket.0) else {
            return;
        };
        slot.detached = true;
        if let Some(Progress::Ended(completion)) = slot.progress {
            self.end_detached(ticket, completion);
        }
    }

    fn end_detached(&mut self, ticket: Ticket, completion: Completion) {
        self.take(ticket);
        self.ended.push((ticket.0, completion.held));
        if completion.status != Status::Success.code() {
            self.failure.get_or_insert(completion);
        }
    }

    /// The token of an operation that has ended without anybody waiting for it, and whether its memory is still in use.
    pub(crate) fn next_detached_end(&mut self) -> Option<(u32, bool)> {
        self.ended.pop()
    }

    /// The first failure among those since it was last asked for.
    pub(crate) const fn take_failure(&mut self) -> Option<Completion> {
        self.failure.take()
    }

    /// Sends a call for the cell. With `exposed` other ranks work on its memory.
    pub(crate) fn submit_for_cell(&mut self, call: &Call<'_>, exposed: bool) -> Option<Ticket> {
        let ticket = self.submit(call)?;
        if let Some(slot) = self.slots.get_mut(ticket.slot()) {
            (slot.in_cell, slot.exposed) = (true, exposed);
            self.in_cell = self.in_cell.saturating_add(1);
        }
        Some(ticket)
    }

    /// How many calls for the cell are not over.
    pub(crate) const fn in_cell(&self) -> u32 {
        self.in_cell
    }

    /// Whether other ranks worked on an operation's memory; also of one whose result was just taken.
    pub(crate) fn is_exposed(&self, ticket: Ticket) -> bool {
        self.slots.get(ticket.slot()).is_some_and(|slot| slot.token == ticket.0 && slot.exposed)
    }

    /// Whether so many calls without counts can be sent now.
    pub(crate) fn has_room(&mut self, calls: u64) -> bool {
        let tokens = self.free.len().saturating_add(SLOTS_MAX.saturating_sub(self.slots.len()));
        self.rings.has_room(calls) && tokens as u64 >= calls
    }

    fn stage(&mut self, call: &Call<'_>) -> Option<Ticket> {
        let (words, start) = (call.slab_words(), self.group.words.len());
        if self.group.staged.len() >= self.group_max() || start + words > self.slab_room() {
            return None;
        }
        let ticket = self.open(Progress::Staged, None)?;
        if words > 0 {
            self.group.words.extend(call.scalar.iter().chain(call.counts.into_iter().flatten()));
        }
        let argument = call.scalar.unwrap_or(call.submission.argument);
        let submission = Submission { token: ticket.0, argument, ..call.submission };
        self.group.staged.push((submission, start..start + words));
        Some(ticket)
    }

    pub(crate) const fn open_group(&mut self) {
        self.group.open = true;
    }

    /// Sends the group as a whole; `false` when the ring has no room for it now.
    pub(crate) fn send_group(&mut self) -> bool {
        let Group { open, staged, words } = &mut self.group;
        let count = staged.len();
        if !self.rings.has_room(count as u64) {
            return false;
        }
        // The whole group's words lie in one range.
        let users = staged.iter().filter(|(_, range)| !range.is_empty()).count();
        let slab = if users > 0 { self.slab.reserve(words.len(), users) } else { None };
        if users > 0 && slab.is_none() {
            return false;
        }
        if let Some((first, _)) = slab {
            self.rings.write_slab(first, words);
        }
        for (index, (mut submission, range)) in staged.drain(..).enumerate() {
            let slab = slab.filter(|_| !range.is_empty());
            if let Some((first, _)) = slab {
                let start = u32::try_from(range.start).unwrap_or(u32::MAX);
                submission.argument = slab_range(first.saturating_add(start), range.len());
            }
            if index + 1 < count {
                submission.flags |= FLAG_GROUP;
            }
            self.rings.put(&submission.encode());
            if let Some(slot) = self.slots.get_mut(Ticket(submission.token).slot()) {
                slot.progress = Some(Progress::Outstanding);
                slot.slab = slab.map(|(_, range)| range);
            }
        }
        if count > 0 {
            self.rings.publish();
        }
        words.clear();
        *open = false;
        true
    }

    /// Gives the open group up: nothing of it is sent.
    pub(crate) fn cancel_group(&mut self) {
        let Group { open, staged, words } = &mut self.group;
        for (submission, _) in staged.drain(..) {
            if let Some(slot) = self.slots.get_mut(Ticket(submission.token).slot()) {
                slot.progress = Some(Progress::NotSent);
            }
        }
        words.clear();
        *open = false;
    }

    /// Takes one operation out of the open group.
    pub(crate) fn cancel(&mut self, ticket: Ticket) {
        // Its words stay in the group's list and are sent unused: ranges of the others need not move.
        self.group.staged.retain(|(submission, _)| submission.token != ticket.0);
        self.take(ticket);
    }

    /// Says that this rank waits and looks for work of the daemon's from now on, or no more.
    #[inline]
    pub(crate) fn set_present(&mut self, present: bool) {
        if let Some(helping) = &mut self.helping {
            helping.set_present(present);
        }
    }

    /// Does a piece of the daemon's work, if there is one and this rank is present; whether it did.
    #[inline]
    pub(crate) fn help(&mut self) -> bool {
        let helped = self.helping.as_mut().is_some_and(Helping::work);
        if helped {
            self.rings.wake();
        }
        helped
    }

    /// Takes what the daemon has completed.
    pub(crate) fn collect(&mut self) {
        while let Some(words) = self.rings.take() {
            let completion = Completion::parse(&words);
            let ticket = Ticket(completion.token);
            match self.slots.get_mut(ticket.slot()) {
                Some(slot) if slot.token == ticket.0 && slot.progress == Some(Progress::Outstanding) => {
                    slot.progress = Some(Progress::Ended(completion));
                    self.in_cell = self.in_cell.saturating_sub(u32::from(slot.in_cell));
                    if let Some(range) = slot.slab.take() {
                        self.slab.release(range);
                    }
                    if slot.detached {
                        self.end_detached(ticket, completion);
                    }
                }
                // A token that nobody has: of an operation submitted raw, or the daemon is mistaken.
                _ => {}
            }
        }
    }

    pub(crate) fn progress(&self, ticket: Ticket) -> Option<Progress> {
        self.slots.get(ticket.slot()).filter(|slot| slot.token == ticket.0)?.progress
    }

    /// Takes an operation's result; its token is free again.
    pub(crate) fn take(&mut self, ticket: Ticket) -> Option<Progress> {
        let slot = self.slots.get_mut(ticket.slot()).filter(|slot| slot.token == ticket.0)?;
        let progress = slot.progress.take()?;
        let (slot, streamed) = (ticket.slot() as u32, self.streamed);
        if slot < streamed { &mut self.free_streamed } else { &mut self.free }.push(slot);
        Some(progress)
    }

    fn has_tokens(&self) -> bool {
        !self.free.is_empty() || self.slots.len() < SLOTS_MAX
    }

    fn open_streamed(&mut self, slab: Option<SlabRange>) -> Option<Ticket> {
        let index = self.free_streamed.pop()?;
        self.open_at(index, Progress::Outstanding, slab)
    }

    fn open_at(&mut self, index: u32, progress: Progress, slab: Option<SlabRange>) -> Option<Ticket> {
        let slot = self.slots.get_mut(index as usize)?;
        let token = slot.token.wrapping_add(1 << SLOT_BITS);
        *slot =
            Slot { token, progress: Some(progress), slab, in_cell: false, exposed: false, detached: false };
        Some(Ticket(token))
    }

    fn open(&mut self, progress: Progress, slab: Option<SlabRange>) -> Option<Ticket> {
        if let Some(index) = self.free.pop() {
            return self.open_at(index, progress, slab);
        }
        let token = u32::try_from(self.slots.len()).ok().filter(|_| self.slots.len() < SLOTS_MAX)?;
        let (in_cell, exposed, detached) = (false, false, false);
        self.slots.push(Slot { token, progress: Some(progress), slab, in_cell, exposed, detached });
        Some(Ticket(token))
    }

    pub(crate) fn rings(&mut self) -> &mut Rings {
        &mut self.rings
    }
}

fn slab_range(first: u32, words: usize) -> u64 {
    join(first, u32::try_from(words).unwrap_or(u32::MAX))
}
