//! What a target says about a volume whose key is in a file, against what the file says.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::Arc;

use strongroom_block::{Buffer, DeviceErrorKind, Lba, SealingDomain, StoreSequence};
use strongroom_initiator::{AttachOptions, KeyFileSource, RemoteDevice, flush_blocking, read_blocking, write_blocking};
use strongroom_seal::{KeyPurpose, VolumeKeyFile, VolumeRecord};
use strongroom_store::{Extent, Op, OpenOptions, Outcome, Store};
use strongroom_target::{Catalogue, VolumeSpec};

use super::BLOCK;
use crate::support::{Host, SIZE, Wire};

/// A key file with these epochs, each with a key of its own.
fn key_file(host: &Host, name: &str, epochs: &[u32]) -> Arc<KeyFileSource> {
    let mut text = String::from("strongroom-volume-key 1\n");
    for epoch in epochs {
        let one = VolumeKeyFile::new(KeyPurpose::Volume, &[*epoch as u8; 32]).to_text();
        text += &one.lines().last().unwrap().replace("epoch 1", &format!("epoch {epoch}"));
        text.push('\n');
    }
    let path = host.dir.path().join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    Arc::new(KeyFileSource::new(path))
}

fn options(host: &Host, source: &Arc<KeyFileSource>) -> AttachOptions {
    let mut options = host.options(host.url("vault"));
    options.sealing.key_source = Some(source.clone());
    options
}

fn block(mark: u8) -> Buffer {
    Buffer::copy_from(&[mark; BLOCK])
}

/// The target claims epoch 1 from the first to the last, also after a reconnect: what is written is sealed under the newest epoch of the
/// file, for it opens with nothing but that one's key.
#[test]
fn attack_target_chooses_an_older_epoch_of_the_key_file() {
    let host = Host::start(&[VolumeSpec::sealed("vault", SIZE)]);
    let both = key_file(&host, "both.key", &[1, 2]);
    let wire = Wire::before(&host);
    let device = RemoteDevice::attach(AttachOptions { url: wire.url("vault"), ..options(&host, &both) }).unwrap();
    assert_eq!(device.unit().sealed.unwrap().claims.epoch, 2);
    device.format().unwrap();
    write_blocking(&device, Lba(1), block(1), false).unwrap();
    flush_blocking(&device).unwrap();
    wire.cut();
    write_blocking(&device, Lba(2), block(2), false).unwrap();
    flush_blocking(&device).unwrap();
    assert_eq!(device.status().connections, 2);
    device.detach().unwrap();
    let newest = key_file(&host, "newest.key", &[2]);
    let device = RemoteDevice::attach(options(&host, &newest)).unwrap();
    for mark in [1, 2] {
        assert!(read_blocking(&device, Lba(mark.into()), 1).unwrap()[..] == [mark; BLOCK]);
    }
    assert!(read_blocking(&device, Lba(3), 1).unwrap()[..] == [0; BLOCK], "absences too");
    device.detach().unwrap();
    // Nor is the retired key used again when the file is an older copy of itself.
    let path = host.dir.path().join("both.key");
    let current = std::fs::read(&path).unwrap();
    key_file(&host, "both.key", &[1]);
    let error = RemoteDevice::attach(options(&host, &both)).unwrap_err().to_string();
    assert!(error.contains("replaced by an older copy"), "{error}");
    std::fs::write(&path, current).unwrap();
    RemoteDevice::attach(options(&host, &both)).unwrap().detach().unwrap();
}

/// Has the file record these volumes, each in a domain of its own, as `volume format` does: name, what its target claims, domain.
fn record(source_path: &std::path::Path, volumes: &[(&str, SealingDomain, SealingDomain)]) {
    let mut file = VolumeKeyFile::parse(&std::fs::read_to_string(source_path).unwrap()).unwrap();
    for &(name, claimed, domain) in volumes {
        file.record_volume(VolumeRecord { name: name.into(), claimed, domain }).unwrap();
    }
    std::fs::write(source_path, file.to_text().as_bytes()).unwrap();
}

/// What the target says of a volume's domain, wherever it says it.
fn claimed(host: &Host, volume: &str) -> SealingDomain {
    Catalogue::open(host.dir.path()).unwrap().show(volume).unwrap().volume.sealed.unwrap().domain
}

fn put_newest_block_into(host: &Host, from: &str, to: &str, lba: Lba) {
    let open = |volume: &str| {
        Store::open(&host.dir.path().join(volume).join("store"), &OpenOptions::default(), Arc::new(|| {})).unwrap()
    };
    let mut store = open(from);
    let Outcome::Read(extents) = store.execute(Op::ReadVersion { lba, older_than: StoreSequence(0) }).unwrap() else {
        panic!("a read")
    };
    let [Extent::Blocks { data, records, .. }] = &extents[..] else { panic!("{extents:?}") };
    let (data, records) = (vec![data.clone()], records.clone());
    store.close().unwrap();
    let mut store = open(to);
    store.execute(Op::Write { lba, data, records, fua: true, origin: None }).unwrap();
    store.close().unwrap();
}

