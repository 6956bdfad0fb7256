//! Proves over real sockets that a plain volume behaves as a disk: what was written is read, by whom it may, and by nobody else.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use strongroom_block::{Buffer, Lba};
use strongroom_iscsi::LoginStatus;
use strongroom_iscsi::initiator::{Command, WriteSource};
use strongroom_scsi::capacity::ReadCapacity16;
use strongroom_scsi::inquiry::{self, StandardInquiry};
use strongroom_scsi::provisioning::{self, LbaStatus};
use strongroom_scsi::{Sense, cdb, supported};
use strongroom_store::Medium;
use strongroom_target::{StartError, Target, TargetOptions, VolumeSpec};

use crate::support::{
    self, ALICE, BLOCK, BOB, Host, Initiator, LUN, MIB, Refused, discovery, eventually, normal, pattern, target_name,
};

#[test]
fn written_read_flushed_and_there_again() {
    let host = Host::start(&[VolumeSpec::plain("disk", 64 * MIB)]);
    let mut initiator = host.plain("disk");
    assert_eq!(initiator.read(0, 4), vec![0; 4 * BLOCK], "a new volume reads as zeros");
    for (lba, blocks) in [(0, 1), (100, 3), (5000, 512), (16383, 1)] {
        initiator.write(lba, &pattern(lba as u8, blocks));
        assert_eq!(initiator.read(lba, blocks as u32), pattern(lba as u8, blocks), "{blocks} blocks at {lba}");
    }
    initiator.synchronize();
    assert_eq!(initiator.log_out(), "logged out");
    assert_eq!(host.plain("disk").read(5000, 512), pattern(5000u64 as u8, 512));
    let stats = host.handle().stats();
    assert_eq!(stats.crypto.total(), 0, "a plain session costs no cryptography");
    assert!(stats.bytes_written >= 517 * BLOCK as u64 && stats.bytes_read > 0 && stats.commands > 8, "{stats:?}");
}

#[test]
fn a_restart_loses_nothing_that_was_flushed() {
    let mut host = Host::start(&[VolumeSpec::plain("disk", 64 * MIB)]);
    let mut initiator = host.plain("disk");
    initiator.write(7, &pattern(7, 9));
    initiator.synchronize();
    drop(initiator);
    let dir = std::mem::replace(&mut host.dir, tempfile::tempdir().unwrap());
    host.target.take().unwrap().stop();
    let target = Target::start(TargetOptions::new(plain_config(dir.path()))).unwrap();
    let host = Host { target: Some(target), dir, node: host.node };
    assert_eq!(host.plain("disk").read(7, 9), pattern(7, 9));
}

fn plain_config(root: &std::path::Path) -> strongroom_target::Config {
    let mut config = support::config(root);
    config.peers.clear();
    config
}

#[test]
fn many_commands_at_once() {
    let host = Host::start(&[VolumeSpec::plain("disk", 64 * MIB)]);
    let mut initiator = host.plain("disk");
    let writes: Vec<_> = (0..64u64)
        .map(|index| {
            let data = WriteSource::plain(Buffer::copy_from(&pattern(index as u8, 16)));
            initiator.submit(Command::write(LUN, cdb::write_16(Lba(index * 16), 16, index % 7 == 0), data))
        })
        .collect();
    for task in writes {
        initiator.wait(task).good();
    }
    let reads: Vec<_> = (0..64u64)
        .map(|index| {
            let command = Command::read(LUN, cdb::read_16(Lba(index * 16), 16), 16 * BLOCK as u32);
            (index, initiator.submit(command))
        })
        .collect();
    for (index, task) in reads.into_iter().rev() {
        assert_eq!(initiator.wait(task).good(), pattern(index as u8, 16));
    }
}

