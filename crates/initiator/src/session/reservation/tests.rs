//! Proves, against the reservations of a real unit, what a node says and what comes of it: of two nodes that fence each other one wins, in any order of
//! their commands; what dead attachments have left is replaced; and what a target may answer besides ends with an error that says what to do.

use strongroom_scsi::NexusId;
use strongroom_scsi::persistent::{PersistentReservations, Refusal};
use strongroom_scsi::transport::Residual;
use strongroom_scsi::transport::initiator::TaskId;
use strongroom_scsi::vendor::lease::{LeaseMode, Standing as WriterStanding, WriterRole, encode_writers};

use super::*;
use crate::Victim;
use crate::session::probe::Probe;

/// Answers as a unit does, but for leases: it reports these.
#[derive(Default)]
struct Unit {
    state: PersistentReservations,
    writers: Vec<Writer>,
}

impl Unit {
    fn execute(&mut self, own: &OwnPort, command: &ScsiCommand) -> (Completed, Vec<u8>) {
        let nexus = NexusId { initiator_name: own.name.as_str().into(), isid: own.isid, target_portal_group: 1 };
        let (cdb, mut answer) = (command.cdb, Vec::new());
        let (mut status, mut sense) = (Status::Good, Vec::new());
        match cdb[0] {
            op::PERSISTENT_RESERVE_IN => answer = self.state.report(cdb[1]),
            op::PERSISTENT_RESERVE_OUT => {
                let list = command.write.as_ref().expect("it has a list").data.to_vec();
                match self.state.change(&nexus, cdb[1], cdb[2], &list) {
                    Ok(_) => {}
                    Err(Refusal::Conflict) => status = Status::ReservationConflict,
                    Err(Refusal::Sense(why)) => (status, sense) = (Status::CheckCondition, why.encode()),
                }
            }
            _ => answer = encode_writers(&self.writers),
        }
        let (task, residual) = (TaskId(1), Residual::None);
        let completed =
            Completed { task, status: status as u8, response: 0, sense, residual, moved_bytes: 0, written: None };
        (completed, answer)
    }
}

type End = Result<ReservationOutcome, ReservationError>;

/// One exchange, command by command.
struct Running {
    own: OwnPort,
    talk: ReservationTalk,
    end: Option<End>,
}

impl Running {
    fn step(&mut self, unit: &mut Unit) {
        if self.end.is_some() {
            return;
        }
        let command = self.talk.command();
        let (completed, answer) = unit.execute(&self.own, &command);
        self.talk.data(&answer);
        self.end = match self.talk.completed(&completed) {
            ReservationStep::Ask(_) => None,
            ReservationStep::Done(outcome) => Some(Ok(outcome)),
            ReservationStep::Failed(AttachError::Reservation(error)) => Some(Err(*error)),
            ReservationStep::Failed(other) => panic!("{other}"),
        };
    }

    fn run(mut self, unit: &mut Unit) -> End {
        (0..100).for_each(|_| self.step(unit));
        self.end.expect("it ends")
    }
}

fn port(name: &str, isid: u8) -> OwnPort {
    OwnPort { name: name.into(), isid: [0x80, 0, 0, 0, 0, isid] }
}

fn key(key: u64) -> ReservationKey {
    ReservationKey::from_wire(key).unwrap()
}

fn description(has_leases: bool) -> UnitDescription {
    UnitDescription { has_leases, ..Probe::new("iqn.x:vault".into(), 0, None).into_unit() }
}

fn node(own: &OwnPort, number: u64, take_over: bool) -> NodeRegistration {
    let (volume, state) = ("vault".to_owned(), RegistrationState::New);
    NodeRegistration { key: key(number), take_over, volume, own: own.clone(), state }
}

fn join(unit: &mut Unit, own: &OwnPort, number: u64, take_over: bool) -> End {
    let talk = node(own, number, take_over).begin(&description(!unit.writers.is_empty())).unwrap();
    Running { own: own.clone(), talk, end: None }.run(unit)
}

