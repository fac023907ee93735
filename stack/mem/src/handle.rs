//! Handles that outside processes hold.
//!
//! A handle is `{index: 24 bits, generation: 24 bits}` in the low 48 bits of a `u64`, the rest zero. A slot's
//! generation changes when it is emptied, so that a handle kept too long is refused instead of naming something else.
//! Slots are reused in the order they were emptied, and no generation is zero, so that zero is no handle.

use core::fmt;
use std::collections::VecDeque;

const INDEX_BITS: u32 = 24;
const MASK: u32 = (1 << INDEX_BITS) - 1;

/// The most slots a table may have.
pub const MAX_HANDLES: usize = 1 << INDEX_BITS;

#[derive(Debug)]
struct Slot<T> {
    /// From one to 2^24 - 1; that of the value, or of the next one.
    generation: u32,
    value: Option<T>,
}

/// Values by handle. Allocates only when it is made.
pub struct HandleTable<T> {
    slots: Vec<Slot<T>>,
    /// Empty slots, those emptied first in front.
    free: VecDeque<u32>,
}

impl<T> HandleTable<T> {
    /// An empty table of `capacity` slots, at most [`MAX_HANDLES`].
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        let capacity = capacity.min(MAX_HANDLES);
        let slots = (0..capacity).map(|_| Slot { generation: 1, value: None }).collect();
        let free = (0..MASK + 1).take(capacity).collect();
        Self { slots, free }
    }

    /// Values the table can hold.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Values in the table.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len().saturating_sub(self.free.len())
    }

    /// Whether no value is in the table.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes a value in; returns its handle.
    ///
    /// # Errors
    /// The value itself, when the table is full.
    pub fn insert(&mut self, value: T) -> Result<u64, T> {
        let Some(&index) = self.free.front() else { return Err(value) };
        let Some(slot) = self.slots.get_mut(index as usize) else { return Err(value) };
        self.free.pop_front();
        slot.value = Some(value);
        Ok(u64::from(index) | u64::from(slot.generation) << INDEX_BITS)
    }

    /// The value of a handle, or `None` when the handle is unknown or stale.
    #[inline]
    #[must_use]
    pub fn get(&self, handle: u64) -> Option<&T> {
        let (index, generation) = split(handle)?;
        let slot = self.slots.get(index as usize)?;
        if slot.generation == generation { slot.value.as_ref() } else { None }
    }

    /// The value of a handle, or `None` when the handle is unknown or stale.
    #[inline]
    #[must_use]
    pub fn get_mut(&mut self, handle: u64) -> Option<&mut T> {
        let (index, generation) = split(handle)?;
        let slot = self.slots.get_mut(index as usize)?;
        if slot.generation == generation { slot.value.as_mut() } else { None }
    }

    /// Takes the value of a handle out; `None` when the handle is unknown or stale.
    pub fn remove(&mut self, handle: u64) -> Option<T> {
        let (index, generation) = split(handle)?;
        let slot = self.slots.get_mut(index as usize)?;
        if slot.generation != generation {
            return None;
        }
        let value = slot.value.take()?;
        slot.generation = if generation == MASK { 1 } else { generation + 1 };
        // There are as many places as slots, so this does not allocate.
        self.free.push_back(index);
        Some(value)
    }

    /// Every handle with its value, by slot.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        (0..).zip(&self.slots).filter_map(|(index, slot): (u64, _)| {
            let handle = index | u64::from(slot.generation) << INDEX_BITS;
            slot.value.as_ref().map(|value| (handle, value))
        })
    }
}

/// Index and generation, when the rest is zero.
#[inline]
fn split(handle: u64) -> Option<(u32, u32)> {
    let high = u32::try_from(handle >> INDEX_BITS).ok()?;
    #[expect(clippy::cast_possible_truncation, reason = "masked to 24 bits")]
    let index = handle as u32 & MASK;
    (high <= MASK).then_some((index, high))
}

impl<T> fmt::Debug for HandleTable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandleTable").field("len", &self.len()).field("capacity", &self.capacity()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Insert(u16),
        Remove(prop::sample::Index),
        Get(prop::sample::Index),
        Any(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            any::<u16>().prop_map(Step::Insert),
            any::<prop::sample::Index>().prop_map(Step::Remove),
            any::<prop::sample::Index>().prop_map(Step::Get),
            any::<u64>().prop_map(Step::Any),
        ]
    }

    proptest! {
        #[test]
        fn behaves_like_a_map_of_names_never_used_twice(
            capacity in 0usize..6,
            steps in prop::collection::vec(step(), 0..200),
        ) {
            let mut table = HandleTable::with_capacity(capacity);
            let mut model = BTreeMap::new();
            let mut issued = vec![0];
            for step in steps {
                match step {
                    Step::Insert(value) => match table.insert(value) {
                        Ok(handle) => {
                            prop_assert!(!issued.contains(&handle));
                            issued.push(handle);
                            model.insert(handle, value);
                        }
                        Err(back) => {
                            prop_assert_eq!(back, value);
                            prop_assert_eq!(model.len(), capacity);
                        }
                    },
                    Step::Remove(which) => {
                        let handle = *which.get(&issued);
                        prop_assert_eq!(table.remove(handle), model.remove(&handle));
                    }
                    Step::Get(which) => {
                        let handle = *which.get(&issued);
                        prop_assert_eq!(table.get(handle), model.get(&handle));
                        prop_assert_eq!(table.get_mut(handle), model.get_mut(&handle));
                    }
                    Step::Any(handle) => prop_assert_eq!(table.get(handle), model.get(&handle)),
                }
                prop_assert_eq!(table.len(), model.len());
                prop_assert_eq!(table.iter().map(|(h, v)| (h, *v)).collect::<BTreeMap<_, _>>(), model.clone());
            }
        }
    }

    #[test]
    fn generations_wrap_past_zero() {
        let mut table = HandleTable::with_capacity(1);
        table.slots[0].generation = MASK;
        let last = table.insert(1).expect("room");
        assert_eq!(table.remove(last), Some(1));
        let next = table.insert(2).expect("room");
        assert_eq!(next >> INDEX_BITS, 1);
        assert_eq!(table.get(last), None);
        assert_eq!(table.get(u64::MAX), None);
    }
}
