//! Commands that are answered from what the unit knows, without its store.

use strongroom_block::Buffer;
use strongroom_iscsi::target::Response;
use strongroom_scsi::capacity::{ReadCapacity16, read_capacity_10};
use strongroom_scsi::inquiry::{self, BlockLimits};
use strongroom_scsi::mode::ModeSense;
use strongroom_scsi::{Command, Sense, Status, UnitKind, luns, supported, vendor};
use strongroom_store::Op;

use super::work::Work;
use super::{ConnectionKey, Plan, Unit, status};
use crate::{PORTAL_GROUP, TRANSFER_BYTES_MAX};

/// Most bytes that one COMPARE AND WRITE compares.
pub(super) const COMPARE_BYTES_MAX: u32 = 128 * 1024;
/// Most bytes that one WRITE SAME writes; it is done in slices, so this bounds its time, not memory.
pub(super) const WRITE_SAME_BYTES_MAX: u64 = TRANSFER_BYTES_MAX as u64;

/// Parameter data, cut to the allocation length.
fn data(mut bytes: Vec<u8>, allocation_len: u32) -> Plan {
    bytes.truncate(allocation_len as usize);
    Plan::Answer(Response::good_data(Buffer::from(bytes::Bytes::from(bytes))))
}

/// What is answered for a logical unit that is not there (SPC-4 §6.6.2, §6.33; SAM-5 §5.11).
pub(super) fn on_absent_unit(command: &Command) -> Plan {
    match *command {
        Command::Inquiry { vpd_page: None, allocation_len } => data(inquiry::standard_absent(), allocation_len.into()),
        Command::ReportLuns { select, allocation_len } => report_luns(select, allocation_len),
        Command::RequestSense { descriptor, allocation_len } => {
            request_sense(Sense::LUN_NOT_SUPPORTED, descriptor, allocation_len)
        }
        _ => Plan::from(Sense::LUN_NOT_SUPPORTED),
    }
}

fn report_luns(select: u8, allocation_len: u32) -> Plan {
    // SPC-4 §6.33: an allocation length below 16 is an error.
    if allocation_len < 16 {
        return Plan::from(Sense::INVALID_FIELD_IN_CDB.in_cdb(6, None));
    }
    match luns::report(select) {
        Some(list) => data(list, allocation_len),
        None => Plan::from(Sense::INVALID_FIELD_IN_CDB.in_cdb(2, None)),
    }
}

fn request_sense(sense: Sense, descriptor: bool, allocation_len: u8) -> Plan {
    let bytes = if descriptor { sense.encode_descriptor() } else { sense.encode_fixed() };
    data(bytes, allocation_len.into())
}

impl Unit {
    pub(super) fn plan_answer(&mut self, connection: ConnectionKey, command: Command) -> Plan {
        let geometry = self.volume.geometry;
        match command {
            Command::TestUnitReady | Command::PreventAllowMediumRemoval { .. } => Plan::Answer(Response::good()),
            Command::RequestSense { descriptor, allocation_len } => {
                let pending = self.users.get_mut(&connection).and_then(|user| user.attentions.take());
                request_sense(pending.unwrap_or(Sense::NONE), descriptor, allocation_len)
            }
            Command::Inquiry { vpd_page, allocation_len } => match self.inquiry(vpd_page) {
                Some(page) => data(page, allocation_len.into()),
                None => Plan::from(Sense::INVALID_FIELD_IN_CDB.in_cdb(2, None)),
            },
            Command::ReadCapacity10 => data(read_capacity_10(geometry), 8),
            Command::ReadCapacity16 { allocation_len } => {
                data(ReadCapacity16::of(geometry, self.is_thin()).encode(), allocation_len)
            }
            Command::ReportLuns { select, allocation_len } => report_luns(select, allocation_len),
            Command::ModeSense {
                ten,
                disable_block_descriptors,
                long_lba_accepted,
                page_control,
                page,
                subpage,
                allocation_len,
            } => {
                let request =
                    ModeSense { ten, disable_block_descriptors, long_lba_accepted, page_control, page, subpage };
                let read_only = self.users.get(&connection).is_none_or(|user| user.read_only);
                match request.answer(geometry, read_only) {
                    Ok(pages) => data(pages, allocation_len.into()),
                    Err(sense) => Plan::from(sense),
                }
            }
            Command::StartStopUnit { power_condition, load_eject, start, .. } => {
                self.start_stop(power_condition, load_eject, start)
            }
            Command::Reserve6 => {
                let Some(user) = self.users.get(&connection) else { return Plan::from(Sense::INTERNAL_FAILURE) };
                let reserved = self.reservation.reserve(&user.nexus);
                Plan::Answer(if reserved { Response::good() } else { status(Status::ReservationConflict) })
            }
            Command::Release6 => {
                if let Some(user) = self.users.get(&connection) {
                    self.reservation.release(&user.nexus);
                }
                Plan::Answer(Response::good())
            }
            Command::ReportSupportedOperationCodes {
                timeouts,
                reporting_options,
                opcode,
                service_action,
                allocation_len,
            } => match self.volume.unit_kind().report(reporting_options, opcode, service_action, timeouts) {
                Ok(report) => data(report, allocation_len),
                Err(sense) => Plan::from(sense),
            },
            Command::ReportSupportedTmfs { extended, allocation_len } => {
                data(supported::supported_tmfs(extended), allocation_len)
            }
            // Everything else was sorted out before: reads and writes, vendor commands, what no unit has.
            _ => Plan::from(Sense::INVALID_OPCODE),
        }
    }

