//! Proves what is asked of the target when, what a refusal becomes, and that a lease that was lost is never claimed again.

use strongroom_scsi::transport::Residual;
use strongroom_scsi::transport::initiator::TaskId;
use strongroom_scsi::vendor::lease::{Standing, encode_writers};

use super::*;
use crate::session::probe::Probe;

fn unit(has_leases: bool) -> UnitDescription {
    UnitDescription { has_leases, ..Probe::new("iqn.x:vault".into(), 0, None).into_unit() }
}

fn lease(change: impl FnOnce(&mut AttachOptions)) -> WriterLease {
    let mut options = AttachOptions::new("strongroom://storage/vault".parse().unwrap());
    change(&mut options);
    WriterLease::new(&options)
}

fn ended(status: Status) -> Completed {
    Completed {
        task: TaskId(1),
        status: status as u8,
        response: 0,
        sense: Vec::new(),
        residual: Residual::None,
        moved_bytes: 0,
        written: None,
    }
}

fn claim_of(talk: &LeaseTalk) -> Claim {
    match &talk.question {
        Question::Claim(claim) => claim.clone(),
        other => panic!("{other:?}"),
    }
}

fn writer(role: WriterRole) -> Writer {
    let initiator_name = "iqn.b".to_owned();
    Writer { role, is_asker: false, standing: Standing::Connected, initiator_name, description: String::new() }
}

/// Has a claim refused, by these.
fn refuse(talk: &mut LeaseTalk, writers: &[Writer]) -> LeaseStep {
    assert!(matches!(talk.completed(&ended(Status::ReservationConflict)), LeaseStep::Ask(Duration::ZERO)));
    assert_eq!(talk.question, Question::Report);
    talk.command();
    talk.data(&encode_writers(writers));
    talk.completed(&ended(Status::Good))
}

#[test]
fn each_session_claims_before_it_writes() {
    let mut lease = lease(|options| options.lease.take_over = true);
    let mut talk = lease.begin(&unit(true)).unwrap();
    let claim = claim_of(&talk);
    assert!(claim.take_over && !claim.resume && claim.mode == LeaseMode::Exclusive && claim.seconds == 60);
    let LeaseStep::Done(outcome) = talk.completed(&ended(Status::Good)) else { panic!("it is ours") };
    lease.concluded(outcome).unwrap();
    assert!(lease.is_held());
    let again = claim_of(&lease.begin(&unit(true)).unwrap());
    assert!(again.resume && !again.take_over && again.id == claim.id, "nothing is taken over twice");
    assert!(claim_of(&lease.leave(&unit(true)).unwrap()).resume, "it is asked once more whether it still is ours");
    lease.concluded(LeaseOutcome::Held).unwrap();
    assert_eq!(lease.leave(&unit(true)).unwrap().question, Question::Release);
    assert!(lease.leave(&unit(true)).is_none());
}

#[test]
fn who_does_not_write_says_so_and_a_foreign_target_is_asked_nothing() {
    let mut reader = lease(|options| options.read_only = true);
    for _ in 0..2 {
        assert_eq!(claim_of(&reader.begin(&unit(true)).unwrap()).mode, LeaseMode::Reader);
        reader.concluded(LeaseOutcome::Held).unwrap();
    }
    assert!(reader.leave(&unit(true)).is_none() && !reader.is_held());
    let mut writer = lease(|_| {});
    assert!(writer.begin(&unit(false)).is_none() && writer.lost().is_none());
    // One that had leases and has none any more may have let others in.
    let mut writer = lease(|_| {});
    writer.begin(&unit(true)).unwrap();
    writer.concluded(LeaseOutcome::Held).unwrap();
    assert!(writer.begin(&unit(false)).is_none() && writer.lost().is_some());
}

#[test]
fn a_lost_lease_is_never_claimed_again() {
    let mut lease = lease(|_| {});
    lease.begin(&unit(true)).unwrap();
    lease.concluded(LeaseOutcome::Held).unwrap();
    let mut talk = lease.begin(&unit(true)).unwrap();
    let taker = writer(WriterRole::TookOver);
    let LeaseStep::Done(outcome) = refuse(&mut talk, &[taker]) else { panic!("it is refused") };
    lease.concluded(outcome).unwrap();
    let lost = lease.lost().unwrap().clone();
    assert!(lost.message.contains("was taken over for writing by iqn.b"), "{lost}");
    assert!(lease.begin(&unit(true)).is_none() && lease.leave(&unit(true)).is_none());
    assert_eq!(lease.lost(), Some(&lost));
}

#[test]
fn sessions_that_may_be_about_to_go_are_waited_for_and_holders_are_not() {
    let mut first = lease(|_| {});
    let mut talk = first.begin(&unit(true)).unwrap();
    let stock = writer(WriterRole::Unleased);
    for _ in 1..TRIES_MAX {
        assert!(matches!(refuse(&mut talk, std::slice::from_ref(&stock)), LeaseStep::Ask(TRY_AGAIN_AFTER)));
        talk.command();
    }
    let LeaseStep::Done(outcome) = refuse(&mut talk, &[stock]) else { panic!("not for ever") };
    let error = first.concluded(outcome).unwrap_err();
    assert!(matches!(&error, AttachError::InUse(conflict) if conflict.to_string().contains("without a writer lease")));
    let mut talk = lease(|_| {}).begin(&unit(true)).unwrap();
    let holder = writer(WriterRole::Holder(LeaseMode::Shared));
    assert!(matches!(refuse(&mut talk, &[holder]), LeaseStep::Done(LeaseOutcome::Refused(_))));
    // What is no report is not believed.
    let mut talk = lease(|_| {}).begin(&unit(true)).unwrap();
    talk.completed(&ended(Status::ReservationConflict));
    talk.command();
    talk.data(&[9; 40]);
    assert!(matches!(talk.completed(&ended(Status::Good)), LeaseStep::Failed(AttachError::Unsupported(_))));
}