#[test]
fn reads_beyond_the_memory_limit_wait_their_turn() {
    let host = Host::start_with(&[VolumeSpec::plain("disk", 256 * MIB)], |config| {
        config.limits.read_memory_bytes = 16 << 20;
    });
    let mut initiator = host.plain("disk");
    initiator.write(0, &pattern(3, 256));
    let blocks = 2048;
    let tasks: Vec<_> = (0..12)
        .map(|_| initiator.submit(Command::read(LUN, cdb::read_16(Lba(0), blocks), blocks * BLOCK as u32)))
        .collect();
    for task in tasks {
        let data = initiator.wait(task).good();
        assert_eq!(data.len(), blocks as usize * BLOCK);
        assert_eq!(data[..256 * BLOCK], pattern(3, 256));
    }
}

#[test]
fn the_unit_tells_what_it_is() {
    let host = Host::start(&[VolumeSpec::plain("disk", 64 * MIB)]);
    let mut initiator = host.plain("disk");
    let data = initiator.run(Command::read(LUN, cdb::inquiry(96), 96)).good();
    assert!(StandardInquiry::parse(&data).unwrap().is_block_device());
    let data = initiator.run(Command::read(LUN, cdb::read_capacity_16(), 32)).good();
    let capacity = ReadCapacity16::parse(&data).unwrap();
    assert_eq!((capacity.last_lba, capacity.block_bytes, capacity.provisioned), (16383, 4096, true));
    let data = initiator.run(Command::read(LUN, cdb::inquiry_vpd(0, 255), 255)).good();
    let pages = inquiry::parse_vpd_pages(&data).unwrap();
    for page in pages {
        initiator.run(Command::read(LUN, cdb::inquiry_vpd(page, 255), 255)).good();
    }
    let absent = initiator.run(Command::read(LUN, cdb::inquiry_vpd(0x42, 255), 255)).sense();
    assert!(absent.is(&Sense::INVALID_FIELD_IN_CDB));
    let data = initiator.run(Command::read(LUN, cdb::report_supported_operation_codes(4096), 4096)).good();
    let list = supported::decode_list(&data).unwrap();
    assert!(list.contains(&(0x89, None)) && !list.contains(&(0xc1, Some(1))));
    let other = strongroom_iscsi::Lun::single_level(1);
    let outcome = initiator.run(Command::without_data(other, cdb::test_unit_ready()));
    assert!(outcome.sense().is(&Sense::LUN_NOT_SUPPORTED));
    let data = initiator.run(Command::read(LUN, cdb::report_luns(64), 64)).good();
    assert_eq!(strongroom_scsi::luns::parse(&data), Some(vec![0]));
}

#[test]
fn what_is_out_of_range_or_unknown_is_refused_and_the_session_lives() {
    let host = Host::start(&[VolumeSpec::plain("disk", 64 * MIB)]);
    let mut initiator = host.plain("disk");
    let beyond = initiator.run(Command::read(LUN, cdb::read_16(Lba(16384), 1), BLOCK as u32)).sense();
    assert!(beyond.is(&Sense::LBA_OUT_OF_RANGE), "{beyond}");
    let wrapping = initiator.run(Command::read(LUN, cdb::read_16(Lba(u64::MAX), 2), BLOCK as u32)).sense();
    assert!(wrapping.is(&Sense::LBA_OUT_OF_RANGE), "{wrapping}");
    let unknown = initiator.run(Command::without_data(LUN, [0xfe; 16])).sense();
    assert!(unknown.is(&Sense::INVALID_OPCODE), "{unknown}");
    let vendor = strongroom_scsi::VendorCommand::ReadVersion { lba: Lba(0) }.encode();
    let vendor = initiator.run(Command::read(LUN, vendor, BLOCK as u32)).sense();
    assert!(vendor.is(&Sense::INVALID_OPCODE), "{vendor}");
    initiator.write(0, &pattern(1, 1));
}

