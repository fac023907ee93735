//! Submissions and completions as they lie in the shared rings. The last word's low half belongs to the ring (its
//! phase), see `ringway-ring`; everything else is described here.
//!
//! Submission, eight words: 0 = operation, datatype, reduction + 1 (0 for none) and flags, one byte each from the
//! low end, then the root or peer in the high half; 1 = argument: the tag, the premul_sum scalar, or where the
//! counts are (first word in the argument slab in the low half, how many words in the high half); 2 and 3 = input
//! region and byte offset; 4 and 5 = output region and byte offset; 6 = elements; 7 = the token in the high half.
//! With counts and premul_sum together, the scalar is the slab's first word and the counts follow. A call that its rank has
//! published in the communicator's cell ([`FLAG_PUBLISHED`]) is described as its record there: the argument is its
//! number, elements are as in its signature (a digest where there are counts), scalar and counts stand in the record.
//!
//! Completion, four words: 0 = token in the low half, status in the next 16 bits; 1 = the rank a message came from;
//! 2 = its bytes; 3 = nothing in the high half.

use ringway_types::{DataType, Operation, Reduction};

use crate::Status;

/// Words of a submission.
pub const SUBMISSION_WORDS: usize = 8;
/// Words of a completion.
pub const COMPLETION_WORDS: usize = 4;

/// More submissions of the same group follow: they are accepted together.
pub const FLAG_GROUP: u8 = 1;
/// The peer field is not used: receive from any rank.
pub const FLAG_ANY_SOURCE: u8 = 2;
/// A collective of the communicator's cell: the daemon is to make it there in the rank's place, after those that it was
/// given before. From the first of them until the last is completed the rank does not act in the cell.
pub const FLAG_CELL: u8 = 4;
/// With [`FLAG_CELL`]: the rank has published it, and the daemon is to see it through. They come in the order of their
/// numbers, before the first one that is not published.
pub const FLAG_PUBLISHED: u8 = 8;
/// The operation is ordered with a stream of the caller's, see [`crate::stream`]. Not of one for the cell.
pub const FLAG_STREAM: u8 = 16;
const FLAGS: u8 = FLAG_GROUP | FLAG_ANY_SOURCE | FLAG_CELL | FLAG_PUBLISHED | FLAG_STREAM;

/// Says that there is no buffer.
pub const NO_REGION: u64 = u64::MAX;

/// A buffer by the handle of its region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferHandle {
    /// The region's handle.
    pub region: u64,
    /// Bytes from the region's start.
    pub offset: u64,
}

/// One request of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Submission {
    /// The client's name for the operation.
    pub token: u32,
    /// What to do.
    pub operation: Operation,
    /// The elements' type.
    pub datatype: DataType,
    /// How values combine.
    pub reduction: Option<Reduction>,
    /// [`FLAG_GROUP`], [`FLAG_ANY_SOURCE`], [`FLAG_CELL`], [`FLAG_PUBLISHED`], [`FLAG_STREAM`].
    pub flags: u8,
    /// The root of a collective or the peer of a message.
    pub rank: u32,
    /// Tag, scalar, slab range, or number in the cell.
    pub argument: u64,
    /// What is read.
    pub input: Option<BufferHandle>,
    /// What is written.
    pub output: Option<BufferHandle>,
    /// Elements.
    pub count: u64,
}

impl Submission {
    /// The words to put into the ring.
    #[inline]
    #[must_use]
    pub fn encode(&self) -> [u64; SUBMISSION_WORDS] {
        let reduction = self.reduction.map_or(0, |r| r.code().saturating_add(1));
        let [low, high] = [
            u32::from_le_bytes([self.operation.code(), self.datatype.code(), reduction, self.flags]),
            self.rank,
        ];
        let buffer = |b: Option<BufferHandle>| b.map_or((NO_REGION, 0), |b| (b.region, b.offset));
        let (input, output) = (buffer(self.input), buffer(self.output));
        [
            join(low, high),
            self.argument,
            input.0,
            input.1,
            output.0,
            output.1,
            self.count,
            join(0, self.token),
        ]
    }

