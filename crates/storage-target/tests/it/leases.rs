//! Proves over real sessions what a writer lease keeps others from, that it outlives connections, closings and restarts of the target, that a
//! take-over is complete when it is answered, and that what cannot be kept is not granted.

use std::time::Duration;

use strongroom_block::{Buffer, Lba};
use strongroom_handshake::NodeKey;
use strongroom_iscsi::initiator::{Command, WriteSource};
use strongroom_scsi::copy::{self, Segment};
use strongroom_scsi::vendor::lease::{
    Claim, LeaseId, LeaseMode, REPORT_BYTES_MAX, Standing, Writer, WriterRole, parse_writers,
};
use strongroom_scsi::{Sense, VendorCommand, cdb};
use strongroom_target::VolumeSpec;
use strongroom_target::config::PeerRule;
use strongroom_target::operate::Operation;

use crate::support::keeper::operate;
use crate::support::{ALICE, BLOCK, BOB, CONFLICT, Host, Initiator, LUN, MIB, alice_key, eventually, normal, pattern};

fn claim(id: u8) -> Claim {
    Claim {
        id: LeaseId([id; 16]),
        mode: LeaseMode::Exclusive,
        take_over: false,
        sole: false,
        resume: false,
        seconds: 60,
        description: format!("host h{id}, \u{1b}[2J"),
    }
}

fn shared(id: u8) -> Claim {
    Claim { mode: LeaseMode::Shared, ..claim(id) }
}

fn resume(id: u8) -> Claim {
    Claim { resume: true, ..claim(id) }
}

fn take_over(id: u8) -> Claim {
    Claim { take_over: true, ..claim(id) }
}

fn command(claim: &Claim) -> Command {
    let list = Buffer::copy_from(&claim.encode());
    let cdb = VendorCommand::ClaimLease { parameter_list_len: list.len() as u32 }.encode();
    Command::write(LUN, cdb, WriteSource::plain(list))
}

fn try_claim(session: &mut Initiator, claim: &Claim) -> u8 {
    session.run(command(claim)).status
}

fn release(session: &mut Initiator) {
    session.run(Command::without_data(LUN, VendorCommand::ReleaseLease.encode())).good();
}

fn report(session: &mut Initiator) -> Vec<Writer> {
    let cdb = VendorCommand::ReportWriters { allocation_len: REPORT_BYTES_MAX }.encode();
    parse_writers(&session.run(Command::read(LUN, cdb, REPORT_BYTES_MAX)).good()).unwrap()
}

fn write(session: &mut Initiator) -> u8 {
    session.try_write(0, &pattern(3, 1)).status
}

fn plain(host: &Host, name: &str) -> Initiator {
    Initiator::log_in(host, None, normal(name, "disk")).unwrap()
}

fn disk() -> Host {
    Host::start(&[VolumeSpec::plain("disk", 16 * MIB)])
}

#[test]
fn one_writer_keeps_the_others_out_and_lets_them_read() {
    let host = disk();
    let (mut alice, mut bob) = (plain(&host, ALICE), plain(&host, BOB));
    assert_eq!(try_claim(&mut alice, &claim(1)), CONFLICT, "bob may think that he can write");
    let writers = report(&mut alice);
    assert_eq!((writers.len(), writers[0].role, &*writers[0].initiator_name), (1, WriterRole::Unleased, BOB));
    // He says that he knows leases, by asking for none.
    assert_eq!(try_claim(&mut bob, &Claim { mode: LeaseMode::Reader, ..claim(2) }), 0);
    assert_eq!(try_claim(&mut alice, &Claim { sole: true, ..claim(1) }), CONFLICT, "he is there");
    assert_eq!(try_claim(&mut alice, &claim(1)), 0);
    assert_eq!((write(&mut alice), write(&mut bob)), (0, CONFLICT));
    assert_eq!(bob.read(0, 1), pattern(3, 1));
    bob.synchronize();
    for mode in [LeaseMode::Exclusive, LeaseMode::Shared] {
        assert_eq!(try_claim(&mut bob, &Claim { mode, ..claim(2) }), CONFLICT);
    }
    let list = strongroom_scsi::provisioning::unmap_parameters(&[(Lba(0), 1)]);
    let unmap = Command::write(LUN, cdb::unmap(list.len() as u16), WriteSource::plain(Buffer::copy_from(&list)));
    assert_eq!(bob.run(unmap).status, CONFLICT);
    let same = Command::write(
        LUN,
        cdb::write_same_16(Lba(0), 8, false, false),
        WriteSource::plain(Buffer::copy_from(&[0; BLOCK])),
    );
    assert_eq!(bob.run(same).status, CONFLICT);
    let mut sanitize = [0; 16];
    sanitize[..2].copy_from_slice(&[0x48, 0x02]);
    assert_eq!(bob.run(Command::without_data(LUN, sanitize)).status, CONFLICT);
    let writers = report(&mut bob);
    assert_eq!(writers.len(), 1, "{writers:?}");
    let expected = Writer {
        role: WriterRole::Holder(LeaseMode::Exclusive),
        is_asker: false,
        standing: Standing::Connected,
        initiator_name: ALICE.into(),
        description: "host h1, \u{1b}[2J".into(),
    };
    assert_eq!(writers[0], expected);
    release(&mut alice);
    assert_eq!(write(&mut bob), CONFLICT, "he reads, as he said");
    assert_eq!(try_claim(&mut bob, &claim(2)), 0);
    assert_eq!((write(&mut bob), write(&mut alice)), (0, CONFLICT));
    assert_eq!(host.handle().stats().volumes_open, 1);
}

