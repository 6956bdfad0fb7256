//! One run of one seed: the disk, the store on it, what was asked of it, and the model.

use std::collections::HashMap;
use std::sync::Arc;

use strongroom_block::{BlockSize, Custody, Geometry, HoleRecord, Lba, SealingDomain, VolumeId};
use strongroom_store::{
    CheckReport, CreateOptions, Op, OpError, OpenOptions, Outcome, Planted, RepairOptions, RepairPlan, Store,
    StoreError, StoreId, Survey, UnitKind,
};

use super::asked::Asked;
use super::disk_conditions::DiskConditions;
use super::replica_store::Replica;
use super::seen::Seen;
use super::snapshot_tree::Views;
use super::volume::{Erases, Growth, Volume};
use crate::{Faults, Model, Random, SimDisk, Stray};

/// One run.
pub(super) struct Run {
    pub(super) random: Random,
    pub(super) disk: SimDisk,
    pub(super) volume: Volume,
    pub(super) model: Model,
    pub(super) asked: HashMap<u64, Asked>,
    pub(super) next_op: u64,
    pub(super) seen: Seen,
    pub(super) conditions: DiskConditions,
    /// The store takes in few requests at a time.
    pub(super) few_requests: bool,
    planted: Planted,
    pub(super) views: Views,
    pub(super) growth: Growth,
    /// The store that snapshots are sent to.
    pub(super) replica: Option<Replica>,
    /// Whether the volume is erased at times.
    pub(super) erases: Option<Erases>,
}

impl Run {
    pub(super) fn new(seed: u64, planted: Planted) -> Run {
        let mut random = Random::new(seed);
        let sealed = random.once_in(2);
        let custody = if random.once_in(4) { Custody::Target } else { Custody::KeyFile };
        let kind = match sealed {
            true => UnitKind::Sealed { domain: SealingDomain([9; 16]), custody },
            false => UnitKind::Plain,
        };
        let block_size = BlockSize::new([512, 4096, 4096, 2048][random.below(4) as usize]).expect("possible");
        let segment_bytes = [64 << 10, 64 << 10, 128 << 10, 256 << 10][random.below(4) as usize];
        let blocks = 20 + random.below(300);
        let disk = SimDisk::new(random.number());
        let mut run = Run {
            random,
            disk,
            volume: Volume { kind, block_size, segment_bytes, blocks },
            model: Model::new(blocks, block_size, 1).of_plain(!sealed),
            asked: HashMap::new(),
            next_op: 1,
            seen: Seen::default(),
            conditions: DiskConditions::default(),
            few_requests: false,
            planted,
            views: Views::default(),
            growth: Growth::default(),
            replica: None,
            erases: None,
        };
        let options = run.create_options(1);
        Store::create_on(Box::new(run.disk.backend(true)), &options).expect("the disk is new");
        run
    }

    /// How the store, or the other one, is made.
    pub(super) fn create_options(&mut self, number: u8) -> CreateOptions {
        let geometry = Geometry { block_size: self.volume.block_size, blocks: self.volume.blocks };
        let mut options = CreateOptions::new(VolumeId([number; 16]), geometry, self.volume.kind);
        options.segment_bytes = self.volume.segment_bytes;
        options.retention_percent = [10, 50, 100][self.random.below(3) as usize];
        options.store_id = Some(StoreId([6 + number; 16]));
        options
    }

    /// What else goes on in this run. What snapshots pin counts as retained in other ways, so nothing is demanded then.
    pub(super) fn choose_what_goes_on(&mut self) {
        self.growth.wanted = self.random.once_in(3);
        self.views.wanted = self.random.once_in(2);
        if self.views.wanted {
            self.model.retains(0);
            self.replica = self.random.once_in(2).then(|| self.new_replica());
        }
    }