    /// Reads a private copy of a submission.
    ///
    /// # Errors
    /// The status to complete the token with, when a field means nothing.
    #[inline]
    pub fn parse(words: &[u64; SUBMISSION_WORDS]) -> Result<Self, (u32, Status)> {
        let [head, argument, input, input_offset, output, output_offset, count, tail] = *words;
        let (_, token) = split(tail);
        let fail = |status| (token, status);
        let (codes, rank) = split(head);
        let [operation, datatype, reduction, flags] = codes.to_le_bytes();
        let operation = Operation::from_code(operation).ok_or(fail(Status::BadOperation))?;
        let datatype = DataType::from_code(datatype).ok_or(fail(Status::BadDatatype))?;
        let reduction = match reduction.checked_sub(1) {
            None => None,
            Some(code) => Some(Reduction::from_code(code).ok_or(fail(Status::BadReduction))?),
        };
        if reduction.is_some() != operation.reduces() {
            return Err(fail(Status::BadReduction));
        }
        if reduction.is_some_and(|r| !datatype.supports(r)) {
            return Err(fail(Status::UnsupportedPair));
        }
        let any_source_allowed = matches!(operation, Operation::Receive);
        let in_cell = flags & FLAG_CELL != 0;
        if flags & !FLAGS != 0
            || (flags & FLAG_ANY_SOURCE != 0 && !any_source_allowed)
            || (in_cell && !operation.is_collective())
            || (flags & FLAG_PUBLISHED != 0 && !in_cell)
            || (flags & FLAG_STREAM != 0 && in_cell)
        {
            return Err(fail(Status::BadFlags));
        }
        let buffer = |region, offset| (region != NO_REGION).then_some(BufferHandle { region, offset });
        Ok(Self {
            token,
            operation,
            datatype,
            reduction,
            flags,
            rank,
            argument,
            input: buffer(input, input_offset),
            output: buffer(output, output_offset),
            count,
        })
    }

    /// Whether a submission, of which these are the words, is for the communicator's cell.
    #[inline]
    #[must_use]
    pub const fn is_for_cell(words: &[u64; SUBMISSION_WORDS]) -> bool {
        flags_of(words) & FLAG_CELL != 0
    }

    /// The token of a submission, of which these are the words, that is ordered with a stream.
    #[inline]
    #[must_use]
    pub const fn streamed(words: &[u64; SUBMISSION_WORDS]) -> Option<u32> {
        let [.., tail] = *words;
        let (_, token) = split(tail);
        if flags_of(words) & FLAG_STREAM != 0 { Some(token) } else { None }
    }

    /// The slab words that hold this submission's counts: first word and how many.
    #[must_use]
    pub const fn slab_range(&self) -> (u32, u32) {
        split(self.argument)
    }
}

#[inline]
const fn flags_of(words: &[u64; SUBMISSION_WORDS]) -> u8 {
    let [head, ..] = *words;
    let [_, _, _, flags, ..] = head.to_le_bytes();
    flags
}

/// Joins two halves into a word, the low one first.
#[inline]
#[must_use]
pub const fn join(low: u32, high: u32) -> u64 {
    (low as u64) | ((high as u64) << 32)
}

/// The low and the high half of a word.
#[inline]
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "each half is taken on purpose")]
pub const fn split(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

/// Beside the status: [`Completion::held`].
const HELD: u32 = 1 << 16;

/// One finished operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The client's name for the operation.
    pub token: u32,
    /// How it ended, as [`Status::code`].
    pub status: u16,
    /// It failed, and a rank that has stopped may still write to its buffers: nobody may use them again.
    pub held: bool,
    /// For a receive, the rank it came from.
    pub rank: u32,
    /// For a receive, its bytes.
    pub bytes: u64,
}

