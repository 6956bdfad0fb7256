//! Commands that are answered from what is known of the medium, and those to units that are not there.

use strongroom_block::Lba;
use strongroom_scsi::capacity::{ReadCapacity16, read_capacity_10};
use strongroom_scsi::inquiry;
use strongroom_scsi::log::Counters;
use strongroom_scsi::mode::ModeSense;
use strongroom_scsi::provisioning::{self, LBA_STATUS_DESCRIPTORS_MAX, LbaStatus};
use strongroom_scsi::transport::Lun;
use strongroom_scsi::transport::target::Response;
use strongroom_scsi::{Command, Sense, defects, luns, supported};

use super::medium::Medium;
use super::response::data;

/// The REPORT LUNS well-known logical unit (SPC-4 §8.2).
pub(super) const REPORT_LUNS_UNIT: Lun = Lun(luns::REPORT_LUNS_WELL_KNOWN);

/// What is answered for a logical unit that is not there (SPC-4 §6.6.2, §6.33; SAM-5 §5.11).
pub(super) fn on_absent_unit(command: &Command) -> Result<Response, Sense> {
    match *command {
        Command::Inquiry { vpd_page: None, allocation_len } => {
            Ok(data(inquiry::standard_absent(), allocation_len.into()))
        }
        Command::ReportLuns { select, allocation_len } => report_luns(select, allocation_len),
        Command::RequestSense { descriptor, allocation_len } => {
            Ok(request_sense(Sense::LUN_NOT_SUPPORTED, descriptor, allocation_len))
        }
        _ => Err(Sense::LUN_NOT_SUPPORTED),
    }
}

/// What the well-known unit answers: REPORT LUNS, and what it is.
pub(super) fn on_report_luns_unit(command: &Command) -> Result<Response, Sense> {
    match *command {
        Command::Inquiry { vpd_page: None, allocation_len } => {
            Ok(data(inquiry::standard_well_known(), allocation_len.into()))
        }
        Command::ReportLuns { select, allocation_len } => report_luns(select, allocation_len),
        Command::RequestSense { descriptor, allocation_len } => {
            Ok(request_sense(Sense::NONE, descriptor, allocation_len))
        }
        Command::TestUnitReady => Ok(Response::good()),
        _ => Err(Sense::INVALID_OPCODE),
    }
}

fn report_luns(select: u8, allocation_len: u32) -> Result<Response, Sense> {
    // SPC-4 §6.33: an allocation length below 16 is an error.
    if allocation_len < 16 {
        return Err(Sense::INVALID_FIELD_IN_CDB.in_cdb(6, None));
    }
    let list = luns::report(select).ok_or(Sense::INVALID_FIELD_IN_CDB.in_cdb(2, None))?;
    Ok(data(list, allocation_len))
}

/// REQUEST SENSE.
pub(super) fn request_sense(sense: Sense, descriptor: bool, allocation_len: u8) -> Response {
    let bytes = if descriptor { sense.encode_descriptor() } else { sense.encode_fixed() };
    data(bytes, allocation_len.into())
}

/// What is answered about the medium. `is_read_only`: for the session that asks.
pub(super) fn about_medium(command: &Command, medium: &Medium, is_read_only: bool) -> Result<Response, Sense> {
    let geometry = medium.volume.geometry;
    Ok(match *command {
        Command::ReadCapacity10 => data(read_capacity_10(geometry), 8),
        Command::ReadCapacity16 { allocation_len } => {
            data(ReadCapacity16::of(geometry, medium.is_thin()).encode(), allocation_len)
        }
        Command::ReportLuns { select, allocation_len } => report_luns(select, allocation_len)?,
        Command::ModeSense {
            ten,
            disable_block_descriptors,
            long_lba_accepted,
            page_control,
            page,
            subpage,
            allocation_len,
        } => {
            let request = ModeSense { ten, disable_block_descriptors, long_lba_accepted, page_control, page, subpage };
            data(request.answer(geometry, is_read_only, medium.state.mode)?, allocation_len.into())
        }
        Command::LogSense { page_control, page, subpage, parameter_pointer, allocation_len } => {
            let page = counters(medium).page(page_control, page, subpage, parameter_pointer)?;
            data(page, allocation_len.into())
        }
        Command::GetLbaStatus { lba, allocation_len } => lba_status(lba, allocation_len, medium)?,
        Command::ReadDefectData { twelve, lists, format, allocation_len } => {
            data(defects::empty(twelve, lists, format), allocation_len)
        }
        Command::ReportSupportedOperationCodes {
            timeouts,
            reporting_options,
            opcode,
            service_action,
            allocation_len,
        } => {
            let kind = medium.volume.unit_kind();
            data(kind.report(reporting_options, opcode, service_action, timeouts)?, allocation_len)
        }
        Command::ReportSupportedTmfs { extended, allocation_len } => {
            data(supported::supported_tmfs(extended), allocation_len)
        }
        // Every other command was planned before, or no unit has it.
        _ => return Err(Sense::INVALID_OPCODE),
    })
}

/// The runs are the index's, so one answer tells of far more than could be read.
fn lba_status(lba: Lba, allocation_len: u32, medium: &Medium) -> Result<Response, Sense> {
    if lba.0 >= medium.volume.geometry.blocks {
        return Err(Sense::LBA_OUT_OF_RANGE.in_cdb(2, None));
    }
    let room = (allocation_len.saturating_sub(8) / 16).clamp(1, LBA_STATUS_DESCRIPTORS_MAX);
    let mut ranges: Vec<LbaStatus> = Vec::new();
    for run in medium.store.mapped_runs(lba, room as usize) {
        // A descriptor counts with 32 bits; what is beyond is asked for again.
        let count = u32::try_from(run.count).unwrap_or(u32::MAX);
        ranges.push(LbaStatus { lba: run.lba, count, mapped: run.mapped });
        if u64::from(count) < run.count {
            break;
        }
    }
    Ok(data(provisioning::lba_status(&ranges), allocation_len))
}

/// What LOG SENSE tells; space in MiB.
fn counters(medium: &Medium) -> Counters {
    let block_size = medium.volume.geometry.block_size;
    let in_mib =
        |blocks: u64| u32::try_from(blocks.div_ceil(1 << inquiry::threshold_exponent(block_size))).unwrap_or(u32::MAX);
    let mapped = medium.store.stats().blocks_mapped;
    let available = in_mib(medium.volume.geometry.blocks.saturating_sub(mapped));
    Counters { available: medium.is_thin().then_some(available), used: in_mib(mapped), ..medium.state.counters }
}
