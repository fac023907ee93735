//! What is to happen, by its time: a radix heap (Ahuja, Mehlhorn, Orlin and Tarjan, "Faster algorithms for the shortest path
//! problem", 1990). As time only goes on, what is far off need not be in order yet. Nothing is looked up all over memory, as in
//! a binary heap of hundreds of thousands.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::network::Picoseconds;

/// What is to happen. What happens at one time does so in the order of `T`.
#[derive(Debug)]
pub(super) struct Queue<T> {
    /// The time up to which all has been taken.
    time: Picoseconds,
    /// What is to happen at that time.
    present: BinaryHeap<Reverse<T>>,
    /// What is to happen later, by the highest bit in which its time differs from the present one.
    later: [Vec<(Picoseconds, T)>; Picoseconds::BITS as usize],
}

impl<T: Ord> Default for Queue<T> {
    fn default() -> Self {
        Self { time: 0, present: BinaryHeap::new(), later: core::array::from_fn(|_| Vec::new()) }
    }
}

impl<T: Ord> Queue<T> {
    /// Something is to happen, now at the earliest.
    pub(super) fn push(&mut self, at: Picoseconds, it: T) {
        let at = at.max(self.time);
        match (at ^ self.time).checked_ilog2() {
            None => self.present.push(Reverse(it)),
            Some(bit) => self.later[bit as usize].push((at, it)),
        }
    }

    /// The time at which the next thing happens, which is the present one from now on.
    pub(super) fn next_time(&mut self) -> Option<Picoseconds> {
        if self.present.is_empty() {
            let bit = self.later.iter().position(|bucket| !bucket.is_empty())?;
            let mut bucket = core::mem::take(&mut self.later[bit]);
            self.time = bucket.iter().map(|(at, _)| *at).min()?;
            // Each of them differs from the new time in a lower bit than from the old one.
            for (at, it) in bucket.drain(..) {
                self.push(at, it);
            }
            self.later[bit] = bucket;
        }
        Some(self.time)
    }

    /// What happens next at the present time, if anything still does.
    pub(super) fn pop(&mut self) -> Option<T> {
        self.present.pop().map(|Reverse(it)| it)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// What is taken comes in the order of a heap of all, whatever is added meanwhile.
        #[test]
        fn it_is_a_heap_of_times(delays in prop::collection::vec((0..64_u32, any::<u64>(), 0..4_usize), 1..200)) {
            let (mut queue, mut heap) = (Queue::default(), BinaryHeap::new());
            let mut now = 0;
            for (number, (bits, random, taken)) in delays.iter().enumerate() {
                let at = u64::saturating_add(now, random >> bits);
                queue.push(at, number);
                heap.push(Reverse((at, number)));
                for _ in 0..*taken {
                    let next = queue.next_time().map(|time| (time, queue.pop()));
                    let expected = heap.pop().map(|Reverse((time, number))| (time, Some(number)));
                    prop_assert_eq!(next, expected);
                    now = next.map_or(now, |(time, _)| time);
                }
            }
            while let Some(time) = queue.next_time() {
                let expected = heap.pop().map(|Reverse(next)| next);
                prop_assert_eq!(queue.pop().map(|number| (time, number)), expected);
            }
            prop_assert!(heap.is_empty());
        }
    }
}
