//! Proves that a copy moves exactly the contents between any two kinds of ends, leaves absence absent, and that every
//! mismatch of sizes is refused before anything is written. Volumes are devices in memory.

use std::os::unix::fs::{FileExt, MetadataExt};

use proptest::prelude::*;
use strongroom_block::{BlockSize, Buffer, DeviceErrorKind, Geometry};

use super::*;
use crate::{read_blocking, write_blocking};

fn volume(bytes: u64, block_bytes: u64) -> Arc<MemoryDevice> {
    let geometry = Geometry::from_bytes(bytes, BlockSize::new(block_bytes).unwrap()).unwrap();
    Arc::new(MemoryDevice::new(geometry))
}

fn quiet(_: &Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn ends(volume: &Arc<MemoryDevice>) -> Endpoint {
    Endpoint::Volume(volume.clone())
}

const SIZE: u64 = 8 << 20;

/// Data at the start, in the middle and at the end; absent elsewhere.
fn sparse_file(dir: &std::path::Path) -> PathBuf {
    let path = dir.join("image");
    let file = File::create(&path).unwrap();
    file.set_len(SIZE).unwrap();
    for (offset, len, mark) in [(0, 4096, 1), (3 << 20, 100_000, 2), (SIZE - 8192, 8192, 3)] {
        file.write_all_at(&vec![mark; len], offset).unwrap();
    }
    path
}

use std::fs::File;

#[test]
fn file_to_volume_to_file_keeps_contents_and_absence() {
    let dir = tempfile::tempdir().unwrap();
    let path = sparse_file(dir.path());
    let original = std::fs::read(&path).unwrap();
    let device = volume(SIZE, 4096);
    let options = CopyOptions { sha256: true, verify: true, ..CopyOptions::default() };
    let report = copy(&Endpoint::File(path), &ends(&device), options, &mut quiet).unwrap();
    assert_eq!(report.sums.crc64, strongroom_block::keyless_checksum(&original));
    assert!(report.verified && report.hole_bytes > 4 << 20, "{report:?}");
    assert_eq!(report.bytes, SIZE);
    let counts = device.counts();
    assert!(counts.blocks_present < 2000 && counts.flushes == 1 && counts.discarded_blocks == 0, "{counts:?}");

    let back = dir.path().join("back");
    // Somebody put a link where the copy is made first: what it leads to is not written to.
    let foreign = dir.path().join("foreign");
    std::fs::write(&foreign, "foreign").unwrap();
    std::os::unix::fs::symlink(&foreign, dir.path().join("back.partial")).unwrap();
    let report = copy(&ends(&device), &Endpoint::File(back.clone()), options, &mut quiet).unwrap();
    assert_eq!(std::fs::read(&foreign).unwrap(), b"foreign");
    assert_eq!(back.symlink_metadata().unwrap().mode() & 0o7777, 0o600, "it is for its owner alone");
    assert_eq!(report.sums.crc64, strongroom_block::keyless_checksum(&original));
    assert_eq!(std::fs::read(&back).unwrap(), original);
    assert!(back.metadata().unwrap().blocks() * 512 < SIZE / 2, "the file is sparse");
}

#[test]
fn blocks_of_zeros_become_absent_where_that_is_asked_for() {
    let (from, to) = (volume(SIZE, 4096), volume(SIZE, 4096));
    for lba in [1, 3, 300] {
        write_blocking(&*from, Lba(lba), Buffer::copy_from(&[lba as u8; 4096]), false).unwrap();
    }
    write_blocking(&*from, Lba(2), Buffer::copy_from(&[0; 4096]), false).unwrap();
    // Something that must vanish.
    write_blocking(&*to, Lba(2), Buffer::copy_from(&[9; 4096]), false).unwrap();
    let options = CopyOptions { sha256: true, verify: true, sparse: true, ..CopyOptions::default() };
    let report = copy(&ends(&from), &ends(&to), options, &mut quiet).unwrap();
    assert_eq!((report.data_bytes, report.bytes), (3 * 4096, SIZE));
    assert_eq!(to.counts().blocks_present, 3);
}

#[test]
fn volumes_of_different_blocks() {
    let (from, to) = (volume(SIZE, 512), volume(SIZE, 65536));
    write_blocking(&*from, Lba(1), Buffer::copy_from(&[7; 512]), false).unwrap();
    write_blocking(&*from, Lba(5000), Buffer::copy_from(&[8; 1024]), false).unwrap();
    // Something that must vanish.
    write_blocking(&*to, Lba(100), Buffer::copy_from(&vec![9; 65536]), false).unwrap();
    copy(&ends(&from), &ends(&to), CopyOptions { verify: true, ..CopyOptions::default() }, &mut quiet).unwrap();
    let all = |device: &MemoryDevice| read_blocking(device, Lba(0), device.geometry().blocks).unwrap().to_vec();
    assert!(all(&from) == all(&to));
    assert!(to.counts().discarded_blocks > 0);
}

#[test]
fn sizes_that_do_not_fit_are_refused_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::write(&path, vec![1; 10_000]).unwrap();
    let small = volume(8192, 4096);
    let error = copy(&Endpoint::File(path.clone()), &ends(&small), CopyOptions::default(), &mut quiet).unwrap_err();
    assert!(matches!(error, CopyError::TooLarge { .. }), "{error}");
    let large = volume(1 << 20, 4096);
    let error = copy(&Endpoint::File(path.clone()), &ends(&large), CopyOptions::default(), &mut quiet).unwrap_err();
    assert!(error.to_string().contains("truncate -s 12288"), "{error}");
    std::fs::write(&path, vec![1; 12_288]).unwrap();
    let error = copy(&Endpoint::File(path.clone()), &ends(&large), CopyOptions::default(), &mut quiet).unwrap_err();
    assert!(error.to_string().contains("--allow-smaller"), "{error}");
    assert_eq!((small.counts().blocks_present, large.counts().blocks_present), (0, 0));
    let options = CopyOptions { allow_smaller: true, verify: true, ..CopyOptions::default() };
    assert!(copy(&Endpoint::File(path.clone()), &ends(&large), options, &mut quiet).unwrap().verified);
    let error = copy(&ends(&large), &Endpoint::File(path), CopyOptions::default(), &mut quiet).unwrap_err();
    assert!(error.to_string().contains("--overwrite"), "{error}");
}

