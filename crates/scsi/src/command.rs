//! Decoding a command descriptor block into a [`Command`]: the only place where a target reads CDB bytes.

use strongroom_block::{BlockSize, Lba};

use crate::bytes::{be16, be32, be64};
use crate::opcode as op;
use crate::sense::Sense;
use crate::vendor::VendorCommand;

/// Why a CDB was not decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CdbError {
    /// Fewer bytes than the operation code asks for.
    #[error("a CDB of {len_bytes} bytes for operation code {opcode:#04x}")]
    TooShort {
        /// The operation code, or 0 if not even that was there.
        opcode: u8,
        /// How many bytes came.
        len_bytes: usize,
    },
    /// An operation code that nothing here answers.
    #[error("operation code {0:#04x} is not known here")]
    UnknownOpcode(u8),
    /// A service action that nothing here answers.
    #[error("operation code {opcode:#04x} has no service action {service_action:#04x}")]
    UnknownServiceAction {
        /// The operation code.
        opcode: u8,
        /// The service action.
        service_action: u8,
    },
    /// A field with a value that is not supported (protection information, NACA, a reserved value).
    #[error("operation code {opcode:#04x}: unsupported value in byte {byte}, bit {bit}")]
    InvalidField {
        /// The operation code.
        opcode: u8,
        /// The byte.
        byte: u8,
        /// The field's highest bit.
        bit: u8,
    },
}

impl CdbError {
    /// What the initiator is told.
    pub fn sense(self) -> Sense {
        match self {
            CdbError::TooShort { .. } | CdbError::UnknownOpcode(_) => Sense::INVALID_OPCODE,
            CdbError::UnknownServiceAction { .. } => Sense::INVALID_FIELD_IN_CDB.in_cdb(1, Some(4)),
            CdbError::InvalidField { byte, bit, .. } => Sense::INVALID_FIELD_IN_CDB.in_cdb(u16::from(byte), Some(bit)),
        }
    }
}

/// Which way a command's data goes, and how much of it at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataDirection {
    /// No data.
    None,
    /// To the initiator: at most this many bytes.
    In(u64),
    /// To the target: exactly this many bytes.
    Out(u64),
}

/// One command, decoded. Counts are in blocks of the unit, lengths in bytes.
#[allow(missing_docs)] // Fields carry SBC-3 and SPC-4's own names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    TestUnitReady,
    RequestSense {
        descriptor: bool,
        allocation_len: u8,
    },
    /// `vpd_page` is `None` for standard INQUIRY data.
    Inquiry {
        vpd_page: Option<u8>,
        allocation_len: u16,
    },
    ReadCapacity10,
    ReadCapacity16 {
        allocation_len: u32,
    },
    GetLbaStatus {
        lba: Lba,
        allocation_len: u32,
    },
    ReportLuns {
        select: u8,
        allocation_len: u32,
    },
    Read {
        lba: Lba,
        count: u32,
        dpo: bool,
        fua: bool,
    },
    Write {
        lba: Lba,
        count: u32,
        dpo: bool,
        fua: bool,
    },
    /// `byte_check` 0 has no data; others compare with Data-Out.
    Verify {
        lba: Lba,
        count: u32,
        byte_check: u8,
    },
    /// `count` 0 means to the end.
    SynchronizeCache {
        lba: Lba,
        count: u32,
        immediate: bool,
    },
    Unmap {
        anchor: bool,
        parameter_list_len: u16,
    },
    /// `no_data_out`: the block to write is zeros (NDOB). `count` 0 means to the end, where that is supported.
    WriteSame {
        lba: Lba,
        count: u32,
        unmap: bool,
        anchor: bool,
        no_data_out: bool,
    },
    /// `count` blocks to compare, followed by as many to write.
    CompareAndWrite {
        lba: Lba,
        count: u8,
        dpo: bool,
        fua: bool,
    },
    /// `ten`: the 10-byte form, with its longer header.
    ModeSense {
        ten: bool,
        disable_block_descriptors: bool,
        long_lba_accepted: bool,
        page_control: u8,
        page: u8,
        subpage: u8,
        allocation_len: u16,
    },
    StartStopUnit {
        immediate: bool,
        power_condition: u8,
        load_eject: bool,
        start: bool,
    },
    PreventAllowMediumRemoval {
        prevent: u8,
    },
    Reserve6,
    Release6,
    PersistentReserveIn {
        service_action: u8,
        allocation_len: u16,
    },
    PersistentReserveOut {
        service_action: u8,
        scope_type: u8,
        parameter_list_len: u32,
    },
    ReportSupportedOperationCodes {
        timeouts: bool,
        reporting_options: u8,
        opcode: u8,
        service_action: u16,
        allocation_len: u32,
    },
    ReportSupportedTmfs {
        extended: bool,
        allocation_len: u32,
    },
    Vendor(VendorCommand),
}

