//! Proves what an attacker with the database's files can do, and what comes of damage and of a full disk. The attacker has the
//! files, not the master key; where a test says so, that too.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::{ReadableTable, Table};
use strongroom_block::VolumeId;
use strongroom_handshake::PublicKey;
use strongroom_seal::{KEY_BYTES, KeyPurpose, Secret};
use tempfile::TempDir;

use super::*;
use crate::config::Roles;
use crate::engine::Engine;
use crate::keys::{LocalMasterKey, ShredKey};
use crate::metrics::Metrics;
use crate::operations::{Caller, Operation, Outcome};
use crate::protocol::{Failure, NewVolume, Request};
use crate::{AuditError, Rights};

fn master(byte: u8) -> LocalMasterKey {
    LocalMasterKey::new(&VolumeKeyFile::new(KeyPurpose::Master, &[byte; 32])).unwrap()
}

fn domain(byte: u8) -> SealingDomain {
    SealingDomain([byte; 16])
}

fn owner() -> Caller {
    let roles = Roles { administer: true, create: true, standby: false };
    Caller { identity: Some(PublicKey::from_bytes([9; 32])), roles }
}

/// A database in use.
struct Bench {
    dir: TempDir,
    full: Arc<AtomicBool>,
    engine: Arc<Engine>,
}

impl Bench {
    /// With two volumes.
    fn new() -> Bench {
        let dir = tempfile::tempdir().unwrap();
        drop(Database::open_or_create(&dir.path().join("keys"), &master(1)).unwrap());
        let bench = Bench::over(dir);
        for byte in [1, 2] {
            let new = NewVolume { id: VolumeId([byte; 16]), name: format!("volume-{byte}"), domain: domain(byte) };
            bench.done(Request::Create(new));
        }
        bench
    }

    fn over(dir: TempDir) -> Bench {
        let full = Arc::new(AtomicBool::new(false));
        let opened = Database::open_through(&dir.path().join("keys"), &master(1), Some(Arc::clone(&full))).unwrap();
        let engine = Engine::start(Arc::new(opened), Arc::new(Metrics::default())).unwrap();
        Bench { dir, full, engine }
    }

    fn ask(&self, request: Request) -> Result<Outcome, Failure> {
        self.engine.submit(owner(), Operation::Ask(request))
    }

    #[track_caller]
    fn done(&self, request: Request) -> Outcome {
        self.ask(request).unwrap()
    }

    fn keys(&self, byte: u8) -> VolumeKeyFile {
        let Outcome::Volume(volume) = self.done(Request::Fetch { domain: domain(byte) }) else {
            panic!("a volume is what is fetched")
        };
        self.engine.database.open_keys(&volume).unwrap()
    }

    fn stop(self) -> TempDir {
        self.engine.stop();
        self.dir
    }
}

fn open(dir: &TempDir) -> Result<Database, DatabaseError> {
    Database::open(&dir.path().join("keys"), &master(1))
}

fn file(dir: &TempDir) -> PathBuf {
    dir.path().join("keys").join(DATABASE_FILE)
}

