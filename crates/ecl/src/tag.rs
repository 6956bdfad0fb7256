//! Data sink tags: they name the buffers of one transfer at both ends. A slot is used again, a tag is not: its generation says which use
//! of the slot is meant, so that a late packet of an earlier transfer finds nothing.

use std::collections::VecDeque;
use std::fmt;

/// Bits of a tag that are the slot.
const SLOT_BITS: u32 = 12;
/// Bits of a tag that are the generation.
pub(crate) const GENERATION_BITS: u32 = 32 - SLOT_BITS;
const GENERATION_MASK: u32 = (1 << GENERATION_BITS) - 1;

/// Most transfers that an association can have at once, at either end.
pub(crate) const SINKS_MAX: usize = 1024;

/// Names the buffers of a transfer: slot in the low 12 bits, generation above.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) struct SinkTag(pub(crate) u32);

impl fmt::Debug for SinkTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SinkTag({}, generation {})", self.slot(), self.generation())
    }
}

impl SinkTag {
    /// No transfer: packets that carry no data of one.
    pub(crate) const NONE: SinkTag = SinkTag(u32::MAX);

    /// The tag of a use of a slot.
    pub(crate) const fn new(slot: u32, generation: u32) -> SinkTag {
        SinkTag((generation & GENERATION_MASK) << SLOT_BITS | slot & ((1 << SLOT_BITS) - 1))
    }

    /// Which slot.
    pub(crate) const fn slot(self) -> usize {
        (self.0 & ((1 << SLOT_BITS) - 1)) as usize
    }

    /// Which use of it.
    pub(crate) const fn generation(self) -> u32 {
        self.0 >> SLOT_BITS
    }

    /// Whether it names a later use of the slot than `other`, by serial arithmetic: fewer than half of all generations lie between two
    /// tags that packets can still carry.
    pub(crate) const fn is_newer_than(self, other: SinkTag) -> bool {
        let ahead = self.generation().wrapping_sub(other.generation()) & GENERATION_MASK;
        ahead != 0 && ahead < 1 << (GENERATION_BITS - 1)
    }
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// What an initiator keeps for each transfer. The slot that has been free for longest is used first, so that generations last.
#[derive(Debug)]
pub(crate) struct SinkTable<T> {
    slots: Vec<Slot<T>>,
    free: VecDeque<u32>,
}

impl<T> Default for SinkTable<T> {
    fn default() -> SinkTable<T> {
        SinkTable { slots: Vec::new(), free: VecDeque::new() }
    }
}

impl<T> SinkTable<T> {
    #[cfg(test)]
    fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Adds an entry; `None` when the table is full.
    pub(crate) fn insert(&mut self, value: T) -> Option<SinkTag> {
        let index = match self.free.pop_front() {
            Some(index) => index,
            None if self.slots.len() == SINKS_MAX => return None,
            None => {
                self.slots.push(Slot { generation: 0, value: None });
                (self.slots.len() - 1) as u32
            }
        };
        let slot = &mut self.slots[index as usize];
        slot.value = Some(value);
        Some(SinkTag::new(index, slot.generation))
    }

    pub(crate) fn get(&self, tag: SinkTag) -> Option<&T> {
        let slot = self.slots.get(tag.slot())?;
        slot.value.as_ref().filter(|_| slot.generation == tag.generation())
    }

    pub(crate) fn get_mut(&mut self, tag: SinkTag) -> Option<&mut T> {
        let slot = self.slots.get_mut(tag.slot())?;
        slot.value.as_mut().filter(|_| slot.generation == tag.generation())
    }

    /// The transfer that uses the slot now, of any generation: what a table without generations would find.
    pub(crate) fn current(&self, tag: SinkTag) -> SinkTag {
        let generation = self.slots.get(tag.slot()).map_or(tag.generation(), |slot| slot.generation);
        SinkTag::new(tag.slot() as u32, generation)
    }

    pub(crate) fn remove(&mut self, tag: SinkTag) -> Option<T> {
        let slot = self.slots.get_mut(tag.slot())?;
        if slot.generation != tag.generation() {
            return None;
        }
        let value = slot.value.take()?;
        slot.generation = (slot.generation + 1) & GENERATION_MASK;
        self.free.push_back(tag.slot() as u32);
        Some(value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SinkTag, &T)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            slot.value.as_ref().map(|value| (SinkTag::new(index as u32, slot.generation), value))
        })
    }

    pub(crate) fn clear(&mut self) {
        let tags: Vec<SinkTag> = self.iter().map(|(tag, _)| tag).collect();
        for tag in tags {
            self.remove(tag);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_of_an_earlier_use_finds_nothing() {
        let mut table = SinkTable::default();
        let first = table.insert(1).expect("room");
        assert_eq!(table.remove(first), Some(1));
        let second = table.insert(2).expect("room");
        assert_eq!(second.slot(), first.slot());
        assert!(second.is_newer_than(first) && !first.is_newer_than(second) && !first.is_newer_than(first));
        assert_eq!(table.remove(first), None);
        assert_eq!((table.get(first), table.get(second)), (None, Some(&2)));
    }

    #[test]
    fn generations_are_compared_across_their_end() {
        let (last, next) = (SinkTag::new(5, GENERATION_MASK), SinkTag::new(5, GENERATION_MASK + 1));
        assert_eq!(next.generation(), 0);
        assert!(next.is_newer_than(last) && !last.is_newer_than(next));
    }

    #[test]
    fn the_table_has_a_limit() {
        let mut table = SinkTable::default();
        let tags: Vec<SinkTag> = (0..SINKS_MAX).map(|at| table.insert(at).expect("room")).collect();
        assert_eq!((table.insert(0), table.len()), (None, SINKS_MAX));
        table.remove(tags[7]);
        assert_eq!(table.insert(0).map(SinkTag::slot), Some(tags[7].slot()));
        table.clear();
        assert_eq!(table.len(), 0);
    }
}
