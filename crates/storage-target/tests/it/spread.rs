//! Proves that the sessions of one volume are spread over the workers, and that it makes no difference to an initiator which of them it got:
//! order, reservations, unit attentions, task management, replaced sessions, rights, drains and the end of the target.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use strongroom_block::{Buffer, Lba};
use strongroom_iscsi::initiator::{Command, Event, TaskFunction, TaskManagementResult, WriteSource};
use strongroom_scsi::cdb;
use strongroom_target::admin::{Reply, Request, StatusReport};
use strongroom_target::{Catalogue, ChapSecrets, Config, Target, TargetOptions, VolumeSpec};

use crate::support::keeper::{ask, status};
use crate::support::{
    ALICE, BLOCK, CONFLICT, Host, Initiator, LUN, MIB, config, eventually, normal, pattern, target_key,
};

const WORKERS: usize = 3;
const TASK_ABORTED: u8 = 0x40;

fn host() -> Host {
    Host::start_with(&[VolumeSpec::plain("disk", 64 * MIB)], |config| config.workers = Some(WORKERS))
}

/// The `which`-th session of a volume.
fn session(host: &Host, which: u8) -> Initiator {
    let mut config = normal(ALICE, "disk");
    config.isid[5] = 10 + which;
    Initiator::log_in(host, None, config).expect("admitted")
}

/// As many sessions as there are workers: one each.
fn one_each(host: &Host) -> Vec<Initiator> {
    let sessions = (0..WORKERS as u8).map(|which| session(host, which)).collect();
    assert_eq!(workers_of(&status(host)).len(), WORKERS);
    sessions
}

fn workers_of(report: &StatusReport) -> HashSet<usize> {
    report.sessions.iter().map(|session| session.worker).collect()
}

fn write(lba: u64, data: &[u8]) -> Command {
    let cdb = cdb::write_16(Lba(lba), (data.len() / BLOCK) as u32, false);
    Command::write(LUN, cdb, WriteSource::plain(Buffer::copy_from(data)))
}

fn six(bytes: [u8; 6]) -> Command {
    let mut cdb = [0; 16];
    cdb[..6].copy_from_slice(&bytes);
    Command::without_data(LUN, cdb)
}

#[track_caller]
fn manage(session: &mut Initiator, function: TaskFunction) -> TaskManagementResult {
    let id = session.session.manage_task(function, LUN, None).unwrap();
    session.pump_until(|session| {
        let at = session
            .events
            .iter()
            .position(|event| matches!(event, Event::TaskManagementDone { id: of, .. } if *of == id))?;
        match session.events.remove(at) {
            Event::TaskManagementDone { result, .. } => Some(result),
            _ => None,
        }
    })
}

#[test]
fn the_first_session_is_where_the_unit_is_and_others_spread() {
    let host = host();
    let first = session(&host, 0);
    let report = status(&host);
    assert_eq!(report.sessions[0].worker, report.volumes[0].worker);
    let others: Vec<Initiator> = (1..6).map(|which| session(&host, which)).collect();
    let report = status(&host);
    let of = |worker| report.sessions.iter().filter(|session| session.worker == worker).count();
    assert_eq!([of(0), of(1), of(2)], [2, 2, 2]);
    assert_eq!(report.volumes[0].sessions, 6);
    // Places are given back.
    for session in others.into_iter().chain([first]) {
        assert_eq!(session.log_out(), "logged out");
    }
    eventually("nobody is left", || status(&host).volumes.iter().all(|volume| volume.sessions == 0));
    let again = one_each(&host);
    drop(again);
}

#[test]
fn what_one_worker_wrote_all_others_read() {
    let host = host();
    std::thread::scope(|scope| {
        for which in 0..6u8 {
            let host = &host;
            scope.spawn(move || {
                let mut session = session(host, which);
                for round in 0..12u64 {
                    let at = |batch: u64| u64::from(which) * 2000 + (round % 4) * 400 + batch * 20;
                    let seed = |batch: u64| (u64::from(which) * 40 + round * 5 + batch) as u8;
                    let tasks: Vec<_> =
                        (0..20).map(|batch| session.submit(write(at(batch), &pattern(seed(batch), 20)))).collect();
                    tasks.into_iter().for_each(|task| drop(session.wait(task).good()));
                    let reads: Vec<_> = (0..20)
                        .map(|batch| {
                            let cdb = cdb::read_16(Lba(at(batch)), 20);
                            (batch, session.submit(Command::read(LUN, cdb, 20 * BLOCK as u32)))
                        })
                        .collect();
                    for (batch, task) in reads {
                        assert_eq!(session.wait(task).good(), pattern(seed(batch), 20), "{which} {round} {batch}");
                    }
                }
                session.synchronize();
                assert_eq!(session.log_out(), "logged out");
            });
        }
    });
    let mut all = one_each(&host);
    for reader in &mut all {
        for which in 0..6u64 {
            let seed = |batch: u64| (which * 40 + 11 * 5 + batch) as u8;
            assert_eq!(reader.read(which * 2000 + 3 * 400 + 19 * 20, 20), pattern(seed(19), 20));
        }
    }
}

