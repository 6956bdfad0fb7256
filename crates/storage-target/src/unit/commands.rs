//! The commands that work on the medium. Each has a file and a type of its own, which says how the command is planned, what follows when the
//! store has executed one of its operations, and when it is done. Long commands go in slices, so that they never starve others.
//!
//! [`BlockCommand`] is any of them while it runs. Whether a command may be executed now is not decided here, nor when.

mod extended_copy;
mod flush;
mod merge_write;
mod read;
mod register_attachment;
mod seal_hole;
mod served;
mod unmap;
mod verified;
mod verify;
mod write;
mod write_same;
mod write_verify;

use std::collections::VecDeque;

use strongroom_block::{IoKind, Lba};
use strongroom_scsi::transport::Direction;
use strongroom_scsi::transport::target::Response;
use strongroom_scsi::{Command, NexusId, Sense, VendorCommand};
use strongroom_store::{OpError, Outcome};

use self::extended_copy::ExtendedCopy;
use self::flush::Flush;
use self::merge_write::MergeWrite;
use self::read::Read;
use self::register_attachment::RegisterAttachment;
use self::seal_hole::SealHole;
use self::served::ServedOperation;
use self::unmap::Unmap;
use self::verified::Verified;
use self::verify::Verify;
use self::write::Write;
use self::write_same::{WriteSame, WriteSameFlags};
use self::write_verify::WriteVerify;
use super::copies::ThirdPartyCopies;
use super::medium::Medium;
use super::plan::{Advance, Plan};
use super::request::Request;
use super::response::check_condition;
use super::sanitize::Sanitizer;
use crate::names::VolumeName;
use crate::open_units::{CrossUnitError, CrossUnitReply, CrossUnitResult, OpenUnits, Requester};

pub(super) use self::served::SERVED_MAX;
pub(super) use self::write::COMPARE_BYTES_MAX;
pub(super) use self::write_same::WRITE_SAME_BYTES_MAX;

/// A running command.
pub(super) enum BlockCommand {
    Read(Read),
    Write(Write),
    Merge(MergeWrite),
    WriteVerify(WriteVerify),
    WriteSame(WriteSame),
    Verify(Verify),
    Unmap(Unmap),
    Flush(Flush),
    SealHole(SealHole),
    Verified(Verified),
    Register(RegisterAttachment),
    /// SANITIZE; its state is the unit's.
    Sanitize,
    Copy(Box<ExtendedCopy>),
    /// Not a command of a session, but an operation for one of another unit.
    Served(Box<ServedOperation>),
}

/// What running commands work on.
pub(super) struct CommandContext<'a> {
    pub(super) medium: &'a mut Medium,
    pub(super) sanitizer: &'a mut Sanitizer,
    pub(super) copies: &'a mut ThirdPartyCopies,
}

impl BlockCommand {
    /// What a command of an initiator becomes; `None`: it works on something else than blocks.
    pub(super) fn plan(command: Command, request: &Request<'_>, medium: &mut Medium) -> Option<Plan<BlockCommand>> {
        Some(match command {
            Command::Read { lba, count, fua, .. } => {
                of(Read::plan(lba, count, fua, request, medium), BlockCommand::Read)
            }
            Command::Write { lba, count, fua, .. } => plan_write(lba, count, fua, request, medium),
            // One operation of the store is all or nothing after a crash, so there is nothing to do for WRITE ATOMIC but to keep it one.
            Command::WriteAtomic { lba, count, boundary: 0, fua } => plan_write(lba, count, fua, request, medium),
            Command::WriteAtomic { .. } => Plan::from(Sense::INVALID_FIELD_IN_CDB.in_cdb(10, None)),
            Command::CompareAndWrite { lba, count, fua, .. } => {
                of(Write::plan_compare(lba, count, fua, request, medium), BlockCommand::Write)
            }
            Command::WriteVerify { lba, count, byte_check } => {
                plan_write_verify(lba, count, byte_check, request, medium)
            }
            Command::OrWrite { lba, count, fua } => {
                of(MergeWrite::plan_or(lba, count, fua, request, medium), BlockCommand::Merge)
            }
            Command::WriteSame { lba, count, unmap, anchor, no_data_out } => {
                let flags = WriteSameFlags { unmap, anchor, no_data_out };
                plan_write_same(lba, count, flags, request, medium)
            }
            Command::Unmap { anchor, parameter_list_len } => {
                of(Unmap::plan(anchor, parameter_list_len, request, medium), BlockCommand::Unmap)
            }
            Command::Verify { lba, count, byte_check } => {
                of(Verify::plan(lba, count, byte_check, request, medium), BlockCommand::Verify)
            }
            Command::PreFetch { lba, count, immediate } => {
                of(Verify::plan_prefetch(lba, count, immediate, medium), BlockCommand::Verify)
            }
            Command::SynchronizeCache { lba, count, immediate } => {
                of(Flush::plan(lba, count, immediate, medium), BlockCommand::Flush)
            }
            Command::StartStopUnit { power_condition, load_eject, start, .. } => {
                of(Flush::plan_start_stop(power_condition, load_eject, start, medium), BlockCommand::Flush)
            }
            Command::Vendor(vendor) => return BlockCommand::plan_vendor(vendor, request, medium),
            _ => return None,
        })
    }

