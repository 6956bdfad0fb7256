//! Proves that digests hold over real sockets, at every length of data, and that damaged data never reaches a volume.

use std::io::Write as _;

use strongroom_block::{Buffer, Lba};
use strongroom_iscsi::initiator::{Command, TaskId, WriteSource};
use strongroom_iscsi::{DigestOffer, Digests, PlainFramer};
use strongroom_scsi::cdb;
use strongroom_target::VolumeSpec;
use strongroom_target::config::DigestRule;

use crate::support::{ALICE, BLOCK, Host, Initiator, LUN, normal, pattern};

fn with_digests(host: &Host, header: DigestOffer, data: DigestOffer) -> Option<Initiator> {
    let mut config = normal(ALICE, "disk");
    config.offer.header_digest = header;
    config.offer.data_digest = data;
    Initiator::log_in(host, None, config).ok()
}

#[test]
fn blocks_cross_with_digests() {
    use DigestOffer::{Never, Require};
    let host = Host::start(&[VolumeSpec::plain("disk", 16 << 20)]);
    for (header, data) in [(Require, Never), (Never, Require), (Require, Require)] {
        let mut initiator = with_digests(&host, header, data).unwrap();
        for blocks in [1, 65, 300] {
            let content = pattern(9, blocks as usize);
            let write = WriteSource::plain(Buffer::copy_from(&content));
            initiator.run(Command::write(LUN, cdb::write_16(Lba(7), blocks, false), write)).good();
            let read = Command::read(LUN, cdb::read_16(Lba(7), blocks), content.len() as u32);
            assert!(initiator.run(read).good() == content, "{header:?} {data:?} {blocks}");
        }
    }
    // What the target insists on.
    let host = Host::start_with(&[VolumeSpec::plain("disk", 16 << 20)], |config| config.digests = DigestRule::Require);
    assert!(with_digests(&host, Require, Require).is_some() && with_digests(&host, Never, Require).is_none());
    let host = Host::start_with(&[VolumeSpec::plain("disk", 16 << 20)], |config| config.digests = DigestRule::Never);
    assert!(with_digests(&host, Never, Never).is_some() && with_digests(&host, Never, Require).is_none());
}

/// Submits a write of block 0 and sends its command with one bit of the data flipped.
fn send_damaged(initiator: &mut Initiator) -> TaskId {
    let write = WriteSource::plain(Buffer::copy_from(&pattern(9, 1)));
    let command = Command::write(LUN, cdb::write_16(Lba(0), 1, false), write);
    let task = initiator.session.submit(command).unwrap();
    let pdu = initiator.session.poll_transmit().unwrap();
    let mut parts = Vec::new();
    PlainFramer::encode(pdu, Digests { header: true, data: true }, &mut parts);
    let mut bytes: Vec<u8> = parts.iter().flat_map(|part| part.to_vec()).collect();
    bytes[100] ^= 1;
    initiator.stream.write_all(&bytes).unwrap();
    task
}

#[test]
fn a_damaged_write_is_not_written() {
    let host = Host::start(&[VolumeSpec::plain("disk", 16 << 20)]);
    let mut initiator = with_digests(&host, DigestOffer::Require, DigestOffer::Require).unwrap();
    send_damaged(&mut initiator);
    initiator.pump_until(|initiator| initiator.ended.clone());
    let mut again = with_digests(&host, DigestOffer::Never, DigestOffer::Never).unwrap();
    assert!(again.read(0, 1) == vec![0; BLOCK], "nothing was written");
}

#[test]
fn at_recovery_level_1_a_damaged_write_is_written_in_the_end() {
    let host = Host::start(&[VolumeSpec::plain("disk", 16 << 20)]);
    let mut config = normal(ALICE, "disk");
    config.offer.header_digest = DigestOffer::Require;
    config.offer.data_digest = DigestOffer::Require;
    config.offer.error_recovery_level = 1;
    let mut initiator = Initiator::log_in(&host, None, config).unwrap();
    let task = send_damaged(&mut initiator);
    assert_eq!(initiator.wait(task).status, 0);
    assert!(initiator.read(0, 1) == pattern(9, 1));
}
