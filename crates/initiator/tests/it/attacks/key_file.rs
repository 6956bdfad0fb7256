//! What a target says about a volume whose key is in a file, against what the file says.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use strongroom_block::{Buffer, Lba};
use strongroom_initiator::{AttachOptions, KeyFileSource, RemoteDevice, flush_blocking, read_blocking, write_blocking};
use strongroom_seal::{KeyPurpose, VolumeKeyFile};
use strongroom_target::VolumeSpec;

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
    AttachOptions { key_source: Some(source.clone()), ..host.options(host.url("vault")) }
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
