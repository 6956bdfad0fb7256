//! Proves what SANITIZE CRYPTOGRAPHIC ERASE of a volume of custody `target` comes to: the key that wrapped its block keys is gone, and with it
//! everything, with any crash; or it was not, and then that is said.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use strongroom_block::{BlockKeyWrap, Custody, WrapError};
use strongroom_iscsi::initiator::Command;
use strongroom_scsi::{Sense, vendor};
use strongroom_target::{Catalogue, SealedSpec, Target, TargetOptions, VolumeSpec};

use crate::support::sealed::{ATTACH_ID, hole_of, read, record, registration, seal_hole, sealed_write, stamp};
use crate::support::{self, Host, Initiator, LUN, MIB, Outcome, pattern};

/// Wraps under a mask, which is told at the end of what it wraps.
struct Masked(u8);

impl BlockKeyWrap for Masked {
    fn wrap(&self, key: &[u8; 32]) -> Result<[u8; 40], WrapError> {
        let mut wrapped = [self.0; 40];
        wrapped.iter_mut().zip(key).for_each(|(out, byte)| *out = byte ^ self.0);
        Ok(wrapped)
    }

    fn unwrap(&self, wrapped: &[u8; 40]) -> Result<[u8; 32], WrapError> {
        if wrapped[32..] != [self.0; 8] {
            return Err(WrapError);
        }
        Ok(std::array::from_fn(|at| wrapped[at] ^ self.0))
    }
}

/// A target whose wrapping key is the number of times that it was destroyed; that fails as long as `stuck`.
fn renewing_host(dir: tempfile::TempDir, key: &Arc<AtomicU8>, stuck: &Arc<AtomicBool>) -> Host {
    let mut options = TargetOptions::new(support::config(dir.path()));
    options.node_key = Some(support::target_key());
    let now = Arc::clone(key);
    options.wraps = Some(Arc::new(move |_| Ok(Arc::new(Masked(now.load(Ordering::SeqCst))))));
    let (key, stuck) = (Arc::clone(key), Arc::clone(stuck));
    options.renew_wrap = Some(Arc::new(move |_| match stuck.load(Ordering::SeqCst) {
        true => Err("the file is stuck".into()),
        false => Ok(Arc::new(Masked(key.fetch_add(1, Ordering::SeqCst) + 1))),
    }));
    Host { target: Some(Target::start(options).unwrap()), dir, node: support::target_key().public() }
}

/// Formats the volume and writes a block, with a block key.
fn format_and_write(initiator: &mut Initiator, counter: u64) -> Vec<u8> {
    initiator.run(registration(ATTACH_ID)).good();
    let mut absent = hole_of(stamp(1 << 40 | counter), 0, 256);
    absent.record = absent.record.with_block_key(&[9; 32]);
    initiator.run(seal_hole(&vendor::encode_holes(&[absent]))).good();
    let data = pattern(counter as u8, 1);
    initiator.run(sealed_write(4, &data, &[record(counter, &data).with_block_key(&[8; 32])])).good();
    data
}

fn sanitize(initiator: &mut Initiator, action: u8) -> Outcome {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (0x48, action);
    initiator.run(Command::read(LUN, cdb, 0))
}

/// The file is there, for whose else it is; what it holds is not used.
fn spec(name: &str, keys: &tempfile::TempDir, file: &str) -> VolumeSpec {
    let key = keys.path().join(file);
    if !key.exists() {
        std::fs::write(&key, "").unwrap();
    }
    let sealed = SealedSpec { wrapping_key: Some(key), ..SealedSpec::new(Custody::Target) };
    VolumeSpec { sealed: Some(sealed), ..VolumeSpec::plain(name, MIB) }
}

fn crash_before_the_key_goes(catalogue: &Catalogue) {
    let mut opened = catalogue.open_volume("vault").unwrap();
    opened.store().submit(strongroom_block::Token(1), strongroom_store::Op::CryptoErase);
    let mut done = Vec::new();
    while !opened.store().erase_awaits_key() {
        opened.store().poll_completions(&mut done);
        assert!(done.is_empty());
        opened.store().wait();
    }
}

const BLOCK_ERASE: u8 = 0x02;
const CRYPTO_ERASE: u8 = 0x03;