fn fencing(own: OwnPort, number: u64, victim: Victim, joins: bool) -> Running {
    let request = FenceRequest::Fence { key: key(number), victim, joins };
    Running { talk: ReservationTalk::request(&description(false), &request, own.clone()), own, end: None }
}

fn keys(unit: &Unit) -> Vec<(u64, String)> {
    let of = |one: &strongroom_scsi::persistent::Registration| (one.key, one.nexus.to_string());
    unit.state.registrations().iter().map(of).collect()
}

fn is_registered(unit: &Unit, own: &OwnPort) -> bool {
    unit.state.registrations().iter().any(|one| one.nexus.isid == own.isid)
}

/// Two attached nodes.
fn pair() -> (Unit, OwnPort, OwnPort) {
    let (mut unit, a, b) = (Unit::default(), port("a", 1), port("b", 2));
    assert!(matches!(join(&mut unit, &a, 0xa, false), Ok(ReservationOutcome::Registered)));
    assert!(matches!(join(&mut unit, &b, 0xb, false), Ok(ReservationOutcome::Registered)));
    (unit, a, b)
}

/// Every order of their commands.
#[test]
fn of_two_nodes_that_fence_each_other_one_wins() {
    const STEPS: u32 = 12;
    for order in 0..1_u32 << STEPS {
        let (mut unit, a, b) = pair();
        let mut by_a = fencing(port("a", 11), 0xa, Victim::Key(key(0xb)), false);
        let mut by_b = fencing(port("b", 12), 0xb, Victim::Other, false);
        for at in 0..STEPS {
            if order >> at & 1 == 1 { by_a.step(&mut unit) } else { by_b.step(&mut unit) }
        }
        let (by_a, by_b) = (by_a.run(&mut unit), by_b.run(&mut unit));
        // Who comes later may find that the other one is gone already, and then is.
        assert!(by_a.is_ok() != by_b.is_ok(), "{order:012b}: {by_a:?} {by_b:?}");
        let (winner, loser) = if by_a.is_ok() { (&a, &b) } else { (&b, &a) };
        assert!(is_registered(&unit, winner) && !is_registered(&unit, loser), "{order:012b}: {:?}", keys(&unit));
        assert_eq!(unit.state.registrations().len(), 1, "{order:012b}: nothing is left of the commands");
    }
}

#[test]
fn what_a_dead_attachment_has_left_is_replaced() {
    let (mut unit, a, _) = pair();
    // The process has died, and the machine attaches again: another port, the same key.
    let again = port("a", 3);
    assert!(matches!(join(&mut unit, &again, 0xa, false), Ok(ReservationOutcome::Registered)));
    assert!(!is_registered(&unit, &a) && is_registered(&unit, &again));
    assert_eq!(unit.state.registrations().len(), 2);
    // Where it is alive it is not, unless that is meant.
    unit.writers = vec![Writer {
        role: WriterRole::Holder(LeaseMode::Shared),
        is_asker: false,
        standing: WriterStanding::Connected,
        initiator_name: "A".into(),
        description: "host a".into(),
    }];
    let third = port("a", 4);
    let error = join(&mut unit, &third, 0xa, false).unwrap_err();
    assert!(matches!(&error, ReservationError::AttachedAlready { by, .. } if by.contains("host a")), "{error}");
    assert!(is_registered(&unit, &again) && !is_registered(&unit, &third));
    assert!(matches!(join(&mut unit, &third, 0xa, true), Ok(ReservationOutcome::Registered)));
    assert!(!is_registered(&unit, &again) && is_registered(&unit, &third));
    let error = join(&mut unit, &port("c", 5), 0xa, true).unwrap_err();
    assert_eq!(error, ReservationError::KeyInUse { key: key(0xa), owner: "a".into() });
}

