//! Appending: what goes into the next unit, and what complete and failed groups do.

use std::io;

use strongroom_block::StoreSequence;

use super::access::ReadAccess;
use super::appender::{FailedAppends, NoSegment, UnitContent, is_no_space};
use super::engine::Engine;
use super::policy::Demand;
use super::queue::{Answer, Check, ConditionCheck};
use super::read_parts::{Owner, Wanted};
use super::reclaimer::{Reclaimer, Room};
use super::request::{Content, Gate, WriteRequest, least_unit_blocks};
use super::syncs::Waiter;
use super::update::{Finished, Group, GroupKind, Update};
use super::widening::Widening;
use crate::catalogue::Change;
use crate::op::{OpError, Outcome};
use crate::unit::UnitBuilder;

/// What goes into the log next.
impl Engine {
    /// Starts the next append, if it may go now and there is something to append.
    pub(super) fn drive_append(&mut self) -> bool {
        let appended = if self.log.is_empty() { self.append_next() } else { self.append_along() };
        appended.unwrap_or_else(|NoSegment| {
            self.out_of_space();
            true
        })
    }

    /// An append while none is in flight.
    fn append_next(&mut self) -> Result<bool, NoSegment> {
        if self.medium.refusal.is_active() {
            return Ok(self.fail_writes());
        }
        if self.log.group.open {
            return match self.log.group.kind {
                GroupKind::Table => self.reclaim(Reclaimer::append_table),
                GroupKind::Writes | GroupKind::Compaction => self.append_writes(),
            };
        }
        if self.durability.round.is_writing_tables() || self.reclaim(|reclaimer, access| reclaimer.wants_table(access))
        {
            return self.reclaim(Reclaimer::append_table);
        }
        if let Some(progress) = self.reclaim(Reclaimer::copies_first)? {
            return Ok(progress);
        }
        if let Some(progress) = self.foreground()? {
            return Ok(progress);
        }
        if let Some(progress) = self.reclaim(Reclaimer::copies_last)? {
            return Ok(progress);
        }
        if self.writes.is_empty() { self.reclaim(Reclaimer::append_feedback) } else { Ok(false) }
    }

    /// Another unit beside those in flight: of copies that have a segment to themselves; of writes if much is queued, or only copies
    /// are in flight; and if nothing else has its turn.
    fn append_along(&mut self) -> Result<bool, NoSegment> {
        let may = self.log.may_go_along() && !self.medium.refusal.is_active();
        if !may || self.reclaim(|reclaimer, access| reclaimer.wants_table(access)) {
            return Ok(false);
        }
        if let Some(progress) = self.reclaim(Reclaimer::copies_along)? {
            return Ok(progress);
        }
        let (volume, segments) = (&self.medium.volume, &self.medium.segments);
        let Reclaimer { space, compactor } = &self.reclaimer;
        let much_to_write =
            self.writes.has_half_a_unit(&self.log.limits) || self.log.has_only_copies() && self.writes.front_is_data();
        let may = much_to_write
            && self.writes.front_is_new(volume)
            && self.log.is_ready(segments, volume)
            && !compactor.is_next(self.log.head_is_full(volume), space.room.is_urgent());
        if !may {
            return Ok(false);
        }
        if !self.log.group.open {
            if self.writes.rejection(&self.views.map).is_some()
                || !self.reclaim(|reclaimer, access| reclaimer.front_fits(access))
            {
                return Ok(false);
            }
            self.reclaim(|reclaimer, access| reclaimer.write_decided(access, true));
        }
        self.log.counters.units_alongside += 1;
        self.append_writes()
    }

