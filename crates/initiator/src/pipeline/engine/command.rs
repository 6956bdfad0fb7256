//! One SCSI command of a request: how it is built, and what its data means.

use std::time::Instant;

use strongroom_block::{
    Buffer, BufferMut, DeviceError, DeviceErrorKind, Lba, OpenError, SealRecord, Stamp, StoreSequence,
};
use strongroom_iscsi::ahs;
use strongroom_iscsi::initiator::{Command as ScsiCommand, DataIn, WriteRecords, WriteSource};
use strongroom_scsi::capacity::ReadCapacity16;
use strongroom_scsi::{VendorCommand, cdb, provisioning, vendor};

use super::part::ABSENT;
use super::refetch::{Fetches, ReadFault};
use super::seal::SealingState;
use super::{CommandId, Engine, Found, Op, OpWork, Phase, zeros};
use crate::Limits;
use crate::completion::device_error;
use crate::pipeline::Flight;
use crate::pipeline::outcome::Retries;
use crate::pipeline::request::{SurveyedBlock, SurveyedHole, Version, Work};
use crate::pipeline::sealing::{Records, Sealing, medium, not_decoded, read_entry};

/// Bytes asked of GET LBA STATUS: its header and one descriptor are enough to go on.
const LBA_STATUS_BYTES: u32 = 8 + 16;

/// The log of unflushed writes holds so many windows of writes under way, if that is more than its limit: half of them begin a flush,
/// and what comes while it is under way finds room in the other half.
const UNFLUSHED_WINDOWS: usize = 8;

/// A command of a request.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) op: usize,
    pub(super) kind: CommandKind,
    /// The operation id, where it is not the stamp of the first seal record.
    pub(super) operation: Option<Stamp>,
    /// It was sent and not answered in a way that says that it was not executed.
    pub(super) may_be_done: bool,
    /// How often the unit did not know its attach id.
    pub(super) refusals: u32,
    /// Order of making; kept over reconnects.
    pub(super) sequence: u64,
    pub(super) tries: u32,
    pub(super) retries: Retries,
    pub(super) sent: bool,
    /// When it was sent.
    pub(super) sent_at: Option<Instant>,
    /// What it will put into the log of unflushed writes, in bytes.
    pub(super) write_bytes: usize,
    /// Of a write that the pipeline seals.
    pub(super) sealing: SealingState,
    /// It counts as sealed ahead.
    pub(super) is_ahead: bool,
    /// Since it was sent.
    pub(super) flight: Option<Flight>,
    /// Data that came for it, in bytes.
    pub(super) received_bytes: usize,
    /// Its data was not what it should be; outweighs a good status.
    pub(super) error: Option<ReadFault>,
    /// Of data that did not authenticate.
    pub(super) fetches: Fetches,
    /// The source of the keys was asked because of what it read.
    pub(super) asked_for_keys: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandKind {
    Read {
        lba: Lba,
        count: u32,
    },
    Write {
        lba: Lba,
        count: u32,
    },
    /// `mark`: what it covers of the log, set when it is sent.
    Flush {
        mark: u64,
    },
    SealHole,
    Unmap {
        lba: Lba,
        count: u32,
    },
    WriteZeros {
        lba: Lba,
        count: u32,
    },
    Verified,
    TakePlace,
    Register,
    CryptoErase,
    /// READ VERSION, GET LBA STATUS, READ CAPACITY, or a probe for holes.
    Ask,
    Conditional,
    /// A block or an absence, sealed anew if it is still as it was.
    Reseal,
    PartRead,
    PartWrite,
}

impl CommandKind {
    pub(super) fn lba(self, op: &Op) -> Option<Lba> {
        match self {
            CommandKind::Read { lba, .. }
            | CommandKind::Write { lba, .. }
            | CommandKind::Unmap { lba, .. }
            | CommandKind::WriteZeros { lba, .. } => Some(lba),
            CommandKind::Flush { .. }
            | CommandKind::Verified
            | CommandKind::TakePlace
            | CommandKind::Register
            | CommandKind::CryptoErase => None,
            CommandKind::SealHole
            | CommandKind::Ask
            | CommandKind::Conditional
            | CommandKind::Reseal
            | CommandKind::PartRead
            | CommandKind::PartWrite => Some(op.range_start()),
        }
    }

