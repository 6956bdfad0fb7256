//! What each segment of the log is for, how much of it is live, and which may be used next.

use std::cell::Cell;
use std::collections::{BTreeSet, VecDeque};

use crate::index::Version;
use crate::layout::{Layout, RECORD_BLOCK};
use crate::steps;

/// What a segment is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentState {
    /// May be written. `warm`: its space on the host was not given back.
    Free {
        /// See above.
        warm: bool,
    },
    /// Appends go here.
    Head,
    /// Written; holds live data or may.
    Closed,
    /// Holds a piece of a checkpoint; no part of the log.
    Checkpoint,
    /// Nothing in it is live, and the segment table that says so is on its way to be durable.
    Dying,
}

/// One segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) state: SegmentState,
    /// Given when it was last opened; never reused. 0: never.
    pub(crate) generation: u64,
    /// How far it is written, in 4 KiB blocks.
    pub(crate) end: u32,
    /// Reads and cleaning in flight.
    pub(crate) pins: u32,
    /// What of it is live, in bytes.
    pub(crate) live: u64,
    /// When it ended, in sequences. Copies are as young as their segment: how much of it died since it was filled tells how soon the
    /// rest will, and a mean of what the copies were would make old data seem worth copying again and again.
    pub(crate) written_at: u64,
    /// Its host space was taken as a whole. A checkpoint takes only what it writes.
    pub(crate) whole: bool,
    /// Nothing but units of segment tables was appended to it, as far as is known. Closed, it holds a piece of the newest one.
    pub(crate) only_tables: bool,
    /// Cleaning found something unreadable in it; it stays as it is.
    pub(crate) damaged: bool,
    /// How often it became the head again since the store was opened: what was read of it before may be half old and half new.
    pub(crate) reopened: u32,
    /// In which list of [`Segments::sorted`] it is; [`UNSORTED`]: in none.
    list: u8,
}

/// Closed segments are sorted into as many lists by how much of them is live, ...
const LIVE_LISTS: usize = 64;
/// ... and those in which nothing is live into this one.
const EMPTY_LIST: u8 = LIVE_LISTS as u8;
/// The list of a segment that is neither empty nor worth cleaning.
const UNSORTED: u8 = u8::MAX;
/// Segments of one list that are compared to find a victim, ...
const COMPARED: usize = 16;
/// ... and in a hurry, when one list decides.
const COMPARED_IN_HURRY: usize = 256;
/// About what an entry of a list takes in memory, in bytes.
const LIST_ENTRY_BYTES: usize = 24;

/// All segments.
pub(crate) struct Segments {
    layout: Layout,
    all: Vec<Segment>,
    /// Free ones in the order of use. The first stays the first, because units name it as the next; then warm ones.
    free: VecDeque<u32>,
    live_bytes: u64,
    /// How many of them are dead; see [`Segment::is_dead`].
    dead: u32,
    /// Free ones that could not be read when the store was opened, and are left alone.
    pub(crate) avoided: u32,
    /// Closed segments by how much of them is live: each list by the time when they ended, the oldest first. So neither a victim nor
    /// the empty ones have to be searched for among all.
    sorted: Vec<BTreeSet<(u64, u32)>>,
    /// The result of [`Segments::warm_ahead`]; `None` since the free ones have changed.
    warm_ahead: Cell<Option<u32>>,
}

impl Segment {
    /// Free and cold.
    const NEVER_USED: Segment = Segment {
        state: SegmentState::Free { warm: false },
        generation: 0,
        end: 0,
        pins: 0,
        live: 0,
        written_at: 0,
        whole: true,
        only_tables: false,
        damaged: false,
        reopened: 0,
        list: UNSORTED,
    };

    /// Whether a segment table without it is worth something: it is closed, and nothing in it is live. The next table lets those go as
    /// well that hold nothing but the one before, but takes as many itself.
    fn is_dead(&self) -> bool {
        self.state == SegmentState::Closed && self.live == 0 && !self.only_tables
    }
}

