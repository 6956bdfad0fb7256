//! Blocks that nobody sealed, with records, for sealed volumes: a target cannot tell.

use bytes::Bytes;
use strongroom_block::{
    AttachId, BlockKeyWrap, Buffer, HoleRecord, Lba, Mode, RecordFlags, SealRecord, Stamp, StoreSequence, Suite,
    WrapError, keyless_checksum,
};
use strongroom_iscsi::ahs;
use strongroom_iscsi::initiator::{Command, DataContent, WriteRecords, WriteSource};
use strongroom_scsi::{VendorCommand, cdb, vendor};

use super::{BLOCK, Initiator, LUN, Outcome};

/// What the stamps here are of.
pub(crate) const ATTACH_ID: AttachId = AttachId([0x5e; 16]);

pub(crate) fn stamp(counter: u64) -> Stamp {
    Stamp { attach_id: ATTACH_ID, counter }
}

/// REGISTER ATTACHMENT.
pub(crate) fn registration(attach_id: AttachId) -> Command {
    let cdb = VendorCommand::RegisterAttachment { parameter_list_len: vendor::ATTACH_ID_BYTES }.encode();
    Command::write(LUN, cdb, WriteSource::plain(Buffer::copy_from(&attach_id.0)))
}

pub(crate) fn record(counter: u64, block: &[u8]) -> SealRecord {
    record_of(stamp(counter), block)
}

pub(crate) fn record_of(stamp: Stamp, block: &[u8]) -> SealRecord {
    let (checksum, tag) = (keyless_checksum(block), [stamp.counter as u8; 16]);
    SealRecord::new(Suite::Aes256Gcm, Mode::Encrypt, RecordFlags(0), 1, stamp, checksum, tag)
}

pub(crate) fn hole(start: u64, count: u64) -> HoleRecord {
    hole_of(stamp(1 << 40 | start), start, count)
}

pub(crate) fn hole_of(stamp: Stamp, start: u64, count: u64) -> HoleRecord {
    let flags = RecordFlags(RecordFlags::HOLE);
    let record = SealRecord::new(Suite::Aes256Gcm, Mode::Encrypt, flags, 1, stamp, 0, [7; 16]);
    HoleRecord { start: Lba(start), count, record }
}

/// Writes with records made by `with`.
pub(crate) fn sealed_write(lba: u64, data: &[u8], records: &[SealRecord]) -> Command {
    let record_bytes = records[0].as_bytes().len() as u32;
    let bytes: Vec<u8> = records.iter().flat_map(|record| record.as_bytes().to_vec()).collect();
    let records = WriteRecords { block_bytes: BLOCK as u32, record_bytes, bytes: Bytes::from(bytes) };
    let source = WriteSource { data: Buffer::copy_from(data), records: Some(records) };
    Command::write(LUN, cdb::write_16(Lba(lba), (data.len() / BLOCK) as u32, false), source)
}

pub(crate) fn records(first: u64, data: &[u8]) -> Vec<SealRecord> {
    data.chunks_exact(BLOCK).zip(first..).map(|(block, counter)| record(counter, block)).collect()
}

pub(crate) fn read(initiator: &mut Initiator, lba: u64, blocks: u32) -> Outcome {
    let mut command = Command::read(LUN, cdb::read_16(Lba(lba), blocks), blocks * BLOCK as u32);
    command.sealed_block_bytes = Some(BLOCK as u32);
    initiator.run(command)
}

pub(crate) fn format(initiator: &mut Initiator, blocks: u64) {
    initiator.run(registration(ATTACH_ID)).good();
    let list = vendor::encode_holes(&[hole(0, blocks)]);
    initiator.run(seal_hole(&list)).good();
}

pub(crate) fn seal_hole(list: &[u8]) -> Command {
    let cdb = VendorCommand::SealHole { parameter_list_len: list.len() as u32 }.encode();
    Command::write(LUN, cdb, WriteSource::plain(Buffer::copy_from(list)))
}

pub(crate) fn read_version(initiator: &mut Initiator, lba: u64, older_than: u64) -> Outcome {
    let cdb = VendorCommand::ReadVersion { lba: Lba(lba) }.encode();
    let mut command = Command::read(LUN, cdb, BLOCK as u32);
    command.sealed_block_bytes = Some(BLOCK as u32);
    command.parameters.older_than = Some(StoreSequence(older_than));
    initiator.run(command)
}

/// The (sequence, record) of every block of a read, and the holes in it.
pub(crate) fn returned(outcome: &Outcome) -> (Vec<(u64, SealRecord)>, Vec<ahs::Hole>) {
    let mut blocks = Vec::new();
    let mut holes = Vec::new();
    for segment in &outcome.segments {
        match &segment.content {
            DataContent::Sealed { data, records } => {
                assert!(!data.is_empty(), "block data is left to its records, and nothing else is");
                for entry in records.iter() {
                    let sequence = u64::from_be_bytes(entry[..8].try_into().unwrap());
                    blocks.push((sequence, SealRecord::decode(&entry[8..]).unwrap()));
                }
            }
            DataContent::Hole { sequence, record } => holes.push(ahs::Hole {
                covered_blocks: segment.covers_bytes / BLOCK as u32,
                store_sequence: sequence.0,
                record: HoleRecord::decode(record).unwrap(),
            }),
            DataContent::Plain(data) => assert!(data.is_empty(), "block data is left to its records"),
        }
    }
    (blocks, holes)
}

/// Wraps by a known mask: what matters here is where a key is raw and where it is wrapped.
pub(crate) struct Mask;

impl BlockKeyWrap for Mask {
    fn wrap(&self, key: &[u8; 32]) -> Result<[u8; 40], WrapError> {
        let mut wrapped = [0x77; 40];
        wrapped.iter_mut().zip(key).for_each(|(out, byte)| *out = byte ^ 0x3c);
        Ok(wrapped)
    }

    fn unwrap(&self, wrapped: &[u8; 40]) -> Result<[u8; 32], WrapError> {
        if wrapped[32..] != [0x77; 8] {
            return Err(WrapError);
        }
        Ok(std::array::from_fn(|at| wrapped[at] ^ 0x3c))
    }
}
