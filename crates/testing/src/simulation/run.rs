//! One run of one seed: the disk, the store on it, what was asked of it, and what is expected.

use std::sync::Arc;

use strongroom_block::{BlockSize, Custody, HoleRecord, Lba, SealingDomain};
use strongroom_store::{
    CheckReport, Op, OpError, Outcome, Planted, RepairOptions, RepairPlan, Store, StoreError, Survey, UnitKind,
};

use super::asked::PendingRequests;
use super::disk_conditions::DiskConditions;
use super::erases::Erases;
use super::expectation::Expectation;
use super::inspection::{Inspection, ReadFailures};
use super::replica::Replication;
use super::replica_store::Replica;
use super::seen::Seen;
use super::store_settings::StoreSettings;
use super::volume::Volume;
use crate::{Faults, Model, Random, SimDisk, Stray};

/// One run.
pub(super) struct Run {
    pub(super) random: Random,
    pub(super) disk: SimDisk,
    pub(super) expected: Expectation,
    pub(super) pending: PendingRequests,
    pub(super) seen: Seen,
    pub(super) conditions: DiskConditions,
    pub(super) settings: StoreSettings,
    /// The store that snapshots are sent to.
    pub(super) replica: Option<Replica>,
    /// If the volume is erased at times.
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
        let volume = Volume { kind, block_size, segment_bytes, blocks };
        let options = volume.create_options(1, &mut random);
        Store::create_on(Box::new(disk.backend(true)), &options).expect("the disk is new");
        Run {
            random,
            disk,
            expected: Expectation::new(volume),
            pending: PendingRequests::new(),
            seen: Seen::default(),
            conditions: DiskConditions::default(),
            settings: StoreSettings::new(planted),
            replica: None,
            erases: None,
        }
    }

    /// What else goes on in this run. What snapshots pin counts as retained in other ways, so nothing is demanded then.
    pub(super) fn choose_what_goes_on(&mut self) {
        self.expected.growth.wanted = self.random.once_in(3);
        self.expected.views.wanted = self.random.once_in(2);
        if self.expected.views.wanted {
            self.expected.model.retains(0);
            let is_sent = self.random.once_in(2);
            self.replica = is_sent.then(|| Replica::empty(&self.expected.volume, &mut self.random));
        }
    }

    /// Reads what the store holds, to compare it.
    pub(super) fn inspect<'a>(&'a mut self, store: &'a mut Store) -> Inspection<'a> {
        let failures = ReadFailures {
            medium: self.reads_may_fail(),
            busy: self.settings.few_requests,
            erasing: self.may_be_erased(),
        };
        Inspection { store, expected: &mut self.expected, seen: &mut self.seen, disk: &self.disk, failures }
    }

    /// The store that snapshots are sent to, and what sending uses.
    fn replication(&mut self) -> (&mut Replica, Replication<'_>) {
        let replication = Replication {
            random: &mut self.random,
            settings: &mut self.settings,
            expected: &self.expected,
            seen: &mut self.seen,
            disk: &self.disk,
            failing_reads: self.conditions.failing_reads,
        };
        (self.replica.as_mut().expect("there is one"), replication)
    }

    fn try_open(&mut self) -> Result<Store, StoreError> {
        let orderly = self.random.once_in(4);
        let options = self.settings.choose(&mut self.random);
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
        if self.expected.volume.kind.is_sealed() {
            assert!(matches!(store.execute(Op::Read { lba: Lba(0), count: 1 }), Err(OpError::NotFormatted { .. })));
            let volume = &self.expected.volume;
            let hole = HoleRecord { start: Lba(0), count: volume.blocks, record: volume.record(0, 0, None) };
            let written = store.execute(Op::Hole { holes: vec![hole], origin: None });
            let Ok(Outcome::Written { first, .. }) = written else { panic!("{written:?}") };
            self.expected.model = Model::new(volume.blocks, volume.block_size, first.0);
            self.expected.model.retains(store.info().retention_blocks);
        }
        if self.random.once_in(3) {
            self.fill(&mut store);
        }
        let mark = self.expected.model.flush_mark();
        store.execute(Op::Flush).expect("nothing goes wrong yet");
        self.expected.model.flushed(mark);
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
                if self.erase_goes_on(&mut store) && self.inspect(&mut store).compare_worlds() {
                    self.inspect(&mut store).demand_versions();
                    self.disk.cut_off_after(u64::MAX);
                    if !self.disk.is_cut_off() {
                        return store;
                    }
                }
                drop(store);
            }
            self.seen.cut_offs_while_opening += 1;
            self.pending.forget();
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
        let (faults, failing_writes) = match self.erases {
            Some(_) => Erases::rare_faults(faults, self.conditions.fills_up, &mut self.random),
            None => (faults, false),
        };
        self.conditions.failing_syncs |= failing_writes;
        self.conditions.cuts = true;
        for _ in 0..steps {
            if self.conditions.fills_up && self.random.once_in(8) {
                let pages_max = self.disk.pages() + self.random.below(40) as usize;
                self.disk.set_faults(Faults { pages_max, ..faults });
            } else if self.random.once_in(8) {
                self.disk.set_faults(faults);
            }
            self.step(&mut store);
            if self.disk.is_cut_off() || self.expected.views.limbo.is_some() {
                break;
            }
        }
        self.conditions.cuts = false;
        self.disk.set_faults(self.conditions.harmless);
        self.take_stats(&store);
        let refused = store.stats().writes_refused;
        if self.settings.few_requests {
            self.settle(&mut store);
        }
        let demands = !self.disk.is_cut_off() && !refused && !self.may_be_erased();
        if demands && self.random.once_in(2) {
            // After a reopening what went too soon may be back: it is still in the log.
            self.inspect(&mut store).demand_versions();
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
        if self.expected.views.wanted && self.random.once_in(40) {
            self.change_views(store);
        }
        self.erase_now_and_then(store);
        if self.replica.is_some() && self.random.once_in(12) {
            let (replica, mut replication) = self.replication();
            replica.replicate(store, &mut replication);
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
        let mark = self.expected.model.flush_mark();
        store.close().expect("nothing goes wrong any more");
        self.expected.model.flushed(mark);
    }

    fn power_cut(&mut self) {
        self.pending.forget();
        self.disk.crash();
    }

    /// Nothing goes wrong any more: is everything there?
    pub(super) fn last_look(&mut self) {
        let mut store = self.reopen();
        if self.replica.is_some() {
            let (replica, mut replication) = self.replication();
            replica.replicate_all(&mut store, &mut replication);
        }
        assert!(self.inspect(&mut store).compare_worlds(), "nothing goes wrong any more");
        self.seen.ios = self.disk.ios();
    }

    /// A short history, cut off after this many I/Os; false if it ended before that.
    pub(super) fn cut_off_at(&mut self, ios: u64) -> bool {
        let mut requests = self.random.fork();
        self.disk.cut_off_after(ios);
        if let Some(mut store) = self.open() {
            for _ in 0..60 {
                self.random = requests.fork();
                self.step(&mut store);
                if self.disk.is_cut_off() || self.expected.views.limbo.is_some() {
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
        assert!(self.inspect(&mut store).compare_worlds(), "nothing goes wrong any more");
        self.inspect(&mut store).demand_versions();
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
                self.inspect(&mut store).compare_after_lie(None);
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
                self.inspect(&mut store).compare_after_lie(Some(&report));
                self.inspect(&mut store).compare_snapshots_after_lie();
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
        let segment_pages = u64::from(self.expected.volume.segment_bytes / 4096);
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
            RepairPlan::carry_out_on(Box::new(self.disk.backend(true)), options, save, &mut |_, _| ())
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
        self.expected.model.forget_claims();
        let report = CheckReport::of_backend(&mut self.disk.backend(true)).expect("it opens after its repair");
        let mut store = self.open().expect("it opens after its repair");
        self.inspect(&mut store).compare_after_lie(Some(&report));
        self.seen.checks += 1;
        drop(store.close());
    }
}
