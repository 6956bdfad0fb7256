//! Commands that are answered from what the unit knows, without its store.

use strongroom_block::Lba;
use strongroom_scsi::capacity::{ReadCapacity16, read_capacity_10};
use strongroom_scsi::inquiry::{self, BlockLimits};
use strongroom_scsi::log::Counters;
use strongroom_scsi::mode::ModeSense;
use strongroom_scsi::provisioning::{self, LBA_STATUS_DESCRIPTORS_MAX, LbaStatus};
use strongroom_scsi::transport::Lun;
use strongroom_scsi::transport::target::{self as transport, Response};
use strongroom_scsi::{Command, Sense, UnitAttention, UnitKind, alua, defects, luns, supported, vendor};
use strongroom_store::Op;

use super::plan::Plan;
use super::request::gather;
use super::response;
use super::work::Work;
use super::{SessionKey, Unit};
use crate::TRANSFER_BYTES_MAX;

/// Most bytes that one COMPARE AND WRITE compares.
pub(super) const COMPARE_BYTES_MAX: u32 = 128 * 1024;
/// Most bytes that one WRITE SAME writes; it is done in slices, so this bounds its time, not memory.
pub(super) const WRITE_SAME_BYTES_MAX: u64 = TRANSFER_BYTES_MAX as u64;

