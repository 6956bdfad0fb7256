//! Proves that a target which is trusted with block keys verifies blocks by itself while nothing is asked of it: what opens lets its
//! older versions go, what does not keeps them and is named. And what feedback of an initiator does, and for whom.

use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_block::{
    AttachId, BlockKeyWrap, Buffer, Custody, HoleRecord, Lba, Mode, OpenError, Opener, RecordFlags, SealRecord, Stamp,
    StoreSequence, Suite, WrapError, keyless_checksum,
};
use strongroom_iscsi::initiator::{Command, DataContent, WriteRecords, WriteSource};
use strongroom_scsi::vendor::{self, VendorCommand};
use strongroom_scsi::{Sense, cdb};
use strongroom_target::admin::VolumeReport;
use strongroom_target::{Access, Catalogue, SealedSpec, Target, TargetOptions, VolumeSpec};

use crate::support::keeper::status;
use crate::support::sealed::registration;
use crate::support::{self, ALICE, BLOCK, Host, Initiator, LUN, MIB, PATIENCE, alice_key, normal};

/// What the first byte of a block is that does not open.
const BAD: u8 = 0xbd;
const KEY: [u8; 32] = [7; 32];

/// Cryptography is elsewhere; here it matters who is asked, and with what.
struct Judge;

impl Opener for Judge {
    fn open(&self, _: Lba, record: &SealRecord, block: &mut [u8]) -> Result<(), OpenError> {
        assert_eq!(record.raw_block_key(), Some(&KEY), "keys come unwrapped");
        if block[0] == BAD { Err(OpenError::NotAuthentic) } else { Ok(()) }
    }
}

impl BlockKeyWrap for Judge {
    fn wrap(&self, key: &[u8; 32]) -> Result<[u8; 40], WrapError> {
        Ok(std::array::from_fn(|at| key.get(at).map_or(0x77, |byte| byte ^ 0x3c)))
    }

    fn unwrap(&self, wrapped: &[u8; 40]) -> Result<[u8; 32], WrapError> {
        Ok(std::array::from_fn(|at| wrapped[at] ^ 0x3c))
    }
}

fn record(counter: u64, block: &[u8], key: Option<&[u8; 32]>) -> SealRecord {
    let stamp = Stamp { attach_id: AttachId([3; 16]), counter };
    let record =
        SealRecord::new(Suite::Aes256Gcm, Mode::Encrypt, RecordFlags(0), 1, stamp, keyless_checksum(block), [9; 16]);
    key.map_or(record.clone(), |key| record.with_block_key(key))
}

fn write(initiator: &mut Initiator, lba: u64, counter: u64, first: u8, key: Option<&[u8; 32]>) {
    let mut block = vec![counter as u8; BLOCK];
    block[0] = first;
    let record = record(counter, &block, key);
    let records = WriteRecords {
        block_bytes: BLOCK as u32,
        record_bytes: record.as_bytes().len() as u32,
        bytes: record.as_bytes().to_vec().into(),
    };
    let source = WriteSource { data: Buffer::copy_from(&block), records: Some(records) };
    initiator.run(Command::write(LUN, cdb::write_16(Lba(lba), 1, false), source)).good();
}

fn format(initiator: &mut Initiator, key: Option<&[u8; 32]>) {
    let stamp = Stamp { attach_id: AttachId([3; 16]), counter: 1 << 40 };
    initiator.run(registration(stamp.attach_id)).good();
    let record = SealRecord::new(Suite::Aes256Gcm, Mode::Encrypt, RecordFlags(RecordFlags::HOLE), 1, stamp, 0, [9; 16]);
    let record = key.map_or(record.clone(), |key| record.with_block_key(key));
    let list = vendor::encode_holes(&[HoleRecord { start: Lba(0), count: MIB / BLOCK as u64, record }]);
    let cdb = VendorCommand::SealHole { parameter_list_len: list.len() as u32 }.encode();
    initiator.run(Command::write(LUN, cdb, WriteSource::plain(Buffer::copy_from(&list)))).good();
}

fn report(host: &Host) -> VolumeReport {
    status(host).volumes.into_iter().next().expect("it is open")
}

/// A target of custody `target` that was handed what opens blocks, and a session with its formatted volume.
fn trusted() -> (Host, Initiator) {
    let dir = tempfile::tempdir().unwrap();
    let sealed = SealedSpec { wrapping_key: Some("/etc/wrap.key".into()), ..SealedSpec::new(Custody::Target) };
    let spec = VolumeSpec { sealed: Some(sealed), retention_percent: 100, ..VolumeSpec::plain("vault", MIB) };
    Catalogue::open(dir.path()).unwrap().create(&spec).unwrap();
    let mut options = TargetOptions::new(support::config(dir.path()));
    options.node_key = Some(support::target_key());
    options.wraps = Some(Arc::new(|_| Ok(Arc::new(Judge))));
    options.openers = Some(Arc::new(|volume, _| {
        assert_eq!(volume.name.as_str(), "vault");
        Ok(Arc::new(Judge))
    }));
    let node = support::target_key().public();
    let host = Host { target: Some(Target::start(options).unwrap()), dir, node };
    let mut initiator = host.channel("vault");
    format(&mut initiator, Some(&KEY));
    (host, initiator)
}

