//! Proves what wraps after a cryptographic erase, for every outcome of destroying the old key, and who answers for it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use strongroom_block::{AttachId, Custody, Mode, RecordFlags, SealRecord, Stamp, Suite, WrapError, keyless_checksum};
use strongroom_store::Op;

use super::commands::cdb_of;
use super::*;
use crate::SealedSpec;
use crate::volume_keys::WrapFactory;

/// Wraps every key as copies of one byte.
struct Mask(u8);

impl BlockKeyWrap for Mask {
    fn wrap(&self, _: &[u8; 32]) -> Result<[u8; 40], WrapError> {
        Ok([self.0; 40])
    }

    fn unwrap(&self, _: &[u8; 40]) -> Result<[u8; 32], WrapError> {
        Ok([self.0; 32])
    }
}

/// A unit whose blocks are wrapped under key 1, and where its key is.
struct Keyed {
    bench: Bench,
    elsewhere: Catalogue,
    spec: VolumeSpec,
    _dirs: [tempfile::TempDir; 2],
}

fn gives(outcome: Result<u8, &'static str>) -> WrapFactory {
    Arc::new(move |_| match outcome {
        Ok(key) => Ok(Arc::new(Mask(key))),
        Err(problem) => Err(problem.into()),
    })
}

fn keyed(open: impl FnOnce(&Catalogue, &Volume) -> Store) -> Keyed {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let key = dirs[0].path().join("vault.key");
    std::fs::write(&key, "").unwrap();
    let sealed = SealedSpec { wrapping_key: Some(key), ..SealedSpec::new(Custody::Target) };
    let spec = VolumeSpec { sealed: Some(sealed), ..VolumeSpec::plain("vault", 1 << 20) };
    let mut bench = Bench::serving(&spec, open);
    bench.unit.server.medium.codec.wrap = Some(Arc::new(Mask(1)));
    Keyed { bench, elsewhere: Catalogue::open(dirs[1].path()).unwrap(), spec, _dirs: dirs }
}

fn opened(catalogue: &Catalogue, volume: &Volume) -> Store {
    Store::open(&catalogue.store_dir(&volume.name), &OpenOptions::default(), Arc::new(|| {})).unwrap()
}

impl Keyed {
    fn may_renew(&mut self, renew: WrapFactory, open: WrapFactory) {
        let renewer = KeyRenewer { renew, open, catalogue: self.elsewhere.clone() };
        self.bench.unit.server.sanitizer.set_renewal(Some(KeyRenewal::new(renewer, Arc::new(|| {}))));
    }

    fn begin(&mut self) {
        self.bench.unit.server.medium.store.submit(Token(1_000_000), Op::CryptoErase);
    }

    fn until(&mut self, what: &str, is_so: impl Fn(&Unit) -> bool) {
        let (mut finished, started) = (Vec::new(), Instant::now());
        while !is_so(&self.bench.unit) {
            assert!(started.elapsed() < PATIENCE, "{what}");
            self.bench.unit.poll(&mut finished);
            std::thread::yield_now();
        }
    }

    fn until_erased(&mut self) {
        self.until("the erase ends", |unit| {
            unit.server.medium.store.erase().progress().is_none() && !unit.server.sanitizer.is_erasing()
        });
    }

    /// The key that wraps; `None`: nothing does, and nothing is written.
    fn key(&self) -> Option<u8> {
        let wrap = self.bench.unit.server.medium.codec.wrap.as_ref().expect("blocks are always wrapped");
        assert_eq!(wrap.unwrap(&[0; 40]).is_ok(), wrap.wrap(&[0; 32]).is_ok());
        wrap.wrap(&[0; 32]).ok().map(|wrapped| wrapped[0])
    }
}

#[test]
fn what_is_left_after_a_renewal_is_what_wraps() {
    for (renewed, found, key, sanitize) in [
        (Ok(2), Err("not asked"), Some(2), SanitizeStatus::Idle),
        (Err("it cannot be overwritten"), Ok(1), Some(1), SanitizeStatus::Failed),
        (Err("gone, but for a name"), Ok(3), Some(3), SanitizeStatus::Failed),
        (Err("half of it"), Err("there is no key"), None, SanitizeStatus::Failed),
    ] {
        let mut keyed = keyed(opened);
        keyed.may_renew(gives(renewed), gives(found));
        keyed.begin();
        keyed.until("it begins", |unit| {
            unit.server.medium.store.erase().progress().is_some() && unit.server.sanitizer.is_erasing()
        });
        keyed.until_erased();
        assert_eq!((keyed.key(), keyed.bench.unit.server.sanitizer.status()), (key, sanitize), "{renewed:?} {found:?}");
    }
}

/// Between the command and its last chance another volume may come to have the same key.
#[test]
fn a_key_that_is_shared_by_then_is_left_alone() {
    let mut keyed = keyed(opened);
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let count: WrapFactory = Arc::new(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(Mask(2)))
    });
    keyed.may_renew(Arc::clone(&count), count);
    assert!(keyed.bench.unit.server.sanitizer.can_destroy_key(keyed.bench.unit.volume()));
    keyed.begin();
    keyed.elsewhere.create(&VolumeSpec { name: "other".to_owned(), ..keyed.spec.clone() }).unwrap();
    keyed.until("it begins", |unit| {
        unit.server.medium.store.erase().progress().is_some() && unit.server.sanitizer.is_erasing()
    });
    keyed.until_erased();
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    assert_eq!((keyed.key(), keyed.bench.unit.server.sanitizer.status()), (Some(1), SanitizeStatus::Failed));
}

