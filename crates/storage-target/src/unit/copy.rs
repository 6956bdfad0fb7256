//! EXTENDED COPY: within the unit, and between units of this target that the initiator is logged in to. In slices, so that it starves
//! nobody; what another unit has to do is an [`Errand`], which that unit judges for itself.

use std::collections::VecDeque;
use std::sync::Arc;

use strongroom_block::{Lba, Token};
use strongroom_iscsi::target::{self as iscsi, Response, TaskId};
use strongroom_scsi::copy::{self, CopyList, CopyStatus, Segment};
use strongroom_scsi::{Command, NexusId, Sense, Status, UnitKind, cdb, inquiry, opcode};
use strongroom_store::{Extent, Op, OpError, Outcome};

use super::work::{Next, Work};
use super::{Ending, Plan, Running, Sanitize, SessionKey, Unit, check_condition, status};
use crate::names::VolumeName;
use crate::neighbours::{Asker, Errand, ErrandError, ErrandReply, ErrandResult};

/// Results of copies that are kept for RECEIVE COPY RESULTS.
const COPY_RESULTS_MAX: usize = 64;
/// Copies that a unit works on at once; each holds a slice in memory. More are told BUSY.
const COPIES_MAX: usize = 16;
/// Errands that a unit does at once for others.
const ERRANDS_MAX: usize = 64;

/// Where a segment begins or ends: in this unit, or in another.
type Place = Option<VolumeName>;

/// EXTENDED COPY: what is still to be done.
pub(super) struct Copying {
    nexus: NexusId,
    asker: Asker,
    list_id: Option<u8>,
    segments: VecDeque<Segment<Place>>,
    /// Writes of the slice at hand.
    pending: VecDeque<Op>,
    segments_done: u16,
    bytes: u64,
}

/// Something for another unit to do.
pub(crate) struct OutwardErrand {
    pub(crate) token: Token,
    pub(crate) to: VolumeName,
    pub(crate) asker: Asker,
    pub(crate) op: Op,
}

/// An errand at work: its reply, and what is to be told once a flush is over (WCE=0).
pub(super) struct Serving {
    reply: ErrandReply,
    flushing: Option<Outcome>,
}

impl Unit {
    pub(super) fn plan_copy(
        &self,
        connection: SessionKey,
        parameter_list_len: u32,
        request: &iscsi::Command,
    ) -> Result<Plan, Sense> {
        if parameter_list_len == 0 {
            return Ok(Plan::Answer(Response::good()));
        }
        if parameter_list_len > copy::LIST_BYTES_MAX {
            return Err(Sense::PARAMETER_LIST_LENGTH);
        }
        let copies = |running: &&Running| matches!(running.work, Work::CopyRead(_) | Work::CopyWrite(_));
        if self.running.values().filter(copies).count() >= COPIES_MAX {
            return Ok(Plan::Answer(status(Status::Busy)));
        }
        let user = self.users.get(&connection).ok_or(Sense::INTERNAL_FAILURE)?;
        let list = self.gather(request, parameter_list_len.into())?;
        let list = CopyList::parse(&list, |kind, designator, block_bytes| self.place(kind, designator, block_bytes))?;
        for segment in &list.segments {
            for (place, lba) in [(&segment.source, segment.from), (&segment.destination, segment.to)] {
                let fits = match place {
                    None => self.check_range(lba, segment.blocks.into()).is_ok(),
                    // How large it is, only the other unit knows.
                    Some(_) => lba.0.checked_add(segment.blocks.into()).is_some(),
                };
                if !fits {
                    return Err(Sense::COPY_ABORTED);
                }
            }
        }
        let copying = Copying {
            nexus: user.nexus.clone(),
            asker: Asker { initiator_name: Arc::clone(&user.nexus.initiator_name), origin: user.origin.clone() },
            list_id: list.list_id,
            segments: list.segments.into(),
            pending: VecDeque::new(),
            segments_done: 0,
            bytes: 0,
        };
        Ok(match self.copy_next(Box::new(copying)) {
            Ok((work, op)) => Plan::Start(work, op),
            Err(_) => Plan::Answer(Response::good()),
        })
    }

    /// The unit that a CSCD descriptor names, if it is open and has blocks as this one.
    fn place(&self, kind: u8, designator: &[u8], block_bytes: u32) -> Option<Place> {
        let block_size = self.volume.geometry.block_size;
        if block_bytes != block_size.bytes() {
            return None;
        }
        if inquiry::designates(self.volume.id, kind, designator) {
            return Some(None);
        }
        self.surroundings.neighbours.find(kind, designator, block_size).map(Some)
    }

