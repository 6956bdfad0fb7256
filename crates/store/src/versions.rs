//! Older versions of blocks, kept until a reader has verified a newer one or the budget is exceeded.
//!
//! About 70 bytes of memory each. At most the budget (`retention_blocks`) of them, and besides those that a snapshot
//! pins: the unverified predecessor of a version that the snapshot holds.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use strongroom_block::Lba;

use crate::catalogue::NodeId;
use crate::index::Version;

#[derive(Clone, Copy, Debug)]
struct RetainedVersion {
    version: Version,
    branch: u32,
}

/// Block and sequence.
type Name = (u64, u64);

/// Outdated names in the order of age that are not worth taking out.
const OUTDATED_MAX: usize = 1024;
/// Names that are looked at for each version that is kept, while outdated ones are taken out.
const SWEPT_PER_VERSION: usize = 8;
/// Sets of versions that were pinned are put together up to this size.
const RETURNING_TOGETHER_MAX: usize = 4096;

/// What there is to be verified from some block on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unverified {
    /// These blocks, the first ones.
    Run {
        /// Where they begin.
        first: Lba,
        /// How many.
        count: u32,
    },
    /// Nothing before this block; behind it was not looked.
    NotUpTo(Lba),
    /// Nothing.
    End,
}

/// Tells of a branch and sequence which node it belongs to, and whether that is closed (no more written to).
pub(crate) trait NodeOf: Fn(u32, u64) -> Option<(NodeId, bool)> {}
impl<F: Fn(u32, u64) -> Option<(NodeId, bool)>> NodeOf for F {}

/// Names by the sequence that made each old, ascending. Nearly all come in that order, so that a queue does; what becomes old late
/// is apart. May name versions that are gone; [`Order::sweep`] takes those out.
#[derive(Default)]
struct Order {
    queue: VecDeque<(u64, Name)>,
    late: BTreeSet<(u64, Name)>,
    sweep: Option<Sweep>,
}

/// How far taking out outdated names is.
#[derive(Clone, Copy)]
enum Sweep {
    /// Entries before `read` were looked at, and those that stay are before `write`. Between the two are none that count.
    Queue { read: usize, write: usize },
    /// All of the queue was, and the late ones before this.
    Late((u64, Name)),
}

/// Names no version.
const NOTHING: Name = (u64::MAX, u64::MAX);

impl Order {
    fn len(&self) -> usize {
        self.queue.len() + self.late.len()
    }

    fn insert(&mut self, aged: (u64, Name)) {
        match self.queue.back() {
            Some(&last) if aged < last => drop(self.late.insert(aged)),
            _ => self.queue.push_back(aged),
        }
    }

    fn pop_first(&mut self) -> Option<Name> {
        let is_late = match (self.queue.front(), self.late.first()) {
            (Some(next), Some(late)) => late < next,
            (None, late) => late.is_some(),
            (Some(_), None) => false,
        };
        if is_late {
            return self.late.pop_first().map(|(_, name)| name);
        }
        let (_, name) = self.queue.pop_front()?;
        if let Some(Sweep::Queue { read, write }) = &mut self.sweep {
            *read = read.saturating_sub(1);
            *write = write.saturating_sub(1);
        }
        Some(name)
    }

    /// Takes outdated names out, if there are too many or it is at that already; looks at no more than `steps`.
    fn sweep(&mut self, kept: usize, steps: usize, is_kept: impl Fn(&Name) -> bool) {
        if self.sweep.is_none() && self.len() <= 2 * kept + OUTDATED_MAX {
            return;
        }
        crate::steps::count(steps as u64);
        let mut sweep = self.sweep.unwrap_or(Sweep::Queue { read: 0, write: 0 });
        for _ in 0..steps {
            sweep = match sweep {
                Sweep::Queue { read, write } if read < self.queue.len() => {
                    let aged = self.queue[read];
                    let stays = is_kept(&aged.1);
                    if stays && write < read {
                        self.queue[write] = aged;
                        self.queue[read].1 = NOTHING;
                    }
                    Sweep::Queue { read: read + 1, write: write + usize::from(stays) }
                }
                Sweep::Queue { write, .. } => {
                    self.queue.truncate(write);
                    Sweep::Late((0, (0, 0)))
                }
                Sweep::Late(from) => {
                    let Some(&aged) = self.late.range(from..).next() else {
                        self.sweep = None;
                        return;
                    };
                    if !is_kept(&aged.1) {
                        self.late.remove(&aged);
                    }
                    Sweep::Late((aged.0, (aged.1.0, aged.1.1 + 1)))
                }
            };
        }
        self.sweep = Some(sweep);
    }
}

