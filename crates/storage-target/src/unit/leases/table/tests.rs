//! Proves, with a clock of the test's own, who gets a lease beside whom, when one ends, who gets it back, and that no one else does.

use std::iter;

use strongroom_block::Lba;
use strongroom_handshake::NodeKey;
use strongroom_scsi::cdb;

use super::*;

fn holder(name: &str) -> Holder {
    Holder { initiator_name: name.into(), identity: Identity::Plain }
}

fn claim(id: u8, mode: LeaseMode) -> Claim {
    Claim {
        id: LeaseId([id; 16]),
        mode,
        take_over: false,
        sole: false,
        resume: false,
        seconds: 60,
        description: format!("holder {id}"),
    }
}

fn resume(id: u8, mode: LeaseMode) -> Claim {
    Claim { resume: true, ..claim(id, mode) }
}

fn take_over(id: u8, mode: LeaseMode) -> Claim {
    Claim { take_over: true, ..claim(id, mode) }
}

/// Leases, with the sessions that claim them.
#[derive(Default)]
struct Table {
    leases: LeaseTable,
    now: Option<Instant>,
}

impl Table {
    fn new() -> Table {
        let mut table = Table { now: Some(Instant::now()), ..Table::default() };
        table.pass(0);
        table
    }

    fn pass(&mut self, seconds: u64) {
        self.now = self.now.map(|now| now + Duration::from_secs(seconds));
        self.leases.tick(self.now.unwrap());
    }

    fn judge(&self, claim: &Claim) -> Verdict {
        self.leases.judge(claim, &holder("iqn.a"), iter::empty())
    }

    /// Whether it is granted, or held.
    fn claims(&mut self, claim: &Claim) -> bool {
        match self.judge(claim) {
            Verdict::Granted { after, ended } => {
                let by = after.last().unwrap().clone();
                self.leases.put_in_force(after, &ended, Some(&by));
            }
            Verdict::Held => {}
            Verdict::Conflict | Verdict::Full => return false,
        }
        self.leases.joined(claim.id);
        true
    }

    fn leaves(&mut self, id: u8) {
        self.leases.left(LeaseId([id; 16]));
    }

    fn write_of(&self, lease: Option<u8>) -> Permission {
        let session = SessionStanding { lease: lease.map(|id| LeaseId([id; 16])), ..SessionStanding::default() };
        self.leases.permits(&session, &Command::decode(&cdb::write_16(Lba(0), 1, false)).unwrap())
    }
}

use LeaseMode::{Exclusive, Maintenance, Shared};

#[test]
fn who_stands_beside_whom() {
    for (first, second, beside) in [
        (Exclusive, Exclusive, false),
        (Exclusive, Shared, false),
        (Exclusive, Maintenance, true),
        (Shared, Exclusive, false),
        (Shared, Shared, true),
        (Shared, Maintenance, true),
        (Maintenance, Exclusive, true),
        (Maintenance, Shared, true),
        (Maintenance, Maintenance, true),
    ] {
        let mut table = Table::new();
        assert!(table.claims(&claim(1, first)));
        assert_eq!(table.claims(&claim(2, second)), beside, "{second:?} beside {first:?}");
        assert!(!table.claims(&Claim { sole: true, ..claim(3, second) }), "{first:?} is not alone");
        assert!(table.claims(&claim(1, first)), "a claim that is sent again is the same claim");
        assert!(table.claims(&take_over(2, second)));
        assert_eq!(table.claims(&resume(1, first)), beside, "{first:?} after {second:?} took over");
    }
}

#[test]
fn who_may_write_beside_a_lease() {
    let mut table = Table::new();
    assert_eq!(table.write_of(None), Permission::Allowed);
    assert!(table.claims(&claim(1, Shared)) && table.claims(&claim(3, Maintenance)));
    assert_eq!((table.write_of(None), table.write_of(Some(1))), (Permission::Allowed, Permission::Allowed));
    assert!(table.claims(&take_over(2, Exclusive)));
    assert_eq!((table.write_of(None), table.write_of(Some(2))), (Permission::Conflict, Permission::Allowed));
    assert_eq!((table.write_of(Some(1)), table.write_of(Some(3))), (Permission::Conflict, Permission::Conflict));
    // What changes nothing that the holder has written.
    let maintaining = SessionStanding { lease: Some(LeaseId([3; 16])), ..SessionStanding::default() };
    let conditional = Command::Vendor(VendorCommand::ConditionalWrite { lba: Lba(0), count: 1 });
    assert_eq!(table.leases.permits(&maintaining, &conditional), Permission::Allowed);
    for standing in [
        SessionStanding { fenced: Some(Ended::lapsed()), ..SessionStanding::default() },
        SessionStanding { is_reader: true, ..SessionStanding::default() },
    ] {
        let none = LeaseTable::default();
        assert_eq!(none.permits(&standing, &conditional), Permission::Conflict, "{standing:?}");
    }
}

#[test]
fn a_lease_outlives_its_sessions_by_its_time() {
    let mut table = Table::new();
    assert!(table.claims(&claim(1, Exclusive)));
    table.pass(1000);
    assert!(!table.claims(&claim(2, Exclusive)), "it has no end while a session has it");
    table.leaves(1);
    table.pass(59);
    assert!(!table.claims(&claim(2, Exclusive)));
    assert_eq!(table.write_of(None), Permission::Conflict);
    let writer = table.leases.writers(None).next().unwrap();
    assert_eq!(writer.standing, Standing::Gone { since_s: 59, left_s: 1 });
    table.pass(1);
    assert_eq!(table.write_of(None), Permission::AfterLapsed);
    assert!(table.claims(&claim(2, Exclusive)));
    assert!(!table.claims(&resume(1, Exclusive)), "somebody else has been granted one since");
    assert_eq!(table.leases.why_ended(LeaseId([1; 16])), Ended::lapsed());
}