    pub(super) fn open_options(&mut self) -> OpenOptions {
        let checkpoint_log_bytes = match self.random.below(4) {
            0 => None,
            1 => Some(self.random.below(20_000)),
            2 => Some(100_000),
            _ => Some(400_000),
        };
        self.few_requests = self.random.once_in(6);
        OpenOptions {
            open_id: Some(self.random.number()),
            planted: self.planted,
            checkpoint_log_bytes,
            // Small units: then several are often in flight, of which any may reach the disk and any may not.
            append_unit_bytes_max: [12 << 10, 24 << 10, 264 << 10][self.random.below(3) as usize],
            cleaning_piece_bytes: [16 << 10, 64 << 10, 256 << 10][self.random.below(3) as usize],
            data_cache_bytes: if self.random.once_in(2) { 0 } else { 64 << 10 },
            record_cache_bytes: [0, 20_000, 32 << 20][self.random.below(3) as usize],
            hide_blocks_per_poll: [1, 300, 4096][self.random.below(3) as usize],
            queue_ops_max: if self.few_requests { 6 } else { 4096 },
            clock_seconds: || 1_700_000_000,
            ..OpenOptions::default()
        }
    }

    fn try_open(&mut self) -> Result<Store, StoreError> {
        let orderly = self.random.once_in(4);
        let options = self.open_options();
        Store::open_on(Box::new(self.disk.backend(orderly)), &options, Arc::new(|| {}))
    }

    /// Opens; `None` if the disk was cut off meanwhile.
    fn open(&mut self) -> Option<Store> {
        match self.try_open() {
            Ok(store) => Some(store),
            Err(error) => {
                assert!(self.disk.is_cut_off(), "the store does not open: {error}");
                None
            }
        }
    }

    /// A sealed volume begins with one hole over all of it.
    pub(super) fn format(&mut self) {
        let mut store = self.open().expect("nothing goes wrong yet");
        if self.volume.kind.is_sealed() {
            assert!(matches!(store.execute(Op::Read { lba: Lba(0), count: 1 }), Err(OpError::NotFormatted { .. })));
            let hole = HoleRecord { start: Lba(0), count: self.volume.blocks, record: self.record(0, 0, None) };
            let written = store.execute(Op::Hole { holes: vec![hole], origin: None });
            let Ok(Outcome::Written { first, .. }) = written else { panic!("{written:?}") };
            self.model = Model::new(self.volume.blocks, self.volume.block_size, first.0);
            self.model.retains(store.info().retention_blocks);
        }
        if self.random.once_in(3) {
            self.fill(&mut store);
        }
        let mark = self.model.flush_mark();
        store.execute(Op::Flush).expect("nothing goes wrong yet");
        self.model.flushed(mark);
        if self.random.once_in(2) {
            store.close().expect("nothing goes wrong yet");
        }
    }

    /// Opens (again and again, if the disk is cut off meanwhile) and compares.
    pub(super) fn reopen(&mut self) -> Store {
        (self.conditions.failing_syncs, self.conditions.failing_reads, self.conditions.fills_up) =
            (false, false, false);
        self.check_now_and_then();
        loop {
            self.seen.reopenings += 1;
            if self.random.once_in(3) {
                self.disk.cut_off_after(self.random.below(60));
            }
            if let Some(mut store) = self.open() {
                if self.erase_goes_on(&mut store) && self.compare_worlds(&mut store) {
                    self.demand_versions(&mut store);
                    self.disk.cut_off_after(u64::MAX);
                    if !self.disk.is_cut_off() {
                        return store;
                    }
                }
                drop(store);
            }
            self.seen.cut_offs_while_opening += 1;
            self.asked.clear();
            self.disk.crash();
        }
    }

    /// The offline check finds nothing wrong with what a crash left.
    fn check_now_and_then(&mut self) {
        if self.random.once_in(8) && !self.may_be_erased() {
            self.seen.checks += 1;
            let report = CheckReport::of_backend(&mut self.disk.backend(true)).expect("a crash leaves nothing damaged");
            assert!(report.is_sound(), "the check finds fault with what a crash left: {report:?}");
        }
    }