#[test]
fn several_share_where_all_of_them_say_so() {
    let host = disk();
    let (mut alice, mut bob) = (plain(&host, ALICE), plain(&host, BOB));
    assert_eq!((try_claim(&mut alice, &shared(1)), try_claim(&mut bob, &shared(2))), (0, 0));
    assert_eq!((write(&mut alice), write(&mut bob)), (0, 0));
    let mut carol = plain(&host, "iqn.2026-11.org.example:carol");
    assert_eq!(try_claim(&mut carol, &claim(3)), CONFLICT);
    assert_eq!(write(&mut carol), 0, "as ever, where nobody has it alone");
    release(&mut bob);
    assert_eq!(try_claim(&mut alice, &claim(1)), CONFLICT, "carol writes without a lease");
    carol.log_out();
    bob.log_out();
    assert_eq!(try_claim(&mut alice, &claim(1)), 0, "a lease can become another");
}

#[test]
fn it_outlives_the_session_and_ends_with_its_time() {
    let host = disk();
    let mut alice = plain(&host, ALICE);
    assert_eq!(try_claim(&mut alice, &Claim { seconds: 2, ..claim(1) }), 0);
    alice.log_out();
    let mut bob = plain(&host, BOB);
    assert_eq!((try_claim(&mut bob, &claim(2)), write(&mut bob)), (CONFLICT, CONFLICT));
    assert!(matches!(report(&mut bob)[0].standing, Standing::Gone { left_s: 1..=2, .. }));
    let mut alice = plain(&host, ALICE);
    assert_eq!(write(&mut alice), CONFLICT, "a session has it once it says so");
    assert_eq!((try_claim(&mut alice, &resume(1)), write(&mut alice)), (0, 0));
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(try_claim(&mut bob, &claim(2)), CONFLICT, "it is there again");
    alice.log_out();
    eventually("it lapses", || try_claim(&mut bob, &claim(2)) == 0);
    let mut alice = plain(&host, ALICE);
    assert_eq!((try_claim(&mut alice, &resume(1)), write(&mut alice)), (CONFLICT, CONFLICT));
    assert_eq!(report(&mut alice)[0].role, WriterRole::Ended);
    release(&mut bob);
    assert_eq!(write(&mut alice), CONFLICT, "it must not write before it has claimed one as if it were new");
    assert_eq!((try_claim(&mut alice, &claim(9)), write(&mut alice)), (0, 0));
}

/// Nobody else wrote while it was away, so nothing that it knows is wrong; after that it is.
#[test]
fn one_that_lapsed_is_resumed_until_somebody_else_writes() {
    let mut host = disk();
    let mut alice = plain(&host, ALICE);
    assert_eq!(try_claim(&mut alice, &Claim { seconds: 1, ..claim(1) }), 0);
    alice.log_out();
    std::thread::sleep(Duration::from_millis(1500));
    let mut alice = plain(&host, ALICE);
    assert_eq!((try_claim(&mut alice, &resume(1)), write(&mut alice)), (0, 0));
    alice.log_out();
    let mut stock = plain(&host, BOB);
    assert_eq!(write(&mut stock), CONFLICT);
    const BUSY: u8 = 8;
    let mut statuses = Vec::new();
    eventually("it lapses", || {
        statuses.push(write(&mut stock));
        statuses.last() == Some(&0)
    });
    assert!(statuses[..statuses.len() - 1].iter().all(|status| [CONFLICT, BUSY].contains(status)), "{statuses:?}");
    assert!(!host.dir.path().join("disk/leases.toml").exists(), "before that write took effect");
    drop(stock);
    host.restart_without_peers();
    let mut alice = plain(&host, ALICE);
    assert_eq!((try_claim(&mut alice, &resume(1)), write(&mut alice)), (CONFLICT, CONFLICT));
}