impl Command {
    /// Reads a CDB of up to 16 bytes (trailing bytes of a longer field are ignored).
    ///
    /// # Errors
    /// [`CdbError`]; [`CdbError::sense`] is what the initiator is told.
    pub fn decode(cdb: &[u8]) -> Result<Command, CdbError> {
        let opcode = *cdb.first().ok_or(CdbError::TooShort { opcode: 0, len_bytes: 0 })?;
        let len = cdb_len(opcode).ok_or(CdbError::UnknownOpcode(opcode))?;
        let cdb = cdb.get(..len).ok_or(CdbError::TooShort { opcode, len_bytes: cdb.len() })?;
        // SAM-5 §5.2: NACA in the CONTROL byte asks for auto contingent allegiance, which we do not have (NormACA=0).
        if cdb[len - 1] & 0x04 != 0 {
            return Err(CdbError::InvalidField { opcode, byte: (len - 1) as u8, bit: 2 });
        }
        let fields = Fields { opcode, cdb };
        match len {
            6 => fields.decode_6(),
            10 => fields.decode_10(),
            12 => fields.decode_12(),
            _ => fields.decode_16(),
        }
    }

    /// Which way the data goes and how much of it there is on a unit of this block size.
    pub fn direction(&self, block_size: BlockSize) -> DataDirection {
        let blocks = |count: u64| count << block_size.shift();
        match *self {
            Command::TestUnitReady
            | Command::SynchronizeCache { .. }
            | Command::StartStopUnit { .. }
            | Command::PreventAllowMediumRemoval { .. }
            | Command::Reserve6
            | Command::Release6 => DataDirection::None,
            Command::RequestSense { allocation_len, .. } => DataDirection::In(allocation_len.into()),
            Command::Inquiry { allocation_len, .. }
            | Command::ModeSense { allocation_len, .. }
            | Command::PersistentReserveIn { allocation_len, .. } => DataDirection::In(allocation_len.into()),
            Command::ReadCapacity10 => DataDirection::In(8),
            Command::ReadCapacity16 { allocation_len }
            | Command::GetLbaStatus { allocation_len, .. }
            | Command::ReportLuns { allocation_len, .. }
            | Command::ReportSupportedOperationCodes { allocation_len, .. }
            | Command::ReportSupportedTmfs { allocation_len, .. } => DataDirection::In(allocation_len.into()),
            Command::Read { count, .. } => DataDirection::In(blocks(count.into())),
            Command::Write { count, .. } => DataDirection::Out(blocks(count.into())),
            Command::Verify { count, byte_check, .. } => match byte_check {
                0 => DataDirection::None,
                3 => DataDirection::Out(blocks(1)),
                _ => DataDirection::Out(blocks(count.into())),
            },
            Command::Unmap { parameter_list_len, .. } => DataDirection::Out(parameter_list_len.into()),
            Command::WriteSame { no_data_out: true, .. } => DataDirection::None,
            Command::WriteSame { .. } => DataDirection::Out(blocks(1)),
            Command::CompareAndWrite { count, .. } => DataDirection::Out(blocks(2 * u64::from(count))),
            Command::PersistentReserveOut { parameter_list_len, .. } => DataDirection::Out(parameter_list_len.into()),
            Command::Vendor(vendor) => vendor.direction(block_size),
        }
    }