#[test]
fn unmap_write_same_compare_and_write_verify_and_status() {
    let host = Host::start(&[VolumeSpec::plain("disk", 64 * MIB)]);
    let mut initiator = host.plain("disk");
    initiator.write(0, &pattern(5, 64));
    let list = provisioning::unmap_parameters(&[(Lba(8), 8), (Lba(32), 1)]);
    let unmap = cdb::unmap(list.len() as u16);
    initiator.run(Command::write(LUN, unmap, WriteSource::plain(Buffer::copy_from(&list)))).good();
    let mut expected = pattern(5, 64);
    expected[8 * BLOCK..16 * BLOCK].fill(0);
    expected[32 * BLOCK..33 * BLOCK].fill(0);
    assert_eq!(initiator.read(0, 64), expected);
    let data = initiator.run(Command::read(LUN, cdb::get_lba_status(Lba(0), 4096), 4096)).good();
    let status = provisioning::parse_lba_status(&data).unwrap();
    assert_eq!(
        status[..2],
        [LbaStatus { lba: Lba(0), count: 8, mapped: true }, LbaStatus { lba: Lba(8), count: 8, mapped: false },]
    );

    // WRITE SAME over more than one slice.
    let block = pattern(9, 1);
    let same = cdb::write_same_16(Lba(100), 1000, false, false);
    initiator.run(Command::write(LUN, same, WriteSource::plain(Buffer::copy_from(&block)))).good();
    let data = initiator.read(99, 1002);
    assert_eq!((&data[..BLOCK], &data[1001 * BLOCK..]), (&vec![0; BLOCK][..], &vec![0; BLOCK][..]));
    assert!(data[BLOCK..1001 * BLOCK].chunks_exact(BLOCK).all(|chunk| chunk == block));
    initiator.run(Command::without_data(LUN, cdb::verify_16(Lba(0), 2000))).good();
    initiator.run(Command::without_data(LUN, cdb::write_same_16(Lba(100), 1000, true, true))).good();
    assert_eq!(initiator.read(100, 1000), vec![0; 1000 * BLOCK]);

    let swap = |compare: &[u8], data: &[u8]| {
        let both = Buffer::copy_from(&[compare, data].concat());
        Command::write(LUN, cdb::compare_and_write(Lba(0), 1, false), WriteSource::plain(both))
    };
    initiator.run(swap(&expected[..BLOCK], &block)).good();
    assert_eq!(initiator.read(0, 1), block);
    let mut other = block.clone();
    other[77] ^= 1;
    let sense = initiator.run(swap(&other, &expected[..BLOCK])).sense();
    assert_eq!(sense, Sense::MISCOMPARE.at(Lba(77)));
    assert_eq!(initiator.read(0, 1), block);
}

#[test]
fn fewer_or_more_bytes_than_the_command_says() {
    let host = Host::start(&[VolumeSpec::plain("disk", 64 * MIB)]);
    let mut initiator = host.plain("disk");
    initiator.write(0, &pattern(1, 2));
    let outcome = initiator.run(Command::read(LUN, cdb::read_16(Lba(0), 2), BLOCK as u32 + 100));
    assert_eq!(outcome.completed.residual, strongroom_iscsi::Residual::Overflow(BLOCK as u32 - 100));
    assert_eq!(outcome.good(), pattern(1, 2)[..BLOCK + 100]);
    let outcome = initiator.run(Command::read(LUN, cdb::read_16(Lba(0), 1), 2 * BLOCK as u32));
    assert_eq!(outcome.completed.residual, strongroom_iscsi::Residual::Underflow(BLOCK as u32));
    // Two blocks are announced, one is sent: one is written.
    let short = WriteSource::plain(Buffer::copy_from(&pattern(9, 1)));
    let outcome = initiator.run(Command::write(LUN, cdb::write_16(Lba(0), 2, false), short));
    assert_eq!(outcome.completed.residual, strongroom_iscsi::Residual::Overflow(BLOCK as u32));
    assert_eq!(initiator.read(0, 1), pattern(9, 1));
    assert_eq!(initiator.read(1, 1), pattern(1, 2)[BLOCK..]);
}

