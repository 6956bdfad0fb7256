//! Proves persistent reservations against SPC-4's tables: who may do what under each type, what each service action changes and tells, and
//! that what was kept is what comes back.

use proptest::prelude::*;

use super::*;
use crate::cdb;

fn nexus(name: &str) -> NexusId {
    NexusId { initiator_name: name.into(), isid: [0x40, 0, 1, 2, 3, 4], target_portal_group: 1 }
}

fn list(key: u64, action_key: u64, flags: u8) -> Vec<u8> {
    [&key.to_be_bytes()[..], &action_key.to_be_bytes(), &[0, 0, 0, 0, flags, 0, 0, 0]].concat()
}

struct Bench {
    state: PersistentReservations,
    a: NexusId,
    b: NexusId,
    c: NexusId,
}

impl Bench {
    /// `a` and `b` are registered under 0xa and 0xb; `c` is not.
    fn new() -> Bench {
        let mut bench = Bench { state: PersistentReservations::default(), a: nexus("a"), b: nexus("b"), c: nexus("c") };
        let (a, b) = (bench.a.clone(), bench.b.clone());
        bench.state.change(&a, op::SA_PR_REGISTER, 0, &list(0, 0xa, 1)).unwrap();
        bench.state.change(&b, op::SA_PR_REGISTER_AND_IGNORE, 0, &list(77, 0xb, 1)).unwrap();
        bench
    }

    fn reserved(kind: u8) -> Bench {
        let mut bench = Bench::new();
        let a = bench.a.clone();
        bench.state.change(&a, op::SA_PR_RESERVE, kind, &list(0xa, 0, 0)).unwrap();
        bench
    }
}

const TYPES: [u8; 6] = [1, 3, 5, 6, 7, 8];

#[test]
fn who_may_do_what() {
    let decode = |cdb: &[u8]| Command::decode(cdb).unwrap();
    let read = decode(&cdb::read_16(strongroom_block::Lba(0), 1));
    let write = decode(&cdb::write_16(strongroom_block::Lba(0), 1, false));
    for kind in TYPES {
        let bench = Bench::reserved(kind);
        let may = |who: &NexusId, what: &Command| bench.state.allows(who, what);
        assert!(may(&bench.a, &read) && may(&bench.a, &write));
        let registered = kind >= 5;
        let reads = matches!(kind, 1 | 5 | 7);
        assert_eq!(may(&bench.b, &read), reads || registered, "type {kind}");
        assert_eq!(may(&bench.b, &write), registered, "type {kind}");
        assert_eq!(may(&bench.c, &read), reads, "type {kind}");
        assert!(!may(&bench.c, &write), "type {kind}");
        for command in [Command::TestUnitReady, Command::ReadCapacity10] {
            assert!(may(&bench.c, &command));
        }
        assert_eq!(bench.state.holds(&bench.b), kind >= 7);
    }
}

#[test]
fn registering_needs_the_right_key_once_registered() {
    let mut bench = Bench::new();
    let a = bench.a.clone();
    assert_eq!(bench.state.generation(), 2);
    assert_eq!(bench.state.change(&a, op::SA_PR_REGISTER, 0, &list(0, 1, 0)), Err(Refusal::Conflict));
    assert_eq!(bench.state.change(&nexus("d"), op::SA_PR_REGISTER, 0, &list(5, 1, 0)), Err(Refusal::Conflict));
    assert_eq!(bench.state.change(&a, op::SA_PR_REGISTER, 0, &list(0xa, 0xaa, 0)), Ok(Effects::default()));
    assert_eq!(bench.state.registrations()[0].key, 0xaa);
    let short = &list(0xaa, 0, 0)[..20];
    assert_eq!(bench.state.change(&a, op::SA_PR_REGISTER, 0, short), Err(Refusal::Sense(Sense::PARAMETER_LIST_LENGTH)));
    // The unregistered do nothing else, and learn nothing by it.
    assert_eq!(bench.state.change(&nexus("d"), op::SA_PR_CLEAR, 0, &list(0xaa, 0, 0)), Err(Refusal::Conflict));
}