    pub(super) fn reads(self) -> bool {
        matches!(self, CommandKind::Read { .. } | CommandKind::PartRead | CommandKind::Ask)
    }

    pub(super) fn writes(self) -> bool {
        use CommandKind as K;
        matches!(
            self,
            K::Write { .. }
                | K::SealHole
                | K::Unmap { .. }
                | K::WriteZeros { .. }
                | K::Conditional
                | K::Reseal
                | K::PartWrite
        )
    }
}

impl Op {
    /// The first block concerned.
    pub(super) fn range_start(&self) -> Lba {
        match &self.work {
            OpWork::Part(part) => part.lba,
            OpWork::Plain(work) | OpWork::Asking(work, _) => match work {
                Work::Read { lba, .. }
                | Work::Fetch { lba, .. }
                | Work::Write { lba, .. }
                | Work::WritePart { lba, .. }
                | Work::Discard { lba, .. }
                | Work::ProbeHole { lba, .. }
                | Work::LbaStatus { lba }
                | Work::ReadVersion { lba, .. }
                | Work::Survey { lba, .. }
                | Work::ResealBlock { lba, .. }
                | Work::ConditionalWrite { lba, .. } => *lba,
                Work::Hole(hole) | Work::ResealHole(hole) => hole.start,
                Work::Flush
                | Work::Capacity
                | Work::Verified { .. }
                | Work::TakePlace
                | Work::Register { .. }
                | Work::CryptoErase { .. } => Lba(0),
            },
        }
    }
}

impl Engine {
    /// The next command to send, if there is one and limits allow it. It counts as sent from here on.
    pub(crate) fn next_command(&mut self) -> Option<(CommandId, ScsiCommand)> {
        loop {
            let key = self.next_ready()?;
            if let Some(error) = self.kept_from(self.commands[key].kind) {
                self.fail_command(key, error);
                continue;
            }
            self.read_again_if_stale(key);
            let fresh = self.freshen(key);
            if fresh.is_ok() && self.registers_first(key) {
                continue;
            }
            match fresh.map(|()| self.build(key)) {
                Ok(scsi) => return Some((CommandId(key), self.sent(key, scsi))),
                Err(error) if self.waits_with_the_replay(key, &error) => {}
                // There is no key to seal it with, any more.
                Err(error) => self.fail_command(key, error),
            }
        }
    }

    fn next_ready(&mut self) -> Option<usize> {
        if self.in_flight >= self.limits.commands_max {
            return None;
        }
        match self.phase {
            Phase::Down => None,
            _ if self.registration_ready.is_some() => self.registration_ready.take(),
            Phase::Replaying if self.replay_waits.is_some() => {
                self.fail_without_keys();
                None
            }
            Phase::Replaying if self.registrations.is_pending() => None,
            Phase::Replaying => self.replay_ready.pop_front(),
            Phase::Up => {
                self.flush_if_the_log_is_full();
                self.choose()
            }
        }
    }

    fn sent(&mut self, key: usize, scsi: ScsiCommand) -> ScsiCommand {
        let mark = self.log.mark();
        self.no_longer_ahead(key);
        let data_bytes = self.data_bytes(key);
        let command = &mut self.commands[key];
        if let CommandKind::Flush { mark: covers } = &mut command.kind {
            *covers = mark;
        }
        if self.ops[command.op].is_replay {
            // There are keys for it.
            self.without_keys_since = None;
        }
        let counts = command.kind.writes() && self.phase == Phase::Up;
        command.write_bytes = if counts { scsi.expected_bytes as usize } else { 0 };
        self.writing_bytes += command.write_bytes;
        command.sent = true;
        command.sent_at = self.now;
        command.received_bytes = 0;
        command.flight = match (self.now, self.phase) {
            (Some(now), Phase::Up) if command.kind.writes() => Some(self.writes.sent(now, data_bytes)),
            (Some(now), Phase::Up) if command.kind.reads() => Some(self.reads.sent(now, data_bytes)),
            _ => None,
        };
        self.counters.commands_sent += 1;
        self.counters.commands_resent += u64::from(command.tries > 0);
        command.tries += 1;
        self.in_flight += 1;
        scsi
    }

