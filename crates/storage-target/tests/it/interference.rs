//! Proves over real sockets what sessions can do to each other: a reset hangs nobody, a session that may only read holds up nobody, and
//! nobody ends the session of another node by calling itself the same.

use strongroom_block::{Buffer, Lba};
use strongroom_iscsi::LoginStatus;
use strongroom_iscsi::initiator::{
    Command, Config as SessionConfig, Event, TaskFunction, TaskManagementResult, WriteSource,
};
use strongroom_scsi::{Sense, Status, cdb};
use strongroom_target::VolumeSpec;
use strongroom_target::config::PlainRule;

use crate::support::{ALICE, Host, Initiator, LUN, MIB, Refused, normal, pattern};

const READER: &str = "iqn.2026-11.org.example:reader";

fn other(name: &str) -> SessionConfig {
    let mut config = normal(name, "disk");
    config.isid[5] = 9;
    config
}

fn manage(initiator: &mut Initiator, function: TaskFunction) -> TaskManagementResult {
    let id = initiator.session.manage_task(function, LUN, None).unwrap();
    initiator.pump_until(|initiator| {
        let done = |event: &Event| match event {
            Event::TaskManagementDone { id: done, result, .. } if *done == id => Some(*result),
            _ => None,
        };
        initiator.events.iter().find_map(done)
    })
}

#[test]
fn a_session_that_another_resets_gets_an_answer_to_everything() {
    let host = Host::start(&[VolumeSpec::plain("disk", 64 * MIB)]);
    let mut first = host.plain("disk");
    let mut second = Initiator::log_in(&host, None, other("iqn.2026-11.org.example:bob")).unwrap();
    let mut aborted = 0;
    for function in [TaskFunction::LogicalUnitReset, TaskFunction::ClearTaskSet, TaskFunction::TargetWarmReset] {
        for _ in 0..8 {
            // Some of these are in the store, some wait for their data, some have not been taken in yet.
            let tasks: Vec<_> = (0..24u64)
                .map(|index| {
                    let data = WriteSource::plain(Buffer::copy_from(&pattern(index as u8, 128)));
                    first.submit(Command::write(LUN, cdb::write_16(Lba(index * 128), 128, true), data))
                })
                .collect();
            first.pump_until(|_| Some(()));
            assert_eq!(manage(&mut second, function), TaskManagementResult::Complete);
            for task in tasks {
                let outcome = first.wait(task);
                aborted += u32::from(outcome.status == Status::TaskAborted as u8);
                let reset = outcome.sense.as_ref().is_some_and(|sense| sense.asc == 0x29);
                assert!(outcome.status == 0 || outcome.status == Status::TaskAborted as u8 || reset, "{outcome:?}");
            }
        }
    }
    assert!(aborted > 0, "no reset came in time to end anything");
    let _ = first.run(Command::without_data(LUN, cdb::test_unit_ready()));
    first.write(0, &pattern(3, 1));
    assert_eq!(first.read(0, 1), pattern(3, 1));
}

#[test]
fn a_session_that_may_only_read_ends_nothing_of_others() {
    let host = Host::start_with(&[VolumeSpec::plain("disk", MIB)], |config| {
        config.plain[0].initiators = vec![ALICE.into()];
        let initiators = vec![READER.into()];
        config.plain.push(PlainRule { initiators, volumes: vec!["*".into()], read_only: true, ..PlainRule::default() });
    });
    let mut writer = host.plain("disk");
    let mut reader = Initiator::log_in(&host, None, other(READER)).unwrap();
    for function in [
        TaskFunction::LogicalUnitReset,
        TaskFunction::ClearTaskSet,
        TaskFunction::TargetWarmReset,
        TaskFunction::TargetColdReset,
    ] {
        assert_eq!(manage(&mut reader, function), TaskManagementResult::AuthorizationFailed, "{function:?}");
    }
    assert_eq!(manage(&mut reader, TaskFunction::AbortTaskSet), TaskManagementResult::Complete, "its own it may");
    for cdb in [cdb::start_stop_unit(false), cdb::reserve_6()] {
        assert!(reader.run(Command::without_data(LUN, cdb)).sense().is(&Sense::WRITE_PROTECTED));
    }
    writer.write(0, &pattern(1, 1));
    assert_eq!(reader.read(0, 1), pattern(1, 1));
}

#[test]
fn a_session_is_only_replaced_by_its_own_node() {
    let host = Host::start(&[VolumeSpec::plain("disk", MIB)]);
    let mut channel = host.channel("disk");
    // The same name, the same ISID, and no proof of anything.
    let stolen = Initiator::log_in(&host, None, normal(ALICE, "disk")).err();
    assert_eq!(stolen, Some(Refused::Login(LoginStatus::AUTHORIZATION_FAILED)));
    channel.write(0, &pattern(1, 1));
    let mut again = host.channel("disk");
    channel.wait_for_end();
    assert_eq!(again.read(0, 1), pattern(1, 1));
}

/// RFC 7144: a nexus that resets itself loses its reservation and is told; its neighbour notices nothing else.
#[test]
fn a_nexus_reset_is_about_one_session() {
    let host = Host::start(&[VolumeSpec::plain("disk", 16 << 20)]);
    let mut alice = host.plain("disk");
    let mut bob = Initiator::log_in(&host, None, normal("iqn.2026-11.org.example:bob", "disk")).unwrap();
    let reserve = || {
        Command::without_data(LUN, {
            let mut cdb = [0; 16];
            cdb[0] = 0x16;
            cdb
        })
    };
    let ready = || Command::without_data(LUN, cdb::test_unit_ready());
    assert_eq!(alice.run(reserve()).status, 0);
    assert_eq!(bob.run(ready()).status, 0x18, "RESERVATION CONFLICT");
    assert_eq!(manage(&mut alice, TaskFunction::QueryAsyncEvent), TaskManagementResult::Complete);
    assert_eq!(manage(&mut alice, TaskFunction::NexusReset), TaskManagementResult::Complete);
    assert_eq!(manage(&mut alice, TaskFunction::QueryAsyncEvent), TaskManagementResult::Succeeded);
    let sense = alice.run(ready()).sense();
    assert_eq!((sense.asc, sense.ascq), (0x29, 0x07), "I_T NEXUS LOSS OCCURRED");
    assert_eq!(bob.run(ready()).status, 0);
    assert_eq!(manage(&mut alice, TaskFunction::QueryTaskSet), TaskManagementResult::Complete);
}
