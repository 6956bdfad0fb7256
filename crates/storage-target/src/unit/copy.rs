//! EXTENDED COPY: within the unit, and between units of this target that the initiator is logged in to. It proceeds in slices, so that it
//! delays other commands little. An operation on another unit is an [`CrossUnitRequest`]: that unit decides by its own rules whether to execute it.

use std::collections::VecDeque;

use strongroom_block::{Lba, Token};
use strongroom_scsi::copy::{self, CopyList, CopyStatus, Segment};
use strongroom_scsi::{NexusId, Sense, inquiry, opcode};
use strongroom_store::{Extent, Op};

use crate::names::VolumeName;
use crate::open_units::{CrossUnitResult, OpenUnits, Requester};
use crate::volume::Volume;

/// Results of copies that are kept for RECEIVE COPY RESULTS.
const COPY_RESULTS_MAX: usize = 64;
/// Copies that a unit executes at once; each holds a slice in memory. More are answered with BUSY.
pub(super) const COPIES_MAX: usize = 16;

/// The other unit in which a segment begins or ends; `None`: this unit.
type SegmentUnit = Option<VolumeName>;

/// The progress of an EXTENDED COPY.
pub(super) struct CopyProgress {
    nexus: NexusId,
    asker: Requester,
    list_id: Option<u8>,
    segments: VecDeque<Segment<SegmentUnit>>,
    /// Writes of the current slice.
    pending: VecDeque<Op>,
    segments_done: u16,
    bytes: u64,
}

/// The next operation of a copy.
pub(super) enum CopyOp {
    Read(Op),
    Write(Op),
    /// Everything is copied.
    End,
}

/// An operation that another unit is asked to execute.
pub(crate) struct OutwardErrand {
    pub(crate) token: Token,
    pub(crate) to: VolumeName,
    pub(crate) asker: Requester,
    pub(crate) op: Op,
}

/// Results of copies, and operations on other units.
#[derive(Default)]
pub(super) struct ThirdPartyCopies {
    /// Oldest first.
    results: VecDeque<(NexusId, CopyStatus)>,
    outward: Vec<OutwardErrand>,
    returned: Vec<(Token, CrossUnitResult)>,
}

impl ThirdPartyCopies {
    /// Asks another unit.
    pub(super) fn send(&mut self, request: OutwardErrand) {
        self.outward.push(request);
    }

    /// The operations that other units are to be asked for.
    pub(super) fn take_outward(&mut self) -> Vec<OutwardErrand> {
        std::mem::take(&mut self.outward)
    }

    /// Another unit has replied.
    pub(super) fn receive(&mut self, token: Token, result: CrossUnitResult) {
        self.returned.push((token, result));
    }

    /// The replies since the last call.
    pub(super) fn poll(&mut self) -> Vec<(Token, CrossUnitResult)> {
        std::mem::take(&mut self.returned)
    }

    /// A copy has ended, `complete` or not: keeps its result.
    pub(super) fn record(&mut self, copy: &CopyProgress, complete: bool) {
        let Some(list_id) = copy.list_id else { return };
        self.results.retain(|(nexus, status)| *nexus != copy.nexus || status.list_id != list_id);
        let status = CopyStatus { list_id, complete, segments: copy.segments_done, bytes: copy.bytes };
        self.results.push_back((copy.nexus.clone(), status));
        if self.results.len() > COPY_RESULTS_MAX {
            self.results.pop_front();
        }
    }

    /// RECEIVE COPY RESULTS. `shift`: the block size as a power of two.
    pub(super) fn report(
        &self,
        nexus: &NexusId,
        service_action: u8,
        list_id: u8,
        shift: u32,
    ) -> Result<Vec<u8>, Sense> {
        if service_action == opcode::SA_COPY_OPERATING_PARAMETERS {
            let most = (u64::from(u16::MAX) << shift).min(u32::MAX.into()) as u32;
            return Ok(copy::operating_parameters(most, COPIES_MAX as u8, shift as u8));
        }
        let found = self.results.iter().find(|(its, status)| its == nexus && status.list_id == list_id);
        found.map(|(_, status)| status.encode()).ok_or(Sense::INVALID_FIELD_IN_CDB.in_cdb(2, None))
    }
}

