//! Proves the whole way on the real kernel: ext4 on a loop device on the FUSE file of a sealed volume keeps its files while the
//! target is restarted underneath and the connection is cut, and a second initiator reads them. Needs root, /dev/fuse,
//! loop devices and mkfs.ext4; says so and passes where they are missing.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{Host, Wire};
use strongroom_initiator::RemoteDevice;
use strongroom_initiator::front::file_system::FileSystemMount;
use strongroom_initiator::front::fuse::{FuseMount, FuseOptions};
use strongroom_initiator::front::loop_device::LoopDevice;
use strongroom_initiator::front::mount_options::MountOptions;
use strongroom_target::VolumeSpec;

fn mounted(device: &Arc<RemoteDevice>, at: &Path, files: &Path) -> Option<(FileSystemMount, FuseMount)> {
    let fuse = FuseMount::start(device.clone(), at, &FuseOptions::new("vault")).unwrap();
    let backing = fuse.open_file(false).unwrap();
    let loop_device = match LoopDevice::attach(&backing, fuse.file_path(), 4096, false) {
        Ok(loop_device) => loop_device,
        Err(error) => {
            eprintln!("skipped: {error}");
            return None;
        }
    };
    drop(backing);
    Some((FileSystemMount::mount(loop_device, files, Some("ext4"), &MountOptions::default(), false).unwrap(), fuse))
}

/// What another test starts holds, until it runs, copies of all files that are open here: on a busy machine for a while.
const PATIENCE: Duration = Duration::from_secs(60);

fn content(number: u32) -> Vec<u8> {
    (0..200_000_u32).flat_map(|at| (at ^ number.wrapping_mul(0x9e37_79b9)).to_le_bytes()).collect()
}

#[test]
fn files_survive_restarts_and_cuts_and_a_second_initiator_reads_them() {
    if !Path::new("/dev/fuse").exists() || !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs /dev/fuse and root");
        return;
    }
    let mut host = Host::start(&[VolumeSpec::sealed("vault", 128 << 20)]);
    let wire = Wire::before(&host);
    let (at, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let device = Arc::new(RemoteDevice::attach(host.options(wire.url("vault"))).unwrap());
    device.format().unwrap();
    let fuse = FuseMount::start(device.clone(), at.path(), &FuseOptions::new("vault")).unwrap();
    let made = Command::new("mkfs.ext4").args(["-q", "-F", "-b", "4096"]).arg(fuse.file_path()).status();
    fuse.finish_within(PATIENCE).map_err(|(_, error)| error).unwrap();
    if !made.is_ok_and(|status| status.success()) {
        eprintln!("skipped: needs mkfs.ext4");
        return;
    }
    let Some((file_system, fuse)) = mounted(&device, at.path(), files.path()) else { return };
    let directory = files.path().to_owned();
    let writer = std::thread::spawn(move || {
        for number in 0..40 {
            let path = directory.join(format!("file-{number}"));
            std::fs::write(&path, content(number)).unwrap();
            if number % 8 == 0 {
                std::fs::File::open(&path).unwrap().sync_all().unwrap();
            }
        }
    });
    for _ in 0..2 {
        std::thread::sleep(Duration::from_millis(100));
        wire.cut();
        std::thread::sleep(Duration::from_millis(100));
        host.stop();
        std::thread::sleep(Duration::from_millis(100));
        host.start_again();
    }
    writer.join().unwrap();
    file_system.unmount_within(PATIENCE).map_err(|(_, error)| error).unwrap();
    fuse.finish_within(PATIENCE).map_err(|(_, error)| error).unwrap();
    device.detach().unwrap();

    let bob = Arc::new(RemoteDevice::attach(host.bobs_options(host.url("vault"))).unwrap());
    let Some((file_system, fuse)) = mounted(&bob, at.path(), files.path()) else { return };
    for number in 0..40 {
        assert!(std::fs::read(files.path().join(format!("file-{number}"))).unwrap() == content(number), "{number}");
    }
    file_system.unmount_within(PATIENCE).map_err(|(_, error)| error).unwrap();
    let clean = Command::new("fsck.ext4").args(["-f", "-n"]).arg(fuse.file_path()).output().unwrap();
    assert!(clean.status.success(), "{}", String::from_utf8_lossy(&clean.stdout));
    fuse.finish_within(PATIENCE).map_err(|(_, error)| error).unwrap();
    bob.detach().unwrap();
}
