//! Proves what comes of several callers whose requests are decided as one transaction.

use strongroom_block::VolumeId;
use strongroom_seal::{KeyPurpose, VolumeKeyFile};
use tempfile::TempDir;

use super::*;
use crate::LocalMasterKey;
use crate::config::Roles;
use crate::protocol::{NewVolume, Request};

struct Group {
    _dir: TempDir,
    full: Arc<AtomicBool>,
    engine: Arc<Engine>,
}

fn domain(byte: u8) -> SealingDomain {
    SealingDomain([byte; 16])
}

fn create(byte: u8, name: &str) -> Request {
    Request::Create(NewVolume { id: VolumeId([byte; 16]), name: name.into(), domain: domain(byte) })
}

impl Group {
    /// With the volume `vault`, domain 5.
    fn new() -> Group {
        let dir = tempfile::tempdir().unwrap();
        let master = LocalMasterKey::new(&VolumeKeyFile::new(KeyPurpose::Master, &[1; 32])).unwrap();
        drop(Database::open_or_create(&dir.path().join("keys"), &master).unwrap());
        let full = Arc::new(AtomicBool::new(false));
        let database = Database::open_through(&dir.path().join("keys"), &master, Some(Arc::clone(&full))).unwrap();
        let engine = Engine::start(Arc::new(database), Arc::new(Metrics::default())).unwrap();
        let group = Group { _dir: dir, full, engine };
        assert!(group.together(vec![create(5, "vault")])[0].is_ok());
        group
    }

    /// Decides and stores these as one transaction.
    fn together(&self, requests: Vec<Request>) -> Vec<Result<Outcome, Failure>> {
        let roles = Roles { administer: true, create: true, standby: false };
        let caller = Caller { identity: Some(PublicKey::from_bytes([9; 32])), roles };
        let (jobs, answers): (Vec<_>, Vec<_>) = requests
            .into_iter()
            .map(|request| {
                let (answer, answered) = sync_channel(1);
                (Job { caller, operation: Operation::Ask(request), at_ms: 0, answer }, answered)
            })
            .unzip();
        self.engine.commit(&jobs, &mut Pending::default());
        answers.iter().map(|answered| answered.recv().unwrap()).collect()
    }
}

#[test]
fn keys_of_an_epoch_that_is_not_stored_do_not_go_out() {
    let group = Group::new();
    group.full.store(true, Ordering::SeqCst);
    let fetch = Request::Fetch { domain: domain(5) };
    let answers = group.together(vec![Request::Rotate { domain: domain(5) }, fetch.clone()]);
    assert!(answers.iter().all(|answer| matches!(answer, Err(Failure::Unavailable(_)))), "{answers:?}");
    // What nothing of it depends on is given out.
    let Ok(Outcome::Volume(volume)) = group.together(vec![fetch]).remove(0) else { panic!("keys are given out") };
    assert_eq!(volume.current, 1);
}

/// All keys go to a standby only once the log says so on the disk: lines that wait in memory are not enough for that.
#[test]
fn attack_key_no_follower_while_nothing_can_be_written() {
    let group = Group::new();
    let follow = || {
        let roles = Roles { administer: false, create: false, standby: true };
        let caller = Caller { identity: Some(PublicKey::from_bytes([8; 32])), roles };
        group.engine.submit(caller, Operation::Disclosure("follow".into()))
    };
    group.full.store(true, Ordering::SeqCst);
    for _ in 0..3 {
        assert!(matches!(follow(), Err(Failure::Unavailable(_))));
    }
    group.full.store(false, Ordering::SeqCst);
    let started = Instant::now();
    while let Err(error) = follow() {
        assert!(started.elapsed() < Duration::from_secs(60), "{error:?}");
        std::thread::yield_now();
    }
    let (_, lines) = group.engine.database.page(1, usize::MAX).unwrap();
    let short = crate::audit::short(&PublicKey::from_bytes([8; 32]));
    assert!(lines.iter().any(|line| line.text.ends_with(&format!("{short} follow"))), "{lines:?}");
}

