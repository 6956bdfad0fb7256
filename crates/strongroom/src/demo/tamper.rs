//! The hostile hand at the target's disk: finds where the newest version of a block was stored, and flips one bit there.
//!
//! Knows the store only from outside, as a thief would: a write appends whole blocks, and a sealed block's keyless
//! checksum stands in its record next to it. Absent: any help from the store.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use strongroom_block::keyless_checksum;

/// Checksums of a directory's files, block by block: enough to see what changed.
pub(super) struct Snapshot {
    block_bytes: usize,
    blocks: BTreeMap<PathBuf, Vec<u64>>,
}

/// One block of a file.
pub(super) struct StoredBlock {
    /// The file.
    pub(super) path: PathBuf,
    /// Where it is, in bytes.
    pub(super) offset: u64,
}

impl Snapshot {
    /// Looks at every file below `directory`.
    pub(super) fn take(directory: &Path, block_bytes: usize) -> Result<Snapshot> {
        let mut snapshot = Snapshot { block_bytes, blocks: BTreeMap::new() };
        for path in files_below(directory)? {
            let mut checksums = Vec::new();
            each_block(&path, block_bytes, |_, block| checksums.push(keyless_checksum(block)))?;
            snapshot.blocks.insert(path, checksums);
        }
        Ok(snapshot)
    }

    /// The one sealed block that was stored below `directory` since.
    ///
    /// # Errors
    /// If there is none, or more than one.
    pub(super) fn find_new_block(&self, directory: &Path) -> Result<StoredBlock> {
        let mut changed: Vec<(StoredBlock, Vec<u8>)> = Vec::new();
        for path in files_below(directory)? {
            let known = self.blocks.get(&path).map_or(&[][..], Vec::as_slice);
            each_block(&path, self.block_bytes, |index, block| {
                if known.get(index) != Some(&keyless_checksum(block)) {
                    let offset = (index * self.block_bytes) as u64;
                    changed.push((StoredBlock { path: path.clone(), offset }, block.to_vec()));
                }
            })?;
        }
        let named_by_a_record = |block: &[u8]| {
            let checksum = keyless_checksum(block);
            let forms = [checksum.to_be_bytes(), checksum.to_le_bytes()];
            changed.iter().any(|(_, other)| other != block && other.windows(8).any(|w| forms.iter().any(|f| w == f)))
        };
        let mut found: Vec<_> =
            changed.iter().filter(|(_, block)| named_by_a_record(block)).map(|(at, _)| at).collect();
        match (found.pop(), found.len()) {
            (Some(at), 0) => Ok(StoredBlock { path: at.path.clone(), offset: at.offset }),
            (None, _) => bail!("{} stored blocks changed, none of them sealed data", changed.len()),
            (Some(_), more) => bail!("{} sealed blocks were stored where one was written", more + 1),
        }
    }
}

impl StoredBlock {
    /// Flips one bit in the middle of the block.
    pub(super) fn flip_a_bit(&self, block_bytes: usize) -> Result<()> {
        let file = File::options().read(true).write(true).open(&self.path)?;
        let at = self.offset + block_bytes as u64 / 2;
        let mut byte = [0];
        file.read_exact_at(&mut byte, at)?;
        byte[0] ^= 0x10;
        file.write_all_at(&byte, at).with_context(|| format!("cannot write to {}", self.path.display()))
    }
}

fn files_below(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))? {
        let entry = entry?;
        match entry.file_type()? {
            kind if kind.is_dir() => files.extend(files_below(&entry.path())?),
            kind if kind.is_file() => files.push(entry.path()),
            _ => {}
        }
    }
    files.sort();
    Ok(files)
}

/// Every whole block of a file that may be sparse; blocks of its holes are passed over as the zeros that they are.
fn each_block(path: &Path, block_bytes: usize, mut each: impl FnMut(usize, &[u8])) -> Result<()> {
    const BLOCKS_AT_ONCE: usize = 256;
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut buffer = vec![0; block_bytes * BLOCKS_AT_ONCE];
    let mut index = 0;
    loop {
        let read = file.read_at(&mut buffer, (index * block_bytes) as u64)?;
        if read < block_bytes {
            return Ok(());
        }
        for block in buffer[..read].chunks_exact(block_bytes) {
            each(index, block);
            index += 1;
        }
    }
}
