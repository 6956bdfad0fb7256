//! Building command descriptor blocks, for initiators. Every CDB is padded with zeros to 16 bytes, as iSCSI carries it.

use strongroom_block::Lba;

use crate::opcode as op;

/// A CDB as the basic header segment carries it.
pub type Cdb = [u8; 16];

/// TEST UNIT READY.
pub const fn test_unit_ready() -> Cdb {
    [0; 16]
}

/// REQUEST SENSE, fixed format.
pub const fn request_sense(allocation_len: u8) -> Cdb {
    let mut cdb = with_opcode(op::REQUEST_SENSE);
    cdb[4] = allocation_len;
    cdb
}

/// Standard INQUIRY.
pub const fn inquiry(allocation_len: u16) -> Cdb {
    let mut cdb = with_opcode(op::INQUIRY);
    [cdb[3], cdb[4]] = allocation_len.to_be_bytes();
    cdb
}

/// INQUIRY of a vital product data page.
pub const fn inquiry_vpd(page: u8, allocation_len: u16) -> Cdb {
    let mut cdb = inquiry(allocation_len);
    cdb[1] = 1;
    cdb[2] = page;
    cdb
}

/// READ CAPACITY (10).
pub const fn read_capacity_10() -> Cdb {
    with_opcode(op::READ_CAPACITY_10)
}

/// READ CAPACITY (16).
pub const fn read_capacity_16() -> Cdb {
    let mut cdb = with_opcode(op::SERVICE_ACTION_IN_16);
    cdb[1] = op::SA_READ_CAPACITY_16;
    cdb[13] = crate::capacity::ReadCapacity16::BYTES as u8;
    cdb
}

/// GET LBA STATUS.
pub fn get_lba_status(lba: Lba, allocation_len: u32) -> Cdb {
    long(op::SERVICE_ACTION_IN_16, op::SA_GET_LBA_STATUS, lba, allocation_len)
}

/// READ (16).
pub fn read_16(lba: Lba, count: u32) -> Cdb {
    long(op::READ_16, 0, lba, count)
}

/// WRITE (16).
pub fn write_16(lba: Lba, count: u32, fua: bool) -> Cdb {
    long(op::WRITE_16, if fua { 0x08 } else { 0 }, lba, count)
}

/// READ (10), for targets that know no other.
pub fn read_10(lba: u32, count: u16) -> Cdb {
    medium(op::READ_10, 0, lba, count)
}

/// WRITE (10), for targets that know no other.
pub fn write_10(lba: u32, count: u16, fua: bool) -> Cdb {
    medium(op::WRITE_10, if fua { 0x08 } else { 0 }, lba, count)
}

/// VERIFY (16) of what is stored, without data.
pub fn verify_16(lba: Lba, count: u32) -> Cdb {
    long(op::VERIFY_16, 0, lba, count)
}

/// SYNCHRONIZE CACHE (10) of the whole unit.
pub fn synchronize_cache_10() -> Cdb {
    with_opcode(op::SYNCHRONIZE_CACHE_10)
}

/// SYNCHRONIZE CACHE (16) of `count` blocks, 0 meaning to the end.
pub fn synchronize_cache_16(lba: Lba, count: u32) -> Cdb {
    long(op::SYNCHRONIZE_CACHE_16, 0, lba, count)
}

/// SANITIZE, CRYPTOGRAPHIC ERASE, answered as soon as nothing can undo it (IMMED).
pub fn sanitize_crypto_erase() -> Cdb {
    let mut cdb = with_opcode(op::SANITIZE);
    cdb[1] = 0x80 | op::SA_SANITIZE_CRYPTO_ERASE;
    cdb
}

/// UNMAP; the list is made by [`crate::provisioning::unmap_parameters`].
pub fn unmap(parameter_list_len: u16) -> Cdb {
    medium(op::UNMAP, 0, 0, parameter_list_len)
}