/// Edits the file by the store's own code, so that all its checksums fit.
fn edit_volumes(dir: &TempDir, edit: impl FnOnce(&mut Table<'_, &[u8], &[u8]>)) {
    let store = redb::Database::open(file(dir)).unwrap();
    let transaction = store.begin_write().unwrap();
    edit(&mut transaction.open_table(VOLUMES).unwrap());
    transaction.commit().unwrap();
}

/// What an attacker with the file does to the stored lines.
type Edit = fn(&mut Table<'_, u64, &[u8]>);

fn edit_audit(dir: &TempDir, edit: impl FnOnce(&mut Table<'_, u64, &[u8]>)) {
    let store = redb::Database::open(file(dir)).unwrap();
    let transaction = store.begin_write().unwrap();
    edit(&mut transaction.open_table(LINES).unwrap());
    transaction.commit().unwrap();
}

fn line(table: &Table<'_, u64, &[u8]>, number: u64) -> Vec<u8> {
    table.get(number).unwrap().unwrap().value().to_vec()
}

fn flip(table: &mut Table<'_, u64, &[u8]>, number: u64, at: usize) {
    let mut bytes = line(table, number);
    let at = at.min(bytes.len() - 1);
    bytes[at] ^= 1;
    table.insert(number, &bytes[..]).unwrap();
}

fn record(table: &Table<'_, &[u8], &[u8]>, byte: u8) -> Vec<u8> {
    table.get(&domain(byte).0[..]).unwrap().unwrap().value().to_vec()
}

#[track_caller]
fn is_damaged(dir: &TempDir) {
    let error = open(dir).map(drop).unwrap_err();
    assert!(matches!(error, DatabaseError::Damaged { .. }), "{error}");
    assert!(error.to_string().contains("restore it from a backup"), "{error}");
}

#[test]
fn attack_key_swap_wrapped_keys() {
    let dir = Bench::new().stop();
    edit_volumes(&dir, |table| {
        let (first, second) = (record(table, 1), record(table, 2));
        table.insert(&domain(1).0[..], &second[..]).unwrap();
        table.insert(&domain(2).0[..], &first[..]).unwrap();
    });
    is_damaged(&dir);
    // And the shred keys of the two, which lie in the clear.
    let dir = Bench::new().stop();
    let path = dir.path().join("keys").join(SHRED_FILE);
    let mut bytes = fs::read(&path).unwrap();
    let (first, second) = bytes[1024..].split_at_mut(64);
    first.swap_with_slice(&mut second[..64]);
    fs::write(&path, bytes).unwrap();
    is_damaged(&dir);
}

#[test]
fn attack_key_put_back_an_older_record() {
    let bench = Bench::new();
    let someone = PublicKey::from_bytes([7; 32]);
    bench.done(Request::Grant { domain: domain(1), identity: someone, rights: Rights::ALL });
    let dir = bench.stop();
    let mut older = Vec::new();
    edit_volumes(&dir, |table| older = record(table, 1));
    let bench = Bench::over(dir);
    bench.done(Request::Revoke { domain: domain(1), identity: someone });
    let dir = bench.stop();
    edit_volumes(&dir, |table| drop(table.insert(&domain(1).0[..], &older[..]).unwrap()));
    is_damaged(&dir);
    let dir = Bench::new().stop();
    edit_volumes(&dir, |table| drop(table.remove(&domain(1).0[..]).unwrap()));
    is_damaged(&dir);
}

#[test]
fn attack_key_edit_the_audit_log() {
    let edits: [Edit; 9] = [
        |table| drop(table.insert(2, &b"nothing happened"[..]).unwrap()),
        |table| drop(table.insert(2, &line(table, 2)[..60]).unwrap()),
        |table| drop(table.remove(1).unwrap()),
        |table| drop(table.remove(3).unwrap()),
        |table| drop(table.insert(4, &b"more happened"[..]).unwrap()),
        |table| drop(table.insert(4, &line(table, 3)[..]).unwrap()),
        |table| {
            let (first, second) = (line(table, 1), line(table, 2));
            table.insert(1, &second[..]).unwrap();
            table.insert(2, &first[..]).unwrap();
        },
        // The last byte of a line's tag; its wrapped key, which the chain is not over.
        |table| flip(table, 2, usize::MAX),
        |table| flip(table, 2, 20),
    ];
    let altered = "not what they were";
    let expected = [
        altered,
        altered,
        "missing or out of place",
        "cut off",
        altered,
        altered,
        altered,
        altered,
        "line 2 of its audit log does not open",
    ];
    for (edit, part) in edits.into_iter().zip(expected) {
        let bench = Bench::new();
        bench.done(Request::Rotate { domain: domain(1) });
        let dir = bench.stop();
        edit_audit(&dir, edit);
        let error = open(&dir).map(drop).unwrap_err();
        assert!(error.to_string().contains(part), "{part}: {error}");
        assert!(matches!(error, DatabaseError::Audit { .. } | DatabaseError::Damaged { .. }), "{error}");
    }
    let error = AuditError::Altered { lines: 3 };
    assert!(error.to_string().contains("altered"));
}

#[test]
fn attack_key_flip_a_byte_of_the_database() {
    let bench = Bench::new();
    let keys = bench.keys(1);
    let dir = bench.stop();
    for name in [DATABASE_FILE, SHRED_FILE] {
        let path = dir.path().join("keys").join(name);
        let whole = fs::read(&path).unwrap();
        // Where something is written, and a few more.
        let written: Vec<usize> = (0..whole.len()).filter(|at| whole[*at] != 0).collect();
        let places = written.iter().step_by(written.len() / 60 + 1).chain(&[0, 9, 300]);
        let mut refused = 0;
        for &at in places {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            fs::write(&path, damaged).unwrap();
            match open(&dir) {
                // A page that nothing points to any more.
                Ok(database) => {
                    let volume = Arc::clone(&database.state().volumes[&domain(1)]);
                    assert_eq!(database.open_keys(&volume).unwrap(), keys, "{name}, {at}");
                }
                Err(_) => refused += 1,
            }
            fs::write(&path, &whole).unwrap();
        }
        assert!(refused > 0, "{name}");
    }
    open(&dir).unwrap();
}

/// With the master key, everything that the files hold, and everything that they held before.
#[test]
fn attack_key_search_for_a_destroyed_key() {
    let bench = Bench::new();
    bench.done(Request::Rotate { domain: domain(1) });
    let volume = Arc::clone(&bench.engine.database.state().volumes[&domain(1)]);
    let lost = bench.keys(1).volume_key(1).unwrap().clone();
    let kept = bench.keys(1).volume_key(2).unwrap().clone();
    bench.done(Request::DestroyEpoch { domain: domain(1), epoch: 1, force: true });
    bench.done(Request::Destroy { domain: domain(2) });
    let dir = bench.stop();
    let files: Vec<u8> = [DATABASE_FILE, SHRED_FILE]
        .into_iter()
        .flat_map(|name| fs::read(dir.path().join("keys").join(name)).unwrap())
        .collect();
    // Each 32 bytes are tried as the key that the old record's keys are wrapped under.
    let mut opened = Vec::new();
    for window in files.windows(KEY_BYTES) {
        if window.iter().all(|byte| *byte == 0) {
            continue;
        }
        let shred = ShredKey(Secret::filled(|bytes| bytes.copy_from_slice(window)));
        for (number, epoch) in &volume.epochs {
            opened.extend(shred.unwrap(domain(1), *number, &epoch.wrapped));
        }
    }
    assert_eq!(opened, [kept], "the search finds what is there");
    assert!(!opened.contains(&lost));
    open(&dir).unwrap();
}

/// Everything that lies in the directory, as one.
fn all_files(dir: &TempDir) -> Vec<u8> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(dir.path().join("keys")).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() >= 2, "{paths:?}");
    paths.iter().flat_map(|path| fs::read(path).unwrap()).collect()
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

#[test]
fn attack_key_stolen_files_without_the_master_key() {
    let bench = Bench::new();
    let (bob, carol) = (PublicKey::from_bytes([7; 32]), PublicKey::from_bytes([8; 32]));
    bench.done(Request::Grant { domain: domain(1), identity: bob, rights: Rights::ALL });
    bench.done(Request::Grant { domain: domain(2), identity: carol, rights: Rights::ALL });
    bench.done(Request::Revoke { domain: domain(2), identity: carol });
    let keys = [bench.keys(1), bench.keys(2)];
    bench.ask(Request::Rotate { domain: domain(3) }).map(drop).unwrap_err();
    let note = Operation::Note("refused further requests=5".into());
    bench.engine.submit(Caller { identity: Some(carol), ..owner() }, note).unwrap();
    let mut lines = Vec::new();
    bench
        .engine
        .database
        .lines(1, |line| {
            lines.push(line);
            true
        })
        .unwrap();
    let dir = bench.stop();
    let error = Database::open(&dir.path().join("keys"), &master(2)).map(drop).unwrap_err();
    assert!(matches!(error, DatabaseError::MasterKey(MasterKeyError::Other { .. })), "{error}");
    let files = all_files(&dir);
    assert!(contains(&files, &domain(1).0), "the search finds what is there: sealing domains are no secret");
    let owner = owner().identity.unwrap();
    for identity in [owner, bob, carol] {
        let short = crate::audit::short(&identity);
        assert!(lines.iter().any(|line| line.text.contains(&short)), "the log tells of {short}");
        // However a few characters or bytes of it could stand there.
        assert!(!contains(&files, &short.as_bytes()[..16]) && !contains(&files, &identity.as_bytes()[..16]));
    }
    for word in ["volume-1", "volume-2", "create", "grant", "revoke", "fetch", "rights", "epoch=", "refused"] {
        assert!(lines.iter().any(|line| line.text.contains(word)), "the log has the word {word}");
        assert!(!contains(&files, word.as_bytes()), "{word} is in the files");
    }
    for line in &lines {
        assert!(!contains(&files, line.text.as_bytes()), "{line} is in the files");
        assert!(!contains(&files, &line.key.as_ref().unwrap()[..]), "a line's key is in the files");
    }
    for keys in &keys {
        for epoch in keys.epochs() {
            assert!(!contains(&files, keys.volume_key(epoch).unwrap().expose()));
        }
    }
}

/// With the files and a head, but no key, one can check whether the log passed through that head.
#[test]
fn the_chain_is_checked_without_any_key() {
    let bench = Bench::new();
    bench.done(Request::Rotate { domain: domain(1) });
    let (id, head) = (bench.engine.database.state().id, bench.engine.database.head());
    let dir = bench.stop();
    let chain = || {
        let store = redb::Database::open(file(&dir)).unwrap();
        let table = store.begin_read().unwrap().open_table(LINES).unwrap();
        let lines = table.iter().unwrap().map(|entry| stored::sealed_of(entry.unwrap().1.value()).to_vec());
        lines.fold(AuditHead::start(&id), |head, sealed| head.then_sealed(&sealed))
    };
    assert_eq!(chain(), head);
    edit_audit(&dir, |table| flip(table, 2, 90));
    assert_eq!(chain().check(&head), Err(AuditError::Altered { lines: head.lines }));
}

#[test]
fn what_is_no_database_is_told_from_an_empty_directory() {
    let dir = Bench::new().stop();
    let whole = fs::read(file(&dir)).unwrap();
    for damaged in [&whole[..whole.len() / 3], &[], &[0xa5; 70_000]] {
        fs::write(file(&dir), damaged).unwrap();
        let error = open(&dir).map(drop).unwrap_err();
        assert!(error.to_string().contains("restore it from a backup"), "{error}");
    }
    fs::remove_file(file(&dir)).unwrap();
    let error = Database::open_or_create(&dir.path().join("keys"), &master(1)).map(drop).unwrap_err();
    assert!(matches!(error, DatabaseError::Foreign { .. }), "a shred file alone: {error}");
    let other = tempfile::tempdir().unwrap();
    assert_eq!(Database::open_or_create(other.path(), &master(1)).unwrap().volumes(), 0);
    let twice = Database::open(other.path(), &master(1)).unwrap();
    let error = Database::open(other.path(), &master(1)).map(drop).unwrap_err();
    assert!(matches!(error, DatabaseError::InUse { .. }), "{error}");
    drop(twice);
}

#[test]
fn a_full_disk_refuses_changes_and_loses_nothing() {
    let bench = Bench::new();
    let before = bench.keys(1);
    bench.full.store(true, Ordering::SeqCst);
    for _ in 0..3 {
        let error = bench.ask(Request::Rotate { domain: domain(1) }).map(drop).unwrap_err();
        let says = |part: &str| matches!(&error, Failure::Unavailable(text) if text.contains(part));
        assert!(says("nothing was changed") || says("tried again in a moment"), "{error:?}");
        assert_eq!(bench.keys(1), before, "keys are given out all the same");
    }
    bench.full.store(false, Ordering::SeqCst);
    // It is not tried again at once.
    let started = std::time::Instant::now();
    let rotated = loop {
        match bench.ask(Request::Rotate { domain: domain(1) }) {
            Ok(outcome) => break outcome,
            Err(error) => assert!(started.elapsed() < std::time::Duration::from_secs(60), "{error:?}"),
        }
        std::thread::yield_now();
    };
    assert!(matches!(rotated, Outcome::Epoch(2)));
    let after = bench.keys(1);
    assert_eq!(after.volume_key(1), before.volume_key(1));
    let mut fetches = 0;
    bench
        .engine
        .database
        .lines(1, |line| {
            fetches += u32::from(line.text.contains(" fetch "));
            true
        })
        .unwrap();
    assert_eq!(fetches, 5, "what was given out meanwhile is in the log");
    let bench = Bench::over(bench.stop());
    assert_eq!(bench.keys(1), after);
}

#[test]
fn another_master_key_opens_the_same_keys_and_the_old_one_nothing_more() {
    let bench = Bench::new();
    bench.done(Request::Rotate { domain: domain(1) });
    let keys = bench.keys(1);
    let old = Arc::clone(&bench.engine.database.state().volumes[&domain(1)]);
    let dir = bench.stop();
    open(&dir).unwrap().change_master_key(&master(2)).unwrap();
    let error = open(&dir).map(drop).unwrap_err();
    assert!(matches!(error, DatabaseError::MasterKey(MasterKeyError::Other { .. })), "{error}");
    let database = Database::open(&dir.path().join("keys"), &master(2)).unwrap();
    let volume = Arc::clone(&database.state().volumes[&domain(1)]);
    assert_eq!(database.open_keys(&volume).unwrap(), keys);
    assert!(database.open_keys(&old).is_err(), "an old record opens nothing: its shred keys are gone");
}

#[test]
fn only_our_user_can_look_into_the_files() {
    use std::os::unix::fs::PermissionsExt;
    let dir = Bench::new().stop();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dir.path().join("keys")), 0o700);
    for name in [DATABASE_FILE, SHRED_FILE] {
        assert_eq!(mode(&dir.path().join("keys").join(name)), 0o600);
    }
}

/// A snapshot whose installation fails leaves what was there: no slot is overwritten that is used, and the shred file stays its own.
#[test]
fn an_installation_that_fails_leaves_everything_as_it_was() {
    let (ours, theirs) = (Bench::new(), Bench::new());
    theirs.done(Request::Rotate { domain: domain(2) });
    let keys = ours.keys(1);
    let snapshot = || {
        let mut snapshot = Snapshot::default();
        let mut take = |part: &[u8]| -> Result<(), DatabaseError> {
            snapshot.add(part).map(drop).map_err(|_| DatabaseError::Backup("malformed"))
        };
        theirs.engine.database.snapshot(&mut take).unwrap();
        snapshot
    };
    ours.full.store(true, Ordering::SeqCst);
    assert!(ours.engine.database.install(snapshot(), Role::Standby, false).is_err());
    ours.full.store(false, Ordering::SeqCst);
    let dir = ours.stop();
    let ours = Bench::over(dir);
    assert_eq!(ours.keys(1), keys);
    ours.engine.database.install(snapshot(), Role::Primary, false).unwrap();
    assert_eq!(ours.keys(2), theirs.keys(2));
    assert_eq!(Bench::over(ours.stop()).keys(1), theirs.keys(1));
}