    /// The next operation of a copy, or what came of it.
    fn copy_next(&self, mut copying: Box<Copying>) -> Result<(Work, Op), Box<Copying>> {
        if let Some(op) = copying.pending.pop_front() {
            return Ok((Work::CopyWrite(copying), op));
        }
        while let Some(segment) = copying.segments.front() {
            let count = u32::from(segment.blocks).min(self.slice_blocks());
            if count > 0 {
                let op = Op::Read { lba: segment.from, count };
                return Ok((Work::CopyRead(copying), op));
            }
            copying.segments.pop_front();
            copying.segments_done += 1;
        }
        Err(copying)
    }

    /// A slice was read: what has data is written, what has none is discarded.
    pub(super) fn copy_was_read(&mut self, mut copying: Box<Copying>, extents: Vec<Extent>) -> Next {
        let Some(segment) = copying.segments.front_mut() else { return self.copied(copying) };
        let distance = |lba: Lba| Lba(segment.to.0 + (lba.0 - segment.from.0));
        let mut moved = 0;
        for extent in extents {
            let op = match extent {
                Extent::Blocks { lba, data, sequences, .. } => {
                    moved += sequences.len() as u64;
                    Op::Write { lba: distance(lba), data: vec![data], records: Vec::new(), fua: false, origin: None }
                }
                Extent::Hole { lba, count, .. } => {
                    moved += count;
                    Op::Discard { lba: distance(lba), count }
                }
            };
            copying.pending.push_back(op);
        }
        segment.blocks -= moved as u16;
        segment.from.0 += moved;
        segment.to.0 += moved;
        copying.bytes += moved << self.volume.geometry.block_size.shift();
        self.copy_go_on(copying)
    }

    pub(super) fn copy_go_on(&mut self, copying: Box<Copying>) -> Next {
        match self.copy_next(copying) {
            Ok((work, op)) => Next::Again(work, op),
            Err(copying) => self.copied(copying),
        }
    }

    fn copied(&mut self, copying: Box<Copying>) -> Next {
        self.remember_copy(&copying, true);
        Next::Done(Response::good())
    }

    /// A copy broke off; RECEIVE COPY RESULTS tells how far it came.
    pub(super) fn copy_failed(&mut self, copying: &Copying) -> Response {
        self.remember_copy(copying, false);
        check_condition(Sense::COPY_ABORTED)
    }

    pub(super) fn remember_copy(&mut self, copying: &Copying, complete: bool) {
        let Some(list_id) = copying.list_id else { return };
        self.copies.retain(|(nexus, status)| *nexus != copying.nexus || status.list_id != list_id);
        let status = CopyStatus { list_id, complete, segments: copying.segments_done, bytes: copying.bytes };
        self.copies.push_back((copying.nexus.clone(), status));
        if self.copies.len() > COPY_RESULTS_MAX {
            self.copies.pop_front();
        }
    }

    pub(super) fn copy_results(
        &self,
        connection: SessionKey,
        service_action: u8,
        list_id: u8,
    ) -> Result<Vec<u8>, Sense> {
        if service_action == opcode::SA_COPY_OPERATING_PARAMETERS {
            let shift = self.volume.geometry.block_size.shift();
            let most = (u64::from(u16::MAX) << shift).min(u32::MAX.into()) as u32;
            return Ok(copy::operating_parameters(most, COPIES_MAX as u8, shift as u8));
        }
        let user = self.users.get(&connection).ok_or(Sense::INTERNAL_FAILURE)?;
        let found = self.copies.iter().find(|(nexus, status)| *nexus == user.nexus && status.list_id == list_id);
        found.map(|(_, status)| status.encode()).ok_or(Sense::INVALID_FIELD_IN_CDB.in_cdb(2, None))
    }

    /// Where the next operation of a work is to be done, if not here, and for whom.
    pub(super) fn elsewhere(work: &Work) -> Option<(VolumeName, Asker)> {
        let (copying, place) = match work {
            Work::CopyRead(copying) => (copying, &copying.segments.front()?.source),
            Work::CopyWrite(copying) => (copying, &copying.segments.front()?.destination),
            _ => return None,
        };
        place.clone().map(|volume| (volume, copying.asker.clone()))
    }

    /// What is to be asked of other units.
    pub(crate) fn take_outward(&mut self) -> Vec<OutwardErrand> {
        std::mem::take(&mut self.outward)
    }

