//! A unit's way to its store. A volume, its clones and its snapshots are units of one store, in one worker: each has a handle, which
//! addresses the unit's view and gets the unit's completions.
//!
//! Nothing here is locked: a store and all its handles stay in the thread of their worker.

mod views;

use std::cell::{Cell, RefCell, RefMut};
use std::rc::Rc;
use std::sync::Arc;

use strongroom_block::{Lba, Token};
use strongroom_store::{
    Admission, BranchInfo, Completion, IoKind, MemoryUse, Op, PinnedCount, Run, SnapshotInfo, SpaceState, Stats, Store,
    Unverified, View, VolumeInfo,
};

use crate::store_queue::StoreQueue;

pub(crate) use self::views::{EraseView, ScrubView, StreamView};

/// Bits of a token that are the unit's own; those above are the handle's slot.
const TOKEN_BITS: u32 = 48;
/// Upper bound on the handles of a store that exist at the same time: what the bits above [`TOKEN_BITS`] can name.
const SLOTS_MAX: usize = 1 << (u64::BITS - TOKEN_BITS);

/// One unit's share of a store.
pub(crate) struct StoreHandle {
    shared: Rc<RefCell<SharedStore>>,
    slot: usize,
    view: View,
    mail: Rc<Cell<bool>>,
}

struct SharedStore {
    store: Store,
    slots: Vec<Slot>,
    /// Slots without a handle and without a request in flight.
    free: Vec<usize>,
    scratch: Vec<Completion>,
    queue: Arc<StoreQueue>,
}

/// One handle's place in the tokens. It outlives its handle while requests of the handle are in flight, so that their completions
/// cannot reach a later handle with the same slot.
struct Slot {
    /// `None`: the handle is gone, and its completions are dropped.
    mailbox: Option<MailBox>,
    /// Requests that the store has not completed yet.
    in_flight: u64,
}

/// What came for one handle while another one polled.
struct MailBox {
    completions: Vec<Completion>,
    mail: Rc<Cell<bool>>,
}

impl SharedStore {
    /// A slot for a new handle; `None` if [`SLOTS_MAX`] are taken.
    fn allocate(&mut self, mail: &Rc<Cell<bool>>) -> Option<usize> {
        let mailbox = Some(MailBox { completions: Vec::new(), mail: Rc::clone(mail) });
        if let Some(index) = self.free.pop() {
            self.slots[index].mailbox = mailbox;
            return Some(index);
        }
        if self.slots.len() == SLOTS_MAX {
            return None;
        }
        self.slots.push(Slot { mailbox, in_flight: 0 });
        Some(self.slots.len() - 1)
    }

    /// The slot can be given to another handle once its handle is gone and nothing of it is in flight.
    fn free_if_unused(&mut self, index: usize) {
        let slot = &self.slots[index];
        if slot.mailbox.is_none() && slot.in_flight == 0 {
            self.free.push(index);
        }
    }

    /// One of the store's requests is complete.
    fn deliver(&mut self, Completion { token, result }: Completion) {
        let index = (token.0 >> TOKEN_BITS) as usize;
        let slot = &mut self.slots[index];
        slot.in_flight -= 1;
        match &mut slot.mailbox {
            Some(to) => {
                to.completions.push(Completion { token: Token(token.0 & ((1 << TOKEN_BITS) - 1)), result });
                to.mail.set(true);
            }
            None => self.free_if_unused(index),
        }
    }
}

impl StoreHandle {
    /// The first handle of a store, for the volume itself.
    pub(crate) fn new(store: Store) -> StoreHandle {
        let mail = Rc::new(Cell::new(false));
        let mut shared =
            SharedStore { store, slots: Vec::new(), free: Vec::new(), scratch: Vec::new(), queue: Arc::default() };
        let slot = shared.allocate(&mail).expect("no slot is taken yet");
        StoreHandle { shared: Rc::new(RefCell::new(shared)), slot, view: View::default(), mail }
    }

    /// Another one, for another view; `None` if the store has as many handles as tokens can name.
    pub(crate) fn another(&self, view: View) -> Option<StoreHandle> {
        let mail = Rc::new(Cell::new(false));
        let slot = self.shared.borrow_mut().allocate(&mail)?;
        Some(StoreHandle { shared: Rc::clone(&self.shared), slot, view, mail })
    }

    /// The store itself, if this is the last handle.
    pub(crate) fn into_store(self) -> Option<Store> {
        let shared = Rc::clone(&self.shared);
        drop(self);
        Rc::into_inner(shared).map(|shared| shared.into_inner().store)
    }

    /// What sessions have in the store's queue, whichever unit they use.
    pub(crate) fn queue(&self) -> Arc<StoreQueue> {
        Arc::clone(&self.shared.borrow().queue)
    }

    /// Two numbers: one changes only when acknowledged data may have been lost, the other only when the contents of the view are replaced.
    pub(crate) fn incarnation_and_image(&self) -> (u64, u64) {
        let store = &self.shared.borrow().store;
        let image = match self.view {
            View::Head(branch) => store.index().image_of(branch).unwrap_or(0),
            View::Snapshot(snapshot) => snapshot.0,
        };
        (store.incarnation(), image)
    }

