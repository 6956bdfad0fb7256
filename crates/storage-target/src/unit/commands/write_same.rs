//! WRITE SAME: one block over many, slice by slice.

use strongroom_block::{Buffer, BufferMut, Lba};
use strongroom_scsi::Sense;
use strongroom_scsi::transport::target::Response;
use strongroom_store::{Op, Outcome};

use crate::TRANSFER_BYTES_MAX;
use crate::unit::medium::Medium;
use crate::unit::plan::Advance;
use crate::unit::request::Request;

/// Most bytes that one WRITE SAME writes; it is done in slices, so this bounds its time, not memory.
pub(crate) const WRITE_SAME_BYTES_MAX: u64 = TRANSFER_BYTES_MAX as u64;

/// What is still to be written, and a slice full of the block.
pub(crate) struct WriteSame {
    lba: Lba,
    left: u32,
    pattern: Buffer,
    slice_blocks: u32,
}

/// The bits of a WRITE SAME.
#[derive(Clone, Copy)]
pub(super) struct WriteSameFlags {
    pub(super) unmap: bool,
    pub(super) anchor: bool,
    pub(super) no_data_out: bool,
}

impl WriteSame {
    /// Checks a WRITE SAME and returns its block; `None`: the blocks are to be unmapped.
    pub(super) fn block(
        lba: Lba,
        count: u32,
        flags: WriteSameFlags,
        request: &Request<'_>,
        medium: &Medium,
    ) -> Result<Option<Buffer>, Sense> {
        if flags.anchor {
            return Err(Sense::INVALID_FIELD_IN_CDB.in_cdb(1, Some(4)));
        }
        // WSNZ=1: a count of 0 is refused rather than taken as "to the end".
        if count == 0 || medium.bytes(count) > WRITE_SAME_BYTES_MAX {
            let byte = if request.command.cdb[0] == strongroom_scsi::opcode::WRITE_SAME_10 { 7 } else { 10 };
            return Err(Sense::INVALID_FIELD_IN_CDB.in_cdb(byte, None));
        }
        medium.check_range(lba, count.into())?;
        let block_size = medium.volume.geometry.block_size;
        let block = match flags.no_data_out {
            true => BufferMut::zeroed(block_size.len()).freeze(),
            false => request.gather_exactly(block_size.bytes().into())?,
        };
        let unmaps = flags.unmap && block.iter().all(|&byte| byte == 0);
        Ok((!unmaps).then_some(block))
    }

    /// Begins to write `block` over `count` (at least one) blocks.
    pub(super) fn begin(lba: Lba, count: u32, block: &Buffer, medium: &Medium) -> (WriteSame, Op) {
        let first = count.min(medium.slice_blocks().max(1));
        let mut pattern = BufferMut::zeroed(block.len() * first as usize);
        pattern.chunks_exact_mut(block.len()).for_each(|chunk| chunk.copy_from_slice(block));
        let pattern = pattern.freeze();
        let op = Op::Write { lba, data: vec![pattern.clone()], records: Vec::new(), fua: false, origin: None };
        (WriteSame { lba: Lba(lba.0 + u64::from(first)), left: count - first, pattern, slice_blocks: first }, op)
    }

    pub(super) fn advance(mut self, outcome: &Outcome, medium: &Medium) -> Advance<WriteSame> {
        let Outcome::Written { .. } = outcome else { return Advance::Done(medium.unexpected_outcome()) };
        if self.left == 0 {
            return Advance::Done(Response::good());
        }
        let blocks = self.left.min(self.slice_blocks);
        let data = vec![self.pattern.slice(..medium.bytes(blocks) as usize)];
        let op = Op::Write { lba: self.lba, data, records: Vec::new(), fua: false, origin: None };
        self.lba = Lba(self.lba.0 + u64::from(blocks));
        self.left -= blocks;
        Advance::Again(self, op)
    }
}
