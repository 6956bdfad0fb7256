//! Appending: what goes into the next unit, and what complete and failed groups do.

use std::io;

use strongroom_block::StoreSequence;

use super::Store;
use super::access::LogAccess;
use super::appender::{FailedAppends, UnitContent, UnitSpace, WrittenUnit, is_no_space};
use super::compaction::Room;
use super::policy::Demand;
use super::queue::{Answer, Check, ConditionCheck};
use super::read_parts::{Owner, Wanted};
use super::reading::read_access;
use super::request::{Content, Gate, MakesRoom, WriteRequest, least_unit_blocks};
use super::update::{Finished, Group, GroupKind, Update};
use super::widening::Widening;
use crate::cache::RecordKey;
use crate::catalogue::Change;
use crate::layout::RECORD_BLOCK;
use crate::op::{OpError, Outcome};
use crate::unit::UnitBuilder;

impl Store {
    /// Starts the next append, if it may go now and there is something to append.
    pub(super) fn drive_append(&mut self) -> bool {
        if !self.log.is_empty() {
            return self.append_along();
        }
        if self.requests.is_refused() {
            return self.fail_writes();
        }
        if self.log.group.open {
            return match self.log.group.kind {
                GroupKind::Table => self.append_table(),
                GroupKind::Writes | GroupKind::Compaction => self.append_writes(),
            };
        }
        if self.durability.round.is_writing_tables() || self.wants_table() {
            return self.append_table();
        }
        if let Some(progress) = self.copies_first() {
            return progress;
        }
        if let Some(progress) = self.foreground() {
            return progress;
        }
        if self.compactor.has_copies() && self.copies_may_mix() && self.copies_may_go() {
            return self.append_copies();
        }
        self.writes.is_empty() && self.append_feedback()
    }

    /// Another unit beside those in flight: of copies that have a segment to themselves; of writes if much is queued, or only copies
    /// are in flight; and if nothing else has its turn.
    fn append_along(&mut self) -> bool {
        if !self.log.may_go_along() || self.requests.is_refused() || self.wants_table() {
            return false;
        }
        let head_is_full = self.log.head_is_full(&self.volume);
        let (head, copies) = (self.log.head.segment, self.log.copies_in_flight());
        if !self.log.group.open && self.compactor.may_go_along(head, head_is_full, copies) && self.copies_may_go() {
            return self.append_copies();
        }
        let much_to_write =
            self.writes.has_half_a_unit(&self.log.limits) || self.log.has_only_copies() && self.writes.front_is_data();
        let may = much_to_write
            && self.writes.front_is_new(&self.volume)
            && self.log.is_ready(&self.segments, &self.volume)
            && !self.compactor.is_next(head_is_full, self.space.room.is_urgent());
        if !may {
            return false;
        }
        if !self.log.group.open {
            if self.writes.rejection(&self.views.map).is_some() || !self.front_fits() {
                return false;
            }
            self.write_decided(true);
        }
        self.log.counters.units_alongside += 1;
        self.append_writes()
    }

    /// The first queued request, if it can go on now. `None`: it has to wait, or there is none.
    fn foreground(&mut self) -> Option<bool> {
        if let Some(error) = self.writes.rejection(&self.views.map) {
            self.answer_front(Err(error));
            return Some(true);
        }
        let Some(front) = self.writes.front() else { return self.relieve() };
        if self.views.hiding.holds_up(front) || matches!(front.gate, Gate::Reading(..)) {
            return None;
        }
        if let Some(verdict) = self.check_front() {
            return verdict;
        }
        if !matches!(self.writes.front().expect("it passed the check").gate, Gate::Open) {
            return Some(self.check_condition());
        }
        if self.writes.front_discards_nothing(&self.views.map, &self.volume) {
            self.answer_front(Ok(Outcome::Written { first: StoreSequence(0), repeated: 0, superseded: 0 }));
            return Some(true);
        }
        if self.front_fits() {
            self.space.room.end_slices();
            self.write_decided(true);
            return Some(self.append_writes());
        }
        match self.make_room(Demand::Request) {
            Room::Waits => return None,
            Room::GoesOn => return Some(true),
            Room::Nothing => {}
        }
        self.write_decided(false);
        self.answer_front(Err(OpError::NoSpace));
        Some(true)
    }

    fn answer_front(&mut self, result: Result<Outcome, OpError>) {
        let request = self.writes.pop().expect("the caller saw it");
        self.requests.complete(request.token, request.bytes, result);
    }

