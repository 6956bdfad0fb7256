//! Associated data, version 1: what a seal binds besides the block. Never names or sizes of volumes.
//!
//! Block, 64 bytes, big-endian: `"SRB1"`, version, suite, mode, flags, domain 16, LBA 8, block size 4, epoch 4, stamp 24.
//! Hole, 72 bytes: `"SRH1"`, version, suite, mode, flags, domain 16, start 8, count 8, block size 4, epoch 4, stamp 24.

use strongroom_block::{Lba, Mode, RECORD_VERSION, RecordFlags, Stamp};

use crate::SealContext;

/// Bytes of associated data of a block.
pub(crate) const BLOCK_BYTES: usize = 64;
/// Bytes of associated data of a hole.
pub(crate) const HOLE_BYTES: usize = 72;

/// For the block at `lba`.
pub(crate) fn of_block(
    context: &SealContext,
    mode: Mode,
    flags: RecordFlags,
    lba: Lba,
    stamp: Stamp,
) -> [u8; BLOCK_BYTES] {
    let mut bytes = [0; BLOCK_BYTES];
    bytes[0..4].copy_from_slice(b"SRB1");
    bytes[4..8].copy_from_slice(&[RECORD_VERSION, context.suite as u8, mode as u8, flags.0]);
    bytes[8..24].copy_from_slice(&context.domain.0);
    bytes[24..32].copy_from_slice(&lba.0.to_be_bytes());
    bytes[32..36].copy_from_slice(&context.block_size.bytes().to_be_bytes());
    bytes[36..40].copy_from_slice(&context.epoch.to_be_bytes());
    bytes[40..64].copy_from_slice(&stamp.to_bytes());
    bytes
}

/// For the hole of `count` blocks from `start`.
pub(crate) fn of_hole(
    context: &SealContext,
    mode: Mode,
    flags: RecordFlags,
    start: Lba,
    count: u64,
    stamp: Stamp,
) -> [u8; HOLE_BYTES] {
    let mut bytes = [0; HOLE_BYTES];
    bytes[0..4].copy_from_slice(b"SRH1");
    bytes[4..8].copy_from_slice(&[RECORD_VERSION, context.suite as u8, mode as u8, flags.0]);
    bytes[8..24].copy_from_slice(&context.domain.0);
    bytes[24..32].copy_from_slice(&start.0.to_be_bytes());
    bytes[32..40].copy_from_slice(&count.to_be_bytes());
    bytes[40..44].copy_from_slice(&context.block_size.bytes().to_be_bytes());
    bytes[44..48].copy_from_slice(&context.epoch.to_be_bytes());
    bytes[48..72].copy_from_slice(&stamp.to_bytes());
    bytes
}