#[test]
fn a_bad_block_and_an_interruption_end_it() {
    let dir = tempfile::tempdir().unwrap();
    let from = volume(SIZE, 4096);
    write_blocking(&*from, Lba(0), Buffer::copy_from(&vec![5; SIZE as usize]), false).unwrap();
    let file = Endpoint::File(dir.path().join("out"));
    from.fail_at(Lba(1000), DeviceErrorKind::Medium);
    let options = CopyOptions { overwrite: true, ..CopyOptions::default() };
    match copy(&ends(&from), &file, options, &mut quiet).unwrap_err() {
        CopyError::Source(error) => assert_eq!((error.kind, error.lba), (DeviceErrorKind::Medium, Some(Lba(1000)))),
        other => panic!("{other}"),
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing that looks like a whole copy is left");
}

#[test]
fn a_destination_that_lies_is_found_out() {
    struct Lying(MemoryDevice);
    impl BlockDevice for Lying {
        fn geometry(&self) -> Geometry {
            self.0.geometry()
        }
        fn submit(&self, token: strongroom_block::Token, request: strongroom_block::Request) {
            use strongroom_block::Request as R;
            match request {
                R::Write { lba, fua, .. } if lba == Lba(0) => {
                    self.0.submit(token, R::Write { lba, data: Buffer::copy_from(&[0xEE; 4096]), fua });
                }
                other => self.0.submit(token, other),
            }
        }
        fn poll_completions(&self, completions: &mut Vec<strongroom_block::Completion>) -> usize {
            self.0.poll_completions(completions)
        }
        fn wait(&self, timeout: Option<Duration>) -> bool {
            self.0.wait(timeout)
        }
    }
    impl SparseDevice for Lying {
        fn hole_at(&self, _: Lba, _: u64) -> Result<u64, DeviceError> {
            Ok(0)
        }
    }
    let from = volume(4096, 4096);
    write_blocking(&*from, Lba(0), Buffer::copy_from(&[1; 4096]), false).unwrap();
    let to = Endpoint::Volume(Arc::new(Lying(MemoryDevice::new(from.geometry()))));
    let options = CopyOptions { verify: true, ..CopyOptions::default() };
    assert!(matches!(copy(&ends(&from), &to, options, &mut quiet), Err(CopyError::Differs { .. })));
}

fn note(dir: &std::path::Path) -> Resume {
    let node = strongroom_handshake::NodeKey::from_seed(&[3; 32]);
    let mut resume = Resume::new(dir.join("note"), &node, "source", "destination");
    (resume.every_bytes, resume.every) = (2 << 20, Duration::from_secs(3600));
    resume
}

#[test]
fn a_copy_goes_on_where_it_was_interrupted() {
    const LARGE: u64 = 64 << 20;
    for sha256 in [false, true] {
        for to_file in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let from = volume(LARGE, 4096);
            for at in (0..LARGE / 4096).filter(|at| at % 1024 < 700) {
                let mark = (at / 256) as u8 + 1;
                write_blocking(&*from, Lba(at), Buffer::copy_from(&[mark; 4096]), false).unwrap();
            }
            let device = volume(LARGE, 4096);
            let path = dir.path().join("out");
            let to = if to_file { Endpoint::File(path.clone()) } else { ends(&device) };
            let resume = note(dir.path());
            let options = CopyOptions { sha256, ..CopyOptions::default() };
            // It ends at a block that cannot be read, and starts again when that can.
            from.fail_at(Lba(10_000), DeviceErrorKind::Medium);
            let error = copy_resumable(&ends(&from), &to, options, Some(&resume), &mut quiet).unwrap_err();
            assert!(matches!(error, CopyError::Source(_)), "{error}");
            from.heal();
            let noted = resume.read(LARGE).unwrap().unwrap();
            assert!((2 << 20..=10_000 * 4096).contains(&noted.done_bytes), "{noted:?}");
            assert!(!path.exists(), "what is not whole does not look so");
            let all = CopyOptions { verify: true, ..options };
            let report = copy_resumable(&ends(&from), &to, all, Some(&resume), &mut quiet).unwrap();
            assert!(report.verified && report.bytes == LARGE, "{report:?}");
            let whole = read_blocking(&*from, Lba(0), LARGE / 4096).unwrap();
            assert_eq!(report.sums.crc64, strongroom_block::keyless_checksum(&whole), "of the whole, not of the rest");
            assert_eq!(report.sums.sha256.is_some(), sha256);
            let copied = if to_file {
                std::fs::read(&path).unwrap()
            } else {
                read_blocking(&*device, Lba(0), LARGE / 4096).unwrap().to_vec()
            };
            assert!(copied == whole[..]);
            assert!(!dir.path().join("note").exists());
        }
    }
}