    /// Some requests, some faults, and an end: orderly, or not.
    pub(super) fn round(&mut self, steps: u64) {
        let mut store = self.reopen();
        if !self.random.once_in(5) {
            self.disk.cut_off_after(self.random.below(400));
        }
        self.conditions.failing_syncs = self.random.once_in(6);
        self.conditions.failing_reads = self.random.once_in(6);
        self.conditions.fills_up = self.random.once_in(4);
        let faults = Faults {
            failing_sync_once_in: if self.conditions.failing_syncs { 20 } else { 0 },
            failing_read_once_in: if self.conditions.failing_reads { 30 } else { 0 },
            ..self.conditions.harmless
        };
        let faults = self.rare_faults(faults);
        self.conditions.cuts = true;
        for _ in 0..steps {
            if self.conditions.fills_up && self.random.once_in(8) {
                let pages_max = self.disk.pages() + self.random.below(40) as usize;
                self.disk.set_faults(Faults { pages_max, ..faults });
            } else if self.random.once_in(8) {
                self.disk.set_faults(faults);
            }
            self.step(&mut store);
            if self.disk.is_cut_off() || self.views.limbo.is_some() {
                break;
            }
        }
        self.conditions.cuts = false;
        self.disk.set_faults(self.conditions.harmless);
        self.take_stats(&store);
        let refused = store.stats().writes_refused;
        if self.few_requests {
            self.settle(&mut store);
        }
        let demands = !self.disk.is_cut_off() && !refused && !self.may_be_erased();
        if demands && self.random.once_in(2) {
            // After a reopening what went too soon may be back: it is still in the log.
            self.demand_versions(&mut store);
        }
        if !self.disk.is_cut_off() && !refused && self.random.once_in(2) {
            self.disk.cut_off_after(u64::MAX);
            self.close(store);
        } else {
            drop(store);
        }
        self.power_cut();
        if self.random.once_in(3) && self.erases.is_none() {
            self.damage_one_of_two();
        }
    }

    /// Some requests and the other events of the run; then the answers are checked.
    fn step(&mut self, store: &mut Store) {
        for _ in 0..self.random.below(5) {
            self.submit_something(store);
        }
        if self.random.once_in(40) {
            store.idle();
        }
        if self.random.once_in(20) {
            store.scrub();
        }
        if self.views.wanted && self.random.once_in(40) {
            self.change_views(store);
        }
        self.erase_now_and_then(store);
        if self.replica.is_some() && self.random.once_in(12) {
            self.replicate(store);
        }
        self.take_answers(store);
    }

    /// An orderly end: everything answered is durable.
    fn close(&mut self, mut store: Store) {
        if self.may_be_erased() {
            // It goes on at the next opening, or had not begun.
            return drop(store.close());
        }
        store.execute(Op::Flush).expect("nothing goes wrong any more");
        self.take_answers(&mut store);
        let mark = self.model.flush_mark();
        store.close().expect("nothing goes wrong any more");
        self.model.flushed(mark);
    }

    fn power_cut(&mut self) {
        self.asked.clear();
        self.disk.crash();
    }

    /// Nothing goes wrong any more: is everything there?
    pub(super) fn last_look(&mut self) {
        let mut store = self.reopen();
        if self.replica.is_some() {
            self.replicate_all(&mut store);
        }
        assert!(self.compare_worlds(&mut store), "nothing goes wrong any more");
        self.seen.ios = self.disk.ios();
    }