#[test]
fn it_survives_a_restart_of_the_target_and_a_close_of_the_volume() {
    let mut host = Host::start_with(&[VolumeSpec::plain("disk", 16 * MIB)], |config| config.limits.idle_close_s = 0);
    let mut alice = plain(&host, ALICE);
    assert_eq!((try_claim(&mut alice, &claim(1)), write(&mut alice)), (0, 0));
    alice.log_out();
    eventually("the volume is closed", || host.handle().stats().volumes_open == 0);
    let mut bob = plain(&host, BOB);
    assert_eq!((try_claim(&mut bob, &claim(2)), write(&mut bob)), (CONFLICT, CONFLICT));
    drop(bob);
    host.restart_without_peers();
    let mut bob = plain(&host, BOB);
    assert_eq!((try_claim(&mut bob, &claim(2)), write(&mut bob)), (CONFLICT, CONFLICT));
    let mut alice = plain(&host, ALICE);
    assert_eq!((try_claim(&mut alice, &resume(1)), write(&mut alice)), (0, 0));
    // A take-over survives it too: the old one does not come back with the target.
    assert_eq!(try_claim(&mut bob, &take_over(2)), 0);
    drop((alice, bob));
    host.restart_without_peers();
    let mut alice = plain(&host, ALICE);
    assert_eq!((try_claim(&mut alice, &resume(1)), write(&mut alice)), (CONFLICT, CONFLICT));
    let mut bob = plain(&host, BOB);
    assert_eq!((try_claim(&mut bob, &resume(2)), write(&mut bob)), (0, 0));
    release(&mut bob);
    assert!(!host.dir.path().join("disk/leases.toml").exists());
}

#[test]
fn who_is_taken_over_from_is_told_and_out() {
    let host = disk();
    let (mut alice, mut bob) = (plain(&host, ALICE), plain(&host, BOB));
    assert_eq!(try_claim(&mut bob, &Claim { mode: LeaseMode::Reader, ..claim(2) }), 0);
    assert_eq!((try_claim(&mut alice, &claim(1)), write(&mut alice)), (0, 0));
    assert_eq!(try_claim(&mut bob, &take_over(2)), 0);
    let told = alice.run(Command::without_data(LUN, cdb::test_unit_ready())).sense();
    assert_eq!((told.asc, told.ascq), (0x2a, 0x03), "RESERVATIONS PREEMPTED");
    assert_eq!((write(&mut alice), write(&mut bob)), (CONFLICT, 0));
    let writers = report(&mut alice);
    assert_eq!((writers[0].role, &*writers[0].initiator_name), (WriterRole::TookOver, BOB));
    assert_eq!(writers[0].description, "host h2, \u{1b}[2J");
    release(&mut bob);
    assert_eq!(write(&mut alice), CONFLICT, "nobody has it now, and what alice knows is old all the same");
    alice.log_out();
    let mut alice = plain(&host, ALICE);
    assert_eq!((try_claim(&mut alice, &resume(1)), write(&mut alice)), (CONFLICT, CONFLICT));
    assert_eq!(report(&mut alice)[0].role, WriterRole::TookOver);
}

/// Writes that are under way when the volume is taken over are over when that is answered: none takes effect afterwards.
#[test]
fn attack_no_write_of_the_old_holder_takes_effect_after_a_take_over() {
    let host = disk();
    for round in 0..10u8 {
        let (mut alice, mut bob) = (plain(&host, ALICE), plain(&host, BOB));
        assert_eq!(try_claim(&mut bob, &Claim { mode: LeaseMode::Reader, ..claim(2) }), 0);
        assert_eq!(try_claim(&mut alice, &take_over(1)), 0);
        let data = pattern(2 * round, 64);
        let mut tasks = Vec::new();
        for at in 0..32 {
            let source = WriteSource::plain(Buffer::copy_from(&data));
            tasks.push(alice.submit(Command::write(LUN, cdb::write_16(Lba(at * 64), 64, true), source)));
        }
        alice.flush();
        assert_eq!(try_claim(&mut bob, &take_over(2)), 0);
        let mine = pattern(2 * round + 1, 64);
        for at in 0..32 {
            bob.write(at * 64, &mine);
        }
        for task in tasks {
            // Done before, or never.
            let status = alice.wait(task).status;
            assert!([0, 2, 0x40, CONFLICT].contains(&status), "{status}");
        }
        for at in 0..32 {
            assert!(bob.read(at * 64, 64) == mine, "round {round}, {at}");
        }
        release(&mut bob);
    }
}

