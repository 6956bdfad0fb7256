//! Proves that EXTENDED COPY moves blocks between units of different workers, and that an initiator reaches no unit by it that it could not use
//! itself: not one that it is not logged in to, not one of another's, not one that it may only read, not one that is reserved, not over a rule's
//! addresses, and not after the rules changed.

use strongroom_block::{Buffer, Lba};
use strongroom_iscsi::initiator::{Command, Config as SessionConfig, WriteSource};
use strongroom_scsi::copy::{self, Segment};
use strongroom_scsi::{Sense, cdb};
use strongroom_target::{Access, VolumeSpec};

use crate::support::{BLOCK, BOB, Host, Initiator, LUN, MIB, normal, pattern};

/// More than two slices.
const BLOCKS: u16 = 700;

fn naa(session: &mut Initiator) -> [u8; 8] {
    let page = session.run(Command::read(LUN, cdb::inquiry_vpd(0x83, 252), 252)).good();
    page[8..16].try_into().unwrap()
}

/// Has `session` copy from the first to the second unit.
fn copy(session: &mut Initiator, units: [[u8; 8]; 2], blocks: u16, to: u64) -> Result<(), Sense> {
    let segment = Segment { blocks, source: 0u16, from: Lba(0), destination: 1, to: Lba(to) };
    let list = copy::encode(&units, BLOCK as u32, &[segment]);
    let mut cdb = [0; 16];
    cdb[0] = 0x83;
    cdb[10..14].copy_from_slice(&(list.len() as u32).to_be_bytes());
    let outcome = session.run(Command::write(LUN, cdb, WriteSource::plain(Buffer::copy_from(&list))));
    if outcome.status == 0 { Ok(()) } else { Err(outcome.sense()) }
}

fn log_in(host: &Host, config: SessionConfig) -> Initiator {
    Initiator::log_in(host, None, config).unwrap()
}

fn two() -> [VolumeSpec; 2] {
    [VolumeSpec::plain("one", 16 * MIB), VolumeSpec::plain("two", 16 * MIB)]
}

const UNREACHED: Sense = Sense::COPY_TARGET_NOT_REACHABLE;

#[test]
fn blocks_and_holes_move_between_units() {
    let host = Host::start(&two());
    let (mut one, mut two) = (host.plain("one"), host.plain("two"));
    let units = [naa(&mut one), naa(&mut two)];
    one.write(3, &pattern(1, 300));
    two.write(0, &pattern(2, 800));
    // By the source, by the destination, and on to a place of its own.
    assert_eq!(copy(&mut one, units, BLOCKS, 50), Ok(()));
    let hole = vec![0; 3 * BLOCK];
    let expected = [hole, pattern(1, 300), vec![0; (usize::from(BLOCKS) - 303) * BLOCK]].concat();
    assert_eq!(two.read(50, BLOCKS.into()), expected);
    assert_eq!(two.read(0, 50), pattern(2, 50));
    assert_eq!(copy(&mut two, units, 10, 2000), Ok(()));
    assert_eq!(two.read(2003, 7), pattern(1, 7));
    // Beyond the other's end: what was copied before is told by COPY ABORTED.
    assert!(copy(&mut one, units, 10, 16 * MIB / BLOCK as u64 - 5).unwrap_err().is(&Sense::COPY_ABORTED));
    let nobody = [units[0], [0x31; 8]];
    assert!(copy(&mut one, nobody, 1, 0).unwrap_err().is(&UNREACHED));
}

#[test]
fn only_what_the_initiator_uses_itself_is_reached() {
    let host = Host::start_with(&two(), |config| {
        // The second volume is for a host at another address, and for bob.
        let mut near = config.plain[0].clone();
        config.plain[0].volumes = vec!["one".into()];
        near.volumes = vec!["two".into()];
        let mut far = near.clone();
        near.initiators = vec![BOB.into()];
        far.addresses = vec!["192.0.2.1".into()];
        config.plain.extend([near, far]);
    });
    let mut bobs = log_in(&host, normal(BOB, "two"));
    let mut one = host.plain("one");
    let units = [naa(&mut one), naa(&mut bobs)];
    bobs.write(0, &pattern(7, 4));
    // Alice knows its name, and bob has it open.
    for there_and_back in [units, [units[1], units[0]]] {
        assert!(copy(&mut one, there_and_back, 4, 0).unwrap_err().is(&UNREACHED));
    }
    assert_eq!(bobs.read(0, 4), pattern(7, 4));
    // Bob is logged in to the one and not to the other, and then to both.
    let mut bob = log_in(&host, normal(BOB, "one"));
    assert_eq!(copy(&mut bob, units, 4, 0), Ok(()));
    assert_eq!(bobs.read(0, 4), vec![0; 4 * BLOCK]);
    bobs.log_out();
    assert!(copy(&mut bob, units, 4, 0).unwrap_err().is(&UNREACHED));
}

#[test]
fn read_only_reservations_and_changed_rules_hold() {
    let host = Host::start(&two());
    let (mut one, mut two) = (host.plain("one"), host.plain("two"));
    let units = [naa(&mut one), naa(&mut two)];
    assert_eq!(copy(&mut one, units, 4, 0), Ok(()));
    // Another initiator reserves the second unit: exclusive access.
    let mut bob = log_in(&host, normal(BOB, "two"));
    for (action, kind, keys) in [(0u8, 0u8, [0u64, 7]), (1, 3, [7, 0])] {
        let mut cdb = [0; 16];
        cdb[..9].copy_from_slice(&[0x5f, action, kind, 0, 0, 0, 0, 0, 24]);
        let list = [&keys[0].to_be_bytes()[..], &keys[1].to_be_bytes(), &[0; 8]].concat();
        bob.run(Command::write(LUN, cdb, WriteSource::plain(Buffer::copy_from(&list)))).good();
    }
    for there_and_back in [units, [units[1], units[0]]] {
        assert!(copy(&mut one, there_and_back, 4, 0).unwrap_err().is(&UNREACHED));
    }
    let mut clear = [0; 16];
    clear[..9].copy_from_slice(&[0x5f, 3, 0, 0, 0, 0, 0, 0, 24]);
    let list = [&7u64.to_be_bytes()[..], &[0; 16]].concat();
    bob.run(Command::write(LUN, clear, WriteSource::plain(Buffer::copy_from(&list)))).good();
    assert_eq!(copy(&mut one, units, 4, 0), Ok(()));
    // It may only be read from now on: the rules are asked again each time, sessions or not.
    let access = Access { read_only: true, ..Access::default() };
    host.handle().catalogue().set_access("two", access).unwrap();
    assert!(copy(&mut one, units, 4, 0).unwrap_err().is(&UNREACHED));
    assert_eq!(copy(&mut one, [units[1], units[0]], 4, 0), Ok(()), "to read it is allowed");
    assert_eq!(copy(&mut two, [units[1], units[0]], 4, 0), Ok(()));
}