    /// A short history, cut off after so many I/Os; false if it ended before that.
    pub(super) fn cut_off_at(&mut self, ios: u64) -> bool {
        let mut requests = self.random.fork();
        self.disk.cut_off_after(ios);
        if let Some(mut store) = self.open() {
            for _ in 0..60 {
                self.random = requests.fork();
                self.step(&mut store);
                if self.disk.is_cut_off() || self.views.limbo.is_some() {
                    break;
                }
            }
            if !self.disk.is_cut_off() {
                // The end is part of the history.
                let _ = store.close();
            }
        }
        let cut_off = self.disk.is_cut_off();
        self.power_cut();
        let mut store = self.open().expect("nothing goes wrong any more");
        assert!(self.compare_worlds(&mut store), "nothing goes wrong any more");
        self.demand_versions(&mut store);
        cut_off
    }

    /// A history in which one write goes astray; then a look at every block.
    pub(super) fn with_stray(&mut self, stray: Stray) {
        let mut store = self.open().expect("nothing goes wrong yet");
        self.disk.stray_after(self.random.below(150), stray);
        for _ in 0..20 + self.random.below(200) {
            self.step(&mut store);
        }
        self.take_stats(&store);
        match self.random.below(3) {
            0 => drop(store.close()),
            1 => {
                self.settle(&mut store);
                self.compare_after_lie(&mut store, None);
            }
            _ => {}
        }
        self.disk.stray_after(u64::MAX, stray);
        self.seen.strays += u64::from(self.disk.has_strayed());
        self.power_cut();
        let report = CheckReport::of_backend(&mut self.disk.backend(true));
        match self.try_open() {
            Ok(mut store) => {
                let report = report.expect("what opens can be checked");
                self.compare_after_lie(&mut store, Some(&report));
                self.compare_snapshots_after_lie(&mut store);
            }
            Err(StoreError::Damaged { .. } | StoreError::Superblock(_)) => {
                assert!(self.disk.has_strayed(), "nothing was wrong");
                self.seen.refused_to_open += 1;
            }
            Err(error) => panic!("the store does not open: {error}"),
        }
    }

    /// A history, damage, a repair; then a look at every block.
    pub(super) fn with_damage(&mut self) {
        for _ in 0..3 {
            let mut store = self.open().expect("nothing goes wrong yet");
            for _ in 0..30 {
                self.step(&mut store);
            }
            self.settle(&mut store);
            self.take_stats(&store);
            self.close(store);
        }
        let segments = Survey::of_backend(&mut self.disk.backend(true)).info().expect("whole").segments;
        let segment_pages = u64::from(self.volume.segment_bytes / 4096);
        for _ in 0..1 + self.random.below(3) {
            let page = match self.random.below(8) {
                0 => 0,
                _ => 256 + self.random.below(u64::from(segments) * segment_pages),
            };
            self.disk.overwrite(page * 4096, &[0x5a; 4096]);
        }
        let mut saved = 0;
        let mut repair = |options| {
            let save = &mut |_, bytes: &[u8]| {
                saved += bytes.len();
                Ok(())
            };
            RepairPlan::carry_out_on(Box::new(self.disk.backend(true)), options, save)
                .expect("repair goes as far as it can")
        };
        let plan = repair(RepairOptions::default());
        assert!(plan.steps.iter().all(|step| !step.done), "a dry run does nothing");
        let plan = repair(RepairOptions { apply: true, accept_data_loss: false });
        assert!(plan.steps.iter().all(|step| step.done == step.loses.is_empty()), "nothing is lost without consent");
        let plan = repair(RepairOptions { apply: true, accept_data_loss: true });
        let needed = !plan.steps.is_empty();
        assert!(plan.steps.iter().all(|step| step.done), "everything is done with consent: {plan:?}");
        assert!(!needed || saved > 0, "what is changed is saved");
        self.seen.repairs += u64::from(needed);
        self.model.forget_claims();
        let report = CheckReport::of_backend(&mut self.disk.backend(true)).expect("it opens after its repair");
        let mut store = self.open().expect("it opens after its repair");
        self.compare_after_lie(&mut store, Some(&report));
        self.seen.checks += 1;
        drop(store.close());
    }
}
