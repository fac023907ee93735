//! A queue of requests, the first of which the device has.

use std::collections::VecDeque;

/// Requests in post order. Each has a place, counted up from request to request, by which the device names it.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    entries: VecDeque<T>,
    /// The place of the oldest.
    first: u32,
    /// How many the device has.
    posted: usize,
}

impl<T> Queue<T> {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self { entries: VecDeque::with_capacity(capacity), first: 0, posted: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn push(&mut self, entry: T) {
        self.entries.push_back(entry);
    }

    /// Puts one before all that the device has not got.
    pub(crate) fn push_next(&mut self, entry: T) {
        self.entries.insert(self.posted.min(self.entries.len()), entry);
    }

    /// Whether the device has not got all.
    pub(crate) fn has_more(&self) -> bool {
        self.posted < self.entries.len()
    }

    /// How many the device has not got.
    pub(crate) fn unposted(&self) -> usize {
        self.entries.len().saturating_sub(self.posted)
    }

    /// Whether there are some and the device has none.
    pub(crate) fn is_unposted(&self) -> bool {
        self.posted == 0 && !self.entries.is_empty()
    }

    /// Whether the device has some.
    pub(crate) const fn is_posted(&self) -> bool {
        self.posted > 0
    }

    /// What the device has not got, with places.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (u32, &T)> {
        let first = self.first.wrapping_add(self.posted as u32);
        let places = (0..).map(move |step| first.wrapping_add(step));
        places.zip(self.entries.range(self.posted.min(self.entries.len())..))
    }

    /// The device has got so many more.
    pub(crate) fn handed(&mut self, count: usize) {
        self.posted = (self.posted + count).min(self.entries.len());
    }

    /// How many the device has that are older than the one in this place; `None` when it has none there.
    pub(crate) fn before(&self, place: u32) -> Option<usize> {
        let before = place.wrapping_sub(self.first) as usize;
        (before < self.posted).then_some(before)
    }

    /// Takes the oldest.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let entry = self.entries.pop_front()?;
        self.first = self.first.wrapping_add(1);
        self.posted = self.posted.saturating_sub(1);
        Some(entry)
    }

    /// The device has forgotten what it had: all get new places, so that nothing that it may still say is taken for theirs.
    pub(crate) fn take_back(&mut self) {
        self.first = self.first.wrapping_add(self.entries.len() as u32);
        self.posted = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(entries: u32) -> Queue<u32> {
        let mut queue = Queue::with_capacity(4);
        queue.first = u32::MAX - 1;
        (0..entries).for_each(|entry| queue.push(entry));
        queue
    }

    #[test]
    fn places_go_on_past_the_largest_number() {
        let mut queue = queue(4);
        let places: Vec<_> = queue.waiting().map(|(place, entry)| (place, *entry)).collect();
        assert_eq!(places, [(u32::MAX - 1, 0), (u32::MAX, 1), (0, 2), (1, 3)]);
        assert_eq!(queue.before(0), None, "the device has none yet");
        queue.handed(3);
        assert_eq!((queue.before(0), queue.before(1)), (Some(2), None));
        assert_eq!(queue.pop(), Some(0));
        assert_eq!((queue.before(u32::MAX - 1), queue.before(0)), (None, Some(1)));
        assert_eq!(queue.waiting().map(|(place, _)| place).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn what_was_taken_back_has_other_places() {
        let mut queue = queue(3);
        queue.handed(2);
        assert!(queue.is_posted() && queue.has_more() && !queue.is_unposted());
        queue.take_back();
        assert!(!queue.is_posted() && queue.is_unposted());
        for place in [u32::MAX - 1, u32::MAX, 0, 1, 2] {
            assert_eq!(queue.before(place), None);
        }
        queue.handed(3);
        assert_eq!(queue.before(1), Some(0));
        assert_eq!(queue.before(0), None);
    }
}