    /// Whether the command changes what is stored: refused on a read-only unit.
    pub fn writes_medium(&self) -> bool {
        matches!(
            self,
            Command::Write { .. }
                | Command::Unmap { .. }
                | Command::WriteSame { .. }
                | Command::CompareAndWrite { .. }
                | Command::Vendor(
                    VendorCommand::SealHole { .. }
                        | VendorCommand::ConditionalWrite { .. }
                        | VendorCommand::Verified { .. }
                )
        )
    }

    /// Whether the command reads or checks what is stored.
    pub fn reads_medium(&self) -> bool {
        matches!(
            self,
            Command::Read { .. }
                | Command::Verify { .. }
                | Command::CompareAndWrite { .. }
                | Command::Vendor(VendorCommand::ReadVersion { .. })
        )
    }
}

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
        | op::MODE_SENSE_6
        | op::START_STOP_UNIT
        | op::PREVENT_ALLOW_MEDIUM_REMOVAL => 6,
        op::READ_CAPACITY_10
        | op::READ_10
        | op::WRITE_10
        | op::VERIFY_10
        | op::SYNCHRONIZE_CACHE_10
        | op::WRITE_SAME_10
        | op::UNMAP
        | op::MODE_SENSE_10
        | op::PERSISTENT_RESERVE_IN
        | op::PERSISTENT_RESERVE_OUT => 10,
        op::REPORT_LUNS | op::MAINTENANCE_IN | op::READ_12 | op::WRITE_12 => 12,
        op::READ_16
        | op::WRITE_16
        | op::VERIFY_16
        | op::COMPARE_AND_WRITE
        | op::SYNCHRONIZE_CACHE_16
        | op::WRITE_SAME_16
        | op::SERVICE_ACTION_IN_16
        | op::STRONGROOM => 16,
        _ => return None,
    })
}

/// A CDB whose length is known to fit its operation code.
struct Fields<'a> {
    opcode: u8,
    cdb: &'a [u8],
}

impl Fields<'_> {
    fn decode_6(&self) -> Result<Command, CdbError> {
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
                Command::Reserve6
            }
            op::RELEASE_6 => {
                self.must_be_zero(1, 0x11, 4)?;
                Command::Release6
            }
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

    fn decode_10(&self) -> Result<Command, CdbError> {
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
            op::SYNCHRONIZE_CACHE_10 => Command::SynchronizeCache { lba, count, immediate: flags & 2 != 0 },
            op::WRITE_SAME_10 => {
                self.no_protection()?;
                // LBDATA and PBDATA (obsolete) would have the target change the data.
                self.must_be_zero(1, 0x06, 2)?;
                self.write_same(lba, count, false)
            }
            op::UNMAP => Command::Unmap { anchor: flags & 1 != 0, parameter_list_len: self.u16(7) },
            op::MODE_SENSE_10 => self.mode_sense(true, self.u16(7)),
            op::PERSISTENT_RESERVE_IN => {
                Command::PersistentReserveIn { service_action: flags & 0x1f, allocation_len: self.u16(7) }
            }
            op::PERSISTENT_RESERVE_OUT => Command::PersistentReserveOut {
                service_action: flags & 0x1f,
                scope_type: self.cdb[2],
                parameter_list_len: self.u32(5),
            },
            other => return Err(CdbError::UnknownOpcode(other)),
        })
    }

    fn decode_12(&self) -> Result<Command, CdbError> {
        let flags = self.cdb[1];
        let (dpo, fua) = (flags & 0x10 != 0, flags & 0x08 != 0);
        Ok(match self.opcode {
            op::REPORT_LUNS => Command::ReportLuns { select: self.cdb[2], allocation_len: self.u32(6) },
            op::MAINTENANCE_IN => match flags & 0x1f {
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
            other => return Err(CdbError::UnknownOpcode(other)),
        })
    }

    fn decode_16(&self) -> Result<Command, CdbError> {
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

#[cfg(test)]
mod tests;