impl FromIterator<(u64, Name)> for Order {
    fn from_iter<I: IntoIterator<Item = (u64, Name)>>(aged: I) -> Order {
        let mut aged: Vec<_> = aged.into_iter().collect();
        aged.sort_unstable();
        Order { queue: aged.into(), late: BTreeSet::new(), sweep: None }
    }
}

/// The retained versions of a store. Never the newest of a block in its node.
#[derive(Default)]
pub(crate) struct Versions {
    kept: BTreeMap<Name, RetainedVersion>,
    /// The oldest goes first. May name versions that are gone.
    order: Order,
    /// Outside the budget, and not in the order: a snapshot needs them.
    pinned: BTreeSet<Name>,
    /// Were pinned, and come back into the order a few at a time. None of the sets is empty.
    returning: VecDeque<BTreeSet<Name>>,
    returning_len: usize,
}

impl Versions {
    /// How many count against the budget.
    pub(crate) fn len(&self) -> u64 {
        (self.kept.len() - self.pinned.len() - self.returning_len) as u64
    }

    /// How many snapshots pin.
    pub(crate) fn pinned(&self) -> u64 {
        self.pinned.len() as u64
    }

    /// Keeps a version that the entry `replaced_by` of the log made old; if it was the newest of a node that is merged, its own
    /// sequence stands for that, so that nothing goes before it that is not older.
    pub(crate) fn keep(&mut self, branch: u32, lba: u64, version: Version, replaced_by: u64) {
        let name = (lba, version.sequence());
        if self.kept.insert(name, RetainedVersion { version, branch }).is_none() {
            self.order.insert((replaced_by, name));
            let kept = &self.kept;
            self.order.sweep(kept.len(), SWEPT_PER_VERSION, |name| kept.contains_key(name));
        }
    }

    /// Keeps a version while the log is being read: [`Versions::order_by_sequence`] comes before anything goes.
    pub(crate) fn keep_unordered(&mut self, branch: u32, lba: u64, version: Version) {
        self.kept.insert((lba, version.sequence()), RetainedVersion { version, branch });
    }

    pub(crate) fn find(&self, lba: u64, sequence: u64) -> Option<Version> {
        self.kept.get(&(lba, sequence)).map(|kept| kept.version)
    }

    /// The branch under which a kept version stands in the log.
    pub(crate) fn branch(&self, lba: u64, sequence: u64) -> Option<u32> {
        self.kept.get(&(lba, sequence)).map(|kept| kept.branch)
    }

    /// The newest with a sequence smaller than `below` that `counts` (of branch and sequence).
    pub(crate) fn newest_below(&self, lba: u64, below: u64, counts: impl Fn(u32, u64) -> bool) -> Option<Version> {
        let mut older = self.kept.range((lba, 0)..(lba, below)).rev();
        older.find(|((_, sequence), kept)| counts(kept.branch, *sequence)).map(|(_, kept)| kept.version)
    }

    /// Lets go what `counts` of `lba` and is older than `below`, telling each; no more than `fuel`.
    pub(crate) fn release_below(
        &mut self,
        lba: u64,
        below: u64,
        fuel: &mut usize,
        counts: impl Fn(u32, u64) -> bool,
        mut released: impl FnMut(Version),
    ) {
        while *fuel > 0
            && let Some(version) = self.newest_below(lba, below, &counts)
        {
            *fuel -= 1;
            crate::steps::count(1);
            self.forget((lba, version.sequence()));
            released(version);
        }
    }

    fn forget(&mut self, name: Name) -> Option<Version> {
        self.unname(&name);
        self.kept.remove(&name).map(|kept| kept.version)
    }

    /// It is neither pinned nor comes back.
    fn unname(&mut self, name: &Name) {
        self.pinned.remove(name);
        if let Some(at) = self.returning.iter_mut().position(|set| set.remove(name)) {
            self.returned(at);
        }
    }

    /// One went out of a set of those that come back.
    fn returned(&mut self, at: usize) {
        self.returning_len -= 1;
        if self.returning[at].is_empty() {
            self.returning.remove(at);
        }
    }