    /// Another unit has answered.
    pub(crate) fn take_errand_back(&mut self, token: Token, result: ErrandResult) {
        self.returned.push((token, result));
    }

    pub(super) fn errand_came_back(&mut self, work: Work, result: ErrandResult) -> Next {
        match (work, result) {
            (work, Ok(outcome)) => self.work_on(work, outcome),
            (work, Err(ErrandError::Store(error))) => self.work_failed(work, &error),
            (Work::CopyRead(copying) | Work::CopyWrite(copying), Err(ErrandError::NotReachable)) => {
                self.remember_copy(&copying, false);
                Next::Done(check_condition(Sense::COPY_TARGET_NOT_REACHABLE))
            }
            (work, Err(ErrandError::NotReachable)) => self.work_failed(work, &OpError::NoSuchView),
        }
    }

    /// Does something for a command that another unit works on, if a session of whoever asks may do the same here.
    pub(crate) fn take_errand(&mut self, errand: Errand, may_write: bool) {
        let Errand { asker, mut op, reply, .. } = errand;
        let connection = match self.session_for(&asker, &op, may_write) {
            Ok(Some(connection)) => connection,
            Ok(None) => return,
            Err(busy) => return reply.tell(Err(ErrandError::Store(busy))),
        };
        if self.running.values().filter(|running| matches!(running.work, Work::Errand(_))).count() >= ERRANDS_MAX {
            return reply.tell(Err(ErrandError::Store(OpError::Busy)));
        }
        if let Op::Write { fua, .. } = &mut op {
            *fua |= !self.mode.write_cache;
        }
        let work = Work::Errand(Box::new(Serving { reply, flushing: None }));
        // Sessions count their tasks from below: this one is nobody's to abort, and its end can be waited for.
        let task = TaskId(u64::MAX - self.next_token);
        self.start(Running { connection, task, work, ending: Ending::Background }, op);
    }

    /// A session of the same initiator that could do `op` now by a command of its own; or that it could a little later.
    fn session_for(&mut self, asker: &Asker, op: &Op, may_write: bool) -> Result<Option<SessionKey>, OpError> {
        let writes = match op {
            Op::Read { .. } => false,
            Op::Write { .. } | Op::Discard { .. } => true,
            _ => return Ok(None),
        };
        let open = self.started
            && self.sanitize == Sanitize::Idle
            && self.store.erase_progress().is_none()
            && self.store.erase_progress().is_none()
            && self.volume.unit_kind() == UnitKind::Plain;
        if !open || writes && (!may_write || self.mode.write_protect) {
            return Ok(None);
        }
        let like = if writes { cdb::write_16(Lba(0), 1, false) } else { cdb::read_16(Lba(0), 1) };
        let Ok(like) = Command::decode(&like) else { return Ok(None) };
        let own = self.users.iter().filter(|(_, user)| {
            user.nexus.initiator_name == asker.initiator_name
                && user.origin.identity == asker.origin.identity
                && !(writes && user.read_only)
        });
        let allowed = |nexus: &NexusId| self.reservation.allows(nexus, &like) && self.persistent.allows(nexus, &like);
        let own: Vec<SessionKey> = own.filter(|(_, user)| allowed(&user.nexus)).map(|(key, _)| *key).collect();
        let mut is_busy = false;
        for key in own {
            match self.check_lease(key, &like) {
                Ok(()) => return Ok(Some(key)),
                Err(refusal) => is_busy |= refusal == Status::Busy,
            }
        }
        if is_busy { Err(OpError::Busy) } else { Ok(None) }
    }

    /// An errand's operation is over. Without a write cache a discard is made durable before it is told.
    pub(super) fn served(&mut self, serving: Serving, outcome: Outcome) -> Next {
        let Serving { reply, flushing } = serving;
        match (flushing, outcome) {
            (Some(outcome), Outcome::Flushed) => reply.tell(Ok(outcome)),
            (None, outcome @ Outcome::Written { .. }) if !self.mode.write_cache => {
                return Next::Again(Work::Errand(Box::new(Serving { reply, flushing: Some(outcome) })), Op::Flush);
            }
            (_, outcome) => reply.tell(Ok(outcome)),
        }
        Next::Done(Response::good())
    }

    pub(super) fn errand_failed(serving: Serving, error: OpError) -> Next {
        serving.reply.tell(Err(ErrandError::Store(error)));
        Next::Done(Response::good())
    }
}