/// A unit takes one command after the other: of two that compare and write the same block one wins, each time.
#[test]
fn compare_and_write_is_one_step_for_all() {
    let host = host();
    let mut first = session(&host, 9);
    first.write(0, &[0; BLOCK]);
    let count: u32 = 40;
    std::thread::scope(|scope| {
        for which in 0..WORKERS as u8 {
            let host = &host;
            scope.spawn(move || {
                let mut session = session(host, which);
                for _ in 0..count {
                    loop {
                        let was = session.read(0, 1);
                        let value = u32::from_be_bytes(was[..4].try_into().unwrap());
                        let mut is = was.clone();
                        is[..4].copy_from_slice(&(value + 1).to_be_bytes());
                        let mut cdb = [0; 16];
                        (cdb[0], cdb[13]) = (0x89, 1);
                        let both = Buffer::copy_from(&[was, is].concat());
                        if session.run(Command::write(LUN, cdb, WriteSource::plain(both))).status == 0 {
                            break;
                        }
                    }
                }
            });
        }
    });
    assert_eq!(first.read(0, 1)[..4], (count * WORKERS as u32).to_be_bytes());
}

#[test]
fn reservations_attentions_and_resets_reach_every_worker() {
    let host = host();
    let mut all = one_each(&host);
    for holder in 0..WORKERS {
        // RESERVE (6).
        assert_eq!(all[holder].run(six([0x16, 0, 0, 0, 0, 0])).status, 0);
        for other in (0..WORKERS).filter(|other| *other != holder) {
            assert_eq!(all[other].try_write(0, &pattern(1, 1)).status, CONFLICT);
        }
        let resetter = (holder + 1) % WORKERS;
        assert_eq!(manage(&mut all[resetter], TaskFunction::LogicalUnitReset), TaskManagementResult::Complete);
        for session in &mut all {
            let told = session.run(Command::without_data(LUN, cdb::test_unit_ready())).sense();
            assert_eq!((told.asc, told.ascq), (0x29, 0x03));
        }
        all[resetter].write(0, &pattern(2, 1));
    }
    // It is about one session.
    assert_eq!(manage(&mut all[2], TaskFunction::AbortTaskSet), TaskManagementResult::Complete);
    all.iter_mut().for_each(|session| session.write(1, &pattern(3, 1)));
}

/// Every command of a session is answered once while others end, and what is answered with TASK ABORTED may be sent again.
#[test]
fn resets_in_the_middle_of_work_lose_no_answer() {
    let host = host();
    let mut all = one_each(&host);
    for round in 0..12u64 {
        let resetter = round as usize % WORKERS;
        let tasks: Vec<Vec<_>> = all
            .iter_mut()
            .enumerate()
            .map(|(which, session)| {
                let submit = |batch: u64| write(which as u64 * 1000 + batch * 10, &pattern(batch as u8, 10));
                let tasks = (0..30).map(|batch| session.submit(submit(batch))).collect();
                session.pump_until(|_| Some(()));
                tasks
            })
            .collect();
        assert_eq!(manage(&mut all[resetter], TaskFunction::LogicalUnitReset), TaskManagementResult::Complete);
        for (which, (session, tasks)) in all.iter_mut().zip(tasks).enumerate() {
            if which == resetter {
                session.events.clear();
                continue;
            }
            for task in tasks {
                let outcome = session.wait(task);
                let told = outcome.sense.map(|sense| sense.asc);
                assert!([0, TASK_ABORTED].contains(&outcome.status) || told == Some(0x29), "{outcome:?}");
            }
        }
        for session in &mut all {
            // The attention may have been told to one of those.
            session.run(Command::without_data(LUN, cdb::test_unit_ready()));
            session.write(5000, &pattern(7, 1));
        }
    }
}

/// RFC 7143 §6.3.5: what the session that is replaced still had under way can have no effect on what the new one does.
#[test]
fn a_session_of_another_worker_is_replaced_when_its_tasks_have_ended() {
    let host = host();
    let _stays = one_each(&host);
    let mut old = session(&host, 100);
    for round in 0..25u8 {
        for block in 0..100 {
            old.submit(write(block, &pattern(200, 1)));
        }
        old.pump_until(|_| Some(()));
        let mut new = session(&host, 100);
        let content = pattern(round, 1);
        new.write(99, &content);
        new.write(0, &content);
        for _ in 0..20 {
            assert_eq!((new.read(0, 1), new.read(99, 1)), (content.clone(), content.clone()), "{round}");
        }
        old.wait_for_end();
        old = new;
    }
}

