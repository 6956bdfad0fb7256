//! The demo's input: real files of this machine, copied and compared by checksum. Absent: where they go.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use aws_lc_rs::digest::{Context as Digest, SHA256};

use super::search::CANARY_BYTES;
use super::stage::Stage;

/// Where real files are found on every Debian.
const SOURCES: [&str; 2] = ["/usr/share", "/usr/lib"];
/// Smallest and largest file to take, in bytes.
const FILE_BYTES: std::ops::RangeInclusive<u64> = 512..=24 << 20;
/// Canaries to take from each file at most.
const CANARIES_PER_FILE: u64 = 4;
/// Different byte values that make a piece of a file a canary: not zeros, not padding.
const CANARY_VALUES_MIN: usize = 14;

/// The same for its first eight bytes, which the search looks at first.
const START_VALUES_MIN: usize = 5;

/// A file's content, for comparing.
pub(super) type Checksum = [u8; 32];

/// Files to copy, with their sizes.
pub(super) struct Input {
    files: Vec<(PathBuf, u64)>,
}

impl Input {
    /// Chooses real files of together about `bytes_wanted`, half from each source as far as it has them.
    pub(super) fn choose(stage: &Stage, bytes_wanted: u64) -> Result<Input> {
        let mut files = Vec::new();
        let mut bytes = 0;
        for (index, source) in SOURCES.iter().enumerate() {
            let until = bytes_wanted * (index as u64 + 1) / SOURCES.len() as u64;
            collect(stage, Path::new(source), until, &mut files, &mut bytes)?;
        }
        if files.len() < 10 {
            bail!("found only {} files in {}; the demo needs a machine with some", files.len(), SOURCES.join(" and "));
        }
        Ok(Input { files })
    }

    /// How many.
    pub(super) fn count(&self) -> usize {
        self.files.len()
    }

    /// Their sizes together.
    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Copies all of them below `destination` and returns the checksum of each, by its path there.
    pub(super) fn copy_to(&self, stage: &Stage, destination: &Path) -> Result<BTreeMap<PathBuf, Checksum>> {
        let mut checksums = BTreeMap::new();
        for (path, _) in &self.files {
            stage.check()?;
            let relative = path.strip_prefix("/").expect("sources are absolute").to_owned();
            let to = destination.join(&relative);
            fs::create_dir_all(to.parent().expect("below the destination"))?;
            let mut out = File::create(&to).with_context(|| format!("cannot create {}", to.display()))?;
            let checksum = read_whole(path, |piece| out.write_all(piece))?;
            checksums.insert(relative, checksum);
        }
        Ok(checksums)
    }

    /// Distinctive pieces of the files, evenly spread, to search for later.
    pub(super) fn canaries(&self) -> Result<Vec<[u8; CANARY_BYTES]>> {
        let mut canaries = Vec::new();
        for (path, bytes) in &self.files {
            let file = File::open(path)?;
            for number in 0..CANARIES_PER_FILE {
                let mut piece = [0; CANARY_BYTES];
                let at = (bytes - CANARY_BYTES as u64) * number / CANARIES_PER_FILE;
                std::os::unix::fs::FileExt::read_exact_at(&file, &mut piece, at)?;
                if different_values(&piece) >= CANARY_VALUES_MIN && different_values(&piece[..8]) >= START_VALUES_MIN {
                    canaries.push(piece);
                }
            }
        }
        canaries.sort_unstable();
        canaries.dedup();
        Ok(canaries)
    }
}

fn different_values(bytes: &[u8]) -> usize {
    let mut values = bytes.to_vec();
    values.sort_unstable();
    values.dedup();
    values.len()
}

fn collect(
    stage: &Stage,
    directory: &Path,
    bytes_until: u64,
    files: &mut Vec<(PathBuf, u64)>,
    bytes: &mut u64,
) -> Result<()> {
    stage.check()?;
    let Ok(listing) = fs::read_dir(directory) else { return Ok(()) };
    let mut entries: Vec<_> = listing.filter_map(Result::ok).collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        if *bytes >= bytes_until {
            return Ok(());
        }
        let Ok(metadata) = entry.metadata() else { continue };
        if metadata.is_dir() {
            collect(stage, &entry.path(), bytes_until, files, bytes)?;
        } else if metadata.is_file() && FILE_BYTES.contains(&metadata.size()) && File::open(entry.path()).is_ok() {
            *bytes += metadata.size();
            files.push((entry.path(), metadata.size()));
        }
    }
    Ok(())
}

/// The checksum of every file below `root`, by its path there.
pub(super) fn checksums(
    stage: &Stage,
    root: &Path,
    paths: impl Iterator<Item = PathBuf>,
) -> Result<BTreeMap<PathBuf, Checksum>> {
    let mut checksums = BTreeMap::new();
    for path in paths {
        stage.check()?;
        let checksum = read_whole(&root.join(&path), |_| Ok(()))?;
        checksums.insert(path, checksum);
    }
    Ok(checksums)
}

/// Reads a file from start to end and returns its checksum.
pub(super) fn read_whole(path: &Path, mut each: impl FnMut(&[u8]) -> std::io::Result<()>) -> Result<Checksum> {
    let mut file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut digest = Digest::new(&SHA256);
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut buffer).with_context(|| format!("cannot read {}", path.display()))?;
        if read == 0 {
            return Ok(digest.finish().as_ref().try_into().expect("SHA-256 is 32 bytes"));
        }
        digest.update(&buffer[..read]);
        each(&buffer[..read]).with_context(|| format!("cannot write what {} holds", path.display()))?;
    }
}
