//! Proves the vendor CDBs and page 0xC0 byte by byte, as `docs/vendor-cdbs.md` gives them.

use proptest::prelude::*;
use strongroom_block::{AttachId, RecordFlags, SealRecord, Stamp};

use super::*;
use crate::Command;

fn hole(start: u64, count: u64) -> HoleRecord {
    let stamp = Stamp { attach_id: AttachId([3; 16]), counter: start };
    let flags = RecordFlags(RecordFlags::HOLE);
    let record = SealRecord::new(Suite::Aes256Gcm, Mode::Encrypt, flags, 1, stamp, 0, [9; 16]);
    HoleRecord { start: Lba(start), count, record }
}

#[test]
fn golden_cdbs() {
    let cdb = VendorCommand::ReadVersion { lba: Lba(0x0102_0304_0506_0708) }.encode();
    assert_eq!(cdb, [0xc1, 2, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 1, 0, 0]);
    let cdb = VendorCommand::SealHole { parameter_list_len: 72 }.encode();
    assert_eq!(cdb, [0xc1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 72, 0, 0]);
    let cdb = VendorCommand::Verified { parameter_list_len: 32 }.encode();
    assert_eq!(cdb, [0xc1, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0]);
    assert_eq!(VendorCommand::TakePlace.encode()[..], [0xc1, 0x05, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let cdb = VendorCommand::RegisterAttachment { parameter_list_len: ATTACH_ID_BYTES }.encode();
    assert_eq!(cdb, [0xc1, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0]);
    let cdb = VendorCommand::ClaimLease { parameter_list_len: 28 }.encode();
    assert_eq!(cdb, [0xc1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 28, 0, 0]);
    assert_eq!(VendorCommand::ReleaseLease.encode()[..], [0xc1, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let cdb = VendorCommand::ReportWriters { allocation_len: 0x1_0000 }.encode();
    assert_eq!(cdb, [0xc1, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
    let cdb = VendorCommand::ConditionalWrite { lba: Lba(9), count: 1 }.encode();
    assert_eq!(cdb, [0xc1, 4, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 1, 0, 0]);
}

#[test]
fn golden_unit_page() {
    let page = UnitPage {
        volume: VolumeId([0x22; 16]),
        block_size: BlockSize::DEFAULT,
        sealing: Some(Sealing {
            custody: Custody::KeyFile,
            suite: Suite::Aes256Gcm,
            mode: Mode::Encrypt,
            domain: SealingDomain([0x11; 16]),
            record_bytes: 56,
            epoch: 7,
            allows_previous: false,
            conditional_holes: false,
            heeds_keys_destroyed: false,
        }),
        other_views: 0x0102,
        incarnation: 9,
        has_leases: false,
        image: None,
    };
    let mut golden = vec![0, 0xc0, 0, 60, 2, 1, 1, 1, 1, 1, 2, 0];
    golden.extend_from_slice(&[0x11; 16]);
    golden.extend_from_slice(&[0x22; 16]);
    golden.extend_from_slice(&[0, 0, 0x10, 0, 0, 0, 0, 56, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 9]);
    assert_eq!(page.encode(), golden);
    assert_eq!(UnitPage::parse(&golden), Some(page));
    let naming = UnitPage { image: Some(0x0102), ..page };
    let mut longer = [&golden[..], &[0, 0, 0, 0, 0, 0, 1, 2]].concat();
    longer[3] = 68;
    assert_eq!((naming.encode(), UnitPage::parse(&longer)), (longer, Some(naming)));

    golden[11] = 1;
    let allowing =
        UnitPage { sealing: page.sealing.map(|sealing| Sealing { allows_previous: true, ..sealing }), ..page };
    assert_eq!((allowing.encode(), UnitPage::parse(&golden)), (golden.clone(), Some(allowing)));
    golden[11] = 6;
    let heeding = |sealing| Sealing { conditional_holes: true, heeds_keys_destroyed: true, ..sealing };
    let heeding = UnitPage { sealing: page.sealing.map(heeding), ..page };
    assert_eq!((heeding.encode(), UnitPage::parse(&golden)), (golden.clone(), Some(heeding)));

    for sealing in [None, page.sealing] {
        let leasing = UnitPage { sealing, has_leases: true, ..page };
        assert_eq!((leasing.encode()[11], UnitPage::parse(&leasing.encode())), (8, Some(leasing)));
    }
    let plain = UnitPage { sealing: None, ..page };
    assert_eq!((plain.encode()[11], UnitPage::parse(&plain.encode())), (0, Some(plain)));
    for (at, value) in [(1, 0xb0), (3, 59), (4, 1), (4, 3), (5, 2), (6, 9), (7, 9), (8, 3), (47, 1), (51, 57)] {
        let mut bad = golden.clone();
        bad[at] = value;
        assert_eq!(UnitPage::parse(&bad), None, "byte {at} = {value}");
    }
    assert_eq!(UnitPage::parse(&golden[..63]), None);
}

#[test]
fn holes_and_pairs_decode_as_encoded() {
    let holes = vec![hole(0, 10), hole(50, 1)];
    assert_eq!(decode_holes(&encode_holes(&holes), 56), Ok(holes.clone()));
    assert!(decode_holes(&encode_holes(&holes), 88).is_err());
    assert!(decode_holes(&[], 56).is_err());
    let mut bytes = encode_holes(&holes);
    bytes[72 + 16] = 9; // the second record's version
    assert_eq!(decode_holes(&bytes, 56), Err(ParameterError::Entry { index: 1 }));

    let pairs = vec![(Lba(1), StoreSequence(2)), (Lba(u64::MAX), StoreSequence(3))];
    assert_eq!(encode_verified(&pairs)[..16], [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]);
    assert_eq!(decode_verified(&encode_verified(&pairs)), Ok(pairs));
    assert!(decode_verified(&[0; 17]).is_err());
    assert!(decode_verified(&vec![0; PARAMETER_LIST_BYTES_MAX as usize + 16]).is_err());
}

#[test]
fn an_attach_id_is_registered_by_exactly_its_bytes() {
    assert_eq!(decode_attach_id(&[7; 16]), Ok(AttachId([7; 16])));
    for len in [0, 15, 17, 32] {
        assert!(decode_attach_id(&vec![7; len]).is_err(), "{len}");
    }
}

proptest! {
    #[test]
    fn commands_decode_as_encoded(lba in any::<u64>(), number in any::<u32>()) {
        for command in [
            VendorCommand::SealHole { parameter_list_len: number },
            VendorCommand::ReadVersion { lba: Lba(lba) },
            VendorCommand::Verified { parameter_list_len: number },
            VendorCommand::ConditionalWrite { lba: Lba(lba), count: number },
            VendorCommand::TakePlace,
            VendorCommand::RegisterAttachment { parameter_list_len: number },
            VendorCommand::ClaimLease { parameter_list_len: number },
            VendorCommand::ReleaseLease,
            VendorCommand::ReportWriters { allocation_len: number },
        ] {
            prop_assert_eq!(Command::decode(&command.encode()), Ok(Command::Vendor(command)));
        }
    }
}