    /// The same, of a command of sealed units.
    fn plan_vendor(command: VendorCommand, request: &Request<'_>, medium: &Medium) -> Option<Plan<BlockCommand>> {
        Some(match command {
            VendorCommand::SealHole { parameter_list_len } => {
                of(SealHole::plan(parameter_list_len, request, medium), BlockCommand::SealHole)
            }
            VendorCommand::ReadVersion { lba } => of(Read::plan_version(lba, request, medium), BlockCommand::Read),
            VendorCommand::Verified { parameter_list_len } => {
                of(Verified::plan(parameter_list_len, request, medium), BlockCommand::Verified)
            }
            VendorCommand::ConditionalWrite { lba, count } => {
                of(Write::plan_conditional(lba, count, request, medium), BlockCommand::Write)
            }
            VendorCommand::RegisterAttachment { parameter_list_len } => {
                of(RegisterAttachment::plan(parameter_list_len, request, medium), BlockCommand::Register)
            }
            VendorCommand::TakePlace
            | VendorCommand::ClaimLease { .. }
            | VendorCommand::ReleaseLease
            | VendorCommand::ReportWriters { .. } => return None,
        })
    }

    /// EXTENDED COPY. `running`: how many copies the unit executes already.
    pub(super) fn plan_copy(
        parameter_list_len: u32,
        request: &Request<'_>,
        requester: (&NexusId, Requester),
        running: usize,
        medium: &Medium,
        others: &OpenUnits,
    ) -> Plan<BlockCommand> {
        of(ExtendedCopy::plan(parameter_list_len, request, requester, running, medium, others), BlockCommand::Copy)
    }

    /// An operation for a command of another unit.
    pub(super) fn serve(reply: CrossUnitReply) -> BlockCommand {
        BlockCommand::Served(Box::new(ServedOperation::new(reply)))
    }

    /// A flush that makes durable what a command did before that is answered.
    pub(super) fn settle(response: &Response) -> BlockCommand {
        BlockCommand::Flush(Flush::Answer { wanted_bytes: response.wanted_bytes, written: response.written })
    }

    /// The store, or the other unit, has executed the command's operation.
    pub(super) fn advance(self, outcome: Outcome, context: CommandContext<'_>) -> Advance<BlockCommand> {
        let CommandContext { medium, sanitizer, copies } = context;
        match self {
            BlockCommand::Read(read) => read.advance(outcome, medium).map(BlockCommand::Read),
            BlockCommand::Write(write) => write.advance(outcome, medium).map(BlockCommand::Write),
            BlockCommand::Merge(write) => write.advance(outcome, medium).map(BlockCommand::Merge),
            BlockCommand::WriteVerify(write) => write.advance(outcome, medium).map(BlockCommand::WriteVerify),
            BlockCommand::WriteSame(write) => write.advance(&outcome, medium).map(BlockCommand::WriteSame),
            BlockCommand::Verify(verify) => verify.advance(outcome, medium).map(BlockCommand::Verify),
            BlockCommand::Unmap(unmap) => unmap.advance(&outcome, medium).map(BlockCommand::Unmap),
            BlockCommand::Flush(flush) => flush.advance(&outcome, medium).map(BlockCommand::Flush),
            BlockCommand::SealHole(hole) => hole.advance(&outcome, medium).map(BlockCommand::SealHole),
            BlockCommand::Verified(verified) => verified.advance(&outcome, medium).map(BlockCommand::Verified),
            BlockCommand::Register(_) => RegisterAttachment::advance(&outcome, medium).map(BlockCommand::Register),
            BlockCommand::Sanitize if matches!(outcome, Outcome::Changed) => Advance::Done(sanitizer.erased()),
            BlockCommand::Sanitize => Advance::Done(medium.unexpected_outcome()),
            BlockCommand::Copy(copy) => copy.advance(outcome, medium, copies).map(BlockCommand::Copy),
            BlockCommand::Served(served) => served.advance(outcome, medium).map(BlockCommand::Served),
        }
    }

    /// The command's operation could not be executed.
    pub(super) fn failed(self, error: &OpError, context: CommandContext<'_>) -> Advance<BlockCommand> {
        let CommandContext { medium, sanitizer, copies } = context;
        match self {
            BlockCommand::Merge(write) => write.failed(error, medium).map(BlockCommand::Merge),
            BlockCommand::Sanitize => Advance::Done(sanitizer.erase_failed(&medium.volume.name, error)),
            BlockCommand::Copy(copy) => Advance::Done(copy.failed(error, medium, copies)),
            BlockCommand::Served(served) => {
                served.failed(error.clone());
                Advance::Done(Response::good())
            }
            _ => Advance::Done(medium.failure(error)),
        }
    }