#[test]
fn a_cryptographic_erase_destroys_the_key_and_goes_on_after_a_crash() {
    let (key, stuck) = (Arc::new(AtomicU8::new(1)), Arc::new(AtomicBool::new(false)));
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    let keys = tempfile::tempdir().unwrap();
    catalogue.create(&spec("vault", &keys, "one.key")).unwrap();
    catalogue.create(&spec("twin", &keys, "two.key")).unwrap();
    std::os::unix::fs::symlink("two.key", keys.path().join("three.key")).unwrap();
    catalogue.create(&spec("other", &keys, "three.key")).unwrap();
    catalogue.create(&VolumeSpec::sealed("blind", MIB)).unwrap();
    let mut host = renewing_host(dir, &key, &stuck);
    // Whose key is another's too, or not here, is left as it is.
    for name in ["twin", "blind"] {
        let mut initiator = host.channel(name);
        assert!(sanitize(&mut initiator, CRYPTO_ERASE).sense().is(&Sense::INVALID_FIELD_IN_CDB), "{name}");
    }
    let mut initiator = host.channel("vault");
    format_and_write(&mut initiator, 1);
    sanitize(&mut initiator, CRYPTO_ERASE).good();
    assert_eq!(key.load(Ordering::SeqCst), 2, "the old key is gone");
    assert!(read(&mut initiator, 4, 1).sense().is(&Sense::UNRECOVERED_READ), "not formatted");
    let data = format_and_write(&mut initiator, 2);
    assert_eq!(read(&mut initiator, 4, 1).good(), data, "under the new key");

    // A key that does not go: everything is overwritten, but that is not what was asked for.
    stuck.store(true, Ordering::SeqCst);
    assert!(sanitize(&mut initiator, CRYPTO_ERASE).sense().is(&Sense::SANITIZE_FAILED));
    assert!(read(&mut initiator, 4, 1).sense().is(&Sense::SANITIZE_FAILED));
    sanitize(&mut initiator, BLOCK_ERASE).good();
    assert!(read(&mut initiator, 4, 1).sense().is(&Sense::UNRECOVERED_READ));
    format_and_write(&mut initiator, 3);
    stuck.store(false, Ordering::SeqCst);
    initiator.log_out();

    // A crash when nothing can undo it any more, and the key is still there.
    host.target.take().unwrap().stop();
    crash_before_the_key_goes(&catalogue);
    assert_eq!(key.load(Ordering::SeqCst), 2);
    let host = renewing_host(host.dir, &key, &stuck);
    let mut initiator = host.channel("vault");
    support::eventually("it goes on and ends", || {
        let sense = read(&mut initiator, 4, 1).sense();
        assert!(sense.is(&Sense::SANITIZE_IN_PROGRESS) || sense.is(&Sense::UNRECOVERED_READ), "{sense}");
        sense.is(&Sense::UNRECOVERED_READ)
    });
    assert_eq!(key.load(Ordering::SeqCst), 3, "the key went before anything else");
    let data = format_and_write(&mut initiator, 4);
    assert_eq!(read(&mut initiator, 4, 1).good(), data);
}

/// The renewal of the key fails: the erase from before goes on all the same, and the volume can be opened.
#[test]
fn an_erase_that_goes_on_without_its_key_makes_no_volume_unusable() {
    let (key, stuck) = (Arc::new(AtomicU8::new(1)), Arc::new(AtomicBool::new(true)));
    let (dir, keys) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let catalogue = Catalogue::open(dir.path()).unwrap();
    catalogue.create(&spec("vault", &keys, "one.key")).unwrap();
    crash_before_the_key_goes(&catalogue);
    let host = renewing_host(dir, &key, &stuck);
    let mut initiator = host.channel("vault");
    assert!(read(&mut initiator, 4, 1).sense().is(&Sense::SANITIZE_FAILED), "it may have been to destroy the key");
    sanitize(&mut initiator, BLOCK_ERASE).good();
    let data = format_and_write(&mut initiator, 1);
    assert_eq!(read(&mut initiator, 4, 1).good(), data);
    assert_eq!(key.load(Ordering::SeqCst), 1);
}