    /// Of those that are ready and may go, the one that was made first; a flush, and what tells the target something, before all.
    /// Writes, reads and flushes wait for nothing but their own limits.
    fn choose(&mut self) -> Option<usize> {
        if let Some(key) = self.ready.others.pop_front() {
            return Some(key);
        }
        let pinned = self.log.bytes() + self.writing_bytes;
        let log_has_room = pinned == 0 || pinned < self.unflushed_bytes_max();
        let write = self.ready.writes.front().copied();
        if write.is_some() && !log_has_room {
            // It grows with the window, which therefore must not take this for a want of writes.
            self.writes.held_back();
        }
        let write = write.filter(|_| log_has_room && !self.registrations.is_pending());
        let write = write.filter(|key| self.writes.may_send(self.data_bytes(*key)));
        let read = self.ready.reads.front().copied();
        let read = read.filter(|key| self.reads.may_send(self.data_bytes(*key)));
        let sequence = |key: &usize| self.commands[*key].sequence;
        let key = [write, read].into_iter().flatten().min_by_key(sequence)?;
        self.ready.pop(key);
        Some(key)
    }

    /// Bytes of data that a command moves; what it says beside that is not counted.
    pub(super) fn data_bytes(&self, key: usize) -> u64 {
        let blocks = match self.commands[key].kind {
            CommandKind::Read { count, .. }
            | CommandKind::Write { count, .. }
            | CommandKind::WriteZeros { count, .. } => count,
            CommandKind::PartRead | CommandKind::PartWrite | CommandKind::Conditional => 1,
            _ => 0,
        };
        u64::from(blocks) << self.geometry().block_size.shift()
    }

    /// At half of the log's limit a flush of ours goes in front of everything.
    fn flush_if_the_log_is_full(&mut self) {
        if self.own_flush || self.log.bytes() == 0 || self.log.bytes() < self.unflushed_bytes_max() / 2 {
            return;
        }
        self.make_own_flush();
    }

    /// A flush of ours goes in front of everything.
    pub(super) fn make_own_flush(&mut self) {
        self.own_flush = true;
        self.counters.own_flushes += 1;
        let key = self.insert_own(Work::Flush);
        self.make_command(key, CommandKind::Flush { mark: 0 });
    }