    /// Stopping makes durable first what was written (SBC-3 §5.25, NO_FLUSH=0). There is no medium to eject.
    fn start_stop(&mut self, power_condition: u8, load_eject: bool, start: bool) -> Plan {
        if power_condition != 0 || start {
            self.started |= start && power_condition == 0;
            return Plan::Answer(Response::good());
        }
        if load_eject {
            return Plan::from(Sense::INVALID_FIELD_IN_CDB.in_cdb(4, Some(1)));
        }
        Plan::Start(Work::FlushAndStop, Op::Flush)
    }

    /// Plain units are thin: they can UNMAP, and what is unmapped reads as zeros.
    fn is_thin(&self) -> bool {
        self.volume.unit_kind() == UnitKind::Plain
    }

    fn inquiry(&self, vpd_page: Option<u8>) -> Option<Vec<u8>> {
        let Some(page) = vpd_page else { return Some(inquiry::standard(!self.is_thin())) };
        Some(match page {
            inquiry::PAGE_SUPPORTED => inquiry::supported_pages(self.vpd_pages()),
            inquiry::PAGE_SERIAL => inquiry::serial(self.volume.id),
            inquiry::PAGE_IDENTIFICATION => inquiry::identification(self.volume.id, &self.target_name, PORTAL_GROUP),
            inquiry::PAGE_BLOCK_LIMITS => self.block_limits().encode(),
            inquiry::PAGE_CHARACTERISTICS => inquiry::characteristics(),
            inquiry::PAGE_PROVISIONING if self.is_thin() => inquiry::provisioning(),
            vendor::UNIT_PAGE => self.volume.unit_page(self.incarnation).encode(),
            _ => return None,
        })
    }

    fn vpd_pages(&self) -> &'static [u8] {
        use inquiry::*;
        if self.is_thin() {
            &[
                PAGE_SUPPORTED,
                PAGE_SERIAL,
                PAGE_IDENTIFICATION,
                PAGE_BLOCK_LIMITS,
                PAGE_CHARACTERISTICS,
                PAGE_PROVISIONING,
                vendor::UNIT_PAGE,
            ]
        } else {
            &[
                PAGE_SUPPORTED,
                PAGE_SERIAL,
                PAGE_IDENTIFICATION,
                PAGE_BLOCK_LIMITS,
                PAGE_CHARACTERISTICS,
                vendor::UNIT_PAGE,
            ]
        }
    }

    fn block_limits(&self) -> BlockLimits {
        let block_bytes = self.volume.geometry.block_size.bytes();
        let common = BlockLimits {
            write_same_nonzero: true,
            granularity_blocks: (4096 / block_bytes).max(1) as u16,
            transfer_blocks_max: TRANSFER_BYTES_MAX / block_bytes,
            transfer_blocks_optimal: (1 << 20) / block_bytes,
            ..BlockLimits::default()
        };
        if !self.is_thin() {
            return common;
        }
        BlockLimits {
            compare_and_write_blocks: (COMPARE_BYTES_MAX / block_bytes).min(255) as u8,
            unmap_blocks_max: u32::MAX,
            unmap_descriptors_max: strongroom_scsi::provisioning::UNMAP_DESCRIPTORS_MAX,
            write_same_blocks_max: WRITE_SAME_BYTES_MAX / u64::from(block_bytes),
            ..common
        }
    }
}
