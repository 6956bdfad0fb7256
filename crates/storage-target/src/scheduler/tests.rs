//! Proves when runs are due, with a clock by hand: one in each interval, one after a pause however long, again after a failure.

use strongroom_block::Custody;

use super::*;
use crate::calendar::CivilTime;
use crate::retention::Retention;
use crate::volume::tests::sample;

const HOUR: u64 = 3_600;

/// 2026-11-23, a Monday.
fn at(hour: u64, minute: u64) -> u64 {
    CivilTime { year: 2026, month: 11, day: 23, hour, minute, second: 0 }.to_seconds().unwrap()
}

fn hourly(snapshots: &[&str]) -> Vec<Arc<Volume>> {
    let schedule = Schedule { every_s: HOUR, keep: Retention { last: 9, ..Retention::default() } };
    let snapshots = snapshots.iter().map(ToString::to_string).collect();
    vec![Arc::new(Volume { schedule: Some(schedule), snapshots, ..sample(Custody::KeyFile) })]
}

/// Has what is due run; how many that were.
fn run(state: &mut Schedules, now: u64, outcome: &Result<ScheduledRun, String>) -> usize {
    let due = state.take_due(now);
    assert!(state.take_due(now).is_empty(), "what runs is not started twice");
    for (name, _) in &due {
        state.volumes.get_mut(name).unwrap().finish(now, outcome.clone());
    }
    due.len()
}

#[test]
fn each_interval_has_one_run() {
    let (mut state, done) = (Schedules::default(), Ok(ScheduledRun::default()));
    state.take_over(&hourly(&[]), at(7, 32));
    assert_eq!(run(&mut state, at(7, 32), &done), 1, "at once, where there is none");
    let runs: usize = (33..=180).map(|minute| run(&mut state, at(7, 0) + minute * 60, &done)).sum();
    assert_eq!(runs, 3, "at 8:00, 9:00 and 10:00");
    assert_eq!(state.next_due(at(10, 1)), Some(at(11, 0)));
}

#[test]
fn what_was_missed_is_one_run() {
    let (mut state, done) = (Schedules::default(), Ok(ScheduledRun::default()));
    // The target was down from 3:10 to 7:32.
    state.take_over(&hourly(&["auto-2026-11-23t0200z", "auto-2026-11-23t0300z"]), at(7, 32));
    assert_eq!(run(&mut state, at(7, 32), &done), 1);
    assert_eq!(run(&mut state, at(7, 33), &done), 0);
    assert_eq!(run(&mut state, at(8, 0), &done), 1);
    // It was down for a moment only.
    let mut state = Schedules::default();
    state.take_over(&hourly(&["auto-2026-11-23t0700z"]), at(7, 32));
    assert_eq!(run(&mut state, at(7, 32), &done), 0);
    assert_eq!(run(&mut state, at(8, 0), &done), 1);
}

#[test]
fn a_failed_run_is_tried_again_soon() {
    let (mut state, done) = (Schedules::default(), Ok(ScheduledRun::default()));
    let failed = Err("the volume is open elsewhere".to_owned());
    state.take_over(&hourly(&[]), at(7, 0));
    assert_eq!(run(&mut state, at(7, 0), &failed), 1);
    assert_eq!(run(&mut state, at(7, 0) + 59, &failed), 0);
    assert_eq!(run(&mut state, at(7, 1), &failed), 1);
    let entry = state.volumes.values_mut().next().unwrap();
    assert_eq!(entry.error.as_deref(), Some("the volume is open elsewhere"));
    assert!(!entry.finish(at(7, 1), failed), "the same problem is not told again");
    assert!(entry.finish(at(7, 2), done.clone()) && entry.error.is_none());
    assert_eq!(run(&mut state, at(7, 59), &done), 0);
}

#[test]
fn a_clock_that_is_set_back_stops_nothing() {
    let (mut state, done) = (Schedules::default(), Ok(ScheduledRun::default()));
    state.take_over(&hourly(&["auto-2026-11-23t1700z"]), at(9, 0));
    assert_eq!(run(&mut state, at(9, 0), &done), 1);
    assert_eq!(run(&mut state, at(8, 30), &done), 1, "another interval");
    assert_eq!(run(&mut state, at(8, 59), &done), 0);
    let failed = Err("no".to_owned());
    assert_eq!(run(&mut state, at(20, 0), &failed), 1);
    assert_eq!(run(&mut state, at(10, 0), &done), 1);
}

#[test]
fn descriptions_are_taken_over() {
    let mut state = Schedules::default();
    let volumes = hourly(&[]);
    state.take_over(&volumes, at(7, 0));
    run(&mut state, at(7, 0), &Ok(ScheduledRun::default()));
    state.take_over(&volumes, at(7, 1));
    assert_eq!(state.next_due(at(7, 1)), Some(at(8, 0)), "what is known of an unchanged one stays");
    let mut other = (*volumes[0]).clone();
    other.schedule.as_mut().unwrap().every_s = 60;
    state.take_over(&[Arc::new(other.clone())], at(7, 2));
    assert_eq!(state.next_due(at(7, 2)), Some(at(7, 2)));
    other.successor = Some(VolumeName::new("next").unwrap());
    state.take_over(&[Arc::new(other.clone())], at(7, 2));
    assert_eq!(state.next_due(at(7, 2)), None, "what moves takes no snapshots");
    (other.successor, other.schedule) = (None, None);
    state.take_over(&[Arc::new(other)], at(7, 2));
    assert!(state.volumes.is_empty());
}
