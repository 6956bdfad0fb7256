//! Proves how long the engine waits: a target that fell silent, or a unit that was reset, is reconnected; one that is slow is
//! not. On a stepped clock.

use std::time::Duration;

use strongroom_scsi::Sense;

use super::{BLOCK, Rig};
use crate::Limits;

#[test]
fn a_mute_target_is_reconnected_and_a_slow_one_is_not() {
    let mut rig = Rig::new(true, Limits::default());
    let start = rig.now;
    let at = |seconds: u64| start + Duration::from_secs(seconds);
    rig.engine.handle_timeout(start);
    assert_eq!(rig.engine.poll_timeout(), None, "nothing is in flight");
    let first = rig.submit(rig.write_work(1, &[1; BLOCK], true));
    let second = rig.submit(rig.write_work(2, &[2; BLOCK], true));
    let (lost, _) = rig.engine.next_command().unwrap();
    let (slow, command) = rig.engine.next_command().unwrap();
    assert_eq!(rig.engine.poll_timeout(), Some(at(60)));
    assert_eq!(rig.engine.needs_new_connection(at(59)), None);
    // It takes the answers to its pings, and later data: then it is not mute.
    rig.engine.in_flight.transmitted(at(58), 88);
    assert_eq!(rig.engine.poll_timeout(), Some(at(60)));
    rig.engine.in_flight.transmitted(at(59), 4 * BLOCK);
    assert_eq!(rig.engine.needs_new_connection(at(60)), None);
    assert_eq!(rig.engine.poll_timeout(), Some(at(119)));
    // It answers the second after all, and then nothing more.
    let (_, completed) = rig.unit.execute(&command);
    rig.engine.completed(at(100), slow, &completed);
    rig.collect();
    assert!(rig.result(second).is_ok());
    assert_eq!(rig.engine.needs_new_connection(at(159)), None);
    assert!(rig.engine.needs_new_connection(at(160)).is_some());
    // And one that answers others for ever is not waited for without end.
    rig.engine.in_flight.transmitted(at(599), 4 * BLOCK);
    assert_eq!(rig.engine.needs_new_connection(at(599)), None);
    assert!(rig.engine.needs_new_connection(at(600)).is_some());
    rig.now = at(600);
    rig.engine.handle_timeout(rig.now);
    rig.reconnect(false);
    assert_eq!(rig.engine.needs_new_connection(at(600)), None, "the silence is measured from the start again");
    let (again, command) = rig.engine.next_command().unwrap();
    assert_eq!(again, lost, "the same command");
    assert_eq!(rig.engine.needs_new_connection(at(659)), None);
    let (_, completed) = rig.unit.execute(&command);
    rig.engine.completed(at(659), again, &completed);
    rig.collect();
    assert!(rig.result(first).is_ok());
    assert_eq!(rig.read(1, 2).unwrap(), [[1; BLOCK], [2; BLOCK]].concat());
}

#[test]
fn a_reset_asks_for_a_new_connection_only_if_something_hangs_on_it() {
    let reset = Sense::new(strongroom_scsi::SenseKey::UnitAttention, 0x29, 3);
    let mut rig = Rig::new(false, Limits::default());
    rig.unit.fail_next = vec![reset];
    rig.write(1, 1, 1).unwrap();
    assert_eq!(rig.engine.needs_new_connection(rig.now), None);
    rig.submit(rig.write_work(1, &[1; BLOCK], false));
    let told = rig.submit(rig.write_work(2, &[2; BLOCK], false));
    let _ended_in_silence = rig.engine.next_command().unwrap();
    let (id, command) = rig.engine.next_command().unwrap();
    rig.unit.fail_next = vec![reset];
    let (_, completed) = rig.unit.execute(&command);
    rig.engine.completed(rig.now, id, &completed);
    assert!(rig.engine.needs_new_connection(rig.now).is_some());
    rig.reconnect(false);
    assert_eq!(rig.engine.needs_new_connection(rig.now), None);
    rig.run();
    assert!(rig.result(told).is_ok());
    assert_eq!(rig.read(1, 2).unwrap(), [[1; BLOCK], [2; BLOCK]].concat());
}