#[test]
fn a_registration_that_was_removed_does_not_come_back() {
    let (mut unit, a, b) = pair();
    let mut bob = node(&b, 0xb, false);
    let check = |bob: &mut NodeRegistration, unit: &mut Unit| {
        let talk = bob.begin(&description(true)).unwrap();
        let outcome = Running { own: b.clone(), talk, end: None }.run(unit).unwrap();
        bob.concluded(&outcome);
    };
    bob.concluded(&ReservationOutcome::Registered);
    check(&mut bob, &mut unit);
    assert!(bob.is_registered());
    fencing(port("a", 11), 0xa, Victim::Node("B".into()), false).run(&mut unit).unwrap();
    check(&mut bob, &mut unit);
    assert!(bob.lost().unwrap().message.contains("fenced off"));
    assert!(
        bob.begin(&description(true)).is_none() && bob.leave(&description(true)).is_none(),
        "nothing is asked any more"
    );
    // Leaving is asking, too.
    let mut alice = node(&a, 0xa, false);
    alice.concluded(&ReservationOutcome::Registered);
    fencing(port("c", 13), 0xc, Victim::Key(key(0xa)), true).run(&mut unit).unwrap();
    let talk = alice.leave(&description(true)).unwrap();
    let outcome = Running { own: a, talk, end: None }.run(&mut unit).unwrap();
    assert!(matches!(outcome, ReservationOutcome::Fenced));
}

#[test]
fn other_reservations_are_heeded() {
    let stock = port("stock", 9);
    for (kind, admits) in [(1, false), (3, false), (5, true), (6, true), (8, true)] {
        let mut unit = Unit::default();
        let register = ReserveOutList { key: 0, action_key: 0x5, persist: true, all_target_ports: false };
        let nexus = NexusId { initiator_name: "stock".into(), isid: stock.isid, target_portal_group: 1 };
        unit.state.change(&nexus, op::SA_PR_REGISTER, 0, &register.encode()).unwrap();
        let reserve = ReserveOutList { key: 0x5, ..ReserveOutList::default() };
        unit.state.change(&nexus, op::SA_PR_RESERVE, kind, &reserve.encode()).unwrap();
        let joined = join(&mut unit, &port("a", 1), 0xa, false);
        match admits {
            true => assert!(matches!(joined, Ok(ReservationOutcome::Registered)), "{kind}"),
            false => assert_eq!(joined.unwrap_err(), ReservationError::OtherKind { kind }),
        }
        assert_eq!(is_registered(&unit, &port("a", 1)), admits, "{kind}: a node that may not write leaves nothing");
        // It can be fenced all the same; then the reservation is one of all nodes.
        let fenced = fencing(port("b", 2), 0xb, Victim::Key(key(0x5)), true).run(&mut unit);
        assert!(fenced.is_ok(), "{kind}: {fenced:?}");
        assert!(!is_registered(&unit, &stock));
        assert!(unit.state.held().is_some(), "{kind}");
    }
}

#[test]
fn a_full_table_and_nonsense_are_told_apart() {
    let mut unit = Unit::default();
    for at in 0..strongroom_scsi::persistent::REGISTRATIONS_MAX {
        let mut isid = [0x80, 0, 0, 0, 0, 0];
        isid[4..].copy_from_slice(&(at as u16).to_be_bytes());
        let nexus = NexusId { initiator_name: "many".into(), isid, target_portal_group: 1 };
        let list = ReserveOutList { key: 0, action_key: 0x100 + at as u64, persist: true, all_target_ports: false };
        unit.state.change(&nexus, op::SA_PR_REGISTER, 0, &list.encode()).unwrap();
    }
    assert_eq!(join(&mut unit, &port("a", 1), 0xa, false).unwrap_err(), ReservationError::Full);
    let mut talk = node(&port("a", 1), 0xa, false).begin(&description(true)).unwrap();
    talk.command();
    talk.data(&[9; 40]);
    let (task, residual) = (TaskId(1), Residual::None);
    let good = Completed { task, status: 0, response: 0, sense: Vec::new(), residual, moved_bytes: 0, written: None };
    assert!(matches!(
        talk.completed(&good),
        ReservationStep::Failed(AttachError::Reservation(error)) if *error == ReservationError::Unreadable
    ));
}
