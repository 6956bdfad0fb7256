//! Proves what a volume is that the target opens on arrival (the WAN paper's placement): sealed on the wire, plaintext in the store, and
//! nothing gets in that does not open. The target has a copy of the volume's key, outside its store.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use strongroom_block::{BlockDevice, Buffer, Custody, DeviceErrorKind, Lba, keyless_checksum};
use strongroom_channel::Scheme;
use strongroom_initiator::{
    KeyFileSource, RemoteDevice, discard_blocking, flush_blocking, read_blocking, write_blocking, write_part_blocking,
};
use strongroom_seal::{KeyPurpose, VolumeKeyFile};
use strongroom_target::{SealedSpec, VolumeSpec};

use crate::support::{Host, SIZE, Wire, keep_the_checksum};

const BLOCK: usize = 4096;
const MARK: &[u8; 32] = b"plain for the target and a disk.";

/// The key file of every target here: the same key as initiators have.
static KEY: LazyLock<(tempfile::TempDir, PathBuf)> = LazyLock::new(|| {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("opening.key");
    std::fs::write(&path, VolumeKeyFile::new(KeyPurpose::Volume, &[7; 32]).to_text().as_bytes()).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    (dir, path)
});

fn spec(opened_with: PathBuf) -> VolumeSpec {
    let sealed = SealedSpec { opened_with: Some(opened_with), ..SealedSpec::new(Custody::KeyFile) };
    VolumeSpec { sealed: Some(sealed), ..VolumeSpec::plain("vault", SIZE) }
}

/// Formatted, and four blocks from 9 on full of the mark.
fn host() -> Host {
    let host = Host::start(&[spec(KEY.1.clone())]);
    let device = host.attach("vault");
    device.format().unwrap();
    write(&device, MARK);
    flush_blocking(&device).unwrap();
    device.detach().unwrap();
    host
}

fn filled(pattern: &[u8; 32]) -> Vec<u8> {
    pattern.repeat(4 * BLOCK / 32)
}

fn write(device: &RemoteDevice, pattern: &[u8; 32]) {
    write_blocking(device, Lba(9), Buffer::copy_from(&filled(pattern)), false).unwrap();
}

fn holds(device: &RemoteDevice, pattern: &[u8; 32]) -> bool {
    read_blocking(device, Lba(9), 4).unwrap()[..] == filled(pattern)[..]
}

fn has(bytes: &[u8], pattern: &[u8]) -> bool {
    bytes.windows(pattern.len()).any(|window| window == pattern)
}

fn log(host: &Host) -> Vec<u8> {
    std::fs::read(host.dir.path().join("vault/store/log")).unwrap()
}

#[test]
fn sealed_on_the_wire_and_plain_in_the_store() {
    let mut host = host();
    let wire = Wire::before(&host);
    let (blocks, shown) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    for is_up in [true, false] {
        let (blocks, shown) = (blocks.clone(), shown.clone());
        let look = move |message: &mut crate::support::Message<'_>| {
            blocks.fetch_add(usize::from(message.has_blocks()), Ordering::Relaxed);
            shown.fetch_add(usize::from(has(message.bytes, MARK)), Ordering::Relaxed);
        };
        if is_up { wire.tamper_towards_target(look) } else { wire.tamper_towards_initiator(look) }
    }
    let device = RemoteDevice::attach(host.options(wire.url("vault"))).unwrap();
    write(&device, MARK);
    assert!(holds(&device, MARK));
    flush_blocking(&device).unwrap();
    assert!(blocks.load(Ordering::Relaxed) >= 2, "blocks crossed the wire, both ways");
    assert_eq!(shown.load(Ordering::Relaxed), 0, "and none in the clear");
    device.detach().unwrap();
    // What it means for the target's disk, after a restart too.
    host.stop();
    assert!(has(&log(&host), MARK), "the store holds plaintext");
    host.start_again();
    let device = host.attach("vault");
    assert!(holds(&device, MARK));
    assert!(host.stats().background_crypto.total() > 0, "the target did cryptography, and says so");
    device.detach().unwrap();
}