    /// The first queued request, if it can go on now. `None`: it has to wait, or there is none.
    fn foreground(&mut self) -> Result<Option<bool>, NoSegment> {
        if let Some(error) = self.writes.rejection(&self.views.map) {
            self.writes.answer_front(&mut self.requests, Err(error));
            return Ok(Some(true));
        }
        let Some(front) = self.writes.front() else { return Ok(self.reclaim(Reclaimer::relieve)) };
        if self.views.hiding.holds_up(front) || matches!(front.gate, Gate::Reading(..)) {
            return Ok(None);
        }
        if let Some(verdict) = self.check_front() {
            return Ok(verdict);
        }
        if !matches!(self.writes.front().expect("it passed the check").gate, Gate::Open) {
            self.check_condition();
            return Ok(Some(true));
        }
        if self.writes.front_discards_nothing(&self.views.map, &self.medium.volume) {
            let outcome = Outcome::Written { first: StoreSequence(0), repeated: 0, superseded: 0 };
            self.writes.answer_front(&mut self.requests, Ok(outcome));
            return Ok(Some(true));
        }
        if self.reclaim(|reclaimer, access| reclaimer.front_fits(access)) {
            self.reclaimer.space.room.end_slices();
            self.reclaim(|reclaimer, access| reclaimer.write_decided(access, true));
            return self.append_writes().map(Some);
        }
        match self.reclaim(|reclaimer, access| reclaimer.make_room(access, Demand::Request)) {
            Room::Waits => return Ok(None),
            Room::GoesOn => return Ok(Some(true)),
            Room::Nothing => {}
        }
        self.reclaim(|reclaimer, access| reclaimer.write_decided(access, false));
        self.writes.answer_front(&mut self.requests, Err(OpError::NoSpace));
        Ok(Some(true))
    }

