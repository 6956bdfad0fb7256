//! The medium of a unit: its volume and store, how blocks change between channel and store, and what initiators have set about it. It is all
//! that most commands need: which blocks there are, what is to be moved of them, and what the store's outcomes mean to an initiator.
//!
//! Who may use it is not here, nor which commands run.

mod state;

use std::sync::{Arc, LazyLock};

use strongroom_block::{Buffer, BufferMut, Geometry, Lba, SealRecord};
use strongroom_scsi::transport::target::{ReadPart, Response};
use strongroom_scsi::transport::{Direction, Operation, Written};
use strongroom_scsi::vendor::PARAMETER_LIST_BYTES_MAX;
use strongroom_scsi::{Command, Sense, Status, UnitKind, VendorCommand};
use strongroom_store::{Extent, OpError, Origin, Outcome};

use super::codec::BlockCodec;
use super::request::{Request, leading};
use super::response::{check_condition, status, with_descriptor_sense};
use crate::TRANSFER_BYTES_MAX;
use crate::protection::Service;
use crate::store_handle::StoreHandle;
use crate::volume::{Access, Sealed, Volume};

pub(super) use state::MediumState;

/// Bytes that long commands (WRITE SAME, VERIFY) move in one operation.
pub(crate) const SLICE_BYTES: u32 = 1 << 20;
const _: () = assert!(SLICE_BYTES <= TRANSFER_BYTES_MAX);

/// Shared zeros for holes of plain units.
static ZEROS: LazyLock<Buffer> = LazyLock::new(|| BufferMut::zeroed(SLICE_BYTES as usize).freeze());

/// What the commands of a unit work on.
pub(super) struct Medium {
    pub(super) volume: Arc<Volume>,
    pub(super) store: StoreHandle,
    pub(super) codec: BlockCodec,
    pub(super) state: MediumState,
}

/// What a transfer of whole blocks comes to when the initiator expects less than the CDB says (RFC 7143 §11.4.5).
pub(super) struct Transfer {
    /// Blocks to move.
    pub(super) blocks: u32,
    /// Bytes that the CDB asks for.
    pub(super) wanted_bytes: u64,
    /// A part of a block moves beside the whole ones (counted in `blocks` when it is read). Never on sealed units.
    pub(super) partly: bool,
}

impl Transfer {
    /// The response, where nothing is to be moved.
    pub(super) fn nothing(&self) -> Option<Response> {
        (self.blocks == 0).then(|| Response { wanted_bytes: Some(self.wanted_bytes), ..Response::good() })
    }
}

impl Medium {
    /// Inside the unit; SBC-3 §4.14: an address is checked even if nothing is to be moved.
    pub(super) fn check_range(&self, lba: Lba, count: u64) -> Result<(), Sense> {
        if self.volume.geometry.contains(lba, count) { Ok(()) } else { Err(Sense::LBA_OUT_OF_RANGE) }
    }

    /// What is to be moved of `count` blocks from `lba` on, which must be inside the unit. A sealed block moves whole or not at all.
    pub(super) fn transfer(
        &self,
        lba: Lba,
        count: u32,
        request: &Request<'_>,
        direction: Direction,
    ) -> Result<Transfer, Sense> {
        self.check_range(lba, count.into())?;
        let wanted_bytes = self.bytes(count);
        if wanted_bytes > TRANSFER_BYTES_MAX.into() {
            return Err(Sense::INVALID_FIELD_IN_CDB);
        }
        let command = request.command;
        let expected = if command.direction == direction { u64::from(command.expected_bytes) } else { 0 };
        let moved = wanted_bytes.min(expected);
        let whole = moved >> self.shift();
        let partly = self.volume.sealed.is_none() && whole << self.shift() < moved;
        let read_partly = partly && direction == Direction::Read;
        Ok(Transfer { blocks: (whole + u64::from(read_partly)) as u32, wanted_bytes, partly })
    }

    /// The block size as a power of two.
    pub(super) fn shift(&self) -> u32 {
        self.volume.geometry.block_size.shift()
    }

    /// The bytes of `blocks` blocks.
    pub(super) fn bytes(&self, blocks: u32) -> u64 {
        u64::from(blocks) << self.shift()
    }

    /// Blocks in one slice of a long command.
    pub(super) fn slice_blocks(&self) -> u32 {
        SLICE_BYTES >> self.shift()
    }

    /// Plain units are thin: they can UNMAP, and what is unmapped reads as zeros.
    pub(super) fn is_thin(&self) -> bool {
        self.volume.unit_kind() == UnitKind::Plain
    }

    /// The sealing of the unit; on a plain one the command is not known.
    pub(super) fn sealed(&self) -> Result<&Sealed, Sense> {
        self.volume.sealed.as_ref().ok_or(Sense::INVALID_OPCODE)
    }

    /// Whether the command's Data-Out is block data that its seal records protect.
    pub(super) fn takes_sealed_data(&self, command: &Command) -> bool {
        let writes = matches!(
            command,
            Command::Write { .. }
                | Command::WriteAtomic { .. }
                | Command::Vendor(VendorCommand::ConditionalWrite { .. })
        );
        writes && self.volume.sealed.is_some()
    }

    /// Whether sealed blocks count as checked on arrival: they were opened here, or the channel proved that they are what their initiator
    /// sent (`by_channel`) and the volume asks that every session's channel do so.
    pub(super) fn is_checked_on_arrival(&self, by_channel: bool) -> bool {
        let asks = || self.volume.access.protection.services.contains(&Service::CheckedOnArrival);
        self.codec.opens() || (by_channel && asks())
    }