#[test]
fn attack_another_peer_has_nothing_of_a_lease_whose_id_it_knows() {
    let other = NodeKey::from_seed(&[0xb0; 32]);
    let rule = |name: &str, key: &NodeKey, initiators: &[&str]| PeerRule {
        name: name.into(),
        key: key.public().to_string(),
        initiators: initiators.iter().map(|name| (*name).into()).collect(),
        volumes: vec!["*".into()],
        ..PeerRule::default()
    };
    let bobs = other.clone();
    let host = Host::start_with(&[VolumeSpec::sealed("vault", 16 * MIB)], move |config| {
        config.peers = vec![rule("alice", &alice_key(), &["*"]), rule("bob", &bobs, &["*"])];
    });
    let mut alice = host.channel("vault");
    assert_eq!(try_claim(&mut alice, &claim(1)), 0);
    // By her name with his key, and as another of her own names: an ISID of its own keeps her session as it is.
    let mut config = normal(ALICE, "vault");
    config.isid[5] = 9;
    let mut thief = Initiator::log_in(&host, Some(other), config).unwrap();
    let mut renamed = Initiator::log_in(&host, Some(alice_key()), normal(BOB, "vault")).unwrap();
    for session in [&mut thief, &mut renamed] {
        for claim in [claim(1), resume(1), take_over(1)] {
            assert_eq!(try_claim(session, &claim), CONFLICT);
        }
        release(session);
    }
    assert_eq!(try_claim(&mut alice, &resume(1)), 0);
    // A second session of hers has it too, and the lease lives as long as one of them.
    let mut config = normal(ALICE, "vault");
    config.isid[5] = 10;
    let mut second = Initiator::log_in(&host, Some(alice_key()), config).unwrap();
    assert_eq!(try_claim(&mut second, &resume(1)), 0);
    alice.log_out();
    assert_eq!(report(&mut second)[0].standing, Standing::Connected);
}

#[test]
fn what_cannot_be_written_is_not_granted() {
    let host = disk();
    let mut alice = plain(&host, ALICE);
    let in_the_way = host.dir.path().join("disk/.leases.toml");
    std::fs::create_dir(&in_the_way).unwrap();
    assert!(alice.run(command(&claim(1))).sense().is(&Sense::INTERNAL_FAILURE));
    assert!(report(&mut alice).is_empty());
    std::fs::remove_dir(&in_the_way).unwrap();
    assert_eq!(try_claim(&mut alice, &claim(1)), 0);
    assert!(host.dir.path().join("disk/leases.toml").exists());
}

#[test]
fn a_damaged_file_keeps_the_volume_closed() {
    let host = disk();
    let file = host.dir.path().join("disk/leases.toml");
    std::fs::write(&file, "version = 7\n").unwrap();
    assert!(Initiator::log_in(&host, None, normal(ALICE, "disk")).is_err());
    std::fs::remove_file(&file).unwrap();
    plain(&host, ALICE).log_out();
}

#[test]
fn claims_take_their_turns_and_malformed_ones_do_nothing() {
    let host = disk();
    let mut alice = plain(&host, ALICE);
    let wrong = |list: &[u8]| {
        let cdb = VendorCommand::ClaimLease { parameter_list_len: list.len() as u32 }.encode();
        Command::write(LUN, cdb, WriteSource::plain(Buffer::copy_from(list)))
    };
    assert!(alice.run(wrong(&[1; 27])).sense().is(&Sense::PARAMETER_LIST_LENGTH));
    assert!(alice.run(wrong(&[0; 28])).sense().is(&Sense::INVALID_FIELD_IN_PARAMETERS));
    assert!(alice.run(wrong(&[0; 4096])).sense().is(&Sense::PARAMETER_LIST_LENGTH));
    // All at once: the first is being written when the others come.
    let release = || Command::without_data(LUN, VendorCommand::ReleaseLease.encode());
    let commands = [command(&claim(1)), release(), command(&shared(2)), command(&claim(2)), release()];
    let tasks = commands.map(|command| alice.submit(command));
    assert_eq!(tasks.map(|task| alice.wait(task).status), [0; 5]);
    assert!(report(&mut alice).is_empty());
    assert_eq!(try_claim(&mut alice, &claim(3)), 0);
    assert!(alice.run(command(&claim(4))).sense().is(&Sense::COMMAND_SEQUENCE), "one for each session");
}