#[test]
fn one_holder_and_only_it_releases() {
    for kind in TYPES {
        let mut bench = Bench::reserved(kind);
        let (a, b) = (bench.a.clone(), bench.b.clone());
        let again = bench.state.change(&b, op::SA_PR_RESERVE, kind, &list(0xb, 0, 0));
        assert_eq!(again.is_ok(), kind >= 7, "all registrants hold it already");
        assert_eq!(bench.state.change(&a, op::SA_PR_RESERVE, kind, &list(0xa, 0, 0)), Ok(Effects::default()));
        let other = if kind == 1 { 3 } else { 1 };
        assert_eq!(
            bench.state.change(&a, op::SA_PR_RELEASE, other, &list(0xa, 0, 0)),
            Err(Refusal::Sense(Sense::INVALID_RELEASE))
        );
        if kind < 7 {
            assert_eq!(bench.state.change(&b, op::SA_PR_RELEASE, kind, &list(0xb, 0, 0)), Ok(Effects::default()));
            assert!(bench.state.held().is_some(), "another's RELEASE does nothing");
        }
        let effects = bench.state.change(&a, op::SA_PR_RELEASE, kind, &list(0xa, 0, 0)).unwrap();
        let told = if kind >= 5 { vec![(b, UnitAttention::ReservationsReleased)] } else { Vec::new() };
        assert_eq!(effects.attentions, told);
        assert!(bench.state.held().is_none());
    }
    let mut bench = Bench::new();
    let a = bench.a.clone();
    for bad in [0, 2, 4, 9, 0x11] {
        assert!(matches!(bench.state.change(&a, op::SA_PR_RESERVE, bad, &list(0xa, 0, 0)), Err(Refusal::Sense(_))));
    }
}

#[test]
fn a_holder_that_unregisters_takes_the_reservation_along() {
    for kind in TYPES {
        let mut bench = Bench::reserved(kind);
        let (a, b) = (bench.a.clone(), bench.b.clone());
        let effects = bench.state.change(&a, op::SA_PR_REGISTER, 0, &list(0xa, 0, 0)).unwrap();
        assert_eq!(bench.state.held().is_some(), kind >= 7, "type {kind}");
        assert_eq!(!effects.attentions.is_empty(), matches!(kind, 5 | 6), "type {kind}");
        bench.state.change(&b, op::SA_PR_REGISTER, 0, &list(0xb, 0, 0)).unwrap();
        assert!(bench.state.held().is_none());
    }
}

#[test]
fn preempting() {
    // The holder is preempted: its registration goes, the reservation changes hands and type.
    let mut bench = Bench::reserved(1);
    let (a, b) = (bench.a.clone(), bench.b.clone());
    let effects = bench.state.change(&b, op::SA_PR_PREEMPT_AND_ABORT, 3, &list(0xb, 0xa, 0)).unwrap();
    assert_eq!(effects.attentions, [(a.clone(), UnitAttention::RegistrationsPreempted)]);
    assert_eq!(effects.abort, std::slice::from_ref(&a));
    assert_eq!(bench.state.held(), Some(&HeldReservation { by: b.clone(), kind: ReservationType::ExclusiveAccess }));
    assert_eq!(bench.state.registrations().len(), 1);
    // Somebody else: only the registration.
    let mut bench = Bench::reserved(1);
    let effects = bench.state.change(&a, op::SA_PR_PREEMPT, 3, &list(0xa, 0xb, 0)).unwrap();
    assert_eq!(effects.attentions, [(b.clone(), UnitAttention::RegistrationsPreempted)]);
    assert!(effects.abort.is_empty());
    assert_eq!(bench.state.held().unwrap().kind, ReservationType::WriteExclusive);
    // Nobody: a conflict; 0 is nobody's key.
    assert_eq!(bench.state.change(&a, op::SA_PR_PREEMPT, 3, &list(0xa, 0xdead, 0)), Err(Refusal::Conflict));
    assert!(matches!(bench.state.change(&a, op::SA_PR_PREEMPT, 3, &list(0xa, 0, 0)), Err(Refusal::Sense(_))));
    // All registrants: 0 means everybody else.
    let mut bench = Bench::reserved(7);
    bench.state.change(&b, op::SA_PR_PREEMPT, 1, &list(0xb, 0, 0)).unwrap();
    assert_eq!(bench.state.held(), Some(&HeldReservation { by: b, kind: ReservationType::WriteExclusive }));
    assert_eq!(bench.state.registrations().len(), 1);
}