/// Two volumes of one key file, whose target claims one domain for both, and swaps a block between them. With a file that records
/// nothing the block of one opens as the other's, at the same address: that is what the record is for.
#[test]
fn attack_one_domain_for_two_volumes() {
    let mut host = Host::start(&[VolumeSpec::sealed("vault", SIZE)]);
    host.stop();
    let domain = claimed(&host, "vault");
    // Another volume, and nobody can tell that from what the target says.
    let [vault, other] = ["vault", "other"].map(|volume| host.dir.path().join(volume));
    let copied = Command::new("cp").arg("-a").args([&vault, &other]).status().unwrap();
    assert!(copied.success());
    let description = other.join("volume.toml");
    let text = std::fs::read_to_string(&description).unwrap().replace("\"vault\"", "\"other\"");
    std::fs::write(&description, text).unwrap();
    host.start_again();
    for is_recorded in [false, true] {
        let name = if is_recorded { "recorded.key" } else { "bare.key" };
        let source = key_file(&host, name, &[1]);
        if is_recorded {
            let own = [SealingDomain([0xa; 16]), SealingDomain([0xb; 16])];
            record(&host.dir.path().join(name), &[("vault", domain, own[0]), ("other", domain, own[1])]);
        }
        let attach = |volume: &str| {
            let url = host.url(volume);
            let options = AttachOptions { url, ..options(&host, &source) };
            let device = RemoteDevice::attach(options).unwrap();
            assert_eq!(device.unit().sealed.unwrap().claims.domain, domain, "the target claims it of both");
            device
        };
        for (volume, mark) in [("vault", 1), ("other", 2)] {
            let device = attach(volume);
            device.format().unwrap();
            write_blocking(&device, Lba(5), block(mark), false).unwrap();
            device.detach().unwrap();
        }
        host.stop();
        put_newest_block_into(&host, "vault", "other", Lba(5));
        host.start_again();
        let source = key_file_as_it_is(&host, name);
        let url = host.url("other");
        let device = RemoteDevice::attach(AttachOptions { url, ..options(&host, &source) }).unwrap();
        match (is_recorded, read_blocking(&device, Lba(5), 1)) {
            (false, Ok(data)) => assert!(data[..] == [1; BLOCK], "a file of version 1 cannot prevent it"),
            (true, Err(error)) => {
                assert_eq!((error.kind, error.lba), (DeviceErrorKind::Medium, Some(Lba(5))), "{error}");
            }
            (_, result) => panic!("recorded: {is_recorded}: {result:?}"),
        }
        device.detach().unwrap();
    }
}

fn key_file_as_it_is(host: &Host, name: &str) -> Arc<KeyFileSource> {
    Arc::new(KeyFileSource::new(host.dir.path().join(name)))
}

/// The target answers for one volume of a key file with another one.
#[test]
fn attack_another_volume_of_the_same_key_file() {
    let host = Host::start(&[VolumeSpec::sealed("vault", SIZE), VolumeSpec::sealed("other", SIZE)]);
    let source = key_file(&host, "both.key", &[1]);
    let path = host.dir.path().join("both.key");
    let [vault, other] = ["vault", "other"].map(|volume| claimed(&host, volume));
    let attach =
        |volume: &str| RemoteDevice::attach(AttachOptions { url: host.url(volume), ..options(&host, &source) });
    let refused = |volume: &str, part: &str| {
        let error = attach(volume).unwrap_err().to_string();
        assert!(error.contains(part), "{volume}: {error}");
    };
    // The file is of one volume: under any name and at any target, but no other volume.
    record(&path, &[("archive", vault, SealingDomain([0xa; 16]))]);
    attach("vault").unwrap().detach().unwrap();
    refused("other", "strongroom key record");
    // The names are exchanged.
    record(&path, &[("vault", other, SealingDomain([0xb; 16])), ("other", vault, SealingDomain([0xa; 16]))]);
    refused("vault", "shows another volume than 'vault'");
    refused("other", "shows another volume than 'other'");
    // A name that is not recorded, and a volume that is under another one.
    let mut file = VolumeKeyFile::parse(&std::fs::read_to_string(&path).unwrap()).unwrap();
    file.retain_volumes(|known| known.name != "vault");
    std::fs::write(&path, file.to_text().as_bytes()).unwrap();
    record(&path, &[("archive", vault, SealingDomain([0xa; 16])), ("third", other, SealingDomain([0xb; 16]))]);
    refused("vault", "--same-as other");
}