#[test]
fn an_epoch_that_all_others_know_is_not_destroyed_with_its_rotation() {
    let group = Group::new();
    let destroy = Request::DestroyEpoch { domain: domain(5), epoch: 1, force: true };
    let answers = group.together(vec![Request::Rotate { domain: domain(5) }, destroy]);
    assert!(answers[0].is_ok() && matches!(answers[1], Err(Failure::Conflict(_))), "{answers:?}");
}

/// A change that needs a standby does not keep the line of a fetch from the disk.
#[test]
fn without_its_standby_nothing_is_changed_and_all_else_is_stored() {
    let group = Group::new();
    *group.engine.required.lock().unwrap() = Some(Duration::from_millis(1));
    let before = group.engine.database.head().lines;
    let answers = group.together(vec![Request::Rotate { domain: domain(5) }, Request::Fetch { domain: domain(5) }]);
    assert!(matches!(&answers[0], Err(Failure::Unavailable(text)) if text.contains("standby_required")));
    assert!(matches!(&answers[1], Ok(Outcome::Volume(volume)) if volume.current == 1));
    assert_eq!(group.engine.database.head().lines, before + 1);
}

/// What a watchdog asks.
#[test]
fn a_commit_that_hangs_is_noticed() {
    let patience = Duration::from_secs(60);
    let group = Group::new();
    assert!(group.engine.answers(patience));
    let committing = group.engine.committing.lock().unwrap();
    let engine = Arc::clone(&group.engine);
    let caller = Caller { identity: None, roles: Roles::default() };
    let waiting = thread::spawn(move || engine.submit(caller, Operation::Note("a line".into())));
    let begun = Instant::now();
    while group.engine.answers(Duration::from_millis(20)) {
        assert!(begun.elapsed() < patience, "nothing is noticed");
    }
    drop(committing);
    assert!(waiting.join().unwrap().is_ok());
    assert!(group.engine.answers(patience));
    group.engine.stop();
    assert!(group.engine.answers(patience), "a server that stops is not killed for it");
}

#[test]
fn a_name_that_is_given_up_and_taken_at_once_is_found() {
    // The new one's domain is before the old one's, and behind it.
    for byte in [1, 9] {
        let group = Group::new();
        let answers = group.together(vec![Request::Destroy { domain: domain(5) }, create(byte, "vault")]);
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        assert_eq!(group.engine.database.state().names.get("vault"), Some(&domain(byte)));
    }
}

/// However often a client repeats a request, the log has one line for it per interval.
#[test]
fn the_same_again_is_one_line() {
    let group = Group::new();
    group.engine.repeated.store(60, Ordering::SeqCst);
    let fetch = Request::Fetch { domain: domain(5) };
    let before = group.engine.database.head().lines;
    let mut pending = Pending::default();
    for _ in 0..3 {
        let (answer, answered) = sync_channel(1);
        let caller = Caller { identity: Some(PublicKey::from_bytes([9; 32])), roles: Roles::default() };
        let job = Job { caller, operation: Operation::Ask(fetch.clone()), at_ms: 0, answer };
        group.engine.commit(&[job], &mut pending);
        assert!(answered.recv().unwrap().is_ok());
    }
    assert_eq!(group.engine.database.head().lines, before + 1);
    assert_eq!(pending.recent.values().map(|told| told.again).sum::<u32>(), 2);
}