    /// Another unit has replied.
    pub(super) fn replied(self, result: CrossUnitResult, context: CommandContext<'_>) -> Advance<BlockCommand> {
        match (self, result) {
            (command, Ok(outcome)) => command.advance(outcome, context),
            (command, Err(CrossUnitError::Store(error))) => command.failed(&error, context),
            (BlockCommand::Copy(copy), Err(CrossUnitError::NotReachable)) => {
                Advance::Done(copy.not_reachable(context.copies))
            }
            (command, Err(CrossUnitError::NotReachable)) => command.failed(&OpError::NoSuchView, context),
        }
    }

    /// Ends it between two of its operations, because SANITIZE is to discard everything.
    pub(super) fn end_for_sanitize(&self, copies: &mut ThirdPartyCopies) -> Response {
        if let BlockCommand::Copy(copy) = self {
            copy.record(false, copies);
        }
        check_condition(Sense::SANITIZE_IN_PROGRESS)
    }

    /// What its latency counts as.
    pub(super) fn io_kind(&self) -> IoKind {
        match self {
            BlockCommand::Read(_) => IoKind::Read,
            BlockCommand::Write(write) => write.io_kind(),
            BlockCommand::Merge(_) | BlockCommand::WriteVerify(_) | BlockCommand::WriteSame(_) => IoKind::Write,
            BlockCommand::Verify(_) => IoKind::Verify,
            BlockCommand::Unmap(_) | BlockCommand::SealHole(_) => IoKind::Discard,
            BlockCommand::Flush(_) => IoKind::Flush,
            BlockCommand::Verified(_) => IoKind::Feedback,
            BlockCommand::Register(_) | BlockCommand::Sanitize | BlockCommand::Copy(_) | BlockCommand::Served(_) => {
                IoKind::Other
            }
        }
    }

    /// Whether it writes with operations that do not make their data durable themselves.
    pub(super) fn writes_to_cache(&self) -> bool {
        use BlockCommand::{Copy, SealHole, Unmap, WriteSame};
        matches!(self, SealHole(_) | Unmap(_) | WriteSame(_) | Copy(_))
    }

    /// Whether its next operation leaves nothing behind that SANITIZE would have to discard.
    pub(super) fn may_go_on_while_sanitizing(&self) -> bool {
        matches!(self, BlockCommand::Sanitize | BlockCommand::Flush(_))
    }

    /// The other unit that executes the next operation, and on whose behalf; `None`: this one.
    pub(super) fn other_unit(&self) -> Option<(VolumeName, Requester)> {
        match self {
            BlockCommand::Copy(copy) => copy.other_unit(),
            _ => None,
        }
    }
}

/// A plan as that of any command.
fn of<P>(planned: Result<Plan<P>, Sense>, kind: fn(P) -> BlockCommand) -> Plan<BlockCommand> {
    planned.map_or_else(Plan::from, |plan| plan.map(kind))
}

/// WRITE: of whole blocks, or of less.
fn plan_write(lba: Lba, count: u32, fua: bool, request: &Request<'_>, medium: &mut Medium) -> Plan<BlockCommand> {
    let transfer = match medium.transfer(lba, count, request, Direction::Write) {
        Ok(transfer) => transfer,
        Err(sense) => return Plan::from(sense),
    };
    if transfer.partly {
        let fua = medium.state.forces_unit_access(fua);
        return of(MergeWrite::plan_front(lba, transfer.wanted_bytes, fua, request, medium), BlockCommand::Merge);
    }
    match transfer.nothing() {
        Some(response) => Plan::Answer(response),
        None => of(Write::plan(lba, &transfer, fua, request, medium), BlockCommand::Write),
    }
}

/// WRITE AND VERIFY: of whole blocks, or of less.
fn plan_write_verify(
    lba: Lba,
    count: u32,
    byte_check: u8,
    request: &Request<'_>,
    medium: &Medium,
) -> Plan<BlockCommand> {
    let transfer = match medium.transfer(lba, count, request, Direction::Write) {
        Ok(transfer) => transfer,
        Err(sense) => return Plan::from(sense),
    };
    if transfer.partly {
        return of(MergeWrite::plan_front(lba, transfer.wanted_bytes, true, request, medium), BlockCommand::Merge);
    }
    match transfer.nothing() {
        Some(response) => Plan::Answer(response),
        None => of(WriteVerify::plan(lba, &transfer, byte_check, request, medium), BlockCommand::WriteVerify),
    }
}

/// WRITE SAME: the block is written, or the blocks are unmapped.
fn plan_write_same(
    lba: Lba,
    count: u32,
    flags: WriteSameFlags,
    request: &Request<'_>,
    medium: &Medium,
) -> Plan<BlockCommand> {
    match WriteSame::block(lba, count, flags, request, medium) {
        Ok(Some(block)) => {
            let (write, op) = WriteSame::begin(lba, count, &block, medium);
            Plan::Start(BlockCommand::WriteSame(write), op)
        }
        Ok(None) => Unmap::begin(VecDeque::from([(lba, count.into())]), medium).map(BlockCommand::Unmap),
        Err(sense) => Plan::from(sense),
    }
}
