//! What a unit supports: one table that decides what is done, what is refused, and what REPORT SUPPORTED OPERATION CODES says.

use crate::bytes::{be16, be32};
use crate::command::Command;
use crate::opcode as op;
use crate::sense::Sense;

/// Which kind of unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitKind {
    /// The target sees plaintext.
    Plain,
    /// Blocks are sealed by initiators: nothing that compares, replicates or makes up data can hold.
    Sealed,
    /// The same, and the target keeps the blocks' keys, wrapped under one that it can destroy.
    SealedWithKeys,
    /// The same, and a key server has the keys: an initiator that had them destroyed says so.
    SealedWithKeyServer,
}

impl UnitKind {
    /// Whether everything on it can be erased by destroying keys.
    fn erases_by_key(self) -> bool {
        matches!(self, UnitKind::SealedWithKeys | UnitKind::SealedWithKeyServer)
    }
}

/// A row of the table.
struct Row {
    opcode: u8,
    service_action: Option<u16>,
    units: Units,
    /// CDB usage data (SPC-4 §6.35.3): a bit is set where we look at it. Byte 0 is the operation code.
    usage: &'static [u8],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Units {
    Both,
    Plain,
    Sealed,
    ErasedByKey,
}

const fn row(opcode: u8, units: Units, usage: &'static [u8]) -> Row {
    Row { opcode, service_action: None, units, usage }
}

const fn action(opcode: u8, service_action: u16, units: Units, usage: &'static [u8]) -> Row {
    Row { opcode, service_action: Some(service_action), units, usage }
}

const F: u8 = 0xff;
const NACA: u8 = 0x04;

const SANITIZE_USAGE: &[u8] = &[0x48, 0xbf, 0, 0, 0, 0, 0, F, F, NACA];

/// Where a service action is part of the usage data its bits are told as they must be.
const fn pr_in(service_action: u8) -> [u8; 10] {
    [0x5e, service_action, 0, 0, 0, 0, 0, F, F, NACA]
}

const fn pr_out(service_action: u8) -> [u8; 10] {
    [0x5f, service_action, F, 0, 0, F, F, F, F, NACA]
}

