//! The checks before every command: whether it can be decoded, which unit it is for, and whether it may be executed now. Then the file for its
//! kind plans it.

use strongroom_scsi::transport::{Lun, target as transport};
use strongroom_scsi::{Command, Sense, Status, VendorCommand};

use super::plan::Plan;
use super::response::status;
use super::{SessionKey, Unit, answers};

impl Unit {
    pub(super) fn plan(
        &mut self,
        connection: SessionKey,
        command: transport::Command,
        sealed_blocks_max: usize,
    ) -> Plan {
        let decoded = Command::decode(&command.cdb);
        // Only block data of a sealed unit may be left to its seal records; before anything else looks at the data.
        let may_be_sealed = decoded.as_ref().is_ok_and(|decoded| self.takes_sealed_data(decoded));
        if !may_be_sealed && command.data.iter().any(|segment| segment.records.is_some()) {
            return Plan::Violation("a SEALED frame for data that is not block data of a sealed unit");
        }
        if may_be_sealed && command.data.iter().any(|segment| segment.records.is_none() && !segment.data.is_empty()) {
            return Plan::Violation("block data of a sealed unit in a PROTECTED frame");
        }
        let decoded = match decoded {
            Ok(decoded) => decoded,
            Err(error) => {
                tracing::debug!(volume = %self.volume.name, %error, "a CDB that is not understood");
                return self.refuse_cdb(command.lun, error.sense());
            }
        };
        if command.lun == answers::REPORT_LUNS_UNIT {
            return answers::on_report_luns_unit(&decoded);
        }
        if command.lun.index() != Some(0) {
            return answers::on_absent_unit(&decoded);
        }
        if let Err(plan) = self.admit(connection, &decoded) {
            return *plan;
        }
        match decoded {
            Command::Read { .. }
            | Command::Write { .. }
            | Command::Verify { .. }
            | Command::SynchronizeCache { .. }
            | Command::Unmap { .. }
            | Command::WriteSame { .. }
            | Command::WriteVerify { .. }
            | Command::WriteAtomic { .. }
            | Command::OrWrite { .. }
            | Command::PreFetch { .. }
            | Command::Sanitize { .. }
            | Command::CompareAndWrite { .. } => self.plan_blocks(decoded, &command, sealed_blocks_max),
            Command::ExtendedCopy { parameter_list_len } => {
                self.plan_copy(connection, parameter_list_len, &command).unwrap_or_else(Plan::from)
            }
            Command::PersistentReserveOut { .. } => {
                Plan::from(self.access.reserve_out(connection, command, &mut self.executor))
            }
            Command::ModeSelect { ten, page_format, save, parameter_list_len } => {
                self.plan_mode_select(connection, (ten, page_format, save), parameter_list_len, &command)
            }
            Command::Vendor(vendor) if vendor.is_about_leases() => {
                let unit = (&self.volume.name, self.image.is_pinned());
                Plan::from(self.access.lease_command(connection, command, unit, &mut self.executor))
            }
            Command::Vendor(vendor) => self.plan_vendor(vendor, &command, sealed_blocks_max),
            Command::Inquiry { vpd_page, allocation_len } => self.plan_inquiry(connection, vpd_page, allocation_len),
            other => self.plan_answer(connection, other),
        }
    }

    /// An unknown command to an absent unit is answered for the unit, not for the command.
    fn refuse_cdb(&self, lun: Lun, sense: Sense) -> Plan {
        let absent = lun.index() != Some(0);
        Plan::from(if absent { Sense::LUN_NOT_SUPPORTED } else { sense })
    }

    /// Unit attentions, whether this kind of unit has the command, reservations, SANITIZE, whether the unit is started, and whether the session
    /// may write. (SAM-5 §5.3.3 leaves the order to us, but a unit attention comes first.)
    fn admit(&mut self, connection: SessionKey, command: &Command) -> Result<(), Box<Plan>> {
        let refuse = |sense: Sense| Err(Box::new(Plan::from(sense)));
        let Some(user) = self.access.users.get_mut(connection) else {
            return refuse(Sense::INTERNAL_FAILURE);
        };
        if let Some(sense) = user.attentions.intercept(command) {
            return refuse(sense);
        }
        // A unit of any kind that was made to succeed another one has this command.
        let succeeds = self.volume.succeeds.is_some() && *command == Command::Vendor(VendorCommand::TakePlace);
        if !succeeds && !self.volume.unit_kind().supports(command) {
            return refuse(match command {
                Command::Verify { .. } => Sense::INVALID_FIELD_IN_CDB.in_cdb(1, Some(2)),
                Command::Sanitize { .. } => Sense::INVALID_FIELD_IN_CDB.in_cdb(1, Some(4)),
                _ => Sense::INVALID_OPCODE,
            });
        }
        if !self.access.reservations.allows(&user.nexus, command) {
            return Err(Box::new(Plan::Answer(status(Status::ReservationConflict))));
        }
        let read_only = user.read_only || self.image.is_pinned();
        let touches_medium = command.reads_medium() || command.writes_medium();
        // The store may be executing an erase that was ordered at the target, or one from before a restart.
        if let Some(sense) = self.sanitizer.refusal(command, self.store.erase_progress()) {
            return refuse(sense);
        }
        if !self.medium.started && (touches_medium || matches!(command, Command::TestUnitReady)) {
            return refuse(Sense::STOPPED);
        }
        // A session that may only read must not exclude those that write, either.
        let holds_up = matches!(
            command,
            Command::StartStopUnit { start: false, .. }
                | Command::Reserve
                | Command::PersistentReserveOut { .. }
                | Command::PreventAllowMediumRemoval { prevent: 1.. }
                | Command::ModeSelect { .. }
        );
        if read_only && (command.writes_medium() || holds_up) {
            return refuse(Sense::WRITE_PROTECTED);
        }
        if self.medium.mode.write_protect && command.writes_medium() {
            return refuse(Sense::SOFTWARE_WRITE_PROTECTED);
        }
        let checked = self.access.check_lease(connection, command, &self.volume.name);
        checked.map_err(|refusal| Box::new(Plan::Answer(status(refusal))))
    }
}