#[test]
fn parts_of_blocks_and_absence_are_as_on_any_sealed_volume() {
    let host = host();
    let device = host.attach("vault");
    write_part_blocking(&device, Lba(10), 100, Buffer::copy_from(b"changed")).unwrap();
    let block = read_blocking(&device, Lba(10), 1).unwrap();
    assert!(&block[100..107] == b"changed" && block[..100] == filled(MARK)[..100]);
    discard_blocking(&device, Lba(11), 2).unwrap();
    assert!(read_blocking(&device, Lba(11), 2).unwrap().iter().all(|byte| *byte == 0));
    assert!(device.hole_at(Lba(11), 2).unwrap() > 0, "absence is sealed");
    write(&device, MARK);
    assert!(holds(&device, MARK));
    device.detach().unwrap();
}

/// Under a lazy scheme nobody else would notice before the next reader: here the target does, and refuses.
#[test]
fn attack_a_block_that_does_not_open_is_refused_and_the_writer_told() {
    let host = host();
    for scheme in [Scheme::Lazy, Scheme::LazyDecrypt] {
        let wire = Wire::before(&host);
        let mut options = host.options(wire.url("vault"));
        options.channel.scheme = Some(scheme);
        let device = RemoteDevice::attach(options).unwrap();
        let tries = Arc::new(AtomicUsize::new(0));
        let count = tries.clone();
        wire.tamper_towards_target(move |message| {
            if message.has_blocks() && count.fetch_add(1, Ordering::Relaxed) == 0 {
                let third = message.data.start + 2 * BLOCK;
                let block = &mut message.bytes[third..third + BLOCK];
                keep_the_checksum(block, keyless_checksum);
            }
        });
        let written = write_blocking(&device, Lba(9), Buffer::copy_from(&filled(&[0x55; 32])), false);
        match scheme.checks_on_arrival() {
            // The channel noticed first; the write was sent again, whole.
            true => written.unwrap(),
            false => {
                let error = written.unwrap_err();
                assert_eq!((error.kind, error.lba), (DeviceErrorKind::Refused, Some(Lba(11))), "{error}");
                assert!(error.to_string().contains("cannot open this block"), "{error}");
                assert!(holds(&device, MARK), "nothing of the write was done");
            }
        }
        assert!(tries.load(Ordering::Relaxed) > 0);
        wire.behave();
        write(&device, MARK);
        assert!(holds(&device, MARK), "the volume goes on");
        device.detach().unwrap();
    }
}

#[test]
fn attack_a_writer_with_another_key_is_refused_block_and_absence() {
    let host = host();
    let mut options = host.options(host.url("vault"));
    options.sealing.key_source = Some(Arc::new(KeyFileSource::new(host.dir.path().join("wrong.key"))));
    let stranger = RemoteDevice::attach(options).unwrap();
    let error = write_blocking(&stranger, Lba(9), Buffer::copy_from(&[1; BLOCK]), false).unwrap_err();
    assert_eq!((error.kind, error.lba), (DeviceErrorKind::Refused, Some(Lba(9))), "{error}");
    let error = discard_blocking(&stranger, Lba(9), 1).unwrap_err();
    assert_eq!(error.kind, DeviceErrorKind::Refused, "{error}");
    stranger.detach().unwrap();
    let device = host.attach("vault");
    assert!(holds(&device, MARK), "what the right key wrote is there");
    device.detach().unwrap();
}

#[test]
fn without_its_key_the_volume_is_not_served_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("gone.key");
    let host = Host::start(&[spec(path.clone())]);
    let error = host.attach_error(|options| options.timeouts.connect = std::time::Duration::from_secs(2));
    assert!(error.to_string().contains("refused the login"), "{error}");
    std::fs::copy(&KEY.1, &path).unwrap();
    let device = host.attach("vault");
    device.format().unwrap();
    assert_eq!(device.geometry().bytes(), SIZE);
    device.detach().unwrap();
}
