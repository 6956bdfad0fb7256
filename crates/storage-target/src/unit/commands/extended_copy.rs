//! EXTENDED COPY: within the unit, and between units of this target that the initiator is logged in to. It proceeds in slices, so that it
//! delays other commands little. An operation on another unit is a [`crate::open_units::CrossUnitRequest`]: that unit decides by its own rules
//! whether to execute it.

use std::collections::VecDeque;

use strongroom_block::Lba;
use strongroom_scsi::copy::{CopyList, CopyStatus, LIST_BYTES_MAX, Segment};
use strongroom_scsi::transport::target::Response;
use strongroom_scsi::{NexusId, Sense, Status, inquiry};
use strongroom_store::{Extent, Op, OpError, Outcome};

use crate::names::VolumeName;
use crate::open_units::{OpenUnits, Requester};
use crate::unit::copies::{COPIES_MAX, ThirdPartyCopies};
use crate::unit::medium::Medium;
use crate::unit::plan::{Advance, Plan};
use crate::unit::request::Request;
use crate::unit::response::{check_condition, status};
use crate::volume::Volume;

/// The other unit in which a segment begins or ends; `None`: this unit.
type SegmentUnit = Option<VolumeName>;

/// The progress of an EXTENDED COPY.
pub(crate) struct ExtendedCopy {
    nexus: NexusId,
    requester: Requester,
    list_id: Option<u8>,
    segments: VecDeque<Segment<SegmentUnit>>,
    /// Writes of the current slice.
    pending: VecDeque<Op>,
    segments_done: u16,
    bytes: u64,
    stage: CopyStage,
}

/// The operation that is being executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyStage {
    Reading,
    Writing,
}

impl ExtendedCopy {
    /// `running`: how many copies the unit executes already.
    pub(crate) fn plan(
        parameter_list_len: u32,
        request: &Request<'_>,
        (nexus, requester): (&NexusId, Requester),
        running: usize,
        medium: &Medium,
        others: &OpenUnits,
    ) -> Result<Plan<Box<ExtendedCopy>>, Sense> {
        if parameter_list_len == 0 {
            return Ok(Plan::Answer(Response::good()));
        }
        if parameter_list_len > LIST_BYTES_MAX {
            return Err(Sense::PARAMETER_LIST_LENGTH);
        }
        if running >= COPIES_MAX {
            return Ok(Plan::Answer(status(Status::Busy)));
        }
        let list = request.gather(parameter_list_len.into())?;
        let mut copy = Box::new(ExtendedCopy::parse(&list, (nexus.clone(), requester), &medium.volume, others)?);
        Ok(match copy.next(medium.slice_blocks()) {
            Some(op) => Plan::Start(copy, op),
            None => Plan::Answer(Response::good()),
        })
    }

    /// Parses a parameter list, and checks that its segments are inside their units.
    fn parse(
        list: &[u8],
        (nexus, requester): (NexusId, Requester),
        volume: &Volume,
        others: &OpenUnits,
    ) -> Result<ExtendedCopy, Sense> {
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
        Ok(ExtendedCopy {
            nexus,
            requester,
            list_id: list.list_id,
            segments: list.segments.into(),
            pending: VecDeque::new(),
            segments_done: 0,
            bytes: 0,
            stage: CopyStage::Reading,
        })
    }

    pub(super) fn advance(
        mut self: Box<Self>,
        outcome: Outcome,
        medium: &Medium,
        copies: &mut ThirdPartyCopies,
    ) -> Advance<Box<ExtendedCopy>> {
        match (self.stage, outcome) {
            (CopyStage::Reading, Outcome::Read(extents)) => self.was_read(extents, medium.shift()),
            (CopyStage::Writing, Outcome::Written { .. }) => {}
            _ => return Advance::Done(medium.unexpected_outcome()),
        }
        match self.next(medium.slice_blocks()) {
            Some(op) => Advance::Again(self, op),
            None => {
                self.record(true, copies);
                Advance::Done(Response::good())
            }
        }
    }

    /// The unit's store, or that of the other unit, could not.
    pub(super) fn failed(&self, error: &OpError, medium: &Medium, copies: &mut ThirdPartyCopies) -> Response {
        tracing::error!(volume = %medium.volume.name, %error, "EXTENDED COPY broke off");
        self.record(false, copies);
        check_condition(Sense::COPY_ABORTED)
    }

    /// The other unit could not be reached.
    pub(super) fn not_reachable(&self, copies: &mut ThirdPartyCopies) -> Response {
        self.record(false, copies);
        check_condition(Sense::COPY_TARGET_NOT_REACHABLE)
    }

    /// It has ended, `complete` or not: keeps its result.
    pub(super) fn record(&self, complete: bool, copies: &mut ThirdPartyCopies) {
        let Some(list_id) = self.list_id else { return };
        let result = CopyStatus { list_id, complete, segments: self.segments_done, bytes: self.bytes };
        copies.record(&self.nexus, result);
    }

    /// The next operation. A slice has at most `slice_blocks`. `None`: everything is copied.
    fn next(&mut self, slice_blocks: u32) -> Option<Op> {
        if let Some(op) = self.pending.pop_front() {
            self.stage = CopyStage::Writing;
            return Some(op);
        }
        self.stage = CopyStage::Reading;
        while let Some(segment) = self.segments.front() {
            let count = u32::from(segment.blocks).min(slice_blocks);
            if count > 0 {
                return Some(Op::Read { lba: segment.from, count });
            }
            self.segments.pop_front();
            self.segments_done += 1;
        }
        None
    }

    /// A slice was read: blocks are to be written, holes to be discarded. `shift`: the block size as a power of two.
    fn was_read(&mut self, extents: Vec<Extent>, shift: u32) {
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

    /// The other unit that is to execute the next operation, and on whose behalf; `None`: this one.
    pub(super) fn other_unit(&self) -> Option<(VolumeName, Requester)> {
        let segment = self.segments.front()?;
        let unit = match self.stage {
            CopyStage::Reading => &segment.source,
            CopyStage::Writing => &segment.destination,
        };
        unit.clone().map(|volume| (volume, self.requester.clone()))
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
