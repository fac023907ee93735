//! Numbers for what a device has several of: queue pairs, regions, connections.

use std::collections::VecDeque;

#[derive(Debug)]
struct Slot<T> {
    /// That of the value, or the last one that was given here.
    number: u32,
    value: Option<T>,
}

/// Values by number. The lower bits of a number are the value's slot, those above, its tag, tell apart what was in that slot one
/// after the other: so the number of a value that is gone finds nothing. Slots are reused in the order they were emptied. No tag
/// is zero, and so no number.
#[derive(Debug)]
pub struct NumberTable<T> {
    slots: Vec<Slot<T>>,
    /// Empty slots, those emptied first in front.
    free: VecDeque<u16>,
    limit: u32,
    bits: u32,
    slot_bits: u32,
}

impl<T> NumberTable<T> {
    /// A table for at most `limit` values, and no more than 65,536, with numbers of so many bits, of which 16 are the slot's.
    #[must_use]
    pub const fn new(limit: u32, bits: u32) -> Self {
        Self::with_slot_bits(limit, bits, u16::BITS)
    }

    /// As [`NumberTable::new`], but for at most as many values as there are slots: the fewer bits, up to 16, are the slot's, the
    /// more are the tag's.
    #[must_use]
    pub const fn with_slot_bits(limit: u32, bits: u32, slot_bits: u32) -> Self {
        let slots_max = 1 << slot_bits;
        let limit = if limit < slots_max { limit } else { slots_max };
        Self { slots: Vec::new(), free: VecDeque::new(), limit, bits, slot_bits }
    }

    /// The most values.
    #[must_use]
    pub const fn limit(&self) -> u32 {
        self.limit
    }

    /// How many tags there are, with zero.
    #[must_use]
    pub const fn tags(&self) -> u32 {
        1 << (self.bits - self.slot_bits)
    }

    /// How many slots there are. They become more while the table holds more than it ever did.
    #[must_use]
    pub const fn slots(&self) -> usize {
        self.slots.len()
    }

    /// The slot that a number is for.
    #[inline]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "masked to 16 bits at most")]
    pub const fn slot(&self, number: u32) -> u16 {
        (number & ((1 << self.slot_bits) - 1)) as u16
    }

    /// A number for one value more, whose tag is one more than the last one there; `None` when the table is full. The slot stays
    /// empty until [`NumberTable::insert`].
    pub fn allot(&mut self) -> Option<u32> {
        let last = self.tags() - 1;
        self.allot_with(|tag| tag % last + 1)
    }

    /// As [`NumberTable::allot`], with a tag chosen by the last one there, which is zero in a new slot.
    pub fn allot_with(&mut self, choose: impl FnOnce(u32) -> u32) -> Option<u32> {
        if self.free.is_empty() && self.slots.len() < self.limit as usize {
            let index = u16::try_from(self.slots.len()).ok()?;
            self.slots.push(Slot { number: index.into(), value: None });
            self.free.push_back(index);
        }
        let index = *self.free.front()?;
        let slot = self.slots.get_mut(usize::from(index))?;
        slot.number = choose(slot.number >> self.slot_bits) << self.slot_bits | u32::from(index);
        Some(slot.number)
    }

    /// Takes a value in, by the number that was given last.
    pub fn insert(&mut self, number: u32, value: T) {
        let index = self.slot(number);
        let slot = self.slots.get_mut(usize::from(index)).filter(|slot| slot.number == number);
        if let Some(slot) = slot
            && self.free.front() == Some(&index)
        {
            self.free.pop_front();
            slot.value = Some(value);
        }
    }

    /// The value of a number, or `None` when there is none, or no more.
    #[inline]
    #[must_use]
    pub fn get(&self, number: u32) -> Option<&T> {
        let slot = self.slots.get(usize::from(self.slot(number)))?;
        if slot.number == number { slot.value.as_ref() } else { None }
    }

