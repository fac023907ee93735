//! Payloads in the pool: the root writes them part by part and says how much is there, so that others read a part while it
//! writes the next. Copying in and copying out then take the time of one of them. Whoever has a part early has it early
//! only: the record, which comes last, says whether the call is what it seemed to be.

use ringway_mem::Window;
use ringway_reduce::Stores;

use crate::{
    small::Small,
    step::{Step, reach},
};

/// Bytes of a part.
const PART: usize = if cfg!(loom) { 64 } else { 4096 };
/// The low bits of the word that says how much is there; above them it has the call's number.
const BYTES_BITS: u32 = 20;
const _: () = assert!(crate::POOLED_BYTES < 1 << BYTES_BITS, "a whole payload can be told");

/// How a payload is put in the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Through the caches.
    Through,
    /// Past the caches to those who are far.
    Past,
    /// Half of each part so and half so, to those who are near: a broadcast of 16 KiB among four on two processors 60 ns apart
    /// takes 2.7 us through the caches, 2.7 past them and 2.3 so, one of 32 KiB 4.2, 4.3 and 3.6.
    Half,
}

impl Small<'_> {
    fn pooled(&self, start: usize, length: usize) -> Option<Window<'_>> {
        let at = self.cell.layout.pooled(self.sequence);
        self.cell.words.bytes(at, start as u64, length as u64)
    }

    /// Copies the root's input to the pool.
    pub(crate) fn put_pooled(&self, input: Window<'_>, way: Way) -> Option<()> {
        let bytes = self.shape.block as usize;
        let word = self.cell.layout.pooled_bytes(self.sequence);
        for start in (0..bytes).step_by(PART) {
            let length = PART.min(bytes - start);
            let (from, to) = (input.sub(start, length)?, self.pooled(start, length)?);
            copied(match way {
                Way::Through => ringway_reduce::copy(from, &[to]),
                Way::Half => ringway_reduce::copy_half_streaming(from, to),
                Way::Past => ringway_reduce::copy_with(Stores::Streaming, from, &[to]),
            })?;
            reach(Step::PartPut);
            self.cell.words.store_release(word, said(self.sequence, start + length));
        }
        Some(())
    }

    /// Copies to the output what has come beyond its first `taken` bytes; of how many it has the right value now.
    pub(crate) fn take_ahead(&self, taken: usize, output: Option<Window<'_>>) -> Option<usize> {
        let found = self.cell.words.load_acquire(self.cell.layout.pooled_bytes(self.sequence));
        let come =
            if found >> BYTES_BITS == said(self.sequence, 0) >> BYTES_BITS { found as usize } else { 0 };
        let come = (come & ((1 << BYTES_BITS) - 1)).min(self.shape.block as usize);
        self.take_until(come, taken, output)
    }

    /// Copies all to the output that is beyond its first `taken` bytes, after the record was seen.
    pub(crate) fn take_rest(&self, taken: usize, output: Option<Window<'_>>) -> Option<usize> {
        self.take_until(self.shape.block as usize, taken, output)
    }

    fn take_until(&self, come: usize, taken: usize, output: Option<Window<'_>>) -> Option<usize> {
        if come <= taken {
            return Some(taken);
        }
        let (from, to) = (self.pooled(taken, come - taken)?, output?.sub(taken, come - taken)?);
        copied(ringway_reduce::copy(from, &[to])).map(|()| come)
    }
}

/// That so many bytes of a call's payload are there.
const fn said(sequence: u64, bytes: usize) -> u64 {
    sequence << BYTES_BITS | bytes as u64
}

/// Whether windows were copied that are made to be of one length.
fn copied(done: Result<(), ringway_reduce::CopyError>) -> Option<()> {
    debug_assert!(done.is_ok(), "{done:?}");
    done.ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ringway_mem::Mapping;
    use ringway_types::{DataType, Operation};

    use super::*;
    use crate::{Call, Cell, Member, Place, Poll, Regions};

    const BYTES: usize = 3 * PART + 5;

    /// One buffer for all: a rank's own.
    struct Own(Mapping);

    impl Regions for Own {
        fn window(&self, _: u32, place: Place, length: u64) -> Option<Window<'_>> {
            self.0.window(place.offset, length)
        }
    }

    impl Own {
        fn of(value: u8) -> Self {
            let own = Self(Mapping::private(BYTES).expect("map"));
            own.0.window(0, BYTES as u64).expect("inside").write(&[value; BYTES]);
            own
        }

        /// How many bytes from the first on have a value, the others being zero.
        fn has(&self, value: u8) -> usize {
            let mut bytes = vec![0; BYTES];
            self.0.window(0, BYTES as u64).expect("inside").read(&mut bytes);
            let count = bytes.iter().take_while(|byte| **byte == value).count();
            assert!(bytes.iter().skip(count).all(|byte| *byte == 0));
            count
        }
    }

    /// Parts are taken as they come, those of another call are not, and what never came by itself comes with the record.
    #[test]
    fn a_payload_is_taken_part_by_part() {
        let length = crate::bytes(3).expect("three ranks") as usize;
        let cell = Cell::attach(Arc::new(Mapping::private(length).expect("map")), 3).expect("attach");
        let place = Some(Place { region: 0, offset: 0 });
        let call = Call {
            operation: Operation::Broadcast,
            datatype: DataType::U8,
            count: BYTES as u64,
            input: place,
            output: place,
            ..Call::BARRIER
        };
        let (root, other) = (Own::of(7), Own::of(0));
        let [mut gives, mut takes] = [0, 1].map(|rank| Member::new(cell.clone(), rank));
        let sequence = takes.begin(&call, false, &other).expect("room");
        let word = cell.layout.pooled_bytes(sequence);
        let payload = cell.words.bytes(cell.layout.pooled(sequence), 0, BYTES as u64).expect("inside");
        payload.write(&[7; BYTES]);
        for (told, taken) in [
            (0, 0),
            (said(sequence + 16, PART), 0),
            (said(sequence, PART), PART),
            (said(sequence, 2 * PART), 2 * PART),
            (said(sequence, PART), 2 * PART),
        ] {
            cell.words.store_release(word, told);
            assert_eq!(takes.poll(sequence, &other), Poll::Pending);
            assert_eq!(other.has(7), taken, "{told:x}");
        }
        cell.words.store_release(word, u64::MAX);
        assert_eq!(gives.begin(&call, false, &root), Some(sequence));
        assert_eq!(takes.poll(sequence, &other), Poll::Done);
        assert_eq!(other.has(7), BYTES);
    }
}