#[test]
fn clearing_tells_everybody() {
    let mut bench = Bench::reserved(5);
    let (a, b) = (bench.a.clone(), bench.b.clone());
    let effects = bench.state.change(&b, op::SA_PR_CLEAR, 0, &list(0xb, 0, 0)).unwrap();
    assert_eq!(effects.attentions, [(a, UnitAttention::ReservationsPreempted)]);
    assert!(bench.state.registrations().is_empty() && bench.state.held().is_none());
    assert_eq!(bench.state.to_keep(), SavedReservations::default());
}

#[test]
fn moving_hands_over_registration_and_reservation() {
    let mut bench = Bench::reserved(1);
    let (a, c) = (bench.a.clone(), bench.c.clone());
    let id = parameters::transport_id(&c);
    let moved = |flags: u8, port: u8| {
        let head = [&0xau64.to_be_bytes()[..], &0xcu64.to_be_bytes(), &[0, flags, 0, port]].concat();
        [head.as_slice(), &(id.len() as u32).to_be_bytes(), &id].concat()
    };
    assert!(matches!(bench.state.change(&a, op::SA_PR_REGISTER_AND_MOVE, 0, &moved(0, 2)), Err(Refusal::Sense(_))));
    let torn = &moved(2, 1)[..40];
    assert!(matches!(bench.state.change(&a, op::SA_PR_REGISTER_AND_MOVE, 0, torn), Err(Refusal::Sense(_))));
    bench.state.change(&a, op::SA_PR_REGISTER_AND_MOVE, 0, &moved(2, 1)).unwrap();
    assert_eq!(bench.state.held().unwrap().by, c);
    let keys: Vec<u64> = bench.state.registrations().iter().map(|one| one.key).collect();
    assert_eq!(keys, [0xb, 0xc], "UNREG: the one that moved it is gone");
}

#[test]
fn registering_for_others() {
    let (a, c) = (nexus("a"), nexus("c"));
    let mut state = PersistentReservations::default();
    let id = parameters::transport_id(&c);
    let spec = [list(0, 9, 0x08).as_slice(), &(id.len() as u32).to_be_bytes(), &id].concat();
    state.change(&a, op::SA_PR_REGISTER, 0, &spec).unwrap();
    let who: Vec<_> = state.registrations().iter().map(|one| (one.nexus.clone(), one.key)).collect();
    assert_eq!(who, [(a, 9), (c, 9)]);
    let mut state = PersistentReservations::default();
    assert!(state.change(&nexus("a"), op::SA_PR_REGISTER, 0, &spec[..spec.len() - 4]).is_err());
    assert!(state.registrations().is_empty());
}

#[test]
fn registrations_are_bounded() {
    let mut state = PersistentReservations::default();
    for index in 0..REGISTRATIONS_MAX {
        state.change(&nexus(&format!("n{index}")), op::SA_PR_REGISTER, 0, &list(0, 1, 0)).unwrap();
    }
    let refused = state.change(&nexus("one-more"), op::SA_PR_REGISTER, 0, &list(0, 1, 0));
    assert_eq!(refused, Err(Refusal::Sense(Sense::INSUFFICIENT_REGISTRATION_RESOURCES)));
}

