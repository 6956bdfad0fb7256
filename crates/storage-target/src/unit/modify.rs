//! Commands of more than one step: ORWRITE and writes of parts of blocks, WRITE AND VERIFY, PRE-FETCH and SANITIZE. Each goes in slices,
//! so that it never starves others.

use strongroom_block::{Buffer, BufferMut, Lba};
use strongroom_iscsi::ahs;
use strongroom_iscsi::target::{self as iscsi, Direction, Response};
use strongroom_scsi::{Sense, Status, UnitKind, opcode};
use strongroom_store::{Extent, Op, Outcome};

use super::work::{Next, SLICE_BYTES, Work};
use super::{Ending, Finished, Plan, Running, Unit, check_condition, status};
use crate::TRANSFER_BYTES_MAX;

/// How often ORWRITE starts again because somebody else wrote in between; then the initiator is told BUSY.
const OR_ATTEMPTS_MAX: u32 = 64;
/// Most bytes that one PRE-FETCH reads: it is a hint, and must not wipe out caches.
const PREFETCH_BYTES_MAX: u64 = 16 << 20;

/// How far SANITIZE is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sanitize {
    /// Not at work.
    #[default]
    Idle,
    /// Everything but asking what the unit is waits for it.
    InProgress,
    /// It could not: the medium is not used until another one works, or until EXIT FAILURE MODE.
    Failed,
}

/// How new data goes into what is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Merge {
    /// ORWRITE: its bits are set.
    Or,
    /// A write whose last block is not whole: it takes the place of as much as there is of it.
    Front,
}

/// A change of what is stored: what comes to it, and whereto.
pub(super) struct Changing {
    merge: Merge,
    lba: Lba,
    blocks: u32,
    data: Buffer,
    fua: bool,
    wanted_bytes: u64,
    attempts: u32,
}

impl Unit {
    pub(super) fn plan_or_write(
        &self,
        lba: Lba,
        count: u32,
        fua: bool,
        request: &iscsi::Command,
    ) -> Result<Plan, Sense> {
        self.check_range(lba, count.into())?;
        let transfer = self.transfer(count, request, Direction::Write)?;
        if transfer.blocks == 0 {
            return Ok(Plan::Answer(Response { wanted_bytes: Some(transfer.wanted_bytes), ..Response::good() }));
        }
        let bytes = u64::from(transfer.blocks) << self.volume.geometry.block_size.shift();
        let or = Changing {
            merge: Merge::Or,
            lba,
            blocks: transfer.blocks,
            data: self.gather(request, bytes)?,
            fua: fua || !self.mode.write_cache,
            wanted_bytes: transfer.wanted_bytes,
            attempts: 0,
        };
        Ok(Plan::Start(Work::OrRead(Box::new(or)), Op::Read { lba, count: transfer.blocks }))
    }

    /// A write for which the initiator sends less than the CDB says, and not whole blocks: what it sends is written and nothing else
    /// (RFC 7143 §11.4.5.1), all at once.
    pub(super) fn plan_part_write(
        &self,
        lba: Lba,
        wanted_bytes: u64,
        fua: bool,
        request: &iscsi::Command,
    ) -> Result<Plan, Sense> {
        let data = self.gather(request, wanted_bytes.min(request.expected_bytes.into()))?;
        let shift = self.volume.geometry.block_size.shift();
        let blocks = (data.len() as u64).div_ceil(1 << shift) as u32;
        let part = Changing { merge: Merge::Front, lba, blocks, data, fua, wanted_bytes, attempts: 0 };
        Ok(Plan::Start(Work::OrRead(Box::new(part)), Op::Read { lba, count: blocks }))
    }

    /// What is there was read: it is written with the change, if it is still there.
    pub(super) fn or_was_read(&self, or: Box<Changing>, extents: &[Extent]) -> Next {
        let mut compare = BufferMut::zeroed((or.blocks as usize) << self.volume.geometry.block_size.shift());
        let mut at = 0;
        for segment in self.plain_segments(extents) {
            compare[at..at + segment.data.len()].copy_from_slice(&segment.data);
            at += segment.data.len();
        }
        let mut data = BufferMut::zeroed(compare.len());
        data.copy_from_slice(&compare);
        match or.merge {
            Merge::Or => data.iter_mut().zip(or.data.iter()).for_each(|(to, new)| *to |= new),
            Merge::Front => data[..or.data.len()].copy_from_slice(&or.data),
        }
        let op = Op::CompareAndWrite { lba: or.lba, compare: compare.freeze(), data: data.freeze(), fua: or.fua };
        Next::Again(Work::OrWrite(or), op)
    }

    /// Somebody else wrote in between.
    pub(super) fn or_again(mut or: Box<Changing>) -> Next {
        or.attempts += 1;
        if or.attempts >= OR_ATTEMPTS_MAX {
            return Next::Done(status(Status::Busy));
        }
        let op = Op::Read { lba: or.lba, count: or.blocks };
        Next::Again(Work::OrRead(or), op)
    }

    pub(super) fn or_done(or: &Changing) -> Next {
        Next::Done(Response { wanted_bytes: Some(or.wanted_bytes), ..Response::good() })
    }

