//! Reading the fields of a CDB, by its length. The one place where a target looks at CDB bytes.

use strongroom_block::Lba;

use super::{CdbError, Command};
use crate::bytes::{be16, be32, be64};
use crate::opcode as op;
use crate::vendor::VendorCommand;

/// How many bytes a CDB of this operation code has.
pub(crate) fn cdb_len(opcode: u8) -> Option<usize> {
    Some(match opcode {
        op::TEST_UNIT_READY
        | op::REQUEST_SENSE
        | op::READ_6
        | op::WRITE_6
        | op::INQUIRY
        | op::RESERVE_6
        | op::RELEASE_6
        | op::MODE_SELECT_6
        | op::MODE_SENSE_6
        | op::START_STOP_UNIT
        | op::PREVENT_ALLOW_MEDIUM_REMOVAL => 6,
        op::READ_CAPACITY_10
        | op::READ_10
        | op::WRITE_10
        | op::WRITE_AND_VERIFY_10
        | op::VERIFY_10
        | op::PRE_FETCH_10
        | op::SYNCHRONIZE_CACHE_10
        | op::READ_DEFECT_DATA_10
        | op::WRITE_SAME_10
        | op::UNMAP
        | op::SANITIZE
        | op::LOG_SENSE
        | op::MODE_SELECT_10
        | op::RESERVE_10
        | op::RELEASE_10
        | op::MODE_SENSE_10
        | op::PERSISTENT_RESERVE_IN
        | op::PERSISTENT_RESERVE_OUT => 10,
        op::REPORT_LUNS
        | op::MAINTENANCE_IN
        | op::READ_12
        | op::WRITE_12
        | op::WRITE_AND_VERIFY_12
        | op::VERIFY_12
        | op::READ_DEFECT_DATA_12 => 12,
        op::EXTENDED_COPY
        | op::RECEIVE_COPY_RESULTS
        | op::READ_16
        | op::WRITE_16
        | op::WRITE_AND_VERIFY_16
        | op::VERIFY_16
        | op::ORWRITE
        | op::PRE_FETCH_16
        | op::WRITE_ATOMIC_16
        | op::COMPARE_AND_WRITE
        | op::SYNCHRONIZE_CACHE_16
        | op::WRITE_SAME_16
        | op::SERVICE_ACTION_IN_16
        | op::STRONGROOM => 16,
        _ => return None,
    })
}

/// A CDB whose length is known to fit its operation code.
pub(super) struct Fields<'a> {
    pub(super) opcode: u8,
    pub(super) cdb: &'a [u8],
}