impl Segments {
    /// All free and cold.
    pub(crate) fn new(layout: Layout) -> Segments {
        let all = vec![Segment::NEVER_USED; layout.segments as usize];
        Segments {
            layout,
            all,
            free: (0..layout.segments).collect(),
            live_bytes: 0,
            dead: 0,
            avoided: 0,
            sorted: vec![BTreeSet::new(); LIVE_LISTS + 1],
            warm_ahead: Cell::new(None),
        }
    }

    /// There are this many now; the new ones are free and cold.
    pub(crate) fn grow(&mut self, segments: u32) {
        self.warm_ahead.set(None);
        self.free.extend(self.layout.segments..segments);
        self.all.resize(segments as usize, Segment::NEVER_USED);
        self.layout.segments = segments;
    }

    pub(crate) fn segment(&self, segment: u32) -> &Segment {
        &self.all[segment as usize]
    }

    pub(crate) fn free_count(&self) -> u32 {
        self.free.len() as u32
    }

    pub(crate) fn used_count(&self) -> u32 {
        self.layout.segments - self.free_count()
    }

    pub(crate) fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Memory taken, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let lists = self.used_count() as usize * LIST_ENTRY_BYTES;
        (self.all.capacity() * size_of::<Segment>() + self.free.capacity() * size_of::<u32>() + lists) as u64
    }

    /// Puts a segment into the list where it belongs now.
    fn sort(&mut self, segment: u32) {
        let live_max = live_max(&self.layout);
        let entry = &mut self.all[segment as usize];
        let list = match entry.live {
            _ if entry.state != SegmentState::Closed => UNSORTED,
            0 => EMPTY_LIST,
            live if entry.damaged || live > live_max => UNSORTED,
            live => (live * LIVE_LISTS as u64 / u64::from(self.layout.segment_bytes)) as u8,
        };
        if list != entry.list {
            let name = (entry.written_at, segment);
            let before = std::mem::replace(&mut entry.list, list);
            if let Some(list) = self.sorted.get_mut(usize::from(before)) {
                list.remove(&name);
            }
            if let Some(list) = self.sorted.get_mut(usize::from(list)) {
                list.insert(name);
            }
        }
    }

    /// During recovery, once, before anything is live: these segments (with generation and end) are in use.
    pub(crate) fn adopt(&mut self, used: impl Iterator<Item = (u32, u64, u32)>) {
        self.warm_ahead.set(None);
        for (segment, generation, end) in used {
            let entry = &mut self.all[segment as usize];
            (entry.state, entry.generation, entry.end) = (SegmentState::Closed, generation, end);
            self.dead += 1;
            self.sort(segment);
        }
        let all = &self.all;
        self.free.retain(|&free| matches!(all[free as usize].state, SegmentState::Free { .. }));
    }

    /// During recovery: these are not used, if they are free, until the store is opened the next time.
    pub(crate) fn avoid(&mut self, unreadable: &BTreeSet<u32>) {
        self.warm_ahead.set(None);
        let before = self.free.len();
        self.free.retain(|free| !unreadable.contains(free));
        self.avoided = (before - self.free.len()) as u32;
    }

    /// Takes a free segment as the head.
    pub(crate) fn open(&mut self, generation: u64) -> Option<u32> {
        self.warm_ahead.set(None);
        let segment = self.free.pop_front()?;
        let entry = &mut self.all[segment as usize];
        let reopened = entry.reopened;
        *entry = Segment { state: SegmentState::Head, generation, only_tables: true, reopened, ..Segment::NEVER_USED };
        Some(segment)
    }

    /// Takes a free segment for a checkpoint: the one that the log would use last.
    pub(crate) fn open_for_checkpoint(&mut self, generation: u64) -> Option<u32> {
        self.warm_ahead.set(None);
        // The first one is named by units as the next.
        let segment = if self.free.len() > 1 { self.free.pop_back()? } else { return None };
        let entry = &mut self.all[segment as usize];
        *entry = Segment {
            state: SegmentState::Checkpoint,
            generation,
            whole: false,
            reopened: entry.reopened,
            ..Segment::NEVER_USED
        };
        Some(segment)
    }

    /// During recovery: these hold the checkpoint.
    pub(crate) fn adopt_checkpoint(&mut self, segments: impl Iterator<Item = (u32, u64)>) {
        self.warm_ahead.set(None);
        for (segment, generation) in segments {
            let entry = &mut self.all[segment as usize];
            (entry.state, entry.generation, entry.whole) = (SegmentState::Checkpoint, generation, false);
        }
        let all = &self.all;
        self.free.retain(|&free| matches!(all[free as usize].state, SegmentState::Free { .. }));
    }

    /// A checkpoint is not needed any more.
    pub(crate) fn end_checkpoint(&mut self, segment: u32) {
        debug_assert_eq!(self.all[segment as usize].state, SegmentState::Checkpoint);
        self.all[segment as usize].state = SegmentState::Dying;
    }

    /// Gives a head back in which nothing counts. `warm`: it has its host space.
    pub(crate) fn unopen(&mut self, segment: u32, warm: bool) {
        self.warm_ahead.set(None);
        let entry = &mut self.all[segment as usize];
        self.dead -= u32::from(entry.is_dead());
        entry.state = SegmentState::Free { warm };
        self.sort(segment);
        self.free.push_front(segment);
    }

    /// A segment is the head again.
    pub(crate) fn reopen(&mut self, segment: u32) {
        let entry = &mut self.all[segment as usize];
        self.dead -= u32::from(entry.is_dead());
        entry.state = SegmentState::Head;
        entry.reopened += 1;
        self.sort(segment);
    }

    /// The head ended at `end`. `written_at`: see [`Segment`].
    pub(crate) fn close(&mut self, segment: u32, end: u32, written_at: u64) {
        let entry = &mut self.all[segment as usize];
        debug_assert!(entry.list == UNSORTED, "only the head is closed");
        (entry.state, entry.end, entry.written_at) = (SegmentState::Closed, end, written_at);
        self.dead += u32::from(entry.is_dead());
        self.sort(segment);
    }

    /// Turns every segment in which nothing is live into a dying one: a table is being begun, so the one before will not be needed.
    pub(crate) fn take_dead(&mut self) -> Vec<u32> {
        let empty = std::mem::take(&mut self.sorted[usize::from(EMPTY_LIST)]);
        let dead: Vec<u32> = empty.into_iter().map(|(_, segment)| segment).collect();
        steps::count(dead.len() as u64);
        for &segment in &dead {
            let entry = &mut self.all[segment as usize];
            (entry.state, entry.list) = (SegmentState::Dying, UNSORTED);
        }
        self.dead = 0;
        dead
    }

    /// The table that lets a dying segment go was not written after all.
    pub(crate) fn spare(&mut self, segment: u32) {
        let entry = &mut self.all[segment as usize];
        entry.state = SegmentState::Closed;
        self.dead += u32::from(entry.is_dead());
        self.sort(segment);
    }

    /// Something else than a segment table is appended to the head.
    pub(crate) fn holds_more(&mut self, segment: u32) {
        self.all[segment as usize].only_tables = false;
    }

    pub(crate) fn dead_count(&self) -> u32 {
        self.dead
    }

    /// A dying segment is free from now on.
    pub(crate) fn release(&mut self, segment: u32, warm: bool) {
        self.warm_ahead.set(None);
        debug_assert_eq!(self.all[segment as usize].state, SegmentState::Dying);
        self.all[segment as usize].state = SegmentState::Free { warm };
        if warm {
            self.free.insert(self.free.len().min(1), segment);
        } else {
            self.free.push_back(segment);
        }
    }

    /// The segment that will be opened next.
    pub(crate) fn next(&self) -> Option<u32> {
        self.free.front().copied()
    }

    /// Whether the segment that will be opened next has its host space.
    pub(crate) fn next_is_warm(&self) -> bool {
        self.next().is_some_and(|next| self.all[next as usize].state == SegmentState::Free { warm: true })
    }

    /// The free segments in the order of use.
    pub(crate) fn free_list(&self) -> Vec<u32> {
        self.free.iter().copied().collect()
    }

    /// These free segments have host space, and are used first. Only before anything names the next segment.
    pub(crate) fn prefer(&mut self, warm: &[u32]) {
        self.warm_ahead.set(None);
        self.free.retain(|segment| !warm.contains(segment));
        for &segment in warm.iter().rev() {
            self.all[segment as usize].state = SegmentState::Free { warm: true };
            self.free.push_front(segment);
        }
    }

    /// How many of the segments that are used next have host space, without a gap.
    pub(crate) fn warm_ahead(&self) -> u32 {
        let count = self.warm_ahead.get().unwrap_or_else(|| {
            let warm = |free: &&u32| self.all[**free as usize].state == SegmentState::Free { warm: true };
            self.free.iter().take_while(warm).count() as u32
        });
        self.warm_ahead.set(Some(count));
        count
    }

    /// The first free segment without host space.
    pub(crate) fn first_cold(&self) -> Option<u32> {
        self.free.iter().copied().find(|&free| self.all[free as usize].state == SegmentState::Free { warm: false })
    }

    /// A free segment has host space now; it may have been opened meanwhile.
    pub(crate) fn warm_up(&mut self, segment: u32) {
        self.warm_ahead.set(None);
        let state = &mut self.all[segment as usize].state;
        if *state == (SegmentState::Free { warm: false }) {
            *state = SegmentState::Free { warm: true };
        }
    }

    /// How many free segments still hold host space (the first may be cold).
    pub(crate) fn warm_count(&self) -> usize {
        let warm = |&&free: &&u32| self.all[free as usize].state == SegmentState::Free { warm: true };
        self.free.iter().skip(1).take_while(warm).count()
    }

    /// Takes warm segments from the free ones until this many are left: they are to give their host space back.
    pub(crate) fn cool(&mut self, keep: usize) -> Vec<u32> {
        self.warm_ahead.set(None);
        let warm = self.warm_count();
        // The first free segment is named by the log as the next one, and stays.
        let cooling: Vec<u32> = self.free.drain(1 + keep.min(warm)..1 + warm).collect();
        for &segment in &cooling {
            self.all[segment as usize].state = SegmentState::Dying;
        }
        cooling
    }

    pub(crate) fn mark_damaged(&mut self, segment: u32) {
        self.all[segment as usize].damaged = true;
        self.sort(segment);
    }

    pub(crate) fn pin(&mut self, segment: u32) {
        self.all[segment as usize].pins += 1;
    }

    pub(crate) fn unpin(&mut self, segment: u32) {
        self.all[segment as usize].pins -= 1;
    }

    pub(crate) fn add_live(&mut self, segment: u32, bytes: u64) {
        let entry = &mut self.all[segment as usize];
        self.dead -= u32::from(entry.is_dead());
        entry.live += bytes;
        self.live_bytes += bytes;
        self.sort(segment);
    }

    pub(crate) fn sub_live(&mut self, segment: u32, bytes: u64) {
        let entry = &mut self.all[segment as usize];
        assert!(entry.live >= bytes, "more died in segment {segment} than was live");
        entry.live -= bytes;
        self.dead += u32::from(entry.is_dead());
        self.live_bytes -= bytes;
        self.sort(segment);
    }

    /// A block is live from now on.
    pub(crate) fn add_live_block(&mut self, version: Version) {
        self.add_live(version.segment(&self.layout), self.layout.live_block_bytes());
    }

    /// A block has died.
    pub(crate) fn sub_live_block(&mut self, version: Version) {
        self.sub_live(version.segment(&self.layout), self.layout.live_block_bytes());
    }

    /// The closed segment that is best cleaned next, if cleaning it would gain something after the copies' own records.
    ///
    /// With time, that is by benefit and cost (Rosenblum and Ousterhout, The Design and Implementation of a Log-Structured
    /// File System, 1992): the space gained, times how long ago the segment was filled, by what copying takes. What was written
    /// lately is likely to die by itself. What was not overwritten while as much was written as lives in the whole store is old, and no
    /// age beyond that counts: else the oldest would be copied over and over with little to gain, and young ones wait too long. Under
    /// uniform overwrites that is within a hundredth of taking the one with the least live data, which is best there; under skewed
    /// ones it copies less than half of that. In a hurry it is the one with the least live data. Those `taken` are left out.
    pub(crate) fn victim(&self, now: u64, hurry: bool, taken: impl Fn(u32) -> bool) -> Option<u32> {
        let bytes = u64::from(self.layout.segment_bytes);
        let old = self.live_bytes / self.layout.live_block_bytes() + 1;
        let worth = |at: u32| {
            let segment = &self.all[at as usize];
            let live = segment.live as f64 / bytes as f64;
            let age = if hurry { 1.0 } else { (now.saturating_sub(segment.written_at) + 1).min(old) as f64 };
            (1.0 - live) * age / (1.0 + live)
        };
        let better = |one: &u32, other: &u32| worth(*one).total_cmp(&worth(*other)).then(one.cmp(other));
        let mut best: Option<u32> = None;
        for list in &self.sorted[..LIVE_LISTS] {
            let open = list.iter().map(|&(_, at)| at).inspect(|_| steps::count(1)).filter(|&at| !taken(at));
            // Of those with about as much live data the oldest are the best ones; in a hurry the first list has the emptiest.
            best = open.take(if hurry { COMPARED_IN_HURRY } else { COMPARED }).chain(best).max_by(better);
            if hurry && best.is_some() {
                break;
            }
        }
        best
    }

    /// The first segment from `from` on that a segment table lists, and that was opened before the generation `below`.
    pub(crate) fn next_listed(&self, from: u32, below: u64) -> Option<(u32, &Segment)> {
        let rest = self.all.get(from as usize..)?.iter().zip(from..);
        let mut rest = rest.inspect(|_| steps::count(1));
        let is_listed = |entry: &Segment| entry.state == SegmentState::Closed && entry.generation < below;
        rest.find(|(entry, _)| is_listed(entry)).map(|(entry, segment)| (segment, entry))
    }
}

