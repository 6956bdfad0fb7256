//! Decoding a command descriptor block into a [`Command`]: the only place where a target reads CDB bytes.

use strongroom_block::{BlockSize, Lba};

use crate::data_direction::DataDirection;
use crate::sense::Sense;
use crate::vendor::VendorCommand;
pub(crate) use decode::cdb_len;

mod decode;

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
    /// RESERVE (6) and (10).
    Reserve,
    /// RELEASE (6) and (10).
    Release,
    /// WRITE AND VERIFY; `byte_check` 1 compares what is read back with the Data-Out.
    WriteVerify {
        lba: Lba,
        count: u32,
        byte_check: u8,
    },
    /// The medium's bits are set where the Data-Out's are.
    OrWrite {
        lba: Lba,
        count: u32,
        fua: bool,
    },
    /// WRITE ATOMIC (16); `boundary` is in blocks, 0 for none.
    WriteAtomic {
        lba: Lba,
        count: u32,
        boundary: u16,
        fua: bool,
    },
    /// `count` 0 means to the end.
    PreFetch {
        lba: Lba,
        count: u32,
        immediate: bool,
    },
    Sanitize {
        immediate: bool,
        action: u8,
        parameter_list_len: u16,
    },
    /// EXTENDED COPY (LID1).
    ExtendedCopy {
        parameter_list_len: u32,
    },
    ReceiveCopyResults {
        service_action: u8,
        list_id: u8,
        allocation_len: u32,
    },
    /// `extended`: with the extended header.
    ReportTargetPortGroups {
        extended: bool,
        allocation_len: u32,
    },
    LogSense {
        page_control: u8,
        page: u8,
        subpage: u8,
        parameter_pointer: u16,
        allocation_len: u16,
    },
    ModeSelect {
        ten: bool,
        page_format: bool,
        save: bool,
        parameter_list_len: u16,
    },
    /// `lists`: PLIST and GLIST as asked for (bits 4 and 3); `format` as asked for.
    ReadDefectData {
        twelve: bool,
        lists: u8,
        format: u8,
        allocation_len: u32,
    },
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
        let fields = decode::Fields { opcode, cdb };
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
            | Command::Reserve
            | Command::Release
            | Command::PreFetch { .. } => DataDirection::None,
            Command::RequestSense { allocation_len, .. } => DataDirection::In(allocation_len.into()),
            Command::Inquiry { allocation_len, .. }
            | Command::ModeSense { allocation_len, .. }
            | Command::LogSense { allocation_len, .. }
            | Command::PersistentReserveIn { allocation_len, .. } => DataDirection::In(allocation_len.into()),
            Command::ReadCapacity10 => DataDirection::In(8),
            Command::ReadCapacity16 { allocation_len }
            | Command::GetLbaStatus { allocation_len, .. }
            | Command::ReportLuns { allocation_len, .. }
            | Command::ReportSupportedOperationCodes { allocation_len, .. }
            | Command::ReportTargetPortGroups { allocation_len, .. }
            | Command::ReceiveCopyResults { allocation_len, .. }
            | Command::ReadDefectData { allocation_len, .. }
            | Command::ReportSupportedTmfs { allocation_len, .. } => DataDirection::In(allocation_len.into()),
            Command::Read { count, .. } => DataDirection::In(blocks(count.into())),
            Command::Write { count, .. }
            | Command::WriteVerify { count, .. }
            | Command::OrWrite { count, .. }
            | Command::WriteAtomic { count, .. } => DataDirection::Out(blocks(count.into())),
            Command::Verify { count, byte_check, .. } => match byte_check {
                0 => DataDirection::None,
                3 => DataDirection::Out(blocks(1)),
                _ => DataDirection::Out(blocks(count.into())),
            },
            Command::Unmap { parameter_list_len, .. }
            | Command::ModeSelect { parameter_list_len, .. }
            | Command::Sanitize { parameter_list_len, .. } => DataDirection::Out(parameter_list_len.into()),
            Command::WriteSame { no_data_out: true, .. } => DataDirection::None,
            Command::WriteSame { .. } => DataDirection::Out(blocks(1)),
            Command::CompareAndWrite { count, .. } => DataDirection::Out(blocks(2 * u64::from(count))),
            Command::PersistentReserveOut { parameter_list_len, .. } | Command::ExtendedCopy { parameter_list_len } => {
                DataDirection::Out(parameter_list_len.into())
            }
            Command::Vendor(vendor) => vendor.direction(block_size),
        }
    }

    /// Whether the command changes what is stored: refused on a read-only unit.
    pub fn writes_medium(&self) -> bool {
        matches!(
            self,
            Command::Write { .. }
                | Command::WriteVerify { .. }
                | Command::OrWrite { .. }
                | Command::WriteAtomic { .. }
                | Command::Sanitize { .. }
                | Command::ExtendedCopy { .. }
                | Command::Unmap { .. }
                | Command::WriteSame { .. }
                | Command::CompareAndWrite { .. }
                | Command::Vendor(
                    VendorCommand::SealHole { .. }
                        | VendorCommand::ConditionalWrite { .. }
                        | VendorCommand::Verified { .. }
                        | VendorCommand::TakePlace
                        | VendorCommand::RegisterAttachment { .. }
                )
        )
    }

    /// Whether the command reads or checks what is stored.
    pub fn reads_medium(&self) -> bool {
        matches!(
            self,
            Command::Read { .. }
                | Command::Verify { .. }
                | Command::PreFetch { .. }
                | Command::CompareAndWrite { .. }
                | Command::Vendor(VendorCommand::ReadVersion { .. })
        )
    }
}

#[cfg(test)]
mod tests;