const TABLE: &[Row] = &[
    row(op::TEST_UNIT_READY, Units::Both, &[0x00, 0, 0, 0, 0, NACA]),
    row(op::REQUEST_SENSE, Units::Both, &[0x03, 0x01, 0, 0, F, NACA]),
    row(op::READ_6, Units::Both, &[0x08, 0x1f, F, F, F, NACA]),
    row(op::WRITE_6, Units::Both, &[0x0a, 0x1f, F, F, F, NACA]),
    row(op::INQUIRY, Units::Both, &[0x12, 0x01, F, F, F, NACA]),
    row(op::MODE_SELECT_6, Units::Both, &[0x15, 0x11, 0, 0, F, NACA]),
    row(op::RESERVE_6, Units::Both, &[0x16, 0, 0, 0, 0, NACA]),
    row(op::RELEASE_6, Units::Both, &[0x17, 0, 0, 0, 0, NACA]),
    row(op::MODE_SENSE_6, Units::Both, &[0x1a, 0x08, F, F, F, NACA]),
    row(op::START_STOP_UNIT, Units::Both, &[0x1b, 0x01, 0, 0, 0xf3, NACA]),
    row(op::PREVENT_ALLOW_MEDIUM_REMOVAL, Units::Both, &[0x1e, 0, 0, 0, 0x03, NACA]),
    row(op::READ_CAPACITY_10, Units::Both, &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, NACA]),
    row(op::READ_10, Units::Both, &[0x28, 0xf8, F, F, F, F, 0, F, F, NACA]),
    row(op::WRITE_10, Units::Both, &[0x2a, 0xf8, F, F, F, F, 0, F, F, NACA]),
    row(op::WRITE_AND_VERIFY_10, Units::Plain, &[0x2e, 0xf2, F, F, F, F, 0, F, F, NACA]),
    row(op::VERIFY_10, Units::Both, &[0x2f, 0xf6, F, F, F, F, 0, F, F, NACA]),
    row(op::PRE_FETCH_10, Units::Both, &[0x34, 0x02, F, F, F, F, 0, F, F, NACA]),
    row(op::SYNCHRONIZE_CACHE_10, Units::Both, &[0x35, 0x02, F, F, F, F, 0, F, F, NACA]),
    row(op::READ_DEFECT_DATA_10, Units::Both, &[0x37, 0, 0x1f, 0, 0, 0, 0, F, F, NACA]),
    row(op::WRITE_SAME_10, Units::Plain, &[0x41, 0xf8, F, F, F, F, 0, F, F, NACA]),
    row(op::UNMAP, Units::Plain, &[0x42, 0x01, 0, 0, 0, 0, 0, F, F, NACA]),
    action(op::SANITIZE, op::SA_SANITIZE_BLOCK_ERASE as u16, Units::Both, SANITIZE_USAGE),
    action(op::SANITIZE, op::SA_SANITIZE_CRYPTO_ERASE as u16, Units::ErasedByKey, SANITIZE_USAGE),
    action(op::SANITIZE, op::SA_SANITIZE_EXIT_FAILURE_MODE as u16, Units::Both, SANITIZE_USAGE),
    row(op::LOG_SENSE, Units::Both, &[0x4d, 0, F, F, 0, F, F, F, F, NACA]),
    row(op::MODE_SELECT_10, Units::Both, &[0x55, 0x11, 0, 0, 0, 0, 0, F, F, NACA]),
    row(op::RESERVE_10, Units::Both, &[0x56, 0, 0, 0, 0, 0, 0, 0, 0, NACA]),
    row(op::RELEASE_10, Units::Both, &[0x57, 0, 0, 0, 0, 0, 0, 0, 0, NACA]),
    row(op::MODE_SENSE_10, Units::Both, &[0x5a, 0x18, F, F, 0, 0, 0, F, F, NACA]),
    action(op::PERSISTENT_RESERVE_IN, op::SA_PR_READ_KEYS as u16, Units::Both, &pr_in(op::SA_PR_READ_KEYS)),
    action(
        op::PERSISTENT_RESERVE_IN,
        op::SA_PR_READ_RESERVATION as u16,
        Units::Both,
        &pr_in(op::SA_PR_READ_RESERVATION),
    ),
    action(
        op::PERSISTENT_RESERVE_IN,
        op::SA_PR_REPORT_CAPABILITIES as u16,
        Units::Both,
        &pr_in(op::SA_PR_REPORT_CAPABILITIES),
    ),
    action(
        op::PERSISTENT_RESERVE_IN,
        op::SA_PR_READ_FULL_STATUS as u16,
        Units::Both,
        &pr_in(op::SA_PR_READ_FULL_STATUS),
    ),
    action(op::PERSISTENT_RESERVE_OUT, op::SA_PR_REGISTER as u16, Units::Both, &pr_out(op::SA_PR_REGISTER)),
    action(op::PERSISTENT_RESERVE_OUT, op::SA_PR_RESERVE as u16, Units::Both, &pr_out(op::SA_PR_RESERVE)),
    action(op::PERSISTENT_RESERVE_OUT, op::SA_PR_RELEASE as u16, Units::Both, &pr_out(op::SA_PR_RELEASE)),
    action(op::PERSISTENT_RESERVE_OUT, op::SA_PR_CLEAR as u16, Units::Both, &pr_out(op::SA_PR_CLEAR)),
    action(op::PERSISTENT_RESERVE_OUT, op::SA_PR_PREEMPT as u16, Units::Both, &pr_out(op::SA_PR_PREEMPT)),
    action(
        op::PERSISTENT_RESERVE_OUT,
        op::SA_PR_PREEMPT_AND_ABORT as u16,
        Units::Both,
        &pr_out(op::SA_PR_PREEMPT_AND_ABORT),
    ),
    action(
        op::PERSISTENT_RESERVE_OUT,
        op::SA_PR_REGISTER_AND_IGNORE as u16,
        Units::Both,
        &pr_out(op::SA_PR_REGISTER_AND_IGNORE),
    ),
    action(
        op::PERSISTENT_RESERVE_OUT,
        op::SA_PR_REGISTER_AND_MOVE as u16,
        Units::Both,
        &pr_out(op::SA_PR_REGISTER_AND_MOVE),
    ),
    action(op::EXTENDED_COPY, 0, Units::Plain, &[0x83, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, NACA]),
    action(
        op::RECEIVE_COPY_RESULTS,
        op::SA_COPY_STATUS as u16,
        Units::Plain,
        &[0x84, 0x1f, F, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, NACA],
    ),
    action(
        op::RECEIVE_COPY_RESULTS,
        op::SA_COPY_OPERATING_PARAMETERS as u16,
        Units::Plain,
        &[0x84, 0x1f, F, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, NACA],
    ),
    row(op::READ_16, Units::Both, &[0x88, 0xf8, F, F, F, F, F, F, F, F, F, F, F, F, 0, NACA]),
    row(op::COMPARE_AND_WRITE, Units::Plain, &[0x89, 0xf8, F, F, F, F, F, F, F, F, 0, 0, 0, F, 0, NACA]),
    row(op::WRITE_16, Units::Both, &[0x8a, 0xf8, F, F, F, F, F, F, F, F, F, F, F, F, 0, NACA]),
    row(op::ORWRITE, Units::Plain, &[0x8b, 0xf8, F, F, F, F, F, F, F, F, F, F, F, F, 0, NACA]),
    row(op::WRITE_AND_VERIFY_16, Units::Plain, &[0x8e, 0xf2, F, F, F, F, F, F, F, F, F, F, F, F, 0, NACA]),
    row(op::VERIFY_16, Units::Both, &[0x8f, 0xf6, F, F, F, F, F, F, F, F, F, F, F, F, 0, NACA]),
    row(op::PRE_FETCH_16, Units::Both, &[0x90, 0x02, F, F, F, F, F, F, F, F, F, F, F, F, 0, NACA]),
    row(op::SYNCHRONIZE_CACHE_16, Units::Both, &[0x91, 0x02, F, F, F, F, F, F, F, F, F, F, F, F, 0, NACA]),
    row(op::WRITE_SAME_16, Units::Plain, &[0x93, 0xf9, F, F, F, F, F, F, F, F, F, F, F, F, 0, NACA]),
    row(op::WRITE_ATOMIC_16, Units::Both, &[0x9c, 0xf8, F, F, F, F, F, F, F, F, F, F, F, F, 0, NACA]),
    action(
        op::SERVICE_ACTION_IN_16,
        op::SA_READ_CAPACITY_16 as u16,
        Units::Both,
        &[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, NACA],
    ),
    action(
        op::SERVICE_ACTION_IN_16,
        op::SA_GET_LBA_STATUS as u16,
        Units::Both,
        &[0x9e, 0x12, F, F, F, F, F, F, F, F, F, F, F, F, 0, NACA],
    ),
    row(op::REPORT_LUNS, Units::Both, &[0xa0, 0, F, 0, 0, 0, F, F, F, F, 0, NACA]),
    action(
        op::MAINTENANCE_IN,
        op::SA_REPORT_TARGET_PORT_GROUPS as u16,
        Units::Both,
        &[0xa3, 0xff, 0, 0, 0, 0, F, F, F, F, 0, NACA],
    ),
    action(
        op::MAINTENANCE_IN,
        op::SA_REPORT_SUPPORTED_OPERATION_CODES as u16,
        Units::Both,
        &[0xa3, 0x0c, 0x87, F, F, F, F, F, F, F, 0, NACA],
    ),
    action(
        op::MAINTENANCE_IN,
        op::SA_REPORT_SUPPORTED_TMFS as u16,
        Units::Both,
        &[0xa3, 0x0d, 0x80, 0, 0, 0, F, F, F, F, 0, NACA],
    ),
    row(op::READ_12, Units::Both, &[0xa8, 0xf8, F, F, F, F, F, F, F, F, 0, NACA]),
    row(op::WRITE_12, Units::Both, &[0xaa, 0xf8, F, F, F, F, F, F, F, F, 0, NACA]),
    row(op::WRITE_AND_VERIFY_12, Units::Plain, &[0xae, 0xf2, F, F, F, F, F, F, F, F, 0, NACA]),
    row(op::VERIFY_12, Units::Both, &[0xaf, 0xf6, F, F, F, F, F, F, F, F, 0, NACA]),
    row(op::READ_DEFECT_DATA_12, Units::Both, &[0xb7, 0x1f, 0, 0, 0, 0, F, F, F, F, 0, NACA]),
    action(
        op::STRONGROOM,
        op::SA_SEAL_HOLE as u16,
        Units::Sealed,
        &[0xc1, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, NACA],
    ),
    action(
        op::STRONGROOM,
        op::SA_READ_VERSION as u16,
        Units::Sealed,
        &[0xc1, 0x1f, F, F, F, F, F, F, F, F, F, F, F, F, 0, NACA],
    ),
    action(
        op::STRONGROOM,
        op::SA_VERIFIED as u16,
        Units::Sealed,
        &[0xc1, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, NACA],
    ),
    action(
        op::STRONGROOM,
        op::SA_CONDITIONAL_WRITE as u16,
        Units::Sealed,
        &[0xc1, 0x1f, F, F, F, F, F, F, F, F, F, F, F, F, 0, NACA],
    ),
    action(
        op::STRONGROOM,
        op::SA_TAKE_PLACE as u16,
        Units::Sealed,
        &[0xc1, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NACA],
    ),
    action(
        op::STRONGROOM,
        op::SA_REGISTER_ATTACHMENT as u16,
        Units::Sealed,
        &[0xc1, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, NACA],
    ),
    action(
        op::STRONGROOM,
        op::SA_CLAIM_LEASE as u16,
        Units::Both,
        &[0xc1, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, NACA],
    ),
    action(
        op::STRONGROOM,
        op::SA_RELEASE_LEASE as u16,
        Units::Both,
        &[0xc1, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NACA],
    ),
    action(
        op::STRONGROOM,
        op::SA_REPORT_WRITERS as u16,
        Units::Both,
        &[0xc1, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, NACA],
    ),
];