#[test]
fn discovery_shows_what_the_initiator_may_use() {
    let specs = [VolumeSpec::plain("a", MIB), VolumeSpec::sealed("s", MIB), VolumeSpec::plain("z", MIB)];
    let host = Host::start(&specs);
    let mut initiator = Initiator::log_in(&host, None, discovery(ALICE)).unwrap();
    let targets = initiator.send_targets();
    let names: Vec<_> = targets.iter().map(|target| target.name.clone()).collect();
    assert_eq!(names, [target_name("a"), target_name("z")], "plain sessions do not see sealed volumes");
    assert_eq!(targets[0].addresses, [format!("{},1", host.address())]);
    let mut initiator = Initiator::log_in(&host, Some(support::alice_key()), discovery(ALICE)).unwrap();
    assert_eq!(initiator.send_targets().len(), 3);
    // A volume made while the target serves is found at once, and can be used.
    host.handle().catalogue().create(&VolumeSpec::plain("new", MIB)).unwrap();
    assert_eq!(initiator.send_targets().len(), 4);
    host.plain("new").write(0, &pattern(1, 1));
}

#[test]
fn refused_logins_have_a_status_that_says_why() {
    let specs = [VolumeSpec::plain("disk", MIB), VolumeSpec::sealed("sealed", MIB)];
    let host = Host::start_with(&specs, |config| config.plain[0].initiators = vec![ALICE.into()]);
    let refused = |config| match Initiator::log_in(&host, None, config) {
        Err(Refused::Login(status)) => status,
        other => panic!("{:?}", other.map(|_| ())),
    };
    assert_eq!(refused(normal(ALICE, "sealed")), LoginStatus::AUTHORIZATION_FAILED);
    // Who has proven nothing does not learn what there is.
    assert_eq!(refused(normal(ALICE, "none")), LoginStatus::AUTHORIZATION_FAILED);
    assert_eq!(refused(normal(ALICE, "../disk")), LoginStatus::AUTHORIZATION_FAILED);
    assert_eq!(refused(normal("iqn.2026-11.org.example:mallory", "disk")), LoginStatus::AUTHORIZATION_FAILED);
    assert_eq!(host.handle().stats().logins_refused, 4);
    host.plain("disk");
    let known = Initiator::log_in(&host, Some(support::alice_key()), normal(ALICE, "none")).err();
    assert_eq!(known, Some(Refused::Login(LoginStatus::NOT_FOUND)), "a node that is known does");
}

#[test]
fn read_only_means_it() {
    let host = Host::start_with(&[VolumeSpec::plain("disk", MIB)], |config| config.plain[0].read_only = true);
    let mut initiator = host.plain("disk");
    assert!(initiator.try_write(0, &pattern(1, 1)).sense().is(&Sense::WRITE_PROTECTED));
    assert_eq!(initiator.read(0, 1), vec![0; BLOCK]);
    let mode = initiator.run(Command::read(LUN, cdb::mode_sense_6(0x3f, 255), 255)).good();
    assert!(strongroom_scsi::mode::ModePages::parse_6(&mode).unwrap().write_protected);
}

#[test]
fn a_reservation_keeps_others_out_until_its_holder_leaves() {
    let host = Host::start(&[VolumeSpec::plain("disk", MIB)]);
    let mut first = host.plain("disk");
    let mut other_config = normal("iqn.2026-11.org.example:bob", "disk");
    other_config.isid[5] = 9;
    let mut second = Initiator::log_in(&host, None, other_config).unwrap();
    first.run(Command::without_data(LUN, cdb::reserve_6())).good();
    assert_eq!(second.try_write(0, &pattern(1, 1)).status, 0x18, "RESERVATION CONFLICT");
    first.write(0, &pattern(2, 1));
    first.log_out();
    eventually("the reservation goes with its holder", || second.try_write(0, &pattern(1, 1)).status == 0);
}