/// A snapshot that was just deleted may still be a unit on the store.
#[test]
fn a_unit_that_cannot_destroy_the_key_does_not_answer_for_the_one_that_can() {
    let mut keyed = keyed(opened);
    keyed.begin();
    keyed.until("it waits", |unit| unit.server.medium.store.erase().awaits_key());
    (0..100).for_each(|_| keyed.bench.unit.poll(&mut Vec::new()));
    assert!(keyed.bench.unit.server.medium.store.erase().awaits_key());
    keyed.may_renew(gives(Ok(2)), gives(Err("not asked")));
    keyed.until_erased();
    assert_eq!((keyed.key(), keyed.bench.unit.server.sanitizer.status()), (Some(2), SanitizeStatus::Idle));
}

#[test]
fn a_renewal_that_has_begun_is_seen_through() {
    let mut keyed = keyed(opened);
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let slow: WrapFactory = Arc::new(move |_| {
        released.lock().unwrap().recv().map_err(|_| "nobody waits".to_owned())?;
        Ok(Arc::new(Mask(2)))
    });
    keyed.may_renew(slow, gives(Err("not asked")));
    keyed.begin();
    keyed.until("it begins", |unit| unit.server.sanitizer.is_renewing_key());
    keyed.bench.unit.server.medium.store.erase().key_destroyed(false);
    keyed.until_erased();
    keyed.bench.unit.detach(KEY);
    assert!(keyed.key() == Some(1) && !keyed.bench.unit.is_idle(), "nobody may open the volume meanwhile");
    release.send(()).unwrap();
    keyed.until("it ends", |unit| !unit.server.sanitizer.is_renewing_key());
    assert!(keyed.key() == Some(2) && keyed.bench.unit.is_idle());
}

#[test]
fn an_erase_that_goes_on_without_its_key_has_failed_until_the_next_one() {
    let mut keyed = keyed(|catalogue, volume| {
        let mut store = opened(catalogue, volume);
        store.submit(Token(1), Op::CryptoErase);
        while !store.erase_awaits_key() {
            store.poll_completions(&mut Vec::new());
            store.wait();
        }
        drop(store);
        opened(catalogue, volume)
    });
    keyed.bench.unit.key_survived();
    keyed.until_erased();
    assert_eq!(keyed.bench.unit.server.sanitizer.status(), SanitizeStatus::Failed);
    let block_erase = cdb_of(&[strongroom_scsi::opcode::SANITIZE, strongroom_scsi::opcode::SA_SANITIZE_BLOCK_ERASE]);
    assert_eq!(keyed.bench.run(block_erase, Direction::None, 0, &[]).status, 0);
    assert_eq!(keyed.bench.unit.server.sanitizer.status(), SanitizeStatus::Idle);
}

/// The newest block that a blind unit has.
fn write_sealed(bench: &mut Bench) {
    bench.register(AttachId([1; 16]));
    let block = [7; 4096];
    let stamp = Stamp { attach_id: AttachId([1; 16]), counter: 1 };
    let checksum = keyless_checksum(&block);
    let record = SealRecord::new(Suite::Aes256Gcm, Mode::Encrypt, RecordFlags::default(), 1, stamp, checksum, [0; 16]);
    let mut write = bench.command(cdb::write_16(Lba(5), 1, true), Direction::Write, 4096, &[]);
    write.data = vec![sealed_segment(&block, &record)];
    assert_eq!(answer(bench, write).status, 0);
}

fn answer(bench: &mut Bench, command: transport::Command) -> Response {
    let task = command.task;
    match bench.unit.submit(KEY, command, 16) {
        Verdict::Answer(response) => response,
        Verdict::Later => bench.finish(task),
        Verdict::Violation(what) => panic!("{what}"),
    }
}

/// A blind target has no key. It takes the word of who had them destroyed, and only where a key server has them.
#[test]
fn attack_key_a_blind_unit_is_not_sanitized_before_its_keys_are_destroyed() {
    for (custody, destroyed, refusal) in [
        (Custody::KeyServer, None, Some(Sense::COMMAND_SEQUENCE)),
        (Custody::KeyFile, Some(2), Some(Sense::INVALID_FIELD_IN_CDB)),
        (Custody::KeyServer, Some(2), None),
    ] {
        let sealed = Some(SealedSpec::new(custody));
        let mut bench = Bench::on(&VolumeSpec { sealed, ..VolumeSpec::plain("vault", 1 << 20) });
        write_sealed(&mut bench);
        let mut command = bench.command(cdb::sanitize_crypto_erase(), Direction::None, 0, &[]);
        command.parameters.keys_destroyed = destroyed;
        let response = answer(&mut bench, command);
        let sense = Sense::parse(&response.sense);
        match &refusal {
            Some(refusal) => assert!(sense.is_some_and(|sense| sense.is(refusal)), "{sense:?}"),
            None => assert_eq!(response.status, 0, "{sense:?}"),
        }
        let started = Instant::now();
        while bench.unit.store().erase().progress().is_some() {
            assert!(started.elapsed() < PATIENCE, "it ends");
            bench.unit.poll(&mut Vec::new());
        }
        let read = bench.run(cdb::read_16(Lba(5), 1), Direction::Read, 4096, &[]);
        assert_eq!(read.status == 0, refusal.is_some(), "what was not erased is there");
        assert_eq!(bench.unit.server.sanitizer.status(), SanitizeStatus::Idle);
    }
}