    /// Lets go the one that has been old for longest, if there are more than the budget. Those that a snapshot needs are pinned
    /// instead, and do not count any more. Looks at no more than `fuel`.
    pub(crate) fn evict(&mut self, budget: u64, fuel: &mut usize, node_of: impl NodeOf) -> Option<Version> {
        while *fuel > 0 && self.has_excess(budget) {
            *fuel -= 1;
            crate::steps::count(1);
            if let Some(name) = self.returning.front_mut().and_then(BTreeSet::pop_first) {
                self.returned(0);
                self.order.insert((name.1, name));
                continue;
            }
            let name = self.order.pop_first()?;
            let Entry::Occupied(kept) = self.kept.entry(name) else { continue };
            let branch = kept.get().branch;
            let Some((node, true)) = node_of(branch, name.1) else {
                if self.pinned.contains(&name) {
                    continue;
                }
                return Some(kept.remove().version);
            };
            if self.is_predecessor(name, node, &node_of) {
                self.pinned.insert(name);
            } else if !self.pinned.contains(&name) {
                return self.forget(name);
            }
        }
        None
    }

    /// Whether [`Versions::evict`] has something to do.
    pub(crate) fn has_excess(&self, budget: u64) -> bool {
        !self.returning.is_empty() || self.len() > budget && self.order.len() > 0
    }

    /// Whether it is the newest one but one of its node, which is closed.
    fn is_predecessor(&self, (lba, sequence): Name, node: NodeId, node_of: &impl NodeOf) -> bool {
        let mut newer = self.kept.range((lba, sequence + 1)..=(lba, u64::MAX));
        !newer.any(|((_, newer), kept)| node_of(kept.branch, *newer).is_some_and(|(of, _)| of == node))
    }

    /// A node was merged or dropped: what was pinned counts against the budget again until it is looked at. What made it old is not
    /// remembered; its own sequence stands for that.
    pub(crate) fn unpin(&mut self) {
        let mut pinned = std::mem::take(&mut self.pinned);
        if pinned.is_empty() {
            return;
        }
        self.returning_len += pinned.len();
        match self.returning.back_mut() {
            Some(last) if last.len() + pinned.len() <= RETURNING_TOGETHER_MAX => last.append(&mut pinned),
            _ => self.returning.push_back(pinned),
        }
    }

    /// Lets go what is `gone` of the next versions from `from` on, telling each; looks at no more than `fuel`. Where to go on; `None`:
    /// that was all.
    pub(crate) fn drop_from(
        &mut self,
        from: (u64, u64),
        fuel: &mut usize,
        gone: impl Fn(u32, u64) -> bool,
        mut released: impl FnMut(Version),
    ) -> Option<(u64, u64)> {
        let most = *fuel;
        let mut next = None;
        let mut dropped = Vec::new();
        for (looked, (&name, kept)) in self.kept.range(from..).enumerate() {
            if looked == most {
                next = Some(name);
                break;
            }
            *fuel -= 1;
            crate::steps::count(1);
            if gone(kept.branch, name.1) {
                dropped.push(name);
            }
        }
        for name in dropped {
            released(self.forget(name).expect("just seen"));
        }
        next
    }

    /// Notes that cleaning copied a version; false if it is not at `from` any more.
    pub(crate) fn relocate(&mut self, lba: u64, from: Version, to: Version) -> bool {
        match self.kept.get_mut(&(lba, from.sequence())) {
            Some(kept) if kept.version == from => {
                kept.version = to;
                true
            }
            _ => false,
        }
    }