    /// What may be unflushed. While a flush is on its way, a round trip and its work at the target, writes go on.
    fn unflushed_bytes_max(&self) -> usize {
        let fixed = self.limits.unflushed_bytes_max;
        let window = self.writes.window_bytes().map_or(0, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        fixed.max(window.saturating_mul(UNFLUSHED_WINDOWS).min(Limits::PINNED_BYTES_MAX))
    }

    fn build(&self, key: usize) -> ScsiCommand {
        let command = &self.commands[key];
        let op = &self.ops[command.op];
        let lun = self.unit.wire_lun();
        let bytes_of = |count: u32| count << self.geometry().block_size.shift();
        match (command.kind, &op.work) {
            (CommandKind::Read { lba, count }, _) => ScsiCommand {
                sealed_block_bytes: self.sealed_block_bytes(),
                ..ScsiCommand::read(lun, cdb::read_16(lba, count), bytes_of(count))
            },
            (CommandKind::Write { lba, count }, OpWork::Plain(Work::Write { fua, .. })) => {
                let (data, records) = self.blocks_to_write(key);
                let source = self.write_source(data, records);
                let ahs = self.write_segments(key, None);
                ScsiCommand { ahs, ..ScsiCommand::write(lun, cdb::write_16(lba, count, *fua), source) }
            }
            (CommandKind::Flush { .. }, _) => ScsiCommand::without_data(lun, cdb::synchronize_cache_10()),
            (CommandKind::SealHole, OpWork::Plain(Work::Hole(hole))) => self.build_hole(key, hole, None),
            (CommandKind::Unmap { lba, count }, _) => {
                let list = Buffer::copy_from(&provisioning::unmap_parameters(&[(lba, count)]));
                ScsiCommand::write(lun, cdb::unmap(list.len() as u16), WriteSource::plain(list))
            }
            (CommandKind::WriteZeros { lba, count }, _) => {
                let data = zeros(bytes_of(count) as usize);
                ScsiCommand::write(lun, cdb::write_16(lba, count, false), WriteSource::plain(data))
            }
            (CommandKind::Verified, OpWork::Plain(Work::Verified { pairs })) => {
                let list = Buffer::copy_from(&vendor::encode_verified(pairs));
                let cdb = VendorCommand::Verified { parameter_list_len: list.len() as u32 }.encode();
                ScsiCommand::write(lun, cdb, WriteSource::plain(list))
            }
            (CommandKind::Register, OpWork::Plain(Work::Register { attach_id })) => self.build_registration(*attach_id),
            (CommandKind::TakePlace, _) => ScsiCommand::without_data(lun, VendorCommand::TakePlace.encode()),
            (CommandKind::CryptoErase, OpWork::Plain(Work::CryptoErase { epoch, .. })) => {
                self.build_crypto_erase(*epoch)
            }
            (CommandKind::Ask, OpWork::Asking(work, found)) => self.build_question(work, found),
            (CommandKind::Conditional, OpWork::Plain(Work::ConditionalWrite { lba, expected, data, records })) => {
                self.build_conditional(key, *lba, expected, data.clone(), records.clone())
            }
            (CommandKind::Reseal, OpWork::Asking(Work::ResealBlock { lba, expected, data, records }, _)) => {
                self.build_conditional(key, *lba, expected, data.clone(), records.clone())
            }
            (CommandKind::Reseal, OpWork::Asking(Work::ResealHole(hole), _)) => {
                self.build_hole(key, hole, Some(&ABSENT))
            }
            (CommandKind::PartRead, OpWork::Part(part)) => ScsiCommand {
                sealed_block_bytes: self.sealed_block_bytes(),
                ..ScsiCommand::read(lun, cdb::read_16(part.lba, 1), bytes_of(1))
            },
            (CommandKind::PartWrite, OpWork::Part(part)) => self.build_part_write(key, part),
            (kind, _) => unreachable!("{kind:?} is only made for the work that it belongs to"),
        }
    }

    fn build_question(&self, work: &Work, found: &Found) -> ScsiCommand {
        let lun = self.unit.wire_lun();
        let shift = self.geometry().block_size.shift();
        match *work {
            Work::ReadVersion { lba, older_than } => {
                let mut segments = Vec::new();
                ahs::push_older_than(&mut segments, older_than.0);
                ScsiCommand {
                    ahs: segments.into(),
                    sealed_block_bytes: self.sealed_block_bytes(),
                    ..ScsiCommand::read(lun, VendorCommand::ReadVersion { lba }.encode(), 1 << shift)
                }
            }
            Work::LbaStatus { lba } => {
                ScsiCommand::read(lun, cdb::get_lba_status(lba, LBA_STATUS_BYTES), LBA_STATUS_BYTES)
            }
            Work::Capacity => ScsiCommand::read(lun, cdb::read_capacity_16(), ReadCapacity16::BYTES as u32),
            Work::ProbeHole { lba, .. } | Work::Survey { lba, .. } => {
                let count = if let Work::Survey { count, .. } = *work { count } else { found.asked_blocks };
                ScsiCommand {
                    sealed_block_bytes: self.sealed_block_bytes(),
                    ..ScsiCommand::read(lun, cdb::read_16(lba, count), count << shift)
                }
            }
            _ => unreachable!("only questions are asked"),
        }
    }

    fn sealed_block_bytes(&self) -> Option<u32> {
        self.sealing.is_some().then(|| self.geometry().block_size.bytes())
    }

    pub(super) fn write_source(&self, data: Buffer, records: Option<Records>) -> WriteSource {
        let block_bytes = self.geometry().block_size.bytes();
        let record_bytes = self.sealing.as_ref().map_or(0, |sealing| sealing.record_bytes() as u32);
        WriteSource {
            data,
            records: records.map(|records| WriteRecords { block_bytes, record_bytes, bytes: records.into_bytes() }),
        }
    }

    /// What a write sends: blocks, and their records.
    pub(super) fn blocks_to_write(&self, key: usize) -> (Buffer, Option<Records>) {
        let command = &self.commands[key];
        match (&command.sealing, command.kind, &self.ops[command.op].work) {
            (SealingState::Done(sealed), ..) => (sealed.data.clone(), Some(sealed.records.clone())),
            (_, CommandKind::Write { lba, count }, OpWork::Plain(Work::Write { lba: first, data, records, .. })) => {
                self.part_of_write(*first, data, records.as_ref(), lba, count)
            }
            (_, kind, _) => unreachable!("{kind:?} is no write"),
        }
    }

    /// The blocks `lba`, `count` of a write that begins at `first`, and their records.
    pub(super) fn part_of_write(
        &self,
        first: Lba,
        data: &Buffer,
        records: Option<&Records>,
        lba: Lba,
        count: u32,
    ) -> (Buffer, Option<Records>) {
        let (from, count) = ((lba.0 - first.0) as usize, count as usize);
        let block_bytes = self.block_bytes();
        let records = records.map(|records| {
            let each = records.len() / (data.len() / block_bytes);
            records.slice(from * each..(from + count) * each)
        });
        (data.slice(from * block_bytes..(from + count) * block_bytes), records)
    }

    /// Data of a command in flight. What is wrong with it is kept until the command's end.
    pub(crate) fn data_in(&mut self, now: Instant, id: CommandId, data_in: &DataIn) {
        let Some(command) = self.commands.get_mut(id.0).filter(|command| command.sent && command.error.is_none())
        else {
            return;
        };
        self.moved_at = Some(now);
        command.received_bytes += data_in.data.len();
        let kind = command.kind;
        let op = &mut self.ops[command.op];
        let shift = self.unit.geometry.block_size.shift();
        let mut place = Place { sealing: self.sealing.as_deref(), shift, data_in };
        let result = match (kind, &mut op.work) {
            (CommandKind::Read { lba, count }, OpWork::Plain(Work::Read { lba: first, buffer })) => {
                let from = ((lba.0 - first.0) as usize) << shift;
                let out = &mut buffer[from..from + ((count as usize) << shift)];
                let verified = &mut self.verified;
                place.blocks(lba, out, |lba, _, sequence| {
                    if let Some(verified) = verified {
                        verified.note(now, lba, sequence);
                    }
                })
            }
            (CommandKind::Read { lba, .. }, OpWork::Plain(Work::Fetch { .. })) => {
                place.came_whole(lba).map_err(Into::into)
            }
            (CommandKind::PartRead, OpWork::Part(part)) => part.found(&mut place),
            (CommandKind::Ask, OpWork::Asking(Work::Survey { lba, buffer, .. }, found)) => {
                let verified = &mut self.verified;
                place.survey(*lba, buffer, found, |lba, sequence| {
                    if let Some(verified) = verified {
                        verified.note(now, lba, sequence);
                    }
                })
            }
            (CommandKind::Ask, OpWork::Asking(work, found)) => place.answer(work, found),
            _ => {
                let message = "the target sent data that no command asked for";
                Err(device_error(DeviceErrorKind::Hardware, None, message).into())
            }
        };
        if let Err(error) = result {
            self.commands[id.0].error = Some(error);
        }
    }
}

/// One Data-In and where it belongs.
pub(super) struct Place<'a> {
    pub(super) sealing: Option<&'a Sealing>,
    pub(super) shift: u32,
    pub(super) data_in: &'a DataIn,
}

