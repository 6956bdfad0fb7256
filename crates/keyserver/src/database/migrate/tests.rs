//! Proves that a database of format 1 is read, loses nothing and tells nothing once it was opened, and that batches and snapshots of
//! versions before are taken.

use std::path::PathBuf;
use std::sync::Arc;

use strongroom_block::{SealingDomain, VolumeId};
use strongroom_handshake::PublicKey;
use strongroom_seal::{KeyPurpose, VolumeKeyFile};
use tempfile::TempDir;

use super::super::load::TEXTS;
use super::super::{HEAD_CONTEXT, Head, Snapshot};
use super::*;
use crate::audit::{AuditHead, AuditLine};
use crate::batch::{Batch, Role};
use crate::config::Roles;
use crate::engine::Engine;
use crate::keys::LocalMasterKey;
use crate::metrics::Metrics;
use crate::operations::{Caller, Operation};
use crate::protocol::{NewVolume, Request};

const DOMAIN: SealingDomain = SealingDomain([5; 16]);

fn master() -> LocalMasterKey {
    LocalMasterKey::new(&VolumeKeyFile::new(KeyPurpose::Master, &[1; 32])).unwrap()
}

fn keys(dir: &TempDir) -> PathBuf {
    dir.path().join("keys")
}

fn ask(database: Database, requests: Vec<Request>) {
    let engine = Engine::start(Arc::new(database), Arc::new(Metrics::default())).unwrap();
    let roles = Roles { administer: true, create: true, standby: false };
    let caller = Caller { identity: Some(PublicKey::from_bytes([9; 32])), roles };
    for request in requests {
        engine.submit(caller, Operation::Ask(request)).unwrap();
    }
    engine.stop();
}

fn lines_of(database: &Database) -> Vec<AuditLine> {
    let mut lines = Vec::new();
    database
        .lines(1, |line| {
            lines.push(line);
            true
        })
        .unwrap();
    lines
}

/// A database with one volume, and what a version before would have made of it: the log as text, and the chain over that.
fn of_format_1() -> (TempDir, Vec<String>, AuditHead) {
    let dir = tempfile::tempdir().unwrap();
    let create = Request::Create(NewVolume { id: VolumeId([5; 16]), name: "vault".into(), domain: DOMAIN });
    let database = Database::open_or_create(&keys(&dir), &master()).unwrap();
    ask(database, vec![create, Request::Rotate { domain: DOMAIN }]);
    let database = Database::open(&keys(&dir), &master()).unwrap();
    let texts: Vec<String> = lines_of(&database).into_iter().map(|line| line.text).collect();
    let mut head = Head::of(&database.state());
    let (mut at, mut heads) = (AuditHead::start(&database.state().id), Vec::new());
    for text in &texts {
        heads.push(at);
        at = at.then(&AuditLine { text: text.clone(), key: None }).unwrap();
    }
    (head.audit, head.previous) = (at, *heads.last().unwrap());
    let sealed_head = database.root.seal(HEAD_CONTEXT, &head.encode());
    drop(database);
    let store = redb::Database::open(keys(&dir).join(DATABASE_FILE)).unwrap();
    let transaction = store.begin_write().unwrap();
    transaction.delete_table(LINES).unwrap();
    {
        let mut table = transaction.open_table(TEXTS).unwrap();
        for (number, text) in (1..).zip(&texts) {
            table.insert(number, text.as_str()).unwrap();
        }
        let mut meta = transaction.open_table(META).unwrap();
        meta.insert("format", &[1][..]).unwrap();
        meta.insert("head", &sealed_head[..]).unwrap();
    }
    transaction.commit().unwrap();
    (dir, texts, at)
}

fn is_told(dir: &TempDir) -> bool {
    let files = fs::read_dir(keys(dir)).unwrap().map(|entry| fs::read(entry.unwrap().path()).unwrap());
    files.collect::<Vec<_>>().concat().windows(5).any(|window| window == b"vault")
}