/// While commands come in, verification waits.
#[test]
fn verification_pauses_under_load() {
    /// It begins after a second without a command.
    const IDLE: Duration = Duration::from_secs(1);
    let (host, mut initiator) = trusted();
    (1..=40).for_each(|counter| write(&mut initiator, counter % 20, counter, 1, Some(&KEY)));
    let begun = Instant::now();
    let (mut last, mut longest_pause) = (begun, Duration::ZERO);
    while begun.elapsed() < 2 * IDLE {
        write(&mut initiator, 100, 1000 + begun.elapsed().as_micros() as u64, 1, Some(&KEY));
        longest_pause = longest_pause.max(last.elapsed());
        last = Instant::now();
    }
    let now = report(&host);
    // A machine that stood still for so long has shown nothing.
    if longest_pause.max(last.elapsed()) < IDLE {
        assert_eq!(now.verification.expect("it is verified").opened, 0, "{longest_pause:?}");
        assert!(now.store.versions_retained >= 20);
    }
}

#[test]
fn a_trusted_target_verifies_by_itself() {
    let (host, mut initiator) = trusted();
    let mut counter = 0;
    for version in 0..3 {
        for lba in 0..100 {
            counter += 1;
            let first = if version == 2 && lba == 55 { BAD } else { 1 };
            write(&mut initiator, lba, counter, first, Some(&KEY));
        }
    }
    let until = Instant::now() + 3 * PATIENCE;
    let done = loop {
        let report = report(&host);
        if report.store.versions_retained == 2 {
            break report;
        }
        assert!(Instant::now() < until, "{report:?}");
        std::thread::sleep(Duration::from_millis(20));
    };
    let verification = done.verification.expect("it is verified");
    assert_eq!(verification.bad_blocks, [55], "its older versions are the two that are kept");
    assert!(verification.opened >= 99, "{verification:?}");
    // Written again it opens, and is forgotten.
    write(&mut initiator, 55, counter + 1, 1, Some(&KEY));
    while report(&host).store.versions_retained > 0 {
        assert!(Instant::now() < until, "{:?}", report(&host));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(report(&host).verification.unwrap().bad_blocks.is_empty());
}

/// Feedback lets older versions go, so it is for those who may write, who can overwrite as well; and only what names the very
/// version that is stored counts. Whether its sender opened it nobody can tell.
#[test]
fn attack_feed_back_what_was_not_read() {
    let host = Host::start(&[VolumeSpec { retention_percent: 100, ..VolumeSpec::sealed("vault", MIB) }]);
    let mut initiator = host.channel("vault");
    format(&mut initiator, None);
    (1..=3).for_each(|counter| write(&mut initiator, 7, counter, 1, None));
    (1..=3).for_each(|counter| write(&mut initiator, 8, 10 + counter, 1, None));
    let newest = |initiator: &mut Initiator, lba: u64| {
        let read = Command {
            sealed_block_bytes: Some(BLOCK as u32),
            ..Command::read(LUN, cdb::read_16(Lba(lba), 1), BLOCK as u32)
        };
        let outcome = initiator.run(read);
        let DataContent::Sealed { records, .. } = &outcome.segments[0].content else { panic!("a sealed block") };
        u64::from_be_bytes(records.iter().next().unwrap()[..8].try_into().unwrap())
    };
    let feed_back = |initiator: &mut Initiator, pairs: &[(u64, u64)]| {
        let pairs: Vec<_> = pairs.iter().map(|&(lba, sequence)| (Lba(lba), StoreSequence(sequence))).collect();
        let list = vendor::encode_verified(&pairs);
        let cdb = VendorCommand::Verified { parameter_list_len: list.len() as u32 }.encode();
        initiator.run(Command::write(LUN, cdb, WriteSource::plain(Buffer::copy_from(&list))))
    };
    let (seven, eight) = (newest(&mut initiator, 7), newest(&mut initiator, 8));
    // No version of such a name, at such a place.
    feed_back(&mut initiator, &[(7, eight), (8, seven), (7, seven + 100), (7, u64::MAX), (9, seven)]).good();
    assert_eq!(report(&host).store.versions_retained, 4, "nothing was let go");
    let outside = feed_back(&mut initiator, &[(MIB, 1)]).sense();
    assert_eq!(outside.asc, Sense::LBA_OUT_OF_RANGE.asc);
    assert_eq!(report(&host).store.versions_retained, 4);

    // Who may only read may not say so.
    let read_only = Access { peers: vec!["alice".into()], read_only: true, ..Access::default() };
    let before = host.handle().catalogue().show("vault").unwrap().volume.access;
    host.handle().catalogue().set_access("vault", read_only).unwrap();
    let mut config = normal(ALICE, "vault");
    config.isid = [0x80, 0, 0, 0, 0, 9];
    let mut reader = Initiator::log_in(&host, Some(alice_key()), config).expect("admitted");
    assert_eq!(feed_back(&mut reader, &[(7, seven)]).sense().asc, Sense::WRITE_PROTECTED.asc);
    assert_eq!(report(&host).store.versions_retained, 4);
    drop(reader);
    host.handle().catalogue().set_access("vault", before).unwrap();

    feed_back(&mut initiator, &[(7, seven)]).good();
    assert_eq!(report(&host).store.versions_retained, 2, "of that block alone");
}
