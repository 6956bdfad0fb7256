//! Erasing in the simulation, and other things that rarely go wrong: writes, discards, and space taken ahead of need. If an erase is cut
//! off, the store holds what it held, or nothing.

use strongroom_block::{Lba, Token};
use strongroom_store::{Op, Outcome, Store};

use super::asked::Asked;
use super::erases::Erases;
use super::run::Run;
use crate::model::held;
use crate::{Content, Model};

/// Once in how many steps an erase is asked for.
const STEPS_PER_ERASE: u64 = 60;

impl Run {
    /// The volume is erased at times, and more goes wrong than in other runs.
    pub(super) fn goes_to_extremes(&mut self) {
        self.disk.set_sparse();
        let mut store = self.reopen();
        self.erases = Some(Erases { store_id: store.info().store_id, asked: false });
        self.expected.growth.wanted = self.random.once_in(2);
        self.settle(&mut store);
    }

    /// An erase was asked for, and what came of it is not known.
    pub(super) fn may_be_erased(&self) -> bool {
        self.erases.as_ref().is_some_and(|erases| erases.asked)
    }

    pub(super) fn erase_now_and_then(&mut self, store: &mut Store) {
        if self.erases.is_none() || self.may_be_erased() || !self.random.once_in(STEPS_PER_ERASE) {
            return;
        }
        if self.conditions.cuts && self.random.once_in(2) {
            self.disk.cut_off_after(self.random.below(80));
        }
        self.erases.as_mut().expect("just seen").asked = true;
        let op = self.pending.ask(Asked::Erase);
        store.submit(Token(op), if self.random.once_in(3) { Op::CryptoErase } else { Op::Erase });
    }

    /// An erase that was cut off goes on; false if the disk is cut off.
    pub(super) fn erase_goes_on(&mut self, store: &mut Store) -> bool {
        if store.erase_progress().is_some() {
            assert!(self.may_be_erased(), "nobody asked for an erase");
            let mut done = Vec::new();
            while store.erase_progress().is_some() {
                store.poll_completions(&mut done);
                if self.disk.is_cut_off() {
                    return false;
                }
            }
            self.seen.erases_resumed += 1;
        }
        let now = store.info().store_id;
        if let Some(erases) = &mut self.erases {
            let asked = std::mem::take(&mut erases.asked);
            if now != erases.store_id {
                assert!(asked, "nobody asked for an erase");
                self.erased(store);
            }
        }
        true
    }

    /// Nothing is left of what there was.
    pub(super) fn erased(&mut self, store: &mut Store) {
        self.seen.erases += 1;
        if let Some(going) = self.expected.views.going.take() {
            self.expected.views.taken.remove(&going);
        }
        assert!(self.expected.views.taken.is_empty(), "there was a snapshot");
        assert!(store.index().snapshots().is_empty() && store.index().branches().len() == 1, "a view is left");
        let blocks = store.info().geometry.blocks;
        let highest = self.expected.model.flush_mark();
        let erases = self.erases.as_mut().expect("only then");
        assert_ne!(store.info().store_id, erases.store_id, "the same store");
        *erases = Erases { store_id: store.info().store_id, asked: false };
        if self.expected.volume.kind.is_sealed() {
            self.expected.model = Model::new(0, self.expected.volume.block_size, highest);
            self.expected.model.grow(blocks, Content::Nothing);
            self.expected.growth.unformatted = Some((0, blocks));
        } else {
            let Ok(Outcome::Read(extents)) = store.execute(Op::Read { lba: Lba(0), count: 1 }) else {
                panic!("an erased volume reads as zeros")
            };
            let first = held(&extents, self.expected.volume.block_size)[0];
            assert!(first.sequence > highest, "a sequence that was used before");
            assert_eq!(first.content, Content::Hole);
            self.expected.model = Model::new(blocks, self.expected.volume.block_size, first.sequence).of_plain(true);
        }
        self.expected.volume.blocks = blocks;
        let demanded = if self.expected.views.wanted || !self.expected.volume.kind.is_sealed() {
            0
        } else {
            store.info().retention_blocks
        };
        self.expected.model.retains(demanded);
    }
}
