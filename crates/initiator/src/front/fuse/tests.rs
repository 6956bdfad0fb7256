//! Proves, on the real kernel, that programs see the volume's bytes through the file: aligned or not, many at once, with
//! errors as errors, and that it comes and goes cleanly. Needs /dev/fuse and root; says so and passes where it has neither.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

use strongroom_block::{BlockSize, Completion, CompletionSink, DeviceErrorKind, Geometry, Lba, Request, Token};

use super::*;
use crate::MemoryDevice;
use crate::front::file_system::FileSystemMount;
use crate::front::loop_device::LoopDevice;
use crate::front::mount_options::MountOptions;

const SIZE: u64 = 1 << 20;

fn can_mount() -> bool {
    let can = Path::new("/dev/fuse").exists() && rustix::process::geteuid().is_root();
    if !can {
        eprintln!("skipped: needs /dev/fuse and root");
    }
    can
}

fn device(size_bytes: u64) -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::new(Geometry::from_bytes(size_bytes, BlockSize::DEFAULT).unwrap()))
}

fn mounted(device: &Arc<MemoryDevice>, read_only: bool) -> (tempfile::TempDir, FuseMount) {
    let dir = tempfile::tempdir().unwrap();
    let options = FuseOptions { read_only, ..FuseOptions::new("vault") };
    let mount = FuseMount::start(device.clone(), dir.path(), &options).unwrap();
    (dir, mount)
}

/// Ends it. What another test starts holds, until it runs, copies of all files that are open here: on a busy machine for a while.
const PATIENCE: Duration = Duration::from_secs(60);

#[track_caller]
fn finished(mount: FuseMount) {
    mount.finish_within(PATIENCE).map_err(|(_, error)| error).unwrap();
}

#[test]
fn a_file_of_the_volumes_name_and_size() {
    if !can_mount() {
        return;
    }
    let device = device(SIZE);
    let (dir, mount) = mounted(&device, false);
    let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["vault"]);
    let metadata = mount.file_path().metadata().unwrap();
    assert_eq!((metadata.len(), metadata.mode() & 0o777), (SIZE, 0o600));
    for refused in [File::create(dir.path().join("other")).err(), std::fs::remove_file(mount.file_path()).err()] {
        assert_eq!(refused.unwrap().kind(), ErrorKind::PermissionDenied);
    }
    finished(mount);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    assert_eq!(device.counts().flushes, 1, "the end makes everything durable");
}

#[test]
fn aligned_and_unaligned_access_sync_and_holes() {
    if !can_mount() {
        return;
    }
    let device = device(SIZE);
    let (_dir, mount) = mounted(&device, false);
    let mut file = File::options().read(true).write(true).open(mount.file_path()).unwrap();
    let mut model = vec![0_u8; SIZE as usize];
    for (at, len) in [(0, 4096), (5000, 100), (4095, 2), (8192, 300_000), (77_777, 123_457), (SIZE as usize - 10, 10)] {
        let data: Vec<u8> = (0..len).map(|i| (i * 7 + at) as u8 | 1).collect();
        file.write_all_at(&data, at as u64).unwrap();
        model[at..at + len].copy_from_slice(&data);
    }
    let mut all = Vec::new();
    file.read_to_end(&mut all).unwrap();
    assert!(all == model);
    file.seek(SeekFrom::Start(12_345)).unwrap();
    let mut some = vec![0; 54_321];
    file.read_exact(&mut some).unwrap();
    assert!(some == model[12_345..12_345 + 54_321]);
    // Beyond the end there is nothing to read and no room to write.
    assert_eq!(file.read_at(&mut [0; 10], SIZE).unwrap(), 0);
    assert_eq!(file.write_at(&[1; 10], SIZE).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    file.sync_all().unwrap();
    assert_eq!(device.counts().flushes, 1);
    use rustix::fs::{FallocateFlags, fallocate};
    fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 5000, 20_000).unwrap();
    model[5000..25_000].fill(0);
    let mut all = vec![0; SIZE as usize];
    file.read_exact_at(&mut all, 0).unwrap();
    assert!(all == model);
    assert_eq!(device.counts().discarded_blocks, 4, "whole blocks are forgotten, the ends zeroed");
    let synchronous = File::options().write(true).custom_flags(libc::O_SYNC).open(mount.file_path()).unwrap();
    synchronous.write_all_at(&[9; 4096], 0).unwrap();
    assert_eq!(device.counts().forced_writes, 1);
    // As on a block device: truncation on opening means nothing, and the size stands.
    drop(File::create(mount.file_path()).unwrap());
    assert_eq!(mount.file_path().metadata().unwrap().len(), SIZE);
    assert!(file.set_len(5).is_err());
    drop((file, synchronous));
    finished(mount);
}