#[test]
fn reserve_6_lives_beside_it() {
    let bench = Bench::reserved(1);
    assert_eq!(PersistentReservations::default().compatible(&bench.a), None);
    assert_eq!(bench.state.compatible(&bench.a), Some(true));
    assert_eq!(bench.state.compatible(&bench.b), Some(false));
    assert_eq!(Bench::reserved(5).state.compatible(&bench.b), Some(true));
    assert_eq!(bench.state.compatible(&bench.c), Some(false));
}

#[test]
fn golden_reports() {
    let bench = Bench::reserved(1);
    let keys = bench.state.report(op::SA_PR_READ_KEYS);
    assert_eq!(keys, [[0, 0, 0, 2, 0, 0, 0, 16], [0, 0, 0, 0, 0, 0, 0, 0xa], [0, 0, 0, 0, 0, 0, 0, 0xb]].concat());
    let reservation = bench.state.report(op::SA_PR_READ_RESERVATION);
    assert_eq!(
        reservation[4..],
        [[0, 0, 0, 16, 0, 0, 0, 0], [0, 0, 0, 0xa, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0, 0]].concat()[..20]
    );
    assert_eq!(bench.state.report(op::SA_PR_REPORT_CAPABILITIES), [0, 8, 0x1d, 0x81, 0xea, 0x01, 0, 0]);
    let full = bench.state.report(op::SA_PR_READ_FULL_STATUS);
    let id = parameters::transport_id(&bench.a);
    assert_eq!(&id[..4], [0x45, 0, 0, 20]);
    assert_eq!(&id[4..], b"a,i,0x400001020304\0\0");
    assert_eq!(full[8..16], 0xau64.to_be_bytes());
    assert_eq!(full[20..22], [1, 1], "holder, write exclusive");
    assert_eq!(full[26..28], [0, 1], "relative target port");
    assert_eq!(full[32..32 + id.len()], id);
    // An all-registrants reservation is nobody's alone.
    assert_eq!(Bench::reserved(7).state.report(op::SA_PR_READ_RESERVATION)[8..16], [0; 8]);
    assert_eq!(PersistentReservations::default().report(op::SA_PR_READ_RESERVATION), [0; 8]);
}

#[test]
fn what_was_kept_comes_back() {
    let bench = Bench::reserved(5);
    let kept = bench.state.to_keep();
    let back = PersistentReservations::restore(kept.clone());
    assert_eq!(back.to_keep(), kept);
    assert_eq!((back.generation(), back.held()), (0, bench.state.held()));
    let mut bench = bench;
    let b = bench.b.clone();
    bench.state.change(&b, op::SA_PR_REGISTER, 0, &list(0xb, 0xbb, 0)).unwrap();
    assert_eq!(bench.state.to_keep(), SavedReservations::default(), "the last registration says APTPL=0");
    // A reservation without its registration cannot be.
    let torn = SavedReservations { registrations: Vec::new(), ..kept };
    assert_eq!(PersistentReservations::restore(torn).held(), None);
}

proptest! {
    /// After every request: the holder is registered, and no key is 0.
    #[test]
    fn invariants_hold(steps in prop::collection::vec((0usize..4, 0u8..8, 0u8..10, 0u64..4, 0u64..4, 0u8..2), 1..60)) {
        let mut state = PersistentReservations::default();
        let everybody = ["a", "b", "c", "d"].map(nexus);
        for (who, action, kind, key, action_key, flags) in steps {
            let list = if action == op::SA_PR_REGISTER_AND_MOVE {
                let id = parameters::transport_id(&everybody[(who + 1) % 4]);
                let head = [&key.to_be_bytes()[..], &action_key.to_be_bytes(), &[0, flags << 1, 0, 1]].concat();
                [head.as_slice(), &(id.len() as u32).to_be_bytes(), &id].concat()
            } else {
                list(key, action_key, flags)
            };
            let before = state.clone();
            match state.change(&everybody[who], action, kind, &list) {
                Ok(_) => {}
                Err(_) => prop_assert_eq!(before.registrations(), state.registrations(), "refused, so nothing changed"),
            }
            prop_assert!(state.registrations().iter().all(|one| one.key != 0));
            if let Some(held) = state.held() {
                prop_assert!(state.holds(&held.by) || held.kind.is_all_registrants() && !state.registrations().is_empty());
            }
        }
    }
}