#[test]
fn a_resumed_copy_believes_its_note_only_as_far_as_the_ends_agree() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (volume(SIZE, 4096), volume(SIZE, 4096));
    write_blocking(&*from, Lba(0), Buffer::copy_from(&vec![5; SIZE as usize]), false).unwrap();
    let resume = note(dir.path());
    let mut contents = Contents::new(false);
    contents.add(&vec![5; 4 << 20]);
    let noted = Noted { done_bytes: 4 << 20, hole_bytes: 0, crc64: contents.crc64() };
    resume.write(SIZE, noted).unwrap();
    copy_resumable(&ends(&from), &ends(&to), CopyOptions::default(), Some(&resume), &mut quiet).unwrap();
    let first = read_blocking(&*to, Lba(0), 1).unwrap();
    assert!(first.iter().all(|byte| *byte == 0), "what is noted is not copied again");
    // With a SHA-256 the source is read again, and found to be another.
    resume.write(SIZE, noted).unwrap();
    write_blocking(&*from, Lba(7), Buffer::copy_from(&[6; 4096]), false).unwrap();
    let options = CopyOptions { sha256: true, ..CopyOptions::default() };
    let error = copy_resumable(&ends(&from), &ends(&to), options, Some(&resume), &mut quiet).unwrap_err();
    assert!(matches!(&error, CopyError::Note { problem, .. } if problem.contains("source holds now")), "{error}");
    // The file that was begun is gone.
    let file = Endpoint::File(dir.path().join("out"));
    let error = copy_resumable(&ends(&from), &file, CopyOptions::default(), Some(&resume), &mut quiet).unwrap_err();
    assert!(error.to_string().contains("not there any more"), "{error}");
}

#[test]
fn zero_is_told_from_almost_zero() {
    for len in [0, 1, 63, 64, 65, 4096, 10_000] {
        let mut data = vec![0; len];
        assert!(is_zero(&data));
        for at in [0, len / 2, len.saturating_sub(1)] {
            if at < len {
                data[at] = 1;
                assert!(!is_zero(&data), "{at} of {len}");
                data[at] = 0;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn any_pattern_of_blocks_is_copied(present in proptest::collection::vec((0u64..2048, any::<u8>()), 0..40)) {
        let (from, to) = (volume(SIZE, 4096), volume(SIZE, 4096));
        for &(lba, mark) in &present {
            write_blocking(&*from, Lba(lba), Buffer::copy_from(&[mark; 4096]), false).unwrap();
            write_blocking(&*to, Lba(2047 - lba), Buffer::copy_from(&[mark ^ 0x55; 4096]), false).unwrap();
        }
        let report = copy(&ends(&from), &ends(&to), CopyOptions::default(), &mut quiet).unwrap();
        let all = read_blocking(&*from, Lba(0), 2048).unwrap();
        prop_assert!(all[..] == read_blocking(&*to, Lba(0), 2048).unwrap()[..]);
        prop_assert_eq!(report.sums.crc64, strongroom_block::keyless_checksum(&all));
    }
}