impl CopyProgress {
    /// Parses a parameter list, and checks that its segments are inside their units.
    pub(super) fn parse(
        list: &[u8],
        (nexus, asker): (NexusId, Requester),
        volume: &Volume,
        others: &OpenUnits,
    ) -> Result<CopyProgress, Sense> {
        let find = |kind: u8, designator: &[u8], block_bytes: u32| find(volume, others, kind, designator, block_bytes);
        let list = CopyList::parse(list, find)?;
        for segment in &list.segments {
            for (unit, lba) in [(&segment.source, segment.from), (&segment.destination, segment.to)] {
                let fits = match unit {
                    None => volume.geometry.contains(lba, segment.blocks.into()),
                    // Only the other unit knows its size.
                    Some(_) => lba.0.checked_add(segment.blocks.into()).is_some(),
                };
                if !fits {
                    return Err(Sense::COPY_ABORTED);
                }
            }
        }
        Ok(CopyProgress {
            nexus,
            asker,
            list_id: list.list_id,
            segments: list.segments.into(),
            pending: VecDeque::new(),
            segments_done: 0,
            bytes: 0,
        })
    }

    /// The next operation. A slice has at most `slice_blocks`.
    pub(super) fn next(&mut self, slice_blocks: u32) -> CopyOp {
        if let Some(op) = self.pending.pop_front() {
            return CopyOp::Write(op);
        }
        while let Some(segment) = self.segments.front() {
            let count = u32::from(segment.blocks).min(slice_blocks);
            if count > 0 {
                return CopyOp::Read(Op::Read { lba: segment.from, count });
            }
            self.segments.pop_front();
            self.segments_done += 1;
        }
        CopyOp::End
    }

    /// A slice was read: blocks are to be written, holes to be discarded. `shift`: the block size as a power of two.
    pub(super) fn was_read(&mut self, extents: Vec<Extent>, shift: u32) {
        let Some(segment) = self.segments.front_mut() else { return };
        let distance = |lba: Lba| Lba(segment.to.0 + (lba.0 - segment.from.0));
        let mut blocks = 0;
        for extent in extents {
            let op = match extent {
                Extent::Blocks { lba, data, sequences, .. } => {
                    blocks += sequences.len() as u64;
                    Op::Write { lba: distance(lba), data: vec![data], records: Vec::new(), fua: false, origin: None }
                }
                Extent::Hole { lba, count, .. } => {
                    blocks += count;
                    Op::Discard { lba: distance(lba), count }
                }
            };
            self.pending.push_back(op);
        }
        segment.blocks -= blocks as u16;
        segment.from.0 += blocks;
        segment.to.0 += blocks;
        self.bytes += blocks << shift;
    }

    /// The other unit that is to execute a read, and on whose behalf; `None`: this one.
    pub(super) fn reads_from(&self) -> Option<(VolumeName, Requester)> {
        self.on_behalf(self.segments.front()?.source.clone())
    }

    /// The other unit that is to execute a write, and on whose behalf; `None`: this one.
    pub(super) fn writes_to(&self) -> Option<(VolumeName, Requester)> {
        self.on_behalf(self.segments.front()?.destination.clone())
    }

    fn on_behalf(&self, unit: SegmentUnit) -> Option<(VolumeName, Requester)> {
        unit.map(|volume| (volume, self.asker.clone()))
    }
}

/// The unit that a CSCD descriptor names, if it is open and has blocks of the same size.
fn find(volume: &Volume, others: &OpenUnits, kind: u8, designator: &[u8], block_bytes: u32) -> Option<SegmentUnit> {
    let block_size = volume.geometry.block_size;
    if block_bytes != block_size.bytes() {
        return None;
    }
    if inquiry::designates(volume.id, kind, designator) {
        return Some(None);
    }
    others.find(kind, designator, block_size).map(Some)
}
