//! When which queue pair has something to do: a heap in which each has one place at most.

use ringway_verbs::Time;

/// Nowhere in the heap.
const ABSENT: u32 = u32::MAX;

/// Moments by index, the earliest first. Nothing is allocated for an index that [`Timers::reserve`] made room for.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: Vec<(Time, u32)>,
    /// Where in the heap each index is.
    places: Vec<u32>,
}

impl Timers {
    /// Makes room for indices below `count`.
    pub(crate) fn reserve(&mut self, count: usize) {
        if self.places.len() < count {
            self.places.resize(count, ABSENT);
            self.heap.reserve(count - self.heap.len());
        }
    }

    /// The earliest moment.
    pub(crate) fn first(&self) -> Option<Time> {
        self.heap.first().map(|(at, _)| *at)
    }

    /// Has an index come up at this moment, or before if it would anyway.
    pub(crate) fn at_latest(&mut self, index: u16, at: Time) {
        let index = u32::from(index);
        let Some(place) = self.places.get(index as usize).copied() else { return };
        if place == ABSENT {
            self.heap.push((at, index));
            self.rise(self.heap.len() - 1);
        } else if let Some(entry) = self.heap.get_mut(place as usize)
            && at < entry.0
        {
            entry.0 = at;
            self.rise(place as usize);
        }
    }

    /// Takes an index whose moment has come.
    pub(crate) fn pop(&mut self, now: Time) -> Option<u16> {
        let (at, index) = *self.heap.first()?;
        if at > now {
            return None;
        }
        let index = u16::try_from(index).ok()?;
        self.remove(index);
        Some(index)
    }

    /// Forgets an index.
    pub(crate) fn remove(&mut self, index: u16) {
        let Some(place) = self.places.get_mut(usize::from(index)) else { return };
        let at = core::mem::replace(place, ABSENT);
        if at == ABSENT {
            return;
        }
        self.heap.swap_remove(at as usize);
        if (at as usize) < self.heap.len() {
            self.rise(at as usize);
            self.sink(at as usize);
        }
    }

    fn key(&self, place: usize) -> Option<Time> {
        self.heap.get(place).map(|(at, _)| *at)
    }

    /// Notes where the entry at `place` is.
    fn note(&mut self, place: usize) {
        if let Some((_, index)) = self.heap.get(place)
            && let Some(noted) = self.places.get_mut(*index as usize)
        {
            *noted = u32::try_from(place).unwrap_or(ABSENT);
        }
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.heap.swap(one, other);
        self.note(one);
        self.note(other);
    }

    fn rise(&mut self, mut place: usize) {
        self.note(place);
        while place > 0 {
            let above = (place - 1) / 2;
            if self.key(above) <= self.key(place) {
                break;
            }
            self.swap(above, place);
            place = above;
        }
    }

    fn sink(&mut self, mut place: usize) {
        self.note(place);
        loop {
            let children = [2 * place + 1, 2 * place + 2];
            let earlier = children.into_iter().filter(|child| *child < self.heap.len());
            let Some(child) = earlier.min_by_key(|child| self.key(*child)) else { return };
            if self.key(place) <= self.key(child) {
                return;
            }
            self.swap(place, child);
            place = child;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a map from index to moment.
        #[test]
        fn they_come_up_in_order(steps in prop::collection::vec((0..4_u8, 0..20_u16, 0..100_u64), 0..200)) {
            let (mut timers, mut map) = (Timers::default(), BTreeMap::<u16, u64>::new());
            timers.reserve(20);
            let room = timers.heap.capacity();
            for (what, index, at) in steps {
                match what {
                    0 | 1 => {
                        timers.at_latest(index, Time(at));
                        let moment = map.entry(index).or_insert(at);
                        *moment = at.min(*moment);
                    }
                    2 => {
                        timers.remove(index);
                        map.remove(&index);
                    }
                    _ => match timers.pop(Time(at)) {
                        Some(index) => {
                            let moment = map.remove(&index).expect("it was set");
                            prop_assert!(moment <= at && map.values().all(|other| *other >= moment));
                        }
                        None => prop_assert!(map.values().all(|moment| *moment > at)),
                    },
                }
                prop_assert_eq!(timers.first().map(|at| at.0), map.values().min().copied());
            }
            prop_assert_eq!(timers.heap.capacity(), room);
        }
    }
}