/// A transaction whose last sync failed may be stored after all, and with it a rotation that no client was told of: what was lent before it
/// is waited for.
#[test]
fn after_a_failed_write_leases_restart() {
    let group = Group::new();
    let hour = Duration::from_secs(3600);
    group.engine.leases.lend(hour, Duration::ZERO, Instant::now());
    let settles = || group.engine.leases.settles_in(domain(5), Instant::now());
    assert!(settles().is_zero(), "no client was ever told of it");
    group.full.store(true, Ordering::SeqCst);
    assert!(group.together(vec![Request::Rotate { domain: domain(5) }])[0].is_err());
    group.full.store(false, Ordering::SeqCst);
    assert!(group.together(vec![Request::Rotate { domain: domain(5) }])[0].is_ok());
    assert!(settles() > hour / 2, "{:?}", settles());
}

/// What follows goes on from what is stored, not from what was lost: no standby is given everything again and again.
#[test]
fn a_standby_of_a_reopened_server_is_given_one_snapshot() {
    let group = Group::new();
    group.engine.replication.enable(true);
    group.full.store(true, Ordering::SeqCst);
    assert!(group.together(vec![Request::Rotate { domain: domain(5) }])[0].is_err());
    group.full.store(false, Ordering::SeqCst);
    group.engine.recover().unwrap();
    let (sequence, head) = {
        let state = group.engine.database.state();
        (state.sequence, state.head)
    };
    group.engine.replication.close();
    let news = group.engine.replication.follow(sequence, head);
    assert!(matches!(news, crate::replication::News::Nothing), "what is stored is what it has");
    assert_eq!(group.engine.replication.followed_sequence(), Some(sequence));
}

/// However many epochs there are: a right that is taken is gone.
#[test]
fn a_revocation_works_on_a_volume_that_can_have_no_further_epoch() {
    let group = Group::new();
    let rotate = || Request::Rotate { domain: domain(5) };
    for _ in 0..4 {
        group.together((0..240).map(|_| rotate()).collect());
    }
    let full = group.together(vec![rotate()]).remove(0);
    assert!(matches!(full, Err(Failure::Conflict(_))), "{full:?}");
    let them = |byte: u8| PublicKey::from_bytes([byte; 32]);
    let mut last = Vec::new();
    for byte in 100..165 {
        let grant = Request::Grant { domain: domain(5), identity: them(byte), rights: crate::Rights::ALL };
        last = group.together(vec![grant, Request::Revoke { domain: domain(5), identity: them(byte) }]);
    }
    assert!(matches!(last[1], Ok(Outcome::Epoch(0))), "none is left: {last:?}");
    let state = group.engine.database.state();
    let volume = &state.volumes[&domain(5)];
    assert_eq!((volume.epochs.len(), volume.grants.contains_key(&them(164))), (strongroom_seal::EPOCHS_MAX, false));
}

/// The wall clock stands in the log and decides nothing: neither the order of lines, nor a lease.
#[test]
fn a_clock_that_jumps_changes_nothing_but_the_times_in_the_log() {
    let group = Group::new();
    group.engine.leases.lend(Duration::from_secs(3600), Duration::ZERO, Instant::now());
    let settles = || group.engine.leases.settles_in(domain(5), Instant::now());
    let before = group.engine.database.head().lines;
    for at_ms in [wall_clock_ms(), 0, u64::MAX, 1] {
        let (answer, answered) = sync_channel(1);
        let roles = Roles { administer: true, create: true, standby: false };
        let caller = Caller { identity: Some(PublicKey::from_bytes([9; 32])), roles };
        let operation = Operation::Ask(Request::Fetch { domain: domain(5) });
        group.engine.commit(&[Job { caller, operation, at_ms, answer }], &mut Pending::default());
        assert!(answered.recv().unwrap().is_ok());
    }
    assert!(group.together(vec![Request::Rotate { domain: domain(5) }])[0].is_ok());
    assert!(settles() > Duration::from_secs(3000), "{:?}", settles());
    // The chain holds.
    let (start, lines) = group.engine.database.page(before + 1, usize::MAX).unwrap();
    let end = lines.iter().try_fold(start, AuditHead::then).unwrap();
    assert_eq!((lines.len(), end), (5, group.engine.database.head()));
}