#[test]
fn who_may_only_read_gets_no_lease_and_a_snapshot_has_none() {
    let host = Host::start_with(&[VolumeSpec::plain("disk", 16 * MIB)], |config| {
        config.plain[0].initiators = vec![ALICE.into()];
        let reader = strongroom_target::config::PlainRule {
            initiators: vec!["*".into()],
            read_only: true,
            ..config.plain[0].clone()
        };
        config.plain.push(reader);
    });
    let mut bob = plain(&host, BOB);
    assert!(bob.run(command(&claim(2))).sense().is(&Sense::WRITE_PROTECTED));
    let mut alice = plain(&host, ALICE);
    assert_eq!(try_claim(&mut alice, &claim(1)), 0, "who may only read stands against nobody");
    let page = alice.run(Command::read(LUN, cdb::inquiry_vpd(0xc0, 64), 64)).good();
    assert!(strongroom_scsi::vendor::UnitPage::parse(&page).unwrap().has_leases);
}

/// A third-party copy is no way around a lease, and a copy that was begun before is over when the lease is granted.
#[test]
fn attack_extended_copy_obeys_the_lease_of_its_destination() {
    let host = Host::start(&[VolumeSpec::plain("one", 16 * MIB), VolumeSpec::plain("disk", 16 * MIB)]);
    let naa = |session: &mut Initiator| -> [u8; 8] {
        let page = session.run(Command::read(LUN, cdb::inquiry_vpd(0x83, 252), 252)).good();
        page[8..16].try_into().unwrap()
    };
    let mut bobs_one = Initiator::log_in(&host, None, normal(BOB, "one")).unwrap();
    let mut bobs = plain(&host, BOB);
    let units = [naa(&mut bobs_one), naa(&mut bobs)];
    let copy = || {
        let segment = |to| Segment { blocks: 2000, source: 0u16, from: Lba(0), destination: 1, to: Lba(to) };
        let list = copy::encode(&units, BLOCK as u32, &[segment(0), segment(2000)]);
        let mut cdb = [0; 16];
        cdb[0] = 0x83;
        cdb[10..14].copy_from_slice(&(list.len() as u32).to_be_bytes());
        Command::write(LUN, cdb, WriteSource::plain(Buffer::copy_from(&list)))
    };
    for at in 0..8 {
        bobs_one.write(at * 250, &pattern(5, 250));
    }
    let begun = bobs_one.submit(copy());
    bobs_one.flush();
    let mut alice = plain(&host, ALICE);
    assert_eq!(try_claim(&mut alice, &take_over(1)), 0);
    let found = [alice.read(0, 2000), alice.read(2000, 2000)];
    assert!([0, 2].contains(&bobs_one.wait(begun).status));
    assert!([alice.read(0, 2000), alice.read(2000, 2000)] == found, "it went on after the claim was answered");
    alice.write(0, &pattern(9, 4));
    assert!(bobs_one.run(copy()).sense().is(&Sense::COPY_TARGET_NOT_REACHABLE));
    assert_eq!(alice.read(0, 4), pattern(9, 4));
    release(&mut alice);
    assert_eq!(bobs_one.run(copy()).status, 0);
}

#[test]
fn a_clone_has_a_lease_of_its_own() {
    let host = disk();
    let mut alice = plain(&host, ALICE);
    assert_eq!((try_claim(&mut alice, &claim(1)), write(&mut alice)), (0, 0));
    operate(&host, "disk", Operation::SnapshotCreate { snapshot: "monday".into() }).unwrap();
    let clone = Operation::Clone { snapshot: "monday".into(), name: "copy".into(), access: None };
    operate(&host, "disk", clone).unwrap();
    let mut bob = Initiator::log_in(&host, None, normal(BOB, "copy")).unwrap();
    assert_eq!((try_claim(&mut bob, &claim(2)), write(&mut bob), write(&mut alice)), (0, 0, 0));
    assert!(host.dir.path().join("copy/leases.toml").exists());
}