#[test]
fn the_file_grows_with_the_device_and_a_loop_device_with_the_file() {
    if !can_mount() {
        return;
    }
    let device = device(SIZE);
    let (_dir, mount) = mounted(&device, false);
    let file = mount.open_file(false).unwrap();
    let len = || file.metadata().unwrap().len();
    assert_eq!(len(), SIZE);
    device.grow_to(2 * SIZE / 4096);
    assert_eq!(len(), SIZE, "the kernel was not told");
    assert_eq!(mount.shown_size().refresh().unwrap(), 2 * SIZE);
    assert_eq!(len(), 2 * SIZE);
    let page = AlignedPage([7; 4096]);
    file.write_all_at(&page.0, 2 * SIZE - 4096).unwrap();
    let mut found = AlignedPage([0; 4096]);
    file.read_exact_at(&mut found.0, 2 * SIZE - 4096).unwrap();
    assert!(found.0 == page.0);
    assert_eq!(file.write_at(&page.0, 2 * SIZE).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    match LoopDevice::attach(&file, mount.file_path(), 4096, false) {
        Ok(loop_device) => {
            let sectors = Path::new("/sys/class/block").join(loop_device.path().file_name().unwrap()).join("size");
            let sectors = || std::fs::read_to_string(&sectors).unwrap().trim().parse::<u64>().unwrap();
            assert_eq!(sectors(), 2 * SIZE / 512);
            device.grow_to(3 * SIZE / 4096);
            assert_eq!(mount.shown_size().refresh().unwrap(), 3 * SIZE);
            assert_eq!(sectors(), 2 * SIZE / 512, "a loop device asks only when it is told to");
            crate::front::loop_device::refresh_size(loop_device.path()).unwrap();
            assert_eq!(sectors(), 3 * SIZE / 512);
        }
        Err(error) => eprintln!("without a loop device: {error}"),
    }
    drop(file);
    mount.finish().unwrap();
}

#[test]
fn errors_reach_the_program_and_spare_the_rest() {
    if !can_mount() {
        return;
    }
    let device = device(SIZE);
    device.fail_at(Lba(3), DeviceErrorKind::Medium);
    device.fail_at(Lba(9), DeviceErrorKind::NoSpace);
    let (_dir, mount) = mounted(&device, false);
    let file = mount.open_file(false).unwrap();
    let mut page = AlignedPage([0; 4096]);
    assert_eq!(file.read_at(&mut page.0, 3 * 4096).unwrap_err().raw_os_error(), Some(libc::EIO));
    assert_eq!(file.write_at(&page.0, 9 * 4096).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(file.read_at(&mut page.0, 4 * 4096).unwrap(), 4096);
    drop(file);
    finished(mount);
}

#[repr(align(4096))]
struct AlignedPage([u8; 4096]);

#[test]
fn an_end_amid_a_request_is_a_clean_end() {
    let error = |number| Err(io::Error::from_raw_os_error(number));
    assert!(unless_unmounted(error(libc::ECONNABORTED)).is_ok());
    assert_eq!(unless_unmounted(error(libc::EIO)).unwrap_err().raw_os_error(), Some(libc::EIO));
    if !can_mount() {
        return;
    }
    // Often enough that some unmount meets the RELEASE of the file that was just closed: about one in 500 does.
    std::thread::scope(|scope| {
        for _ in 0..24 {
            scope.spawn(|| {
                for _ in 0..12 {
                    let device = device(SIZE);
                    let (_dir, mount) = mounted(&device, false);
                    let file = mount.open_file(false).unwrap();
                    file.read_at(&mut AlignedPage([0; 4096]).0, 0).unwrap();
                    drop(file);
                    finished(mount);
                }
            });
        }
    });
}

#[test]
fn read_only_means_it() {
    if !can_mount() {
        return;
    }
    let device = device(SIZE);
    let (_dir, mount) = mounted(&device, true);
    assert_eq!(File::options().write(true).open(mount.file_path()).unwrap_err().raw_os_error(), Some(libc::EROFS));
    assert!(std::fs::read(mount.file_path()).unwrap().iter().all(|&byte| byte == 0));
    finished(mount);
}

#[test]
fn a_mount_in_use_says_so_and_goes_on() {
    if !can_mount() {
        return;
    }
    let device = device(SIZE);
    let (_dir, mount) = mounted(&device, false);
    let file = File::open(mount.file_path()).unwrap();
    let (mount, error) = mount.finish().unwrap_err();
    assert!(matches!(error, FuseError::Busy { .. }), "{error}");
    let mount = mount.expect("handed back");
    assert_eq!(file.read_at(&mut [0; 100], 0).unwrap(), 100);
    assert!(!mount.wait_ended(Some(Duration::ZERO)));
    drop(file);
    // Somebody else unmounts: that ends it as well.
    let end = Instant::now() + Duration::from_secs(60);
    while let Err(error) = unmount(mount.mount_point(), UnmountFlags::empty()) {
        assert!(error == rustix::io::Errno::BUSY && Instant::now() < end, "{error}");
    }
    assert!(mount.wait_ended(Some(Duration::from_secs(60))));
    finished(mount);
}

#[test]
fn what_cannot_be_mounted_on_is_explained() {
    let device = device(SIZE);
    let start = |path: &str, name: &str| {
        FuseMount::start(device.clone(), Path::new(path), &FuseOptions::new(name)).unwrap_err().to_string()
    };
    assert!(start("/nonexistent", "v").contains("mkdir"));
    assert!(start("/etc/passwd", "v").contains("not a directory"));
    assert!(start("/tmp", "a/b").contains("cannot be a file's name"));
}

#[test]
fn many_threads_write_at_once() {
    if !can_mount() {
        return;
    }
    let device = device(4 << 20);
    let (_dir, mount) = mounted(&device, false);
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let path = mount.file_path();
            scope.spawn(move || {
                let file = File::options().read(true).write(true).open(path).unwrap();
                for round in 0..32_u64 {
                    // Adjacent writes in one block, so that parts of it are replaced at once.
                    let at = round * 65_536 + thread * 500;
                    file.write_all_at(&[thread as u8 + 1; 500], at).unwrap();
                }
            });
        }
    });
    let all = std::fs::read(mount.file_path()).unwrap();
    for round in 0..32 {
        for thread in 0..8 {
            let at = round * 65_536 + thread * 500;
            assert!(all[at..at + 500].iter().all(|&byte| byte == thread as u8 + 1));
        }
    }
    finished(mount);
}