/// Most that may be live in a segment that is compacted: beyond that the copies' own records take what is gained.
fn live_max(layout: &Layout) -> u64 {
    let bytes = u64::from(layout.segment_bytes);
    bytes - (bytes / 16).max(3 * RECORD_BLOCK as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout = Layout { segment_bytes: 1 << 20, segments: 8, block_bytes: 4096, item_bytes: 8 };

    /// Segments that were closed at these times and are live to these shares, in percent; which one is the victim at time 1000.
    fn victim_of(segments: &[(u64, u64)], hurry: bool) -> Option<usize> {
        let mut all = Segments::new(LAYOUT);
        let mut numbers = Vec::new();
        for &(written_at, percent) in segments {
            let segment = all.open(1).unwrap();
            all.add_live(segment, (1 << 20) / 100 * percent);
            all.close(segment, 256, written_at);
            numbers.push(segment);
        }
        let victim = all.victim(1000, hurry, |_| false)?;
        numbers.iter().position(|&number| number == victim)
    }

    #[test]
    fn a_victim_is_old_or_gains_much_and_in_a_hurry_the_emptiest() {
        assert_eq!(victim_of(&[(900, 50), (0, 50)], false), Some(1), "the older one");
        assert_eq!(victim_of(&[(500, 50), (500, 20)], false), Some(1), "the emptier one");
        assert_eq!(victim_of(&[(0, 60), (900, 40)], false), Some(0), "more of the young one may die");
        assert_eq!(victim_of(&[(0, 60), (900, 40)], true), Some(1));
        assert_eq!(victim_of(&[(0, 50), (700, 40)], false), Some(1), "both are old");
        assert_eq!(victim_of(&[(0, 97), (0, 0)], false), None, "one gains nothing, one needs no copies");
    }

    /// However many segments there are: neither a victim nor the dead ones are searched for among all.
    #[test]
    fn a_victim_and_the_dead_are_found_without_looking_at_every_segment() {
        let mut all = Segments::new(Layout { segments: 100_000, ..LAYOUT });
        for at in 0..90_000 {
            let segment = all.open(1).unwrap();
            all.add_live(segment, (at % 900 + 1) << 10);
            all.close(segment, 256, at);
        }
        let steps = |mut look: Box<dyn FnMut() + '_>| {
            let before = steps::steps_taken();
            look();
            steps::steps_taken() - before
        };
        for hurry in [false, true] {
            let looked = steps(Box::new(|| assert!(all.victim(100_000, hurry, |_| false).is_some())));
            assert!(looked <= 2000, "{looked} segments were looked at");
        }
        all.sub_live(5, 6 << 10);
        let looked = steps(Box::new(|| assert_eq!(all.take_dead(), [5])));
        assert!(looked <= 1, "{looked} segments were looked at");
    }
}