/// WRITE SAME (16). `no_data_out` has the target write zeros without being sent a block.
pub fn write_same_16(lba: Lba, count: u32, unmap: bool, no_data_out: bool) -> Cdb {
    let flags = if unmap { 0x08 } else { 0 } | if no_data_out { 0x01 } else { 0 };
    long(op::WRITE_SAME_16, flags, lba, count)
}

/// COMPARE AND WRITE.
pub fn compare_and_write(lba: Lba, count: u8, fua: bool) -> Cdb {
    long(op::COMPARE_AND_WRITE, if fua { 0x08 } else { 0 }, lba, count.into())
}

/// MODE SENSE (6) of one page's current values (0x3f for all pages).
pub fn mode_sense_6(page: u8, allocation_len: u8) -> Cdb {
    let mut cdb = with_opcode(op::MODE_SENSE_6);
    cdb[2] = page & 0x3f;
    cdb[4] = allocation_len;
    cdb
}

/// REPORT LUNS.
pub fn report_luns(allocation_len: u32) -> Cdb {
    let mut cdb = with_opcode(op::REPORT_LUNS);
    cdb[6..10].copy_from_slice(&allocation_len.to_be_bytes());
    cdb
}

/// START STOP UNIT.
pub fn start_stop_unit(start: bool) -> Cdb {
    let mut cdb = with_opcode(op::START_STOP_UNIT);
    cdb[4] = start.into();
    cdb
}

/// RESERVE (6).
pub fn reserve_6() -> Cdb {
    with_opcode(op::RESERVE_6)
}

/// RELEASE (6).
pub fn release_6() -> Cdb {
    with_opcode(op::RELEASE_6)
}

/// PERSISTENT RESERVE IN.
pub const fn persistent_reserve_in(service_action: u8, allocation_len: u16) -> Cdb {
    let mut cdb = with_opcode(op::PERSISTENT_RESERVE_IN);
    cdb[1] = service_action;
    [cdb[7], cdb[8]] = allocation_len.to_be_bytes();
    cdb
}

/// PERSISTENT RESERVE OUT of the whole unit; the list is made by [`crate::persistent::parameters::ReserveOutList`].
pub const fn persistent_reserve_out(service_action: u8, kind: u8, parameter_list_len: u32) -> Cdb {
    let mut cdb = with_opcode(op::PERSISTENT_RESERVE_OUT);
    cdb[1] = service_action;
    cdb[2] = kind;
    [cdb[5], cdb[6], cdb[7], cdb[8]] = parameter_list_len.to_be_bytes();
    cdb
}

/// REPORT SUPPORTED OPERATION CODES, all of them.
pub fn report_supported_operation_codes(allocation_len: u32) -> Cdb {
    let mut cdb = with_opcode(op::MAINTENANCE_IN);
    cdb[1] = op::SA_REPORT_SUPPORTED_OPERATION_CODES;
    cdb[6..10].copy_from_slice(&allocation_len.to_be_bytes());
    cdb
}

/// REPORT SUPPORTED OPERATION CODES about one command with a service action.
pub fn report_supported_operation_code(opcode: u8, service_action: u16, allocation_len: u32) -> Cdb {
    let mut cdb = report_supported_operation_codes(allocation_len);
    cdb[2] = 3;
    cdb[3] = opcode;
    cdb[4..6].copy_from_slice(&service_action.to_be_bytes());
    cdb
}

const fn with_opcode(opcode: u8) -> Cdb {
    let mut cdb = [0; 16];
    cdb[0] = opcode;
    cdb
}

fn medium(opcode: u8, flags: u8, lba: u32, count: u16) -> Cdb {
    let mut cdb = with_opcode(opcode);
    cdb[1] = flags;
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[7..9].copy_from_slice(&count.to_be_bytes());
    cdb
}

pub(crate) fn long(opcode: u8, flags: u8, lba: Lba, count: u32) -> Cdb {
    let mut cdb = with_opcode(opcode);
    cdb[1] = flags;
    cdb[2..10].copy_from_slice(&lba.0.to_be_bytes());
    cdb[10..14].copy_from_slice(&count.to_be_bytes());
    cdb
}