    /// The first request is appended, or refused for want of space.
    fn write_decided(&mut self, accepted: bool) {
        self.end_room_search();
        if accepted {
            self.compactor.give_turn();
        }
        if self.space.write_decided(accepted) {
            let counts = self.counts();
            self.space.note_change(&counts, accepted);
        }
    }

    /// Checks the first request against the operation windows; `None`: it passed, else as [`Store::foreground`].
    fn check_front(&mut self) -> Option<Option<bool>> {
        match self.writes.check_front(&self.views.map, &self.volume, self.views.hiding.is_busy()) {
            Check::Passed => return None,
            Check::WaitsForHiding => return Some(None),
            Check::WaitsForPoll => {
                self.space.room.await_slices();
                return Some(None);
            }
            Check::NeedsBases(ticket, versions) => {
                let owner = Owner::Gate(ticket);
                self.reader.start_versions(&mut read_access!(self), owner, &versions, Wanted::Records);
                self.deliver_reads();
            }
            Check::Answered(answer) => {
                let (request, result) = *answer;
                match result {
                    // The initiator need not keep it for a replay.
                    Ok(outcome) => self.complete_when_durable(&request, outcome),
                    Err(error) => self.requests.complete(request.token, request.bytes, Err(error)),
                }
            }
        }
        Some(Some(true))
    }

    /// Begins to check the condition of the first request.
    fn check_condition(&mut self) -> bool {
        match self.writes.begin_condition(&self.views.map, &self.volume) {
            ConditionCheck::Holds => {}
            ConditionCheck::Answered(answer) => self.answer_condition(answer),
            ConditionCheck::Read { ticket, node, lba, count, wanted } => {
                self.start_read(Owner::Gate(ticket), node, &[(lba, count)], wanted);
            }
        }
        true
    }

    /// A condition does not hold.
    pub(super) fn answer_condition(&mut self, answer: Answer) {
        let (request, result) = *answer;
        match result {
            // A repetition must be as durable as the caller wants the write to be.
            Ok(outcome) if request.fua => self.complete_when_durable(&request, outcome),
            result => self.requests.complete(request.token, request.bytes, result),
        }
    }

    fn complete_when_durable(&mut self, request: &WriteRequest, outcome: Outcome) {
        self.answer_when_durable(self.log.head.completed_lsn, request.token, request.bytes, outcome);
    }

    /// Whether the first request fits without the reserve. While the reserve is used even room in the head is kept for
    /// compaction: so an opening that is cut short never leaves fewer free segments than it found.
    fn front_fits(&self) -> bool {
        let Some(request) = self.writes.front() else { return true };
        if self.log.head.next_sequence + request.sequences() >= self.durability.superblocks.current().sequence_limit {
            return false;
        }
        let (left, blocks) = (self.log.blocks_left(), request.blocks_at_most(&self.log.limits));
        let more = match request.makes_room() {
            _ if blocks <= left => 0,
            MakesRoom::No => (blocks - left).div_ceil(self.log.limits.segment_blocks - 1) + 1,
            // One small unit.
            MakesRoom::Perhaps | MakesRoom::Surely => 1,
        };
        self.space.fits(&self.counts(), request, more, &self.views.map, &self.volume)
    }

    /// Fails everything that wants to write.
    fn fail_writes(&mut self) -> bool {
        let refusal = self.requests.refusal();
        let mut progress = false;
        self.log.group.updates.clear();
        self.log.group.open = false;
        for Finished { token, bytes, .. } in std::mem::take(&mut self.log.group.finished) {
            self.requests.complete(token, bytes, Err(refusal.clone()));
            progress = true;
        }
        while let Some(request) = self.writes.pop() {
            self.requests.complete(request.token, request.bytes, Err(refusal.clone()));
            progress = true;
        }
        progress |= self.fail_growth(refusal.clone());
        progress | self.fail_waiters(&refusal)
    }

    /// The size of the next unit, in 4 KiB blocks. `None`: a new head is being allocated, or there is no space.
    pub(super) fn unit_limit(&mut self, least: u32) -> Option<u32> {
        let access = &mut LogAccess { segments: &mut self.segments, io: &mut self.io, volume: &self.volume };
        match self.log.unit_space(access, least) {
            UnitSpace::Blocks(blocks) => Some(blocks),
            UnitSpace::Allocating => None,
            UnitSpace::NoSegment => {
                self.out_of_space();
                None
            }
        }
    }

