//! From a client's words to a request the engine can trust.

use ringway_abi::{
    descriptor::{BufferHandle, FLAG_ANY_SOURCE, SUBMISSION_WORDS, Submission},
    extent::{Caller, InPlace, counts_needed, extent, in_place_offset},
};
use ringway_engine::{BufferRef, Collective, PointToPoint, RegionId, Request};
use ringway_types::{Operation, Reduction};

use super::reason::{Reason, Side};

/// Where a buffer of no bytes is: the workspace, of which nothing is touched.
const NOWHERE: BufferRef = BufferRef { region: RegionId(0), offset: 0, length: 0 };

/// The most words an operation takes from the slab: two counts for each rank, and a scalar.
pub(super) const MAX_ARGUMENT_WORDS: usize = 2 * ringway_abi::MAX_RANKS as usize + 1;

/// What is known of the client that asks.
pub(super) trait Asker {
    /// The region a handle of this client names: its number and its bytes.
    fn region(&self, handle: u64) -> Option<(RegionId, u64)>;

    /// Copies words out of the argument slab; `None` when they are not all inside.
    fn arguments(&self, first: u32, into: &mut [u64]) -> Option<()>;
}

/// A request, and the regions it uses until it has finished.
#[derive(Debug)]
pub(super) struct Accepted<'a> {
    pub(super) request: Request<'a>,
    pub(super) regions: [Option<u64>; 2],
}

/// Checks everything about a private copy of a submission. `arguments` is scratch room for counts.
pub(super) fn accept<'a>(
    words: &[u64; SUBMISSION_WORDS],
    (rank, size): (u32, u32),
    asker: &impl Asker,
    arguments: &'a mut Vec<u64>,
) -> Result<Accepted<'a>, Reason> {
    let submission = Submission::parse(words).map_err(|(_, status)| Reason::Descriptor(status))?;
    let operation = submission.operation;
    let any = submission.flags & FLAG_ANY_SOURCE != 0;
    if (operation.has_root() || !operation.is_collective()) && !any && submission.rank >= size {
        return Err(Reason::Rank { rank: submission.rank, size });
    }
    let root = if operation.has_root() { submission.rank } else { 0 };
    let caller = Caller { rank, size, root };
    let (scale, counts) = read_arguments(&submission, caller, asker, arguments)?;
    let element = submission.datatype.size() as u64;
    let count = if operation == Operation::Barrier { 0 } else { submission.count };
    let extent = extent(operation, caller, element, count, counts)
        .ok_or(Reason::TooLarge { count: submission.count })?;
    let input = buffer(Side::Input, submission.input, extent.input, asker)?;
    let output = buffer(Side::Output, submission.output, extent.output, asker)?;
    if let (Some(input), Some(output)) = (input, output) {
        let in_place = in_place_offset(operation, caller, element, count, counts);
        if !apart_or_in_place(input, output, in_place) {
            return Err(Reason::Overlap);
        }
    }
    let used = |side: Option<BufferHandle>, buffer: Option<BufferRef>| {
        side.filter(|_| buffer.is_some_and(|b| b.length > 0)).map(|handle| handle.region)
    };
    let regions = [used(submission.input, input), used(submission.output, output)];
    let tag = submission.argument;
    let request = match operation {
        Operation::Send => Request::PointToPoint(PointToPoint::Send {
            peer: submission.rank,
            tag,
            buffer: input.unwrap_or(NOWHERE),
        }),
        Operation::Receive => Request::PointToPoint(PointToPoint::Receive {
            peer: (!any).then_some(submission.rank),
            tag,
            buffer: output.unwrap_or(NOWHERE),
        }),
        _ => Request::Collective(Collective {
            operation,
            datatype: submission.datatype,
            reduction: submission.reduction,
            scale,
            root,
            count,
            counts,
            input,
            output,
        }),
    };
    Ok(Accepted { request, regions })
}

/// The scalar and the counts of an operation, copied once.
fn read_arguments<'a>(
    submission: &Submission,
    caller: Caller,
    asker: &impl Asker,
    arguments: &'a mut Vec<u64>,
) -> Result<(Option<[u8; 8]>, &'a [u64]), Reason> {
    let scaled = submission.reduction == Some(Reduction::PremulSum);
    if !submission.operation.has_counts() {
        return Ok((scaled.then(|| submission.argument.to_le_bytes()), &[]));
    }
    let needed = counts_needed(submission.operation, caller).saturating_add(usize::from(scaled));
    let (first, given) = submission.slab_range();
    let wrong = Reason::Counts { given, needed };
    if given as usize != needed || needed > MAX_ARGUMENT_WORDS {
        return Err(wrong);
    }
    arguments.clear();
    arguments.resize(needed, 0);
    asker.arguments(first, arguments).ok_or(wrong)?;
    match arguments.split_first() {
        Some((scalar, counts)) if scaled => Ok((Some(scalar.to_le_bytes()), counts)),
        _ => Ok((None, arguments)),
    }
}

/// A buffer of exactly the bytes the operation needs; `None` where it needs none.
fn buffer(
    side: Side,
    handle: Option<BufferHandle>,
    bytes: Option<u64>,
    asker: &impl Asker,
) -> Result<Option<BufferRef>, Reason> {
    let Some(bytes) = bytes else { return Ok(None) };
    let Some(BufferHandle { region: handle, offset }) = handle else {
        return if bytes == 0 { Ok(Some(NOWHERE)) } else { Err(Reason::NoBuffer { side, bytes }) };
    };
    let (region, region_bytes) = asker.region(handle).ok_or(Reason::Region { side, handle })?;
    if offset.checked_add(bytes).is_none_or(|end| end > region_bytes) {
        return Err(Reason::Range { side, offset, bytes, region_bytes });
    }
    Ok(Some(BufferRef { region, offset, length: bytes }))
}

/// Whether two buffers share no byte, or lie in each other exactly as the operation's in-place form says.
fn apart_or_in_place(input: BufferRef, output: BufferRef, in_place: Option<InPlace>) -> bool {
    // Both are inside their regions, so their ends do not overflow.
    let apart = input.region != output.region
        || input.length == 0
        || output.length == 0
        || input.offset.saturating_add(input.length) <= output.offset
        || output.offset.saturating_add(output.length) <= input.offset;
    apart
        || match in_place {
            Some(InPlace::InputInOutput(at)) => output.offset.checked_add(at) == Some(input.offset),
            Some(InPlace::OutputInInput(at)) => input.offset.checked_add(at) == Some(output.offset),
            None => false,
        }
}

#[cfg(test)]
mod tests;
