//! Checks of requests against the contract of [`Op`] and its limits, and the writes that are made of them.

use crc_fast::{CrcAlgorithm, Digest};
use strongroom_block::{Buffer, HoleRecord, Lba, SealRecord, Token};

use super::request::{Addresses, Content, Gate, WriteRequest};
use super::volume::Volume;
use crate::op::{Op, OpError};

/// The write that a request asks for. `writable`: the branch that is written, or why nothing is.
///
/// # Errors
/// [`OpError::Misuse`], [`OpError::OutOfRange`], or why nothing is written.
pub(super) fn write_of(
    volume: &Volume,
    token: Token,
    writable: Result<u32, OpError>,
    op: Op,
    bytes: usize,
) -> Result<WriteRequest, OpError> {
    let is_sealed = volume.is_sealed();
    let request = |branch, content| WriteRequest::new(token, branch, content, bytes);
    Ok(match op {
        Op::Write { lba, data, records, fua, origin } => {
            let content = blocks(volume, lba, data, &records)?;
            request(writable?, content).durable_if(fua).named(origin)
        }
        Op::ConditionalWrite { lba, expected, data, record, fua, origin } => {
            check(is_sealed, "a write on condition of a stamp to a plain unit")?;
            let content = blocks(volume, lba, data, &[record])?;
            request(writable?, content).durable_if(fua).when(Gate::Stamp { expected }).named(origin)
        }
        Op::CompareAndWrite { lba, compare, data, fua } => {
            check(!is_sealed, "a comparison of data on a sealed unit")?;
            check(compare.len() == data.len(), "a comparison with another length than the data")?;
            let content = blocks(volume, lba, vec![data], &[])?;
            request(writable?, content).durable_if(fua).when(Gate::Compare(compare))
        }
        Op::Hole { holes, origin } => {
            check(is_sealed, "sealed holes for a plain unit")?;
            check((1..=Op::HOLES_MAX).contains(&holes.len()), "none or too many holes")?;
            let holes = holes.into_iter().map(|hole| sealed_hole(volume, hole)).collect::<Result<Vec<_>, _>>()?;
            request(writable?, Content::Holes(holes)).named(origin)
        }
        Op::ConditionalHole { hole, origin } => {
            check(is_sealed, "sealed holes for a plain unit")?;
            let content = Content::Holes(vec![sealed_hole(volume, hole)?]);
            request(writable?, content).when(Gate::Absent).named(origin)
        }
        Op::RegisterAttachment { attach_id } => {
            check(is_sealed, "an attach id of a plain unit")?;
            request(writable?, Content::Register(attach_id)).durable_if(true)
        }
        Op::Discard { lba, count } => {
            check(!is_sealed, "an unsealed hole for a sealed unit")?;
            check_range(volume, lba, count)?;
            request(writable?, Content::Holes(vec![(lba.0, count, None)]))
        }
        _ => unreachable!("not a write"),
    })
}

/// Checks the ranges of a read.
pub(super) fn check_runs(volume: &Volume, runs: &[(Lba, u32)]) -> Result<(), OpError> {
    for &(lba, count) in runs {
        check_range(volume, lba, u64::from(count))?;
    }
    let count: u64 = runs.iter().map(|&(_, count)| u64::from(count)).sum();
    check(count <= u64::from(Op::READ_BLOCKS_MAX), "more than Op::READ_BLOCKS_MAX blocks in one read")?;
    let len = count * u64::from(volume.layout.block_bytes);
    check(len <= Op::READ_BYTES_MAX as u64, "more than Op::READ_BYTES_MAX bytes in one read")
}

/// What a request counts against the limit of requests, in bytes: the memory that it takes until it completes.
pub(super) fn op_bytes(op: &Op, block_bytes: usize) -> usize {
    // What is more than a read may ask for is refused as such.
    let read_bytes = |blocks: usize| blocks.saturating_mul(block_bytes).min(Op::READ_BYTES_MAX);
    match op {
        Op::Write { data, .. } | Op::ConditionalWrite { data, .. } => data.iter().map(|piece| piece.len()).sum(),
        Op::CompareAndWrite { compare, data, .. } => compare.len() + data.len(),
        Op::Hole { holes, .. } => holes.len() * 160,
        Op::ConditionalHole { .. } => 160,
        Op::Read { count, .. } | Op::ReadMedium { count, .. } => read_bytes(*count as usize),
        Op::ReadRuns { runs } => {
            read_bytes(runs.iter().fold(0_usize, |sum, (_, count)| sum.saturating_add(*count as usize)))
        }
        Op::ReadVersion { .. } => block_bytes,
        _ => 0,
    }
}

pub(super) fn check(holds: bool, otherwise: &'static str) -> Result<(), OpError> {
    if holds { Ok(()) } else { Err(OpError::Misuse(otherwise)) }
}

pub(super) fn check_range(volume: &Volume, lba: Lba, count: u64) -> Result<(), OpError> {
    check(count > 0, "no blocks")?;
    if volume.info.geometry.contains(lba, count) { Ok(()) } else { Err(OpError::OutOfRange { lba, count }) }
}

fn sealed_hole(volume: &Volume, hole: HoleRecord) -> Result<(u64, u64, Option<SealRecord>), OpError> {
    check_range(volume, hole.start, hole.count)?;
    check(hole.record.flags().is_hole(), "a hole whose record does not seal one")?;
    check(hole.record.as_bytes().len() <= volume.info.kind.record_bytes(), "a hole record in another form")?;
    Ok((hole.start.0, hole.count, Some(hole.record)))
}

/// Blocks with the items that go into the record blocks.
fn blocks(volume: &Volume, lba: Lba, pieces: Vec<Buffer>, records: &[SealRecord]) -> Result<Content, OpError> {
    let block_bytes = volume.block_bytes();
    let len: usize = pieces.iter().map(|piece| piece.len()).sum();
    check(len.is_multiple_of(block_bytes), "data that is not whole blocks")?;
    check(len <= Op::WRITE_BYTES_MAX, "more than Op::WRITE_BYTES_MAX bytes in one write")?;
    let count = len / block_bytes;
    check_range(volume, lba, count as u64)?;
    let mut items = Vec::with_capacity(count * volume.layout.item_bytes as usize);
    if volume.is_sealed() {
        check(records.len() == count, "another number of records than blocks")?;
        for record in records {
            let is_as_stored = record.as_bytes().len() == volume.info.kind.record_bytes();
            check(is_as_stored, "a record in another form than at rest")?;
            check(!record.flags().is_hole(), "a block whose record seals a hole")?;
            items.extend_from_slice(record.as_bytes());
        }
    } else {
        check(records.is_empty(), "records for a plain unit")?;
        checksums_of(&pieces, block_bytes, |sum| items.extend_from_slice(&sum.to_be_bytes()));
    }
    Ok(Content::Blocks { addresses: Addresses::From(lba.0), pieces, items, count: count as u32 })
}

/// Tells the keyless checksum of each block of data that may be cut into pieces anywhere.
fn checksums_of(pieces: &[Buffer], block_bytes: usize, mut tell: impl FnMut(u64)) {
    // Of the block that is not whole yet.
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    let mut missing = block_bytes;
    for piece in pieces {
        let mut rest: &[u8] = piece;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(missing));
            rest = later;
            if now.len() == block_bytes {
                tell(strongroom_block::keyless_checksum(now));
                continue;
            }
            digest.update(now);
            missing -= now.len();
            if missing == 0 {
                tell(digest.finalize());
                digest = Digest::new(CrcAlgorithm::Crc64Nvme);
                missing = block_bytes;
            }
        }
    }
}