#[test]
fn sessions_are_dropped_and_drained_wherever_they_are() {
    let host = host();
    let mut all = one_each(&host);
    for session in &mut all {
        for block in 0..50 {
            session.submit(write(block, &pattern(1, 1)));
        }
        session.pump_until(|_| Some(()));
    }
    let of_disk = Request::SessionDrop { id: None, initiator: None, peer: None, volume: Some("disk".into()) };
    let dropped = ask(&host, &of_disk);
    assert!(matches!(dropped, Ok(Reply::Sessions(WORKERS))), "{dropped:?} {:?}", status(&host).sessions);
    all.iter_mut().for_each(|session| drop(session.wait_for_end()));
    // At the target they end with what they have in the store.
    eventually("the dropped sessions are gone", || status(&host).sessions.is_empty());
    let mut all = one_each(&host);
    let drain = Request::Drain { to: None, volume: None, grace_s: 30 };
    assert!(matches!(ask(&host, &drain), Ok(Reply::Sessions(WORKERS))));
    for mut session in all.drain(..) {
        session.pump_until(|session| {
            session.events.iter().any(|event| matches!(event, Event::LogoutRequested { .. })).then_some(())
        });
        session.write(3, &pattern(3, 1));
        assert_eq!(session.log_out(), "logged out");
    }
    ask(&host, &Request::Undrain { volume: None }).unwrap();
    assert_eq!(session(&host, 0).read(3, 1), pattern(3, 1));
}

#[test]
fn rights_change_for_sessions_of_all_workers() {
    let dir = tempfile::tempdir().unwrap();
    Catalogue::open(dir.path()).unwrap().create(&VolumeSpec::plain("disk", MIB)).unwrap();
    let with = |change: &dyn Fn(&mut Config)| {
        let mut config = config(dir.path());
        config.workers = Some(WORKERS);
        change(&mut config);
        config
    };
    let next = Arc::new(Mutex::new(with(&|_| {})));
    let mut options = TargetOptions::new(with(&|_| {}));
    options.node_key = Some(target_key());
    let read = Arc::clone(&next);
    options.reread = Some(Arc::new(move || Ok((read.lock().unwrap().clone(), ChapSecrets::default()))));
    let read_only = with(&|config| config.plain[0].read_only = true);
    let nobody = with(&|config| config.plain.clear());
    let target = Target::start(options).unwrap();
    let host = Host { target: Some(target), dir, node: target_key().public() };
    let mut all = one_each(&host);
    *next.lock().unwrap() = read_only;
    assert_eq!(host.handle().reload().unwrap().sessions_changed, WORKERS);
    for session in &mut all {
        assert_eq!(session.try_write(0, &pattern(1, 1)).sense().asc, 0x27, "write protected");
        session.read(0, 1);
    }
    *next.lock().unwrap() = nobody;
    assert_eq!(host.handle().reload().unwrap().sessions_ended, WORKERS);
    all.iter_mut().for_each(|session| drop(session.wait_for_end()));
}

#[test]
fn a_target_with_busy_sessions_everywhere_stops_in_order() {
    let mut host = Host::start_with(&[VolumeSpec::plain("disk", 64 * MIB)], |config| {
        (config.workers, config.limits.stop_timeout_s) = (Some(WORKERS), 1);
    });
    let mut all = one_each(&host);
    for (which, session) in all.iter_mut().enumerate() {
        session.write(which as u64 * 100, &pattern(which as u8, 3));
        for block in 0..50 {
            session.submit(write(1000 + block, &pattern(1, 1)));
        }
        session.pump_until(|_| Some(()));
    }
    let target = host.target.take().unwrap();
    let began = Instant::now();
    let stopper = std::thread::spawn(move || target.stop());
    all.iter_mut().for_each(|session| drop(session.wait_for_end()));
    stopper.join().unwrap();
    assert!(began.elapsed() < Duration::from_secs(600), "it does not wait for what cannot come");
    let mut options = TargetOptions::new(config(host.dir.path()));
    options.node_key = Some(target_key());
    host.target = Some(Target::start(options).unwrap());
    let mut reader = host.plain("disk");
    (0..WORKERS).for_each(|which| assert_eq!(reader.read(which as u64 * 100, 3), pattern(which as u8, 3)));
}