impl Row {
    fn on(&self, unit: UnitKind) -> bool {
        match self.units {
            Units::Both => true,
            Units::Plain => unit == UnitKind::Plain,
            Units::Sealed => unit != UnitKind::Plain,
            Units::ErasedByKey => unit.erases_by_key(),
        }
    }

    /// SPC-4 table 254: a command descriptor of the all-commands format.
    fn descriptor(&self, timeouts: bool, out: &mut Vec<u8>) {
        let [high, low] = self.service_action.unwrap_or(0).to_be_bytes();
        let flags = u8::from(self.service_action.is_some()) | u8::from(timeouts) << 1;
        out.extend_from_slice(&[self.opcode, 0, high, low, 0, flags, 0, self.usage.len() as u8]);
        if timeouts {
            out.extend_from_slice(&NO_TIMEOUTS);
        }
    }
}

/// SPC-4 §6.35.4: a command timeouts descriptor that names no time-out.
const NO_TIMEOUTS: [u8; 12] = [0, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

impl UnitKind {
    /// Whether a unit of this kind has the command that a CDB asks for.
    pub fn supports_cdb(self, cdb: &[u8]) -> bool {
        let Some(&opcode) = cdb.first() else { return false };
        let service_action = cdb.get(1).map_or(0, |byte| u16::from(byte & 0x1f));
        self.find(opcode, service_action).is_some()
    }

    /// Whether a unit of this kind has `command`.
    pub fn supports(self, command: &Command) -> bool {
        match command {
            Command::Unmap { .. }
            | Command::WriteSame { .. }
            | Command::CompareAndWrite { .. }
            | Command::OrWrite { .. }
            | Command::WriteVerify { .. }
            | Command::ExtendedCopy { .. }
            | Command::ReceiveCopyResults { .. } => self == UnitKind::Plain,
            // Only where there is a key to destroy.
            Command::Sanitize { action: op::SA_SANITIZE_CRYPTO_ERASE, .. } => self.erases_by_key(),
            // A blind target holds nothing that the initiator's plaintext could be compared with.
            Command::Verify { byte_check, .. } => *byte_check == 0 || self == UnitKind::Plain,
            Command::Vendor(vendor) => vendor.is_about_leases() || self != UnitKind::Plain,
            _ => true,
        }
    }

    fn find(self, opcode: u8, service_action: u16) -> Option<&'static Row> {
        TABLE.iter().filter(|row| row.on(self) && row.opcode == opcode).find(|row| match row.service_action {
            Some(action) => action == service_action,
            None => true,
        })
    }

    /// The answer to REPORT SUPPORTED OPERATION CODES.
    ///
    /// # Errors
    /// The sense for reporting options that contradict the operation code (SPC-4 §6.35.1).
    pub fn report(self, options: u8, opcode: u8, service_action: u16, timeouts: bool) -> Result<Vec<u8>, Sense> {
        if options == 0 {
            let mut list = Vec::new();
            TABLE.iter().filter(|row| row.on(self)).for_each(|row| row.descriptor(timeouts, &mut list));
            return Ok([(list.len() as u32).to_be_bytes().to_vec(), list].concat());
        }
        let has_actions = TABLE.iter().any(|row| row.on(self) && row.opcode == opcode && row.service_action.is_some());
        let row = match options {
            1 if has_actions => return Err(Sense::INVALID_FIELD_IN_CDB.in_cdb(2, Some(2))),
            1 => self.find(opcode, 0),
            2 if !has_actions => return Err(Sense::INVALID_FIELD_IN_CDB.in_cdb(2, Some(2))),
            2 => self.find(opcode, service_action),
            // SPC-4: either form; a command without service actions is asked for with 0.
            3 if !has_actions && service_action != 0 => None,
            3 => self.find(opcode, service_action),
            _ => return Err(Sense::INVALID_FIELD_IN_CDB.in_cdb(2, Some(2))),
        };
        // SUPPORT: 1 is not supported, 3 is supported as in the standard, 5 in a vendor's way.
        let Some(row) = row else { return Ok(vec![0, 1, 0, 0]) };
        let support = if row.opcode == op::STRONGROOM { 5 } else { 3 };
        let mut data = vec![0, support | u8::from(timeouts) << 7, 0, row.usage.len() as u8];
        data.extend_from_slice(row.usage);
        if timeouts {
            data.extend_from_slice(&NO_TIMEOUTS);
        }
        Ok(data)
    }
}

/// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS data: ABORT TASK, ABORT TASK SET, CLEAR TASK SET, LOGICAL UNIT RESET, TARGET WARM
/// RESET; of the extended ones none.
pub fn supported_tmfs(extended: bool) -> Vec<u8> {
    let functions = 0x80 | 0x40 | 0x10 | 0x08 | 0x02;
    if extended { [[functions, 0, 0, 12].as_slice(), &[0; 12]].concat() } else { vec![functions, 0, 0, 0] }
}

/// (operation code, service action) pairs of an all-commands answer without time-outs, for initiators.
pub fn decode_list(data: &[u8]) -> Option<Vec<(u8, Option<u16>)>> {
    let len = be32(data, 0)? as usize;
    let list = data.get(4..)?;
    let list = &list[..len.min(list.len())];
    list.chunks_exact(8)
        .map(|row| {
            let action = (row[5] & 1 != 0).then(|| be16(row, 2)).flatten();
            Some((row[0], action))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cdb;
    use crate::command::cdb_len;

    #[test]
    fn the_table_agrees_with_the_decoder() {
        for row in TABLE {
            assert_eq!(row.usage.len(), cdb_len(row.opcode).unwrap(), "{:#04x}", row.opcode);
            assert_eq!(row.usage[0], row.opcode);
            let mut cdb = vec![0; row.usage.len()];
            cdb[0] = row.opcode;
            cdb[1] = row.service_action.unwrap_or(0) as u8;
            let command = Command::decode(&cdb).unwrap();
            for unit in [UnitKind::Plain, UnitKind::Sealed, UnitKind::SealedWithKeys, UnitKind::SealedWithKeyServer] {
                assert_eq!(unit.supports(&command), row.on(unit), "{command:?} on {unit:?}");
                assert_eq!(unit.supports_cdb(&cdb), row.on(unit), "{command:?} on {unit:?}");
            }
        }
    }

    #[test]
    fn a_sealed_unit_says_nothing_that_needs_keys() {
        let list = decode_list(&UnitKind::Sealed.report(0, 0, 0, false).unwrap()).unwrap();
        for absent in [
            op::COMPARE_AND_WRITE,
            op::WRITE_SAME_10,
            op::WRITE_SAME_16,
            op::UNMAP,
            op::ORWRITE,
            op::WRITE_AND_VERIFY_16,
        ] {
            assert!(list.iter().all(|(opcode, _)| *opcode != absent));
            assert_eq!(UnitKind::Sealed.report(3, absent, 0, false).unwrap(), [0, 1, 0, 0]);
            assert_eq!(UnitKind::Plain.report(3, absent, 0, false).unwrap()[1], 3);
        }
        assert!(list.contains(&(op::STRONGROOM, Some(u16::from(op::SA_SEAL_HOLE)))));
        assert_eq!(UnitKind::Plain.report(3, op::STRONGROOM, 1, false).unwrap(), [0, 1, 0, 0]);
    }

    #[test]
    fn one_command_golden() {
        let data = UnitKind::Plain.report(1, op::READ_10, 0, true).unwrap();
        assert_eq!(data[..4], [0, 0x83, 0, 10]);
        assert_eq!(data[4..14], [0x28, 0xf8, F, F, F, F, 0, F, F, NACA]);
        assert_eq!(data[14..16], [0, 0x0a]);
        assert!(UnitKind::Plain.report(1, op::MAINTENANCE_IN, 0, false).is_err());
        assert!(UnitKind::Plain.report(2, op::READ_10, 0, false).is_err());
        let command = Command::decode(&cdb::report_supported_operation_code(op::READ_10, 0, 64)).unwrap();
        assert!(matches!(command, Command::ReportSupportedOperationCodes { reporting_options: 3, .. }));
    }
}