    /// Checks the first request against the operation windows; `None`: it passed, else as [`Engine::foreground`].
    fn check_front(&mut self) -> Option<Option<bool>> {
        match self.writes.check_front(&self.views.map, &self.medium.volume, self.views.hiding.is_busy()) {
            Check::Passed => return None,
            Check::WaitsForHiding => return Some(None),
            Check::WaitsForPoll => {
                self.reclaimer.space.room.await_slices();
                return Some(None);
            }
            Check::NeedsBases(ticket, versions) => {
                let owner = Owner::Gate(ticket);
                let access = &mut ReadAccess { map: &self.views.map, medium: &mut self.medium };
                self.reader.start_versions(access, owner, &versions, Wanted::Records);
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
    fn check_condition(&mut self) {
        match self.writes.begin_condition(&self.views.map, &self.medium.volume) {
            ConditionCheck::Holds => {}
            ConditionCheck::Answered(answer) => self.answer_condition(answer),
            ConditionCheck::Read { ticket, node, lba, count, wanted } => {
                let access = &mut ReadAccess { map: &self.views.map, medium: &mut self.medium };
                self.reader.start(access, Owner::Gate(ticket), node, &[(lba, count)], wanted);
                self.deliver_reads();
            }
        }
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

    /// Completes a request when all that was appended is durable.
    fn complete_when_durable(&mut self, request: &WriteRequest, outcome: Outcome) {
        let (token, bytes) = (request.token, request.bytes);
        let waiter = Waiter { lsn: self.log.head.completed_lsn, token, bytes, outcome };
        self.durability.answer_when_durable(&mut self.requests, &self.log.head, &self.medium, waiter);
    }

    /// Fails everything that wants to write.
    fn fail_writes(&mut self) -> bool {
        let refusal = self.medium.refusal.answer();
        let mut progress = false;
        self.log.group.updates.clear();
        self.log.group.open = false;
        for Finished { token, bytes, .. } in std::mem::take(&mut self.log.group.finished) {
            self.requests.complete(token, bytes, Err(refusal.clone()));
            progress = true;
        }
        progress |= self.writes.fail_all(&mut self.requests, &refusal);
        progress |= self.durability.fail_growth(&mut self.requests, refusal.clone());
        progress | self.durability.fail_waiters(&mut self.requests, &refusal)
    }

    fn append_writes(&mut self) -> Result<bool, NoSegment> {
        let layout = self.medium.volume.layout;
        let Some(limit) = self.log.unit_space(&mut self.medium, least_unit_blocks(&layout))? else { return Ok(true) };
        let limit = limit.min(self.log.limits.unit_blocks);
        let mut unit = UnitBuilder::new(layout, limit);
        let mut content = UnitContent::default();
        let (mut partial, mut alone) = (false, false);
        let is_possible = !self.medium.volume.is_sealed() && self.log.is_empty() && !self.log.group.open;
        let mut widening = Widening::new(is_possible);
        while let Some(mut request) = self.writes.pop() {
            let starts = request.done == 0;
            if starts
                && !unit.is_empty()
                && (alone || !self.reclaim(|reclaimer, access| reclaimer.may_join(access, &request, &unit, limit)))
            {
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
            let (block_bytes, next) = (layout.block_bytes, &mut self.log.head.next_sequence);
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
        self.log.append(&mut self.medium, unit, content, GroupKind::Writes, !partial);
        if alone {
            self.log.make_exclusive();
        }
        Ok(true)
    }
}

/// What complete and failed groups do.
impl Engine {
    /// No space for the work at hand: it fails, and everything queued behind it, which would meet the same end.
    pub(super) fn out_of_space(&mut self) {
        tracing::warn!(volume = %self.medium.volume.info.volume_id, "no space left for the store");
        self.durability.round.block();
        self.reclaimer.compactor.block();
        let group = std::mem::take(&mut self.log.group);
        self.void_groups(vec![group]);
        self.durability.tables_out_of_space(&mut self.requests, &mut self.medium);
        self.writes.fail_all(&mut self.requests, &OpError::NoSpace);
    }

    pub(super) fn append_done(&mut self, lsn: u64, result: io::Result<()>) {
        self.log.write_done(lsn, result);
        while let Some(unit) = self.log.next_written(&mut self.medium.segments) {
            self.reader.cache_records(&unit.header, unit.block, &unit.records);
            if let Some(group) = unit.closes {
                self.apply_group(group, unit.header.lsn);
            }
        }
        if let Some(failed) = self.log.take_failed() {
            self.appends_failed(failed);
        }
    }

    fn appends_failed(&mut self, failed: FailedAppends) {
        let FailedAppends { groups, error } = failed;
        if !is_no_space(&error) {
            self.medium.refusal.begin("writing to the log", &error);
            let refusal = self.medium.refusal.answer();
            for finished in groups.into_iter().flat_map(|group| group.finished) {
                self.requests.complete(finished.token, finished.bytes, Err(refusal.clone()));
            }
            return;
        }
        self.durability.round.block();
        self.reclaimer.compactor.block();
        self.void_groups(groups);
        if self.writes.front().is_some_and(|request| request.done > 0) {
            self.writes.answer_front(&mut self.requests, Err(OpError::NoSpace));
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
            self.views.apply(update, &mut self.medium.segments, &self.medium.volume);
        }
        self.views.evict(&mut self.medium);
        if has_change {
            self.durability.round.note_catalogue(&self.views.map.catalogue);
        }
        for finished in group.finished {
            let Finished { token, bytes, .. } = finished;
            match finished.answer() {
                _ if finished.holes => self.views.hiding.answer_when_hidden(finished),
                Ok(outcome) if finished.fua => {
                    let waiter = Waiter { lsn, token, bytes, outcome };
                    self.durability.answer_when_durable(&mut self.requests, &self.log.head, &self.medium, waiter);
                }
                answer => self.requests.complete(token, bytes, answer),
            }
        }
        match group.kind {
            GroupKind::Writes => {}
            GroupKind::Table => self.durability.table_written(&self.log.head, &self.medium, lsn),
            GroupKind::Compaction => self.reclaimer.compactor.copies_written(&mut self.medium.segments, lsn),
        }
    }

    /// These groups, the last of the log, failed for want of space: their requests fail, nothing else is affected.
    fn void_groups(&mut self, groups: Vec<Group>) {
        self.log.rewind(&mut self.medium.segments, &groups);
        for group in groups {
            for Finished { token, bytes, window_entry, .. } in group.finished {
                window_entry.into_iter().for_each(|entry| self.writes.take_back(entry));
                self.requests.complete(token, bytes, Err(OpError::NoSpace));
            }
            match group.kind {
                GroupKind::Writes => {}
                GroupKind::Table => self.durability.table_failed(&mut self.requests, &mut self.medium),
                GroupKind::Compaction => self.reclaim(Reclaimer::copies_failed),
            }
        }
    }
}