#[test]
fn a_lease_that_has_lapsed_is_resumed_if_nobody_wrote_meanwhile() {
    let mut table = Table::new();
    assert!(table.claims(&claim(1, Exclusive)));
    table.leaves(1);
    table.pass(100);
    assert!(table.claims(&claim(2, Maintenance)), "which takes nothing from it");
    assert!(table.claims(&resume(1, Exclusive)));
    assert!(!table.claims(&claim(3, Exclusive)), "it counts again");
    table.leaves(1);
    table.pass(100);
    // A session without a lease writes.
    let (after, ended) = table.leases.without_lapsed();
    assert_eq!((after.len(), ended.len()), (1, 1));
    table.leases.put_in_force(after, &ended, None);
    assert_eq!(table.write_of(None), Permission::Allowed);
    assert!(!table.claims(&resume(1, Exclusive)));
}

#[test]
fn a_restart_gives_holders_their_whole_time() {
    let mut table = Table::new();
    assert!(table.claims(&claim(1, Exclusive)));
    let kept = table.judge(&claim(1, Exclusive));
    let Verdict::Granted { after, .. } = kept else { panic!("{kept:?}") };
    let mut table = Table { leases: LeaseTable::restore(after), now: Some(Instant::now()) };
    assert!(!table.claims(&claim(2, Exclusive)), "before it was told the time");
    table.pass(0);
    table.pass(59);
    assert!(!table.claims(&claim(2, Exclusive)));
    assert!(table.claims(&resume(1, Exclusive)));
    // Closing a volume that nobody uses does not begin it again.
    table.leaves(1);
    table.pass(40);
    let rest = table.leases.clone();
    let mut opened = Table { leases: LeaseTable::restore(table.leases.leases.clone()), now: table.now };
    opened.leases.resume(rest);
    opened.pass(19);
    assert!(!opened.claims(&claim(2, Exclusive)));
    opened.pass(1);
    assert!(opened.claims(&claim(2, Exclusive)));
}

/// An id is seen by the administrator of the target, and by nobody else; even so it is of no use to another peer.
#[test]
fn attack_a_lease_is_no_others_by_its_id() {
    let mut table = Table::new();
    assert!(table.claims(&claim(1, Exclusive)));
    let key = NodeKey::from_seed(&[1; 32]).public();
    for thief in [
        Holder { initiator_name: "iqn.b".into(), identity: Identity::Plain },
        Holder { initiator_name: "iqn.a".into(), identity: Identity::Channel(key) },
        Holder { initiator_name: "iqn.a".into(), identity: Identity::Chap("a".into()) },
    ] {
        for claim in [claim(1, Exclusive), resume(1, Exclusive), take_over(1, Exclusive), claim(1, Maintenance)] {
            assert_eq!(table.leases.judge(&claim, &thief, iter::empty()), Verdict::Conflict, "{thief:?}");
        }
    }
    assert_eq!(table.judge(&resume(1, Shared)), Verdict::Conflict, "resuming changes nothing");
}

#[test]
fn attack_a_full_table_refuses_and_lapsed_leases_make_room() {
    let mut table = Table::new();
    for id in 1..=LEASES_MAX as u8 {
        assert!(table.claims(&claim(id, Shared)));
    }
    assert_eq!(table.judge(&claim(200, Shared)), Verdict::Full);
    assert!(table.claims(&claim(1, Shared)), "those that are there go on");
    table.leaves(7);
    table.pass(30);
    table.leaves(9);
    table.pass(61);
    assert!(table.claims(&claim(200, Shared)));
    assert!(table.claims(&resume(9, Shared)) && !table.claims(&resume(7, Shared)), "the one that was gone longest");
    assert_eq!(table.judge(&claim(201, Maintenance)), Verdict::Full);
}

#[test]
fn an_initiator_that_knows_no_leases_is_not_excluded_unasked() {
    let judge = |claim: &Claim, other: OtherSession<'_>| {
        LeaseTable::default().judge(claim, &holder("iqn.a"), iter::once(other)) != Verdict::Conflict
    };
    let stock = SessionStanding::default();
    let plain = |standing| OtherSession { standing, read_only: false, is_plain: true };
    assert!(!judge(&claim(1, Exclusive), plain(&stock)));
    assert!(judge(&claim(1, Shared), plain(&stock)));
    assert!(judge(&take_over(1, Exclusive), plain(&stock)));
    assert!(judge(&claim(1, Exclusive), OtherSession { read_only: true, ..plain(&stock) }));
    assert!(!judge(&Claim { sole: true, ..claim(1, Exclusive) }, OtherSession { read_only: true, ..plain(&stock) }));
    // Ours ask before they write; until then they stand against nobody.
    let ours = SessionStanding { knows_leases: true, ..SessionStanding::default() };
    assert!(judge(&claim(1, Exclusive), plain(&ours)));
    assert!(judge(&claim(1, Exclusive), OtherSession { is_plain: false, ..plain(&stock) }));
    let wrote = SessionStanding { has_written: true, ..ours.clone() };
    assert!(!judge(&claim(1, Exclusive), OtherSession { is_plain: false, ..plain(&wrote) }));
}