#[test]
fn a_new_login_of_the_same_nexus_replaces_the_old() {
    let host = Host::start(&[VolumeSpec::plain("disk", 64 * MIB)]);
    let mut old = host.plain("disk");
    for index in 0..32u64 {
        let data = WriteSource::plain(Buffer::copy_from(&pattern(index as u8, 64)));
        old.submit(Command::write(LUN, cdb::write_16(Lba(index * 64), 64, true), data));
    }
    old.pump_until(|_| Some(()));
    let mut new = host.plain("disk");
    new.write(0, &pattern(0xee, 1));
    old.wait_for_end();
    assert_eq!(new.read(0, 1), pattern(0xee, 1), "nothing of the old session came after the new one's login");
    eventually("one session is left", || host.handle().stats().sessions == 1);
}

#[test]
fn a_reset_is_told_to_everybody() {
    let host = Host::start(&[VolumeSpec::plain("disk", MIB)]);
    let mut first = host.plain("disk");
    let mut config = normal("iqn.2026-11.org.example:bob", "disk");
    config.isid[5] = 9;
    let mut second = Initiator::log_in(&host, None, config).unwrap();
    use strongroom_iscsi::initiator::{Event, TaskFunction, TaskManagementResult};
    let id = first.session.manage_task(TaskFunction::LogicalUnitReset, LUN, None).unwrap();
    let result = first.pump_until(|initiator| {
        initiator.events.drain(..).find_map(|event| match event {
            Event::TaskManagementDone { id: done, result, .. } if done == id => Some(result),
            _ => None,
        })
    });
    assert_eq!(result, TaskManagementResult::Complete);
    for initiator in [&mut first, &mut second] {
        let sense = initiator.run(Command::without_data(LUN, cdb::test_unit_ready())).sense();
        assert_eq!((sense.asc, sense.ascq), (0x29, 0x03));
        initiator.run(Command::without_data(LUN, cdb::test_unit_ready())).good();
    }
}

/// Volumes have their owners among the workers, and connections are accepted anywhere: both must meet.
#[test]
fn many_volumes_and_initiators_at_once() {
    let specs: Vec<_> = (0..5).map(|index| VolumeSpec::plain(format!("v{index}"), 16 * MIB)).collect();
    let host = Host::start_with(&specs, |config| config.workers = Some(3));
    std::thread::scope(|scope| {
        for volume in 0..5u8 {
            for user in 0..3u8 {
                let host = &host;
                scope.spawn(move || {
                    let mut config = normal(ALICE, &format!("v{volume}"));
                    config.isid[4] = user;
                    let node = (user == 0).then(support::alice_key);
                    let mut initiator = Initiator::log_in(host, node, config).unwrap();
                    for round in 0..8u64 {
                        let (lba, seed) = (u64::from(user) * 1000 + round * 100, volume * 40 + user * 10 + round as u8);
                        initiator.write(lba, &pattern(seed, 100));
                        assert_eq!(initiator.read(lba, 100), pattern(seed, 100));
                    }
                    initiator.synchronize();
                    assert_eq!(initiator.log_out(), "logged out");
                });
            }
        }
    });
    assert_eq!(host.handle().stats().logins, 15);
    eventually("nobody is left", || host.handle().stats().connections == 0);
}

/// A reader that takes nothing is held back and harms nobody; when it reads again it gets everything.
#[test]
fn a_slow_reader_holds_up_nobody_else() {
    let host = Host::start(&[VolumeSpec::plain("disk", 256 * MIB)]);
    let mut slow = host.plain("disk");
    slow.write(0, &pattern(1, 2048));
    let tasks: Vec<_> =
        (0..20).map(|_| slow.submit(Command::read(LUN, cdb::read_16(Lba(0), 2048), 2048 * BLOCK as u32))).collect();
    slow.pump_until(|_| Some(()));
    let mut config = normal("iqn.2026-11.org.example:bob", "disk");
    config.isid[5] = 9;
    let mut quick = Initiator::log_in(&host, None, config).unwrap();
    for round in 0..20u64 {
        quick.write(4096 + round, &pattern(round as u8, 1));
        assert_eq!(quick.read(4096 + round, 1), pattern(round as u8, 1));
    }
    for task in tasks {
        assert_eq!(slow.wait(task).good(), pattern(1, 2048));
    }
}

