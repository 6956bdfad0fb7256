//! Proves that CDBs decode to what the standards say, that builders and decoder agree, and that no bytes make it panic.

use proptest::prelude::*;

use super::*;
use crate::cdb;

#[test]
fn golden_reads_and_writes() {
    let read_6 = [0x08, 0x1f, 0xff, 0xfe, 0, 0];
    assert_eq!(Command::decode(&read_6), Ok(Command::Read { lba: Lba(0x1f_fffe), count: 256, dpo: false, fua: false }));
    let write_10 = [0x2a, 0x18, 1, 2, 3, 4, 0, 5, 6, 0];
    assert_eq!(
        Command::decode(&write_10),
        Ok(Command::Write { lba: Lba(0x0102_0304), count: 0x0506, dpo: true, fua: true })
    );
    let read_12 = [0xa8, 0x08, 0, 0, 0, 9, 0, 0, 0, 7, 0, 0];
    assert_eq!(Command::decode(&read_12), Ok(Command::Read { lba: Lba(9), count: 7, dpo: false, fua: true }));
    let read_16 = [0x88, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 1, 0, 0, 0];
    assert_eq!(
        Command::decode(&read_16),
        Ok(Command::Read { lba: Lba(0x0102_0304_0506_0708), count: 256, dpo: false, fua: false })
    );
}

#[test]
fn golden_the_rest() {
    let caw = [0x89, 0x08, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 1, 0, 0];
    assert_eq!(Command::decode(&caw), Ok(Command::CompareAndWrite { lba: Lba(5), count: 1, dpo: false, fua: true }));
    let same = [0x93, 0x09, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 8, 0, 0];
    assert_eq!(
        Command::decode(&same),
        Ok(Command::WriteSame { lba: Lba(5), count: 8, unmap: true, anchor: false, no_data_out: true })
    );
    let sense = [0x1a, 0x08, 0x88, 0, 0xff, 0];
    assert!(matches!(
        Command::decode(&sense),
        Ok(Command::ModeSense { ten: false, page_control: 2, page: 8, disable_block_descriptors: true, .. })
    ));
    assert_eq!(
        Command::decode(&[0x1b, 0, 0, 0, 1, 0]),
        Ok(Command::StartStopUnit { immediate: false, power_condition: 0, load_eject: false, start: true })
    );
}

#[test]
fn builders_decode_to_what_was_meant() {
    let decode = |cdb: cdb::Cdb| Command::decode(&cdb).unwrap();
    assert_eq!(decode(cdb::test_unit_ready()), Command::TestUnitReady);
    assert_eq!(decode(cdb::inquiry_vpd(0xc0, 56)), Command::Inquiry { vpd_page: Some(0xc0), allocation_len: 56 });
    assert_eq!(decode(cdb::inquiry(36)), Command::Inquiry { vpd_page: None, allocation_len: 36 });
    assert_eq!(decode(cdb::read_capacity_10()), Command::ReadCapacity10);
    assert_eq!(decode(cdb::read_capacity_16()), Command::ReadCapacity16 { allocation_len: 32 });
    assert_eq!(decode(cdb::report_luns(4096)), Command::ReportLuns { select: 0, allocation_len: 4096 });
    assert_eq!(decode(cdb::get_lba_status(Lba(7), 24)), Command::GetLbaStatus { lba: Lba(7), allocation_len: 24 });
    assert_eq!(decode(cdb::unmap(24)), Command::Unmap { anchor: false, parameter_list_len: 24 });
    assert_eq!(decode(cdb::reserve_6()), Command::Reserve);
    assert_eq!(decode(cdb::release_6()), Command::Release);
    assert_eq!(
        decode(cdb::synchronize_cache_16(Lba(1), 2)),
        Command::SynchronizeCache { lba: Lba(1), count: 2, immediate: false }
    );
    assert_eq!(
        decode(cdb::write_same_16(Lba(1), 2, true, false)),
        Command::WriteSame { lba: Lba(1), count: 2, unmap: true, anchor: false, no_data_out: false }
    );
    assert_eq!(decode(cdb::request_sense(18)), Command::RequestSense { descriptor: false, allocation_len: 18 });
}