#[test]
fn a_file_system_on_a_loop_device_on_it() {
    if !can_mount() || !Path::new("/dev/loop-control").exists() {
        return;
    }
    let device = device(64 << 20);
    let (_dir, mount) = mounted(&device, false);
    let made = std::process::Command::new("mkfs.ext4").args(["-q", "-F", "-b", "4096"]).arg(mount.file_path()).status();
    if !made.is_ok_and(|status| status.success()) {
        eprintln!("skipped: needs mkfs.ext4");
        return;
    }
    let files = tempfile::tempdir().unwrap();
    let content: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
    for round in 0..2 {
        let backing = mount.open_file(false).unwrap();
        let loop_device = match LoopDevice::attach(&backing, mount.file_path(), 4096, false) {
            Ok(loop_device) => loop_device,
            Err(error) => {
                eprintln!("skipped: {error}");
                return;
            }
        };
        drop(backing);
        assert_eq!(loop_device.sector_bytes(), 4096);
        let file_system =
            FileSystemMount::mount(loop_device, files.path(), None, &MountOptions::default(), false).unwrap();
        let path = files.path().join("file");
        if round == 0 {
            std::fs::write(&path, &content).unwrap();
            let open = File::open(&path).unwrap();
            let (file_system, error) = file_system.unmount().unwrap_err();
            assert!(error.to_string().contains("in use"), "{error}");
            drop(open);
            file_system.unmount_within(PATIENCE).map_err(|(_, error)| error).unwrap();
        } else {
            assert!(std::fs::read(&path).unwrap() == content);
            // What the file system forgets, the volume forgets.
            std::fs::remove_file(&path).unwrap();
            let _ = std::process::Command::new("fstrim").arg(files.path()).status();
            file_system.unmount_within(PATIENCE).map_err(|(_, error)| error).unwrap();
        }
    }
    assert!(device.counts().flushes > 0);
    finished(mount);
}

#[test]
fn an_empty_volume_has_no_file_system() {
    if !can_mount() || !Path::new("/dev/loop-control").exists() {
        return;
    }
    let device = device(SIZE);
    let (_dir, mount) = mounted(&device, false);
    let backing = mount.open_file(false).unwrap();
    assert!(backing.as_raw_fd() > 0);
    if let Ok(loop_device) = LoopDevice::attach(&backing, mount.file_path(), 4096, false) {
        drop(backing);
        let error =
            FileSystemMount::mount(loop_device, Path::new("/mnt"), None, &MountOptions::default(), false).unwrap_err();
        assert!(error.to_string().contains("--mkfs ext4"), "{error}");
        finished(mount);
    }
}

/// Takes completions of even tokens.
#[derive(Debug, Default)]
struct EvenTokens(std::sync::Mutex<Vec<u64>>);

impl CompletionSink for EvenTokens {
    fn complete(&self, completion: Completion) -> Option<Completion> {
        if completion.token.0 % 2 == 1 {
            return Some(completion);
        }
        self.0.lock().unwrap().push(completion.token.0);
        None
    }
}

#[test]
fn the_newest_sink_is_offered_completions_before_they_can_be_polled() {
    let device = device(SIZE);
    let (first, second) = (Arc::new(EvenTokens::default()), Arc::new(EvenTokens::default()));
    for (sink, tokens) in [(&first, [0, 1]), (&second, [2, 3])] {
        device.offer_completions(sink.clone());
        for token in tokens {
            device.submit(Token(token), Request::Flush);
        }
    }
    let mut polled = Vec::new();
    device.poll_completions(&mut polled);
    assert_eq!(polled.iter().map(|completion| completion.token.0).collect::<Vec<_>>(), [1, 3]);
    assert_eq!([&first, &second].map(|sink| sink.0.lock().unwrap().clone()), [[0], [2]]);
}