    pub(super) fn plan_write_verify(
        &self,
        lba: Lba,
        count: u32,
        byte_check: u8,
        request: &iscsi::Command,
    ) -> Result<Plan, Sense> {
        self.check_range(lba, count.into())?;
        let transfer = self.transfer(count, request, Direction::Write)?;
        if transfer.partly {
            return self.plan_part_write(lba, transfer.wanted_bytes, true, request);
        }
        if transfer.blocks == 0 {
            return Ok(Plan::Answer(Response { wanted_bytes: Some(transfer.wanted_bytes), ..Response::good() }));
        }
        let bytes = u64::from(transfer.blocks) << self.volume.geometry.block_size.shift();
        let data = self.gather(request, bytes)?;
        let compare = (byte_check == 1).then(|| data.clone());
        let work = Work::WriteThenVerify { lba, count: transfer.blocks, compare, wanted_bytes: transfer.wanted_bytes };
        // It is the medium that is verified, so to the medium it goes.
        Ok(Plan::Start(work, Op::Write { lba, data: vec![data], records: Vec::new(), fua: true, origin: None }))
    }

    /// A hint: what is read here is in the host's cache afterwards. GOOD, not CONDITION MET, since nothing promises that it stays.
    pub(super) fn plan_prefetch(&self, lba: Lba, count: u32, immediate: bool) -> Result<Plan, Sense> {
        self.check_range(lba, count.into())?;
        let blocks = self.volume.geometry.blocks;
        let wanted = if count == 0 { blocks - lba.0.min(blocks) } else { count.into() };
        let most = PREFETCH_BYTES_MAX >> self.volume.geometry.block_size.shift();
        let count = wanted.min(most) as u32;
        if count == 0 {
            return Ok(Plan::Answer(Response::good()));
        }
        let (work, op) = Work::verify(lba, count, None, self.slice_blocks());
        Ok(if immediate { Plan::Background(work, op) } else { Plan::Start(work, op) })
    }

    pub(super) fn plan_sanitize(
        &mut self,
        immediate: bool,
        action: u8,
        parameter_list_len: u16,
        segments: &[u8],
    ) -> Result<Plan, Sense> {
        if parameter_list_len != 0 {
            return Err(Sense::INVALID_FIELD_IN_CDB.in_cdb(7, None));
        }
        if action == opcode::SA_SANITIZE_EXIT_FAILURE_MODE {
            // SBC-3 §4.11.3: without a failure there is nothing to leave. What has begun to be erased is gone all the same.
            if self.store.erase_progress().is_some() {
                return Err(Sense::INVALID_FIELD_IN_CDB.in_cdb(1, Some(4)));
            }
            self.sanitize = Sanitize::Idle;
            return Ok(Plan::Answer(Response::good()));
        }
        // Their blocks are in the same log, and it would leave nothing of them. Whoever has them deleted may come again.
        if self.volume.clone_of.is_some() || !self.store.snapshots().is_empty() || self.store.branches().len() > 1 {
            tracing::warn!(volume = %self.volume.name, "SANITIZE refused: there are snapshots or clones; delete those first");
            return Err(Sense::COMMAND_SEQUENCE);
        }
        let by_key = action == opcode::SA_SANITIZE_CRYPTO_ERASE;
        if by_key && self.volume.unit_kind() == UnitKind::SealedWithKeyServer {
            // The keys are not here, and only who had them destroyed can know.
            let Some(epoch) = ahs::keys_destroyed(segments) else {
                tracing::warn!(volume = %self.volume.name, "SANITIZE refused: its keys are at a key server, and nobody said that they are destroyed; use 'strongroom volume erase URL --crypto'");
                return Err(Sense::COMMAND_SEQUENCE);
            };
            tracing::warn!(volume = %self.volume.name, epoch, "an initiator had the keys of every epoch before this one destroyed");
            self.keys_destroyed = true;
        } else if by_key && !self.can_destroy_key() {
            tracing::warn!(volume = %self.volume.name, "SANITIZE refused: its wrapping key is another volume's too, or cannot be destroyed from here");
            return Err(Sense::INVALID_FIELD_IN_CDB.in_cdb(1, Some(4)));
        }
        self.sanitize = Sanitize::InProgress;
        self.key_survived = false;
        tracing::warn!(volume = %self.volume.name, "SANITIZE: everything that is stored goes");
        let (work, op) = (Work::Sanitize, if by_key { Op::CryptoErase } else { Op::Erase });
        Ok(if immediate { Plan::WhenCertain(work, op) } else { Plan::Start(work, op) })
    }

    /// An erase that nothing can undo any more is answered to those who do not wait for its end. One that is over, whoever asked for it,
    /// leaves no failure of an earlier one behind; one that the medium stopped has failed.
    pub(super) fn watch_erase(&mut self, finished: &mut Vec<Finished>) {
        let erasing = self.store.erase_progress().is_some();
        let was_erasing = std::mem::replace(&mut self.erasing, erasing);
        if erasing && !was_erasing {
            self.key_survived = false;
        }
        if !erasing {
            if was_erasing {
                self.forget_verification();
                self.sanitize = if self.key_survived { Sanitize::Failed } else { Sanitize::Idle };
            }
            return;
        }
        if self.store.stats().writes_refused {
            self.sanitize = Sanitize::Failed;
        } else if self.store.erase_is_certain() {
            self.tell_certain_jobs();
            for running in self.running.values_mut().filter(|running| running.ending == Ending::WhenCertain) {
                running.ending = Ending::Background;
                let Running { connection, task, .. } = *running;
                finished.push(Finished { connection, task, response: Some(Response::good()) });
            }
        }
    }

    /// Long work that was under way when SANITIZE came.
    pub(super) fn sanitized_away(&mut self, work: &Work) -> Response {
        if let Work::CopyRead(copying) | Work::CopyWrite(copying) = work {
            self.remember_copy(copying, false);
        }
        check_condition(Sense::SANITIZE_IN_PROGRESS)
    }
}

/// Whether an outcome says that something was stored.
pub(super) fn is_written(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Written { .. })
}

const _: () = assert!(SLICE_BYTES <= TRANSFER_BYTES_MAX);
