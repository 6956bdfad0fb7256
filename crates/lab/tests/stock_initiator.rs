//! Proves that the stock initiator works as a block device: what libiscsi writes to our own plain volume it reads back, many
//! commands at once; a refused command is an error; a lost connection fails everything in flight and hangs nothing.
//!
//! Passes over itself, and says so, where libiscsi is not installed.

use std::path::Path;
use std::time::Duration;

use strongroom_block::{BlockDevice, Buffer, BufferMut, Completion, Lba, Request, Token};
use strongroom_lab::libiscsi::{self, LibiscsiDevice, LibiscsiOptions};
use strongroom_target::config::PlainRule;
use strongroom_target::{Catalogue, Config, Target, TargetHandle, TargetOptions, VolumeSpec};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 256;

fn target(root: &Path) -> TargetHandle {
    let spec = VolumeSpec { block_size: BLOCK as u64, ..VolumeSpec::plain("disk", BLOCKS * BLOCK as u64) };
    Catalogue::open(root).unwrap().create(&spec).unwrap();
    let mut config = Config::new(root);
    config.listen = vec!["127.0.0.1:0".parse().unwrap()];
    config.workers = Some(1);
    config.limits.stop_timeout_s = 1;
    config.plain.push(PlainRule { initiators: vec!["*".into()], volumes: vec!["*".into()], ..PlainRule::default() });
    Target::start(TargetOptions::new(config)).unwrap()
}

fn options(target: &TargetHandle) -> LibiscsiOptions {
    LibiscsiOptions {
        portal: target.local_addresses()[0].to_string(),
        target_name: "iqn.2026-11.org.strongroom:disk".into(),
        lun: 0,
        initiator_name: "iqn.2026-11.org.example:stock".into(),
        initial_r2t: false,
    }
}

fn missing() -> bool {
    let missing = libiscsi::available().err();
    if let Some(missing) = &missing {
        eprintln!("passed over: {missing}");
    }
    missing.is_some()
}

fn collect(device: &LibiscsiDevice, count: usize) -> Vec<Completion> {
    let mut completions = Vec::new();
    while completions.len() < count {
        assert!(device.wait(Some(Duration::from_secs(20))), "{} of {count} completed", completions.len());
        device.poll_completions(&mut completions);
    }
    completions
}

fn content(lba: u64) -> Vec<u8> {
    (0..BLOCK as u64).map(|at| (at * 7 + lba * 131) as u8).collect()
}

#[test]
fn what_is_written_is_read() {
    if missing() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let target = target(dir.path());
    for initial_r2t in [false, true] {
        let device = LibiscsiDevice::attach(&LibiscsiOptions { initial_r2t, ..options(&target) }).unwrap();
        assert_eq!((device.geometry().blocks, device.geometry().block_size.bytes()), (BLOCKS, BLOCK as _));
        for lba in 0..64 {
            let data = Buffer::copy_from(&content(lba + u64::from(initial_r2t)));
            device.submit(Token(lba), Request::Write { lba: Lba(lba), data, fua: lba % 2 == 0 });
        }
        assert!(collect(&device, 64).iter().all(|done| matches!(done.result, Ok(None))));
        device.submit(Token(999), Request::Flush);
        assert!(collect(&device, 1)[0].result.is_ok());
        for lba in 0..32 {
            device.submit(Token(lba), Request::Read { lba: Lba(2 * lba), buffer: BufferMut::zeroed(2 * BLOCK) });
        }
        for done in collect(&device, 32) {
            let buffer = done.result.unwrap().expect("a read completes with its buffer");
            for (at, block) in buffer.chunks(BLOCK).enumerate() {
                let lba = 2 * done.token.0 + at as u64;
                assert!(*block == content(lba + u64::from(initial_r2t))[..], "block {lba}");
            }
        }
    }
    target.stop();
}

#[test]
fn what_fails_is_an_error_and_nothing_hangs() {
    if missing() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let target = target(dir.path());
    let wrong = LibiscsiOptions { target_name: "iqn.2026-11.org.strongroom:other".into(), ..options(&target) };
    let error = LibiscsiDevice::attach(&wrong).err().expect("there is no such target").to_string();
    assert!(error.contains("iqn.2026-11.org.strongroom:other/0"), "{error}");

    let device = LibiscsiDevice::attach(&options(&target)).unwrap();
    device.submit(Token(1), Request::Read { lba: Lba(BLOCKS), buffer: BufferMut::zeroed(BLOCK) });
    let error = collect(&device, 1).remove(0).result.unwrap_err();
    assert!(error.message.contains("SCSI status"), "{error}");
    assert!(!device.wait(Some(Duration::from_millis(20))), "nothing is in flight");

    target.stop();
    device.submit(Token(2), Request::Read { lba: Lba(0), buffer: BufferMut::zeroed(BLOCK) });
    device.submit(Token(3), Request::Flush);
    assert!(collect(&device, 2).iter().all(|done| done.result.is_err()));
    device.submit(Token(4), Request::Flush);
    assert!(collect(&device, 1)[0].result.is_err(), "a lost session stays lost");
}