    /// As [`NumberTable::get`].
    #[inline]
    #[must_use]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let index = usize::from(self.slot(number));
        let slot = self.slots.get_mut(index)?;
        if slot.number == number { slot.value.as_mut() } else { None }
    }

    /// The value in a slot.
    #[inline]
    #[must_use]
    pub fn in_slot(&mut self, slot: u16) -> Option<&mut T> {
        self.slots.get_mut(usize::from(slot))?.value.as_mut()
    }

    /// Takes the value of a number out; `None` as of [`NumberTable::get`].
    pub fn remove(&mut self, number: u32) -> Option<T> {
        let index = self.slot(number);
        let slot = self.slots.get_mut(usize::from(index)).filter(|slot| slot.number == number)?;
        let value = slot.value.take()?;
        self.free.push_back(index);
        Some(value)
    }

    /// The values, by slot.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| slot.value.as_ref())
    }

    /// The values, by slot.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(|slot| slot.value.as_mut())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Allot,
        Insert(u16),
        Remove(prop::sample::Index),
        Any(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            Just(Step::Allot),
            any::<u16>().prop_map(Step::Insert),
            any::<prop::sample::Index>().prop_map(Step::Remove),
            any::<u32>().prop_map(Step::Any),
        ]
    }

    proptest! {
        #[test]
        fn behaves_like_a_map_of_numbers_never_used_twice(
            limit in 0u32..6,
            slot_bits in 2u32..=16,
            steps in prop::collection::vec(step(), 0..200),
        ) {
            let mut table = NumberTable::with_slot_bits(limit, 30, slot_bits);
            let limit = table.limit() as usize;
            prop_assert!(limit <= 1 << slot_bits);
            let mut model = BTreeMap::new();
            let mut issued = vec![0];
            for step in steps {
                match step {
                    Step::Allot => if let Some(number) = table.allot() {
                        prop_assert!(!issued.contains(&number));
                        prop_assert_eq!(table.get(number), None, "nothing is there yet");
                    },
                    Step::Insert(value) => match table.allot() {
                        Some(number) => {
                            prop_assert!(!issued.contains(&number) && number < 1 << 30);
                            table.insert(number, value);
                            issued.push(number);
                            model.insert(number, value);
                        }
                        None => prop_assert_eq!(model.len(), limit),
                    },
                    Step::Remove(which) => {
                        let number = *which.get(&issued);
                        prop_assert_eq!(table.remove(number), model.remove(&number));
                    }
                    Step::Any(number) => prop_assert_eq!(table.get(number), model.get(&number)),
                }
                for number in &issued {
                    prop_assert_eq!(table.get(*number), model.get(number));
                    prop_assert_eq!(table.get_mut(*number).copied(), model.get(number).copied());
                }
                let in_slots = (0..8).filter_map(|slot| table.in_slot(slot).copied()).collect::<Vec<_>>();
                prop_assert_eq!(&in_slots, &table.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(&in_slots, &table.iter_mut().map(|value| *value).collect::<Vec<_>>());
                prop_assert_eq!(in_slots.len(), model.len());
                prop_assert!(table.slots() <= limit);
            }
        }
    }

    #[test]
    fn tags_wrap_past_zero() {
        let mut table = NumberTable::with_slot_bits(1, 4, 2);
        assert_eq!(table.tags(), 4);
        let mut tags = Vec::new();
        for value in 0..5 {
            let number = table.allot().expect("room");
            assert_eq!(table.slot(number), 0);
            table.insert(number, value);
            assert_eq!(table.allot(), None, "it is full");
            assert_eq!(table.remove(number), Some(value));
            tags.push(number >> 2);
        }
        assert_eq!(tags, [1, 2, 3, 1, 2]);
        assert_eq!(table.allot_with(|last| last ^ 1), Some(3 << 2));
    }

    #[test]
    fn a_number_is_good_for_one_value_and_only_while_it_is_the_last() {
        let mut table = NumberTable::new(2, 32);
        let stale = table.allot().expect("room");
        let number = table.allot().expect("room");
        table.insert(stale, 'a');
        assert_eq!(table.iter().count(), 0, "another was given after it");
        table.insert(number, 'b');
        table.insert(number, 'c');
        assert_eq!((table.get(number), table.iter().count()), (Some(&'b'), 1));
    }

    #[test]
    fn what_was_free_for_longest_is_taken_first() {
        let mut table = NumberTable::new(3, 30);
        let numbers = [0; 3].map(|value| {
            let number = table.allot().expect("room");
            table.insert(number, value);
            number
        });
        for at in [1, 2, 0] {
            table.remove(numbers[at]);
        }
        let next = table.allot().expect("room");
        assert_eq!(table.slot(next), table.slot(numbers[1]));
    }
}