#[test]
fn golden_the_long_tail() {
    let decode = |cdb: &[u8]| Command::decode(cdb).unwrap();
    assert_eq!(
        decode(&[0x2e, 0x02, 0, 0, 0, 5, 0, 0, 3, 0]),
        Command::WriteVerify { lba: Lba(5), count: 3, byte_check: 1 }
    );
    assert_eq!(
        decode(&[0x9c, 0x08, 0, 0, 0, 0, 0, 0, 0, 5, 0, 7, 0, 9, 0, 0]),
        Command::WriteAtomic { lba: Lba(5), count: 9, boundary: 7, fua: true }
    );
    assert_eq!(
        decode(&[0x8b, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 9, 0, 0]),
        Command::OrWrite { lba: Lba(5), count: 9, fua: false }
    );
    assert_eq!(
        decode(&[0x34, 0x02, 0, 0, 0, 5, 0, 0, 3, 0]),
        Command::PreFetch { lba: Lba(5), count: 3, immediate: true }
    );
    assert_eq!(
        decode(&[0xaf, 0x06, 0, 0, 0, 5, 0, 0, 0, 3, 0, 0]),
        Command::Verify { lba: Lba(5), count: 3, byte_check: 3 }
    );
    assert_eq!(
        decode(&[0x48, 0x82, 0, 0, 0, 0, 0, 0, 0, 0]),
        Command::Sanitize { immediate: true, action: 2, parameter_list_len: 0 }
    );
    assert_eq!(
        decode(&[0x4d, 0, 0x4c, 0, 0, 0, 0, 1, 0, 0]),
        Command::LogSense { page_control: 1, page: 0x0c, subpage: 0, parameter_pointer: 0, allocation_len: 256 }
    );
    assert_eq!(
        decode(&[0xa3, 0x2a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]),
        Command::ReportTargetPortGroups { extended: true, allocation_len: 256 }
    );
    assert_eq!(
        decode(&[0x37, 0, 0x1d, 0, 0, 0, 0, 0, 8, 0]),
        Command::ReadDefectData { twelve: false, lists: 0x18, format: 5, allocation_len: 8 }
    );
    // Reserved fields of SANITIZE, service actions beyond the last, and BYTCHK values that WRITE AND VERIFY does not have.
    for bad in [
        [0x48, 0x42, 0, 0, 0, 0, 0, 0, 0, 0],
        [0x48, 0x02, 0, 0, 0, 1, 0, 0, 0, 0],
        [0x48, 0x01, 0, 0, 0, 0, 0, 0, 0, 0],
        [0x5e, 0x04, 0, 0, 0, 0, 0, 0, 8, 0],
        [0x5f, 0x08, 0, 0, 0, 0, 0, 0, 24, 0],
        [0x2e, 0x04, 0, 0, 0, 5, 0, 0, 3, 0],
        [0x56, 0x10, 0, 0, 0, 0, 0, 0, 0, 0],
    ] {
        assert!(Command::decode(&bad).unwrap_err().sense().is(&Sense::INVALID_FIELD_IN_CDB), "{bad:02x?}");
    }
}

#[test]
fn what_is_not_supported_says_where() {
    // RDPROTECT.
    let error = Command::decode(&[0x28, 0x20, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap_err();
    assert_eq!(error, CdbError::InvalidField { opcode: 0x28, byte: 1, bit: 7 });
    assert_eq!(error.sense(), Sense::INVALID_FIELD_IN_CDB.in_cdb(1, Some(7)));
    // NACA.
    assert!(matches!(Command::decode(&[0, 0, 0, 0, 0, 4]), Err(CdbError::InvalidField { byte: 5, bit: 2, .. })));
    assert_eq!(Command::decode(&[0xff; 16]), Err(CdbError::UnknownOpcode(0xff)));
    assert_eq!(Command::decode(&[0x28; 9]), Err(CdbError::TooShort { opcode: 0x28, len_bytes: 9 }));
    assert_eq!(Command::decode(&[]).unwrap_err().sense(), Sense::INVALID_OPCODE);
    let error = Command::decode(&[0xc1, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap_err();
    assert_eq!(error, CdbError::UnknownServiceAction { opcode: 0xc1, service_action: 0x0a });
    // An INQUIRY page code without EVPD.
    assert!(Command::decode(&[0x12, 0, 0x83, 0, 36, 0]).is_err());
}

#[test]
fn directions_count_blocks() {
    let size = BlockSize::DEFAULT;
    let direction = |cdb: cdb::Cdb| Command::decode(&cdb).unwrap().direction(size);
    assert_eq!(direction(cdb::read_16(Lba(0), 3)), DataDirection::In(12288));
    assert_eq!(direction(cdb::write_16(Lba(0), u32::MAX, false)), DataDirection::Out(u64::from(u32::MAX) * 4096));
    assert_eq!(direction(cdb::compare_and_write(Lba(0), 1, false)), DataDirection::Out(8192));
    assert_eq!(direction(cdb::verify_16(Lba(0), 9)), DataDirection::None);
    assert_eq!(direction(cdb::write_same_16(Lba(0), 9, false, true)), DataDirection::None);
    assert_eq!(direction(cdb::write_same_16(Lba(0), 9, false, false)), DataDirection::Out(4096));
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        crate::fuzz_decode(&bytes);
    }

    #[test]
    fn no_operands_panic(opcode in any::<u8>(), operands in any::<[u8; 15]>()) {
        let mut cdb = vec![opcode];
        cdb.extend_from_slice(&operands);
        crate::fuzz_decode(&cdb);
    }

    #[test]
    fn long_reads_and_writes_survive(lba in any::<u64>(), count in any::<u32>(), fua in any::<bool>()) {
        prop_assert_eq!(
            Command::decode(&cdb::write_16(Lba(lba), count, fua)),
            Ok(Command::Write { lba: Lba(lba), count, dpo: false, fua })
        );
        prop_assert_eq!(
            Command::decode(&cdb::read_16(Lba(lba), count)),
            Ok(Command::Read { lba: Lba(lba), count, dpo: false, fua: false })
        );
    }
}