    /// Visits every one: branch, block, version.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(u32, u64, Version)) {
        for (&(lba, _), kept) in &self.kept {
            crate::steps::count(1);
            visit(kept.branch, lba, kept.version);
        }
    }

    /// The next ones from a name on: branch, block, version.
    pub(crate) fn from(&self, lba: u64, sequence: u64) -> impl Iterator<Item = (u32, u64, Version)> + '_ {
        self.kept.range((lba, sequence)..).map(|(&(lba, _), kept)| (kept.branch, lba, kept.version))
    }

    /// The first run of blocks of a branch, from `from` on and at most `blocks_max` long, of which a version is kept that no snapshot
    /// needs. Looks at no more than `entries_max` versions.
    pub(crate) fn run_from(&self, branch: u32, from: u64, blocks_max: u32, entries_max: usize) -> Unverified {
        let mut run: Option<(u64, u32)> = None;
        let found = |(first, count)| Unverified::Run { first: Lba(first), count };
        for (looked, (name, kept)) in self.kept.range((from, 0)..).enumerate() {
            let lba = name.0;
            if kept.branch == branch && !self.pinned.contains(name) {
                run = match run {
                    None => Some((lba, 1)),
                    Some((first, count)) if lba < first + u64::from(count) => Some((first, count)),
                    Some((first, count)) if lba == first + u64::from(count) && count < blocks_max => {
                        Some((first, count + 1))
                    }
                    Some(run) => return found(run),
                };
            }
            if looked + 1 >= entries_max {
                return run.map_or(Unverified::NotUpTo(Lba(lba + 1)), found);
            }
        }
        run.map_or(Unverified::End, found)
    }

    /// After recovery: age is the order of the sequences.
    pub(crate) fn order_by_sequence(&mut self) {
        self.returning.clear();
        self.returning_len = 0;
        self.order = self.kept.keys().map(|&name| (name.1, name)).collect();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::layout::Layout;

    const LAYOUT: Layout = Layout { segment_bytes: 1 << 16, segments: 10, block_bytes: 4096, item_bytes: 56 };

    fn version(sequence: u64) -> Version {
        Version::new(&LAYOUT, sequence, 0, 4096, 128)
    }

    #[test]
    fn the_oldest_goes_first_and_feedback_takes_only_strictly_older() {
        let mut versions = Versions::default();
        for (lba, sequence) in [(1, 10), (2, 11), (1, 12), (1, 13)] {
            versions.keep(0, lba, version(sequence), sequence + 1);
        }
        let all = |_, _| true;
        assert_eq!(versions.newest_below(1, 13, all).map(Version::sequence), Some(12));
        assert_eq!(versions.newest_below(1, 10, all), None);
        let (mut released, fuel) = (Vec::new(), &mut 99);
        versions.release_below(1, 13, &mut 99, all, |version| released.push(version.sequence()));
        assert_eq!(released, [12, 10]);
        let open = |_, _| Some((1, false));
        assert_eq!(versions.evict(0, fuel, open).map(Version::sequence), Some(11));
        assert_eq!(versions.evict(0, fuel, open).map(Version::sequence), Some(13));
        assert_eq!(versions.evict(0, fuel, open), None);
    }

    #[test]
    fn what_a_snapshot_pins_costs_nobody_else_its_place() {
        let mut versions = Versions::default();
        versions.keep(0, 1, version(12), 13);
        versions.keep(0, 2, version(21), 22);
        let fuel = &mut 99;
        let node_of = |_, sequence| Some(if sequence < 20 { (1, true) } else { (2, false) });
        assert_eq!(versions.evict(1, fuel, node_of), None);
        assert_eq!((versions.len(), versions.pinned()), (1, 1));
        assert!(versions.find(2, 21).is_some());
    }

    #[test]
    fn the_predecessor_of_what_a_snapshot_holds_is_pinned_outside_the_budget() {
        let mut versions = Versions::default();
        for sequence in [10, 12, 21] {
            versions.keep(0, 1, version(sequence), sequence + 1);
        }
        let fuel = &mut 99;
        // A snapshot at 20: of what is before it, 12 is the newest that is old.
        let node_of = |_, sequence| Some(if sequence < 20 { (1, true) } else { (2, false) });
        assert_eq!(versions.evict(0, fuel, node_of).map(Version::sequence), Some(10));
        assert_eq!(versions.evict(0, fuel, node_of).map(Version::sequence), Some(21));
        assert_eq!((versions.len(), versions.pinned()), (0, 1));
        assert!(versions.find(1, 12).is_some());
        assert_eq!(versions.run_from(0, 0, 9, 9), Unverified::End, "feedback does not release it");
        versions.unpin();
        assert_eq!(versions.evict(0, fuel, |_, _| Some((2, false))).map(Version::sequence), Some(12));
    }

    /// What a merge, or a hole that hides late, makes old is as old as it is, and does not push out what became old before.
    #[test]
    fn what_becomes_old_late_goes_when_its_turn_is() {
        let mut versions = Versions::default();
        versions.keep(0, 1, version(50), 60);
        versions.keep(0, 2, version(51), 70);
        versions.keep(0, 3, version(5), 65);
        versions.keep(0, 4, version(10), 10);
        versions.keep(0, 5, version(66), 66);
        let open = |_, _| Some((1, false));
        let gone: Vec<u64> = std::iter::from_fn(|| versions.evict(0, &mut 99, open)).map(Version::sequence).collect();
        assert_eq!(gone, [10, 50, 5, 66, 51]);
    }

    /// However many go at once, nobody waits for all of them.
    #[test]
    fn what_was_pinned_comes_back_and_goes_a_few_at_a_time() {
        let mut versions = Versions::default();
        for lba in 0..100 {
            versions.keep(0, lba, version(10 + lba), 200 + lba);
        }
        let closed = |_, sequence| Some((sequence, true));
        assert_eq!(versions.evict(10, &mut 999, closed), None);
        assert_eq!((versions.len(), versions.pinned()), (10, 90));
        versions.unpin();
        assert_eq!((versions.len(), versions.pinned()), (10, 0));
        let open = |_, _| Some((1, false));
        let mut gone = Vec::new();
        let mut rounds = 0;
        while versions.has_excess(10) {
            let fuel = &mut 20;
            gone.extend(std::iter::from_fn(|| versions.evict(10, fuel, open)).map(Version::sequence));
            rounds += 1;
        }
        assert_eq!(rounds, 9, "90 come back, 90 go, in steps of 20");
        assert_eq!(gone, (10..100).collect::<Vec<u64>>());
        assert_eq!(versions.len(), 10);
    }

    proptest! {
        /// In any order in which they come and go, and however far outdated names were taken out meanwhile.
        #[test]
        fn the_order_is_that_of_a_sorted_set(steps in prop::collection::vec((0u64..50, 0u64..5, 0u64..99), 1..200)) {
            let (mut order, mut set, mut gone) = (Order::default(), BTreeSet::new(), BTreeSet::from([NOTHING]));
            let next = |order: &mut Order, gone: &BTreeSet<Name>| loop {
                match order.pop_first() {
                    Some(name) if gone.contains(&name) => {}
                    other => return other,
                }
            };
            for (number, (aged, kind, at)) in (0..).zip(steps) {
                match kind {
                    0 => prop_assert_eq!(next(&mut order, &gone), set.pop_first().map(|(_, name)| name)),
                    // As the log makes them: ascending.
                    1 => {
                        order.insert((number, (at, number)));
                        set.insert((number, (at, number)));
                    }
                    2 => {
                        order.insert((aged, (at, number)));
                        set.insert((aged, (at, number)));
                    }
                    3 => set.retain(|&(_, name)| name.0 % 7 != at % 7 || !gone.insert(name)),
                    _ => {
                        order.sweep.get_or_insert(Sweep::Queue { read: 0, write: 0 });
                        order.sweep(0, at as usize, |name| !gone.contains(name));
                    }
                }
            }
            order.sweep.get_or_insert(Sweep::Queue { read: 0, write: 0 });
            while order.sweep.is_some() {
                order.sweep(0, 3, |name| !gone.contains(name));
            }
            order.sweep = Some(Sweep::Queue { read: 0, write: 0 });
            order.sweep(0, 999, |name| !gone.contains(name));
            prop_assert_eq!(order.len(), set.len(), "outdated names are gone");
            let mut again: Order = set.iter().copied().collect();
            for (_, name) in set {
                prop_assert_eq!(order.pop_first(), Some(name));
                prop_assert_eq!(again.pop_first(), Some(name));
            }
        }
    }

    /// Feedback releases versions long before it is their turn: their names in the order are taken out a few at a time.
    #[test]
    fn outdated_names_do_not_pile_up_and_no_call_looks_at_all_of_them() {
        let mut versions = Versions::default();
        let mut steps_max = 0;
        for at in 0..200_000 {
            let before = crate::steps::steps_taken();
            versions.keep(0, at % 10, version(at + 1), at + 2);
            versions.release_below(at % 10, at + 1, &mut 99, |_, _| true, |_| ());
            steps_max = steps_max.max(crate::steps::steps_taken() - before);
        }
        assert_eq!(versions.len(), 10);
        assert!(versions.order.len() < 4 * OUTDATED_MAX, "{}", versions.order.len());
        assert!(steps_max < 2 * SWEPT_PER_VERSION as u64, "{steps_max} steps in one call");
    }

    #[test]
    fn what_is_to_be_verified_is_found_in_runs_and_in_bounded_steps() {
        let mut versions = Versions::default();
        for (branch, lba, sequence) in [(0, 3, 1), (0, 3, 2), (1, 4, 3), (0, 4, 4), (0, 5, 5), (1, 7, 6), (0, 9, 7)] {
            versions.keep(branch, lba, version(sequence), sequence + 1);
        }
        let run = |first, count| Unverified::Run { first: Lba(first), count };
        assert_eq!(versions.run_from(0, 0, 9, 99), run(3, 3));
        assert_eq!(versions.run_from(0, 0, 2, 99), run(3, 2));
        assert_eq!(versions.run_from(0, 4, 9, 99), run(4, 2));
        assert_eq!(versions.run_from(0, 6, 9, 99), run(9, 1));
        assert_eq!(versions.run_from(1, 0, 9, 99), run(4, 1));
        assert_eq!(versions.run_from(1, 5, 9, 1), Unverified::NotUpTo(Lba(6)));
        assert_eq!(versions.run_from(1, 6, 9, 1), run(7, 1));
        assert_eq!(versions.run_from(2, 0, 9, 99), Unverified::End);
        assert_eq!(versions.run_from(0, 10, 9, 99), Unverified::End);
    }
}