    pub(super) fn append_unit(&mut self, unit: UnitBuilder, content: UnitContent, kind: GroupKind, last: bool) {
        let access = &mut LogAccess { segments: &mut self.segments, io: &mut self.io, volume: &self.volume };
        self.log.append(access, unit, content, kind, last);
    }

    fn append_writes(&mut self) -> bool {
        let Some(limit) = self.unit_limit(least_unit_blocks(&self.volume.layout)) else { return true };
        let limit = limit.min(self.log.limits.unit_blocks);
        let mut unit = UnitBuilder::new(self.volume.layout, limit);
        let mut content = UnitContent::default();
        let (mut partial, mut alone) = (false, false);
        let is_possible = !self.volume.is_sealed() && self.log.is_empty() && !self.log.group.open;
        let mut widening = Widening::new(is_possible);
        while let Some(mut request) = self.writes.pop() {
            let starts = request.done == 0;
            if starts && !unit.is_empty() && (alone || !self.may_join(&request, &unit, limit)) {
                self.writes.push_front(request);
                break;
            }
            alone = matches!(request.content, Content::Change(_));
            if starts {
                request.first = self.log.head.next_sequence;
                // Also one that joined others, and is cut.
                request.checked = true;
                widening.widen(&self.views.map, &mut request);
            }
            let (block_bytes, next) = (self.volume.layout.block_bytes, &mut self.log.head.next_sequence);
            if !request.push(&mut unit, block_bytes, next, &mut content.updates, &mut content.data) {
                self.writes.push_front(request);
                partial = true;
                break;
            }
            let window_entry = self.writes.note(&request);
            self.log.group.finished.push(Finished {
                token: request.token,
                bytes: request.bytes,
                first: request.first,
                fua: request.fua,
                holes: matches!(request.content, Content::Holes(_)),
                outcome: request.outcome(),
                window_entry,
                lost: request.replay.as_ref().and_then(|replay| replay.lost),
            });
        }
        self.views.retention.push_feedback(&mut unit);
        self.log.counters.written += unit.data_bytes();
        self.append_unit(unit, content, GroupKind::Writes, !partial);
        if alone {
            self.log.make_exclusive();
        }
        true
    }

    /// Whether a request may go into a unit that has others already.
    fn may_join(&self, request: &WriteRequest, unit: &UnitBuilder, limit: u32) -> bool {
        let blocks = request.blocks_at_most(&self.log.limits);
        let left = limit - unit.blocks();
        let cheap_to_cut = self.log.blocks_left() - unit.blocks() < blocks;
        let more = request.segments_more(&self.log.limits) + 1;
        matches!(request.gate, Gate::Open)
            && !matches!(request.content, Content::Change(_))
            && self.views.map.catalogue.head(request.branch).is_some()
            && self.writes.is_new(request, &self.volume)
            && (blocks <= left || cheap_to_cut)
            && self.log.head.next_sequence + request.sequences() < self.durability.superblocks.current().sequence_limit
            && (blocks <= left || self.space.fits(&self.counts(), request, more, &self.views.map, &self.volume))
    }

    /// Appends feedback that no write took along.
    fn append_feedback(&mut self) -> bool {
        // It is worth a unit, but not the reserve.
        if !self.views.retention.wants_unit() || self.segments.free_count() <= self.counts().reserve() {
            return false;
        }
        let Some(limit) = self.unit_limit(least_unit_blocks(&self.volume.layout)) else { return true };
        let mut unit = UnitBuilder::new(self.volume.layout, limit);
        self.views.retention.push_feedback(&mut unit);
        self.append_unit(unit, UnitContent::default(), GroupKind::Writes, true);
        true
    }

    pub(super) fn allocate_done(&mut self, result: io::Result<()>) {
        let Err(error) = self.log.allocated(&mut self.segments, result) else { return };
        if is_no_space(&error) {
            let counts = self.counts();
            self.space.host_refused(&counts);
            self.out_of_space();
        } else {
            self.requests.refuse_writes("allocating a segment", &error);
        }
    }