#[test]
fn a_taken_port_says_so() {
    let host = Host::start(&[]);
    let mut config = support::config(host.dir.path());
    config.peers.clear();
    config.listen = vec![host.address()];
    let error = Target::start(TargetOptions::new(config)).unwrap_err();
    assert!(matches!(error, StartError::Net(_)), "{error}");
    let message = error.to_string();
    assert!(message.contains("taken") && message.contains(&host.address().to_string()), "{message}");
}

#[test]
fn a_root_that_is_not_there_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = support::config(&dir.path().join("none"));
    config.peers.clear();
    assert!(matches!(Target::start(TargetOptions::new(config)), Err(StartError::Catalogue(_))));
}

#[test]
fn a_volume_in_use_is_not_deleted_and_an_unused_one_is() {
    let host = Host::start_with(&[VolumeSpec::plain("disk", MIB)], |config| config.limits.idle_close_s = 1);
    let mut initiator = host.plain("disk");
    let catalogue = host.handle().catalogue();
    let error = catalogue.delete("disk").unwrap_err().to_string();
    assert!(error.contains("in use"), "{error}");
    initiator.write(0, &pattern(1, 1));
    initiator.log_out();
    eventually("the volume is closed and can be deleted", || catalogue.delete("disk").is_ok());
    assert_eq!(host.handle().stats().volumes_open, 0);
    let again = Initiator::log_in(&host, None, normal(ALICE, "disk"));
    assert_eq!(again.err(), Some(Refused::Login(LoginStatus::AUTHORIZATION_FAILED)));
}

#[test]
fn a_volume_in_memory_stays_open_and_is_lost_with_the_target() {
    let spec = VolumeSpec { medium: Medium::Memory, ..VolumeSpec::plain("disk", MIB) };
    let mut host = Host::start_with(&[spec], |config| config.limits.idle_close_s = 0);
    let mut initiator = host.plain("disk");
    initiator.write(3, &pattern(3, 2));
    initiator.synchronize();
    initiator.log_out();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(host.handle().stats().volumes_open, 1);
    assert_eq!(host.plain("disk").read(3, 2), pattern(3, 2), "nobody used it, and it is still there");
    let dir = std::mem::replace(&mut host.dir, tempfile::tempdir().unwrap());
    host.target.take().unwrap().stop();
    let target = Target::start(TargetOptions::new(plain_config(dir.path()))).unwrap();
    let host = Host { target: Some(target), dir, node: host.node };
    assert_eq!(host.plain("disk").read(3, 2), vec![0; 2 * BLOCK], "a new one");
}

#[test]
fn a_volume_that_another_process_has_open_is_refused() {
    let host = Host::start(&[VolumeSpec::plain("disk", MIB)]);
    let lock = std::fs::File::open(host.dir.path().join("disk/lock")).unwrap();
    lock.lock().unwrap();
    let refused = Initiator::log_in(&host, None, normal(ALICE, "disk")).err();
    assert_eq!(refused, Some(Refused::Login(LoginStatus::SERVICE_UNAVAILABLE)));
    lock.unlock().unwrap();
    host.plain("disk");
}

#[test]
fn garbage_and_half_a_login_end_and_harm_nobody() {
    let host = Host::start_with(&[VolumeSpec::plain("disk", MIB)], |config| config.limits.login_timeout_s = 1);
    let mut initiator = host.plain("disk");
    let mut hostile: Vec<TcpStream> = Vec::new();
    let openings: [&[u8]; 5] = [b"GET / HTTP/1.1\r\n\r\n", &[0x43], &[0x43; 48], &[0x16, 3, 1, 0xff, 0xff], &[0x00]];
    for opening in openings {
        let mut stream = TcpStream::connect(host.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.write_all(opening).unwrap();
        hostile.push(stream);
    }
    // One that says nothing at all.
    hostile.push(TcpStream::connect(host.address()).unwrap());
    for mut stream in hostile {
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut answer = Vec::new();
        // The end comes, in order or as a reset; never a hang.
        if let Err(error) = stream.read_to_end(&mut answer) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
        }
    }
    initiator.write(0, &pattern(1, 1));
    eventually("only the honest connection is left", || host.handle().stats().connections == 1);
    assert!(host.handle().stats().setups_failed >= 4, "{:?}", host.handle().stats());
}