impl Completion {
    /// The words to put into the ring.
    #[inline]
    #[must_use]
    pub const fn encode(&self) -> [u64; COMPLETION_WORDS] {
        let held = if self.held { HELD } else { 0 };
        [join(self.token, self.status as u32 | held), self.rank as u64, self.bytes, 0]
    }

    /// Reads a private copy of a completion.
    #[inline]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the status is the low 16 bits of its half")]
    pub const fn parse(words: &[u64; COMPLETION_WORDS]) -> Self {
        let [head, rank, bytes, _] = *words;
        let (token, status) = split(head);
        Self { token, status: status as u16, held: status & HELD != 0, rank: split(rank).0, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn submissions_round_trip() {
        let submission = Submission {
            token: 0xdead_beef,
            operation: Operation::Allreduce,
            datatype: DataType::Bf16,
            reduction: Some(Reduction::Max),
            flags: FLAG_GROUP,
            rank: 77,
            argument: 5,
            input: Some(BufferHandle { region: 3, offset: 64 }),
            output: None,
            count: 1 << 40,
        };
        assert_eq!(Submission::parse(&submission.encode()), Ok(submission));
    }

    #[test]
    fn a_reduction_is_required_exactly_where_values_combine() {
        let mut submission = Submission {
            token: 1,
            operation: Operation::Allreduce,
            datatype: DataType::F32,
            reduction: None,
            flags: 0,
            rank: 0,
            argument: 0,
            input: None,
            output: None,
            count: 0,
        };
        assert_eq!(Submission::parse(&submission.encode()), Err((1, Status::BadReduction)));
        submission.reduction = Some(Reduction::BitAnd);
        assert_eq!(Submission::parse(&submission.encode()), Err((1, Status::UnsupportedPair)));
        submission.operation = Operation::Broadcast;
        assert_eq!(Submission::parse(&submission.encode()), Err((1, Status::BadReduction)));
    }

    #[test]
    fn only_collectives_go_to_a_cell_and_only_there_are_they_published() {
        let submission = |operation: Operation, flags| Submission {
            token: 1,
            operation,
            datatype: DataType::F32,
            reduction: operation.reduces().then_some(Reduction::Sum),
            flags,
            rank: 0,
            argument: 7,
            input: None,
            output: None,
            count: 0,
        };
        for flags in [FLAG_CELL, FLAG_CELL | FLAG_PUBLISHED, FLAG_CELL | FLAG_GROUP] {
            let good = submission(Operation::Allreduce, flags);
            assert_eq!(Submission::parse(&good.encode()), Ok(good));
            assert!(Submission::is_for_cell(&good.encode()));
            let message = submission(Operation::Send, flags);
            assert_eq!(Submission::parse(&message.encode()), Err((1, Status::BadFlags)));
        }
        let streamed = submission(Operation::Allreduce, FLAG_STREAM);
        assert_eq!(Submission::parse(&streamed.encode()), Ok(streamed));
        assert_eq!(Submission::streamed(&streamed.encode()), Some(1));
        let both = submission(Operation::Allreduce, FLAG_CELL | FLAG_STREAM);
        assert_eq!(Submission::parse(&both.encode()), Err((1, Status::BadFlags)));
        let outside = submission(Operation::Allreduce, FLAG_PUBLISHED);
        assert_eq!(Submission::streamed(&outside.encode()), None);
        assert_eq!(Submission::parse(&outside.encode()), Err((1, Status::BadFlags)));
        assert!(!Submission::is_for_cell(&outside.encode()));
    }

    #[test]
    fn completions_round_trip() {
        let completion =
            Completion { token: 8, status: Status::Truncated.code(), held: false, rank: 3, bytes: 99 };
        let held = Completion { held: true, status: Status::TimedOut.code(), ..completion };
        for completion in [completion, held] {
            assert_eq!(Completion::parse(&completion.encode()), completion);
        }
    }
}
