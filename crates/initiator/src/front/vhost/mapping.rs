//! Files that the front end shares, mapped into this process.

#![allow(unsafe_code)] // munlock takes a pointer.

use std::fs::File;
use std::io;

use vm_memory::{FileOffset, MmapRegion};

/// Why a file is not mapped.
#[derive(Debug, thiserror::Error)]
pub(super) enum MappingError {
    #[error("a file that the front end shares has {len_bytes} bytes, and should have {end} at least")]
    Short { len_bytes: u64, end: u64 },
    #[error(
        "a file that the front end shares cannot be mapped: {0}; a limit of locked memory (ulimit -l) counts shared memory too"
    )]
    Map(#[from] vm_memory::mmap::MmapRegionError),
    #[error("a file that the front end shares cannot be mapped: {0}")]
    File(#[from] io::Error),
    #[error("the front end shares more than there are addresses")]
    Addresses,
}

/// Maps a part of a file that is as long as it has to be: access beyond its end would end this process.
pub(super) fn map(file: File, offset: u64, len_bytes: u64) -> Result<MmapRegion, MappingError> {
    let end = offset.checked_add(len_bytes).ok_or(MappingError::Addresses)?;
    let metadata = file.metadata()?;
    if metadata.is_file() && metadata.len() < end {
        return Err(MappingError::Short { len_bytes: metadata.len(), end });
    }
    let len = usize::try_from(len_bytes).map_err(|_| MappingError::Addresses)?;
    Ok(MmapRegion::from_file(FileOffset::new(file, offset), len)?)
}

/// Maps a guest's memory. Where this process locks its own memory, the guest's is not locked along with it.
pub(super) fn map_guest(file: File, offset: u64, len_bytes: u64) -> Result<MmapRegion, MappingError> {
    let region = map(file, offset, len_bytes)?;
    // SAFETY: the range is one mapping, which is there; to unlock it changes nothing that is in it.
    let unlocked = unsafe { rustix::mm::munlock(region.as_ptr().cast(), region.size()) };
    if let Err(error) = unlocked {
        tracing::warn!(%error, "memory of the guest stays locked");
    }
    Ok(region)
}