#[test]
fn a_database_of_format_1_goes_on_and_its_log_is_text_no_more() {
    let (dir, texts, head) = of_format_1();
    assert!(is_told(&dir), "the search finds what is there");
    // It is checked as it is.
    assert_eq!(Database::inspect(&keys(&dir), &master()).unwrap().head(), head);
    assert!(is_told(&dir), "an inspection changes nothing");
    // What a crash left of an attempt before.
    fs::write(keys(&dir).join(NEW_FILE), "half").unwrap();
    // The blocks of the old file, which an attacker finds on the disk later.
    let remains = dir.path().join("remains");
    fs::hard_link(keys(&dir).join(DATABASE_FILE), &remains).unwrap();
    let database = Database::open(&keys(&dir), &master()).unwrap();
    assert_eq!((database.head(), database.volumes()), (head, 1), "a head that was kept still fits");
    assert!(fs::read(&remains).unwrap().iter().all(|byte| *byte == 0), "its old file was overwritten");
    let volume = Arc::clone(&database.state().volumes[&DOMAIN]);
    assert_eq!(database.open_keys(&volume).unwrap().epochs().count(), 2);
    let lines = lines_of(&database);
    assert!(lines.iter().all(|line| line.key.is_none()));
    assert_eq!(lines.iter().map(|line| &line.text).collect::<Vec<_>>(), texts.iter().collect::<Vec<_>>());
    assert!(!is_told(&dir) && !keys(&dir).join(NEW_FILE).exists());
    // The chain goes on, encrypted, also under another master key.
    ask(database, vec![Request::Rotate { domain: DOMAIN }]);
    let database = Database::open(&keys(&dir), &master()).unwrap();
    let lines = lines_of(&database);
    assert!(lines.len() > texts.len() && lines.last().unwrap().key.is_some());
    let end = lines.iter().try_fold(AuditHead::start(&database.state().id), AuditHead::then).unwrap();
    assert_eq!(end, database.head());
    let other = LocalMasterKey::new(&VolumeKeyFile::new(KeyPurpose::Master, &[2; 32])).unwrap();
    database.change_master_key(&other).unwrap();
    let database = Database::open(&keys(&dir), &other).unwrap();
    assert_eq!(lines_of(&database)[..lines.len()], lines);
    assert!(!is_told(&dir));
}

#[test]
fn attack_key_alter_a_log_before_it_is_migrated() {
    let (dir, _, _) = of_format_1();
    let store = redb::Database::open(keys(&dir).join(DATABASE_FILE)).unwrap();
    let transaction = store.begin_write().unwrap();
    transaction.open_table(TEXTS).unwrap().insert(2, "2 2026-11-21T00:00:00.000Z - nothing happened").unwrap();
    transaction.commit().unwrap();
    drop(store);
    let error = Database::open(&keys(&dir), &master()).map(drop).unwrap_err();
    assert!(matches!(error, DatabaseError::Audit { .. }), "{error}");
    assert!(!keys(&dir).join(NEW_FILE).exists());
}

/// Backups, and the transactions of a primary, of a version before have lines as text.
#[test]
fn batches_and_snapshots_of_version_1_are_taken() {
    let (dir, texts, head) = of_format_1();
    let database = Database::open(&keys(&dir), &master()).unwrap();
    let mut snapshot = Snapshot::default();
    let mut add = |part: &[u8]| -> Result<(), DatabaseError> {
        let mut part = part.to_vec();
        match part[0] {
            1 => part[1] = 1,
            4 => {
                let texts =
                    texts.iter().flat_map(|text| [&(text.len() as u16).to_be_bytes(), text.as_bytes()].concat());
                part = std::iter::once(4).chain(texts).collect();
            }
            _ => {}
        }
        snapshot.add(&part).map(drop).map_err(|_| DatabaseError::Backup("malformed"))
    };
    database.snapshot(&mut add).unwrap();
    let other = tempfile::tempdir().unwrap();
    let restored = Database::open_or_create(&keys(&other), &master()).unwrap();
    restored.install(snapshot, Role::Primary, true).unwrap();
    let lines = lines_of(&restored);
    assert_eq!(lines[..texts.len()], lines_of(&database));
    assert!(lines.last().unwrap().text.contains("restore from") && !is_told(&other));

    let line = AuditLine { text: texts[0].clone(), key: None };
    let (volumes, slots) = (Vec::new(), Vec::new());
    let batch = Batch { sequence: 1, generation: 1, lease_ms: 0, lines: vec![line], head, volumes, slots };
    let mut bytes = batch.encode().to_vec();
    // The version of the one line, behind sequence, generation, lease, head and count.
    assert_eq!((bytes[0], bytes.remove(1 + 24 + 40 + 4)), (2, 1));
    bytes[0] = 1;
    assert_eq!(Batch::decode(&bytes).unwrap().lines, batch.lines);
}