impl Fields<'_> {
    pub(super) fn decode_6(&self) -> Result<Command, CdbError> {
        let byte = |at: usize| self.cdb[at];
        Ok(match self.opcode {
            op::TEST_UNIT_READY => Command::TestUnitReady,
            op::REQUEST_SENSE => Command::RequestSense { descriptor: byte(1) & 1 != 0, allocation_len: byte(4) },
            op::READ_6 => {
                let (lba, count) = self.lba_and_count_6();
                Command::Read { lba, count, dpo: false, fua: false }
            }
            op::WRITE_6 => {
                let (lba, count) = self.lba_and_count_6();
                Command::Write { lba, count, dpo: false, fua: false }
            }
            op::INQUIRY => self.inquiry()?,
            op::RESERVE_6 => {
                // Third-party (bit 4) and extent (bit 0) reservations are long obsolete.
                self.must_be_zero(1, 0x11, 4)?;
                Command::Reserve
            }
            op::RELEASE_6 => {
                self.must_be_zero(1, 0x11, 4)?;
                Command::Release
            }
            op::MODE_SELECT_6 => self.mode_select(false, byte(4).into()),
            op::MODE_SENSE_6 => self.mode_sense(false, byte(4).into()),
            op::START_STOP_UNIT => Command::StartStopUnit {
                immediate: byte(1) & 1 != 0,
                power_condition: byte(4) >> 4,
                load_eject: byte(4) & 2 != 0,
                start: byte(4) & 1 != 0,
            },
            op::PREVENT_ALLOW_MEDIUM_REMOVAL => Command::PreventAllowMediumRemoval { prevent: byte(4) & 3 },
            other => return Err(CdbError::UnknownOpcode(other)),
        })
    }

    pub(super) fn decode_10(&self) -> Result<Command, CdbError> {
        let flags = self.cdb[1];
        let lba = Lba(self.u32(2).into());
        let count = u32::from(self.u16(7));
        let (dpo, fua) = (flags & 0x10 != 0, flags & 0x08 != 0);
        Ok(match self.opcode {
            op::READ_CAPACITY_10 => Command::ReadCapacity10,
            op::READ_10 => {
                self.no_protection()?;
                Command::Read { lba, count, dpo, fua }
            }
            op::WRITE_10 => {
                self.no_protection()?;
                Command::Write { lba, count, dpo, fua }
            }
            op::VERIFY_10 => {
                self.no_protection()?;
                Command::Verify { lba, count, byte_check: flags >> 1 & 3 }
            }
            op::WRITE_AND_VERIFY_10 => self.write_verify(lba, count)?,
            op::PRE_FETCH_10 => Command::PreFetch { lba, count, immediate: flags & 2 != 0 },
            op::READ_DEFECT_DATA_10 => self.read_defect_data(false, self.cdb[2], self.u16(7).into()),
            op::SYNCHRONIZE_CACHE_10 => Command::SynchronizeCache { lba, count, immediate: flags & 2 != 0 },
            op::WRITE_SAME_10 => {
                self.no_protection()?;
                // LBDATA and PBDATA (obsolete) would have the target change the data.
                self.must_be_zero(1, 0x06, 2)?;
                self.write_same(lba, count, false)
            }
            op::UNMAP => Command::Unmap { anchor: flags & 1 != 0, parameter_list_len: self.u16(7) },
            op::SANITIZE => self.sanitize()?,
            op::LOG_SENSE => self.log_sense(),
            op::MODE_SELECT_10 => self.mode_select(true, self.u16(7)),
            op::MODE_SENSE_10 => self.mode_sense(true, self.u16(7)),
            op::RESERVE_10 | op::RELEASE_10 => {
                // Third-party (bit 4), long-id (bit 1) and extent (bit 0) reservations are long obsolete.
                self.must_be_zero(1, 0x13, 4)?;
                if self.opcode == op::RESERVE_10 { Command::Reserve } else { Command::Release }
            }
            op::PERSISTENT_RESERVE_IN if flags & 0x1f > op::SA_PR_READ_FULL_STATUS => {
                return Err(self.unknown(flags & 0x1f));
            }
            op::PERSISTENT_RESERVE_IN => {
                Command::PersistentReserveIn { service_action: flags & 0x1f, allocation_len: self.u16(7) }
            }
            op::PERSISTENT_RESERVE_OUT if flags & 0x1f > op::SA_PR_REGISTER_AND_MOVE => {
                return Err(self.unknown(flags & 0x1f));
            }
            op::PERSISTENT_RESERVE_OUT => Command::PersistentReserveOut {
                service_action: flags & 0x1f,
                scope_type: self.cdb[2],
                parameter_list_len: self.u32(5),
            },
            other => return Err(CdbError::UnknownOpcode(other)),
        })
    }

    pub(super) fn decode_12(&self) -> Result<Command, CdbError> {
        let flags = self.cdb[1];
        let (dpo, fua) = (flags & 0x10 != 0, flags & 0x08 != 0);
        Ok(match self.opcode {
            op::REPORT_LUNS => Command::ReportLuns { select: self.cdb[2], allocation_len: self.u32(6) },
            op::MAINTENANCE_IN => match flags & 0x1f {
                op::SA_REPORT_TARGET_PORT_GROUPS => match flags >> 5 {
                    format @ (0 | 1) => {
                        Command::ReportTargetPortGroups { extended: format == 1, allocation_len: self.u32(6) }
                    }
                    _ => return Err(self.invalid(1, 7)),
                },
                op::SA_REPORT_SUPPORTED_OPERATION_CODES => Command::ReportSupportedOperationCodes {
                    timeouts: self.cdb[2] & 0x80 != 0,
                    reporting_options: self.cdb[2] & 7,
                    opcode: self.cdb[3],
                    service_action: self.u16(4),
                    allocation_len: self.u32(6),
                },
                op::SA_REPORT_SUPPORTED_TMFS => {
                    Command::ReportSupportedTmfs { extended: self.cdb[2] & 0x80 != 0, allocation_len: self.u32(6) }
                }
                service_action => return Err(self.unknown(service_action)),
            },
            op::READ_12 => {
                self.no_protection()?;
                Command::Read { lba: Lba(self.u32(2).into()), count: self.u32(6), dpo, fua }
            }
            op::WRITE_12 => {
                self.no_protection()?;
                Command::Write { lba: Lba(self.u32(2).into()), count: self.u32(6), dpo, fua }
            }
            op::WRITE_AND_VERIFY_12 => self.write_verify(Lba(self.u32(2).into()), self.u32(6))?,
            op::VERIFY_12 => {
                self.no_protection()?;
                Command::Verify { lba: Lba(self.u32(2).into()), count: self.u32(6), byte_check: flags >> 1 & 3 }
            }
            op::READ_DEFECT_DATA_12 => self.read_defect_data(true, flags, self.u32(6)),
            other => return Err(CdbError::UnknownOpcode(other)),
        })
    }

    pub(super) fn decode_16(&self) -> Result<Command, CdbError> {
        let flags = self.cdb[1];
        let lba = Lba(self.u64(2));
        let count = self.u32(10);
        let (dpo, fua) = (flags & 0x10 != 0, flags & 0x08 != 0);
        Ok(match self.opcode {
            op::READ_16 => {
                self.no_protection()?;
                Command::Read { lba, count, dpo, fua }
            }
            op::WRITE_16 => {
                self.no_protection()?;
                Command::Write { lba, count, dpo, fua }
            }
            op::VERIFY_16 => {
                self.no_protection()?;
                Command::Verify { lba, count, byte_check: flags >> 1 & 3 }
            }
            op::WRITE_AND_VERIFY_16 => self.write_verify(lba, count)?,
            op::ORWRITE => {
                self.no_protection()?;
                Command::OrWrite { lba, count, fua }
            }
            op::PRE_FETCH_16 => Command::PreFetch { lba, count, immediate: flags & 2 != 0 },
            op::WRITE_ATOMIC_16 => {
                self.no_protection()?;
                Command::WriteAtomic { lba, count: self.u16(12).into(), boundary: self.u16(10), fua }
            }
            op::EXTENDED_COPY => match flags & 0x1f {
                0 => Command::ExtendedCopy { parameter_list_len: count },
                service_action => return Err(self.unknown(service_action)),
            },
            op::RECEIVE_COPY_RESULTS => match flags & 0x1f {
                service_action @ (op::SA_COPY_STATUS | op::SA_COPY_OPERATING_PARAMETERS) => {
                    Command::ReceiveCopyResults { service_action, list_id: self.cdb[2], allocation_len: count }
                }
                service_action => return Err(self.unknown(service_action)),
            },
            op::COMPARE_AND_WRITE => {
                self.no_protection()?;
                Command::CompareAndWrite { lba, count: self.cdb[13], dpo, fua }
            }
            op::SYNCHRONIZE_CACHE_16 => Command::SynchronizeCache { lba, count, immediate: flags & 2 != 0 },
            op::WRITE_SAME_16 => {
                self.no_protection()?;
                self.must_be_zero(1, 0x06, 2)?;
                self.write_same(lba, count, flags & 1 != 0)
            }
            op::SERVICE_ACTION_IN_16 => match flags & 0x1f {
                op::SA_READ_CAPACITY_16 => Command::ReadCapacity16 { allocation_len: count },
                op::SA_GET_LBA_STATUS => Command::GetLbaStatus { lba, allocation_len: count },
                service_action => return Err(self.unknown(service_action)),
            },
            op::STRONGROOM => Command::Vendor(
                VendorCommand::decode(flags & 0x1f, lba, count).ok_or_else(|| self.unknown(flags & 0x1f))?,
            ),
            other => return Err(CdbError::UnknownOpcode(other)),
        })
    }

    fn inquiry(&self) -> Result<Command, CdbError> {
        // CMDDT (bit 1) is obsolete.
        self.must_be_zero(1, 0x02, 1)?;
        let page = self.cdb[2];
        let vpd = self.cdb[1] & 1 != 0;
        if !vpd && page != 0 {
            return Err(self.invalid(2, 7));
        }
        Ok(Command::Inquiry { vpd_page: vpd.then_some(page), allocation_len: self.u16(3) })
    }

    fn log_sense(&self) -> Command {
        Command::LogSense {
            page_control: self.cdb[2] >> 6,
            page: self.cdb[2] & 0x3f,
            subpage: self.cdb[3],
            parameter_pointer: self.u16(5),
            allocation_len: self.u16(7),
        }
    }

    fn mode_sense(&self, ten: bool, allocation_len: u16) -> Command {
        Command::ModeSense {
            ten,
            disable_block_descriptors: self.cdb[1] & 0x08 != 0,
            long_lba_accepted: ten && self.cdb[1] & 0x10 != 0,
            page_control: self.cdb[2] >> 6,
            page: self.cdb[2] & 0x3f,
            subpage: self.cdb[3],
            allocation_len,
        }
    }

    fn mode_select(&self, ten: bool, parameter_list_len: u16) -> Command {
        let flags = self.cdb[1];
        Command::ModeSelect { ten, page_format: flags & 0x10 != 0, save: flags & 1 != 0, parameter_list_len }
    }

    fn write_verify(&self, lba: Lba, count: u32) -> Result<Command, CdbError> {
        self.no_protection()?;
        // Whether what was written is compared with the data (1) or only looked at (0); 2 and 3 are reserved here.
        self.must_be_zero(1, 0x04, 2)?;
        Ok(Command::WriteVerify { lba, count, byte_check: self.cdb[1] >> 1 & 1 })
    }

    fn read_defect_data(&self, twelve: bool, flags: u8, allocation_len: u32) -> Command {
        Command::ReadDefectData { twelve, lists: flags & 0x18, format: flags & 7, allocation_len }
    }

    fn sanitize(&self) -> Result<Command, CdbError> {
        // ZNR is for zoned devices.
        self.must_be_zero(1, 0x40, 6)?;
        for byte in 2..7 {
            self.must_be_zero(byte, 0xff, 7)?;
        }
        let action = self.cdb[1] & 0x1f;
        match action {
            op::SA_SANITIZE_BLOCK_ERASE | op::SA_SANITIZE_CRYPTO_ERASE | op::SA_SANITIZE_EXIT_FAILURE_MODE => {
                Ok(Command::Sanitize { immediate: self.cdb[1] & 0x80 != 0, action, parameter_list_len: self.u16(7) })
            }
            _ => Err(self.unknown(action)),
        }
    }

    fn write_same(&self, lba: Lba, count: u32, no_data_out: bool) -> Command {
        let flags = self.cdb[1];
        Command::WriteSame { lba, count, unmap: flags & 0x08 != 0, anchor: flags & 0x10 != 0, no_data_out }
    }

    /// SBC-3 §5.11: 21 bits of address, and a length of 0 means 256.
    fn lba_and_count_6(&self) -> (Lba, u32) {
        let lba = u32::from_be_bytes([0, self.cdb[1] & 0x1f, self.cdb[2], self.cdb[3]]);
        let count = match self.cdb[4] {
            0 => 256,
            count => u32::from(count),
        };
        (Lba(lba.into()), count)
    }

    /// RDPROTECT, WRPROTECT and VRPROTECT: we have no protection information (READ CAPACITY (16) says PROT_EN=0).
    fn no_protection(&self) -> Result<(), CdbError> {
        self.must_be_zero(1, 0xe0, 7)
    }

    fn must_be_zero(&self, byte: usize, mask: u8, bit: u8) -> Result<(), CdbError> {
        if self.cdb[byte] & mask == 0 { Ok(()) } else { Err(self.invalid(byte as u8, bit)) }
    }

    fn invalid(&self, byte: u8, bit: u8) -> CdbError {
        CdbError::InvalidField { opcode: self.opcode, byte, bit }
    }

    fn unknown(&self, service_action: u8) -> CdbError {
        CdbError::UnknownServiceAction { opcode: self.opcode, service_action }
    }

    fn u16(&self, at: usize) -> u16 {
        be16(self.cdb, at).expect("the CDB's length was checked against its operation code")
    }

    fn u32(&self, at: usize) -> u32 {
        be32(self.cdb, at).expect("the CDB's length was checked against its operation code")
    }

    fn u64(&self, at: usize) -> u64 {
        be64(self.cdb, at).expect("the CDB's length was checked against its operation code")
    }
}