/// Parameter data, cut to the allocation length.
fn data(bytes: Vec<u8>, allocation_len: u32) -> Plan {
    Plan::Answer(response::data(bytes, allocation_len))
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

/// The REPORT LUNS well-known logical unit (SPC-4 §8.2).
pub(super) const REPORT_LUNS_UNIT: Lun = Lun(luns::REPORT_LUNS_WELL_KNOWN);

/// What the well-known unit answers: REPORT LUNS, and what it is.
pub(super) fn on_report_luns_unit(command: &Command) -> Plan {
    match *command {
        Command::Inquiry { vpd_page: None, allocation_len } => {
            data(inquiry::standard_well_known(), allocation_len.into())
        }
        Command::ReportLuns { select, allocation_len } => report_luns(select, allocation_len),
        Command::RequestSense { descriptor, allocation_len } => request_sense(Sense::NONE, descriptor, allocation_len),
        Command::TestUnitReady => Plan::Answer(Response::good()),
        _ => Plan::from(Sense::INVALID_OPCODE),
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
    pub(super) fn plan_answer(&mut self, connection: SessionKey, command: Command) -> Plan {
        let geometry = self.volume.geometry;
        match command {
            Command::TestUnitReady => Plan::Answer(Response::good()),
            Command::PreventAllowMediumRemoval { prevent } => {
                self.medium.prevent_removal(connection, prevent & 1 != 0);
                Plan::Answer(Response::good())
            }
            Command::RequestSense { descriptor, allocation_len } => {
                if let Some(sense) = self.sanitizer.in_progress(self.store.erase_progress()) {
                    return request_sense(sense, descriptor, allocation_len);
                }
                let pending = self.access.users.get_mut(connection).and_then(|user| user.attentions.take());
                request_sense(pending.unwrap_or(Sense::NONE), descriptor, allocation_len)
            }
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
                let read_only =
                    self.access.users.get(connection).is_none_or(|user| user.read_only || self.image.is_pinned());
                match request.answer(geometry, read_only, self.medium.mode) {
                    Ok(pages) => data(pages, allocation_len.into()),
                    Err(sense) => Plan::from(sense),
                }
            }
            Command::StartStopUnit { power_condition, load_eject, start, .. } => {
                self.start_stop(power_condition, load_eject, start)
            }
            Command::Reserve | Command::Release => self.plan_reserve(connection, &command),
            Command::PersistentReserveIn { service_action, allocation_len } => {
                Plan::Answer(self.access.reservations.report(service_action, allocation_len))
            }
            Command::ReceiveCopyResults { service_action, list_id, allocation_len } => {
                match self.copy_results(connection, service_action, list_id) {
                    Ok(results) => data(results, allocation_len),
                    Err(sense) => Plan::from(sense),
                }
            }
            Command::ReportTargetPortGroups { extended, allocation_len } => {
                data(alua::report(&self.environment.ports, extended), allocation_len)
            }
            Command::ReadDefectData { twelve, lists, format, allocation_len } => {
                data(defects::empty(twelve, lists, format), allocation_len)
            }
            Command::LogSense { page_control, page, subpage, parameter_pointer, allocation_len } => {
                match self.log_counters().page(page_control, page, subpage, parameter_pointer) {
                    Ok(page) => data(page, allocation_len.into()),
                    Err(sense) => Plan::from(sense),
                }
            }
            Command::GetLbaStatus { lba, allocation_len } => self.lba_status(lba, allocation_len),
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

    fn plan_reserve(&mut self, connection: SessionKey, command: &Command) -> Plan {
        let Some(nexus) = self.access.users.nexus(connection) else { return Plan::from(Sense::INTERNAL_FAILURE) };
        let reservations = &mut self.access.reservations;
        Plan::Answer(match command {
            Command::Reserve => reservations.reserve(nexus),
            _ => reservations.release(nexus),
        })
    }

    fn copy_results(&self, connection: SessionKey, service_action: u8, list_id: u8) -> Result<Vec<u8>, Sense> {
        let nexus = self.access.users.nexus(connection).ok_or(Sense::INTERNAL_FAILURE)?;
        self.copies.report(nexus, service_action, list_id, self.volume.geometry.block_size.shift())
    }

    /// Stopping makes durable first what was written (SBC-3 §5.25, NO_FLUSH=0). There is no medium to eject.
    fn start_stop(&mut self, power_condition: u8, load_eject: bool, start: bool) -> Plan {
        if power_condition != 0 || start {
            self.medium.started |= start && power_condition == 0;
            return Plan::Answer(Response::good());
        }
        if load_eject {
            let prevented = self.medium.is_removal_prevented();
            let sense = Sense::INVALID_FIELD_IN_CDB.in_cdb(4, Some(1));
            return Plan::from(if prevented { Sense::REMOVAL_PREVENTED } else { sense });
        }
        Plan::Start(Work::FlushAndStop, Op::Flush)
    }

    /// The runs are the index's, so one answer tells of far more than could be read.
    fn lba_status(&self, lba: Lba, allocation_len: u32) -> Plan {
        if lba.0 >= self.volume.geometry.blocks {
            return Plan::from(Sense::LBA_OUT_OF_RANGE.in_cdb(2, None));
        }
        let room = (allocation_len.saturating_sub(8) / 16).clamp(1, LBA_STATUS_DESCRIPTORS_MAX);
        let runs = self.store.mapped_runs(lba, room as usize);
        let mut ranges: Vec<LbaStatus> = Vec::new();
        for run in runs {
            // A descriptor counts with 32 bits; what is beyond is asked for again.
            let count = u32::try_from(run.count).unwrap_or(u32::MAX);
            ranges.push(LbaStatus { lba: run.lba, count, mapped: run.mapped });
            if u64::from(count) < run.count {
                break;
            }
        }
        data(provisioning::lba_status(&ranges), allocation_len)
    }

    /// What LOG SENSE tells; space in MiB.
    fn log_counters(&self) -> Counters {
        let block_size = self.volume.geometry.block_size;
        let in_mib = |blocks: u64| {
            u32::try_from(blocks.div_ceil(1 << inquiry::threshold_exponent(block_size))).unwrap_or(u32::MAX)
        };
        let mapped = self.store.stats().blocks_mapped;
        let available = in_mib(self.volume.geometry.blocks.saturating_sub(mapped));
        Counters { available: self.is_thin().then_some(available), used: in_mib(mapped), ..self.medium.counters }
    }

    /// MODE SELECT: what is changed is changed for everybody, and everybody else is told.
    pub(super) fn plan_mode_select(
        &mut self,
        connection: SessionKey,
        (ten, page_format, save): (bool, bool, bool),
        parameter_list_len: u16,
        request: &transport::Command,
    ) -> Plan {
        // Pages in the standard's format (PF=1), and nowhere to save them.
        if !page_format || save {
            return Plan::from(Sense::INVALID_FIELD_IN_CDB.in_cdb(1, Some(if save { 0 } else { 4 })));
        }
        let selected = gather(request, parameter_list_len.into())
            .and_then(|list| self.medium.mode.select(ten, &list, self.volume.geometry));
        let mode = match selected {
            Ok(mode) => mode,
            Err(sense) => return Plan::from(sense),
        };
        if std::mem::replace(&mut self.medium.mode, mode) != mode {
            self.access.users.establish(UnitAttention::ModeParametersChanged, |key, _| key != connection);
        }
        Plan::Answer(Response::good())
    }

    /// Plain units are thin: they can UNMAP, and what is unmapped reads as zeros.
    fn is_thin(&self) -> bool {
        self.volume.unit_kind() == UnitKind::Plain
    }

    pub(super) fn plan_inquiry(&self, connection: SessionKey, vpd_page: Option<u8>, allocation_len: u16) -> Plan {
        let Some(user) = self.access.users.get(connection) else { return Plan::from(Sense::INTERNAL_FAILURE) };
        match self.inquiry(vpd_page, user.nexus.target_portal_group) {
            Some(page) => data(page, allocation_len.into()),
            None => Plan::from(Sense::INVALID_FIELD_IN_CDB.in_cdb(2, None)),
        }
    }

    /// `port`: the one that is asked through.
    fn inquiry(&self, vpd_page: Option<u8>, port: u16) -> Option<Vec<u8>> {
        let Some(page) = vpd_page else { return Some(inquiry::standard(!self.is_thin())) };
        if !self.vpd_pages().contains(&page) {
            return None;
        }
        Some(match page {
            inquiry::PAGE_SUPPORTED => inquiry::supported_pages(&self.vpd_pages()),
            inquiry::PAGE_SERIAL => inquiry::serial(self.volume.id),
            inquiry::PAGE_IDENTIFICATION => inquiry::identification(self.volume.id, &self.target_name, port),
            inquiry::PAGE_MANAGEMENT => inquiry::management(self.environment.management_url.as_deref()?),
            inquiry::PAGE_BLOCK_LIMITS => self.block_limits().encode(),
            inquiry::PAGE_EXTENDED => inquiry::extended(),
            inquiry::PAGE_MODE_POLICY => inquiry::mode_policy(),
            inquiry::PAGE_PORTS => inquiry::ports(&self.target_name, &self.environment.ports),
            inquiry::PAGE_CHARACTERISTICS => inquiry::characteristics(self.is_thin()),
            inquiry::PAGE_PROVISIONING => inquiry::provisioning(self.volume.geometry.block_size),
            vendor::UNIT_PAGE => {
                let (incarnation, _) = self.store.incarnation_and_image();
                self.volume.unit_page(incarnation, self.other_views(), self.image_number()).encode()
            }
            _ => return None,
        })
    }

    /// Snapshots and clones, which share its blocks.
    fn other_views(&self) -> u16 {
        let views = self.store.snapshots().len() + self.store.branches().len().saturating_sub(1);
        u16::try_from(views).unwrap_or(u16::MAX)
    }

    /// The pages that there are, in ascending order.
    fn vpd_pages(&self) -> Vec<u8> {
        use inquiry::*;
        let mut pages = vec![PAGE_SUPPORTED, PAGE_SERIAL, PAGE_IDENTIFICATION];
        pages.extend(self.environment.management_url.is_some().then_some(PAGE_MANAGEMENT));
        pages.extend([PAGE_EXTENDED, PAGE_MODE_POLICY, PAGE_PORTS, PAGE_BLOCK_LIMITS, PAGE_CHARACTERISTICS]);
        pages.extend(self.is_thin().then_some(PAGE_PROVISIONING));
        pages.push(vendor::UNIT_PAGE);
        pages
    }

    fn block_limits(&self) -> BlockLimits {
        let block_bytes = self.volume.geometry.block_size.bytes();
        let common = BlockLimits {
            write_same_nonzero: true,
            granularity_blocks: (4096 / block_bytes).max(1) as u16,
            transfer_blocks_max: TRANSFER_BYTES_MAX / block_bytes,
            transfer_blocks_optimal: (1 << 20) / block_bytes,
            // The CDB's count has 16 bits.
            atomic_blocks_max: (TRANSFER_BYTES_MAX / block_bytes).min(u16::MAX.into()),
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