    /// What it addresses.
    pub(crate) fn view(&self) -> View {
        self.view
    }

    /// Addresses another view from now on.
    pub(crate) fn set_view(&mut self, view: View) {
        self.view = view;
    }

    /// Takes a request in, addressed to the unit's view.
    pub(crate) fn submit(&mut self, token: Token, op: Op) {
        let view = self.view;
        self.submit_to(token, view, op);
    }

    /// Takes a request in, addressed to any view.
    pub(crate) fn submit_to(&mut self, token: Token, view: View, op: Op) {
        let token = self.own_token(token);
        let shared = &mut *self.shared.borrow_mut();
        shared.slots[self.slot].in_flight += 1;
        shared.store.submit_to(token, view, op);
    }

    /// Moves the store forward; appends what has finished for this unit, and returns how many that are.
    pub(crate) fn poll_completions(&mut self, completions: &mut Vec<Completion>) -> usize {
        let shared = &mut *self.shared.borrow_mut();
        if let [only] = &mut shared.slots[..] {
            let count = shared.store.poll_completions(completions);
            only.in_flight -= count as u64;
            return count;
        }
        let mut all = std::mem::take(&mut shared.scratch);
        shared.store.poll_completions(&mut all);
        all.drain(..).for_each(|completion| shared.deliver(completion));
        shared.scratch = all;
        self.mail.set(false);
        let own = shared.slots[self.slot].mailbox.as_mut().expect("a handle has its mailbox as long as it lives");
        let count = own.completions.len();
        completions.append(&mut own.completions);
        count
    }

    /// Whether something came for this unit while another one polled.
    pub(crate) fn has_mail(&self) -> bool {
        self.mail.get()
    }

    /// How many I/Os the store has under way, for whichever unit.
    pub(crate) fn ios_in_flight(&self) -> usize {
        self.shared.borrow().store.ios_in_flight()
    }

    /// From now on completions of I/O wake the worker straight from the kernel, where that can be.
    pub(crate) fn signal_completions(&self, waker: &strongroom_net::Waker) {
        self.store().signal_completions(waker.eventfd());
    }

    /// How much space the store has.
    pub(crate) fn space(&self) -> SpaceState {
        self.shared.borrow().store.space()
    }

    pub(crate) fn space_percent(&self) -> u8 {
        self.shared.borrow().store.space_percent()
    }

    /// What the store holds in memory.
    pub(crate) fn memory(&self) -> MemoryUse {
        self.shared.borrow().store.memory()
    }

    /// New bounds of the store's caches of records and data, in bytes.
    pub(crate) fn set_cache_bytes(&self, record_bytes: usize, data_bytes: usize) {
        self.store().set_cache_bytes(record_bytes, data_bytes);
    }

    /// Which requests the store accepts.
    pub(crate) fn set_admission(&self, admission: Admission) {
        self.store().set_admission(admission);
    }

    /// The store's counters.
    pub(crate) fn stats(&self) -> Stats {
        self.shared.borrow().store.stats()
    }

    /// How the store does its I/O.
    pub(crate) fn io_kind(&self) -> IoKind {
        self.shared.borrow().store.io_kind()
    }

    /// Why not in a better way.
    pub(crate) fn io_reason(&self) -> Option<String> {
        self.shared.borrow().store.io_reason().map(str::to_owned)
    }

    /// What the store says of its volume.
    pub(crate) fn info(&self) -> VolumeInfo {
        self.shared.borrow().store.info().clone()
    }

    /// How many blocks of the unit can be read.
    pub(crate) fn readable_blocks(&self) -> u64 {
        self.shared.borrow().store.index().readable_blocks(self.view)
    }

    /// Which blocks of the unit have data, from `lba` on.
    pub(crate) fn mapped_runs(&self, lba: Lba, runs_max: usize) -> Vec<Run> {
        self.shared.borrow().store.index().mapped_runs(self.view, lba, runs_max)
    }

    /// How many of `count` blocks from `lba` on one discard should name; see `VolumeIndex::discard_slice`.
    pub(crate) fn discard_slice(&self, lba: Lba, count: u64, mapped_max: u64) -> u64 {
        self.shared.borrow().store.index().discard_slice(self.view, lba, count, mapped_max)
    }

    /// What to verify next, from `from` on: blocks of which older versions are kept. Nothing of a snapshot, which nobody writes to.
    pub(crate) fn unverified(&self, from: Lba, blocks_max: u32) -> Unverified {
        match self.view {
            View::Head(branch) => self.shared.borrow().store.index().unverified(branch, from, blocks_max),
            View::Snapshot(_) => Unverified::End,
        }
    }

    /// Every snapshot in the store.
    pub(crate) fn snapshots(&self) -> Vec<SnapshotInfo> {
        self.shared.borrow().store.index().snapshots()
    }

    /// Goes on with a count of what each snapshot alone keeps; whether there is more.
    pub(crate) fn count_pinned(&self, count: &mut PinnedCount) -> bool {
        self.shared.borrow().store.index().count_pinned(count)
    }

