//! A table of tasks whose keys go out as tags: small index, generation above it. Nothing of the protocol is here.

/// Bits of a key that are the index.
pub(crate) const INDEX_BITS: u32 = 10;
/// Bits of a key that are the generation: with the index 31, so that an initiator's tag has its top bit to spare.
const GENERATION_BITS: u32 = 31 - INDEX_BITS;
/// Most entries of a table.
pub(crate) const SLOTS_MAX: usize = 1 << INDEX_BITS;

/// Names an entry: the index, and how often the place was used before. A stale key finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// At most [`SLOTS_MAX`] entries; places are reused, the longest free first, so that generations last.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: std::collections::VecDeque<u32>,
}

impl<T> Slots<T> {
    pub(crate) fn new() -> Slots<T> {
        Slots { slots: Vec::new(), free: std::collections::VecDeque::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Adds an entry made from its key.
    ///
    /// # Panics
    /// If the table is full: callers look first.
    pub(crate) fn insert_with(&mut self, make: impl FnOnce(Key) -> T) -> Key {
        let index = match self.free.pop_front() {
            Some(index) => index,
            None => {
                assert!(self.slots.len() < SLOTS_MAX, "callers keep to the limit");
                self.slots.push(Slot { generation: 0, value: None });
                (self.slots.len() - 1) as u32
            }
        };
        let slot = &mut self.slots[index as usize];
        let key = Key { index, generation: slot.generation };
        slot.value = Some(make(key));
        key
    }

    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let slot = self.slots.get(key.index as usize)?;
        slot.value.as_ref().filter(|_| slot.generation == key.generation)
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        slot.value.as_mut().filter(|_| slot.generation == key.generation)
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation != key.generation {
            return None;
        }
        let value = slot.value.take()?;
        slot.generation = (slot.generation + 1) & ((1 << GENERATION_BITS) - 1);
        self.free.push_back(key.index);
        Some(value)
    }

    /// The entries, by index.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let key = Key { index: index as u32, generation: slot.generation };
            slot.value.as_ref().map(|value| (key, value))
        })
    }

    pub(crate) fn clear(&mut self) {
        let keys: Vec<Key> = self.iter().map(|(key, _)| key).collect();
        for key in keys {
            self.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_key_finds_nothing() {
        let mut slots = Slots::new();
        let first = slots.insert_with(|_| 1);
        assert_eq!(slots.remove(first), Some(1));
        let second = slots.insert_with(|_| 2);
        assert_eq!(second.index, first.index);
        assert_eq!((slots.get(first), slots.get(second)), (None, Some(&2)));
        assert_eq!(slots.remove(first), None);
        assert_eq!((slots.len(), slots.remove(second), slots.len()), (1, Some(2), 0));
    }

    #[test]
    fn generations_wrap_where_tags_do() {
        let mut slots = Slots::new();
        for _ in 0..1u32 << GENERATION_BITS {
            let key = slots.insert_with(|_| ());
            assert!(key.generation >> GENERATION_BITS == 0);
            slots.remove(key);
        }
        assert_eq!(slots.insert_with(|_| ()), Key { index: 0, generation: 0 });
    }

    #[test]
    fn the_longest_free_place_is_used_first() {
        let mut slots = Slots::new();
        let keys: Vec<Key> = (0..3).map(|value| slots.insert_with(|_| value)).collect();
        slots.remove(keys[2]);
        slots.remove(keys[0]);
        assert_eq!(slots.insert_with(|_| 9).index, keys[2].index);
    }
}