#[test]
fn all_target_ports_means_each_of_them() {
    let through = |port| NexusId { target_portal_group: port, ..nexus("a") };
    let mut state = PersistentReservations::default().with_ports([1, 5].into());
    state.change(&through(5), op::SA_PR_REGISTER, 0, &list(0, 0xa, 4)).unwrap();
    assert_eq!([5, 1].map(|port| state.key_of(&through(port))), [Some(0xa); 2]);
    // One port holds the reservation; the other is registered and no more.
    state.change(&through(1), op::SA_PR_RESERVE, 1, &list(0xa, 0, 0)).unwrap();
    assert!(state.holds(&through(1)) && !state.holds(&through(5)));
    let status = state.report(op::SA_PR_READ_FULL_STATUS);
    assert_eq!((status[8 + 12], status[8 + 18..8 + 20].to_vec()), (0, vec![0, 5]), "told port by port");
    // A move goes to a port that there is.
    let id = parameters::transport_id(&nexus("b"));
    let to = |port: u8| {
        let head = [&0xau64.to_be_bytes()[..], &0xbu64.to_be_bytes(), &[0, 0, 0, port, 0, 0, 0, id.len() as u8]];
        [head.concat(), id.clone()].concat()
    };
    assert!(state.change(&through(1), op::SA_PR_REGISTER_AND_MOVE, 1, &to(2)).is_err());
    state.change(&through(1), op::SA_PR_REGISTER_AND_MOVE, 1, &to(5)).unwrap();
    assert!(state.holds(&NexusId { target_portal_group: 5, ..nexus("b") }));
    // Under a new key everywhere, and gone everywhere.
    state.change(&through(1), op::SA_PR_REGISTER, 0, &list(0xa, 0xc, 4)).unwrap();
    assert_eq!(state.key_of(&through(5)), Some(0xc));
    state.change(&through(5), op::SA_PR_REGISTER, 0, &list(0xc, 0, 4)).unwrap();
    assert_eq!(state.registrations().len(), 1, "b's alone");
}

#[test]
fn what_an_initiator_makes_and_reads_is_what_a_target_reads_and_makes() {
    use parameters::{ReserveOutList, parse_full_status};
    let made = ReserveOutList { key: 0xa, action_key: 0xb, persist: true, all_target_ports: true };
    assert_eq!(made.encode().to_vec(), list(0xa, 0xb, 5));
    let mut state = PersistentReservations::default();
    for (name, key) in [("a", 0xa), ("b", 0xb)] {
        state.change(&nexus(name), op::SA_PR_REGISTER, 0, &list(0, key, 1)).unwrap();
    }
    state.change(&nexus("b"), op::SA_PR_RESERVE, 5, &list(0xb, 0, 0)).unwrap();
    let status = state.report(op::SA_PR_READ_FULL_STATUS);
    let read = parse_full_status(&status).unwrap();
    let seen: Vec<_> = read.iter().map(|one| (one.key, one.holds, one.initiator_name.clone(), one.isid)).collect();
    assert_eq!(
        seen,
        ["a", "b"].map(|name| {
            let nexus = nexus(name);
            let (key, holds) = if name == "a" { (0xa, None) } else { (0xb, Some(5)) };
            (key, holds, nexus.initiator_name.to_string(), Some(nexus.isid))
        })
    );
    // Cut short anywhere, it is not taken for a list without the rest.
    for len in 0..status.len() {
        assert_eq!(parse_full_status(&status[..len]), None, "{len}");
    }
    // Somebody is named by something else than a port of iSCSI.
    let mut other = status.clone();
    other[8 + 24] = 0x05;
    let read = parse_full_status(&other).unwrap();
    assert!(read[0].isid.is_none() && read[0].initiator_name.starts_with(&*nexus("a").initiator_name));
}