    /// A parameter list, which may hold block keys.
    pub(super) fn parameter_list(&self, len: u32, request: &Request<'_>) -> Result<Buffer, Sense> {
        if len > PARAMETER_LIST_BYTES_MAX {
            return Err(Sense::PARAMETER_LIST_LENGTH);
        }
        let command = request.command;
        let list = if self.codec.has_block_keys() { command.gather_wiped() } else { command.gather() };
        leading(&list, len.into())
    }

    /// Which operation a write is: as its operation parameter says, or else by the stamp of its first record.
    pub(super) fn origin_of(&self, request: &Request<'_>, first: &SealRecord) -> Result<Option<Origin>, Sense> {
        let named = request.command.parameters.operation.transpose().map_err(|error| {
            tracing::warn!(volume = %self.volume.name, %error, "a write is refused");
            Sense::INVALID_OPERATION
        })?;
        Ok(Some(match named {
            Some(Operation { id, replay }) => Origin { operation: id, replay },
            None => Origin { operation: first.stamp(), replay: None },
        }))
    }

    /// The data of plain blocks; holes are zeros.
    pub(super) fn plain_parts(&self, extents: &[Extent]) -> Vec<ReadPart> {
        let mut parts = Vec::with_capacity(extents.len());
        for extent in extents {
            match extent {
                Extent::Blocks { data, .. } => parts.push(ReadPart::Plain(data.clone())),
                Extent::Hole { count, .. } => {
                    let mut left = (*count as usize) << self.shift();
                    while left > 0 {
                        let len = left.min(ZEROS.len());
                        parts.push(ReadPart::Plain(ZEROS.slice(..len)));
                        left -= len;
                    }
                }
            }
        }
        parts
    }

    /// What the response to a write of sealed blocks or holes says about it; nothing on a plain unit. `outcome` is a write's.
    pub(super) fn where_written(&self, outcome: &Outcome) -> Option<Written> {
        let &Outcome::Written { first, repeated, superseded } = outcome else { return None };
        if repeated > 0 || superseded > 0 {
            tracing::debug!(volume = %self.volume.name, repeated, superseded, "a write had been executed before, or was replayed");
        }
        self.volume.sealed.as_ref().map(|_| Written { is_repeat: repeated > 0, first, superseded })
    }

    /// The response to a command whose operation the store could not execute.
    pub(super) fn failure(&self, error: &OpError) -> Response {
        let volume = &self.volume.name;
        let sense = match error {
            OpError::Busy => return status(Status::Busy),
            OpError::OutOfRange { lba, .. } => Sense::LBA_OUT_OF_RANGE.at(*lba),
            OpError::NoVersion { lba } => Sense::NO_OLDER_VERSION.at(*lba),
            OpError::Miscompare { offset_bytes } => Sense::MISCOMPARE.at(Lba(*offset_bytes)),
            OpError::StampDiffers { lba, .. } | OpError::NotAbsent { lba } => Sense::MISCOMPARE.at(*lba),
            OpError::UnknownAttachment { .. } => {
                tracing::warn!(%volume, %error, "a write is refused");
                Sense::UNKNOWN_ATTACHMENT
            }
            OpError::OperationOverlaps { .. } | OpError::ReplayRefused(_) => {
                tracing::warn!(%volume, %error, "a write is refused");
                Sense::INVALID_OPERATION
            }
            OpError::ReplayLost { lba } => {
                tracing::warn!(%volume, %error, "a replay came too late");
                Sense::REPLAY_LOST.at(*lba)
            }
            OpError::Medium { lba, .. } | OpError::NotFormatted { lba } => {
                tracing::error!(%volume, %lba, %error, "a read failed");
                Sense::UNRECOVERED_READ.at(*lba)
            }
            // Logged once, when the store became full.
            OpError::NoSpace => Sense::NO_SPACE,
            OpError::WritesRefused { .. } => {
                tracing::error!(%volume, %error, "a write failed");
                Sense::INTERNAL_FAILURE
            }
            OpError::ReadOnly => Sense::WRITE_PROTECTED,
            OpError::Erasing => Sense::SANITIZE_IN_PROGRESS.so_far(self.store.erase().progress().unwrap_or(0)),
            OpError::Misuse(_)
            | OpError::NoSuchView
            | OpError::NameTaken(_)
            | OpError::Depended(_)
            | OpError::TooMany(_) => {
                tracing::error!(%volume, %error, "the store refuses a request; this is a defect");
                Sense::INTERNAL_FAILURE
            }
        };
        check_condition(sense)
    }

    /// The response to a command whose operation had the outcome of another one.
    pub(super) fn unexpected_outcome(&self) -> Response {
        tracing::error!(volume = %self.volume.name, "the store answered another question; this is a defect");
        check_condition(Sense::INTERNAL_FAILURE)
    }

    /// A response with its sense data in the format that the control mode page asks for.
    pub(super) fn in_format(&self, response: Response) -> Response {
        if self.state.mode.descriptor_sense { with_descriptor_sense(response) } else { response }
    }

    /// The access rules of the volume have changed.
    pub(super) fn set_access(&mut self, access: Access) {
        if access != self.volume.access {
            self.volume = Arc::new(Volume { access, ..(*self.volume).clone() });
        }
    }

    /// The size of the volume may have changed. Whether it has.
    pub(super) fn set_size(&mut self, geometry: Geometry) -> bool {
        let is_new = geometry != self.volume.geometry;
        if is_new {
            self.volume = Arc::new(Volume { geometry, ..(*self.volume).clone() });
        }
        is_new
    }
}