#[test]
fn connections_beyond_the_limit_are_turned_away() {
    let host = Host::start_with(&[VolumeSpec::plain("disk", MIB)], |config| config.limits.connections_max = 2);
    let mut initiator = host.plain("disk");
    let mut idle = TcpStream::connect(host.address()).unwrap();
    eventually("two connections", || host.handle().stats().connections == 2);
    // One that has not logged in makes way for the next one, which may mean to.
    let mut other = Initiator::log_in(&host, None, normal(BOB, "disk")).expect("admitted");
    idle.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let _ = idle.read(&mut [0; 1]).map(|len| assert_eq!(len, 0));
    assert_eq!(host.handle().stats().connections_evicted, 1);
    // One that has stays.
    let mut third = TcpStream::connect(host.address()).unwrap();
    third.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let _ = third.read(&mut [0; 1]).map(|len| assert_eq!(len, 0));
    assert_eq!(host.handle().stats().connections_refused, 1);
    initiator.write(0, &pattern(1, 1));
    other.write(0, &pattern(1, 1));
}

/// At error recovery level 2 a session outlives its connections: it must not be had for nothing, nor keep others out.
#[test]
fn sessions_without_connections_take_places_and_make_way() {
    for workers in [1, 2] {
        let host = Host::start_with(&[VolumeSpec::plain("disk", MIB), VolumeSpec::plain("other", MIB)], |config| {
            config.workers = Some(workers);
            (config.limits.connections_max, config.limits.time2retain_s) = (4, 600);
        });
        let gone = ["disk", "other"].map(|volume| {
            let mut config = normal(ALICE, volume);
            (config.offer.error_recovery_level, config.offer.time2retain_s) = (2, 600);
            Initiator::log_in(&host, None, config).expect("admitted")
        });
        drop(gone);
        eventually("both are lost", || host.handle().stats().connections == 0);
        assert_eq!(host.handle().stats().sessions, 2, "and may be recovered");
        let mut others =
            ["disk", "other"].map(|volume| Initiator::log_in(&host, None, normal(BOB, volume)).expect("one makes way"));
        eventually("both have made way", || host.handle().stats().sessions == 2);
        others.iter_mut().for_each(|initiator| initiator.write(0, &pattern(1, 1)));
        assert!(host.handle().sessions().iter().all(|session| session.initiator_name == BOB));
    }
}

#[test]
fn a_stop_asks_initiators_to_leave_and_keeps_what_they_wrote() {
    let mut host = Host::start_with(&[VolumeSpec::plain("disk", MIB)], |config| config.limits.stop_timeout_s = 1);
    let mut initiator = host.plain("disk");
    initiator.write(3, &pattern(3, 3));
    let target = host.target.take().unwrap();
    let stopper = std::thread::spawn(move || target.stop());
    let asked = initiator.pump_until(|initiator| {
        initiator.events.drain(..).find_map(|event| match event {
            strongroom_iscsi::initiator::Event::LogoutRequested { within } => Some(within),
            _ => None,
        })
    });
    assert!(asked <= Duration::from_secs(1));
    initiator.wait_for_end();
    stopper.join().unwrap();
    let mut options = TargetOptions::new(support::config(host.dir.path()));
    options.node_key = Some(support::target_key());
    host.target = Some(Target::start(options).unwrap());
    assert_eq!(host.plain("disk").read(3, 3), pattern(3, 3), "a graceful stop syncs");
}