impl Place<'_> {
    /// The first block, the count of blocks, and their place in the transfer.
    pub(super) fn blocks_covered(&self, first: Lba) -> Result<(Lba, u64), DeviceError> {
        let (offset, covers) = (u64::from(self.data_in.offset), u64::from(self.data_in.covers_bytes));
        let mask = (1_u64 << self.shift) - 1;
        if covers == 0 || (offset | covers) & mask != 0 {
            return Err(medium(first, "the target sent a piece that is not whole blocks"));
        }
        Ok((Lba(first.0 + (offset >> self.shift)), covers >> self.shift))
    }

    /// Opens (or copies) into `out`, which is the whole transfer of a command that begins at `first`.
    pub(super) fn blocks(
        &mut self,
        first: Lba,
        out: &mut [u8],
        opened: impl FnMut(Lba, &SealRecord, StoreSequence),
    ) -> Result<(), ReadFault> {
        let from = self.data_in.offset as usize;
        let data = &self.data_in.data;
        let Some(sealing) = self.sealing else {
            let out =
                out.get_mut(from..from + data.len()).ok_or_else(|| medium(first, "more data than was asked for"))?;
            out.copy_from_slice(data);
            return Ok(());
        };
        let (lba, count) = self.blocks_covered(first)?;
        let out = out
            .get_mut(from..from + self.data_in.covers_bytes as usize)
            .ok_or_else(|| medium(lba, "more data than was asked for"))?;
        if data.is_empty() {
            let hole = self.hole(lba)?;
            sealing.open_hole(lba, count, &hole.record)?;
            out.fill(0);
            return Ok(());
        }
        let entries = self.records(lba)?;
        sealing.open(lba, &entries, data, out, opened)
    }

    /// As [`Place::blocks`], and keeps what was found.
    fn survey(
        &mut self,
        first: Lba,
        out: &mut [u8],
        found: &mut Found,
        mut opened: impl FnMut(Lba, StoreSequence),
    ) -> Result<(), ReadFault> {
        let (blocks, holes) = &mut found.surveyed;
        self.blocks(first, out, |lba, record, sequence| {
            blocks.push(SurveyedBlock { lba, epoch: record.epoch(), stamp: record.stamp().to_bytes() });
            opened(lba, sequence);
        })?;
        if self.data_in.data.is_empty() {
            let (lba, count) = self.blocks_covered(first)?;
            holes.push(SurveyedHole { lba, count, epoch: self.hole(lba)?.record.record.epoch() });
        }
        Ok(())
    }

    /// The HOLE segment, which a piece without data must have.
    pub(super) fn hole(&self, lba: Lba) -> Result<ahs::Hole, DeviceError> {
        match ahs::Hole::find(&self.data_in.ahs) {
            Ok(Some(hole)) => Ok(hole),
            Ok(None) => Err(medium(lba, "the target sent neither a block nor the seal of its absence")),
            Err(_) => Err(medium(lba, "the target sent a malformed hole")),
        }
    }

    pub(super) fn records(&self, lba: Lba) -> Result<ahs::SealRecords<'_>, DeviceError> {
        if !self.data_in.sealed {
            return Err(medium(lba, "the target sent block data outside its seal"));
        }
        match ahs::SealRecords::find(&self.data_in.ahs) {
            Ok(Some(records)) => Ok(records),
            _ => Err(medium(lba, "the target sent blocks without their seal records")),
        }
    }

    /// Keeps what a question found.
    fn answer(&mut self, work: &Work, found: &mut Found) -> Result<(), ReadFault> {
        match *work {
            Work::LbaStatus { .. } | Work::Capacity => {
                found.bytes.extend_from_slice(&self.data_in.data);
                Ok(())
            }
            Work::ProbeHole { lba: first, .. } => {
                let (lba, count) = self.blocks_covered(first)?;
                if !self.data_in.data.is_empty() {
                    found.saw_data = true;
                } else if !found.saw_data {
                    let hole = self.hole(lba)?;
                    let sealing = self.sealing.ok_or_else(|| medium(lba, "a hole on a plain unit"))?;
                    sealing.open_hole(lba, count, &hole.record)?;
                    found.hole_blocks += count;
                    let epoch = hole.record.record.epoch();
                    found.oldest_epoch = Some(found.oldest_epoch.map_or(epoch, |oldest| oldest.min(epoch)));
                }
                Ok(())
            }
            Work::ReadVersion { lba, .. } => {
                let version = self.version(lba)?;
                // Opened here only to see whether it is to be fetched again; without a key that cannot be told.
                let damaged = match (&version, self.sealing) {
                    (Version::Block { sequence, record, data }, Some(sealing)) => {
                        let opened = sealing.open_version(lba, record, data, &mut BufferMut::to_fill(data.len()));
                        matches!(opened, Ok(Err(OpenError::NotAuthentic))).then_some(*sequence)
                    }
                    _ => None,
                };
                found.version = Some(version);
                damaged.map_or(Ok(()), |sequence| Err(ReadFault::NotAuthentic { lba, sequence }))
            }
            _ => unreachable!("only questions have answers"),
        }
    }

    fn version(&self, lba: Lba) -> Result<Version, DeviceError> {
        let data = &self.data_in.data;
        if data.is_empty() {
            let hole = self.hole(lba)?;
            let sequence = StoreSequence(hole.store_sequence);
            return Ok(Version::Hole { sequence, hole: hole.record });
        }
        let entries = self.records(lba)?;
        let entry = entries.iter().next().ok_or_else(|| medium(lba, "the target sent a block without its record"))?;
        let (sequence, record) = read_entry(entry).map_err(|error| not_decoded(lba, &error))?;
        if data.len() != 1 << self.shift {
            return Err(medium(lba, "the target sent a version of the wrong length"));
        }
        Ok(Version::Block { sequence, record, data: Buffer::copy_from(data) })
    }
}
