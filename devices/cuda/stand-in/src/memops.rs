//! Waiting for values in memory, and writing them, as work of a stream.

use std::{
    ffi::c_uint,
    ptr,
    sync::atomic::{AtomicU32, Ordering},
};

use crate::{
    call::{Status, in_context},
    context::Current,
    error::{Failure, Result},
    queue::{Queue, Then, Touches},
    regions::{Access, Span},
    state::{State, lock},
};

const WAIT_32: c_uint = 1;
const WRITE_32: c_uint = 2;
/// Writing 64 bits or waiting for them, barriers, and flushes of remote writes, none of which the device says it can.
const UNSUPPORTED: std::ops::RangeInclusive<c_uint> = 3..=6;
const BATCH_MAX: c_uint = 256;
const WAIT_FLUSH: c_uint = 1 << 30;
const WRITE_NO_BARRIER: c_uint = 1;

/// `CUstreamBatchMemOpParams`: of its members those that wait and write, which look alike.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct BatchMemOp {
    pub operation: c_uint,
    pub address: u64,
    /// The value itself, or in its lower half.
    pub value: u64,
    pub flags: c_uint,
    pub alias: u64,
    pub rest: u64,
}

#[derive(Debug, Clone, Copy)]
enum Condition {
    /// In the order of numbers that begin anew after the last.
    AtLeast,
    Equal,
    CommonBit,
    CommonZero,
}

#[derive(Debug, Clone, Copy)]
enum Act {
    Wait(Condition),
    Write,
}

#[derive(Debug, Clone, Copy)]
struct MemOp {
    act: Act,
    span: Span,
    value: u32,
}

impl Condition {
    const fn holds(self, found: u32, value: u32) -> bool {
        match self {
            Self::AtLeast => found.wrapping_sub(value).cast_signed() >= 0,
            Self::Equal => found == value,
            Self::CommonBit => found & value != 0,
            Self::CommonZero => !(found | value) != 0,
        }
    }
}

impl MemOp {
    fn new(operation: c_uint, address: usize, value: u32, flags: c_uint) -> Result<Self> {
        let act = match (operation, flags) {
            (WAIT_32, flags) if flags & WAIT_FLUSH != 0 => return Err(Failure::NOT_SUPPORTED),
            (WAIT_32, 0) => Act::Wait(Condition::AtLeast),
            (WAIT_32, 1) => Act::Wait(Condition::Equal),
            (WAIT_32, 2) => Act::Wait(Condition::CommonBit),
            (WAIT_32, 3) => Act::Wait(Condition::CommonZero),
            (WRITE_32, 0 | WRITE_NO_BARRIER) => Act::Write,
            (operation, _) if UNSUPPORTED.contains(&operation) => return Err(Failure::NOT_SUPPORTED),
            _ => return Err(Failure::INVALID_VALUE),
        };
        let span = Span::new(address, size_of::<u32>())?;
        if address.is_multiple_of(align_of::<u32>()) {
            Ok(Self { act, span, value })
        } else {
            Err(Failure::INVALID_VALUE)
        }
    }

    fn check(&self, state: &State, device: usize) -> Result<()> {
        let access = match self.act {
            Act::Wait(_) => Access::Read,
            Act::Write => Access::ReadWrite,
        };
        let allowed = state.regions.allow(self.span, device, access);
        if allowed { Ok(()) } else { Err(Failure::INVALID_VALUE) }
    }

    /// # Safety
    /// It was checked, and the memory stays until this returns.
    unsafe fn run(&self, queue: &Queue) -> Then {
        let place = ptr::with_exposed_provenance_mut::<u32>(self.span.start);
        // SAFETY: aligned, and memory as the caller says; whoever else uses it in the meantime does so with atomic
        // operations, as cuda.h wants it.
        let word = unsafe { AtomicU32::from_ptr(place) };
        match self.act {
            Act::Write => {
                word.store(self.value, Ordering::Release);
                Then::GoOn
            }
            Act::Wait(condition) => {
                queue.look_until(|| condition.holds(word.load(Ordering::Acquire), self.value))
            }
        }
    }
}

/// Queues these, of which none is if one is refused.
fn enqueue(current: Current, stream: usize, ops: Vec<MemOp>) -> Result<()> {
    let mut state = lock();
    let (queue, current) = state.queue(stream, current)?;
    ops.iter().try_for_each(|op| op.check(&state, current.device))?;
    let touched = ops.iter().map(|op| op.span).collect();
    queue.push(Touches::These(touched), move |queue| {
        for op in &ops {
            // SAFETY: checked above, and memory stays until the work that touches it is done.
            if unsafe { op.run(queue) } == Then::GiveUp {
                return Then::GiveUp;
            }
        }
        Then::GoOn
    });
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamWaitValue32_v2(
    stream: usize,
    address: usize,
    value: u32,
    flags: c_uint,
) -> Status {
    in_context("cuStreamWaitValue32_v2", |current| {
        enqueue(current, stream, vec![MemOp::new(WAIT_32, address, value, flags)?])
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamWriteValue32_v2(
    stream: usize,
    address: usize,
    value: u32,
    flags: c_uint,
) -> Status {
    in_context("cuStreamWriteValue32_v2", |current| {
        enqueue(current, stream, vec![MemOp::new(WRITE_32, address, value, flags)?])
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamBatchMemOp_v2(
    stream: usize,
    count: c_uint,
    operations: *const BatchMemOp,
    flags: c_uint,
) -> Status {
    in_context("cuStreamBatchMemOp_v2", |current| {
        if operations.is_null() || count == 0 || count > BATCH_MAX || flags != 0 {
            return Err(Failure::INVALID_VALUE);
        }
        let ops = (0..count as usize).map(|place| {
            let operation = operations.wrapping_add(place);
            // SAFETY: the caller keeps to cuda.h: there are so many. One that is no wait and no write is no shorter, but
            // its bytes may say anything.
            let BatchMemOp { operation, address, value, flags, .. } = unsafe { operation.read() };
            let address = usize::try_from(address).map_err(|_| Failure::INVALID_VALUE)?;
            MemOp::new(operation, address, value as u32, flags)
        });
        enqueue(current, stream, ops.collect::<Result<_>>()?)
    })
}

#[cfg(test)]
mod tests {
    use super::Condition;

    #[test]
    fn numbers_begin_anew() {
        assert!(Condition::AtLeast.holds(3, u32::MAX));
        assert!(!Condition::AtLeast.holds(u32::MAX, 3));
        assert!(Condition::AtLeast.holds(7, 7));
        assert!(Condition::CommonBit.holds(6, 2) && !Condition::CommonBit.holds(6, 1));
        assert!(Condition::CommonZero.holds(0, 1) && !Condition::CommonZero.holds(u32::MAX, 1));
    }

    #[test]
    fn a_batch_s_part_is_as_long_as_cuda_h_says() {
        assert_eq!(size_of::<super::BatchMemOp>(), 48);
        assert_eq!(std::mem::offset_of!(super::BatchMemOp, flags), 24);
    }
}