    /// Every branch in the store.
    pub(crate) fn branches(&self) -> Vec<BranchInfo> {
        self.shared.borrow().store.index().branches()
    }

    /// Nothing was asked for a while.
    pub(crate) fn idle(&self) {
        self.store().idle();
    }

    /// The erase of the store.
    pub(crate) fn erase(&self) -> EraseView<'_> {
        EraseView(self)
    }

    /// Streams of snapshots.
    pub(crate) fn streams(&self) -> StreamView<'_> {
        StreamView(self)
    }

    /// The search for damaged blocks.
    pub(crate) fn scrub(&self) -> ScrubView<'_> {
        ScrubView(self)
    }

    /// The store's token for a unit's.
    fn own_token(&self, token: Token) -> Token {
        debug_assert!(token.0 >> TOKEN_BITS == 0, "a unit has not that many requests");
        Token((self.slot as u64) << TOKEN_BITS | token.0)
    }

    fn store(&self) -> RefMut<'_, Store> {
        RefMut::map(self.shared.borrow_mut(), |shared| &mut shared.store)
    }
}

impl Drop for StoreHandle {
    fn drop(&mut self) {
        if let Ok(mut shared) = self.shared.try_borrow_mut() {
            shared.slots[self.slot].mailbox = None;
            shared.free_if_unused(self.slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use strongroom_block::{BlockSize, Buffer, Geometry, VolumeId};
    use strongroom_store::{CreateOptions, OpenOptions, Outcome, UnitKind};

    use super::*;

    fn store() -> Store {
        let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: 64 };
        let create = CreateOptions::new(VolumeId([1; 16]), geometry, UnitKind::Plain);
        Store::open_in_memory(&create, &OpenOptions::default(), Arc::new(|| {})).unwrap()
    }

    #[test]
    fn each_handle_gets_its_own_completions() {
        let mut one = StoreHandle::new(store());
        let mut two = one.another(View::default()).unwrap();
        let three = two.another(View::default()).unwrap();
        let data = vec![Buffer::copy_from(&[7; 4096])];
        one.submit(Token(5), Op::Write { lba: Lba(1), data, records: Vec::new(), fua: true, origin: None });
        two.submit(Token(5), Op::Read { lba: Lba(9), count: 1 });
        let (mut of_one, mut of_two) = (Vec::new(), Vec::new());
        while of_one.is_empty() {
            one.poll_completions(&mut of_one);
        }
        assert!(two.has_mail() && !three.has_mail());
        assert_eq!(two.poll_completions(&mut of_two), 1);
        assert!(matches!(of_one[..], [Completion { token: Token(5), result: Ok(Outcome::Written { .. }) }]));
        assert!(matches!(of_two[..], [Completion { token: Token(5), result: Ok(Outcome::Read(_)) }]));
        assert!(!two.has_mail());
        // What a handle left in flight reaches nobody.
        let mut late = three.another(View::default()).unwrap();
        drop(three);
        two.submit(Token(6), Op::Flush);
        drop(two);
        let mut rest = Vec::new();
        for _ in 0..10 {
            one.poll_completions(&mut rest);
        }
        assert_eq!(late.poll_completions(&mut rest) + rest.len(), 0);
        assert!(one.into_store().is_none());
        assert!(late.into_store().is_some());
    }
    #[test]
    fn slots_are_reused_only_when_nothing_of_theirs_is_in_flight() {
        let mut first = StoreHandle::new(store());
        // More attachments to clones and snapshots during one opening than a token has slots.
        for _ in 0..SLOTS_MAX + 10 {
            drop(first.another(View::default()).unwrap());
        }
        assert!(first.shared.borrow().slots.len() < 10, "slots of closed handles are used again");
        // A handle that leaves a request in flight keeps its slot until the request is complete.
        let mut gone = first.another(View::default()).unwrap();
        gone.submit(Token(1), Op::Read { lba: Lba(9), count: 1 });
        let slot = gone.slot;
        drop(gone);
        let mut next = first.another(View::default()).unwrap();
        assert_ne!(next.slot, slot);
        next.submit(Token(1), Op::Read { lba: Lba(9), count: 1 });
        let (mut of_first, mut of_next) = (Vec::new(), Vec::new());
        while of_next.is_empty() {
            first.poll_completions(&mut of_first);
            next.poll_completions(&mut of_next);
        }
        assert_eq!((of_first.len(), of_next.len()), (0, 1), "each completion reaches the handle that asked");
        while first.shared.borrow().slots[slot].in_flight > 0 {
            first.poll_completions(&mut of_first);
        }
        assert_eq!(first.another(View::default()).unwrap().slot, slot, "and now it is free");
        assert!(of_first.is_empty());
    }

    #[test]
    fn handles_beyond_what_tokens_can_name_are_refused() {
        let first = StoreHandle::new(store());
        let held: Vec<StoreHandle> = (1..SLOTS_MAX).map(|_| first.another(View::default()).unwrap()).collect();
        assert!(first.another(View::default()).is_none());
        drop(held);
        assert!(first.another(View::default()).is_some());
    }
}
