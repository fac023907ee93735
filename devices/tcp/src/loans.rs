//! Sends for which the kernel takes no copy: what is lent to it meanwhile, and where that pays.
//!
//! # Two answers
//! Such a send is answered twice: when the socket has taken the bytes, and when the kernel has let go of the memory, which it
//! has when the peer's host has acknowledged them and no packet refers to them any more. In between the batch is *lent*. The
//! queue pair goes on with another batch, but no request completes of which a part is lent. What a peer that acknowledges
//! nothing can keep is a few batches of its own connection; ending a connection has the kernel drop what it has not sent,
//! and with that come the second answers.
//!
//! # Where it pays
//! Pinning memory, and the second answer, cost as much as a copy of some kilobytes; sends of [`LONG`] bytes and more can gain
//! where the network card reads the memory itself. The kernel says of every such send whether it has copied after all, which
//! it has to wherever packets stay on the host, over loopback and most virtual links, or somebody records them (a veth pair
//! whose receiver has an XDP program makes copies of its own, of which the kernel does not speak). That costs more than an
//! ordinary send, so a connection on which it was copied has it tried again only now and then.

use crate::buffers::SendBatch;

/// Batches that all connections can have lent at a time.
pub(crate) const LOANS_MAX: usize = 32;
/// Those of one connection: 2 MiB, which is more than most are fast and far enough for; what is beyond is copied.
pub(crate) const LOANS_PER_CONNECTION: usize = 8;
/// Pieces of a payload from this length on, in bytes, are worth it.
const LONG: u64 = 32 << 10;
/// Long sends between those that try it on a connection on which the last one was copied.
const SENDS_BETWEEN_TRIALS: u32 = 1024;

/// Whether the kernel is to send payload from where it lies, without a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZeroCopy {
    /// Long payloads, on connections on which the kernel says that it need not copy after all.
    WherePays,
    /// All that is not copied next to its header anyway: to measure what that costs where it does not pay.
    Always,
    /// Nothing.
    Never,
}

/// What is known of a connection.
#[derive(Debug, Clone, Copy, Default)]
struct Connection {
    /// Loans under way.
    loans: usize,
    /// The last one was not copied.
    pays: bool,
    /// Long sends to come until it is tried again.
    rest: u32,
    /// The system refused the last loan: those from before, which may come back later, say nothing about the next.
    refused: bool,
}

/// A batch, lent or to go on with when one is.
#[derive(Debug)]
struct Loan {
    batch: Box<SendBatch>,
    number: u32,
    bytes: u64,
    /// The first answer, if the queue pair is not to hear it before the second.
    withheld: Option<i32>,
}

/// What the second answer means.
pub(crate) struct Returned {
    pub(crate) first_request: u64,
    /// The first answer, if it was withheld.
    pub(crate) withheld: Option<i32>,
}

/// Bytes of sends that were to be made without a copy.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LoanCounters {
    pub(crate) not_copied: u64,
    pub(crate) copied: u64,
}

#[derive(Debug)]
pub(crate) struct Loans {
    when: ZeroCopy,
    loans: Vec<Loan>,
    /// Places of `loans` that are not under way.
    free: Vec<usize>,
    /// By connection index.
    connections: Vec<Connection>,
    pub(crate) counters: LoanCounters,
}

impl Loans {
    pub(crate) fn new(when: ZeroCopy) -> Self {
        let most = if when == ZeroCopy::Never { 0 } else { LOANS_MAX };
        let loan = || Loan { batch: SendBatch::new(), number: 0, bytes: 0, withheld: None };
        Self {
            when,
            loans: core::iter::repeat_with(loan).take(most).collect(),
            free: (0..most).collect(),
            connections: Vec::new(),
            counters: LoanCounters::default(),
        }
    }

    /// Makes room for connections up to this index.
    pub(crate) fn reserve(&mut self, index: u16) {
        let needed = usize::from(index) + 1;
        if self.connections.len() < needed {
            self.connections.resize_with(needed, Connection::default);
        }
    }

    fn connection(&mut self, number: u32) -> Option<&mut Connection> {
        self.connections.get_mut((number & 0xFFFF) as usize)
    }