    /// No space for the work at hand: it fails, and everything queued behind it, which would meet the same end.
    fn out_of_space(&mut self) {
        tracing::warn!(volume = %self.volume.info.volume_id, "no space left for the store");
        self.durability.round.block();
        self.compactor.block();
        let group = std::mem::take(&mut self.log.group);
        self.void_groups(vec![group]);
        self.tables_out_of_space();
        if self.durability.growth_wants_round() {
            self.fail_growth(OpError::NoSpace);
        }
        while let Some(request) = self.writes.pop() {
            self.requests.complete(request.token, request.bytes, Err(OpError::NoSpace));
        }
    }

    pub(super) fn append_done(&mut self, lsn: u64, result: io::Result<()>) {
        self.log.write_done(lsn, result);
        while let Some(unit) = self.log.next_written(&mut self.segments) {
            self.cache_records(&unit);
            if let Some(group) = unit.closes {
                self.apply_group(group, unit.header.lsn);
            }
        }
        if let Some(failed) = self.log.take_failed() {
            self.appends_failed(failed);
        }
    }

    fn cache_records(&mut self, unit: &WrittenUnit) {
        let WrittenUnit { header, block, records, .. } = unit;
        for index in 0..u32::from(header.record_blocks) {
            let at = index as usize * RECORD_BLOCK;
            let slice = &records[at..at + RECORD_BLOCK];
            // A slice would keep the other record blocks in memory.
            let copy =
                if header.record_blocks == 1 { records.clone() } else { strongroom_block::Buffer::copy_from(slice) };
            self.reader.records.insert(RecordKey { generation: header.generation, block: block + index }, copy);
        }
    }

    fn appends_failed(&mut self, failed: FailedAppends) {
        let FailedAppends { groups, error } = failed;
        if !is_no_space(&error) {
            self.requests.refuse_writes("writing to the log", &error);
            let refusal = self.requests.refusal();
            for finished in groups.into_iter().flat_map(|group| group.finished) {
                self.requests.complete(finished.token, finished.bytes, Err(refusal.clone()));
            }
            return;
        }
        self.durability.round.block();
        self.compactor.block();
        self.void_groups(groups);
        if self.writes.front().is_some_and(|request| request.done > 0) {
            self.answer_front(Err(OpError::NoSpace));
        }
    }

    /// A group is complete: the index changes, its requests complete.
    fn apply_group(&mut self, group: Group, lsn: u64) {
        let mut has_change = false;
        for update in group.updates {
            if let Update::Change { change, .. } = &update {
                has_change = true;
                if let Change::CloneDelete { branch } = **change {
                    self.writes.operations.forget_branch(branch);
                }
            }
            self.views.apply(update, &mut self.segments, &self.volume);
        }
        self.evict_versions();
        if has_change {
            self.note_catalogue();
        }
        for finished in group.finished {
            let Finished { token, bytes, .. } = finished;
            match finished.answer() {
                _ if finished.holes => self.views.hiding.answer_when_hidden(finished),
                Ok(outcome) if finished.fua => self.answer_when_durable(lsn, token, bytes, outcome),
                answer => self.requests.complete(token, bytes, answer),
            }
        }
        match group.kind {
            GroupKind::Writes => {}
            GroupKind::Table => self.table_written(lsn),
            GroupKind::Compaction => self.compactor.copies_written(&mut self.segments, lsn),
        }
    }

    /// These groups, the last of the log, failed for want of space: their requests fail, nothing else is affected.
    fn void_groups(&mut self, groups: Vec<Group>) {
        self.log.rewind(&mut self.segments, &groups);
        for group in groups {
            for Finished { token, bytes, window_entry, .. } in group.finished {
                window_entry.into_iter().for_each(|entry| self.writes.take_back(entry));
                self.requests.complete(token, bytes, Err(OpError::NoSpace));
            }
            match group.kind {
                GroupKind::Writes => {}
                GroupKind::Table => self.table_failed(),
                GroupKind::Compaction => {
                    self.compactor.copies_failed(&mut self.segments);
                    self.fill_pool();
                }
            }
        }
    }

    /// Hides what holes cover, as much as this poll allows, and answers requests for holes.
    pub(super) fn drive_hiding(&mut self) -> bool {
        let mut progress = self.views.advance_hiding(&mut self.segments, &self.volume);
        while let Some(finished) = self.views.hiding.next_answered() {
            self.requests.complete(finished.token, finished.bytes, finished.answer());
            progress = true;
        }
        progress
    }

    pub(super) fn evict_versions(&mut self) -> bool {
        self.views.evict(&mut self.segments, &self.volume)
    }
}