    /// Begins a loan, if this batch is worth one: its place.
    pub(crate) fn begin(&mut self, number: u32, batch: &SendBatch) -> Option<usize> {
        let always = match self.when {
            ZeroCopy::Never => return None,
            ZeroCopy::Always => true,
            ZeroCopy::WherePays => false,
        };
        if batch.longest_span() < if always { 1 } else { LONG } {
            return None;
        }
        let connection = self.connection(number)?;
        if connection.rest > 0 {
            connection.rest -= 1;
            return None;
        }
        connection.refused = false;
        let most = if connection.pays || always { LOANS_PER_CONNECTION } else { 1 };
        if connection.loans >= most {
            return None;
        }
        let place = self.free.pop()?;
        self.connection(number)?.loans += 1;
        if let Some(loan) = self.loans.get_mut(place) {
            loan.number = number;
            loan.bytes = 0;
            loan.withheld = None;
        }
        Some(place)
    }

    /// The send was not made, or is answered once only: nothing is lent.
    pub(crate) fn end(&mut self, place: usize) {
        let Some(number) = self.loans.get(place).map(|loan| loan.number) else { return };
        if let Some(connection) = self.connection(number) {
            connection.loans -= 1;
        }
        self.free.push(place);
    }

    /// The socket has taken all of the batch, of so many bytes: it is lent, and the queue pair gets another.
    pub(crate) fn lend(&mut self, place: usize, batch: &mut Box<SendBatch>, bytes: u64) {
        if let Some(loan) = self.loans.get_mut(place) {
            core::mem::swap(&mut loan.batch, batch);
            loan.bytes = bytes;
        }
    }

    /// The socket has not taken all, but something may be lent: the queue pair hears it when that is back, as it has to send
    /// the rest of the batch then.
    pub(crate) fn withhold(&mut self, place: usize, result: i32) {
        if let Some(loan) = self.loans.get_mut(place) {
            loan.bytes = u64::try_from(result).unwrap_or(0);
            loan.withheld = Some(result);
        }
    }

    /// The kernel has let go, having copied some of it or none.
    pub(crate) fn give_back(&mut self, place: usize, copied: bool) -> Option<Returned> {
        let loan = self.loans.get_mut(place)?;
        let returned = Returned { first_request: loan.batch.first_request, withheld: loan.withheld };
        loan.batch.clear();
        let (number, bytes) = (loan.number, loan.bytes);
        if bytes > 0 {
            let count = if copied { &mut self.counters.copied } else { &mut self.counters.not_copied };
            *count += bytes;
            let gives_up = copied && self.when == ZeroCopy::WherePays;
            if let Some(connection) = self.connection(number).filter(|connection| !connection.refused) {
                connection.pays = !copied;
                connection.rest = if gives_up { SENDS_BETWEEN_TRIALS } else { 0 };
            }
        }
        self.end(place);
        Some(returned)
    }

    /// What the system answers to a send that it does not make without a copy, or does not now: whoever sends again has it
    /// copied.
    pub(crate) fn refused(&mut self, number: u32, result: i32) -> i32 {
        match -result {
            libc::EINVAL | libc::EOPNOTSUPP => self.when = ZeroCopy::Never,
            // More memory than this user may lock.
            libc::ENOMEM | libc::ENOBUFS => {
                if let Some(connection) = self.connection(number) {
                    connection.pays = false;
                    connection.rest = SENDS_BETWEEN_TRIALS;
                    connection.refused = true;
                }
            }
            // The memory is gone, which a copy finds as well, or the table of registered buffers was emptied.
            libc::EFAULT => {
                if let Some(connection) = self.connection(number) {
                    connection.rest = connection.rest.max(1);
                }
            }
            _ => return result,
        }
        -libc::EAGAIN
    }

    /// Whether sends on this connection are known to be made without a copy, so that preparing memory for them pays as well.
    pub(crate) fn pays(&self, number: u32) -> bool {
        let known = self.connections.get((number & 0xFFFF) as usize);
        self.when == ZeroCopy::Always || known.is_some_and(|connection| connection.pays)
    }

    /// Whether something of this connection is lent, or may be.
    pub(crate) fn has(&self, number: u32) -> bool {
        self.connections.get((number & 0xFFFF) as usize).is_some_and(|connection| connection.loans > 0)
    }

    /// The connection is over: the next of this index is another.
    pub(crate) fn forget(&mut self, number: u32) {
        if let Some(connection) = self.connection(number) {
            *connection = Connection::default();
        }
    }
}

#[cfg(test)]
mod tests;
